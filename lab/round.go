package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/sched"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/tenant"
	"berth.dev/berth/watch/procstat"
)

const (
	// startLimit is how long a child may take to get ready: on a busy virtual
	// machine the neighbour's memory alone can take seconds to appear.
	startLimit = time.Minute
	// lead is how long before the first request the parties are told of it.
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

// round sets one scenario up, settles, measures and puts everything back.
func (r *runner) round(ctx context.Context, s Scenario, block, position int, script Script) (_ Round, err error) {
	round := Round{Block: block, Position: position, Scenario: s.Name, Started: time.Now()}
	round.Probes = r.probes.Run()
	// The settings come first, so that memory is allocated where it will be used,
	// and go last: an older kernel lets no cpuset go empty while a process is in it.
	undo, err := r.isolate(s)
	if errors.Is(err, kernel.ErrNotSupported) {
		return round, &cannot{err}
	}
	if err != nil {
		return round, err
	}
	cast := &cast{r: r, script: script}
	defer func() { err = errors.Join(err, cast.leave(), undo()) }()
	if err := cast.enter(ctx, s.Neighbour && script.Settle == nil); err != nil {
		return round, err
	}
	cfg := load.Config{
		Settle: time.Duration(r.exp.Settle), Window: time.Duration(r.exp.Window), Grace: grace(time.Duration(r.exp.Window)),
		Rate: r.result.Setup.Rate, Seed: arrivals(r.exp.Seed, block), RawFile: rawFile,
	}
	if err := cast.measure(ctx, cfg, &round); err != nil {
		return round, err
	}
	return round, r.raw.add(block, s.Name)
}

// cannot is a scenario that this host cannot do, found before anything started.
type cannot struct{ error }

// Unwrap returns the reason.
func (c *cannot) Unwrap() error { return c.error }

// arrivals is the seed of a block's arrivals: the same for all its scenarios, so
// that they are compared under the same load, and another one in each block, so
// that blocks vary by their arrivals as well.
func arrivals(seed uint64, block int) uint64 {
	return seed + uint64(block+1)*0x9e3779b97f4a7c15 // odd: no two blocks of a run share a seed
}

// left is the CPU time, in CPUs, that the tenant and a generator without a
// place of its own leave of the shared CPUs.
func (r *runner) left() float64 {
	left := float64(r.places.shared.Len()) - r.result.Setup.TenantCPUs
	if r.places.generator.IsEmpty() {
		left -= r.result.Setup.GeneratorDemand
	}
	return left
}

// grace is how long requests still under way after the window may take: long
// against any healthy latency, short against the round.
func grace(window time.Duration) time.Duration {
	return min(max(window/4, 250*time.Millisecond), 2*time.Second)
}

// cast is the processes of one round.
type cast struct {
	r                            *runner
	tenant, neighbour, generator *child
	counters                     *noise.Counters
	addr                         tenant.Ready
	script                       Script
	scenes                       []*Scene
}

// enter starts the parties, each in its place, and waits until they are ready.
func (c *cast) enter(ctx context.Context, withNeighbour bool) (err error) {
	setup := &c.r.result.Setup
	if c.tenant, err = c.r.admit(tenantParty, "__tenant"); err != nil {
		return err
	}
	if err := c.tenant.send(setup.Tenant); err != nil {
		return err
	}
	if err := c.tenant.receive(ctx, startLimit, &c.addr); err != nil {
		return err
	}
	if !withNeighbour {
		return nil
	}
	return c.enterNeighbour(ctx)
}

// enterNeighbour starts the neighbour and waits until it is about to work.
func (c *cast) enterNeighbour(ctx context.Context) (err error) {
	setup := &c.r.result.Setup
	if c.counters, err = noise.NewCounters(setup.Neighbour.Threads); err != nil {
		return err
	}
	if c.neighbour, err = c.r.admit(neighbourParty, "__noise", c.counters.File()); err != nil {
		return err
	}
	if err := c.neighbour.send(setup.Neighbour); err != nil {
		return err
	}
	return c.neighbour.receive(ctx, startLimit, &noise.Ready{})
}

// admit starts a child and puts it into its party's place before it does anything.
func (r *runner) admit(p party, verb string, files ...*os.File) (*child, error) {
	c, err := r.nursery.start(childConfig{name: string(p), exe: r.opt.Exe, args: []string{verb}, files: files})
	if err != nil {
		return nil, err
	}
	if err := r.enforce.admit(p, c.pid()); err != nil {
		c.kill()
		return nil, err
	}
	return c, nil
}

// leave ends whoever is there.
func (c *cast) leave() error {
	var errs []error
	for _, s := range c.scenes {
		errs = append(errs, s.close())
	}
	for _, child := range []*child{c.generator, c.neighbour, c.tenant} {
		if child != nil {
			child.kill()
			c.r.enforce.dismiss(party(child.name))
		}
	}
	if c.counters != nil {
		errs = append(errs, c.counters.Close())
	}
	return errors.Join(errs...)
}

// measure offers the load and reads everyone's figures over the window.
func (c *cast) measure(ctx context.Context, cfg load.Config, round *Round) (err error) {
	defer func() {
		if dead := c.dead(); dead != nil {
			err = errors.Join(dead, err) // the cause before its consequences
		}
	}()
	if c.generator, err = c.r.startGenerator(c.r.raw.file()); err != nil {
		return err
	}
	cfg.Addr, cfg.Path, cfg.Connections = c.addr.Addr, c.addr.Path, connections
	if err := c.generator.send(cfg); err != nil {
		return err
	}
	if err := c.generator.receive(ctx, startLimit, &ready{}); err != nil {
		return err
	}
	if err := promote(c.generator); err != nil {
		return err
	}
	at := monotonic() + lead.Nanoseconds()
	if err := c.generator.send(start{at}); err != nil {
		return err
	}
	opens := at + cfg.Settle.Nanoseconds()
	ends, err := c.play(ctx, at)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ends(err)) }()
	if err := sleepUntil(ctx, opens); err != nil {
		return err
	}
	before, err := c.snapshot()
	if err != nil {
		return err
	}
	if err := sleepUntil(ctx, opens+cfg.Window.Nanoseconds()/2); err != nil {
		return err
	}
	if round.Knobs, err = c.r.enforce.knobs(); err != nil {
		return err
	}
	if err := sleepUntil(ctx, opens+cfg.Window.Nanoseconds()); err != nil {
		return err
	}
	after, err := c.snapshot()
	if err != nil {
		return err
	}
	if err := c.generator.receive(ctx, cfg.Grace+startLimit, &round.Load); err != nil {
		return err
	}
	after.since(before, round, c.r)
	closes := opens + cfg.Window.Nanoseconds()
	late := max(before.at-opens, after.at-closes)
	if limit := cfg.Window / 20; time.Duration(late) > limit {
		round.Invalid = fmt.Sprintf("the lab read its counters %s late, more than a twentieth of the window", time.Duration(late).Round(time.Millisecond))
	}
	return nil
}

// dead reports a party that ended during the round.
func (c *cast) dead() error {
	for _, child := range []*child{c.tenant, c.neighbour} {
		if child == nil {
			continue
		}
		select {
		case <-child.exited:
			return fmt.Errorf("%s died during the round: %w", child.name, child.obituary())
		default:
		}
	}
	return nil
}

// startGenerator starts the generator on its own CPUs, if it has any.
func (r *runner) startGenerator(raw *os.File) (*child, error) {
	c, err := r.nursery.start(childConfig{name: string(generatorParty), exe: r.opt.Exe, args: []string{"__load"}, files: []*os.File{raw}})
	if err != nil {
		return nil, err
	}
	if g, ok := r.enforce.(*groups); ok && len(g.home) > 0 {
		if err := g.sendHome(c.pid()); err != nil {
			c.kill()
			return nil, err
		}
	}
	where := r.places.generator
	if where.IsEmpty() {
		where = r.places.shared
	}
	if _, err := sched.Set(c.pid(), sched.Attr{Affinity: where}); err != nil {
		c.kill()
		return nil, err
	}
	return c, nil
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

// snapshot is everyone's counters at one instant.
type snapshot struct {
	at                int64 // CLOCK_MONOTONIC, ns
	host              procstat.Stat
	self              float64 // CPU seconds of this process
	tenant, neighbour Usage
	hasNeighbour      bool
}

func (c *cast) snapshot() (s snapshot, err error) {
	s.at = monotonic()
	if s.host, err = procstat.Read(os.DirFS("/")); err != nil {
		return s, err
	}
	var self unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &self); err != nil {
		return s, fmt.Errorf("getrusage: %w", err)
	}
	s.self = seconds(self.Utime) + seconds(self.Stime)
	if s.tenant, err = c.r.usage(tenantParty, c.tenant); err != nil {
		return s, err
	}
	if c.neighbour == nil {
		return s, nil
	}
	s.hasNeighbour = true
	s.neighbour, err = c.r.usage(neighbourParty, c.neighbour)
	s.neighbour.Work = c.counters.Total()
	return s, err
}

// usage reads what a party and its process have used.
func (r *runner) usage(p party, process *child) (Usage, error) {
	u, err := r.enforce.usage(p)
	if err != nil {
		return u, err
	}
	waited, _, err := procstat.RunDelay(os.DirFS("/"), process.pid()) // zero without schedstat
	u.WaitSeconds = waited.Seconds()
	return u, err
}

// since enters into round what happened between before and s.
func (s snapshot) since(before snapshot, round *Round, r *runner) {
	round.Seconds = float64(s.at-before.at) / 1e9
	round.Tenant = s.tenant.minus(before.tenant)
	used := round.Tenant.CPUSeconds + s.self - before.self
	if s.hasNeighbour {
		n := s.neighbour.minus(before.neighbour)
		n.Unit = r.unit
		round.Neighbour = &n
		used += n.CPUSeconds
	}
	if r.places.generator.IsEmpty() {
		used += round.Load.CPUSeconds
	}
	all := s.host.Total.Since(before.host.Total)
	round.Host = HostUsage{CPUs: len(s.host.CPUs), Busy: all.Busy().Seconds(), SharedCPUs: r.places.shared.Len()}
	busy := 0.0
	for i, cpu := range s.host.CPUs {
		if !r.places.shared.Has(cpu.ID) || i >= len(before.host.CPUs) || before.host.CPUs[i].ID != cpu.ID {
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
