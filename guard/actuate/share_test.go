package actuate

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/resctrl"
)

// shared is a host whose CPU allocates caches, with threads 100 and 101 in batch/a, 102 below
// batch/b/c, and 200 in svc/web. Class bulk has thread 102.
func shared(t *testing.T, cpu string, alter func(*fakekernel.Resctrl)) *host {
	t.Helper()
	r := fakekernel.ResctrlCPUs()[cpu]
	if alter != nil {
		alter(&r)
	}
	h := newHostWith(t, "v2", &r)
	for _, p := range []struct{ pid, group string }{{"100", "batch/a"}, {"101", "batch/a"}, {"102", "batch/b/c"}, {"200", "svc/web"}} {
		if err := errors.Join(h.k.Start(p.pid), h.k.WriteFile(h.cpu+"/"+p.group+"/cgroup.procs", p.pid)); err != nil {
			t.Fatal(err)
		}
	}
	const bulk = fakekernel.ResctrlDir + "/berth-bulk"
	cache := r.Lines[slices.IndexFunc(r.Lines, func(l fakekernel.ResctrlLine) bool { return l.Mask != 0 })].Name
	if err := errors.Join(h.k.Mkdir(bulk), h.k.WriteFile(bulk+"/schemata", cache+":0=3c\n"), h.k.WriteFile(bulk+"/tasks", "102")); err != nil {
		t.Fatal(err)
	}
	h.tree = h.now()
	return h
}

func ways(group string, n int) control.Action {
	return control.Action{Remedy: detect.CacheWays, Group: group, Victim: "svc/web", Suspect: group, Resource: detect.LLC, Share: control.Share{Ways: n}}
}

func bandwidth(group string, n int64) control.Action {
	return control.Action{Remedy: detect.BandwidthCap, Group: group, Victim: "svc/web", Suspect: group, Resource: detect.MemoryBandwidth, Share: control.Share{Bandwidth: n, Unit: "%"}}
}

// group reads the lines and threads of a group of resctrl; "" if there is none.
func (h *host) group(name string) string {
	schemata, err := os.ReadFile(filepath.Join(h.dir, fakekernel.ResctrlDir, name, "schemata"))
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	tasks, err2 := os.ReadFile(filepath.Join(h.dir, fakekernel.ResctrlDir, name, "tasks"))
	if err := errors.Join(err, err2); err != nil {
		h.t.Fatal(err)
	}
	return strings.Join(slices.Concat(strings.Fields(strings.NewReplacer("=  ", "=", "= ", "=").Replace(string(schemata))), []string{"tasks"}, strings.Fields(string(tasks))), " ")
}

// A suspect gets a group of its own with what it had, less what is taken; both remedies share
// it, each takes its own part back, and the last removes it.
func TestShares(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, c := range []struct {
		name, cpu, group string
		steps            []struct {
			do   control.Action
			back bool
			want string
		}
	}{
		{"in the default group", "skylake", "batch/a", []struct {
			do   control.Action
			back bool
			want string
		}{
			{ways("batch/a", 6), false, "L3:0=03f;1=03f MB:0= 100;1= 100 tasks 100 101"},
			{ways("batch/a", 3), false, "L3:0=007;1=007 MB:0= 100;1= 100 tasks 100 101"},
			{bandwidth("batch/a", 50), false, "L3:0=007;1=007 MB:0= 50;1= 50 tasks 100 101"},
			{ways("batch/a", 3), true, "L3:0=7ff;1=7ff MB:0= 50;1= 50 tasks 100 101"},
			{bandwidth("batch/a", 50), true, ""},
		}},
		{"in a class: only what that has", "skylake", "batch/b/c", []struct {
			do   control.Action
			back bool
			want string
		}{
			{bandwidth("batch/b/c", 30), false, "L3:0=03c;1=7ff MB:0= 30;1= 30 tasks 102"},
			{ways("batch/b/c", 2), false, "L3:0=00c;1=003 MB:0= 30;1= 30 tasks 102"},
			{bandwidth("batch/b/c", 30), true, "L3:0=00c;1=003 MB:0= 100;1= 100 tasks 102"},
			{ways("batch/b/c", 2), true, ""},
		}},
		{"code and data apart", "skylake-cdp", "batch/a", []struct {
			do   control.Action
			back bool
			want string
		}{
			{ways("batch/a", 6), false, "L3DATA:0=03f;1=03f L3CODE:0=03f;1=03f MB:0= 100;1= 100 tasks 100 101"},
			{ways("batch/a", 6), true, ""},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := shared(t, c.cpu, nil)
			g := h.open()
			name := resctrl.GuardGroup(c.group)
			for i, s := range c.steps {
				var err error
				if s.back {
					_, err = g.Revert(ctx, s.do)
				} else {
					before := h.now()
					promised, err := g.Preview(ctx, s.do)
					h.same(before)
					did, err2 := g.Apply(ctx, s.do)
					if err := errors.Join(err, err2); err != nil || len(did) == 0 || len(did) != len(promised) {
						t.Fatalf("step %d: promised %v, did %v: %v", i, promised, did, err)
					}
					if slices.ContainsFunc(did, func(c control.Change) bool { return c.From == c.To }) {
						t.Errorf("step %d: what stays is told as a change: %v", i, did)
					}
					if again, err := g.Apply(ctx, s.do); err != nil || len(again) > 0 {
						t.Errorf("step %d once more: %v, %v", i, again, err)
					}
				}
				if got := strings.ReplaceAll(h.group(name), "=  ", "= "); err != nil || strings.ReplaceAll(got, "= ", "=") != strings.ReplaceAll(s.want, "= ", "=") {
					t.Errorf("step %d: %v\n%s, want\n%s", i, err, got, s.want)
				}
			}
			h.same(h.tree) // also threads are where they were
			if notes := g.Notes(); len(notes) > 0 || len(g.divided) > 0 {
				t.Errorf("still noted: %v, %v", notes, g.divided)
			}
		})
	}
}

// A guard that is killed at any of its writes leaves nothing behind: threads go back to the class
// they were in.
func TestSharesKilled(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := shared(t, "skylake", nil)
	all := []control.Action{ways("batch/b/c", 2), bandwidth("batch/b/c", 30), ways("batch/a", 6)}
	h.killedAtEach(6, func(g *Host) {
		for _, a := range all {
			if _, err := g.Apply(ctx, a); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Threads that join a group whose share is cut are taken along; new threads of its threads are
// there already.
func TestSharesFollow(t *testing.T) {
	t.Parallel()
	h := shared(t, "skylake", nil)
	g := h.open()
	if _, err := g.Apply(context.Background(), ways("batch/a", 6)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(h.k.Start("103"), h.k.WriteFile(h.cpu+"/batch/a/cgroup.procs", "103"), g.Follow()); err != nil {
		t.Fatal(err)
	}
	if got := h.group(resctrl.GuardGroup("batch/a")); !strings.HasSuffix(got, "tasks 100 101 103") {
		t.Error(got)
	}
	// Those that leave go back, also out of a group that monitors them.
	if _, err := g.Monitor([]string{"batch/a"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(h.k.WriteFile(h.cpu+"/svc/web/cgroup.procs", "100"), h.k.Start("104"), h.k.WriteFile(h.cpu+"/batch/a/cgroup.procs", "104"), g.Follow()); err != nil {
		t.Fatal(err)
	}
	if got := h.group(""); !strings.Contains(got+" ", " 100 ") || strings.Contains(got+" ", " 101 ") {
		t.Errorf("the one that has left is not back: %s", got)
	}
	if got := h.group(resctrl.GuardGroup("batch/a")); !strings.HasSuffix(got, " 104") {
		t.Errorf("the one that has come is not there: %s", got)
	}
}

// A share is of what the class has by now, and of the default group where the class is gone.
func TestSharesRefit(t *testing.T) {
	t.Parallel()
	const dir = fakekernel.ResctrlDir
	h := shared(t, "skylake", nil)
	g := h.open()
	ctx := context.Background()
	if _, err := g.Apply(ctx, ways("batch/b/c", 2)); err != nil {
		t.Fatal(err)
	}
	want := func(when, want string) {
		t.Helper()
		if got := strings.ReplaceAll(h.group(resctrl.GuardGroup("batch/b/c")), "= ", "="); got != strings.ReplaceAll(want, "= ", "=") {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	if err := errors.Join(h.k.WriteFile(dir+"/berth-bulk/schemata", "L3:0=3c0\nMB:0=50\n"), g.Follow()); err != nil {
		t.Fatal(err)
	}
	want("moved", "L3:0=0c0;1=003 MB:0= 50;1= 100 tasks 102")
	if c := g.Cache("batch/b/c"); c.Ways != 11 || c.Bandwidth != 100 {
		t.Errorf("%+v", c)
	}
	if err := errors.Join(h.k.Rmdir(dir+"/berth-bulk"), h.k.WriteFile(dir+"/schemata", "L3:0=7f0\n"), g.Follow()); err != nil {
		t.Fatal(err)
	}
	want("gone", "L3:0=030;1=003 MB:0= 100;1= 100 tasks 102")
	if changes, err := g.Revert(ctx, ways("batch/b/c", 2)); err != nil || len(changes) != 1 {
		t.Errorf("%v, %v", changes, err)
	}
	if got := h.group(""); !strings.Contains(got, " 102") || len(g.Notes()) > 0 {
		t.Errorf("%s, noted: %v", got, g.Notes())
	}
}

// Whoever owns the classes writes as if the guard had no groups: they take no CLOSID from a class,
// and keep none from having its ways alone.
func TestSharesGiveWay(t *testing.T) {
	t.Parallel()
	const dir = fakekernel.ResctrlDir
	ctx := context.Background()
	h := shared(t, "skylake", func(r *fakekernel.Resctrl) { r.Lines[0].CLOSIDs = 3 })
	g := h.open()
	uncovered := 0
	node := g.Base(func() { uncovered++ })
	for _, c := range []struct {
		name string
		do   func() error
		want string // of applying it again
	}{
		{"threads", func() error { return node.WriteFile(dir+"/berth-bulk/tasks", "200\n") }, ""},
		{"lines", func() error { return node.WriteFile(dir+"/berth-bulk/schemata", "L3:0=3;1=3\n") }, ""},
		{"alone", func() error {
			return errors.Join(node.WriteFile(dir+"/schemata", "L3:0=7fc;1=7fc\n"), node.WriteFile(dir+"/berth-bulk/mode", "exclusive\n"))
		}, ""},
		{"a class", func() error { return node.Mkdir(dir + "/berth-new") }, "all 3 CLOSIDs of the CPU are in use"},
	} {
		uncovered = 0
		if _, err := g.Apply(ctx, ways("batch/a", 6)); err != nil {
			t.Fatal(err)
		}
		if err := c.do(); err != nil || (uncovered > 0) == (c.name == "threads") {
			t.Errorf("%s: %v, uncovered %d times", c.name, err, uncovered)
		}
		_, err := g.Apply(ctx, ways("batch/a", 6))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: again: %v, want %q", c.name, err, c.want)
		}
	}
}

// What is others' stays theirs, and what the CPU lacks is said before anything is written.
func TestSharesRefused(t *testing.T) {
	t.Parallel()
	const dir = fakekernel.ResctrlDir
	for _, c := range []struct {
		name  string
		cpu   string
		alter func(*fakekernel.Resctrl)
		with  func(h *host) error
		do    control.Action
		want  string
	}{
		{"another program's group", "skylake", nil, func(h *host) error {
			return errors.Join(h.k.Mkdir(dir+"/pod-a"), h.k.WriteFile(dir+"/pod-a/tasks", "100"))
		}, ways("batch/a", 6), "resctrl group pod-a of another program has its threads"},
		{"its name looks like one that monitors", "skylake", nil, func(h *host) error {
			return errors.Join(h.k.Mkdir(dir+"/x_mon_groups"), h.k.WriteFile(dir+"/x_mon_groups/tasks", "101"))
		}, ways("batch/a", 6), "resctrl group x_mon_groups of another program has its threads"},
		{"another program monitors", "skylake", nil, func(h *host) error {
			return errors.Join(h.k.Mkdir(dir+"/mon_groups/pod-a"), h.k.WriteFile(dir+"/mon_groups/pod-a/tasks", "101"))
		}, ways("batch/a", 6), "resctrl group mon_groups/pod-a of another program monitors its threads"},
		{"another program monitors in a class", "skylake", nil, func(h *host) error {
			return errors.Join(h.k.Mkdir(dir+"/berth-bulk/mon_groups/x"), h.k.WriteFile(dir+"/berth-bulk/mon_groups/x/tasks", "102"))
		}, ways("batch/b/c", 2), "resctrl group berth-bulk/mon_groups/x of another program monitors its threads"},
		{"only some in a class", "skylake", nil, func(h *host) error { return h.k.WriteFile(dir+"/berth-bulk/tasks", "100") }, ways("batch/a", 6), "some of its threads are in resctrl group berth-bulk"},
		{"ways that are its alone", "skylake", nil, func(h *host) error {
			return errors.Join(h.k.WriteFile(dir+"/schemata", "L3:0=7c0;1=7ff\n"), h.k.WriteFile(dir+"/berth-bulk/schemata", "L3:0=3c;1=3c\n"),
				h.k.WriteFile(dir+"/schemata", "L3:1=7c0\n"), h.k.WriteFile(dir+"/berth-bulk/mode", "exclusive\n"))
		}, ways("batch/b/c", 2), "class bulk has its ways alone"},
		{"no CLOSID left", "skylake", func(r *fakekernel.Resctrl) { r.Lines[0].CLOSIDs = 2 }, nil, ways("batch/a", 6), "all 2 CLOSIDs of the CPU are in use"},
		{"no such group", "skylake", nil, nil, ways("batch/x", 6), "file does not exist"},
		{"a path out of the tree", "skylake", nil, nil, ways("../x", 6), "not a path below the root group"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := shared(t, c.cpu, c.alter)
			if c.with != nil {
				if err := c.with(h); err != nil {
					t.Fatal(err)
				}
			}
			before := h.now()
			g := h.open()
			if _, err := g.Apply(context.Background(), c.do); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
			if why := g.Cache(c.do.Group).Why; !strings.Contains(why, c.want) {
				t.Errorf("told beforehand: %q, want %s", why, c.want)
			}
			h.same(before)
		})
	}
	h := newHost(t, "v2")
	for _, remedy := range []detect.Remedy{detect.CacheWays, detect.BandwidthCap} {
		if why := h.open2().Unavailable()[remedy]; !strings.Contains(why, "not supported") {
			t.Errorf("%v without resctrl: %q", remedy, why)
		}
	}
	r := fakekernel.ResctrlCPUs()["skylake"]
	r.Lines = r.Lines[:1]
	if why := newHostWith(t, "v2", &r).open2().Unavailable(); why[detect.CacheWays] != "" || !strings.Contains(why[detect.BandwidthCap], "does not divide memory bandwidth") {
		t.Errorf("without MBA: %v", why)
	}
}

// open2 opens a host to look at.
func (h *host) open2() *Host {
	h.t.Helper()
	g, err := Open(Options{Root: h.root()})
	if err != nil {
		h.t.Fatal(err)
	}
	return g
}

// What a group has is what it had before the guard came.
func TestCacheOf(t *testing.T) {
	t.Parallel()
	h := shared(t, "zen4", nil)
	g := h.open()
	want := control.Cache{Ways: 16, Of: 16, LeastWays: 1, Bandwidth: 2048, LeastBandwidth: 1, Step: 1, Unit: "1/8 GB/s", Bytes: 125e6}
	if got := g.Cache("batch/a"); got != want {
		t.Errorf("%+v", got)
	}
	if _, err := g.Apply(context.Background(), ways("batch/a", 4)); err != nil {
		t.Fatal(err)
	}
	if got := g.Cache("batch/a"); got != want {
		t.Errorf("while it is cut: %+v", got)
	}
	if _, err := g.Apply(context.Background(), bandwidth("batch/a", 160)); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Restore(); err != nil || len(g.divided) > 0 {
		t.Fatal(err, g.divided)
	}
	h.same(h.tree)
	if err := kernel.IgnoreAbsent(g.Close()); err != nil {
		t.Error(err)
	}
}

// Without a CLOSID left, a class that nobody else has is narrowed in place, and has again what it
// had once the actions are taken back, others have it too, or its owner writes to it.
func TestShareInPlace(t *testing.T) {
	t.Parallel()
	const bulk, narrow = fakekernel.ResctrlDir + "/berth-bulk", "L3:0=00c;1=003 MB:0=100;1=100 tasks 102"
	ctx := context.Background()
	h := shared(t, "skylake", func(r *fakekernel.Resctrl) { r.Lines[0].CLOSIDs = 2 })
	g := h.open()
	is := func(when, want string) {
		t.Helper()
		if got := h.group("berth-bulk"); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	cut := func() {
		t.Helper()
		if _, err := g.Apply(ctx, ways("batch/b/c", 2)); err != nil {
			t.Fatal(err)
		}
		is("cut", narrow)
	}
	cut()
	if _, err := g.Apply(ctx, bandwidth("batch/b/c", 30)); err != nil {
		t.Fatal(err)
	}
	is("both", "L3:0=00c;1=003 MB:0=30;1=30 tasks 102")
	if c := g.Cache("batch/b/c"); c.Ways != 11 || c.Bandwidth != 100 {
		t.Errorf("told while it is cut: %+v", c)
	}
	node := g.Base(func() {})
	if text, err := fs.ReadFile(node.FS(), bulk+"/schemata"); err != nil || !strings.Contains(string(text), "03c;1=7ff") || !strings.Contains(string(text), "MB:0= 100") {
		t.Errorf("below the guard's values: %q, %v", text, err)
	}
	changes, err := g.Revert(ctx, ways("batch/b/c", 2))
	if err != nil || len(changes) != 1 {
		t.Errorf("%+v, %v", changes, err)
	}
	is("bandwidth alone", "L3:0=03c;1=7ff MB:0=30;1=30 tasks 102")
	if changes, err = g.Revert(ctx, bandwidth("batch/b/c", 30)); err != nil || len(changes) != 1 || changes[0].From != "MB:0=30;1=30" {
		t.Errorf("%+v, %v", changes, err)
	}
	h.same(h.tree)

	// Its owner gives it other ways; of those, as many are left.
	cut()
	if err := node.WriteFile(bulk+"/schemata", "L3:0=f0;1=f0\n"); err != nil {
		t.Fatal(err)
	}
	is("another layout", "L3:0=0f0;1=0f0 MB:0=100;1=100 tasks 102")
	if _, err := g.Apply(ctx, ways("batch/b/c", 2)); err != nil {
		t.Fatal(err)
	}
	is("cut again", "L3:0=030;1=030 MB:0=100;1=100 tasks 102")
	// Others have it, too.
	if err := h.k.WriteFile(bulk+"/tasks", "200"); err != nil {
		t.Fatal(err)
	}
	h.fate.count, h.fate.at, h.fate.err = 0, 1, syscall.EBUSY
	if err := g.Follow(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("the kernel refuses: %v", err)
	}
	is("still cut", "L3:0=030;1=030 MB:0=100;1=100 tasks 102 200")
	h.fate.at, h.fate.err = 0, nil
	if err := g.Follow(); err != nil {
		t.Fatal(err)
	}
	is("shared", "L3:0=0f0;1=0f0 MB:0=100;1=100 tasks 102 200")
	if _, err := g.Apply(ctx, ways("batch/b/c", 2)); err == nil || !strings.Contains(err.Error(), "all 2 CLOSIDs of the CPU are in use") {
		t.Errorf("while it is shared: %v", err)
	}
	// A guard that was killed.
	if err := errors.Join(h.k.WriteFile(fakekernel.ResctrlDir+"/tasks", "200"), h.k.WriteFile(bulk+"/schemata", "L3:0=3c;1=7ff\n")); err != nil {
		t.Fatal(err)
	}
	cut()
	if _, err := g.Restore(); err != nil {
		t.Fatal(err)
	}
	h.same(h.tree)
}

// A class that was narrowed in place has what it had before any other class is written.
func TestShareInPlaceGivesWay(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := shared(t, "skylake", func(r *fakekernel.Resctrl) { r.Lines[0].CLOSIDs = 3 })
	g := h.open()
	node := g.Base(func() {})
	had := h.group("berth-bulk")
	for range 2 { // the second time, it is cut of what it had
		if _, err := g.Apply(ctx, ways("batch/a", 6)); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Apply(ctx, ways("batch/b/c", 2)); err != nil {
			t.Fatal(err)
		}
		if got, want := h.group("berth-bulk"), "L3:0=00c;1=003 MB:0=100;1=100 tasks 102"; got != want {
			t.Errorf("cut: %s, want %s", got, want)
		}
		if err := node.WriteFile(fakekernel.ResctrlDir+"/schemata", "L3:0=7fc;1=7fc\n"); err != nil {
			t.Fatal(err)
		}
		if got := h.group("berth-bulk"); got != had {
			t.Errorf("after a write to the default group: %s, want %s", got, had)
		}
	}
}

// A guard whose groups give way to nobody leaves the last CLOSID to classes.
func TestLastCLOSID(t *testing.T) {
	t.Parallel()
	h := shared(t, "skylake", func(r *fakekernel.Resctrl) { r.Lines[0].CLOSIDs = 3 })
	g := h.open()
	if _, err := g.Apply(context.Background(), ways("batch/a", 6)); !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), "the last free one of 3 CLOSIDs is kept for a cache class") {
		t.Errorf("%v", err)
	}
	h.same(h.tree)
	g.Base(func() {})
	if _, err := g.Apply(context.Background(), ways("batch/a", 6)); err != nil {
		t.Errorf("one that gives way: %v", err)
	}
}
