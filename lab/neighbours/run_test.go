package neighbours

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/labtest"
	"berth.dev/berth/kernel"
	"berth.dev/berth/lab"
)

func TestMain(m *testing.M) { labtest.Main(m) }

// miniature is a run of seconds.
func miniature() *Result {
	r := New()
	r.Experiment = Spec{
		Tenants: []string{"small", "store"}, Kernels: []string{"spin"}, Intensities: []int{20}, Blocks: 2, Seed: 7,
		Programs: []Program{{Name: "sh", Command: []string{"sh", "-c", "sleep 0.02"}}, {Name: "absent", Command: []string{"no-such-program", "{cpus}"}}},
		Settle:   lab.Duration(20 * time.Millisecond), Warm: lab.Duration(50 * time.Millisecond), Window: lab.Duration(200 * time.Millisecond),
		Rate: 200, Demand: 0.05,
	}
	return r
}

// A run is interrupted, and goes on where it was; tenants are as they were, what is not
// installed is skipped with the reason, and nothing is run twice.
func TestRunAndResume(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	dir := t.TempDir()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	opt := lab.Options{Exe: os.Args[0], Dir: filepath.Join(dir, "run"), UndoLogDir: dir, Unprivileged: true}
	if err := os.Mkdir(opt.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	opt.Progress = func(p lab.Progress) {
		if p.Round == 6 {
			interrupt()
		}
	}
	first := miniature()
	if err := first.Run(ctx, opt); !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	text, err := os.ReadFile(filepath.Join(opt.Dir, lab.ResultFile))
	if err != nil {
		t.Fatal(err)
	}
	var r Result
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Rounds) == 0 || len(r.Rounds) > 6 || r.Complete || len(r.Tenants) != 2 {
		t.Fatalf("stored %d rounds, %d tenants, complete %v", len(r.Rounds), len(r.Tenants), r.Complete)
	}
	was := slices.Clone(r.Tenants)
	opt.Progress = nil
	for _, name := range []string{cached, source} { // as a run that was killed left them
		if err := os.WriteFile(filepath.Join(opt.Dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Run(t.Context(), opt); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{cached, source} {
		if _, err := os.Stat(filepath.Join(opt.Dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
	if diff := cmp.Diff(was, r.Tenants); diff != "" || !r.Complete || len(r.Resumed) != 1 {
		t.Errorf("complete %v, resumed %v, tenants (-before +after):\n%s", r.Complete, r.Resumed, diff)
	}
	seen, worked := map[string]int{}, map[string]bool{} // a busy host may have no CPU for a tenant or neighbour in a round
	for _, round := range r.Rounds {
		seen[round.Scenario]++
		beside := !strings.HasSuffix(round.Scenario, "/alone") && !strings.HasSuffix(round.Scenario, "/again")
		did := round.Load.Done > 0 && round.Tenant.CPUSeconds > 0 && (!beside || round.Neighbour != nil && round.Neighbour.Work > 0)
		worked[round.Scenario] = worked[round.Scenario] || did
		if (round.Neighbour != nil) != beside {
			t.Errorf("%s: neighbour %+v", round.Scenario, round.Neighbour)
		}
	}
	for name, did := range worked {
		if !did {
			t.Errorf("%s: the tenant or its neighbour did nothing", name)
		}
	}
	want := map[string]int{}
	for _, tenant := range []string{"small", "store"} {
		for _, name := range []string{"alone", "again", "spin-20", "sh"} {
			want[tenant+"/"+name] = 2
		}
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("rounds (-want +got):\n%s", diff)
	}
	if len(r.Skipped) != 2 || !strings.Contains(r.Skipped[0].Reason, "no-such-program: it is not installed") {
		t.Errorf("skipped %+v", r.Skipped)
	}
	if r.Uncounted == "" {
		t.Error("counters without control groups: no reason why there are none")
	}
	s, err := r.Sheet()
	if err != nil || len(s.Answer) == 0 {
		t.Errorf("sheet: %+v, %v", s, err)
	}
}

// Each program that the experiment comes with, where it is installed, runs beside a tenant and
// is measured.
func TestRealPrograms(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for _, p := range Default().Programs {
		t.Run(p.Name, func(t *testing.T) {
			if err := installed(p.Command[0]); err != nil {
				t.Skip(err)
			}
			r := New()
			r.Experiment.Tenants, r.Experiment.Kernels, r.Experiment.Programs = []string{"small"}, nil, []Program{p}
			r.Experiment.Blocks, r.Experiment.Rate, r.Experiment.Demand = 2, 200, 0.05
			dir := t.TempDir()
			if err := r.Run(t.Context(), lab.Options{Exe: os.Args[0], Dir: dir, UndoLogDir: t.TempDir(), Unprivileged: os.Geteuid() != 0}); err != nil {
				t.Fatal(err)
			}
			if len(r.Skipped) > 0 {
				t.Skipf("not supported here: %s", r.Skipped[0].Reason)
			}
			n, worked := 0, false
			for _, round := range r.Rounds {
				if round.Scenario != cellOf("small", p.Name) {
					continue
				}
				n++
				u := round.Neighbour
				if u == nil || round.Load.Done == 0 || round.Load.Failed > 0 {
					t.Errorf("block %d: neighbour %+v, %d done, %d failed", round.Block, u, round.Load.Done, round.Load.Failed)
				}
				// fio waits for a slow disk most of the time, and a program that a busy host starts
				// late may do nothing in the first round.
				worked = worked || u != nil && u.Work > 0.0005
			}
			if n != 2 || !worked {
				t.Errorf("%d rounds beside it, want 2; it worked: %v", n, worked)
			}
			left, err := filepath.Glob("/proc/[0-9]*/comm")
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range left {
				text, _ := os.ReadFile(name) // it may have ended
				ours, _ := os.ReadFile(filepath.Dir(name) + "/cmdline")
				if strings.HasPrefix(p.Command[0], strings.TrimSpace(string(text))) && len(text) > 3 && strings.Contains(string(ours), dir) {
					t.Errorf("%s lives on: %q", name, ours)
				}
			}
		})
	}
}

// Programs get what stands in braces, and are skipped where something of that is not there.
func TestPrograms(t *testing.T) {
	t.Parallel()
	x := &running{Result: New(), dir: t.TempDir(), shared: 3, disk: "/dev/loop7"}
	cfg, err := x.program(Program{Name: "sh", Command: []string{"sh", "-j{cpus}", "{dir}/x", "--on={disk}", "{source}"}, Copies: PerCPU})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"sh", "-j3", x.dir + "/x", "--on=/dev/loop7", x.dir + "/source.c"}
	if diff := cmp.Diff(want, cfg.Command); diff != "" || cfg.Threads != 3 {
		t.Errorf("%d copies of (-want +got):\n%s", cfg.Threads, diff)
	}
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	if source, err := os.ReadFile(x.dir + "/source.c"); err != nil || strings.Count(string(source), "\n") < 5000 {
		t.Errorf("%d bytes of source, %v", len(source), err)
	}
	x.noDisk = &kernel.NotSupportedError{Feature: "a disk", Reason: "no FUSE"}
	for _, p := range []Program{{Command: []string{"sh", "{disk}"}}, {Command: []string{"no-such-program"}}} {
		if _, err := x.program(p); !errors.Is(err, kernel.ErrNotSupported) {
			t.Errorf("%q: %v, want not supported", p.Command, err)
		}
	}
	if c := x.cell("disk", nil, pattern{name: alone}); !errors.Is(c.Prepare(&c, 0), kernel.ErrNotSupported) {
		t.Error("a tenant that reads a disk, without one: not skipped")
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	short := Default()
	short.For = lab.Duration(time.Minute)
	if l := short.length(5); l != time.Minute {
		t.Errorf("length %s, want that it is limited by for", l)
	}
	if l := miniature().Length(nil); l < 5*time.Second || l > 25*time.Second {
		t.Errorf("length %s of the miniature", l)
	}
	for want, spoils := range map[string]func(*Spec){
		"tenants: none":      func(e *Spec) { e.Tenants = nil },
		`tenants: "large"`:   func(e *Spec) { e.Tenants = []string{"large"} },
		`tenants: "small"`:   func(e *Spec) { e.Tenants = []string{"small", "small"} },
		"nothing to compare": func(e *Spec) { e.Kernels, e.Programs = nil, nil },
		`kernels: "program"`: func(e *Spec) { e.Kernels = []string{"program"} },
		"intensities: 0":     func(e *Spec) { e.Intensities = []int{0} },
		`name "a/b"`:         func(e *Spec) { e.Programs[0].Name = "a/b" },
		`name "spin"`:        func(e *Spec) { e.Programs[0].Name = "spin" },
		"command: want":      func(e *Spec) { e.Programs[0].Command = nil },
		"copies: 65":         func(e *Spec) { e.Programs[0].Copies = 65 },
		"blocks: 0":          func(e *Spec) { e.Blocks = 0 },
		"window: 1ms":        func(e *Spec) { e.Window = lab.Duration(time.Millisecond) },
		"rate: 0":            func(e *Spec) { e.Rate = 0 },
		"demand: 2":          func(e *Spec) { e.Demand = 2 },
		"cpus":               func(e *Spec) { e.CPUs = "0-" },
		"weight: 10001":      func(e *Spec) { e.Weight = 10_001 },
		"limits of memory":   func(e *Spec) { e.Isolation.MemoryMax = 1 },
	} {
		e := Default()
		spoils(&e)
		if err := e.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// bed plays rounds that last as long as they are to, and a little between them: more where a
// program is started.
type bed struct{ between time.Duration }

func (b bed) Round(_ context.Context, c lab.Cell, block, position int) (lab.Round, error) {
	time.Sleep(c.Settle + c.Window + b.between)
	if c.Settle >= time.Second {
		time.Sleep(100 * time.Millisecond)
	}
	return lab.Round{Block: block, Position: position, Scenario: c.Name}, nil
}

// A run lasts as long as it announces, within a fifth, also where programs are not installed.
func TestLength(t *testing.T) {
	t.Parallel()
	for name, programs := range map[string][]string{"all installed": {"sh", "true", "cat", "sleep", "env"}, "none installed": {"absent-1", "absent-2", "absent-3", "absent-4", "absent-5"}} {
		for _, between := range []time.Duration{30 * time.Millisecond, 100 * time.Millisecond} { // a quiet machine, and a busy one
			synctest.Test(t, func(t *testing.T) {
				r := New()
				e := &r.Experiment
				for i, program := range programs {
					e.Programs[i].Command = []string{program}
				}
				announced, began := r.Length(nil), time.Now()
				x := &running{Result: r}
				var cells []lab.Cell
				for _, tenant := range e.Tenants {
					time.Sleep(3 * time.Second) // it is fitted
					for _, p := range e.patterns() {
						c := x.cell(tenant, nil, p)
						if c.Window == 0 {
							c.Settle, c.Window = time.Duration(e.Settle), time.Duration(e.Window)
						}
						c.Keep = func(lab.Round) error { return nil }
						c.Prepare = func(*lab.Cell, int) error {
							if len(p.program.Command) == 0 {
								return nil
							}
							if _, err := exec.LookPath(p.program.Command[0]); err != nil {
								return &kernel.NotSupportedError{Feature: "program", Reason: err.Error()}
							}
							return nil
						}
						cells = append(cells, c)
					}
				}
				run := lab.Experiment{Parts: []lab.Part{{Blocks: e.Blocks, Cells: cells}}, Result: r, Header: &r.Header, Ends: began.Add(time.Duration(e.For))}
				if err := lab.Run(t.Context(), run, bed{between}, lab.Options{Dir: t.TempDir()}); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took < announced*8/10 || took > announced*12/10 {
					t.Errorf("%s, %s between rounds: took %s, %s announced", name, between, took, announced)
				}
			})
		}
	}
}
