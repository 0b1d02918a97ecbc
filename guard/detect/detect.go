// Package detect finds which workload on a host suffers, from what, and because of which
// group: samples in, findings out.
//
// It looks at windows, of one second or, with the run-queue probe, of 40 ms. In each, a
// workload's signals are compared with fixed thresholds and with what is usual for that
// workload at that load, and the symptoms that stand out are attributed. Three of the
// last five windows must agree before there is a Finding. A neighbour is accused only on
// evidence against it, never while throttling or steal explain the symptom or are
// unknown, and never because something is missing. docs/design/detection.md has the
// rules, docs/measurements/detection.md how well they do.
//
// It is pure and deterministic. Reading samples is left to watch/..., doing
// something about a finding to others.
package detect

import (
	"errors"
	"fmt"
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
	// Yields says that it runs only while nobody else wants a CPU (cpu.idle): it takes none from others.
	Yields bool
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
	far       *Detector // of which this is near; nil for one that is not
	// uses is the CPU time of groups that are no workloads of near, by group.
	uses map[string]*watch.Series
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
	// ownUntil likewise: a burst of its own. ownFrom is when the last one began, if that is known by its waiting alone;
	// else it is 0.
	ownUntil, ownFrom watch.Time
	// full is the end of the last window in which others had most of its full CPUs.
	full watch.Time
	// taken is that likewise, whether it waits in that window or not, shared that of the last one in which it and the
	// groups that it waits for filled them, and takes what the last windows say against groups that have begun to take
	// them.
	taken, shared watch.Time
	takes         history
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
		d.near = &Detector{cfg: c, byGroup: map[string]*workload{}, far: d, uses: map[string]*watch.Series{}}
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
			} else {
				d.observeUse(s)
			}
		}
	}
}

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
	d.forgetUses(now)
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
	w.takes.shift()
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
