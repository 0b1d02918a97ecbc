package kubelet

import (
	"math/bits"
	"slices"

	"berth.dev/berth/place"
)

// merge chooses the node set of all resources as the topology manager does.
// A nil list is a resource without preference, an empty one cannot be served.
func (p Policy) merge(t *place.Topology, nodes int, lists [][]place.Hint) (merged place.Hint, admit bool) {
	all := uint64(1)<<nodes - 1
	single := p.TopologyManager == TopologyManagerSingle
	normal := make([][]place.Hint, 0, len(lists)+1)
	for _, list := range lists {
		switch {
		case list == nil:
			list = []place.Hint{{Any: true, Preferred: true}}
		case len(list) == 0:
			list = []place.Hint{{Any: true}}
		}
		if single {
			list = oneNode(list)
		}
		normal = append(normal, list)
	}
	r := ranker{width: width(normal)}
	if p.PreferClosestNUMANodes && !single {
		r.t = t
	}
	merged, ok := place.MergeHints(all, normal, r.rank)
	if !ok {
		merged = place.Hint{Nodes: all}
	}
	if single && merged.Nodes == all {
		merged = place.Hint{Any: true, Preferred: merged.Preferred}
	}
	return merged, merged.Preferred || p.TopologyManager == TopologyManagerBestEffort
}

// oneNode keeps the preferred hints of one node and those of any.
func oneNode(list []place.Hint) []place.Hint {
	return slices.DeleteFunc(slices.Clone(list), func(h place.Hint) bool {
		return !h.Preferred || !h.Any && bits.OnesCount64(h.Nodes) != 1
	})
}

// width returns the largest of the narrowest widths of all lists.
func width(lists [][]place.Hint) int {
	best := 0
	for _, list := range lists {
		narrowest := -1
		for _, h := range list {
			if n := bits.OnesCount64(h.Nodes); !h.Any && (narrowest < 0 || n < narrowest) {
				narrowest = n
			}
		}
		best = max(best, narrowest)
	}
	return best
}

// ranker orders merged node sets: the width aimed at first, then the narrower
// ones from the widest on, then the wider ones from the narrowest on; then near
// nodes, if t is set. Preferred sets are never narrower than the width, so that
// the same order serves them.
type ranker struct {
	width int
	t     *place.Topology
}

func (r *ranker) rank(nodes uint64) place.Rank {
	n := bits.OnesCount64(nodes)
	rank := place.Rank{1, r.width - n}
	switch {
	case n == r.width:
		rank = place.Rank{0}
	case n > r.width:
		rank = place.Rank{2, n}
	}
	if r.t != nil {
		for a := nodes; a != 0; a &= a - 1 {
			for b := nodes; b != 0; b &= b - 1 {
				rank[2] += r.t.Distance(bits.TrailingZeros64(a), bits.TrailingZeros64(b))
			}
		}
	}
	return rank
}
