package berth

import (
	"cmp"
	"math/bits"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// piece is the part of an L3 domain that lies in a NUMA node; l3 is -1 for the
// cores of the node without an L3 domain.
type piece struct {
	node, l3 int16
	free     int16 // CPUs that may be taken
	whole    int16 // of them in wholly free cores
	ones     int16 // wholly free cores of one CPU
	intact   bool  // all CPUs of the L3 domain may be taken
}

// cost is the cost of taking n CPUs from some pieces, compared in the order of its fields.
type cost struct{ l3s, split, opened, broken, left int }

func (c cost) compare(o cost) int {
	return cmp.Or(c.l3s-o.l3s, c.split-o.split, c.opened-o.opened, c.broken-o.broken, c.left-o.left)
}

// survey counts the pieces.
func (h *search) survey() {
	nodes, l3s := h.t.Units(machine.Node), h.t.Units(machine.L3)
	of, pieces := make([]int, 0, len(nodes)+1), make([]piece, 0, len(l3s)+len(nodes))
	for node := range nodes {
		first, at := len(pieces), -1
		of = append(of, first)
		for _, core := range h.t.Cores(machine.Node, node) {
			free := h.v.FreeIn(machine.Core, int(core))
			if free == 0 {
				continue
			}
			l3 := int16(h.t.Of(machine.L3, int(core)))
			if at < 0 || pieces[at].l3 != l3 {
				at = first + slices.IndexFunc(pieces[first:], func(p piece) bool { return p.l3 == l3 })
				if at < first {
					at, pieces = len(pieces), append(pieces, piece{node: int16(node), l3: l3})
				}
			}
			pieces[at].free += int16(free)
			if h.v.IsWhole(machine.Core, int(core)) {
				pieces[at].whole += int16(free)
				if free == 1 {
					pieces[at].ones++
				}
			}
		}
	}
	for i := range pieces {
		p := &pieces[i]
		p.intact = p.l3 >= 0 && int(p.free) == l3s[p.l3].Size
	}
	h.of, h.pieces = append(of, len(pieces)), pieces
}

// exactPieces is the number of pieces up to which all sets are compared.
const exactPieces = 8

// inside returns the fewest and best pieces in a set of nodes that have n CPUs.
func (h *search) inside(set []int) ([]piece, cost) {
	var all []piece
	if len(set) == 1 {
		all = h.pieces[h.of[set[0]]:h.of[set[0]+1]]
	} else {
		for _, node := range set {
			all = append(all, h.pieces[h.of[node]:h.of[node+1]]...)
		}
	}
	if best, c, ok := h.one(all); ok {
		return all[best : best+1], c
	}
	if len(all) <= exactPieces {
		return h.exact(all)
	}
	return h.greedy(all)
}

// one returns the best piece that has all.
func (h *search) one(all []piece) (best int, bestCost cost, ok bool) {
	for i := range all {
		if int(all[i].free) < h.n {
			continue
		}
		c := h.cost(all[i : i+1])
		if !ok || c.compare(bestCost) < 0 {
			best, bestCost, ok = i, c, true
		}
	}
	return best, bestCost, ok
}

// exact compares all sets of the smallest number of pieces.
func (h *search) exact(all []piece) ([]piece, cost) {
	var free [1 << exactPieces]int
	width := len(all)
	for mask := 1; mask < 1<<len(all); mask++ {
		low := bits.TrailingZeros(uint(mask))
		free[mask] = free[mask&(mask-1)] + int(all[low].free)
		if free[mask] >= h.n {
			width = min(width, bits.OnesCount(uint(mask)))
		}
	}
	var best []piece
	var bestCost cost
	var set [exactPieces]piece
	for mask := 1; mask < 1<<len(all); mask++ {
		if free[mask] < h.n || bits.OnesCount(uint(mask)) != width {
			continue
		}
		n := 0
		for m := mask; m != 0; m &= m - 1 {
			set[n] = all[bits.TrailingZeros(uint(m))]
			n++
		}
		if c := h.cost(set[:n]); best == nil || c.compare(bestCost) < 0 {
			best, bestCost = append(best[:0], set[:n]...), c
		}
	}
	return best, bestCost
}

// greedy takes the largest pieces, and as the last the best that suffices.
func (h *search) greedy(all []piece) ([]piece, cost) {
	order := slices.Clone(all)
	slices.SortStableFunc(order, func(a, b piece) int {
		return cmp.Or(cmp.Compare(b.free, a.free), cmp.Compare(b.whole, a.whole), cmp.Compare(b.ones, a.ones))
	})
	n, sum := 0, 0
	for n < len(order) && sum < h.n {
		sum += int(order[n].free)
		n++
	}
	best, last := h.cost(order[:n]), n-1
	kept := order[n-1]
	for i := n; i < len(order); i++ {
		order[n-1] = order[i]
		if sum-int(kept.free)+int(order[i].free) < h.n {
			break
		}
		if c := h.cost(order[:n]); c.compare(best) < 0 {
			best, last = c, i
		}
	}
	order[n-1] = kept
	if last >= n {
		order[n-1] = order[last]
	}
	return order[:n], best
}

// cost returns the cost of taking n CPUs from all of these pieces.
func (h *search) cost(set []piece) cost {
	var c cost
	whole, ones, intact, free := 0, 0, 0, 0
	for i := range set {
		p := &set[i]
		if p.l3 >= 0 {
			c.l3s++
		}
		free += int(p.free)
		whole += int(p.whole)
		ones += int(p.ones)
		if p.intact {
			intact++
		}
	}
	threads, uniform := h.t.ThreadsPerCore()
	odd := h.n % threads
	switch {
	case h.n > whole:
		c.split = (h.n - whole + threads - 2) / max(1, threads-1) // at least that many held in part
	case odd > ones:
		c.split = 1
		if free-whole < odd {
			c.opened = 1
		}
	case !uniform && h.open(set) >= 0:
		c.broken = 1
	}
	c.left = free - h.n
	if c.left > 0 && intact == len(set) {
		c.broken = 1
	}
	return c
}

// open returns which of the intact pieces stays open, because its cores of one
// CPU make up an odd number without splitting a core; -1 if no piece has to.
func (h *search) open(set []piece) int {
	threads, _ := h.t.ThreadsPerCore()
	n, ones := h.n, 0
	for i := range set {
		if set[i].intact {
			n -= int(set[i].free)
		} else {
			ones += int(set[i].ones)
		}
	}
	if n == 0 || n > 0 && n%threads <= ones {
		return -1
	}
	for i := range set {
		if p := &set[i]; p.intact && (n+int(p.free))%threads <= ones+int(p.ones) {
			return i
		}
	}
	return -1
}

// stages says how to take the CPUs from the chosen pieces: intact L3 domains,
// then whole cores, the large ones first so that a small one can make up an odd
// number, then CPUs of cores that are shared anyway.
func (h *search) stages(set []piece) []place.Stage {
	if h.r.Bind == place.SpreadByPCPUs {
		return []place.Stage{{
			Name: "CPU", Kind: place.CPU, Again: true, Criteria: []string{"of the core taken", "of the core held by others"},
			Rank: spreadRank,
		}}
	}
	open := int16(-1)
	if _, uniform := h.t.ThreadsPerCore(); !uniform {
		if at := h.open(set); at >= 0 {
			open = set[at].l3
		}
	}
	return []place.Stage{
		{
			Name: "whole L3", Kind: machine.L3, Criteria: []string{"smaller by"},
			Rank: func(v *place.View, pos int) place.Rank { return place.Rank{-v.FreeIn(machine.L3, pos)} },
			Fits: func(_ *place.View, pos int) string {
				if pos == int(open) {
					return "has a core for the odd CPU"
				}
				return ""
			},
		},
		{Name: "core", Kind: machine.Core, Criteria: []string{"smaller by", "free in its L3"}, Rank: coreRank},
		{Name: "CPU", Kind: place.CPU, Criteria: []string{"free in its core", "free in its L3"}, Rank: cpuRank},
	}
}

func coreRank(v *place.View, pos int) place.Rank {
	return place.Rank{-v.FreeIn(machine.Core, pos), freeAround(v, machine.Core, pos)}
}

func cpuRank(v *place.View, pos int) place.Rank {
	return place.Rank{v.FreeIn(machine.Core, v.Up(machine.Core, place.CPU, pos)), freeAround(v, place.CPU, pos)}
}

func spreadRank(v *place.View, pos int) place.Rank {
	core := v.Up(machine.Core, place.CPU, pos)
	others := v.T.Units(machine.Core)[core].Size - v.FreeIn(machine.Core, core) - v.TakenIn(machine.Core, core)
	return place.Rank{v.TakenIn(machine.Core, core), others}
}

// freeAround returns the free CPUs of the L3 domain around a unit.
func freeAround(v *place.View, of machine.Kind, pos int) int {
	l3 := v.Up(machine.L3, of, pos)
	if l3 < 0 {
		return 0
	}
	return v.FreeIn(machine.L3, l3)
}

// resize grows next to the held CPUs, or chooses which of them to keep.
func (k *task) resize(base cpuset.Set, n int) (cpuset.Set, error) {
	held := k.old.Own
	if n <= held.Len() {
		v := k.t.View(held, cpuset.Set{})
		h := &search{task: k, n: n, v: v, room: make([]int, len(k.t.Units(machine.Node)))}
		for i := range h.room {
			h.room[i] = v.FreeIn(machine.Node, i)
		}
		return h.choose(v)
	}
	_, required := k.preferences()
	base = k.keep(base, required)
	v := k.t.View(base, held)
	h := &search{task: k, n: n - held.Len(), held: held.Len(), v: v}
	if err := h.limits(&base); err != nil {
		return cpuset.Set{}, err
	}
	more, err := v.Take(h.n, []place.Stage{
		{
			Name: "node", Mode: place.Spill, Kind: machine.Node, Criteria: []string{"held nothing", "distance", "free"},
			Limit: func(_ *place.View, pos int) int { return h.room[pos] }, Rank: nearHeld,
		},
		{
			Name: "CPU", Kind: place.CPU, Again: true, Rank: besideHeld,
			Criteria: []string{"of the core not held", "of the L3 not held", "core not whole", "free in its L3"},
		},
	}, k.why)
	if err != nil {
		return cpuset.Set{}, err
	}
	own := held.Union(more)
	if nodes := k.t.Count(machine.Node, own); k.r.MaxNodes > 0 && nodes > k.r.MaxNodes {
		return cpuset.Set{}, &place.NUMAError{Nodes: k.t.NodesOf(own), Reason: "more nodes than asked"}
	}
	return own, nil
}

// nearHeld ranks nodes to grow in: those where something is held, then the
// nearest to them.
func nearHeld(v *place.View, pos int) place.Rank {
	held, near := 1, 1<<30
	if v.TakenIn(machine.Node, pos) > 0 {
		held = 0
	}
	for i := range v.T.Units(machine.Node) {
		if v.TakenIn(machine.Node, i) > 0 {
			near = min(near, v.T.Distance(i, pos))
		}
	}
	return place.Rank{held, near, v.FreeIn(machine.Node, pos)}
}

// besideHeld ranks CPUs to grow by: of the same cores, then of the same L3 domains.
func besideHeld(v *place.View, pos int) place.Rank {
	core, l3 := v.Up(machine.Core, place.CPU, pos), v.Up(machine.L3, place.CPU, pos)
	rank := place.Rank{-v.TakenIn(machine.Core, core), 0, 1, freeAround(v, place.CPU, pos)}
	if l3 >= 0 {
		rank[1] = -v.TakenIn(machine.L3, l3)
	}
	if v.IsWhole(machine.Core, core) && v.Need >= v.T.Units(machine.Core)[core].Size {
		rank[2] = 0
	}
	return rank
}
