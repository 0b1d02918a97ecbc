package kernel

import (
	"io/fs"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
)

// fake returns the Root of a host that the test simulates, with process 100.
func fake(t *testing.T, l fakekernel.Layout) (*Root, *fakekernel.Kernel) {
	t.Helper()
	dir := fakekernel.MemoryDir(t)
	k, err := fakekernel.New(dir, l)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Start("100"); err != nil {
		t.Fatal(err)
	}
	return NewRoot(dir, k), k
}

func tree(t *testing.T, k *fakekernel.Kernel) map[string]string {
	t.Helper()
	tree, err := k.Tree()
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func sameTree(t *testing.T, k *fakekernel.Kernel, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, tree(t, k)); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
}

func undoLog(t *testing.T, root *Root) (*UndoLog, string) {
	t.Helper()
	dir := fakekernel.MemoryDir(t)
	j, err := CreateUndoLog(root, dir, "test")
	if err != nil {
		t.Fatal(err)
	}
	return j, dir
}

// die ends an undo log as the death of its process does.
func die(t *testing.T, j *UndoLog) {
	t.Helper()
	if err := Unlock(j.file); err != nil {
		t.Fatal(err)
	}
}

// write is a write by someone else.
func write(t *testing.T, root *Root, name, value string) {
	t.Helper()
	if err := root.write(name, value); err != nil {
		t.Fatal(err)
	}
}

// files are those in a directory of undo logs, without the lock.
func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != logsLock {
			names = append(names, e.Name())
		}
	}
	return names
}

// mortal is Files under which the process dies at operation number at: before
// it, reads included, or after it took effect, where only changes count.
type mortal struct {
	Files
	at    int
	after bool
	count *int
}

func (m mortal) change(do func() error) error {
	m.die(!m.after)
	err := do()
	if m.after {
		m.die(true)
	}
	return err
}

func (m mortal) die(counts bool) {
	if !counts {
		return
	}
	if *m.count++; *m.count == m.at {
		panic(fakekernel.Killed{})
	}
}

func (m mortal) FS() fs.FS {
	m.die(!m.after)
	return m.Files.FS()
}

func (m mortal) WriteFile(name, data string) error {
	return m.change(func() error { return m.Files.WriteFile(name, data) })
}

func (m mortal) Mkdir(name string) error {
	return m.change(func() error { return m.Files.Mkdir(name) })
}

func (m mortal) Rmdir(name string) error {
	return m.change(func() error { return m.Files.Rmdir(name) })
}

const v1cpu = "sys/fs/cgroup/cpu,cpuacct"

// labPlan makes two groups, moves process 100 and changes many kinds of file.
func labPlan(version int) Plan {
	if version == 2 {
		top := "sys/fs/cgroup"
		lab := top + "/lab"
		return Plan{
			{Op: Enable, Path: top + "/cgroup.subtree_control", Value: "+cpu +cpuset +io"},
			{Op: Mkdir, Path: lab},
			{Op: Enable, Path: lab + "/cgroup.subtree_control", Value: "+cpu +cpuset"},
			{Op: Mkdir, Path: lab + "/a"},
			{Op: Attach, Path: lab + "/a/cgroup.procs", Value: "100", Back: top + "/user.slice/session-1.scope/cgroup.procs"},
			{Path: lab + "/a/cpuset.cpus", Value: "1-2", Format: List},
			{Path: lab + "/cpu.weight", Value: "50"},
			{Path: lab + "/cpu.idle", Value: "1", Disturbs: []string{lab + "/cpu.weight"}},
			{Path: lab + "/cpu.max", Value: "50000 100000"},
			{Path: lab + "/io.max", Value: "8:0 rbps=1000", Format: Keyed, Unset: "8:0 rbps=max wbps=max riops=max wiops=max"},
			{Path: lab + "/cpu.max", Value: "60000 100000"},
		}
	}
	lab := v1cpu + "/lab"
	set := "sys/fs/cgroup/cpuset/lab"
	return Plan{
		{Op: Mkdir, Path: lab},
		{Path: lab + "/cpu.shares", Value: "512"},
		{Path: lab + "/cpu.idle", Value: "1", Disturbs: []string{lab + "/cpu.shares"}},
		{Op: Attach, Path: lab + "/cgroup.procs", Value: "100", Back: v1cpu + "/cgroup.procs"},
		{Op: Mkdir, Path: set},
		{Path: set + "/cpuset.cpus", Value: "0-3", Format: List, Keep: true},
		{Path: set + "/cpuset.mems", Value: "0-1", Format: List, Keep: true},
		{Path: set + "/cpuset.cpus", Value: "0,1", Format: List},
		{Op: Attach, Path: set + "/cgroup.procs", Value: "100", Back: "sys/fs/cgroup/cpuset/cgroup.procs"},
	}
}

func TestApplyAndUndo(t *testing.T) {
	t.Parallel()
	for version, layout := range map[int]fakekernel.Layout{1: fakekernel.V1(), 2: fakekernel.V2()} {
		root, k := fake(t, layout)
		before := tree(t, k)
		j, dir := undoLog(t, root)
		undo, err := Apply(root, labPlan(version), j)
		if err != nil {
			t.Fatal(err)
		}
		if cmp.Equal(before, tree(t, k)) {
			t.Fatal("applying changed nothing")
		}
		if err := undo(); err != nil {
			t.Error(err)
		}
		sameTree(t, k, before)
		if err := undo(); err != nil {
			t.Errorf("undo again: %v", err)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
		if got := files(t, dir); len(got) > 0 {
			t.Errorf("left in the undo log's directory: %v", got)
		}
	}
}
