package kernel

import (
	"testing"

	"berth.dev/berth/internal/fakekernel"
)

// layouts are the hosts that the tests of killing run on: one whose groups are
// all new, and one where an existing group's values are changed.
var layouts = map[string]struct {
	layout fakekernel.Layout
	plan   Plan
}{
	"v1": {fakekernel.V1(), labPlan(1)},
	"v2": {fakekernel.V2(), labPlan(2)},
	"existing": {fakekernel.V1(), Plan{
		{Path: v1cpu + "/old/cpu.idle", Value: "1", Disturbs: []string{v1cpu + "/old/cpu.shares"}},
		{Path: v1cpu + "/old/cpu.cfs_quota_us", Value: "50000"},
		{Path: v1cpu + "/old/cpu.cfs_quota_us", Value: "60000"},
	}},
}

func host(t *testing.T, name string) (*Root, *fakekernel.Kernel, Plan) {
	root, k := fake(t, layouts[name].layout)
	if name == "existing" {
		if err := k.Mkdir(v1cpu + "/old"); err != nil {
			t.Fatal(err)
		}
		write(t, root, v1cpu+"/old/cpu.shares", "777")
	}
	return root, k, layouts[name].plan
}

// TestKilled kills the process before and after each of its operations, at
// applying and at undoing, and restores.
func TestKilled(t *testing.T) {
	t.Parallel()
	for name := range layouts {
		for _, after := range []bool{false, true} {
			root, k, plan := host(t, name)
			before := tree(t, k)
			for at := 1; ; at++ {
				j, dir := journal(t, root)
				count := 0
				mortalRoot := NewRoot(root.Name(), mortal{k, at, after, &count})
				alive := survives(func() {
					undo, err := Apply(mortalRoot, plan, j)
					if err != nil {
						t.Fatal(err)
					}
					if err := undo(); err != nil {
						t.Fatal(err)
					}
				})
				die(t, j)
				if _, err := Restore(root, dir); err != nil {
					t.Fatalf("%s: killed at %d: %v", name, at, err)
				}
				sameTree(t, k, before)
				if got := files(t, dir); len(got) > 0 || t.Failed() {
					t.Fatalf("%s: killed at %d (after: %v): journals left: %v", name, at, after, got)
				}
				if alive {
					if at < 6 {
						t.Errorf("%s: only %d operations", name, at)
					}
					break
				}
			}
		}
	}
}

// TestRestoreKilled kills Restore itself at each of its operations, and then
// restores again.
func TestRestoreKilled(t *testing.T) {
	t.Parallel()
	for name := range layouts {
		for _, after := range []bool{false, true} {
			root, k, plan := host(t, name)
			before := tree(t, k)
			for at := 1; ; at++ {
				j, dir := journal(t, root)
				if _, err := Apply(root, plan, j); err != nil {
					t.Fatal(err)
				}
				die(t, j)
				count := 0
				mortalRoot := NewRoot(root.Name(), mortal{k, at, after, &count})
				alive := survives(func() {
					if _, err := Restore(mortalRoot, dir); err != nil {
						t.Fatal(err)
					}
				})
				if _, err := Restore(root, dir); err != nil {
					t.Fatalf("%s: killed at %d: %v", name, at, err)
				}
				sameTree(t, k, before)
				if got := files(t, dir); len(got) > 0 || t.Failed() {
					t.Fatalf("%s: killed at %d (after: %v): journals left: %v", name, at, after, got)
				}
				if alive {
					break
				}
			}
		}
	}
}
