package kernel_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
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
}
