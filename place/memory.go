package place

import (
	"fmt"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
)

// FreeBytes returns how much of a resource a NUMA node, by number, has free and has
// in total; ok is false where that is unknown.
func (s *State) FreeBytes(node int, resource string) (free, total int64, ok bool) {
	i, ok := s.cell(node, resource)
	if !ok {
		return 0, 0, false
	}
	return s.free[i], s.total[i], true
}

// Resources returns the names of the resources of NUMA nodes, sorted.
func (s *State) Resources() []string { return s.resources }

// unlimited reports whether a resource is not counted at all.
func (s *State) unlimited(resource string) bool {
	_, known := slices.BinarySearch(s.resources, resource)
	return resource == Memory && !known
}

// Shortage returns how many bytes of the amounts the NUMA nodes (by number) lack.
func (s *State) Shortage(nodes cpuset.Set, amounts []Amount) int64 {
	var short int64
	for i := range amounts {
		a := &amounts[i]
		if s.unlimited(a.Resource) {
			continue
		}
		left := a.Bytes
		for node := range nodes.All() {
			if free, _, ok := s.FreeBytes(node, a.Resource); ok {
				left -= free
			}
		}
		short += max(0, left)
	}
	return short
}

// FitMemory finds room for amounts: first on the given NUMA nodes (by number,
// rising), then on the others, nearest first. Mems are the given nodes and those
// used besides; blocks say how much comes from where. Nothing is taken yet.
// *MemoryError if the machine has too little.
func (s *State) FitMemory(nodes cpuset.Set, amounts []Amount) (mems cpuset.Set, blocks []Block, err error) {
	mems = nodes
	var order []int
	for i := range amounts {
		a := &amounts[i]
		if a.Bytes == 0 || s.unlimited(a.Resource) {
			continue
		}
		if order == nil {
			order = s.t.nearestTo(nodes)
		}
		left, had := a.Bytes, int64(0)
		for _, pos := range order {
			node := s.t.units[machine.Node][pos].ID
			free, _, _ := s.FreeBytes(node, a.Resource)
			for _, b := range blocks {
				if b.Node == node && b.Resource == a.Resource {
					free -= b.Bytes
				}
			}
			if free <= 0 {
				continue
			}
			got := min(free, left)
			had += got
			left -= got
			blocks = append(blocks, Block{node, a.Resource, got})
			mems, _ = mems.With(node)
			if left == 0 {
				break
			}
		}
		if left > 0 {
			return cpuset.Set{}, nil, &MemoryError{Resource: a.Resource, Asked: a.Bytes, Available: had}
		}
	}
	return mems, blocks, nil
}

// RefitMemory is FitMemory for a workload that holds blocks. It keeps them, frees
// from the last of them the memory that the amounts no longer need, and finds the
// rest near the nodes and those of the kept blocks.
func (s *State) RefitMemory(nodes cpuset.Set, held []Block, amounts []Amount) (mems cpuset.Set, blocks []Block, err error) {
	if len(held) == 0 {
		return s.FitMemory(nodes, amounts)
	}
	var more []Amount
	for _, a := range amounts {
		for _, b := range held {
			if b.Resource == a.Resource && a.Bytes > 0 {
				b.Bytes = min(b.Bytes, a.Bytes)
				a.Bytes -= b.Bytes
				blocks = append(blocks, b)
				nodes, _ = nodes.With(b.Node)
			}
		}
		more = append(more, a)
	}
	mems, added, err := s.FitMemory(nodes, more)
	if err != nil {
		return cpuset.Set{}, nil, err
	}
	for _, b := range added {
		at := slices.IndexFunc(blocks, func(o Block) bool { return o.Node == b.Node && o.Resource == b.Resource })
		if at >= 0 {
			blocks[at].Bytes += b.Bytes
		} else {
			blocks = append(blocks, b)
		}
	}
	return mems, blocks, nil
}

// explainMemory adds how much each node has left of a resource that was refused.
func (s *State) explainMemory(why *Why, resource string) {
	units := s.t.units[machine.Node]
	c := Choice{
		Name: resource, Count: len(units),
		Fits: func(pos int) string {
			free, total, ok := s.FreeBytes(units[pos].ID, resource)
			if !ok {
				return "has none"
			}
			return fmt.Sprintf("%d of %d bytes free", free, total)
		},
		Label: func(pos int) string { return s.t.Label(machine.Node, pos) },
	}
	c.Best(why)
}

// nearestTo returns all node positions: those of the set first, by number, then
// the others by their distance to the nearest of the set.
func (t *Topology) nearestTo(nodes cpuset.Set) []int {
	units := t.units[machine.Node]
	order, dist := make([]int, len(units)), make([]int, len(units))
	for i := range units {
		order[i], dist[i] = i, 1<<30
		for j := range units {
			if nodes.Has(units[j].ID) {
				dist[i] = min(dist[i], t.dist[j][i])
			}
		}
		if nodes.Has(units[i].ID) {
			dist[i] = -1
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return dist[a] - dist[b] })
	return order
}
