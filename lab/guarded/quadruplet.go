package guarded

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/noise"
)

// ProtocolResult is everything that a run by a protocol measured, as stored in result.json.
type ProtocolResult struct {
	lab.Header
	Experiment  Protocol     `json:"experiment"`
	Quadruplets []Quadruplet `json:"quadruplets,omitempty"`
}

// Quadruplet is four periods of one life: tenant, generator, neighbour and guard live on.
type Quadruplet struct {
	Cell     string    `json:"cell"`
	Block    int       `json:"block"`    // from 0
	Position int       `json:"position"` // within the block
	Started  time.Time `json:"started"`
	// Life counts how often all processes were started anew, from 1.
	Life   int     `json:"life"`
	Arm    string  `json:"arm"`
	Fault  string  `json:"fault,omitempty"`
	Demand float64 `json:"demand"`
	// Invalid says why it says nothing of p99 and work, as the round itself knew it. A period that
	// was read late is told by its Use.
	Invalid    string   `json:"invalid,omitempty"`
	SharedCPUs int      `json:"sharedCPUs"`
	Periods    []Period `json:"periods"`
	// Bins are the requests by when they were due, each of 50 ms, from the start of the
	// first period; Machine what was noted of the machine in each.
	Bins    []Bin     `json:"bins,omitempty"`
	Machine []lab.Bin `json:"machine,omitempty"`
	// Undrained is how many requests the tenant had not answered at the end: the next
	// quadruplet had a new one.
	Undrained int `json:"undrained,omitempty"`
}

// Period is one of a quadruplet. Its instants are in seconds from the start of the quadruplet.
type Period struct {
	// Arm is alone in periods of A.
	Arm  string  `json:"arm"`
	From float64 `json:"from"`
	To   float64 `json:"to"`
	// Onset is when the fault had begun; 0 without one. Armed says that the run-queue probe was
	// armed before it.
	Onset float64 `json:"onset,omitempty"`
	Armed bool    `json:"armed,omitempty"`
	// Use is the CPU time that was used between the end of the washout and that of the period.
	Use Use `json:"use"`
	// Findings and Events are those of the guard, or of the baseline, by the time since the
	// onset, or the start of the period without one.
	Findings []Finding `json:"findings,omitempty"`
	Events   []Event   `json:"events,omitempty"`
	// Changed are settings that were in force at the end, and not before the quadruplet.
	Changed []string `json:"changed,omitempty"`
}

// Use is CPU time in seconds over so many Seconds.
type Use struct {
	Seconds   float64 `json:"seconds"`
	Tenant    float64 `json:"tenant"`
	Neighbour float64 `json:"neighbour"`
	Bystander float64 `json:"bystander"`
	Generator float64 `json:"generator"`
	Lab       float64 `json:"lab"` // this process, in which the guard runs
}

func (u Use) since(v Use) Use {
	return Use{u.Seconds - v.Seconds, u.Tenant - v.Tenant, u.Neighbour - v.Neighbour, u.Bystander - v.Bystander, u.Generator - v.Generator, u.Lab - v.Lab}
}

// watcher is the guard at work.
type watcher interface {
	SetMode(ctx context.Context, mode control.Mode) error
	// take returns what it found and did since it was asked last, by the time since it was
	// started.
	take() ([]Finding, []Event)
	// armed says whether its run-queue probe is.
	armed() bool
	// now is that time; the error says that it has ended.
	now() (time.Duration, error)
	close() error
}

// SetMode changes the guard's mode.
func (w *watching) SetMode(ctx context.Context, mode control.Mode) error {
	return w.runner.SetMode(ctx, mode)
}

func (w *watching) armed() bool { return w.runner.Status().Probe.Armed }

func (w *watching) now() (time.Duration, error) {
	select {
	case err := <-w.ended:
		w.ended <- err
		return 0, fmt.Errorf("the guard has ended: %w", errors.Join(err, errors.New("it should outlive the run")))
	default:
		return time.Since(w.zero), nil
	}
}

func (w *watching) close() error {
	w.stop()
	return errors.Join(<-w.ended, w.shut())
}

// protocolRun is a run by a protocol under way.
type protocolRun struct {
	*ProtocolResult
	faults *experiment // which makes the faults
	watch  func(ctx context.Context) (watcher, error)
	guard  watcher // nil before the first quadruplet
	set    func(lab.Settings) (undo func() error, err error)
	own    func() (cpuSeconds float64, err error)
}

// RunProtocol runs a protocol, or goes on with the run r where that was begun. Whatever happens,
// children are gone and the kernel is as it was when it returns.
func RunProtocol(ctx context.Context, r *ProtocolResult, opt lab.Options) (err error) {
	if err := r.Experiment.Validate(); err != nil {
		return err
	}
	if !r.Started.IsZero() {
		opt.Finished = r.has
	}
	base := r.Experiment.base()
	opt.Roles, opt.Groups = []lab.Role{lab.Bystander}, true
	bed, err := lab.Open(ctx, &base, &r.Header, opt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	r.Experiment.Seed = base.Seed
	x := &experiment{Result: &Result{Header: r.Header, Experiment: r.Experiment.faults()}, bed: bed, dir: opt.Dir, base: base}
	x.host = x.live()
	run := &protocolRun{ProtocolResult: r, faults: x, set: bed.Set, own: ownCPU}
	run.watch = func(ctx context.Context) (watcher, error) { return x.open(ctx, time.Now(), control.Observe) }
	defer func() {
		if run.guard != nil {
			err = errors.Join(err, run.guard.close())
		}
	}()
	part := lab.Part{Blocks: r.Experiment.Blocks, Cells: run.cells()}
	return lab.Run(ctx, lab.Experiment{Parts: []lab.Part{part}, Seed: r.Experiment.Seed, Result: r, Header: &r.Header, Enough: run.enough}, bed, opt)
}

// faults is what the faults are made by.
func (p Protocol) faults() Spec {
	return Spec{Window: p.Window, Probe: p.Probe, Last: p.Period, Seed: p.Seed}
}

// ownCPU is the CPU time of this process, in seconds.
func ownCPU() (float64, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds(), nil
}

func (r *ProtocolResult) has(cell string, block int) bool {
	return slices.ContainsFunc(r.Quadruplets, func(q Quadruplet) bool { return q.Cell == cell && q.Block == block })
}

// enough says whether the run is decided, after a block at which one may look.
func (run *protocolRun) enough() (bool, error) {
	names, _ := run.Experiment.cells()
	blocks := len(run.Quadruplets) / len(names)
	if !slices.Contains(run.Experiment.Looks, blocks) || len(run.Quadruplets)%len(names) != 0 {
		return false, nil
	}
	return AnalyseProtocol(run.ProtocolResult).decided(), nil
}

func (run *protocolRun) cells() []lab.Cell {
	names, all := run.Experiment.cells()
	var cells []lab.Cell
	for i, planned := range all {
		cells = append(cells, lab.Cell{Name: names[i], Settle: run.Experiment.rest(), Window: 4 * time.Duration(run.Experiment.Period), Prepare: func(c *lab.Cell, block int) error {
			if run.guard == nil {
				c.Settle = max(time.Duration(run.Experiment.Learn), run.Experiment.rest())
			}
			q, err := run.quadruplet(c, planned, block, rand.New(rand.NewPCG(run.Experiment.Seed, uint64(block*len(names)+i))))
			if err != nil {
				return err
			}
			c.Rate = q.rate
			c.Hooks.Settle = func(ctx context.Context, _ *lab.Running) error { return run.start(ctx) }
			c.During, c.Keep = func(ctx context.Context, r *lab.Running) error { return q.during(ctx, lasting{r}) }, q.keep
			return nil
		}})
	}
	return cells
}

// lasting is a round whose processes live on.
type lasting struct{ *lab.Running }

// Noise is a process that is kept.
func (l lasting) Noise(role lab.Role, cfg noise.Config) (*lab.Process, error) {
	return l.Keep(context.Background(), role, cfg)
}

// start starts the guard, once.
func (run *protocolRun) start(ctx context.Context) (err error) {
	if run.guard == nil {
		run.guard, err = run.watch(ctx)
	}
	return err
}

// quadrupletRun is a quadruplet under way.
type quadrupletRun struct {
	*protocolRun
	Quadruplet
	fault  Fault
	ready  preparation // nil for a placebo
	rate   float64
	settle time.Duration // from the load's begin to the start of the quadruplet
	zero   time.Duration // that start, by the guard's clock
	blame  blame
	idle   []func() error // takes back what was set by hand, or by the baseline
}

// quadruplet makes one ready, in an order by chance.
func (run *protocolRun) quadruplet(c *lab.Cell, p Planned, block int, random *rand.Rand) (*quadrupletRun, error) {
	q := &quadrupletRun{protocolRun: run, settle: c.Settle}
	q.Cell, q.Block, q.Arm, q.Fault, q.Demand, q.Life = c.Name, block, p.Arm, p.Fault, run.Experiment.Demand, len(run.Resumed)+1
	if p.Demand != 0 {
		q.Demand, q.rate = p.Demand, run.faults.Setup.Rate*p.Demand/run.Experiment.Demand
	}
	b := random.IntN(2) // whether B is first
	length := time.Duration(run.Experiment.Period).Seconds()
	for i := range 4 {
		arm := Alone
		if inner := i == 1 || i == 2; inner == (b == 0) {
			arm = p.Arm
		}
		q.Periods = append(q.Periods, Period{Arm: arm, From: float64(i) * length, To: float64(i+1) * length})
	}
	if p.Arm == Placebo {
		return q, nil
	}
	var err error
	q.fault, _ = FaultNamed(p.Fault)
	q.blame.suspects = []lab.Role{lab.Neighbour, lab.Bystander}
	q.ready, err = run.faults.disturbance(c, q.fault, random)
	return q, err
}

// during makes the quadruplet happen.
func (q *quadrupletRun) during(ctx context.Context, r stage) (err error) {
	bystander, err := r.Keep(ctx, lab.Bystander, noise.Config{Kernel: "spin", Threads: 1, Intensity: 5, Seed: q.Experiment.Seed})
	if err != nil {
		return err
	}
	if err := bystander.Begin(ctx); err != nil {
		return err
	}
	before, err := q.faults.knobs()
	if err != nil {
		return err
	}
	ready := make([]*disturbance, len(q.Periods))
	defer func() {
		for _, d := range ready {
			if d != nil {
				err = errors.Join(err, d.end())
			}
		}
		err = errors.Join(err, q.undo())
	}()
	for i, p := range q.Periods { // before the first of them, so that none is disturbed by it
		if p.Arm != Alone && q.ready != nil {
			d, err := q.ready(ctx, r)
			if err != nil {
				return err
			}
			ready[i] = &d
		}
	}
	if err := q.until(ctx, r, nil, 0); err != nil {
		return err
	}
	now, err := q.guard.now()
	if err != nil {
		return err
	}
	q.zero = now - r.Now() + q.settle
	q.guard.take() // what was before it
	for i := range q.Periods {
		if err := q.period(ctx, r, &q.Periods[i], ready[i], before); err != nil {
			return err
		}
		ready[i] = nil
	}
	return nil
}

// period is one of them, from its start to its end.
func (q *quadrupletRun) period(ctx context.Context, r stage, p *Period, d *disturbance, before []lab.Knob) (err error) {
	const reading = 30 * time.Millisecond // before the end
	switched := func() error { return nil }
	if d != nil {
		if switched, err = q.act(ctx); err != nil {
			return err
		}
		p.Armed = q.guard.armed()
		if err := d.begin(ctx); err != nil {
			return errors.Join(err, d.end(), switched())
		}
		p.Onset = (r.Now() - q.settle).Seconds()
	}
	measure := func() error {
		if err := q.until(ctx, r, p, seconds(p.From)+time.Duration(q.Experiment.Washout)); err != nil {
			return err
		}
		from, err := q.use(r)
		if err != nil {
			return err
		}
		if err := q.until(ctx, r, p, seconds(p.To)-reading); err != nil {
			return err
		}
		now, err := q.faults.knobs()
		if err != nil {
			return err
		}
		p.Changed = different(before, now)
		to, err := q.use(r)
		p.Use = to.since(from)
		return errors.Join(err, q.until(ctx, r, p, seconds(p.To)))
	}
	err = measure()
	q.file(p)
	err = errors.Join(err, switched(), q.undo())
	if d != nil {
		err = errors.Join(err, d.end())
	}
	q.guard.take() // that it let go is no step of the next period
	return err
}

// act has the arm act from now on, until it is switched off.
func (q *quadrupletRun) act(ctx context.Context) (off func() error, err error) {
	off = func() error { return nil }
	switch q.Arm {
	case Guarded:
		off = func() error { return q.guard.SetMode(context.WithoutCancel(ctx), control.Observe) }
		return off, q.guard.SetMode(ctx, control.Enforce)
	case Hand:
		for _, who := range q.fault.antagonists() {
			if who == detect.Outside {
				continue // no hand sets a group idle that is none
			}
			if err := q.setIdle(lab.Role(who)); err != nil {
				return off, err
			}
		}
	}
	return off, nil
}

func (q *quadrupletRun) setIdle(role lab.Role) error {
	undo, err := q.set(lab.Settings{role: cgroup.Limits{Idle: cgroup.On}})
	if err == nil {
		q.idle = append(q.idle, undo)
	}
	return err
}

// undo takes back what was set by hand, or by the baseline.
func (q *quadrupletRun) undo() (err error) {
	for _, undo := range slices.Backward(q.idle) {
		err = errors.Join(err, undo())
	}
	q.idle = nil
	return err
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// until waits for an instant of the quadruplet. Where the baseline acts, it looks meanwhile, before
// the first period too, to know what is usual; what it does is filed with the period.
func (q *quadrupletRun) until(ctx context.Context, r stage, p *Period, at time.Duration) error {
	end := q.settle + at
	for q.Arm == Blame {
		next := r.Now() - r.Now()%blameEvery + blameEvery
		if next > end {
			break
		}
		if err := r.Until(ctx, next); err != nil {
			return err
		}
		if err := q.accuse(r, p); err != nil {
			return err
		}
	}
	return r.Until(ctx, end)
}

// accuse is a look of the baseline.
func (q *quadrupletRun) accuse(r stage, p *Period) error {
	used, err := q.faults.usage()
	if err != nil {
		return err
	}
	role, rise, ok := q.blame.look(r.Now(), used)
	if !ok || p == nil {
		return nil
	}
	at := (r.Now() - q.settle).Seconds() - max(p.Onset, p.From)
	done := func(e Event) bool { return e.Suspect == string(role) }
	if slices.ContainsFunc(p.Events, done) {
		return nil
	}
	if err := q.setIdle(role); err != nil {
		return err
	}
	p.Events = append(p.Events, Event{At: at, Written: (r.Now() - q.settle).Seconds() - max(p.Onset, p.From), Words: fmt.Sprintf("%s used %.2f CPUs more: set idle", role, rise), Event: control.Event{
		Outcome: control.Applied, Mode: control.Enforce, Victim: lab.Tenant, Suspect: string(role), Resource: detect.CPU,
		Action: &control.Action{Remedy: detect.Weight, Group: string(role), Victim: lab.Tenant, Suspect: string(role), Resource: detect.CPU, Limits: cgroup.Limits{Idle: cgroup.On}},
	}})
	return nil
}

// use is the CPU time so far.
func (q *quadrupletRun) use(r stage) (u Use, err error) {
	used, err := q.faults.usage()
	if err != nil {
		return u, err
	}
	generator, err := r.Generator()
	if err != nil {
		return u, err
	}
	own, err := q.own()
	return Use{r.Now().Seconds(), used[lab.Tenant], used[lab.Neighbour], used[lab.Bystander], generator, own}, err
}

// file enters into a period what the guard found and did in it. What it does while it only looks
// on is nobody's deed.
func (q *quadrupletRun) file(p *Period) {
	findings, events := q.guard.take()
	since := func(at float64) float64 { return at - q.zero.Seconds() - max(p.Onset, p.From) }
	for _, f := range findings {
		f.At = since(f.At)
		p.Findings = append(p.Findings, f)
	}
	for _, e := range events {
		if e.At, e.Written = since(e.At), since(e.Written); e.Mode == control.Enforce {
			p.Events = append(p.Events, e)
		}
	}
}

// keep files the quadruplet, with what was measured in its round.
func (q *quadrupletRun) keep(round lab.Round) error {
	q.Position, q.Started, q.Invalid = round.Position, round.Started, round.Invalid
	q.SharedCPUs, q.Machine, q.Undrained = round.Host.SharedCPUs, round.Bins, round.Undrained
	requests, err := q.faults.requests()
	if err != nil {
		return err
	}
	var t Trial
	t.bin(requests, time.Duration(round.Seconds*float64(time.Second)))
	q.Bins = t.Bins
	q.Quadruplets = append(q.Quadruplets, q.Quadruplet)
	return nil
}
