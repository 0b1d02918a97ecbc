package kernel

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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
				j, dir := undoLog(t, root)
				count := 0
				mortalRoot := NewRoot(root.Name(), mortal{k, at, after, &count})
				alive := fakekernel.Survives(func() {
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
					t.Fatalf("%s: killed at %d (after: %v): undo logs left: %v", name, at, after, got)
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
				j, dir := undoLog(t, root)
				if _, err := Apply(root, plan, j); err != nil {
					t.Fatal(err)
				}
				die(t, j)
				count := 0
				mortalRoot := NewRoot(root.Name(), mortal{k, at, after, &count})
				alive := fakekernel.Survives(func() {
					if _, err := Restore(mortalRoot, dir); err != nil {
						t.Fatal(err)
					}
				})
				if _, err := Restore(root, dir); err != nil {
					t.Fatalf("%s: killed at %d: %v", name, at, err)
				}
				sameTree(t, k, before)
				if got := files(t, dir); len(got) > 0 || t.Failed() {
					t.Fatalf("%s: killed at %d (after: %v): undo logs left: %v", name, at, after, got)
				}
				if alive {
					break
				}
			}
		}
	}
}

// removing is Files under which somebody else removes an undo log at each write.
type removing struct {
	Files
	log string
}

func (r removing) WriteFile(name, data string) error {
	_ = os.Remove(r.log)
	return r.Files.WriteFile(name, data)
}

// A log that somebody else removes while it is undone is no error.
func TestRestoreLogRemoved(t *testing.T) {
	t.Parallel()
	root, k, plan := host(t, "existing")
	before := tree(t, k)
	j, dir := undoLog(t, root)
	if _, err := Apply(root, plan, j); err != nil {
		t.Fatal(err)
	}
	name := j.Path()
	die(t, j)
	if _, err := Restore(NewRoot(root.Name(), removing{k, name}), dir); err != nil {
		t.Error(err)
	}
	sameTree(t, k, before)
	if got := files(t, dir); len(got) > 0 {
		t.Errorf("undo logs left: %v", got)
	}
}

// TestRestoreOddFiles has files among the undo logs that are none: they are
// reported, and the others are restored.
func TestRestoreOddFiles(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		make func(name string) error
		says string
	}{
		"directory": {func(name string) error { return os.Mkdir(name, 0o700) }, "a directory"},
		"symlink":   {func(name string) error { return os.Symlink("x", name) }, "a symbolic link"},
		"fifo":      {func(name string) error { return syscall.Mkfifo(name, 0o600) }, "not a regular file"},
		"another user's": {func(name string) error {
			if os.Geteuid() != 0 {
				return errors.ErrUnsupported
			}
			return errors.Join(os.WriteFile(name, nil, 0o600), os.Chown(name, 12345, -1))
		}, "belongs to another user"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, k := fake(t, fakekernel.V1())
			before := tree(t, k)
			j, dir := undoLog(t, root)
			if _, err := Apply(root, labPlan(1), j); err != nil {
				t.Fatal(err)
			}
			die(t, j)
			odd := filepath.Join(dir, "0-0.journal")
			if err := tt.make(odd); err != nil {
				t.Skipf("cannot make a %s: %v", name, err)
			}
			if _, err := Restore(root, dir); err == nil || !strings.Contains(err.Error(), odd) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Restore: %v, want %q", err, tt.says)
			}
			sameTree(t, k, before)
			if got := files(t, dir); len(got) != 1 {
				t.Errorf("left: %v, want the odd file", got)
			}
		})
	}
}

// TestRestoreRelativeRoot notes under one name of a Root and restores under
// another.
func TestRestoreRelativeRoot(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	before := tree(t, k)
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(here, root.Name())
	if err != nil {
		t.Fatal(err)
	}
	j, dir := undoLog(t, NewRoot(relative, k))
	if _, err := Apply(root, labPlan(1), j); err != nil {
		t.Fatal(err)
	}
	die(t, j)
	for _, name := range []string{root.Name() + "/", relative} {
		if report, err := Preview(NewRoot(name, k), dir); err != nil || len(report.Foreign) > 0 || len(report.Items) == 0 {
			t.Errorf("Preview under %s: %+v, %v", name, report, err)
		}
	}
	if report, err := Preview(NewRoot(relative+"/sys", k), dir); err != nil || len(report.Foreign) != 1 {
		t.Errorf("Preview under another root: %+v, %v", report, err)
	}
	if _, err := Restore(root, dir); err != nil {
		t.Error(err)
	}
	sameTree(t, k, before)
}
