package koordinator

import (
	"fmt"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// bind finds n CPUs to bind to, and their idle siblings.
func (k *task) bind(g *place.Grant, n int) error {
	if err := k.prefer(); err != nil {
		return err
	}
	counted := k.byCount()
	from, err := k.usable(n, counted)
	if err != nil {
		k.why.Lacking(k.t, "CPUs to bind", from)
		return err
	}
	cpus, err := k.choose(from, n)
	if err != nil {
		return err
	}
	if !cpus.Contains(k.near) && !k.near.Contains(cpus) {
		return &place.RejectedError{ID: g.ID, Reason: "its CPUs would move"}
	}
	if counted {
		g.Share = place.Share{Within: cpus, Milli: 1000 * n, Counted: true}
	} else {
		g.Own, g.Lent = cpus, k.r.Class.Traits().Lends && k.r.Exclusivity == place.CPULevel
		g.Fence = fence(k.t, cpus, k.r.Exclusivity).Intersect(k.t.Online())
	}
	return k.keepPool(g, cpus)
}

// keepPool refuses a grant that takes CPUs that the workloads in the pool need.
func (k *task) keepPool(g *place.Grant, cpus cpuset.Set) error {
	taken := cpus.Union(g.Fence)
	left := k.sharable.Minus(taken).Len()
	if need := k.cpus(k.total()); left < need && k.sharable.Overlaps(taken) {
		k.why.Note("bound to %s: the shared pool needs %d CPUs, %d are left", cpus, need, left)
		return &place.CPUsError{Asked: cpus.Len(), Available: max(0, k.sharable.Len()-need)}
	}
	for b := range k.s.Bounds() {
		left := b.Within.Minus(k.s.Owned())
		gone := taken
		switch {
		case !b.BE:
			left = left.Minus(k.s.Counted())
		case g.Lent || g.Share.Counted:
			gone = g.Fence
		}
		if b.BE {
			left = left.Union(k.s.Lent().Intersect(b.Within))
		}
		if left.Minus(gone).IsEmpty() {
			return &place.FloorError{CPUs: b.Within}
		}
	}
	return nil
}

// byCount reports whether the request is bound by reference count.
func (k *task) byCount() bool {
	return k.conf.MaxRefs > 1 && !k.r.Class.Traits().WholeCores && k.r.Exclusivity == place.CPULevel &&
		(k.r.Mode != place.Mixed || k.r.Milli%1000 == 0 && k.r.SharedMilli == 0)
}

// fence returns the siblings of cpus that stay idle.
func fence(t *place.Topology, cpus cpuset.Set, level place.Exclusivity) cpuset.Set {
	switch level {
	case place.PCPULevel:
		return t.Touched(machine.Core, cpus).Minus(cpus)
	case place.NUMANodeLevel:
		return t.Touched(machine.Node, cpus).Minus(cpus)
	}
	return cpuset.Set{}
}

// prefer collects the preferred CPUs.
func (k *task) prefer() error {
	if list, ok := k.r.Hints[PreferredCPUs]; ok {
		set, err := cpuset.Parse(list)
		if err != nil {
			return &place.InvalidError{ID: k.r.ID, Reason: "preferred CPUs: " + err.Error()}
		}
		k.preferred = set
	}
	k.preferred = k.preferred.Union(k.s.Reusable(k.r.Group))
	if k.old != nil {
		k.near = k.old.Held()
	}
	return nil
}

// usable returns the CPUs that may be bound.
func (k *task) usable(n int, counted bool) (cpuset.Set, error) {
	from := k.s.OwnableBy(k.r)
	if counted {
		from = k.countable()
	}
	if first, ok := k.pool.First(); ok && !k.conf.NoFloor && !k.pool.Overlaps(k.conf.Floor) {
		from = from.Minus(cpuset.MustOf(first)) // the floor lies outside the pool
	}
	if from = k.spared(from); from.Len() < n {
		return from, &place.CPUsError{Asked: n, Available: from.Len()}
	}
	unit := "core"
	switch k.r.Exclusivity {
	case place.PCPULevel:
		from = k.t.Whole(machine.Core, from)
	case place.NUMANodeLevel:
		from, unit = k.t.Whole(machine.Node, from), "NUMA node"
	}
	if from.Len() < n {
		rule := fmt.Sprintf("others use a part of every other %s (exclusivity %s)", unit, k.r.Exclusivity)
		k.why.Note("%s", rule)
		return from, &place.CPUsError{Asked: n, Available: from.Len(), Rule: place.Rule{Text: rule}}
	}
	if !k.r.BindRequired {
		return from, nil
	}
	switch k.Bind {
	case place.FullPCPUs:
		whole := k.t.Whole(machine.Core, from)
		if _, uniform := k.t.ThreadsPerCore(); whole.Len() < n || uniform && n%k.threads != 0 {
			return whole, &place.SMTError{Asked: n, PerCore: k.threads, Available: whole.Len(), Setting: "bind FullPCPUs, bindRequired"}
		}
		k.preferred = k.t.Whole(machine.Core, k.preferred.Intersect(whole))
		return whole, nil
	case place.SpreadByPCPUs:
		from = k.firstThreads(from)
	}
	if from.Len() < n {
		rule := place.Rule{Text: "SpreadByPCPUs takes one CPU of a core (bind, bindRequired)"}
		return from, &place.CPUsError{Asked: n, Available: from.Len(), Rule: rule}
	}
	return from, nil
}

// countable returns the CPUs that may be bound by one more.
func (k *task) countable() cpuset.Set {
	from := k.conf.Allowed.Minus(k.s.Owned()).Minus(k.conf.Floor)
	if !k.r.Class.Traits().Reserved {
		from = from.Minus(k.conf.Reserved)
	}
	full := k.s.Counted()
	for cpu := range full.Intersect(from).All() {
		if k.s.Refs(cpu) >= k.conf.MaxRefs {
			from = from.Minus(cpuset.MustOf(cpu))
		}
	}
	return from
}

// firstThreads returns one CPU per core: the held or preferred one, else the
// lowest.
func (k *task) firstThreads(from cpuset.Set) cpuset.Set {
	held := k.t.FirstThreads(k.near.Intersect(from))
	for _, set := range []cpuset.Set{k.preferred.Intersect(from), from} {
		held = held.Union(k.t.FirstThreads(set.Minus(k.t.Touched(machine.Core, held))))
	}
	return held
}

// spared returns from without the CPUs that workloads in the pool of certain nodes need.
func (k *task) spared(from cpuset.Set) cpuset.Set {
	var loads []place.Load
	for b := range k.s.Bounds() {
		if b.Within != k.pool && b.Within.Overlaps(k.pool) {
			loads = k.loads()
			break
		}
	}
	nodes := k.nodes()
	for i, l := range loads {
		if l.Grants == 0 {
			continue
		}
		inside := from.Intersect(nodes[i].CPUs)
		shared := inside.Intersect(k.sharable)
		room := max(0, nodes[i].CPUs.Overlap(&k.sharable)-k.cpus(l))
		if room >= shared.Len() {
			continue
		}
		kept, err := k.t.View(shared, cpuset.Set{}).Take(room, []place.Stage{{Name: "core", Kind: machine.Core}}, nil)
		if err != nil {
			kept = cpuset.Set{}
		}
		from = from.Minus(shared).Union(kept)
	}
	return from
}

// choose takes n CPUs from the chosen nodes, or by the strategy.
func (k *task) choose(from cpuset.Set, n int) (cpuset.Set, error) {
	chosen := k.t.CPUsOf(k.r.Nodes)
	if k.r.Nodes.IsEmpty() || !k.r.NodesRequired && !chosen.Contains(k.near) {
		return k.within(from, n, k.Strategy == place.DistributeEvenly)
	}
	inside := from.Intersect(chosen)
	cpus, err := k.within(inside, n, true)
	switch {
	case err == nil:
		return cpus, nil
	case k.r.NodesRequired:
		return cpus, &place.NUMAError{Nodes: k.r.Nodes, Reason: err.Error()}
	}
	k.why.Note("without the asked nodes: %v", err)
	return k.within(from, n, k.Strategy == place.DistributeEvenly)
}

// within takes n CPUs of from, evenly over its nodes or not.
func (k *task) within(from cpuset.Set, n int, evenly bool) (cpus cpuset.Set, err error) {
	if from.Len() < n {
		k.why.Lacking(k.t, "CPUs to bind", from)
		return cpus, &place.CPUsError{Asked: n, Available: from.Len()}
	}
	if k.r.MaxNodes > 0 {
		if from, err = k.fewNodes(from, n, evenly); err != nil {
			return cpus, err
		}
	}
	if evenly {
		cpus = k.evenly(from, n)
	} else {
		cpus = k.preferredFirst(from, n)
	}
	if k.r.BindRequired && k.Bind == place.FullPCPUs && k.t.Whole(machine.Core, cpus) != cpus {
		return cpus, &place.SMTError{Asked: n, PerCore: k.threads, Available: from.Len(), Setting: "bind FullPCPUs, bindRequired"}
	}
	return cpus, nil
}

// fewNodes narrows from to at most MaxNodes nodes that have room; to the fewest
// unless the CPUs are to be distributed.
func (k *task) fewNodes(from cpuset.Set, n int, evenly bool) (cpuset.Set, error) {
	nodes := k.nodes()
	amounts := k.counted()
	c := place.Cover{Need: []int64{int64(n)}, Most: k.r.MaxNodes}
	var at []int
	for i, free := range k.free(from) {
		if free == 0 {
			continue
		}
		has := []int64{int64(free)}
		for _, a := range amounts {
			free, _, ok := k.s.FreeBytes(nodes[i].ID, a.Resource)
			if !ok {
				free = a.Bytes
			}
			has = append(has, free)
		}
		c.Has = append(c.Has, has)
		at = append(at, i)
	}
	for _, a := range amounts {
		c.Need = append(c.Need, a.Bytes)
	}
	if evenly {
		c.Least = min(k.r.MaxNodes, len(at))
	}
	held := k.free(k.near)
	c.Rank = func(set []int) place.Rank {
		var rank place.Rank
		for _, a := range set {
			rank[0] -= held[at[a]]
			for _, b := range set {
				rank[1] += k.t.Distance(at[a], at[b])
			}
			rank[2] += k.sign() * int(c.Has[a][0])
		}
		return rank
	}
	set, _ := c.Best()
	if set == nil {
		k.why.Lacking(k.t, "CPUs to bind", from)
		return from, &place.NUMAError{Reason: fmt.Sprintf("%d CPUs do not fit into %s (maxNodes)", n, plain.Count(k.r.MaxNodes, "NUMA node"))}
	}
	var in cpuset.Set
	for _, a := range set {
		in = in.Union(nodes[at[a]].CPUs)
	}
	k.few = k.t.NodesOf(in)
	k.why.Note("the nodes %s have room", k.few)
	return from.Intersect(in), nil
}

// evenly divides n CPUs over the nodes of from.
func (k *task) evenly(from cpuset.Set, n int) cpuset.Set {
	nodes := k.nodes()
	room, unit := k.free(from), 1
	held := k.near.Intersect(from)
	if k.Bind == place.FullPCPUs && held.IsEmpty() {
		if whole := k.t.Whole(machine.Core, from); whole.Len() >= n {
			room, unit = k.free(whole), k.threads
		}
	}
	var cpus cpuset.Set
	for i, share := range k.shares(n, unit, room, k.free(held)) {
		if share > 0 {
			k.why.Note("%d CPUs from node %d", share, nodes[i].ID)
			cpus = cpus.Union(k.preferredFirst(from.Intersect(nodes[i].CPUs), share))
		}
	}
	return cpus
}

// shares divides n CPUs, so that a workload that grows keeps what it holds
// and one that shrinks takes nothing new.
func (k *task) shares(n, unit int, room, held []int) []int {
	total := 0
	for _, h := range held {
		total += h
	}
	switch {
	case total == 0:
		return divide(n, unit, room)
	case n <= total:
		return divide(n, unit, held)
	}
	more := make([]int, len(room))
	for i := range room {
		more[i] = max(0, room[i]-held[i])
	}
	shares := divide(n-total, unit, more)
	for i := range shares {
		shares[i] += held[i]
	}
	return shares
}

// preferredFirst takes n CPUs of from: first those that are held, then those that
// are preferred.
func (k *task) preferredFirst(from cpuset.Set, n int) cpuset.Set {
	var cpus cpuset.Set
	for _, first := range []cpuset.Set{k.near, k.preferred} {
		if first = first.Intersect(from).Minus(cpus); !first.IsEmpty() {
			cpus = cpus.Union(k.accumulate(first, min(n-cpus.Len(), first.Len())))
		}
	}
	return cpus.Union(k.accumulate(from.Minus(cpus), n-cpus.Len()))
}

// accumulate takes n CPUs of from by the bind policy; there are as many.
func (k *task) accumulate(from cpuset.Set, n int) cpuset.Set {
	switch {
	case n == 0:
		return cpuset.Set{}
	case k.Bind == place.FullPCPUs || k.threads == 1:
		return k.full(from, n)
	}
	return k.spread(from, n)
}
