package agent

import (
	"context"
	"errors"
	"iter"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// Enforcer carries out what a Node decides. The Node calls one method at a time, under
// its lock.
type Enforcer interface {
	// Locate fills in where a new workload is to be: Group and Dirs. A group or process
	// that is not there is a *MissingError, a group that may not be placed a *GroupError.
	Locate(w *Workload, others iter.Seq[*Workload]) error
	// Enforce carries out the updates of a transition, all of them or, after an error, none.
	Enforce(ctx context.Context, c *Transition) (Enforced, error)
	// Observe tells what there is of a workload, and what it has on this host.
	Observe(w *Workload) Observed
	// Release ends what a workload had. One whose processes are still there loses them, to
	// where they came from, if they are to leave; else that is an error.
	Release(w *Workload, leave bool, log *kernel.UndoLog) error
	// Close lets go of what the Enforcer has open. Everything stays in force.
	Close() error
}

// Enforced is what an Enforcer has done.
type Enforced struct {
	// Undo takes it back; nil if there is nothing to take back.
	Undo func() error
	// Finish gives back what no workload needs any more. It is called once the transition
	// is on record; nil if there is no need.
	Finish func() error
}

func call(f func() error) error {
	if f == nil {
		return nil
	}
	return f()
}

// Observed is what an Enforcer sees of a workload.
type Observed struct {
	// There is true if there is something to place.
	There bool
	// Limits are the settings in force, Lack says what of the class this host has not.
	Limits cgroup.Limits
	Lack   string
	// Notes are plain warnings.
	Notes []string
	// CPUFile is the file that says on which CPUs the workload runs, "" if none does.
	CPUFile string
}

// Planner is an Enforcer that knows in advance what it would write.
type Planner interface {
	// Plan returns the writes of a transition; needed is false if nothing is to be done.
	Plan(c *Transition) (plan kernel.Plan, needed bool, err error)
}

// Supervisor is an Enforcer that knows the processes of workloads.
type Supervisor interface {
	// Processes returns a workload's processes in rising order; ok is false if there is
	// nothing of it.
	Processes(w *Workload) (pids []int, ok bool, err error)
	// Kill ends them, and waits for that: see kernel.Root.Kill.
	Kill(ctx context.Context, w *Workload) error
}

// Site is where an Enforcer works.
type Site struct {
	// Backend names how: "cgroup v2", "cgroup v1", "hybrid" or "affinity".
	Backend string
	// CPUs are those that there are to give away; empty is all of the machine.
	CPUs cpuset.Set
	// Dirs are the directories, relative to the kernel.Root, that control groups are named
	// from: one in each hierarchy, first the one where CPUs are given. Without control
	// groups there are none.
	Dirs []string
	// Top is where the hierarchy of the first of Dirs is mounted.
	Top string
	// Around are the control groups that something else makes for workloads, and in which they
	// get what their I/O class has; nil with an Enforcer that does so itself.
	Around *Surroundings
}

// openEnforcer uses control groups where this process may, else affinity.
func (n *Node) openEnforcer() (Enforcer, Site, error) {
	if n.opt.Enforcer != nil {
		e, site, err := n.opt.Enforcer(n.root)
		if site.Around != nil {
			site.Around.g.io, site.Around.g.without, site.Around.g.refused = n.ioClass, n.withoutLimit, &n.refused
		}
		return e, site, err
	}
	byAffinity := func(why string) (Enforcer, Site, error) {
		return newAffinity(n.root, why, n.looks), Site{Backend: "affinity"}, nil
	}
	if n.opt.Affinity {
		return byAffinity("as asked for")
	}
	host, err := cgroup.Detect(n.root)
	if err != nil {
		return nil, Site{}, err
	}
	g, err := openGroups(n.root, host)
	if errors.Is(err, kernel.ErrNotSupported) {
		return byAffinity(err.Error())
	}
	if err != nil {
		return nil, Site{}, err
	}
	g.confine, g.within, g.protect = n.opt.Confine, n.opt.Within, n.opt.Protected
	g.io, g.without, g.refused = n.ioClass, n.withoutLimit, &n.refused
	return g, g.site(), nil
}

// join undoes what several functions undo, the last first, whatever fails.
func join(undos ...func() error) func() error {
	return func() error {
		var errs []error
		for i := len(undos) - 1; i >= 0; i-- {
			errs = append(errs, call(undos[i]))
		}
		return errors.Join(errs...)
	}
}
