package web

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
	"berth.dev/berth/kernel/resctrl"
	"berth.dev/berth/machine"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/proc"
)

// Hardware tells the counters of the machine, such as a reader of resctrl or of
// perf events.
type Hardware interface {
	// Sample appends the host's LLCOccupancy, Bandwidth and BandwidthLocal by Cache,
	// its Cycles and Instructions, all or by CPU, and EnergyPackages and EnergyMemory.
	// What the machine does not give is left out.
	Sample(to []watch.Sample) []watch.Sample
	// Why says why a quantity is absent, as a kernel.NotSupportedError, or nil where
	// that is not known.
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
		for name, part := range map[string]cpuset.Set{
			"berth_allowed_cpus": m.Config.Allowed, "berth_shared_cpus": m.Shared, "berth_exclusive_cpus": own, "berth_fenced_cpus": fence, "berth_free_cpus": free,
		} {
			s.gauge(name, float64(part.Intersect(cpus).Len()), node)
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

// host reads the host's own figures, at most once a second, and keeps what is known
// of the last two readings.
type host struct {
	root     fs.FS
	hardware Hardware
	now      func() time.Time

	mu     sync.Mutex
	began  time.Time
	levels watch.Levels
	last   reading
}

// reading is what one instant told. What was not there is missing.
type reading struct {
	at        time.Time
	values    map[watch.Quantity]float64 // of the whole host
	rates     map[watch.Quantity]float64 // of counters, since the reading before
	occupancy map[int]float64            // by cache
	classes   *resctrl.Tree              // nil without any
	signals   []signal
}

// signal is what a host tells, or the error that says why not.
type signal struct {
	name string
	err  error
}

// read returns the last reading, and takes one if that is old.
func (h *host) read() reading {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	if h.last.at.IsZero() {
		h.began = now
	}
	if h.last.at.IsZero() || now.Sub(h.last.at) >= time.Second {
		h.last = h.take(now)
	}
	return h.last
}

// pressures are the resources of /proc/pressure, with the quantities of their two lines.
func pressures() map[string][2]watch.Quantity {
	return map[string][2]watch.Quantity{
		"cpu": {watch.CPUSome, watch.CPUFull}, "memory": {watch.MemorySome, watch.MemoryFull}, "io": {watch.IOSome, watch.IOFull},
	}
}

func (h *host) take(now time.Time) reading {
	r := reading{at: now, values: map[watch.Quantity]float64{}, rates: map[watch.Quantity]float64{}, occupancy: map[int]float64{}}
	stat, err := proc.ReadStat(h.root)
	if stat.Ctxt != nil {
		r.values[watch.Switches] = float64(*stat.Ctxt)
	}
	r.tell("context switches", stat.Ctxt != nil, err)
	for resource, of := range pressures() {
		p, err := proc.ReadPressure(h.root, "proc/pressure/"+resource)
		if p.HasSome {
			r.values[of[0]] = p.Some.Seconds()
		}
		if p.HasFull && resource != "cpu" { // always 0 for the host as a whole
			r.values[of[1]] = p.Full.Seconds()
		}
		r.tell(resource+" pressure", err == nil, err)
	}
	r.classes, err = resctrl.Read(h.root)
	r.tell("cache classes", err == nil, err)
	r.count(h.hardware)
	h.levels.Tick(watch.Time(now.Sub(h.began)), r.values)
	for q := range r.values {
		if rate, ok := h.levels.Level(q); ok {
			r.rates[q] = rate
		}
	}
	return r
}

// count reads the counters of the machine.
func (r *reading) count(hw Hardware) {
	var samples []watch.Sample
	why := func(watch.Quantity) error {
		return &kernel.NotSupportedError{Feature: "hardware counters", Reason: "this agent has no reader of them"}
	}
	if hw != nil {
		samples, why = hw.Sample(nil), hw.Why
	}
	for _, s := range samples {
		if s.Quantity == watch.LLCOccupancy {
			r.occupancy[s.Subject.Part.ID] = s.Value
		} else {
			r.values[s.Quantity] += s.Value
		}
	}
	has := func(q watch.Quantity) bool { _, ok := r.values[q]; return ok }
	r.tell("llc occupancy", len(r.occupancy) > 0, why(watch.LLCOccupancy))
	r.tell("memory bandwidth", has(watch.Bandwidth), why(watch.Bandwidth))
	r.tell("energy", has(watch.EnergyPackages), why(watch.EnergyPackages))
	r.tell("instructions per cycle", has(watch.Cycles) && has(watch.Instructions), cmp.Or(why(watch.Cycles), why(watch.Instructions)))
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

// node shows the host's own figures.
func (s scrape) node() {
	r := s.host.read()
	for resource, of := range pressures() {
		for i, name := range []string{"node_pressure_%s_waiting_seconds_total", "node_pressure_%s_stalled_seconds_total"} {
			if v, ok := r.values[of[i]]; ok {
				s.counter(fmt.Sprintf(name, resource), v)
			}
		}
	}
	for cache, bytes := range r.occupancy {
		s.gauge("node_llc_occupancy_bytes", bytes, strconv.Itoa(cache))
	}
	if r.classes != nil {
		s.classes(r.classes)
	}
	for of, q := range map[string]watch.Quantity{"packages": watch.EnergyPackages, "memory": watch.EnergyMemory} {
		if joules, ok := r.values[q]; ok {
			s.counter("node_energy_joules_total", joules, of)
		}
	}
	if rate, ok := r.rates[watch.Switches]; ok {
		s.gauge("node_context_switches_per_second", rate)
	}
	all, ok := r.rates[watch.Bandwidth]
	local, split := r.rates[watch.BandwidthLocal]
	switch {
	case ok && split:
		s.gauge("node_memory_bandwidth_bytes_per_second", local, "local")
		s.gauge("node_memory_bandwidth_bytes_per_second", max(all-local, 0), "remote")
	case ok:
		s.gauge("node_memory_bandwidth_bytes_per_second", all, "any")
	}
	instructions, ok := r.rates[watch.Instructions]
	if cycles := r.rates[watch.Cycles]; ok && cycles > 0 {
		s.gauge("node_ipc", instructions/cycles)
	}
}

// signals shows what is there and why the rest is not.
func (s scrape) signals() {
	for _, sig := range s.host.read().signals {
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
	s.gauge("berth_signal_available", truth(err == nil), scope, name, label(reason))
}
