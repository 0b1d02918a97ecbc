package actuate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/resctrl"
	"berth.dev/berth/kernel/sched"
)

// inForce reports whether an action is active as it is.
func inForce(t *testing.T, g *Host, a control.Action) bool {
	t.Helper()
	differs, err := g.Preview(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	return len(differs) == 0
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPreviewOnly(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		if _, err := h.open2().Apply(t.Context(), headroom(5*time.Millisecond)); err == nil || !strings.Contains(err.Error(), "to preview only") {
			t.Error(err)
		}
		h.same(h.tree)
	})
}

// The number of a class is free once its group has its own class again, and not as long as an action
// has it, even if somebody has removed the class.
func TestNumbersOfClasses(t *testing.T) {
	t.Parallel()
	a, b := send("batch/a", "eth0", 5e6), send("batch/b", "eth0", 5e6)
	for want, do := range map[string]func(h *linked, g *Host) error{
		"6be7:fff0": func(_ *linked, g *Host) error { _, err := g.Revert(t.Context(), a); return err },
		"6be7:fff1": func(h *linked, _ *Host) error {
			return errors.Join(h.root().WriteFile("sys/net/eth0/htb/fff0", "none"), h.root().WriteFile("sys/net/eth1/htb/fff0", "none"))
		},
	} {
		h := newLinked(t, "v2")
		g := h.open()
		_, err := g.Apply(t.Context(), a)
		if err = errors.Join(err, do(h, g)); err != nil {
			t.Fatal(err)
		}
		if _, err = g.Apply(t.Context(), b); err != nil || h.shown()["batch/b/berth.net_class"] != want {
			t.Errorf("%v, %v; want %s", h.shown(), err, want)
		}
	}
}

// Who is likely to have written a value.
func TestOwner(t *testing.T) {
	t.Parallel()
	h := &Host{}
	for file, want := range map[string]string{
		"sys/fs/cgroup/kubepods/besteffort/cpu.weight": " (the kubelet's)", "sys/fs/cgroup/system.slice/x.service/cpu.weight": " (systemd's)",
		"sys/fs/cgroup/user.slice/a/cpu.weight": " (systemd's)", "sys/fs/cgroup/batch/cpu.weight": "",
	} {
		if got := h.owner(file); got != want {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
}

// A group that is gone is fs.ErrNotExist whatever the kernel said, and a file that one lacks is not.
func TestFailed(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		g, there := h.open2(), headroom(0)
		gone := there
		gone.Group = "batch/gone"
		if err := g.failed("apply", gone, syscall.ENODEV); !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, syscall.ENODEV) {
			t.Errorf("gone: %v", err)
		}
		if err := g.failed("apply", there, fs.ErrNotExist); errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "batch/a") {
			t.Errorf("there: %v", err)
		}
	})
}

// To take an action back leaves the others of its group, and those of groups below it.
func TestRevertsItsOwn(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		g, cap, slow := h.open(), headroom(5*time.Millisecond), throttle(4<<20, 2<<20)
		around, below := weight(cgroup.Limits{Weight: 20}), weight(cgroup.Limits{Weight: 20})
		below.Group = "batch/a"
		for _, a := range []control.Action{cap, slow, around, below} {
			_, err := g.Apply(t.Context(), a)
			must(t, err)
		}
		for _, a := range []control.Action{cap, around} {
			_, err := g.Revert(t.Context(), a)
			must(t, err)
			if inForce(t, g, a) {
				t.Errorf("%v of %s is active still", a.Remedy, a.Group)
			}
		}
		if !inForce(t, g, slow) || !inForce(t, g, below) {
			t.Errorf("others were taken back: noted %v", g.Notes())
		}
	})
}

// A controller that the host lacks is said to be, before anything is written.
func TestWithoutController(t *testing.T) {
	t.Parallel()
	l := fakekernel.V1()
	l.CPUs, l.Mems, l.Version, l.V1 = "0-3", "0", "7.3", []string{"cpu,cpuacct"}
	dir := t.TempDir()
	k, err := fakekernel.New(dir, l)
	if err != nil {
		t.Fatal(err)
	}
	g, err := Open(Options{Root: kernel.NewRoot(dir, k)})
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Mkdir(g.trees[cgroup.CPU].Dir + "/batch"); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Preview(t.Context(), shrink("0-1")); !errors.Is(err, kernel.ErrNotSupported) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("planned: %v", err)
	}
	if why := g.Unavailable()[detect.ShrinkCPUs]; why == "" {
		t.Error("offered")
	}
}

func TestShrinkRefused(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		g, more := h.open(), shrink("0-4")
		more.Group = "batch/a"
		for want, a := range map[string]control.Action{"no CPUs would be left": shrink(""), "does not have all of CPUs 0-4, but 0-3": more} {
			if _, err := g.Apply(t.Context(), a); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		}
		h.same(h.tree)
	})
}

// On v2, where a set needs not hold those below it, they stay; on v1 one that has no CPUs yet does.
func TestShrinkLeaves(t *testing.T) {
	t.Parallel()
	h := newHost(t, "v2")
	g := h.open()
	_, err := g.Apply(t.Context(), shrink("0-1"))
	must(t, err)
	h.shows(map[string]string{h.sets + "/batch/cpuset.cpus": "0-1", h.sets + "/batch/a/cpuset.cpus": "0-3", h.sets + "/batch/b/c/cpuset.cpus": "6-7"})

	h = newHost(t, "v1")
	if err := h.k.Mkdir(h.sets + "/batch/empty"); err != nil {
		t.Fatal(err)
	}
	_, err = h.open().Apply(t.Context(), shrink("0-1"))
	must(t, err)
	h.shows(map[string]string{h.sets + "/batch/cpuset.cpus": "0-1", h.sets + "/batch/empty/cpuset.cpus": ""})
}

// A group that was made while its parent was narrowed gets what that has, too, when all is restored, or
// the writer of base values writes; one that was there before the next time does not.
func TestNewChildrenFollowAlways(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]func(h *host, g *Host) error{
		"restored": func(_ *host, g *Host) error { _, err := g.Restore(); return err },
		"written":  func(h *host, g *Host) error { return g.Base(func() {}).WriteFile(h.sets+"/batch/cpuset.cpus", "0-7") },
	} {
		h := newHost(t, "v1")
		g := h.open()
		set := func(name, cpus string) {
			h.apply(g.base.Child(name).Set(cgroup.Limits{CPUs: cpuset.MustParse(cpus)}))
		}
		_, err := g.Apply(t.Context(), shrink("0-1"))
		must(t, err)
		h.apply(g.base.Child("batch/new").Create())
		set("batch/new", "0-1")
		if err := back(h, g); err != nil {
			t.Fatal(err)
		}
		h.shows(map[string]string{h.sets + "/batch/cpuset.cpus": "0-7", h.sets + "/batch/new/cpuset.cpus": "0-7"})
		set("batch/new", "0-1") // its own by now, and as narrow as the parent will be
		_, err = g.Apply(t.Context(), shrink("0-1"))
		must(t, err)
		_, err = g.Revert(t.Context(), shrink(""))
		must(t, err)
		h.shows(map[string]string{h.sets + "/batch/new/cpuset.cpus": "0-1"})
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

// As long as a group stays idle, its weight is not taken for one that somebody else has set.
func TestWeightOfAGroupThatStaysIdle(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		g, idle := h.open(), weight(cgroup.Limits{Idle: cgroup.On})
		for _, a := range []control.Action{weight(cgroup.Limits{Weight: 20}), idle} {
			_, err := g.Apply(t.Context(), a)
			must(t, err)
		}
		noted := len(g.Notes())
		h.fate.count, h.fate.at, h.fate.err = 0, 1, syscall.EBUSY
		if _, err := g.Revert(t.Context(), idle); !errors.Is(err, syscall.EBUSY) || len(g.Notes()) != noted {
			t.Errorf("%v, noted: %v", err, g.Notes())
		}
		h.fate.at, h.fate.err = 0, nil
		_, err := g.Revert(t.Context(), idle)
		must(t, err)
		h.same(h.tree)
	})
}

// A group that somebody else has made idle is not the guard's to take back: its weight stays noted.
func TestIdleBySomebodyElse(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		g := h.open()
		_, err := g.Apply(t.Context(), weight(cgroup.Limits{Weight: 20}))
		must(t, err)
		noted := g.Notes()
		if err := h.k.WriteFile(h.cpu+"/batch/cpu.idle", "1"); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Apply(t.Context(), weight(cgroup.Limits{Weight: 10})); err == nil || len(g.Notes()) != len(noted) {
			t.Errorf("%v, noted: %v", err, g.Notes())
		}
	})
}

// Sets within each other that went different ways are restored together, without CPUs that went
// offline, and told as restored.
func TestSetsThatWentDifferentWays(t *testing.T) {
	t.Parallel()
	for online, want := range map[string][3]string{"0-7": {"0-7", "0-3", "6-7"}, "0-6": {"0-6", "0-3", "6"}, "0,2-7": {"0,2-7", "0,2-3", "6-7"}} {
		h := newHost(t, "v1")
		g := h.open()
		for _, cpus := range []string{"0-4", "0-1", "2-6"} {
			_, err := g.Apply(t.Context(), shrink(cpus))
			must(t, err)
		}
		if err := h.k.SetOnline(online); err != nil {
			t.Fatal(err)
		}
		items, err := g.Restore()
		if err != nil || len(items) == 0 {
			t.Errorf("%s online: %v, %v", online, items, err)
		}
		for _, item := range items {
			if online == "0-7" && item.Outcome != kernel.Restored {
				t.Errorf("%s online: %s is %v", online, item.Step.Path, item.Outcome)
			}
		}
		h.shows(map[string]string{h.sets + "/batch/cpuset.cpus": want[0], h.sets + "/batch/a/cpuset.cpus": want[1], h.sets + "/batch/b/c/cpuset.cpus": want[2]})
	}
}

// A lock says who has it and since when, and nothing of a longer name before. Each tree has its own.
func TestLockNamesItsHolder(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		pid := fmt.Sprint(os.Getpid())
		if err := h.k.Start(pid); err != nil {
			t.Fatal(err)
		}
		p, err := kernel.ReadProcess(h.k.FS(), pid)
		if err != nil {
			t.Fatal(err)
		}
		killed, err := Open(Options{Root: h.root(), Dir: h.state + strings.Repeat("x", 60)})
		if err != nil {
			t.Fatal(err)
		}
		if err := killed.lock.Close(); err != nil {
			t.Fatal(err)
		}
		g := h.open()
		name, err := lockFile(h.root(), g.tree())
		if err != nil {
			t.Fatal(err)
		}
		var by Holder
		text, err := os.ReadFile(name)
		if err = errors.Join(err, json.Unmarshal(text, &by)); err != nil || by.Dir != h.state || by.PID != os.Getpid() || by.Start != p.Start {
			t.Errorf("%q, %v", text, err)
		}
		if _, by, err := Look(Options{Root: h.root(), Dir: h.state}); err != nil || by.PID != os.Getpid() {
			t.Errorf("seen: %+v, %v", by, err)
		}
		if other, err := lockFile(h.root(), h.cpu+"/batch"); err != nil || other == name {
			t.Errorf("two trees have the lock %s, %v", name, err)
		}
	})
}

// The host's own view of a group: its CPUs are those around it where it has none, and processes of
// another PID namespace are some. What is no device has no limit.
func TestSettingsOfOthers(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		g := h.open()
		h.apply(g.base.Child("batch/a/in").Create())
		s, err := g.Settings("batch/a/in")
		if err != nil || s.CPUs.String() != "0-3" || s.Populated {
			t.Errorf("%+v, %v", s, err)
		}
		if err := h.k.Put(h.cpu+"/batch/a/in/cgroup.procs", "0\n0\n"); err != nil {
			t.Fatal(err)
		}
		if s, err = g.Settings("batch/a/in"); err != nil || !s.Populated {
			t.Errorf("with processes of another namespace: %+v, %v", s, err)
		}
		disks := g.trees[cgroup.IO]
		if disks.Version == 2 {
			return
		}
		if err := h.k.Put(disks.Dir+"/batch/a/blkio.throttle.read_bps_device", "8:16 7340032\nTotal 7340032\n"); err != nil {
			t.Fatal(err)
		}
		if s, err = g.Settings("batch/a"); err != nil || !slices.Equal(s.IOMax, ownIO()) {
			t.Errorf("a line that is of no device: %+v, %v", s.IOMax, err)
		}
	})
}

// Of a group with many processes some tell for all.
func TestFewScoresAreRead(t *testing.T) {
	t.Parallel()
	h := newHost(t, "v2")
	var pids []int
	for i := range maxScored + 1 {
		pids = append(pids, 1000+i)
		if err := h.k.Put(fmt.Sprintf("proc/%d/oom_score_adj", pids[i]), fmt.Sprint(-1000*(i/maxScored))); err != nil {
			t.Fatal(err)
		}
	}
	g := h.open2()
	if last := pids[maxScored:]; g.essential("", pids) != "" || g.essential("", last) == "" {
		t.Errorf("of all %q, of the last %q", g.essential("", pids), g.essential("", last))
	}
}

// A process that would be left no CPUs keeps its own, another one with the number of one that has
// ended takes nothing over, and one that ends at any instant keeps nothing from the others.
func TestProcessesComeAndGo(t *testing.T) {
	t.Parallel()
	h, s := withProcesses(t)
	a, b := s.play(player{pid: 70, state: sched.State{Affinity: cpuset.MustParse("0-3")}}), s.play(player{pid: 80})
	g := h.open()
	did, err := g.Apply(t.Context(), pin("4-5", a, b))
	if err != nil || len(did) != 1 || s.state[70].Affinity.String() != "0-3" || s.state[80].Affinity.String() != "4-5" {
		t.Errorf("%v, %v; %+v", did, err, s.state)
	}
	if plan, err := g.Preview(t.Context(), pin("4-5", a)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("about it alone: %v, %v", plan, err)
	}
	_, err = g.Revert(t.Context(), pin("4-5", a, b))
	must(t, err)
	_, err = g.Apply(t.Context(), yield(a, b))
	must(t, err)
	s.end(70)
	next := s.play(player{pid: 70, start: "999"})
	if _, err := g.Apply(t.Context(), yield(next, b)); err != nil {
		t.Error(err)
	}
	for _, item := range g.Notes() {
		if strings.HasPrefix(item.Step.Path, "proc/70@700/") {
			t.Errorf("noted still: %s", item.Step.Path)
		}
	}
	for reads := range 12 {
		h, s := withProcesses(t)
		a, b := s.play(player{pid: 70}), s.play(player{pid: 80})
		s.fades, s.reads = 70, reads
		if _, err := h.open().Apply(t.Context(), yield(a, b)); err != nil || s.state[80].Policy != sched.Idle {
			t.Errorf("one ends after %d reads: %v", reads, err)
		}
	}
}

// One that has ended and is not waited for is not acted on; neither is the guard itself.
func TestNotActedOn(t *testing.T) {
	t.Parallel()
	h, s := withProcesses(t)
	p := s.play(player{pid: 70})
	own := s.play(player{pid: 500, parent: 1})
	g := h.open()
	text, err := os.ReadFile(h.dir + "/proc/70/stat")
	if err = errors.Join(err, os.RemoveAll(h.dir+"/proc/self"), os.Symlink("500", h.dir+"/proc/self")); err != nil {
		t.Fatal(err)
	}
	s.file("proc/70/stat", strings.Replace(string(text), ") R ", ") Z ", 1))
	for p, want := range map[control.Process]string{p: "ended", own: "the guard was started by it"} {
		p.Program = ""
		if why := g.protects(p); !strings.Contains(why, want) {
			t.Errorf("process %d: %q, want %q", p.PID, why, want)
		}
	}
}

// On v1 it is the tree of the CPU controller that tells whether a process is in a group.
func TestGroupedOnV1(t *testing.T) {
	t.Parallel()
	h := newHost(t, "v1")
	g := h.open2()
	for text, want := range map[string]string{
		"3:cpu,cpuacct:/\n1:name=systemd:/user.slice\n":    "",
		"3:cpu,cpuacct:/batch\n1:name=systemd:/user.slice": "it is in the group /batch",
	} {
		if err := h.k.Put("proc/70/cgroup", text); err != nil {
			t.Fatal(err)
		}
		if got := g.grouped("70"); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// Which of the guard's values a write of base values removes: those of the group, with CPUs those around
// and below it; none for what is no setting, and none of a group that was there before.
func TestUncovers(t *testing.T) {
	t.Parallel()
	for file, left := range map[string][]string{
		"batch/a/cpuset.cpus": {"batch/b", "batch/b/c"}, "batch/cpuset.cpus": nil, "batch/cpuset.mems": nil, "batch/b/cpuset.cpus": {"batch/a"},
		"batch/b/c/cpuset.cpus": {"batch/a"},
	} {
		h := newHost(t, "v1")
		g := h.open()
		_, err := g.Apply(t.Context(), shrink("0-1"))
		must(t, err)
		if some, err := g.uncover(h.sets + "/" + file); err != nil || !some {
			t.Errorf("%s: %v, %v", file, some, err)
		}
		var got []string
		for _, item := range g.Notes() {
			got = append(got, strings.TrimSuffix(strings.TrimPrefix(item.Step.Path, h.sets+"/"), "/cpuset.cpus"))
		}
		if slices.Sort(got); !slices.Equal(got, left) {
			t.Errorf("%s: noted still %q, want %q", file, got, left)
		}
	}
	eachLayout(t, func(t *testing.T, h *host) {
		g := h.open()
		_, err := g.Apply(t.Context(), headroom(5*time.Millisecond))
		must(t, err)
		for _, file := range []string{"cgroup.kill", "freezer.state"} {
			if some, err := g.uncover(h.cpu + "/batch/a/" + file); some || err != nil || len(g.Notes()) == 0 {
				t.Errorf("%s: %v, %v", file, some, err)
			}
		}
		for _, dir := range g.base.Child("batch/a").Dirs() {
			if err := h.k.Rmdir(dir); kernel.IgnoreAbsent(err) != nil {
				t.Fatal(err)
			}
		}
		h.apply(g.base.Child("batch/a").Create())
		if some, err := g.uncover(h.cpu + "/batch/a/cpu.weight"); some || err != nil {
			t.Errorf("made anew: %v, %v", some, err)
		}
	})
}

// The writer of base values reads the CPUs that a group would have without the guard.
func TestEffectiveByBase(t *testing.T) {
	t.Parallel()
	h := newHost(t, "v2")
	g := h.open()
	name := h.sets + "/batch/a/cpuset.cpus.effective"
	_, err := g.Apply(t.Context(), shrink("0-1"))
	must(t, err)
	h.shows(map[string]string{name: "0-1"})
	if text, err := fs.ReadFile(g.Base(func() {}).FS(), name); err != nil || strings.TrimSpace(string(text)) != "0-3" {
		t.Errorf("%q, %v", text, err)
	}
}

// Ways are those of the last level alone.
func TestLastLevel(t *testing.T) {
	t.Parallel()
	h := shared(t, "sapphirerapids", nil)
	_, err := h.open().Apply(t.Context(), ways("batch/a", 6))
	must(t, err)
	if got := h.group(resctrl.GuardGroup("batch/a")); !strings.Contains(got, "L2:0=ffff") && !strings.Contains(got, "L2:0=0ffff") || !strings.Contains(got, "L3:0=003f") {
		t.Error(got)
	}
}

// A share of bandwidth on top of one of ways leaves that, also when what is active is fitted anew, and when it
// is taken back first.
func TestSharesStayApart(t *testing.T) {
	t.Parallel()
	h := shared(t, "skylake", nil)
	g := h.open()
	for _, a := range []control.Action{ways("batch/a", 6), bandwidth("batch/a", 50)} {
		_, err := g.Apply(t.Context(), a)
		must(t, err)
	}
	must(t, g.Follow())
	is := func(want string) {
		t.Helper()
		if got := h.group(resctrl.GuardGroup("batch/a")); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	is("L3:0=03f;1=03f MB:0=50;1=50 tasks 100 101")
	_, err := g.Revert(t.Context(), bandwidth("batch/a", 50))
	must(t, err)
	is("L3:0=03f;1=03f MB:0=100;1=100 tasks 100 101")
}

// The default group is narrowed for nobody, though one group has all of its threads.
func TestDefaultGroupStays(t *testing.T) {
	t.Parallel()
	h := shared(t, "skylake", func(r *fakekernel.Resctrl) { r.Lines[0].CLOSIDs = 2 })
	if err := h.k.WriteFile(fakekernel.ResctrlDir+"/berth-bulk/tasks", "200"); err != nil {
		t.Fatal(err)
	}
	before := h.now()
	if _, err := h.open().Apply(t.Context(), ways("batch/a", 6)); err == nil || !strings.Contains(err.Error(), "all 2 CLOSIDs of the CPU are in use") {
		t.Error(err)
	}
	h.same(before)
}

// A share of which the kernel refuses any write leaves nothing behind.
func TestSharesRefusedByTheKernel(t *testing.T) {
	t.Parallel()
	for at := 1; ; at++ {
		h := shared(t, "skylake", nil)
		h.fate.count, h.fate.at, h.fate.err = 0, at, syscall.EBUSY
		g := h.open()
		_, err := g.Apply(t.Context(), ways("batch/a", 6))
		h.fate.at, h.fate.err = 0, nil
		if err == nil {
			if at < 3 {
				t.Errorf("%d writes in all", at-1)
			}
			return
		}
		if h.same(h.tree); !errors.Is(err, syscall.EBUSY) || len(g.Notes()) > 0 {
			t.Errorf("write %d: %v, noted: %v", at, err, g.Notes())
		}
	}
}

// Threads that another program monitors stay where they are, though their group has a share; and where
// somebody has removed the guard's group, to follow is no error.
func TestSharesOfOthers(t *testing.T) {
	t.Parallel()
	const dir = fakekernel.ResctrlDir
	h := shared(t, "skylake", nil)
	g := h.open()
	_, err := g.Apply(t.Context(), ways("batch/a", 6))
	must(t, err)
	err = errors.Join(h.k.Start("103"), h.k.Mkdir(dir+"/mon_groups/x"), h.k.WriteFile(dir+"/mon_groups/x/tasks", "103"), h.k.WriteFile(h.cpu+"/batch/a/cgroup.procs", "103"), g.Follow())
	if got := h.group(resctrl.GuardGroup("batch/a")); err != nil || !strings.HasSuffix(got, "tasks 100 101") {
		t.Errorf("%s, %v", got, err)
	}
	if err := errors.Join(h.k.Rmdir(dir+"/"+resctrl.GuardGroup("batch/a")), g.Follow()); err != nil {
		t.Error(err)
	}
}

// A thread that has just moved to another class is found by the next turn: it is no error.
func TestMonitorsWhatMoves(t *testing.T) {
	t.Parallel()
	h := shared(t, "skylake", nil)
	g := h.open()
	h.fate.count, h.fate.at, h.fate.err = 0, 1, syscall.EINVAL
	if _, err := g.Monitor(leaves[1:2], nil); err != nil || h.fate.count == 0 {
		t.Errorf("%v after %d writes", err, h.fate.count)
	}
	h.fate.at, h.fate.err = 0, nil
	if _, err := g.Monitor(leaves[1:2], nil); err != nil {
		t.Error(err)
	}
	h.wantMonitored("berth-bulk batch/b/c [102]")
	h.fate.count = 0
	if _, err := g.Monitor(leaves[1:2], nil); err != nil || h.fate.count > 0 {
		t.Errorf("with nothing to do: %d writes, %v", h.fate.count, err)
	}
}
