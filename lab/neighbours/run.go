package neighbours

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/machine"
)

// Result is everything that a run measured, as stored in result.json.
type Result struct {
	lab.Header
	Experiment Spec `json:"experiment"`
	// Tenants are those that were made to want as much as was asked for.
	Tenants []Fitted    `json:"tenants,omitempty"`
	Rounds  []lab.Round `json:"rounds"`
	// Uncounted says why the CPUs' counters tell nothing; "" if they do.
	Uncounted string `json:"uncounted,omitempty"`
}

// Fitted is a tenant as it ran.
type Fitted struct {
	Name   string            `json:"name"`
	Config load.TenantConfig `json:"config"`
	CPUs   float64           `json:"cpus"` // that it wants alone
}

// New is a result to be filled by Run.
func New() *Result {
	return &Result{Header: lab.Header{Schema: Schema}, Experiment: Default(), Rounds: []lab.Round{}}
}

// Spec is what a data file sets.
func (r *Result) Spec() any { return &r.Experiment }

// Validate says what is wrong with the settings.
func (r *Result) Validate() error { return r.Experiment.Validate() }

// Length is about how long a run takes, with the programs that are installed: that were, once
// it has run.
func (r *Result) Length(*machine.Machine) time.Duration {
	programs := 0
	for _, p := range r.Experiment.Programs {
		_, err := exec.LookPath(p.Command[0])
		there := err == nil
		if !r.Started.IsZero() {
			there = !slices.ContainsFunc(r.Skipped, func(s lab.Skipped) bool { _, name, _ := strings.Cut(s.Scenario, "/"); return name == p.Name })
		}
		if there {
			programs++
		}
	}
	return r.Experiment.length(programs)
}

// running is a run under way.
type running struct {
	*Result
	bed    *lab.Testbed
	dir    string
	shared int // CPUs
	disk   string
	noDisk error // why there is none
}

// Run runs the experiment, or goes on with it where it was loaded from the options' folder.
// Whatever happens, children are gone and the kernel is as it was when it returns.
func (r *Result) Run(ctx context.Context, opt lab.Options) error {
	if err := r.Validate(); err != nil {
		return err
	}
	opt.Servers = 1 // tenants of several kinds live on beside each other
	opt.Weight = r.Experiment.Weight
	if iso := r.Experiment.Isolation; iso.IOMax > 0 || iso.IOWeight > 0 {
		opt.Groups = true
	}
	base := r.Experiment.base()
	study := lab.Study{
		Base: &base, Result: r, Header: &r.Header, Rounds: &r.Rounds,
		Cells: func(bed *lab.Testbed) ([]lab.Cell, error) {
			r.Experiment.Seed = base.Seed
			x := &running{Result: r, bed: bed, dir: opt.Dir}
			return x.cells(ctx)
		},
		Blocks: func(blocks int) { r.Experiment.Blocks = blocks },
	}
	if r.Experiment.For > 0 {
		study.Ends = time.Now().Add(time.Duration(r.Experiment.For))
	}
	err := study.Run(ctx, opt)
	for _, name := range []string{cached, source} {
		if left := os.Remove(filepath.Join(opt.Dir, name)); !errors.Is(left, os.ErrNotExist) {
			err = errors.Join(err, left)
		}
	}
	return err
}

// The files in a run's folder that neighbours read. They go when the run ends.
const (
	cached = "cached"
	source = "source.c"
)

// cells are those of all tenants: each alone, alone again, and beside each neighbour.
func (x *running) cells(ctx context.Context) ([]lab.Cell, error) {
	shared, err := cpuset.Parse(x.Setup.CPUs)
	if err != nil {
		return nil, err
	}
	x.shared = shared.Len()
	if err := x.bed.Count(lab.Server(1)); errors.Is(err, kernel.ErrNotSupported) {
		x.Uncounted = err.Error()
	} else if err != nil {
		return nil, err
	}
	if x.needsDisk() {
		x.disk, x.noDisk = x.bed.Disk()
		if x.noDisk != nil && !errors.Is(x.noDisk, kernel.ErrNotSupported) {
			return nil, x.noDisk
		}
	}
	var cells []lab.Cell
	for _, name := range x.Experiment.Tenants {
		serve, err := x.tenant(ctx, name)
		if err != nil {
			return nil, err
		}
		for _, p := range x.Experiment.patterns() {
			cells = append(cells, x.cell(name, serve, p))
		}
	}
	return cells, nil
}

func (x *running) needsDisk() bool {
	e := x.Experiment
	return slices.ContainsFunc(e.Tenants, func(name string) bool { t, _ := tenantNamed(name); return t.Disk }) || slices.Contains(e.Kernels, "read") ||
		slices.ContainsFunc(e.Programs, func(p Program) bool { return strings.Contains(strings.Join(p.Command, " "), "{disk}") })
}

// tenant is one of a kind, fitted once; nil where it needs a disk that there is not.
func (x *running) tenant(ctx context.Context, name string) (*lab.Serve, error) {
	t, _ := tenantNamed(name)
	if t.Disk && x.noDisk != nil {
		return nil, nil
	}
	at := slices.IndexFunc(x.Tenants, func(f Fitted) bool { return f.Name == name })
	if at < 0 {
		e := x.Experiment
		want := e.Demand * float64(x.shared)
		c := load.TenantConfig{WorkingSetBytes: t.Bytes, Procs: x.shared, Seed: e.Seed}
		c, cpus, err := x.bed.Fit(ctx, c, e.Rate, time.Duration(want/e.Rate*float64(time.Second)))
		if err != nil {
			return nil, fmt.Errorf("tenant %s: %w", name, err)
		}
		x.Tenants = append(x.Tenants, Fitted{name, c, cpus})
		at = len(x.Tenants) - 1
	}
	f := &x.Tenants[at]
	if t.Disk { // its name differs from run to run
		f.Config.Disk, f.Config.DiskEvery = x.disk, 5
	}
	return &lab.Serve{Servers: 1, Tenant: f.Config, Load: load.Config{Rate: x.Experiment.Rate}}, nil
}

// The cells of a tenant without a neighbour.
const (
	alone = "alone"
	again = "again"
)

// pattern is a neighbour, or none.
type pattern struct {
	name      string // "scan-25", "cc"; alone and again
	kernel    string // "" for a program
	intensity int
	program   Program
}

// patterns are all that each tenant meets, in the order in which they are asked for.
func (e Spec) patterns() []pattern {
	all := []pattern{{name: alone}, {name: again}}
	for _, k := range e.Kernels {
		for _, percent := range e.Intensities {
			all = append(all, pattern{name: fmt.Sprintf("%s-%d", k, percent), kernel: k, intensity: percent})
		}
	}
	for _, p := range e.Programs {
		all = append(all, pattern{name: p.Name, program: p})
	}
	return all
}

// none says whether it is no neighbour.
func (p pattern) none() bool { return p.kernel == "" && len(p.program.Command) == 0 }

// cellOf is the name of the cell of a tenant beside a neighbour.
func cellOf(tenant, pattern string) string { return tenant + "/" + pattern }

func (x *running) cell(tenant string, serve *lab.Serve, p pattern) lab.Cell {
	c := lab.Cell{Name: cellOf(tenant, p.name), Serve: serve}
	if len(p.program.Command) > 0 {
		c.Settle, c.Window = time.Duration(x.Experiment.Warm), time.Duration(x.Experiment.Window)
	}
	c.Prepare = func(c *lab.Cell, _ int) error {
		if serve == nil {
			return x.noDisk
		}
		if p.none() {
			return nil
		}
		cfg, err := x.noise(p)
		if err == nil {
			c.Noise = &cfg
			c.Settings, err = x.settings()
		}
		return err
	}
	return c
}

// settings are those of the isolation; the tenant is a server here.
func (x *running) settings() (lab.Settings, error) {
	s, err := x.bed.Settings(x.Experiment.Isolation)
	if limits, ok := s[lab.Tenant]; ok {
		delete(s, lab.Tenant)
		s[lab.Server(1)] = limits
	}
	return s, err
}

// noise is the process of a pattern.
func (x *running) noise(p pattern) (noise.Config, error) {
	cfg := noise.Config{Kernel: p.kernel, Threads: x.shared, Intensity: p.intensity, Seed: x.Experiment.Seed}
	usual := x.Setup.Neighbour
	cfg.L2Bytes, cfg.L3Bytes = usual.L2Bytes, usual.L3Bytes
	switch p.kernel {
	case "":
		return x.program(p.program)
	case "fork":
		return cfg, installed(noise.ForkProgram)
	case "read":
		cfg.File, cfg.Threads = x.disk, lab.DiskReaders
		return cfg, x.noDisk
	case "cache":
		if err := lab.OnDisk(x.dir); err != nil {
			return cfg, err
		}
		cfg.File = filepath.Join(x.dir, cached)
		return cfg, once(cfg.File, func(file *os.File) error { return file.Truncate(256 << 20) }) // holes: no room on the disk
	}
	return cfg, nil
}

// program is one that is run, its arguments filled in.
func (x *running) program(p Program) (cfg noise.Config, err error) {
	cfg = noise.Config{Kernel: noise.Program, Threads: max(p.Copies, 1), Intensity: 100, Seed: x.Experiment.Seed}
	if p.Copies == PerCPU {
		cfg.Threads = x.shared
	}
	if err := installed(p.Command[0]); err != nil {
		return cfg, err
	}
	file := filepath.Join(x.dir, source)
	for _, arg := range p.Command {
		if strings.Contains(arg, "{disk}") && x.noDisk != nil {
			return cfg, x.noDisk
		}
		if strings.Contains(arg, "{source}") {
			err = errors.Join(err, once(file, writeSource))
		}
		cfg.Command = append(cfg.Command, strings.NewReplacer("{cpus}", strconv.Itoa(x.shared), "{dir}", x.dir, "{disk}", x.disk, "{source}", file).Replace(arg))
	}
	return cfg, err
}

func installed(program string) error {
	if _, err := exec.LookPath(program); err != nil {
		return &kernel.NotSupportedError{Feature: "program " + program, Reason: "it is not installed", Remedy: "install it, or leave it out"}
	}
	return nil
}

// once makes a file if there is none.
func once(name string, write func(*os.File) error) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(write(file), file.Close())
}

// writeSource writes a C program that a compiler has to think about for a second or two.
func writeSource(file *os.File) error {
	var b strings.Builder
	for i := range 1500 {
		fmt.Fprintf(&b, "unsigned f%d(unsigned x) {\n\tfor (unsigned i = 0; i < x %% %d; i++)\n\t\tx = x * %du + (x >> %d) + (i & 1 ? %d : x / (i + 1));\n\treturn x;\n}\n",
			i, i%97+2, 2*i+1, i%13+1, i)
	}
	_, err := file.WriteString(b.String())
	return err
}
