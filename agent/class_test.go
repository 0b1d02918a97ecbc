package agent

import (
	"context"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// classSettings are what the world's own group has of what a class decides.
func (w *world) classSettings() (idle, weight string) {
	w.t.Helper()
	dir, file := w.cpuDir()
	tree := w.tree()
	return strings.TrimSpace(tree[dir+"/web.slice/cpu.idle"]), strings.TrimSpace(tree[dir+"/web.slice/"+file])
}

// A class does to a group that was there what its traits say, limits go over it, and
// another class gives back what this one has set.
func TestClassOfGivenGroup(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, layout)
			n := w.open()
			_, file := w.cpuDir()
			five := map[string]string{"cpu.weight": "5", "cpu.shares": "51"}[file]
			s := spec("web", place.LS, 1000, 0)
			s.Group = "web.slice"
			w.place(n, s)
			for _, tc := range []struct {
				class        place.Class
				limits       cgroup.Limits
				idle, weight string
			}{
				{place.BE, cgroup.Limits{}, "1", ""},
				{place.LS, cgroup.Limits{}, "0", webWeight},
				{place.BE, cgroup.Limits{Idle: cgroup.Off}, "0", ""},
				{place.BE, cgroup.Limits{}, "1", ""},
				{place.BE, cgroup.Limits{Weight: 5}, "0", five},
				{place.LSE, cgroup.Limits{}, "0", webWeight},
				{place.BE, cgroup.Limits{Quota: 50e6}, "1", ""},
				{place.LSR, cgroup.Limits{Idle: cgroup.On}, "1", ""},
				{place.LSR, cgroup.Limits{Weight: 5}, "0", five},
				{place.System, cgroup.Limits{}, "0", webWeight},
			} {
				s.Request.Class, s.Limits = tc.class, tc.limits
				got, err := n.Resize(ctx, s)
				if err != nil {
					t.Fatalf("%v %+v: %v", tc.class, tc.limits, err)
				}
				idle, weight := w.classSettings()
				if idle != tc.idle || tc.weight != "" && weight != tc.weight {
					t.Errorf("%v %+v: cpu.idle %q, weight %q", tc.class, tc.limits, idle, weight)
				}
				if (got.Limits.Idle == cgroup.On) != (tc.idle == "1") {
					t.Errorf("%v %+v: it says that its limits are %+v", tc.class, tc.limits, got.Limits)
				}
				if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) > 0 {
					t.Errorf("%v %+v: repaired %v, %v", tc.class, tc.limits, repairs, err)
				}
			}
			if err := n.Release(ctx, "web", WhenEmpty); err != nil {
				t.Fatal(err)
			}
			if idle, weight := w.classSettings(); idle != "0" || weight != webWeight {
				t.Errorf("released: cpu.idle %q, weight %q", idle, weight)
			}
		})
	}
}

// A workload that an earlier Berth placed without what its class does gets it, and an
// event says so.
func TestClassAfterUpgrade(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newWorld(t, layouts()["v1"])
	n := w.open()
	s := spec("web", place.BE, 1000, 0)
	s.Group = "web.slice"
	w.place(n, s)
	dir, file := w.cpuDir()
	w.write(dir+"/web.slice/cpu.idle", "0")
	w.write(dir+"/web.slice/"+file, webWeight)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = w.open()
	if _, err := n.Reconcile(ctx, "web"); err != nil {
		t.Fatal(err)
	}
	if idle, _ := w.classSettings(); idle != "1" {
		t.Errorf("cpu.idle is %q", idle)
	}
	if !slices.ContainsFunc(w.events, func(e Event) bool {
		return e.Kind == Repaired && e.Object == dir+"/web.slice/cpu.idle" && strings.HasSuffix(e.Text, "; class BE")
	}) {
		t.Errorf("no event says so: %v", w.events)
	}
}

// Where the kernel has no cpu.idle, the lowest weight stands in for it, on the group
// that counts against the whole host, too; what was asked for itself is refused.
func TestClassWithoutIdle(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			layout.Version = "5.10"
			w := newWorld(t, layout)
			n := w.open()
			s := spec("web", place.BE, 1000, 0)
			s.Group = "web.slice"
			given := w.place(n, s)
			made := w.place(n, spec("batch", place.BE, 0, 0))
			dir, file := w.cpuDir()
			least := map[string]string{"cpu.weight": "1", "cpu.shares": "10"}[file]
			tree := w.tree()
			for _, group := range []string{given.Group, made.Group, idleGroup} {
				if got := strings.TrimSpace(tree[dir+"/"+group+"/"+file]); got != least {
					t.Errorf("%s of %s is %q, not %q", file, group, got, least)
				}
			}
			for _, x := range []Workload{given, made} {
				says := func(text string) bool {
					return strings.Contains(text, "class BE: the lowest weight stands in for cpu.idle")
				}
				if x.Limits.Weight != 1 || x.Limits.Idle != cgroup.Leave || !slices.ContainsFunc(x.Notes, says) {
					t.Errorf("%s says that its limits are %+v, and notes %q", x.ID(), x.Limits, x.Notes)
				}
				if !slices.ContainsFunc(w.events, func(e Event) bool { return e.Kind == Placed && e.ID == x.ID() && says(e.Text) }) {
					t.Errorf("%s: no event says so: %v", x.ID(), w.events)
				}
			}
			asked := spec("asked", place.LS, 0, 0)
			asked.Limits.Idle = cgroup.On
			if _, err := n.Place(ctx, asked); err == nil || !strings.Contains(err.Error(), "5.15") {
				t.Errorf("idle that was asked for: %v", err)
			}
			for _, id := range []string{"web", "batch"} {
				if err := n.Release(ctx, id, WhenEmpty); err != nil {
					t.Fatal(err)
				}
			}
			if _, weight := w.classSettings(); weight != webWeight {
				t.Errorf("released: weight %q", weight)
			}
			if _, there := w.tree()[dir+"/"+idleGroup+"/"]; there {
				t.Errorf("%s is left over", idleGroup)
			}
		})
	}
}

// It is said how far the class of a group in another one reaches.
func TestClassNotesWhereItActs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, layouts()["v1"])
	n := w.open()
	for group, want := range map[string]int{"web.slice": 0, "system.slice/sshd.service": 1} {
		s := spec("w"+fileName(group), place.BE, 0, 0)
		s.Group = group
		if notes := w.place(n, s).Notes; len(notes) != want || want > 0 && !strings.Contains(notes[0], "against others, system.slice counts as a whole") {
			t.Errorf("%s: notes %q", group, notes)
		}
	}
}
