package lab

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/sched"
)

// playedGroups opens the cgroup backend on a played host.
func playedGroups(t *testing.T, layout fakekernel.Layout, pl places, others ...party) (*groups, *fakekernel.Kernel) {
	t.Helper()
	dir := t.TempDir()
	fake, err := fakekernel.New(dir, layout)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range []string{"101", "102"} {
		if err := fake.Start(pid); err != nil {
			t.Fatal(err)
		}
	}
	root := kernel.NewRoot(dir, fake)
	host, err := cgroup.Detect(root)
	if err != nil {
		t.Fatal(err)
	}
	host.UID = 0
	g, err := openGroups(root, host, nil, pl, others...)
	if err != nil {
		t.Fatal(err)
	}
	return g, fake
}

func layouts() map[string]fakekernel.Layout {
	return map[string]fakekernel.Layout{"v1": fakekernel.V1(), "v2": fakekernel.V2(), "hybrid": fakekernel.Hybrid()}
}

// Each scenario's settings are in force while it runs, on the right party, and
// gone afterwards; at the end nothing is left of the run.
func TestGroupsEnforceEveryScenario(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			layout.CPUs = "0-3"
			pl := places{shared: cpuset.MustParse("0-3"), tenant: cpuset.MustParse("0-1"), neighbour: cpuset.MustParse("2-3")}
			before := treeOf(t, layout)
			g, fake := playedGroups(t, layout, pl)
			if about, _ := g.about(); about == "" {
				t.Error("the backend has no name")
			}
			for p, pid := range map[party]int{tenantParty: 101, neighbourParty: 102} {
				if err := g.admit(p, pid); err != nil {
					t.Fatal(err)
				}
			}
			idle := map[party]map[string]string{}
			for scenario, tc := range map[string]struct {
				iso    Isolation
				of     party
				v1, v2 Knob
			}{
				"weighted": {Isolation{Weight: 10}, neighbourParty, Knob{File: "cpu.shares", Value: "102"}, Knob{File: "cpu.weight", Value: "10"}},
				"idle":     {Isolation{Idle: true}, neighbourParty, Knob{File: "cpu.idle", Value: "1"}, Knob{File: "cpu.idle", Value: "1"}},
				"limited":  {Isolation{Cap: true}, neighbourParty, Knob{File: "cpu.cfs_quota_us", Value: "70000"}, Knob{File: "cpu.max", Value: "70000 100000"}},
				"pinned":   {Isolation{Split: true}, tenantParty, Knob{File: "cpuset.cpus", Value: "0-1"}, Knob{File: "cpuset.cpus", Value: "0-1"}},
			} {
				want := tc.v1
				if name == "v2" {
					want = tc.v2
				}
				given := orders(tc.iso, pl, 0.7)
				text, err := g.preview(given)
				if err != nil || !strings.Contains(text, want.File) {
					t.Errorf("%s: preview %q, %v; want %s in it", scenario, text, err, want.File)
				}
				undo, err := g.isolate(given)
				if err != nil {
					t.Fatalf("%s: %v", scenario, err)
				}
				if got := knobsOf(t, g, tc.of)[want.File]; got != want.Value {
					t.Errorf("%s: %s of the %s = %q, want %q", scenario, want.File, tc.of, got, want.Value)
				}
				if err := undo(); err != nil {
					t.Errorf("%s: undo: %v", scenario, err)
				}
				for _, p := range []party{tenantParty, neighbourParty} {
					now := knobsOf(t, g, p)
					if idle[p] == nil {
						idle[p] = now
					}
					if diff := cmp.Diff(idle[p], now); diff != "" {
						t.Errorf("%s: %s after undo (-first +now):\n%s", scenario, p, diff)
					}
				}
			}
			for _, pid := range []string{"101", "102"} {
				if err := fake.Exit(pid); err != nil {
					t.Fatal(err)
				}
			}
			if err := g.close(); err != nil {
				t.Fatal(err)
			}
			after, err := fake.Tree()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("the tree (-before +after the run):\n%s", diff)
			}
		})
	}
}

// treeOf is the tree of a fresh host on which the two processes came and went.
func treeOf(t *testing.T, layout fakekernel.Layout) map[string]string {
	t.Helper()
	fake, err := fakekernel.New(t.TempDir(), layout)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range []string{"101", "102"} {
		if err := errors.Join(fake.Start(pid), fake.Exit(pid)); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := fake.Tree()
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func knobsOf(t *testing.T, e enforcer, p party) map[string]string {
	t.Helper()
	knobs, err := e.knobs()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, k := range knobs {
		if k.Of == string(p) {
			got[k.File] = k.Value
		}
	}
	return got
}

// The parties stay on the shared CPUs even where no scenario says so.
func TestGroupsConfine(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		layout.CPUs = "0-7"
		g, _ := playedGroups(t, layout, places{shared: cpuset.MustParse("2-5")})
		for _, p := range []party{tenantParty, neighbourParty} {
			if got := knobsOf(t, g, p)["cpuset.cpus"]; got != "2-5" {
				t.Errorf("%s: cpuset.cpus of the %s = %q, want 2-5", name, p, got)
			}
		}
		if err := g.close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The lesser backend, on this process: what it sets, what it cannot.
func TestAttributes(t *testing.T) {
	t.Parallel()
	state, err := sched.Get(0)
	if err != nil {
		t.Fatal(err)
	}
	a := openAttributes(places{shared: state.Affinity}, "because")
	if name, note := a.about(); name != "sched" || !strings.Contains(note, "because") {
		t.Errorf("about: %q, %q", name, note)
	}
	c := startChild(t, "silent")
	for _, tc := range []struct {
		iso  Isolation
		want string
	}{
		{Isolation{}, state.String()}, // that of this process: it may run under nice
		{Isolation{Weight: 10}, "SCHED_OTHER nice 10"},
		{Isolation{Idle: true}, "SCHED_IDLE"},
	} {
		given := orders(tc.iso, places{}, 1)
		undo, err := a.isolate(given)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.admit(neighbourParty, c.pid()); err != nil {
			t.Fatal(err)
		}
		if got := knobsOf(t, a, neighbourParty)["scheduling"]; got != tc.want {
			t.Errorf("%+v: %s, want %s", tc.iso, got, tc.want)
		}
		if err := undo(); err != nil {
			t.Fatal(err)
		}
	}
	if used, err := a.usage(neighbourParty); err != nil || used.CPUSeconds < 0 {
		t.Errorf("usage %+v, %v", used, err)
	}
	_, err = a.isolate(map[party]order{neighbourParty: {quota: 10 * time.Millisecond}})
	if !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("a quota: %v, want not supported", err)
	}
	a.dismiss(neighbourParty)
	if knobs, err := a.knobs(); err != nil || len(knobs) != 0 {
		t.Errorf("nobody there: %v, %v", knobs, err)
	}
	if text, err := a.preview(orders(Isolation{Split: true}, places{tenant: cpuset.MustOf(0), neighbour: cpuset.MustOf(1)}, 1)); err != nil ||
		!strings.Contains(text, "tenant: affinity 0") || !strings.Contains(text, "neighbour: affinity 1") {
		t.Errorf("preview %q, %v", text, err)
	}
}
