package control

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// paperDelays are the run delays of a victim by suspect, of so many windows and more.
type paperDelays map[string]map[int]detect.RunDelay

func (p paperDelays) Symptom(string, detect.Resource) (detect.Symptom, bool) {
	return detect.Symptom{Strength: 3, Typical: 3, Evident: 3}, true
}

func (p paperDelays) RunDelay(_, suspect string, windows int) (detect.RunDelay, bool) {
	r, ok := p[suspect][windows]
	return r, ok
}

var errPaper = errors.New("refused by the test")

// probed is a run delay by the run-queue probe, of which a part is the suspect's.
func probed(others, suspect float64) detect.RunDelay {
	return detect.RunDelay{Run: 1, Wait: others, Others: others, Suspect: suspect, UseShare: math.NaN()}
}

// paperLoop knows a victim, web, a hog and mail.
func paperLoop(t *testing.T, victimUse, mailUse float64) *Loop {
	t.Helper()
	now := time.Unix(1e9, 0)
	l, err := New(Config{Mode: Enforce, Window: 100 * time.Millisecond, Now: func() time.Time { return now }}, &scribe{})
	if err != nil {
		t.Fatal(err)
	}
	l.begin(Input{Host: Host{CPUs: cpuset.MustParse("0-3"), Use: 4}, Workloads: []Workload{
		{Group: "web", Class: place.LS, Use: victimUse}, {Group: "hog", Class: place.BE, Use: 3}, {Group: "mail", Class: place.BE, Use: mailUse},
		{Group: "db", Class: place.LS, Use: 3},
	}})
	return l
}

// Whom the loop leaves alone beside a step against another group, by what each uses.
func TestSparesWhom(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		hog, victim, mail float64 // CPUs that they use
		alter             func(at *escalation)
		spared            bool
	}{
		"less than half of what the victim uses":   {3, 1, 0.49, nil, true},
		"half of it":                               {3, 1, 0.5, nil, false},
		"less than half of what the hog uses":      {1, 3, 0.49, nil, true},
		"half of that":                             {1, 3, 0.5, nil, false},
		"next to nothing, as does the victim":      {3, 0.2, 0.24, nil, true},
		"a quarter of a CPU, and the victim less":  {3, 0.2, 0.25, nil, false},
		"over memory":                              {3, 1, 0.4, func(at *escalation) { at.resource = detect.Memory }, false},
		"beside a step on probation":               {3, 1, 0.4, func(at *escalation) { at.steps[0].undecided = true }, false},
		"that has a step against it":               {3, 1, 0.4, func(at *escalation) { at.steps = append([]step{{action: Action{Suspect: "mail"}}}, at.steps...) }, false},
		"that nobody else has a step against":      {3, 1, 0.4, func(at *escalation) { at.steps = nil }, false},
		"whose use is not known is acted on alike": {3, 1, math.NaN(), nil, false},
	} {
		l := paperLoop(t, tc.victim, tc.mail)
		at := &escalation{victim: "web", resource: detect.CPU, steps: []step{{action: Action{Suspect: "hog"}, use: tc.hog}}}
		if tc.alter != nil {
			tc.alter(at)
		}
		if got := l.spares(at, "mail"); (got != "") != tc.spared {
			t.Errorf("%s: spared %v, want %v", name, got, tc.spared)
		}
	}
}

// By the short windows a suspect is spared that uses less than a quarter of a CPU, whoever else is acted on.
func TestSparesByShortWindows(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		recent float64
		alter  func(l *Loop, at *escalation)
		spared bool
	}{
		"less than a quarter of a CPU": {0.24, nil, true},
		"a quarter":                    {0.25, nil, false},
		"over memory":                  {0.1, func(_ *Loop, at *escalation) { at.resource = detect.Memory }, false},
		"that has a step against it":   {0.1, func(_ *Loop, at *escalation) { at.steps = []step{{action: Action{Suspect: "mail"}}} }, false},
		"beside a step, by the short ones": {2, func(l *Loop, at *escalation) {
			l.byGroup["mail"].Use, at.steps = 0.1, []step{{action: Action{Suspect: "hog"}, use: 3}}
		}, false},
		"beside a step on probation": {0.1, func(_ *Loop, at *escalation) { at.steps = []step{{action: Action{Suspect: "hog"}, undecided: true}} }, true},
	} {
		l := paperLoop(t, 1, 2)
		l.byGroup["mail"].Recent = &tc.recent
		at := &escalation{victim: "web", resource: detect.CPU}
		if tc.alter != nil {
			tc.alter(l, at)
		}
		if got := l.spares(at, "mail"); (got != "") != tc.spared {
			t.Errorf("%s: spared %v, want %v", name, got, tc.spared)
		}
	}
}

// When another group is acted on than the one that was found: it uses twice as much, the victim waits for it at
// least half as long, and something can be done about it.
func TestHeavierThanTheSuspect(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		use, part float64 // of hog; mail uses half a CPU, and the victim waits 1 s for it
		alter     func(l *Loop, at *escalation)
		want      string
	}{
		"twice the use, half the wait": {1, 0.5, nil, "hog"},
		"less than half the wait":      {3, 0.49, nil, "mail"},
		"less than twice the use":      {0.99, 2, nil, "mail"},
		"over memory":                  {3, 2, func(_ *Loop, at *escalation) { at.resource = detect.Memory }, "mail"},
		"there is a step against mail": {3, 2, func(_ *Loop, at *escalation) { at.steps = []step{{action: Action{Suspect: "mail"}}} }, "mail"},
		"what mail uses is not known":  {3, 2, func(l *Loop, _ *escalation) { l.byGroup["mail"].Recent = nil }, "mail"},
		"what hog uses is not known":   {3, 2, func(l *Loop, _ *escalation) { l.byGroup["hog"].Recent = nil }, "mail"},
		"hog may not be acted on":      {3, 2, func(l *Loop, _ *escalation) { l.exempt = append(l.exempt, exempt{"hog", place.BE, true, ""}) }, "mail"},
		"one that uses more, too":      {1, 0.5, func(l *Loop, _ *escalation) { use := 2.; l.byGroup["cron"].Recent = &use }, "cron"},
		"one that uses less, too":      {2, 0.5, func(l *Loop, _ *escalation) { use := 1.5; l.byGroup["cron"].Recent = &use }, "hog"},
		"by what is to be expected of its use": {3, 0, func(l *Loop, _ *escalation) {
			l.in.Symptoms.(paperDelays)["hog"] = map[int]detect.RunDelay{agreeing: {Run: 1, Wait: 9, Others: math.NaN(), Suspect: math.NaN(), UseShare: 0.9}}
		}, "mail"},
	} {
		l := paperLoop(t, 1, 0.5)
		l.in.Workloads = append(l.in.Workloads, Workload{Group: "cron", Class: place.BE, Use: 2})
		for i := range l.in.Workloads {
			l.byGroup[l.in.Workloads[i].Group] = &l.in.Workloads[i]
		}
		half := 0.5
		l.byGroup["mail"].Recent, l.byGroup["hog"].Recent = &half, &tc.use
		own := 9.
		l.byGroup["web"].Recent = &own
		l.in.Symptoms = paperDelays{
			"mail": {agreeing: probed(3, 1)}, "hog": {agreeing: probed(3, tc.part)}, "cron": {agreeing: probed(3, 0.6)}, "web": {agreeing: probed(3, 3)},
		}
		at := &escalation{victim: "web", resource: detect.CPU}
		if tc.alter != nil {
			tc.alter(l, at)
		}
		f := &detect.Finding{
			Victim: "web", Suspect: "mail", Resource: detect.CPU, Remedies: []detect.Remedy{detect.Weight}, Share: 0.6, Confidence: 0.5,
			Evidence: []detect.Evidence{{Signal: detect.WaitRatio, Value: 0.7}, {Signal: detect.QueueShare, Value: 0.6}},
		}
		f.Evidence[1].Subject.Name = "mail"
		got := l.heavier(at, f)
		if got.Suspect != tc.want || f.Suspect != "mail" || f.Evidence[1].Subject.Name != "mail" {
			t.Errorf("%s: %q, want %q; the finding has %q", name, got.Suspect, tc.want, f.Suspect)
		}
		if e := got.Evidence; tc.want != "mail" && (e[0].Value != 0.7 || e[1].Subject.Name != tc.want || e[1].Value != got.Share || got.Share >= 0.6 || got.Confidence >= 0.5) {
			t.Errorf("%s: share %g, %g sure, evidence %+v", name, got.Share, got.Confidence, e)
		}
	}
}

// That one is found who is left alone puts off no trial of what is done about another.
func TestSparedPutsOffNothing(t *testing.T) {
	t.Parallel()
	for use, found := range map[float64]bool{0.4: false, 2: true} {
		l := paperLoop(t, 1, use)
		l.in.Symptoms = paperDelays{}
		at := l.escalation("web", detect.CPU)
		at.phase, at.steps = Holding, []step{{action: Action{Suspect: "hog", Group: "hog"}, remedy: l.remedy(detect.Weight), use: 3}}
		l.react(context.Background(), &detect.Finding{Victim: "web", Suspect: "mail", Resource: detect.CPU, Remedies: []detect.Remedy{detect.Weight}})
		if at.found.IsZero() == found {
			t.Errorf("mail uses %g CPUs: found %v", use, at.found)
		}
	}
}

// When a suspect outweighs that of a step which is being verified: if the victim waits longer for it, by the
// probe, over enough windows, the step has the group yield, and something can be done about that suspect.
func TestOutweighedBy(t *testing.T) {
	t.Parallel()
	both := func(d detect.RunDelay) map[int]detect.RunDelay {
		return map[int]detect.RunDelay{1: d, agreeing: d, lookBack: d}
	}
	expected := detect.RunDelay{Run: 1, Wait: 3, Others: math.NaN(), Suspect: math.NaN(), UseShare: 0.9}
	for name, tc := range map[string]struct {
		suspect string
		delays  map[int]detect.RunDelay
		alter   func(at *escalation)
		want    bool
	}{
		"longer":                               {"mail", both(probed(3, 1.01)), nil, true},
		"as long":                              {"mail", both(probed(3, 1)), nil, false},
		"longer in one window":                 {"mail", map[int]detect.RunDelay{1: probed(9, 9), agreeing: probed(9, 9), lookBack: probed(3, 0.5)}, nil, false},
		"by what is to be expected of its use": {"mail", both(expected), nil, false},
		"after fewer windows":                  {"mail", both(probed(3, 2)), func(at *escalation) { at.seen.windows = lookBack - 1 }, false},
		"a step that costs its group":          {"mail", both(probed(3, 2)), func(at *escalation) { at.steps[0].remedy = find(builtIn, detect.HeadroomCap) }, false},
		"a step that was expected to help":     {"mail", both(probed(3, 2)), func(at *escalation) { at.steps[0].delay.probed = false }, false},
		"the suspect of the step":              {"hog", both(probed(3, 2)), nil, false},
		"one about which nothing can be done":  {"db", both(probed(3, 2)), nil, false},
	} {
		l := paperLoop(t, 1, 2)
		l.in.Symptoms = paperDelays{tc.suspect: tc.delays}
		at := &escalation{victim: "web", resource: detect.CPU, phase: Verifying, seen: look{windows: lookBack}, steps: []step{{
			action: Action{Suspect: "hog", Group: "hog", Remedy: detect.Weight}, remedy: find(builtIn, detect.Weight), use: 3,
			delay: delayed{total: 2, part: 1, probed: true},
		}}}
		if tc.alter != nil {
			tc.alter(at)
		}
		f := &detect.Finding{Victim: "web", Suspect: tc.suspect, Resource: detect.CPU, Remedies: []detect.Remedy{detect.Weight}}
		if got := l.outweighed(at, f); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// What is applied when the kernel is asked again is not told as reverted: another wish is active then.
func TestRetryToAnotherWish(t *testing.T) {
	t.Parallel()
	s := &scribe{}
	k := newOverrides(s, builtIn)
	act := func(l cgroup.Limits) Action { return Action{Remedy: detect.Weight, Group: "hog", Limits: l} }
	ctx := context.Background()
	for owner, l := range map[string]cgroup.Limits{"web": {Idle: cgroup.On}, "db": {Weight: 25}} {
		if _, err := k.set(ctx, owner, act(l)); err != nil {
			t.Fatal(err)
		}
	}
	s.refuse = errPaper
	if _, err := k.unset(ctx, "web", act(cgroup.Limits{Idle: cgroup.On})); err == nil {
		t.Fatal("not refused")
	}
	s.refuse = nil
	if reverted, failed, _ := k.retry(ctx, time.Unix(1e9, 0), true); len(reverted) > 0 || len(failed) > 0 {
		t.Errorf("reverted %v, failed %v: want neither", reverted, failed)
	}
	if all := k.active(); len(all) != 1 || all[0].Limits.Weight != 25 {
		t.Errorf("active: %v, want the other wish", all)
	}
	s.refuse = errPaper
	_, _ = k.unset(ctx, "db", act(cgroup.Limits{Weight: 25}))
	s.refuse = nil
	if reverted, _, _ := k.retry(ctx, time.Unix(1e9, 0), true); len(reverted) != 1 {
		t.Errorf("reverted %v, want what was the last wish", reverted)
	}
}
