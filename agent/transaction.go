package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"syscall"
)

// change runs f as a transaction on the recovered records. Records that are kept in memory
// are recovered already, but for workloads whose processes have ended since: to find those
// takes a look at every workload. So the node reaps them only if f fails, as it may for
// them, and then tries f once more.
func (n *Node) change(ctx context.Context, f func(*transaction) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.transact(ctx, f); err != nil {
		return err
	}
	return n.end(nil)
}

// transact is change without the end. The caller holds mu and, unless there is an error,
// calls end.
func (n *Node) transact(ctx context.Context, f func(*transaction) error) error {
	var failed error // of f, at the first try
	for {
		b, err := n.begin(ctx)
		if err != nil {
			return cmp.Or(failed, err)
		}
		t, kept := &transaction{n: n, nodeState: b, ctx: ctx}, b.recovered
		var dead []string // maybe
		if failed != nil {
			dead = t.ids()
		}
		err = t.recover(dead)
		switch {
		case failed != nil && (err != nil || len(t.released) == 0):
			err = failed
		case err == nil:
			err = f(t)
		}
		if err == nil {
			return nil
		}
		err = n.end(err)
		if failed != nil || !kept || ctx.Err() != nil {
			return err
		}
		failed = err
	}
}

type transaction struct {
	n *Node
	*nodeState
	ctx      context.Context
	released []string // workloads that were found dead
}

// markDirty notes that the kernel is about to be told something, once its groups are
// this node's to place.
func (t *transaction) markDirty() error {
	if err := t.n.takeOwnership(); err != nil {
		return err
	}
	return t.store.markDirty()
}

// markDirtyIfPossible is markDirty for what only takes away: that goes on where nothing can
// be written, and beside another node.
func (t *transaction) markDirtyIfPossible() error {
	err := t.markDirty()
	var owned *OwnedError
	if errors.Is(err, syscall.ENOSPC) || errors.As(err, &owned) {
		return nil
	}
	return err
}

// recover brings the records up to date. It removes files of no use, finishes or undoes
// what a killed process began, and reaps: the given workloads, or all if the records have
// just been read.
func (t *transaction) recover(ids []string) error {
	if !t.recovered {
		ids = t.ids()
		if err := t.recoverGuard(); err != nil {
			return err
		}
	}
	if err := t.resume(); err != nil {
		return err
	}
	if err := t.storeSettings(); err != nil {
		return err
	}
	if err := t.tidy(); err != nil {
		return err
	}
	if t.corrupt() == nil {
		if err := t.replace(); err != nil {
			return err
		}
	}
	if err := t.reap(ids); err != nil {
		return err
	}
	if damage := t.log.Damage(); damage != nil {
		t.n.tell(Failed, "", "", damage.Error())
		return nil
	}
	begins := !t.recovered && t.n.opt.Keep && t.n.opt.Classes.Power.Pools()
	if (t.isDirty() || begins) && t.corrupt() == nil {
		profiles, text, _ := t.n.rescheduled()
		if err := t.converge(); err != nil {
			return err
		}
		if begins {
			t.n.inForce(profiles, text)
		}
	}
	t.recovered = true
	return nil
}

// resume installs a batch that a killed process has committed.
func (t *transaction) resume() error {
	if slices.Contains(t.stale, batchFile) {
		return t.remove(batchFile)
	}
	if t.cut == nil {
		return nil
	}
	if err := t.install(*t.cut); err != nil {
		return fmt.Errorf("finish a change: %w", err)
	}
	return nil
}

// tidy removes records of an earlier boot, and says which cannot be read.
func (t *transaction) tidy() error {
	for _, name := range t.stale {
		if err := t.remove(name); err != nil {
			return err
		}
		t.n.tell(Dropped, "", name, "of an earlier boot")
	}
	t.stale = nil
	if t.recovered {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(t.bad)) {
		t.n.tell(Failed, "", "", (&CorruptError{t.path(name), t.bad[name]}).Error())
	}
	return nil
}

// replace places workloads anew that the machine or the configuration no longer
// has room for where they were.
func (t *transaction) replace() error {
	if t.recovered {
		return nil
	}
	for _, id := range t.ids() {
		if _, ok := t.state.Grant(id); ok {
			continue
		}
		next, err := t.decide(t.state, &t.records[id].Workload.Spec)
		to, kind, text := snapshot{next, t.records}, Changed, "its place is gone; it has another"
		if err != nil {
			to, kind, text = snapshot{t.state, without(t.records, id)}, Dropped, fmt.Sprintf("its place is gone, and there is no other: %v", err)
		}
		if err := t.save(to); err != nil {
			return err
		}
		t.n.tell(kind, id, "", text)
	}
	return nil
}

func (t *transaction) to(v snapshot, focus ...string) *Transition {
	since := t.n.refused.now()
	c := &Transition{
		Log: t.log, from: t.snapshot, to: v.refreshed(), focus: focus, kept: t.n.kept != nil && t.recovered,
		away: func(err error) bool { return t.n.away(err, since) }, answered: t.n.refused.asking.Done,
	}
	c.yield = func(dir string, err error) {
		if !c.away(err) {
			t.yield(dir, err)
		}
	}
	c.waits = func(file string) bool { return t.n.waits(file, c.All) }
	c.yielded = func(file string) bool {
		return t.n.drift.Yielded(file) || c.waits(file) && !c.asksIn(path.Dir(file), t.n.site.Dirs)
	}
	return c
}

// yield counts that the CPUs of a group that is not Berth's could not be set.
func (t *transaction) yield(dir string, err error) {
	if _, yielded := t.n.foundChanged(dir + "/" + cpusFile); yielded {
		text := err.Error()
		t.n.tell(Failed, "", "/"+dir, "its CPUs cannot be set, and it is left as it is: "+text[:min(len(text), 2*mostShown)])
	}
}

// commit has the Enforcer carry out a change and then makes it the truth. After an error
// everything is as it was.
func (t *transaction) commit(to *Transition) error {
	c := &Change{t: t, to: to}
	if err := c.enforce(); err != nil {
		return err
	}
	return c.establish()
}

// note writes down what is about to be done.
func (t *transaction) note(c *Transition) (batch, error) {
	if err := t.corrupt(); err != nil {
		return batch{}, err
	}
	return t.noteRecords(c.to, c.focus...)
}

func (t *transaction) noteRecords(to snapshot, focus ...string) (batch, error) {
	b, err := t.batch(to, focus...)
	if err == nil && b.takesAway() && len(focus) == 0 {
		err = t.markDirtyIfPossible()
	} else if err == nil {
		err = t.markDirty()
	}
	if err == nil {
		err = t.prepare(b)
	}
	if err != nil {
		return b, errors.Join(fmt.Errorf("note a change: %w", err), t.abandon())
	}
	return b, nil
}

// enforce has a change carried out. A process that was looked at may have ended, its
// number have passed to another one, and that one have been moved: then it is undone.
func (t *transaction) enforce(c *Transition) (Enforced, error) {
	done, err := t.n.enforcer.Enforce(t.ctx, c)
	if err == nil {
		done, err = t.n.classed(c, done)
	}
	i := slices.IndexFunc(c.processes, func(p Owner) bool { return !t.n.alive(p) })
	if i < 0 || err != nil && !errors.Is(err, syscall.ESRCH) {
		return done, err
	}
	missing := &MissingError{fmt.Sprintf("process %d", c.processes[i].PID)}
	if err != nil {
		return done, missing
	}
	return done, errors.Join(missing, call(done.Undo))
}

// save makes a snapshot the truth without telling the kernel.
func (t *transaction) save(v snapshot) error {
	v = v.refreshed()
	b, err := t.noteRecords(v)
	if err != nil {
		return err
	}
	if err := t.commitBatch(b); err != nil {
		return errors.Join(fmt.Errorf("note a change: %w", err), t.abandon())
	}
	t.snapshot = v
	return t.install(b)
}

func (t *transaction) converge() error { return t.commit(t.everything()) }

// everything is the change that looks at everything and is to leave it as it is.
func (t *transaction) everything() *Transition {
	c := t.to(t.snapshot, t.ids()...)
	c.All = true
	return c
}
