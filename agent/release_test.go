package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// stuck is a host on which the process of workload "api" cannot be killed until woken.
func stuck(t *testing.T, l fakekernel.Layout) (h *host, n *Node, w Workload) {
	t.Helper()
	l.CPUs = "0-7"
	h = newHost(t, l)
	n = h.open()
	w = h.place(n, spec("api", place.LSE, 2000, 9000100))
	if err := h.k.Block("9000100"); err != nil {
		t.Fatal(err)
	}
	return h, n, w
}

func (h *host) wake() {
	h.t.Helper()
	if err := h.k.Wake("9000100"); err != nil {
		h.t.Fatal(err)
	}
}

// releasing waits until a workload is marked.
func (h *host) releasing(n *Node, id string) {
	h.t.Helper()
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(time.Millisecond) {
		w, err := n.Get(h.t.Context(), id)
		if err != nil {
			h.t.Fatal(err)
		}
		if w.Releasing {
			if len(w.Notes) == 0 || !strings.Contains(w.Notes[len(w.Notes)-1], "being released") {
				h.t.Errorf("notes %q", w.Notes)
			}
			return
		}
	}
	h.t.Fatal("the release does not begin")
}

// While a release waits for killed processes, others use the node, the workload keeps its
// CPUs, and a second release waits likewise. Both end once the processes have.
func TestReleaseWaitsWithoutLock(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, n, w := stuck(t, layout)
			ended := make(chan error, 1)
			go func() { ended <- n.Release(t.Context(), "api", Kill) }()
			h.releasing(n, "api")
			end, since, err := n.beginRelease(t.Context(), "api", Kill)
			if err != nil || end == nil {
				t.Fatalf("a second release: %v", err)
			}
			other := h.place(n, spec("db", place.LSE, 2000, 9000101))
			if other.Grant.Own.Overlaps(w.Grant.Own) {
				t.Errorf("db has %s, and api still runs on %s", other.Grant.Own, w.Grant.Own)
			}
			var occupied *OccupiedError
			if err := n.Release(t.Context(), "api", WhenEmpty); !errors.As(err, &occupied) {
				t.Errorf("release without kill: %v", err)
			}
			h.repairsNothing(n, "again")
			select {
			case err := <-ended:
				t.Errorf("released while the process lives: %v", err)
			default:
			}
			h.wake()
			if err := errors.Join(<-ended, end(t.Context()), n.endRelease(t.Context(), "api", since)); err != nil {
				t.Error(err)
			}
			var gone *place.NotHeldError
			if _, err := n.Get(t.Context(), "api"); !errors.As(err, &gone) {
				t.Errorf("api: %v", err)
			}
			h.place(n, spec("next", place.LSE, 4000, 0))
		})
	}
}

// What does not end is told, keeps its place also for the next process that opens the
// node, and is released once it has ended.
func TestReleaseStuck(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, n, w := stuck(t, layout)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			defer cancel()
			err := n.Release(ctx, "api", Kill)
			var stuck *StuckError
			var alive *kernel.AliveError
			if !errors.As(err, &stuck) || stuck.ID != "api" || len(stuck.Left) != 1 || stuck.Left[0].PID != 9000100 || stuck.Left[0].State != "D" ||
				!errors.As(err, &alive) || !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("release: %v", err)
			}
			n.Close()
			n = h.open()
			h.releasing(n, "api")
			if is, err := n.Get(t.Context(), "api"); err != nil || is.Grant.Own != w.Grant.Own {
				t.Errorf("api has %v, %v", is.Grant, err)
			}
			h.wake()
			if _, err := n.Reconcile(t.Context()); err != nil {
				t.Error(err)
			}
			if all, err := n.List(t.Context()); err != nil || len(all) > 0 {
				t.Errorf("left: %v, %v", all, err)
			}
			if !slices.Contains(h.kinds(), Released) {
				t.Errorf("events %v", h.events)
			}
		})
	}
}

// A process that is killed in a release, at any of its changes, leaves the workload
// either with its place or without its process. What was marked, the next one ends.
func TestReleaseStuckKilledAtEveryPoint(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, after := range []bool{false, true} {
				for at, alive := 1, false; !alive; at++ {
					h, n, w := stuck(t, layout)
					n.Close()
					doomed := h.doom(&fate{at: at, after: after})
					alive = survives(doomed, func() {
						ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
						defer cancel()
						_ = doomed.Release(ctx, "api", Kill)
					})
					name := fmt.Sprintf("killed at %d, after %v", at, after)
					n = h.open()
					is, err := n.Get(t.Context(), "api")
					if err != nil || is.Grant.Own != w.Grant.Own {
						t.Fatalf("%s: api, which lives, has %v, %v", name, is.Grant, err)
					}
					if other, err := n.Place(t.Context(), spec("db", place.LSE, 2000, 0)); err != nil || other.Grant.Own.Overlaps(w.Grant.Own) {
						t.Fatalf("%s: db has %v, %v", name, other.Grant, err)
					}
					h.repairsNothing(n, name)
					h.wake()
					if !is.Releasing {
						if err := n.Release(t.Context(), "api", Kill); err != nil {
							t.Errorf("%s: release again: %v", name, err)
						}
					} else if _, err := n.Reconcile(t.Context()); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					if all, err := n.List(t.Context()); err != nil || len(all) != 1 {
						t.Errorf("%s: left %v, %v", name, all, err)
					}
					if alive && (at < 5 || !is.Releasing) {
						t.Errorf("%s: only %d changes, marked: %v", name, at, is.Releasing)
					}
					n.Close()
				}
			}
		})
	}
}

// A process that was killed between marking a workload and killing its processes has the
// next one do so.
func TestReleaseGoesOn(t *testing.T) {
	t.Parallel()
	h := v2(t)
	n := h.open()
	h.place(n, spec("api", place.LSE, 2000, 9000100))
	if _, _, err := n.beginRelease(t.Context(), "api", Kill); err != nil {
		t.Fatal(err)
	}
	n.Close()
	if all, err := h.open().List(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("left: %v, %v", all, err)
	}
	if _, ok := startTime(kernel.NewRoot("", h.k), 9000100); ok {
		t.Error("its process lives")
	}
}

// A workload that was placed under the same name meanwhile is another one.
func TestReleaseOfAnother(t *testing.T) {
	t.Parallel()
	h := v2(t)
	n := h.open()
	h.place(n, spec("api", place.LSE, 2000, 9000100))
	_, since, err := n.beginRelease(t.Context(), "api", Kill)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Release(t.Context(), "api", Kill); err != nil {
		t.Fatal(err)
	}
	h.now = h.now.Add(time.Second)
	h.place(n, spec("api", place.LSE, 2000, 0))
	if err := n.endRelease(t.Context(), "api", since); err != nil {
		t.Error(err)
	}
	if _, err := n.Get(t.Context(), "api"); err != nil {
		t.Errorf("the other workload: %v", err)
	}
}

// On v1 a process that was frozen in its own group, or in one that it made there, is
// thawed to end.
func TestReleaseFrozen(t *testing.T) {
	t.Parallel()
	for _, below := range []string{"", "/own"} {
		l := fakekernel.V1()
		l.CPUs = "0-7"
		h := newHost(t, l)
		n := h.open()
		h.place(n, spec("api", place.LSE, 2000, 9000100))
		dir := "sys/fs/cgroup/freezer/berth/api" + below
		if below != "" {
			if err := h.k.Mkdir(dir); err != nil {
				t.Fatal(err)
			}
		}
		for file, value := range map[string]string{"/cgroup.procs": "9000100", "/freezer.state": "FROZEN"} {
			if err := h.k.WriteFile(dir+file, value); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := n.Release(ctx, "api", Kill); err != nil {
			t.Error(err)
		}
		if all, err := n.List(t.Context()); err != nil || len(all) > 0 {
			t.Errorf("left: %v, %v", all, err)
		}
	}
}

// Where nothing can be written, a workload with processes is released all the same.
func TestReleaseOnFullDisk(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		h := newHost(t, layout)
		n := h.open()
		h.place(n, spec("api", place.LSE, 2000, 9000100))
		n.touch = func(op string) error {
			if op == "write" {
				return syscall.ENOSPC
			}
			return nil
		}
		if err := n.Release(t.Context(), "api", Kill); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		n.touch = nil
		if all, err := n.List(t.Context()); err != nil || len(all) > 0 {
			t.Errorf("%s: left %v, %v", name, all, err)
		}
		if left, _ := filepath.Glob(h.state + "/*" + recordExt + "*"); len(left) > 0 {
			t.Errorf("%s: left %v", name, left)
		}
	}
}
