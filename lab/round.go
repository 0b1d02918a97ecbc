package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel/sched"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/watch/proc"
)

const (
	// startLimit is how long a child may take to get ready: on a busy virtual
	// machine the neighbour's memory alone can take seconds to appear.
	startLimit = time.Minute
	// lead is how long before the first request the generator is told of it.
	lead = 20 * time.Millisecond
	// connections are what the generator holds open to the tenant: enough that
	// requests queue in the tenant, as they would behind any front end.
	connections = 256
)

// ready is the line that a child prints when it can begin.
type ready struct {
	Ready bool `json:"ready"`
}

// start tells the generator the instant from which requests are due.
type start struct {
	Start int64 `json:"start"` // CLOCK_MONOTONIC, ns
}

// Round runs a round of a cell. Its arrivals are those of the block.
func (b *Testbed) Round(ctx context.Context, c Cell, block, position int) (_ Round, err error) {
	round := Round{Block: block, Position: position, Scenario: c.Name, Started: time.Now()}
	round.Probes = b.probes.Run()
	// The settings come first, so that memory is allocated where it will be used,
	// and go last: an older kernel lets no cpuset go empty while a process is in it.
	undo, err := b.Set(c.Settings)
	if err != nil {
		return round, err
	}
	procs := &processes{bed: b}
	defer func() {
		if left := errors.Join(procs.end(), undo()); left != nil {
			err = &NotRestoredError{errors.Join(err, left)}
		}
	}()
	if err := procs.start(ctx, c); err != nil {
		return round, err
	}
	cfg := load.Config{
		Settle: c.Settle, Window: c.Window, Grace: grace(c.Window), Rate: b.Setup.Rate, Seed: arrivals(b.spec.Seed, block), RawFile: rawFile,
	}
	if err := procs.measure(ctx, cfg, c.Hooks, &round); err != nil {
		return round, err
	}
	return round, b.requests.add(block, c.Name)
}

// arrivals is the seed of a block's arrivals: the same for all its scenarios, so
// that they are compared under the same load, and another one in each block, so
// that blocks vary by their arrivals as well.
func arrivals(seed uint64, block int) uint64 {
	return seed + uint64(block+1)*0x9e3779b97f4a7c15 // odd: no two blocks of a run share a seed
}

// grace is how long requests still under way after the window may take: long
// against any healthy latency, short against the round.
func grace(window time.Duration) time.Duration {
	return min(max(window/4, 250*time.Millisecond), 2*time.Second)
}

// processes are those of one round.
type processes struct {
	bed                          *Testbed
	tenant, neighbour, generator *child
	counters                     *noise.Counters
	addr                         load.TenantReady
	running                      *Running // nil before the load begins
}

// start starts those of a cell, each in its place, and waits until they are ready.
func (p *processes) start(ctx context.Context, c Cell) (err error) {
	cfg := c.Tenant
	if cfg == nil {
		cfg = &p.bed.Setup.Tenant
	}
	if p.tenant, err = p.bed.startRole(Tenant, "__tenant"); err != nil {
		return err
	}
	if err := p.tenant.send(cfg); err != nil {
		return err
	}
	if err := p.tenant.receive(ctx, startLimit, &p.addr); err != nil {
		return err
	}
	if !c.Neighbour {
		return nil
	}
	return p.startNeighbour(ctx)
}

// startNeighbour starts the neighbour and waits until it is about to work.
func (p *processes) startNeighbour(ctx context.Context) (err error) {
	cfg := p.bed.Setup.Neighbour
	if p.counters, err = noise.NewCounters(cfg.Threads); err != nil {
		return err
	}
	if p.neighbour, err = p.bed.startRole(Neighbour, "__noise", p.counters.File()); err != nil {
		return err
	}
	if err := p.neighbour.send(cfg); err != nil {
		return err
	}
	return p.neighbour.receive(ctx, startLimit, &noise.Ready{})
}

// startRole starts a child and puts it into its role's place before it does anything.
func (b *Testbed) startRole(r Role, verb string, files ...*os.File) (*child, error) {
	c, err := b.supervisor.start(childConfig{name: string(r), exe: b.opt.Exe, args: []string{verb}, files: files})
	if err != nil {
		return nil, err
	}
	if err := b.backend.attach(r, c.pid()); err != nil {
		c.kill()
		return nil, err
	}
	return c, nil
}

// startGenerator starts a generator on its own CPUs, if there are any.
func (b *Testbed) startGenerator(raw *os.File) (*child, error) {
	c, err := b.startRole(generator, "__load", raw)
	if err != nil {
		return nil, err
	}
	where := b.places.generator
	if where.IsEmpty() {
		where = b.places.shared
	}
	if _, err := sched.Set(c.pid(), sched.Attr{Affinity: where}); err != nil {
		c.kill()
		return nil, err
	}
	return c, nil
}

// end ends all of them.
func (p *processes) end() error {
	var errs []error
	if p.running != nil {
		errs = append(errs, p.running.end())
	}
	for _, child := range []*child{p.generator, p.neighbour, p.tenant} {
		if child != nil {
			child.kill()
			p.bed.backend.detach(Role(child.name))
		}
	}
	if p.counters != nil {
		errs = append(errs, p.counters.Close())
	}
	return errors.Join(errs...)
}

// connect has a generator open its connections and wait for its start.
func (p *processes) connect(ctx context.Context, generator *child, cfg load.Config) error {
	cfg.Connections = connections
	if err := generator.send(cfg); err != nil {
		return err
	}
	if err := generator.receive(ctx, startLimit, &ready{}); err != nil {
		return err
	}
	return promote(generator)
}

// measure offers the load and reads the figures of all roles over the window.
func (p *processes) measure(ctx context.Context, cfg load.Config, hooks Hooks, round *Round) (err error) {
	defer func() {
		if dead := p.dead(); dead != nil {
			err = errors.Join(dead, err) // the cause before its consequences
		}
	}()
	if p.generator, err = p.bed.startGenerator(p.bed.requests.file()); err != nil {
		return err
	}
	cfg.Addr, cfg.Path = p.addr.Addr, p.addr.Path
	if err := p.connect(ctx, p.generator, cfg); err != nil {
		return err
	}
	at := monotonic() + lead.Nanoseconds()
	if err := p.generator.send(start{at}); err != nil {
		return err
	}
	p.running = &Running{procs: p, start: at}
	wait, err := p.running.call(ctx, hooks)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, wait(err)) }()
	return p.observe(ctx, at+cfg.Settle.Nanoseconds(), cfg, round)
}

// observe reads the counters at both ends of the window, which opens at an instant,
// the settings in its middle, and the generator's report.
func (p *processes) observe(ctx context.Context, opens int64, cfg load.Config, round *Round) error {
	if err := sleepUntil(ctx, opens); err != nil {
		return err
	}
	before, err := p.snapshot()
	if err != nil {
		return err
	}
	if err := sleepUntil(ctx, opens+cfg.Window.Nanoseconds()/2); err != nil {
		return err
	}
	if round.Knobs, err = p.bed.backend.knobs(); err != nil {
		return err
	}
	closes := opens + cfg.Window.Nanoseconds()
	if err := sleepUntil(ctx, closes); err != nil {
		return err
	}
	after, err := p.snapshot()
	if err != nil {
		return err
	}
	if err := p.generator.receive(ctx, cfg.Grace+startLimit, &round.Load); err != nil {
		return err
	}
	after.since(before, round, p.bed)
	late := time.Duration(max(before.at-opens, after.at-closes))
	if late > cfg.Window/20 {
		round.Invalid = fmt.Sprintf("the lab read its counters %s late, more than a twentieth of the window", late.Round(time.Millisecond))
	}
	return nil
}

// dead reports a role whose process ended during the round.
func (p *processes) dead() error {
	for _, child := range []*child{p.tenant, p.neighbour} {
		if child == nil {
			continue
		}
		select {
		case <-child.exited:
			return fmt.Errorf("%s died during the round: %w", child.name, child.exitError())
		default:
		}
	}
	return nil
}

// promote gives a generator that is ready SCHED_FIFO where permitted. Its report
// says what it really ran under.
func promote(generator *child) error {
	_, err := sched.Set(generator.pid(), sched.Attr{Policy: sched.FIFO, Priority: generatorPriority})
	if errors.Is(err, os.ErrPermission) {
		return nil
	}
	return err
}

// generatorPriority is above ordinary real-time work's usual 1 and below the
// kernel's own threads at 50 and more.
const generatorPriority = 40

// snapshot is the counters of all roles at one instant.
type snapshot struct {
	at                int64 // CLOCK_MONOTONIC, ns
	host              proc.Stat
	self              float64 // CPU seconds of this process
	tenant, neighbour Usage
	hasNeighbour      bool
}

func (p *processes) snapshot() (s snapshot, err error) {
	s.at = monotonic()
	if s.host, err = proc.ReadStat(os.DirFS("/")); err != nil {
		return s, err
	}
	var self unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &self); err != nil {
		return s, fmt.Errorf("getrusage: %w", err)
	}
	s.self = seconds(self.Utime) + seconds(self.Stime)
	if s.tenant, err = p.bed.usage(Tenant, p.tenant); err != nil {
		return s, err
	}
	if p.neighbour == nil {
		return s, nil
	}
	s.hasNeighbour = true
	s.neighbour, err = p.bed.usage(Neighbour, p.neighbour)
	s.neighbour.Work = p.counters.Total()
	return s, err
}

// usage reads what a role and its process have used.
func (b *Testbed) usage(r Role, process *child) (Usage, error) {
	u, err := b.backend.usage(r)
	if err != nil {
		return u, err
	}
	waited, _, err := proc.RunDelay(os.DirFS("/"), process.pid()) // zero without schedstat
	u.WaitSeconds = waited.Seconds()
	return u, err
}

// since enters into round what happened between before and s.
func (s snapshot) since(before snapshot, round *Round, b *Testbed) {
	round.Seconds = float64(s.at-before.at) / 1e9
	round.Tenant = s.tenant.minus(before.tenant)
	used := round.Tenant.CPUSeconds + s.self - before.self
	if s.hasNeighbour {
		n := s.neighbour.minus(before.neighbour)
		n.Unit = b.unit
		round.Neighbour = &n
		used += n.CPUSeconds
	}
	if b.places.generator.IsEmpty() {
		used += round.Load.CPUSeconds
	}
	all := s.host.Total.Since(before.host.Total)
	round.Host = HostUsage{CPUs: len(s.host.CPUs), Busy: all.Busy().Seconds(), SharedCPUs: b.places.shared.Len()}
	busy := 0.0
	for i, cpu := range s.host.CPUs {
		if !b.places.shared.Has(cpu.ID) || i >= len(before.host.CPUs) || before.host.CPUs[i].ID != cpu.ID {
			continue
		}
		d := cpu.Since(before.host.CPUs[i].Times)
		busy += d.Busy().Seconds()
		round.Host.Steal += d.Steal.Seconds()
	}
	round.Host.Foreign = max(0, busy-used)
}

func (u Usage) minus(v Usage) Usage {
	u.CPUSeconds -= v.CPUSeconds
	u.WaitSeconds -= v.WaitSeconds
	u.ThrottledSeconds -= v.ThrottledSeconds
	u.ThrottledPeriods -= v.ThrottledPeriods
	u.Work -= v.Work
	return u
}

func seconds(t unix.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }

// monotonic reads the clock that the generator schedules by, in ns.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("clock_gettime(CLOCK_MONOTONIC): " + err.Error()) // it exists on every Linux
	}
	return ts.Nano()
}

func sleepUntil(ctx context.Context, at int64) error {
	timer := time.NewTimer(time.Duration(at - monotonic()))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
