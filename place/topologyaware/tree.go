package topologyaware

import (
	"cmp"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// pool is one node of the tree.
type pool struct {
	cpus  cpuset.Set
	size  int
	level Level
	kind  machine.Kind
	at    int // position of the domain; -1 is the whole machine

	parent    int // position in the tree, -1 for none
	children  []int
	depth, id int

	nodes cpuset.Set // the NUMA nodes of its CPUs
	mems  cpuset.Set // the nodes with memory or, if no node has, all of them
}

// label names a pool by its domain.
func (p *pool) label(t *place.Topology) string {
	if p.at < 0 {
		return "system"
	}
	return t.Label(p.kind, p.at)
}

// tree is the pools of a machine, by position; parents come before their children.
// It is made once for each machine.
type tree struct {
	t     *place.Topology
	pools []pool
	inner []int16 // by core: the deepest pool around it
}

// plant builds the tree of pools.
func plant(t *place.Topology) tree {
	all := candidates(t)
	tr := tree{t: t, pools: all[:1], inner: make([]int16, len(t.Units(machine.Core)))}
	for i := 1; i < len(all); i++ {
		parent := tr.within(&all[i])
		if parent < 0 {
			continue
		}
		at := len(tr.pools)
		tr.pools = append(tr.pools, all[i])
		adopt(tr.pools, parent, at)
		for _, core := range t.Cores(all[i].kind, all[i].at) {
			tr.inner[core] = int16(at)
		}
	}
	tr.prune()
	number(tr.pools, 0, 0)
	for i := range tr.pools {
		tr.pools[i].survey(t)
	}
	return tr
}

// survey looks up the NUMA nodes of a pool.
func (p *pool) survey(t *place.Topology) {
	p.nodes = t.NodesOf(p.cpus)
	for _, u := range t.Units(machine.Node) {
		if u.Bytes > 0 && p.nodes.Has(u.ID) {
			p.mems, _ = p.mems.With(u.ID)
		}
	}
	if p.mems.IsEmpty() {
		p.mems = p.nodes
	}
}

// candidates returns the domains that could be pools, the largest first, after the
// whole machine.
func candidates(t *place.Topology) []pool {
	levels := [...]struct {
		kind  machine.Kind
		level Level
	}{{machine.Socket, Package}, {machine.Die, Die}, {machine.Node, NUMA}, {machine.L3, L3Cache}}
	all := []pool{{cpus: t.Online(), size: t.Online().Len(), level: System, at: -1, parent: -1}}
	if len(t.Units(machine.Socket)) == 1 {
		all[0].level, all[0].kind, all[0].at = Package, machine.Socket, 0
	}
	known := slices.ContainsFunc(t.Units(machine.Node), func(u place.Unit) bool { return u.Bytes > 0 }) // memory of nodes
	for _, l := range levels {
		units := t.Units(l.kind)
		for i := range units {
			if units[i].Size == 0 || l.kind == machine.Node && known && units[i].Bytes == 0 {
				continue
			}
			all = append(all, pool{cpus: units[i].CPUs, size: units[i].Size, level: l.level, kind: l.kind, at: i, parent: -1})
		}
	}
	slices.SortStableFunc(all[1:], func(a, b pool) int { return cmp.Compare(b.size, a.size) })
	return all
}

// within returns the deepest pool around p; -1 if p is a pool already, or cuts one.
func (tr *tree) within(p *pool) int {
	at := tr.start(&p.cpus)
	around := &tr.pools[at]
	if around.size == p.size || around.cpus.Overlap(&p.cpus) < p.size {
		return -1
	}
	for _, c := range around.children {
		if tr.pools[c].kind != p.kind && tr.pools[c].cpus.Overlap(&p.cpus) > 0 {
			return -1 // those of a kind are disjoint
		}
	}
	return at
}

// start returns the deepest pool around the lowest CPU of a set.
func (tr *tree) start(cpus *cpuset.Set) int {
	first, _ := cpus.First()
	return int(tr.inner[tr.t.At(machine.Core, first)])
}

// locate returns the deepest pool around a set of online CPUs that is not empty.
func (tr *tree) locate(cpus *cpuset.Set) int {
	at, n := tr.start(cpus), cpus.Len()
	for at > 0 && tr.pools[at].cpus.Overlap(cpus) < n {
		at = tr.pools[at].parent
	}
	return at
}

func adopt(pools []pool, parent, child int) {
	pools[child].parent = parent
	pools[parent].children = append(pools[parent].children, child)
}

// prune takes out pools that are the only one of their parent.
func (tr *tree) prune() {
	if !slices.ContainsFunc(tr.pools, func(p pool) bool { return len(p.children) == 1 }) {
		return
	}
	kept := make([]pool, 0, len(tr.pools))
	moved := make([]int, len(tr.pools))
	for i, p := range tr.pools {
		parent := p.parent
		if parent >= 0 && len(tr.pools[parent].children) == 1 {
			moved[i] = moved[parent]
			continue
		}
		moved[i] = len(kept)
		p.children = nil
		kept = append(kept, p)
		if parent >= 0 {
			adopt(kept, moved[parent], len(kept)-1)
		}
	}
	tr.pools = kept
	for i, at := range tr.inner {
		tr.inner[i] = int16(moved[at])
	}
}

// number sets depths, and ids by a walk in which children come before parents.
func number(pools []pool, at, next int) int {
	for _, c := range pools[at].children {
		pools[c].depth = pools[at].depth + 1
		next = number(pools, c, next)
	}
	pools[at].id = next
	return next + 1
}
