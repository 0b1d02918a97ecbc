package agent

import (
	"context"
	"fmt"
	"maps"

	"berth.dev/berth/place"
)

// Arrive says that there is something to place of a workload that has its place already: a
// Reserved one whose group has come, or one that was started again, in another group. The
// group and the annotations are its own from now on; its request stays (Resize changes it).
func (n *Node) Arrive(ctx context.Context, id, group string, annotations map[string]string) (Workload, error) {
	spec := Spec{Request: place.Request{ID: id}, Group: group, Annotations: annotations}
	return n.edit(ctx, spec, func(t *transaction) (*Transition, error) { return t.arrived(id, group, annotations) })
}

func (t *transaction) arrived(id, group string, annotations map[string]string) (*Transition, error) {
	if err := t.mayChange("place", id); err != nil {
		return nil, err
	}
	was := t.records[id]
	if was.format > 0 {
		return nil, t.foreign(id)
	}
	next, w := *was, *was.Workload
	w.Spec.Group, w.Spec.Annotations, w.State = group, annotations, Running
	v := snapshot{t.state, maps.Clone(t.records)}
	if err := t.n.enforcer.Locate(&w, v.workloads()); err != nil {
		return nil, fmt.Errorf("place workload %q: %w", id, err)
	}
	next.Workload = &w
	v.records[id] = &next
	return t.to(v, id), nil
}
