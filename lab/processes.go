package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel/sched"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/program"
)

const (
	// startLimit is how long a child may take to get ready: on a busy virtual
	// machine the neighbour's memory alone can take seconds to appear.
	startLimit = time.Minute
	// drainLimit is how long the tenant may take after a round for what it was asked in it.
	drainLimit = 2 * time.Second
	// warmUp is for how long a tenant that was just started has load before it is measured.
	warmUp = 500 * time.Millisecond
	// warmDrain is how long it may take for the answers to that.
	warmDrain = 20 * time.Second
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

// processes are those of the roles. They live on from round to round: between rounds
// the neighbour is stopped, and tenant and generator have nothing to do. What lives on
// keeps its memory where it was allocated.
type processes struct {
	bed       *Testbed
	setup     setup
	cold      bool     // no load so far
	tenants   []*child // one, or the servers
	generator *child
	wrk       bool          // it runs wrk, whose processes are below it
	addrs     []load.Target // of each
	neighbour *neighbour    // at work
	running   *Running      // nil before the load begins
}

// setup is what processes are started as: the tenant, or so many servers.
type setup struct {
	servers int    // 0: the tenant
	service string // Article, or another of TenantSpec's
	config  load.TenantConfig
	graph   *Graph
}

// of is the config of the server of a number, from 0, where those before it have addresses.
func (s setup) of(n int, addrs []load.Target) load.ServiceConfig {
	if s.graph == nil {
		return load.ServiceConfig{TenantConfig: s.config}
	}
	c := s.graph.Services[n]
	for _, a := range addrs {
		c.Addrs = append(c.Addrs, a.Addr)
	}
	return c
}

// setupOf is that of a cell.
func (b *Testbed) setupOf(c Cell) setup {
	switch {
	case c.Serve != nil:
		return setup{c.Serve.Servers, cmp.Or(c.Serve.Service, Article), c.Serve.Tenant, c.Serve.Graph}
	case c.Tenant != nil:
		return setup{service: Article, config: *c.Tenant}
	}
	return setup{service: cmp.Or(b.spec.Tenant.Service, Article), config: b.Setup.Tenant}
}

// roles are those of the tenants.
func (s setup) roles() []Role {
	if s.servers == 0 {
		return []Role{Tenant}
	}
	var roles []Role
	for n := range s.servers {
		roles = append(roles, Server(n+1))
	}
	return roles
}

// neighbour is a process that works beside the tenant, and what it got done.
type neighbour struct {
	*child
	counters *noise.Counters // nil for a program, whose work is the CPU time that it uses
	unit     string
	copies   int  // of a program, which is run again and again
	paused   bool // one that is kept (Running.Keep) does not work
}

// asked are the addresses that the load goes to.
func (p *processes) asked() []load.Target {
	if p.setup.graph != nil {
		return p.addrs[len(p.addrs)-1:]
	}
	return p.addrs
}

// processes returns those that live, or starts a tenant or servers, and a generator for
// them. Servers live on when others are wanted; a tenant ends.
func (b *Testbed) processes(ctx context.Context, s setup) (*processes, error) {
	if s.servers > b.opt.Servers {
		return nil, fmt.Errorf("%d servers: there are groups for %d", s.servers, b.opt.Servers)
	}
	if b.procs != nil && b.procs.setup == s {
		return b.procs, nil
	}
	if b.procs != nil && b.procs.setup.servers > 0 {
		b.procs.stand(false)
		b.parked[b.procs.setup], b.procs = b.procs, nil
	} else if err := b.endProcesses(); err != nil {
		return nil, err
	}
	if b.procs = b.parked[s]; b.procs != nil {
		delete(b.parked, s)
		b.procs.stand(true)
		return b.procs, nil
	}
	b.procs = &processes{bed: b, setup: s, cold: true}
	if err := b.procs.start(ctx); err != nil {
		return nil, errors.Join(err, b.endProcesses())
	}
	return b.procs, nil
}

// endProcesses ends those that live, and all neighbours.
func (b *Testbed) endProcesses() error {
	var errs []error
	for _, n := range b.neighbours {
		errs = append(errs, n.end())
	}
	clear(b.neighbours)
	if b.procs != nil {
		errs = append(errs, b.procs.end())
		b.procs = nil
	}
	return errors.Join(errs...)
}

// stand makes the tenants those that are meant, or not.
func (p *processes) stand(meant bool) {
	for i, r := range p.setup.roles() {
		if i >= len(p.tenants) {
			break // it never came so far
		}
		if meant {
			_ = p.bed.backend.stands(r, p.tenants[i].pid()) // it is where it was
		} else {
			p.bed.backend.detach(r)
		}
	}
}

// start starts tenants and generator, each in its place.
func (p *processes) start(ctx context.Context) (err error) {
	for n, r := range p.setup.roles() {
		tenant, addr, err := p.bed.startTenant(ctx, r, p.setup, p.setup.of(n, p.addrs))
		if tenant != nil {
			p.tenants, p.addrs = append(p.tenants, tenant), append(p.addrs, addr)
		}
		if err != nil {
			return err
		}
	}
	if p.bed.tells() {
		return nil
	}
	p.generator, err = p.bed.startGenerator(p.bed.requests.file())
	return err
}

// startArticle starts the built-in tenant.
func (b *Testbed) startArticle(ctx context.Context, r Role, cfg load.ServiceConfig) (*child, load.Target, error) {
	var addr load.Target
	c, err := b.startRole(r, "__tenant")
	if err != nil {
		return nil, addr, err
	}
	if err = c.send(cfg); err == nil {
		err = c.receive(ctx, startLimit, &addr)
	}
	return c, addr, err
}

// startNeighbour has a neighbour work, and starts it if need be.
func (p *processes) startNeighbour(ctx context.Context, cfg noise.Config) (err error) {
	as := fmt.Sprintf("%s %+v", p.bed.backend.lasting(Neighbour), cfg)
	n := p.bed.neighbours[as]
	if n == nil {
		if n, err = p.newNeighbour(ctx, Neighbour, cfg); err != nil {
			return err
		}
		p.bed.neighbours[as] = n
	} else if err := n.goOn(); err != nil {
		return err
	}
	if err := p.bed.backend.stands(Neighbour, n.pid()); err != nil {
		return err
	}
	p.neighbour = n
	return nil
}

// newNeighbour starts a neighbour and waits until it is about to work.
func (p *processes) newNeighbour(ctx context.Context, r Role, cfg noise.Config) (*neighbour, error) {
	if len(cfg.Command) > 0 {
		c, err := p.bed.startProgram(ctx, r, program.Config{Argv: cfg.Command, Copies: cfg.Threads, Repeat: true})
		return &neighbour{child: c, unit: commandUnit, copies: max(cfg.Threads, 1)}, err
	}
	n := &neighbour{}
	for _, k := range noise.Kernels() {
		if k.Name == cfg.Kernel {
			n.unit = k.Unit
		}
	}
	counters, err := noise.NewCounters(cfg.Threads)
	if err != nil {
		return nil, err
	}
	c, err := p.bed.startRole(r, "__noise", counters.File())
	if err != nil {
		return nil, errors.Join(err, counters.Close())
	}
	if err = c.send(cfg); err == nil {
		err = c.receive(ctx, startLimit, &noise.Ready{})
	}
	if err != nil {
		c.kill()
		return nil, errors.Join(err, counters.Close())
	}
	n.child, n.counters = c, counters
	return n, nil
}

// startRole starts a child and puts it into its role's place before it does anything.
func (b *Testbed) startRole(r Role, verb string, files ...*os.File) (*child, error) {
	c, err := childConfig{name: string(r), exe: b.opt.Exe, args: []string{verb}, files: files, keeps: verb == "__program", network: b.link.namespace(r)}.start(b.parent)
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

// connect has a generator get ready for a run and wait for its start.
func (p *processes) connect(ctx context.Context, generator *child, cfg load.Config) error {
	cfg.Connections = p.bed.connectionsTo(cfg.Target)
	if err := demote(generator); err != nil {
		return err
	}
	if err := generator.send(cfg); err != nil {
		return err
	}
	if err := generator.receive(ctx, startLimit, &ready{}); err != nil {
		return err
	}
	if cfg.Wrk != nil { // its processes would inherit it, and starve the servers
		return nil
	}
	return promote(generator)
}

// warm gives a tenant that was just started a load that nobody looks at, and time to answer it.
func (p *processes) warm(ctx context.Context, cfg load.Config) error {
	cfg.Settle, cfg.Window, cfg.Grace, cfg.Wrk = 0, warmUp, time.Second, nil
	if err := p.connect(ctx, p.generator, cfg); err != nil {
		return err
	}
	if err := p.generator.send(start{monotonic() + lead.Nanoseconds()}); err != nil {
		return err
	}
	if err := p.generator.receive(ctx, warmUp+cfg.Grace+startLimit, &load.Report{}); err != nil {
		return err
	}
	left, err := p.drain(ctx, warmDrain)
	if err == nil && left > 0 {
		err = fmt.Errorf("tenant: %d requests of its first %s are not answered after %s: lower --rate or --demand, or quieten the machine", left, warmUp, warmDrain)
	}
	return err
}

// drain waits until the tenant has nothing left to do, at most limit, and returns how many
// requests it has not answered even so.
func (p *processes) drain(ctx context.Context, limit time.Duration) (left int, err error) {
	var d load.Drained
	if err = p.generator.send(map[string]time.Duration{"drain": limit}); err == nil {
		err = p.generator.receive(ctx, limit+startLimit, &d)
	}
	return d.Left, err
}

// stopNeighbour tells the neighbour to stop, which takes effect as soon as each of its
// threads gets a CPU: halted waits for that.
func (p *processes) stopNeighbour() (halted func() error, err error) {
	n := p.neighbour
	if n == nil {
		return func() error { return nil }, nil
	}
	p.bed.backend.detach(Neighbour)
	p.neighbour = nil
	return n.halt()
}

// end ends all of them.
func (p *processes) end() error {
	var errs []error
	if p.running != nil {
		errs = append(errs, p.running.end())
	}
	if p.generator != nil {
		p.generator.kill()
	}
	for _, tenant := range p.tenants {
		tenant.kill()
	}
	p.bed.backend.detach(Neighbour)
	p.stand(false)
	return errors.Join(errs...)
}

// dead reports a role whose process ended during the round.
func (p *processes) dead() error {
	roles := slices.Clone(p.tenants)
	if p.neighbour != nil {
		roles = append(roles, p.neighbour.child)
	}
	for _, child := range roles {
		if err := child.gone(); err != nil {
			return fmt.Errorf("%s died during the round: %w", child.name, err)
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

// demote takes it back, as the generator's protocol asks for.
func demote(generator *child) error {
	_, err := sched.Set(generator.pid(), sched.Attr{Policy: sched.Other})
	return err
}

// generatorPriority is above ordinary real-time work's usual 1 and below the
// kernel's own threads at 50 and more.
const generatorPriority = 40

// halt stops all threads of a child (signal(7), SIGSTOP).
func (c *child) halt() error { return c.signal(unix.SIGSTOP) }

// resume lets a child that was halted go on.
func (c *child) resume() error { return c.signal(unix.SIGCONT) }

func (c *child) signal(s unix.Signal) error {
	if err := c.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("%s to %s: %w", unix.SignalName(s), c.name, errors.Join(err, c.exitError()))
	}
	return nil
}

// haltLimit is how long the threads of a child may take to stop: an idle one waits long for
// a CPU of a busy machine.
const haltLimit = 30 * time.Second

// halted waits until every thread of a child has stopped. A thread that is ready stops
// when it gets a CPU.
func (c *child) halted() error {
	for began := time.Now(); ; time.Sleep(200 * time.Microsecond) {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, c.pid(), &info, unix.WSTOPPED|unix.WNOHANG, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return fmt.Errorf("wait for %s to stop: %w", c.name, errors.Join(err, c.exitError()))
		case info.Signo == int32(unix.SIGCHLD):
			return nil
		}
		if time.Since(began) > haltLimit {
			return fmt.Errorf("%s has not stopped after %s", c.name, haltLimit)
		}
	}
}
