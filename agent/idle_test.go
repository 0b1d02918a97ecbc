package agent

import (
	"context"
	"path"
	"strings"
	"testing"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// A best-effort workload yields to the whole host: what is idle is the group around
// it, a sibling of everybody else's.
func TestIdleAgainstTheHost(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			h := newHost(t, layout)
			before := h.tree()
			n := h.open()
			idle := spec("batch", place.BE, 0, 0)
			idle.Limits.Idle = cgroup.On
			w := h.place(n, idle)
			parent := ""
			for file := range h.tree() {
				if path.Base(file) == "cpu.idle" && path.Base(path.Dir(file)) == idleGroup {
					parent = file
				}
			}
			shows := func(when, want string) {
				t.Helper()
				if got := strings.TrimSpace(h.tree()[parent]); got != want {
					t.Errorf("%s: %q holds %q, want %q", when, parent, got, want)
				}
			}
			shows("placed", "1")
			if w.Group != idleGroup+"/batch" || len(w.Notes) > 0 {
				t.Errorf("it is in %s and notes %q", w.Group, w.Notes)
			}
			h.place(n, spec("web", place.LS, 0, 0))
			shows("with another", "1")

			if err := h.k.WriteFile(parent, "0"); err != nil {
				t.Fatal(err)
			}
			repairs, err := n.Reconcile(ctx)
			if err != nil || len(repairs) != 1 || repairs[0].Path != parent {
				t.Errorf("repaired %v, %v", repairs, err)
			}
			shows("repaired", "1")

			// Its group stays where it is; that it stays idle is said.
			heavy := idle
			heavy.Limits = cgroup.Limits{Weight: 200}
			if w, err = n.Resize(ctx, heavy); err != nil || len(w.Notes) != 1 || !strings.Contains(w.Notes[0], idleGroup) {
				t.Errorf("with a weight it notes %q, %v", w.Notes, err)
			}
			shows("resized", "1")

			for _, id := range []string{"batch", "web"} {
				if err := n.Release(ctx, id, WhenEmpty); err != nil {
					t.Fatal(err)
				}
			}
			h.sameTree(before)
		})
	}
}

// Below a group that is not the top, as a user's own, it is said how far idleness
// goes.
func TestNotesHowFarIdlenessGoes(t *testing.T) {
	t.Parallel()
	g := &groups{}
	w := &Workload{Group: idleGroup + "/a", Spec: Spec{Limits: cgroup.Limits{Idle: cgroup.On}}}
	h := newHost(t, layouts()["v1"])
	root := kernel.NewRoot(h.dir, h.files)
	host, err := cgroup.Detect(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ own, outer string }{{"", ""}, {"/mine", "/mine"}} {
		if tc.own != "" {
			for _, list := range []string{"cpu,cpuacct", "cpuset", "memory"} {
				if err := h.k.Mkdir("sys/fs/cgroup/" + list + tc.own); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range host.Hierarchies {
			host.Hierarchies[i].Own = host.Hierarchies[i].Dir + tc.own
		}
		base, err := host.Base(cgroup.CPUSet, cgroup.CPU)
		if err != nil {
			t.Fatal(err)
		}
		g.host, g.base = host, base
		notes := g.notes(w, w.Spec.Limits, "")
		if g.outer() != tc.outer || len(notes) > 0 != (tc.outer != "") || tc.outer != "" && !strings.Contains(notes[0], tc.outer) {
			t.Errorf("in %q: outer %q, notes %q", tc.own, g.outer(), notes)
		}
	}
}
