package limits

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/labtest"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
)

// The test binary is the lab's children, too, and the run that is killed.
func TestMain(m *testing.M) { labtest.Main(m) }

const ms = time.Millisecond

func TestValidate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*Spec)
		want   string // "" for none
	}{
		"as it comes":         {func(*Spec) {}, ""},
		"a day":               {func(s *Spec) { s.For, s.Blocks = lab.Duration(24*time.Hour), 50_000 }, ""},
		"all tiles":           {func(s *Spec) { s.Sample = 26_010 }, ""},
		"no name":             {func(s *Spec) { s.Name = "" }, "name"},
		"no configs":          {func(s *Spec) { s.Configs = nil }, "configs: none"},
		"no loads":            {func(s *Spec) { s.Loads = nil }, "loads: none"},
		"no tiles":            {func(s *Spec) { s.Sample = 0 }, "sample: 0"},
		"too many tiles":      {func(s *Spec) { s.Sample = 26_011 }, "sample: 26011"},
		"no blocks":           {func(s *Spec) { s.Blocks = 0 }, "blocks: 0"},
		"a year":              {func(s *Spec) { s.For = lab.Duration(365 * 24 * time.Hour) }, "for:"},
		"short window":        {func(s *Spec) { s.Window = lab.Duration(ms) }, "window: 1ms"},
		"settle":              {func(s *Spec) { s.Settle = lab.Duration(-ms) }, "settle"},
		"cpus":                {func(s *Spec) { s.CPUs = "0-" }, "cpus"},
		"weight":              {func(s *Spec) { s.Weight = 20_000 }, "weight: 20000"},
		"heavy noise":         {func(s *Spec) { s.Weight, s.Configs[2].Noise = 100, true }, "not with noise"},
		"twice":               {func(s *Spec) { s.Configs[2].Name = "none" }, `name "none"`},
		"comma":               {func(s *Spec) { s.Configs[2].Name = "a,b" }, `name "a,b"`},
		"no servers":          {func(s *Spec) { s.Configs[2].Servers = 0 }, "servers: 0"},
		"limit of more":       {func(s *Spec) { s.Configs[3].Limit = 1.5 }, "limit: 1.5"},
		"not a limit":         {func(s *Spec) { s.Configs[3].Limit = math.NaN() }, "limit: NaN"},
		"burst without limit": {func(s *Spec) { s.Configs[0].Burst = 0.5 }, "want a limit"},
		"period":              {func(s *Spec) { s.Configs[3].Period = lab.Duration(2 * time.Second) }, "period: 2s"},
		"threads":             {func(s *Spec) { s.Configs[3].Threads = -1 }, "threads: -1"},
		"quiet noise":         {func(s *Spec) { s.Configs[3].NoiseLimit = 0.5 }, "noiseLimit"},
		"routing":             {func(s *Spec) { s.Configs[3].Routing = "best" }, "join-idle"},
		"unknown pair":        {func(s *Spec) { s.Compare = []Pair{{"8", "9"}} }, "8 with 9"},
		"two kinds of load":   {func(s *Spec) { s.Loads[0].ClientsPerCPU = 1 }, "either of"},
		"no load":             {func(s *Spec) { s.Loads[0].Share = 0 }, "either of"},
		"same load":           {func(s *Spec) { s.Loads = append(s.Loads, s.Loads[0]) }, "twice"},
		"tiles":               {func(s *Spec) { s.Loads[0].Tiles = "round" }, `tiles "round"`},
	} {
		s := Limits().Experiment
		tc.change(&s)
		err := s.Validate()
		if (tc.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	for _, x := range []*Experiment{Limits(), Ramp(), Noise(), Routing()} {
		if err := x.Validate(); err != nil || x.Length(nil) <= 0 || x.Length(nil) > 12*time.Minute {
			t.Errorf("%s: %v, %s long", x.Experiment.Name, err, x.Length(nil))
		}
	}
}

// The same seed draws the same tiles of a kind, and other ones another.
func TestDraw(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{small, large, all} {
		tiles := draw(kind, 12, 3)
		if len(tiles) != 12 || !slices.Equal(tiles, draw(kind, 20, 3)[:12]) || slices.Equal(tiles, draw(kind, 12, 4)) {
			t.Errorf("%s: %v", kind, tiles)
		}
		for _, tile := range tiles {
			if !fits(kind, tile.Estimate()) {
				t.Errorf("%s: tile %d of %d steps", kind, tile.Number, tile.Estimate())
			}
		}
	}
	_, light := draw(small, 1, 1)[0].Render()
	if _, heavy := draw(large, 1, 1)[0].Render(); heavy < 5*light || fits(small, heavy) {
		t.Errorf("a large tile is %d steps, a small one %d", heavy, light)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	period := 100 * ms
	for name, tc := range map[string]struct {
		of   Config
		want lab.Settings
	}{
		"none": {Config{Servers: 2}, lab.Settings{}},
		"half": {Config{Servers: 2, Limit: 0.5}, lab.Settings{
			lab.Server(1): {Quota: 200 * ms, Period: period}, lab.Server(2): {Quota: 200 * ms, Period: period},
		}},
		"burst": {Config{Servers: 1, Limit: 0.125, Burst: 0.5, Period: lab.Duration(20 * ms)}, lab.Settings{
			lab.Server(1): {Quota: 10 * ms, Period: 20 * ms, Burst: 5 * ms},
		}},
		"least": {Config{Servers: 1, Limit: 0.001}, lab.Settings{lab.Server(1): {Quota: ms, Period: period}}},
		"noise": {Config{Servers: 1, Noise: true, NoiseLimit: 0.25}, lab.Settings{lab.Neighbour: {Quota: 100 * ms, Period: period}}},
	} {
		got := tc.of.settings(4)
		if len(got) != len(tc.want) {
			t.Errorf("%s: %+v", name, got)
		}
		for role, want := range tc.want {
			if diff := cmp.Diff(want, got[role]); diff != "" {
				t.Errorf("%s: %s (-want +got):\n%s", name, role, diff)
			}
		}
	}
	if threads := (Config{}).tenant(6).Procs; threads != 6 {
		t.Errorf("%d threads on 6 CPUs", threads)
	}
	if threads := (Config{Threads: 1}).tenant(6).Procs; threads != 1 {
		t.Errorf("%d threads, want one", threads)
	}
}

// A load asks for the same tiles of all configs in a block, in another order in each block.
func TestLoad(t *testing.T) {
	t.Parallel()
	x := Limits()
	x.Samples = []Sample{{small, []Tile{{1, 0xa, 100, lab.Duration(2 * ms)}, {2, 0xb, 100, lab.Duration(4 * ms)}, {3, 0xc, 100, lab.Duration(6 * ms)}}}}
	open := Load{Share: 0.5, Tiles: small}
	got, err := x.load(Config{Routing: load.RoundRobin}, open, 2, 7)
	if err != nil || math.Abs(got.Rate-250) > 1e-9 || got.Clients != 0 || got.Routing != load.RoundRobin {
		t.Errorf("%+v, %v; want 250/s: a CPU of tiles of 4 ms", got, err)
	}
	other, _ := x.load(Config{}, open, 2, 7)
	next, _ := x.load(Config{}, open, 2, 8)
	if !slices.Equal(got.Paths, other.Paths) || len(got.Paths) != 3 || slices.Equal(got.Paths, next.Paths) {
		t.Errorf("paths %q and %q in a block, %q in the next", got.Paths, other.Paths, next.Paths)
	}
	if slices.Sort(got.Paths); got.Paths[0] != (load.Tile{Number: 1}).Path(0xa) {
		t.Errorf("paths %q", got.Paths)
	}
	for perCPU, want := range map[float64]int{0.1: 1, 0.5: 1, 1: 2, 4: 8} {
		if got, _ := x.load(Config{}, Load{ClientsPerCPU: perCPU, Tiles: small}, 2, 0); got.Clients != want || got.Rate < 1000 {
			t.Errorf("%g clients per CPU: %d, room for %g/s; want %d", perCPU, got.Clients, got.Rate, want)
		}
	}
	if _, err := x.load(Config{}, Load{Share: 0.5, Tiles: large}, 2, 0); err == nil {
		t.Error("tiles that were not drawn: no error")
	}
}

// miniature is two servers without and with a limit that is below what is asked for.
func miniature() *Experiment {
	return begin(Spec{
		Name: "limits", Sample: 4, Blocks: 2, Seed: 11, Window: lab.Duration(300 * ms),
		Configs: []Config{{Name: "none", Servers: 1}, {Name: "2", Servers: 2, Limit: 0.05, Routing: load.RoundRobin}, {Name: "noisy", Servers: 1, Noise: true, NoiseLimit: 0.2}},
		Loads:   []Load{{Share: 0.3, Tiles: small}, {ClientsPerCPU: 1, Tiles: small}},
	})
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
		_, err = host.Base(cgroup.CPU)
	}
	if err != nil || os.Geteuid() != 0 {
		t.Skip("control groups of the lab's own: run as root where the cpu controller can be used: ", err)
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

// A miniature run on this machine: all is measured, limits are in force, and nothing is left.
func TestForReal(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	fakekernel.LockHost(t, fakekernel.Shared)
	x := miniature()
	opt := options(t, t.TempDir())
	run(t, x, opt)
	s := x.Experiment
	if !x.Complete || len(x.Rounds) != s.Blocks*len(s.Configs)*len(s.Loads) || len(x.Samples) != 1 || len(x.Samples[0].Tiles) != 4 {
		t.Fatalf("complete %v, %d rounds, samples %+v", x.Complete, len(x.Rounds), x.Samples)
	}
	throttled := 0
	for _, r := range x.Rounds {
		name, _, _ := strings.Cut(r.Scenario, " @ ")
		if r.Load.Failed > 0 || r.Load.Offered == 0 {
			t.Errorf("%s: %d of %d failed: %v", r.Scenario, r.Load.Failed, r.Load.Offered, r.Load.Errors)
		}
		if (name == "2") != (len(r.Servers) == 2) || (name == "noisy") != (r.Neighbour != nil) {
			t.Errorf("%s: %d servers, neighbour %v", r.Scenario, len(r.Servers), r.Neighbour)
		}
		if name != "2" {
			continue
		}
		if r.Load.Same != 0 || len(r.Load.Servers) != 2 {
			t.Errorf("%s: %d in a row to a server of %v", r.Scenario, r.Load.Same, r.Load.Servers)
		}
		throttled += int(r.Tenant.ThrottledPeriods)
		if !slices.ContainsFunc(r.Knobs, func(k lab.Knob) bool {
			return k.Of == "server1" && strings.Contains(k.File, "cpu.") && k.Value != "max" && k.Value != "-1"
		}) {
			t.Errorf("%s: knobs %+v", r.Scenario, r.Knobs)
		}
	}
	if throttled == 0 {
		t.Error("a limit below the load throttled nobody")
	}
	sheet, err := x.Sheet()
	if err != nil || len(sheet.Body) == 0 {
		t.Errorf("sheet: %v", err)
	}
	if left, _ := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/cpu/berth-lab-%d", os.Getpid())); left != nil {
		t.Errorf("left: %q", left)
	}
}

// A run that was killed keeps its finished rounds and its tiles, and goes on with the others.
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
	pid := labtest.Kill(t, dir, "round measure 4")
	var x Experiment
	if err := lab.Load(dir, Schema("limits"), &x); err != nil {
		t.Fatal(err)
	}
	before, _ := json.Marshal(x.Rounds)
	root, err := kernel.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kernel.Restore(root, opt.UndoLogDir); err != nil { // as berth lab does first
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/cpu/berth-lab-%d", pid)); left != nil {
		t.Errorf("left: %q", left)
	}
	n, tiles := len(x.Rounds), slices.Clone(x.Samples[0].Tiles)
	run(t, &x, opt)
	kept, _ := json.Marshal(x.Rounds[:n])
	if n < 3 || !x.Complete || len(x.Rounds) != 12 || string(before) != string(kept) || !slices.Equal(tiles, x.Samples[0].Tiles) || len(x.Resumed) != 1 {
		t.Errorf("%d rounds before, complete %v, %d after; the first are the same: %v", n, x.Complete, len(x.Rounds), string(before) == string(kept))
	}
}
