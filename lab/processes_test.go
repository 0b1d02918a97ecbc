package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fork"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/sched"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/program"
)

// realBed is this machine without control groups, and with processes of this binary.
func realBed(t testing.TB) *Testbed {
	t.Helper()
	allowed, err := sched.Get(0)
	if err != nil {
		t.Fatal(err)
	}
	pl := places{shared: allowed.Affinity}
	probes, err := noise.NewProbes(1<<20, 2<<20)
	if err != nil {
		t.Fatal(err)
	}
	requests, err := openRequestLog(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &Testbed{
		Setup: &Setup{
			Backend: schedBackend, Rate: 200, Tenant: load.TenantConfig{Units: 3, WorkingSetBytes: 1 << 20, Procs: 1},
			Neighbour: noise.Config{Kernel: "spin", Threads: 2, Intensity: 20},
		},
		opt: Options{Exe: os.Args[0]}, places: pl, parent: fork.NewParent(), backend: openAttributes(pl), probes: probes, requests: requests, neighbours: map[string]*neighbour{},
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// state is that of all threads of a process, as letters: "T" where all are stopped.
func state(t *testing.T, pid int) string {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("threads of %d: %v", pid, err)
	}
	var all []string
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		all = append(all, rest[:1])
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), "")
}

// busyRound plays a cell until the roles have worked in it, as they do at once unless the host
// gives them no CPU for that long.
func busyRound(t *testing.T, b *Testbed, c Cell, block int, worked func(*Round) bool) Round {
	t.Helper()
	var round Round
	for range 30 {
		var err error
		if round, err = b.Round(t.Context(), c, block, 0); err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		if worked(&round) {
			break
		}
	}
	return round
}

// Processes live from round to round. The neighbour works in its rounds only; what cannot
// be taken from it again has a neighbour of its own; settings of the tenant are undone.
func TestProcessesLiveOn(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	b := realBed(t)
	first, _ := b.places.shared.First()
	one := cpuset.MustOf(first)
	pids := map[string]int{}
	for i, c := range []Cell{
		{Name: "alone"},
		{Name: "beside", Neighbour: true},
		{Name: "idle", Neighbour: true, Settings: Settings{Neighbour: cgroup.Limits{Idle: cgroup.On}}},
		{Name: "alone again"},
		{Name: "beside again", Neighbour: true},
		{Name: "pinned", Neighbour: true, Settings: Settings{Tenant: cgroup.Limits{CPUs: one}, Neighbour: cgroup.Limits{CPUs: one}}},
		{Name: "idle again", Neighbour: true, Settings: Settings{Neighbour: cgroup.Limits{Idle: cgroup.On}}},
	} {
		c.Settle, c.Window = 50*ms, 200*ms
		starved := c.Settings[Neighbour].Idle == cgroup.On // on a busy machine
		round := busyRound(t, b, c, i, func(r *Round) bool {
			return r.Load.Done > 0 && r.Tenant.CPUSeconds > 0 && (r.Neighbour == nil || starved || r.Neighbour.Work > 0)
		})
		if round.Load.Done == 0 || round.Load.Failed > 0 || round.Tenant.CPUSeconds <= 0 || len(round.Bins) != 4 {
			t.Errorf("%s: done %d, failed %d, tenant %+v, %d bins", c.Name, round.Load.Done, round.Load.Failed, round.Tenant, len(round.Bins))
		}
		if u := round.Undisturbed; u == nil || u.Requests+u.LeftOut != round.Load.Offered {
			t.Errorf("%s: undisturbed %+v of %d requests", c.Name, u, round.Load.Offered)
		}
		if (round.Neighbour != nil) != c.Neighbour || c.Neighbour && !starved && round.Neighbour.Work <= 0 {
			t.Errorf("%s: neighbour %+v", c.Name, round.Neighbour)
		}
		knobs := fmt.Sprint(round.Knobs)
		if got := strings.Contains(knobs, "SCHED_IDLE"); got != strings.HasPrefix(c.Name, "idle") {
			t.Errorf("%s: settings %s", c.Name, knobs)
		}
		if got := strings.Count(knobs, "affinity "+one.String()+"}"); (got == 2) != (c.Name == "pinned" || c.Neighbour && b.places.shared == one) {
			t.Errorf("%s: settings %s, want both on CPU %s in pinned alone", c.Name, knobs, one)
		}
		for kind, n := range b.neighbours {
			if got := state(t, n.pid()); got != "T" {
				t.Errorf("after %s: threads of the neighbour (%s) are in states %s, want all stopped", c.Name, kind, got)
			}
			if was := pids[kind]; was != 0 && was != n.pid() {
				t.Errorf("%s: another neighbour (%s)", c.Name, kind)
			}
			pids[kind] = n.pid()
		}
		for role, child := range map[string]*child{"tenant": b.procs.tenants[0], "generator": b.procs.generator} {
			if was := pids[role]; was != 0 && was != child.pid() {
				t.Errorf("%s: another %s", c.Name, role)
			}
			pids[role] = child.pid()
		}
		if now, err := sched.Get(b.procs.tenants[0].pid()); err != nil || now.Affinity != b.places.shared {
			t.Errorf("after %s: tenant on CPUs %s, %v; want %s", c.Name, now.Affinity, err, b.places.shared)
		}
	}
	if len(pids) != 5 {
		t.Errorf("processes %v, want tenant, generator, and three neighbours", pids)
	}
}

// A process that is kept is the same one in the next round, works between Begin and End alone, and may
// be asked to end twice. A cell may ask for another rate.
func TestProcessesKept(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	b := realBed(t)
	cfg := noise.Config{Kernel: "spin", Threads: 1, Intensity: 20}
	var offered []int
	pid := 0
	for block := range 2 {
		c := Cell{Name: "kept", Settle: 100 * ms, Window: 300 * ms, Rate: []float64{0, 800}[block]}
		c.During = func(ctx context.Context, r *Running) error {
			p, err := r.Keep(ctx, Bystander, cfg)
			if err != nil {
				return err
			}
			n := b.neighbours[fmt.Sprintf("kept %s %+v", Bystander, cfg)]
			if pid != 0 && pid != n.pid() {
				t.Errorf("another process: %d, was %d", n.pid(), pid)
			}
			pid = n.pid()
			for _, step := range []struct {
				do   func() error
				want bool // it has stopped
			}{{func() error { return nil }, true}, {func() error { return p.Begin(ctx) }, false}, {p.End, true}, {p.End, true}, {func() error { return p.Begin(ctx) }, false}, {p.End, true}} {
				if err := step.do(); err != nil {
					return err
				}
				if got := state(t, pid); (got == "T") != step.want {
					t.Errorf("threads in states %s, stopped should be %t", got, step.want)
				}
			}
			if used, err := r.Generator(); err != nil || used <= 0 {
				t.Errorf("the generator used %g, %v", used, err)
			}
			return nil
		}
		round, err := b.Round(t.Context(), c, block, 0)
		if err != nil {
			t.Fatal(err)
		}
		offered = append(offered, round.Load.Offered)
	}
	if offered[1] < 2*offered[0] {
		t.Errorf("%d requests at 200/s, %d at 800/s", offered[0], offered[1])
	}
}

// A cell with a tenant of its own, and one that failed, leave no process to the next.
func TestProcessesEndWhereTheyMust(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	b := realBed(t)
	own := b.Setup.Tenant
	own.Units = 5
	c := Cell{Name: "own", Tenant: &own, Settle: warmUp, Window: 200 * ms}
	if _, err := b.Round(t.Context(), c, 0, 0); err != nil || b.procs != nil {
		t.Errorf("a tenant of its own: %v; processes %v live on", err, b.procs)
	}
	broken := errors.New("broken")
	c = Cell{Name: "broken", Settle: warmUp, Window: 200 * ms, Neighbour: true}
	c.During = func(context.Context, *Running) error { return broken }
	if _, err := b.Round(t.Context(), c, 0, 0); !errors.Is(err, broken) || b.procs != nil {
		t.Errorf("failed: %v; processes %v live on", err, b.procs)
	}
}

// A cell may have another neighbour than the setup's, a program included. Both live on, and
// stand still between rounds.
func TestCellsOwnNeighbour(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	b := realBed(t)
	beside := func(cfg noise.Config) Cell {
		return Cell{Name: "beside", Settle: 100 * ms, Window: 200 * ms, Noise: &cfg}
	}
	r := busyRound(t, b, beside(noise.Config{Kernel: "scan", Threads: 1, Intensity: 50, Bytes: 1 << 20}), 0, func(r *Round) bool {
		return r.Neighbour != nil && r.Neighbour.Work > 0
	})
	if r.Neighbour == nil || r.Neighbour.Work <= 0 || r.Neighbour.Unit != "bytes" || len(b.neighbours) != 1 {
		t.Errorf("scan: %+v; %d neighbours", r.Neighbour, len(b.neighbours))
	}
	pids := filepath.Join(t.TempDir(), "pids")
	script := "echo $$ >>" + pids + "; sleep 300 & i=0; while [ $i -lt 9000 ]; do i=$((i+1)); done"
	var all []string // that were started
	r = busyRound(t, b, beside(noise.Config{Kernel: noise.Program, Threads: 2, Intensity: 100, Command: program.Shell(script)}), 0, func(r *Round) bool {
		text, err := os.ReadFile(pids)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		all = strings.Fields(string(text))
		return r.Neighbour != nil && r.Neighbour.Work > 0 && len(all) > 2
	})
	if r.Neighbour == nil || r.Neighbour.Work <= 0 || r.Neighbour.Unit != commandUnit || len(b.neighbours) != 2 {
		t.Errorf("program: %+v; %d neighbours", r.Neighbour, len(b.neighbours))
	}
	running := 0
	for _, n := range b.neighbours {
		if n.copies == 0 {
			continue
		}
		below, err := program.Below(n.pid())
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range below { // also one that has not written its number yet
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err != nil || !strings.Contains(string(stat), ") T ") {
				t.Errorf("process %d of the program has not stopped: %s, %v", pid, stat, err)
			}
			if group, err := syscall.Getpgid(pid); err == nil && group == pid {
				running++
			}
		}
	}
	if running != 2 || len(all) < 3 {
		t.Errorf("%d copies run after %d starts, want 2 and more than 2", running, len(all))
	}
	var err error
	for n := 0; n < 20 && err == nil; n++ { // its end is noticed in that round or in the next
		_, err = b.Round(t.Context(), beside(noise.Config{Kernel: noise.Program, Threads: 1, Intensity: 100, Command: []string{"false"}}), 0, 0)
	}
	if err == nil || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("a program that fails: %v", err)
	}
}

// A tenant that has not answered what it was asked does not meet the next round.
func TestRoundThatDoesNotDrain(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	b := realBed(t)
	b.Setup.Rate, b.Setup.Tenant.Units = 2000, 10_000 // more than 50 ms of work for each of 256 connections
	round, err := b.Round(t.Context(), Cell{Name: "overloaded", Settle: warmUp, Window: 200 * ms}, 0, 0)
	if err != nil || round.Undrained == 0 || round.Undrained > connections || round.Load.Unfinished == 0 {
		t.Errorf("%v, %d undrained, %d unfinished", err, round.Undrained, round.Load.Unfinished)
	}
	if b.procs != nil {
		t.Error("its processes live on")
	}
}

// A tenant that is slow at first answers what it was asked to warm up, before a round begins.
func TestWarmUpDrains(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	b := realBed(t)
	procs, err := b.processes(t.Context(), b.setupOf(Cell{}))
	if err != nil {
		t.Fatal(err)
	}
	tenant := procs.tenants[0]
	if err := errors.Join(tenant.halt(), tenant.halted()); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(warmUp+2*time.Second, func() { // no answer is in time
		if err := tenant.resume(); err != nil {
			t.Error(err)
		}
	})
	cfg := load.Config{Target: procs.addrs[0], Rate: b.Setup.Rate}
	if err := procs.warm(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Rate, cfg.Window = 10, 100*ms
	if err := procs.connect(t.Context(), procs.generator, cfg); err != nil {
		t.Errorf("the next schedule: %v", err)
	}
}

// What does not stop, or has ended, is an error and not waited for without end.
func TestHalted(t *testing.T) {
	t.Parallel()
	c := startChild(t, "silent")
	if err := c.halt(); err != nil {
		t.Fatal(err)
	}
	if err := c.halted(); err != nil || state(t, c.pid()) != "T" {
		t.Errorf("%v, threads in states %s", err, state(t, c.pid()))
	}
	if err := c.resume(); err != nil {
		t.Fatal(err)
	}
	dead := startChild(t, "die")
	<-dead.exited
	if err := dead.halt(); err == nil || !strings.Contains(err.Error(), "the disk is on fire") {
		t.Errorf("%v, want an error that says how it died", err)
	}
	began := time.Now()
	if err := dead.halted(); err == nil || time.Since(began) > haltLimit/2 {
		t.Errorf("%v after %s, want an error at once", err, time.Since(began))
	}
}
