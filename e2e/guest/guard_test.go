package guest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard"
	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/sched"
	"berth.dev/berth/place"
)

// The groups of a guarded guest: someone who is looked after, and best-effort work
// in another part of the tree.
const (
	guardedTop     = "guarded"
	sensitiveGroup = guardedTop + "/services/web"
	effortTop      = guardedTop + "/batch"
	effortGroup    = effortTop + "/jobs/hog"
)

// guardTest is a tree in which a guard runs.
type guardTest struct {
	tree
	t *testing.T
}

// newGuardTest makes the groups, on some CPUs.
func newGuardTest(t *testing.T, cpus cpuset.Set) *guardTest {
	t.Helper()
	g := &guardTest{tree: openTree(t), t: t}
	top := g.group(t, guardedTop, "services", "services/web", "batch", "batch/jobs", "batch/jobs/hog")
	g.set(t, top, cgroup.Limits{CPUs: cpus})
	return g
}

// settings are those that a guard might change.
func (g *guardTest) settings() map[string]string {
	g.t.Helper()
	all := map[string]string{}
	for _, group := range []string{guardedTop + "/services", sensitiveGroup, effortTop, effortTop + "/jobs", effortGroup} {
		for _, file := range []string{"cpu.idle", "cpu.weight", "cpu.max", "cpu.max.burst"} {
			all[group+"/"+file] = g.text(g.t, group, file)
		}
	}
	return all
}

// host opens the signals of the guest until the test ends.
func (g *guardTest) host() *guard.Host {
	g.t.Helper()
	host, err := guard.OpenHost("/")
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() {
		if err := host.Close(); err != nil {
			g.t.Error(err)
		}
	})
	return host
}

// guard returns a guard that looks after the group, by options to which it adds who is who. It runs
// until its context ends, and then checks that all is given back.
func (g *guardTest) guard(o guard.Options) (run func(context.Context)) {
	t := g.t
	t.Helper()
	act, err := actuate.Open(actuate.Options{Root: g.Root, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	o.Actuator = act
	o.Workloads = func(context.Context) ([]guard.Workload, error) {
		return []guard.Workload{{Group: sensitiveGroup, Class: place.LS, Sensitive: true}, {Group: effortGroup, Class: place.BE}}, nil
	}
	o.Failed = func(err error) { t.Errorf("guard: %v", err) }
	runner, err := guard.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context) {
		if err := runner.Run(ctx); err != nil {
			t.Error(err)
		}
		status := runner.Status()
		t.Logf("%d windows of %v, %d of all late", status.Windows, o.Window, status.Late)
		if status.Probe.Reason != "" {
			t.Errorf("run-queue probe: %s", status.Probe.Reason)
		}
		if notes := act.Notes(); len(notes) > 0 {
			t.Errorf("still noted: %+v", notes)
		}
		if err := act.Close(); err != nil {
			t.Error(err)
		}
	}
}

// run has a guard look after the group until it is told to end, or for so long.
func (g *guardTest) run(length time.Duration, told func(end func(), found []detect.Finding, e *control.Event), outsiders ...guard.OutsiderUse) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), length)
	defer cancel()
	sensors := g.host()
	g.guard(guard.Options{
		Sensors: sensors, Probe: guard.ProbeAlways, Window: 200 * time.Millisecond, Outsiders: outsiders,
		Control: control.Config{Mode: control.Enforce, Own: sensors.OwnGroup()},
		Found:   func(f []detect.Finding) { told(cancel, f, nil) },
		Acted:   func(e control.Event) { told(cancel, nil, &e) },
	})(ctx)
}

// schedstat is how long the threads of a process have run, and waited for a CPU.
func schedstat(t *testing.T, pid int) (ran, waited time.Duration) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("process %d has no threads: %v", pid, err)
	}
	for _, file := range files {
		var r, w time.Duration
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		if _, err := fmt.Sscan(string(text), &r, &w); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		ran, waited = ran+r, waited+w
	}
	return ran, waited
}

// TestGuard has best-effort work spin on the only CPU of someone who needs it again
// and again: the guard names the neighbour, tells it to yield where their paths diverge,
// measures that this helps, and gives all back at its end. That it helps is seen by the kernel's
// own account, too: the victim waits for half as long at most for each second that it runs.
func TestGuard(t *testing.T) {
	onlyOn(t, "virtual4")
	g := newGuardTest(t, cpuset.MustOf(2))
	before := g.settings()
	web := g.child(t, g.base.Child(sensitiveGroup), "work in turns")
	g.child(t, g.base.Child(effortGroup), "spin")
	var named, acted, kept bool
	ran, waited := schedstat(t, web)
	// delay is what it waited per second run since the last call.
	delay := func() float64 {
		r, w := schedstat(t, web)
		d := (w - waited).Seconds() / (r - ran).Seconds()
		ran, waited = r, w
		return d
	}
	var beside, without float64
	g.run(time.Minute, func(end func(), findings []detect.Finding, e *control.Event) {
		for _, f := range findings {
			if f.Suspect != "" && f.Suspect != effortGroup {
				t.Errorf("accused: %v", f)
			}
			named = named || f.Resource == detect.CPU && f.Suspect == effortGroup
		}
		if e == nil || kept {
			return
		}
		t.Logf("%v", e)
		switch e.Outcome {
		case control.Applied:
			beside = delay()
			want, got := maps.Clone(before), g.settings()
			want[effortTop+"/cpu.idle"] = "1"
			want[effortTop+"/cpu.weight"] = got[effortTop+"/cpu.weight"] // means nothing; 0 or 1, by kernel
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("in force (-want +got):\n%s", diff)
			}
			acted = true
		case control.Kept:
			kept, without = true, delay()
			end()
		}
	})
	if !named || !acted || !kept {
		t.Errorf("named %v, acted %v, found that it helps %v; want all three", named, acted, kept)
	}
	t.Logf("it waits %.2f s per second run beside the neighbour, and %.2f under the remedy", beside, without)
	if !(without <= beside/2) {
		t.Errorf("it waits %.2f s per second run under the remedy, and %.2f without: no help", without, beside)
	}
	if diff := cmp.Diff(before, g.settings()); diff != "" {
		t.Errorf("after the guard (-before +after):\n%s", diff)
	}
}

// TestGuardOutsiders has processes in no group spin on the CPU of someone who needs it again and
// again: the guard names them, acts on them as it is allowed to, measures that this helps,
// and gives back what they had.
func TestGuardOutsiders(t *testing.T) {
	onlyOn(t, "virtual4")
	const autogroup = "/proc/sys/kernel/sched_autogroup_enabled"
	if was, err := os.ReadFile(autogroup); err == nil {
		write := func(text []byte) {
			if err := os.WriteFile(autogroup, text, 0); err != nil {
				t.Fatal(err)
			}
		}
		write([]byte("0\n")) // the processes of a session would be weighed together
		t.Cleanup(func() { write(was) })
	}
	for _, tt := range []struct {
		allowed guard.OutsiderUse
		on      string // CPUs that they may use
		want    sched.State
	}{
		{guard.OutsidersIdle, "2", sched.State{Policy: sched.Idle, Affinity: cpuset.MustParse("2")}},
		{guard.OutsidersNice, "2", sched.State{Policy: sched.Other, Nice: 19, Affinity: cpuset.MustParse("2")}},
		{guard.OutsidersAffinity, "2-3", sched.State{Policy: sched.Other, Affinity: cpuset.MustParse("3")}},
	} {
		t.Run(string(tt.allowed), func(t *testing.T) {
			g := newGuardTest(t, cpuset.MustOf(2))
			g.child(t, g.base.Child(sensitiveGroup), "work in turns")
			var pids []int
			var before []sched.State
			for range 2 {
				pid := g.child(t, g.base, "spin")
				if _, err := sched.Set(pid, sched.Attr{Affinity: cpuset.MustParse(tt.on)}); err != nil {
					t.Fatal(err)
				}
				pids, before = append(pids, pid), append(before, scheduling(t, pid))
			}
			var named, acted, kept bool
			g.run(time.Minute, func(end func(), findings []detect.Finding, e *control.Event) {
				for _, f := range findings {
					named = named || slices.ContainsFunc(f.Outsiders, func(o detect.Outsider) bool { return o.Program == "guest.test" || o.Program == "exe" })
				}
				if e == nil || kept {
					return
				}
				t.Logf("%v", e)
				switch e.Outcome {
				case control.Applied:
					acted = true
					for _, p := range e.Action.Processes {
						if !slices.Contains(pids, p.PID) {
							t.Errorf("acted on %+v", p)
						}
						if got := scheduling(t, p.PID); got != tt.want {
							t.Errorf("%+v has %+v, want %+v", p, got, tt.want)
						}
					}
				case control.Kept:
					kept = true
					end()
				}
			}, tt.allowed)
			if !named || !acted || !kept {
				t.Errorf("named %v, acted %v, found that it helps %v; want all three", named, acted, kept)
			}
			for i, pid := range pids {
				if got := scheduling(t, pid); got != before[i] {
					t.Errorf("after the guard %+v, before %+v", got, before[i])
				}
			}
		})
	}
}

func scheduling(t *testing.T, pid int) sched.State {
	t.Helper()
	s, err := sched.Get(pid)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestGuardDecoy limits someone to a little less than a neighbour on the same CPU
// leaves: most waits are for the neighbour, but without it the limited one would get no
// more. The guard finds the limit and leaves the neighbour alone.
func TestGuardDecoy(t *testing.T) {
	onlyOn(t, "virtual4")
	g := newGuardTest(t, cpuset.MustOf(2))
	g.set(t, g.base.Child(sensitiveGroup), cgroup.Limits{Quota: 35 * time.Millisecond, Period: 100 * time.Millisecond})
	g.child(t, g.base.Child(effortGroup), "spin")
	g.child(t, g.base.Child(sensitiveGroup), "spin")
	before := g.settings()
	const enough = 10 // windows: a neighbour is named after three
	found := 0
	g.run(time.Minute, func(end func(), findings []detect.Finding, e *control.Event) {
		for _, f := range findings {
			if f.Resource == detect.OwnLimit {
				if found++; found == enough {
					end()
				}
			}
			if f.Suspect != "" {
				t.Errorf("accused: %v", f)
			}
		}
		if e == nil {
			return
		}
		t.Logf("%v", e)
		if e.Action != nil && e.Action.Group != sensitiveGroup {
			t.Errorf("acted on a neighbour: %v", e)
		}
	})
	if found < enough {
		t.Errorf("its own limit was found in %d windows, want %d", found, enough)
	}
	if diff := cmp.Diff(before, g.settings()); diff != "" {
		t.Errorf("after the guard (-before +after):\n%s", diff)
	}
}

// workInTurns works for some milliseconds and sleeps for some.
func workInTurns() {
	for {
		for began := time.Now(); time.Since(began) < 4*time.Millisecond; {
		}
		time.Sleep(4 * time.Millisecond)
	}
}
