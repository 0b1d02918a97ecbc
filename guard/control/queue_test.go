package control_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
)

// queue is a victim whose threads go on waiting behind each other when nobody else
// is in their way any more: what waited meanwhile has to be worked off.
type queue struct {
	*paper
	free, beset detect.Symptom // with a remedy active, and without
	accused     bool           // the neighbour, also with one active
}

func (q queue) Symptom(group string, r detect.Resource) (detect.Symptom, bool) {
	if group != victim || r != detect.CPU {
		return detect.Symptom{}, false
	}
	if len(q.force) > 0 {
		return q.free, true
	}
	return q.beset, true
}

// step runs a window; the victim's own load explains what it waits while nobody
// is in its way.
func (q queue) step(loop *control.Loop) []control.Event {
	time.Sleep(time.Second)
	f := detect.Finding{Victim: victim, Suspect: "pods/batch", Resource: detect.CPU, Confidence: 0.8, Remedies: detect.RemediesFor(detect.CPU, false)}
	if len(q.force) > 0 && !q.accused {
		f = detect.Finding{Victim: victim, Resource: detect.OwnLoad, Confidence: 0.8}
	}
	h := q.host()
	h.Use = float64(q.cpus)
	return loop.Step(context.Background(), control.Input{Findings: []detect.Finding{f}, Symptoms: q, Workloads: q.workloads, Host: h})
}

// run runs windows in mode enforce, and returns how what was done came out.
func (q queue) run(t *testing.T, windows int) []control.Outcome {
	t.Helper()
	loop, err := control.New(control.Config{Mode: control.Enforce}, q)
	if err != nil {
		t.Fatal(err)
	}
	var outcomes []control.Outcome
	for range windows {
		for _, e := range q.step(loop) {
			outcomes = append(outcomes, e.Outcome)
		}
	}
	return outcomes
}

func behind(strength, imposed float64) detect.Symptom {
	return detect.Symptom{Strength: strength, Imposed: &imposed}
}

// A remedy is kept for what others impose no longer, even if the victim's own
// queue is as long as before.
func TestOwnQueueIsNoFailure(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		beset, free detect.Symptom
		want        control.Outcome
	}{
		{"the rest is its own", behind(4, 2.8), behind(3.9, 0.2), control.Kept},
		{"others go on", behind(4, 2.8), behind(3.9, 2.5), control.Undecided},
		{"nobody can tell", behind(4, 2.8), detect.Symptom{Strength: 3.9}, control.Undecided},
		{"others were none of the trouble", behind(4, 0.8), behind(3.9, 0.2), control.Undecided},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				outcomes := queue{paper: onPaper(t, 16), free: c.free, beset: c.beset}.run(t, 8)
				if len(outcomes) < 2 || outcomes[0] != control.Applied || outcomes[1] != c.want {
					t.Errorf("%v, want applied, %v", outcomes, c.want)
				}
			})
		})
	}
}

// A trial fails if others are in the way again, though the symptom as a whole is
// hardly stronger than the victim's own queue was.
func TestTrialAmidOwnQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := onPaper(t, 16)
		p.workloads[1].Use = 0.2
		outcomes := queue{paper: p, free: behind(3.9, 0.2), beset: behind(4, 2.8)}.run(t, 120)
		at := slices.Index(outcomes, control.OnTrial)
		if at < 0 || at+1 == len(outcomes) || outcomes[at+1] != control.Restored {
			t.Errorf("%v, want a trial that ends with restored", outcomes)
		}
	})
}

// What hardly stands out is reported, and nobody is acted on for it; nor where little of it speaks
// against the suspect, or where it is gone in this very window.
func TestWeakSymptom(t *testing.T) {
	t.Parallel()
	for strength, acts := range map[[3]float64]bool{{1.1, 0, 1.6}: false, {1.3, 0, 1.6}: true, {1.3, 1.1, 1.6}: false, {1.4, 1.3, 1.6}: true, {1.4, 1.3, 0.9}: false, {1.4, 1.3, 1}: true} {
		synctest.Test(t, func(t *testing.T) {
			q := queue{paper: onPaper(t, 16), free: behind(0.5, 0), beset: behind(strength[2], 1.1)}
			q.beset.Typical, q.beset.Evident = strength[0], strength[1]
			if outcomes := q.run(t, 1); (len(outcomes) > 0) != acts {
				t.Errorf("strength %v: %v", strength, outcomes)
			}
		})
	}
}

// Once others impose no more, no further step is taken against them, though they are
// accused; unless that was none of the trouble.
func TestNextRung(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		beset, free detect.Symptom
		want        bool
	}{
		{"cured", behind(4, 2.8), behind(3.1, 0.4), false},
		{"others go on", behind(4, 2.8), behind(3.1, 1.2), true},
		{"rare but long waits", behind(20, 0.5), behind(15, 0.4), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				applied := 0
				for _, o := range (queue{onPaper(t, 16), c.free, c.beset, true}).run(t, 8) {
					if o == control.Applied {
						applied++
					}
				}
				if (applied > 1) != c.want || applied == 0 {
					t.Errorf("%d steps, want more than one: %v", applied, c.want)
				}
			})
		})
	}
}
