package control_test

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// idled is a host whose neighbour is in the idle class, which helps.
func idled(t *testing.T) (*world, *runner) {
	t.Helper()
	n := hog("pods/batch", 2)
	n.left = map[detect.Remedy]float64{detect.Weight: 0.01}
	w := at100(t, n)
	r := w.runner(enforce())
	r.run(onset + 5*time.Second)
	return w, r
}

// What somebody else changes is applied again twice; the third time it is theirs, and is
// left alone for long.
func TestDrift(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, r := idled(t)
		const knob = "pods/batch weight"
		if _, ok := w.force[knob]; !ok {
			t.Fatal("nothing is active")
		}
		for i := range 3 {
			w.drift = map[string]string{knob: "0"}
			events := r.run(11 * time.Second)
			_, inForce := w.force[knob]
			switch {
			case i < 2 && (!inForce || len(w.drift) > 0 || !strings.HasPrefix(told(events), "restored weight pods/batch: idle\n")):
				t.Errorf("change %d: active %v, events\n%s", i+1, inForce, told(events))
			case i == 2:
				if inForce || len(r.loop.Active()) > 0 {
					t.Errorf("still active: %v, believed %v", w.force, r.loop.Active())
				}
				e := events[0]
				if e.Outcome != control.Yielded || !e.Alert || !strings.Contains(e.Text, `set pods/batch to "0", 3 times`) {
					t.Errorf("event %v", e)
				}
			}
		}
		for _, e := range r.run(10 * time.Minute) {
			if e.Action != nil && e.Action.Remedy == detect.Weight {
				t.Errorf("tried again: %v", e)
			}
		}
	})
}

// A group that is made anew under its name, however often, has the remedy again: that is no other writer's change.
func TestMadeAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, r := idled(t)
		w.fail = func(_ int, call string) error {
			if call == "revert" {
				return &fs.PathError{Op: "revert", Path: "pods/batch/cpu.idle", Err: fs.ErrNotExist}
			}
			return nil
		}
		for i := range 5 {
			w.drift = map[string]string{"pods/batch weight": "0"}
			events := r.run(11 * time.Second)
			if told(events) != "restored weight pods/batch: idle\n" || !strings.Contains(events[0].Text, "pods/batch was made anew") || len(w.drift) > 0 {
				t.Errorf("made anew %d times: events\n%s", i+1, told(events))
			}
		}
	})
}

// A change that cannot be applied again at once is owed.
func TestDriftThatCannotBePutBack(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"revert", "apply"} {
		synctest.Test(t, func(t *testing.T) {
			w := at100(t, hog("pods/batch", 2))
			r := w.runner(enforce())
			r.run(onset + 5*time.Second)
			w.drift = map[string]string{"pods/batch weight": "0"}
			w.fail = func(_ int, call string) error {
				if call == op {
					w.fail = nil
					return fmt.Errorf("%s: refused by the test", op)
				}
				return nil
			}
			events := r.run(15 * time.Second)
			if len(events) == 0 || events[0].Outcome != control.Failed || !events[0].Alert {
				t.Errorf("%s fails: events\n%s", op, told(events))
			}
			agree(t, r, op+" fails")
			if _, ok := w.force["pods/batch weight"]; !ok || len(w.drift) > 0 {
				t.Errorf("%s fails: active %v, drift %v", op, w.force, w.drift)
			}
		})
	}
}

// Suppression yields too.
func TestSuppressionDrift(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := onPaper(t, 16)
		p.workloads[1].Group = "berth-idle"
		c := enforce()
		c.Suppression = &control.Suppression{Group: "berth-idle", ByQuota: true}
		loop, err := control.New(c, p)
		if err != nil {
			t.Fatal(err)
		}
		yielded := 0
		for range 120 {
			time.Sleep(time.Second)
			p.drift = map[string]string{"berth-idle headroom_cap": "max 100000"}
			in := control.Input{Symptoms: p, Workloads: p.workloads, Host: p.host()}
			in.Host.Use = 10
			for _, e := range loop.Step(context.Background(), in) {
				if e.Outcome == control.Yielded {
					yielded++
				}
			}
		}
		if yielded != 1 || len(p.force) > 0 || len(loop.Active()) > 0 {
			t.Errorf("yielded %d times, active %v", yielded, p.force)
		}
	})
}

// One suspect that must not be touched does not shield the next.
func TestCoolDownIsOfTheSuspect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := onPaper(t, 16, complaint{victim, "pods/db", detect.CPU, map[detect.Remedy]float64{detect.Weight: 0.1}})
		p.workloads = append(p.workloads, control.Workload{Group: "pods/db", Class: place.LSR, Use: 8})
		loop, err := control.New(enforce(), p)
		if err != nil {
			t.Fatal(err)
		}
		var events []control.Event
		for i := range 50 {
			time.Sleep(time.Second)
			if i == 20 {
				p.cases[0].suspect = "pods/batch"
			}
			if i == 25 { // and the first is left alone all the same
				p.cases[0].suspect = "pods/db"
			}
			in := control.Input{Findings: p.findings(), Symptoms: p, Workloads: p.workloads, Host: p.host()}
			events = append(events, loop.Step(context.Background(), in)...)
		}
		want(t, events, "refused\napplied weight pods/batch: idle\nkept weight pods/batch: idle\n")
	})
}

// A group that is idle and gets nothing on a full host has a weight instead; one that
// gets its floor, wanted nothing, or finds CPUs free, stays idle. The same goes while the
// loop rests, without any symptom.
func TestIdleGroupsKeepTheirFloor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                string
		before, after, host float64
		fed                 bool
	}{
		{"starved", 8, 0.1, 16, true},
		{"has its floor", 8, 0.9, 16, false},
		{"wanted little before", 0.1, 0.06, 16, false},
		{"does not want more", 8, 0.1, 12, false},
	} {
		for _, rests := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				p := onPaper(t, 16, complaint{victim, "pods/batch", detect.CPU, map[detect.Remedy]float64{detect.Weight: 0.1}})
				p.workloads[0].Limits.Weight = 1000
				p.workloads[1].Use = c.before
				config := enforce()
				config.Window, config.Near = 5*time.Second, time.Second
				loop, err := control.New(config, p)
				if err != nil {
					t.Fatal(err)
				}
				closely := func(string, detect.Resource) bool { return true }
				var events []control.Event
				for range 25 {
					time.Sleep(time.Second)
					if _, ok := p.force["pods/batch weight"]; ok {
						p.workloads[1].Use = c.after
					}
					in := control.Input{Findings: p.findings(), Symptoms: p, Workloads: p.workloads, Host: p.host(), Near: true, Closely: closely}
					in.Host.Use = c.host
					if rests && !loop.Unsettled(0) && len(loop.Helped()) > 0 {
						in.Findings, in.Symptoms, in.Near, in.Resting = nil, nil, false, true
					}
					events = append(events, loop.Step(context.Background(), in)...)
				}
				text := "applied weight pods/batch: idle\nkept weight pods/batch: idle\n"
				if c.fed {
					text += "relaxed weight pods/batch: weight 53\n"
				}
				t.Logf("%s, rests: %v", c.name, rests)
				want(t, events, text)
				if now := p.force["pods/batch weight"].Limits; (now.Idle != cgroup.On) != c.fed {
					t.Errorf("active: %+v", now)
				}
			})
		}
	}
}

// What the writer of the base values has removed is applied again. What does not fit any
// more is given up, and not tried again for the time of the cool-down.
func TestReapply(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, r := idled(t)
		const knob = "pods/batch weight"
		delete(w.force, knob)
		if events := r.loop.Reapply(t.Context()); len(events) > 0 || w.force[knob].Group == "" {
			t.Fatalf("active %v, events %v", w.force, events)
		}
		delete(w.force, knob)
		w.fail = func(_ int, call string) error {
			if call != "apply" {
				return nil
			}
			w.fail = nil
			return fmt.Errorf("refused by the test")
		}
		events := r.loop.Reapply(t.Context())
		if len(events) != 1 || events[0].Outcome != control.Failed || !events[0].Alert || !strings.Contains(events[0].Text, "refused by the test") {
			t.Errorf("events %v", events)
		}
		if len(w.force) > 0 || len(r.loop.Active()) > 0 {
			t.Errorf("active %v, believed %v", w.force, r.loop.Active())
		}
		tried := func(e control.Event) bool {
			return e.Outcome == control.Applied && e.Action.Remedy == detect.Weight
		}
		if again := r.run(4 * time.Minute); slices.ContainsFunc(again, tried) {
			t.Errorf("tried again:\n%s", told(again))
		}
		if again := r.run(3 * time.Minute); !slices.ContainsFunc(again, tried) {
			t.Errorf("not tried again after the cool-down:\n%s", told(again))
		}
	})
}

// What is to be reverted still is not applied again, whatever the mode, nor is what would be active in mode preview.
func TestReapplyOfNothing(t *testing.T) {
	t.Parallel()
	reapplied := func(t *testing.T, r *runner, when string) {
		t.Helper()
		clear(r.force)
		if events := r.loop.Reapply(t.Context()); len(r.force) > 0 || len(events) > 0 {
			t.Errorf("%s: active %v, events %v", when, r.force, events)
		}
	}
	for _, mode := range []control.Mode{control.Observe, control.Preview} {
		synctest.Test(t, func(t *testing.T) {
			w := at100(t, hog("pods/batch", 2))
			r := w.runner(enforce())
			r.run(onset + 5*time.Second)
			w.fail = func(int, string) error { return errRefused }
			if _, err := r.loop.SetMode(t.Context(), mode); err == nil || len(w.force) == 0 {
				t.Fatalf("it is reverted: %v", err)
			}
			w.fail = nil
			reapplied(t, r, fmt.Sprintf("owed in mode %v", mode))
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w := at100(t, hog("pods/batch", 2))
		r := w.runner(control.Config{Mode: control.Preview})
		if r.run(onset + 5*time.Second); len(r.loop.Active()) == 0 {
			t.Fatal("nothing would be active")
		}
		reapplied(t, r, "preview")
	})
}
