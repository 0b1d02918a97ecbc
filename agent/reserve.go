package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Change is a change to who has which place that is decided and not yet made. Its Node is
// locked until Commit or Abort.
type Change struct {
	t        *transaction
	to       *Transition
	refusals []Refusal
	asked    time.Time
	batch    batch
	noted    bool // batch is written down, and done is done
	done     Enforced
	over     bool
}

// Refusal is a workload that Adopt has no place for.
type Refusal struct {
	ID  string
	Err error
}

// ErrOver is the error of a Change that was committed or aborted before.
var ErrOver = errors.New("the change was committed or aborted before")

// Reserve decides where new workloads are to be, all of them or none, and changes nothing
// yet. A group that is not there yet is well: its workload is Reserved until it comes.
// Workloads that are a pod, all of one Request.Group, are placed as the policy places pods.
// Errors are as of Place.
func (n *Node) Reserve(ctx context.Context, specs []Spec) (*Change, error) {
	return n.ReservePod(ctx, place.Pod{}, specs)
}

// ReservePod is Reserve for the containers of a pod with CPU time of its own: Milli and
// LimitMilli count, and the containers are those of specs.
func (n *Node) ReservePod(ctx context.Context, pod place.Pod, specs []Spec) (*Change, error) {
	c, _, err := n.draft(ctx, specs, func(c *Change) error {
		a := c.t.adding()
		err := a.addAll(specs, true, pod)
		c.to = a.transition()
		return err
	})
	return c, err
}

// Adopt decides where workloads are to be that run already. Each keeps the CPUs that it
// has (Spec.Prefer, or else those of its control group) if the policy gives as many and
// nobody owns them, and moves like any other from then on. Those that have a place keep it, or
// are resized. Workloads that there is no place for are in Refusals, and do not keep the
// others from theirs.
func (n *Node) Adopt(ctx context.Context, specs []Spec) (*Change, error) {
	c, _, err := n.draft(ctx, specs, func(c *Change) error {
		c.to, c.refusals = c.t.adopted(specs)
		return nil
	})
	return c, err
}

// draft has a change decided, and leaves the node locked for it; tried is false if it did
// not come to that.
func (n *Node) draft(ctx context.Context, specs []Spec, decide func(*Change) error) (drafted *Change, tried bool, err error) {
	for i := range specs {
		if err := specs[i].Validate(); err != nil {
			return nil, false, err
		}
	}
	asked, still := n.opt.Now(), n.processesOf(specs)
	n.mu.Lock()
	defer func() {
		if drafted == nil {
			n.mu.Unlock()
		}
	}()
	var c *Change
	err = n.transact(ctx, func(t *transaction) error {
		c, tried = &Change{t: t, asked: asked}, true
		err := errors.Join(t.corrupt(), still())
		if err == nil {
			err = decide(c)
		}
		return err
	})
	if err != nil {
		return nil, tried, err
	}
	return c, tried, nil
}

// Updates returns what the change comes to, for the new workloads and for all others.
func (c *Change) Updates() []Update { return c.to.Updates() }

// Refusals returns the workloads that Adopt has no place for.
func (c *Change) Refusals() []Refusal { return slices.Clone(c.refusals) }

// Enforce has the Node's Enforcer carry the change out, all of it or, after an error,
// nothing. Who carries out the updates himself leaves it out.
func (c *Change) Enforce(ctx context.Context) (err error) {
	if c.over {
		return ErrOver
	}
	if c.noted {
		return nil
	}
	c.t.ctx = ctx
	return c.enforce()
}

func (c *Change) enforce() (err error) {
	if c.batch, err = c.t.note(c.to); err != nil {
		return err
	}
	done, err := c.t.enforce(c.to)
	if err != nil {
		return errors.Join(err, c.t.abandon())
	}
	c.done, c.noted = done, true
	return nil
}

// Commit makes the change the truth, and ends it. After an error everything is as it was.
func (c *Change) Commit() error {
	_, err := c.commit()
	return err
}

func (c *Change) commit() (all []Workload, err error) {
	if c.over {
		return nil, ErrOver
	}
	c.over = true
	defer c.t.n.mu.Unlock()
	if err = c.establish(); err == nil {
		all = c.tell()
	}
	return all, c.t.n.end(err)
}

// establish makes the change the truth, or undoes it. What fails once it is the truth is
// done by the next transaction, which finds that this one has not ended.
func (c *Change) establish() (err error) {
	t := c.t
	if !c.noted {
		if c.batch, err = t.note(c.to); err != nil {
			return err
		}
	}
	if err := t.commitBatch(c.batch); err != nil {
		return errors.Join(err, call(c.done.Undo), t.abandon())
	}
	t.snapshot = c.to.to
	if t.n.kept != nil && len(c.batch.Put) > manyRecords {
		t.cut = &c.batch
		go t.n.installLater()
	} else {
		err = t.install(c.batch)
	}
	if err == nil {
		err = call(c.done.Finish)
	}
	if err == nil {
		err = t.markClean()
	}
	if err := besideAway(err); err != nil {
		t.n.tell(Failed, "", "", err.Error())
	}
	return nil
}

// tell reports what has come about, and returns the workloads that it is about as they are now.
func (c *Change) tell() (all []Workload) {
	n := c.t.n
	now := n.opt.Now()
	for _, id := range c.to.focus {
		kind := Placed
		if c.to.from.records[id] != nil {
			kind = Changed
		}
		w := c.t.workload(c.t.snapshot, id)
		all = append(all, w)
		text := "CPUs " + w.CPUs.String()
		seen := n.enforcer.Observe(&w)
		if granted := c.t.records[id].Workload.CPUs; granted != w.CPUs {
			note, _ := c.t.leftAlone(seen.CPUFile, seen.CPUFile, granted)
			text = fmt.Sprintf("CPUs %s are granted; %s", granted, note)
		}
		if w.State == Reserved {
			text += ", reserved"
		}
		if seen.Lack != "" {
			text += "; " + seen.Lack
		}
		n.opt.Events(Event{Time: now, Kind: kind, ID: id, Text: text, Took: now.Sub(c.asked)})
	}
	for _, r := range c.refusals {
		n.opt.Events(Event{Time: now, Kind: Refused, ID: r.ID, Text: r.Err.Error(), Err: r.Err})
	}
	return all
}

// Abort ends the change and leaves everything as it was. After Commit it does nothing.
func (c *Change) Abort() (err error) {
	if c.over {
		return nil
	}
	c.over = true
	defer c.t.n.mu.Unlock()
	if c.noted {
		err = errors.Join(call(c.done.Undo), c.t.abandon(), c.t.n.forget())
	}
	return c.t.n.end(err)
}

// processesOf returns a function that reports whether the processes of specs are still
// those that they were: the wait for the lock may be long.
func (n *Node) processesOf(specs []Spec) func() error {
	starts := map[int]string{}
	for i := range specs {
		if pid := specs[i].PID; pid != 0 {
			starts[pid], _ = startTime(n.root, pid)
		}
	}
	return func() error {
		for i := range specs {
			pid := specs[i].PID
			if pid == 0 {
				continue
			}
			if now, _ := startTime(n.root, pid); now != starts[pid] {
				return fmt.Errorf("place workload %q: %w", specs[i].Request.ID, &MissingError{fmt.Sprintf("process %d", pid)})
			}
		}
		return nil
	}
}

// placed is the change that adds a workload of which there is something to place.
func (t *transaction) placed(spec Spec) (*Transition, error) {
	a := t.adding()
	if err := a.add(spec, false, nil); err != nil {
		return nil, err
	}
	return a.transition(), nil
}

// PlaceTogether places new workloads, all of them or none, in one transaction, as Reserve and
// Commit do, but only ones of which there is something to place. It returns them in order.
func (n *Node) PlaceTogether(ctx context.Context, specs []Spec) (all []Workload, err error) {
	c, _, err := n.draft(ctx, specs, func(c *Change) error {
		a := c.t.adding()
		err := a.addAll(specs, false, place.Pod{})
		if c.to = a.transition(); err == nil {
			err = c.enforce()
		}
		return err
	})
	if err == nil {
		all, err = c.commit()
	}
	return all, err
}

// PreviewTogether returns what PlaceTogether would come to, and the writes that it would
// take, as Preview does for one workload. Nothing is changed.
func (n *Node) PreviewTogether(ctx context.Context, specs []Spec) (all []Workload, plan kernel.Plan, err error) {
	err = n.look(ctx, func(t *transaction) error {
		all, plan, err = t.preview(specs, func() (*Transition, error) {
			a := t.adding()
			err := a.addAll(specs, false, place.Pod{})
			return a.transition(), err
		})
		return err
	})
	return all, plan, err
}

// addAll adds workloads, all of them or none: early even if there is nothing of them yet.
func (a *adding) addAll(specs []Spec, early bool, of place.Pod) (err error) {
	before := *a
	before.records = maps.Clone(a.records)
	defer func() {
		if err != nil {
			*a = before
		}
	}()
	for i := range specs {
		if id := specs[i].Request.ID; a.records[id] != nil {
			return ofSeveral(specs, id, &place.HeldError{ID: id})
		}
	}
	// A policy may take long over many.
	if err = a.t.mayPlaceTogether(a.records, specs); err != nil {
		return err
	}
	var pod *place.State
	if group := podOf(specs); group != "" && (len(specs) > 1 || of.Milli > 0) {
		p := place.Pod{ID: group, Milli: of.Milli, LimitMilli: of.LimitMilli}
		for i := range specs {
			p.Containers = append(p.Containers, specs[i].Request)
		}
		if pod, _, err = place.PlacePod(a.t.n.opt.Policy, a.state, p); err != nil {
			return err
		}
		for i := range specs {
			if pod, err = bound(pod, &specs[i], nil); err != nil {
				return ofSeveral(specs, specs[i].Request.ID, err)
			}
		}
	}
	for _, spec := range specs {
		if err = a.add(spec, early, pod); err != nil {
			return ofSeveral(specs, spec.Request.ID, err)
		}
	}
	return nil
}

// ofSeveral says which of several workloads an error is about.
func ofSeveral(specs []Spec, id string, err error) error {
	if len(specs) < 2 {
		return err
	}
	return fmt.Errorf("workload %q, which is placed with %d more or not at all: %w", id, len(specs)-1, err)
}

// podOf returns the group of specs that are workloads of one pod whose CPUs the policy is to
// choose; "" if they are not.
func podOf(specs []Spec) string {
	for i := range specs {
		s := &specs[i]
		if s.Request.Group == "" || s.Request.Group != specs[0].Request.Group || !s.CPUs.IsEmpty() {
			return ""
		}
	}
	if len(specs) == 0 {
		return ""
	}
	return specs[0].Request.Group
}

func (t *transaction) adopted(specs []Spec) (*Transition, []Refusal) {
	a := t.adding()
	var refusals []Refusal
	// Those with CPUs to keep come first, so that nobody else is given them.
	ordered := slices.Clone(specs)
	for i := range ordered {
		t.preferPresent(&ordered[i])
	}
	slices.SortStableFunc(ordered, func(x, y Spec) int { return rank(&x) - rank(&y) })
	for _, spec := range ordered {
		id := spec.Request.ID
		var err error
		if held := a.records[id]; held == nil {
			err = a.add(spec, true, nil)
		} else if !held.Workload.Spec.SameAs(&spec) {
			var c *Transition
			if c, err = t.resized(a.snapshot, spec); err == nil {
				a.snapshot = c.to
				a.focus = append(a.focus, id)
			}
		}
		if err != nil {
			refusals = append(refusals, Refusal{id, err})
		}
	}
	return a.transition(), refusals
}

// rank is 0 for specs with CPUs to keep, 1 for others.
func rank(s *Spec) int {
	if s.Prefer.IsEmpty() && s.CPUs.IsEmpty() {
		return 1
	}
	return 0
}

// preferPresent has a spec prefer the CPUs that its control group has.
func (t *transaction) preferPresent(s *Spec) {
	if s.Group == "" || rank(s) == 0 {
		return
	}
	w := &Workload{Spec: *s, Group: s.Group}
	if name := t.n.enforcer.Observe(w).CPUFile; name != "" {
		s.Prefer, _ = readSet(t.n.root, name) // what cannot be read is not preferred
	}
}

// SameAs reports whether two specs of a workload ask for the same, wherever a Move has put it.
func (s *Spec) SameAs(o *Spec) bool {
	other := *o
	other.Request.Explain = s.Request.Explain
	other.Group, other.PID, other.Owner, other.CPUs, other.Mems, other.Prefer = s.Group, s.PID, s.Owner, s.CPUs, s.Mems, s.Prefer
	return s.equal(&other)
}

// kept returns the state in which a workload has the CPUs that it prefers; nil if the
// policy grants another number, or they are not free.
func kept(s *place.State, spec *Spec, g *place.Grant) *place.State {
	if spec.Prefer.IsEmpty() || g == nil || g.Own.Len() != spec.Prefer.Len() || !ownsByClass(&spec.Request) {
		return nil
	}
	of := s.Topology()
	around := func(own cpuset.Set) cpuset.Set { return of.Touched(machine.Core, own).Minus(own) }
	if g.Own == spec.Prefer || !g.Fence.IsEmpty() && g.Fence != around(g.Own) {
		return nil
	}
	grant, err := grantOf(s, &spec.Request, spec.Prefer)
	if err != nil {
		return nil
	}
	if !g.Fence.IsEmpty() {
		grant.Fence = around(grant.Own)
	}
	next, err := granted(s, grant)
	if err != nil {
		return nil
	}
	return next
}

type adding struct {
	t *transaction
	snapshot
	boot      string
	focus     []string
	processes []Owner
	below     map[string]func() ([]Owner, error)
}

func (t *transaction) adding() *adding {
	return &adding{
		t: t, snapshot: snapshot{t.state, maps.Clone(t.records)}, boot: t.n.bootID(), below: map[string]func() ([]Owner, error){},
	}
}

// add adds a workload: early even if there is nothing of it yet; in a pod, where that
// state has it.
func (a *adding) add(spec Spec, early bool, pod *place.State) error {
	id, t := spec.Request.ID, a.t
	if a.records[id] != nil {
		return &place.HeldError{ID: id}
	}
	processes, err := t.n.identify(&spec)
	if err != nil {
		return fmt.Errorf("place workload %q: %w", id, err)
	}
	if err := t.mayPlace(a.records, &spec); err != nil {
		return err
	}
	w := &Workload{Spec: spec, UID: callerOf(t.ctx).UID, Since: t.n.opt.Now().Round(0), Backend: t.n.site.Backend}
	w.Spec.Prefer = cpuset.Set{}
	err = t.n.enforcer.Locate(w, a.workloads())
	var missing *MissingError
	if early && errors.As(err, &missing) {
		w.State, err = Reserved, nil
	}
	if err != nil {
		return fmt.Errorf("place workload %q: %w", id, err)
	}
	state := pod
	if pod == nil {
		if state, err = t.decide(a.state, &spec); err != nil {
			return err
		}
	}
	a.state, a.records[id] = state, &record{Boot: a.boot, Workload: w}
	a.focus, a.processes = append(a.focus, id), append(a.processes, processes...)
	if spec.Descendants {
		caller := callerOf(t.ctx)
		a.below[id] = func() ([]Owner, error) { return t.n.descendants(&spec, caller) }
	}
	return nil
}

func (a *adding) transition() *Transition {
	c := a.t.to(a.snapshot, a.focus...)
	c.processes, c.below = a.processes, a.below
	return c
}
