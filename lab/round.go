package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/sched"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
	"berth.dev/berth/watch/proc"
)

const (
	// lead is how long before the first request the generator is told of it.
	lead = 10 * time.Millisecond
	// probeEvery is how far apart the control probes are at least: they take a tenth of
	// a short round.
	probeEvery = 4 * time.Second
)

// Round runs a round of a cell. Its arrivals are those of the block.
func (b *Testbed) Round(ctx context.Context, c Cell, block, position int) (_ Round, err error) {
	round := Round{Block: block, Position: position, Scenario: c.Name, Started: time.Now()}
	if round.Started.Sub(b.probed) >= probeEvery {
		round.Probes, b.probed = b.probes.Run(), round.Started
	}
	procs, undo, err := b.place(ctx, c)
	if err != nil {
		return round, err
	}
	cfg := load.Config{Rate: cmp.Or(c.Rate, b.Setup.Rate)}
	if c.Serve != nil {
		cfg = c.Serve.Load
	}
	cfg.Settle, cfg.Window, cfg.Grace, cfg.Seed, cfg.RawFile = c.Settle, c.Window, grace(c.Window), arrivals(b.spec.Seed, block), rawFile
	err = procs.play(ctx, c, cfg, &round)
	if err := procs.leave(ctx, undo, c, err, &round); err != nil {
		return round, err
	}
	if b.tells() {
		return round, nil
	}
	return round, b.requests.add(block, c.Name)
}

// place has the processes of a cell live, and its settings in force.
func (b *Testbed) place(ctx context.Context, c Cell) (procs *processes, undo func() error, err error) {
	if c.Fresh {
		if err := b.endProcesses(); err != nil {
			return nil, nil, &NotRestoredError{err}
		}
		if undo, err = b.set(c.Settings, c.Together); err != nil {
			return nil, nil, err
		}
	}
	if procs, err = b.processes(ctx, b.setupOf(c)); err != nil {
		if undo != nil {
			if left := undo(); left != nil {
				err = &NotRestoredError{errors.Join(err, left)}
			}
		}
		return nil, nil, err
	}
	if undo == nil {
		undo, err = b.set(c.Settings, c.Together)
	}
	return procs, undo, err
}

// leave ends a round, of which failed came: the neighbour stops, the settings go, and
// the tenant answers what it was asked. Processes that are not as they were end.
func (p *processes) leave(ctx context.Context, undo func() error, c Cell, failed error, round *Round) error {
	var left error
	if p.running != nil {
		left = p.running.end()
		p.running = nil
	}
	halted, err := p.stopNeighbour()
	left = errors.Join(left, err)
	if !c.Fresh {
		left = errors.Join(left, undo()) // what is limited stops when it is not
		if failed == nil && left == nil {
			failed = halted()
		}
	}
	if failed == nil && left == nil && !p.bed.tells() {
		round.Undrained, failed = p.drain(ctx, drainLimit)
	}
	if failed != nil || left != nil || round.Undrained > 0 || c.Tenant != nil || c.Fresh {
		left = errors.Join(left, p.bed.endProcesses())
	}
	if c.Fresh { // a group that holds processes cannot have its memory nodes taken away (cgroup-v2.rst, cpuset.mems)
		left = errors.Join(left, undo())
	}
	if left != nil {
		return &NotRestoredError{errors.Join(failed, left)}
	}
	return failed
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

// play has the roles of a cell at work, and measures.
func (p *processes) play(ctx context.Context, c Cell, cfg load.Config, round *Round) (err error) {
	defer func() {
		if err != nil {
			p.keepersTell()
		}
		if dead := p.dead(); dead != nil {
			err = errors.Join(dead, err) // the cause before its consequences
		}
	}()
	asked := p.asked()
	cfg.Target = asked[0]
	for _, other := range asked[1:] {
		cfg.Others = append(cfg.Others, other.Addr)
	}
	if p.cold && c.Settle < warmUp && !p.bed.tells() {
		if err := p.warm(ctx, cfg); err != nil {
			return err
		}
	}
	p.cold = false
	if c.Neighbour || c.Noise != nil {
		cfg := p.bed.Setup.Neighbour
		if c.Noise != nil {
			cfg = *c.Noise
		}
		if err := p.startNeighbour(ctx, cfg); err != nil {
			return err
		}
	}
	if p.bed.tells() {
		return p.told(ctx, c.Settle, round)
	}
	return p.measure(ctx, cfg, c.Hooks, round)
}

// measure offers the load and reads the figures of all roles over the window.
func (p *processes) measure(ctx context.Context, cfg load.Config, hooks Hooks, round *Round) (err error) {
	p.wrk = cfg.Wrk != nil
	if err := p.connect(ctx, p.generator, cfg); err != nil {
		return err
	}
	at := monotonic() + lead.Nanoseconds()
	if err := p.generator.send(start{at}); err != nil {
		return err
	}
	p.running = &Running{procs: p, start: at, round: round}
	wait, err := p.running.call(ctx, hooks)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, wait(err)) }()
	return p.observe(ctx, at+cfg.Settle.Nanoseconds(), cfg, round)
}

// reportLimit is how long the generator may take from the end of a window until it has reported: a window
// of half an hour was not reported within a minute on a busy host.
func reportLimit(cfg load.Config) time.Duration { return cfg.Grace + startLimit + cfg.Window/10 }

// reported enters into round what the generator reports of a window that has ended.
func (p *processes) reported(ctx context.Context, cfg load.Config, round *Round) error {
	return p.generator.receive(ctx, reportLimit(cfg), &round.Load)
}

// observe reads the counters at both ends of the window, which opens at an instant, and
// what others take of each bin; the settings in its middle; the generator's report.
func (p *processes) observe(ctx context.Context, opens int64, cfg load.Config, round *Round) error {
	closes := opens + cfg.Window.Nanoseconds()
	var before, after snapshot
	var readings []reading
	err := promptly(func() (err error) {
		if err := sleepUntil(ctx, opens); err != nil {
			return err
		}
		if before, err = p.snapshot(); err != nil {
			return err
		}
		readings = append(readings, before.reading)
		for at := opens + binLength.Nanoseconds(); at < closes; at += binLength.Nanoseconds() {
			if err := sleepUntil(ctx, at); err != nil {
				return err
			}
			r, err := p.reading()
			if err != nil {
				return err
			}
			readings = append(readings, r)
			if round.Knobs == nil && at-opens >= cfg.Window.Nanoseconds()/2 {
				if round.Knobs, err = p.bed.backend.knobs(); err != nil {
					return err
				}
			}
		}
		if err := sleepUntil(ctx, closes); err != nil {
			return err
		}
		after, err = p.snapshot()
		return err
	})
	if err != nil {
		return err
	}
	if err := p.reported(ctx, cfg, round); err != nil {
		return err
	}
	after.since(before, round, p.bed.places.shared)
	round.Invalid = late(before.at-opens, after.at-closes, cfg.Window)
	requests, err := p.bed.Requests()
	if err != nil {
		return err
	}
	round.Waste = waste(append(readings, after.reading), p.bed.places.shared)
	closed := cfg.Window + cfg.Grace
	round.Bins = binsOf(append(readings, after.reading), opens, cfg.Window, p.bed.places.shared)
	judgeBins(round.Bins, requests, round.Host.SharedCPUs, closed, ahead(p.bed.places.generator.String(), round.Load.Policy))
	round.Undisturbed, err = undisturbed(round.Bins, requests, closed)
	return err
}

// promptly runs f on a thread with SCHED_FIFO, where permitted: a neighbour that keeps the tenant from the CPUs must not
// keep the lab from reading them, or the rounds with most harm would be those that do not count.
func promptly(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	undo, err := sched.SetThread(0, sched.Attr{Policy: sched.FIFO, Priority: readerPriority})
	if errors.Is(err, os.ErrPermission) {
		return f()
	}
	if err != nil {
		return err
	}
	return errors.Join(f(), undo())
}

// readerPriority is below the generator's: reading delays no request.
const readerPriority = generatorPriority - 1

// late says why a round does not count whose counters were read so late, in ns; "" if
// it counts.
func late(opened, closed int64, window time.Duration) string {
	late := time.Duration(max(opened, closed))
	if late <= window/20 {
		return ""
	}
	return fmt.Sprintf("the lab read its counters %s late, more than a twentieth of the window", late.Round(time.Millisecond))
}

// reading is the host's counters and what the lab has used of it, at one instant.
type reading struct {
	at   int64 // CLOCK_MONOTONIC, ns
	host proc.Stat
	used float64 // CPU seconds of all roles, this process, and a generator on the shared CPUs
	// throttled is the time that limits withheld from servers, in CPU seconds.
	throttled float64
}

func (p *processes) reading() (r reading, err error) {
	r.at = monotonic()
	if r.host, err = proc.ReadStat(os.DirFS("/")); err != nil {
		return r, err
	}
	if r.used, err = p.bed.backend.used(); err != nil {
		return r, err
	}
	for n := range p.setup.servers {
		told, err := p.bed.Statistics(Server(n+1), cgroupstat.Throttling)
		if err != nil {
			return r, err
		}
		r.throttled += told[watch.CPUThrottled]
	}
	if g := p.bed.guardian; g != nil {
		used, _, err := proc.ProcessCPU(os.DirFS("/"), g.pid())
		if err != nil {
			return r, err
		}
		r.used += used.Seconds()
	}
	if p.bed.opt.Weight == 0 { // else it stands among the roles
		var own unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &own); err != nil {
			return r, fmt.Errorf("getrusage: %w", err)
		}
		r.used += seconds(own.Utime) + seconds(own.Stime)
	}
	if p.bed.places.generator.IsEmpty() && p.generator != nil {
		used, err := p.generatorUsed()
		if err != nil {
			return r, err
		}
		r.used += used
	}
	return r, nil
}

// generatorUsed is the CPU time of the generator, in seconds.
func (p *processes) generatorUsed() (float64, error) {
	if p.wrk {
		u, err := processUsage(p.generator.pid())
		return u.CPUSeconds, err
	}
	used, _, err := proc.ProcessCPU(os.DirFS("/"), p.generator.pid())
	return used.Seconds(), err
}

// others is what others took of the shared CPUs since before, in CPU seconds: the
// hypervisor, and processes outside of the lab. Busy is all time in which a CPU was not
// idle: the kernel counts idle time exactly, and the rest by ticks.
func (r reading) others(before reading, shared cpuset.Set) (steal, foreign float64) {
	length := float64(r.at-before.at) / 1e9
	for i, cpu := range r.host.CPUs {
		if !shared.Has(cpu.ID) || i >= len(before.host.CPUs) || before.host.CPUs[i].ID != cpu.ID {
			continue
		}
		d := cpu.Since(before.host.CPUs[i].Times)
		steal += d.Steal.Seconds()
		foreign += length - (d.Idle + d.IOWait + d.Steal).Seconds()
	}
	return steal, foreign - (r.used - before.used)
}

// snapshot is the counters of all roles, too.
type snapshot struct {
	reading
	tenants      []Usage
	servers      bool // that is what they are
	neighbour    Usage
	hasNeighbour bool
	sent         *uint64 // bytes over the link, where there is one
}

func (p *processes) snapshot() (s snapshot, err error) {
	if s.reading, err = p.reading(); err != nil {
		return s, err
	}
	s.servers = p.setup.servers > 0
	for i, r := range p.setup.roles() {
		u, err := p.bed.usage(r, p.tenants[i])
		if err != nil {
			return s, err
		}
		s.tenants = append(s.tenants, u)
	}
	if p.bed.link != nil {
		sent, err := p.bed.link.sent(p.tenants[0].pid())
		if err != nil {
			return s, err
		}
		s.sent = &sent
	}
	if p.neighbour == nil {
		return s, nil
	}
	s.hasNeighbour = true
	s.neighbour, err = p.bed.usage(Neighbour, p.neighbour.child)
	s.neighbour.Work, s.neighbour.Unit = s.neighbour.CPUSeconds, p.neighbour.unit
	if p.neighbour.counters != nil {
		s.neighbour.Work = p.neighbour.counters.Total()
	}
	return s, err
}

// usage reads what a role and its process have used.
func (b *Testbed) usage(r Role, process *child) (Usage, error) {
	u, err := b.backend.usage(r)
	if err != nil || process.outside != nil {
		return u, err
	}
	pids := []int{process.pid()}
	if process.keeps {
		pids = tree(process.pid())
	}
	for i, pid := range pids {
		if err := b.scheduled(r, pid, &u); err != nil && i == 0 { // a process below may have ended
			return u, err
		}
	}
	return u, b.counted(r, &u)
}

// scheduled adds what the scheduler did with a process of a role.
func (b *Testbed) scheduled(r Role, pid int, u *Usage) error {
	waited, _, err := proc.RunDelay(os.DirFS("/"), pid) // zero without schedstat
	if err != nil {
		return err
	}
	u.WaitSeconds += waited.Seconds()
	if !b.opt.Switches || r == Neighbour {
		return nil
	}
	s, _, err := proc.ProcessSwitches(os.DirFS("/"), pid)
	u.Switches += s.All
	u.Involuntary += s.Involuntary
	u.Migrations += s.Migrations
	return err
}

// since enters into round what happened between before and s.
func (s snapshot) since(before snapshot, round *Round, shared cpuset.Set) {
	round.Seconds = float64(s.at-before.at) / 1e9
	for i := range s.tenants {
		u := s.tenants[i].minus(before.tenants[i])
		u.WaitSeconds = max(0, u.WaitSeconds) // processes that have ended take theirs along
		round.Tenant = round.Tenant.plus(u)
		if s.servers {
			round.Servers = append(round.Servers, u)
		}
	}
	if s.hasNeighbour {
		n := s.neighbour.minus(before.neighbour)
		n.CPUSeconds, n.Work = max(0, n.CPUSeconds), max(0, n.Work) // as above
		round.Neighbour = &n
	}
	if s.sent != nil {
		round.LinkBytes = new(float64(*s.sent - *before.sent))
	}
	all := s.host.Total.Since(before.host.Total)
	round.Host = HostUsage{CPUs: len(s.host.CPUs), Busy: all.Busy().Seconds(), SharedCPUs: shared.Len()}
	steal, foreign := s.others(before.reading, shared)
	round.Host.Steal, round.Host.Foreign = steal, max(0, foreign)
}

func (u Usage) minus(v Usage) Usage {
	u.CPUSeconds -= v.CPUSeconds
	u.WaitSeconds -= v.WaitSeconds
	u.ThrottledSeconds -= v.ThrottledSeconds
	u.ThrottledPeriods -= v.ThrottledPeriods
	u.Periods -= v.Periods
	u.Cycles -= v.Cycles
	u.Instructions -= v.Instructions
	u.References -= v.References
	u.Misses -= v.Misses
	u.Switches -= v.Switches
	u.Involuntary -= v.Involuntary
	u.Migrations -= v.Migrations
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

// sleepUntil blocks the thread until an instant, up to 50 ms longer where ctx ends. A timer of Go's would first wake a
// thread that may have to wait for a CPU.
func sleepUntil(ctx context.Context, at int64) error {
	for now := monotonic(); now < at; now = monotonic() {
		if err := ctx.Err(); err != nil {
			return err
		}
		next := unix.NsecToTimespec(min(at, now+binLength.Nanoseconds()))
		if err := unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &next, nil); err != nil && err != unix.EINTR {
			return fmt.Errorf("clock_nanosleep: %w", err)
		}
	}
	return ctx.Err()
}
