package agent

import (
	"errors"
	"fmt"
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

// mostBelow is how many processes a caller who is no admin may have moved with the one that it places: each
// is some writes while the node is locked, and as many to undo them.
const mostBelow = 1024

// descendants are the processes below that of a workload which a caller may have moved. Their starts are
// read before their users: the users of a number that has passed to another process are not believed of it.
func (n *Node) descendants(spec *Spec, caller Caller) (below []Owner, err error) {
	tree, starts, err := kernel.DescendantStarts(n.root.FS(), spec.PID)
	if err != nil {
		return nil, err
	}
	if has := len(tree) - 1; has > mostBelow && !caller.Admin {
		return nil, &DeniedError{
			caller.UID, fmt.Sprintf("place workload %q", spec.Request.ID),
			fmt.Sprintf("process %d has %d processes below it, and may have %d; place it before it starts them", spec.PID, has, mostBelow),
		}
	}
	for _, pid := range tree[1:] {
		if !caller.Admin {
			uids, err := kernel.ReadUIDs(n.root.FS(), pid)
			if err != nil || slices.ContainsFunc(uids[:], func(uid int) bool { return uid != caller.UID }) {
				continue
			}
		}
		below = append(below, Owner{pid, starts[pid]})
	}
	return below, nil
}
