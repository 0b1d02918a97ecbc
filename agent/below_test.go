package agent

import (
	"context"
	"testing"

	"berth.dev/berth/internal/fakekernel"
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
