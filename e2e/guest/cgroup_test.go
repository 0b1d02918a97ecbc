package guest

import (
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// v2 is the root of the cgroup tree, relative to the kernel.Root.
const v2 = "sys/fs/cgroup"

// tree is the live cgroup tree.
type tree struct {
	*kernel.Root
	base cgroup.Group
}

// openTree returns the tree, whose root hands on all controllers until the test ends.
func openTree(t *testing.T) tree {
	t.Helper()
	root, err := kernel.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	host, err := cgroup.Detect(root)
	if err != nil {
		t.Fatal(err)
	}
	base, err := host.Base()
	if err != nil {
		t.Fatal(err)
	}
	tr := tree{root, base}
	tr.apply(t, kernel.Plan{{Op: kernel.Enable, Path: v2 + "/cgroup.subtree_control", Value: "+cpu +cpuset +io +memory +pids"}}, nil)
	return tr
}

// apply carries out a plan until the test ends.
func (tr tree) apply(t *testing.T, plan kernel.Plan, err error) (undo func() error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	undo, err = kernel.Apply(tr.Root, plan, nil)
	if err != nil {
		t.Fatalf("%v\nplan:\n%s", err, plan)
	}
	t.Cleanup(func() {
		if err := undo(); err != nil {
			t.Error(err)
		}
	})
	return undo
}

// group makes a group and children of it, until the test ends.
func (tr tree) group(t *testing.T, name string, children ...string) cgroup.Group {
	t.Helper()
	g := tr.base.Child(name)
	plan, err := g.Create(children...)
	tr.apply(t, plan, err)
	return g
}

// set gives a group limits until the test ends.
func (tr tree) set(t *testing.T, g cgroup.Group, l cgroup.Limits) (undo func() error) {
	t.Helper()
	plan, err := g.Set(l)
	return tr.apply(t, plan, err)
}

// attach moves a process into a group until the test ends.
func (tr tree) attach(t *testing.T, g cgroup.Group, pid int) {
	t.Helper()
	plan, err := g.Attach(pid)
	tr.apply(t, plan, err)
}

// text returns a group's file, "" for the root, without white space at its ends.
func (tr tree) text(t *testing.T, group, file string) string {
	t.Helper()
	data, err := fs.ReadFile(tr.FS(), path.Join(v2, group, file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// write writes to a group's file as someone else would.
func (tr tree) write(t *testing.T, group, file, value string) {
	t.Helper()
	if err := tr.WriteFile(path.Join(v2, group, file), value+"\n"); err != nil {
		t.Fatal(err)
	}
}

// atLeast reports whether the guest's kernel is of that version or later.
func atLeast(major, minor int) bool {
	a, b, _ := strings.Cut(kernelName(), ".")
	x, _ := strconv.Atoi(a)
	y, _ := strconv.Atoi(b)
	return x > major || x == major && y >= minor
}

// allowed returns the CPUs that a process may use.
func allowed(t *testing.T, pid int) cpuset.Set {
	t.Helper()
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			return cpuset.MustParse(strings.TrimSpace(list))
		}
	}
	t.Fatalf("no Cpus_allowed_list of process %d", pid)
	return cpuset.Set{}
}

// The disks of 2s4n: one of null_blk, as fast as the guest, and the virtio disk.
const (
	nullDisk   = "nullb0"
	virtioDisk = "vda"
)

// blockDevice returns the number of a disk.
func blockDevice(t *testing.T, disk string) string {
	t.Helper()
	number, err := os.ReadFile("/sys/block/" + disk + "/dev")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(number))
}

// childEnv makes this program a process of another test: what it is to do.
const childEnv = "BERTH_TEST_CHILD"

// TestChild is a process of another test.
func TestChild(t *testing.T) {
	work, ok := childWork()[os.Getenv(childEnv)]
	if !ok {
		t.Skip("a process of another test")
	}
	work(t)
}

// childWork is what processes of tests do. Most of them until they are killed,
// after they said on their standard output that they are ready.
func childWork() map[string]func(*testing.T) {
	ready := func() { os.Stdout.WriteString("!") }
	return map[string]func(*testing.T){
		"sleep": func(*testing.T) {
			ready()
			time.Sleep(math.MaxInt64)
		},
		"spin": func(*testing.T) {
			ready()
			for range math.MaxInt64 {
			}
		},
		"hold memory": func(*testing.T) {
			held := make([]byte, heldBytes)
			for i := 0; i < len(held); i += 4096 {
				held[i] = 1
			}
			ready()
			time.Sleep(math.MaxInt64)
			held[0]++ // not garbage before
		},
		"work in turns": func(*testing.T) {
			ready()
			workInTurns()
		},
		"cache a disk": func(t *testing.T) {
			if err := cacheDisk(); err != nil {
				t.Fatal(err)
			}
			ready()
			time.Sleep(math.MaxInt64)
		},
		"read a disk":         func(t *testing.T) { t.Fatal(readDisk(ready)) },
		"read at random":      func(t *testing.T) { t.Fatal(readAtRandom(ready)) },
		"serve requests":      serveRequests,
		"serve by goroutines": serveByGoroutines,
		"use delegation":      useDelegation,
		"change a node":       changeNode,
	}
}

// heldBytes is what the process that holds memory holds.
const heldBytes = 24 << 20

// command is a process of childWork that starts in a group.
func (tr tree) command(t *testing.T, g cgroup.Group, work string) *exec.Cmd {
	t.Helper()
	dir, err := os.Open("/" + g.Dirs()[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestChild$")
	cmd.Env = append(os.Environ(), childEnv+"="+work, "GOMAXPROCS=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	return cmd
}

// child starts a process of childWork in a group and waits until it is ready.
// It ends with the test.
func (tr tree) child(t *testing.T, g cgroup.Group, work string) (pid int) {
	t.Helper()
	cmd := tr.command(t, g, work)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatalf("process to %s: %v", work, err)
	}
	return cmd.Process.Pid
}
