package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// both are a node and a guard's actuator on one tree, with groups a and b, and c in b.
type both struct {
	*host
	keeper  *keeper
	act     *actuator
	history *api.History
}

func newBoth(t *testing.T, h *host, files kernel.Files) *both {
	t.Helper()
	b := &both{host: h, history: api.NewHistory(100, 0)}
	b.keeper = newKeeper(discard(), b.history)
	root := kernel.NewRoot(h.dir, files)
	dir := filepath.Join(h.dir, "..", "node")
	b.act = newActuator(b.keeper, root, agent.GuardDir(dir))
	return b
}

// open opens what a process of its own would. A process that another test forks has
// the locks of the last life until it executes.
func (b *both) open() error {
	err := patiently(func() error {
		lock, err := actuate.Open(actuate.Options{Root: b.act.root, Dir: b.act.dir, Program: "test"})
		if err != nil {
			return err
		}
		return lock.Close()
	})
	if err := errors.Join(err, b.act.recover()); err != nil {
		return err
	}
	dir := filepath.Join(b.host.dir, "..", "node")
	err = patiently(func() error {
		return b.keeper.open(b.t.Context(), agent.Options{Root: b.act.forNode(), Machine: b.opt.Machine, Dir: dir})
	})
	if err != nil {
		return err
	}
	return b.act.open(true)
}

// patiently tries again for a second while somebody has a lock.
func patiently(open func() error) (err error) {
	for range 1000 {
		var node *agent.BusyError
		var guard *actuate.BusyError
		if err = open(); !errors.As(err, &node) && !errors.As(err, &guard) {
			break
		}
		time.Sleep(time.Millisecond)
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
		if err := errors.Join(b.act.close(), b.keeper.close()); err != nil {
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
	b.must(b.keeper.Place(t.Context(), bestEffort("a", 200)))
	b.must(b.keeper.Place(t.Context(), bestEffort("b", 200)))
	b.must(b.act.Apply(t.Context(), yields))
	b.must(b.act.Apply(t.Context(), shrinks("b", "2-3")))
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
		b.must(b.act.Revert(t.Context(), a))
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
	b.must(b.keeper.Place(t.Context(), bestEffort("a", 200)))
	b.must(b.keeper.Place(t.Context(), bestEffort("b", 0)))
	b.must(b.act.Apply(t.Context(), yields))
	b.must(b.act.Apply(t.Context(), shrinks("b", "0,4")))

	b.must(b.keeper.Resize(t.Context(), bestEffort("a", 300)))
	b.must(b.keeper.Place(t.Context(), exclusive("own", 4000)))
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
		b.must(b.act.Revert(t.Context(), a))
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
	b.must(b.keeper.Place(t.Context(), bestEffort("b", 0)))
	b.must(b.act.Apply(t.Context(), shrinks("b", "1-3,5-7")))
	b.must(b.keeper.Place(t.Context(), exclusive("own", 4000)))
	own, err := b.keeper.Get(t.Context(), "own")
	b.must(nil, err)
	if set := cpuset.MustParse(b.read(cpusets + "b/cpuset.cpus")); set.Overlaps(own.CPUs) {
		t.Errorf("b has CPUs %s beside %s", set, own.CPUs)
	}
	if b.act.inForce() != 0 {
		t.Error("what does not fit any more is in force")
	}
	if _, err := b.act.Apply(t.Context(), shrinks("b", "1-3,5-7")); err == nil {
		t.Error("CPUs that the group does not have were given to it")
	}
	if !slices.ContainsFunc(b.history.After(0), func(e api.Event) bool { return e.Kind == agent.Failed }) {
		t.Error("nobody was told")
	}
	b.must(b.act.Revert(t.Context(), shrinks("b", "")))
}

// A group that is made anew while something was active on it is what it is.
func TestGroupMadeAnewUnderTheGuard(t *testing.T) {
	t.Parallel()
	b := opened(t)
	b.must(b.keeper.Place(t.Context(), bestEffort("a", 200)))
	b.must(b.act.Apply(t.Context(), yields))
	b.rmdir("a")
	b.reconcile()
	b.mkdir("a")
	b.must(nil, b.k.WriteFile(cpuDir+"a/cpu.shares", "512\n"))
	if text, err := fs.ReadFile(b.act.forNode().FS(), cpuDir+"a/cpu.shares"); err != nil || string(text) != "512\n" {
		t.Errorf("the node sees %q, %v", text, err)
	}
	b.must(b.keeper.Place(t.Context(), bestEffort("a", 200)))
	b.expect(map[string]string{cpuDir + "a/cpu.idle": "0", cpuDir + "a/cpu.shares": "2048"})
	if _, err := b.act.Revert(t.Context(), yields); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	b.expect(map[string]string{cpuDir + "a/cpu.idle": "0", cpuDir + "a/cpu.shares": "2048"})
}

func TestOneGuardAtATime(t *testing.T) {
	t.Parallel()
	b := opened(t)
	other := newBoth(t, b.host, b.k)
	var busy *actuate.BusyError
	if err := other.act.open(true); !errors.As(err, &busy) {
		t.Errorf("a second guard: %v", err)
	}
	if err := other.act.recover(); !errors.As(err, &busy) || busy.PID != os.Getpid() {
		t.Errorf("recovered beside a living guard: %v", err)
	}
	if err := other.act.open(false); err != nil {
		t.Errorf("a second guard that previews: %v", err)
	}
	if _, err := other.act.Apply(t.Context(), yields); err == nil {
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
	b.must(b.keeper.Place(ctx, bestEffort("a", 200)))
	b.must(b.keeper.Place(ctx, bestEffort("b", 0)))
	b.must(b.act.Apply(ctx, yields))
	b.must(b.act.Apply(ctx, shrinks("b", "0,4")))
	b.must(b.keeper.Resize(ctx, bestEffort("a", 300)))
	b.must(b.keeper.Place(ctx, exclusive("own", 4000)))
	b.must(b.act.Revert(ctx, shrinks("b", "")))
	b.must(nil, b.keeper.Release(ctx, "a", false))
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
		if b.act.host != nil {
			_ = b.act.host.Close()
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
		if err := errors.Join(next.act.close(), next.keeper.close()); err != nil {
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

// On v2 the guard's set of a group around others does not show in theirs.
func TestEffectiveBelowTheGuard(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"g/cpuset.cpus": "0-7", "g/cpuset.cpus.effective": "0-7", "g/x/cpuset.cpus": "", "g/x/cpuset.cpus.effective": "0-7",
		"g/y/cpuset.cpus": "2-5", "g/y/cpuset.cpus.effective": "2-5",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root, err := kernel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	before := map[string]string{"g/cpuset.cpus": "0-7"}
	// What the kernel makes of the guard's write.
	for name, text := range map[string]string{"g/cpuset.cpus": "0-2", "g/cpuset.cpus.effective": "0-2", "g/x/cpuset.cpus.effective": "0-2", "g/y/cpuset.cpus.effective": "2"} {
		if err := root.WriteFile(name, text+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	original := func(name string) (string, bool) { text, ok := before[name]; return text, ok }
	for name, want := range map[string]string{"g/cpuset.cpus.effective": "0-7", "g/x/cpuset.cpus.effective": "0-7", "g/y/cpuset.cpus.effective": "2-5"} {
		text, ok := effective(root.FS(), original, name)
		if !ok || strings.TrimSpace(text) != want {
			t.Errorf("the node sees %s: %q, want %s", name, text, want)
		}
	}
	clear(before)
	if text, ok := effective(root.FS(), original, "g/y/cpuset.cpus.effective"); ok {
		t.Errorf("%q, want the file's own at the end", text)
	}
}
