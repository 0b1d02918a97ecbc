package control

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// fixed has the symptom and the run delay of any victim; NaN is not known.
type fixed struct {
	symptom detect.Symptom
	delay   detect.RunDelay
}

func (f fixed) Symptom(string, detect.Resource) (detect.Symptom, bool) {
	return f.symptom, !math.IsNaN(f.symptom.Strength)
}

func (f fixed) RunDelay(string, string, int) (detect.RunDelay, bool) {
	return f.delay, !math.IsNaN(f.delay.Wait)
}

// begun is a loop that acts, in a step of an hour after it began, with windows of a second. There are a
// victim "web" and a group "hog" that may be squeezed.
func begun(t *testing.T, c Config, in Input) *Loop {
	t.Helper()
	now := time.Unix(1e9, 0)
	c.Mode, c.Now = Enforce, func() time.Time { return now }
	l, err := New(c, &scribe{})
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour)
	in.Workloads = []Workload{{Group: "web", Class: place.LS}, {Group: "hog", Class: place.BE}}
	l.begin(in)
	return l
}

// weighed is a step against hog.
func weighed(l *Loop, s step) step {
	s.action = Action{Remedy: detect.Weight, Victim: "web", Suspect: "hog", Group: "hog", Resource: detect.CPU}
	s.action.Limits.Weight = 1
	s.remedy = l.remedy(detect.Weight)
	return s
}

func imposed(v float64) *float64 { return &v }

// When a victim counts as unwell, so that a remedy is not tried without: from its own limit on, but not for
// its own load, nor for what it waits for others than the suspect.
func TestUnwell(t *testing.T) {
	t.Parallel()
	ownLoad := []detect.Finding{{Victim: "web", Resource: detect.OwnLoad}}
	free, bound := detect.RunDelay{Wait: 1, Others: 1, Suspect: 0.1}, detect.RunDelay{Wait: 1, Others: 1, Suspect: 0.11}
	for name, tc := range map[string]struct {
		resource detect.Resource
		strength float64
		findings []detect.Finding
		delay    detect.RunDelay
		want     bool
	}{
		"at 0.8":                 {detect.CPU, 0.8, nil, bound, false},
		"beyond":                 {detect.CPU, 0.81, nil, bound, true},
		"by instructions":        {detect.LLC, 0.95, nil, bound, false},
		"by these, beyond":       {detect.LLC, 0.96, nil, bound, true},
		"for its own load":       {detect.CPU, 3, ownLoad, bound, false},
		"of another kind":        {detect.LLC, 3, ownLoad, bound, true},
		"for others":             {detect.CPU, 3, nil, free, false},
		"for the suspect":        {detect.CPU, 3, nil, bound, true},
		"who waits was not told": {detect.CPU, 3, nil, detect.RunDelay{Wait: math.NaN()}, true},
	} {
		l := begun(t, Config{}, Input{Findings: tc.findings, Symptoms: fixed{detect.Symptom{Strength: tc.strength}, tc.delay}})
		at := &escalation{victim: "web", resource: tc.resource, phase: Holding, relaxAt: l.now.Add(time.Hour), lost: 2}
		at.steps = []step{weighed(l, step{at: l.now.Add(-time.Minute), delay: delayed{total: 1, part: 0.5, probed: true}})}
		l.reconcile(t.Context(), at)
		if got := at.unwell.Equal(l.now); got != tc.want || at.lost != 0 {
			t.Errorf("%s: unwell %v, %d windows lost; want %v and none", name, got, at.lost, tc.want)
		}
	}
}

// Once something is active by the long windows it stays with those; what was measured by windows of the
// other length counts no more.
func TestMove(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		near, to  bool
		steps     int
		undecided bool
		phase     Phase
		want      bool  // near
		then      Phase // with steps
	}{
		"to the short, with nothing active":  {to: true, want: true},
		"to the short, with a step":          {to: true, steps: 1, phase: Holding, then: Holding},
		"to the long, with a step":           {near: true, steps: 1, phase: Holding, then: Holding},
		"to the long, with one on probation": {near: true, steps: 1, phase: Verifying, then: Verifying},
		"to the long, with an undecided one": {near: true, steps: 1, undecided: true, phase: Holding, then: Verifying},
	} {
		l := begun(t, Config{}, Input{})
		at := &escalation{victim: "web", resource: detect.CPU, near: tc.near, phase: tc.phase, lost: 2}
		at.strengths.add(5, 5)
		for range tc.steps {
			at.steps = append(at.steps, weighed(l, step{undecided: tc.undecided, imposed: 3, delay: delayed{total: 1}, trials: 2, at: l.now.Add(-time.Minute)}))
		}
		l.move(at, tc.to)
		if at.near != tc.want {
			t.Errorf("%s: near %v, want %v", name, at.near, tc.want)
		}
		if moved := tc.near != tc.want; moved != (at.strengths.n == 0 && at.lost == 0) {
			t.Errorf("%s: %d strengths, %d windows lost", name, at.strengths.n, at.lost)
		}
		for _, s := range at.steps {
			fresh := s.imposed == 0 && s.delay == delayed{} && s.trials == 0 && !s.undecided && s.at.Equal(l.now)
			if at.phase != tc.then || fresh != tc.near {
				t.Errorf("%s: phase %v, step %+v; want %v", name, at.phase, s, tc.then)
			}
		}
	}
}

// When the last step is tried without: once the victim has been well and nobody accused for a while. For
// one that is undecided that does not matter, and after half an hour it does not for any.
func TestRelax(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for name, tc := range map[string]struct {
		due, unwell, found, since time.Duration // ago
		undecided                 bool
		other                     Phase // of another escalation against hog
		want                      bool
	}{
		"well for long":               {0, 10 * s, 5 * s, 60 * s, false, Holding, true},
		"another is verified":         {0, 10 * s, 5 * s, 60 * s, false, Verifying, false},
		"not due yet":                 {-s, 10 * s, 5 * s, 60 * s, false, Holding, false},
		"well for less":               {0, 9 * s, 5 * s, 60 * s, false, Holding, false},
		"accused a moment ago":        {0, 10 * s, 4 * s, 60 * s, false, Holding, false},
		"undecided":                   {0, 0, 0, 60 * s, true, Holding, true},
		"it suffers for half an hour": {0, 0, 0, 30 * time.Minute, false, Holding, true},
		"for a second less than that": {0, 0, 0, 30*time.Minute - s, false, Holding, false},
	} {
		l := begun(t, Config{}, Input{})
		l.escalations = []*escalation{{victim: "db", resource: detect.CPU, phase: tc.other, steps: []step{weighed(l, step{})}}}
		at := &escalation{victim: "web", resource: detect.CPU, phase: Holding, wait: 30 * s}
		at.relaxAt, at.unwell, at.found, at.since = l.now.Add(-tc.due), l.now.Add(-tc.unwell), l.now.Add(-tc.found), l.now.Add(-tc.since)
		at.steps = []step{weighed(l, step{undecided: tc.undecided, proven: at.since})}
		if _, err := l.overrides.set(t.Context(), at.owner(), at.steps[0].action); err != nil {
			t.Fatal(err)
		}
		l.relax(t.Context(), at)
		if got := at.phase == Relaxing && len(l.events) == 1 && l.events[0].Outcome == OnTrial; got != tc.want || len(at.steps) == 0 != tc.want {
			t.Errorf("%s: phase %v, %d steps, %v; want a trial: %v", name, at.phase, len(at.steps), l.events, tc.want)
		}
	}
}

// What a trial took away is compared from then on with how the victim fared in the trial, unless it is
// undecided; and the next trial comes twice as long after, up to half an hour.
func TestRestore(t *testing.T) {
	t.Parallel()
	before := delayed{total: 9, part: 9, probed: true}
	for _, undecided := range []bool{false, true} {
		for hold, waits := range map[time.Duration][2]time.Duration{
			30 * time.Second: {10 * time.Minute, 20 * time.Minute}, time.Minute: {20 * time.Minute, 30 * time.Minute}, time.Hour: {50 * time.Minute, time.Hour},
		} {
			l := begun(t, Config{Hold: hold}, Input{Symptoms: fixed{delay: detect.RunDelay{Wait: 2, Others: 2, Suspect: 1}}})
			at := &escalation{victim: "web", resource: detect.CPU, phase: Relaxing, wait: waits[0], seen: look{windows: 3}}
			at.imposed.add(3, 5)
			at.trial = &trial{step: weighed(l, step{strength: 9, imposed: 9, delay: before, undecided: undecided})}
			l.restore(t.Context(), at, &Effect{After: 4}, "")
			if len(at.steps) != 1 || at.phase != Verifying || at.trial != nil || at.wait != waits[1] {
				t.Fatalf("%d steps, phase %v, the next trial after %v; want %v", len(at.steps), at.phase, at.wait, waits[1])
			}
			want := delayed{total: 2, part: 1, probed: true}
			if undecided {
				want = before
			}
			if s := at.steps[0]; s.strength != 4 || s.imposed != 3 || s.delay != want || !s.at.Equal(l.now) {
				t.Errorf("undecided %v: it is compared with %v", undecided, fmt.Sprint(s.strength, s.imposed, s.delay))
			}
		}
	}
}

// What was made weaker on trial, and was not enough, is in force no more once it is restored.
func TestRestoreWeaker(t *testing.T) {
	t.Parallel()
	l := begun(t, Config{}, Input{Host: Host{CPUs: cpuset.MustParse("0-15")}})
	capped := func(cpus float64) step {
		return step{remedy: l.remedy(detect.HeadroomCap), action: Action{Remedy: detect.HeadroomCap, Victim: "web", Suspect: "hog", Group: "hog", Limits: quota(cpus)}}
	}
	at := &escalation{victim: "web", resource: detect.CPU, phase: Holding, since: l.now.Add(-time.Hour)}
	first, second := capped(4.8), capped(2.4)
	second.before = &first.action
	at.steps = []step{first, second}
	if _, err := l.overrides.set(t.Context(), at.owner(), second.action); err != nil {
		t.Fatal(err)
	}
	active := func(when string, want ...float64) {
		t.Helper()
		var got []float64
		for _, s := range at.steps {
			got = append(got, cpusOf(s.action.Limits))
		}
		if !slices.Equal(got, want) || cpusOf(l.overrides.active()[0].Limits) != want[len(want)-1] {
			t.Errorf("%s: steps of %v CPUs, active %v; want %v", when, got, l.overrides.active(), want)
		}
	}
	l.relax(t.Context(), at)
	active("a weaker one on trial", 4.8, 4)
	l.restore(t.Context(), at, &Effect{}, "")
	active("restored", 4.8, 2.4)
	at.hold(l.now, 0)
	l.relax(t.Context(), at)
	at.hold(l.now, 0) // the trial went well
	l.relax(t.Context(), at)
	active("back to the one before", 4.8)
	l.restore(t.Context(), at, &Effect{}, "")
	active("and it was needed", 4.8, 4)
	l.escalations = []*escalation{at}
	if l.Release(t.Context()); len(l.overrides.all) > 0 {
		t.Errorf("active after a release: %v", l.overrides.active())
	}
}

// A group that ends while two steps of one remedy are active for it needs no reverting, and is no failure.
func TestGroupOfTwoStepsIsGone(t *testing.T) {
	t.Parallel()
	l := begun(t, Config{}, Input{})
	limited := func(mib int64) step {
		a := Action{Remedy: detect.MemoryHigh, Victim: "web", Suspect: "hog", Group: "hog", Limits: cgroup.Limits{MemoryHigh: mib << 20}}
		return step{remedy: l.remedy(detect.MemoryHigh), action: a}
	}
	at := &escalation{victim: "web", resource: detect.Memory, phase: Holding}
	first, second := limited(900), limited(810)
	second.before = &first.action
	at.steps = []step{first, second}
	if _, err := l.overrides.set(t.Context(), at.owner(), second.action); err != nil {
		t.Fatal(err)
	}
	delete(l.byGroup, "hog")
	l.act.(*scribe).refuse = fs.ErrNotExist
	l.withdraw(t.Context(), at)
	if len(at.steps) > 0 || len(l.overrides.all) > 0 || len(l.events) != 2 {
		t.Errorf("%d steps, active %v, events %v; want both told", len(at.steps), l.overrides.active(), l.events)
	}
	for _, e := range l.events {
		if e.Outcome != Reverted || e.Alert {
			t.Errorf("%v, want it reverted", e)
		}
	}
}

// What a step is compared by: the symptom and what others imposed just before, and the run delay. A further
// step by the same remedy goes on from the first.
func TestEscalate(t *testing.T) {
	t.Parallel()
	find := func(r detect.Resource, remedy detect.Remedy) *detect.Finding {
		return &detect.Finding{Victim: "web", Suspect: "hog", Resource: r, Remedies: []detect.Remedy{remedy}}
	}
	for typical, want := range map[float64]float64{3: 3, 0: 5} {
		l := begun(t, Config{}, Input{Symptoms: fixed{detect.Symptom{Strength: 5, Typical: typical, Imposed: imposed(2)}, detect.RunDelay{Wait: 1, Others: 1, Suspect: 0.5}}})
		l.react(t.Context(), find(detect.CPU, detect.Weight))
		at := l.escalation("web", detect.CPU)
		if len(at.steps) != 1 || !at.found.Equal(l.now) {
			t.Fatalf("%d steps, last found at %v", len(at.steps), at.found)
		}
		if s := at.steps[0]; s.strength != want || s.imposed != 2 || s.delay != (delayed{total: 1, part: 0.5, probed: true}) {
			t.Errorf("typically %g: it is compared with %v", typical, fmt.Sprint(s.strength, s.imposed, s.delay))
		}
	}
	l := begun(t, Config{}, Input{Symptoms: fixed{symptom: detect.Symptom{Strength: math.NaN()}}})
	if l.react(t.Context(), find(detect.CPU, detect.Weight)); len(l.events) > 0 {
		t.Errorf("a victim of which nothing is known: %v", l.events)
	}
	l = begun(t, Config{}, Input{Symptoms: fixed{symptom: detect.Symptom{Strength: 5}}})
	l.byGroup["hog"].Memory = 900 << 20
	at := l.escalation("web", detect.Memory)
	at.steps = []step{{remedy: l.remedy(detect.MemoryHigh), memory: 1000 << 20, action: Action{Remedy: detect.MemoryHigh, Victim: "web", Suspect: "hog", Group: "hog"}}}
	at.steps[0].action.Limits.MemoryHigh = 900 << 20
	at.hold(l.now, time.Minute)
	l.react(t.Context(), find(detect.Memory, detect.MemoryHigh))
	if n := len(at.steps); n != 2 || at.steps[1].memory != 1000<<20 || at.steps[1].before == nil || at.steps[1].before.Limits.MemoryHigh != 900<<20 {
		t.Errorf("steps %+v, want a second one from the first's memory", at.steps)
	}
}

// A remedy that could not be applied is left alone for a time; what is still owed after that keeps every other
// from the group.
func TestTakeFails(t *testing.T) {
	t.Parallel()
	l := begun(t, Config{}, Input{})
	l.act.(*scribe).refuse = errors.New("refused by the test")
	at := l.escalation("web", detect.CPU)
	done, again := l.take(t.Context(), at, weighed(l, step{}), nil)
	if v := at.failed.about(l.now, "hog", detect.Weight); done || again || v == nil || v.why != notApplied {
		t.Errorf("done %v, another may be tried %v, verdict %+v", done, again, v)
	}
}

// A neighbour that comes back soon after a trial is held for twice as long, one that comes back late as at
// first. Soon is within twice the time for which it was held.
func TestComesBack(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		relaxed, lasted, want time.Duration
	}{
		"soon":                          {8 * time.Minute, time.Minute, 8 * time.Minute},
		"late":                          {8*time.Minute + 1, time.Minute, 30 * time.Second},
		"soon for how long it was held": {20 * time.Minute, 10 * time.Minute, 8 * time.Minute},
		"late for that":                 {20*time.Minute + 1, 10 * time.Minute, 30 * time.Second},
	} {
		l := begun(t, Config{}, Input{})
		at := l.escalation("web", detect.CPU)
		at.wait, at.relaxed, at.lasted = 4*time.Minute, l.now.Add(-tc.relaxed), tc.lasted
		if l.take(t.Context(), at, weighed(l, step{}), nil); at.wait != tc.want || !at.relaxed.IsZero() {
			t.Errorf("%s: the next trial after %v, want %v", name, at.wait, tc.want)
		}
	}
}

// When there is nothing left to remember of a victim.
func TestDone(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	fresh := func() *escalation {
		return &escalation{wait: time.Minute, relaxed: ago(2*time.Minute + 1), found: ago(time.Minute + 1), until: now}
	}
	for name, tc := range map[string]struct {
		alter func(at *escalation)
		want  bool
	}{
		"nothing":                {func(*escalation) {}, true},
		"a step":                 {func(at *escalation) { at.steps = []step{{}} }, false},
		"a trial":                {func(at *escalation) { at.trial = &trial{} }, false},
		"a cool-down":            {func(at *escalation) { at.until = now.Add(1) }, false},
		"a trial a moment ago":   {func(at *escalation) { at.relaxed = ago(2 * time.Minute) }, false},
		"what failed":            {func(at *escalation) { at.failed = verdicts{{until: now.Add(1)}} }, false},
		"what failed long ago":   {func(at *escalation) { at.failed = verdicts{{until: now}} }, true},
		"who was spared":         {func(at *escalation) { at.spared = verdicts{{until: now.Add(1)}} }, false},
		"a finding a moment ago": {func(at *escalation) { at.found = ago(time.Minute) }, false},
	} {
		at := fresh()
		tc.alter(at)
		if got := at.done(now); got != tc.want {
			t.Errorf("%s: done %v, want %v", name, got, tc.want)
		}
	}
}

// How late a window may be to tell something, and for how long signals may be lost, is three windows and 300 ms
// at least.
func TestLate(t *testing.T) {
	t.Parallel()
	for window, tc := range map[time.Duration]struct {
		late time.Duration
		lost int
	}{40 * time.Millisecond: {300 * time.Millisecond, 7}, 100 * time.Millisecond: {300 * time.Millisecond, 3}, time.Second: {3 * time.Second, 3}} {
		now := time.Unix(1e9, 0)
		l, err := New(Config{Mode: Enforce, Near: window, Now: func() time.Time { return now }}, &scribe{})
		if err != nil {
			t.Fatal(err)
		}
		for after, want := range map[time.Duration]bool{tc.late: false, tc.late + 1: true} {
			l.begin(Input{Near: true})
			now = now.Add(after)
			if l.begin(Input{Near: true}); l.late != want {
				t.Errorf("windows of %v, %v apart: late %v, want %v", window, after, l.late, want)
			}
		}
		at := &escalation{victim: "web", resource: detect.CPU, steps: []step{weighed(l, step{}), weighed(l, step{})}}
		for lost := 1; len(at.steps) == 2 && lost < 20; lost++ {
			if l.lose(t.Context(), at); len(at.steps) < 2 && (lost != tc.lost+1 || len(at.steps) != 1) {
				t.Errorf("windows of %v: %d steps left after %d without a signal, want one after %d", window, len(at.steps), lost, tc.lost+1)
			}
		}
	}
}

// The probe is wanted while a change is looked at, and a while before a trial for those who are judged by it.
func TestUnsettled(t *testing.T) {
	t.Parallel()
	l := begun(t, Config{}, Input{})
	for name, tc := range map[string]struct {
		phase Phase
		near  bool
		steps int
		due   time.Duration
		want  bool
	}{
		"nothing":                  {Clear, true, 0, 0, false},
		"verified":                 {Verifying, true, 1, time.Hour, true},
		"on trial":                 {Relaxing, true, 0, time.Hour, true},
		"a trial is due":           {Holding, false, 1, -1, true},
		"in five seconds":          {Holding, false, 1, 5 * time.Second, false},
		"which the probe tells of": {Holding, true, 1, 5*time.Second - 1, true},
		"in more than that":        {Holding, true, 1, 5 * time.Second, false},
	} {
		at := &escalation{phase: tc.phase, near: tc.near, relaxAt: l.now.Add(tc.due), steps: make([]step, tc.steps)}
		if l.escalations = []*escalation{at}; l.Unsettled(5*time.Second) != tc.want {
			t.Errorf("%s: unsettled %v, want %v", name, !tc.want, tc.want)
		}
	}
}

// Which changes would hide what another does: those of the same group or suspect, or of one in or around it.
func TestBusy(t *testing.T) {
	t.Parallel()
	l := begun(t, Config{}, Input{})
	for name, tc := range map[string]struct {
		phase          Phase
		group, suspect string // of the other change
		want           bool
	}{
		"the same group":         {Verifying, "pods/batch", "", true},
		"on trial":               {Relaxing, "pods/batch", "", true},
		"held":                   {Holding, "pods/batch", "", false},
		"one around it":          {Verifying, "pods", "", true},
		"one in it":              {Verifying, "pods/batch/job", "", true},
		"another":                {Verifying, "pods/mail", "pods/mail", false},
		"another, for the same":  {Verifying, "roof", "pods/batch", true},
		"another, for one in it": {Verifying, "roof", "pods/batch/job", true},
	} {
		o := &escalation{resource: detect.CPU, phase: tc.phase, steps: []step{{action: Action{Group: tc.group, Suspect: tc.suspect}}}}
		if tc.phase == Relaxing {
			o.trial = &trial{step: o.steps[0]}
		}
		l.escalations = []*escalation{o}
		if got := l.busy(&escalation{resource: detect.CPU}, "pods/batch"); got != tc.want {
			t.Errorf("%s: busy %v, want %v", name, got, tc.want)
		}
	}
}

// Whose trials come later: of best effort that yields the CPU and goes on to want it.
func TestDeferTrial(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		resource detect.Resource
		remedy   detect.Remedy
		class    place.Class
		use      float64
		want     bool
	}{
		"it wants as much":  {detect.CPU, detect.Weight, place.BE, 1, true},
		"it wants less":     {detect.CPU, detect.Weight, place.BE, 0.99, false},
		"not for the CPU":   {detect.IO, detect.Weight, place.BE, 2, false},
		"it is not BE":      {detect.CPU, detect.Weight, place.LS, 2, false},
		"it does not yield": {detect.CPU, detect.HeadroomCap, place.BE, 2, false},
	} {
		l := begun(t, Config{}, Input{})
		l.byGroup["hog"].Class, l.byGroup["hog"].Use = tc.class, tc.use
		s := weighed(l, step{use: 2, proven: l.now})
		s.remedy = l.remedy(tc.remedy)
		at := &escalation{victim: "web", resource: tc.resource, steps: []step{s}, wait: time.Minute, relaxAt: l.now.Add(time.Minute)}
		if l.deferTrial(at); at.deferred != tc.want || at.relaxAt.Equal(l.now.Add(10*time.Minute)) != tc.want {
			t.Errorf("%s: deferred %v to %v later, want %v", name, at.deferred, at.relaxAt.Sub(l.now), tc.want)
		}
	}
}

// When a group that yields is given a weight: after ten seconds with less than its floor on a full host, those
// that were better in between taken off; and how large that is.
func TestEnsureMinimum(t *testing.T) {
	t.Parallel()
	type window struct{ use, host float64 }
	starving, fed, idle := window{0.1, 16}, window{0.8, 16}, window{0.1, 15.1}
	for name, tc := range map[string]struct {
		first  []window // of two seconds each
		then   int      // windows of starving until it is fed
		own    int      // weight
		beside int      // weight of the victim's side
		want   int      // weight
	}{
		"starved":                     {then: 5, want: 6},
		"beside a heavier one":        {then: 5, beside: 1000, want: 53},
		"its own weight is less":      {then: 5, own: 3, want: 3},
		"after it had its floor":      {first: []window{starving, starving, fed}, then: 5, want: 6},
		"after there were CPUs idle":  {first: []window{starving, starving, idle}, then: 4, want: 6},
		"after it was so for as long": {first: []window{starving, idle, idle}, then: 5, want: 6},
	} {
		l := begun(t, Config{}, Input{Host: Host{CPUs: cpuset.MustParse("0-15")}})
		s := weighed(l, step{use: 8})
		s.action.Limits = cgroup.Limits{Idle: cgroup.On}
		at := &escalation{victim: "web", resource: detect.CPU, steps: []step{s}, passed: 2 * time.Second}
		l.byGroup["hog"].Limits.Weight, l.byGroup["web"].Limits.Weight = tc.own, tc.beside
		look := func(w window) bool {
			l.byGroup["hog"].Use, l.in.Host.Use = w.use, w.host
			l.ensureMinimum(t.Context(), at)
			return at.steps[0].action.Limits.Idle != cgroup.On
		}
		for _, w := range tc.first {
			look(w)
		}
		n := 1
		for ; n < 20 && !look(starving); n++ {
		}
		if got := at.steps[0].action.Limits.Weight; n != tc.then || got != tc.want {
			t.Errorf("%s: weight %d after %d windows, want %d after %d", name, got, n, tc.want, tc.then)
		}
		l.events = nil
		for range 20 {
			look(starving)
		}
		if len(l.events) > 0 {
			t.Errorf("%s: it is fed again: %v", name, l.events)
		}
	}
}

// Who may be acted on by which remedy.
func TestPermits(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		weigh  bool
		class  place.Class // of hog
		remedy detect.Remedy
		group  string
		want   bool
	}{
		"best effort":              {false, place.BE, detect.HeadroomCap, "hog", true},
		"others":                   {false, place.LS, detect.Weight, "hog", false},
		"others, weighed":          {true, place.LS, detect.Weight, "hog", true},
		"others, capped":           {true, place.LS, detect.HeadroomCap, "hog", false},
		"reserved, weighed":        {true, place.LSR, detect.Weight, "hog", false},
		"the victim":               {false, place.BE, detect.Burst, "web", true},
		"nobody knows it":          {false, place.BE, detect.Weight, "mail", false},
		"the root group":           {false, place.BE, detect.Weight, "", false},
		"processes, of which none": {false, place.BE, detect.ProcessWeight, detect.Outside, false},
	} {
		l := begun(t, Config{Weigh: tc.weigh}, Input{})
		l.in.Workloads[1].Class = tc.class
		l.begin(l.in)
		l.byGroup[detect.Outside] = &Workload{Group: detect.Outside, Class: place.BE}
		if reason := l.permits(Action{Remedy: tc.remedy, Victim: "web", Suspect: "hog", Group: tc.group}); (reason == "") != tc.want {
			t.Errorf("%s: %q, want it permitted: %v", name, reason, tc.want)
		}
	}
}

// Active settings are read back every ten seconds.
func TestDriftPace(t *testing.T) {
	t.Parallel()
	l := begun(t, Config{}, Input{})
	if _, err := l.overrides.set(t.Context(), "web", weighed(l, step{}).action); err != nil {
		t.Fatal(err)
	}
	looks := 0
	l.act.(*scribe).take()
	for range 30 {
		l.now = l.now.Add(time.Second)
		l.checkDrift(t.Context())
		if l.act.(*scribe).take() != "" {
			looks++
		}
	}
	if looks != 3 {
		t.Errorf("read back %d times in half a minute, want 3", looks)
	}
}

// Which CPUs best effort gets of those that others own, and that a group which is not best effort gets no limit.
func TestSuppressionOfWhom(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ lse, lsr, have, ls, lent string }{
		"nobody owns any":            {"", "", "0-7", "0-7", ""},
		"LSE keeps its own":          {"0-1", "", "0-7", "2-7", ""},
		"LSR lends":                  {"", "2-3", "0-7", "0-1,4-7", "2-3"},
		"both":                       {"0-1", "2-3", "0-7", "4-7", "2-3"},
		"there is nothing else left": {"0-7", "", "0-7", "0-7", ""},
	} {
		l := begun(t, Config{}, Input{})
		l.in.Workloads = []Workload{{Class: place.LSE, CPUs: cpuset.MustParse(tc.lse)}, {Class: place.LSR, CPUs: cpuset.MustParse(tc.lsr)}}
		if ls, lsr := l.lendable(cpuset.MustParse(tc.have)); ls.String() != tc.ls || lsr.String() != tc.lent {
			t.Errorf("%s: %q and %q, want %q and %q", name, ls, lsr, tc.ls, tc.lent)
		}
	}
	for class, want := range map[place.Class]int{place.BE: 1, place.LS: 0} {
		l := begun(t, Config{Suppression: &Suppression{Group: "hog", ByQuota: true}}, Input{Host: Host{CPUs: cpuset.MustParse("0-15"), Use: 4}})
		l.byGroup["hog"].Class = class
		l.suppress(t.Context())
		if got := len(l.overrides.active()); got != want {
			t.Errorf("%v: %d limits, want %d", class, got, want)
		}
		l.in.Host.Use, l.events = 12, nil
		for _, after := range []time.Duration{499 * time.Millisecond, time.Millisecond} { // half a window is for jitter
			if len(l.events) > 0 {
				t.Errorf("%v: twice in less than half a second: %v", class, l.events)
			}
			l.now = l.now.Add(after)
			l.suppress(t.Context())
		}
		if len(l.events) != want {
			t.Errorf("%v: half a second later %v, want %d", class, l.events, want)
		}
	}
}

// A cool-down ends when it is over, without a finding.
func TestResolved(t *testing.T) {
	t.Parallel()
	for left, want := range map[time.Duration]Phase{1: Unresolved, 0: Clear} {
		l := begun(t, Config{}, Input{Symptoms: fixed{}})
		at := &escalation{victim: "web", resource: detect.CPU, phase: Unresolved, until: l.now.Add(left)}
		if l.reconcile(t.Context(), at); at.phase != want {
			t.Errorf("%v before its end: %v, want %v", left, at.phase, want)
		}
	}
}

// Short windows do not limit best effort: what all groups use is told by the long ones.
func TestShortWindowsDoNotSuppress(t *testing.T) {
	t.Parallel()
	for near, want := range map[bool]int{false: 1, true: 0} {
		l := begun(t, Config{Suppression: &Suppression{Group: "hog", ByQuota: true}}, Input{})
		in := l.in
		in.Near, in.Host = near, Host{CPUs: cpuset.MustParse("0-15"), Use: 4}
		if l.Step(t.Context(), in); len(l.Active()) != want {
			t.Errorf("short %v: %v, want %d limits", near, l.Active(), want)
		}
	}
}

// Actions that were not taken do not add up beyond those that may be taken at once.
func TestBucket(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	b := newBucket(60, 2, now)
	for i, tc := range []struct {
		later time.Duration
		want  bool
	}{{0, true}, {0, true}, {0, false}, {time.Second, true}, {999 * time.Millisecond, false}, {time.Hour, true}, {0, true}, {0, false}} {
		now = now.Add(tc.later)
		if got := b.take(now); got != tc.want {
			t.Errorf("action %d: taken %v, want %v", i+1, got, tc.want)
		}
	}
}
