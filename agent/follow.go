package agent

import (
	"errors"
	"io/fs"
	"slices"
	"syscall"

	"berth.dev/berth/kernel"
)

// follow moves the processes below those that new workloads have, until there are none
// left: one that is moved late may have forked meanwhile.
func (g *groups) follow(c *Transition) (undo func() error, err error) {
	const most = 10
	undo = func() error { return nil }
	for range most {
		plan, err := g.stragglers(c)
		if err != nil || len(plan) == 0 {
			return undo, err
		}
		for _, step := range plan { // each on its own, as it may end
			back, err := kernel.Apply(g.root, kernel.Plan{step}, c.Log)
			if err != nil && !errors.Is(err, syscall.ESRCH) {
				return undo, err
			}
			if err == nil {
				undo = join(undo, back)
			}
		}
	}
	return undo, errors.New("the processes below those to place fork faster than they can be moved")
}

// stragglers plans to move the processes that come along with new workloads and are not
// yet in their groups.
func (g *groups) stragglers(c *Transition) (all kernel.Plan, err error) {
	for _, id := range c.About() {
		below, err := c.Below(id)
		if err != nil {
			return nil, err
		}
		w := c.After(id)
		for _, p := range below {
			plan, err := g.base.Child(w.Group).Attach(p.PID)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
				continue // it has ended
			}
			if err != nil {
				return nil, err
			}
			if len(plan) > 0 && plan[0].Start != p.Start {
				continue // another process has its number
			}
			if holder(c, plan) == nil {
				all = append(all, slices.DeleteFunc(plan, func(s kernel.Step) bool { return s.Back == s.Path })...)
			}
		}
	}
	return all, nil
}

// holder is the workload that a process to be moved is of, nil if it is of none but its own.
func holder(c *Transition, plan kernel.Plan) *Workload {
	for w := range c.Former() {
		for _, dir := range w.Dirs {
			if slices.ContainsFunc(plan, func(s kernel.Step) bool { return kernel.Within(s.Back, dir) }) {
				return w
			}
		}
	}
	return nil
}
