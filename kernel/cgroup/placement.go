package cgroup

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
)

// SetChange is a cpuset file that is to have another set.
type SetChange struct {
	File       string
	Have, Want cpuset.Set
	Why        string
}

func (c *SetChange) step(set cpuset.Set) kernel.Step {
	return kernel.Step{Path: c.File, Value: set.String(), Format: kernel.List, Why: c.Why}
}

// SetChanges are sets that may lie within each other, outer ones first. A v1 set must hold
// those of its children and lie within its parent's at any time, so each is first widened
// to old and new together, from the top down, and then narrowed to the new one, from the
// bottom up. Undo goes the same way back.
type SetChanges []SetChange

// Plan widens and narrows; a single set goes the direct way.
func (all SetChanges) Plan() kernel.Plan {
	if len(all) != 1 {
		return append(all.Widen(), all.Narrow()...)
	}
	if all[0].Have == all[0].Want {
		return nil
	}
	return kernel.Plan{all[0].step(all[0].Want)}
}

// Widen gives each set what it lacks.
func (all SetChanges) Widen() (plan kernel.Plan) {
	for _, c := range all {
		if both := c.Have.Union(c.Want); both != c.Have {
			plan = append(plan, c.step(both))
		}
	}
	return plan
}

// Narrow takes from each set what it is not to have, once all were widened.
func (all SetChanges) Narrow() (plan kernel.Plan) {
	for _, c := range slices.Backward(all) {
		if c.Have.Union(c.Want) != c.Want {
			plan = append(plan, c.step(c.Want))
		}
	}
	return plan
}

// Placement is where a group is to run. An empty set leaves that one as it is.
type Placement struct {
	Group      Group
	CPUs, Mems cpuset.Set
}

// Place plans the sets of several existing groups, of which some may lie within others.
// CPUs that a sibling's partition holds are a kernel.NotSupportedError. Groups that take
// exclusive CPUs from each other need an order besides: see Order.
func Place(placements ...Placement) (kernel.Plan, error) {
	ordered := slices.Clone(placements)
	slices.SortStableFunc(ordered, func(a, b Placement) int { return cmp.Compare(depth(a.Group), depth(b.Group)) })
	var changes SetChanges
	for _, p := range ordered {
		part, err := p.Group.part(CPUSet)
		if err != nil {
			return nil, err
		}
		dir := p.Group.dir(part)
		for _, c := range []SetChange{{File: dir + "/cpuset.mems", Want: p.Mems}, {File: dir + "/cpuset.cpus", Want: p.CPUs}} {
			if c.Want.IsEmpty() {
				continue
			}
			if c.Have, err = p.Group.base.host.set(c.File); err != nil {
				return nil, fmt.Errorf("place group %q: %w", p.Group.rel, err)
			}
			changes = append(changes, c)
		}
		if part.Version == 2 {
			if err := p.Group.base.host.unpartitioned(dir, p.CPUs); err != nil {
				return nil, err
			}
		}
	}
	return changes.Plan(), nil
}

func depth(g Group) int {
	if g.rel == "" {
		return 0
	}
	return 1 + strings.Count(g.rel, "/")
}

func (h *Host) set(name string) (cpuset.Set, error) {
	text, ok, err := h.read(name)
	if err != nil {
		return cpuset.Set{}, err
	}
	if !ok {
		return cpuset.Set{}, fmt.Errorf("/%s: no such file", name)
	}
	return cpuset.Parse(text)
}
