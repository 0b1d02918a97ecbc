package place

import (
	"math/bits"
	"slices"
)

// Hint is a set of NUMA nodes that could serve one resource.
type Hint struct {
	// Nodes has a bit for each node, by position. It is ignored if Any.
	Nodes uint64 `json:"nodes"`
	// Any is a resource without affinity: every node will do.
	Any bool `json:"any,omitempty"`
	// Preferred marks the sets that serve the resource best.
	Preferred bool `json:"preferred,omitempty"`
}

// MergeHints chooses one hint from each list and intersects them, so that the
// result has the lowest rank of all combinations; ties end in the lowest Nodes.
// The result is Preferred if all chosen hints are and, those with Any aside,
// name the same nodes; a preferred result beats all others. all is the mask of
// all nodes, at most 16 of them. ok is false if every combination is empty or a list is.
//
// The ranks of every combination are considered, yet the cost is the number of
// different masks times the number of hints, not the product of the lists: at
// most 2^nodes × hints steps.
func MergeHints(all uint64, lists [][]Hint, rank func(nodes uint64) Rank) (merged Hint, ok bool) {
	if nodes, ok := bestMask(commonPreferred(all, lists), rank); ok {
		return Hint{Nodes: nodes, Preferred: true}, true
	}
	reached := []uint64{all}
	for _, list := range lists {
		reached = meet(all, reached, list)
	}
	nodes, ok := bestMask(reached, rank)
	return Hint{Nodes: nodes}, ok
}

func bestMask(masks []uint64, rank func(uint64) Rank) (best uint64, ok bool) {
	var bestRank Rank
	for _, m := range masks {
		if m == 0 {
			continue
		}
		r := rank(m)
		order := -1
		if ok {
			order = r.Compare(&bestRank)
		}
		if order < 0 || order == 0 && m < best {
			best, bestRank, ok = m, r, true
		}
	}
	return best, ok
}

// commonPreferred returns the masks of the combinations that are preferred: each
// list names the mask as preferred or has a preferred Any.
func commonPreferred(all uint64, lists [][]Hint) []uint64 {
	named := map[uint64]int{} // lists without Any that name the mask
	without := 0              // lists without Any
	for _, list := range lists {
		one := 1
		if slices.ContainsFunc(list, func(h Hint) bool { return h.Preferred && h.Any }) {
			one = 0
		}
		without += one
		mine := map[uint64]bool{}
		for _, h := range list {
			if m := h.Nodes & all; h.Preferred && !h.Any && !mine[m] {
				mine[m] = true
				named[m] += one
			}
		}
	}
	var common []uint64
	for m, n := range named {
		if n == without {
			common = append(common, m)
		}
	}
	if without == 0 {
		common = append(common, all)
	}
	return common
}

// meet returns the different intersections of a reached mask and a hint.
func meet(all uint64, reached []uint64, list []Hint) []uint64 {
	var out []uint64
	seen := make([]uint64, (1<<bits.Len64(all))/64+1) // a bit per mask
	for _, h := range list {
		nodes := h.Nodes
		if h.Any {
			nodes = all
		}
		for _, m := range reached {
			both := m & nodes
			if w, b := &seen[both/64], uint64(1)<<(both%64); *w&b == 0 {
				*w |= b
				if out = append(out, both); len(out) == 1<<bits.OnesCount64(all) {
					return out // all there are
				}
			}
		}
	}
	return out
}
