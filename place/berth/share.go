package berth

import (
	"fmt"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// share finds the part of the default pool to live in, and its NUMA nodes. near
// are the nodes of own CPUs.
func (k *task) share(g *place.Grant, milli int, near cpuset.Set) (nodes cpuset.Set, err error) {
	g.Share = place.Share{Within: k.pool, Milli: milli}
	reserved := k.s.Config().Reserved
	switch {
	case k.r.Class.Traits().Reserved && !reserved.IsEmpty():
		g.Share.Within = reserved
		return k.t.NodesOf(reserved), nil
	case k.r.NodesRequired:
		g.Share.Within = k.pool.Intersect(k.t.CPUsOf(k.r.Nodes))
		if left := g.Share.Within.Intersect(k.sharable).Minus(g.Own).Minus(g.Fence); left.IsEmpty() {
			return nodes, &place.NUMAError{Nodes: k.r.Nodes, Reason: "no CPU is left to share"}
		}
	}
	if k.r.Class.Traits().Uncounted {
		g.Share.Milli = 0
		return k.memoryNodes(g.Share.Within), nil
	}
	k.sharable = k.sharable.Minus(g.Own).Minus(g.Fence)
	if free := 1000*k.sharable.Len() - k.total.Milli; milli > free {
		k.why.Nodes(k.t, "node to share", func(pos int) string { return k.little(min(free, k.freeMilli(pos))) })
		return nodes, &place.CPUsError{Asked: milli, Available: max(0, free), Milli: true}
	}
	if milli == 0 {
		return k.memoryNodes(g.Share.Within), nil
	}
	if k.old != nil && k.fitsStill(g, milli) {
		g.Share.Within = k.old.Share.Within
		return k.t.NodesOf(g.Share.Within), nil
	}
	return k.chooseNode(g, milli, near)
}

// memoryNodes returns the nodes to start from for memory. The empty set means any
// node; it is returned where the request asks for no memory.
func (k *task) memoryNodes(cpus cpuset.Set) cpuset.Set {
	if len(k.r.Memory) == 0 && len(k.r.Devices) == 0 {
		return cpuset.Set{}
	}
	return k.t.NodesOf(cpus)
}

// fitsStill reports whether the share can stay where it is.
func (k *task) fitsStill(g *place.Grant, milli int) bool {
	within := k.old.Share.Within
	if within.IsEmpty() || k.r.NodesRequired && !g.Share.Within.Contains(within) {
		return false
	}
	if pos := k.t.NodeAround(within); pos >= 0 {
		return milli <= k.freeMilli(pos)
	}
	return milli <= k.freeWithin(&within)
}

// freeMilli returns the time of the pool that is free on a node.
func (k *task) freeMilli(pos int) int {
	node := &k.t.Units(machine.Node)[pos].CPUs
	return k.freeAround(node, 1000*node.Overlap(&k.sharable)-k.shared[pos].Milli)
}

// freeWithin returns the time that is free in a part of the pool.
func (k *task) freeWithin(part *cpuset.Set) int {
	taken, _ := k.s.SharedMilli(*part)
	return k.freeAround(part, 1000*part.Overlap(&k.sharable)-taken)
}

// freeAround lowers the time that is free in a part of the pool to that of each bound on
// several nodes that has the part in it.
func (k *task) freeAround(part *cpuset.Set, free int) int {
	for _, b := range k.wide {
		if b.Within.Contains(part.Intersect(k.sharable)) {
			taken, _ := k.s.SharedMilli(b.Within)
			free = min(free, 1000*b.Within.Overlap(&k.sharable)-taken)
		}
	}
	return free
}

// chooseNode looks for the node whose pool has room for the share. If no node has,
// it keeps the bound of g.
func (k *task) chooseNode(g *place.Grant, milli int, near cpuset.Set) (cpuset.Set, error) {
	units := k.t.Units(machine.Node)
	var few [16]int
	free := append(few[:0], make([]int, len(units))...)
	c := place.Choice{
		Name:     "node to share",
		Criteria: []string{"not among own nodes", "not among preferred nodes", "devices far away", "MiB from elsewhere", "repulsion", "free after"},
		Count:    len(units),
		Fits: func(i int) string {
			inside := units[i].CPUs.Overlap(&g.Share.Within)
			free[i] = k.freeMilli(i)
			switch {
			case inside == 0:
				return "outside"
			case k.r.LimitMilli > 1000*inside:
				return "smaller than the limit"
			case milli > free[i]:
				return k.little(free[i])
			}
			return ""
		},
		Rank: func(i int) place.Rank {
			left := free[i] - milli
			if k.strategy == place.LeastAllocated || k.strategy == place.DistributeEvenly {
				left = -left
			}
			node := units[i].ID
			far, short := k.farAndShort([]int{i})
			return place.Rank{miss(&near, node), miss(&k.r.Nodes, node), far, short, k.repulsion(i), left}
		},
		Label: func(i int) string { return k.t.Label(machine.Node, i) },
	}
	if pos := c.Best(k.why); pos >= 0 {
		g.Share.Within = g.Share.Within.Intersect(units[pos].CPUs)
		return cpuset.MustOf(units[pos].ID), nil
	}
	if g.Share.Within != k.pool && milli > k.freeWithin(&g.Share.Within) {
		return cpuset.Set{}, &place.NUMAError{Nodes: k.r.Nodes, Reason: "too little time is free"}
	}
	k.why.Note("no node has room: the whole pool")
	return k.t.NodesOf(g.Share.Within), nil
}

// little says that a node has too little time free.
func (k *task) little(free int) string {
	if k.why == nil {
		return "too little time free" // no explanation is asked for
	}
	return fmt.Sprintf("%dm free", max(0, free))
}

// miss is 1 where wanted names nodes but not this one.
func miss(wanted *cpuset.Set, node int) int {
	if wanted.Has(node) || wanted.IsEmpty() {
		return 0
	}
	return 1
}

func (k *task) repulsion(pos int) int {
	if k.pull == nil {
		return 0
	}
	return -k.pull[pos]
}

// farAndShort returns how many of the asked devices, and MiB of memory, would
// come from outside a set of nodes, by position. Devices and memory that the
// workload holds already do not count.
func (k *task) farAndShort(set []int) (far, short int) {
	if k.old != nil || len(k.r.Devices) == 0 && len(k.r.Memory) == 0 {
		return 0, 0
	}
	nodes := k.numbers(set)
	if len(k.r.Devices) > 0 {
		_, far, _ = k.s.FitDevices(nodes, k.r.Devices)
	}
	if len(k.r.Memory) > 0 {
		short = int((k.s.Shortage(nodes, k.r.Memory) + 1<<20 - 1) >> 20)
	}
	return far, short
}

// numbers returns the kernel's numbers of nodes given by position.
func (k *task) numbers(set []int) cpuset.Set {
	var ids cpuset.Set
	for _, pos := range set {
		ids, _ = ids.With(k.t.Units(machine.Node)[pos].ID)
	}
	return ids
}
