package detect

import (
	"maps"
	"math"
	"slices"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/watch"
)

// signalsOf are those of a window; what is not told is NaN.
type signalsOf map[Signal]float64

// judged is a workload on two CPUs, of which the baseline and then one window are told signal by signal.
// It ran for one CPU, and neither quotas nor the hypervisor took any, if nothing else is told. Unusual is
// whether anything in the window is.
func judged(t *testing.T, usual, now signalsOf) (w *workload, unusual bool) {
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
	w = d.byGroup["web"]
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
	return w, d.diagnose(w)
}

// Each rule about one window, at its limit: what is said of which resource, and whose doing it is.
// The rules that name suspects are in the other tests.
func TestRulesOfAWindow(t *testing.T) {
	t.Parallel()
	const some = 0.5                                                                                                 // of run delay and run time: it waits
	usual := signalsOf{CPI: 1, MPKI: 1, Clock: 2e9, Occupancy: 1 << 20, RoundTrip: 0.01, Resent: 0, WaitRatio: 0.01} // a tenth counts all the same
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
		"that, behind others":        {signalsOf{WaitRatio: some, OwnUse: 0.9, ForeignQueued: 0.6, Imposed: 0.2}, []Resource{CPU}, []Resource{OwnLoad}, false},
		"that, imposed less":         {signalsOf{WaitRatio: some, OwnUse: 0.9, ForeignQueued: 0.6, Imposed: 0.19}, []Resource{OwnLoad}, []Resource{CPU}, true},
		"that, no waits":             {signalsOf{OwnUse: 0.9, ForeignQueued: 1, Imposed: 0.05}, []Resource{OwnLoad}, []Resource{CPU}, true},
		"that, in part":              {signalsOf{WaitRatio: some, OwnUse: 0.9, ForeignQueued: 0.59, Imposed: 0.2}, []Resource{OwnLoad}, []Resource{CPU}, true},
		"not quite all is its own":   {signalsOf{WaitRatio: some, OwnUse: 0.89, ForeignQueued: 0.4, Imposed: 0.2}, []Resource{CPU}, []Resource{OwnLoad}, false},
		"full, mostly by itself":     {signalsOf{WaitRatio: some, OwnUse: 0.8, ForeignQueued: 1, Imposed: 0.19}, []Resource{OwnLoad}, []Resource{CPU}, true},
		"that, and nothing waits":    {signalsOf{OwnUse: 0.8, Imposed: 0.09}, nil, []Resource{OwnLoad, CPU}, false},
		"that, and others impose":    {signalsOf{WaitRatio: some, OwnUse: 0.8, ForeignQueued: 1, Imposed: 0.2}, []Resource{CPU}, []Resource{OwnLoad}, false},
		"less of it by itself":       {signalsOf{WaitRatio: some, OwnUse: 0.79, ForeignQueued: 1, Imposed: 0.19}, []Resource{CPU}, []Resource{OwnLoad}, false},
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
		"its own bytes on a link":    {signalsOf{RoundTrip: 0.02, LinkUse: 0.95, OwnSent: 0.6}, []Resource{Network}, nil, true},
		"sent again, on one":         {signalsOf{Resent: 0.02, LinkWait: 0.002, OwnSent: 0.6}, []Resource{Network}, nil, true},
		"on one that is not full":    {signalsOf{RoundTrip: 0.02, LinkUse: 0.89, LinkWait: 0.0019, OwnSent: 0.6}, nil, []Resource{Network}, false},
		"it suffers nothing":         {signalsOf{RoundTrip: 0.014, LinkUse: 0.95, OwnSent: 0.6}, nil, []Resource{Network}, false},
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
		w, _ := judged(t, usual, tc.now)
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
		w, _ := judged(t, signalsOf{}, tc.now)
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

// What keeps a window from what is usual. Waiting as it always does is not among it.
func TestUnusual(t *testing.T) {
	t.Parallel()
	usual := signalsOf{CPI: 1, Clock: 2e9}
	itself := signalsOf{WaitRatio: 0.5, OwnUse: 0, Imposed: 0, SelfQueued: 1, ForeignQueued: 0}
	others := maps.Clone(itself)
	others[OwnUse], others[ForeignQueued] = 0.5, 1
	for name, tc := range map[string]struct {
		now  signalsOf
		want bool
	}{
		"nothing":              {signalsOf{CPI: 1, Clock: 2e9}, false},
		"periods that ran out": {signalsOf{ThrottledPeriods: 0.1}, true},
		"withheld":             {signalsOf{Withheld: 0.1}, true},
		"steal":                {signalsOf{StealShare: 0.05}, true},
		"memory":               {signalsOf{MemoryPressure: 0.02}, true},
		"I/O":                  {signalsOf{IOPressure: 0.1}, true},
		"slow instructions":    {signalsOf{CPI: 1.2}, true},
		"a slow clock":         {signalsOf{Clock: 1.7e9}, true},
		"waits for itself":     {itself, false},
		"waits for others":     {others, true},
	} {
		if _, got := judged(t, usual, tc.now); got != tc.want {
			t.Errorf("%s: unusual %v, want %v", name, got, tc.want)
		}
	}
}

// When a workload waits as it always does, at each limit.
func TestOwnWaits(t *testing.T) {
	t.Parallel()
	quiet := signalsOf{CPUUse: 1, IdleQueued: 0, ThrottledQueued: 0, Imposed: 0, OwnUse: 0, ForeignQueued: 0}
	for name, tc := range map[string]struct {
		now    signalsOf
		queued queued
		learnt bool // what is usual
		want   bool
	}{
		"for itself":                                {want: true},
		"it does not run":                           {now: signalsOf{CPUUse: 0}},
		"CPUs wake up":                              {now: signalsOf{IdleQueued: 0.4}},
		"few do":                                    {now: signalsOf{IdleQueued: 0.39}, want: true},
		"for quota":                                 {now: signalsOf{ThrottledQueued: 0.4}},
		"a little for it":                           {now: signalsOf{ThrottledQueued: 0.39}, want: true},
		"behind groups":                             {queued: queued{grown: 1, byGroups: 0.4, net: 1}},
		"behind groups, less":                       {queued: queued{grown: 1, byGroups: 0.39, net: 1}, want: true},
		"behind groups, hardly at all":              {queued: queued{grown: 0.02, byGroups: 0.009, net: 1}, want: true},
		"behind groups, as long as usual":           {queued: queued{grown: 1, byGroups: 0.4, net: 0.009}, want: true},
		"behind others, not known yet":              {now: signalsOf{Imposed: 0.5, ForeignQueued: 1}, want: true},
		"behind others, and it is known":            {now: signalsOf{Imposed: 0.5, ForeignQueued: 1}, learnt: true},
		"behind others, on full CPUs":               {now: signalsOf{OwnUse: 0.5, Imposed: 0.1}},
		"for itself, on full CPUs":                  {now: signalsOf{OwnUse: 0.5}, want: true},
		"mostly behind others, on full CPUs":        {now: signalsOf{OwnUse: 0.5, ForeignQueued: 0.4}},
		"without the probe, on CPUs to spare":       {now: signalsOf{Imposed: math.NaN()}, want: true},
		"without the probe, on full CPUs":           {now: signalsOf{Imposed: math.NaN(), OwnUse: 0.5}},
		"without the probe, and they are not known": {now: signalsOf{Imposed: math.NaN(), OwnUse: math.NaN()}},
	} {
		w := &workload{baseline: new(Baseline)}
		for s := range w.value {
			w.value[s] = math.NaN()
		}
		for _, told := range []signalsOf{quiet, tc.now} {
			for s, v := range told {
				w.value[s] = v
			}
		}
		if w.queued = tc.queued; tc.learnt {
			w.usualUse.N = enough
		}
		if got := new(Detector).ownWaits(w); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// What is unusual is not learnt until it has been for ten minutes without a finding; then it is all that is
// usual. Round trips are, unless the link is full.
func TestLearn(t *testing.T) {
	t.Parallel()
	usually := func(w *workload, s Signal) Mean {
		i := slices.IndexFunc(learned[:], func(l struct {
			signal Signal
			factor float64
		}) bool {
			return l.signal == s
		})
		return w.baseline[level(1)][i]
	}
	w := &workload{baseline: new(Baseline), history: new([resources]history)}
	for s := range w.value {
		w.value[s] = math.NaN()
	}
	w.value[CPUUse], w.value[CPI], w.value[RoundTrip] = 1, 1, 0.01
	for range enough {
		w.learn(false)
	}
	w.usualUse.N = enough
	w.value[CPI], w.value[LinkUse], w.unusual = 2, 0.95, 0b11111
	for range 2 {
		for range patience - 1 {
			w.learn(false)
		}
		if m := usually(w, CPI); m.N != enough || m.Mean != 1 {
			t.Fatalf("%d unusual windows: %+v", patience-1, m)
		}
		w.learn(true) // it is known what it is
	}
	for range patience {
		w.learn(false)
	}
	if m := usually(w, CPI); m.N != 1 || m.Mean != 2 || w.usualUse.N != 0 {
		t.Errorf("%d unusual windows: %+v, and waits of %+v", patience, m, w.usualUse)
	}
	if m := usually(w, RoundTrip); m.N != 0 {
		t.Errorf("round trips over a full link are learnt: %+v", m)
	}
	w.value[LinkUse], w.puzzled = 0.5, 0
	w.learn(false)
	if m := usually(w, RoundTrip); m.N != 1 {
		t.Errorf("round trips while the CPUs are short: %+v, want them learnt", m)
	}
	if w.unusual = 0b100; usually(w, CPI).N != 1 {
		t.Fatal("it has learnt")
	}
	if w.learn(false); usually(w, CPI).N != 2 {
		t.Error("one unusual window of the last keeps it from learning")
	}
}

// Of memory that others grew by, 8 MiB count. Where a group was never heard of, nobody is named, as it may be
// that one.
func TestGrownMost(t *testing.T) {
	t.Parallel()
	const usual, mib = 100 << 20, 1 << 20
	for name, tc := range map[string]struct {
		hog, web float64 // what they have more than usual
		new      map[watch.Quantity]float64
		named    string
	}{
		"enough":                     {8 * mib, 0, map[watch.Quantity]float64{watch.CPUTime: 0}, "hog"},
		"a byte less":                {8*mib - 1, 0, map[watch.Quantity]float64{watch.CPUTime: 0}, ""},
		"it grows itself":            {8 * mib, 13 * mib, map[watch.Quantity]float64{watch.CPUTime: 0}, ""},
		"by less":                    {8 * mib, 12 * mib, map[watch.Quantity]float64{watch.CPUTime: 0}, "hog"},
		"beside one that is unknown": {8 * mib, 0, nil, ""},
		"beside one that grew more":  {8 * mib, 0, map[watch.Quantity]float64{watch.CPUTime: 0, watch.Memory: usual + 12*mib}, "new"},
	} {
		d, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		tell := func(group string, values map[watch.Quantity]float64) *workload {
			d.Track(Workload{Group: group, Sensitive: group == "web"})
			w := d.byGroup[group]
			for q, v := range values {
				for second := range watch.Time(2) {
					w.add(&watch.Sample{Time: (10 + second) * watch.Second, Subject: subjectOf(group), Quantity: q, Value: v}, "")
				}
			}
			if m := w.find(watch.Memory, watch.Part{}, ""); m != nil {
				m.usual = Mean{N: enough, Mean: usual}
			}
			return w
		}
		w := tell("web", map[watch.Quantity]float64{watch.CPUTime: 0, watch.Memory: usual + tc.web})
		tell("hog", map[watch.Quantity]float64{watch.CPUTime: 0, watch.Memory: usual + tc.hog})
		tell("new", tc.new)
		w.from, w.to = 10*watch.Second, 11*watch.Second
		w.value[MemoryPressure] = 0.5
		if d.diagnoseMemory(w); w.history[Memory].agree != 1 || w.history[Memory].suspects[0] != tc.named {
			t.Errorf("%s: %+v, want %q named", name, w.history[Memory], tc.named)
		}
	}
}

// Who has the traffic of the workload's busiest cache, the workload aside; and whose CPUs share a cache.
func TestSharesOfACache(t *testing.T) {
	t.Parallel()
	traffic := func(group string, cache int) told {
		return told{group: group, q: watch.Bandwidth, part: watch.Part{Kind: watch.Cache, ID: cache}}
	}
	for hog, named := range map[float64]string{4e8: "hog", 3.9e8: ""} {
		d := measured(t, map[told]float64{traffic("web", 0): 5e8, traffic("hog", 0): hog, traffic("hog/job", 1): 8e8, traffic("", 0): 1e9})
		if c := d.trafficMost(d.byGroup["web"]); c.name != named {
			t.Errorf("it has %g of 1e9: %+v, want %q", hog, c, named)
		}
	}
	m, err := machine.Short("1s2l2c")
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{Machine: m})
	if err != nil {
		t.Fatal(err)
	}
	last := m.ByKind(machine.L3)[1]
	for cpus, want := range map[string]bool{"": true, "0-1": false, "1-2": true, "3": true} {
		w := &workload{Workload: Workload{CPUs: cpuset.MustParse(cpus)}}
		if got := d.sharesCache(watch.Part{Kind: watch.Cache, ID: last.KernelID})(w); got != want {
			t.Errorf("on CPUs %q it shares the cache of %s: %v, want %v", cpus, last.CPUs, got, want)
		}
	}
}

// By how much it waits too long: of what stands out from what is usual, the whole above that.
func TestWaitExcess(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		usual, now signalsOf
		want       float64
	}{
		{signalsOf{}, signalsOf{WaitRatio: 0.2}, 2},
		{signalsOf{WaitRatio: 0.4}, signalsOf{WaitRatio: 0.6}, 1.5},
		{signalsOf{WaitRatio: 0.4}, signalsOf{WaitRatio: 0.45}, 0.9},
		{signalsOf{WaitRatio: 0.01}, signalsOf{WaitRatio: 0.2}, 2},
		{signalsOf{}, signalsOf{WaitRatio: 0.2, CPUPressure: 0.6}, 3},
		{signalsOf{}, signalsOf{}, math.NaN()},
	} {
		w, _ := judged(t, tc.usual, tc.now)
		if got := w.waitExcess(); !(math.Abs(got-tc.want) <= 1e-9) && !(math.IsNaN(got) && math.IsNaN(tc.want)) {
			t.Errorf("%v, usually %v: %g, want %g", tc.now, tc.usual, got, tc.want)
		}
	}
}

// What is not known of one is no part of the whole.
func TestClaims(t *testing.T) {
	t.Parallel()
	var c claims
	c.add("mail", math.NaN(), true)
	c.add("idle", 0, true)
	c.add("hog", 1, true)
	c.add("", 1.5, true)
	if of := c.claim(c.total, 0); of.name != "hog" || of.share != 0.4 {
		t.Errorf("%+v, want hog with 0.4", of)
	}
}

// What is sent again stands out from what is usual only, beside the fixed share.
func TestRises(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		usual, now signalsOf
		want       bool
	}{
		{signalsOf{Resent: 0}, signalsOf{Resent: 0.02}, true},
		{signalsOf{Resent: 0}, signalsOf{Resent: 0.009}, false},
		{signalsOf{Resent: 0.02}, signalsOf{Resent: 0.02}, false},
		{signalsOf{}, signalsOf{Resent: 0.02}, false},
	} {
		w, _ := judged(t, tc.usual, tc.now)
		if got := w.rises(Resent); got != tc.want {
			t.Errorf("%v, usually %v: %v, want %v", tc.now, tc.usual, got, tc.want)
		}
	}
}

// A wait behind others that is by far more than what the hypervisor took from the threads that wait is theirs.
func TestPlainlyWaits(t *testing.T) {
	t.Parallel()
	for steal, want := range map[float64]bool{0.9: true, 1.1: false} { // four threads on each CPU, twice: eight times
		w := measured(t, map[told]float64{
			{q: watch.Steal}: steal, {group: "web", q: watch.CPUWait}: 8, {group: "web", q: watch.Queued}: 8, {group: "web", q: watch.QueuedBy, by: "hog"}: 8,
		}).byGroup["web"]
		if got := w.history[CPU].agree&1 == 1; got != want {
			t.Errorf("%g CPUs are stolen: others are accused: %v, want %v", steal, got, want)
		}
	}
}
