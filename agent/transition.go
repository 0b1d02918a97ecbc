package agent

import (
	"reflect"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// Transition is one state of a node that is to come about after another.
type Transition struct {
	// Log is the node's undo log, for who writes to the kernel's files.
	Log *kernel.UndoLog

	from, to  snapshot
	focus     []string // the workloads that it is about
	processes []Owner  // that are placed
	all       bool     // look at everything, not only at what changes
	kept      bool     // the books are kept in memory, and settled
	yielded   func(path string) bool
	// yield counts that a group that is not Berth's could not be changed, and leaves it
	// alone if that was one time too many.
	yield  func(dir string, err error)
	theirs []string // the groups in a plan that are not Berth's, and that it is not about
}

// Update is what one workload is to have from now on.
type Update struct {
	// Workload says all of it, Was what it had; nil is a new one.
	Workload, Was *Workload
	// CPUs and Mems are where it may run; without Mems that is any node. Limits are its
	// settings beyond placing.
	CPUs, Mems cpuset.Set
	Limits     cgroup.Limits
}

// Updates returns what changes for whom: first for those that only lose CPUs, then for the
// others, each by rising id.
func (c *Transition) Updates() []Update {
	var losers, others []Update
	for _, id := range c.to.ids() {
		w := c.to.records[id].Workload
		u := Update{Workload: w, CPUs: w.CPUs, Mems: w.Mems, Limits: w.Spec.Settings()}
		if was := c.from.records[id]; was != nil {
			u.Was = was.Workload
		}
		switch {
		case u.Was != nil && u.Was.CPUs != u.CPUs && u.Was.CPUs.Contains(u.CPUs):
			losers = append(losers, u)
		case c.all || u.Was == nil || u.Was.CPUs != u.CPUs || u.Was.Mems != u.Mems || slices.Contains(c.focus, id):
			others = append(others, u)
		}
	}
	return append(losers, others...)
}

// stands reports whether a workload is where the records say, as far as it
// concerns this change, so that its group need not be looked at. What someone
// else did to it is for Reconcile to find.
func (c *Transition) stands(id string) bool {
	was, is := c.from.records[id], c.to.records[id]
	return c.keepsMems(id) && (was == is || was.Workload.CPUs == is.Workload.CPUs)
}

// keepsMems reports likewise that a workload's memory nodes stay.
func (c *Transition) keepsMems(id string) bool {
	was, is := c.from.records[id], c.to.records[id]
	return !c.all && was != nil && !slices.Contains(c.focus, id) && (was == is || was.Workload.Mems == is.Workload.Mems)
}

// follows reports whether a workload only follows a change of others, while the records
// are kept in memory: its CPUs are taken from there.
func (c *Transition) follows(id string) bool {
	return c.kept && !c.all && c.from.records[id] != nil && !slices.Contains(c.focus, id)
}

// disturbs reports whether groups that are not Berth's may have to be kept off
// other CPUs than before.
func (c *Transition) disturbs() bool {
	return c.all || c.from.state.Owned() != c.to.state.Owned() || given(c.from, c.to) || c.parts()
}

// parts reports whether a group that is to be placed may lie within a confined one,
// whose other children are to be confined instead.
func (c *Transition) parts() bool {
	return !c.to.state.Owned().IsEmpty() && given(c.to, c.from)
}

// leaves reports whether something may be of no use any more.
func (c *Transition) leaves() bool {
	if c.all || c.parts() || !c.to.state.Owned().Contains(c.from.state.Owned()) {
		return true
	}
	for id := range c.from.records {
		if c.to.records[id] == nil {
			return true
		}
	}
	return slices.ContainsFunc(c.focus, func(id string) bool {
		was, is := c.from.records[id], c.to.records[id]
		return was != nil && is != nil && !is.Workload.made() && !reflect.DeepEqual(was.Workload.Spec.Settings(), is.Workload.Spec.Settings())
	})
}

// given reports whether a snapshot has a workload in a group that is not Berth's
// and that another snapshot does not have.
func given(v, other snapshot) bool {
	for id, b := range v.records {
		if b.Workload.Spec.Group != "" && other.records[id] == nil {
			return true
		}
	}
	return false
}

// limited are the workloads whose limits are looked at.
func (c *Transition) limited() []string {
	if c.all {
		return c.present()
	}
	return c.about()
}

// present are the workloads that there is something of: not those that are reserved.
func (c *Transition) present() []string { return c.come(c.to.ids()) }

// about are those of them that the transition is about.
func (c *Transition) about() []string { return c.come(c.focus) }

func (c *Transition) come(ids []string) []string {
	reserved := func(id string) bool { return c.to.records[id] != nil && c.to.records[id].Workload.State == Reserved }
	if !slices.ContainsFunc(ids, reserved) {
		return ids
	}
	return slices.DeleteFunc(slices.Clone(ids), reserved)
}

// contested are the CPUs that somebody owns, before or after.
func (c *Transition) contested() cpuset.Set { return c.from.state.Owned().Union(c.to.state.Owned()) }
