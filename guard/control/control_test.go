package control_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/place"
)

const onset = 10 * time.Second

// at100 has windows of 100 ms, as with the run-queue probe armed.
func at100(t *testing.T, n ...neighbour) *world {
	for i := range n {
		if n[i].on == nil {
			n[i].on = from(onset)
		}
	}
	return newWorld(t, 4, 100*time.Millisecond, n...)
}

func enforce() control.Config { return control.Config{Mode: control.Enforce} }

func want(t *testing.T, events []control.Event, text string) {
	t.Helper()
	if diff := cmp.Diff(text, told(events)); diff != "" {
		for _, e := range events {
			t.Log(e.Time.Format("05.000"), e)
		}
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestHogIsMovedAside(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := at100(t, hog("pods/batch", 2))
		r := w.runner(enforce())
		want(t, r.run(onset), "")
		events := r.run(10 * time.Second)
		want(t, events, "applied weight pods/batch: idle\nkept weight pods/batch: idle\n")
		if after := events[0].Time.Sub(w.start.Add(onset)); after > 400*time.Millisecond {
			t.Errorf("applied %v after the onset, want at most 400ms", after)
		}
		effect := events[1].Effect
		if effect == nil || effect.Before < 2 || effect.After >= 1 || effect.Better < 6 {
			t.Errorf("effect %+v, want from above 2 to below 1 in 6 windows", effect)
		}
		if len(events[0].Evidence) == 0 || events[0].Confidence == 0 || len(events[0].Changes) == 0 {
			t.Errorf("event %+v lacks evidence, confidence or changes", events[0])
		}
	})
}

// A neighbour that stays, though it uses little, is tried anew ever more rarely.
func TestTrialsBackOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := hog("pods/batch", 2)
		n.use, n.on = 0.2, from(time.Minute)
		w := newWorld(t, 4, time.Second, n)
		r := w.runner(enforce())
		events := r.run(time.Hour)
		var trials []time.Time
		bad := 0
		for _, e := range events {
			switch e.Outcome {
			case control.OnTrial:
				trials = append(trials, e.Time)
			case control.Restored:
				bad++
			}
		}
		if len(trials) != 6 || bad != 6 { // after 0.5, 1, 2, 4, 8, 16 minutes
			t.Errorf("%d trials, %d of them restored, want 6 in an hour", len(trials), bad)
		}
		for i := 2; i < len(trials); i++ {
			if a, b := trials[i-1].Sub(trials[i-2]), trials[i].Sub(trials[i-1]); b < 19*a/10 {
				t.Errorf("trial %d came after %v, the one before after %v: not doubled", i, b, a)
			}
		}
		hurt := 0
		for _, wait := range w.waits {
			if wait > 0.5 {
				hurt++
			}
		}
		if most := 7 * 3; hurt > most {
			t.Errorf("the victim waited in %d windows, want at most %d", hurt, most)
		}
	})
}

// One that is as greedy as before is tried after ten times the wait, and soon when it
// wants less. A cap, or what holds down one that is not best effort, has its price, and
// is tried as usual.
func TestGreedyNeighbourIsTriedRarely(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		alter  func(*world)
		trials []time.Duration // at most so long after what was kept, or the trial before
	}{
		{"stays", func(*world) {}, []time.Duration{5 * time.Minute, 10 * time.Minute, 20 * time.Minute}},
		{"wants less", func(w *world) {
			w.neighbours[0].uses = func(since time.Duration) float64 {
				switch {
				case since < 64*time.Second: // it was looked at before it began
					return 0
				case since < 3*time.Minute:
					return 3
				}
				return 0.9
			}
		}, []time.Duration{2*time.Minute + 25*time.Second}},
		{"stays, beside another that nothing is done about", func(w *world) {
			n := hog("pods/db", 2)
			n.class, n.on = place.LSR, func(since time.Duration) bool { return since%(6*time.Minute) >= 340*time.Second }
			w.neighbours = append(w.neighbours, n)
			w.workloads = append(w.workloads, control.Workload{Group: n.group, Class: n.class, Use: n.use})
		}, []time.Duration{5 * time.Minute, 10 * time.Minute}},
		{"goes", func(w *world) {
			w.neighbours[0].on = func(since time.Duration) bool { return since >= time.Minute && since < 4*time.Minute }
		}, []time.Duration{3*time.Minute + 25*time.Second}},
		{"its use is unknown", func(w *world) { w.workloads[1].Use = math.NaN() }, []time.Duration{30 * time.Second, time.Minute}},
		{"a cap", func(w *world) {
			w.missing = map[detect.Remedy]string{detect.Weight: "a test"}
			w.neighbours[0].left[detect.HeadroomCap] = 0.01
		}, []time.Duration{30 * time.Second}},
		{"latency-sensitive", func(w *world) { w.workloads[1].Class, w.lenient = place.LS, true }, []time.Duration{30 * time.Second, time.Minute}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 4, time.Second, hog("pods/batch", 2))
				w.neighbours[0].on = from(time.Minute)
				c.alter(w)
				cfg := enforce()
				cfg.Weigh = true
				var last time.Time
				var trials []time.Duration
				for _, e := range w.runner(cfg).run(65 * time.Minute) {
					switch {
					case e.Outcome == control.Kept && last.IsZero():
						last = e.Time
					case e.Outcome == control.OnTrial && e.Suspect == "pods/batch" && len(trials) < len(c.trials):
						trials = append(trials, e.Time.Sub(last))
						last = e.Time
					}
				}
				if len(trials) != len(c.trials) {
					t.Fatalf("trials after %v, want them after %v", trials, c.trials)
				}
				for i, after := range trials {
					if after < c.trials[i]-10*time.Second || after > c.trials[i]+10*time.Second {
						t.Errorf("trials after %v, want them after %v", trials, c.trials)
					}
				}
			})
		})
	}
}

func TestNeighbourThatLeavesIsReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := hog("pods/batch", 2)
		n.on = func(since time.Duration) bool { return since >= onset && since < 20*time.Second }
		w := at100(t, n)
		r := w.runner(enforce())
		want(t, r.run(5*time.Minute), `applied weight pods/batch: idle
kept weight pods/batch: idle
on_trial weight pods/batch: idle
relaxed weight pods/batch: idle
`)
		if len(w.force) > 0 {
			t.Errorf("still active: %v", w.force)
		}
		if s := r.loop.State(); len(s) > 0 {
			t.Errorf("state %+v, want nothing left", s)
		}
	})
}

func TestEffectThatComesLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4, time.Second, hog("pods/batch", 2))
		w.neighbours[0].on = from(time.Minute)
		w.delay = 2
		want(t, w.runner(enforce()).run(80*time.Second), "applied weight pods/batch: idle\nkept weight pods/batch: idle\n")
	})
}

func TestRemedyThatMakesItWorse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := hog("pods/batch", 2)
		n.left[detect.Weight], n.left[detect.HeadroomCap] = 2, 0.01
		w := at100(t, n)
		want(t, w.runner(enforce()).run(onset+10*time.Second), `applied weight pods/batch: idle
reverted weight pods/batch: idle
applied headroom_cap pods/batch: 2.20 CPUs
kept headroom_cap pods/batch: 2.20 CPUs
`)
	})
}

// What helps only in part is kept, and more is done.
func TestPartsAddUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := hog("pods/batch", 2)
		n.left = map[detect.Remedy]float64{detect.Weight: 0.4, detect.HeadroomCap: 1, detect.ShrinkCPUs: 0.05}
		w := at100(t, n)
		want(t, w.runner(enforce()).run(onset+10*time.Second), `applied weight pods/batch: idle
kept weight pods/batch: idle
applied headroom_cap pods/batch: 2.20 CPUs
reverted headroom_cap pods/batch: 2.20 CPUs
applied shrink_cpus pods/batch: CPUs 2-3
kept shrink_cpus pods/batch: CPUs 2-3
`)
	})
}

// What helped in part stays when nothing more does, and the alert says so.
func TestHelpedInPart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := hog("pods/batch", 2)
		n.left = map[detect.Remedy]float64{detect.Weight: 0.5}
		w := at100(t, n)
		events := w.runner(enforce()).run(onset + 20*time.Second)
		last := events[len(events)-1]
		if last.Outcome != control.GaveUp || !strings.Contains(last.Text, "what is active for the victim stays") || len(w.force) != 1 {
			t.Errorf("%v, active %v; want what helped to stay, and to be told", last, w.force)
		}
	})
}

func TestNothingHelps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := hog("pods/batch", 2)
		n.left = nil
		w := at100(t, n)
		r := w.runner(enforce())
		events := r.run(onset + 4*time.Minute)
		want(t, events, `applied weight pods/batch: idle
undecided weight pods/batch: idle
applied headroom_cap pods/batch: 2.20 CPUs
reverted headroom_cap pods/batch: 2.20 CPUs
applied shrink_cpus pods/batch: CPUs 2-3
reverted shrink_cpus pods/batch: CPUs 2-3
gave_up
on_trial weight pods/batch: idle
relaxed weight pods/batch: idle
`)
		last := events[6]
		if !last.Alert || len(last.Skipped) != 4 || len(w.force) > 0 {
			t.Errorf("gave up with alert %v, skipped %v, active %v", last.Alert, last.Skipped, w.force)
		}
		if s := r.loop.State(); len(s) != 1 || s[0].Phase != control.Unresolved {
			t.Errorf("state %+v, want unresolved", s)
		}
		if more := r.run(2 * time.Minute); len(more) == 0 {
			t.Error("nothing is tried after the cool-down")
		}
	})
}

func TestTwoAntagonists(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := at100(t, hog("pods/a", 1.1), hog("pods/b", 1))
		want(t, w.runner(enforce()).run(onset+20*time.Second), `applied weight pods/a: idle
kept weight pods/a: idle
applied weight pods/b: idle
kept weight pods/b: idle
`)
	})
}

// A neighbour that comes and goes meets a loop that acts ever more rarely.
func TestFlapping(t *testing.T) {
	t.Parallel()
	for _, every := range []time.Duration{15 * time.Second, time.Minute, 3 * time.Minute} {
		t.Run(every.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := hog("pods/batch", 2)
				n.on = func(since time.Duration) bool { return since >= time.Minute && since%every < every/3 }
				w := newWorld(t, 4, time.Second, n)
				r := w.runner(enforce())
				r.run(time.Hour)
				before := w.calls
				r.run(time.Hour)
				if n := w.calls - before; n > 12 {
					t.Errorf("%d writes in the second hour, want at most 12", n)
				}
			})
		})
	}
}

// However many suspects there are, the writes are bounded.
func TestActionsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var all []neighbour
		for i := range 20 {
			n := hog("pods/batch"+string(rune('A'+i)), 2)
			n.on = func(since time.Duration) bool { return since >= onset && int(since/(2*time.Second))%20 == i }
			all = append(all, n)
		}
		w := at100(t, all...)
		r := w.runner(control.Config{Mode: control.Enforce, PerMinute: 4, Burst: 2})
		events := r.run(onset + 5*time.Minute)
		applied, refused := 0, 0
		for _, e := range events {
			switch e.Outcome {
			case control.Applied:
				applied++
			case control.Refused:
				refused++
			}
		}
		if applied > 2+5*4 || applied < 10 {
			t.Errorf("%d actions in five minutes, want 10 to 22", applied)
		}
		if refused == 0 || refused > 6 {
			t.Errorf("%d refusals, want one a minute", refused)
		}
	})
}

func TestDecoys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ ails, events string }{
		{"limit", "applied burst pods/api: burst 200ms\nkept burst pods/api: burst 200ms\n"},
		{"steal", ""},
		{"load", ""},
	} {
		t.Run(c.ails, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := hog("pods/batch", 0.2) // innocent, but busy
				n.wait = 0
				w := at100(t, n)
				w.self = func(since time.Duration) string {
					if since < onset {
						return ""
					}
					return c.ails
				}
				want(t, w.runner(enforce()).run(onset+20*time.Second), c.events)
			})
		})
	}
}

// A throttled victim beside a hog: its own limit is seen to first.
func TestOwnLimitBesideAHog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := at100(t, hog("pods/batch", 2))
		w.self = func(since time.Duration) string {
			if since < onset {
				return ""
			}
			return "limit"
		}
		w.missing = map[detect.Remedy]string{detect.Burst: "no cpu.max.burst: Linux 5.14 has it"}
		events := w.runner(enforce()).run(onset + time.Minute)
		want(t, events, "refused\n")
		if len(events[0].Skipped) != 2 || events[0].Skipped[0].Reason != w.missing[detect.Burst] {
			t.Errorf("skipped %v, want the reason for burst first", events[0].Skipped)
		}
	})
}

func TestQuietHost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := at100(t, hog("pods/batch", 0), hog("pods/other", 0))
		w.noise = 0.2
		w.load = func(since time.Duration) float64 { return 0.5 + float64(since/time.Second%7)/4 }
		r := w.runner(enforce())
		want(t, r.run(10*time.Minute), "")
	})
}

func TestLostSignals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := hog("pods/batch", 2)
		n.left = map[detect.Remedy]float64{detect.Weight: 0.4, detect.HeadroomCap: 0.4, detect.ShrinkCPUs: 1}
		w := newWorld(t, 4, time.Second, n)
		w.neighbours[0].on = from(time.Minute)
		w.silent = func(since time.Duration) bool { return since > 80*time.Second }
		r := w.runner(enforce())
		before := r.run(80 * time.Second)
		if len(w.force) != 2 {
			t.Fatalf("active %v after %s, want two", w.force, told(before))
		}
		want(t, r.run(3*time.Second), "")
		want(t, r.run(time.Minute), "reverted headroom_cap pods/batch: 2.20 CPUs\nreverted weight pods/batch: idle\n")
		if len(w.force) != 0 {
			t.Errorf("still active: %v", w.force)
		}
	})
}

// A step that comes late concludes nothing.
func TestLateStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := at100(t, hog("pods/batch", 2))
		r := w.runner(enforce())
		r.run(onset + w.window)
		for range 10 {
			time.Sleep(time.Second)
			r.step()
		}
		want(t, r.events, "")
	})
}

func TestModes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := at100(t, hog("pods/batch", 2))
		r := w.runner(control.Config{})
		want(t, r.run(onset+10*time.Second), "")
		if _, err := r.loop.SetMode(context.Background(), control.Preview); err != nil {
			t.Fatal(err)
		}
		would := r.run(2 * time.Minute)
		want(t, would, "would_apply weight pods/batch: idle\n")
		if w.calls > 0 {
			t.Errorf("%d writes in mode preview", w.calls)
		}
		if len(would[0].Changes) == 0 || would[0].Mode != control.Preview {
			t.Errorf("event %+v lacks what would change, or its mode", would[0])
		}
		if _, err := r.loop.SetMode(context.Background(), control.Enforce); err != nil {
			t.Fatal(err)
		}
		want(t, r.run(5*time.Second), "applied weight pods/batch: idle\nkept weight pods/batch: idle\n")
		off, err := r.loop.SetMode(context.Background(), control.Observe)
		if err != nil {
			t.Fatal(err)
		}
		want(t, off, "reverted weight pods/batch: idle\n")
		if len(w.force) > 0 || len(r.loop.Active()) > 0 {
			t.Errorf("still active: %v", w.force)
		}
		want(t, r.run(10*time.Second), "")
	})
}

// A victim whose short windows end for good, as the probe is lost, is judged by the long
// ones: what has shown that it helps is held, the rest has to show it.
func TestWindowsChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		left  float64
		after time.Duration // from the onset until the change
		want  string
	}{
		{"kept", 0.01, 5 * time.Second, "applied weight pods/batch: idle\nkept weight pods/batch: idle\n"},
		{"on probation", 0.01, 500 * time.Millisecond, "applied weight pods/batch: idle\nkept weight pods/batch: idle\n"},
		{"on probation, and no help", 1, 500 * time.Millisecond, "applied weight pods/batch: idle\nundecided weight pods/batch: idle\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := hog("pods/batch", 2)
				n.left = map[detect.Remedy]float64{detect.Weight: c.left}
				w := at100(t, n)
				config := enforce()
				r := w.runner(config)
				config.Window, config.Near = time.Second, w.window
				loop, err := control.New(config, w)
				if err != nil {
					t.Fatal(err)
				}
				r.loop, r.near = loop, true
				r.run(onset + c.after)
				if len(w.force) != 1 {
					t.Fatalf("active: %v", w.force)
				}
				calls := w.calls
				r.near, r.window = false, time.Second
				r.run(20 * time.Second)
				if got := told(r.events[:2]); got != c.want {
					t.Errorf("%s, want %s", got, c.want)
				}
				if c.left < 1 && (len(w.force) != 1 || w.calls != calls) {
					t.Errorf("active %v after %d more writes, want it held as it was", w.force, w.calls-calls)
				}
			})
		})
	}
}

// While somebody is judged by short windows, the long ones neither act nor end anything,
// and while the short ones rest they hold it.
func TestShortWindowsOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := onPaper(t, 16, complaint{victim, "pods/batch", detect.CPU, map[detect.Remedy]float64{detect.Weight: 0.1}})
		config := enforce()
		config.Near = config.Window // as short as the long ones: they are told apart all the same
		loop, err := control.New(config, p)
		if err != nil {
			t.Fatal(err)
		}
		step := func(near, resting bool) []control.Event {
			time.Sleep(time.Second)
			return loop.Step(t.Context(), control.Input{
				Findings: p.findings(), Symptoms: p, Workloads: p.workloads, Host: p.host(), Near: near, Resting: resting,
				Closely: func(string, detect.Resource) bool { return true },
			})
		}
		if events := step(false, false); len(events) > 0 {
			t.Errorf("the long window: %s", told(events))
		}
		want(t, step(true, false), "applied weight pods/batch: idle\n")
		for range 60 {
			if events := step(false, true); len(events) > 0 {
				t.Errorf("resting: %s", told(events))
			}
		}
		p.workloads[1].Protected = true
		want(t, step(false, true), "reverted weight pods/batch: idle\n")
	})
}

// Two of a loop's escalations never have the same knob, on v1 not that of a group within the
// other's either: the second goes on to its next step, whatever the first does meanwhile.
func TestOneOwnerOfAKnob(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ first, second string }{{"pods/batch", "pods/batch"}, {"pods", "pods/batch"}, {"pods/batch", "pods"}} {
		synctest.Test(t, func(t *testing.T) {
			shrink := map[detect.Remedy]float64{detect.ShrinkCPUs: 0.1}
			p := onPaper(t, 16, complaint{"svc/api", c.first, detect.CPU, shrink}, complaint{"svc/api", c.second, detect.LLC, nil})
			p.workloads = []control.Workload{
				{Group: "svc/api", Class: place.LS, CPUs: cpuset.MustParse("0-3")}, {Group: "pods", Class: place.BE, Use: 8}, {Group: "pods/batch", Class: place.BE, Use: 8},
			}
			p.missing = map[detect.Remedy]string{detect.Weight: "a test", detect.HeadroomCap: "a test"}
			skipped := false
			for _, e := range p.run(enforce(), 300) {
				for _, s := range e.Skipped {
					skipped = skipped || e.Resource == detect.LLC && s.Remedy == detect.ShrinkCPUs && strings.Contains(s.Reason, "for another victim or resource")
				}
				if e.Outcome == control.Applied && e.Resource == detect.LLC && len(p.force) > 1 {
					t.Fatalf("both have CPUs: %v", p.force)
				}
			}
			if len(p.force) > 1 {
				t.Errorf("active: %v, want one set", p.force)
			}
			if !skipped {
				t.Error("the second escalation never met the first one's knob")
			}
		})
	}
}

func TestVictimOrSuspectGoes(t *testing.T) {
	t.Parallel()
	for _, gone := range []string{victim, "pods/batch"} {
		synctest.Test(t, func(t *testing.T) {
			w := at100(t, hog("pods/batch", 2))
			r := w.runner(enforce())
			r.run(onset + 5*time.Second)
			for i := range w.workloads {
				if w.workloads[i].Group == gone {
					w.workloads[i].Group = "pods/new"
					w.workloads[i].Class = place.LS
				}
			}
			want(t, r.run(2 * w.window)[:1], "reverted weight pods/batch: idle\n")
		})
	}
}

// A suspect that becomes protected is let go at once.
func TestProtectedMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := at100(t, hog("pods/batch", 2))
		r := w.runner(enforce())
		r.run(onset + 5*time.Second)
		w.workloads[1].Protected = true
		want(t, r.run(time.Minute), "reverted weight pods/batch: idle\nrefused\n")
	})
}

// A suspect that becomes protected while a remedy against it is lifted on trial does not get it again.
func TestProtectedOnTrial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := hog("pods/batch", 2)
		n.use = 0.2 // not worth a late trial
		w := at100(t, n)
		r := w.runner(enforce())
		onTrial := func(e control.Event) bool { return e.Outcome == control.OnTrial }
		for !slices.ContainsFunc(r.events, onTrial) {
			if r.run(w.window); time.Since(w.start) > 5*time.Minute {
				t.Fatalf("no trial:\n%s", told(r.events))
			}
		}
		w.workloads[1].Protected = true
		applied := len(w.applied)
		want(t, r.run(20*time.Second), "reverted weight pods/batch: idle\nrefused\n")
		if len(w.applied) > applied || len(w.force) > 0 {
			t.Errorf("applied %v, active %v", w.applied[applied:], w.force)
		}
	})
}
