package agent

import (
	"context"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
)

// change is one view to come about after another.
type change struct {
	from, to view
	focus    []string // the workloads that it is about
	all      bool     // look at everything, not only at what changes
	kept     bool     // the books are kept in memory, and settled
	ledger   *kernel.Journal
	confine  []string
	yielded  func(path string) bool
}

// stands reports whether a workload is where the books say, as far as it
// concerns this change, so that its group need not be looked at. What someone
// else did to it is for Reconcile to find.
func (c *change) stands(id string) bool {
	was, is := c.from.bodies[id], c.to.bodies[id]
	return c.keepsMems(id) && (was == is || was.Workload.CPUs == is.Workload.CPUs)
}

// keepsMems reports likewise that a workload's memory nodes stay.
func (c *change) keepsMems(id string) bool {
	was, is := c.from.bodies[id], c.to.bodies[id]
	return !c.all && was != nil && !slices.Contains(c.focus, id) && (was == is || was.Workload.Mems == is.Workload.Mems)
}

// follows reports whether a workload only follows a change of others, while the books
// are kept in memory: its CPUs are taken from there.
func (c *change) follows(id string) bool {
	return c.kept && !c.all && c.from.bodies[id] != nil && !slices.Contains(c.focus, id)
}

// disturbs reports whether groups that are not Berth's may have to be kept off
// other CPUs than before.
func (c *change) disturbs() bool {
	return c.all || c.from.state.Owned() != c.to.state.Owned() || given(c.from, c.to) || c.parts()
}

// parts reports whether a group that is to be placed may lie within a confined one,
// whose other children are to be confined instead.
func (c *change) parts() bool {
	return len(c.confine) > 0 && !c.to.state.Owned().IsEmpty() && given(c.to, c.from)
}

// leaves reports whether something may be of no use any more.
func (c *change) leaves() bool {
	if c.all || c.parts() || !c.to.state.Owned().Contains(c.from.state.Owned()) {
		return true
	}
	for id := range c.from.bodies {
		if c.to.bodies[id] == nil {
			return true
		}
	}
	return false
}

// given reports whether a view has a workload in a group that is not Berth's
// and that another view does not have.
func given(v, other view) bool {
	for id, b := range v.bodies {
		if b.Workload.Spec.Group != "" && other.bodies[id] == nil {
			return true
		}
	}
	return false
}

// limited are the workloads whose limits are looked at.
func (c *change) limited() []string {
	if c.all {
		return c.to.ids()
	}
	return c.focus
}

// contested are the CPUs that somebody owns, before or after.
func (c *change) contested() cpuset.Set { return c.from.state.Owned().Union(c.to.state.Owned()) }

// work is what a change comes to.
type work struct {
	plan  kernel.Plan
	masks []mask
}

func (w work) isEmpty() bool { return len(w.plan) == 0 && len(w.masks) == 0 }

// backend tells the kernel who runs where.
type backend interface {
	name() string
	// notes are plain warnings about a workload.
	notes(b *body) []string
	// seat is the file that says on which CPUs a workload runs, "" if none does.
	seat(b *body) string
	// admit fills in where a new workload is to be.
	admit(b *body, others map[string]*body) error
	// exists reports whether there is still something to place.
	exists(b *body) bool
	// present returns the workload's processes; ok is false if its group is gone.
	present(b *body) (pids []int, ok bool, err error)
	// kill kills them.
	kill(ctx context.Context, b *body) error
	// enable is what must be done before a change can be planned.
	enable(c *change) (kernel.Plan, error)
	// plan is what must be done for a change.
	plan(c *change) (work, error)
	// verify looks at what came of it.
	verify(c *change) error
	// remove takes away the place of a workload without processes.
	remove(c *change, b *body) error
	// evacuate moves the processes of a workload out of its place.
	evacuate(c *change, b *body) error
	// giveBack gives back what no workload needs any more.
	giveBack(c *change) error
}
