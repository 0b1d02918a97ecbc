package control

import (
	"context"
	"slices"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
)

// What a group has begun to take is evidence for one step, by which it yields, however weak the symptom is, and
// for no other.
func TestActsOnWhoTakes(t *testing.T) {
	t.Parallel()
	weak, strong := detect.Symptom{Strength: 0.5, Typical: 2}, detect.Symptom{Strength: 3, Typical: 3, Evident: 1.2}
	idle := func(l *Loop, _ *escalation) { l.byGroup["hog"].Limits.Idle = cgroup.On }
	held := func(l *Loop, at *escalation) {
		at.phase, at.steps = Holding, []step{weighed(l, step{use: 3, delay: delayed{total: 1, part: 0.1, probed: true}})}
	}
	for name, tc := range map[string]struct {
		symptom detect.Symptom
		takes   bool
		alter   func(l *Loop, at *escalation)
		want    detect.Remedy // the new step; "" is none
		told    int           // events
	}{
		"a weak symptom":                  {weak, true, nil, detect.Weight, 1},
		"one that says no such thing":     {weak, false, nil, "", 0},
		"weak evidence":                   {detect.Symptom{Strength: 3, Typical: 3, Evident: 1.19}, true, nil, detect.Weight, 1},
		"strong evidence, a weak symptom": {detect.Symptom{Strength: 0.5, Typical: 3, Evident: 1.3}, true, nil, detect.Weight, 1},
		"beside a cap": {weak, true, func(l *Loop, at *escalation) {
			capped := weighed(l, step{use: 3, delay: delayed{total: 1, part: 0.1, probed: true}})
			capped.action.Remedy, capped.remedy, capped.action.Limits = detect.HeadroomCap, l.remedy(detect.HeadroomCap), quota(1)
			at.phase, at.steps = Holding, []step{capped}
		}, "", 0},
		"of nobody who takes":          {detect.Symptom{Strength: 3, Typical: 3, Evident: 1.19}, false, nil, "", 0},
		"idle already":                 {weak, true, idle, "", 0},
		"idle, and a strong symptom":   {strong, true, idle, detect.HeadroomCap, 1},
		"a second step":                {weak, true, held, "", 0},
		"second, and a strong symptom": {strong, true, held, detect.HeadroomCap, 1},
		"it did not help before": {weak, true, func(l *Loop, at *escalation) {
			at.failed.add(l.now, verdict{suspect: "hog", remedy: detect.Weight, until: l.now.Add(coolDown)})
		}, "", 0},
		"it uses little": {weak, true, func(l *Loop, _ *escalation) { use := 0.2; l.byGroup["hog"].Recent = &use }, "", 1},
	} {
		l := begun(t, Config{}, Input{Host: Host{CPUs: cpuset.MustParse("0-1"), Use: 2}, Symptoms: fixed{tc.symptom, detect.RunDelay{Run: 1, Wait: 1, Others: 1, Suspect: 0.5}}})
		hog := l.byGroup["hog"]
		hog.Use = 1
		at := l.escalation("web", detect.CPU)
		if tc.alter != nil {
			tc.alter(l, at)
		}
		before := len(at.steps)
		remedies := slices.Clone(detect.RemediesFor(detect.CPU, false))
		f := &detect.Finding{Victim: "web", Suspect: "hog", Resource: detect.CPU, Remedies: slices.Clone(remedies), Takes: tc.takes}
		if l.react(context.Background(), f); !slices.Equal(f.Remedies, remedies) {
			t.Errorf("%s: the finding is left with %v of %v", name, f.Remedies, remedies)
		}
		got := detect.Remedy("")
		if len(at.steps) > before {
			got = at.steps[before].action.Remedy
		}
		if got != tc.want || len(l.events) != tc.told {
			t.Errorf("%s: %q, want %q; events %v, want %d", name, got, tc.want, l.events, tc.told)
		}
		if got != "" && tc.symptom == weak && at.steps[before].strength != weak.Strength {
			t.Errorf("%s: the step is judged by a symptom of %g before, want that of the newest window, %g", name, at.steps[before].strength, weak.Strength)
		}
	}
}
