package agent

import (
	"iter"
	"maps"
	"reflect"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// Transition is one state of a node that is to come about after another. Update says what
// changes; the rest is for an Enforcer that compares with what the host shows.
type Transition struct {
	// Log is the node's undo log, for Enforcers that write to the kernel's files.
	Log *kernel.UndoLog
	// All is true to look at everything, not only at what changes.
	All bool
	// strict is true if a group of a workload that it is about is not left to other
	// writers, though everything is looked at.
	strict bool
	// scales is true if the clocks of pools are looked at, whose load has changed.
	scales bool

	from, to  snapshot
	focus     []string // the workloads that it is about
	processes []Owner  // that are placed
	kept      bool     // the records are kept in memory, and recovered
	yielded   func(path string) bool
	yield     func(dir string, err error)
	away      func(err error) bool   // see Node.away
	waits     func(file string) bool // see Node.waits
	answered  func()                 // systemd was asked, and answered
	below     map[string]func() ([]Owner, error)
}

// Below returns the processes that are to come along with Spec.PID of a new workload, as
// they are now.
func (c *Transition) Below(id string) ([]Owner, error) {
	if list := c.below[id]; list != nil {
		return list()
	}
	return nil, nil
}

// Before returns what a workload was, nil if it is new.
func (c *Transition) Before(id string) *Workload { return c.from.workload(id) }

// After returns what a workload is to be, nil if it is released.
func (c *Transition) After(id string) *Workload { return c.to.workload(id) }

// asks reports whether a workload is what the transition is about: what it cannot have is
// refused then. Any other goes without, and a note says so.
func (c *Transition) asks(id string) bool {
	return (!c.All || c.strict) && slices.Contains(c.focus, id)
}

// asksIn reports whether it asks for a workload whose group is a directory, or lies in it. dirs are Site.Dirs.
func (c *Transition) asksIn(dir string, dirs []string) bool {
	return slices.ContainsFunc(c.focus, func(id string) bool {
		w := c.After(id)
		return w != nil && c.asks(id) && slices.ContainsFunc(w.dirsIn(dirs), func(own string) bool { return kernel.Within(own, dir) })
	})
}

// looksAt reports whether a workload's threads are looked for: there are many of all of them.
func (c *Transition) looksAt(w *Workload) bool { return c.All || slices.Contains(c.focus, w.ID()) }

// Granted reports whether a workload holds CPUs after the transition.
func (c *Transition) Granted(id string) bool { _, ok := c.to.state.Grant(id); return ok }

// Former are the workloads before the transition, Workloads those after it, in no order.
func (c *Transition) Former() iter.Seq[*Workload]    { return c.from.workloads() }
func (c *Transition) Workloads() iter.Seq[*Workload] { return c.to.workloads() }

// Empties reports whether the transition leaves no workload.
func (c *Transition) Empties() bool { return len(c.to.records) == 0 }

// Owned are the CPUs that are exclusive after the transition, Contested those that are so
// before or after, and Shared those that are not.
func (c *Transition) Owned() cpuset.Set     { return c.to.state.Owned() }
func (c *Transition) Contested() cpuset.Set { return c.from.state.Owned().Union(c.to.state.Owned()) }
func (c *Transition) Shared() cpuset.Set    { return c.to.state.Sharable() }

// Yielded reports whether a file is left as it is: to another writer, who keeps changing it, or until
// systemd can be asked.
func (c *Transition) Yielded(path string) bool { return c.yielded(path) }

// Yield counts that a group that is not Berth's could not be changed, and leaves its CPUs
// alone if that was one time too many, or for a while if systemd could not be asked.
func (c *Transition) Yield(dir string, err error) { c.yield(dir, err) }

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
		w := c.After(id)
		u := Update{Workload: w, Was: c.Before(id), CPUs: w.CPUs, Mems: w.Mems, Limits: w.Spec.Settings()}
		switch {
		case u.Was != nil && u.Was.CPUs != u.CPUs && u.Was.CPUs.Contains(u.CPUs):
			losers = append(losers, u)
		case c.All || u.Was == nil || u.Was.CPUs != u.CPUs || u.Was.Mems != u.Mems || slices.Contains(c.focus, id):
			others = append(others, u)
		}
	}
	return append(losers, others...)
}

// Stands reports whether a workload is where the records say, as far as it
// concerns this change, so that its group need not be looked at. What someone
// else did to it is for Reconcile to find.
func (c *Transition) Stands(id string) bool {
	was, is := c.from.records[id], c.to.records[id]
	return c.KeepsMems(id) && (was == is || was.Workload.CPUs == is.Workload.CPUs)
}

// KeepsMems reports likewise that a workload's memory nodes stay.
func (c *Transition) KeepsMems(id string) bool {
	was, is := c.from.records[id], c.to.records[id]
	return !c.All && was != nil && !slices.Contains(c.focus, id) && (was == is || was.Workload.Mems == is.Workload.Mems)
}

// Follows reports whether a workload only follows a change of others, while the records
// are kept in memory: its CPUs are taken from there.
func (c *Transition) Follows(id string) bool {
	return c.kept && !c.All && c.from.records[id] != nil && !slices.Contains(c.focus, id)
}

// Disturbs reports whether groups that are not Berth's may have to be kept off
// other CPUs than before.
func (c *Transition) Disturbs() bool {
	return c.All || c.from.state.Owned() != c.to.state.Owned() || given(c.from, c.to) || c.parts()
}

// parts reports whether a group that is to be placed may lie within a confined one,
// whose other children are to be confined instead.
func (c *Transition) parts() bool {
	return !c.to.state.Owned().IsEmpty() && given(c.to, c.from)
}

// Leaves reports whether something may be of no use any more.
func (c *Transition) Leaves() bool {
	if c.All || c.parts() || !c.to.state.Owned().Contains(c.from.state.Owned()) {
		return true
	}
	for id := range c.from.records {
		if c.to.records[id] == nil {
			return true
		}
	}
	return slices.ContainsFunc(c.focus, func(id string) bool {
		was, is := c.Before(id), c.After(id)
		return was != nil && is != nil && !is.made() && (!reflect.DeepEqual(was.Spec.Settings(), is.Spec.Settings()) || !slices.Equal(was.Spec.Request.Memory, is.Spec.Request.Memory) ||
			!maps.Equal(was.Spec.Classes, is.Spec.Classes))
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

// Limited are the workloads whose limits are looked at.
func (c *Transition) Limited() []string {
	if c.All {
		return c.Present()
	}
	return c.About()
}

// unasked are those of them that the transition does not ask for.
func (c *Transition) unasked() []string {
	if !c.All {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(c.Limited()), c.asks)
}

// Present are the workloads that there is something of: not those that are reserved.
func (c *Transition) Present() []string { return c.come(c.to.ids()) }

// About are those of them that the transition is about.
func (c *Transition) About() []string { return c.come(c.focus) }

func (c *Transition) come(ids []string) []string {
	reserved := func(id string) bool { w := c.After(id); return w != nil && w.State == Reserved }
	if !slices.ContainsFunc(ids, reserved) {
		return ids
	}
	return slices.DeleteFunc(slices.Clone(ids), reserved)
}
