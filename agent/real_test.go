package agent

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/fork"
	"berth.dev/berth/internal/testbox"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// realTrees counts the trees that this process has made.
var realTrees atomic.Int32

// real is the live host, of whose v1 hierarchies only one group of this test's
// own is mounted, as in a container. Nothing outside of that group is changed.
type real struct {
	kernel.Files
	root   *kernel.Root
	group  string
	mounts string
}

func (r real) FS() fs.FS { return overlay{r.Files.FS(), r.mounts} }

// Signal is for real processes: those that the test itself moved in.
func (r real) Signal(pid int, sig syscall.Signal) error { return r.root.Signal(pid, sig) }

// overlay is a tree with another mountinfo.
type overlay struct {
	fs.FS
	mountInfo string
}

const mountInfoFile = "proc/self/mountinfo"

func (o overlay) Open(name string) (fs.File, error) {
	if name != mountInfoFile {
		return o.FS.Open(name)
	}
	return fstest.MapFS{name: {Data: []byte(o.mountInfo)}}.Open(name)
}

func (o overlay) ReadFile(name string) ([]byte, error) {
	if name == mountInfoFile {
		return []byte(o.mountInfo), nil
	}
	return fs.ReadFile(o.FS, name)
}

func (o overlay) Stat(name string) (fs.FileInfo, error)      { return fs.Stat(o.FS, name) }
func (o overlay) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(o.FS, name) }

var realControllers = []string{"cpuset", "cpu", "memory"}

// newReal returns the live host with a group in each hierarchy mounted.
func newReal(root *kernel.Root, group string) real {
	var b strings.Builder
	for i, c := range realControllers {
		fmt.Fprintf(&b, "%d 1 0:%d /%s /sys/fs/cgroup/%s/%s rw - cgroup cgroup rw,%s\n", 100+i, 200+i, group, c, group, c)
	}
	return real{root.Files, root, group, b.String()}
}

// realHost is a tree of the live host's v1 controllers. It skips where there are
// none, or no groups may be made.
type realHost struct {
	testing.TB
	real
	opt Options
}

func newRealHost(t testing.TB) *realHost {
	t.Helper()
	root, err := kernel.Open("/")
	if err != nil {
		t.Skip(err)
	}
	host, err := cgroup.Detect(root)
	if err != nil {
		t.Skip(err)
	}
	for _, c := range realControllers {
		if h, ok := host.Hierarchy(c); !ok || h.Version != 1 || h.Dir != "sys/fs/cgroup/"+c || h.Root != "/" {
			t.Skipf("the %s controller is not mounted at /sys/fs/cgroup/%s as cgroup v1", c, c)
		}
	}
	fakekernel.LockHost(t, fakekernel.Shared)
	h := &realHost{TB: t, real: newReal(root, fmt.Sprintf("berth-test-%d-%d", os.Getpid(), realTrees.Add(1)))}
	for _, c := range realControllers {
		dir := h.dir(c)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("no groups can be made here: %v", err)
		}
		t.Cleanup(func() { testbox.RemoveGroup(t, dir) })
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		text, err := os.ReadFile("/sys/fs/cgroup/cpuset/" + file)
		if err != nil {
			t.Fatal(err)
		}
		h.write("cpuset/"+h.group+"/"+file, string(text))
	}
	h.opt = Options{Root: kernel.NewRoot("/", h.real), Dir: filepath.Join(fakekernel.MemoryDir(t), "state"), Machine: h.machine()}
	return h
}

func (h *realHost) dir(controller string) string {
	return path.Join("/sys/fs/cgroup", controller, h.group)
}

func (h *realHost) write(name, value string) {
	h.Helper()
	if err := h.WriteFile("sys/fs/cgroup/"+name, value); err != nil {
		h.Fatal(err)
	}
}

// machine has a core for every CPU of the host, so that two are enough.
func (h *realHost) machine() *machine.Machine {
	h.Helper()
	text, err := os.ReadFile(h.dir("cpuset") + "/cpuset.cpus")
	if err != nil {
		h.Fatal(err)
	}
	m := &machine.Machine{}
	if m.Online, err = cpuset.Parse(strings.TrimSpace(string(text))); err != nil || m.Online.Len() < 2 {
		h.Skipf("CPUs %s, %v: two are needed", m.Online, err)
	}
	m.Domains = append(m.Domains, machine.Domain{Kind: machine.Node, CPUs: m.Online})
	for cpu := range m.Online.All() {
		m.CPUs = append(m.CPUs, machine.CPU{ID: cpu})
		m.Domains = append(m.Domains, machine.Domain{Kind: machine.Core, ID: cpu, KernelID: cpu, CPUs: cpuset.MustOf(cpu)})
	}
	return m
}

// sleeper is a process in the test's own group of every hierarchy.
func (h *realHost) sleeper() int {
	h.Helper()
	cmd := exec.Command("sleep", "600")
	if err := fork.Start(cmd); err != nil {
		h.Skip(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	h.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	for _, c := range realControllers {
		h.write(path.Join(c, h.group, "cgroup.procs"), strconv.Itoa(cmd.Process.Pid))
	}
	return cmd.Process.Pid
}

func (h *realHost) open() *Node {
	h.Helper()
	n, err := Open(context.Background(), h.opt)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { n.Close() })
	return n
}

func (h *realHost) affinity(pid int) string {
	h.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		h.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "Cpus_allowed_list:\t")
	list, _, _ := strings.Cut(rest, "\n")
	return list
}

// values are the settings in the test's groups.
func (h *realHost) values() map[string]string {
	h.Helper()
	all := map[string]string{}
	for _, c := range realControllers {
		err := filepath.WalkDir(h.dir(c), func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() {
				all[name+"/"] = ""
			}
			switch d.Name() {
			case "cpuset.cpus", "cpuset.mems", "cpu.shares", "cpu.cfs_quota_us", "cpu.idle", "memory.limit_in_bytes":
				text, err := os.ReadFile(name)
				all[name] = string(text)
				return err
			}
			return nil
		})
		if err != nil {
			h.Fatal(err)
		}
	}
	return all
}

// On the live kernel: what is placed runs where the records say, and everything
// is as before in the end, also what was there already.
func TestRealGroups(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := newRealHost(t)
	given := path.Join(h.dir("cpuset"), "web")
	for _, c := range realControllers {
		if err := os.Mkdir(path.Join(h.dir(c), "web"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	all := h.opt.Machine.Online.String()
	h.write("cpuset/"+h.group+"/web/cpuset.mems", "0")
	h.write("cpuset/"+h.group+"/web/cpuset.cpus", all)
	before := h.values()
	n := h.open()
	if n.Backend() != "cgroup v1" {
		t.Fatalf("backend %q", n.Backend())
	}
	batch, api := h.sleeper(), h.sleeper()
	web := spec("web", place.LS, 100, 0)
	web.Group = "web"
	web.Limits = cgroup.Limits{Weight: 300}
	for _, s := range []Spec{spec("batch", place.BE, 100, batch), web, spec("api", place.LSE, 1000, api)} {
		s.Limits.MemoryMax = 1 << 30
		if _, err := n.Place(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	w, err := n.Get(ctx, "api")
	if err != nil {
		t.Fatal(err)
	}
	rest := h.opt.Machine.Online.Minus(w.Grant.Own).String()
	webRunsOn := func() string {
		text, _ := os.ReadFile(given + "/cpuset.cpus")
		return strings.TrimSpace(string(text))
	}
	if got := h.affinity(api); got != w.Grant.Own.String() {
		t.Errorf("api runs on %s, owns %s", got, w.Grant.Own)
	}
	if got := h.affinity(batch); got != rest || webRunsOn() != rest {
		t.Errorf("batch runs on %s, web on %s, left are %s", got, webRunsOn(), rest)
	}
	if _, err := n.Move(ctx, "api", h.opt.Machine.Online.Minus(w.Grant.Own), cpuset.Set{}); err == nil {
		t.Error("moved to the CPUs that must stay shared")
	}
	bigger := spec("batch", place.BE, 200, 0)
	bigger.Limits = cgroup.Limits{Weight: 50, Quota: 20 * time.Millisecond}
	if _, err := n.Resize(ctx, bigger); err != nil {
		t.Error(err)
	}
	v := h.values()
	dir := h.dir("cpu") + "/berth-idle/batch/"
	if v[dir+"cpu.shares"] != "512\n" || v[dir+"cpu.cfs_quota_us"] != "20000\n" {
		t.Errorf("resized: shares %q, quota %q", v[dir+"cpu.shares"], v[dir+"cpu.cfs_quota_us"])
	}
	if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) > 0 {
		t.Errorf("nothing has drifted: %v, %v", repairs, err)
	}
	if err := n.Release(ctx, "api", Kill); err != nil {
		t.Error(err)
	}
	if got := h.affinity(batch); got != all || webRunsOn() != all {
		t.Errorf("after api, batch runs on %s, web on %s", got, webRunsOn())
	}
	if _, err := n.Move(ctx, "batch", w.Grant.Own, cpuset.Set{}); err != nil {
		t.Error(err)
	}
	if got := h.affinity(batch); got != w.Grant.Own.String() || webRunsOn() != all {
		t.Errorf("moved to %s, batch runs on %s, web on %s", w.Grant.Own, got, webRunsOn())
	}
	if _, err := n.Restore(ctx); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, h.values()); diff != "" {
		t.Errorf("restored (-want +got):\n%s", diff)
	}
	if got := h.affinity(batch); got != all {
		t.Errorf("restored, batch runs on %s", got)
	}
}
