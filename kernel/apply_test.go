package kernel

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/plain"
)

// TestRefused applies plans whose last step is refused: everything before it
// is undone, and the error says what, where, why and what to do.
func TestRefused(t *testing.T) {
	t.Parallel()
	const (
		cpu = v1cpu + "/lab"
		set = "sys/fs/cgroup/cpuset/lab"
		mem = "sys/fs/cgroup/memory/lab"
		v2  = "sys/fs/cgroup/lab"
	)
	tests := map[string]struct {
		layout fakekernel.Layout
		plan   Plan
		errno  syscall.Errno
		says   string
	}{
		"idle locks weight": {fakekernel.V1(), Plan{
			{Op: Mkdir, Path: cpu}, {Path: cpu + "/cpu.idle", Value: "1"}, {Path: cpu + "/cpu.shares", Value: "10"},
		}, syscall.EINVAL, `write /sys/fs/cgroup/cpu,cpuacct/lab/cpu.shares "10": invalid argument (out of range, or the group is idle`},
		"short quota": {fakekernel.V1(), Plan{
			{Op: Mkdir, Path: cpu}, {Path: cpu + "/cpu.cfs_quota_us", Value: "500"},
		}, syscall.EINVAL, "at least 1 ms"},
		"weight beyond": {fakekernel.V2(), Plan{
			{Op: Enable, Path: "sys/fs/cgroup/cgroup.subtree_control", Value: "+cpu"},
			{Op: Mkdir, Path: v2}, {Path: v2 + "/cpu.weight", Value: "10001"},
		}, syscall.ERANGE, "a weight is 1 to 10000"},
		"cpu that is not there": {fakekernel.V1(), Plan{
			{Op: Mkdir, Path: set}, {Path: set + "/cpuset.cpus", Value: "500", Format: List},
		}, syscall.ERANGE, "numerical result out of range"},
		"not in the parent's set": {fakekernel.V1(), Plan{
			{Op: Mkdir, Path: set}, {Op: Mkdir, Path: set + "/kid"},
			{Path: set + "/cpuset.cpus", Value: "0", Format: List}, {Path: set + "/kid/cpuset.cpus", Value: "1", Format: List},
		}, syscall.EACCES, "widen the parent first"},
		"child uses more": {fakekernel.V1(), Plan{
			{Op: Mkdir, Path: set}, {Op: Mkdir, Path: set + "/kid"},
			{Path: set + "/cpuset.cpus", Value: "0-1", Format: List}, {Path: set + "/kid/cpuset.cpus", Value: "1", Format: List},
			{Path: set + "/cpuset.cpus", Value: "0", Format: List},
		}, syscall.EBUSY, "narrow the children first"},
		"empty cpuset": {fakekernel.V1(), Plan{
			{Op: Mkdir, Path: set}, {Op: Attach, Path: set + "/cgroup.procs", Value: "100", Back: "sys/fs/cgroup/cpuset/cgroup.procs"},
		}, syscall.ENOSPC, "set cpuset.cpus and cpuset.mems first"},
		"dead process": {fakekernel.V1(), Plan{
			{Op: Mkdir, Path: cpu}, {Op: Attach, Path: cpu + "/cgroup.procs", Value: "101", Back: v1cpu + "/cgroup.procs"},
		}, syscall.ESRCH, "it has ended"},
		"no such file": {fakekernel.V1(), Plan{
			{Op: Mkdir, Path: mem}, {Path: mem + "/memory.high", Value: "4096"},
		}, syscall.ENOENT, "no such object"},
		"group exists": {fakekernel.V1(), Plan{
			{Op: Mkdir, Path: cpu}, {Op: Mkdir, Path: cpu},
		}, syscall.EEXIST, "mkdir /sys/fs/cgroup/cpu,cpuacct/lab: file exists (exists already"},
		"controller not offered": {fakekernel.V2(), Plan{
			{Op: Mkdir, Path: v2}, {Op: Enable, Path: v2 + "/cgroup.subtree_control", Value: "+cpu"},
		}, syscall.ENOENT, "enable it in every ancestor"},
		"processes beside children": {fakekernel.V2(), Plan{
			{Op: Enable, Path: "sys/fs/cgroup/cgroup.subtree_control", Value: "+memory"},
			{Op: Mkdir, Path: v2},
			{Op: Attach, Path: v2 + "/cgroup.procs", Value: "100", Back: "sys/fs/cgroup/user.slice/session-1.scope/cgroup.procs"},
			{Op: Enable, Path: v2 + "/cgroup.subtree_control", Value: "+memory"},
		}, syscall.EBUSY, "move them to a child group first"},
		"inner group": {fakekernel.V2(), Plan{
			{Op: Enable, Path: "sys/fs/cgroup/cgroup.subtree_control", Value: "+cpu"},
			{Op: Mkdir, Path: v2},
			{Op: Enable, Path: v2 + "/cgroup.subtree_control", Value: "+cpu"},
			{Op: Attach, Path: v2 + "/cgroup.procs", Value: "100", Back: "sys/fs/cgroup/user.slice/session-1.scope/cgroup.procs"},
		}, syscall.EBUSY, "attach to a child"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, k := fake(t, tt.layout)
			before := tree(t, k)
			j, dir := undoLog(t, root)
			_, err := Apply(root, tt.plan, j)
			var stepErr *StepError
			if !errors.As(err, &stepErr) || !errors.Is(err, tt.errno) {
				t.Fatalf("Apply: %v, want a StepError with %v", err, tt.errno)
			}
			if diff := cmp.Diff(tt.plan[len(tt.plan)-1], stepErr.Step); diff != "" {
				t.Errorf("step (-want +got):\n%s", diff)
			}
			if !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q does not say %q in one line", err, tt.says)
			}
			sameTree(t, k, before)
			if err := j.Close(); err != nil || len(files(t, dir)) > 0 {
				t.Errorf("Close: %v, undo logs left: %v", err, files(t, dir))
			}
		})
	}
}

// TestHints has every errno that a cgroup file answers with explained.
func TestHints(t *testing.T) {
	t.Parallel()
	for _, errno := range []syscall.Errno{
		syscall.EINVAL, syscall.ERANGE, syscall.ENOSPC, syscall.EBUSY, syscall.EPERM, syscall.EACCES,
		syscall.EROFS, syscall.ENOENT, syscall.ESRCH, syscall.EOPNOTSUPP, syscall.EEXIST,
	} {
		for _, s := range []Step{{Path: "x/cpu.max"}, {Path: "x/cpuset.cpus"}, {Path: "x/memory.max"}, {Op: Mkdir}, {Op: Attach}, {Op: Enable}} {
			if hint(s, &fs.PathError{Op: "write", Err: errno}) == "" {
				t.Errorf("%v of %q: no hint", errno, s)
			}
		}
	}
	for _, tt := range []struct {
		step  Step
		errno syscall.Errno
		says  string
	}{
		{Step{Op: Attach, Path: "cpu/a/cgroup.procs"}, syscall.EINVAL, "cpu.rt_runtime_us"},
		{Step{Op: Mkdir, Path: "a"}, syscall.EAGAIN, "cgroup.max.descendants"},
		{Step{Path: "a/io.max"}, syscall.ENODEV, "no such block device"},
		{Step{Path: "a/blkio.throttle.read_bps_device"}, syscall.ENODEV, "no such block device"},
		{Step{Path: "a/cpu.max"}, syscall.ENODEV, "removed meanwhile"},
		{Step{Path: "a/cpuset.cpus"}, syscall.ERANGE, "names a CPU number"},
		{Step{Path: "a/cpuset.mems"}, syscall.ERANGE, "names a memory node"},
		{Step{Path: "a/cpuset.cpus"}, syscall.EINVAL, "names a CPU that"},
		{Step{Path: "a/cpuset.mems"}, syscall.EINVAL, "names a memory node"},
		{Step{Path: "a/cpuset.cpus.partition"}, syscall.EINVAL, "no such kind of partition"},
		{Step{Path: "a/cpu.weight"}, syscall.ERANGE, "1 to 10000"},
		{Step{Path: "a/blkio.bfq.weight"}, syscall.ERANGE, "1 to 1000"},
	} {
		if got := hint(tt.step, tt.errno); !strings.Contains(got, tt.says) {
			t.Errorf("%v of %q: %q, want %q", tt.errno, tt.step, got, tt.says)
		}
	}
	if got := hint(Step{}, errors.New("odd")); got != "" {
		t.Errorf("hint for an error that is none of the kernel's: %q", got)
	}
	if got := hint(Step{Path: "x/memory.max"}, syscall.EBUSY); !strings.Contains(got, "reclaim") {
		t.Errorf("busy memory.max: %q", got)
	}
}

// shows is a kernel that takes any value and shows another.
type shows struct {
	Files
	value string
}

func (s shows) WriteFile(name, data string) error {
	if !strings.HasSuffix(name, "cpu.shares") || data == "1024\n" {
		return s.Files.WriteFile(name, data)
	}
	return s.Files.WriteFile(name, s.value)
}

func TestReadBack(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	before := tree(t, k)
	plan := Plan{{Path: v1cpu + "/cpu.shares", Value: "10"}}
	_, err := Apply(NewRoot("", shows{k, "77"}), plan, nil)
	if err == nil || !strings.Contains(err.Error(), `the kernel shows "77" instead`) {
		t.Errorf("Apply: %v", err)
	}
	sameTree(t, k, before)

	undo, err := Apply(root, Plan{{Path: v1cpu + "/cpu.shares", Value: "1024"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	write(t, root, v1cpu+"/cpu.shares", "2048")
	if err := undo(); err != nil {
		t.Errorf("undo of what was never written: %v", err)
	}
}

// raced is a kernel on which others write, so often, as soon as Berth has written.
type raced struct {
	Files
	values *[]string
}

func (r raced) WriteFile(name, data string) error {
	err := r.Files.WriteFile(name, data)
	if v := *r.values; err == nil && len(v) > 0 {
		*r.values = v[1:]
		err = r.Files.WriteFile(name, v[0]+"\n")
	}
	return err
}

// TestOthersWriteMeanwhile has others set a value between Berth's write and its read-back:
// the last of theirs stays, and is told.
func TestOthersWriteMeanwhile(t *testing.T) {
	t.Parallel()
	for _, values := range [][]string{{"777"}, {"777", "888"}, {"1024"}} {
		root, k := fake(t, fakekernel.V1())
		want := tree(t, k)
		last := values[len(values)-1]
		want[v1cpu+"/cpu.shares"] = last + "\n"
		dir := fakekernel.MemoryDir(t)
		j, err := CreateUndoLog(root, dir, "test")
		if err != nil {
			t.Fatal(err)
		}
		_, err = Apply(NewRoot(root.Name(), raced{k, &values}), oneWrite, j)
		if err == nil || errors.Is(err, ErrChanged) != (last != "1024") {
			t.Errorf("others wrote %s: %v", last, err)
		}
		sameTree(t, k, want)
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if report, err := Restore(root, dir); err != nil || len(report.Items) > 0 {
			t.Errorf("others wrote %s: still noted: %+v, %v", last, report, err)
		}
	}
}

// TestApplyBeside applies plans of different files at the same time with one log, of which the
// kernel makes another value of one.
func TestApplyBeside(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	before := tree(t, k)
	j, _ := undoLog(t, root)
	ended := make(chan struct{})
	var beside sync.WaitGroup
	beside.Go(func() {
		for {
			undo, err := Apply(root, Plan{{Op: Mkdir, Path: v1cpu + "/beside"}}, j)
			if err == nil {
				err = undo()
			}
			if err != nil {
				t.Error(err)
				return
			}
			select {
			case <-ended:
				return
			default:
			}
		}
	})
	if _, err := Apply(root, oneWrite, j); err != nil {
		t.Error(err)
	}
	write(t, root, v1cpu+"/cpu.shares", "55")
	if _, err := Apply(NewRoot(root.Name(), shows{k, "77"}), oneWrite, j); err == nil {
		t.Error("the kernel made 77 of it")
	}
	close(ended)
	beside.Wait()
	if items, err := j.Undo(func(Step) bool { return true }); err != nil || len(items) != 1 || items[0].Outcome != Restored {
		t.Errorf("undone %+v, %v", items, err)
	}
	sameTree(t, k, before)
}

func TestUndoLeavesOthersValues(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	j, _ := undoLog(t, root)
	undo, err := Apply(root, Plan{
		{Path: v1cpu + "/cpu.cfs_quota_us", Value: "50000"},
		{Path: v1cpu + "/cpu.shares", Value: "10"},
		{Op: Mkdir, Path: v1cpu + "/lab"},
		{Path: v1cpu + "/lab/cpu.shares", Value: "10"},
	}, j)
	if err != nil {
		t.Fatal(err)
	}
	write(t, root, v1cpu+"/cpu.shares", "99")
	// The group is made anew by someone else: not ours to restore or remove.
	if err := k.Rmdir(v1cpu + "/lab"); err != nil {
		t.Fatal(err)
	}
	if err := k.Mkdir(v1cpu + "/other"); err != nil { // takes the inodes
		t.Fatal(err)
	}
	if err := k.Mkdir(v1cpu + "/lab"); err != nil {
		t.Fatal(err)
	}
	write(t, root, v1cpu+"/lab/cpu.shares", "10")
	want := tree(t, k)
	want[v1cpu+"/cpu.cfs_quota_us"] = "-1\n"
	err = undo()
	var changed *ChangedError
	if !errors.As(err, &changed) || !errors.Is(err, ErrChanged) {
		t.Fatalf("undo: %v, want a ChangedError", err)
	}
	if diff := cmp.Diff(ChangedError{v1cpu + "/cpu.shares", "10", "99", "1024"}, *changed); diff != "" {
		t.Errorf("ChangedError (-want +got):\n%s", diff)
	}
	sameTree(t, k, want)
	if err := undo(); err != nil {
		t.Errorf("undo again: %v", err)
	}
}

// TestUndoGoesOn has one step that cannot be undone yet: the others are, and
// calling undo again does the rest.
func TestUndoGoesOn(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	root.Patience = 5 * time.Millisecond
	before := tree(t, k)
	j, dir := undoLog(t, root)
	undo, err := Apply(root, Plan{
		{Path: v1cpu + "/cpu.shares", Value: "10"},
		{Op: Mkdir, Path: v1cpu + "/lab"},
		{Path: v1cpu + "/cpu.cfs_quota_us", Value: "50000"},
	}, j)
	if err != nil {
		t.Fatal(err)
	}
	write(t, root, v1cpu+"/lab/cgroup.procs", "100")
	err = undo()
	if !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "rmdir /"+v1cpu+"/lab") || !strings.Contains(err.Error(), "still holds process 100") {
		t.Errorf("undo: %v", err)
	}
	if root, _ := root.read(v1cpu + "/cpu.shares"); root != "1024" {
		t.Errorf("cpu.shares %s: undo stopped at the first error", root)
	}
	if err := j.Close(); err != nil || len(files(t, dir)) != 1 {
		t.Errorf("Close: %v, undo logs %v: want the one that is still needed", err, files(t, dir))
	}
	write(t, root, v1cpu+"/cgroup.procs", "100")
	if _, err := Restore(root, dir); err != nil {
		t.Error(err)
	}
	sameTree(t, k, before)
	if got := files(t, dir); len(got) > 0 {
		t.Errorf("undo logs left: %v", got)
	}
}

// hiccup is a kernel that refuses one write of a weight.
type hiccup struct {
	Files
	refuse *bool
}

func (h hiccup) WriteFile(name, data string) error {
	if *h.refuse && strings.HasSuffix(name, "cpu.shares") {
		*h.refuse = false
		return &fs.PathError{Op: "write", Path: name, Err: syscall.EIO}
	}
	return h.Files.WriteFile(name, data)
}

// TestUndoAgain has the disturbed file refuse its value the first time.
func TestUndoAgain(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	write(t, root, v1cpu+"/cpu.shares", "777")
	before := tree(t, k)
	refuse := false
	undo, err := Apply(NewRoot("", hiccup{k, &refuse}), Plan{
		{Path: v1cpu + "/cpu.idle", Value: "1", Disturbs: []string{v1cpu + "/cpu.shares"}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	refuse = true
	if err := undo(); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), `cpu.shares "777"`) {
		t.Errorf("undo: %v", err)
	}
	if err := undo(); err != nil {
		t.Errorf("undo again: %v", err)
	}
	sameTree(t, k, before)
}

func TestUndoNamesChildren(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	root.Patience = time.Millisecond
	undo, err := Apply(root, Plan{{Op: Mkdir, Path: v1cpu + "/lab"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Mkdir(v1cpu + "/lab/theirs"); err != nil {
		t.Fatal(err)
	}
	if err := undo(); err == nil || !strings.Contains(err.Error(), "another process made child groups in it: theirs") {
		t.Errorf("undo: %v", err)
	}
}

// TestUndoWaits has the last process leave while the removal is tried.
func TestUndoWaits(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	undo, err := Apply(root, Plan{{Op: Mkdir, Path: v1cpu + "/lab"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	write(t, root, v1cpu+"/lab/cgroup.procs", "100")
	time.AfterFunc(10*time.Millisecond, func() { _ = k.Exit("100") })
	if err := undo(); err != nil {
		t.Error(err)
	}
}

func TestUndoAttach(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		meanwhile func(k *fakekernel.Kernel) error
		back      bool
	}{
		"lives":    {func(*fakekernel.Kernel) error { return nil }, true},
		"ended":    {func(k *fakekernel.Kernel) error { return k.Exit("100") }, false},
		"moved on": {func(k *fakekernel.Kernel) error { return k.WriteFile(v1cpu+"/other/cgroup.procs", "100") }, false},
		"another of its number": {func(k *fakekernel.Kernel) error {
			return k.WriteFile("proc/100/stat", "100 (x) S"+strings.Repeat(" 1", 30))
		}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, k := fake(t, fakekernel.V1())
			for _, dir := range []string{"/lab", "/other"} {
				if err := k.Mkdir(v1cpu + dir); err != nil {
					t.Fatal(err)
				}
			}
			undo, err := Apply(root, Plan{{Op: Attach, Path: v1cpu + "/lab/cgroup.procs", Value: "100", Back: v1cpu + "/cgroup.procs"}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.meanwhile(k); err != nil {
				t.Fatal(err)
			}
			if err := undo(); err != nil {
				t.Error(err)
			}
			procs, _ := root.read(v1cpu + "/cgroup.procs")
			if got := strings.Contains(procs, "100"); got != tt.back {
				t.Errorf("back: %v, want %v", got, tt.back)
			}
		})
	}
}

// A process of another PID namespace is listed as 0: written, that is whoever writes it.
func TestUndoLeavesOtherNamespaces(t *testing.T) {
	t.Parallel()
	const lab, back = v1cpu + "/lab", v1cpu + "/cgroup.procs"
	for what, plan := range map[string]Plan{
		"group":    {{Op: Mkdir, Path: lab, Back: back}},
		"attached": {{Op: Mkdir, Path: lab}, {Op: Attach, Path: lab + "/cgroup.procs", Value: "0", Back: back}, {Op: Attach, Path: lab + "/cgroup.procs", Value: "100", Back: back}},
	} {
		root, k := fake(t, fakekernel.V1())
		root.Patience = time.Millisecond
		if err := k.Start("0"); err != nil {
			t.Fatal(err)
		}
		undo, err := Apply(root, plan, nil)
		for _, pid := range []string{"0", "100"} {
			err = errors.Join(err, k.WriteFile(lab+"/cgroup.procs", pid))
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := undo(); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "a process of another PID namespace") {
			t.Errorf("%s: %v", what, err)
		}
		procs, _ := root.read(back)
		if ids := strings.Fields(procs); slices.Contains(ids, "0") || !slices.Contains(ids, "100") {
			t.Errorf("%s: %q are back", what, ids)
		}
	}
}

// TestUndoEnable has other groups come to use what was enabled: nothing of
// theirs is lost, and a restore disables it once they are gone.
func TestUndoEnable(t *testing.T) {
	t.Parallel()
	const top, control = "sys/fs/cgroup", "sys/fs/cgroup/cgroup.subtree_control"
	mkdir := func(t *testing.T, k *fakekernel.Kernel, dir string) {
		t.Helper()
		if err := k.Mkdir(dir); err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]struct {
		meanwhile func(t *testing.T, root *Root, k *fakekernel.Kernel)
		file      string // that must stay
		says      string // about them; "" for given back at once
		on        string // after the first undo
	}{
		"nobody": {func(*testing.T, *Root, *fakekernel.Kernel) {}, "", "", "memory"},
		"new group with a limit": {func(t *testing.T, root *Root, k *fakekernel.Kernel) {
			mkdir(t, k, top+"/theirs")
			write(t, root, top+"/theirs/cpu.max", "50000 100000")
		}, top + "/theirs/cpu.max", "disable cpu pids for the child groups of /sys/fs/cgroup: still in use by theirs;", "cpu memory pids"},
		"new group, nothing set yet": {func(t *testing.T, _ *Root, k *fakekernel.Kernel) {
			mkdir(t, k, top+"/theirs")
		}, top + "/theirs/cpu.max", "still in use by theirs;", "cpu memory pids"},
		"new group hands it on": {func(t *testing.T, root *Root, k *fakekernel.Kernel) {
			mkdir(t, k, top+"/theirs")
			write(t, root, top+"/theirs/cgroup.subtree_control", "+cpu")
		}, top + "/theirs/cpu.max", "still in use by theirs;", "cpu memory pids"},
		"old group gets a limit": {func(t *testing.T, root *Root, _ *fakekernel.Kernel) {
			write(t, root, top+"/user.slice/pids.max", "100")
		}, top + "/user.slice/pids.max", "disable pids for the child groups of /sys/fs/cgroup: still in use by user.slice;", "memory pids"},
		"old group hands it on": {func(t *testing.T, root *Root, _ *fakekernel.Kernel) {
			write(t, root, top+"/user.slice/cgroup.subtree_control", "+cpu")
		}, top + "/user.slice/session-1.scope/cpu.max", "disable cpu for", "cpu memory"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, k := fake(t, fakekernel.V2())
			write(t, root, control, "+memory")
			before := tree(t, k)
			j, dir := undoLog(t, root)
			undo, err := Apply(root, Plan{{Op: Enable, Path: control, Value: "+cpu +memory +pids"}}, j)
			if err != nil {
				t.Fatal(err)
			}
			tt.meanwhile(t, root, k)
			kept, _ := root.read(tt.file)
			if err := undo(); err != nil {
				t.Errorf("undo: %v", err)
			}
			if got, _ := root.read(control); got != tt.on {
				t.Errorf("subtree_control %q, want %q", got, tt.on)
			}
			if got, err := root.read(tt.file); tt.file != "" && (err != nil || got != kept) {
				t.Errorf("their %s was %q and is %q, %v", tt.file, kept, got, err)
			}
			if err := j.Close(); err != nil {
				t.Error(err)
			}
			if tt.says == "" {
				sameTree(t, k, before)
				if got := files(t, dir); len(got) > 0 {
					t.Errorf("undo logs left: %v", got)
				}
				return
			}
			report, err := Restore(root, dir)
			if err != nil || len(report.Items) != 1 || report.Items[0].Outcome != InUse || !strings.Contains(report.Items[0].Error, tt.says) {
				t.Errorf("Restore while in use: %+v, %v, want %q", report.Items, err, tt.says)
			}
			_ = k.Rmdir(top + "/theirs")
			_ = k.WriteFile(top+"/user.slice/pids.max", "max")
			_ = k.WriteFile(top+"/user.slice/cgroup.subtree_control", "-cpu")
			if report, err = Restore(root, dir); err != nil || len(report.Items) != 1 || report.Items[0].Outcome != Restored {
				t.Errorf("Restore: %+v, %v", report.Items, err)
			}
			sameTree(t, k, before)
			if got := files(t, dir); len(got) > 0 {
				t.Errorf("undo logs left: %v", got)
			}
		})
	}
}

// TestTwoRuns has two runs enable the same controller; the first ends first.
func TestTwoRuns(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V2())
	before := tree(t, k)
	plan := func(name string) Plan {
		return Plan{
			{Op: Enable, Path: "sys/fs/cgroup/cgroup.subtree_control", Value: "+cpu"},
			{Op: Mkdir, Path: "sys/fs/cgroup/" + name},
			{Path: "sys/fs/cgroup/" + name + "/cpu.weight", Value: "7"},
		}
	}
	j, dir := undoLog(t, root)
	undoA, err := Apply(root, plan("a"), j)
	if err != nil {
		t.Fatal(err)
	}
	undoB, err := Apply(root, plan("b"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(undoA(), j.Close()); err != nil {
		t.Error(err)
	}
	if got, _ := root.read("sys/fs/cgroup/b/cpu.weight"); got != "7" {
		t.Errorf("cpu.weight of the other run %q, want 7", got)
	}
	if err := undoB(); err != nil {
		t.Error(err)
	}
	if _, err := Restore(root, dir); err != nil {
		t.Error(err)
	}
	sameTree(t, k, before)
	if got := files(t, dir); len(got) > 0 {
		t.Errorf("undo logs left: %v", got)
	}
}

// TestEmptyCPUSet has a kernel that cannot empty the set of a group with
// processes, as none before Linux 7 can.
func TestEmptyCPUSet(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V2())
	const dir = "sys/fs/cgroup/lab"
	write(t, root, "sys/fs/cgroup/cgroup.subtree_control", "+cpuset")
	if err := k.Mkdir(dir); err != nil {
		t.Fatal(err)
	}
	before := tree(t, k)
	write(t, root, dir+"/cgroup.procs", "100")
	j, undoLogs := undoLog(t, root)
	undo, err := Apply(root, Plan{{Path: dir + "/cpuset.cpus", Value: "1", Format: List}}, j)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		err = undo()
		if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), "set to the parent's 0-3 instead") {
			t.Errorf("undo: %v", err)
		}
		if got, _ := root.read(dir + "/cpuset.cpus"); got != "0-3" {
			t.Errorf("cpuset.cpus %q, want all that the parent has", got)
		}
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	report, err := Restore(root, undoLogs)
	if err != nil || len(report.Items) != 1 || report.Items[0].Outcome != Widened {
		t.Errorf("Restore with the process inside: %+v, %v", report.Items, err)
	}
	write(t, root, "sys/fs/cgroup/user.slice/session-1.scope/cgroup.procs", "100")
	report, err = Restore(root, undoLogs)
	if err != nil || len(report.Items) != 1 || report.Items[0].Outcome != Restored {
		t.Errorf("Restore: %+v, %v", report.Items, err)
	}
	before["proc/100/cgroup"] = tree(t, k)["proc/100/cgroup"]
	sameTree(t, k, before)
}

// TestKilledAfterReadBack dies when the kernel has shown another value.
func TestKilledAfterReadBack(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	before := tree(t, k)
	j, dir := undoLog(t, root)
	other := NewRoot("", shows{k, "77"})
	e, err := other.prepare(Step{Path: v1cpu + "/cpu.shares", Value: "10"})
	if err == nil {
		err = j.begin(e)
	}
	if err != nil {
		t.Fatal(err)
	}
	write(t, root, v1cpu+"/cpu.shares", "77")
	if err := other.readBack(e, j); err == nil {
		t.Error("readBack: no error")
	}
	die(t, j)
	if report, err := Restore(root, dir); err != nil || len(report.Items) != 1 || report.Items[0].Outcome != Restored {
		t.Errorf("Restore: %+v, %v", report.Items, err)
	}
	sameTree(t, k, before)
}

// Whatever a group is called, each step is one command of a shell, and writes what it
// says into the file that it names.
func TestPlanStringHostile(t *testing.T) {
	t.Parallel()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh: ", err)
	}
	for _, name := range []string{
		"$(touch owned)", "`touch owned`", "a;touch owned", "a\ntouch owned\n", "it's", `"; touch owned; "`, "a b", "-rf", "*", "~", "#", "a&&b|c>d<e",
		"\x1b[2J", "\u202egpj", "50%", `back\slash\x41`, "\xff\xfe", strings.Repeat("x", 255), "..x", "a=b,c:d",
	} {
		dir := t.TempDir()
		plan := Plan{
			{Op: Mkdir, Path: "g/" + name, Why: "x\ntouch owned"},
			{Path: "g/" + name + "/cpu.weight", Value: "10", Why: "of " + name},
			{Path: "g/" + name + "/io.max", Value: "8:0 rbps=1"},
			{Path: "g/" + name + "/cpuset.cpus"},
		}
		text := plan.String()
		if strings.Count(text, "\n") != len(plan) || plain.Text(text) != text {
			t.Errorf("%q: these are not %d lines:\n%q", name, len(plan), text)
			continue
		}
		if out, err := exec.Command(sh, "-n", "-c", text).CombinedOutput(); err != nil {
			t.Errorf("%q: sh -n: %v: %s\n%s", name, err, out, text)
			continue
		}
		cmd := exec.Command(sh, "-ec", strings.NewReplacer(" /g/", " ./g/", "'/g/", "'./g/", "\"/g/", "\"./g/").Replace(text))
		cmd.Dir = dir
		if err := os.Mkdir(dir+"/g", 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%q: sh: %v: %s\n%s", name, err, out, text)
			continue
		}
		for file, want := range map[string]string{"cpu.weight": "10\n", "io.max": "8:0 rbps=1\n", "cpuset.cpus": "\n"} {
			if got, err := os.ReadFile(dir + "/g/" + name + "/" + file); err != nil || string(got) != want {
				t.Errorf("%q: %s is %q, %v", name, file, got, err)
			}
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("%q: the commands made %v, %v", name, entries, err)
		}
	}
}

func TestPlanString(t *testing.T) {
	t.Parallel()
	plan := Plan{
		{Op: Enable, Path: "sys/fs/cgroup/cgroup.subtree_control", Value: "+cpu +cpuset"},
		{Op: Mkdir, Path: "sys/fs/cgroup/batch"},
		{Path: "sys/fs/cgroup/batch/cpu.weight", Value: "10", Why: "batch yields"},
		{Path: "sys/fs/cgroup/batch/cpuset.cpus", Format: List},
		{Op: Attach, Path: "sys/fs/cgroup/batch/cgroup.procs", Value: "42"},
	}
	want := `echo +cpu +cpuset > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/batch
echo 10 > /sys/fs/cgroup/batch/cpu.weight  # batch yields
echo > /sys/fs/cgroup/batch/cpuset.cpus
echo 42 > /sys/fs/cgroup/batch/cgroup.procs
`
	if diff := cmp.Diff(want, plan.String()); diff != "" {
		t.Errorf("String (-want +got):\n%s", diff)
	}
}
