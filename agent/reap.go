package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"syscall"

	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// reap releases those of some workloads that are dead, and places reserved ones whose group
// has come.
func (t *transaction) reap(ids []string) error {
	var come []string
	for _, id := range ids {
		if t.records[id] == nil {
			continue
		}
		t.killAgain(id)
		there := t.n.enforcer.Observe(t.records[id].Workload).There
		if there && t.records[id].Workload.State == Reserved {
			come = append(come, id)
			continue
		}
		why, err := t.dead(id, there)
		if err != nil {
			return err
		}
		if why == "" {
			continue
		}
		// One that cannot be released does not hold up the others.
		if err := t.release(id, why); err != nil {
			t.n.tell(Failed, id, "", err.Error())
			continue
		}
		t.released = append(t.released, id)
	}
	return t.arrive(come)
}

// arrive places reserved workloads whose group has come: together, as one may have another's CPUs,
// and else one by one, as one that is refused does not hold up the others.
func (t *transaction) arrive(ids []string) error {
	if len(ids) == 0 || t.corrupt() != nil {
		return nil
	}
	v := snapshot{t.state, maps.Clone(t.records)}
	for _, id := range ids {
		v.change(id, func(w *Workload) { w.State = Running })
	}
	if err := t.commit(t.to(v, ids...)); err != nil && len(ids) > 1 {
		for _, id := range ids {
			if err := t.arrive([]string{id}); err != nil {
				return err
			}
		}
		return nil
	} else if err != nil {
		t.n.tellOnce(ids[0], err.Error()) // it stays reserved, and is tried again
		return nil
	}
	for _, id := range ids {
		t.n.tell(Changed, id, "", "its group has come; CPUs "+t.records[id].Workload.CPUs.String())
	}
	return nil
}

// dead says why a workload is to be released though nobody asked; "" if it is
// not.
func (t *transaction) dead(id string, there bool) (string, error) {
	b := t.records[id]
	owner := b.Workload.Spec.Owner
	switch {
	case b.format > 0:
		return "", nil // that is for the version that wrote it
	case b.Workload.State == Reserved && (owner.PID == 0 || t.n.alive(owner)):
		return "", nil // its group is yet to come
	case !there:
		return "its control group or process is gone", nil
	case b.Workload.Releasing:
		pids, err := t.occupants(b)
		if err != nil || len(pids) > 0 {
			return "", err
		}
		return "as asked for", nil
	case owner.PID == 0 || t.n.alive(owner):
		return "", nil
	}
	pids, err := t.n.processes(b.Workload)
	if err != nil || len(pids) > 0 {
		return "", err
	}
	return fmt.Sprintf("its owner, process %d, has ended", owner.PID), nil
}

func (n *Node) alive(o Owner) bool {
	start, ok := startTime(n.root, o.PID)
	return ok && start == o.Start
}

// startTime is when a process started. One that has ended has none, also while
// nobody has waited for it yet.
func startTime(root *kernel.Root, pid int) (string, bool) {
	p, err := kernel.ReadProcess(root.FS(), strconv.Itoa(pid))
	if err != nil || p.Ended() {
		return "", false
	}
	return p.Start, true
}

// occupants are the processes that keep a workload from being released. In a group that
// Berth did not make there are none.
func (t *transaction) occupants(b *record) ([]int, error) {
	if b.Workload.Spec.Group != "" {
		return nil, nil
	}
	return t.n.processes(b.Workload)
}

// processes are those of a workload, as far as the Enforcer knows them.
func (n *Node) processes(w *Workload) (pids []int, err error) {
	if s, ok := n.enforcer.(Supervisor); ok {
		pids, _, err = s.Processes(w)
	}
	return pids, err
}

// markReleasing notes that a workload's processes are being killed. Where nothing can be
// written that is not known after a restart, and the release goes on.
func (t *transaction) markReleasing(id string) error {
	if t.records[id].Workload.Releasing {
		return nil
	}
	was := t.isDirty()
	next := snapshot{t.state, maps.Clone(t.records)}
	next.change(id, func(w *Workload) { w.Releasing = true })
	err := t.save(next)
	if errors.Is(err, syscall.ENOSPC) {
		err = nil
	}
	if err == nil && !was {
		err = t.markClean()
	}
	return err
}

// killAgain sends SIGKILL to the processes of a workload that is being released: the process
// that released it may have been killed before, or have given up waiting.
func (t *transaction) killAgain(id string) {
	b := t.records[id]
	if !b.Workload.Releasing {
		return
	}
	ctx, cancel := context.WithCancel(t.ctx)
	cancel() // do not wait
	s, ok := t.n.enforcer.(Supervisor)
	if !ok {
		return
	}
	err := s.Kill(ctx, b.Workload)
	var alive *kernel.AliveError
	if err != nil && !errors.As(err, &alive) {
		t.n.tell(Failed, id, "", err.Error())
	}
}

// release ends a workload that has no processes. Once its group is gone it is
// released, whatever follows.
func (t *transaction) release(id, why string) error {
	offer, err := place.Release(t.n.opt.Policy, t.state, id)
	if err != nil {
		return err
	}
	state, err := t.state.Commit(offer)
	if err != nil {
		return err
	}
	if err := t.markDirtyIfPossible(); err != nil {
		return fmt.Errorf("note a change: %w", err)
	}
	c := t.to(snapshot{state, without(t.records, id)})
	if err := t.n.enforcer.Release(t.records[id].Workload, false, t.log); err != nil {
		return errors.Join(err, t.commit(t.to(t.snapshot, id)))
	}
	if err := t.save(c.to); err != nil {
		return err
	}
	t.n.tell(Released, id, "", why)
	if err := t.commit(c); err != nil {
		t.n.tell(Failed, "", "", err.Error())
	}
	return nil
}
