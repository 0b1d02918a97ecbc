package koordinator

import (
	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

// share finds the part of the pool to live in.
func (k *task) share(g *place.Grant, milli int) error {
	g.Share = place.Share{Within: k.pool, Milli: milli}
	if k.r.Class.Traits().Reserved && !k.conf.Reserved.IsEmpty() {
		g.Share.Within = k.conf.Reserved
		if g.Share.Within.Minus(k.s.Owned()).Minus(k.s.Counted()).Minus(g.Own).Minus(g.Fence).IsEmpty() {
			return &place.CPUsError{Asked: 1}
		}
		return nil
	}
	if k.r.Class.Traits().Uncounted {
		g.Share.Milli = 0
		k.sharable = k.sharable.Union(k.s.Lent().Intersect(k.pool)).Union(k.s.Counted().Intersect(k.pool))
	}
	k.sharable = k.sharable.Minus(g.Own).Minus(g.Fence)
	if k.sharable.IsEmpty() {
		return &place.CPUsError{Asked: 1}
	}
	if free := k.worth(k.sharable.Len()) - k.total().Milli; g.Share.Milli > free {
		k.why.Note("CPUs %s have %dm free", k.sharable, free)
		k.why.Lacking(k.t, "CPUs of the shared pool", k.sharable)
		return &place.CPUsError{Asked: milli, Available: max(0, free), Milli: true}
	}
	if k.r.Nodes.IsEmpty() {
		return nil
	}
	within := k.pool.Intersect(k.t.CPUsOf(k.r.Nodes))
	if k.fitsIn(within, g.Share.Milli) {
		g.Share.Within = within
		return nil
	}
	if k.r.NodesRequired {
		k.why.Lacking(k.t, "CPUs to share", k.sharable.Intersect(within))
		return &place.NUMAError{Nodes: k.r.Nodes, Reason: "too little CPU time is free"}
	}
	k.why.Note("the nodes %s have too little CPU time free: the whole pool", k.r.Nodes)
	return nil
}

// fitsIn reports whether the nodes of a part of the pool have time free.
func (k *task) fitsIn(within cpuset.Set, milli int) bool {
	if !within.Overlaps(k.sharable) {
		return false
	}
	shares := k.perNode(within, milli)
	if shares == nil {
		return false
	}
	k.why.Note("milli-CPU by node: %v", shares)
	return true
}

// perNode divides CPU time over the nodes of a part of the pool; nil if they have
// too little. The result is by node position.
func (k *task) perNode(within cpuset.Set, milli int) []int {
	free := k.free(k.sharable.Intersect(within))
	loads := k.loads()
	for i := range free {
		free[i] = max(0, k.worth(free[i])-loads[i].Milli)
	}
	return divide(milli, 1, free)
}

// worth returns the CPU time in thousandths that CPUs are worth to LS.
func (k *task) worth(cpus int) int { return 10 * cpus * k.Amplification }

// cpus returns the CPUs that a load needs.
func (k *task) cpus(l place.Load) int {
	each := k.worth(1)
	return max(min(1, l.Grants), (l.Milli+each-1)/each)
}

// total returns the load of the whole pool.
func (k *task) total() place.Load {
	var sum place.Load
	for b := range k.s.Bounds() {
		if b.Within.Overlaps(k.pool) {
			sum.Grants += b.Grants
			sum.Milli += b.Milli
		}
	}
	return sum
}

// loads returns the load of each node, by position: of the workloads in the pool of
// certain nodes, divided as evenly as the CPUs there allow.
func (k *task) loads() []place.Load {
	loads := make([]place.Load, len(k.nodes()))
	for b := range k.s.Bounds() {
		if b.Within == k.pool || !b.Within.Overlaps(k.pool) {
			continue
		}
		cpus := k.free(k.sharable.Intersect(b.Within))
		for i := range cpus {
			if cpus[i] > 0 {
				loads[i].Grants += b.Grants
			}
			cpus[i] = k.worth(cpus[i])
		}
		if b.BE {
			continue
		}
		for i, milli := range divide(b.Milli, 1, cpus) {
			loads[i].Milli += milli
		}
	}
	return loads
}

// free returns how many CPUs of a set each node has, by position.
func (k *task) free(set cpuset.Set) []int {
	nodes := k.nodes()
	n := make([]int, len(nodes))
	for i := range nodes {
		n[i] = nodes[i].CPUs.Overlap(&set)
	}
	return n
}

// divide splits an amount, in multiples of unit as far as possible, over parts that
// have so much room, as evenly as that allows: the fullest parts first, each
// its fair share of the rest. It is nil if there is too little room.
func divide(amount, unit int, room []int) []int {
	shares := make([]int, len(room))
	left, parts := amount, 0
	for _, n := range room {
		if n > 0 {
			parts++
		}
	}
	for ; parts > 0; parts-- {
		least := -1
		for i, n := range room {
			if n > 0 && shares[i] == 0 && (least < 0 || n < room[least]) {
				least = i
			}
		}
		if least < 0 {
			break
		}
		share := left
		if parts > 1 {
			share = left / unit / parts * unit
		}
		shares[least] = min(share, room[least])
		left -= shares[least]
		if shares[least] == 0 {
			shares[least] = -1 // visited
		}
	}
	for i := range shares { // the rest of rounding to units
		shares[i] = max(0, shares[i])
		more := min(left, room[i]-shares[i])
		shares[i] += more
		left -= more
	}
	if left > 0 {
		return nil
	}
	return shares
}
