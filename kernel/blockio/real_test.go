package blockio

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// On this host the disk below a directory is as slow as the class says. It makes a group of
// its own, and removes it.
func TestReal(t *testing.T) {
	t.Parallel()
	fakekernel.LockHost(t, fakekernel.Shared)
	root, err := kernel.Open("/")
	if err != nil {
		t.Skip(err)
	}
	host, err := cgroup.Detect(root)
	if err != nil {
		t.Skip(err)
	}
	for i := range host.Hierarchies {
		host.Hierarchies[i].Own = ""
	}
	base, err := host.Base(cgroup.IO)
	if err != nil || base.Has(cgroup.IO) != nil {
		t.Skip("no io controller: ", err, base.Has(cgroup.IO))
	}
	dir := t.TempDir()
	c, err := Parse(fmt.Appendf(nil, "classes: {slow: [{devices: [%s], writeBPS: 1Mi}]}", dir), "real")
	if err != nil {
		t.Fatal(err)
	}
	d, err := Read(root.FS(), "")
	if err != nil {
		t.Fatal(err)
	}
	l, notes := c.Limits("slow", d)
	if len(l.IOMax) != 1 {
		t.Skipf("no disk below %s: %v", dir, notes)
	}
	// What can the disk do without?
	write := func(pid func(int) error) time.Duration {
		t.Helper()
		dd := exec.Command("sh", "-c", "read go; exec dd if=/dev/zero of="+filepath.Join(dir, "x")+" bs=64k count=32 oflag=direct conv=notrunc 2>&1")
		in, err := dd.StdinPipe()
		if err == nil {
			err = dd.Start()
		}
		if err != nil {
			t.Skip(err)
		}
		if err := pid(dd.Process.Pid); err != nil {
			_ = dd.Process.Kill()
			_ = dd.Wait()
			t.Skip(err)
		}
		began := time.Now()
		_, _ = in.Write([]byte("\n"))
		if err := dd.Wait(); err != nil {
			t.Skipf("writing past the page cache: %v", err)
		}
		return time.Since(began)
	}
	free := write(func(int) error { return nil })
	group := base.Child(fmt.Sprintf("berth-test-%d-io", os.Getpid()))
	plan, err := group.Create()
	if err != nil {
		t.Skip(err)
	}
	undo, err := kernel.Apply(root, plan, nil)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := undo(); err != nil {
			t.Error(err)
		}
	})
	if plan, err = group.Set(l); err != nil {
		t.Skip(err)
	}
	if _, err := kernel.Apply(root, plan, nil); err != nil {
		t.Fatalf("%v\n%v", err, plan)
	}
	slow := write(func(pid int) error {
		plan, err := group.Attach(pid)
		if err == nil {
			_, err = kernel.Apply(root, plan, nil)
		}
		return err
	})
	if slow < 1800*time.Millisecond { // a slow host makes it longer, never shorter
		t.Errorf("2 MiB at 1 MiB/s took %v", slow)
	}
	t.Logf("2 MiB took %v, and %v at 1 MiB/s; %v", free, slow, plan)
}
