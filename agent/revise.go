package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// Revision is what a node that is kept is to be like from now on.
type Revision struct {
	// Options are as of Open.
	Options Options
	// Release are the ids of workloads that are not wanted any more. Specs are those that
	// are: new ones are placed in this order, others resized. The rest stays.
	Release []string
	Specs   []Spec
	// Replace gives all workloads places as if none had one: exclusive CPUs first, then by
	// age. Else only those move that have to.
	Replace bool
}

// EffectKind says what a revision comes to for a workload.
type EffectKind string

// The kinds of effects.
const (
	EffectPlaced   EffectKind = "placed"   // it gets a place
	EffectMoved    EffectKind = "moved"    // other CPUs or memory nodes
	EffectChanged  EffectKind = "changed"  // the same CPUs and memory nodes, but otherwise
	EffectReleased EffectKind = "released" // it is not wanted any more
	EffectLost     EffectKind = "lost"     // it is wanted, and there is no place for it any more
	EffectRefused  EffectKind = "refused"  // it is not given what it asks for, and stays as it was
)

// Effect is what a revision comes to for one workload.
type Effect struct {
	ID   string     `json:"id"`
	Kind EffectKind `json:"kind"`
	// Was is what it has before, Is what it has then; absent is no place.
	Was *Holding `json:"was,omitempty"`
	Is  *Holding `json:"is,omitempty"`
	// Reason says why it is lost or refused.
	Reason string `json:"reason,omitempty"`

	follows bool // it only follows others in the shared pool
	evicted bool // its former place does not fit any more
	err     error
}

// Holding is what a workload has.
type Holding struct {
	Class place.Class `json:"class"`
	// CPUs are those that it may run on, Own those of its own, Mems its memory nodes; empty
	// is any.
	CPUs cpuset.Set `json:"cpus"`
	Own  cpuset.Set `json:"own,omitzero"`
	Mems cpuset.Set `json:"mems,omitzero"`
	// Limits are the settings in force, those of its class included.
	Limits cgroup.Limits `json:"limits,omitzero"`
}

func holdingOf(w *Workload) *Holding {
	h := &Holding{Class: w.Spec.Request.Class, CPUs: w.CPUs, Mems: w.Mems, Limits: w.Limits}
	if w.Grant != nil {
		h.Own = w.Grant.Own
	}
	return h
}

// revising is a revision that is decided.
type revising struct {
	next    *Node
	t       *transaction
	to      *Transition
	effects []Effect
}

// PreviewRevision says what Revise would come to, for each workload that it concerns by
// rising id, and what would be written. Nothing is changed.
func (n *Node) PreviewRevision(ctx context.Context, r Revision) (effects []Effect, plan kernel.Plan, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.transact(ctx, func(*transaction) error { return nil }); err != nil {
		return nil, nil, err
	}
	d, err := n.revised(ctx, &r)
	if err == nil {
		effects = d.effects
		plan, _, err = d.next.writes(d.to)
		d.next.held = nil // it is n's
		err = errors.Join(err, d.next.Close())
	}
	return effects, plan, n.end(err)
}

// Revise has another Node take the place of n, which keeps its locks: all that changes by
// it changes in one transaction. Before the records say so, and once the kernel is told,
// commit is called (nil is nothing): with its error, or after any other, everything and n
// itself are as before, and undo is called, if commit returned it.
func (n *Node) Revise(ctx context.Context, r Revision, commit func() (undo func() error, err error)) (next *Node, effects []Effect, err error) {
	const most = 3 // of groups that vanish while they are looked at
	for try := 1; ; try++ {
		next, effects, err = n.revise(ctx, &r, commit)
		if err == nil || !kernel.Absent(err) || try == most {
			return next, effects, err
		}
	}
}

func (n *Node) revise(ctx context.Context, r *Revision, commit func() (undo func() error, err error)) (*Node, []Effect, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kept == nil || !r.Options.Keep {
		return nil, nil, fmt.Errorf("revise node %s: only one that is kept, for one that is to be kept", n.opt.Dir)
	}
	asked := n.opt.Now()
	if err := n.transact(ctx, func(t *transaction) error { return t.reap(t.ids()) }); err != nil {
		return nil, nil, err
	}
	d, err := n.revised(ctx, r)
	if err != nil {
		return nil, nil, n.end(err)
	}
	if err := d.takeOver(n, commit, asked); err != nil {
		n.held.changed = true // all is read anew, and what is left of this is undone
		return nil, nil, errors.Join(n.end(err), d.next.Close())
	}
	return d.next, d.effects, nil
}

// takeOver makes the revision the truth, and next the keeper of n's locks and records; after
// an error n still is. What it leaves to installLater waits until it is over.
func (d *revising) takeOver(n *Node, commit func() (undo func() error, err error), asked time.Time) error {
	next := d.next
	next.mu.Lock()
	defer next.mu.Unlock()
	next.agentLock, next.kept = n.agentLock, n.kept
	if err := d.carryOut(commit); err != nil {
		next.held, next.agentLock, next.kept = nil, nil, nil
		return err
	}
	d.tell(next.opt.Now().Sub(asked))
	if err := errors.Join(d.t.storeSettings(), next.end(nil)); err != nil {
		next.tell(Failed, "", "", err.Error())
	}
	n.agentLock, n.kept, n.held = nil, nil, nil
	return nil
}

func (d *revising) carryOut(commit func() (undo func() error, err error)) error {
	c := &Change{t: d.t, to: d.to}
	if err := c.enforce(); err != nil {
		return err
	}
	var undo func() error
	var err error
	if commit != nil {
		if undo, err = commit(); err != nil {
			return errors.Join(err, call(c.done.Undo), d.t.abandon())
		}
	}
	if err := c.establish(); err != nil {
		return errors.Join(err, call(undo))
	}
	return nil
}

// revised decides on a revision. The caller holds mu, and n has the records.
func (n *Node) revised(ctx context.Context, r *Revision) (*revising, error) {
	for i := range r.Specs {
		if err := r.Specs[i].Validate(); err != nil {
			return nil, err
		}
	}
	next, err := newNode(r.Options)
	if err != nil {
		return nil, fmt.Errorf("open node: %w", err)
	}
	next.touch = n.touch
	next.scaling = n.scaling // of pools whose profile stays; Scale forgets the others
	b := *n.held
	next.hold(&b)
	t := &transaction{n: next, nodeState: &b, ctx: ctx}
	if next.opt.Dir != n.opt.Dir {
		err = fmt.Errorf("open node %s anew: its state directory is %s", n.opt.Dir, next.opt.Dir)
	}
	d := &revising{next: next, t: t}
	if err = cmp.Or(err, t.corrupt()); err == nil {
		err = d.decide(n, r)
	}
	if err != nil {
		next.held = nil
		return nil, errors.Join(err, next.Close())
	}
	return d, nil
}

func (d *revising) decide(n *Node, r *Revision) error {
	t := d.t
	a := t.adding()
	var err error
	if a.state, err = d.start(r.Replace); err != nil {
		return err
	}
	for _, id := range r.Release {
		if err := a.drop(id); err != nil {
			return err
		}
	}
	evicted, err := a.evicted(r.Replace)
	if err != nil {
		return err
	}
	refused := a.placeAll(r.Specs, evicted)
	to := a.snapshot.refreshed()
	for id, is := range to.records {
		if was := t.records[id]; was != nil && is.format == 0 && is.Workload.Since.Equal(was.Workload.Since) {
			if late := lateNet(was.Workload, n.opt.Classes, &is.Workload.Spec, d.next.opt.Classes); late != is.Workload.LateNet {
				to.change(id, func(w *Workload) { w.LateNet = late })
			}
		}
	}
	var about []string
	for _, id := range to.ids() {
		was, is := t.records[id], to.records[id]
		if was == nil || !was.Workload.Spec.equal(&is.Workload.Spec) || !was.Workload.Grant.Equal(is.Workload.Grant) {
			about = append(about, id)
		}
	}
	d.to = t.to(to, about...)
	d.to.All, d.to.strict, d.to.processes = true, true, a.processes
	d.compare(n, refused, evicted)
	return nil
}

// placeAll gives places to the evicted workloads and to those that are wanted, and returns which get
// none, and why. Those that others stand in the way of are tried again once these have moved.
func (a *adding) placeAll(specs []Spec, evicted []string) (refused map[string]error) {
	wanted, refused := map[string]*Spec{}, map[string]error{}
	for i := range specs {
		wanted[specs[i].Request.ID] = &specs[i]
	}
	records := a.records
	for _, id := range evicted {
		a.records = without(a.records, id)
	}
	steps := slices.Clone(evicted)
	for i := range specs {
		if id := specs[i].Request.ID; !slices.Contains(evicted, id) {
			steps = append(steps, id)
		}
	}
	for left, more := steps, true; more && len(left) > 0; {
		steps, left, more = left, nil, false
		for _, id := range steps {
			var err error
			if slices.Contains(evicted, id) {
				err = a.placeAgain(records[id], wanted[id])
			} else if together := a.unplaced(specs, wanted[id]); len(together) > 1 {
				err = a.addAll(together, false, place.Pod{})
			} else {
				err = a.want(wanted[id])
			}
			if err != nil {
				left = append(left, id)
			}
			more = more || err == nil
			refused[id] = err
		}
	}
	maps.DeleteFunc(refused, func(_ string, err error) bool { return err == nil })
	return refused
}

// start is the state that the workloads which can stay have, and no other.
func (d *revising) start(replace bool) (*place.State, error) {
	of, t := d.next, d.t
	if replace || len(t.records) == 0 {
		return place.Start(of.opt.Policy, of.topology, of.config)
	}
	fresh, err := place.New(of.topology, of.config)
	if err != nil {
		return nil, err
	}
	state, err := fresh.Reinstate(t.state.Save())
	if state == nil {
		return nil, err
	}
	return state, nil // the error is of those that cannot stay
}

// drop releases a workload.
func (a *adding) drop(id string) error {
	b := a.records[id]
	if b == nil {
		return nil
	}
	if b.format > 0 {
		return a.t.foreign(id)
	}
	if _, held := a.state.Grant(id); held {
		offer, err := place.Release(a.t.n.opt.Policy, a.state, id)
		if err == nil {
			a.state, err = a.state.Commit(offer)
		}
		if err != nil {
			return err
		}
	}
	a.records = without(a.records, id)
	return nil
}

// evicted are the workloads without a place in the state: by id or, if all are to be
// placed anew, those with CPUs of their own first, then by age.
func (a *adding) evicted(all bool) ([]string, error) {
	var ids []string
	for _, id := range a.ids() {
		if _, held := a.state.Grant(id); held {
			continue
		}
		if a.records[id].format > 0 {
			return nil, a.t.foreign(id)
		}
		ids = append(ids, id)
	}
	if all {
		shared := func(id string) int {
			if ownsByClass(&a.records[id].Workload.Spec.Request) {
				return 0
			}
			return 1
		}
		slices.SortStableFunc(ids, func(x, y string) int {
			return cmp.Or(shared(x)-shared(y), a.records[x].Workload.Since.Compare(a.records[y].Workload.Since))
		})
	}
	return ids, nil
}

// placeAgain gives a workload of a record a place, as a spec says; nil is the record's own.
func (a *adding) placeAgain(b *record, wanted *Spec) error {
	spec := b.Workload.Spec
	if wanted != nil && !spec.SameAs(wanted) {
		w := *wanted
		w.Group, w.PID, w.Owner, spec = spec.Group, spec.PID, spec.Owner, w
	}
	state, err := a.t.decide(a.state, &spec)
	if err != nil {
		return err
	}
	id := spec.Request.ID
	a.state, a.records[id] = state, b
	a.change(id, func(w *Workload) { a.t.n.respec(w, spec) })
	return nil
}

// unplaced are the specs of a workload's group, if none of them has a place.
func (a *adding) unplaced(all []Spec, of *Spec) (group []Spec) {
	for i := range all {
		if of.Request.Group == "" || all[i].Request.Group != of.Request.Group {
			continue
		}
		if a.records[all[i].Request.ID] != nil {
			return nil
		}
		group = append(group, all[i])
	}
	return group
}

// want has a workload be as a spec says.
func (a *adding) want(spec *Spec) error {
	id := spec.Request.ID
	held := a.records[id]
	if held == nil {
		return a.add(*spec, false, nil)
	}
	if held.Workload.Spec.SameAs(spec) {
		return nil
	}
	c, err := a.t.resized(a.snapshot, *spec)
	if err == nil {
		a.snapshot = c.to
	}
	return err
}

// compare says what the revision comes to.
func (d *revising) compare(n *Node, refused map[string]error, evicted []string) {
	before := &transaction{n: n, nodeState: n.held, ctx: d.t.ctx}
	ids := slices.Concat(before.ids(), d.to.to.ids())
	for id := range refused {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		e := Effect{ID: id, err: refused[id], evicted: slices.Contains(evicted, id)}
		was, is := d.to.Before(id), d.to.After(id)
		if was != nil {
			w := before.workload(before.snapshot, id)
			e.Was = holdingOf(&w)
		}
		if is != nil {
			w := d.t.workload(d.to.to, id)
			e.Is = holdingOf(&w)
		}
		switch {
		case e.err != nil && e.Was != nil && e.Is == nil:
			e.Kind = EffectLost
		case e.err != nil:
			e.Kind = EffectRefused
		case was == nil:
			e.Kind = EffectPlaced
		case is == nil:
			e.Kind = EffectReleased
		case e.Was.CPUs != e.Is.CPUs || e.Was.Mems != e.Is.Mems:
			e.Kind = EffectMoved
			e.follows = was.Spec.SameAs(&is.Spec) && was.Grant.Equal(is.Grant)
		case !reflect.DeepEqual(e.Was, e.Is) || !was.Spec.SameAs(&is.Spec):
			e.Kind = EffectChanged
		default:
			continue
		}
		if e.err != nil {
			e.Reason = e.err.Error()
		}
		d.effects = append(d.effects, e)
	}
}

// tell reports what has come about.
func (d *revising) tell(took time.Duration) {
	for i := range d.effects {
		e := &d.effects[i]
		event := Event{Time: d.next.opt.Now(), ID: e.ID}
		switch e.Kind {
		case EffectPlaced:
			event.Kind, event.Text, event.Took = Placed, "CPUs "+e.Is.CPUs.String(), took
		case EffectMoved, EffectChanged:
			event.Kind, event.Text, event.Took = Changed, "CPUs "+e.Is.CPUs.String(), took
			if e.evicted {
				event.Text = "its place is gone; it has another"
			}
		case EffectReleased:
			event.Kind, event.Text = Released, "the configuration does not ask for it any more"
		case EffectLost:
			event.Kind, event.Text = Dropped, "its place is gone, and there is no other: "+e.Reason
		case EffectRefused:
			event.Kind, event.Text, event.Err = Refused, e.Reason, e.err
		}
		if !e.follows {
			d.next.opt.Events(event)
		}
	}
}
