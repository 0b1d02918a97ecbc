package control

import (
	"cmp"
	"math"
	"testing"
	"time"

	"berth.dev/berth/guard/detect"
)

// What makes a window better than before the step, and what does so whatever the run delay is.
func TestBetter(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		before        step
		now           detect.Symptom
		delay         delayed
		better, cured bool
	}{
		"it is well":                       {step{strength: 1.1}, detect.Symptom{Strength: 0.99}, delayed{}, true, true},
		"it is not":                        {step{strength: 1.1}, detect.Symptom{Strength: 1}, delayed{}, false, false},
		"it was well before":               {step{strength: 0.99}, detect.Symptom{Strength: 0.9}, delayed{}, false, false},
		"weaker by a fifth":                {step{strength: 5}, detect.Symptom{Strength: 4}, delayed{}, true, false},
		"by less":                          {step{strength: 5}, detect.Symptom{Strength: 4.01}, delayed{}, false, false},
		"others impose no more":            {step{strength: 5, imposed: 1.5}, detect.Symptom{Strength: 5, Imposed: imposed(0.99)}, delayed{}, true, true},
		"they hardly did":                  {step{strength: 5, imposed: 0.99}, detect.Symptom{Strength: 5, Imposed: imposed(0.1)}, delayed{}, false, false},
		"they impose hardly less":          {step{strength: 5, imposed: 1}, detect.Symptom{Strength: 5, Imposed: imposed(0.81)}, delayed{}, false, false},
		"they go on":                       {step{strength: 5, imposed: 3}, detect.Symptom{Strength: 5, Imposed: imposed(1)}, delayed{}, false, false},
		"waits less by a quarter of it":    {step{strength: 5, delay: delayed{total: 1, part: 0.8}}, detect.Symptom{Strength: 6}, delayed{total: 0.8}, true, false},
		"by less than a quarter":           {step{strength: 5, delay: delayed{total: 1, part: 0.8}}, detect.Symptom{Strength: 6}, delayed{total: 0.81}, false, false},
		"waits as long, a weaker symptom":  {step{strength: 5, delay: delayed{total: 1, part: 0.8}}, detect.Symptom{Strength: 2}, delayed{total: 1}, false, false},
		"waits as long, and is well by it": {step{strength: 5, delay: delayed{total: 1, part: 0.8}}, detect.Symptom{Strength: 0.9}, delayed{total: 1}, true, true},
	} {
		if better, cured := new(Loop).better(&tc.before, &tc.now, &tc.delay); better != tc.better || cured != tc.cured {
			t.Errorf("%s: better %v, cured %v; want %v, %v", name, better, cured, tc.better, tc.cured)
		}
	}
}

// alikeWindows is the tally of so many windows that are the same.
func alikeWindows(n int, total, part float64, before *delayed) (y tally) {
	for range n {
		y.add(&delayed{total: total, part: part, run: 1}, before)
	}
	return y
}

// When a step is said to help, to fail or to harm, and when it is left open: by the number of windows, by
// what is known of the run delay, and by what the step costs others.
func TestJudge(t *testing.T) {
	t.Parallel()
	l := begun(t, Config{}, Input{})
	probed, byUse := delayed{total: 1, part: 0.5, probed: true}, delayed{total: 1, part: 1}
	free, costly := &Remedy{Yields: true}, &Remedy{}
	weak := []float64{1, 1, 1, 1, 1}
	for name, tc := range map[string]struct {
		delay       delayed
		remedy      *Remedy
		seen        look
		total, part float64 // of the run delay since; no total is that it is not known
		told        int     // in so many of the windows; 0 is in all
		ago         time.Duration
		want        judgement
	}{
		"it is well, in three windows":    {delay: probed, remedy: costly, seen: look{windows: 3, cured: 3}, want: helps},
		"in two":                          {delay: probed, remedy: costly, seen: look{windows: 2, cured: 2}, want: open},
		"in three of four":                {delay: probed, remedy: costly, seen: look{windows: 4, cured: 3}, want: open},
		"the part is gone":                {delay: probed, remedy: free, seen: look{windows: 3}, total: 0.1, part: 0.01, want: helps},
		"told in one of them":             {delay: probed, remedy: free, seen: look{windows: 3}, total: 0.1, part: 0.01, told: 1, want: open},
		"for two windows":                 {delay: probed, remedy: free, seen: look{windows: 2}, total: 0.1, part: 0.01, want: open},
		"others took most of it up":       {delay: probed, remedy: free, seen: look{windows: 5}, total: 0.88, part: 0.01, want: open},
		"less than they might":            {delay: probed, remedy: free, seen: look{windows: 5}, total: 0.85, part: 0.01, want: helps},
		"which costs, for certain":        {delay: probed, remedy: costly, seen: look{windows: 5}, total: 0.5, part: 0.01, want: helps},
		"which costs, hardly":             {delay: probed, remedy: costly, seen: look{windows: 5}, total: 0.85, part: 0.01, want: open},
		"the part stays":                  {delay: probed, remedy: free, seen: look{windows: 5}, total: 1, part: 0.5, want: fails},
		"for four windows":                {delay: probed, remedy: free, seen: look{windows: 4}, total: 1, part: 0.5, want: open},
		"the part has grown":              {delay: probed, remedy: free, seen: look{windows: 5}, total: 1.5, part: 1, want: harms},
		"no probe, it is gone":            {delay: byUse, remedy: free, seen: look{windows: 5}, total: 0.1, part: 0.1, want: helps},
		"no probe, for four windows":      {delay: byUse, remedy: free, seen: look{windows: 4}, total: 0.1, part: 0.1, want: open},
		"no probe, it stays":              {delay: byUse, remedy: free, seen: look{windows: 5}, total: 1, part: 1, want: fails},
		"no probe, it has grown":          {delay: byUse, remedy: free, seen: look{windows: 5}, total: 2, part: 2, want: harms},
		"not known, better in three":      {remedy: costly, seen: look{windows: 3, hits: 3}, want: helps},
		"not known, in three of four":     {remedy: costly, seen: look{windows: 4, hits: 3}, want: open},
		"not known, no better in five":    {remedy: costly, seen: look{windows: 5, strengths: weak}, want: fails},
		"not known, but in one":           {remedy: costly, seen: look{windows: 6, hits: 1, strengths: weak}, want: open},
		"not known, worse":                {remedy: costly, seen: look{windows: 5, strengths: []float64{1.25, 1.25, 1.25, 1, 1}}, want: harms},
		"not known, a little worse":       {remedy: costly, seen: look{windows: 5, strengths: []float64{1.24, 1.24, 1.24, 1, 1}}, want: fails},
		"nothing is seen, for 19 s":       {delay: probed, remedy: free, ago: 19 * time.Second, want: open},
		"for 20 s":                        {delay: probed, remedy: free, ago: 20 * time.Second, want: unclear},
		"for 20 s, and it takes its time": {delay: probed, remedy: &Remedy{Delay: time.Second}, ago: 20 * time.Second, want: open},
	} {
		s := &step{delay: tc.delay, remedy: tc.remedy, strength: 1, at: l.now.Add(-tc.ago)}
		at := &escalation{resource: detect.CPU, seen: tc.seen}
		if tc.total > 0 {
			at.seen.delay = alikeWindows(cmp.Or(tc.told, tc.seen.windows), tc.total, tc.part, &tc.delay)
		}
		if got := l.judge(at, s); got != tc.want {
			t.Errorf("%s: judgement %d, want %d", name, got, tc.want)
		}
	}
}

// What windows without a step and with it say of it: that it is missed, that it is not, or neither.
func TestLoss(t *testing.T) {
	t.Parallel()
	probed, byUse := &delayed{total: 1, part: 0.5, probed: true}, &delayed{total: 1, part: 0.5}
	// by is what is waited without the step where it is 0.5 with it and a quarter of the part is missing
	// by so many standard deviations, of 0.05 in ten windows.
	by := func(deviations float64) float64 { return 0.5 / (1 - quarter*0.5) * math.Exp(0.05*deviations) }
	for name, tc := range map[string]struct {
		before       *delayed
		held, heldBy float64 // the whole and the part
		without, its float64
		yields       bool
		more, no     bool
	}{
		"it is missed":                      {probed, 0.5, 0, 1, 0.5, false, true, false},
		"it is not":                         {probed, 0.5, 0.3, 0.5, 0.3, true, false, true},
		"the part is as large":              {probed, 0.5, 0.3, by(0), 0.3, true, false, true},
		"the part is back, the whole isn't": {probed, 0.5, 0, by(-0.3), 0.5, true, false, false},
		"the whole is back, by a little":    {probed, 0.5, 0, by(0.3), 0.5, true, true, false},
		"and it costs others":               {probed, 0.5, 0, by(0.3), 0.5, false, false, false},
		"by more, and it costs others":      {probed, 0.5, 0, by(1), 0.5, false, true, false},
		"no probe, it is missed":            {byUse, 0.2, 0.1, 1, 0.5, true, true, false},
		"no probe, by a little":             {byUse, 0.5, 0.1, by(0.3), 0.5, true, false, false},
		"no probe, it is not":               {byUse, 0.5, 0.1, 0.5, 0.5, true, false, true},
	} {
		held, without := alikeWindows(10, tc.held, tc.heldBy, tc.before), alikeWindows(10, tc.without, tc.its, tc.before)
		if more, no := without.loss(&held, tc.before, tc.yields, time.Second); more != tc.more || no != tc.no {
			t.Errorf("%s: missed %v, not missed %v; want %v, %v", name, more, no, tc.more, tc.no)
		}
	}
}

// By what a suspect is judged: by the probe, unless next to nothing of the wait is behind it.
func TestDelayBefore(t *testing.T) {
	t.Parallel()
	nan := math.NaN()
	for name, tc := range map[string]struct {
		told detect.RunDelay
		want delayed
	}{
		"by the probe":                    {detect.RunDelay{Wait: 2, Others: 1, Suspect: 0.1, UseShare: 0.5}, delayed{total: 1, part: 0.1, probed: true}},
		"hardly any of it":                {detect.RunDelay{Wait: 2, Others: 1, Suspect: 0.099, UseShare: 0.5}, delayed{total: 2, part: 1}},
		"its threads wait for each other": {detect.RunDelay{Wait: 2, Others: 0.05, Suspect: 0.05, UseShare: 0.5}, delayed{total: 2, part: 1}},
		"none, and it ran not":            {detect.RunDelay{Wait: 2, Others: 1}, delayed{}},
		"no probe":                        {detect.RunDelay{Wait: 2, Others: nan, Suspect: nan, UseShare: 0.25}, delayed{total: 2, part: 0.5}},
		"nothing is known":                {detect.RunDelay{Wait: nan, Others: 1, Suspect: 1, UseShare: 1}, delayed{}},
	} {
		l := begun(t, Config{}, Input{Symptoms: fixed{delay: tc.told}})
		if got := l.delayBefore(&escalation{victim: "web", resource: detect.CPU}, "hog", 3); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
		if got := l.delayBefore(&escalation{victim: "web", resource: detect.LLC}, "hog", 3); got != (delayed{}) {
			t.Errorf("%s, of a cache: %+v", name, got)
		}
		l.late = true
		if got := l.delayBefore(&escalation{victim: "web", resource: detect.CPU}, "hog", 3); got != (delayed{}) {
			t.Errorf("%s, of a late window: %+v", name, got)
		}
	}
}

// Without the probe the victim is freed of a suspect where the whole wait has fallen by four fifths of what
// was expected of it.
func TestFreedWithoutProbe(t *testing.T) {
	t.Parallel()
	for wait, want := range map[float64]bool{0.6: true, 0.61: false} {
		l := begun(t, Config{}, Input{Symptoms: fixed{delay: detect.RunDelay{Wait: wait, UseShare: 0.5}}})
		at := &escalation{victim: "web", resource: detect.CPU, steps: []step{weighed(l, step{delay: delayed{total: 1, part: 0.5}})}}
		if got := l.freed(at); got != want {
			t.Errorf("it waits %g: freed %v, want %v", wait, got, want)
		}
	}
}

// A window tells of a trial by the run delay where that is known, whatever the symptom is.
func TestBadByRunDelay(t *testing.T) {
	t.Parallel()
	for its, want := range map[float64]bool{0.3: true, 0.1: false} {
		l := begun(t, Config{}, Input{Symptoms: fixed{delay: detect.RunDelay{Wait: 1, Others: 0.6, Suspect: its}}})
		at := &escalation{victim: "web", resource: detect.CPU}
		at.trial = &trial{step: weighed(l, step{delay: delayed{total: 1, part: 0.6, probed: true}}), strength: 2, delay: delayed{total: 0.4, part: 0.1, probed: true}}
		if got := l.bad(at, &detect.Symptom{Strength: 2}); got != want {
			t.Errorf("it waits %g for the suspect: bad %v, want %v", its, got, want)
		}
	}
}

// Which windows since a step count: those that lie after it, but for a quarter, and tell of the run delay
// that it is judged by, or in which the victim is well.
func TestVerifyCounts(t *testing.T) {
	t.Parallel()
	known, unknown := detect.RunDelay{Wait: 1, Others: 1, Suspect: 0.5, Run: 1}, detect.RunDelay{Wait: math.NaN()}
	for name, tc := range map[string]struct {
		after                   time.Duration // the end of the window, after the step
		strength                float64
		delay                   detect.RunDelay
		windows, tallied, cured int
	}{
		"all of it after":       {time.Second, 5, known, 1, 1, 0},
		"three quarters of it":  {750 * time.Millisecond, 5, known, 1, 1, 0},
		"less":                  {749 * time.Millisecond, 5, known, 0, 0, 0},
		"it waits nobody knows": {time.Second, 5, unknown, 0, 0, 0},
		"and is well":           {time.Second, 0.9, unknown, 1, 0, 1},
	} {
		l := begun(t, Config{}, Input{Symptoms: fixed{delay: tc.delay}})
		at := &escalation{victim: "web", resource: detect.CPU, phase: Verifying}
		at.steps = []step{weighed(l, step{at: l.now.Add(-tc.after), strength: 5, delay: delayed{total: 1, part: 0.5, probed: true}})}
		l.verify(t.Context(), at, detect.Symptom{Strength: tc.strength})
		if s := &at.seen; s.windows != tc.windows || s.delay.windows() != tc.tallied || s.cured != tc.cured {
			t.Errorf("%s: %d windows, %d of the run delay, %d well; want %d, %d, %d", name, s.windows, s.delay.windows(), s.cured, tc.windows, tc.tallied, tc.cured)
		}
	}
}

// How the trial of an undecided step ends: restored for good, or once more, taken back and to blame or not;
// or it goes on.
func TestJudgeControl(t *testing.T) {
	t.Parallel()
	before := delayed{total: 1, part: 0.5, probed: true}
	low, high := alikeWindows(10, 0.5, 0, &before), alikeWindows(10, 1, 0.5, &before)
	unsure := alikeWindows(1, 0.5/(1-quarter*0.5), 0.1, &before)
	sick, well := []float64{3, 3, 3, 3, 3}, []float64{0.5, 0.5, 0.5, 0.5, 0.5}
	const late, soon = 20 * time.Second, 19 * time.Second
	for name, tc := range map[string]struct {
		held, now, earlier tally
		strengths          []float64
		ago                time.Duration
		remedy             detect.Remedy
		trials             int     // before this one
		outcome            Outcome // 0 (Applied) is none yet
		undecided          bool
		why                string // of the verdict about it
	}{
		"it is missed":                {low, high, tally{}, sick, soon, detect.HeadroomCap, 0, Restored, false, ""},
		"too few windows to say so":   {low, high, tally{}, sick[:4], soon, detect.HeadroomCap, 0, Applied, false, ""},
		"it is not":                   {high, high, tally{}, sick, soon, detect.HeadroomCap, 0, Relaxed, false, noHelp},
		"as the suspect is gone":      {high, high, tally{}, well, soon, detect.HeadroomCap, 0, Relaxed, false, ""},
		"by earlier trials as well":   {low, unsure, high, sick, soon, detect.HeadroomCap, 0, Restored, false, ""},
		"not known yet":               {low, unsure, tally{}, sick, soon, detect.HeadroomCap, 0, Applied, false, ""},
		"not known for long":          {low, unsure, tally{}, sick, late, detect.HeadroomCap, 1, Restored, true, ""},
		"nor by three trials":         {low, unsure, tally{}, sick, late, detect.HeadroomCap, 2, Relaxed, false, notShown},
		"by which a group yields":     {low, unsure, tally{}, sick, late, detect.Weight, 2, Restored, true, ""},
		"not known, and it is well":   {low, unsure, tally{}, well, late, detect.HeadroomCap, 0, Relaxed, false, ""},
		"nothing was told while held": {tally{}, tally{}, tally{}, sick, late, detect.HeadroomCap, 0, Relaxed, false, noHelp},
	} {
		l := begun(t, Config{}, Input{Symptoms: fixed{delay: detect.RunDelay{Wait: math.NaN()}}})
		at := &escalation{victim: "web", resource: detect.CPU, phase: Relaxing, wait: time.Minute}
		s := weighed(l, step{delay: before, undecided: true, held: tc.held, without: tc.earlier, trials: tc.trials})
		if s.action.Remedy, s.remedy = tc.remedy, l.remedy(tc.remedy); tc.remedy == detect.HeadroomCap {
			s.action.Limits = quota(2)
		}
		at.trial = &trial{step: s, at: l.now.Add(-tc.ago)}
		at.seen = look{windows: len(tc.strengths), strengths: tc.strengths, delay: tc.now}
		told := tc.now.windows()
		l.judgeControl(t.Context(), at, &Effect{After: median(tc.strengths)})
		outcome := Applied
		if len(l.events) > 0 {
			outcome = l.events[len(l.events)-1].Outcome
		}
		if outcome != tc.outcome {
			t.Errorf("%s: %v, want %v", name, outcome, tc.outcome)
			continue
		}
		if v := at.failed.about(l.now, "hog", tc.remedy); (v != nil) != (tc.why != "") || v != nil && v.why != tc.why {
			t.Errorf("%s: to blame %+v, want %q", name, v, tc.why)
		}
		if outcome == Restored {
			s := &at.steps[0]
			if s.undecided != tc.undecided || at.phase != Holding {
				t.Errorf("%s: undecided %v, phase %v; want %v, holding", name, s.undecided, at.phase, tc.undecided)
			}
			if tc.undecided && (s.trials != tc.trials+1 || s.without.windows() != told) {
				t.Errorf("%s: %d trials, %d windows of them", name, s.trials, s.without.windows())
			}
		}
	}
}

// What is said to be left once a step has helped.
func TestRemains(t *testing.T) {
	t.Parallel()
	rest := "it removed 60 % of the run delay"
	for name, tc := range map[string]struct {
		strength float64
		delay    *DelayEffect
		want     string
	}{
		"a rest":                   {2, &DelayEffect{Before: 1, After: 0.4, Outside: 0.49}, rest},
		"of processes in no group": {2, &DelayEffect{Before: 1, After: 0.4, Outside: 0.5}, rest + "; most of the rest is due to processes in no group: start them in a group of their own"},
		"nothing":                  {0.9, &DelayEffect{Before: 1, After: 0.4, Outside: 1}, ""},
		"more than before":         {2, &DelayEffect{Before: 1, After: 1, Outside: 1}, ""},
		"how much is not known":    {2, nil, ""},
	} {
		at := &escalation{}
		at.strengths.add(tc.strength, 5)
		if got := new(Loop).remains(at, &Effect{RunDelay: tc.delay}); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// A trial ends once three windows since tell the same, or as many as make up 300 ms.
func TestJudgeTrial(t *testing.T) {
	t.Parallel()
	for window, windows := range map[time.Duration]int{time.Second: 3, 40 * time.Millisecond: 7} {
		for strength, want := range map[float64]Outcome{2.4: Relaxed, 2.5: Restored} {
			l := begun(t, Config{Window: window}, Input{Symptoms: fixed{delay: detect.RunDelay{Wait: math.NaN()}}})
			at := &escalation{victim: "web", resource: detect.CPU, phase: Relaxing}
			at.trial = &trial{step: weighed(l, step{}), at: l.now.Add(1 - window*3/4), strength: 2}
			for n := range windows + 1 { // the first began before it
				if len(l.events) > 0 {
					t.Errorf("windows of %v: %v after %d", window, l.events[0].Outcome, n)
				}
				l.judgeTrial(t.Context(), at, detect.Symptom{Strength: strength})
				l.now = l.now.Add(window)
			}
			if len(l.events) != 1 || l.events[0].Outcome != want {
				t.Errorf("windows of %v, strength %g: %v, want %v", window, strength, l.events, want)
			}
		}
	}
}

// What was measured of a step is kept for its trials, if it has not shown whether it helps.
func TestProbation(t *testing.T) {
	t.Parallel()
	l := begun(t, Config{}, Input{})
	before := delayed{total: 1, part: 0.5, probed: true}
	at := &escalation{victim: "web", resource: detect.CPU, wait: time.Minute, steps: []step{weighed(l, step{delay: before})}}
	at.seen.delay = alikeWindows(4, 0.8, 0.3, &before)
	l.probation(at, &at.steps[0], &Effect{}, "")
	if s := &at.steps[0]; !s.undecided || s.held.windows() != 4 || s.held.level() != 0.8 || at.phase != Holding || !at.relaxAt.Equal(l.now.Add(time.Minute)) {
		t.Errorf("undecided %v, %d windows of %v, phase %v", s.undecided, s.held.windows(), s.held.level(), at.phase)
	}
}
