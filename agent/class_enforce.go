package agent

import (
	"errors"
	"fmt"
	"slices"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// planClasses are the writes of all kinds.
func (n *Node) planClasses(c *Transition) (plan kernel.Plan, err error) {
	kinds := n.classifiers(c)
	for i := range kinds {
		some, err := n.planOf(&kinds[i], c)
		if err != nil {
			return nil, err
		}
		plan = append(plan, some...)
	}
	return plan, nil
}

// planOf are the writes of a kind. What the kernel refused is left out until it is tried again, with all
// of its class or workload, unless the transition asks for it. Clocks that follow their load are tried in
// each window: they are to be something else in the next one.
func (n *Node) planOf(k *concerned, c *Transition) (kernel.Plan, error) {
	whole, err := k.plan(c)
	if err != nil {
		return nil, err
	}
	switch {
	case c.scales:
		return whole, nil
	case c.All:
		n.refused.planned(k.kind, whole, func(string) bool { return true })
	}
	plan := whole
	for _, s := range whole {
		if !n.refused.wait(k.kind, s) {
			continue
		}
		if name, id := k.about(c, s); !n.wants(c, k.kind, name, id) {
			plan = k.others(c, plan, name, id)
		}
	}
	return plan, nil
}

// others are the steps of a plan that are not about a class and a workload.
func (k *concerned) others(c *Transition, plan kernel.Plan, name, id string) kernel.Plan {
	return slices.DeleteFunc(slices.Clone(plan), func(s kernel.Step) bool {
		itsName, itsID := k.about(c, s)
		return itsName == name && itsID == id
	})
}

// classed adds to what the Enforcer has done what workloads get by their classes; after an
// error all is undone.
func (n *Node) classed(c *Transition, done Enforced) (Enforced, error) {
	more, err := n.enforceClasses(c)
	if err != nil {
		return Enforced{}, errors.Join(err, call(done.Undo))
	}
	return Enforced{
		Undo:   func() error { return errors.Join(call(more.Undo), call(done.Undo)) },
		Finish: func() error { return errors.Join(call(more.Finish), call(done.Finish)) },
	}, nil
}

// writes are what an Enforcer that knows it in advance would write, and the classes beside
// it; needed is false if there is nothing to do.
func (n *Node) writes(c *Transition) (plan kernel.Plan, needed bool, err error) {
	if p, ok := n.enforcer.(Planner); ok {
		if plan, needed, err = p.Plan(c); err != nil {
			return nil, false, err
		}
	}
	classes, err := n.planClasses(c)
	return append(plan, classes...), needed || len(classes) > 0, err
}

// enforceClasses has workloads get their classes. It follows the Enforcer, which puts
// processes where they are looked for.
func (n *Node) enforceClasses(c *Transition) (done Enforced, err error) {
	kinds := n.classifiers(c)
	var undos []func() error
	for i := range kinds {
		k := &kinds[i]
		undo, err := n.write(k, c)
		undos = append(undos, undo)
		if err == nil {
			_, undo, err = k.follow(c)
			undos = append(undos, undo)
		}
		if err != nil {
			return done, errors.Join(k.refusal(c, err), join(undos...)())
		}
	}
	done.Undo = join(undos...)
	done.Finish = func() error {
		var errs []error
		for _, k := range kinds {
			used := k.used(c)
			_, err := c.Log.Undo(func(s kernel.Step) bool { return k.made(s) && !used(s) })
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	return done, nil
}

// write writes what a kind has for a transition. What the kernel refuses a class or a workload
// that the transition does not ask for, it goes without: one of them cannot keep a node from
// being recovered, nor another workload from its place. It is tried again ever more rarely.
func (n *Node) write(k *concerned, c *Transition) (undo func() error, err error) {
	plan, err := n.planOf(k, c)
	if err != nil {
		return nil, err
	}
	for {
		if undo, err = kernel.Apply(n.root, plan, c.Log); err == nil {
			n.refused.written(k.kind, plan)
		}
		refused := onlyRefused(err)
		if refused == nil {
			return undo, err
		}
		name, id := k.about(c, refused.Step)
		if n.wants(c, k.kind, name, id) {
			return undo, err
		}
		left := k.others(c, plan, name, id)
		if len(left) == len(plan) {
			return undo, err
		}
		n.refused.failed(k.kind, refused.Step)
		n.without(k.kind, name, id, err)
		plan = left
	}
}

// wants reports whether a transition asks for a class of a kind: for one workload, or of any
// where id is "".
func (n *Node) wants(c *Transition, kind ClassKind, name, id string) bool {
	config := n.classesNow()
	return slices.ContainsFunc(c.focus, func(of string) bool {
		w := c.After(of)
		if w == nil || id != "" && id != of || !c.asks(of) {
			return false
		}
		if kind == NetClass && name == "" && id != "" {
			return n.wantsLimit(c, id)
		}
		has := config.ClassOf(kind, &w.Spec)
		return has != "" && (name == "" || has == name)
	})
}

// without tells once that a workload, or all of a class where id is "", goes without what the
// class has.
func (n *Node) without(kind ClassKind, name, id string, err error) {
	who := fmt.Sprintf("workloads of %s class %q go", kind, name)
	switch {
	case id == sharedPool || id == reservedCPUs:
		who, id = id+" go", ""
	case id != "":
		who = fmt.Sprintf("workload %q goes", id)
	case name == "":
		who = fmt.Sprintf("workloads of %s classes go", kind)
	}
	n.lacked++
	n.goesWithout(id, who+" without", err)
}

// withoutLimit tells once that a workload goes without one of its limits.
func (n *Node) withoutLimit(id string, err error) {
	n.goesWithout(id, fmt.Sprintf("workload %q goes without a limit", id), err)
}

// goesWithout tells a text and an error once. What a refused step sets is noted as unwritten.
func (n *Node) goesWithout(id, text string, err error) {
	if refused, ok := errors.AsType[*kernel.StepError](err); ok && n.unwritten != nil {
		n.unwritten[setting(refused.Step)] = true
	}
	n.tellOnce(id, fmt.Sprintf("%s: %v", text, err))
}

// mostOnce is how many texts are remembered that are told once.
const mostOnce = 1000

// tellOnce tells what fails again whenever it is tried.
func (n *Node) tellOnce(id, text string) {
	if n.once == nil || len(n.once) >= mostOnce {
		n.once = map[string]bool{}
	}
	if !n.once[text] {
		n.once[text] = true
		n.tell(Failed, id, "", text)
	}
}

// leaving are the workloads, as they were, that lose a class of a kind. Their threads are in
// their groups still, unless scattered is true: those of groups that Berth made, and of none,
// may be anywhere by now.
func (n *Node) leaving(c *Transition, kind ClassKind) (all []*Workload, scattered bool) {
	config := n.opt.Classes
	for w := range c.Former() {
		name, after := config.ClassOf(kind, &w.Spec), c.After(w.ID())
		if name != "" && (after == nil || config.ClassOf(kind, &after.Spec) != name) {
			all, scattered = append(all, w), scattered || w.made() || w.Group == ""
		}
	}
	return all, scattered
}

// followClasses looks for threads that have come to workloads, or left them, since.
func (n *Node) followClasses(c *Transition) (moved int, err error) {
	for _, k := range n.classifiers(c) {
		some, _, err := k.follow(c)
		if moved += some; err != nil {
			return moved, err
		}
	}
	return moved, nil
}

// threadsOf are the threads of a workload.
func (n *Node) threadsOf(w *Workload) (all []int, err error) {
	dirs := w.dirsIn(n.site.Dirs)
	for _, dir := range dirs {
		if all, err = cgroup.Threads(n.root.FS(), dir); err != nil || len(all) > 0 {
			return all, err // any hierarchy has all of them
		}
	}
	if s, ok := n.enforcer.(Supervisor); ok && len(dirs) == 0 {
		pids, _, err := s.Processes(w)
		if err != nil {
			return nil, err
		}
		for _, pid := range pids {
			all = append(all, n.threadsOfProcess(pid)...)
		}
	}
	return all, nil
}

// threadsOfProcess are those of a process that has not ended.
func (n *Node) threadsOfProcess(pid int) []int {
	all, err := kernel.ThreadsOf(n.root.FS(), pid)
	if err != nil {
		return []int{pid}
	}
	return all
}
