package agent

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

func (s *Spec) equal(o *Spec) bool { return reflect.DeepEqual(s, o) }

func limitless(l cgroup.Limits) bool { return reflect.DeepEqual(l, cgroup.Limits{}) }

// Place gives a new workload its place. An id that is held is a
// *place.HeldError; a group or process that is not there is a *MissingError, a group
// that may not be placed a *GroupError; what the policy refuses is of package place,
// what the kernel refuses a *kernel.StepError. After an error everything is as it was.
func (n *Node) Place(ctx context.Context, spec Spec) (Workload, error) {
	return n.edit(ctx, spec, Placed, (*transaction).placed)
}

// Preview returns what Place, or for an id that is held Resize, would come to,
// and the writes that it would take. Nothing is changed. Where v2 controllers
// have yet to be enabled, what follows for groups that are there already cannot
// be seen, and is not in the plan.
func (n *Node) Preview(ctx context.Context, spec Spec) (w Workload, plan kernel.Plan, err error) {
	if err := spec.Validate(); err != nil {
		return w, nil, err
	}
	err = n.look(ctx, func(t *transaction) error {
		if err := n.free(); err != nil {
			return err
		}
		draft := (*transaction).placed
		if t.bodies[spec.Request.ID] != nil {
			draft = (*transaction).resized
		}
		c, err := draft(t, spec)
		if err != nil {
			return err
		}
		w = t.workload(c.to, spec.Request.ID)
		if plan, err = n.backend.enable(c); err != nil || len(plan) > 0 && spec.Group != "" {
			return err
		}
		work, err := n.backend.plan(c)
		plan = append(plan, work.plan...)
		return err
	})
	return w, plan, err
}

// Resize changes what a workload asks for: request, given CPUs and limits. Group,
// process and owner stay. The policy keeps it where it is as far as it can; a
// policy that cannot resize in place refuses.
func (n *Node) Resize(ctx context.Context, spec Spec) (Workload, error) {
	return n.edit(ctx, spec, Changed, (*transaction).resized)
}

// Move gives a workload other CPUs, and memory nodes if there are any.
func (n *Node) Move(ctx context.Context, id string, cpus, mems cpuset.Set) (Workload, error) {
	spec := Spec{Request: place.Request{ID: id}}
	return n.edit(ctx, spec, Changed, func(t *transaction, _ Spec) (*change, error) {
		if cpus.IsEmpty() {
			return nil, &place.InvalidError{ID: id, Reason: "no CPUs to move to"}
		}
		b, ok := t.bodies[id]
		if !ok {
			return nil, &place.NotHeldError{ID: id}
		}
		next := b.Workload.Spec
		next.CPUs, next.Mems = cpus, mems
		return t.resized(next)
	})
}

// edit carries out a change to one workload.
func (n *Node) edit(ctx context.Context, spec Spec, kind EventKind, draft func(*transaction, Spec) (*change, error)) (w Workload, err error) {
	id := spec.Request.ID
	if err := spec.Validate(); err != nil {
		return w, err
	}
	asked := n.opt.Now()
	tried := false
	err = n.change(ctx, func(t *transaction) error {
		tried = true
		c, err := draft(t, spec)
		if err == nil {
			err = t.carry(c)
		}
		if err != nil {
			return err
		}
		w = t.workload(t.view, id)
		now := n.opt.Now()
		text := "CPUs " + w.CPUs.String()
		if b := t.bodies[id]; b.Workload.CPUs != w.CPUs {
			at := "/" + n.backend.seat(b) + " "
			i := slices.IndexFunc(w.Notes, func(note string) bool { return strings.HasPrefix(note, at) })
			text = fmt.Sprintf("CPUs %s are granted; %s", b.Workload.CPUs, w.Notes[i])
		}
		n.opt.Events(Event{Time: now, Kind: kind, ID: id, Text: text, Took: now.Sub(asked)})
		return nil
	})
	if err != nil && tried {
		n.opt.Events(Event{Time: n.opt.Now(), Kind: Refused, ID: id, Text: err.Error(), Err: err})
	}
	return w, err
}

// placed is the change that adds a workload.
func (t *transaction) placed(spec Spec) (*change, error) {
	id := spec.Request.ID
	if t.bodies[id] != nil {
		return nil, &place.HeldError{ID: id}
	}
	if err := t.n.identify(&spec); err != nil {
		return nil, fmt.Errorf("place workload %q: %w", id, err)
	}
	b := &body{Boot: t.n.bootID(), Workload: &Workload{Spec: spec, Since: t.n.opt.Now().Round(0), Backend: t.n.backend.name()}}
	if err := t.n.backend.admit(b, t.bodies); err != nil {
		return nil, fmt.Errorf("place workload %q: %w", id, err)
	}
	state, err := t.decide(t.state, &spec)
	if err != nil {
		return nil, err
	}
	bodies := without(t.bodies, id)
	bodies[id] = b
	return t.to(view{state, bodies}, id), nil
}

// identify fills in the owner's start. A process that is not there is a *MissingError.
func (n *Node) identify(spec *Spec) error {
	if _, ok := startTime(n.root, spec.PID); spec.PID != 0 && !ok {
		return &MissingError{fmt.Sprintf("process %d", spec.PID)}
	}
	o := &spec.Owner
	if o.PID == 0 {
		return nil
	}
	start, ok := startTime(n.root, o.PID)
	if !ok || o.Start != "" && o.Start != start {
		return &MissingError{fmt.Sprintf("process %d, its owner,", o.PID)}
	}
	o.Start = start
	return nil
}

// resized is the change of a workload to another spec.
func (t *transaction) resized(spec Spec) (*change, error) {
	id := spec.Request.ID
	was, ok := t.bodies[id]
	if !ok {
		return nil, &place.NotHeldError{ID: id}
	}
	spec.Group, spec.PID, spec.Owner = was.Workload.Spec.Group, was.Workload.Spec.PID, was.Workload.Spec.Owner
	var state *place.State
	var err error
	if spec.CPUs.IsEmpty() {
		var offer place.Offer
		if offer, err = place.Resize(t.n.opt.Policy, t.state, &spec.Request); err == nil {
			state, err = t.state.Commit(bound(offer, spec.Mems))
		}
	} else {
		state, err = seated(t.state, &spec.Request, spec.CPUs, spec.Mems)
	}
	if err != nil {
		return nil, err
	}
	b, w := *was, *was.Workload
	w.Spec = spec
	b.Workload = &w
	bodies := without(t.bodies, id)
	bodies[id] = &b
	return t.to(view{state, bodies}, id), nil
}

// OccupiedError is a workload that still has processes.
type OccupiedError struct {
	ID   string
	PIDs []int
}

func (e *OccupiedError) Error() string {
	return fmt.Sprintf("release workload %q: it still has processes %v; end them, or release it with kill", e.ID, e.PIDs)
}

// Release takes a workload's place away. A group that Berth made is removed; one
// that still has processes is an *OccupiedError, unless they are to be killed.
// A group that Berth was given gets its values back and keeps its processes.
func (n *Node) Release(ctx context.Context, id string, kill bool) error {
	return n.change(ctx, func(t *transaction) error {
		b, ok := t.bodies[id]
		if !ok {
			return &place.NotHeldError{ID: id}
		}
		if b.Workload.Spec.Group == "" {
			if err := n.vacate(ctx, b, kill); err != nil {
				return err
			}
		}
		return t.release(id, "as asked for")
	})
}

// vacate makes sure that a workload has no processes.
func (n *Node) vacate(ctx context.Context, b *body, kill bool) error {
	pids, _, err := n.backend.present(b)
	if err != nil || len(pids) == 0 {
		return err
	}
	if !kill {
		return &OccupiedError{b.Workload.ID(), pids}
	}
	return n.backend.kill(ctx, b)
}

// List returns the workloads by rising id.
func (n *Node) List(ctx context.Context) (all []Workload, err error) {
	err = n.look(ctx, func(t *transaction) error {
		for _, id := range t.ids() {
			all = append(all, t.workload(t.view, id))
		}
		return nil
	})
	return all, err
}

// Groups returns the group of each workload, by id; with affinity it is "".
func (n *Node) Groups(ctx context.Context) (groups map[string]string, err error) {
	err = n.look(ctx, func(t *transaction) error {
		groups = make(map[string]string, len(t.bodies))
		for id, b := range t.bodies {
			groups[id] = b.Workload.Group
		}
		return nil
	})
	return groups, err
}

// Get returns one workload, or a *place.NotHeldError.
func (n *Node) Get(ctx context.Context, id string) (w Workload, err error) {
	err = n.look(ctx, func(t *transaction) error {
		if t.bodies[id] == nil {
			return &place.NotHeldError{ID: id}
		}
		w = t.workload(t.view, id)
		return nil
	})
	return w, err
}

// State returns who holds what and what is free.
func (n *Node) State(ctx context.Context) (s *place.State, err error) {
	err = n.look(ctx, func(t *transaction) error {
		s = t.state
		return nil
	})
	return s, err
}

// workload is a workload of a view, for others to see.
func (t *transaction) workload(v view, id string) Workload {
	b := v.bodies[id]
	w := *b.Workload
	if g, ok := v.state.Grant(id); ok {
		w.Grant, w.Mems = g, g.Mems
		w.CPUs, _ = v.state.CPUs(id)
	}
	w.Notes = append(slices.Clone(t.n.backend.notes(b)), t.n.exposed(&w)...)
	for _, name := range t.n.drift.under(w.Dirs) {
		text, err := readText(t.n.root, name)
		if err != nil {
			continue // gone, with its group
		}
		note := fmt.Sprintf("/%s is left to someone else who keeps changing it: the kernel has %q", name, text)
		if is, err := cpuset.Parse(text); err == nil && name == t.n.backend.seat(b) && !is.IsEmpty() && is != w.CPUs {
			note += fmt.Sprintf(" instead of %q", w.CPUs)
			w.CPUs = is
		}
		w.Notes = append(w.Notes, note)
	}
	return w
}

// exposed says whether others may run on a workload's own CPUs.
func (n *Node) exposed(w *Workload) []string {
	if w.Grant.Own.IsEmpty() || len(n.opt.Confine) > 0 && w.Group != "" {
		return nil
	}
	if w.Group == "" { // by affinity: there is nothing to mark, see claim
		return []string{fmt.Sprintf("others may still run on its CPUs %s, and even own them, too: without control groups, nodes of other users or with another state directory are not seen", w.Grant.Own)}
	}
	return []string{fmt.Sprintf("processes outside of Berth's workloads may still run on its CPUs %s: none are confined", w.Grant.Own)}
}

// Repair is a value that someone else had changed.
type Repair struct {
	Path   string `json:"path"`
	Found  string `json:"found"`
	Wanted string `json:"wanted"`
	// Count is how often within Options.Window, this time included.
	Count int `json:"count"`
	// Yielded is true if it was left as found, now and from now on.
	Yielded bool `json:"yielded,omitempty"`
}

// Reconcile compares every value of the given workloads, or of all and of the
// groups to confine if none is given, with what the kernel shows and repairs what
// someone else has changed. A value that had to be repaired too often is yielded:
// this Node leaves it alone from then on.
func (n *Node) Reconcile(ctx context.Context, ids ...string) (repairs []Repair, err error) {
	err = n.change(ctx, func(t *transaction) error {
		among := ids
		if len(ids) == 0 {
			among = t.ids()
		}
		if err := t.bury(among); err != nil {
			return err
		}
		w, err := t.drifted(ids)
		if err != nil || w.isEmpty() {
			return err
		}
		repairs = n.judge(w.plan)
		return t.converge()
	})
	if err == nil {
		for _, r := range repairs {
			kind := Repaired
			if r.Yielded {
				kind = Yielded
			}
			n.tell(kind, "", r.Path, fmt.Sprintf("found %q, wants %q, time %d", r.Found, r.Wanted, r.Count))
		}
	}
	return repairs, err
}

// drifted is what it takes to drive the kernel to the books, as far as they are
// about some workloads; none is all, and everything else.
func (t *transaction) drifted(ids []string) (work, error) {
	if len(ids) == 0 {
		c := t.to(t.view, t.ids()...)
		c.all = true
		return t.n.backend.plan(c)
	}
	there := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return t.bodies[id] == nil })
	return t.n.backend.plan(t.to(t.view, there...))
}

// judge counts a repair of every file that a plan leaves with another value than it
// has now: some are written twice, first wider and then as they were.
func (n *Node) judge(plan kernel.Plan) []Repair {
	var repairs []Repair
	for i, s := range plan {
		if s.Op != kernel.Write || s.Keep || slices.ContainsFunc(plan[i+1:], func(later kernel.Step) bool { return later.Op == kernel.Write && setting(later) == setting(s) }) {
			continue
		}
		found, same, err := n.root.Shows(s)
		if err != nil || same {
			continue // in a group that is made anew, or as it is to be
		}
		if i := slices.IndexFunc(repairs, func(r Repair) bool { return r.Path == s.Path }); i >= 0 {
			repairs[i].Wanted = s.Value
			continue
		}
		count, yielded := n.drift.count(s.Path, n.opt.Now())
		repairs = append(repairs, Repair{Path: s.Path, Found: found, Wanted: s.Value, Count: count, Yielded: yielded})
	}
	return repairs
}

// setting names what a step writes: a file or, where each line has a key, a line of
// it.
func setting(s kernel.Step) string {
	if s.Format != kernel.Keyed {
		return s.Path
	}
	key, _, _ := strings.Cut(s.Value, " ")
	return s.Path + " " + key
}

// drift counts how often values had to be repaired. It is guarded by Node.mu.
type drift struct {
	limit    int
	window   time.Duration
	rewrites map[string][]time.Time
	yielded  map[string]bool
}

// count adds a repair; yielded is true if it is one too many.
func (d *drift) count(path string, now time.Time) (n int, yielded bool) {
	times := slices.DeleteFunc(d.rewrites[path], func(t time.Time) bool { return now.Sub(t) > d.window })
	d.rewrites[path] = append(times, now)
	n = len(d.rewrites[path])
	if n > d.limit {
		d.yielded[path] = true
	}
	return n, d.yielded[path]
}

func (d *drift) isYielded(path string) bool { return d.yielded[path] }

// under returns the yielded files in some directories, sorted.
func (d *drift) under(dirs []string) []string {
	var paths []string
	for path := range d.yielded {
		if slices.ContainsFunc(dirs, func(dir string) bool { return within(path, dir) }) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// Restore gives everything back: every value that Berth overwrote, every
// process to the group that it came from, every group that Berth made, and the
// records. It returns what was undone. The error joins what could not be.
func (n *Node) Restore(ctx context.Context) (items []kernel.Item, err error) {
	err = n.with(ctx, func(b *books) error {
		t := &transaction{n: n, books: b, ctx: ctx}
		_, err := n.disclaim()
		errs := []error{err, t.resume()}
		for _, id := range t.ids() {
			errs = append(errs, n.backend.evacuate(t.to(t.view), t.bodies[id]))
		}
		items, err = undoAll(b.ledger)
		errs = append(errs, b.ledger.Damage())
		empty, startErr := place.Start(n.opt.Policy, n.topology, n.config)
		errs = append(errs, err, startErr)
		if startErr == nil {
			errs = append(errs, t.record(view{empty, map[string]*body{}}), t.ended())
		}
		return errors.Join(errs...)
	})
	if err == nil {
		n.tell(Restored, "", "", fmt.Sprintf("%d steps undone", len(items)))
	}
	return items, err
}

// undoAll undoes all notes. A v1 set that is held back by one around it is tried
// again once that is undone.
func undoAll(ledger *kernel.Journal) (items []kernel.Item, err error) {
	for range 3 {
		var some []kernel.Item
		some, err = ledger.Undo(func(kernel.Step) bool { return true })
		items = append(slices.DeleteFunc(items, func(i kernel.Item) bool { return i.Outcome == kernel.Failed }), some...)
		if err == nil {
			break
		}
	}
	return items, err
}
