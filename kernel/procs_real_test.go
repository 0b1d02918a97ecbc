package kernel_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/testbox"
	"berth.dev/berth/kernel"
)

// The kernel's own answers about a group that is gone and one that is threaded.
func TestReadProcsReal(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("control groups need root")
	}
	fakekernel.LockHost(t, fakekernel.Shared)
	root, err := kernel.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := kernel.ReadMounts(root.FS())
	if err != nil {
		t.Fatal(err)
	}
	dir := ""
	for _, m := range mounts {
		if m.Type == "cgroup2" && !m.ReadOnly {
			dir = path.Join(m.Dir, fmt.Sprintf("berth-procs-%d", os.Getpid()))
		}
	}
	if dir == "" {
		t.Skip("no cgroup v2")
	}
	testbox.Group(t, dir)
	testbox.Group(t, dir+"/threads")
	if err := root.WriteFile(dir+"/threads/cgroup.type", "threaded"); err != nil {
		t.Skip(err)
	}
	for _, tc := range []struct {
		dir  string
		want error
		has  error
	}{{dir, nil, nil}, {dir + "/threads", kernel.ErrNotSupported, nil}, {dir + "/none", fs.ErrNotExist, fs.ErrNotExist}} {
		if pids, err := kernel.ReadProcs(root.FS(), tc.dir); !errors.Is(err, tc.want) || len(pids) > 0 {
			t.Errorf("/%s: %v, %v; want %v", tc.dir, pids, err, tc.want)
		}
		if has, err := kernel.HasProcs(root.FS(), tc.dir); has || !errors.Is(err, tc.has) {
			t.Errorf("/%s: has processes: %v, %v; want %v", tc.dir, has, err, tc.has)
		}
	}

	// With a process, which undoing sends back.
	sleep := exec.CommandContext(t.Context(), "sleep", "600")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = sleep.Process.Kill(), sleep.Wait() })
	pid := strconv.Itoa(sleep.Process.Pid)
	top, threads := dir+"/cgroup.procs", dir+"/threads/cgroup.procs"
	for what, plan := range map[string]kernel.Plan{
		"attached": {{Op: kernel.Attach, Path: threads, Value: pid, Back: top}},
		"group":    {{Op: kernel.Mkdir, Path: dir + "/made", Back: top}, {Path: dir + "/made/cgroup.type", Value: "threaded", Keep: true}, {Op: kernel.Attach, Path: dir + "/made/cgroup.procs", Value: pid, Back: top, Keep: true}},
	} {
		if err := root.WriteFile(top, pid); err != nil {
			t.Fatal(err)
		}
		undo, err := kernel.Apply(root, plan, nil)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		in := path.Dir(plan[len(plan)-1].Path)
		if pids, err := kernel.ReadProcs(root.FS(), in); !errors.Is(err, kernel.ErrNotSupported) || pids != nil {
			t.Errorf("%s: processes %v, %v", what, pids, err)
		}
		if tids, err := kernel.ReadThreads(root.FS(), in); !slices.Equal(tids, []int{sleep.Process.Pid}) || err != nil {
			t.Errorf("%s: threads %v, %v", what, tids, err)
		}
		for _, of := range []string{dir, in} { // the group above has the process
			if has, err := kernel.HasProcs(root.FS(), of); err != nil || !has {
				t.Errorf("%s: /%s has processes: %v, %v", what, of, has, err)
			}
		}
		if err := undo(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if tids, err := kernel.ReadThreads(root.FS(), dir); !slices.Equal(tids, []int{sleep.Process.Pid}) || err != nil {
			t.Errorf("%s: back are the threads %v, %v", what, tids, err)
		}
	}
}
