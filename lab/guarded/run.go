package guarded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

// The scenarios of the comparison in steady state, besides the baselines.
const (
	Unguarded = lab.Unisolated
	Guarded   = "guarded"
)

func scenarios() []lab.Scenario {
	return []lab.Scenario{
		{Name: lab.Baseline, Means: "tenant alone, without the guard"},
		{Name: lab.BaselineAgain, Means: "tenant alone once more, to see by how much the same thing differs"},
		{Name: Unguarded, Neighbour: true, Means: "neighbour beside it, without the guard"},
		{Name: Guarded, Neighbour: true, Means: "neighbour beside it, the guard acting"},
	}
}

// experiment is a run under way.
type experiment struct {
	*Result
	host
	bed  *lab.Testbed
	dir  string
	base lab.Spec
}

// host is what runs need of the machine besides their load: that of a testbed, or one that a
// test plays.
type host struct {
	// guard starts the guard, whose times count from an instant; end stops it, and files what
	// it said.
	guard func(ctx context.Context, zero time.Time) (end func(*Trial) error, err error)
	// usage is the CPU time of the roles so far, in seconds.
	usage func() (map[lab.Role]float64, error)
	knobs func() ([]lab.Knob, error)
	// ownGroup is the group that this process is in, "" or "/" for none.
	ownGroup func() (string, error)
	requests func() ([]lab.Request, error)
}

// stage is a round under way: a *lab.Running, or what stands for it in a test.
type stage interface {
	Now() time.Duration
	Until(ctx context.Context, at time.Duration) error
	Finish(f func() error)
	StartNeighbour(ctx context.Context) error
	Noise(role lab.Role, cfg noise.Config) (*lab.Process, error)
	Keep(ctx context.Context, role lab.Role, cfg noise.Config) (*lab.Process, error)
	Load(ctx context.Context, more lab.Extra) (*lab.Process, error)
	Generator() (cpuSeconds float64, err error)
}

// Run runs an experiment. Whatever happens, children are gone and the kernel is as it
// was when it returns. On an error or a cancelled context the result holds what was
// finished by then, and is stored as well.
func Run(ctx context.Context, spec Spec, opt lab.Options) (*Result, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if len(spec.Faults) == 0 {
		spec.Runs = 0
	}
	return run(ctx, &Result{Header: lab.Header{Schema: Schema}, Experiment: spec}, opt)
}

// Resume goes on with the run that is stored in the folder of the options.
func Resume(ctx context.Context, opt lab.Options) (*Result, error) {
	r, err := ReadFile(opt.Dir)
	if err == nil {
		err = r.Experiment.Validate()
	}
	if err != nil {
		return nil, fmt.Errorf("resume: %w", err)
	}
	opt.Finished = r.has
	return run(ctx, r, opt)
}

// Measured says whether the result has anything.
func (r *Result) Measured() bool { return len(r.Runs) > 0 || r.Steady != nil }

// has says whether the result has a run of a fault, or a round in steady state.
func (r *Result) has(cell string, block int) bool {
	return r.Steady != nil && r.Steady.Has(cell, block) ||
		slices.ContainsFunc(r.Runs, func(t Trial) bool { return t.Fault == cell && t.Number == block+1 })
}

func run(ctx context.Context, r *Result, opt lab.Options) (_ *Result, err error) {
	x := &experiment{Result: r, dir: opt.Dir, base: r.Experiment.base()}
	opt.Roles, opt.Groups, opt.Weight = []lab.Role{lab.Bystander}, true, r.Experiment.Weight
	if x.bed, err = lab.Open(ctx, &x.base, &r.Header, opt); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, x.bed.Close()) }()
	x.host = x.live()
	r.Experiment.Seed = x.base.Seed
	return r, lab.Run(ctx, lab.Experiment{Parts: x.parts(), Seed: r.Experiment.Seed, Result: r, Header: &r.Header}, x.bed, opt)
}

// live is the host of a testbed.
func (x *experiment) live() host {
	return host{guard: x.watch, usage: x.used, knobs: x.bed.Knobs, ownGroup: ownGroup, requests: x.bed.Requests}
}

// parts are the runs of faults, and then the rounds in steady state.
func (x *experiment) parts() []lab.Part {
	e := x.Experiment
	faults := lab.Part{Blocks: e.Runs}
	for i, name := range e.Faults {
		fault, _ := FaultNamed(name)
		faults.Cells = append(faults.Cells, lab.Cell{Name: name, Settle: settle, Prepare: func(c *lab.Cell, block int) error {
			return x.prepare(c, fault, block, rand.New(rand.NewPCG(x.Experiment.Seed, uint64(block*len(Faults())+i))))
		}})
	}
	return []lab.Part{faults, x.steady()}
}

// base is what the lab is asked for.
func (e Spec) base() lab.Spec {
	base := lab.IsolationSpec()
	base.Name, base.Scenarios, base.CPUs, base.Seed = "guard", scenarios(), e.CPUs, e.Seed
	base.Blocks, base.Settle, base.Window = e.Blocks, lab.Duration(settle), e.Steady
	base.Tenant.Demand, base.Rate, base.ThreadsPerCPU = e.Demand, e.Rate, 1
	return base
}

// validateBase checks what the lab will be asked for; without blocks the length of
// its rounds does not matter.
func validateBase(e lab.Spec) error {
	e.Blocks = max(e.Blocks, 1)
	e.Window = max(e.Window, lab.Duration(time.Second))
	return e.Validate()
}

const (
	// settle is for how long the load runs before it is measured.
	settle = 500 * time.Millisecond
	// after is for how long a run goes on when its fault is over.
	after = time.Second
)

// faultRun is one run of a fault.
type faultRun struct {
	*experiment
	trial  Trial
	onset  time.Duration // after the load began
	lasts  time.Duration
	ready  preparation
	before []lab.Knob // the settings without the guard
}

// prepare makes the cell a run of a fault.
func (x *experiment) prepare(c *lab.Cell, f Fault, block int, random *rand.Rand) error {
	run, err := x.fault(c, f, block, random)
	if err != nil {
		return err
	}
	c.During, c.Keep = func(ctx context.Context, r *lab.Running) error { return run.during(ctx, r) }, run.keep
	return nil
}

// fault is a run of a fault, which gives the cell the tenant and the window that it needs. Its
// onset is by chance.
func (x *experiment) fault(c *lab.Cell, f Fault, block int, random *rand.Rand) (*faultRun, error) {
	ready, err := x.disturbance(c, f, random)
	if err != nil {
		return nil, err
	}
	run := &faultRun{experiment: x, ready: ready, lasts: time.Duration(x.Experiment.Last)}
	if f.Name == Quiet {
		run.lasts = cmp.Or(time.Duration(x.Experiment.Quiet), run.lasts)
	}
	run.onset = onset(x.Experiment, random)
	run.trial = Trial{Fault: f.Name, Number: block + 1, From: -run.onset.Seconds(), BinsFrom: (settle - run.onset).Seconds(), End: run.lasts.Seconds()}
	c.Window = run.onset - settle + run.lasts + after
	run.before, err = x.knobs()
	return run, err
}

// onset is by chance: so it has no fixed place in the guard's windows.
func onset(e Spec, random *rand.Rand) time.Duration {
	return time.Duration(e.Learn) + time.Duration(random.Float64()*float64(time.Second))
}

// zero is the instant of the onset, from which the times noted count, if now the load has
// been there for so long.
func (run *faultRun) zero(now time.Time, load time.Duration) time.Time {
	return now.Add(run.onset - load)
}

// during makes the run happen: a bystander and the guard from the start, the fault
// from its onset to its end.
func (run *faultRun) during(ctx context.Context, r stage) (err error) {
	bystander, err := r.Noise(lab.Bystander, noise.Config{Kernel: "spin", Threads: 1, Intensity: 5, Seed: run.Experiment.Seed})
	if err != nil {
		return err
	}
	if err := bystander.Begin(ctx); err != nil {
		return err
	}
	end, err := run.guard(ctx, run.zero(time.Now(), r.Now()))
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, end(&run.trial))
		var now []lab.Knob
		if err == nil {
			now, err = run.knobs()
			run.trial.Changed = different(run.before, now)
		}
	}()
	fault, err := run.ready(ctx, r)
	if err != nil {
		return err
	}
	if err := r.Until(ctx, run.onset); err != nil {
		return err
	}
	before, err := run.usage()
	if err != nil {
		return err
	}
	if err := fault.begin(ctx); err != nil {
		return err
	}
	waited := r.Until(ctx, run.onset+run.lasts)
	now, err := run.usage()
	for role, to := range map[lab.Role]*float64{lab.Tenant: &run.trial.TenantCPUs, lab.Neighbour: &run.trial.NeighbourCPUs} {
		*to = (now[role] - before[role]) / run.lasts.Seconds()
	}
	if err := errors.Join(waited, err, fault.end()); err != nil {
		return err
	}
	return r.Until(ctx, run.onset+run.lasts+after/2)
}

// used is the CPU time of the roles so far, in seconds.
func (x *experiment) used() (map[lab.Role]float64, error) {
	used := map[lab.Role]float64{}
	for _, role := range []lab.Role{lab.Tenant, lab.Neighbour, lab.Bystander} {
		told, err := x.bed.Statistics(role, cgroupstat.Usage)
		if err != nil {
			return nil, err
		}
		used[role] = told[watch.CPUTime]
	}
	return used, nil
}

// keep files the run, with what was measured in its round.
func (run *faultRun) keep(round lab.Round) error {
	t := &run.trial
	t.count(round, run.Experiment.MaxOthers)
	requests, err := run.requests()
	if err != nil {
		return err
	}
	t.bin(requests, time.Duration(round.Seconds*float64(time.Second)))
	run.Runs = append(run.Runs, *t)
	return nil
}

// count says whether the run counts: not if others had more than a share of the CPUs.
func (t *Trial) count(round lab.Round, most float64) {
	t.Started, t.Invalid = round.Started, round.Invalid
	if round.Seconds > 0 {
		t.GeneratorCPUs = round.Load.CPUSeconds / round.Seconds
	}
	if share := round.Seconds * float64(round.Host.SharedCPUs); share > 0 {
		t.Others = (round.Host.Steal + round.Host.Foreign) / share
	}
	if t.Invalid == "" && t.Others > most {
		t.Invalid = fmt.Sprintf("others took %.0f %% of the shared CPUs, more than %.0f %%", 100*t.Others, 100*most)
	}
}

// settled is for how long the neighbour has been there, and the guard had the time
// to act, when a round in steady state is measured.
const settled = 3 * time.Second

// steady compares the tenant alone with the tenant beside a neighbour that
// saturates every CPU, guarded and not, in blocks.
func (x *experiment) steady() lab.Part {
	part := lab.Part{Name: "steady state: ", Blocks: x.Experiment.Blocks}
	for _, s := range x.base.Scenarios {
		part.Cells = append(part.Cells, lab.Cell{
			Name: s.Name, Settle: time.Duration(x.Experiment.Learn) + settled, Window: time.Duration(x.Experiment.Steady),
			Prepare: func(c *lab.Cell, block int) error {
				trial := Trial{Fault: "steady", Number: block + 1}
				c.Hooks.Settle = func(ctx context.Context, r *lab.Running) error {
					return x.settle(ctx, s, r, &trial)
				}
				c.Keep = func(round lab.Round) error {
					trial.Started = round.Started
					x.keepSteady(round, trial)
					return nil
				}
				return nil
			},
		})
	}
	return part
}

// settle has the guard learn in its scenario, and then the neighbour begin.
func (x *experiment) settle(ctx context.Context, s lab.Scenario, r stage, trial *Trial) error {
	if s.Name == Guarded {
		end, err := x.guard(ctx, time.Now())
		if err != nil {
			return err
		}
		r.Finish(func() error { return end(trial) })
	}
	if !s.Neighbour {
		return nil
	}
	if err := r.Until(ctx, time.Duration(x.Experiment.Learn)); err != nil {
		return err
	}
	return r.StartNeighbour(ctx)
}

// keepSteady files a round in steady state, and what the guard did in it.
func (x *experiment) keepSteady(round lab.Round, guarded Trial) {
	if x.Steady == nil {
		of := x.Header
		of.Schema, of.Skipped = lab.Schema, nil
		x.Steady = &lab.Result{Header: of, Experiment: x.base}
	}
	s := x.Steady
	s.Rounds = append(s.Rounds, round)
	if round.Scenario == Guarded {
		x.Guarded = append(x.Guarded, guarded)
	}
	if len(s.Rounds) == s.Experiment.Blocks*len(s.Experiment.Scenarios) {
		s.Complete, s.Finished = true, time.Now()
	}
}
