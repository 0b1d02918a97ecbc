package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/sched"
	"berth.dev/berth/place"
)

func v2(t testing.TB) *host { return newHost(t, layouts()["v2"]) }

func (h *host) kinds() []EventKind {
	var kinds []EventKind
	for _, e := range h.events {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

func TestCorruptRecord(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(string) string{
		"torn":        func(s string) string { return s[:len(s)/2] },
		"changed":     func(s string) string { return strings.Replace(s, `"milli":2000`, `"milli":1000`, 1) },
		"empty":       func(string) string { return "" },
		"new format":  func(s string) string { return strings.Replace(s, `"berthRecord":1`, `"berthRecord":2`, 1) },
		"not a grant": func(string) string { text, _ := seal(body{Boot: "b007-1"}); return string(text) },
	} {
		h := v2(t)
		n := h.open()
		h.place(n, spec("api", place.LSE, 2000, 9000100))
		h.place(n, spec("db", place.LSE, 1000, 0))
		file := filepath.Join(h.state, "api"+recordExt)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		bad := spoil(string(text))
		if bad == string(text) {
			t.Fatalf("%s: nothing spoiled", name)
		}
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		h.events = nil
		all, err := h.open().List(context.Background())
		if err != nil || len(all) != 1 || all[0].ID() != "db" {
			t.Errorf("%s: left are %v, %v", name, all, err)
		}
		if !slices.Contains(h.kinds(), Dropped) {
			t.Errorf("%s: events %v", name, h.events)
		}
		kept, err := os.ReadFile(file + asideExt)
		if err != nil || string(kept) != bad {
			t.Errorf("%s: the original is not kept: %q, %v", name, kept, err)
		}
		if _, err := os.Stat(filepath.Join(h.dir, "sys/fs/cgroup/berth/api")); err == nil {
			t.Errorf("%s: its group is left", name)
		}
	}
}

// What has the name of a record and is no file is set aside, and not waited for.
func TestRecordThatIsNoFile(t *testing.T) {
	t.Parallel()
	for what, make := range map[string]func(string) error{
		"pipe":      func(name string) error { return syscall.Mkfifo(name, 0o600) },
		"directory": func(name string) error { return os.Mkdir(name, 0o700) },
		"link":      func(name string) error { return os.Symlink("/dev/null", name) },
	} {
		h := v2(t)
		h.place(h.open(), spec("api", place.LSE, 2000, 9000100))
		for range 2 {
			name := filepath.Join(h.state, "odd"+recordExt)
			if err := make(name); err != nil {
				t.Fatal(err)
			}
			h.events = nil
			all, err := h.open().List(t.Context())
			if err != nil || len(all) != 1 || all[0].ID() != "api" {
				t.Errorf("%s: left are %v, %v", what, all, err)
			}
			if len(h.events) == 0 || h.events[0].Kind != Dropped || !strings.Contains(h.events[0].Text, "not a regular file") {
				t.Errorf("%s: events %v", what, h.events)
			}
		}
		for _, name := range []string{asideExt, asideExt + "-2"} {
			if _, err := os.Lstat(filepath.Join(h.state, "odd"+recordExt+name)); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
}

func TestEarlierBoot(t *testing.T) {
	t.Parallel()
	h := v2(t)
	n := h.open()
	h.place(n, spec("api", place.LSE, 2000, 0))
	if err := h.k.Rmdir("sys/fs/cgroup/berth/api"); err != nil {
		t.Fatal(err)
	}
	if err := h.k.Put("proc/sys/kernel/random/boot_id", "b007-2"); err != nil {
		t.Fatal(err)
	}
	all, err := h.open().List(context.Background())
	if err != nil || len(all) > 0 {
		t.Errorf("after a boot: %v, %v", all, err)
	}
	if !slices.Contains(h.kinds(), Dropped) {
		t.Errorf("events %v", h.events)
	}
}

func TestDeadOwnerAndLostGroup(t *testing.T) {
	t.Parallel()
	h := v2(t)
	n := h.open()
	owned := spec("owned", place.LSE, 1000, 0)
	owned.Owner.PID = 9000100
	h.place(n, owned)
	busy := spec("busy", place.LSE, 1000, 9000101)
	busy.Owner.PID = 9000100
	h.place(n, busy)
	h.place(n, spec("lost", place.LSE, 1000, 0))
	h.place(n, spec("stays", place.LS, 1000, 0))
	if err := h.k.Exit("9000100"); err != nil {
		t.Fatal(err)
	}
	if err := h.k.Start("9000100"); err != nil { // the same number, another process
		t.Fatal(err)
	}
	if err := h.k.Put("proc/9000100/stat", "9000100 (x) S"+strings.Repeat(" 0", 18)+" 99999\n"); err != nil {
		t.Fatal(err)
	}
	unwaited := spec("unwaited", place.LSE, 1000, 0)
	unwaited.Owner.PID = 9000103
	h.place(n, unwaited)
	stat, _ := readText(kernel.NewRoot("", h.k), "proc/9000103/stat")
	if err := h.k.Put("proc/9000103/stat", strings.Replace(stat, ") S", ") Z", 1)); err != nil {
		t.Fatal(err)
	}
	if err := h.k.Rmdir("sys/fs/cgroup/berth/lost"); err != nil {
		t.Fatal(err)
	}
	all, err := h.open().List(context.Background())
	var ids []string
	for _, w := range all {
		ids = append(ids, w.ID())
	}
	if err != nil || !slices.Equal(ids, []string{"busy", "stays"}) {
		t.Errorf("left are %v, %v", ids, err)
	}
	if all[1].CPUs.Overlaps(all[0].Grant.Own) || all[1].CPUs.Len() < 2 {
		t.Errorf("stays has %s", all[1].CPUs)
	}
}

func TestDrift(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := v2(t)
	n := h.open()
	h.place(n, spec("api", place.LSE, 2000, 9000100))
	file := "sys/fs/cgroup/berth/api/cpuset.cpus"
	want, _ := readText(kernel.NewRoot("", h.k), file)
	for i := 1; i <= 5; i++ {
		if err := h.k.WriteFile(file, "7"); err != nil {
			t.Fatal(err)
		}
		repairs, err := n.Reconcile(ctx)
		if err != nil {
			t.Fatal(err)
		}
		now, _ := readText(kernel.NewRoot("", h.k), file)
		switch {
		case i <= 3 && (len(repairs) != 1 || repairs[0].Count != i || repairs[0].Yielded || now != want):
			t.Errorf("time %d: %+v, now %s", i, repairs, now)
		case i == 4 && (len(repairs) != 1 || !repairs[0].Yielded || now != "7"):
			t.Errorf("time %d: %+v, now %s", i, repairs, now)
		case i == 5 && (len(repairs) != 0 || now != "7"):
			t.Errorf("time %d: %+v, now %s", i, repairs, now)
		}
		h.now = h.now.Add(time.Second)
	}
	w, err := n.Get(ctx, "api")
	if err != nil || !strings.Contains(strings.Join(w.Notes, "\n"), "left to someone else") {
		t.Errorf("notes %q, %v", w.Notes, err)
	}
	if !slices.Contains(h.kinds(), Yielded) || !slices.Contains(h.kinds(), Repaired) {
		t.Errorf("events %v", h.kinds())
	}
}

// A value that is written twice, first wider and then as it was, was changed by
// nobody; one that was is found as it was before both writes.
func TestJudgeOfWidenedValue(t *testing.T) {
	t.Parallel()
	h := v2(t)
	n := h.open()
	h.place(n, spec("api", place.LSE, 2000, 9000100))
	file := "sys/fs/cgroup/berth/api/cpuset.cpus"
	want, _ := readText(kernel.NewRoot("", h.k), file)
	plan := kernel.Plan{{Path: file, Value: "0-7", Format: kernel.List}, {Path: file, Value: want, Format: kernel.List}}
	if repairs := n.judge(plan); len(repairs) > 0 || len(n.drift.rewrites) > 0 {
		t.Errorf("unchanged: %+v, counted %v", repairs, n.drift.rewrites)
	}
	if err := h.k.WriteFile(file, "7"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Repair{{Path: file, Found: "7", Wanted: want, Count: 1}}, n.judge(plan)); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
	if repairs, err := n.Reconcile(t.Context()); err != nil || len(repairs) != 1 {
		t.Errorf("%+v, %v", repairs, err)
	}
	if last := h.events[len(h.events)-1]; last.Text != fmt.Sprintf("found %q, wants %q, time 2", "7", want) {
		t.Errorf("it says %q", last.Text)
	}
	keyed := kernel.Plan{{Path: file, Value: "a 1", Format: kernel.Keyed}, {Path: file, Value: "b 1", Format: kernel.Keyed}}
	if setting(keyed[0]) == setting(keyed[1]) {
		t.Error("the lines of a file are one setting")
	}
}

func TestRewritesFarApartAreRepaired(t *testing.T) {
	t.Parallel()
	h := v2(t)
	n := h.open()
	h.place(n, spec("api", place.LSE, 2000, 9000100))
	for range 8 {
		if err := h.k.WriteFile("sys/fs/cgroup/berth/api/cpuset.cpus", "7"); err != nil {
			t.Fatal(err)
		}
		repairs, err := n.Reconcile(context.Background())
		if err != nil || len(repairs) != 1 || repairs[0].Yielded {
			t.Fatalf("%+v, %v", repairs, err)
		}
		h.now = h.now.Add(time.Hour)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	h := v2(t)
	n := h.open()
	for _, id := range []string{"..", ".", "../../etc", "/", "a/b", "cpu.weight", "cgroup.procs", "tasks", "a\nb", "berth", "batch.json", "lock", "ä"} {
		w := h.place(n, spec(id, place.LS, 100, 0))
		if filepath.Dir(w.Group) != ownGroup {
			t.Errorf("%q: group %q", id, w.Group)
		}
		if got, err := n.Get(context.Background(), id); err != nil || got.ID() != id {
			t.Errorf("%q: %v, %v", id, got, err)
		}
	}
	for _, s := range []Spec{
		{}, spec(strings.Repeat("x", 256), place.LS, 1, 0), {Request: place.Request{ID: "a"}, Group: "../x"}, {Request: place.Request{ID: "a"}, Group: "/x"},
		{Request: place.Request{ID: "a"}, Group: "berth/x"}, {Request: place.Request{ID: "a"}, PID: -1},
		spec("\xff", place.LS, 1, 0),
	} {
		if _, err := n.Place(context.Background(), s); err == nil {
			t.Errorf("placed %+v", s)
		}
	}
}

// Many processes place at once; each opens the node for itself.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	h := v2(t)
	opt := h.options()
	opt.Events = nil
	var wait sync.WaitGroup
	var mu sync.Mutex
	refused := 0
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		wait.Add(1)
		go func() {
			defer wait.Done()
			n, err := Open(context.Background(), opt)
			if err == nil {
				_, err = n.Place(context.Background(), spec(id, place.LSE, 2000, 0))
				n.Close()
			}
			var few *place.CPUsError
			mu.Lock()
			defer mu.Unlock()
			if errors.As(err, &few) {
				refused++
			} else if err != nil {
				t.Error(err)
			}
		}()
	}
	wait.Wait()
	all, err := h.open().List(context.Background())
	if err != nil || len(all)+refused != 5 || len(all) == 0 {
		t.Fatalf("%d placed, %d refused, %v", len(all), refused, err)
	}
	var taken cpuset.Set
	for _, w := range all {
		if taken.Overlaps(w.Grant.Own) {
			t.Errorf("%s has %s, taken are %s", w.ID(), w.Grant.Own, taken)
		}
		taken = taken.Union(w.Grant.Own)
	}
}

func TestKeep(t *testing.T) {
	t.Parallel()
	h := v2(t)
	h.opt.Keep = true
	n := h.open()
	_, err := Open(context.Background(), h.options())
	var busy *BusyError
	if !errors.As(err, &busy) {
		t.Errorf("a second agent: %v", err)
	}
	opt := h.options()
	opt.Keep = false
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Open(ctx, opt); !errors.Is(err, context.Canceled) {
		t.Errorf("somebody who does not wait: %v", err)
	}
	h.place(n, spec("api", place.LSE, 1000, 0))
	books := n.held
	if _, err := n.Get(context.Background(), "none"); err == nil || n.held != books {
		t.Errorf("a question that was refused made it forget: %v", err)
	}
	if _, err := n.Place(context.Background(), spec("api", place.LSE, 1000, 0)); err == nil || n.held != books {
		t.Errorf("a place that was refused made it forget: %v", err)
	}
	if _, err := Restore(context.Background(), h.options()); !errors.As(err, &busy) {
		t.Errorf("restoring what an agent keeps: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if all, err := h.open().List(context.Background()); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}

// A node that is opened anew keeps the locks all the time, and with an error all it
// had.
func TestReopen(t *testing.T) {
	t.Parallel()
	h := v2(t)
	h.opt.Keep = true
	n := h.open()
	h.place(n, spec("api", place.LSE, 1000, 0))
	opt := h.options()
	opt.Events = func(Event) {}
	done := make(chan struct{})
	var got error
	go func() { // somebody who looks for a moment when nobody has the locks
		defer close(done)
		for range 20000 {
			for _, name := range []string{keeperFile, lockFile} {
				f, err := tryLock(h.state, name)
				if err == nil {
					got = fmt.Errorf("the lock %s was free", name)
					f.Close()
					return
				}
			}
		}
	}()
	for range 20 {
		next, err := n.Reopen(t.Context(), opt)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { next.Close() })
		n = next
	}
	if <-done; got != nil {
		t.Error(got)
	}
	for name, spoil := range map[string]func(*Options){
		"not kept":                func(o *Options) { o.Keep = false },
		"another state directory": func(o *Options) { o.Dir = t.TempDir() },
		"a bad option":            func(o *Options) { o.Rewrites = -1 },
	} {
		bad := opt
		spoil(&bad)
		if _, err := n.Reopen(t.Context(), bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if all, err := n.List(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("after errors: %v, %v", all, err)
	}
}

// An agent that starts while somebody else changes the node waits for him.
func TestKeepWaits(t *testing.T) {
	t.Parallel()
	h := v2(t)
	n := h.open()
	other, err := waitLock(context.Background(), n.opt.Dir)
	if err != nil {
		t.Fatal(err)
	}
	h.opt.Keep = true
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, h.options()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while it is locked: %v", err)
	}
	other.Close()
	h.open()
}

// A lock that is free is had whatever the context: a release at the end is not refused.
func TestFreeLockNeedsNoWait(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f, err := waitLock(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// A record that a committed batch was to remove is gone after restoring.
func TestRestoreFinishesWhatWasBegun(t *testing.T) {
	t.Parallel()
	h := v2(t)
	before := h.tree()
	n := h.open()
	h.place(n, spec("api", place.LSE, 1000, 0))
	s := store{h.state, func(string) error { return nil }}
	b := batch{Drop: []string{"api" + recordExt}}
	if err := errors.Join(s.prepare(b), s.commit(b)); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(context.Background(), h.options()); err != nil {
		t.Error(err)
	}
	h.sameTree(before)
	if all, err := h.open().List(context.Background()); err != nil || len(all) > 0 {
		t.Errorf("restored: %v, %v", all, err)
	}
}

func TestPreviewChangesNothing(t *testing.T) {
	t.Parallel()
	h := v2(t)
	n := h.open()
	before := h.tree()
	w, plan, err := n.Preview(context.Background(), spec("api", place.LSE, 2000, 9000100))
	if err != nil || w.CPUs.Len() != 2 || !strings.Contains(plan.String(), "mkdir /sys/fs/cgroup/berth/api\n") {
		t.Errorf("%v, %v, plan:\n%s", w, err, plan)
	}
	h.sameTree(before)
	if all, _ := n.List(context.Background()); len(all) > 0 {
		t.Errorf("placed: %v", all)
	}
}

// fakeSched is the scheduler that a test plays.
type fakeSched struct {
	state map[int]sched.State
	log   []map[int]cpuset.Set
}

func (f *fakeSched) get(pid int) (sched.State, error) {
	s, ok := f.state[pid]
	if !ok {
		return s, syscall.ESRCH
	}
	return s, nil
}

func (f *fakeSched) set(pid int, a sched.Attr) (func() error, error) {
	was, ok := f.state[pid]
	if !ok {
		return nil, syscall.ESRCH
	}
	s := was
	if !a.Affinity.IsEmpty() {
		s.Affinity = a.Affinity
	}
	if a.Policy != sched.Leave {
		s.Policy = a.Policy
	}
	f.state[pid] = s
	at := map[int]cpuset.Set{}
	for pid, s := range f.state {
		at[pid] = s.Affinity
	}
	f.log = append(f.log, at)
	return func() error { f.state[pid] = was; return nil }, nil
}

func TestAffinity(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := newHost(t, fakekernel.Layout{Own: "/", CPUs: "0-7", Mems: "0-1"})
	f := &fakeSched{state: map[int]sched.State{}}
	all := cpuset.MustParse("0-7")
	for pid := 9000100; pid < 9000104; pid++ {
		f.state[pid] = sched.State{Affinity: all, Policy: sched.Other}
	}
	if err := h.k.Put("proc/9000103/stat", "9000103 (child) S 9000100"+strings.Repeat(" 0", 17)+" 5\n"); err != nil {
		t.Fatal(err)
	}
	n := h.open()
	if n.Backend() != "affinity" {
		t.Fatalf("backend %q", n.Backend())
	}
	a := n.backend.(*affinity)
	a.get, a.set = f.get, f.set
	idle := spec("batch", place.BE, 500, 9000100)
	idle.Limits.Idle = cgroup.On
	batch := h.place(n, idle)
	if got := f.state[9000103].Policy; got != sched.Idle {
		t.Errorf("batch's child has policy %v", got)
	}
	api := h.place(n, spec("api", place.LSE, 2000, 9000101))
	if len(batch.Notes) == 0 {
		t.Error("no warning that affinity is the lesser backend")
	}
	if got := f.state[9000101].Affinity; got != api.Grant.Own {
		t.Errorf("api runs on %s, owns %s", got, api.Grant.Own)
	}
	for _, pid := range []int{9000100, 9000103} {
		if got := f.state[pid].Affinity; got != all.Minus(api.Grant.Own) {
			t.Errorf("batch's process %d runs on %s", pid, got)
		}
	}
	var occupied *OccupiedError
	if err := n.Release(ctx, "api", false); !errors.As(err, &occupied) {
		t.Errorf("release of a living one: %v", err)
	}
	if err := n.Release(ctx, "api", true); err != nil {
		t.Error(err)
	}
	if got := f.state[9000100].Affinity; got != all {
		t.Errorf("afterwards batch runs on %s", got)
	}
	if _, err := n.Restore(ctx); err != nil {
		t.Error(err)
	}
	for _, pid := range []int{9000100, 9000103} {
		if got := f.state[pid]; got.Policy != sched.Other || got.Affinity != all {
			t.Errorf("restored, process %d has %v", pid, got)
		}
	}
	if _, err := n.Place(ctx, Spec{Request: place.Request{ID: "x"}, Group: "web.slice"}); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("placing a group: %v", err)
	}
}
