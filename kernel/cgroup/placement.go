package cgroup

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
)

// Placement is where a group is to run. An empty set leaves that one as it is.
type Placement struct {
	Group      Group
	CPUs, Mems cpuset.Set
}

// Place plans the sets of several existing groups, of which some may lie within others.
// A v1 set must hold those of its children and lie within its parent's at any
// time, so each is first widened to old and new together, from the top down,
// and then narrowed to the new one, from the bottom up. Undo goes the same way
// back. CPUs that a sibling's partition holds are a kernel.NotSupportedError.
func Place(placements ...Placement) (kernel.Plan, error) {
	ordered := slices.Clone(placements)
	slices.SortStableFunc(ordered, func(a, b Placement) int { return cmp.Compare(depth(a.Group), depth(b.Group)) })
	var widen, narrow kernel.Plan
	for _, p := range ordered {
		for _, kind := range []struct {
			file string
			want cpuset.Set
		}{{"cpuset.mems", p.Mems}, {"cpuset.cpus", p.CPUs}} {
			if kind.want.IsEmpty() {
				continue
			}
			part, err := p.Group.part(CPUSet)
			if err != nil {
				return nil, err
			}
			file := p.Group.dir(part) + "/" + kind.file
			have, err := p.Group.base.host.set(file)
			if err != nil {
				return nil, fmt.Errorf("place group %q: %w", p.Group.rel, err)
			}
			if kind.file == "cpuset.cpus" && part.Version == 2 {
				if err := p.Group.base.host.unpartitioned(p.Group.dir(part), kind.want); err != nil {
					return nil, err
				}
			}
			both := have.Union(kind.want)
			if both != have {
				widen = append(widen, kernel.Step{Path: file, Value: both.String(), Format: kernel.List})
			}
			if both != kind.want {
				narrow = append(narrow, kernel.Step{Path: file, Value: kind.want.String(), Format: kernel.List})
			}
		}
	}
	slices.Reverse(narrow)
	return append(widen, narrow...), nil
}

func depth(g Group) int {
	if g.rel == "" {
		return 0
	}
	return 1 + strings.Count(g.rel, "/")
}

// set reads a file that holds a set.
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
