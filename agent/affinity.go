package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/sched"
)

// affinity is the lesser backend, for a process that may not use control groups:
// it sets the CPU affinity of the workload's processes and their descendants.
type affinity struct {
	root *kernel.Root
	why  string
	get  func(pid int) (sched.State, error)
	set  func(pid int, a sched.Attr) (undo func() error, err error)
}

// newAffinity looks at and changes processes only if the root is theirs.
func newAffinity(root *kernel.Root, why string) *affinity {
	a := &affinity{root: root, why: why, get: sched.Get, set: sched.Set}
	if root.IsLive() {
		return a
	}
	err := &kernel.NotSupportedError{Feature: "affinity", Reason: root.Name() + " is not the live host", Remedy: "use the live host, /"}
	a.get = func(int) (sched.State, error) { return sched.State{}, err }
	a.set = func(int, sched.Attr) (func() error, error) { return nil, err }
	return a
}

// mask is a new affinity for processes.
type mask struct {
	pids []int
	attr sched.Attr
	set  func(pid int, a sched.Attr) (undo func() error, err error)
}

// before is what a process had.
type before struct {
	Affinity cpuset.Set `json:"affinity"`
	Policy   string     `json:"policy,omitempty"`
	Nice     int        `json:"nice"`
	Start    string     `json:"start"` // of the process
}

func (a *affinity) name() string { return "affinity" }

func (a *affinity) notes(b *body) []string {
	notes := []string{"by CPU affinity, which its processes can change themselves: " + a.why}
	l := b.Workload.Spec.Limits
	l.Idle = cgroup.Leave
	if !limitless(l) {
		notes = append(notes, "weight, quota, memory and I/O limits need control groups and are not in force")
	}
	if !b.Workload.Mems.IsEmpty() {
		notes = append(notes, "memory nodes need control groups and are not bound")
	}
	return notes
}

func (a *affinity) admit(b *body, _ map[string]*body) error {
	spec := &b.Workload.Spec
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
	b.Before = &before{Affinity: state.Affinity, Policy: state.Policy.String(), Nice: state.Nice}
	start, _ := startTime(a.root, spec.PID)
	b.Before.Start = start
	return nil
}

// present returns the process and its descendants, also where it has ended and
// left them behind in time to be seen.
func (a *affinity) present(b *body) (pids []int, ok bool, err error) {
	if !a.exists(b) {
		return nil, false, nil
	}
	pids, err = kernel.Descendants(a.root.FS(), b.Workload.Spec.PID)
	return pids, true, err
}

func (a *affinity) seat(*body) string { return "" }

func (a *affinity) exists(b *body) bool {
	start, ok := startTime(a.root, b.Workload.Spec.PID)
	return ok && start == b.Before.Start
}

func (a *affinity) kill(_ context.Context, b *body) error {
	pids, _, err := a.present(b)
	for _, pid := range pids {
		if e := a.root.Signal(pid, syscall.SIGKILL); e != nil && !errors.Is(e, syscall.ESRCH) {
			err = errors.Join(err, fmt.Errorf("kill process %d: %w", pid, e))
		}
	}
	return err
}

func (a *affinity) plan(c *change) (work, error) {
	var w work
	var seats []seat
	var pids [][]int
	for _, id := range c.to.ids() {
		b := c.to.bodies[id]
		tree, ok, err := a.present(b)
		if err != nil {
			return w, err
		}
		if !ok {
			continue
		}
		state, err := a.get(tree[0])
		if err != nil {
			return w, fmt.Errorf("workload %q: %w", id, err)
		}
		want, _ := c.to.state.CPUs(id)
		have := state.Affinity
		if c.from.bodies[id] == nil {
			have = cpuset.Set{} // not one of the node's yet
		}
		seats, pids = append(seats, seat{id, have, want}), append(pids, tree)
		if b.Workload.Spec.Limits.Idle == cgroup.On && slices.Contains(c.limited(), id) && state.Policy != sched.Idle {
			w.masks = append(w.masks, mask{tree, sched.Attr{Policy: sched.Idle}, a.set})
		}
	}
	moves, err := order(seats, c.contested(), c.to.state.Sharable())
	if err != nil {
		return w, err
	}
	for _, m := range moves {
		w.masks = append(w.masks, mask{pids[m.seat], sched.Attr{Affinity: m.cpus}, a.set})
	}
	return w, nil
}

func (a *affinity) enable(*change) (kernel.Plan, error) { return nil, nil }

func (a *affinity) verify(*change) error { return nil }

func (a *affinity) giveBack(*change) error { return nil }

// remove gives processes that are left the affinity and policy that the first one
// had. Without privilege there may be no way out of SCHED_IDLE.
func (a *affinity) remove(_ *change, b *body) error {
	pids, _, err := a.present(b)
	if err != nil {
		return err
	}
	if _, err = (mask{pids, sched.Attr{Affinity: b.Before.Affinity}, a.set}).apply(); err != nil {
		return err
	}
	if b.Workload.Spec.Limits.Idle != cgroup.On || b.Before.Policy != sched.Other.String() {
		return nil
	}
	_, err = mask{pids, sched.Attr{Policy: sched.Other}, a.set}.apply()
	if errors.Is(err, syscall.EPERM) {
		return nil
	}
	return err
}

func (a *affinity) evacuate(c *change, b *body) error { return a.remove(c, b) }

// apply sets a mask on all processes that still live, or on none.
func (m mask) apply() (undo func() error, err error) {
	var undos []func() error
	undo = func() error {
		var errs []error
		for _, u := range slices.Backward(undos) {
			errs = append(errs, u())
		}
		return errors.Join(errs...)
	}
	for _, pid := range m.pids {
		u, err := m.set(pid, m.attr)
		if errors.Is(err, syscall.ESRCH) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("place process %d: %w", pid, err), undo())
		}
		undos = append(undos, u)
	}
	return undo, nil
}

// apply does the work; undo takes it back.
func (n *Node) apply(w work, ledger *kernel.Journal) (undo func() error, err error) {
	undoPlan, err := kernel.Apply(n.root, w.plan, ledger)
	if err != nil {
		return nil, err
	}
	undos := []func() error{undoPlan}
	undo = func() error {
		var errs []error
		for _, u := range slices.Backward(undos) {
			errs = append(errs, u())
		}
		return errors.Join(errs...)
	}
	for _, m := range w.masks {
		u, err := m.apply()
		if err != nil {
			return nil, errors.Join(err, undo())
		}
		undos = append(undos, u)
	}
	return undo, nil
}

func readText(root *kernel.Root, name string) (string, error) {
	text, err := fs.ReadFile(root.FS(), name)
	return strings.TrimSpace(string(text)), err
}
