package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// Surroundings are the control groups around workloads that something else makes and limits,
// such as a container runtime: for an Enforcer that leaves the workloads' own groups to it.
// Workloads that were placed by control groups before, as berth run does, are theirs, too.
type Surroundings struct {
	g    *groups
	mode string   // of the host; every workload is compared with it
	idle []string // as of the last transition
}

// OpenSurroundings finds the control groups of a host. confine and protect are as in Settings,
// from the top of the hierarchy on; within, if not empty, are the CPUs of what is confined,
// instead of all that nobody owns. It is a kernel.NotSupportedError where there are none
// with CPUs.
func OpenSurroundings(root *kernel.Root, confine, protect []string, within cpuset.Set) (*Surroundings, error) {
	if err := errors.Join(validGlobs("confine", confine), validGlobs("protected", protect)); err != nil {
		return nil, err
	}
	host, err := cgroup.Detect(root)
	if err != nil {
		return nil, err
	}
	g, err := openGroups(root, host)
	if err != nil {
		return nil, err
	}
	g.confine, g.protect, g.within = confine, protect, within
	return &Surroundings{g: g, mode: host.Mode()}, nil
}

// Dirs are Site.Dirs of the host.
func (s *Surroundings) Dirs() []string { return s.g.site().Dirs }

// Has reports whether a workload was placed by control groups. Observe, Processes, Kill and
// Release are for these only, as of Enforcer and Supervisor.
func (s *Surroundings) Has(w *Workload) bool { return w.Backend == s.mode }

// Confines reports whether any groups are to be kept off exclusive CPUs.
func (s *Surroundings) Confines() bool { return len(s.g.confine) > 0 }

// Limits are the settings of a workload in another's group: its own, and those of its I/O class.
func (s *Surroundings) Limits(w *Workload) cgroup.Limits {
	class, _ := s.g.ofIO(&w.Spec) // a note says what is not defined
	return withIO(w.Spec.Settings(), class.limits)
}

// Observe tells what there is of a workload.
func (s *Surroundings) Observe(w *Workload) Observed { return s.g.Observe(w) }

// Processes returns a workload's processes.
func (s *Surroundings) Processes(w *Workload) ([]int, bool, error) { return s.g.Processes(w) }

// Kill ends them.
func (s *Surroundings) Kill(ctx context.Context, w *Workload) error { return s.g.Kill(ctx, w) }

// Release ends what a workload had.
func (s *Surroundings) Release(w *Workload, leave bool, log *kernel.UndoLog) error {
	return s.g.Release(w, leave, log)
}

// NoIdle says why no group can be made idle here; "" if it can.
func (s *Surroundings) NoIdle() string { return s.g.noIdle() }

// Plan returns what it takes to have the groups that idle names, as far as they are there, run
// only when no sibling wants to, others kept off exclusive CPUs, and workloads have what their
// I/O classes say.
func (s *Surroundings) Plan(c *Transition, idle []string) (kernel.Plan, error) {
	all, err := s.idles(c, idle)
	if err != nil {
		return nil, err
	}
	plan, err := s.others(c)
	if err != nil {
		return nil, err
	}
	limits, err := s.g.planEach(c, s.limited(c))
	return slices.Concat(all, plan, limits), err
}

// limited are the workloads of others' groups whose limits are looked at.
func (s *Surroundings) limited(c *Transition) (all []string) {
	for _, id := range c.Limited() {
		if w := c.After(id); w != nil && !s.Has(w) {
			all = append(all, id)
		}
	}
	return all
}

func (s *Surroundings) idles(c *Transition, idle []string) (all kernel.Plan, err error) {
	for _, group := range idle {
		g := s.g.base.Child(group)
		if !slices.ContainsFunc(g.Dirs(), s.g.isDir) {
			continue
		}
		plan, err := s.g.needs(c, g, cgroup.Limits{Idle: cgroup.On}.Settings())
		if err != nil {
			return nil, fmt.Errorf("make group %s idle: %w", group, err)
		}
		all = append(all, plan...)
	}
	return all, nil
}

func (s *Surroundings) others(c *Transition) (kernel.Plan, error) {
	s.g.theirs = nil
	var all []*subtree
	var placed []string // mostly there are none
	for w := range c.Workloads() {
		if s.Has(w) && w.State != Reserved {
			placed = append(placed, w.ID())
		}
	}
	slices.Sort(placed)
	for _, id := range placed {
		u, err := s.g.subtree(c, id, false)
		if kernel.Absent(err) {
			continue // it has ended, and is released at the next look
		}
		if err != nil {
			return nil, fmt.Errorf("workload %q: %w", id, err)
		}
		all = append(all, u)
	}
	others, err := s.g.others(c)
	if err != nil {
		return nil, err
	}
	return s.g.place(append(all, others...), c)
}

// Enforce carries out what Plan returns, and gives back what is of no use any more. That a
// group cannot be made idle is told and holds nothing up.
func (s *Surroundings) Enforce(c *Transition, idle []string, tell func(error)) (done Enforced, err error) {
	plan, err := s.idles(c, idle)
	var awake, back func() error
	if err == nil {
		awake, err = kernel.Apply(s.g.root, plan, c.Log)
	}
	if err != nil {
		tell(err)
	}
	for again := true; again; again = err != nil && s.g.leave(c, err) {
		if plan, err = s.others(c); err == nil {
			if back, err = kernel.Apply(s.g.root, plan, c.Log); err == nil {
				s.g.refused.written("", plan)
			}
		}
	}
	if err != nil {
		return done, errors.Join(err, call(awake))
	}
	unlimited, err := s.g.limitEach(c, s.limited(c))
	if err != nil {
		return done, errors.Join(err, call(back), call(awake))
	}
	done.Undo = func() error { return errors.Join(unlimited(), call(back), call(awake)) }
	if !c.Leaves() && slices.Equal(idle, s.idle) {
		return done, nil
	}
	done.Finish = func() error {
		s.idle, s.g.idles = slices.Clone(idle), map[string]bool{}
		for _, group := range idle {
			for _, dir := range s.g.base.Child(group).Dirs() {
				s.g.idles[dir] = true
			}
		}
		return s.g.giveBack(c)
	}
	return done, nil
}
