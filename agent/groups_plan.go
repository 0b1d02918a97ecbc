package agent

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// Plan implements Planner. Where v2 controllers have yet to be enabled, what follows for
// groups that are there already cannot be seen, and is not in the plan.
func (g *groups) Plan(c *Transition) (plan kernel.Plan, needed bool, err error) {
	enable, err := g.enable(c)
	if err != nil || len(enable) > 0 && slices.ContainsFunc(c.About(), func(id string) bool { return !c.After(id).made() }) {
		return enable, len(enable) > 0, err
	}
	plan, err = g.plan(c)
	if err == nil {
		var limits kernel.Plan
		limits, err = g.planEach(c, c.unasked())
		plan = append(plan, limits...)
	}
	return append(enable, plan...), len(enable)+len(plan) > 0, err
}

// plan is difference without the groups that leave says.
func (g *groups) plan(c *Transition) (kernel.Plan, error) {
	for {
		plan, err := g.difference(c)
		if err == nil || !g.leave(c, err) {
			return plan, err
		}
	}
}

func (g *groups) enable(c *Transition) (kernel.Plan, error) {
	if g.version != 2 {
		return nil, nil
	}
	offered, err := kernel.ReadText(g.root.FS(), g.dir+"/cgroup.controllers")
	if err != nil {
		return nil, err
	}
	var plan kernel.Plan
	used := g.used(c)
	for _, id := range c.About() {
		for dir := g.cpusetDir(c.After(id)); dir != g.dir && kernel.Within(dir, g.dir); {
			dir = path.Dir(dir)
			step, err := g.enableIn(dir, strings.Fields(offered), used)
			if err != nil {
				return nil, err
			}
			if step.Value != "" && !slices.ContainsFunc(plan, func(s kernel.Step) bool { return s.Path == step.Path }) {
				plan = append(kernel.Plan{step}, plan...)
			}
		}
	}
	return plan, nil
}

// used are the controllers that the workloads use that a change is about.
func (g *groups) used(c *Transition) []string {
	all := []string{cgroup.CPUSet, cgroup.CPU, cgroup.IO, cgroup.Memory, cgroup.PIDs}
	if slices.ContainsFunc(c.About(), func(id string) bool { huge, _ := g.huge(&c.After(id).Spec); return len(huge) > 0 }) {
		all = append(all, cgroup.HugeTLB)
	}
	return all
}

// enableIn is the step that hands a group's controllers, of those that are used, on to its
// children; its value is empty if there is none to take.
func (g *groups) enableIn(dir string, offered, used []string) (kernel.Step, error) {
	step := kernel.Step{Op: kernel.Enable, Path: dir + "/cgroup.subtree_control"}
	text, err := kernel.ReadText(g.root.FS(), step.Path)
	if err != nil {
		return step, kernel.IgnoreAbsent(err) // the group is yet to be made
	}
	var words []string
	for _, name := range used {
		if slices.Contains(offered, name) && g.base.Has(name) == nil && !slices.Contains(strings.Fields(text), name) {
			words = append(words, "+"+name)
		}
	}
	step.Value = strings.Join(words, " ")
	return step, nil
}

// difference is what it takes to get from what the kernel shows to what c is to come to, but for
// the limits of workloads that it does not ask for: each of those has its own for itself.
func (g *groups) difference(c *Transition) (all kernel.Plan, err error) {
	g.theirs = nil
	maps.DeleteFunc(g.shown, func(id string, s shown) bool { return c.After(id) != s.of })
	fresh := map[string]bool{}
	for _, id := range c.About() {
		w := c.After(id)
		plan, err := g.create(w)
		if err != nil {
			return nil, err
		}
		if len(plan) > 0 && c.Before(id) != nil && !g.exists(w) {
			return nil, fmt.Errorf("workload %q: %w", id, &MissingError{fmt.Sprintf("group %q", w.Group)})
		}
		fresh[id] = len(plan) > 0
		all = append(all, slices.DeleteFunc(plan, func(s kernel.Step) bool { // made for another one of them
			return slices.ContainsFunc(all, func(o kernel.Step) bool { return o.Op == s.Op && o.Path == s.Path })
		})...)
	}
	add := func(plan kernel.Plan, err error) error {
		all = append(all, plan...)
		return err
	}
	if err := add(g.idle(c)); err != nil {
		return nil, err
	}
	subtrees, err := g.subtrees(c, fresh)
	if err != nil {
		return nil, err
	}
	around, err := g.ancestors(c)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(add(g.widen(c, around)), add(g.place(subtrees, c)), add(around.Narrow(), nil)); err != nil {
		return nil, err
	}
	for _, id := range c.Limited() {
		if !c.asks(id) {
			continue
		}
		if err := add(g.limits(c, id, fresh[id])); err != nil {
			return nil, err
		}
	}
	for _, id := range c.About() {
		if err := add(g.attach(c, id, fresh[id])); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// attach plans to move a new workload's process into its group, or into one that is
// made again, those that are in the rest of it.
func (g *groups) attach(c *Transition, id string, fresh bool) (plan kernel.Plan, err error) {
	w := c.After(id)
	group := g.base.Child(w.Group)
	var pids []int
	switch {
	case c.Before(id) == nil && w.Spec.PID != 0:
		pids = []int{w.Spec.PID}
	case c.Before(id) != nil && fresh:
		if pids, _, err = group.Procs(); err != nil {
			return nil, err
		}
	}
	for _, pid := range pids {
		steps, err := group.Attach(pid)
		if err != nil {
			return nil, err
		}
		if of := holder(c, steps); of != nil && w.Spec.Descendants && of.ID() != id {
			return nil, &GroupError{of.Group, fmt.Sprintf("process %d is in it, of workload %q", pid, of.ID())}
		}
		plan = append(plan, steps...)
	}
	if len(plan) == 0 || w.Spec.PID != 0 && c.Before(id) == nil {
		return plan, nil
	}
	// Leave out the processes that have left since they were listed, or got the number since.
	now, _, err := group.Procs()
	return slices.DeleteFunc(plan, func(s kernel.Step) bool {
		return !slices.ContainsFunc(now, func(pid int) bool { return s.Value == strconv.Itoa(pid) })
	}), err
}

// create plans the directories of a group that are missing, with v1 cpusets that
// can hold processes.
func (g *groups) create(w *Workload) (kernel.Plan, error) {
	if !w.made() {
		return nil, nil
	}
	there := map[string]bool{}
	missing := false
	for _, dir := range w.Dirs {
		_, err := fs.Stat(g.root.FS(), dir)
		there[dir] = err == nil
		missing = missing || err != nil
	}
	if !missing {
		return nil, nil
	}
	all, err := g.base.Child(w.Group).Create()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(s kernel.Step) bool { return there[s.Path] || s.Keep && there[path.Dir(s.Path)] }), nil
}
