// Package detect finds which workload on a host suffers, from what, and because of which
// group: samples in, findings out.
//
// It looks at windows of one second. In each, a workload's signals are compared
// with fixed thresholds and with what is usual for that workload at that load,
// and the symptoms that stand out are attributed. Three of the last five
// windows must agree before there is a Finding. A neighbour is accused only on
// evidence against it, never while throttling or steal explain the symptom or
// are unknown, and never because something is missing. docs/guard.md has the
// rules and how well they do.
//
// It is pure and deterministic. Reading samples is left to watch/..., doing
// something about a finding to others.
package detect

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/watch"
)

const (
	lookBack = 5  // windows that are looked at for a finding
	agree    = 3  // of them that must agree
	memory   = 60 // windows over which CPU use is correlated
	// patience is after how many windows that were unusual, without a finding,
	// the unusual is taken for the new normal.
	patience = 600
	// afterthought is how long a level by whose growth suspects are found takes to
	// become usual, 10 windows at least: reclaim begins seconds after the growth.
	afterthought = 10 * watch.Second
)

// Config says what is known about the host. Its zero value works.
type Config struct {
	// Machine is the hardware; nil where it is unknown, and nothing is said about
	// SMT and NUMA then.
	Machine *machine.Machine
	// PeakBandwidth is how many bytes per second can go to and from memory for
	// one last-level cache; 0 is unknown, and nothing is said about memory
	// bandwidth then.
	PeakBandwidth float64
	// Window is the length of a window; 0 is one second. There should be a sample
	// of each quantity at least every window.
	Window watch.Time
	// Near is the length of short windows, in which sensitive workloads are looked at too
	// (Detector.Near), or 0.
	Near watch.Time
}

// Validate says what is wrong with the configuration.
func (c Config) Validate() error {
	var errs []error
	if c.Window < 0 || c.Near < 0 {
		errs = append(errs, fmt.Errorf("windows %v s and %v s: negative", c.Window.Seconds(), c.Near.Seconds()))
	}
	if !finite(c.PeakBandwidth) || c.PeakBandwidth < 0 {
		errs = append(errs, fmt.Errorf("peak bandwidth %v: not a number of bytes per second", c.PeakBandwidth))
	}
	if c.Machine != nil {
		errs = append(errs, c.Machine.Validate())
	}
	return errors.Join(errs...)
}

// Workload is a control group that the host is shared between. Groups below it
// are part of it.
type Workload struct {
	// Group is its path as in watch.Subject, or the name of a program (Name).
	Group string
	// CPUs are those it may run on; empty is all.
	CPUs cpuset.Set
	// Sensitive workloads are looked after. All are possible suspects.
	Sensitive bool
}

// Detector holds the recent samples and what was learnt. It is for one goroutine
// at a time.
type Detector struct {
	cfg       Config
	host      meters
	workloads []*workload // by group
	byGroup   map[string]*workload
	calm      bool      // there was a window in which nobody suffered
	near      *Detector // for short windows, nil without
}

type workload struct {
	Workload
	meters
	window
	cores    cpuset.Set // all CPUs of the cores that it may use, and how many cores
	numCores int
	baseline *Baseline           // nil until it is sensitive
	uses     ring                // CPU use by window
	excess   ring                // how far the CPU symptom was above its threshold, as a factor
	history  *[resources]history // nil until it is sensitive
	unusual  uint8               // a bit per window, the newest lowest: something was unusual
	pressed  uint8               // likewise: it was short of memory
	slow     uint8               // likewise: its instructions took longer than usual
	onset    watch.Time          // of that: the end of the last window before in which they did not
	pressure watch.Time          // the onset of pressure on its memory, likewise
	usualUse Mean                // CPU use in the windows from which the usual parts of its wait are known
	puzzled  int                 // unusual windows in a row without a finding
	seen     int                 // windows judged, up to lookBack
	// quotaUntil is until when its quota, which ran out, may explain what is seen.
	quotaUntil watch.Time
	// ownUntil likewise: a burst of its own, in which its threads waited for each other.
	ownUntil watch.Time
}

// history is what the last windows said about one resource.
type history struct {
	agree     uint8 // a bit per window, the newest lowest
	suspects  [lookBack]string
	shares    [lookBack]float64
	strengths [lookBack]float64 // of the symptom, in windows that agree
	against   [lookBack]float64 // of what speaks against the suspect, likewise
	last      verdict
}

// verdict is what one window says about one resource.
type verdict struct {
	suspect  string
	share    float64
	own      bool // it is the victim's own doing
	evidence []Evidence
	missing  []Signal
	probed   bool    // the run-queue probe tells of the suspect
	most     float64 // limits the strength against the suspect to what it has done; 0 does not
}

// New returns a Detector without workloads.
func New(c Config) (*Detector, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("new detector: %w", err)
	}
	if c.Window == 0 {
		c.Window = watch.Second
	}
	d := &Detector{cfg: c, byGroup: map[string]*workload{}}
	if c.Near > 0 {
		c.Window, c.Near = c.Near, 0
		d.near = &Detector{cfg: c, byGroup: map[string]*workload{}}
	}
	return d, nil
}

// Near judges the short windows, by samples of its own: what is usual depends on the length
// of a window. Its workloads are the sensitive ones. It is nil without Config.Near.
func (d *Detector) Near() *Detector { return d.near }

// Track adds a workload, or changes what is known of one. One that is added
// later counts as having started then.
func (d *Detector) Track(w Workload) {
	if d.near != nil && w.Sensitive {
		d.near.Track(w)
	}
	if known := d.byGroup[w.Group]; known != nil {
		if known.Workload != w {
			known.place(w, d.cfg.Machine)
		}
		return
	}
	added := &workload{}
	added.place(w, d.cfg.Machine)
	added.new = d.calm
	d.byGroup[w.Group] = added
	i, _ := slices.BinarySearchFunc(d.workloads, w.Group, func(w *workload, group string) int { return strings.Compare(w.Group, group) })
	d.workloads = slices.Insert(d.workloads, i, added)
}

func (w *workload) place(as Workload, m *machine.Machine) {
	w.Workload, w.cores, w.numCores = as, cpuset.Set{}, 0
	if as.Sensitive && w.baseline == nil {
		w.baseline, w.history = new(Baseline), new([resources]history)
	}
	if m == nil {
		return
	}
	for _, core := range m.ByKind(machine.Core) {
		if core.CPUs.Overlaps(w.CPUs) {
			w.cores = w.cores.Union(core.CPUs)
			w.numCores++
		}
	}
}

// Forget removes a workload and its baseline.
func (d *Detector) Forget(group string) {
	if d.near != nil {
		d.near.Forget(group)
	}
	delete(d.byGroup, group)
	d.workloads = slices.DeleteFunc(d.workloads, func(w *workload) bool { return w.Group == group })
}

// Observe takes in samples of the host and of tracked groups, those of one
// quantity in the order of time. One that is not later than the last, or not a
// finite number from zero on, counts as missing; others are ignored.
func (d *Detector) Observe(samples []watch.Sample) {
	var of watch.Subject // those of a group come one after the other
	var w *workload
	for i := range samples {
		s := &samples[i]
		if !finite(s.Value) || s.Value < 0 {
			continue
		}
		switch s.Subject.Scope {
		case watch.Host:
			d.host.add(s, s.By)
		case watch.Group, watch.Process:
			if s.Subject.Name != of.Name || s.Subject.Scope != of.Scope {
				of = s.Subject
				w = d.byGroup[Name(of)]
			}
			if w != nil {
				w.add(s, d.owner(s.By))
			}
		}
	}
}

// Usage returns the CPU time per second that a workload used between its last two samples,
// in CPUs, NaN if it is not known, and the memory that it had in use, in bytes, 0 if that is
// not known.
func (d *Detector) Usage(group string) (cpus float64, memory int64) {
	w := d.byGroup[group]
	if w == nil {
		return math.NaN(), 0
	}
	if at := w.find(watch.Memory, watch.Part{}, ""); at != nil {
		bytes, _, _ := at.series.Last(0)
		memory = int64(bytes)
	}
	return w.rate(watch.CPUTime), memory
}

// Traffic returns the bytes per second between a group's busiest last-level cache and memory
// by the last window; 0 where they are not known.
func (d *Detector) Traffic(group string) float64 {
	w := d.byGroup[group]
	if w == nil {
		return 0
	}
	at := w.busiest(watch.Bandwidth)
	if at == nil {
		return 0
	}
	v, _ := at.lately(w.from, w.to)
	if !(v > 0) {
		return 0
	}
	return v
}

// DeviceUse is what a workload reads and writes per second on one block device.
type DeviceUse struct {
	Device        string // "MAJOR:MINOR"
	Read, Written float64
}

// DeviceUse returns what a workload reads and writes per second, by rising device, over the
// last window or, where that is silent, the last ten.
func (d *Detector) DeviceUse(group string) (all []DeviceUse) {
	w := d.byGroup[group]
	if w == nil {
		return nil
	}
	of := map[int]*DeviceUse{}
	for i := range w.all {
		at := &w.all[i]
		if at.quantity != watch.IORead && at.quantity != watch.IOWritten || at.part.Kind != watch.Device {
			continue
		}
		use := of[at.part.ID]
		if use == nil {
			use = &DeviceUse{Device: at.part.String()}
			of[at.part.ID] = use
		}
		if v, _ := at.lately(w.from, w.to); v > 0 && at.quantity == watch.IORead {
			use.Read = v
		} else if v > 0 {
			use.Written = v
		}
	}
	for _, id := range slices.Sorted(maps.Keys(of)) {
		if of[id].Read > 0 || of[id].Written > 0 {
			all = append(all, *of[id])
		}
	}
	return all
}

// HostUse returns likewise the CPU time per second that everything used.
func (d *Detector) HostUse() float64 { return d.host.rate(watch.CPUTime) }

// owner returns the tracked group that a group is or lies below, else the group
// itself.
func (d *Detector) owner(group string) string {
	for at := group; at != ""; at = at[:max(strings.LastIndexByte(at, '/'), 0)] {
		if d.byGroup[at] != nil {
			return at
		}
	}
	return group
}

// Judge looks at the window that ends now and returns the findings, by victim, then
// resource. It is to be called once per window.
func (d *Detector) Judge(now watch.Time) []Finding {
	var findings []Finding
	from := now - d.cfg.Window
	pressed, slow := 0, 0 // of the last windows, those in which somebody was
	for _, w := range d.workloads {
		d.measure(w, from, now)
	}
	for _, w := range d.workloads {
		if !w.Sensitive {
			continue
		}
		d.judge(w)
		pressed = max(pressed, bits.OnesCount8(w.pressed))
		slow = max(slow, bits.OnesCount8(w.slow))
		findings = w.findings(findings)
		w.learn(len(findings) > 0 && findings[len(findings)-1].Victim == w.Group)
	}
	d.updateUsual(watch.Memory, pressed, from, now)
	d.updateUsual(watch.CPUTime, slow, from, now)
	d.updateUsual(watch.LLCOccupancy, slow, from, now)
	d.calm = d.calm || pressed < agree && slow < agree
	return findings
}

// updateUsual takes the window into what is usual of a quantity by whose growth suspects
// are found, given in how many of the last windows somebody was short of it: in
// none. From as many on as make a finding, what has not become usual yet never does.
func (d *Detector) updateUsual(q watch.Quantity, short int, from, now watch.Time) {
	later := max(int(afterthought/d.cfg.Window), 10)
	for _, w := range d.workloads {
		switch {
		case short == 0:
			w.updateUsual(q, from, now, later)
		case short >= agree:
			w.discard(q)
		}
	}
}

// judge files what the window says about each resource.
func (d *Detector) judge(w *workload) {
	w.seen = min(w.seen+1, lookBack)
	for i := range w.history {
		w.history[i].shift()
	}
	w.unusual = shift(w.unusual) | bit(d.diagnose(w))
	w.pressed = shift(w.pressed) | bit(w.stands(MemoryPressure))
	w.slow = shift(w.slow) | bit(w.stands(CPI))
	if w.slow&1 == 0 && bits.OnesCount8(w.slow) < agree {
		w.onset = w.to
	}
	if w.pressed&1 == 0 && bits.OnesCount8(w.pressed) < agree {
		w.pressure = w.to
	}
}

// shift makes room for the bit of a new window.
func shift(bits uint8) uint8 { return bits << 1 & (1<<lookBack - 1) }

func (h *history) shift() {
	h.agree = shift(h.agree)
	copy(h.suspects[1:], h.suspects[:])
	copy(h.shares[1:], h.shares[:])
	copy(h.strengths[1:], h.strengths[:])
	copy(h.against[1:], h.against[:])
}

// file notes that the window agrees with a verdict.
func (w *workload) file(r Resource, v verdict) {
	h := &w.history[r]
	h.agree |= 1
	h.suspects[0], h.shares[0], h.last = v.suspect, v.share, v
	h.strengths[0] = w.strength(r)
	if h.against[0] = h.strengths[0]; v.most > 0 {
		h.against[0] = min(h.against[0], v.most)
	}
}

// clear forgets all that was said about resources: something else explains it.
func (w *workload) clear(of ...Resource) {
	for _, r := range of {
		w.history[r].agree = 0
	}
}

// findings appends what enough windows agree on; last what others do without being
// told who.
func (w *workload) findings(to []Finding) []Finding {
	var untold []Finding
	for r := range w.history {
		h := &w.history[r]
		if bits.OnesCount8(h.agree) < agree {
			continue
		}
		suspect, agreeing, share := h.accused()
		f := Finding{
			Time: w.to, Victim: w.Group, Suspect: suspect, Resource: Resource(r), Agreeing: agreeing, Windows: w.seen, Share: share,
			Confidence: float64(agreeing+1) / float64(w.seen+2) * share,
			Evidence:   slices.Clone(h.last.evidence), Missing: slices.Clone(h.last.missing),
		}
		if suspect != h.last.suspect {
			f.Evidence = slices.DeleteFunc(f.Evidence, func(e Evidence) bool {
				return Name(e.Subject) != w.Group && e.Subject.Scope != watch.Host
			})
		}
		if !InNoGroup(suspect) {
			f.Remedies = RemediesFor(f.Resource, h.last.own)
		}
		if by := f.Resource; suspect == "" && !h.last.own && (by == CPU || by == Memory || by == IO || by == Network) {
			untold = append(untold, f)
		} else {
			to = append(to, f)
		}
	}
	return append(to, untold...)
}

// accused returns the suspect on whom enough windows agree, how many do, and its
// mean share in them. If they do not agree on one, it is nobody, with them all.
func (h *history) accused() (suspect string, agreeing int, share float64) {
	for i, s := range h.suspects {
		if h.agree>>i&1 == 0 || s == "" {
			continue
		}
		n, sum := 0, 0.0
		for j, other := range h.suspects {
			if h.agree>>j&1 == 1 && other == s {
				n, sum = n+1, sum+h.shares[j]
			}
		}
		if n >= agree {
			return s, n, sum / float64(n)
		}
	}
	return "", bits.OnesCount8(h.agree), 1
}

// learn takes the window into the baseline unless more than one of the last was
// unusual; of the network, unless its link is full. What stays unusual without a finding for long is the new normal.
func (w *workload) learn(found bool) {
	if found || bits.OnesCount8(w.unusual) <= 1 {
		w.puzzled = 0
	} else if w.puzzled++; w.puzzled == patience {
		*w.baseline = Baseline{}
		w.forgetQueue()
	}
	calm, full := bits.OnesCount8(w.unusual) <= 1 || w.puzzled >= patience, w.linkFull()
	w.baseline.add(&w.window, func(s Signal) bool {
		if s == RoundTrip || s == Resent {
			return !full // what the CPUs are short of has little to do with it
		}
		return calm
	})
	if calm {
		if w.unusual&1 == 0 {
			w.updateUsualQueue()
		}
	}
}

func bit(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// ring is the last values by window; NaN without one.
type ring struct {
	values [memory]float64
	next   int
	len    int
}

func (r *ring) add(v float64) {
	r.values[r.next] = v
	r.next = (r.next + 1) % memory
	r.len = min(r.len+1, memory)
}

// back returns the value i windows ago.
func (r *ring) back(i int) float64 {
	if i >= r.len {
		return math.NaN()
	}
	return r.values[(r.next-1-i+memory)%memory]
}
