package agent

import (
	"context"
	"crypto/sha256"
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

// A record that cannot be read stays in its place, with the CPUs and the processes of its
// workload: nothing new is placed beside it, what can be read can be released, and
// giving everything back keeps its text.
func TestCorruptRecord(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, spoil := range map[string]func(string) string{
		"torn":        func(s string) string { return s[:len(s)/2] },
		"changed":     func(s string) string { return strings.Replace(s, `"milli":2000`, `"milli":1000`, 1) },
		"empty":       func(string) string { return "" },
		"old format":  func(s string) string { return strings.Replace(s, `"berthRecord":1`, `"berthRecord":0`, 1) },
		"not a grant": func(string) string { text, _ := seal(record{Boot: "b007-1"}); return string(text) },
		"newer, with its CPUs elsewhere": func(s string) string {
			return asVersion(t, 2, strings.Replace(s, `"own":"2-3"`, `"cores":[1]`, 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := v2(t)
			before := h.tree()
			n := h.open()
			h.place(n, spec("api", place.LSE, 2000, 9000100))
			h.place(n, spec("db", place.LSE, 1000, 0))
			h.place(n, spec("cache", place.LS, 0, 9000101))
			file := filepath.Join(h.state, "api"+recordExt)
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			bad := spoil(string(text))
			if bad == string(text) {
				t.Fatal("nothing spoiled")
			}
			if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
				t.Fatal(err)
			}
			kept := func(file string) {
				t.Helper()
				if text, err := os.ReadFile(file); err != nil || string(text) != bad {
					t.Errorf("the record is not kept: %q, %v", text, err)
				}
			}
			tree := h.tree()
			h.events = nil
			n = h.open()
			all, err := n.List(ctx)
			if err != nil || len(all) != 2 {
				t.Errorf("left are %v, %v", all, err)
			}
			var corrupt *CorruptError
			if _, err := n.Place(ctx, spec("new", place.LSE, 1000, 0)); !errors.As(err, &corrupt) || corrupt.File != file {
				t.Errorf("placed beside it: %v", err)
			}
			if _, _, err := n.Preview(ctx, spec("new", place.BE, 0, 0)); !errors.As(err, &corrupt) {
				t.Errorf("previewed beside it: %v", err)
			}
			if _, err := n.Move(ctx, "cache", cpuset.MustParse("2-3"), cpuset.Set{}); !errors.As(err, &corrupt) {
				t.Errorf("moved beside it: %v", err)
			}
			if _, err := n.Reconcile(ctx); err != nil {
				t.Errorf("reconciled: %v", err)
			}
			h.sameTree(tree)
			kept(file)
			if err := n.Release(ctx, "db", WhenEmpty); err != nil {
				t.Errorf("released beside it: %v", err)
			}
			if !slices.Contains(h.kinds(), Failed) || slices.Contains(h.kinds(), Dropped) {
				t.Errorf("events %v", h.events)
			}
			for _, path := range []string{"sys/fs/cgroup/berth/api/cpuset.cpus", "sys/fs/cgroup/berth/api/cgroup.procs", "sys/fs/cgroup/berth/cache/cpuset.cpus"} {
				if now := h.tree()[path]; now != tree[path] {
					t.Errorf("%s is %q, was %q", path, now, tree[path])
				}
			}
			kept(file)
			if _, err := n.Restore(ctx); err != nil {
				t.Error(err)
			}
			h.sameTree(before)
			kept(file + asideExt)
			if entries, err := os.ReadDir(h.state); err != nil || len(entries) > 3 { // with lock and undo log
				t.Errorf("left in the state directory: %v, %v", entries, err)
			}
			h.place(h.open(), spec("api", place.LSE, 2000, 9000100))
		})
	}
}

// asVersion is a record, changed, as a version of Berth writes it.
func asVersion(t *testing.T, format int, record string) string {
	t.Helper()
	_, data, ok := strings.Cut(record, "\n")
	if !ok {
		t.Fatal("not a record")
	}
	sum := sha256.Sum256([]byte(data))
	return fmt.Sprintf("{\"berthRecord\":%d,\"sum\":\"%x\"}\n%s", format, sum, data)
}

// A record with fields of a newer version is used, and written again with them.
func TestUnknownFields(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := v2(t)
	h.place(h.open(), spec("api", place.LSE, 2000, 9000100))
	file := filepath.Join(h.state, "api"+recordExt)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	with := strings.Replace(string(text), `{"boot":`, `{"rdt":{"class":"gold","ways":12345678901234567890},"boot":`, 1)
	with = strings.Replace(with, `"grant":{`, `"grant":{"power":[1,2],`, 1)
	with = strings.Replace(with, `"request":{`, `"request":{"tier":"x",`, 1)
	with = asVersion(t, version, with)
	if err := os.WriteFile(file, []byte(with), 0o600); err != nil {
		t.Fatal(err)
	}
	tree := h.tree()
	n := h.open()
	h.sameTree(tree)
	if w := h.place(n, spec("db", place.LSE, 2000, 9000101)); w.CPUs.Overlaps(cpuset.MustParse("2-3")) {
		t.Errorf("db got the CPUs of api: %s", w.CPUs)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != with {
		t.Errorf("the record has changed: %s, %v", text, err)
	}
	if _, err := n.Move(ctx, "api", cpuset.MustParse("6-7"), cpuset.Set{}); err != nil {
		t.Fatal(err)
	}
	text, err = os.ReadFile(file)
	for _, want := range []string{`"rdt":{"class":"gold","ways":12345678901234567890}`, `"power":[1,2]`, `"tier":"x"`, `"own":"6-7"`} {
		if err != nil || strings.Count(string(text), want) < 1 {
			t.Errorf("no %s in %s, %v", want, text, err)
		}
	}
	if w, err := h.open().Get(ctx, "api"); err != nil || w.CPUs != cpuset.MustParse("6-7") {
		t.Errorf("api: %v, %v", w.CPUs, err)
	}
}

// A record of a newer version keeps its CPUs, and is not changed by anything but giving
// everything back.
func TestNewerRecord(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := v2(t)
	before := h.tree()
	owned := spec("api", place.LSE, 2000, 9000100)
	owned.Owner.PID = 9000103
	h.place(h.open(), owned)
	file := filepath.Join(h.state, "api"+recordExt)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	newer := asVersion(t, 2, strings.Replace(string(text), `"grant":{`, `"grant":{"power":[1,2],`, 1))
	if err := os.WriteFile(file, []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []string{"9000100", "9000103"} { // nobody else may see to its end
		if err := h.k.Exit(pid); err != nil {
			t.Fatal(err)
		}
	}
	n := h.open()
	if w := h.place(n, spec("db", place.LSE, 4000, 9000101)); w.CPUs.Overlaps(cpuset.MustParse("2-3")) {
		t.Errorf("db got the CPUs of api: %s", w.CPUs)
	}
	for what, err := range map[string]error{
		"place":   func() error { _, err := n.Place(ctx, spec("api", place.LS, 0, 9000102)); return err }(),
		"move":    func() error { _, err := n.Move(ctx, "api", cpuset.MustParse("1"), cpuset.Set{}); return err }(),
		"resize":  func() error { _, err := n.Resize(ctx, spec("api", place.LS, 0, 0)); return err }(),
		"release": n.Release(ctx, "api", Kill),
	} {
		if err == nil || what != "place" && !strings.Contains(err.Error(), "newer berth") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := n.Reconcile(ctx); err != nil {
		t.Error(err)
	}
	if err := n.Release(ctx, "db", Kill); err != nil {
		t.Error(err)
	}
	if w, err := h.reader().Get(ctx, "api"); err != nil || !strings.Contains(strings.Join(w.Notes, "\n"), "newer berth") {
		t.Errorf("read: %v, %v", w.Notes, err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != newer {
		t.Errorf("the record has changed: %s, %v", text, err)
	}
	if _, err := n.Restore(ctx); err != nil {
		t.Error(err)
	}
	after := h.tree()
	for name := range before {
		if strings.HasPrefix(name, "proc/") || isProcs(name) {
			before[name], after[name] = "", ""
		}
	}
	for name := range after {
		if strings.HasPrefix(name, "proc/") {
			delete(after, name)
			delete(before, name)
		}
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("not given back (-before +after):\n%s", diff)
	}
	if text, err := os.ReadFile(file + asideExt); err != nil || string(text) != newer {
		t.Errorf("the record is not kept: %s, %v", text, err)
	}
}

// What has the name of a record and is no file stays, and is not waited for.
func TestRecordThatIsNoFile(t *testing.T) {
	t.Parallel()
	for what, make := range map[string]func(string) error{
		"pipe":      func(name string) error { return syscall.Mkfifo(name, 0o600) },
		"directory": func(name string) error { return os.Mkdir(name, 0o700) },
		"link":      func(name string) error { return os.Symlink("/dev/null", name) },
	} {
		h := v2(t)
		h.place(h.open(), spec("api", place.LSE, 2000, 9000100))
		name := filepath.Join(h.state, "odd"+recordExt)
		if err := make(name); err != nil {
			t.Fatal(err)
		}
		h.events = nil
		n := h.open()
		all, err := n.List(t.Context())
		if err != nil || len(all) != 1 || all[0].ID() != "api" {
			t.Errorf("%s: left are %v, %v", what, all, err)
		}
		if len(h.events) == 0 || h.events[0].Kind != Failed || !strings.Contains(h.events[0].Text, name+": not a regular file") {
			t.Errorf("%s: events %v", what, h.events)
		}
		if _, err := n.Place(t.Context(), spec("db", place.LS, 0, 0)); !errors.As(err, new(*CorruptError)) {
			t.Errorf("%s: placed: %v", what, err)
		}
		if _, err := n.Restore(t.Context()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Lstat(name + asideExt); err != nil {
			t.Errorf("%s: %v", what, err)
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
	stat, _ := kernel.ReadText(h.k.FS(), "proc/9000103/stat")
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
	want, _ := kernel.ReadText(h.k.FS(), file)
	for i := 1; i <= 5; i++ {
		if err := h.k.WriteFile(file, "7"); err != nil {
			t.Fatal(err)
		}
		repairs, err := n.Reconcile(ctx)
		if err != nil {
			t.Fatal(err)
		}
		now, _ := kernel.ReadText(h.k.FS(), file)
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
	want, _ := kernel.ReadText(h.k.FS(), file)
	plan := kernel.Plan{{Path: file, Value: "0-7", Format: kernel.List}, {Path: file, Value: want, Format: kernel.List}}
	counted := fmt.Sprint(n.drift)
	if repairs := n.judge(plan); len(repairs) > 0 || fmt.Sprint(n.drift) != counted {
		t.Errorf("unchanged: %+v, counted %v", repairs, n.drift)
	}
	if err := h.k.WriteFile(file, "7"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]judged{{Repair{Path: file, Found: "7", Wanted: want, Count: 1}, file}}, n.judge(plan), cmp.AllowUnexported(judged{})); diff != "" {
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

func revise(t *testing.T, n *Node, opt Options) (*Node, error) {
	next, _, err := n.Revise(t.Context(), Revision{Options: opt}, nil)
	return next, err
}

// A node that is opened anew keeps the locks all the time, and with an error all it
// had.
func TestReviseKeepsLocks(t *testing.T) {
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
			for _, name := range []string{agentLock, lockFile} {
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
		next, err := revise(t, n, opt)
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
		if _, err := revise(t, n, bad); err == nil {
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
	if err := errors.Join(s.prepare(b), s.commitBatch(b)); err != nil {
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

// fakeSched is the scheduler that a test simulates.
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
	a := n.enforcer.(*affinity)
	a.get, a.set = f.get, f.set
	idle := spec("batch", place.BE, 500, 9000100)
	batch := h.place(n, idle)
	if got := f.state[9000103].Policy; got != sched.Idle {
		t.Errorf("batch's child has policy %v", got)
	}
	for class, want := range map[place.Class]sched.Policy{place.LS: sched.Other, place.BE: sched.Idle} {
		other := idle
		other.Request.Class = class
		if _, err := n.Resize(ctx, other); err != nil || f.state[9000103].Policy != want {
			t.Errorf("resized to %v, batch's child has policy %v, %v", class, f.state[9000103].Policy, err)
		}
	}
	if _, err := n.Resize(ctx, idle); err != nil {
		t.Error(err)
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
	if err := n.Release(ctx, "api", WhenEmpty); !errors.As(err, &occupied) {
		t.Errorf("release of a living one: %v", err)
	}
	if err := n.Release(ctx, "api", Kill); err != nil {
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
