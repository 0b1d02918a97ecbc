package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// both are a node and a guard on one tree, with groups a and b, and c in b.
type both struct {
	*host
	keeper *keeper
	guard  *Guard
	active []control.Action
	// refused is why the last of them was not applied again.
	refused error
}

func newBoth(t *testing.T, h *host, files kernel.Files) *both {
	t.Helper()
	b := &both{host: h, keeper: newKeeper(discard(), api.NewHistory(100, 0))}
	var err error
	b.guard, err = NewGuard(GuardOptions{
		Root: kernel.NewRoot(h.dir, files), Dir: agent.GuardDir(filepath.Join(h.dir, "..", "node")), Record: b.keeper.record, lock: &b.keeper.mu,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// apply applies an action, and revert reverts it.
func (b *both) apply(a control.Action) {
	b.t.Helper()
	b.must(b.guard.host.Apply(b.t.Context(), a))
	b.active = append(b.active, a)
}

func (b *both) revert(a control.Action) {
	b.t.Helper()
	b.must(b.guard.host.Revert(b.t.Context(), a))
	b.active = slices.DeleteFunc(b.active, func(o control.Action) bool { return o.Group == a.Group && o.Remedy == a.Remedy })
}

// reapply does what the guard's loop does about a change of the node.
func (b *both) reapply() {
	b.t.Helper()
	select {
	case <-b.guard.uncovered:
	default:
		return
	}
	for _, a := range slices.Clone(b.active) {
		if _, err := b.guard.host.Apply(b.t.Context(), a); err != nil && !errors.Is(err, fs.ErrNotExist) {
			b.refused = err
			b.revert(a)
		}
	}
}

// place places a workload, and has the guard apply again what that removed.
func (b *both) place(spec agent.Spec) {
	b.t.Helper()
	b.must(b.keeper.Place(b.t.Context(), spec))
	b.reapply()
}

func (b *both) resize(spec agent.Spec) {
	b.t.Helper()
	b.must(b.keeper.Resize(b.t.Context(), spec))
	b.reapply()
}

// open opens what a process of its own would. A process that another test forks has
// the locks of the last life until it executes.
func (b *both) open() error {
	err := patiently(func() error {
		lock, err := actuate.Open(actuate.Options{Root: b.guard.o.Root, Dir: b.guard.o.Dir, Program: "test"})
		if err != nil {
			return err
		}
		return lock.Close()
	})
	if err := errors.Join(err, b.guard.recover()); err != nil {
		return err
	}
	dir := filepath.Join(b.host.dir, "..", "node")
	err = patiently(func() error {
		return b.keeper.open(b.t.Context(), agent.Options{Root: b.base(), Machine: b.opt.Machine, Dir: dir})
	})
	if err != nil {
		return err
	}
	return b.guard.take(true)
}

// base is the node's view.
func (b *both) base() *kernel.Root {
	return b.guard.host.Base(func() { poke(b.guard.uncovered) })
}

// patiently tries again for a while as long as somebody has a lock.
func patiently(open func() error) (err error) {
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(time.Millisecond) {
		var node *agent.BusyError
		var guard *actuate.BusyError
		if err = open(); !errors.As(err, &node) && !errors.As(err, &guard) {
			break
		}
	}
	return err
}

func opened(t *testing.T) *both {
	t.Helper()
	h := newHost(t, "")
	h.groups()
	b := newBoth(t, h, h.k)
	if err := b.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(b.guard.take(false), b.keeper.close()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// groups makes a, b and c in b, with CPUs that v1 needs.
func (h *host) groups() {
	h.t.Helper()
	for _, name := range []string{"a", "b", "b/c"} {
		h.mkdir(name)
		for _, v := range [][2]string{{"cpuset.cpus", "0-7"}, {"cpuset.mems", "0-1"}} {
			if err := h.k.WriteFile(cpusets+name+"/"+v[0], v[1]+"\n"); err != nil {
				h.t.Fatal(err)
			}
		}
	}
}

func bestEffort(group string, weight int) agent.Spec {
	return agent.Spec{Request: place.Request{ID: group, Class: place.BE}, Group: group, Limits: cgroup.Limits{Weight: weight}}
}

func exclusive(id string, milli int) agent.Spec {
	return agent.Spec{Request: place.Request{ID: id, Class: place.LSE, Milli: milli}}
}

var yields = control.Action{Remedy: detect.Weight, Group: "a", Victim: "v", Limits: cgroup.Limits{Idle: cgroup.On}}

func shrinks(group, cpus string) control.Action {
	return control.Action{Remedy: detect.ShrinkCPUs, Group: group, Victim: "v", Limits: cgroup.Limits{CPUs: cpuset.MustParse(cpus)}}
}

const cpuDir = "sys/fs/cgroup/cpu,cpuacct/"

func (b *both) expect(files map[string]string) {
	b.t.Helper()
	for name, want := range files {
		if got := b.read(name); got != want {
			b.t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func (b *both) must(_ any, err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *both) reconcile() (repairs []agent.Repair) {
	b.t.Helper()
	err := b.keeper.do(b.t.Context(), func(n *agent.Node) (err error) {
		repairs, err = n.Reconcile(b.t.Context())
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return repairs
}

// What the guard has active is no drift, and what others change beside it is.
func TestGuardIsNoDrift(t *testing.T) {
	t.Parallel()
	b := opened(t)
	b.place(bestEffort("a", 200))
	b.place(bestEffort("b", 200))
	b.apply(yields)
	b.apply(shrinks("b", "2-3"))
	if repairs := b.reconcile(); len(repairs) > 0 {
		t.Errorf("repaired: %+v", repairs)
	}
	inForce := map[string]string{cpuDir + "a/cpu.idle": "1", cpusets + "b/cpuset.cpus": "2-3", cpusets + "b/c/cpuset.cpus": "2-3"}
	b.expect(inForce)
	if err := b.k.WriteFile(cpuDir+"b/cpu.shares", "77\n"); err != nil {
		t.Fatal(err)
	}
	if repairs := b.reconcile(); len(repairs) != 1 || repairs[0].Path != cpuDir+"b/cpu.shares" {
		t.Errorf("repaired: %+v", repairs)
	}
	b.expect(inForce)
	for _, a := range []control.Action{yields, shrinks("b", "")} {
		b.revert(a)
	}
	b.expect(map[string]string{
		cpuDir + "a/cpu.idle": "0", cpuDir + "a/cpu.shares": "2048", cpuDir + "b/cpu.shares": "2048",
		cpusets + "b/cpuset.cpus": "0-7", cpusets + "b/c/cpuset.cpus": "0-7",
	})
	if repairs := b.reconcile(); len(repairs) > 0 {
		t.Errorf("repaired at the end: %+v", repairs)
	}
}

// A change of the placement goes below what is active: right while that holds, and
// once it is restored.
func TestPlacementBelowTheGuard(t *testing.T) {
	t.Parallel()
	b := opened(t)
	b.place(bestEffort("a", 200))
	b.place(bestEffort("b", 0))
	b.apply(yields)
	b.apply(shrinks("b", "0,4"))

	b.resize(bestEffort("a", 300))
	b.place(exclusive("own", 4000))
	own, err := b.keeper.Get(t.Context(), "own")
	b.must(nil, err)
	has, err := b.keeper.Get(t.Context(), "b")
	b.must(nil, err)
	for _, dir := range []string{"b", "b/c"} {
		set := cpuset.MustParse(b.read(cpusets + dir + "/cpuset.cpus"))
		if set.Overlaps(own.CPUs) || set.String() != "0,4" {
			t.Errorf("while held, %s has CPUs %s beside %s", dir, set, own.CPUs)
		}
	}
	b.expect(map[string]string{cpuDir + "a/cpu.idle": "1"})
	if repairs := b.reconcile(); len(repairs) > 0 {
		t.Errorf("repaired: %+v", repairs)
	}

	for _, a := range []control.Action{yields, shrinks("b", "")} {
		b.revert(a)
	}
	b.expect(map[string]string{
		cpuDir + "a/cpu.idle": "0", cpuDir + "a/cpu.shares": "3072",
		cpusets + "b/cpuset.cpus": has.CPUs.String(), cpusets + "b/c/cpuset.cpus": has.CPUs.String(),
	})
}

// CPUs that became somebody's own are not given to a group again by the guard.
func TestGuardKeepsOffExclusiveCPUs(t *testing.T) {
	t.Parallel()
	b := opened(t)
	b.place(bestEffort("b", 0))
	b.apply(shrinks("b", "1-3,5-7"))
	b.place(exclusive("own", 4000))
	own, err := b.keeper.Get(t.Context(), "own")
	b.must(nil, err)
	if set := cpuset.MustParse(b.read(cpusets + "b/cpuset.cpus")); set.Overlaps(own.CPUs) {
		t.Errorf("b has CPUs %s beside %s", set, own.CPUs)
	}
	if len(b.guard.host.Notes()) != 0 || b.refused == nil {
		t.Errorf("what does not fit any more is active: %v, %v", b.guard.host.Notes(), b.refused)
	}
	if _, err := b.guard.host.Apply(t.Context(), shrinks("b", "1-3,5-7")); err == nil {
		t.Error("CPUs that the group does not have were given to it")
	}
	b.revert(shrinks("b", ""))
}

// A group that is made anew while something was active on it is what it is.
func TestGroupMadeAnewUnderTheGuard(t *testing.T) {
	t.Parallel()
	b := opened(t)
	b.place(bestEffort("a", 200))
	b.apply(yields)
	b.rmdir("a")
	b.reconcile()
	b.mkdir("a")
	b.must(nil, b.k.WriteFile(cpuDir+"a/cpu.shares", "512\n"))
	if text, err := fs.ReadFile(b.base().FS(), cpuDir+"a/cpu.shares"); err != nil || string(text) != "512\n" {
		t.Errorf("the node sees %q, %v", text, err)
	}
	b.place(bestEffort("a", 200))
	b.expect(map[string]string{cpuDir + "a/cpu.idle": "0", cpuDir + "a/cpu.shares": "2048"})
	if _, err := b.guard.host.Revert(t.Context(), yields); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	b.expect(map[string]string{cpuDir + "a/cpu.idle": "0", cpuDir + "a/cpu.shares": "2048"})
}

// Where nothing is left, an agent that starts takes no lock: a guard that starts at the same moment is not refused.
func TestRecoverTakesNoLock(t *testing.T) {
	t.Parallel()
	h := newHost(t, "")
	h.groups()
	b := newBoth(t, h, h.k)
	if err := b.guard.recover(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(b.guard.o.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing was left, and it took the tree: %v", err)
	}
	g, err := actuate.Open(actuate.Options{Root: b.guard.o.Root, Dir: filepath.Join(h.dir, "..", "other")})
	if err != nil {
		t.Fatal(err)
	}
	var busy *actuate.BusyError
	if err := b.guard.recover(); !errors.As(err, &busy) {
		t.Errorf("beside a guard that has the tree: %v", err)
	}
	if err := errors.Join(g.Close(), b.guard.recover()); err != nil {
		t.Error(err)
	}
}

func TestOneGuardAtATime(t *testing.T) {
	t.Parallel()
	b := opened(t)
	other := newBoth(t, b.host, b.k)
	var busy *actuate.BusyError
	if err := other.guard.recover(); !errors.As(err, &busy) || busy.PID != os.Getpid() {
		t.Errorf("recovered beside a living guard: %v", err)
	}
	if err := other.guard.take(true); !errors.As(err, &busy) {
		t.Errorf("a second guard: %v", err)
	}
	if err := other.guard.take(false); err != nil {
		t.Errorf("a second guard that previews: %v", err)
	}
	if _, err := other.guard.host.Apply(t.Context(), yields); err == nil {
		t.Error("one that previews acted")
	}
	b.expect(map[string]string{cpuDir + "a/cpu.idle": "0"})
}

// dying are files of a process that ends at one of its writes.
type dying struct {
	kernel.Files
	count, at int
	after     bool
}

type death struct{}

func (d *dying) change(do func() error) error {
	d.count++
	if d.count == d.at && !d.after {
		panic(death{})
	}
	err := do()
	if d.count == d.at {
		panic(death{})
	}
	return err
}

func (d *dying) WriteFile(name, data string) error {
	return d.change(func() error { return d.Files.WriteFile(name, data) })
}

func (d *dying) Mkdir(name string) error {
	return d.change(func() error { return d.Files.Mkdir(name) })
}

func (d *dying) Rmdir(name string) error {
	return d.change(func() error { return d.Files.Rmdir(name) })
}

// life is what a process does with node and guard.
func (b *both) life() {
	ctx := b.t.Context()
	b.place(bestEffort("a", 200))
	b.place(bestEffort("b", 0))
	b.apply(yields)
	b.apply(shrinks("b", "0,4"))
	b.resize(bestEffort("a", 300))
	b.place(exclusive("own", 4000))
	b.revert(shrinks("b", ""))
	b.must(nil, b.keeper.Release(ctx, "a", agent.WhenEmpty))
}

// kill runs a life that ends at a write. It reports whether it came to its end.
func (b *both) kill() (alive bool) {
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(death); !ok {
				panic(p)
			}
		}
		// What the kernel does when a process ends: its locks are free.
		if b.guard.host != nil {
			_ = b.guard.host.Close()
		}
		if b.keeper.node != nil {
			_ = b.keeper.node.Close()
		}
	}()
	if err := b.open(); err != nil {
		b.t.Fatal(err)
	}
	b.life()
	return true
}

// Killed at any write, the next agent restores what the guard had active, and
// then what the node had, exactly.
func TestKilledAtEachWrite(t *testing.T) {
	t.Parallel()
	h := newHost(t, "")
	h.groups()
	fresh := tree(t, h.k)
	for at := 1; ; at++ {
		after := at%2 == 0
		what := fmt.Sprintf("write %d, after %v", at, after)
		alive := newBoth(t, h, &dying{Files: h.k, at: at, after: after}).kill()
		next := newBoth(t, h, h.k)
		if err := next.open(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		next.expect(map[string]string{cpuDir + "a/cpu.idle": "0"})
		if repairs := next.reconcile(); len(repairs) > 0 {
			t.Errorf("%s: repaired %+v", what, repairs)
		}
		if err := next.keeper.do(t.Context(), func(n *agent.Node) error {
			_, err := n.Restore(t.Context())
			return err
		}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := errors.Join(next.guard.take(false), next.keeper.close()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if diff := cmp.Diff(fresh, tree(t, h.k)); diff != "" {
			t.Fatalf("%s: tree (-want +got)\n%s", what, diff)
		}
		if alive {
			if at < 30 {
				t.Errorf("a life of %d writes shows little", at)
			}
			return
		}
	}
}
