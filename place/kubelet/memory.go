package kubelet

import (
	"math/bits"

	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// memNode is a NUMA node's memory of the resources asked for, and the nodes with which
// its memory is allocated together.
type memNode struct {
	all, free   []int64 // by resource
	group       uint64  // of node positions; only its own where nothing is held
	assignments int     // amounts held on it
}

func amounts(need []place.Amount) []int64 {
	bytes := make([]int64, len(need))
	for i := range need {
		bytes[i] = need[i].Bytes
	}
	return bytes
}

// memoryNodes reads from the state each node's memory of the resources needed, and the
// groups that the held grants form.
func (k *task) memoryNodes() []memNode {
	units := k.t.Units(machine.Node)
	nodes := make([]memNode, len(units))
	for pos, u := range units {
		n := memNode{group: 1 << pos}
		for _, a := range k.need {
			free, all, _ := k.s.FreeBytes(u.ID, a.Resource)
			n.all, n.free = append(n.all, all), append(n.free, free)
		}
		nodes[pos] = n
	}
	for g := range k.s.Grants() {
		resources := 0
		for i, b := range g.Memory {
			if i == 0 || b.Resource != g.Memory[i-1].Resource {
				resources++
			}
		}
		if resources == 0 {
			continue
		}
		group := k.nodes(g.Mems)
		for m := group; m != 0; m &= m - 1 {
			pos := bits.TrailingZeros64(m)
			nodes[pos].group |= group
			nodes[pos].assignments += resources
		}
	}
	return nodes
}

// memoryHints returns the node sets with room for all resources. No such set is
// no opinion: the request then fails when memory is taken.
func memoryHints(nodes []memNode, need []int64) []place.Hint {
	all := func(n *memNode) []int64 { return n.all }
	hints, _ := hintsOf(1<<len(nodes)-1, func(m uint64) (ever, now bool) {
		ever = enough(nodes, m, need, all)
		return ever, ever && together(nodes, m) && enough(nodes, m, need, freeBytes)
	})
	if len(hints) == 0 {
		return nil
	}
	return hints
}

func freeBytes(n *memNode) []int64 { return n.free }

func enough(nodes []memNode, mask uint64, need []int64, of func(*memNode) []int64) bool {
	for i, left := range need {
		for m := mask; m != 0 && left > 0; m &= m - 1 {
			left -= of(&nodes[bits.TrailingZeros64(m)])[i]
		}
		if left > 0 {
			return false
		}
	}
	return true
}

// together reports whether memory of the nodes may be given out together: a node
// is given out alone or always with the same others.
func together(nodes []memNode, mask uint64) bool {
	if bits.OnesCount64(mask) == 1 {
		return bits.OnesCount64(nodes[bits.TrailingZeros64(mask)].group) == 1
	}
	for m := mask; m != 0; m &= m - 1 {
		if n := &nodes[bits.TrailingZeros64(m)]; n.assignments > 0 && n.group != mask {
			return false
		}
	}
	return true
}

// The reasons of memory refusals.
const (
	noDefault        = "no node set has room for the memory"
	noPreferred      = "no preferred node set has room for the memory"
	cannotExtend     = "the node set has no room for the memory, nor has a wider one"
	cannotExtendPref = "the node set has no room for the memory, nor has a preferred wider one"
	violatesGroups   = "the node set would split or join nodes whose memory is given out together"
)

// memoryMask chooses the nodes to take memory from: the mask, or the best set
// around it that has room, or without a mask the best of all.
func memoryMask(nodes []memNode, need []int64, mask place.Hint) (uint64, error) {
	refuse := func(reason string) (uint64, error) {
		return 0, &place.NUMAError{Reason: "memory manager: " + reason}
	}
	chosen := mask.Nodes
	if mask.Any || !enough(nodes, chosen, need, freeBytes) {
		none, worse := cannotExtend, cannotExtendPref
		if mask.Any {
			chosen, none, worse = 0, noDefault, noPreferred
		}
		best, ok := bestAround(memoryHints(nodes, need), chosen)
		switch {
		case !ok:
			return refuse(none)
		case mask.Preferred && !best.Preferred:
			return refuse(worse)
		}
		chosen = best.Nodes
	}
	if !together(nodes, chosen) {
		return refuse(violatesGroups)
	}
	return chosen, nil
}

// bestAround returns the preferred, else narrowest, else lowest hint that
// contains the mask.
func bestAround(hints []place.Hint, mask uint64) (place.Hint, bool) {
	c := place.Choice{
		Count: len(hints),
		Fits: func(i int) string {
			if hints[i].Nodes&mask != mask {
				return "does not contain the node set"
			}
			return ""
		},
		Rank: func(i int) place.Rank {
			return place.Rank{flag(!hints[i].Preferred), bits.OnesCount64(hints[i].Nodes), int(hints[i].Nodes)}
		},
	}
	i := c.Best(nil)
	if i < 0 {
		return place.Hint{}, false
	}
	return hints[i], true
}

// portion is an amount taken from a node.
type portion struct {
	pos, resource int
	bytes         int64
}

// fill takes the needed amounts from the nodes of the mask, in their order.
func fill(nodes []memNode, need []int64, mask uint64) []portion {
	var portions []portion
	for i, left := range need {
		for m := mask; m != 0 && left > 0; m &= m - 1 {
			pos := bits.TrailingZeros64(m)
			if got := min(left, nodes[pos].free[i]); got > 0 {
				portions = append(portions, portion{pos, i, got})
				left -= got
			}
		}
	}
	return portions
}
