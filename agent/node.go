package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

func (s *Spec) equal(o *Spec) bool { return reflect.DeepEqual(s, o) }

func limitless(l cgroup.Limits) bool { return reflect.ValueOf(&l).Elem().IsZero() }

// Place gives a new workload its place. An id that is held is a
// *place.HeldError; a group or process that is not there is a *MissingError, a group
// that may not be placed a *GroupError; what the policy refuses is of package place,
// what the kernel refuses a *kernel.StepError. After an error everything is as it was.
func (n *Node) Place(ctx context.Context, spec Spec) (Workload, error) {
	return n.edit(ctx, spec, func(t *transaction) (*Transition, error) { return t.placed(spec) })
}

// Preview returns what Place, or for an id that is held Resize, would come to,
// and the writes that it would take. Nothing is changed. Where v2 controllers
// have yet to be enabled, what follows for groups that are there already cannot
// be seen, and is not in the plan.
func (n *Node) Preview(ctx context.Context, spec Spec) (w Workload, plan kernel.Plan, err error) {
	err = n.look(ctx, func(t *transaction) error {
		all, writes, err := t.preview([]Spec{spec}, func() (*Transition, error) {
			if t.records[spec.Request.ID] == nil {
				return t.placed(spec)
			}
			return t.resized(t.snapshot, spec)
		})
		if err == nil {
			w, plan = all[0], writes
		}
		return err
	})
	return w, plan, err
}

// preview says what a change of workloads would come to.
func (t *transaction) preview(specs []Spec, decide func() (*Transition, error)) (all []Workload, plan kernel.Plan, err error) {
	for i := range specs {
		if err := specs[i].Validate(); err != nil {
			return nil, nil, err
		}
	}
	if t.log == nil { // of a reader
		if t.log, err = kernel.ReadUndoLog(t.n.root, t.path(logFile)); err != nil {
			return nil, nil, err
		}
	}
	if err := errors.Join(t.corrupt(), t.n.checkOwnership()); err != nil {
		return nil, nil, err
	}
	c, err := decide()
	if err != nil {
		return nil, nil, err
	}
	for i := range specs {
		all = append(all, t.workload(c.to, specs[i].Request.ID))
	}
	plan, _, err = t.n.writes(c)
	return all, plan, err
}

// Resize changes what a workload asks for: request, given CPUs and limits. Group,
// process and owner stay. The policy keeps it where it is as far as it can; a
// policy that cannot resize in place refuses.
func (n *Node) Resize(ctx context.Context, spec Spec) (Workload, error) {
	return n.edit(ctx, spec, func(t *transaction) (*Transition, error) {
		id := spec.Request.ID
		err := t.mayChange("resize", id)
		if err == nil {
			err = mayHave(ctx, fmt.Sprintf("resize workload %q", id), &spec)
		}
		if err != nil {
			return nil, err
		}
		return t.resized(t.snapshot, spec)
	})
}

// Move gives a workload other CPUs, and memory nodes if there are any.
func (n *Node) Move(ctx context.Context, id string, cpus, mems cpuset.Set) (Workload, error) {
	spec := Spec{Request: place.Request{ID: id}}
	return n.edit(ctx, spec, func(t *transaction) (*Transition, error) {
		if cpus.IsEmpty() {
			return nil, &place.InvalidError{ID: id, Reason: "no CPUs to move to"}
		}
		if err := t.mayChange("move", id); err != nil {
			return nil, err
		}
		next := t.records[id].Workload.Spec
		next.CPUs, next.Mems = cpus, mems
		return t.resized(t.snapshot, next)
	})
}

// edit makes a change of one workload, from the decision on, in one go.
func (n *Node) edit(ctx context.Context, spec Spec, decide func(*transaction) (*Transition, error)) (w Workload, err error) {
	c, tried, err := n.draft(ctx, []Spec{spec}, func(c *Change) (err error) {
		if c.to, err = decide(c.t); err == nil {
			err = c.enforce()
		}
		return err
	})
	if err == nil {
		var all []Workload
		if all, err = c.commit(); err == nil {
			w = all[len(all)-1]
		}
	}
	if err != nil && tried {
		n.opt.Events(Event{Time: n.opt.Now(), Kind: Refused, ID: spec.Request.ID, Text: err.Error(), Err: err})
	}
	return w, err
}

// identify fills in the owner's start, and returns the process to place with its own. A
// process that is not there is a *MissingError.
func (n *Node) identify(spec *Spec) (processes []Owner, err error) {
	if spec.PID != 0 {
		start, ok := startTime(n.root, spec.PID)
		if !ok {
			return nil, &MissingError{fmt.Sprintf("process %d", spec.PID)}
		}
		processes = []Owner{{spec.PID, start}}
	}
	o := &spec.Owner
	if o.PID == 0 {
		return processes, nil
	}
	start, ok := startTime(n.root, o.PID)
	if !ok || o.Start != "" && o.Start != start {
		return nil, &MissingError{fmt.Sprintf("process %d, its owner,", o.PID)}
	}
	o.Start = start
	return processes, nil
}

// resized is the change of a workload of a snapshot to another spec.
func (t *transaction) resized(v snapshot, spec Spec) (*Transition, error) {
	id := spec.Request.ID
	was, ok := v.records[id]
	if !ok {
		return nil, &place.NotHeldError{ID: id}
	}
	if was.format > 0 {
		return nil, t.foreign(id)
	}
	spec.Group, spec.PID, spec.Owner = was.Workload.Spec.Group, was.Workload.Spec.PID, was.Workload.Spec.Owner
	var state *place.State
	var err error
	request, old := spec.Request, &was.Workload.Spec
	request.Explain = old.Request.Explain
	sameMems := spec.Mems == old.Mems && slices.Equal(spec.NearMems, old.NearMems)
	switch same := reflect.DeepEqual(request, old.Request); {
	case same && spec.CPUs == old.CPUs && sameMems:
		state = v.state // other limits: not every policy can resize, and none is asked to
	case spec.CPUs.IsEmpty():
		var offer place.Offer
		if offer, err = place.Resize(t.n.opt.Policy, v.state, &spec.Request); err == nil {
			state, err = v.state.Commit(offer)
		}
		var had []place.Block
		if g, ok := v.state.Grant(id); ok && sameMems {
			had = g.Memory
		}
		if err == nil {
			state, err = bound(state, &spec, had)
		}
	default:
		state, err = givenCPUs(v.state, &spec)
	}
	if err != nil {
		return nil, v.state.Blame(&spec.Request, err)
	}
	v.state, v.records = state, maps.Clone(v.records)
	v.change(id, func(w *Workload) { t.n.respec(w, spec) })
	return t.to(v, id), nil
}

// foreign refuses to change a workload whose record a newer version wrote.
func (t *transaction) foreign(id string) error {
	return fmt.Errorf("workload %q: record %s: %w: change it with the berth that wrote it, or give everything back with 'berth restore --all'",
		id, t.path(fileName(id)+recordExt), &newerError{t.records[id].format})
}

// List returns the workloads by rising id.
func (n *Node) List(ctx context.Context) (all []Workload, err error) {
	if _, err := os.Lstat(n.opt.Dir); n.unread != nil && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	err = n.look(ctx, func(t *transaction) error {
		for _, id := range t.ids() {
			all = append(all, t.present(id))
		}
		return nil
	})
	return all, err
}

// present is a workload as it is; a reader compares it with the kernel.
func (t *transaction) present(id string) Workload {
	w := t.workload(t.snapshot, id)
	if t.n.unread != nil {
		t.compare(&w)
	}
	return w
}

// Groups returns the group of each workload, with affinity "", and the CPUs of its own, by id.
func (n *Node) Groups(ctx context.Context) (groups map[string]string, own map[string]cpuset.Set, err error) {
	err = n.look(ctx, func(t *transaction) error {
		groups, own = make(map[string]string, len(t.records)), make(map[string]cpuset.Set, len(t.records))
		for id, b := range t.records {
			groups[id], own[id] = b.Workload.Group, b.Workload.Grant.Own
		}
		return nil
	})
	return groups, own, err
}

// Get returns one workload, or a *place.NotHeldError.
func (n *Node) Get(ctx context.Context, id string) (w Workload, err error) {
	err = n.look(ctx, func(t *transaction) error {
		if t.records[id] == nil {
			return &place.NotHeldError{ID: id}
		}
		w = t.present(id)
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

func (t *transaction) workload(v snapshot, id string) Workload {
	b := v.records[id]
	w := *b.Workload
	if g, ok := v.state.Grant(id); ok {
		w.Grant, w.Mems = g, g.Mems
		w.CPUs, _ = v.state.CPUs(id)
	}
	seen := t.n.enforcer.Observe(b.Workload)
	w.Limits, w.Notes = seen.Limits, append(seen.Notes, t.n.exposed(&w)...)
	w.Classes = t.n.classesNow().Of(&w.Spec)
	w.Notes = append(w.Notes, t.n.classNotes(&w)...)
	if ignored := place.IgnoredText(t.n.opt.Policy, &w.Spec.Request); ignored != "" && w.Spec.CPUs.IsEmpty() {
		w.Notes = append(w.Notes, ignored)
	}
	if o := w.Spec.Owner; w.State == Running && o.PID != 0 && !t.n.alive(o) {
		w.State = Orphaned
	}
	if w.State == Reserved {
		w.Notes = append(w.Notes, "its control group is yet to come")
	}
	if w.Releasing {
		w.Notes = append(w.Notes, "it is being released: its processes have been killed, and it keeps its place until they have ended")
	}
	for _, name := range t.n.yieldedUnder(w.Dirs) {
		note, is := t.leftAlone(name, seen.CPUFile, w.CPUs)
		if note != "" {
			w.CPUs, w.Notes = is, append(w.Notes, note)
		}
	}
	return w
}

// leftAlone tells of a file that is left to someone else, "" if it is gone, and which CPUs
// the workload has then that was granted some.
func (t *transaction) leftAlone(name, cpuFile string, granted cpuset.Set) (note string, cpus cpuset.Set) {
	text, err := kernel.ReadText(t.n.root.FS(), name)
	if err != nil {
		return "", granted // gone, with its group
	}
	note = fmt.Sprintf("/%s is left to someone else who keeps changing it: the kernel has %q", name, text)
	if is, err := cpuset.Parse(text); err == nil && name == cpuFile && !is.IsEmpty() && is != granted {
		return note + fmt.Sprintf(" instead of %q", granted), is
	}
	return note, granted
}

// exposed says whether others may run on a workload's own CPUs.
func (n *Node) exposed(w *Workload) []string {
	if w.Grant.Own.IsEmpty() || len(n.opt.Confine) > 0 && w.Group != "" {
		return nil
	}
	if w.Group == "" { // by affinity: there is nothing to mark
		return []string{fmt.Sprintf("others may still run on its CPUs %s, and even own them, too: without control groups, nodes of other users or with another state directory are not seen", w.Grant.Own)}
	}
	return []string{fmt.Sprintf("processes outside of Berth's workloads may still run on its CPUs %s: none are confined", w.Grant.Own)}
}
