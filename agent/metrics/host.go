package metrics

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"sync"
	"time"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/machine"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/procstat"
	"berth.dev/berth/watch/psi"
)

// Hardware tells the counters of the machine, such as a reader of resctrl or of
// perf events.
type Hardware interface {
	// Sample appends the host's LLCOccupancy, Bandwidth and BandwidthLocal by Cache,
	// and its Cycles and Instructions, all or by CPU. What the machine does not give
	// is left out.
	Sample(to []watch.Sample) ([]watch.Sample, error)
	// Why says why there was none of a quantity, as a kernel.NotSupportedError; nil
	// where that is not known.
	Why(q watch.Quantity) error
}

// Signaller says for each signal of workloads whether it is there: nil, or why not.
type Signaller interface {
	Signals() map[string]error
}

// cpus shows how the CPUs are divided. Where the kernel knows no NUMA, all are of
// node "".
func (s scrape) cpus(m api.Machine) {
	var own, fence cpuset.Set
	for i := range m.Owners {
		own, fence = own.Union(m.Owners[i].Own), fence.Union(m.Owners[i].Fence)
	}
	free := m.Shared.Minus(m.Config.Floor).Minus(m.Config.Reserved)
	show := func(node string, cpus cpuset.Set) {
		for _, part := range []struct {
			name string
			cpus cpuset.Set
		}{
			{allowedCPUs, m.Config.Allowed}, {sharedCPUs, m.Shared}, {exclusiveCPUs, own}, {fencedCPUs, fence}, {freeCPUs, free},
		} {
			s.gauge(part.name, float64(part.cpus.Intersect(cpus).Len()), node)
		}
	}
	nodes := m.Machine.ByKind(machine.Node)
	if len(nodes) == 0 {
		show("", m.Machine.Online)
	}
	for _, d := range nodes {
		show(strconv.Itoa(d.ID), d.CPUs)
	}
}

// host reads the host's own figures, at most once in interval, and keeps the last
// two readings.
type host struct {
	root     fs.FS
	hardware Hardware
	interval time.Duration
	now      func() time.Time

	mu           sync.Mutex
	last, before reading
}

// reading is what one instant told. What was not there is nil or missing.
type reading struct {
	at           time.Time
	switches     *uint64
	pressure     map[string]psi.Pressure // by resource
	occupancy    map[int]float64         // by cache
	bandwidth    *float64
	local        *float64
	cycles       *float64
	instructions *float64
	signals      []signal
}

// signal is what a host tells, or the error that says why not.
type signal struct {
	name string
	err  error
}

// read returns the last two readings, and takes one if the last is old.
func (h *host) read() (last, before reading) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := h.now(); h.last.at.IsZero() || now.Sub(h.last.at) >= h.interval {
		h.before, h.last = h.last, h.take(now)
	}
	return h.last, h.before
}

func (h *host) take(now time.Time) reading {
	r := reading{at: now, pressure: map[string]psi.Pressure{}, occupancy: map[int]float64{}}
	stat, err := procstat.Read(h.root)
	r.switches = stat.Ctxt
	r.tell("context switches", r.switches != nil, err)
	for _, resource := range []string{"cpu", "memory", "io"} {
		p, err := psi.Read(h.root, "proc/pressure/"+resource)
		if err == nil {
			r.pressure[resource] = p
		}
		r.tell(resource+" pressure", err == nil, err)
	}
	r.count(h.hardware)
	return r
}

// count reads the counters of the machine.
func (r *reading) count(hw Hardware) {
	var samples []watch.Sample
	var err error
	why := func(watch.Quantity) error {
		return &kernel.NotSupportedError{Feature: "hardware counters", Reason: "this agent has no reader of them"}
	}
	if hw != nil {
		samples, err = hw.Sample(nil)
		why = func(q watch.Quantity) error { return cmp.Or(hw.Why(q), err) }
	}
	for _, s := range samples {
		switch s.Quantity {
		case watch.LLCOccupancy:
			r.occupancy[s.Subject.Part.ID] = s.Value
		case watch.Bandwidth:
			add(&r.bandwidth, s.Value)
		case watch.BandwidthLocal:
			add(&r.local, s.Value)
		case watch.Cycles:
			add(&r.cycles, s.Value)
		case watch.Instructions:
			add(&r.instructions, s.Value)
		}
	}
	r.tell("llc occupancy", len(r.occupancy) > 0, why(watch.LLCOccupancy))
	r.tell("memory bandwidth", r.bandwidth != nil, why(watch.Bandwidth))
	r.tell("instructions per cycle", r.cycles != nil && r.instructions != nil, cmp.Or(why(watch.Cycles), why(watch.Instructions)))
}

func add(sum **float64, value float64) {
	if *sum == nil {
		*sum = new(float64)
	}
	**sum += value
}

// tell notes whether a signal is there.
func (r *reading) tell(name string, there bool, err error) {
	switch {
	case there:
		err = nil
	case err == nil:
		err = errors.New("the host does not tell it")
	}
	r.signals = append(r.signals, signal{name, err})
}

// rise is how much a counter grew; ok is false if it is not known or went back.
func rise[T float64 | uint64](before, last *T) (by float64, ok bool) {
	if before == nil || last == nil || *last < *before {
		return 0, false
	}
	return float64(*last - *before), true
}

// node shows the host's own figures.
func (s scrape) node() {
	last, before := s.host.read()
	for resource, p := range last.pressure {
		if p.HasSome {
			s.counter(fmt.Sprintf(nodeWaiting, resource), p.Some.Total.Seconds())
		}
		if p.HasFull && resource != "cpu" { // always 0 for the host as a whole
			s.counter(fmt.Sprintf(nodeStalled, resource), p.Full.Total.Seconds())
		}
	}
	for cache, bytes := range last.occupancy {
		s.gauge(nodeLLC, bytes, strconv.Itoa(cache))
	}
	elapsed := last.at.Sub(before.at).Seconds()
	if n, ok := rise(before.switches, last.switches); ok {
		s.gauge(nodeSwitches, n/elapsed)
	}
	all, ok := rise(before.bandwidth, last.bandwidth)
	local, split := rise(before.local, last.local)
	switch {
	case ok && split:
		s.gauge(nodeBandwidth, local/elapsed, "local")
		s.gauge(nodeBandwidth, max(all-local, 0)/elapsed, "remote")
	case ok:
		s.gauge(nodeBandwidth, all/elapsed, "any")
	}
	instructions, ok := rise(before.instructions, last.instructions)
	if cycles, also := rise(before.cycles, last.cycles); ok && also && cycles > 0 {
		s.gauge(nodeIPC, instructions/cycles)
	}
}

// signals shows what is there and why the rest is not.
func (s scrape) signals() {
	last, _ := s.host.read()
	for _, sig := range last.signals {
		s.signal("node", sig.name, sig.err)
	}
	if v, ok := s.view.(Signaller); ok {
		for name, err := range v.Signals() {
			s.signal("workload", name, err)
		}
	}
}

func (s scrape) signal(scope, name string, err error) {
	reason := ""
	var missing *kernel.NotSupportedError
	switch {
	case errors.As(err, &missing):
		reason = missing.Reason
	case err != nil:
		reason = err.Error()
	}
	s.gauge(signalAvailable, truth(err == nil), scope, name, label(reason))
}
