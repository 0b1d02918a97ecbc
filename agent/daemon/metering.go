package daemon

import (
	"context"
	"time"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// Meter reads the figures of workloads whose groups somebody else makes, such as a container
// runtime: CPU time, memory and the like when Stats asks for them, the others in rotation, as
// an agent does. Several goroutines may use it.
type Meter struct {
	m     *meter
	began time.Time
	every time.Duration
}

// OpenMeter opens the groups of a host, which are read at most once in an interval; 0 is 1 s. A
// host without control groups is a kernel.NotSupportedError.
func OpenMeter(root *kernel.Root, interval time.Duration) (*Meter, error) {
	host, err := cgroup.Detect(root)
	if err != nil {
		return nil, err
	}
	first, ok := host.Hierarchy(cgroup.CPUAcct)
	if !ok {
		return nil, &kernel.NotSupportedError{Feature: "reading groups", Reason: "there are no control groups", Remedy: "mount cgroup2"}
	}
	bases := []string{first.Dir}
	for i := range host.Hierarchies {
		if h := &host.Hierarchies[i]; h.Version == first.Version && h.Dir != first.Dir {
			bases = append(bases, h.Dir)
		}
	}
	trees, others, _, _, err := treesOf(root, bases)
	if err != nil {
		return nil, err
	}
	if interval == 0 {
		interval = time.Second
	}
	return &Meter{newMeter(root.Name(), trees, others, interval), time.Now(), interval}, nil
}

// Follow reads these workloads, by id, given with their groups below the top of the tree and
// the CPUs of their own, from now on.
func (m *Meter) Follow(groups map[string]string, own map[string]cpuset.Set) error {
	return m.m.follow(groups, own)
}

// Run reads some workloads in each interval, in rotation, until the context ends. Before them it
// calls before, which may Follow others.
func (m *Meter) Run(ctx context.Context, before func()) {
	tick := time.NewTicker(m.every)
	defer tick.Stop()
	for {
		before()
		m.m.rotate(m.began)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Stats are those of an api.View, read now, or within the interval before.
func (m *Meter) Stats(ctx context.Context) (api.Stats, error) {
	m.m.renew(m.began, m.every)
	return m.m.Stats(ctx)
}

// Signals are those of an api.View: nil for a signal that a workload has, or why none has it.
func (m *Meter) Signals() map[string]error { return m.m.Signals() }

// Close closes what is open.
func (m *Meter) Close() error { return m.m.close() }
