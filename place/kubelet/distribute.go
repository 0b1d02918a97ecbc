package kubelet

import (
	"cmp"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// spot is a NUMA node that may take part in an even distribution.
type spot struct {
	pos, socket int
	free        int // CPUs
	room        int // CPUs that can be given out in whole groups
}

// share is a distribution over some nodes.
type share struct {
	spots   []spot
	each    int   // CPUs of every node
	amounts []int // CPUs by spot, remainder included
	squares int   // sum of the squares of the nodes' free CPUs
}

// distribute returns how many CPUs each node gives, by position: the same of all,
// and the rest. Nil if no even distribution works. The fewest nodes come first, then with
// align-by-socket one socket, then the smallest spread of the nodes' free CPUs, then the
// fewest sockets, then the lowest nodes.
//
// The more free CPUs a node has, the more does taking from it even out. So the nodes with
// the most free CPUs are the best set of their width: no search over sets is needed.
func (k *taker) distribute(v *place.View, n int) (each, rest []int) {
	spots := k.spots(v)
	if n == 0 || len(spots) == 0 {
		return nil, nil
	}
	groups := func(cpus int) int { return (cpus + k.group - 1) / k.group }
	perNode := max(1, ceil(groups(k.t.Online().Len()), k.nodesWithCPUs()))
	for width := ceil(groups(n), perNode); width <= min(groups(n), len(spots)); width++ {
		if s := k.best(spots, n, width); s != nil {
			each, rest = make([]int, len(k.t.Units(machine.Node))), make([]int, len(k.t.Units(machine.Node)))
			for i, spot := range s.spots {
				each[spot.pos], rest[spot.pos] = s.each, s.amounts[i]-s.each
			}
			return each, rest
		}
	}
	return nil, nil
}

// evenly takes the result of distribute; ok is false without one. As the
// remainder comes group by group, it fills half cores that the rest left.
func (k *taker) evenly(from cpuset.Set, n int) (taken cpuset.Set, ok bool, err error) {
	v := k.t.View(from, cpuset.Set{})
	each, rest := k.distribute(v, n)
	for amounts := each; slices.ContainsFunc(amounts, func(n int) bool { return n > 0 }); {
		count := 0
		for _, n := range amounts {
			count += n
		}
		stage := place.Stage{
			Name: "even share", Mode: place.Spill, Kind: machine.Node,
			Limit: func(_ *place.View, pos int) int { return amounts[pos] },
		}
		got, err := v.Take(count, append([]place.Stage{stage}, k.packed(false)...), k.why)
		if err != nil {
			return cpuset.Set{}, false, err
		}
		taken = taken.Union(got)
		v = k.t.View(from.Minus(taken), cpuset.Set{})
		amounts = make([]int, len(rest))
		for i := range rest {
			amounts[i] = min(rest[i], k.group)
			rest[i] -= amounts[i]
		}
	}
	return taken, each != nil, nil
}

func ceil(a, b int) int { return (a + b - 1) / b }

// spots returns the nodes with free CPUs, the most free first.
func (k *taker) spots(v *place.View) []spot {
	threads, _ := k.t.ThreadsPerCore()
	var spots []spot
	for pos := range k.t.Units(machine.Node) {
		s := spot{pos: pos, free: v.FreeIn(machine.Node, pos)}
		if s.free == 0 {
			continue
		}
		s.socket = v.Up(machine.Socket, machine.Node, pos)
		s.room = s.free / k.group * k.group
		if k.group > 1 && k.group == threads {
			s.room = v.WholeIn(machine.Node, pos) / k.group * k.group
		}
		spots = append(spots, s)
	}
	slices.SortStableFunc(spots, func(a, b spot) int { return cmp.Compare(b.free, a.free) })
	return spots
}

// best returns the best distribution over so many nodes, or nil.
func (k *taker) best(spots []spot, n, width int) *share {
	if k.AlignBySocket {
		if s := k.oneSocket(spots, n, width); s != nil {
			return s
		}
	}
	least := 0
	if !k.AlignBySocket {
		least = n / width / k.group * k.group
	}
	able := slices.DeleteFunc(slices.Clone(spots), func(s spot) bool { return s.room < max(1, least) })
	if len(able) < width {
		return nil
	}
	if s := k.even(spots, compact(able, width), n); s != nil {
		return s
	}
	slices.SortStableFunc(able, func(a, b spot) int { return cmp.Compare(b.room, a.room) })
	return k.even(spots, able[:width], n)
}

// oneSocket returns the best distribution inside a socket.
func (k *taker) oneSocket(spots []spot, n, width int) *share {
	var best *share
	for socket := range k.t.Units(machine.Socket) {
		inside := slices.DeleteFunc(slices.Clone(spots), func(s spot) bool { return s.socket != socket || s.room == 0 })
		if len(inside) < width {
			continue
		}
		if s := k.even(spots, inside[:width], n); s != nil && (best == nil || s.squares < best.squares) {
			best = s
		}
	}
	return best
}

// compact returns the width spots with the most free CPUs, those at the limit
// chosen so that few sockets are touched. Spots are ordered by free CPUs.
func compact(spots []spot, width int) []spot {
	limit := spots[width-1].free
	from, _ := slices.BinarySearchFunc(spots, limit, func(s spot, limit int) int { return cmp.Compare(limit, s.free) })
	to := from
	for to < len(spots) && spots[to].free == limit {
		to++
	}
	chosen, open := slices.Clone(spots[:from]), slices.Clone(spots[from:to])
	used := func(socket int) bool {
		return slices.ContainsFunc(chosen, func(s spot) bool { return s.socket == socket })
	}
	for len(chosen) < width {
		need := width - len(chosen)
		count := map[int]int{}
		for _, s := range open {
			count[s.socket]++
		}
		c := place.Choice{Count: len(open), Rank: func(i int) place.Rank {
			socket := open[i].socket
			switch {
			case used(socket):
				return place.Rank{0}
			case count[socket] >= need:
				return place.Rank{1}
			}
			return place.Rank{2, -count[socket]}
		}}
		i := c.Best(nil)
		chosen = append(chosen, open[i])
		open = slices.Delete(open, i, i+1)
	}
	slices.SortFunc(chosen, func(a, b spot) int { return cmp.Or(cmp.Compare(b.free, a.free), cmp.Compare(a.pos, b.pos)) })
	return chosen
}

// even divides n over the chosen spots: the same for each, then the remainder by
// groups where most is left. Nil if they lack room.
func (k *taker) even(all, chosen []spot, n int) *share {
	each, room := n/len(chosen)/k.group*k.group, 0
	for _, s := range chosen {
		room += s.room
		if k.AlignBySocket {
			each = min(each, s.room)
		} else if s.room < each {
			return nil
		}
	}
	if room < n {
		return nil
	}
	var best *share
	for width := len(chosen); width > 0; width-- {
		amounts := k.remainder(chosen, each, n, width)
		if amounts == nil {
			continue
		}
		s := &share{spots: chosen, each: each, amounts: amounts}
		for _, spot := range all {
			s.squares += spot.free * spot.free
		}
		for i, spot := range chosen {
			left := spot.free - amounts[i]
			s.squares += left*left - spot.free*spot.free
		}
		if best == nil || s.squares < best.squares {
			best = s
		}
	}
	return best
}

// remainder gives each spot the same, and the rest round robin to the first
// width of them by CPUs left; nil if they lack room.
func (k *taker) remainder(chosen []spot, each, n, width int) []int {
	amounts := make([]int, len(chosen))
	for i := range amounts {
		amounts[i] = each
	}
	left := n - each*len(chosen)
	for left > 0 {
		before := left
		for i, s := range chosen[:width] {
			if left > 0 && s.room-amounts[i] >= k.group {
				amounts[i] += k.group
				left -= k.group
			}
		}
		if left == before {
			return nil
		}
	}
	return amounts
}
