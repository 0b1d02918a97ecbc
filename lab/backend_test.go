package lab

import (
	"errors"
	"slices"
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
func playedGroups(t *testing.T, layout fakekernel.Layout, pl places, opt Options) (*groups, *fakekernel.Kernel) {
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
	g, err := openGroups(root, host, nil, pl, opt)
	if err != nil {
		t.Fatal(err)
	}
	return g, fake
}

func layouts() map[string]fakekernel.Layout {
	return map[string]fakekernel.Layout{"v1": fakekernel.V1(), "v2": fakekernel.V2(), "hybrid": fakekernel.Hybrid()}
}

// Each scenario's settings are in force while it runs, on the right role, and
// gone afterwards; at the end nothing is left of the run.
func TestGroupsEnforceEveryScenario(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			layout.CPUs = "0-3"
			pl := places{shared: cpuset.MustParse("0-3"), tenant: cpuset.MustParse("0-1"), neighbour: cpuset.MustParse("2-3")}
			before := treeOf(t, layout)
			g, fake := playedGroups(t, layout, pl, Options{})
			for p, pid := range map[Role]int{Tenant: 101, Neighbour: 102} {
				if err := g.attach(p, pid); err != nil {
					t.Fatal(err)
				}
			}
			idle := map[Role]map[string]string{}
			for scenario, tc := range map[string]struct {
				iso    Isolation
				of     Role
				v1, v2 Knob
			}{
				"weighted": {Isolation{Weight: 10}, Neighbour, Knob{File: "cpu.shares", Value: "102"}, Knob{File: "cpu.weight", Value: "10"}},
				"idle":     {Isolation{Idle: true}, Neighbour, Knob{File: "cpu.idle", Value: "1"}, Knob{File: "cpu.idle", Value: "1"}},
				"limited":  {Isolation{Cap: true}, Neighbour, Knob{File: "cpu.cfs_quota_us", Value: "70000"}, Knob{File: "cpu.max", Value: "70000 100000"}},
				"pinned":   {Isolation{Split: true}, Tenant, Knob{File: "cpuset.cpus", Value: "0-1"}, Knob{File: "cpuset.cpus", Value: "0-1"}},
			} {
				want := tc.v1
				if name == "v2" {
					want = tc.v2
				}
				change, err := g.plan(settingsOf(t, tc.iso, pl, 0.7), false)
				if err != nil || !strings.Contains(change.text, want.File) {
					t.Errorf("%s: preview %q, %v; want %s in it", scenario, change.text, err, want.File)
				}
				undo, err := change.apply()
				if err != nil {
					t.Fatalf("%s: %v", scenario, err)
				}
				if got := knobsOf(t, g, tc.of)[want.File]; got != want.Value {
					t.Errorf("%s: %s of the %s = %q, want %q", scenario, want.File, tc.of, got, want.Value)
				}
				if err := undo(); err != nil {
					t.Errorf("%s: undo: %v", scenario, err)
				}
				for _, p := range []Role{Tenant, Neighbour} {
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

// Together the neighbour stands in the tenant's group, one that comes later as well; then
// each is back in its own. What they use is told apart all the same.
func TestGroupsTogether(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		before := treeOf(t, layout)
		g, fake := playedGroups(t, layout, places{}, Options{})
		where := func(pid string) (roles []Role) {
			tree, err := fake.Tree()
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range []Role{Tenant, Neighbour} {
				for _, dir := range g.group(r).Dirs() {
					if slices.Contains(strings.Fields(tree[dir+"/cgroup.procs"]), pid) {
						roles = append(roles, r)
					}
				}
			}
			return slices.Compact(roles)
		}
		if err := g.attach(Tenant, 101); err != nil {
			t.Fatal(err)
		}
		for _, known := range []bool{false, true} {
			change, err := g.plan(Settings{}, true)
			if err != nil || !strings.Contains(change.text, "neighbour joins the tenant in ") {
				t.Errorf("%s: preview %q, %v", name, change.text, err)
			}
			undo, err := change.apply()
			if err != nil {
				t.Fatal(err)
			}
			if known {
				err = g.stands(Neighbour, 102)
			} else {
				err = g.attach(Neighbour, 102)
			}
			if got := where("102"); err != nil || !slices.Equal(got, []Role{Tenant}) {
				t.Errorf("%s, known %v: the neighbour stands in %v, %v", name, known, got, err)
			}
			g.detach(Neighbour)
			if err := undo(); err != nil {
				t.Error(err)
			}
			if got := where("102"); !slices.Equal(got, []Role{Neighbour}) {
				t.Errorf("%s, known %v: afterwards the neighbour stands in %v", name, known, got)
			}
			if err := g.stands(Neighbour, 102); err != nil || !slices.Equal(where("102"), []Role{Neighbour}) {
				t.Errorf("%s: apart, the neighbour stands in %v, %v", name, where("102"), err)
			}
		}
		if err := errors.Join(fake.Exit("101"), fake.Exit("102"), g.close()); err != nil {
			t.Fatal(err)
		}
		if after, err := fake.Tree(); err != nil || !cmp.Equal(before, after) {
			t.Errorf("%s: left behind, %v:\n%s", name, err, cmp.Diff(before, after))
		}
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

func knobsOf(t *testing.T, b backend, p Role) map[string]string {
	t.Helper()
	knobs, err := b.knobs()
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

// The roles stay on the shared CPUs even where no scenario says so.
func TestGroupsConfine(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		layout.CPUs = "0-7"
		g, _ := playedGroups(t, layout, places{shared: cpuset.MustParse("2-5")}, Options{})
		for _, p := range []Role{Tenant, Neighbour} {
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
	var setup Setup
	if _, _, err := openBackend(Options{Unprivileged: true}, places{}, &setup); err != nil || setup.Backend != "sched" || !strings.Contains(setup.BackendNote, "as asked for") {
		t.Errorf("backend %q, %q, %v", setup.Backend, setup.BackendNote, err)
	}
	a := openAttributes(places{shared: state.Affinity})
	c := startChild(t, "silent")
	for _, tc := range []struct {
		iso  Isolation
		want string
	}{
		{Isolation{}, state.String()}, // that of this process: it may run under nice
		{Isolation{Weight: 10}, "SCHED_OTHER nice 10"},
		{Isolation{Idle: true}, "SCHED_IDLE"},
	} {
		change, err := a.plan(settingsOf(t, tc.iso, places{}, 1), false)
		if err != nil {
			t.Fatal(err)
		}
		undo, err := change.apply()
		if err != nil {
			t.Fatal(err)
		}
		if err := a.attach(Neighbour, c.pid()); err != nil {
			t.Fatal(err)
		}
		if got := knobsOf(t, a, Neighbour)["scheduling"]; got != tc.want {
			t.Errorf("%+v: %s, want %s", tc.iso, got, tc.want)
		}
		if err := undo(); err != nil {
			t.Fatal(err)
		}
	}
	if used, err := a.usage(Neighbour); err != nil || used.CPUSeconds < 0 {
		t.Errorf("usage %+v, %v", used, err)
	}
	_, err = a.plan(Settings{Neighbour: {Quota: 10 * time.Millisecond}}, false)
	if !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("a quota: %v, want not supported", err)
	}
	a.detach(Neighbour)
	if knobs, err := a.knobs(); err != nil || len(knobs) != 0 {
		t.Errorf("nobody there: %v, %v", knobs, err)
	}
	split := settingsOf(t, Isolation{Split: true}, places{tenant: cpuset.MustOf(0), neighbour: cpuset.MustOf(1)}, 1)
	if change, err := a.plan(split, false); err != nil || !strings.Contains(change.text, "tenant: affinity 0") || !strings.Contains(change.text, "neighbour: affinity 1") {
		t.Errorf("preview %q, %v", change.text, err)
	}
}
