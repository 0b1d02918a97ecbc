package actuate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// fate is what happens to a process at one of its writes to the kernel's files.
type fate struct {
	*fakekernel.Kernel
	count, at int
	after     bool // it takes effect before
	err       error
}

func (f *fate) WriteFile(name, data string) error {
	f.count++
	if f.count != f.at {
		return f.Kernel.WriteFile(name, data)
	}
	if f.err != nil {
		return &fs.PathError{Op: "write", Path: name, Err: f.err}
	}
	if f.after {
		_ = f.Kernel.WriteFile(name, data)
	}
	panic(fakekernel.Killed{})
}

// host is a fake host with groups svc/web, batch/a and batch/b/c.
type host struct {
	t     *testing.T
	k     *fakekernel.Kernel
	fate  *fate
	files kernel.Files // in its place, or nil
	dir   string
	state string
	tree  map[string]string
	cpu   string // directory of the trees
	sets  string
	v1    bool
}

func layouts() map[string]fakekernel.Layout {
	all := map[string]fakekernel.Layout{"v1": fakekernel.V1(), "v2": fakekernel.V2(), "hybrid": fakekernel.Hybrid()}
	for name, l := range all {
		l.CPUs, l.Mems, l.Version = "0-7", "0", "7.3"
		if name == "v1" {
			l.V1 = []string{"cpu,cpuacct", "cpuset", "memory", "blkio"}
		}
		all[name] = l
	}
	return all
}

func newHost(t *testing.T, layout string) *host {
	t.Helper()
	return newHostWith(t, layout, nil)
}

// newHostWith is a host whose CPU allocates caches.
func newHostWith(t *testing.T, layout string, cpu *fakekernel.Resctrl) *host {
	t.Helper()
	dir := fakekernel.MemoryDir(t)
	h := &host{t: t, dir: filepath.Join(dir, "root"), state: filepath.Join(dir, "state"), v1: layout != "v2"}
	if err := os.Mkdir(h.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l := layouts()[layout]
	l.Resctrl = cpu
	var err error
	if h.k, err = fakekernel.New(h.dir, l); err != nil {
		t.Fatal(err)
	}
	h.fate = &fate{Kernel: h.k}
	root := h.root()
	found, err := cgroup.Detect(root)
	if err != nil {
		t.Fatal(err)
	}
	for i := range found.Hierarchies {
		found.Hierarchies[i].Own = ""
	}
	base, err := found.Base(cgroup.CPU, cgroup.CPUSet, cgroup.Memory, cgroup.IO)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"svc/web", "batch/a", "batch/b/c"} {
		h.apply(base.Child(name).Create())
	}
	h.apply(base.Child("batch").Set(cgroup.Limits{Weight: 70, CPUs: cpuset.MustParse("0-7")}))
	h.apply(base.Child("batch/a").Set(cgroup.Limits{Weight: 300, CPUs: cpuset.MustParse("0-3"), Quota: 50 * time.Millisecond}))
	h.apply(base.Child("batch/a").Set(cgroup.Limits{IOMax: ownIO()}))
	h.apply(base.Child("batch/b/c").Set(cgroup.Limits{CPUs: cpuset.MustParse("6-7")}))
	h.apply(base.Child("batch/b").Set(cgroup.Limits{CPUs: cpuset.MustParse("4-7")}))
	for controller, dir := range map[string]*string{cgroup.CPU: &h.cpu, cgroup.CPUSet: &h.sets} {
		tree, _ := found.Hierarchy(controller)
		*dir = tree.Dir
	}
	h.tree = h.now()
	return h
}

func (h *host) apply(plan kernel.Plan, err error) {
	h.t.Helper()
	if err == nil {
		_, err = kernel.Apply(h.root(), plan, nil)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) root() *kernel.Root {
	if h.files != nil {
		return kernel.NewRoot(h.dir, h.files)
	}
	return kernel.NewRoot(h.dir, h.fate)
}

// now is the tree without Berth's own files.
func (h *host) now() map[string]string {
	h.t.Helper()
	tree, err := h.k.Tree()
	if err != nil {
		h.t.Fatal(err)
	}
	maps.DeleteFunc(tree, func(name, _ string) bool { return strings.HasPrefix(name, "run/") })
	for name, text := range tree { // the order of threads means nothing, nor what an earlier command came to
		if strings.HasPrefix(name, fakekernel.ResctrlDir) && path.Base(name) == "tasks" {
			tids := strings.Fields(text)
			slices.Sort(tids)
			tree[name] = strings.Join(tids, " ")
		}
	}
	delete(tree, fakekernel.ResctrlDir+"/info/last_cmd_status")
	return tree
}

func (h *host) open() *Host {
	h.t.Helper()
	got, err := Open(Options{Root: h.root(), Dir: h.state})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { got.lock.Close() })
	return got
}

func (h *host) same(want map[string]string) {
	h.t.Helper()
	if diff := cmp.Diff(want, h.now()); diff != "" {
		h.t.Errorf("tree (-want +got):\n%s", diff)
	}
}

// shows compares files of groups with what they should show.
func (h *host) shows(want map[string]string) {
	h.t.Helper()
	for file, value := range want {
		text, err := os.ReadFile(filepath.Join(h.dir, file))
		if err != nil || strings.TrimSpace(string(text)) != value {
			h.t.Errorf("%s: %q %v, want %q", file, strings.TrimSpace(string(text)), err, value)
		}
	}
}

// ownIO are the limits of batch/a on disks without the guard.
func ownIO() []cgroup.IOMax {
	return []cgroup.IOMax{{Device: "8:0", WriteBPS: 9 << 20}, {Device: "8:16", ReadBPS: 7 << 20}}
}

func throttle(read, write int64) control.Action {
	return control.Action{
		Remedy: detect.IOThrottle, Group: "batch/a", Victim: "svc/web", Suspect: "batch/a",
		Limits: cgroup.Limits{IOMax: []cgroup.IOMax{{Device: "8:0", ReadBPS: read, WriteBPS: write}, {Device: "254:0", ReadBPS: read}}},
	}
}

func weight(l cgroup.Limits) control.Action {
	return control.Action{Remedy: detect.Weight, Group: "batch", Victim: "svc/web", Suspect: "batch/a", Limits: l}
}

func shrink(cpus string) control.Action {
	return control.Action{Remedy: detect.ShrinkCPUs, Group: "batch", Victim: "svc/web", Suspect: "batch/a", Limits: cgroup.Limits{CPUs: cpuset.MustParse(cpus)}}
}

func headroom(quota time.Duration) control.Action {
	return control.Action{
		Remedy: detect.HeadroomCap, Group: "batch/a", Victim: "svc/web", Suspect: "batch/a",
		Limits: cgroup.Limits{Quota: quota, Period: 10 * time.Millisecond},
	}
}

// sequence is what a guard may do to one host, one after the other.
func (h *host) sequence() []control.Action {
	all := []control.Action{
		weight(cgroup.Limits{Weight: 20}), weight(cgroup.Limits{Idle: cgroup.On}), weight(cgroup.Limits{Weight: 10}),
		headroom(8 * time.Millisecond), headroom(4 * time.Millisecond), headroom(6 * time.Millisecond),
		shrink("0-4"), shrink("0-1"), shrink("0-2"),
		{Remedy: detect.Burst, Group: "batch/a", Victim: "batch/a", Limits: cgroup.Limits{Burst: time.Millisecond}},
		throttle(4<<20, 2<<20), throttle(2<<20, 1<<20),
	}
	if !h.v1 {
		all = append(all, control.Action{Remedy: detect.MemoryHigh, Group: "batch/a", Limits: cgroup.Limits{MemoryHigh: 64 << 20}})
	}
	return all
}

// short is the least of it that has each kind of write order.
func (h *host) short() []control.Action {
	return []control.Action{
		weight(cgroup.Limits{Weight: 20}), weight(cgroup.Limits{Idle: cgroup.On}), headroom(8 * time.Millisecond), headroom(4 * time.Millisecond),
		shrink("0-1"), shrink("0-2"), throttle(4<<20, 2<<20),
	}
}

func eachLayout(t *testing.T, test func(t *testing.T, h *host)) {
	for _, name := range slices.Sorted(maps.Keys(layouts())) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newHost(t, name))
		})
	}
}

func TestApplyAndRevert(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		ctx := context.Background()
		g := h.open()
		if !h.v1 {
			t.Run("weights", func(t *testing.T) { h.shows(map[string]string{h.cpu + "/batch/cpu.weight": "70"}) })
		}
		for _, a := range h.sequence() {
			before := h.now()
			promised, err := g.Preview(ctx, a)
			if err != nil {
				t.Fatal(err)
			}
			h.same(before)
			did, err := g.Apply(ctx, a)
			if err != nil {
				t.Fatalf("%v: %v", a, err)
			}
			if len(did) == 0 || a.Limits.Weight != 10 && !cmp.Equal(promised, did) { // which is reverted first
				t.Errorf("%v: promised %v, did %v", a, promised, did)
			}
			if again, err := g.Apply(ctx, a); err != nil || len(again) > 0 {
				t.Errorf("%v once more: %v, %v", a, again, err)
			}
		}
		for _, a := range h.sequence() {
			if _, err := g.Revert(ctx, a); err != nil {
				t.Errorf("revert %v: %v", a, err)
			}
		}
		h.same(h.tree)
		if notes := g.Notes(); len(notes) > 0 {
			t.Errorf("still noted: %v", notes)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(h.state, undoLogName)); err == nil {
			t.Error("the undo log is still there")
		}
	})
}

func TestShrinkTakesChildrenAlong(t *testing.T) {
	t.Parallel()
	h := newHost(t, "v1")
	g := h.open()
	steps := []struct {
		to   string
		want [4]string // of batch, batch/a, batch/b, batch/b/c
	}{
		{"0-4", [4]string{"0-4", "0-3", "4", "4"}},
		{"0-1", [4]string{"0-1", "0-1", "0-1", "0-1"}},
		{"2-6", [4]string{"2-6", "2-3", "4-6", "6"}},
	}
	for _, s := range steps {
		if _, err := g.Apply(context.Background(), shrink(s.to)); err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{"batch", "batch/a", "batch/b", "batch/b/c"} {
			h.shows(map[string]string{h.sets + "/" + name + "/cpuset.cpus": s.want[i]})
		}
	}
	if _, err := g.Restore(); err != nil {
		t.Error(err)
	}
	h.same(h.tree)
}

// killedAtEach has a guard killed at each of its writes, of which there are least or more, and the next one restore
// everything.
func (h *host) killedAtEach(least int, do func(*Host)) {
	h.t.Helper()
	fakekernel.KillAtEach(h.t, 1, least, func(at int, after bool) bool {
		h.fate.count, h.fate.at, h.fate.after = 0, at, after
		g := h.open()
		alive := fakekernel.Survives(func() { do(g) })
		g.lock.Close()
		h.fate.at = 0
		next := h.open()
		if _, err := next.Restore(); err != nil {
			h.t.Fatal(err)
		}
		if err := next.Close(); err != nil {
			h.t.Fatal(err)
		}
		h.same(h.tree)
		return alive
	})
}

// TestKilled kills a guard at each of its writes, before and after it took effect, and
// has the next one restore everything.
func TestKilled(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		if h.cpu != h.sets && !strings.Contains(h.cpu, "cpuacct") {
			t.Skip("hybrid: its controllers are those of v1")
		}
		h.killedAtEach(10, func(g *Host) {
			for _, a := range h.short() {
				if _, err := g.Apply(context.Background(), a); err != nil {
					t.Fatal(err)
				}
			}
			for _, a := range h.short() {
				if _, err := g.Revert(context.Background(), a); err != nil {
					t.Fatal(err)
				}
			}
		})
	})
}

// TestRefused has the kernel refuse each write: what was active before stays.
func TestRefused(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		ctx := context.Background()
		g := h.open()
		for i, a := range h.sequence() {
			for at := 1; ; at++ {
				errno := []syscall.Errno{syscall.EBUSY, syscall.EINVAL, syscall.ENOSPC}[(at+i)%3]
				before := h.now()
				h.fate.count, h.fate.at, h.fate.err = 0, at, errno
				_, err := g.Apply(ctx, a)
				h.fate.at, h.fate.err = 0, nil
				if err == nil {
					if at == 1 {
						t.Errorf("%v: nothing was written", a)
					}
					break
				}
				if !errors.Is(err, errno) {
					t.Fatalf("%v: %v, want %v", a, err, errno)
				}
				if a.Limits.Weight != 10 { // which restores first
					h.same(before)
				}
			}
		}
		if _, err := g.Restore(); err != nil {
			t.Fatal(err)
		}
		h.same(h.tree)
	})
}

// TestTakeAllOrNothing has the kernel refuse to restore what a killed guard left: the tree is not
// taken, and the next Take tries again.
func TestTakeAllOrNothing(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		killed := h.open()
		if _, err := killed.Apply(t.Context(), headroom(5*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if err := killed.Close(); err != nil {
			t.Fatal(err)
		}
		g, err := Open(Options{Root: h.root()})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			h.fate.count, h.fate.at, h.fate.err = 0, 1, syscall.EBUSY
			if _, err := g.Take(h.state); !errors.Is(err, syscall.EBUSY) {
				t.Errorf("take: %v", err)
			}
			other, err := Open(Options{Root: h.root(), Dir: h.state + "2"})
			if err != nil {
				t.Fatal(err)
			}
			if err := other.Close(); err != nil {
				t.Fatal(err)
			}
		}
		h.fate.at, h.fate.err = 0, nil
		if items, err := g.Take(h.state); err != nil || len(items) == 0 {
			t.Errorf("take: %v, %v", items, err)
		}
		h.same(h.tree)
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestSomebodyElse(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		ctx := context.Background()
		g := h.open()
		if _, err := g.Apply(ctx, headroom(5*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		file, value := h.cpu+"/batch/a/cpu.max", "7000 10000"
		if h.v1 {
			file, value = h.cpu+"/batch/a/cpu.cfs_quota_us", "7000"
		}
		if err := h.k.WriteFile(file, value); err != nil {
			t.Fatal(err)
		}
		_, err := g.Revert(ctx, headroom(0))
		if !errors.Is(err, kernel.ErrChanged) || !strings.Contains(err.Error(), value) {
			t.Errorf("revert: %v", err)
		}
		h.shows(map[string]string{file: value})
		if notes := g.Notes(); len(notes) > 0 {
			t.Errorf("still noted: %v", notes)
		}
	})
}

// What somebody else writes between two steps of a remedy is the original from then on.
func TestSomebodyElseBetweenSteps(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		ctx := context.Background()
		g := h.open()
		quota, value, ours := h.cpu+"/batch/a/cpu.max", "7000 10000", "2000 10000"
		if h.v1 {
			quota, value, ours = h.cpu+"/batch/a/cpu.cfs_quota_us", "7000", "2000"
		}
		leaf := func(cpus string) control.Action {
			a := shrink(cpus)
			a.Group = "batch/a"
			return a
		}
		steps := []struct {
			first, second control.Action
			file, value   string
			ours          string // what the second step comes to
		}{
			{headroom(5 * time.Millisecond), headroom(2 * time.Millisecond), quota, value, ours},
			{leaf("0-2"), leaf("1"), h.sets + "/batch/a/cpuset.cpus", "1-3", "1"},
		}
		for _, tc := range steps {
			if _, err := g.Apply(ctx, tc.first); err != nil {
				t.Fatal(err)
			}
			if err := h.k.WriteFile(tc.file, tc.value); err != nil {
				t.Fatal(err)
			}
			if _, err := g.Apply(ctx, tc.second); err != nil {
				t.Fatal(err)
			}
			h.shows(map[string]string{tc.file: tc.ours})
			if _, err := g.Revert(ctx, tc.second); err != nil {
				t.Errorf("revert: %v", err)
			}
			h.shows(map[string]string{tc.file: tc.value})
			if notes := g.Notes(); len(notes) > 0 {
				t.Errorf("still noted: %v", notes)
			}
		}
	})
}

func TestGone(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		ctx := context.Background()
		g := h.open()
		a := headroom(5 * time.Millisecond)
		if _, err := g.Apply(ctx, a); err != nil {
			t.Fatal(err)
		}
		for _, dir := range g.base.Child("batch/a").Dirs() {
			if err := h.k.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
		}
		if _, err := g.Apply(ctx, headroom(4*time.Millisecond)); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, kernel.ErrNotSupported) {
			t.Errorf("apply: %v", err)
		}
		if _, err := g.Revert(ctx, a); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("revert: %v", err)
		}
		if _, err := g.Revert(ctx, a); err != nil {
			t.Errorf("revert what is not active: %v", err)
		}
		if _, err := g.Preview(ctx, control.Action{Remedy: detect.CoreSched, Group: "batch"}); !errors.Is(err, kernel.ErrNotSupported) {
			t.Errorf("core scheduling: %v", err)
		}
		for _, group := range []string{"", "/", ".", "..", "../x", "batch/../.."} {
			if _, err := g.Apply(ctx, control.Action{Remedy: detect.Weight, Group: group, Limits: cgroup.Limits{Weight: 1}}); err == nil || !strings.Contains(err.Error(), "not a path below the root group") {
				t.Errorf("group %q: %v", group, err)
			}
		}
	})
}

// TestNotInThatTree is about a group that only some v1 hierarchies have: it is not
// gone, and cannot have the remedy.
func TestNotInThatTree(t *testing.T) {
	t.Parallel()
	h := newHost(t, "v1")
	if err := h.k.Mkdir(h.cpu + "/lone"); err != nil {
		t.Fatal(err)
	}
	a := shrink("0-1")
	a.Group = "lone"
	_, err := h.open().Apply(context.Background(), a)
	if !errors.Is(err, kernel.ErrNotSupported) || errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestOneGuardPerTree(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		g := h.open()
		var busy *BusyError
		if _, err := Open(Options{Root: h.root(), Dir: h.state + "2"}); !errors.As(err, &busy) || busy.PID != os.Getpid() || busy.Dir != h.state {
			t.Errorf("a second guard: %v", err)
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		h.open()
	})
}

// TestNumberOfKilledGuard gives the number of a guard that was killed to another process,
// as any user can who starts enough of them: no guard runs.
func TestNumberOfKilledGuard(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		const pid = "9000900"
		if err := h.k.Start(pid); err != nil {
			t.Fatal(err)
		}
		p, err := kernel.ReadProcess(h.k.FS(), pid)
		if err != nil {
			t.Fatal(err)
		}
		g := h.open()
		name, err := lockFile(h.root(), g.tree())
		if err == nil {
			err = g.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		for start, want := range map[string]int{p.Start: 9000900, p.Start + "0": 0, "": 0} {
			text, err := json.Marshal(Holder{PID: 9000900, Dir: h.state, Start: start})
			if err == nil {
				err = kernel.WritePrivateFile(name, text)
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, by, err := Look(Options{Root: h.root(), Dir: h.state}); err != nil || by.PID != want {
				t.Errorf("a process that started at %s, for a guard that started at %q: %+v, %v; want %d", p.Start, start, by, err, want)
			}
		}
		// It has ended, and nobody has waited for it.
		stat, err := os.ReadFile(filepath.Join(h.dir, "proc", pid, "stat"))
		text, err2 := json.Marshal(Holder{PID: 9000900, Dir: h.state, Start: p.Start})
		zombie := strings.Replace(string(stat), ") S", ") Z", 1)
		if err := errors.Join(err, err2, h.k.Put("proc/"+pid+"/stat", zombie), kernel.WritePrivateFile(name, text)); err != nil {
			t.Fatal(err)
		}
		if _, by, err := Look(Options{Root: h.root(), Dir: h.state}); err != nil || by.PID != 0 {
			t.Errorf("ended: %+v, %v", by, err)
		}
	})
}

// TestNobodyElseLocks locks every directory that other users may read, as they can, and
// then has a guard start, end, and another one after it.
func TestNobodyElseLocks(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		run := h.root().RunDir()
		if err := os.MkdirAll(run, 0o755); err != nil {
			t.Fatal(err)
		}
		err := filepath.WalkDir(h.dir, func(name string, e fs.DirEntry, err error) error {
			if err != nil || !e.IsDir() {
				return err
			}
			f, err := os.Open(name)
			if err != nil {
				return err
			}
			t.Cleanup(func() { f.Close() })
			return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := h.open().Close(); err != nil {
			t.Error(err)
		}
		h.open()
		locks, err := filepath.Glob(run + "/*")
		if err != nil || len(locks) == 0 {
			t.Fatalf("locks in %s: %v, %v", run, locks, err)
		}
		for _, name := range locks {
			if info, err := os.Stat(name); err != nil || info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s: %v, %v: others can open it, and so lock it", name, info.Mode(), err)
			}
		}
	})
}

// TestOpenRefusesDirectory has state directories in which another user could have put a
// undo log.
func TestOpenRefusesDirectory(t *testing.T) {
	t.Parallel()
	for what, make := range map[string]func(dir string) error{
		"others may write": func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)) },
		"a link":           func(dir string) error { return os.Symlink(t.TempDir(), dir) },
		"another user's": func(dir string) error {
			if os.Geteuid() != 0 {
				return errors.ErrUnsupported
			}
			return errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, 65534, 65534))
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "v1")
			if err := make(h.state); errors.Is(err, errors.ErrUnsupported) {
				t.Skip("only root can give a directory to another user")
			} else if err != nil {
				t.Fatal(err)
			}
			if _, err := Open(Options{Root: h.root(), Dir: h.state}); err == nil || !strings.Contains(err.Error(), h.state) {
				t.Errorf("opened: %v", err)
			}
			if _, _, err := Look(Options{Root: h.root(), Dir: h.state}); err == nil || !strings.Contains(err.Error(), h.state) {
				t.Errorf("looked at: %v", err)
			}
		})
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		g := h.open()
		read := func() map[string]Settings {
			all := map[string]Settings{}
			for _, group := range []string{"batch", "batch/a", "batch/b/c", "nobody"} {
				s, err := g.Settings(group)
				if err != nil {
					t.Fatal(err)
				}
				all[group] = s
			}
			return all
		}
		before := read()
		want := Settings{Limits: cgroup.Limits{CPUs: cpuset.MustParse("0-3")}}
		want.Weight, want.Quota, want.Period, want.IOMax = 300, 50*time.Millisecond, 100*time.Millisecond, ownIO()
		got := before["batch/a"]
		got.IOWeight, got.Shares = 0, 0
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("batch/a (-want +got):\n%s", diff)
		}
		for _, a := range h.sequence() {
			if _, err := g.Apply(context.Background(), a); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, read()); diff != "" {
				t.Errorf("with %v (-want +got):\n%s", a, diff)
			}
		}
		if _, err := g.Restore(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, read()); diff != "" {
			t.Errorf("at the end (-want +got):\n%s", diff)
		}
		// The kernel resets the weight of a group that becomes idle.
		idle := weight(cgroup.Limits{Idle: cgroup.On})
		if _, err := g.Apply(context.Background(), idle); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, read()); diff != "" {
			t.Errorf("with %v alone (-want +got):\n%s", idle, diff)
		}
		if _, err := g.Revert(context.Background(), idle); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, read()); diff != "" {
			t.Errorf("without it (-want +got):\n%s", diff)
		}
	})
}

func TestUnavailable(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		g := h.open()
		no := g.Unavailable()
		for r, there := range map[detect.Remedy]bool{
			detect.Weight: true, detect.HeadroomCap: true, detect.ShrinkCPUs: true, detect.Burst: true, detect.MemoryHigh: !h.v1,
		} {
			if (no[r] == "") != there {
				t.Errorf("%v: %q", r, no[r])
			}
		}
		if why := g.NoIdle(); why != "" {
			t.Errorf("no idle: %s", why)
		}
	})
}

// Who is best effort by its settings: the least shares of v1 and nothing above; on v2 no
// weight says so.
func TestBestEffort(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		g := h.open()
		file, values := "cpu.shares", map[string]bool{"2": true, "3": false, "10": false, "14": false, "15": false, "26": false, "1024": false}
		if g.trees[cgroup.CPU].Version == 2 {
			file, values = "cpu.weight", map[string]bool{"1": false, "2": false, "100": false}
		}
		dir := path.Join(g.trees[cgroup.CPU].Dir, "batch/a")
		for value, want := range values {
			if err := g.root.WriteFile(dir+"/"+file, value); err != nil {
				t.Fatal(err)
			}
			s, err := g.Settings("batch/a")
			if err != nil || s.BestEffort() != want || s.Shares != 0 && fmt.Sprint(s.Shares) != value {
				t.Errorf("%s %s: best effort %v, shares %d, %v", file, value, s.BestEffort(), s.Shares, err)
			}
		}
		if err := g.root.WriteFile(dir+"/cpu.idle", "1"); err != nil {
			t.Fatal(err)
		}
		if s, err := g.Settings("batch/a"); err != nil || !s.BestEffort() || s.Weight != 0 || s.Shares != 0 {
			t.Errorf("idle: %+v, %v", s, err)
		}
	})
}

// Where somebody else writes a weight who could not do so any more, no group is to be idle.
func TestNoIdleWhereOthersWriteWeights(t *testing.T) {
	t.Parallel()
	const (
		id     = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
		uid    = "8d2c5f4e_1c2b_4a39_9f6d_0a1b2c3d4e5f"
		slices = "kubepods.slice/kubepods-besteffort.slice"
	)
	eachLayout(t, func(t *testing.T, h *host) {
		g := h.open()
		v2 := g.trees[cgroup.CPU].Version == 2
		for group, may := range map[string]bool{
			slices: v2, slices + "/kubepods-besteffort-pod" + uid + ".slice": v2,
			slices + "/kubepods-besteffort-pod" + uid + ".slice/cri-containerd-" + id + ".scope": false,
			"kubepods/besteffort": false, "kubepods/besteffort/pod" + strings.ReplaceAll(uid, "_", "-"): false,
			"kubepods/besteffort/pod" + strings.ReplaceAll(uid, "_", "-") + "/" + id: false,
			"docker/" + id: false, "docker/" + id + "/inner": true, "batch": true, "system.slice/batch.service": true,
		} {
			if s, err := g.Settings(group); err != nil || (s.NoIdle == "") != may {
				t.Errorf("%s: may be idle: %v (%q), %v", group, s.NoIdle == "", s.NoIdle, err)
			} else if s.BestEffort() != strings.Contains(group, "besteffort") {
				t.Errorf("%s: best effort %v", group, s.BestEffort())
			}
		}
	})
}

// A CPU that goes offline, and comes back, makes nobody else's value of a set that the
// guard has narrowed: it is what was put active, and is restored.
func TestOffline(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		g := h.open()
		shrink := control.Action{Remedy: detect.ShrinkCPUs, Group: "batch", Victim: "web", Limits: cgroup.Limits{CPUs: cpuset.MustParse("0-1")}}
		before := h.now()
		if _, err := g.Apply(t.Context(), shrink); err != nil {
			t.Fatal(err)
		}
		v1 := g.trees[cgroup.CPUSet].Version == 1
		for _, online := range []string{"0,2-7", "0-7"} {
			if err := h.k.SetOnline(online); err != nil {
				t.Fatal(err)
			}
			changes, err := g.Preview(t.Context(), shrink)
			if drift := v1 && online == "0-7"; err != nil || len(changes) > 0 != drift {
				t.Errorf("with %s online: %v, %v", online, changes, err)
			}
		}
		if _, err := g.Revert(t.Context(), shrink); err != nil {
			t.Errorf("revert: %v", err)
		}
		if _, err := g.Apply(t.Context(), shrink); err != nil {
			t.Errorf("again: %v", err)
		}
		if items, err := g.Restore(); err != nil {
			t.Errorf("restore: %+v, %v", items, err)
		}
		after := h.now()
		for name, text := range before {
			if strings.HasPrefix(name, h.sets+"/batch/") && path.Base(name) == "cpuset.cpus" && after[name] != text {
				t.Errorf("%s: %q, want %q", name, after[name], text)
			}
		}
	})
}

// A host depends on services by name, where only root can have made the group, and on
// groups with a process that is not to be killed for memory, but for those that hold the
// namespaces of a pod.
func TestEssential(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		g := h.open()
		if err := h.k.Start("200"); err != nil {
			t.Fatal(err)
		}
		if err := g.root.WriteFile(h.cpu+"/batch/a/cgroup.procs", "200"); err != nil {
			t.Fatal(err)
		}
		for score, want := range map[string]bool{"-1000": true, "-999": true, "-998": false, "-997": true, "-900": true, "-899": false, "0": false, "1000": false, "": false} {
			if err := h.k.Put("proc/200/oom_score_adj", score); err != nil {
				t.Fatal(err)
			}
			s, err := g.Settings("batch/a")
			if err != nil || (s.Essential != "") != want || want && !strings.Contains(s.Essential, "process 200 has oom_score_adj "+score) {
				t.Errorf("score %s: %q, %v", score, s.Essential, err)
			}
		}
		if err := h.k.Exit("200"); err != nil {
			t.Fatal(err)
		}
	})
	h := &Host{root: kernel.NewRoot("", nil)}
	for group, want := range map[string]bool{
		"system.slice/sshd.service": true, "system.slice/containerd.service": true, "system.slice/k3s.service/kubepods": true,
		"system.slice/systemd-journald.service": true, "system.slice/nginx.service": false, "system.slice": false,
		"user.slice/user-1000.slice/user@1000.service/sshd.service": false, "sshd.service": false, "batch/sshd.service": false,
		"system.slice/systemd-nspawn@prod.service": false, "system.slice/docker-0123.scope": false,
	} {
		if got := h.essential(group, nil); (got != "") != want {
			t.Errorf("%s: %q", group, got)
		}
	}
}

// Under the guard's values the base ones are seen: of each disk, those without the guard.
func TestThrottleLiesAbove(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		g := h.open()
		if _, err := g.Apply(context.Background(), throttle(4<<20, 2<<20)); err != nil {
			t.Fatal(err)
		}
		s, err := g.Settings("batch/a")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(ownIO(), s.IOMax); diff != "" {
			t.Errorf("settings (-want +got):\n%s", diff)
		}
		base, now := g.Base(func() {}), h.now()
		for name, was := range h.tree {
			if file := path.Base(name); !strings.HasPrefix(file, "io.max") && !strings.HasPrefix(file, "blkio.throttle") {
				continue
			}
			text, err := fs.ReadFile(base.FS(), name)
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			slices.Sort(lines)
			if got := strings.Join(lines, "\n"); err != nil || got != strings.TrimSpace(was) {
				t.Errorf("%s is %q below the guard's value %q, want %q; %v", name, got, now[name], was, err)
			}
		}
	})
}
