package control_test

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/place"
)

// story is a run in which every kind of write happens: two steps, one of which is
// reverted, a trial that fails, a release.
func story(t *testing.T) *world {
	n := hog("pods/batch", 2)
	n.left = map[detect.Remedy]float64{detect.Weight: 0.4, detect.HeadroomCap: 1, detect.ShrinkCPUs: 0.05}
	n.on = func(since time.Duration) bool { return since >= 30*time.Second && since < 2*time.Minute }
	return newWorld(t, 4, time.Second, n)
}

// agree holds what the loop believes against what is active.
func agree(t *testing.T, r *runner, when string) {
	t.Helper()
	believed := map[string]string{}
	for _, a := range r.loop.Active() {
		believed[key(a)] = a.String()
	}
	real := map[string]string{}
	for k, a := range r.force {
		real[k] = a.String()
	}
	if diff := cmp.Diff(real, believed); diff != "" {
		t.Errorf("%s: active (-real +believed):\n%s", when, diff)
	}
}

// Whichever writes fail, the loop knows what is active, and in the end nothing
// is.
func TestActuatorErrors(t *testing.T) {
	t.Parallel()
	var total int
	synctest.Test(t, func(t *testing.T) {
		w := story(t)
		w.runner(enforce()).run(4 * time.Minute)
		if total = w.calls; total < 8 || len(w.force) > 0 {
			t.Fatalf("the story has %d writes and leaves %v", total, w.force)
		}
	})
	for first := 1; first <= total; first++ {
		for _, last := range []int{first, first + 4} {
			for _, done := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) { failing(t, first, last, done) })
			}
		}
	}
}

// failing lets some calls fail: before they did anything, or after.
func failing(t *testing.T, first, last int, done bool) {
	t.Helper()
	w := story(t)
	failed := 0
	w.fail = func(call int, op string) error {
		if call < first || call > last {
			return nil
		}
		failed++
		return fmt.Errorf("%s: refused by the test", op)
	}
	w.half = done
	r := w.runner(enforce())
	events := r.run(5 * time.Minute)
	when := fmt.Sprintf("calls %d to %d fail, done %v", first, last, done)
	agree(t, r, when)
	if len(w.force) > 0 {
		t.Errorf("%s: still active: %v\n%s", when, w.force, told(events))
	}
	n := 0
	for _, e := range events {
		if e.Outcome == control.Failed {
			n++
			if e.Text == "" || !e.Alert {
				t.Errorf("%s: %v without an error or alert", when, e)
			}
		}
	}
	if failed > 0 && n == 0 {
		t.Errorf("%s: no event of it", when)
	}
}

// Stopping at any step and releasing leaves nothing.
func TestReleaseAtEveryStep(t *testing.T) {
	t.Parallel()
	for after := 30; after < 140; after += 3 {
		synctest.Test(t, func(t *testing.T) {
			w := story(t)
			r := w.runner(enforce())
			r.run(time.Duration(after) * time.Second)
			agree(t, r, fmt.Sprintf("after %d s", after))
			r.loop.Release(context.Background())
			if len(w.force) > 0 || len(r.loop.Active()) > 0 {
				t.Errorf("released after %d s: still active: %v", after, w.force)
			}
		})
	}
}

// A group that is gone needs no reverting, and is no failure.
func TestGroupIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := at100(t, hog("pods/batch", 2))
		r := w.runner(enforce())
		r.run(onset + 5*time.Second)
		w.fail = func(_ int, op string) error {
			if op == "revert" {
				return &fs.PathError{Op: "open", Path: "pods/batch/cpu.idle", Err: fs.ErrNotExist}
			}
			return nil
		}
		w.workloads = w.workloads[:1]
		want(t, r.run(time.Minute), "reverted weight pods/batch: idle\n")
		if left := r.loop.Active(); len(left) > 0 {
			t.Errorf("active: %v", left)
		}
	})
}

// A Release that fails is tried again, whatever the mode.
func TestReleaseIsRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := at100(t, hog("pods/batch", 2))
		r := w.runner(enforce())
		r.run(onset + 5*time.Second)
		w.fail = func(int, string) error { return errRefused }
		events, err := r.loop.SetMode(context.Background(), control.Observe)
		if err == nil || !strings.Contains(err.Error(), "weight pods/batch") || r.loop.Mode() != control.Observe {
			t.Errorf("mode %v, error %v: want observe, and what was not restored", r.loop.Mode(), err)
		}
		want(t, events, "failed weight pods/batch: idle\nfailed weight pods/batch: idle\n") // at once, and again
		if slices.ContainsFunc(r.run(10*time.Second), func(e control.Event) bool { return e.Outcome == control.Reverted }) || len(w.force) == 0 {
			t.Fatal("reverted, though it is refused")
		}
		w.fail = nil
		want(t, r.run(time.Minute), "reverted weight pods/batch: idle\n")
		if len(w.force) > 0 {
			t.Errorf("still active: %v", w.force)
		}
	})
}

// A trial that could not begin is told as what has failed, and not as a trial.
func TestTrialThatCannotBegin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := hog("pods/batch", 2)
		n.use = 0.2
		w := at100(t, n)
		r := w.runner(enforce())
		want(t, r.run(onset+5*time.Second), "applied weight pods/batch: idle\nkept weight pods/batch: idle\n")
		w.fail = func(int, string) error { return errRefused }
		events := r.run(time.Minute)
		if got := told(events); !strings.Contains(got, "failed weight pods/batch") || strings.Contains(got, "on_trial") {
			t.Errorf("%s, want it to fail, and no trial", got)
		}
	})
}

var hosts = flag.Int("hosts", 10, "random hosts to try")

// Random hosts: the world checks at each write that floors, classes and
// protection are kept; here it is that all is restored, that the loop knows
// what is active, and that the same host gives the same events.
func TestRandomHosts(t *testing.T) {
	t.Parallel()
	for seed := range uint64(*hosts) {
		synctest.Test(t, func(t *testing.T) {
			first := randomHost(t, seed)
			if seed%10 != 0 {
				return
			}
			if diff := cmp.Diff(first, randomHost(t, seed)); diff != "" {
				t.Errorf("seed %d: a second run (-first +second):\n%s", seed, diff)
			}
		})
	}
}

func randomHost(t *testing.T, seed uint64) string {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 7))
	var all []neighbour
	for i := range 1 + r.IntN(4) {
		n := hog(fmt.Sprintf("pods/n%d", i), 3*r.Float64())
		n.use = 4 * r.Float64()
		n.class = []place.Class{place.BE, place.BE, place.LS, place.System}[r.IntN(4)]
		n.left = map[detect.Remedy]float64{}
		for _, remedy := range []detect.Remedy{detect.Weight, detect.HeadroomCap, detect.ShrinkCPUs} {
			n.left[remedy] = 1.3 * r.Float64()
		}
		begin, every := time.Duration(r.IntN(40))*time.Second, time.Duration(5+r.IntN(100))*time.Second
		n.on = func(since time.Duration) bool { return since > begin && since < 4*time.Minute && since%every < every/2 }
		all = append(all, n)
	}
	w := newWorld(t, 1+r.IntN(32), time.Second, all...)
	w.r = rand.New(rand.NewPCG(seed, 8))
	w.noise, w.delay = 0.3*r.Float64(), r.IntN(3)
	for i := range w.workloads[1:] {
		w.workloads[i+1].Protected = r.IntN(5) == 0
	}
	fail := r.Float64() < 0.3
	w.fail = func(int, string) error {
		if fail && time.Since(w.start) < 4*time.Minute && r.Float64() < 0.1 {
			return errRefused
		}
		return nil
	}
	c := enforce()
	if r.IntN(2) == 0 {
		c.Suppression = &control.Suppression{Group: "roof", ByQuota: r.IntN(2) == 1, Reserve: r.Float64()}
		w.workloads = append(w.workloads, control.Workload{Group: "roof", Class: place.BE, Use: 3 * r.Float64()})
	}
	run := w.runner(c)
	run.run(5 * time.Minute)
	agree(t, run, fmt.Sprintf("seed %d", seed))
	run.loop.Release(context.Background())
	if len(w.force) > 0 {
		t.Errorf("seed %d: still active: %v", seed, w.force)
	}
	return told(run.events)
}
