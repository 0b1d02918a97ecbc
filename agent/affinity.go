package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"slices"
	"syscall"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/sched"
)

// affinity enforces less, for a process that may not use control groups: it sets the
// CPU affinity of the workload's processes and their descendants.
type affinity struct {
	root *kernel.Root
	why  string
	get  func(pid int) (sched.State, error)
	set  func(pid int, a sched.Attr) (undo func() error, err error)
}

// newAffinity looks at processes only if the root, or what it is a read-only view of, is theirs:
// looks. It changes them only through the root itself.
func newAffinity(root *kernel.Root, why string, looks bool) *affinity {
	a := &affinity{root: root, why: why, get: sched.Get, set: sched.Set}
	if root.IsLive() {
		return a
	}
	err := &kernel.NotSupportedError{Feature: "affinity", Reason: root.Name() + " is not the live host", Remedy: "use the live host, /"}
	if !looks {
		a.get = func(int) (sched.State, error) { return sched.State{}, err }
	}
	a.set = func(int, sched.Attr) (func() error, error) { return nil, err }
	return a
}

// mask is what some processes are to have.
type mask struct {
	pids []int
	attr sched.Attr
}

// Before is what a process had before it was placed.
type Before struct {
	Affinity cpuset.Set `json:"affinity"`
	Policy   string     `json:"policy,omitempty"`
	Nice     int        `json:"nice"`
	Start    string     `json:"start"` // of the process
}

// Close implements Enforcer.
func (*affinity) Close() error { return nil }

// Observe implements Enforcer. The only setting is whether the workload is idle: by
// scheduling policy.
func (a *affinity) Observe(w *Workload) Observed {
	return Observed{There: a.exists(w), Limits: cgroup.Limits{Idle: w.Spec.Settings().Idle}, Notes: a.notes(w)}
}

func (w *Workload) idle() bool { return w.Spec.Settings().Idle == cgroup.On }

func (a *affinity) notes(w *Workload) []string {
	notes := []string{"by CPU affinity, which its processes can change themselves: " + a.why}
	l := w.Spec.Limits
	l.Idle = cgroup.Leave
	if !limitless(l) {
		notes = append(notes, "weight, quota, memory and I/O limits need control groups and are not in force")
	}
	if !w.Mems.IsEmpty() {
		notes = append(notes, "memory nodes need control groups and are not bound")
	}
	return notes
}

// Locate implements Enforcer.
func (a *affinity) Locate(w *Workload, _ iter.Seq[*Workload]) error {
	spec := &w.Spec
	if spec.Group != "" {
		return &kernel.NotSupportedError{Feature: "placing a control group", Reason: a.why, Remedy: "run as root, or in a delegated group"}
	}
	if spec.PID == 0 {
		return &kernel.NotSupportedError{Feature: "placing without a process", Reason: a.why, Remedy: "name a process to place"}
	}
	state, err := a.get(spec.PID)
	if err != nil {
		return err
	}
	w.Before = &Before{Affinity: state.Affinity, Policy: state.Policy.String(), Nice: state.Nice}
	w.Before.Start, _ = startTime(a.root, spec.PID)
	return nil
}

// Processes implements Supervisor: the process and its descendants, also where it has
// ended and left them behind in time to be seen.
func (a *affinity) Processes(w *Workload) (pids []int, ok bool, err error) {
	if !a.exists(w) {
		return nil, false, nil
	}
	pids, err = kernel.Descendants(a.root.FS(), w.Spec.PID)
	return pids, true, err
}

func (a *affinity) exists(w *Workload) bool {
	start, ok := startTime(a.root, w.Spec.PID)
	return ok && start == w.Before.Start
}

// Kill implements Supervisor. It also reaches those whose parents have ended already,
// which are below the workload's process no more.
func (a *affinity) Kill(ctx context.Context, w *Workload) error {
	found := map[int]string{} // by number, when they started
	return a.root.Kill(ctx, func() ([]int, error) {
		if a.exists(w) {
			found[w.Spec.PID] = w.Before.Start
		}
		for pid, start := range found {
			if now, ok := startTime(a.root, pid); !ok || now != start {
				delete(found, pid)
			}
		}
		if len(found) == 0 {
			return nil, nil
		}
		pids, err := kernel.Descendants(a.root.FS(), slices.Sorted(maps.Keys(found))...)
		if err != nil {
			return nil, err
		}
		for _, pid := range pids {
			if start, ok := startTime(a.root, pid); ok {
				found[pid] = start
			}
		}
		return slices.Sorted(maps.Keys(found)), nil
	})
}

// Enforce implements Enforcer.
func (a *affinity) Enforce(_ context.Context, c *Transition) (done Enforced, err error) {
	masks, err := a.plan(c)
	if err != nil {
		return done, err
	}
	var undos []func() error
	for _, m := range masks {
		undo, err := a.apply(m)
		if err != nil {
			return done, errors.Join(err, join(undos...)())
		}
		undos = append(undos, undo)
	}
	return Enforced{Undo: join(undos...)}, nil
}

// Plan implements Planner: no file is written.
func (a *affinity) Plan(c *Transition) (_ kernel.Plan, needed bool, err error) {
	masks, err := a.plan(c)
	return nil, len(masks) > 0, err
}

func (a *affinity) plan(c *Transition) (masks []mask, err error) {
	var assignments []cgroup.Assignment
	var pids [][]int
	for _, id := range c.Present() {
		w := c.After(id)
		tree, ok, err := a.Processes(w)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		state, err := a.get(tree[0])
		if err != nil {
			return nil, fmt.Errorf("workload %q: %w", id, err)
		}
		have, was := state.Affinity, c.Before(id)
		if was == nil {
			have = cpuset.Set{} // not one of the node's yet
		}
		assignments, pids = append(assignments, cgroup.Assignment{Name: id, Have: have, Want: w.CPUs}), append(pids, tree)
		if w.idle() && slices.Contains(c.Limited(), id) && state.Policy != sched.Idle {
			masks = append(masks, mask{tree, sched.Attr{Policy: sched.Idle}})
		}
		if was != nil && was.idle() && !w.idle() && w.Before.Policy == sched.Other.String() && state.Policy == sched.Idle {
			masks = append(masks, mask{tree, sched.Attr{Policy: sched.Other}})
		}
	}
	moves, err := cgroup.Order(assignments, c.Contested(), c.Shared())
	if err != nil {
		return nil, err
	}
	for _, m := range moves {
		masks = append(masks, mask{pids[m.Assignment], sched.Attr{Affinity: m.CPUs}})
	}
	return masks, nil
}

// Release implements Enforcer. Processes that are left get the affinity and policy that
// the first one had. Without privilege there may be no way out of SCHED_IDLE.
func (a *affinity) Release(w *Workload, _ bool, _ *kernel.UndoLog) error {
	pids, _, err := a.Processes(w)
	if err != nil {
		return err
	}
	if _, err = a.apply(mask{pids, sched.Attr{Affinity: w.Before.Affinity}}); err != nil {
		return err
	}
	if !w.idle() || w.Before.Policy != sched.Other.String() {
		return nil
	}
	_, err = a.apply(mask{pids, sched.Attr{Policy: sched.Other}})
	if errors.Is(err, syscall.EPERM) {
		return nil
	}
	return err
}

// apply sets a mask on all processes that still live, or on none.
func (a *affinity) apply(m mask) (undo func() error, err error) {
	var undos []func() error
	for _, pid := range m.pids {
		u, err := a.set(pid, m.attr)
		if errors.Is(err, syscall.ESRCH) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("place process %d: %w", pid, err), join(undos...)())
		}
		undos = append(undos, u)
	}
	return join(undos...), nil
}

func readSet(root *kernel.Root, name string) (cpuset.Set, error) {
	text, err := kernel.ReadText(root.FS(), name)
	if err != nil {
		return cpuset.Set{}, err
	}
	return cpuset.Parse(text)
}
