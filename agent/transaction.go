package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"syscall"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// change runs f as a transaction on the settled books. Books that are kept in memory
// are settled already but for who died since, which takes a look at every workload:
// only if f fails, as it may for them, are they buried and f tried once more.
func (n *Node) change(ctx context.Context, f func(*transaction) error) error {
	var kept bool
	once := func(b *books) error {
		t := &transaction{n: n, books: b, ctx: ctx}
		kept = b.settled
		if err := t.settle(nil); err != nil {
			return err
		}
		return f(t)
	}
	err := n.with(ctx, once)
	if err == nil || !kept || ctx.Err() != nil {
		return err
	}
	released := 0
	if n.with(ctx, func(b *books) error {
		t := &transaction{n: n, books: b, ctx: ctx}
		settleErr := t.settle(t.ids())
		released = t.released
		return settleErr
	}) != nil || released == 0 {
		return err
	}
	return n.with(ctx, once)
}

// transaction is one change to the books and the kernel.
type transaction struct {
	n *Node
	*books
	ctx      context.Context
	released int // workloads that were found dead
}

// began notes that the kernel is about to be told something, once its groups are
// this node's to place.
func (t *transaction) began() error {
	if err := t.n.claim(); err != nil {
		return err
	}
	return t.store.began()
}

// beganTakingAway is began for what only takes away: that goes on where nothing can
// be written, and beside another node.
func (t *transaction) beganTakingAway() error {
	err := t.began()
	var claimed *ClaimedError
	if errors.Is(err, syscall.ENOSPC) || errors.As(err, &claimed) {
		return nil
	}
	return err
}

// settle brings the books up to date: files of no use go, what a killed process
// began is undone or finished, and who is dead is released: of the given workloads,
// or of all if the books have just been read.
func (t *transaction) settle(ids []string) error {
	if !t.settled {
		ids = t.ids()
	}
	if err := t.resume(); err != nil {
		return err
	}
	if err := t.tidy(); err != nil {
		return err
	}
	if err := t.replace(); err != nil {
		return err
	}
	if err := t.bury(ids); err != nil {
		return err
	}
	if damage := t.ledger.Damage(); damage != nil {
		t.n.tell(Failed, "", "", damage.Error())
		return nil
	}
	if t.wasKilled() {
		if err := t.converge(); err != nil {
			return err
		}
	}
	t.settled = true
	return nil
}

// bury releases who is dead of some workloads.
func (t *transaction) bury(ids []string) error {
	for _, id := range ids {
		if t.bodies[id] == nil {
			continue
		}
		why, err := t.dead(id)
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
		t.released++
	}
	return nil
}

// resume installs a batch that a killed process has committed.
func (t *transaction) resume() error {
	b, ok, err := t.pending()
	if err == nil && ok {
		err = t.install(b)
	}
	if err != nil {
		return fmt.Errorf("finish a change: %w", err)
	}
	return nil
}

// tidy removes records of an earlier boot and sets aside those that cannot be
// read.
func (t *transaction) tidy() error {
	for _, name := range t.stale {
		if err := t.remove(name); err != nil {
			return err
		}
		t.n.tell(Dropped, "", name, "of an earlier boot")
	}
	t.stale = nil
	for _, name := range slices.Sorted(maps.Keys(t.bad)) {
		to, err := t.aside(name)
		if err != nil {
			return fmt.Errorf("set aside a record: %w", err)
		}
		t.n.tell(Dropped, "", to, (&CorruptError{to, t.bad[name]}).Error())
	}
	if len(t.bad) > 0 {
		t.bad = map[string]error{}
		return t.began()
	}
	return nil
}

// replace places workloads anew that the machine or the configuration no longer
// has room for where they were.
func (t *transaction) replace() error {
	if t.settled {
		return nil
	}
	for _, id := range t.ids() {
		if _, ok := t.state.Grant(id); ok {
			continue
		}
		b := *t.bodies[id]
		next, err := t.decide(t.state, &b.Workload.Spec)
		to := view{next, t.bodies}
		if err != nil {
			to = view{t.state, without(t.bodies, id)}
			t.n.tell(Dropped, id, "", fmt.Sprintf("its place is gone, and there is no other: %v", err))
		}
		if err := t.record(to); err != nil {
			return err
		}
		if err == nil && to.bodies[id] != nil {
			t.n.tell(Changed, id, "", "its place is gone; it has another")
		}
	}
	return nil
}

// dead says why a workload is to be released though nobody asked; "" if it is
// not.
func (t *transaction) dead(id string) (string, error) {
	b := t.bodies[id]
	owner := b.Workload.Spec.Owner
	switch {
	case !t.n.backend.exists(b):
		return "its control group or process is gone", nil
	case owner.PID == 0 || t.n.alive(owner):
		return "", nil
	}
	pids, _, err := t.n.backend.present(b)
	if err != nil || len(pids) > 0 {
		return "", err
	}
	return fmt.Sprintf("its owner, process %d, has ended", owner.PID), nil
}

// alive reports whether a process is still the one that it was.
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

// decide returns the state with a workload placed.
func (t *transaction) decide(s *place.State, spec *Spec) (*place.State, error) {
	if !spec.CPUs.IsEmpty() {
		return seated(s, &spec.Request, spec.CPUs, spec.Mems)
	}
	offer, err := place.Place(t.n.opt.Policy, s, &spec.Request)
	if err != nil {
		return nil, err
	}
	return s.Commit(bound(offer, spec.Mems))
}

// bound is an offer with the given memory nodes, if any.
func bound(offer place.Offer, mems cpuset.Set) place.Offer {
	if !mems.IsEmpty() && offer.Grant != nil {
		g := *offer.Grant
		g.Mems = mems
		offer.Grant = &g
	}
	return offer
}

// seated returns the state in which a workload has the given CPUs, whatever it
// had before.
func seated(s *place.State, r *place.Request, cpus, mems cpuset.Set) (*place.State, error) {
	if _, ok := s.Grant(r.ID); ok {
		var err error
		if s, err = s.Release(r.ID); err != nil {
			return nil, err
		}
	}
	g := &place.Grant{ID: r.ID, Request: *r, Mems: mems}
	nodes := mems
	if nodes.IsEmpty() {
		nodes = s.Topology().NodesOf(cpus)
	}
	if len(r.Memory) > 0 {
		var err error
		if g.Mems, g.Memory, err = s.FitMemory(nodes, r.Memory); err != nil {
			return nil, err
		}
	}
	if own := r.Mode == place.Exclusive || r.Mode == place.Auto && (r.Class == place.LSE || r.Class == place.LSR); own {
		g.Own, g.Lent = cpus, r.Class == place.LSR
	} else {
		g.Share = place.Share{Within: cpus, Milli: r.Milli}
	}
	if r.Explain {
		g.Why = place.NewWhy(r)
		g.Why.Note("CPUs %s as asked for", cpus)
	}
	offer := s.Offer()
	offer.Grant = g
	return s.Commit(offer)
}

// to returns the change to a view.
func (t *transaction) to(v view, focus ...string) *change {
	return &change{
		from: t.view, to: v.refreshed(), focus: focus, kept: t.n.kept != nil && t.settled, ledger: t.ledger,
		confine: t.n.opt.Confine, yielded: t.n.drift.isYielded,
	}
}

// carry tells the kernel and then makes the change the truth. On an error
// everything is as it was.
func (t *transaction) carry(c *change) error {
	b, err := t.batch(c.to, c.focus...)
	if err == nil && b.takesAway() && len(c.focus) == 0 {
		err = t.beganTakingAway()
	} else if err == nil {
		err = t.began()
	}
	if err == nil {
		err = t.prepare(b)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("note a change: %w", err), t.abandon())
	}
	undo, err := t.enforce(c)
	if err == nil {
		if err = t.commit(b); err != nil {
			err = errors.Join(err, undo())
		}
	}
	if err != nil {
		return errors.Join(err, t.abandon())
	}
	t.finish(c, b)
	return nil
}

// enforce tells the kernel. What has to be enabled comes first, since only then
// there is something to look at.
func (t *transaction) enforce(c *change) (undo func() error, err error) {
	enable, err := t.n.backend.enable(c)
	if err != nil {
		return nil, err
	}
	disable, err := kernel.Apply(t.n.root, enable, t.ledger)
	if err != nil {
		return nil, err
	}
	w, err := t.n.backend.plan(c)
	if err != nil {
		return nil, errors.Join(err, disable())
	}
	restore, err := t.n.apply(w, t.ledger)
	if err != nil {
		return nil, errors.Join(err, disable())
	}
	undo = func() error { return errors.Join(restore(), disable()) }
	if err := t.n.backend.verify(c); err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// finish does what is left once a change is the truth. What fails now is done
// by the next transaction, which finds that this one has not ended.
func (t *transaction) finish(c *change, b batch) {
	t.view = c.to
	err := t.install(b)
	if err == nil && c.leaves() {
		err = t.n.backend.giveBack(c)
	}
	if err == nil {
		err = t.ended()
	}
	if err != nil {
		t.n.tell(Failed, "", "", err.Error())
	}
}

// record makes a view the truth without telling the kernel.
func (t *transaction) record(v view) error {
	v = v.refreshed()
	b, err := t.batch(v)
	if err == nil && b.takesAway() {
		err = t.beganTakingAway()
	} else if err == nil {
		err = t.began()
	}
	if err == nil {
		err = t.prepare(b)
	}
	if err == nil {
		err = t.commit(b)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("note a change: %w", err), t.abandon())
	}
	t.view = v
	return t.install(b)
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
	if err := t.beganTakingAway(); err != nil {
		return fmt.Errorf("note a change: %w", err)
	}
	c := t.to(view{state, without(t.bodies, id)})
	if err := t.n.backend.remove(c, t.bodies[id]); err != nil {
		return errors.Join(err, t.carry(t.to(t.view, id)))
	}
	if err := t.record(c.to); err != nil {
		return err
	}
	t.n.tell(Released, id, "", why)
	if err := t.carry(c); err != nil {
		t.n.tell(Failed, "", "", err.Error())
	}
	return nil
}

// converge drives the kernel to the books.
func (t *transaction) converge() error {
	c := t.to(t.view, t.ids()...)
	c.all = true
	return t.carry(c)
}
