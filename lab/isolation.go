package lab

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/lab/program"
	"berth.dev/berth/lab/stats"
)

// Isolate runs the experiment of a spec: the tenant beside the neighbour under each
// isolation strategy. Whatever happens, children are gone and the kernel is as it was
// when it returns. On an error or a cancelled context the result holds the rounds
// finished by then, if there are any, and is stored as well.
func Isolate(ctx context.Context, spec Spec, opt Options) (*Result, error) {
	return isolate(ctx, &Result{Header: Header{Schema: Schema}, Experiment: spec, Rounds: []Round{}}, opt)
}

// ResumeIsolate goes on with the run that is stored in the folder of the options.
func ResumeIsolate(ctx context.Context, opt Options) (*Result, error) {
	return goOn(ctx, "resume", opt, func(*Result) error { return nil })
}

// ContinueIsolate adds blocks to the run that is stored in the folder of the options, and
// is complete: so many, or as many as fit into a time, until intervals are so narrow.
func ContinueIsolate(ctx context.Context, blocks int, limit time.Duration, until float64, opt Options) (*Result, error) {
	return goOn(ctx, "continue", opt, func(r *Result) error {
		if !r.Complete {
			return errors.New("the run is not complete: --resume goes on with it")
		}
		done := r.Experiment.Blocks // after Look what was dropped stays so
		if blocks == 0 {
			r.Experiment.Fill(limit)
			blocks = r.Experiment.Blocks
		}
		r.Complete, r.Experiment.Preset = false, ""
		r.Experiment.Blocks, r.Experiment.For, r.Experiment.Until = done+blocks, Duration(limit), until
		return nil
	})
}

// goOn reads a stored run and runs what it lacks when it is made ready for that.
func goOn(ctx context.Context, verb string, opt Options, ready func(*Result) error) (*Result, error) {
	r, err := ReadFile(opt.Dir)
	if err == nil {
		err = ready(r)
	}
	if err == nil {
		err = r.Experiment.Validate()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", verb, err)
	}
	opt.Finished = r.Has
	return isolate(ctx, r, opt)
}

// Has says whether the result has a round of a cell in a block.
func (r *Result) Has(cell string, block int) bool { return hasRound(r.Rounds, cell, block) }

func hasRound(rounds []Round, cell string, block int) bool {
	return slices.ContainsFunc(rounds, func(round Round) bool { return round.Scenario == cell && round.Block == block })
}

func isolate(ctx context.Context, r *Result, opt Options) (*Result, error) {
	began := time.Now()
	study := Study{
		Base: &r.Experiment, Header: &r.Header, Result: r, Rounds: &r.Rounds,
		Cells:  func(b *Testbed) ([]Cell, error) { return b.Scenarios(r.Experiment), nil },
		Blocks: func(blocks int) { r.Experiment.Blocks = blocks },
	}
	if study.Look = r.Experiment.Look; study.Look > 0 {
		study.Drop = func() ([]string, error) {
			a, err := Analyse(r)
			if err != nil {
				return nil, err
			}
			return a.settled(), nil
		}
	}
	if r.Experiment.For > 0 {
		study.Ends = began.Add(time.Duration(r.Experiment.For))
	}
	if r.Experiment.Until > 0 {
		study.Enough = enough(r)
	}
	ready, err := study.run(ctx, opt)
	if !ready {
		return nil, err
	}
	return r, err
}

// enough says whether the run is decided: an analysis after every block, or every few
// where that takes long.
func enough(r *Result) func() (bool, error) {
	var last time.Time
	var took time.Duration
	return func() (bool, error) {
		now := time.Now()
		if now.Sub(last) < 20*took {
			return false, nil
		}
		a, err := Analyse(r)
		last = time.Now()
		took = last.Sub(now)
		return err == nil && a.narrow(r.Experiment.Until, r.Dropped), err
	}
}

// narrow says whether the interval of every ratio of p99 is: within ±10 % for 0.1, as
// factors. What has no ratio stays undecided; what is skipped does not matter, nor what a
// look has dropped, as it gets no more rounds.
func (a *Analysis) narrow(within float64, dropped []Dropped) bool {
	for _, row := range a.Rows {
		if row.Scenario == Baseline || row.Skipped != nil || slices.ContainsFunc(dropped, func(d Dropped) bool { return d.Scenario == row.Scenario }) {
			continue
		}
		if row.Ratio == nil || !row.Ratio.Known() || !(row.Ratio.High <= row.Ratio.Low*(1+within)*(1+within)) {
			return false
		}
	}
	return true
}

// Scenarios are those of a spec as cells, each with its lengths and settings.
func (b *Testbed) Scenarios(spec Spec) []Cell {
	var cells []Cell
	for _, s := range spec.Scenarios {
		settle, window := spec.lengthOf(s)
		cells = append(cells, Cell{
			Name: s.Name, Neighbour: s.Neighbour && !s.Isolation.Guard, Together: s.Isolation.Together, Settle: settle, Window: window,
			Hooks: b.schedule(s.Isolation),
			Prepare: func(c *Cell, _ int) (err error) {
				if c.Settings, err = b.settings(s); err == nil && s.Isolation.Guard {
					err = b.prepareGuard(c)
				}
				return err
			},
		})
	}
	return cells
}

// minQuota is the least that the kernel accepts (cgroup-v2.rst, CPU bandwidth).
const minQuota = time.Millisecond

// Settings are those of a strategy, with its numbers filled in.
func (b *Testbed) Settings(iso Isolation) (Settings, error) {
	return b.settings(Scenario{Isolation: iso})
}

// settings fills in the numbers of a strategy.
func (b *Testbed) settings(scenario Scenario) (Settings, error) {
	iso := scenario.Isolation
	pl := b.places
	if iso.Split && pl.splitWhy != "" {
		return nil, &kernel.NotSupportedError{
			Feature: "cores of their own", Reason: pl.splitWhy, Remedy: "run where at least two cores are allowed",
		}
	}
	if scenario.Name == grouped && b.Setup.Backend == schedBackend {
		return nil, &kernel.NotSupportedError{
			Feature: "a group of its own", Reason: "this run has no control groups: " + b.Setup.BackendNote,
			Remedy: "run as root, or in a group delegated to you: systemd-run --user --scope -p Delegate=yes",
		}
	}
	s, t, l := Settings{}, cgroup.Limits{}, cgroup.Limits{Weight: int(iso.Weight)}
	if iso.Idle {
		l.Idle = cgroup.On
	}
	if iso.Cap {
		l.Quota, l.Period = max(minQuota, time.Duration(math.Round(b.left()*float64(quotaPeriod))).Truncate(time.Millisecond)), quotaPeriod
	}
	if iso.Split {
		if b.outside == nil { // which is not moved
			t.CPUs, t.Mems = pl.tenant, pl.tenantMems
		}
		l.CPUs, l.Mems = pl.neighbour, pl.neighbourMems
	}
	if err := b.press(iso, &t, &l); err != nil {
		return nil, err
	}
	for role, limits := range map[Role]cgroup.Limits{Tenant: t, Neighbour: l} {
		if len(limits.Settings()) > 0 {
			s[role] = limits
		}
	}
	return s, nil
}

// Preview says what a run would do.
type Preview struct {
	Experiment Spec  `json:"experiment"`
	Setup      Setup `json:"setup"`
	// Writes are the kernel settings of each scenario, one per line.
	Writes  map[string]string `json:"writes"`
	Skipped []Skipped         `json:"skipped,omitempty"`
	// Order is the scenarios of each block in the order in which they would run.
	Order [][]string `json:"order"`
}

// Plan says what Isolate would do. It makes the lab's control groups, to see what
// the kernel offers in them, and removes them again; it measures nothing.
func Plan(spec Spec, opt Options) (_ *Preview, err error) {
	h := Header{Schema: Schema}
	bed, err := prepare(&spec, &h, opt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	// Not calibrated: the demand asked for stands for the one measured.
	h.Setup.TenantCPUs = spec.need(bed.places.shared.Len())
	p := &Preview{Experiment: spec, Setup: h.Setup, Writes: map[string]string{}}
	var names []string
	for _, s := range spec.Scenarios {
		names = append(names, s.Name)
		var writes change
		settings, err := bed.settings(s)
		if err == nil {
			writes, err = bed.backend.plan(settings, s.Isolation.Together)
		}
		if err == nil && s.Isolation.shares() {
			var plan kernel.Plan
			plan, err = bed.link.plan(s.Isolation)
			writes.text += plan.String()
		}
		switch {
		case errors.Is(err, kernel.ErrNotSupported):
			h.skip(s.Name, err)
		case err != nil:
			return nil, fmt.Errorf("scenario %s: %w", s.Name, err)
		default:
			p.Writes[s.Name] = writes.text
		}
	}
	p.Skipped = h.Skipped
	for block := range spec.Blocks {
		p.Order = append(p.Order, stats.Order(names, block, spec.Seed))
	}
	return p, nil
}

// String writes the preview for a terminal.
func (p *Preview) String() string {
	var b strings.Builder
	s := p.Setup
	fmt.Fprintf(&b, "experiment %s: %d rounds of %d scenarios, %s settling and %s measured each; about %s\n",
		p.Experiment.Name, p.Experiment.Blocks, len(p.Experiment.Scenarios), p.Experiment.Settle, p.Experiment.Window, p.Experiment.Length().Round(time.Second))
	fmt.Fprintf(&b, "backend    %s\n", s.Backend)
	if s.BackendNote != "" {
		fmt.Fprintf(&b, "           %s\n", s.BackendNote)
	}
	fmt.Fprintf(&b, "cpus       %s shared by tenant and neighbour", s.CPUs)
	if s.GeneratorCPUs != "" {
		fmt.Fprintf(&b, "; %s for the generator", s.GeneratorCPUs)
	}
	fmt.Fprintf(&b, "\ntenant     %s, %g requests/s, %s of CPU each (%.2f CPUs; calibrated before the first round)\n",
		p.Experiment.Tenant, s.Rate, s.CPUPerRequest, s.TenantCPUs)
	if command := s.Neighbour.Command; len(command) > 0 {
		fmt.Fprintf(&b, "neighbour  %s\n", program.Text(command))
	} else {
		fmt.Fprintf(&b, "neighbour  %s, %d threads, intensity %d %%\n", s.Neighbour.Kernel, s.Neighbour.Threads, s.Neighbour.Intensity)
	}
	if s.Awake {
		b.WriteString("idle CPUs  kept awake, on the whole host (" + latencyFile + ")\n")
	}
	skipped := map[string]Skipped{}
	for _, s := range p.Skipped {
		skipped[s.Scenario] = s
	}
	for _, sc := range p.Experiment.Scenarios {
		fmt.Fprintf(&b, "\n%s: %s\n", sc.Name, sc.Means)
		if skip, ok := skipped[sc.Name]; ok {
			fmt.Fprintf(&b, "  skipped: %s (%s)\n", skip.Reason, skip.Remedy)
		}
		for line := range strings.Lines(p.Writes[sc.Name]) {
			fmt.Fprintf(&b, "  %s\n", strings.TrimSpace(line))
		}
	}
	b.WriteString("\norder\n")
	for i, block := range p.Order {
		fmt.Fprintf(&b, "  %2d  %s\n", i+1, strings.Join(block, "  "))
	}
	return b.String()
}
