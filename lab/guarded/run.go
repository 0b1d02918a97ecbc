package guarded

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"slices"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/disk"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/stats"
)

// The scenarios of the comparison in steady state, besides the baselines.
const (
	Unguarded = lab.Unisolated
	Guarded   = "guarded"
)

func scenarios() []lab.Scenario {
	return []lab.Scenario{
		{Name: lab.Baseline, Means: "tenant alone, without the guard"},
		{Name: lab.BaselineAgain, Means: "tenant alone once more: the noise floor"},
		{Name: Unguarded, Neighbour: true, Means: "neighbour beside it, without the guard"},
		{Name: Guarded, Neighbour: true, Means: "neighbour beside it, the guard acting"},
	}
}

// runner is an experiment under way.
type runner struct {
	exp    Experiment
	opt    lab.Options
	stage  *lab.Stage
	result *Result
	rng    *rand.Rand
	steps  lab.Progress
	began  time.Time

	disk       *disk.Disk // nil until a fault needs it
	removeDisk func() error
}

// Run runs an experiment. Whatever happens, children are gone and the kernel is as it
// was when it returns. On an error or a cancelled context the result holds what was
// finished by then, and is stored as well.
func Run(ctx context.Context, exp Experiment, opt lab.Options) (_ *Result, err error) {
	if err := exp.Validate(); err != nil {
		return nil, err
	}
	if len(exp.Faults) == 0 {
		exp.Runs = 0
	}
	base := exp.base()
	stage, err := lab.OpenStage(base, opt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stage.Close()) }()
	if exp.Weight > 0 {
		if err := stage.StepAside(exp.Weight); err != nil {
			return nil, err
		}
	}
	if err := stage.Calibrate(ctx); err != nil {
		return nil, err
	}
	of := stage.Result()
	exp.Seed = of.Experiment.Seed
	r := &runner{exp: exp, opt: opt, stage: stage, rng: rand.New(rand.NewPCG(exp.Seed, 0x6775617264)), began: time.Now()}
	r.result = &Result{Schema: Schema, Program: of.Program, Started: of.Started, Host: of.Host, Experiment: exp, Setup: of.Setup}
	r.removeDisk = func() error { return nil }
	defer func() { err = errors.Join(err, r.removeDisk()) }()
	r.steps = lab.Progress{Phase: "measure", Rounds: exp.Runs*len(exp.Faults) + exp.Blocks*len(base.Scenarios), Blocks: exp.Runs + exp.Blocks}
	if err := errors.Join(r.faults(ctx), ctx.Err()); err != nil {
		return r.result, errors.Join(err, r.store())
	}
	if err := r.steady(ctx, of); err != nil {
		return r.result, errors.Join(err, r.store())
	}
	r.result.Complete, r.result.Finished = true, time.Now()
	return r.result, r.store()
}

// base is what the lab is asked for.
func (e Experiment) base() lab.Experiment {
	base := lab.IsolationExperiment()
	base.Name, base.Scenarios, base.CPUs, base.Seed = "guard", scenarios(), e.CPUs, e.Seed
	base.Blocks, base.Settle, base.Window = e.Blocks, lab.Duration(settle), e.Steady
	base.Tenant.Demand, base.Rate = e.Demand, e.Rate
	return base
}

// validateBase checks what the lab will be asked for; without blocks the length of
// its rounds does not matter.
func validateBase(e lab.Experiment) error {
	e.Blocks = max(e.Blocks, 1)
	e.Window = max(e.Window, lab.Duration(time.Second))
	return e.Validate()
}

func (r *runner) store() error {
	return r.stage.Store(lab.ResultFile, func(w io.Writer) error { return json.NewEncoder(w).Encode(r.result) })
}

// tell reports a step that begins.
func (r *runner) tell(what string, block int) {
	p := r.steps
	p.Scenario, p.Block = what, block
	if r.steps.Round > 0 {
		p.Left = time.Since(r.began) / time.Duration(r.steps.Round) * time.Duration(r.steps.Rounds-r.steps.Round)
	}
	if r.opt.Progress != nil {
		r.opt.Progress(p)
	}
	r.steps.Round++
}

// faults injects every fault once per block, in random order.
func (r *runner) faults(ctx context.Context) error {
	skipped := map[string]bool{}
	for number := range r.exp.Runs {
		for _, name := range stats.Order(r.exp.Faults, number, r.exp.Seed) {
			r.tell(name, number+1)
			if skipped[name] {
				continue
			}
			fault, _ := FaultNamed(name)
			run, err := r.inject(ctx, fault, number)
			if errors.Is(err, kernel.ErrNotSupported) {
				skipped[name] = true
				r.skip(name, err)
				continue
			}
			if err != nil {
				return fmt.Errorf("fault %s, run %d: %w", name, number+1, err)
			}
			r.result.Runs = append(r.result.Runs, run)
			if err := r.store(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *runner) skip(name string, why error) {
	s := lab.Skipped{Scenario: name, Reason: why.Error()}
	var no *kernel.NotSupportedError
	if errors.As(why, &no) {
		s.Reason, s.Remedy = no.Feature+": "+no.Reason, no.Remedy
	}
	r.result.Skipped = append(r.result.Skipped, s)
}

const (
	// settle is for how long the load runs before it is measured.
	settle = 500 * time.Millisecond
	// after is for how long a run goes on when its fault is over.
	after = time.Second
)

// inject is one run.
func (r *runner) inject(ctx context.Context, f Fault, number int) (run Trial, err error) {
	prepare, err := r.disturbance(f)
	if err != nil {
		return run, err
	}
	lasts := time.Duration(r.exp.Last)
	if f.Name == Quiet {
		lasts = cmp.Or(time.Duration(r.exp.Quiet), lasts)
	}
	onset := time.Duration(r.exp.Learn) + time.Duration(r.rng.Float64()*float64(time.Second))
	run = Trial{Fault: f.Name, Number: number + 1, From: -onset.Seconds(), BinsFrom: (settle - onset).Seconds(), End: lasts.Seconds()}
	before, err := r.stage.Knobs()
	if err != nil {
		return run, err
	}
	r.stage.Length(settle, onset-settle+lasts+after)
	switch f.Name {
	case Reclaim:
		r.stage.MapTenant(articles)
		defer r.stage.MapTenant(0)
	case IO:
		r.stage.ReadDisk(r.disk.Path(), diskEvery)
		defer r.stage.ReadDisk("", 0)
	}
	d := &direction{r: r, run: &run, onset: onset, lasts: lasts, prepare: prepare}
	round, err := r.stage.Round(ctx, lab.Scenario{Name: f.Name}, number, 0, lab.Script{During: d.direct})
	if err != nil {
		return run, err
	}
	run.Started, run.Invalid = round.Started, round.Invalid
	if share := round.Seconds * float64(round.Host.SharedCPUs); share > 0 {
		run.Others = max(0, round.Host.Steal+round.Host.Foreign-d.used) / share
	}
	if run.Invalid == "" && run.Others > r.exp.MaxOthers {
		run.Invalid = fmt.Sprintf("others took %.0f %% of the shared CPUs, more than %.0f %%", 100*run.Others, 100*r.exp.MaxOthers)
	}
	if !equal(before, d.knobs) {
		run.Changed = different(before, d.knobs)
	}
	requests, err := r.stage.Requests()
	if err != nil {
		return run, err
	}
	run.bin(requests, time.Duration(round.Seconds*float64(time.Second)))
	return run, nil
}

// bin sorts requests by when they were due.
func (run *Trial) bin(requests []lab.Request, window time.Duration) {
	var lags []int64
	for _, q := range requests {
		n := int(q.Due / binLength)
		for len(run.Bins) <= n {
			run.Bins = append(run.Bins, Bin{})
		}
		done, seen := q.Done, q.Seen
		if done < 0 {
			done = max(window, q.Due)
		}
		if seen < 0 {
			seen = done
		}
		if q.Done < 0 || q.Failed {
			run.Bins[n].Censored++
		}
		run.Bins[n].Response = append(run.Bins[n].Response, (done - q.Due).Microseconds())
		lags = append(lags, (seen - q.Due).Microseconds())
	}
	for _, bin := range run.Bins {
		slices.Sort(bin.Response)
	}
	run.LagP99 = p99(lags)
}

func equal(a, b []lab.Knob) bool { return len(different(a, b)) == 0 }

// different names the settings that are not the same.
func different(a, b []lab.Knob) []string {
	was := map[[2]string]string{}
	for _, k := range a {
		was[[2]string{k.Of, k.File}] = k.Value
	}
	var all []string
	for _, k := range b {
		if old := was[[2]string{k.Of, k.File}]; old != k.Value {
			all = append(all, fmt.Sprintf("%s %s: %s, was %s", k.Of, k.File, k.Value, old))
		}
	}
	return all
}

// direction is a run under way.
type direction struct {
	r       *runner
	run     *Trial
	onset   time.Duration
	lasts   time.Duration
	prepare preparation
	knobs   []lab.Knob // when all was over
	used    float64    // CPU seconds of neighbour and bystander over the run
}

// direct makes the run happen: a bystander and the guard from the start, the fault
// from its onset to its end.
func (d *direction) direct(ctx context.Context, s *lab.Scene) (err error) {
	start, err := d.usage()
	if err != nil {
		return err
	}
	bystander, err := s.Admit(lab.Bystander, noise.Config{Kernel: "spin", Threads: 1, Intensity: 5, Seed: d.r.exp.Seed})
	if err != nil {
		return err
	}
	if err := bystander.Begin(ctx); err != nil {
		return err
	}
	began := time.Now().Add(-s.Now())
	w, err := d.r.watch(ctx, began.Add(d.onset))
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, w.end(d.run))
		if err == nil {
			d.knobs, err = d.r.stage.Knobs()
		}
	}()
	fault, err := d.prepare(ctx, s)
	if err != nil {
		return err
	}
	if err := s.Until(ctx, d.onset); err != nil {
		return err
	}
	before, err := d.usage()
	if err != nil {
		return err
	}
	if err := fault.begin(ctx); err != nil {
		return err
	}
	waited := s.Until(ctx, d.onset+d.lasts)
	now, err := d.usage()
	for _, group := range []string{lab.Neighbour, lab.Bystander} {
		d.used += now[group] - start[group]
	}
	for group, to := range map[string]*float64{lab.Tenant: &d.run.TenantCPUs, lab.Neighbour: &d.run.NeighbourCPUs} {
		*to = (now[group] - before[group]) / d.lasts.Seconds()
	}
	if err := errors.Join(waited, err, fault.end()); err != nil {
		return err
	}
	return s.Until(ctx, d.onset+d.lasts+after/2)
}

// usage is the CPU time of the groups so far, in seconds.
func (d *direction) usage() (map[string]float64, error) {
	used := map[string]float64{}
	for _, name := range []string{lab.Tenant, lab.Neighbour, lab.Bystander} {
		stat, err := d.r.stage.Group(name).Stat()
		if err != nil {
			return nil, err
		}
		if stat.CPU != nil {
			used[name] = stat.CPU.Seconds()
		}
	}
	return used, nil
}

// preparation makes a fault ready under the load, so that it begins at once.
type preparation func(ctx context.Context, s *lab.Scene) (disturbance, error)

// disturbance is a fault that is ready. End undoes it and may be called once, also
// where begin has failed.
type disturbance struct {
	begin func(ctx context.Context) error
	end   func() error
}

// disturbance returns how a fault is made on this host.
func (r *runner) disturbance(f Fault) (preparation, error) {
	threads := r.result.Setup.Neighbour.Threads
	switch f.Name {
	case Hog:
		return r.neighbour(noise.Config{Kernel: "spin", Threads: threads, Intensity: 100}), nil
	case Fork:
		if _, err := exec.LookPath(noise.ForkProgram); err != nil {
			return nil, &kernel.NotSupportedError{Feature: "fault fork", Reason: err.Error(), Remedy: "install true(1), of coreutils or busybox"}
		}
		return r.neighbour(noise.Config{Kernel: "fork", Threads: threads, Intensity: 100}), nil
	case Switch:
		return r.neighbour(noise.Config{Kernel: "switch", Threads: threads + 1, Intensity: 100}), nil
	case Quota:
		return r.quota, nil
	case Saturation:
		return r.surges(func() lab.Ask {
			more := 1.5*float64(r.result.Setup.Neighbour.Threads) - r.result.Setup.TenantCPUs
			each := heavy * time.Duration(r.result.Setup.CPUPerRequest).Seconds()
			return lab.Ask{Rate: more / each, Times: heavy, Length: time.Duration(r.exp.Last)}
		}), nil
	case Quiet:
		return r.surges(func() lab.Ask {
			return lab.Ask{Rate: r.rng.Float64() * r.result.Setup.Rate, Times: 1, Length: time.Duration(1+4*r.rng.Float64()) * time.Second}
		}), nil
	case Reclaim:
		if err := onDisk(r.opt.Dir); err != nil {
			return nil, err
		}
		if _, err := r.stage.MemoryDir(); err != nil {
			return nil, err
		}
		return r.reclaim, nil
	case IO:
		if err := r.needDisk(); err != nil {
			return nil, err
		}
		return r.neighbour(noise.Config{Kernel: "read", Threads: diskReaders, Intensity: 100, File: r.disk.Path()}), nil
	}
	return nil, &kernel.NotSupportedError{Feature: "fault " + f.Name, Reason: "there is none"}
}

// neighbour is a fault that a process in the neighbour's group is.
func (r *runner) neighbour(cfg noise.Config) preparation {
	cfg.Seed = r.exp.Seed
	return func(_ context.Context, s *lab.Scene) (disturbance, error) {
		n, err := s.Admit(lab.Neighbour, cfg)
		if err != nil {
			return disturbance{}, err
		}
		return disturbance{begin: n.Begin, end: func() error { n.End(); return nil }}, nil
	}
}

// quota gives the tenant less than it wants.
func (r *runner) quota(context.Context, *lab.Scene) (disturbance, error) {
	const part = 0.8
	l := cgroup.Limits{Quota: time.Duration(part * r.result.Setup.TenantCPUs * float64(quotaPeriod)).Truncate(time.Millisecond), Period: quotaPeriod}
	plan, err := r.stage.Group(lab.Tenant).Set(l)
	if err != nil {
		return disturbance{}, err
	}
	undo := func() error { return nil }
	return disturbance{
		begin: func(context.Context) error {
			undone, err := r.stage.Apply(plan)
			if err == nil {
				undo = undone
			}
			return err
		},
		end: func() error { return undo() },
	}, nil
}

// quotaPeriod is the kernel's default, which container runtimes leave as it is.
const quotaPeriod = 100 * time.Millisecond

// heavy is how much more work a request of saturation is than others: with as many more
// of the usual ones the generator would take the CPUs that the tenant wants.
const heavy = 20

// surges asks the tenant for more, one surge after the other.
func (r *runner) surges(next func() lab.Ask) preparation {
	return func(ctx context.Context, s *lab.Scene) (disturbance, error) {
		ask := next()
		first, err := s.Ready(ctx, ask, r.rng.Uint64()|1)
		if err != nil {
			return disturbance{}, err
		}
		stop, done := context.WithCancel(ctx)
		ended := make(chan error, 1)
		return disturbance{
			begin: func(context.Context) error {
				go func() { ended <- r.surge(stop, s, first, ask.Length, next) }()
				return nil
			},
			end: func() error {
				done()
				return <-ended
			},
		}, nil
	}
}

func (r *runner) surge(ctx context.Context, s *lab.Scene, u *lab.Surge, length time.Duration, next func() lab.Ask) error {
	for {
		if err := u.Begin(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			u.End()
			return nil
		case <-time.After(length):
			u.End()
		}
		ask := next()
		length = ask.Length
		var err error
		if u, err = s.Ready(ctx, ask, r.rng.Uint64()|1); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// steady compares the tenant alone with the tenant beside a neighbour that
// saturates every CPU, guarded and not, in blocks.
func (r *runner) steady(ctx context.Context, of lab.Result) error {
	if r.exp.Blocks == 0 {
		return nil
	}
	of.Experiment.Scenarios = scenarios()
	r.result.Steady = &of
	var names []string
	byName := map[string]lab.Scenario{}
	for _, s := range scenarios() {
		names = append(names, s.Name)
		byName[s.Name] = s
	}
	r.stage.Length(time.Duration(r.exp.Learn)+settled, time.Duration(r.exp.Steady))
	for block := range r.exp.Blocks {
		for position, name := range stats.Order(names, block, r.exp.Seed) {
			r.tell("steady state: "+name, r.exp.Runs+block+1)
			round, err := r.steadyRound(ctx, byName[name], block, position)
			if err != nil {
				return fmt.Errorf("steady state, scenario %s, block %d: %w", name, block+1, err)
			}
			of.Rounds = append(of.Rounds, round)
			if err := r.store(); err != nil {
				return err
			}
		}
	}
	of.Complete, of.Finished = true, time.Now()
	return nil
}

// settled is for how long the neighbour has been there, and the guard had the time
// to act, when a round in steady state is measured.
const settled = 3 * time.Second

func (r *runner) steadyRound(ctx context.Context, sc lab.Scenario, block, position int) (round lab.Round, err error) {
	var w *watching
	script := lab.Script{Settle: func(ctx context.Context, s *lab.Scene) (err error) {
		if sc.Name == Guarded {
			if w, err = r.watch(ctx, time.Now()); err != nil {
				return err
			}
		}
		if !sc.Neighbour {
			return nil
		}
		if err := s.Until(ctx, time.Duration(r.exp.Learn)); err != nil {
			return err
		}
		return s.Start(ctx)
	}}
	defer func() {
		if w != nil {
			run := Trial{Fault: "steady", Number: block + 1, Started: round.Started}
			err = errors.Join(err, w.end(&run))
			r.result.Guarded = append(r.result.Guarded, run)
		}
	}()
	return r.stage.Round(ctx, sc, block, position, script)
}
