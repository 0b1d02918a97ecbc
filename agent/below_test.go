package agent

import (
	"context"
	"errors"
	"strings"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// TestGroupsBelow has a workload that made a group of its own and moved its
// process there: it is held while the process lives, and then removed.
func TestGroupsBelow(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, layout)
			n := h.open()
			s := spec("api", place.LS, 0, 9000100)
			s.Owner.PID = 9000101
			w := h.place(n, s)
			for _, dir := range w.Dirs {
				if err := h.k.Mkdir(dir + "/inner"); err != nil {
					t.Fatal(err)
				}
			}
			inner := w.Dirs[len(w.Dirs)-1] + "/inner"
			if name == "v1" {
				if err := h.k.WriteFile(inner+"/cgroup.procs", "9000100"); err != nil {
					t.Fatal(err)
				}
			}
			if err := h.k.Exit("9000101"); err != nil {
				t.Fatal(err)
			}
			if _, err := h.open().Get(context.Background(), "api"); err != nil {
				t.Errorf("while its process lives: %v", err)
			}
			if err := h.k.Exit("9000100"); err != nil {
				t.Fatal(err)
			}
			if _, err := h.open().Get(context.Background(), "api"); err == nil {
				t.Error("it is still held")
			}
			for _, e := range h.events {
				if e.Kind == Failed {
					t.Error(e)
				}
			}
		})
	}
}

// TestReleaseAroundThreaded has a workload that made a threaded group of its own: it can be
// released and killed.
func TestReleaseAroundThreaded(t *testing.T) {
	t.Parallel()
	for _, leaving := range []Leaving{Keep, Kill} {
		h := v2(t)
		files := &fakekernel.Threaded{Kernel: h.k}
		h.files = files
		n := h.open()
		w := h.place(n, spec("api", place.LS, 0, 9000100))
		files.Dirs = []string{w.Dirs[0] + "/threads"}
		if err := h.k.Mkdir(files.Dirs[0]); err != nil {
			t.Fatal(err)
		}
		if err := n.Release(t.Context(), "api", leaving); err != nil {
			t.Errorf("%s: %v", leaving, err)
		}
	}
}

// A workload's own group that is threaded tells no processes to move: that is an error while it
// has threads, as they would stay.
func TestDrainThreaded(t *testing.T) {
	t.Parallel()
	h := v2(t)
	files := &fakekernel.Threaded{Kernel: h.k}
	h.files = files
	n := h.open()
	w := h.place(n, spec("api", place.LS, 0, 9000100))
	files.Dirs = w.Dirs
	for threads, want := range map[string]error{"": nil, "9000100": kernel.ErrNotSupported} {
		if err := h.k.Put(w.Dirs[0]+"/cgroup.threads", threads); err != nil {
			t.Fatal(err)
		}
		err := n.enforcer.Release(&w, true, new(kernel.UndoLog))
		if !errors.Is(err, want) || want != nil && !strings.Contains(err.Error(), "end them") {
			t.Errorf("threads %q: %v", threads, err)
		}
	}
}
