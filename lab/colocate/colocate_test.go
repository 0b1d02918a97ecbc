package colocate

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/labtest"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/program"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// The test binary is the lab's children, too, and the run that is killed.
func TestMain(m *testing.M) { labtest.Main(m) }

func TestValidate(t *testing.T) {
	t.Parallel()
	x := New()
	if err := x.Validate(); err != nil || x.Length(nil) != 2*time.Minute {
		t.Errorf("%v, %s long", err, x.Length(nil))
	}
	for want, spoils := range map[string]func(*Spec){
		`service: "redis"`:       func(s *Spec) { s.Service = "redis" },
		"services: 65":           func(s *Spec) { s.Services = 65 },
		"cpusEach: -1":           func(s *Spec) { s.CPUsEach = -1 },
		`no policy "kubele"`:     func(s *Spec) { s.Policy = "kubele" },
		"policy: ":               func(s *Spec) { s.Options = map[string]any{"none": 1} },
		"modes: 1":               func(s *Spec) { s.Modes = s.Modes[:1] },
		`name "shared"`:          func(s *Spec) { s.Modes[2].Name = "shared" },
		`name "a,b"`:             func(s *Spec) { s.Modes[2].Name = "a,b" },
		"class BE":               func(s *Spec) { s.Modes[2].Class = place.BE },
		"has no CPUs of its own": func(s *Spec) { s.Modes[0].Bind = place.FullPCPUs },
		`load: "siege"`:          func(s *Spec) { s.Load = "siege" },
		"whole seconds":          func(s *Spec) { s.Load = wrk },
		"connections: 0":         func(s *Spec) { s.Connections = 0 },
		"demand: 0":              func(s *Spec) { s.Demand = 0 },
		"rate: -1":               func(s *Spec) { s.Rate = -1 },
		"blocks: 0":              func(s *Spec) { s.Blocks = 0 },
		"for: ":                  func(s *Spec) { s.For = lab.Duration(365 * 24 * time.Hour) },
		"settle: ":               func(s *Spec) { s.Settle = -1 },
		"window: 1ms":            func(s *Spec) { s.Window = lab.Duration(time.Millisecond) },
		"weight: 10001":          func(s *Spec) { s.Weight = 10_001 },
		"cpus: ":                 func(s *Spec) { s.CPUs = "0-" },
	} {
		s := Default()
		spoils(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	if err := x.Lacks(fakekernel.Short(t, "1s1c1t")); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("one CPU: %v", err)
	}
	if err := x.Lacks(fakekernel.Short(t, "1s2c1t")); err != nil {
		t.Error(err)
	}
}

// lists are the CPUs of the services of a placement.
func lists(p Placed) (all []string) {
	for _, s := range p.Services {
		text := s.CPUs.String()
		if !s.Idle.IsEmpty() {
			text += " idle " + s.Idle.String()
		}
		all = append(all, text)
	}
	return all
}

// The CPUs of every mode are the placement engine's answers, and how many services there are
// follows from what it can hold.
func TestScale(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, machine, shared string
		change                func(*Spec)
		services, each        int
		how                   string
		lse, lsr              []string // nil: refused
	}{
		{
			name: "two cores", machine: "1s2c1t", shared: "0-1", services: 2, each: 1,
			how: "2 services with 1 CPU each: as much of the published 10 with 4 CPUs each as CPUs 0-1 hold in every mode",
			lse: []string{"0", "1"}, lsr: []string{"0", "1"},
		},
		{
			name: "threads", machine: "1s4c2t", shared: "0-7", services: 2, each: 2, how: "2 services with 2 CPUs each: as much",
			lse: []string{"0,4", "1,5"}, lsr: []string{"0-1 idle 4-5", "2-3 idle 6-7"},
		},
		{name: "one core", machine: "1s1c2t", shared: "0-1", services: 2, each: 1, how: "CPUs 0-1 do not hold even that in every mode"},
		{
			name: "asked for", machine: "1s4c1t", shared: "0-3", change: func(s *Spec) { s.Services, s.CPUsEach = 2, 2 }, services: 2, each: 2,
			how: "2 services with 2 CPUs each, as asked for", lse: []string{"0-1", "2-3"}, lsr: []string{"0-1", "2-3"},
		},
		{
			name: "so many services", machine: "1s8c1t", shared: "0-7", change: func(s *Spec) { s.Services = 3 }, services: 3, each: 2,
			how: "3 services with 2 CPUs each: as much", lse: []string{"0-1", "2-3", "4-5"}, lsr: []string{"0-1", "2-3", "4-5"},
		},
		{
			name: "so many CPUs", machine: "1s8c1t", shared: "0-7", change: func(s *Spec) { s.CPUsEach = 3 }, services: 2, each: 3,
			how: "2 services with 3 CPUs each: as much", lse: []string{"0-2", "3-5"}, lsr: []string{"0-2", "3-5"},
		},
		{name: "too many", machine: "1s2c1t", shared: "0-1", change: func(s *Spec) { s.Services, s.CPUsEach = 10, 2 }, services: 10, each: 2, how: "as asked for"},
	} {
		s := Default()
		if tc.change != nil {
			tc.change(&s)
		}
		at, err := s.site(fakekernel.Short(t, tc.machine), cpuset.MustParse(tc.shared))
		if err != nil {
			t.Fatal(err)
		}
		all, services, each, how, err := s.scale(at)
		if err != nil {
			t.Fatal(err)
		}
		if services != tc.services || each != tc.each || !strings.Contains(how, tc.how) {
			t.Errorf("%s: %d services with %d CPUs each, %q", tc.name, services, each, how)
		}
		if got := lists(all[0]); len(got) != services || got[0] != tc.shared {
			t.Errorf("%s: shared %q", tc.name, got)
		}
		if diff := cmp.Diff([][]string{tc.lse, tc.lsr}, [][]string{lists(all[2]), lists(all[3])}); diff != "" {
			t.Errorf("%s: LSE and LSR (-want +got):\n%s", tc.name, diff)
		}
		if (all[2].Refused == "") != (tc.lse != nil) {
			t.Errorf("%s: refused %q", tc.name, all[2].Refused)
		}
	}
}

// On the machine of the published experiment there are ten services with four CPUs each, and
// they differ by mode as there, by either policy.
func TestAsPublished(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"berth", "koordinator"} {
		s := Default()
		s.Policy = policy
		m := fakekernel.Short(t, "2s26c2t")
		at, err := s.site(m, m.Online)
		if err != nil {
			t.Fatal(err)
		}
		all, services, each, how, err := s.scale(at)
		if err != nil || services != 10 || each != 4 || how != "10 services with 4 CPUs each, as published" {
			t.Fatalf("%s: %d services with %d CPUs, %q, %v", policy, services, each, how, err)
		}
		for i, cores := range map[int]int{2: 2, 3: 4} {
			var seen cpuset.Set
			for _, one := range all[i].Services {
				if !one.Own || one.CPUs.Len() != 4 || one.CPUs.Overlaps(seen) || at.topology.Touched(machine.Core, one.CPUs).Len() != 2*cores {
					t.Errorf("%s: %s has a service on %s", policy, all[i].Mode, one.CPUs)
				}
				seen = seen.Union(one.CPUs)
			}
		}
		if n := all[2].reserved().Len(); n != 40 {
			t.Errorf("%s: LSE reserves %d CPUs", policy, n)
		}
	}
}

// By value: what the groups of a mode are given, and why a mode is skipped.
func TestSettings(t *testing.T) {
	t.Parallel()
	x := New()
	x.Experiment.Modes = append(x.Experiment.Modes, Mode{Name: "limited", Class: place.LS, Limit: true})
	at, err := x.Experiment.site(fakekernel.Short(t, "1s2c1t"), cpuset.MustParse("0-1"))
	if err == nil {
		x.Placed, x.Services, x.CPUsEach, _, err = x.Experiment.scale(at)
	}
	if err != nil {
		t.Fatal(err)
	}
	both := cpuset.MustParse("0-1")
	for n, want := range map[int]lab.Settings{
		0: {lab.Server(1): {CPUs: both}, lab.Server(2): {CPUs: both}},
		1: {lab.Server(1): {CPUs: both}, lab.Server(2): {CPUs: both}},
		2: {lab.Server(1): {CPUs: cpuset.MustOf(0), Mems: cpuset.MustOf(0)}, lab.Server(2): {CPUs: cpuset.MustOf(1), Mems: cpuset.MustOf(0)}},
		4: {
			lab.Server(1): {CPUs: both, Quota: limitPeriod, Period: limitPeriod}, lab.Server(2): {CPUs: both, Quota: limitPeriod, Period: limitPeriod},
		},
	} {
		got, err := x.settings(n)
		if err != nil {
			t.Errorf("mode %d: %v", n, err)
			continue
		}
		for role := range want {
			if diff := cmp.Diff(want[role], got[role], cmp.AllowUnexported(cgroup.Limits{})); diff != "" || len(got) != 2 {
				t.Errorf("mode %d, %s (-want +got):\n%s", n, role, diff)
			}
		}
	}
	if _, err := x.settings(3); !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), "that it has in LSE") {
		t.Errorf("LSR on cores of one thread: %v", err)
	}
	x.Experiment.Services, x.Experiment.CPUsEach = 10, 2
	if x.Placed, x.Services, x.CPUsEach, _, err = x.Experiment.scale(at); err != nil {
		t.Fatal(err)
	}
	if _, err := x.settings(2); !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), "service 2 of 10, with 2 CPUs each: not enough CPUs") ||
		!strings.Contains(err.Error(), "exclusive to s01") {
		t.Errorf("ten services on two CPUs: %v", err)
	}
}

// miniature is a run of seconds, of Berth's own server.
func miniature() *Experiment {
	x := New()
	s := &x.Experiment
	s.Service, s.Blocks, s.For, s.Seed, s.Rate = lab.Article, 2, 0, 7, 300
	s.Settle, s.Window = lab.Duration(20*time.Millisecond), lab.Duration(200*time.Millisecond)
	return x
}

// options are those of a run in a folder by this binary, without control groups.
func options(dir string) lab.Options {
	return lab.Options{Exe: os.Args[0], Dir: dir, UndoLogDir: filepath.Join(dir, "undo"), Unprivileged: true}
}

// run runs it, unless this machine has one CPU.
func run(t *testing.T, x *Experiment, opt lab.Options) {
	t.Helper()
	m, _, err := lab.Where(lab.IsolationSpec())
	if err == nil {
		err = x.Lacks(m)
	}
	if errors.Is(err, kernel.ErrNotSupported) {
		t.Skip(err)
	}
	if err == nil {
		err = x.Run(t.Context(), opt)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// checkRounds says what is wrong with rounds on this machine.
func checkRounds(t *testing.T, x *Experiment) {
	t.Helper()
	seen, worked := map[string]int{}, map[string]bool{} // a busy host may have no CPU for the services in a round
	for _, r := range x.Rounds {
		seen[r.Scenario]++
		worked[r.Scenario] = worked[r.Scenario] || r.Load.Done > 0 && r.Tenant.CPUSeconds > 0
		if r.Load.Failed > 0 || len(r.Load.Each) != x.Services || len(r.Servers) != x.Services {
			t.Errorf("%s: %d done, %d failed (%v), each %+v, servers %+v", r.Scenario, r.Load.Done, r.Load.Failed, r.Load.Errors, r.Load.Each, r.Servers)
		}
		for n, at := range x.placed(r.Scenario).Services {
			role, want := string(lab.Server(n+1)), at.CPUs.String()
			if !slices.ContainsFunc(r.Knobs, func(k lab.Knob) bool {
				return k.Of == role && (k.File == "affinity" || k.File == "cpuset.cpus") && k.Value == want
			}) {
				t.Errorf("%s: %s is not on CPUs %s: %+v", r.Scenario, role, want, r.Knobs)
			}
		}
	}
	for name, did := range worked {
		if !did {
			t.Errorf("%s: the services did nothing", name)
		}
	}
	for _, name := range []string{"shared", "shared again"} {
		if seen[name] != x.Experiment.Blocks {
			t.Errorf("%s: %d rounds", name, seen[name])
		}
	}
	if len(seen)+len(x.Skipped) != len(x.Experiment.Modes) {
		t.Errorf("rounds %v, skipped %+v", seen, x.Skipped)
	}
	if s, err := x.Sheet(); err != nil || len(s.Answer) == 0 || len(s.Body) < 4 {
		t.Errorf("sheet: %v", err)
	}
}

// A run that was killed keeps its finished rounds, its places and its rate, and goes on with
// the other rounds.
func TestKilled(t *testing.T) {
	if dir := labtest.Doomed(); dir != "" {
		opt := options(dir)
		opt.Progress = func(p lab.Progress) { fmt.Println("round", p.Phase, p.Round) }
		run(t, miniature(), opt)
		return
	}
	if testing.Short() {
		t.Skip("takes seconds")
	}
	dir := t.TempDir()
	labtest.Kill(t, dir, "round measure 4")
	var x Experiment
	if err := lab.Load(dir, Schema, &x); err != nil {
		t.Fatal(err)
	}
	before, _ := json.Marshal([]any{x.Rounds, x.Placed, x.Setup.Rate, x.Setup.CPUPerRequest})
	n := len(x.Rounds)
	run(t, &x, options(dir))
	after, _ := json.Marshal([]any{x.Rounds[:n], x.Placed, x.Setup.Rate, x.Setup.CPUPerRequest})
	if n < 2 || !x.Complete || len(x.Rounds) <= n || string(before) != string(after) || len(x.Resumed) != 1 {
		t.Errorf("%d rounds before, complete %v, %d after; what was there is the same: %v", n, x.Complete, len(x.Rounds), string(before) == string(after))
	}
	checkRounds(t, &x)
}

// Real servers and real loads, where they are installed.
func TestPrograms(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for name, change := range map[string]func(*Spec){
		"nginx":      func(s *Spec) { s.Service, s.Rate = "nginx", 0 },
		"wrk":        func(s *Spec) { s.Load, s.Window, s.Connections = wrk, lab.Duration(time.Second), 2 },
		"nginx, wrk": func(s *Spec) { s.Service, s.Load, s.Window = "nginx", wrk, lab.Duration(time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			x := miniature()
			change(&x.Experiment)
			for _, program := range strings.Split(name, ", ") {
				server, ok := programOf(program)
				if _, err := server(); !ok || err != nil {
					t.Skip("not installed: ", err)
				}
			}
			opt := options(t.TempDir())
			run(t, x, opt)
			checkRounds(t, x)
			if x.Service == "nginx" && (x.Setup.Server == "" || x.Experiment.Load == open && x.Setup.Rate < 100) {
				t.Errorf("setup %+v", x.Setup)
			}
		})
	}
}

// programOf says how to find a program.
func programOf(name string) (find func() (string, error), ok bool) {
	if name == wrk {
		return func() (string, error) { return exec.LookPath(wrk) }, true
	}
	server, ok := program.Find(name)
	return server.Version, ok
}
