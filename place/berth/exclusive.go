package berth

import (
	"fmt"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// search is one search for n exclusive CPUs among those of a view.
type search struct {
	*task
	n      int
	held   int   // CPUs that stay, besides
	fenced []int // by node position: CPUs that a fence may take besides
	v      *place.View
	room   []int   // by node position: most CPUs that may be taken there
	pieces []piece // by node, then by L3
	of     []int   // by node position: first of its pieces; one more at the end
}

// exclusive finds the own CPUs of a grant, and their fence.
func (k *task) exclusive(g *place.Grant, n int) error {
	whole, err := k.wholeCores(n)
	if err != nil {
		return err
	}
	base := k.ownable(whole)
	if k.old != nil && !k.old.Own.IsEmpty() && k.r.Class == k.old.Request.Class {
		g.Own, err = k.resize(base, n)
	} else {
		g.Own, err = k.fresh(base, n)
	}
	if err != nil {
		return err
	}
	g.Lent = k.r.Class.Traits().Lends && k.r.Exclusivity == place.CPULevel
	k.fence(g)
	return k.nobodySqueezed(g)
}

// wholeCores reports whether only wholly free cores will do.
func (k *task) wholeCores(n int) (bool, error) {
	threads, uniform := k.t.ThreadsPerCore()
	if k.r.Bind == place.FullPCPUs && k.r.BindRequired {
		if uniform && n%threads != 0 {
			return false, &place.SMTError{Asked: n, PerCore: threads, Setting: "bind FullPCPUs, bindRequired"}
		}
		return true, nil
	}
	return k.r.Class.Traits().WholeCores || k.r.Exclusivity != place.CPULevel, nil
}

// ownable returns the CPUs that k may own, including those that it holds.
func (k *task) ownable(whole bool) cpuset.Set {
	base := k.s.OwnableBy(k.r)
	if k.old != nil {
		base = base.Union(k.old.Own).Union(k.old.Fence)
	}
	if whole {
		base = k.t.Whole(machine.Core, base)
	}
	return base
}

// fresh looks for n CPUs with all preferences, then drops one after the other.
func (k *task) fresh(base cpuset.Set, n int) (own cpuset.Set, err error) {
	preferred, required := k.preferences()
	base = k.keep(base, required)
	for wanted := len(preferred); ; wanted-- {
		from := k.keep(base, preferred[:wanted])
		if wanted == len(preferred) || from.Len() >= n {
			if own, err = k.search(from, n); err == nil {
				return k.bySpeed(from, own, n), nil
			}
		}
		if wanted == 0 {
			return own, err
		}
		k.why.Note("without %s: %v", preferred[wanted-1], err)
	}
}

// bySpeed replaces CPUs that were found by others of the same NUMA nodes, where cores differ
// in how fast they are made to be: the fastest for LSE, the slowest for BE.
func (k *task) bySpeed(from, own cpuset.Set, n int) cpuset.Set {
	speeds := k.t.Speeds()
	if len(speeds) < 2 || k.r.CoreKind != "" && !k.t.OfKind(k.r.CoreKind).IsEmpty() || k.r.Class != place.LSE && k.r.Class != place.BE {
		return own
	}
	word := "fastest"
	if k.r.Class == place.BE {
		word, speeds = "slowest", slices.Clone(speeds)
		slices.Reverse(speeds)
	}
	near := from.Intersect(k.t.CPUsOf(k.t.NodesOf(own)))
	var wanted cpuset.Set
	for _, cpus := range speeds {
		wanted = wanted.Union(cpus)
		if wanted.Contains(own) {
			break
		}
		if among := near.Intersect(wanted); among.Len() >= n {
			k.why.Note("class %s: looking among the %s cores there, CPUs %s", k.r.Class, word, among)
			if better, err := k.search(among, n); err == nil {
				return better
			}
		}
	}
	return own
}

// search finds n CPUs of from.
func (k *task) search(from cpuset.Set, n int) (cpuset.Set, error) {
	v := k.t.View(from, cpuset.Set{})
	h := &search{task: k, n: n, v: v}
	if err := h.limits(&from); err != nil {
		return cpuset.Set{}, err
	}
	return h.choose(v)
}

// choose takes the CPUs from the best nodes.
func (h *search) choose(v *place.View) (cpuset.Set, error) {
	h.survey()
	if pos := h.single(); pos >= 0 {
		return h.takeIn(v, []int{pos})
	}
	set, err := h.several()
	if err != nil {
		return cpuset.Set{}, err
	}
	return h.takeIn(v, set)
}

// limits computes how many CPUs may be taken from each node. It refuses a request
// that is too large for the whole machine.
func (h *search) limits(from *cpuset.Set) error {
	nodes := h.t.Units(machine.Node)
	room := make([]int, 2*len(nodes))
	h.room, h.fenced = room[:len(nodes):len(nodes)], room[len(nodes):]
	h.fences()
	all, shared := 0, from.Overlap(&h.pool) > 0
	for i := range nodes {
		free := h.v.FreeIn(machine.Node, i)
		if free > 0 && shared {
			if l := h.shared[i].CPUs(); l > 0 {
				free = min(free, nodes[i].CPUs.Overlap(&h.sharable)-l-h.fenced[i])
			}
		}
		if h.r.Exclusivity == place.NUMANodeLevel && !h.clear(i) {
			free = 0
		}
		h.room[i] = free
	}
	if shared {
		h.constrain(from)
	}
	whole := h.inWholeCores()
	for i := range h.room {
		h.room[i] = max(0, h.room[i])
		if whole && h.ones(i) == 0 {
			threads, _ := h.t.ThreadsPerCore()
			h.room[i] -= h.room[i] % threads // the pool cannot use the rest of a core
		}
		all += h.room[i]
	}
	if shared {
		all = min(all, h.sharable.Len()-h.total.CPUs()-slices.Min(h.fenced))
	}
	for i := range h.room {
		h.room[i] = min(h.room[i], max(0, all))
	}
	if h.n > all {
		if h.why != nil {
			h.single() // records why no node holds it
		}
		if h.r.Exclusivity == place.NUMANodeLevel {
			return &place.NUMAError{Reason: "too few CPUs in nodes that nobody else uses"}
		}
		if h.r.Bind == place.FullPCPUs && h.r.BindRequired {
			threads, _ := h.t.ThreadsPerCore()
			return &place.SMTError{Asked: h.held + h.n, PerCore: threads, Available: h.held + max(0, all), Setting: "bind FullPCPUs, bindRequired"}
		}
		return &place.CPUsError{Asked: h.held + h.n, Available: h.held + max(0, all), Rule: h.rule(whole)}
	}
	return nil
}

// fences computes how many idle siblings the request may take from the pool: the
// rest of the last core, unless the node has cores with one CPU to take, which make
// up an odd number.
func (h *search) fences() {
	if !h.r.Class.Traits().WholeCores && h.r.Exclusivity == place.CPULevel {
		return
	}
	threads, _ := h.t.ThreadsPerCore()
	odd := h.n % threads
	for i := range h.fenced {
		switch {
		case h.r.Bind == place.SpreadByPCPUs:
			h.fenced[i] = h.n * (threads - 1)
		case odd > 0 && h.ones(i) < odd:
			h.fenced[i] = threads - odd
		}
	}
}

// inWholeCores reports whether the request takes nothing but whole cores.
func (h *search) inWholeCores() bool {
	whole, err := h.wholeCores(h.n)
	threads, _ := h.t.ThreadsPerCore()
	return whole && err == nil && h.n%threads == 0 && h.r.Bind != place.SpreadByPCPUs
}

// ones counts the cores of a node with one CPU to take; their other CPUs are
// isolated.
func (h *search) ones(node int) int {
	n := 0
	for _, core := range h.t.Cores(machine.Node, node) {
		if h.v.FreeIn(machine.Core, int(core)) == 1 {
			n++
		}
	}
	return n
}

// constrain lowers the room of nodes whose CPUs a bound on several nodes, or the
// whole pool, needs.
func (h *search) constrain(from *cpuset.Set) {
	nodes := h.t.Units(machine.Node)
	lower := func(within *cpuset.Set, need int) {
		left := within.Overlap(&h.sharable)
		for i := range nodes {
			switch inside := nodes[i].CPUs.Overlap(within); {
			case inside == 0 || h.room[i] <= 0:
			case h.r.Exclusivity == place.NUMANodeLevel:
				if taken := within.Intersect(h.sharable); left-taken.Overlap(&nodes[i].CPUs) < need {
					h.room[i] = 0
				}
			default:
				h.room[i] = min(h.room[i], left-need-h.fenced[i]+nodes[i].Size-inside)
			}
		}
	}
	lower(&h.pool, h.total.CPUs())
	for b := range h.s.Bounds() {
		if b.Node >= 0 || b.Within == h.pool || b.Within.Overlap(from) == 0 {
			continue // limits knows those of one node
		}
		milli, _ := h.s.SharedMilli(b.Within)
		lower(&b.Within, max(1, place.WholeCPUs(milli)))
	}
}

// clear reports whether no workload uses a node.
func (h *search) clear(pos int) bool {
	node := h.t.Units(machine.Node)[pos].CPUs
	conf := h.s.Config()
	return h.shared[pos].Grants == 0 && h.ownable(false).Contains(node.Intersect(conf.Allowed))
}

// single returns the best node that has room for all n CPUs, -1 if no node has.
func (h *search) single() int {
	c := place.Choice{
		Name: "node", Count: len(h.room),
		Criteria: []string{
			"devices far away", "MiB from elsewhere", "repulsion", "distance", "asked strategy",
			"L3 domains", "split cores", "whole cores opened", "whole L3 domains opened", "left over",
		},
		Fits: func(i int) string {
			if h.room[i] < h.n {
				return h.small(i)
			}
			return ""
		},
		Rank:  func(i int) place.Rank { return h.rank([]int{i}) },
		Tie:   func(i int) int { return h.t.Units(machine.Node)[i].First },
		Label: func(i int) string { return h.t.Label(machine.Node, i) },
	}
	return c.Best(h.why)
}

// small says why a node cannot hold the request.
func (h *search) small(pos int) string {
	switch free := h.v.FreeIn(machine.Node, pos); {
	case h.why == nil:
		return "too little room" // no explanation is asked for
	case h.room[pos] == free:
		return fmt.Sprintf("%d CPUs free", free)
	case h.r.Exclusivity == place.NUMANodeLevel && !h.clear(pos):
		return "used by others"
	default:
		return fmt.Sprintf("room for %d of %d free CPUs, the shared pool needs the rest", h.room[pos], free)
	}
}

// several returns the best of the smallest sets of nodes that have room.
func (h *search) several() ([]int, error) {
	tooFew := func() error {
		return &place.NUMAError{Reason: fmt.Sprintf("%d CPUs do not fit into %s (maxNodes)", h.n, plain.Count(h.r.MaxNodes, "NUMA node"))}
	}
	if h.r.MaxNodes == 1 {
		return nil, tooFew()
	}
	room := make([]int64, len(h.room))
	has := make([][]int64, len(h.room))
	for i := range room {
		room[i] = int64(h.room[i])
		has[i] = room[i : i+1]
	}
	c := place.Cover{Need: []int64{int64(h.n)}, Has: has, Rank: h.rank, Most: h.r.MaxNodes}
	set, _ := c.Best()
	if set == nil {
		return nil, tooFew()
	}
	if h.why != nil {
		h.why.Note("no node has room for all: the nodes %s together", h.numbers(set))
	}
	return set, nil
}

// rank ranks a set of nodes, by position.
func (h *search) rank(set []int) place.Rank {
	var rank place.Rank
	rank[0], rank[1] = h.farAndShort(set)
	left := -h.n
	for _, a := range set {
		rank[2] += h.repulsion(a)
		left += h.v.FreeIn(machine.Node, a)
		for _, b := range set {
			if a != b {
				rank[3] += h.t.Distance(a, b)
			}
		}
	}
	switch h.strategy {
	case place.LeastAllocated:
		rank[4] = -left
	case place.DistributeEvenly:
		if rank[4] = h.unevenness(set); len(set) == 1 {
			rank[4] = -left
		}
	}
	_, c := h.inside(set)
	rank[5], rank[6], rank[7], rank[8], rank[9] = c.l3s, c.split, c.opened, c.broken, left
	return rank
}

// takeIn takes the CPUs from a set of nodes. v is the view of h, apart from it so
// that h stays off the heap.
func (h *search) takeIn(v *place.View, set []int) (cpuset.Set, error) {
	if len(set) > 1 && (h.strategy == place.DistributeEvenly || h.tight(set)) {
		return h.byNode(set)
	}
	pieces, _ := h.inside(set)
	h.explain(pieces)
	v.Narrow(h.cpus(pieces))
	return v.Take(h.n, h.stages(pieces), h.why)
}

// explain records which pieces were chosen.
func (h *search) explain(pieces []piece) {
	if h.why == nil {
		return
	}
	for _, p := range pieces {
		where := h.t.Label(machine.Node, int(p.node))
		if p.l3 >= 0 {
			where = h.t.Label(machine.L3, int(p.l3)) + " of " + where
		}
		h.why.Note("from %s: %d free, %d of them in whole cores", where, p.free, p.whole)
	}
}

// cpus returns the CPUs of pieces.
func (h *search) cpus(pieces []piece) cpuset.Set {
	var cpus cpuset.Set
	for _, p := range pieces {
		in := h.t.Units(machine.Node)[p.node].CPUs
		if p.l3 >= 0 {
			in = in.Intersect(h.t.Units(machine.L3)[p.l3].CPUs)
		} else {
			in = in.Intersect(h.withoutL3())
		}
		cpus = cpus.Union(in)
	}
	return cpus
}

func (h *search) withoutL3() cpuset.Set {
	cpus := h.t.Online()
	for _, u := range h.t.Units(machine.L3) {
		cpus = cpus.Minus(u.CPUs)
	}
	return cpus
}

// tight reports whether a node of the set has less room than free CPUs.
func (h *search) tight(set []int) bool {
	return slices.ContainsFunc(set, func(pos int) bool { return h.room[pos] < h.v.FreeIn(machine.Node, pos) })
}

// rule is what leaves the request fewer CPUs than are free.
func (k *task) rule(whole bool) place.Rule {
	threads, _ := k.t.ThreadsPerCore()
	switch {
	case k.r.Isolated == place.Require:
		return place.OnlyIsolated(k.t)
	case whole && k.r.Class.Traits().WholeCores && threads > 1:
		return place.Rule{Text: fmt.Sprintf("class %s takes whole cores of %d CPUs", k.r.Class, threads)}
	}
	return place.Rule{}
}

// fence keeps the siblings of exclusive CPUs idle.
func (k *task) fence(g *place.Grant) {
	conf := k.s.Config()
	switch {
	case k.r.Exclusivity == place.NUMANodeLevel:
		g.Fence = k.t.Touched(machine.Node, g.Own).Intersect(conf.Allowed).Minus(g.Own)
	case k.r.Class.Traits().WholeCores || k.r.Exclusivity == place.PCPULevel:
		g.Fence = k.t.Touched(machine.Core, g.Own).Minus(g.Own)
	}
}

// nobodySqueezed refuses a grant that takes CPUs which the shared pool needs:
// a last check for bounds that are not single nodes.
func (k *task) nobodySqueezed(g *place.Grant) error {
	taken := g.Own.Union(g.Fence)
	left := k.sharable.Minus(taken)
	if need := k.total.CPUs(); left.Len() < need && k.sharable.Overlap(&taken) > 0 {
		k.why.Note("own CPUs %s: the shared pool needs %d CPUs, %s are left", taken, need, left)
		return &place.CPUsError{Asked: g.Own.Len(), Available: max(0, k.sharable.Len()-need)}
	}
	for b := range k.s.Bounds() {
		if b.Within == k.pool || b.Within.Overlap(&taken) == 0 {
			continue
		}
		milli, _ := k.s.SharedMilli(b.Within)
		if free := b.Within.Overlap(&left); 1000*free < max(milli, 1) {
			k.why.Note("own CPUs %s: %dm live in %s, %d CPUs of it are left", taken, milli, b.Within, free)
			return &place.CPUsError{Asked: g.Own.Len(), Available: max(0, b.Within.Overlap(&k.sharable)-place.WholeCPUs(milli))}
		}
	}
	return nil
}
