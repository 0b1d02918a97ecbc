package place

import (
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
	return s.RefitMemory(nodes, nil, amounts)
}

// RefitMemoryWithin is RefitMemory with no other nodes than those of within.
func (s *State) RefitMemoryWithin(within, nodes cpuset.Set, had []Block, amounts []Amount) (mems cpuset.Set, blocks []Block, err error) {
	had = slices.DeleteFunc(slices.Clone(had), func(b Block) bool { return !within.Has(b.Node) })
	return s.fitMemory(within, nodes, had, amounts)
}

// RefitMemory is FitMemory for a workload that had blocks, which s counts as free. It
// keeps them, without the last of the memory that the amounts no longer need, and finds
// the rest near the nodes and those of the kept blocks.
func (s *State) RefitMemory(nodes cpuset.Set, had []Block, amounts []Amount) (mems cpuset.Set, blocks []Block, err error) {
	return s.fitMemory(cpuset.Set{}, nodes, had, amounts)
}

// fitMemory looks on no other nodes than those of within, if any.
func (s *State) fitMemory(within, nodes cpuset.Set, had []Block, amounts []Amount) (mems cpuset.Set, blocks []Block, err error) {
	left := slices.Clone(amounts)
	for i := range left {
		a := &left[i]
		for _, b := range had {
			if b.Resource == a.Resource && a.Bytes > 0 {
				b.Bytes = min(b.Bytes, a.Bytes)
				a.Bytes -= b.Bytes
				blocks = append(blocks, b)
				nodes, _ = nodes.With(b.Node)
			}
		}
	}
	mems = nodes
	var order []int
	for _, a := range left {
		if a.Bytes == 0 || s.unlimited(a.Resource) {
			continue
		}
		if order == nil {
			order = s.t.nearestTo(nodes)
		}
		asked, had := a.Bytes, int64(0)
		for _, pos := range order {
			node := s.t.units[machine.Node][pos].ID
			if !within.IsEmpty() && !within.Has(node) {
				continue
			}
			free, _, _ := s.FreeBytes(node, a.Resource)
			at := -1
			for i, b := range blocks {
				if b.Node == node && b.Resource == a.Resource {
					free -= b.Bytes
					at = i
				}
			}
			if free <= 0 {
				continue
			}
			got := min(free, a.Bytes)
			had += got
			a.Bytes -= got
			if at >= 0 {
				blocks[at].Bytes += got
			} else {
				blocks = append(blocks, Block{node, a.Resource, got})
			}
			mems, _ = mems.With(node)
			if a.Bytes == 0 {
				break
			}
		}
		if a.Bytes > 0 {
			return cpuset.Set{}, nil, &MemoryError{Resource: a.Resource, Asked: asked, Available: had}
		}
	}
	return mems, blocks, nil
}

// Nearest returns those of the nodes, by their numbers, that are nearest to a NUMA node with a CPU of
// the set; all of them if none has one.
func (t *Topology) Nearest(nodes, cpus cpuset.Set) (nearest cpuset.Set) {
	for from := range t.NodesOf(cpus).All() {
		best := 1 << 30
		var some cpuset.Set
		for to := range nodes.All() {
			a, ok := t.Node(from)
			b, there := t.Node(to)
			switch {
			case !ok || !there || t.dist[a][b] > best:
				continue
			case t.dist[a][b] < best:
				best, some = t.dist[a][b], cpuset.Set{}
			}
			some, _ = some.With(to)
		}
		nearest = nearest.Union(some)
	}
	if nearest.IsEmpty() {
		return nodes
	}
	return nearest
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
