package control_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
)

// besideOutsiders is a victim that waits for a neighbour and for processes in no group,
// who are there all the time and stay.
func besideOutsiders(t *testing.T, window time.Duration, left float64) *world {
	n := hog("pods/batch", 2.5)
	n.use, n.on = 1, from(time.Minute)
	n.left = map[detect.Remedy]float64{detect.Weight: left}
	w := newWorld(t, 4, window, n)
	w.outside = func(time.Duration) float64 { return 2 }
	w.noise = 0.2
	return w
}

// A remedy that takes away what its suspect takes helps, though processes in no group
// have the victim wait on: it is kept, what is left is named, and nothing more is done to
// the suspect. It is found and judged with the run-queue probe and without.
func TestHelpsBesideOutsiders(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		window time.Duration
		blind  bool
	}{{"fast", 100 * time.Millisecond, false}, {"slow", time.Second, false}, {"slow, without the probe", time.Second, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := besideOutsiders(t, c.window, 0.01)
				w.blind = c.blind
				r := w.runner(enforce())
				r.run(time.Minute)
				events := slices.DeleteFunc(r.run(2*time.Minute), func(e control.Event) bool { return e.Suspect != "pods/batch" })
				if got := told(events[:min(len(events), 2)]); got != "applied weight pods/batch: idle\nkept weight pods/batch: idle\n" {
					t.Fatalf("%s, want it applied and kept", told(events))
				}
				for _, e := range events[1:] {
					t.Log(e.Time.Format("05.0"), e)
					if e.Outcome == control.Reverted || e.Outcome == control.GaveUp || e.Action != nil && e.Action.Remedy != detect.Weight {
						t.Errorf("%v, want nothing more done", e)
					}
				}
				if kept := events[1]; !strings.Contains(kept.Text, "processes in no group") || kept.Effect.RunDelay == nil {
					t.Errorf("%v, want it to name what is left", kept)
				}
				if len(w.force) != 1 {
					t.Errorf("active %v, want the remedy that helps", w.force)
				}
			})
		})
	}
}

// One whose suspect has its part no more, but only as the processes in no group have
// taken it up, or that does nothing, is taken back in bounded time; what costs the
// neighbour more than its turn, at once.
func TestNoHelpBesideOutsiders(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		window time.Duration
		blind  bool
		left   float64 // of what the victim waits for the suspect, under the remedy
	}{
		{"fast, nothing", 100 * time.Millisecond, false, 1},
		{"fast, taken up", 100 * time.Millisecond, false, 0.01},
		{"slow, nothing", time.Second, false, 1},
		{"slow, taken up", time.Second, false, 0.01},
		{"slow, nothing, without the probe", time.Second, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := besideOutsiders(t, c.window, c.left)
				w.blind, w.noise = c.blind, 0.05
				if c.left < 1 {
					w.outside = func(time.Duration) float64 {
						if w.inForce("pods/batch", detect.Weight) {
							return 2 + 2.5*(1-c.left)
						}
						return 2
					}
				}
				r := w.runner(enforce())
				r.run(time.Minute)
				events := slices.DeleteFunc(r.run(4*time.Minute), func(e control.Event) bool { return e.Suspect != "pods/batch" })
				back := slices.IndexFunc(events, func(e control.Event) bool {
					return e.Outcome == control.Relaxed && e.Action.Remedy == detect.Weight
				})
				if back < 1 || events[0].Outcome != control.Applied || slices.ContainsFunc(events, func(e control.Event) bool { return e.Outcome == control.Kept }) {
					t.Fatalf("%s, want it applied, and taken back by a trial", told(events))
				}
				within := time.Minute + 10*c.window
				if c.blind { // the whole tells less than the part
					within = 3 * time.Minute
				}
				if after := events[back].Time.Sub(events[0].Time); after > within {
					t.Errorf("reverted after %v, want at most %v", after, within)
				}
				for _, e := range events {
					if a := e.Action; a != nil && a.Remedy != detect.Weight && (e.Outcome == control.Undecided || e.Outcome == control.Kept) {
						t.Errorf("%v: what costs the neighbour stays though it does nothing", e)
					}
				}
			})
		})
	}
}

// A group that is set idle without being the trouble, in the moment in which a hog begins, does not keep the hog
// from being set idle: the victim waits longer for the hog than it did for that group. Where it does not, the
// remedy that is being verified is decided first.
func TestOutweighedWhileVerified(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		hog  float64 // seconds per second that the victim waits for it
		use  float64 // CPUs that the hog uses
		left float64 // of what it waits for the other group, under cpu.idle
		soon bool
	}{{"by a hog", 4, 3, 0.7, true}, {"by less", 0.6, 3, 0.7, false}, {"by a group that uses little", 4, 0.25, 0.7, false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const window = 100 * time.Millisecond
				mail, batch := hog("pods/mail", 1), hog("pods/batch", c.hog)
				mail.on, mail.left = from(time.Minute), map[detect.Remedy]float64{detect.Weight: c.left}
				batch.on, batch.use = from(time.Minute+400*time.Millisecond), c.use
				w := newWorld(t, 4, window, mail, batch)
				r := w.runner(enforce())
				r.run(time.Minute)
				if got := told(r.run(400 * time.Millisecond)); got != "applied weight pods/mail: idle\n" {
					t.Fatalf("%s, want mail set idle", got)
				}
				events := r.run(2 * time.Second)
				at := slices.IndexFunc(events, func(e control.Event) bool {
					return e.Outcome == control.Undecided && strings.Contains(e.Text, "waits longer for pods/batch")
				})
				if (at >= 0) != c.soon {
					t.Fatalf("%s, want mail on probation for batch: %v", told(events), c.soon)
				}
				if !c.soon {
					return
				}
				if len(events) < 2 || at != 0 || events[1].Outcome != control.Applied || events[1].Suspect != "pods/batch" {
					t.Errorf("%s; want batch set idle next", told(events))
				}
				if !w.inForce("pods/mail", detect.Weight) || !w.inForce("pods/batch", detect.Weight) {
					t.Errorf("active: %v, want both", w.force)
				}
			})
		})
	}
}
