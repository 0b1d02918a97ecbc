package detect

import (
	"maps"
	"math"
	"slices"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/watch"
)

// queuing is a host on which web waits for a CPU, behind whom and how long is told by second.
// It uses 20 CPUs, so that the usual wait is nothing unusual, learns that for 40 s, and then has
// one second of something else.
func queuing(t *testing.T, usual, then map[string]float64) *Detector {
	t.Helper()
	d, err := New(Config{Window: watch.Second})
	if err != nil {
		t.Fatal(err)
	}
	d.Track(Workload{Group: "web", Sensitive: true, CPUs: cpuset.MustParse("0-31")})
	counters := map[watch.Quantity]map[string]float64{}
	for at := range 41 {
		now := watch.Time(at) * watch.Second
		samples := []watch.Sample{{Time: now, Quantity: watch.Steal}, {Time: now, Quantity: watch.CPUTime, Value: float64(at)}}
		add := func(q watch.Quantity, perSecond float64, by string) {
			if counters[q] == nil {
				counters[q] = map[string]float64{}
			}
			counters[q][by] += perSecond
			samples = append(samples, watch.Sample{Time: now, Subject: watch.Subject{Scope: watch.Group, Name: "web"}, Quantity: q, By: by, Value: counters[q][by]})
		}
		behind, whole := usual, 0.
		if at == 40 {
			behind = then
		}
		add(watch.CPUTime, 20, "")
		for _, by := range slices.Sorted(maps.Keys(behind)) {
			add(watch.QueuedBy, behind[by], by)
			whole += behind[by]
		}
		add(watch.Queued, whole, "")
		for _, q := range []watch.Quantity{watch.QueuedKernel, watch.QueuedIdle, watch.QueuedThrottled, watch.CPUPeriods, watch.CPUThrottledPeriods, watch.CPUThrottled} {
			add(q, 0, "")
		}
		d.Observe(samples)
		d.Judge(now)
	}
	return d
}

// Who waits no longer than usual has nobody to accuse, whoever has the CPU now that was
// another's before: by value, what counts is by how much the whole wait has grown.
func TestWaitBeyondTheUsual(t *testing.T) {
	t.Parallel()
	usual := map[string]float64{"web": 0.2, "hog": 0.1, "mail": 0.3}
	for name, tc := range map[string]struct {
		then                   map[string]float64
		net, imposed           float64
		self, foreign          float64 // shares of what has grown
		ownWaits, mayBeAccused bool
	}{
		"as usual":         {usual, 0, 0, 0, 0, true, false},
		"one for another":  {map[string]float64{"web": 0.2, "hog": 0.3, "mail": 0.1}, 0, 0, 0, 0, true, false},
		"a part of it":     {map[string]float64{"web": 0.2, "hog": 0.5, "mail": 0}, 0.1, 0.1 / 20.7, 0, 1, false, true},
		"next to nothing":  {map[string]float64{"web": 0.2, "hog": 0.105, "mail": 0.3}, 0.005, 0, 0, 0, true, false},
		"hardly":           {map[string]float64{"web": 0.2, "hog": 0.13, "mail": 0.3}, 0.03, 0.03 / 20.63, 0, 0, false, false},
		"all of it":        {map[string]float64{"web": 0.2, "hog": 1.1, "mail": 0.3}, 1, 1 / 21.6, 0, 1, false, true},
		"half by its own":  {map[string]float64{"web": 0.6, "hog": 0.5, "mail": 0.3}, 0.8, 0.4 / 21.4, 0.5, 0.5, false, true},
		"all by its own":   {map[string]float64{"web": 1.2, "hog": 0.1, "mail": 0.3}, 1, 0, 1, 0, true, false},
		"others have less": {map[string]float64{"web": 0.2, "hog": 0, "mail": 0}, 0, 0, 0, 0, true, false},
	} {
		d := queuing(t, usual, tc.then)
		w := d.byGroup["web"]
		for what, v := range map[string][2]float64{
			"net": {w.queued.net, tc.net}, "imposed": {w.value[Imposed], tc.imposed}, "self": {w.value[SelfQueued], tc.self}, "foreign": {w.value[ForeignQueued], tc.foreign},
		} {
			if math.Abs(v[0]-v[1]) > 1e-9 {
				t.Errorf("%s: %s %g, want %g", name, what, v[0], v[1])
			}
		}
		if got := d.ownWaits(w); got != tc.ownWaits {
			t.Errorf("%s: it waits as always: %v, want %v", name, got, tc.ownWaits)
		}
		if got := w.value[ForeignQueued] >= antagonist; got != tc.mayBeAccused {
			t.Errorf("%s: others may be accused: %v, want %v", name, got, tc.mayBeAccused)
		}
	}
}

// A group for which the workload waits for a small part of the wait behind others is not
// named, though all that has grown is its own.
func TestNotableSuspect(t *testing.T) {
	t.Parallel()
	usual := map[string]float64{"web": 0.2, "mail": 2, "new": 0}
	for has, named := range map[float64]string{0.4: "", 0.49: "", 0.51: "new", 1: "new"} { // 0.2 of 2 and what it has are 0.5
		w := queuing(t, usual, map[string]float64{"web": 0.2, "mail": 2, "new": has}).byGroup["web"]
		if c := w.queuedMost(); c.name != named {
			t.Errorf("it waits %g behind new, of %g behind others: %+v, want %q", has, w.queued.foreign, c, named)
		}
	}
}

// A group that has the CPU for hardly longer than usual, as that varies, is not named.
func TestSuspectAsUsual(t *testing.T) {
	t.Parallel()
	for deviation, named := range map[float64]string{0: "mail", 0.9: "mail", 1.1: ""} { // it has 3 more than usual
		w := queuing(t, map[string]float64{"web": 0.2, "mail": 1}, map[string]float64{"web": 0.2, "mail": 4}).byGroup["web"]
		w.find(watch.QueuedBy, watch.Part{}, "mail").usual.Variance = deviation * deviation
		if c := w.queuedMost(); c.name != named {
			t.Errorf("deviation %g: %+v, want %q", deviation, c, named)
		}
	}
}

// A group is named though others have more of the wait: processes in no group, or a second group. It
// has to make the workload wait by itself.
func TestGroupBesideOthers(t *testing.T) {
	t.Parallel()
	usual := map[string]float64{"web": 0.2, Outside: 0, "hog": 0, "mail": 0}
	for name, tc := range map[string]struct {
		then  map[string]float64
		named string
		share float64
		least float64 // what imposes a tenth of run delay and run time
	}{
		"behind outsiders":           {map[string]float64{"web": 0.2, Outside: 6, "hog": 3.5, "mail": 0}, "hog", 3.5 / 9.5, 2.97 / 9.5},
		"too little by itself":       {map[string]float64{"web": 0.2, Outside: 6, "hog": 2.5, "mail": 0}, Outside, 6 / 8.5, 0},
		"no more than another":       {map[string]float64{"web": 0.2, Outside: 9, "hog": 4.3, "mail": 4}, Outside, 9 / 17.3, 0},
		"two alike":                  {map[string]float64{"web": 5, Outside: 0, "hog": 3.7, "mail": 3.6}, "hog", 3.7 / 12.1, 3.23 / 12.1},
		"many, and no one in front":  {map[string]float64{"web": 12.1, Outside: 3, "hog": 2, "mail": 2}, "", 0, 0},
		"a group has most of it all": {map[string]float64{"web": 0.2, Outside: 3, "hog": 6, "mail": 0}, "hog", 6. / 9, 0},
	} {
		w := queuing(t, usual, tc.then).byGroup["web"]
		if c := w.queuedMost(); c.name != tc.named || math.Abs(c.share-tc.share) > 1e-9 || math.Abs(c.least-tc.least) > 1e-9 {
			t.Errorf("%s: %+v, want %q with %g of at least %g", name, c, tc.named, tc.share, tc.least)
		}
	}
}

// What speaks against a suspect is as strong as what it imposes where nothing else tells of it, and half
// as strong after a burst of the workload's own.
func TestStrengthOfTheSuspect(t *testing.T) {
	t.Parallel()
	d := queuing(t, map[string]float64{"web": 0.2, "hog": 0, "mail": 0}, map[string]float64{"web": 0.2, "hog": 5, "mail": 3})
	if s, ok := d.Symptom("web", CPU); !ok || s.Imposed == nil || math.Abs(*s.Imposed-8/28.2/0.1) > 1e-9 {
		t.Errorf("symptom %+v, want others to impose 8 of 28.2, where a tenth counts", s)
	}
	w := d.byGroup["web"]
	c := w.queuedMost()
	want := 5 / 28.2 / 0.1
	if h := w.history[CPU]; math.Abs(h.against[0]-want) > 1e-9 || h.strengths[0] <= want || !h.last.probed {
		t.Errorf("filed as %g of %g, want %g: %+v", h.against[0], h.strengths[0], want, h.last)
	}
	if got := w.mostOf(c); math.Abs(got-want) > 1e-9 {
		t.Errorf("%g, want %g", got, want)
	}
	w.ownUntil = w.to + 1
	if got := w.mostOf(c); math.Abs(got-want/2) > 1e-9 {
		t.Errorf("after a burst of its own: %g, want %g", got, want/2)
	}
	w.ownUntil, w.value[RunQueueP99] = w.to, 1
	if got := w.mostOf(c); got != 0 {
		t.Errorf("where it waits long: limited to %g", got)
	}
}

// A burst of the workload's own is one in which its threads wait for each other, unless others have most of
// its CPUs, or one in which it uses twice the CPU time that is usual.
func TestBurstOfItsOwn(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		now          signalsOf
		waiting, use float64 // threads, and the CPU time that is usual
		varies       float64 // by how much, as a variance
		burst        bool
	}{
		"threads wait":                 {signalsOf{}, 1.5, 1, 0, true}, // of which 0.7 are its own
		"fewer":                        {signalsOf{}, 1.4, 1, 0, false},
		"behind each other, in part":   {signalsOf{SelfQueued: 0.59, ForeignQueued: 0.41}, 9, 1, 0, false},
		"others have most of its CPUs": {signalsOf{OwnUse: 0.59}, 9, 1, 0, false},
		"not most":                     {signalsOf{OwnUse: 0.6}, 9, 1, 0, true},
		"twice the usual use":          {signalsOf{}, 0.1, 0.5, 0, true},
		"less":                         {signalsOf{}, 0.1, 0.51, 0, false},
		"twice, as it varies":          {signalsOf{}, 0.1, 0.5, 0.04, false}, // 0.2, three times
		"and more":                     {signalsOf{}, 0.1, 0.5, 0.02, true},
		"the usual use is not known":   {signalsOf{}, 0.1, 0, 0, false},
		"twice, and others have most":  {signalsOf{OwnUse: 0.5}, 9, 0.5, 0, true},
		"full, but for a fifth":        {signalsOf{OwnUse: 0.8}, 0.1, 1, 0, true},
		"that, which others impose":    {signalsOf{OwnUse: 0.8, Imposed: 0.2}, 0.1, 1, 0, false},
	} {
		now := signalsOf{WaitRatio: 0.5, Imposed: 0.15, SelfQueued: 0.7, ForeignQueued: 0.3}
		maps.Copy(now, tc.now)
		w, _ := judged(t, signalsOf{}, now)
		if w.ownUntil, w.queued.net, w.usualUse = 0, tc.waiting, (Mean{}); tc.use > 0 {
			w.usualUse = Mean{N: enough, Mean: tc.use, Variance: tc.varies}
		}
		if (&Detector{}).diagnoseUse(w, true); (w.ownUntil == w.to+ownSeen) != tc.burst {
			t.Errorf("%s: a burst of its own until %v, want %t", name, w.ownUntil, tc.burst)
		}
	}
}

// A burst that is known by what the workload's threads wait for each other is none if others have most of its CPUs
// right after: they have begun within that window. One that has lasted is, and one by the CPU time that it uses.
func TestBurstBeforeACrowd(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		ago   watch.Time // windows since it began
		usual float64    // CPU time; it uses 1
		own   float64    // part of full CPUs, now
		burst bool
	}{
		"others have most, a window later": {1, 1, 0.5, false},
		"two windows later":                {2, 1, 0.5, false},
		"three windows later":              {3, 1, 0.5, true},
		"it has most itself":               {1, 1, 0.6, true},
		"its CPUs are not full":            {1, 1, 0, true},
		"it uses twice the usual":          {1, 0.5, 0.5, true},
	} {
		now := signalsOf{WaitRatio: 0.5, Imposed: 0.15, SelfQueued: 0.7, ForeignQueued: 0.3, OwnUse: 0}
		w, _ := judged(t, signalsOf{}, now)
		w.ownUntil, w.queued.net, w.usualUse = 0, 9, Mean{N: enough, Mean: tc.usual}
		window := w.to - w.from
		for ago := tc.ago; ago > 0; ago-- {
			(&Detector{}).diagnoseUse(w, true)
			w.from, w.to = w.to, w.to+window
		}
		w.value[OwnUse], w.value[SelfQueued], w.value[ForeignQueued] = tc.own, 0, 0.3
		if (&Detector{}).diagnoseUse(w, true); (w.to < w.ownUntil) != tc.burst {
			t.Errorf("%s: a burst of its own until %v, at %v; want one: %t", name, w.ownUntil, w.to, tc.burst)
		}
	}
}

// One that is known by the CPU time that it uses stays one though others have most of its CPUs right after.
func TestBurstByUseStays(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		usual float64 // CPU time, at first; it uses 1
		first signalsOf
		burst bool
	}{
		"its threads wait":    {1, signalsOf{SelfQueued: 0.7, ForeignQueued: 0.3}, false},
		"twice the usual use": {0.5, signalsOf{SelfQueued: 0.7, ForeignQueued: 0.3}, true},
		"full CPUs":           {1, signalsOf{SelfQueued: 0.7, ForeignQueued: 0.3, OwnUse: 0.8}, true},
	} {
		now := signalsOf{WaitRatio: 0.5, Imposed: 0.15}
		maps.Copy(now, tc.first)
		w, _ := judged(t, signalsOf{}, now)
		w.ownUntil, w.queued.net, w.usualUse = 0, 9, Mean{N: enough, Mean: tc.usual}
		(&Detector{}).diagnoseUse(w, true)
		if !(w.to < w.ownUntil) {
			t.Errorf("%s: no burst", name)
		}
		w.from, w.to = w.to, w.to+w.to-w.from
		w.usualUse.Mean = 1
		w.value[OwnUse], w.value[SelfQueued], w.value[ForeignQueued] = 0.5, 0, 0.3
		if (&Detector{}).diagnoseUse(w, true); (w.to < w.ownUntil) != tc.burst {
			t.Errorf("%s: a burst of its own until %v, at %v; want one: %t", name, w.ownUntil, w.to, tc.burst)
		}
	}
}

// Who has most of the workload's full CPUs is to blame for what its threads wait for each other, too, if
// they wait long enough for one group.
func TestCrowdedTogether(t *testing.T) {
	t.Parallel()
	usual := map[string]float64{"web": 0.2, "hog": 0, "mail": 0, "old": 1, Outside: 0}
	for name, tc := range map[string]struct {
		own   float64 // part of full CPUs
		ago   watch.Time
		then  map[string]float64
		named string
		share float64
	}{
		"others have most":           {0.59, 0, map[string]float64{"web": 4, "hog": 1.4, "mail": 0.1}, "hog", 1.4 / 1.5},
		"not most, a moment ago":     {0.6, 1, map[string]float64{"web": 4, "hog": 1.4, "mail": 0.1}, "", 0},
		"not most":                   {0.6, 0, map[string]float64{"web": 4, "hog": 1.4, "mail": 0.1}, "", 0},
		"CPUs were full a while ago": {0, 2, map[string]float64{"web": 4, "hog": 1.4, "mail": 0.1}, "hog", 1.4 / 1.5},
		"longer ago":                 {0, 3, map[string]float64{"web": 4, "hog": 1.4, "mail": 0.1}, "", 0},
		"they were never full":       {0, 0, map[string]float64{"web": 4, "hog": 1.4, "mail": 0.1}, "", 0},
		"nobody has most":            {0.5, 0, map[string]float64{"web": 4, "hog": 0.6, "mail": 0.5, Outside: 0.5}, "", 0},
		"hardly":                     {0.5, 0, map[string]float64{"web": 4, "hog": 1.2, "mail": 0}, "", 0}, // of 25.2
		"just":                       {0.5, 0, map[string]float64{"web": 4, "hog": 1.3, "mail": 0}, "hog", 1},
		"as usual, by how it varies": {0.5, 0, map[string]float64{"web": 4, "old": 3, "mail": 0}, "", 0},
		"CPUs wake up, mostly":       {0.5, 0, map[string]float64{"web": 0, "hog": 1.4, "mail": 0.1}, "", 0},
		"in no group":                {0.5, 0, map[string]float64{"web": 4, "hog": 0, Outside: 2}, Outside, 1},
		"much behind others itself":  {0.5, 0, map[string]float64{"web": 3, "hog": 2, "mail": 0}, "hog", 2 / 4.8}, // by its part of the whole
	} {
		d := queuing(t, usual, tc.then)
		w := d.byGroup["web"]
		w.history, w.full = new([resources]history), 0
		w.find(watch.QueuedBy, watch.Part{}, "old").usual.Variance = 1
		if tc.ago > 0 {
			w.full = w.to - tc.ago*d.cfg.Window
		}
		w.value[OwnUse], w.value[WaitRatio] = tc.own, 0.5
		if tc.then["web"] == 0 { // then it waits for something else
			w.value[SelfQueued], w.value[ForeignQueued], w.value[IdleQueued] = 0, 0.3, 0.5
		}
		d.diagnoseWait(w)
		v := w.history[CPU].last
		for _, e := range v.evidence {
			if e.Value < e.Threshold {
				t.Errorf("%s: %v", name, e)
			}
		}
		if agrees := w.history[CPU].agree&1 == 1; agrees != (tc.named != "") || v.suspect != tc.named || math.Abs(v.share-tc.share) > 1e-3 {
			t.Errorf("%s: %q with %g of it; want %q with %g", name, v.suspect, v.share, tc.named, tc.share)
		}
	}
}

// Windows that do not agree count where the run-queue probe tells of the suspect.
func TestEvidentCountsAllWindows(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		agree  uint8
		probed bool
		want   float64
	}{{0b111, true, 0.9}, {0b10101, true, 0.9}, {0b11111, true, 1.5}, {0b111, false, 1.5}, {0, true, 0}} {
		h := history{agree: tc.agree, against: [lookBack]float64{1.5, 1.5, 1.5, 1.5, 1.5}, last: verdict{probed: tc.probed}}
		if got := h.evident(); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("%b, probed %v: %g, want %g", tc.agree, tc.probed, got, tc.want)
		}
	}
}

// Who waits next to nothing does not wait for anybody.
func TestNextToNoWait(t *testing.T) {
	t.Parallel()
	for behind, known := range map[float64]bool{0.007: false, 0.009: true} { // and 0.002 behind itself
		w := queuing(t, map[string]float64{"web": 0, "hog": 0}, map[string]float64{"web": 0.002, "hog": behind}).byGroup["web"]
		if got := !math.IsNaN(w.value[ForeignQueued]); got != known {
			t.Errorf("%g s: whom it waits for is known: %v, want %v", behind, got, known)
		}
	}
}

// The usual wait is by the CPU time that it uses, and nothing before it is known.
func TestUsually(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		values     int
		usual, use float64 // CPUs
		want       float64
	}{{enoughValues, 2, 1, 0.2}, {enoughValues, 2, 4, 0.8}, {enoughValues - 1, 2, 1, 0}, {enoughValues, 0, 1, 0}} {
		w := &workload{usualUse: Mean{N: enough, Mean: tc.usual}}
		w.value[CPUUse] = tc.use
		if got := w.usually(&meter{usual: Mean{N: tc.values, Mean: 0.4}}); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("%+v: %g", tc, got)
		}
	}
}

// A wait that is far beyond the usual hardly moves it.
func TestUsualWaitOfAnOutlier(t *testing.T) {
	t.Parallel()
	w := &workload{}
	w.from, w.to, w.value[CPUUse] = 10*watch.Second, 11*watch.Second, 1
	for second := range watch.Time(2) {
		w.add(&watch.Sample{Time: (10 + second) * watch.Second, Quantity: watch.QueuedBy, Value: 5 * float64(second)}, "hog")
	}
	m := w.find(watch.QueuedBy, watch.Part{}, "hog")
	m.usual = Mean{N: enough, Mean: 0.4}
	if w.updateUsualQueue(); m.usual.N != enough+1 || m.usual.Mean > 0.4+leastWait {
		t.Errorf("%+v after a wait of 5, usually 0.4", m.usual)
	}
}
