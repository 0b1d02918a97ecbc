package topologyaware

import (
	"cmp"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// pool is one node of the tree. Parents come before their children.
type pool struct {
	cpus  *cpuset.Set // the topology's own
	size  int
	level Level
	kind  machine.Kind
	at    int // position of the domain; -1 is the whole machine

	parent, child, last, next, children int // places in the tree, -1 none
	depth, id                           int

	free   int // sharable CPUs that nobody owns
	own    int // CPUs that can be owned, as the books go
	iso    int // isolated CPUs that can be owned
	milli  int // shared time taken below
	grants int // sharers below
	room   int // milli-CPU that can be shared, and not less above
	slice  int // CPUs that can be owned and leave enough to sharers
}

// label names a pool by its domain.
func (p *pool) label(t *place.Topology) string {
	if p.at < 0 {
		return "system"
	}
	return t.Label(p.kind, p.at)
}

// plant builds the tree of pools.
func plant(t *place.Topology, online *cpuset.Set) []pool {
	all := candidates(t)
	tree := make([]pool, 1, len(all)+1)
	tree[0] = pool{cpus: online, size: online.Len(), level: System, at: -1, parent: -1, child: -1, last: -1, next: -1}
	if len(t.Units(machine.Socket)) == 1 {
		tree[0].level, tree[0].kind, tree[0].at = Package, machine.Socket, 0
	}
	for i := range all {
		if parent := within(tree, &all[i]); parent >= 0 {
			tree = append(tree, all[i])
			adopt(tree, parent, len(tree)-1)
		}
	}
	tree = prune(tree)
	number(tree, 0, 0)
	return tree
}

// candidates returns the domains that could be pools, the largest first.
func candidates(t *place.Topology) []pool {
	levels := [...]struct {
		kind  machine.Kind
		level Level
	}{{machine.Socket, Package}, {machine.Die, Die}, {machine.Node, NUMA}, {machine.L3, L3Cache}}
	n := 0
	for _, l := range levels {
		n += len(t.Units(l.kind))
	}
	all := make([]pool, 0, n)
	known := false // the memory of nodes
	for i := range t.Units(machine.Node) {
		known = known || t.Units(machine.Node)[i].Bytes > 0
	}
	for _, l := range levels {
		units := t.Units(l.kind)
		for i := range units {
			if units[i].Size == 0 || l.kind == machine.Node && known && units[i].Bytes == 0 {
				continue
			}
			all = append(all, pool{
				cpus: &units[i].CPUs, size: units[i].Size, level: l.level, kind: l.kind, at: i,
				parent: -1, child: -1, last: -1, next: -1,
			})
		}
	}
	bySize := func(a, b pool) int { return cmp.Compare(b.size, a.size) }
	if !slices.IsSortedFunc(all, bySize) {
		slices.SortStableFunc(all, bySize)
	}
	return all
}

// within returns the deepest pool around p; -1 if p is a pool already, or cuts one.
func within(tree []pool, p *pool) int {
	first, _ := p.cpus.First()
	at := 0
	if tree[0].size == p.size {
		return -1
	}
	for {
		into := -1
		for c := tree[at].child; c >= 0; c = tree[c].next {
			if tree[c].cpus.Has(first) {
				into = c
				break
			}
		}
		if into < 0 {
			break
		}
		if tree[into].size == p.size || !tree[into].cpus.Contains(*p.cpus) {
			return -1
		}
		at = into
	}
	for c := tree[at].child; c >= 0; c = tree[c].next {
		if tree[c].cpus.Overlap(p.cpus) > 0 {
			return -1
		}
	}
	return at
}

func adopt(tree []pool, parent, child int) {
	p, c := &tree[parent], &tree[child]
	c.parent, c.next = parent, -1
	if p.child < 0 {
		p.child = child
	} else {
		tree[p.last].next = child
	}
	p.last = child
	p.children++
}

// prune takes out pools that are the only one of their parent.
func prune(tree []pool) []pool {
	if !slices.ContainsFunc(tree, func(p pool) bool { return p.children == 1 }) {
		return tree
	}
	kept := make([]pool, 0, len(tree))
	moved := make([]int, len(tree))
	for i, p := range tree {
		parent := p.parent
		if parent >= 0 && tree[parent].children == 1 {
			moved[i] = moved[parent]
			continue
		}
		moved[i] = len(kept)
		p.child, p.last, p.next, p.children = -1, -1, -1, 0
		kept = append(kept, p)
		if parent >= 0 {
			adopt(kept, moved[parent], len(kept)-1)
		}
	}
	return kept
}

// number sets depths, and ids by a walk in which children come before parents.
func number(tree []pool, at, next int) int {
	for c := tree[at].child; c >= 0; c = tree[c].next {
		tree[c].depth = tree[at].depth + 1
		next = number(tree, c, next)
	}
	tree[at].id = next
	return next + 1
}

// locate returns the deepest pool around a set that is not empty.
func locate(tree []pool, cpus *cpuset.Set) int {
	first, _ := cpus.First()
	for at := 0; ; {
		into := -1
		for c := tree[at].child; c >= 0; c = tree[c].next {
			if tree[c].cpus.Has(first) {
				into = c
				break
			}
		}
		if into < 0 || !tree[into].cpus.Contains(*cpus) {
			return at
		}
		at = into
	}
}
