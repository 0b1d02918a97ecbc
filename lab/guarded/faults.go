package guarded

import (
	"context"
	"errors"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

// preparation makes a fault ready under the load, so that it begins at once.
type preparation func(ctx context.Context, r stage) (disturbance, error)

// disturbance is a fault that is ready. End undoes it and may be called once, also
// where begin has failed.
type disturbance struct {
	begin func(ctx context.Context) error
	end   func() error
}

// disturbance returns how a fault is made on this host, and gives the cell the tenant
// that it needs.
func (x *experiment) disturbance(c *lab.Cell, f Fault, random *rand.Rand) (preparation, error) {
	threads := x.Setup.Neighbour.Threads
	changed := x.Setup.Tenant
	switch f.Name {
	case Hog:
		return x.neighbour(noise.Config{Kernel: "spin", Threads: threads, Intensity: 100}), nil
	case Half:
		return x.neighbour(noise.Config{Kernel: "spin", Threads: threads, Intensity: 50}), nil
	case Innocent:
		return together(x.neighbour(noise.Config{Kernel: "spin", Threads: threads, Intensity: 100}), x.noise(lab.Bystander, noise.Config{Kernel: "spin", Threads: 1, Intensity: 25})), nil
	case Two:
		return together(x.neighbour(noise.Config{Kernel: "spin", Threads: threads, Intensity: 100}), x.noise(lab.Bystander, noise.Config{Kernel: "spin", Threads: threads, Intensity: 100})), nil
	case Adapts:
		return x.adapts, nil
	case Outside, Beside, Foreign:
		return x.outside(f.Name, random)
	case Partly:
		return together(x.neighbour(noise.Config{Kernel: "spin", Threads: threads, Intensity: 50}), surges(func() lab.Extra {
			return lab.Extra{Rate: x.Setup.Rate / 2, Times: 1, Length: time.Duration(x.Experiment.Last), Seed: random.Uint64() | 1}
		})), nil
	case Bursty:
		return surges(func() lab.Extra {
			rate := 0.1
			if random.IntN(4) == 0 {
				rate = 2
			}
			return lab.Extra{Rate: rate * x.Setup.Rate, Times: 1, Length: time.Second / 2, Seed: random.Uint64() | 1}
		}), nil
	case Fork:
		if _, err := exec.LookPath(noise.ForkProgram); err != nil {
			return nil, &kernel.NotSupportedError{Feature: "fault fork", Reason: err.Error(), Remedy: "install true(1), of coreutils or busybox"}
		}
		return x.neighbour(noise.Config{Kernel: "fork", Threads: threads, Intensity: 100}), nil
	case Switch:
		return x.neighbour(noise.Config{Kernel: "switch", Threads: threads + 1, Intensity: 100}), nil
	case Quota:
		return x.quota, nil
	case Saturation:
		return surges(func() lab.Extra {
			more := 1.5*float64(threads) - x.Setup.TenantCPUs
			each := heavy * time.Duration(x.Setup.CPUPerRequest).Seconds()
			return lab.Extra{Rate: more / each, Times: heavy, Length: time.Duration(x.Experiment.Last), Seed: random.Uint64() | 1}
		}), nil
	case Quiet:
		return surges(func() lab.Extra {
			length := time.Duration(1+4*random.Float64()) * time.Second
			return lab.Extra{Rate: random.Float64() * x.Setup.Rate, Times: 1, Length: length, Seed: random.Uint64() | 1}
		}), nil
	case Reclaim:
		if err := lab.OnDisk(x.dir); err != nil {
			return nil, err
		}
		if err := x.bed.Group(lab.Around).Has(cgroup.Memory); err != nil {
			return nil, err
		}
		changed.File, changed.WorkingSetBytes = filepath.Join(x.dir, "articles"), articles
		c.Tenant = &changed
		return x.reclaim, nil
	case IO:
		disk, err := x.bed.Disk()
		if err != nil {
			return nil, err
		}
		changed.Disk, changed.DiskEvery = disk, lab.DiskEvery
		c.Tenant = &changed
		return x.neighbour(noise.Config{Kernel: "read", Threads: lab.DiskReaders, Intensity: 100, File: disk}), nil
	}
	return nil, &kernel.NotSupportedError{Feature: "fault " + f.Name, Reason: "no such fault"}
}

// neighbour is a fault that a process in the neighbour's group is.
func (x *experiment) neighbour(cfg noise.Config) preparation { return x.noise(lab.Neighbour, cfg) }

// noise is a fault that a process of a role is.
func (x *experiment) noise(role lab.Role, cfg noise.Config) preparation {
	cfg.Seed = x.Experiment.Seed
	return func(_ context.Context, r stage) (disturbance, error) {
		p, err := r.Noise(role, cfg)
		if err != nil {
			return disturbance{}, err
		}
		return disturbance{begin: p.Begin, end: p.End}, nil
	}
}

// together is faults that begin one after the other at once.
func together(all ...preparation) preparation {
	return func(ctx context.Context, r stage) (disturbance, error) {
		var ready []disturbance
		end := func() (err error) {
			for _, d := range ready {
				err = errors.Join(err, d.end())
			}
			return err
		}
		for _, prepare := range all {
			d, err := prepare(ctx, r)
			if err != nil {
				return disturbance{}, errors.Join(err, end())
			}
			ready = append(ready, d)
		}
		return disturbance{end: end, begin: func(ctx context.Context) error {
			for _, d := range ready {
				if err := d.begin(ctx); err != nil {
					return err
				}
			}
			return nil
		}}, nil
	}
}

// outside is a fault that a process in no group is, with or without the neighbour. A lab that is
// in a group itself cannot make it: what it starts is in that group, too.
func (x *experiment) outside(fault string, random *rand.Rand) (preparation, error) {
	own, err := x.ownGroup()
	if err != nil {
		return nil, err
	}
	if own != "" && own != detect.Outside {
		return nil, &kernel.NotSupportedError{Feature: "fault " + fault, Reason: "berth is itself in group " + own, Remedy: "start it from a process in no control group"}
	}
	intensity, threads := 100, x.Setup.Neighbour.Threads
	if fault == Foreign {
		intensity = 10 + random.IntN(41)
	}
	all := []preparation{x.noise(lab.Outsider, noise.Config{Kernel: "spin", Threads: threads, Intensity: intensity})}
	if fault == Beside {
		all = append(all, x.neighbour(noise.Config{Kernel: "spin", Threads: threads, Intensity: 100}))
	}
	return together(all...), nil
}

const (
	// shyLooks is how often a neighbour that adapts looks at its limits, shySleeps for how long it
	// sleeps when they are not what they were.
	shyLooks  = 50 * time.Millisecond
	shySleeps = 500 * time.Millisecond
)

// adapts is a neighbour that sleeps for a while whenever it finds itself limited.
func (x *experiment) adapts(ctx context.Context, r stage) (disturbance, error) {
	p, err := r.Keep(ctx, lab.Neighbour, noise.Config{Kernel: "spin", Threads: x.Setup.Neighbour.Threads, Intensity: 100, Seed: x.Experiment.Seed})
	if err != nil {
		return disturbance{}, err
	}
	free, err := x.knobs()
	if err != nil {
		return disturbance{}, err
	}
	ctx, stop := context.WithCancel(ctx)
	var ended chan error
	return disturbance{
		begin: func(context.Context) error {
			if err := p.Begin(ctx); err != nil {
				return err
			}
			ended = make(chan error, 1)
			go func() { ended <- x.shy(ctx, p, free) }()
			return nil
		},
		end: func() error {
			stop()
			if ended == nil {
				return p.End()
			}
			return errors.Join(<-ended, p.End())
		},
	}, nil
}

// shy has a process at work sleep when its group is limited, until the context ends.
func (x *experiment) shy(ctx context.Context, p *lab.Process, free []lab.Knob) error {
	for pause(ctx, shyLooks) {
		now, err := x.knobs()
		if err != nil {
			return err
		}
		if len(different(of(free, lab.Neighbour), of(now, lab.Neighbour))) == 0 {
			continue
		}
		if err := p.End(); err != nil {
			return err
		}
		if pause(ctx, shySleeps) {
			if err := p.Begin(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// of are the settings of a role.
func of(all []lab.Knob, role lab.Role) (own []lab.Knob) {
	for _, k := range all {
		if k.Of == string(role) {
			own = append(own, k)
		}
	}
	return own
}

// pause waits, and says whether the context goes on.
func pause(ctx context.Context, length time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(length):
		return true
	}
}

// quota gives the tenant less than it wants.
func (x *experiment) quota(context.Context, stage) (disturbance, error) {
	const part, period = 0.8, 100 * time.Millisecond // the period that container runtimes use
	quota := time.Duration(part * x.Setup.TenantCPUs * float64(period)).Truncate(time.Millisecond)
	return x.set(lab.Tenant, func() (cgroup.Limits, error) { return cgroup.Limits{Quota: quota, Period: period}, nil }), nil
}

// set is settings that a role has for as long as the fault lasts.
func (x *experiment) set(role lab.Role, limits func() (cgroup.Limits, error)) disturbance {
	undo := func() error { return nil }
	return disturbance{
		begin: func(context.Context) error {
			l, err := limits()
			if err != nil {
				return err
			}
			undone, err := x.bed.Set(lab.Settings{role: l})
			if err == nil {
				undo = undone
			}
			return err
		},
		end: func() error { return undo() },
	}
}

// heavy is how much more work a request of saturation is than others: with as many more
// of the usual ones the generator would take the CPUs that the tenant wants.
const heavy = 20

// surges asks the tenant for more, one surge after the other.
func surges(next func() lab.Extra) preparation {
	return func(ctx context.Context, r stage) (disturbance, error) {
		extra := next()
		first, err := r.Load(ctx, extra)
		if err != nil {
			return disturbance{}, err
		}
		stop, done := context.WithCancel(ctx)
		ended := make(chan error, 1)
		begun := false
		return disturbance{
			begin: func(context.Context) error {
				begun = true
				go func() { ended <- surge(stop, r, first, extra.Length, next) }()
				return nil
			},
			end: func() error {
				done()
				if !begun {
					return first.End()
				}
				return <-ended
			},
		}, nil
	}
}

func surge(ctx context.Context, r stage, p *lab.Process, length time.Duration, next func() lab.Extra) error {
	for {
		if err := p.Begin(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(length):
		}
		if err := p.End(); err != nil || ctx.Err() != nil {
			return err
		}
		extra := next()
		length = extra.Length
		var err error
		if p, err = r.Load(ctx, extra); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

const (
	// articles is the tenant's working set in a file, hogBytes the neighbour's in
	// anonymous memory, and driven the part (one in so many) of the former that
	// their common limit has no room for.
	articles = 64 << 20
	hogBytes = 256 << 20
	driven   = 2
	// hogOwn is about what the neighbour's process takes besides.
	hogOwn = 8 << 20
)

// reclaim sets a limit on the memory of all groups of the run when the tenant has
// its own, and lets the neighbour take so much that a part of the tenant's has to go.
// Without swap only pages of files can; nothing runs out of memory.
func (x *experiment) reclaim(_ context.Context, r stage) (disturbance, error) {
	hog, err := r.Noise(lab.Neighbour, noise.Config{Kernel: "write", Threads: 1, Intensity: 5, Bytes: hogBytes, Seed: x.Experiment.Seed})
	if err != nil {
		return disturbance{}, err
	}
	limit := x.set(lab.Around, func() (cgroup.Limits, error) {
		told, err := x.bed.Statistics(lab.Around, cgroupstat.Memory)
		used, ok := told[watch.Memory]
		if err == nil && !ok {
			err = errors.New("the kernel does not say how much memory the groups of the run have")
		}
		if err != nil {
			return cgroup.Limits{}, err
		}
		return cgroup.Limits{MemoryMax: int64(used) + hogBytes + hogOwn - articles/driven}, nil
	})
	return disturbance{
		begin: func(ctx context.Context) error {
			if err := limit.begin(ctx); err != nil {
				return err
			}
			return hog.Begin(ctx)
		},
		end: func() error { return errors.Join(hog.End(), limit.end()) },
	}, nil
}
