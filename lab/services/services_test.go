package services

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/labtest"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/lab"
)

// The test binary is the lab's children, too, and the run that is killed.
func TestMain(m *testing.M) { labtest.Main(m) }

// miniature is three services in three placements.
func miniature() *Experiment {
	const ms = lab.Duration(time.Millisecond)
	x := New()
	e := &x.Experiment
	e.Services = []Service{
		{"web", 100_000, 4096, [][]Call{{{To: "cache", Times: 2}, {To: "db", Share: 0.5}}}},
		{"db", 100_000, 1 << 20, nil},
		{"cache", 20_000, 1 << 16, nil},
	}
	e.Placements = []Placement{
		{Name: "no rule"}, {Name: "node", Parts: 1, Over: Nodes},
		{Name: "split", Parts: 2, Over: Halves, First: []string{"web"}}, {Name: "hog", Parts: 1, Over: Halves, Neighbour: Elsewhere},
	}
	e.Compare = nil
	e.Rate, e.Weight, e.Blocks, e.Seed, e.Settle, e.Window, e.Demand = 100, 1000, 2, 11, 50*ms, 300*ms, 0.1
	return x
}

// options are those of a run in a folder by this binary; the test is skipped where there
// can be no control groups.
func options(t *testing.T, dir string) lab.Options {
	t.Helper()
	opt := lab.Options{Exe: os.Args[0], Dir: dir, UndoLogDir: filepath.Join(dir, "undo")}
	root, err := kernel.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	host, err := cgroup.Detect(root)
	if err == nil {
		_, err = host.Base(cgroup.CPU, cgroup.CPUSet)
	}
	if err != nil || os.Geteuid() != 0 {
		t.Skip("control groups of the lab's own: run as root where the cpu and cpuset controllers can be used: ", err)
	}
	return opt
}

// run runs it, unless this host cannot.
func run(t *testing.T, x *Experiment, opt lab.Options) {
	t.Helper()
	err := x.Run(t.Context(), opt)
	if errors.Is(err, kernel.ErrNotSupported) || errors.Is(err, os.ErrPermission) {
		t.Skip("this host cannot: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A miniature run on this machine: requests go through all services, each stands where it is
// to, and nothing is left.
func TestForReal(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	fakekernel.LockHost(t, fakekernel.Shared)
	x := miniature()
	opt := options(t, t.TempDir())
	run(t, x, opt)
	ran := len(x.Experiment.Placements) - len(x.Skipped)
	if !x.Complete || len(x.Rounds) != 2*ran || len(x.Served) != len(x.Rounds) || len(x.Places) != ran || x.Setup.Rate <= 0 || x.Setup.TenantCPUs <= 0 {
		t.Fatalf("complete %v, %d rounds, %d of services, skipped %+v, setup %+v", x.Complete, len(x.Rounds), len(x.Served), x.Skipped, x.Setup)
	}
	done, requests, cpu := 0, map[string]int{}, 0.0
	for i, r := range x.Rounds {
		done += r.Load.DoneInWindow
		if r.Load.Failed > 0 || len(r.Servers) != 3 || (r.Neighbour != nil) != (r.Scenario == "hog") {
			t.Errorf("%s: %d of %d failed (%v), %d servers, neighbour %+v", r.Scenario, r.Load.Failed, r.Load.Offered, r.Load.Errors, len(r.Servers), r.Neighbour)
		}
		for n, s := range x.Served[i].Services {
			requests[s.Name] += s.Requests
			cpu += r.Servers[n].CPUSeconds
			if s.Failed > 0 || s.Requests > 0 && (s.Own.P50 <= 0 || s.Whole.P99 < s.Own.P99) {
				t.Errorf("%s: %+v", r.Scenario, s)
			}
		}
		at, _ := x.placeOf(r.Scenario)
		for n, name := range []string{"cache", "db", "web"} { // callees first
			part, ok := at.on(name)
			if knob := knobOf(r, lab.Server(n+1)); !ok || r.Scenario != "no rule" && knob != part.CPUs.String() {
				t.Errorf("%s: %s is on CPUs %q, want %s", r.Scenario, name, knob, part.CPUs)
			}
		}
	}
	// On a busy machine some are under way when a window opens or closes.
	web, cache, db := requests["web"], requests["cache"], requests["db"]
	if done == 0 || cpu == 0 || web < done/2 || cache < web || cache > 3*web || db == 0 || db > web {
		t.Errorf("of %d requests %v came to the services; want two to cache for each of web, and every other one to db", done, requests)
	}
	sheet, err := x.Sheet()
	if err != nil || len(sheet.Answer) == 0 || len(sheet.Body) < 4 {
		t.Errorf("sheet: %v, %+v", err, sheet)
	}
	if left, _ := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/cpu/berth-lab-%d", os.Getpid())); left != nil {
		t.Errorf("left: %q", left)
	}
}

// knobOf are the CPUs of a role as read back.
func knobOf(r lab.Round, role lab.Role) string {
	for _, k := range r.Knobs {
		if k.Of == string(role) && strings.HasPrefix(k.File, "cpuset.cpus") {
			return k.Value
		}
	}
	return ""
}

// A run that was killed keeps its finished rounds and what was settled, and goes on with the
// others.
func TestKilled(t *testing.T) {
	if dir := labtest.Doomed(); dir != "" {
		opt := options(t, dir)
		opt.Progress = func(p lab.Progress) { fmt.Println("round", p.Phase, p.Round) }
		run(t, miniature(), opt)
		return
	}
	if testing.Short() {
		t.Skip("takes seconds")
	}
	fakekernel.LockHost(t, fakekernel.Shared)
	dir := t.TempDir()
	opt := options(t, dir)
	labtest.Kill(t, dir, "round measure 5")
	var x Experiment
	if err := lab.Load(dir, Schema, &x); err != nil {
		t.Fatal(err)
	}
	root, err := kernel.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kernel.Restore(root, opt.UndoLogDir); err != nil { // as berth lab does first
		t.Fatal(err)
	}
	stored := func(rounds int) string {
		text, err := json.Marshal([]any{x.Rounds[:rounds], x.Served[:rounds], x.Work, x.Setup})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	n := len(x.Rounds)
	before := stored(n)
	run(t, &x, opt)
	ran := len(x.Experiment.Placements) - len(x.Skipped)
	if n == 0 || !x.Complete || len(x.Rounds) != 2*ran || len(x.Served) != 2*ran || len(x.Resumed) != 1 || stored(n) != before {
		t.Errorf("%d rounds before, complete %v, %d after; what was measured is the same: %v", n, x.Complete, len(x.Rounds), stored(n) == before)
	}
}
