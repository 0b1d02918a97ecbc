package detect

import (
	"math"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/watch"
)

// signalsOf are those of a window; what is not told is NaN.
type signalsOf map[Signal]float64

// judged is a workload on two CPUs, of which the baseline and then one window are told signal by signal.
// It ran for one CPU, and neither quotas nor the hypervisor took any, if nothing else is told.
func judged(t *testing.T, usual, now signalsOf) *workload {
	t.Helper()
	m, err := machine.Short("1s2c")
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{Machine: m, PeakBandwidth: 1e9, Window: watch.Second})
	if err != nil {
		t.Fatal(err)
	}
	d.Track(Workload{Group: "web", Sensitive: true, CPUs: cpuset.MustParse("0-1")})
	w := d.byGroup["web"]
	tell := func(values signalsOf) {
		for s := range w.value {
			w.value[s] = math.NaN()
		}
		w.value[CPUUse], w.value[ThrottledPeriods], w.value[Withheld], w.value[StealShare] = 1, 0, 0, 0
		for s, v := range values {
			w.value[s] = v
		}
	}
	tell(usual)
	for range enough {
		w.baseline.add(&w.window, func(Signal) bool { return true })
	}
	w.from, w.to = 100*watch.Second, 101*watch.Second
	tell(now)
	w.queued = queued{whole: 1, net: 1, grown: 1, foreign: 1}
	for i := range w.history { // the window before said everything
		w.history[i].agree = 0b10
	}
	d.diagnose(w)
	return w
}

// Each rule about one window, at its limit: what is said of which resource, and whose doing it is.
// The rules that name suspects are in the other tests.
func TestRulesOfAWindow(t *testing.T) {
	t.Parallel()
	const some = 0.5 // of run delay and run time: it waits
	usual := signalsOf{CPI: 1, MPKI: 1, Clock: 2e9, Occupancy: 1 << 20, RoundTrip: 0.01, Resent: 0}
	for name, tc := range map[string]struct {
		now     signalsOf
		is, not []Resource
		own     bool // the workload's own doing
	}{
		"nothing":                    {signalsOf{}, nil, Resources(), false},
		"a tenth of the periods":     {signalsOf{ThrottledPeriods: 0.1}, []Resource{OwnLimit}, nil, true},
		"fewer periods":              {signalsOf{ThrottledPeriods: 0.099}, nil, []Resource{OwnLimit}, false},
		"a tenth withheld":           {signalsOf{Withheld: 0.1}, []Resource{OwnLimit}, nil, true},
		"less withheld":              {signalsOf{Withheld: 0.099}, nil, []Resource{OwnLimit}, false},
		"waits for quota":            {signalsOf{WaitRatio: some, ThrottledQueued: 0.4}, []Resource{OwnLimit}, nil, true},
		"waits for quota in part":    {signalsOf{WaitRatio: some, ThrottledQueued: 0.39}, nil, []Resource{OwnLimit}, false},
		"hardly waits, for quota":    {signalsOf{WaitRatio: 0.09, ThrottledQueued: 1}, nil, []Resource{OwnLimit}, false},
		"steal":                      {signalsOf{StealShare: 0.05}, []Resource{Hypervisor}, nil, false},
		"less steal":                 {signalsOf{StealShare: 0.049}, nil, []Resource{Hypervisor}, false},
		"steal from nobody":          {signalsOf{StealShare: 0.05, CPUUse: 0}, nil, []Resource{Hypervisor}, false},
		"its own load":               {signalsOf{WaitRatio: some, OwnUse: 0.9}, []Resource{OwnLoad}, []Resource{CPU}, true},
		"its own load, no waits":     {signalsOf{OwnUse: 0.9}, []Resource{OwnLoad}, nil, true},
		"that, by slow instructions": {signalsOf{OwnUse: 0.9, CPI: 2}, nil, []Resource{OwnLoad}, false},
		"that, and it waits":         {signalsOf{OwnUse: 0.9, CPI: 2, WaitRatio: some}, []Resource{OwnLoad}, nil, true},
		"that, behind others":        {signalsOf{WaitRatio: some, OwnUse: 0.9, ForeignQueued: 0.6}, []Resource{CPU}, []Resource{OwnLoad}, false},
		"that, in part":              {signalsOf{WaitRatio: some, OwnUse: 0.9, ForeignQueued: 0.59}, []Resource{OwnLoad}, []Resource{CPU}, true},
		"not quite all is its own":   {signalsOf{WaitRatio: some, OwnUse: 0.89, ForeignQueued: 0.4}, []Resource{CPU}, []Resource{OwnLoad}, false},
		"behind others":              {signalsOf{WaitRatio: some, ForeignQueued: 0.4}, []Resource{CPU}, nil, false},
		"behind others, less":        {signalsOf{WaitRatio: some, ForeignQueued: 0.39}, nil, []Resource{CPU, OwnLoad}, false},
		"behind itself":              {signalsOf{WaitRatio: some, ForeignQueued: 0.4, SelfQueued: 0.6, CPUUse: 1.2}, []Resource{OwnLoad}, []Resource{CPU}, true},
		"that, with CPUs to spare":   {signalsOf{WaitRatio: some, ForeignQueued: 0.4, SelfQueued: 0.6, CPUUse: 1.19}, nil, []Resource{OwnLoad, CPU}, false},
		"no probe, full by itself":   {signalsOf{WaitRatio: some, OwnUse: 0.8}, []Resource{OwnLoad}, nil, true},
		"no probe, others too":       {signalsOf{WaitRatio: some, OwnUse: 0.79}, nil, []Resource{OwnLoad, CPU}, false},
		"CPUs wake up":               {signalsOf{WaitRatio: some, ForeignQueued: 0.4, IdleQueued: 0.6}, []Resource{Frequency}, []Resource{CPU}, false},
		"some wake up":               {signalsOf{WaitRatio: some, ForeignQueued: 0.4, IdleQueued: 0.59}, []Resource{CPU}, []Resource{Frequency}, false},
		"its own memory limit":       {signalsOf{MemoryPressure: 0.02, LimitEvents: 1}, []Resource{Memory}, nil, true},
		"memory":                     {signalsOf{MemoryPressure: 0.02, LimitEvents: 0}, []Resource{Memory}, nil, false},
		"memory, no limit known":     {signalsOf{MemoryPressure: 0.02}, nil, []Resource{Memory}, false},
		"its own bytes":              {signalsOf{IOPressure: 0.1, OwnIO: 0.6}, []Resource{IO}, nil, true},
		"others', whose is unknown":  {signalsOf{IOPressure: 0.1, OwnIO: 0.59}, nil, []Resource{IO}, false},
		"a slow clock":               {signalsOf{Clock: 1.7e9, CPI: 1}, []Resource{Frequency}, nil, false},
		"that, and instructions":     {signalsOf{Clock: 1.7e9, CPI: 1.2}, nil, []Resource{Frequency}, false},
		"memory elsewhere":           {signalsOf{LocalMemory: 0.8, CPUUse: 0.25}, []Resource{NUMA}, nil, false},
		"less of it":                 {signalsOf{LocalMemory: 0.81, CPUUse: 0.25}, nil, []Resource{NUMA}, false},
		"it hardly runs":             {signalsOf{LocalMemory: 0.8, CPUUse: 0.24}, nil, []Resource{NUMA}, false},
		// Half of what is a finding is enough to raise doubt about others.
		"others, and some steal":     {signalsOf{WaitRatio: some, ForeignQueued: 0.4, StealShare: 0.025}, []Resource{CPU}, nil, false},
		"others, and some throttled": {signalsOf{WaitRatio: some, ForeignQueued: 1, ThrottledPeriods: 0.05}, nil, []Resource{CPU, OwnLimit}, false},
		"others, and some withheld":  {signalsOf{WaitRatio: some, ForeignQueued: 1, Withheld: 0.05}, nil, []Resource{CPU, OwnLimit}, false},
		"others, and quota":          {signalsOf{WaitRatio: some, ForeignQueued: 0.6, ThrottledQueued: 0.4}, []Resource{OwnLimit}, []Resource{CPU}, true},
		"others, steal unknown":      {signalsOf{WaitRatio: some, ForeignQueued: 1, StealShare: math.NaN()}, nil, []Resource{CPU}, false},
		"others, quotas unknown":     {signalsOf{WaitRatio: some, ForeignQueued: 1, Withheld: math.NaN(), ThrottledPeriods: math.NaN()}, nil, []Resource{CPU}, false},
		"slow clock, some steal":     {signalsOf{Clock: 1.7e9, CPI: 1, StealShare: 0.025}, nil, []Resource{Frequency}, false},
		"slow clock, steal unknown":  {signalsOf{Clock: 1.7e9, CPI: 1, StealShare: math.NaN()}, nil, []Resource{Frequency}, false},
	} {
		w := judged(t, usual, tc.now)
		for _, r := range tc.is {
			if h := &w.history[r]; h.agree&1 == 0 || h.last.own != tc.own {
				t.Errorf("%s: %v: %b, own %t; want it said, own %t", name, r, h.agree, h.last.own, tc.own)
			}
		}
		for _, r := range tc.not {
			if w.history[r].agree&1 == 1 {
				t.Errorf("%s: %v is said", name, r)
			}
		}
	}
}

// Throttling takes back what was said about others before; steal, too, unless what is waited for is known
// to be by far more than it can have caused.
func TestDoubtClears(t *testing.T) {
	t.Parallel()
	by := []Resource{CPU, OwnLoad, MemoryBandwidth, LLC, SMT, Frequency}
	for name, tc := range map[string]struct {
		now  signalsOf
		left []Resource
	}{
		"nothing":              {signalsOf{}, by},
		"throttled":            {signalsOf{Withheld: 0.05}, nil},
		"steal":                {signalsOf{StealShare: 0.025, ForeignQueued: math.NaN()}, nil},
		"steal, plainly waits": {signalsOf{StealShare: 0.025, ForeignQueued: 1}, by[:2]},
	} {
		w := judged(t, signalsOf{}, tc.now)
		for _, r := range by {
			want := false
			for _, l := range tc.left {
				want = want || l == r
			}
			if got := w.history[r].agree&0b10 != 0; got != want {
				t.Errorf("%s: what was said of %v is still there: %t, want %t", name, r, got, want)
			}
		}
	}
}
