package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// limits plans a workload's settings beyond placing, as far as they are not
// what the kernel shows.
func (g *groups) limits(c *change, id string, fresh bool) (kernel.Plan, error) {
	to := c.to.bodies[id]
	l := to.Workload.Spec.Limits
	if from := c.from.bodies[id]; from != nil {
		l = withDefaults(l, from.Workload.Spec.Limits)
	}
	plan, err := g.base.Child(to.Workload.Group).Set(l)
	if err != nil || fresh {
		return plan, err
	}
	if plan, err = g.differing(c, plan); err != nil {
		return nil, fmt.Errorf("limits of workload %q: %w", id, err)
	}
	return plan, nil
}

// idle plans that idleGroup is idle where it holds a workload.
func (g *groups) idle(c *change) (kernel.Plan, error) {
	holds := func(id string) bool { return within(c.to.bodies[id].Workload.Group, idleGroup) }
	if !slices.ContainsFunc(c.limited(), holds) {
		return nil, nil
	}
	plan, err := g.base.Child(idleGroup).Set(cgroup.Limits{Idle: cgroup.On})
	if err != nil {
		return nil, err
	}
	if plan, err = g.differing(c, plan); err != nil {
		return nil, fmt.Errorf("make group %s idle: %w", idleGroup, err)
	}
	return plan, nil
}

// differing are the steps of a plan that the kernel does not show yet. A group that
// is yet to be made shows nothing.
func (g *groups) differing(c *change, plan kernel.Plan) (differs kernel.Plan, err error) {
	for _, s := range plan {
		_, same, err := g.root.Shows(s)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if !same && !c.yielded(s.Path) {
			differs = append(differs, s)
		}
	}
	return differs, nil
}

// withDefaults is l with what before had and l lacks set to the kernel's default.
func withDefaults(l, before cgroup.Limits) cgroup.Limits {
	if l.Weight == 0 && before.Weight != 0 && l.Idle != cgroup.On {
		l.Weight = 100
	}
	if l.Idle == cgroup.Leave && before.Idle == cgroup.On {
		l.Idle = cgroup.Off
	}
	if l.Quota == 0 && before.Quota != 0 {
		l.Quota, l.Period = cgroup.Unlimited, 0
	}
	if l.Burst == 0 && before.Burst != 0 {
		l.Burst = cgroup.Unlimited
	}
	for _, p := range []struct{ to, had *int64 }{
		{&l.MemoryMax, &before.MemoryMax}, {&l.MemoryHigh, &before.MemoryHigh}, {&l.PIDsMax, &before.PIDsMax},
	} {
		if *p.to == 0 && *p.had != 0 {
			*p.to = cgroup.Unlimited
		}
	}
	if l.IOWeight == 0 && before.IOWeight != 0 {
		l.IOWeight = 100
	}
	if l.Frozen == cgroup.Leave && before.Frozen == cgroup.On {
		l.Frozen = cgroup.Off
	}
	return l
}
