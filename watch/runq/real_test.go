package runq

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/fork"
	"berth.dev/berth/kernel"
	"golang.org/x/sys/unix"
)

// The tests in this file run the probe in this machine's kernel, with spinning
// shells in control groups of their own. They share one CPU, so not in parallel.

// realRoot finds a hierarchy that the probe understands and in which this
// process may make groups, and waits until no other test uses it: heavy groups
// starve what else runs on their CPU.
func realRoot(t testing.TB) string {
	t.Helper()
	if err := Available(os.DirFS("/")); err != nil {
		t.Skip(err)
	}
	for _, root := range []string{"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup"} {
		if _, err := hierarchy(root); err == nil {
			fakekernel.LockHost(t, fakekernel.Alone)
			return root
		}
	}
	t.Skip("neither the v1 cpu controller nor v2 is mounted at its usual place")
	return ""
}

func newGroup(t testing.TB, root, name string) string {
	t.Helper()
	path := fmt.Sprintf("/berth-runq-%d-%s", os.Getpid(), name)
	dir := filepath.Join(root, path)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip("cannot make control groups: ", err)
	}
	t.Cleanup(func() { removeGroup(t, dir) })
	return path
}

// newHeavyGroup makes a group that outweighs whatever else runs on the first CPU, for which this
// process needs another one.
func newHeavyGroup(t testing.TB, root, name string) string {
	t.Helper()
	if allowed := allowedCPUs(t); allowed.Count() < 2 {
		t.Skip("needs two CPUs")
	}
	path := newGroup(t, root, name)
	for file, value := range map[string]string{"cpu.shares": "262144", "cpu.weight": "10000"} {
		if _, err := os.Stat(filepath.Join(root, path, file)); err == nil {
			write(t, filepath.Join(root, path, file), value)
		}
	}
	return path
}

// removeGroup waits for the kernel to let go of tasks that have ended.
func removeGroup(t testing.TB, dir string) {
	t.Helper()
	var err error
	if !holds(func() bool {
		err = unix.Rmdir(dir)
		return err == nil || errors.Is(err, unix.ENOENT)
	}) {
		t.Errorf("remove %s: %v", dir, err)
	}
}

// holds waits until something holds, and says whether it did: on a busy host that takes long.
func holds(what func() bool) bool {
	for until := time.Now().Add(time.Minute); !what(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(until) {
			return false
		}
	}
	return true
}

func write(t testing.TB, path, value string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

// start runs a command in a group, on one CPU, until the test ends.
func start(t testing.TB, root, group string, cmd *exec.Cmd) (pid int) {
	t.Helper()
	if err := fork.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	var cpu unix.CPUSet
	cpu.Set(firstCPU(t))
	if err := unix.SchedSetaffinity(cmd.Process.Pid, &cpu); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, group, "cgroup.procs"), strconv.Itoa(cmd.Process.Pid))
	return cmd.Process.Pid
}

func spin(t testing.TB, root, group string) (pid int) {
	return start(t, root, group, exec.Command("sh", "-c", "while :; do :; done"))
}

// awaitState waits until a process sleeps ('S'), or is stopped ('T').
func awaitState(t testing.TB, pid int, state byte) {
	t.Helper()
	if !holds(func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		return text[strings.LastIndexByte(string(text), ')')+2] == state
	}) {
		t.Fatalf("process %d is not in state %c", pid, state)
	}
}

func allowedCPUs(t testing.TB) (allowed unix.CPUSet) {
	t.Helper()
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	return allowed
}

func firstCPU(t testing.TB) int {
	t.Helper()
	allowed := allowedCPUs(t)
	for cpu := range 1024 {
		if allowed.IsSet(cpu) {
			return cpu
		}
	}
	t.Fatal("no CPU allowed")
	return 0
}

func open(t testing.TB, o Options, groups ...string) *Probe {
	t.Helper()
	p, err := Open(o)
	if errors.Is(err, kernel.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, group := range groups {
		if err := p.Add(group); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Arm(); err != nil {
		t.Fatal(err)
	}
	return p
}

// lost is how many waits were not recorded since the probe was armed, as too many tasks
// waited at once.
func lost(t testing.TB, p *Probe) (n uint64) {
	t.Helper()
	for cpu := range p.layout.cpus {
		var c runqCpu
		if err := p.objects.Cpus.Lookup(uint32(cpu), &c); err != nil {
			t.Fatal(err)
		}
		n += c.Lost
	}
	return n
}

func read(t testing.TB, p *Probe) *Snapshot {
	t.Helper()
	s := new(Snapshot)
	if err := p.Read(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// settled reads while the first group has no long wait under way: what that has cost so far has
// culprits, and is not counted yet. Where the host has no CPU to give, such waits are longer.
func settled(t *testing.T, p *Probe) (s *Snapshot) {
	t.Helper()
	holds(func() bool {
		s = read(t, p)
		return (sum(s.Groups[0].Shares) - s.Groups[0].Wait).Abs() < 10*time.Millisecond
	})
	return s
}

// during returns what the first group suffered in a quarter of a second or little more.
func during(t *testing.T, p *Probe) *Group {
	t.Helper()
	time.Sleep(20 * time.Millisecond) // until all run
	before := settled(t, p)
	time.Sleep(250 * time.Millisecond)
	var delta Snapshot
	delta.Since(before, settled(t, p))
	g := &delta.Groups[0]
	t.Logf("%d waits, %v, by %v, cost %v in %d runs", g.Waits, g.Wait, g.Shares, delta.Cost.Time, delta.Cost.Runs)
	if n := lost(t, p); n != 0 || g.Dropped != (Share{}) {
		t.Errorf("lost %d waits, dropped %+v, want none", n, g.Dropped)
	}
	return g
}

// attempt keeps what is wrong for shown, which may try again.
type attempt struct {
	*testing.T
	wrong []string
}

func (a *attempt) Errorf(format string, args ...any) {
	a.wrong = append(a.wrong, fmt.Sprintf(format, args...))
}

// shown measures until nothing is wrong, eight times at most: others on the host
// may have the CPU instead of the victim or the culprit. Whether the books balance is
// no matter of who else runs, and is not tried again, but for waits that move: one
// under way at either end may be long.
func shown(t *testing.T, measure func(*attempt)) {
	t.Helper()
	var wrong []string
	for range 8 {
		a := &attempt{T: t}
		if measure(a); len(a.wrong) == 0 {
			return
		}
		wrong = append(wrong, a.wrong...)
	}
	t.Error(strings.Join(wrong, "\n"))
}

// reporter is a test, or an attempt.
type reporter interface {
	Helper()
	Errorf(string, ...any)
}

// blamed checks that one culprit has more than nine tenths of a group's wait.
func blamed(t reporter, g *Group, culprit Culprit) {
	t.Helper()
	if by, all := g.Share(culprit).Wait, sum(g.Shares); by < 50*time.Millisecond || float64(by) <= 0.9*float64(all) {
		t.Errorf("%v waited for %v, want more than 90 %% of %v and 50 ms", by, culprit, all)
	}
	var least, most time.Duration
	for i, n := range g.Histogram[:buckets-1] {
		from, to := g.Histogram.Bounds(i)
		least += from * time.Duration(n)
		most += to * time.Duration(n)
	}
	if g.Histogram.Count() != g.Waits || g.Wait < least || g.Wait > most {
		t.Errorf("%d waits of %v, in the histogram %d from %v to %v", g.Waits, g.Wait, g.Histogram.Count(), least, most)
	}
}

// addsUp checks that all wait has a culprit, but for waits under way at either
// end, of a few time slices.
func addsUp(t reporter, g *Group) {
	t.Helper()
	if all := sum(g.Shares); (all - g.Wait).Abs() > 30*time.Millisecond {
		t.Errorf("shares add up to %v, waits to %v", all, g.Wait)
	}
}

func sum(shares []Share) (all time.Duration) {
	for _, s := range shares {
		all += s.Wait
	}
	return all
}

func TestForeignWaitIsTheCulprits(t *testing.T) {
	root := realRoot(t)
	victim, culprit := newHeavyGroup(t, root, "victim"), newHeavyGroup(t, root, "culprit")
	pid := spin(t, root, victim)
	spin(t, root, culprit)
	p := open(t, Options{Root: root}, victim)
	shown(t, func(t *attempt) {
		least, start, most := runDelay(t.T, pid), read(t.T, p), runDelay(t.T, pid)
		g := during(t.T, p)
		least, most = runDelay(t.T, pid)-most, -least // what the kernel counted between the snapshots, at least
		var whole Snapshot
		whole.Since(start, read(t.T, p))
		most += runDelay(t.T, pid) // and around them: this process may have waited between any two of these readings

		if len(g.Shares) == 0 {
			t.Errorf("nobody had the CPU meanwhile")
			return
		}
		by, _ := g.Shares[0].Culprit.Group()
		if name, err := p.Name(by); err != nil || name != culprit {
			t.Errorf("most wait by %v, which is %q (%v), want %q", g.Shares[0].Culprit, name, err, culprit)
		}
		blamed(t, g, g.Shares[0].Culprit)
		addsUp(t.T, g)
		if g.Shares[0].Preemptions == 0 {
			t.Errorf("the culprit never pre-empted, want some")
		}
		// The kernel keeps the same figure by other means.
		if w := whole.Groups[0].Wait; w < least-least/10 || w > most+most/10 {
			t.T.Errorf("waited %v, want the %v to %v of schedstat", w, least, most)
		}
	})
}

// runDelay is the second figure of /proc/PID/schedstat.
func runDelay(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		t.Skip(err)
	}
	ns, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(ns)
}

func TestOwnWaitIsSelf(t *testing.T) {
	root := realRoot(t)
	victim := newHeavyGroup(t, root, "victim")
	below := newGroup(t, filepath.Join(root, victim), "below")
	spin(t, root, victim)
	spin(t, filepath.Join(root, victim), below)
	p := open(t, Options{Root: root}, victim)
	shown(t, func(t *attempt) {
		g := during(t.T, p)
		blamed(t, g, Culprit(g.ID))
		addsUp(t.T, g)
	})
}

func TestIdleGroupHasNoWait(t *testing.T) {
	root := realRoot(t)
	victim, culprit := newGroup(t, root, "victim"), newGroup(t, root, "culprit")
	awaitState(t, start(t, root, victim, exec.Command("sleep", "1000")), 'S')
	spin(t, root, culprit)
	if g := during(t, open(t, Options{Root: root}, victim)); g.Waits != 0 || len(g.Shares) != 0 {
		t.Errorf("a sleeping group waited: %+v", g)
	}
}

// TestMovedWaitIsCountedOnce moves a waiting task to and fro between two CPUs
// that a culprit keeps busy; no heavy one, which would starve this process too.
func TestMovedWaitIsCountedOnce(t *testing.T) {
	root := realRoot(t)
	victim, culprit := newGroup(t, root, "victim"), newGroup(t, root, "culprit")
	var cpus []unix.CPUSet
	allowed := allowedCPUs(t)
	for cpu := 0; cpu < 1024 && len(cpus) < 2; cpu++ {
		if allowed.IsSet(cpu) {
			var one unix.CPUSet
			one.Set(cpu)
			cpus = append(cpus, one)
		}
	}
	if len(cpus) < 2 {
		t.Skip("needs two CPUs")
	}
	p := open(t, Options{Root: root}, victim)
	moved := spin(t, root, victim)
	spin(t, root, culprit)
	if err := unix.SchedSetaffinity(spin(t, root, culprit), &cpus[1]); err != nil {
		t.Fatal(err)
	}
	// A wait that moved unseen is in none of the figures, and the waits under way at either end are long.
	shown(t, func(t *attempt) {
		before, start := runDelay(t.T, moved), read(t.T, p)
		for i := 0; i < 50 || i < 1000 && runDelay(t.T, moved)-before < 20*time.Millisecond; i++ {
			if err := unix.SchedSetaffinity(moved, &cpus[i%2]); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Millisecond)
		}
		var delta Snapshot
		delta.Since(start, read(t.T, p))
		g := &delta.Groups[0]
		kernels := runDelay(t.T, moved) - before
		t.Logf("%d waits, %v, of the kernel's %v, by %v", g.Waits, g.Wait, kernels, g.Shares)
		addsUp(t, g)
		if off := (g.Wait - kernels).Abs(); g.Wait < 10*time.Millisecond || off > kernels/10+20*time.Millisecond {
			t.Errorf("waited %v, want the %v of schedstat", g.Wait, kernels)
		}
	})
}

// TestMovedUnseenWaitsNoMore makes up a wait on another CPU of a task that then runs on this one. It
// happens once in half a minute to a service beside a hog; left there, it would wait for ever.
func TestMovedUnseenWaitsNoMore(t *testing.T) {
	for _, beside := range []string{"victim", "hog"} { // of the hog nobody looks at a switch to the victim
		t.Run("beside a "+beside, func(t *testing.T) { movedUnseenWaitsNoMore(t, beside) })
	}
}

func movedUnseenWaitsNoMore(t *testing.T, beside string) {
	root := realRoot(t)
	groups := map[string]string{"victim": newGroup(t, root, "victim"), "hog": newGroup(t, root, "hog")}
	victim := groups["victim"]
	pid := spin(t, root, victim)
	spin(t, root, groups[beside])
	p := open(t, Options{Root: root}, victim)
	if p.layout.cpus < 2 {
		t.Skip("needs two CPUs")
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	awaitState(t, pid, 'T')
	other := uint32(1)
	if firstCPU(t) == 1 {
		other = 0
	}
	var armed uint32
	if err := p.objects.Armed.Get(&armed); err != nil {
		t.Fatal(err)
	}
	var c runqCpu
	id := p.slots[0].id
	start := uint64(ktime(t))
	made := runqStamp{Owner: uint64(armed)<<32 | uint64(pid), Id: id, Start: start, Cpu: other}
	c.Mask, c.Waiting[0].Id, c.Waiting[0].Tasks, c.Waiting[0].Since, c.Waiting[0].Throttled = 1, id, 1, start, 1
	if err := errors.Join(p.objects.Cpus.Put(other, c), p.objects.Stamps.Put(uint32(pid)&(32768-1), made), unix.Kill(pid, unix.SIGCONT)); err != nil {
		t.Fatal(err)
	}
	holds(func() bool {
		done := c.Waiting[0].Tasks == 0 // and a look later, all of it
		if err := p.objects.Cpus.Lookup(other, &c); err != nil {
			t.Fatal(err)
		}
		return done
	})
	if w := c.Waiting[0]; w.Tasks != 0 || w.Throttled != 0 || w.Left != 0 {
		t.Errorf("%+v waits on CPU %d, want none", w, other)
	}
}

// TestLeftUnseenIsCounted makes up tasks that wait on a CPU, and posts of such that have left it.
func TestLeftUnseenIsCounted(t *testing.T) {
	root := realRoot(t)
	p := open(t, Options{Root: root}, newGroup(t, root, "victim"))
	cpu := uint32(firstCPU(t))
	const ms = time.Millisecond
	for _, tc := range []struct {
		name         string
		tasks, posts uint64
		left         time.Duration // each, from when they begin to wait or were settled
		remain       uint64
		charged      time.Duration // negative: of one that remains, up to now
	}{
		{"one", 1, 1, 5 * ms, 0, 5 * ms},
		{"both", 2, 2, 5 * ms, 0, 10 * ms},
		{"one of two", 2, 1, 0, 1, -1},
		{"one, before the last settle", 1, 1, -1000 * ms, 0, 0},
		{"more than there are, of a group before", 1, 3, 5 * ms, 1, -1},
	} {
		before, begin := read(t, p), ktime(t)
		var c runqCpu
		w := &c.Waiting[0]
		w.Id, w.Tasks, w.Since, w.Throttled, c.Mask = p.slots[0].id, tc.tasks, tc.tasks*uint64(begin), 1, 0
		w.Left = tc.posts<<56 + tc.posts*uint64((begin+tc.left)>>10+1)
		err := p.objects.Cpus.Put(cpu, c)
		c.Mask = 1 // once all is there
		if err := errors.Join(err, p.objects.Cpus.Put(cpu, c)); err != nil {
			t.Fatal(err)
		}
		holds(func() bool {
			done := w.Left == 0 // and a look later, all of it
			if err := p.objects.Cpus.Lookup(cpu, &c); err != nil {
				t.Fatal(err)
			}
			return done
		})
		if w.Left != 0 || w.Tasks != tc.remain || w.Throttled != tc.remain || c.Mask != tc.remain {
			t.Errorf("%s: mask %d, %+v, want %d tasks", tc.name, c.Mask, w, tc.remain)
		}
		if err := p.objects.Cpus.Put(cpu, runqCpu{}); err != nil {
			t.Fatal(err)
		}
		var delta Snapshot
		delta.Since(before, read(t, p))
		got, most := delta.Groups[0].Share(Throttled).Wait, tc.charged+time.Duration(tc.posts)*2*time.Microsecond
		if tc.charged < 0 {
			most = ktime(t) - begin
		}
		if got < max(tc.charged, 0) || got > most {
			t.Errorf("%s: waited %v, want %v to %v", tc.name, got, max(tc.charged, 0), most)
		}
	}
}

// ktime is the clock of the probe.
func ktime(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

func TestThrottledWaitIsTheQuotas(t *testing.T) {
	root := realRoot(t)
	victim := newHeavyGroup(t, root, "victim")
	dir := filepath.Join(root, victim)
	if _, err := os.Stat(filepath.Join(dir, "cpu.cfs_quota_us")); err == nil {
		write(t, filepath.Join(dir, "cpu.cfs_quota_us"), "10000")
	} else if err := os.WriteFile(filepath.Join(dir, "cpu.max"), []byte("10000 100000"), 0); err != nil {
		t.Skip("no cpu controller in the group: ", err)
	}
	spin(t, root, victim)
	spin(t, root, newGroup(t, root, "culprit"))
	p := open(t, Options{Root: root}, victim)
	shown(t, func(t *attempt) { blamed(t, during(t.T, p), Throttled) })
}

func TestGuardDisarms(t *testing.T) {
	root := realRoot(t)
	p := open(t, Options{Root: root, MaxShare: 1e-9}, newGroup(t, root, "victim"))
	p.guard.window = 10 * time.Millisecond
	var s Snapshot
	time.Sleep(p.guard.window)
	if err := p.Read(&s); err != nil { // of two windows in a row, the first is borne
		t.Fatal(err)
	}
	time.Sleep(p.guard.window)
	var over *CostError
	if err := p.Read(&s); !errors.As(err, &over) || s.Cost.Runs == 0 {
		t.Fatalf("Read = %v after cost %+v, want a CostError after some", err, s.Cost)
	}
	if p.links != nil || p.guard.measuring {
		t.Error("the guard has left the probe attached or the kernel measuring")
	}
}

// TestRearm has a wait under way when the probe is disarmed, and a pause that is
// not to count.
func TestRearm(t *testing.T) {
	root := realRoot(t)
	victim := newHeavyGroup(t, root, "victim")
	p := open(t, Options{Root: root}, victim)
	begin := time.Now()
	spin(t, root, victim)
	spin(t, root, victim)
	holds(func() bool { return read(t, p).Groups[0].Wait > 20*time.Millisecond })
	if err := p.Disarm(); err != nil {
		t.Fatal(err)
	}
	armed := time.Since(begin)
	counted := read(t, p).Groups[0].Wait
	time.Sleep(200 * time.Millisecond)
	if pause := read(t, p).Groups[0].Wait - counted; pause != 0 {
		t.Errorf("counted %v while disarmed", pause)
	}
	begin = time.Now()
	if err := p.Arm(); err != nil {
		t.Fatal(err)
	}
	var g Group
	holds(func() bool {
		g = read(t, p).Groups[0]
		return g.Wait > counted
	})
	armed += time.Since(begin)
	if g.Wait <= counted || sum(g.Shares) > armed+5*time.Millisecond {
		t.Errorf("waited %v after %v, shares %v, want more, and at most the %v that it was armed", g.Wait, counted, sum(g.Shares), armed)
	}
}

func TestAddRemove(t *testing.T) {
	root := realRoot(t)
	one, two := newGroup(t, root, "one"), newGroup(t, root, "two")
	p := open(t, Options{Root: root, Room: 1}, one)
	spin(t, root, one)
	spin(t, root, one)
	if !holds(func() bool { return during(t, p).Waits > 0 }) {
		t.Error("no waits before removal")
	}
	for _, tc := range []struct {
		name, want string
		err        error
	}{
		{"again", "", p.Add(one)},
		{"full", "room", p.Add(two)},
		{"below", "overlaps", p.Add(one + "/below")},
		{"above", "overlaps", p.Add("/")},
		{"remove", "", p.Remove(one)},
		{"remove again", "not watched", p.Remove(one)},
		{"not there", "no such file", p.Add("/berth-no-such-group")},
		{"into the free place", "", p.Add(two)},
	} {
		checkError(t, tc.name, tc.err, tc.want)
	}
	during(t, p)
	if g := read(t, p).Groups[0]; g.Path != two || g.Waits != 0 || len(g.Shares) != 0 {
		t.Errorf("group in a reused place = %s with %d waits by %v, want %s with none", g.Path, g.Waits, g.Shares, two)
	}
}

// TestNoRoomForCulprits fills the table of culprits before there is one.
func TestNoRoomForCulprits(t *testing.T) {
	root := realRoot(t)
	victim := newHeavyGroup(t, root, "victim")
	p := open(t, Options{Root: root, Room: 1}, victim)
	full := runqGroup{Id: p.slots[0].id}
	for i := range full.Culprits {
		full.Culprits[i].Id = 1<<40 + uint64(i)
	}
	for cpu := range p.layout.cpus {
		if err := p.objects.Groups.Put(uint32(cpu), full); err != nil {
			t.Fatal(err)
		}
	}
	spin(t, root, victim)
	spin(t, root, victim)
	var g Group
	holds(func() bool {
		g = read(t, p).Groups[0]
		return g.Dropped.Wait >= 30*time.Millisecond && g.Wait >= 30*time.Millisecond && g.Dropped.Preemptions > 0
	})
	if g.Dropped.Wait < 30*time.Millisecond || g.Dropped.Preemptions == 0 || sum(g.Shares) != 0 {
		t.Errorf("dropped %+v, charged %v, want all dropped", g.Dropped, sum(g.Shares))
	}
	if g.Wait < 30*time.Millisecond {
		t.Errorf("waited %v, want all of it though the culprits are lost", g.Wait)
	}
}

func TestNoRoomForWaits(t *testing.T) {
	root := realRoot(t)
	victim := newHeavyGroup(t, root, "victim")
	p := open(t, Options{Root: root}, victim)
	places := make([]uint32, p.objects.Stamps.MaxEntries())
	taken := make([]runqStamp, len(places))
	for i := range places {
		places[i], taken[i].Owner = uint32(i), 1<<32|(1<<30+uint64(i)) // armed once
	}
	if _, err := p.objects.Stamps.BatchUpdate(places, taken, nil); err != nil {
		t.Fatal(err)
	}
	spin(t, root, victim)
	spin(t, root, victim)
	holds(func() bool { return lost(t, p) > 0 })
	if n, s := lost(t, p), read(t, p); n == 0 || s.Groups[0].Waits != 0 {
		t.Errorf("lost %d waits, recorded %d, want all lost", n, s.Groups[0].Waits)
	}
}

func TestNoRoomForGroups(t *testing.T) {
	root := realRoot(t)
	victim := newGroup(t, root, "victim")
	p := open(t, Options{Root: root, Room: 1, MaxShare: -1})
	ids := make([]uint64, p.objects.Watch.MaxEntries())
	for i := range ids {
		ids[i] = 1<<40 + uint64(i)
	}
	if _, err := p.objects.Watch.BatchUpdate(ids, make([]runqWatched, len(ids)), nil); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a failed Add leaves its place free
		checkError(t, "full", p.Add(victim), "argument list too long")
	}
	if _, err := p.objects.Watch.BatchDelete(ids, nil); err != nil {
		t.Fatal(err)
	}
	checkError(t, "emptied", p.Add(victim), "")
}

func TestReadDoesNotAllocate(t *testing.T) {
	root := realRoot(t)
	p := open(t, Options{Root: root, MaxShare: -1}, newGroup(t, root, "victim"))
	var before, after, delta Snapshot
	allocs := testing.AllocsPerRun(10, func() {
		if err := errors.Join(p.Read(&before), p.Read(&after)); err != nil {
			t.Fatal(err)
		}
		delta.Since(&before, &after)
	})
	if allocs != 0 {
		t.Errorf("reading twice allocates %v times, want 0", allocs)
	}
}

// TestCrowdedGroupCostsItself has the owner of a watched group make more groups in it
// than the probe has room for: only that group is watched no more.
func TestCrowdedGroupCostsItself(t *testing.T) {
	root := realRoot(t)
	crowd, victim := newGroup(t, root, "crowd"), newHeavyGroup(t, root, "victim")
	p := open(t, Options{Root: root, Room: 2}, crowd, victim)
	spin(t, root, victim)
	spin(t, root, victim)
	var made []string
	clear := func() {
		for _, dir := range made {
			removeGroup(t, dir)
		}
		made = nil
	}
	t.Cleanup(clear)
	for i := range 2 * MaxBelow {
		dir := filepath.Join(root, crowd, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		made = append(made, dir)
	}
	var crowded *CrowdedError
	for _, when := range []string{"watched", "anew"} {
		if err := p.Add(crowd); !errors.As(err, &crowded) || crowded.Path != crowd {
			t.Errorf("%s: %v, want a CrowdedError of %s", when, err, crowd)
		}
	}
	if err := p.Add(victim); err != nil {
		t.Error(err)
	}
	shown(t, func(t *attempt) {
		g := during(t.T, p)
		if g.Path != victim {
			t.T.Fatalf("watches %s, want %s alone", g.Path, victim)
		}
		blamed(t, g, Culprit(g.ID))
		addsUp(t.T, g)
	})
	clear()
	if err := p.Add(crowd); err != nil {
		t.Errorf("once it is small again: %v", err)
	}
}

// TestYoungGroupsCountAsTheirParent has the CPU taken by groups that live for less than
// a second each, one within another: the group around them is the culprit, and none of
// them takes a place among the culprits.
func TestYoungGroupsCountAsTheirParent(t *testing.T) {
	root := realRoot(t)
	victim, batch := newHeavyGroup(t, root, "victim"), newHeavyGroup(t, root, "batch")
	spin(t, root, victim)
	spinner := spin(t, root, batch)
	p := open(t, Options{Root: root}, victim)
	stop, ended := make(chan struct{}), make(chan error)
	var oldest time.Duration
	procs := func(path ...string) string {
		return filepath.Join(append([]string{root, batch}, append(path, "cgroup.procs")...)...)
	}
	go func() {
		for i := 0; ; i++ {
			outer, pid := fmt.Sprint(i), []byte(strconv.Itoa(spinner))
			dir := filepath.Join(root, batch, outer, "inner")
			born := time.Now()
			err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(procs(outer, "inner"), pid, 0))
			time.Sleep(50 * time.Millisecond)
			err = errors.Join(err, os.WriteFile(procs(), pid, 0))
			oldest = max(oldest, time.Since(born))
			err = errors.Join(err, unix.Rmdir(dir), unix.Rmdir(filepath.Dir(dir)))
			select {
			case <-stop:
				ended <- err
				return
			default:
				if err != nil {
					<-stop
					ended <- err
					return
				}
			}
		}
	}()
	shown(t, func(t *attempt) {
		g := during(t.T, p)
		if len(g.Shares) == 0 {
			t.Errorf("nobody had the CPU meanwhile")
			return
		}
		by, _ := g.Shares[0].Culprit.Group()
		if name, err := p.Name(by); err != nil || name != batch {
			t.Errorf("most wait by %q, %v, want %s", name, err, batch)
		}
		blamed(t, g, g.Shares[0].Culprit)
	})
	all := read(t, p).Groups[0].Shares
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if oldest > 900*time.Millisecond {
		t.Skipf("a group lived for %v, as this host had no CPU for the test: it counts by itself", oldest)
	}
	places := 0 // of the group around them; the name of one that has ended is that, too
	for _, s := range all {
		id, ok := s.Culprit.Group()
		if !ok {
			continue
		}
		name, err := p.Name(id)
		if places += strings.Count(name, batch); places > 1 || err != nil {
			t.Errorf("a culprit of its own: %v, %q, %v", s, name, err)
		}
	}
}

// TestName has groups named while they are there, and by a group above them after
// they have ended.
func TestName(t *testing.T) {
	root := realRoot(t)
	before := newGroup(t, root, "before")
	id := func(path string) uint64 {
		ids, err := idsBelow(root, path)
		if err != nil {
			t.Fatal(err)
		}
		return ids[0]
	}
	old := newGroup(t, filepath.Join(root, before), "old")
	gone := id(before + old)
	p := open(t, Options{Root: root, MaxShare: -1})
	if name, err := p.Name(gone); err != nil || name != before+old {
		t.Errorf("%q, %v, want %s", name, err, before+old)
	}
	removeGroup(t, filepath.Join(root, before, old))
	if name, err := p.Name(gone); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a group that ended, made before the probe was armed: %q, %v", name, err)
	}
	outer := newGroup(t, filepath.Join(root, before), "outer")
	inner := newGroup(t, filepath.Join(root, before, outer), "inner")
	made := id(before + outer + inner)
	if name, err := p.Name(made); err != nil || name != before+outer+inner {
		t.Errorf("%q, %v, want %s", name, err, before+outer+inner)
	}
	removeGroup(t, filepath.Join(root, before, outer, inner))
	removeGroup(t, filepath.Join(root, before, outer))
	if name, err := p.Name(made); err != nil || name != before {
		t.Errorf("a group that ended, and the one around it: %q, %v, want %s", name, err, before)
	}
	if name, err := p.Name(1); err != nil || name != "/" {
		t.Errorf("the root group: %q, %v", name, err)
	}
}
