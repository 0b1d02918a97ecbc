package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
)

// Running is a round under way, as its hooks see it. Its methods may be called from
// several goroutines.
type Running struct {
	procs *processes
	start int64 // of the load: CLOCK_MONOTONIC, ns
	round *Round

	mutex  sync.Mutex
	extra  []*child
	files  []io.Closer
	finish []func() error
}

// call calls the hooks; wait waits for what runs beside the load, or ends it if the
// round has failed.
func (r *Running) call(ctx context.Context, hooks Hooks) (wait func(failed error) error, err error) {
	if hooks.Settle != nil {
		if err := hooks.Settle(ctx, r); err != nil {
			return nil, err
		}
	}
	if hooks.During == nil {
		return func(error) error { return nil }, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- hooks.During(ctx, r) }()
	return func(failed error) error {
		if failed != nil {
			cancel()
		}
		err := <-done
		cancel()
		if failed != nil && errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	}, nil
}

// Now is the time since the load began.
func (r *Running) Now() time.Duration { return time.Duration(monotonic() - r.start) }

// Until waits for an instant after the load began.
func (r *Running) Until(ctx context.Context, at time.Duration) error {
	return sleepUntil(ctx, r.start+at.Nanoseconds())
}

// Tenant is the tenant's process id.
func (r *Running) Tenant() int { return r.procs.tenants[0].pid() }

// Threads are those of the processes of the tenant or the neighbour.
func (r *Running) Threads(role Role) (tids []int, err error) {
	c := r.procs.tenants[0]
	if role == Neighbour {
		c = r.procs.neighbour.child
	}
	for i, pid := range tree(c.pid()) {
		threads, err := kernel.ThreadsOf(os.DirFS("/"), pid)
		if err != nil && (i == 0 || !errors.Is(err, fs.ErrNotExist)) { // one below may have ended
			return nil, err
		}
		tids = append(tids, threads...)
	}
	return tids, nil
}

// RunningServer is a server of a round: its process, and where it listens.
type RunningServer struct {
	PID  int
	Addr string
}

// Servers are those of the cell, in their order.
func (r *Running) Servers() []RunningServer {
	var all []RunningServer
	for i, c := range r.procs.tenants {
		all = append(all, RunningServer{c.pid(), r.procs.addrs[i].Addr})
	}
	return all
}

// Finish has f called when the round is over and its processes still run, whatever
// came of it.
func (r *Running) Finish(f func() error) { r.finish = append(r.finish, f) }

// StartNeighbour has the neighbour of the setup work, whose work the round counts.
func (r *Running) StartNeighbour(ctx context.Context) error {
	return r.procs.startNeighbour(ctx, r.procs.bed.Setup.Neighbour)
}

// Process is one beside those of the cell. It is ready, and does nothing before Begin.
type Process struct {
	// Begin makes it work, and returns when it is about to.
	Begin func(ctx context.Context) error
	// Halt, if it is not nil, is what End does.
	Halt func() error
}

// Noise starts a process in the group of a role.
func (r *Running) Noise(role Role, cfg noise.Config) (*Process, error) {
	counters, err := noise.NewCounters(cfg.Threads)
	if err != nil {
		return nil, err
	}
	c, err := r.procs.bed.startRole(role, "__noise", counters.File())
	if err != nil {
		return nil, errors.Join(err, counters.Close())
	}
	return r.add(c, counters, func(ctx context.Context) error {
		if err := c.send(cfg); err != nil {
			return err
		}
		return c.receive(ctx, startLimit, &noise.Ready{})
	}), nil
}

// Extra is what a further generator asks the tenant for: Rate requests per second,
// each of Times the usual work, for Length.
type Extra struct {
	Rate   float64
	Times  int
	Length time.Duration
	Seed   uint64
}

// Load connects a further generator to the tenant: more load than that which is measured.
func (r *Running) Load(ctx context.Context, x Extra) (*Process, error) {
	nothing, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	c, err := r.procs.bed.startGenerator(nothing)
	if err != nil {
		return nil, errors.Join(err, nothing.Close())
	}
	p := r.add(c, nothing, func(context.Context) error { return c.send(start{monotonic() + lead.Nanoseconds()}) })
	addr := r.procs.addrs[0]
	addr.Path = load.Times(addr.Path, x.Times)
	return p, r.procs.connect(ctx, c, load.Config{
		Target: addr, Rate: x.Rate, Seed: x.Seed, Window: x.Length, Grace: grace(x.Length),
	})
}

func (r *Running) add(c *child, file io.Closer, begin func(context.Context) error) *Process {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.extra, r.files = append(r.extra, c), append(r.files, file)
	return &Process{begin, func() error {
		c.kill()
		r.mutex.Lock()
		defer r.mutex.Unlock()
		r.extra = slices.DeleteFunc(r.extra, func(other *child) bool { return other == c })
		return nil
	}}
}

// End kills it, whatever is still under way; one that is kept stops until it begins again.
func (p *Process) End() error {
	if p.Halt == nil {
		return nil
	}
	return p.Halt()
}

// Keep has a process in the group of a role live on from round to round: it begins as often as it
// ends. It is there, and halted, when Keep returns. Asked for again, it is the same one.
func (r *Running) Keep(ctx context.Context, role Role, cfg noise.Config) (*Process, error) {
	bed := r.procs.bed
	as := fmt.Sprintf("kept %s %+v", role, cfg)
	n := bed.neighbours[as]
	if n == nil {
		var err error
		if n, err = r.procs.newNeighbour(ctx, role, cfg); err != nil {
			return nil, err
		}
		bed.neighbours[as] = n
		if err := n.pause(); err != nil {
			return nil, err
		}
	}
	return &Process{func(context.Context) error { n.paused = false; return n.goOn() }, n.pause}, nil
}

// Generator is the CPU time that the generator has used so far, in seconds.
func (r *Running) Generator() (float64, error) { return r.procs.generatorUsed() }

// end finishes, and ends the processes that are left.
func (r *Running) end() error {
	var errs []error
	for _, f := range r.finish {
		errs = append(errs, f())
	}
	for _, c := range r.extra {
		c.kill()
	}
	for _, f := range r.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
