package observe

import (
	"errors"
	"fmt"

	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

// Near reads what is worth reading several times a second: the host, and of a few
// groups CPU use, throttling, pressure, run delay, and what the run-queue probe
// tells. It is for one goroutine at a time.
type Near struct {
	o     *Observer // its focus is that of the Near; it never ticks
	stats *cgroupstat.Sampler
	armed bool
}

// OpenNear opens the signals of a host, for no groups yet. The probe is loaded when
// it is armed.
func OpenNear(root string) (*Near, error) {
	o, err := Open(Config{Root: root})
	if err != nil {
		return nil, err
	}
	stats := cgroupstat.NewSampler(o.trees, cgroupstat.Usage, cgroupstat.Throttling, cgroupstat.ThrottlingAny, cgroupstat.CPUPressure)
	return &Near{o: o, stats: stats}, nil
}

// Focus makes these the groups that are read, MaxFocus at most and none within
// another. One that is gone is left out.
func (n *Near) Focus(groups []string) error {
	if len(groups) > MaxFocus {
		return fmt.Errorf("focus on %d groups: at most %d", len(groups), MaxFocus)
	}
	wanted := map[string]bool{}
	for _, group := range groups {
		wanted[group] = true
	}
	var errs []error
	for group := range n.o.focus {
		if !wanted[group] {
			errs = append(errs, n.drop(group))
		}
	}
	for group := range wanted {
		if _, there := n.o.focus[group]; there {
			continue
		}
		if err := n.stats.Add(group); err != nil {
			if !errors.Is(err, watch.ErrGone) {
				errs = append(errs, fmt.Errorf("focus on %s: %w", group, err))
			}
			continue
		}
		n.o.focus[group], n.o.why[group] = n.o.openWaits(group)
	}
	if n.armed {
		n.o.arm(sortedKeys(n.o.focus))
	}
	return errors.Join(errs...)
}

func (n *Near) drop(group string) error {
	return errors.Join(n.o.unfocus(group), n.stats.Remove(group))
}

// Arm attaches the run-queue probe for the groups in focus, or detaches it. An error
// says why it cannot be had, or that it was detached since it cost more than it may
// (runq.CostError); it is never attached again then.
func (n *Near) Arm(on bool) error {
	switch {
	case n.o.noRun != nil:
		return n.o.noRun
	case on == n.armed:
		return nil
	case on:
		n.o.arm(sortedKeys(n.o.focus))
	case n.o.queue != nil:
		if err := n.o.queue.probe.Disarm(); err != nil {
			return err
		}
	}
	n.armed = on && n.o.noRun == nil
	return n.o.noRun
}

// Armed reports whether the probe is attached.
func (n *Near) Armed() bool { return n.armed && n.o.noRun == nil }

// Probe says why the probe cannot be had, or was detached; nil if it can be armed.
func (n *Near) Probe() error {
	if n.o.noRun != nil {
		return n.o.noRun
	}
	return n.o.probeAvailable()
}

// Cost is the CPU time that the probe took per second while it was measured, in
// CPUs; 0 where it was not.
func (n *Near) Cost() float64 {
	if n.o.queue == nil {
		return 0
	}
	return n.o.queue.before.Cost.Share()
}

// Tick appends the samples of now.
func (n *Near) Tick(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	o := n.o
	to, err := o.files.read(now, to)
	errs := []error{err}
	to, failed := n.stats.Sample(now, to)
	for _, f := range failed {
		if errors.Is(f.Err, watch.ErrGone) {
			errs = append(errs, n.drop(f.Group))
		} else {
			errs = append(errs, f.Err)
		}
	}
	to = o.readWaits(now, to)
	if o.queue != nil && n.armed {
		if to, err = o.queue.read(now, o.last, to); err != nil {
			o.noRun = err
			errs = append(errs, err, o.queue.close())
			o.queue = nil
		}
	}
	o.last = now
	return to, errors.Join(errs...)
}

// Close ends all reading and detaches the probe.
func (n *Near) Close() error { return errors.Join(n.o.Close(), n.stats.Close()) }
