package lab

import (
	"errors"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/hardware"
)

// counter is a *hardware.Counter, or what stands for it in a test.
type counter interface {
	Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error)
	Close() error
}

// Count has the CPUs' counters tell of the group of a role in each round from now on (IPC,
// misses of the cache). It says why this host does not, as a virtual machine without such
// counters: a kernel.NotSupportedError.
func (b *Testbed) Count(r Role) error {
	group := b.backend.group(r)
	var trees []cgroup.Hierarchy
	if group.Name() != "" {
		trees = group.Trees()
	}
	for _, tree := range trees {
		if tree.Version != 2 {
			continue
		}
		c, err := hardware.OpenCounter(hardware.CounterConfig{Dir: "/" + tree.Dir, Name: string(r), CPUs: b.places.shared, Set: hardware.HardwareEvents})
		if err != nil {
			return err
		}
		b.counters[r] = c
		b.later = append(b.later, c.Close)
		return nil
	}
	return &kernel.NotSupportedError{
		Feature: "hardware counters", Reason: "the kernel counts by group in a cgroup v2 tree only, and the lab has no group in one", Remedy: "run as root, with cgroup v2 mounted",
	}
}

// counted enters what the counters of a role tell, if it has some.
func (b *Testbed) counted(r Role, u *Usage) error {
	c := b.counters[r]
	if c == nil {
		return nil
	}
	samples, err := c.Read(0, nil)
	if errors.Is(err, watch.ErrGone) {
		return nil
	}
	for _, s := range samples {
		switch s.Quantity {
		case watch.Cycles:
			u.Cycles = s.Value
		case watch.Instructions:
			u.Instructions = s.Value
		case watch.LLCReferences:
			u.References = s.Value
		case watch.LLCMisses:
			u.Misses = s.Value
		}
	}
	return err
}
