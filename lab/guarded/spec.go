// Package guarded measures how good the guard is: it injects labelled disturbances
// beside a latency-sensitive tenant, lets the guard act, and compares what it
// named and did with what was done.
//
// A Result is everything that was measured; Analyse and Text are pure functions of
// it. Processes, load and control groups are those of lab.
package guarded

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/guard"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/lab"
)

// Spec is what was asked for.
type Spec struct {
	// Faults are the names of those injected, Runs of each.
	Faults []string `json:"faults"`
	Runs   int      `json:"runs"`
	// Learn is the time under load before the earliest onset; the onset is at a
	// random instant of the second that follows. Last is how long a fault lasts.
	Learn lab.Duration `json:"learn"`
	Last  lab.Duration `json:"last"`
	// Quiet is how long the fault "quiet" lasts; 0 is Last.
	Quiet lab.Duration `json:"quiet,omitempty"`
	// Window is the length of the guard's windows without the run-queue probe, Probe
	// when it is armed.
	Window lab.Duration   `json:"window"`
	Probe  guard.ProbeUse `json:"probe"`
	// Demand is the share (0-1) of the shared CPUs that the tenant wants.
	Demand float64 `json:"demand"`
	// Rate is in requests per second; 0 lets the lab choose it.
	Rate float64 `json:"rate,omitempty"`
	CPUs string  `json:"cpus,omitempty"`
	// Weight is the CPU weight of the group around those of the run, 0 for the usual
	// 100: more keeps a host's other work from taking part.
	Weight int `json:"weight,omitempty"`
	// MaxOthers is which share (0-1) of the shared CPUs may go to the hypervisor and to
	// processes outside of the run for a run to count: beyond it they may be what
	// the guard rightly finds.
	MaxOthers float64 `json:"maxOthers"`
	// Seed fixes arrivals, onsets and the order of runs; 0 lets the clock choose.
	Seed uint64 `json:"seed,omitempty"`
	// Blocks is how often each scenario of the comparison in steady state is run,
	// 0 for none; Steady is the measured time of a round.
	Blocks int          `json:"blocks,omitempty"`
	Steady lab.Duration `json:"steady,omitempty"`
}

// Default is the experiment that berth lab guard runs unless told otherwise; Short
// is what tests run.
func Default() Spec {
	return Spec{
		Faults: []string{Hog, Fork, Switch, Reclaim, IO, Quota, Saturation, Quiet}, Runs: 5, Learn: lab.Duration(6 * time.Second), Last: lab.Duration(6 * time.Second),
		Window: lab.Duration(200 * time.Millisecond), Probe: guard.ProbeAlways, Demand: 0.2, MaxOthers: 0.25, Blocks: 6, Steady: lab.Duration(4 * time.Second),
	}
}

// Short is a run of well below a minute.
func Short() Spec {
	e := Default()
	e.Faults, e.Runs, e.Blocks = []string{Hog, Quota}, 1, 0
	e.Learn, e.Last = lab.Duration(3*time.Second), lab.Duration(4*time.Second)
	return e
}

// Length is about how long the run takes: what it waits for, and a second around each round.
func (e Spec) Length() time.Duration {
	const around, before = time.Second, 6 * time.Second
	length := before
	for _, name := range e.Faults {
		last := e.Last
		if name == Quiet && e.Quiet > 0 {
			last = e.Quiet
		}
		length += time.Duration(e.Runs) * (time.Duration(e.Learn+last) + time.Second/2 + after + around)
	}
	return length + time.Duration(e.Blocks*len(scenarios()))*(time.Duration(e.Learn+e.Steady)+settled+around)
}

// Validate says what is wrong, naming the field.
func (e Spec) Validate() error {
	in := func(d lab.Duration, least, most time.Duration) bool {
		return time.Duration(d) >= least && time.Duration(d) <= most
	}
	for _, rule := range []struct {
		broken bool
		says   string
	}{
		{e.Runs < 0 || e.Runs > 1000, fmt.Sprintf("runs: %d: want 0 to 1000", e.Runs)},
		{e.Blocks < 0 || e.Blocks > 1000, fmt.Sprintf("blocks: %d: want 0 to 1000", e.Blocks)},
		{e.Runs*len(e.Faults) == 0 && e.Blocks == 0, "nothing to do: neither runs of faults nor blocks in steady state"},
		{!in(e.Learn, 2*time.Second, time.Hour), fmt.Sprintf("learn: %s: want 2s to 1h", e.Learn)},
		{!in(e.Last, 2*time.Second, time.Hour), fmt.Sprintf("last: %s: want 2s to 1h", e.Last)},
		{!in(e.Quiet, 0, 2*time.Hour), fmt.Sprintf("quiet: %s: want at most 2h", e.Quiet)},
		{!in(e.Window, guard.LeastWindow, 5*time.Second), fmt.Sprintf("window: %s: want 100ms to 5s", e.Window)},
		{e.Weight < 0 || e.Weight > 10_000, fmt.Sprintf("weight: %d: want 1 to 10000", e.Weight)},
		{!(e.MaxOthers > 0 && e.MaxOthers <= 1), fmt.Sprintf("max-others: %g: want more than 0 and at most 1", e.MaxOthers)},
		{e.Blocks > 0 && !in(e.Steady, time.Second, time.Hour), fmt.Sprintf("steady: %s: want 1s to 1h", e.Steady)},
		{!slices.Contains(guard.ProbeUses(), e.Probe), fmt.Sprintf("probe: %q: want one of %v", e.Probe, guard.ProbeUses())},
	} {
		if rule.broken {
			return errors.New("experiment: " + rule.says)
		}
	}
	for _, name := range e.Faults {
		if _, ok := FaultNamed(name); !ok {
			return fmt.Errorf("experiment: fault %q: not one of %s", name, strings.Join(FaultNames(), ", "))
		}
	}
	return validateBase(e.base())
}

// The faults.
const (
	Hog        = "hog"
	Fork       = "fork"
	Switch     = "switch"
	Reclaim    = "reclaim"
	IO         = "io"
	Quota      = "quota"
	Saturation = "saturation"
	Quiet      = "quiet"
	Innocent   = "innocent"
	Half       = "half"
	Two        = "two"
	Adapts     = "adapts"
	Outside    = "outside"
	Beside     = "beside"
	Foreign    = "foreign"
	Bursty     = "bursty"
	Partly     = "partly"
)

// Fault is a disturbance, and the truth about it.
type Fault struct {
	Name  string
	Means string
	// Truth is what the tenant lacks; None says that the guard should find nothing.
	Truth detect.Resource
	None  bool
	// Decoy is what no neighbour does: the guard may suspect no group, and act against none.
	Decoy bool
	// Guilty are those who may be accused and acted against; nil is the neighbour, unless it is a decoy.
	Guilty []string
	// Also are answers that are right as well.
	Also []string
}

// guilty says whether somebody may be accused and acted against.
func (f Fault) guilty(suspect string) bool {
	if f.Decoy {
		return false
	}
	return slices.Contains(f.antagonists(), suspect)
}

func (f Fault) antagonists() []string {
	if f.Guilty == nil && !f.None {
		return []string{lab.Neighbour}
	}
	return f.Guilty
}

// right says whether an answer is.
func (f Fault) right(answer string) bool {
	if answer == f.answer() || slices.Contains(f.Also, answer) {
		return true
	}
	return !f.None && !f.Decoy && slices.ContainsFunc(f.antagonists(), func(who string) bool { return answer == f.Truth.String()+": "+who })
}

// Faults lists them.
func Faults() []Fault {
	return []Fault{
		{Name: Hog, Means: "the neighbour spins on every CPU", Truth: detect.CPU},
		{Name: Fork, Means: "the neighbour starts processes without end, from a thread per CPU", Truth: detect.CPU},
		{Name: Switch, Means: "the neighbour passes bytes between pairs of threads, a pair per CPU and one more", Truth: detect.CPU},
		{Name: Reclaim, Means: "the neighbour's memory drives the tenant's pages out, below a common limit", Truth: detect.Memory},
		{Name: IO, Means: "the neighbour reads a slow disk of the lab's own that the tenant reads, too", Truth: detect.IO},
		{Name: Quota, Means: "the tenant gets a quota of 0.8 times what it wants", Truth: detect.OwnLimit, Decoy: true},
		{Name: Saturation, Means: "the tenant is asked for 1.5 times what its CPUs can do, by heavy requests", Truth: detect.OwnLoad, Decoy: true},
		{Name: Quiet, Means: "nothing but the tenant's load changes", None: true, Decoy: true},
		{Name: Innocent, Means: "the neighbour spins on every CPU, and at the same instant the bystander begins to use a quarter of one", Truth: detect.CPU},
		{Name: Half, Means: "the neighbour spins on every CPU for half of the time", Truth: detect.CPU},
		{Name: Two, Means: "the neighbour and the bystander spin on every CPU", Truth: detect.CPU, Guilty: []string{lab.Neighbour, lab.Bystander}},
		{Name: Adapts, Means: "the neighbour spins on every CPU, and sleeps for half a second whenever it is limited", Truth: detect.CPU},
		{Name: Outside, Means: "a process in no group spins on every CPU", Truth: detect.CPU, Guilty: []string{detect.Outside}},
		{Name: Beside, Means: "the neighbour spins on every CPU, and so does a process in no group", Truth: detect.CPU, Guilty: []string{lab.Neighbour, detect.Outside}},
		{Name: Foreign, Means: "a process in no group uses 10 to 50 % of every CPU", None: true, Guilty: []string{detect.Outside}, Also: []string{detect.CPU.String() + ": " + detect.Outside}},
		{Name: Bursty, Means: "the tenant's load comes in bursts of half a second", None: true, Decoy: true, Also: []string{detect.OwnLoad.String()}},
		{Name: Partly, Means: "the neighbour spins on every CPU for half of the time while the tenant is asked for half as much again", Truth: detect.CPU, Also: []string{detect.OwnLoad.String()}},
	}
}

// FaultNamed finds a fault.
func FaultNamed(name string) (Fault, bool) {
	for _, f := range Faults() {
		if f.Name == name {
			return f, true
		}
	}
	return Fault{}, false
}

// FaultNames are the names of all faults.
func FaultNames() []string {
	var names []string
	for _, f := range Faults() {
		names = append(names, f.Name)
	}
	return names
}
