package berth

import (
	"cmp"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

// byNode takes a fixed number of CPUs from each node of the set.
func (h *search) byNode(set []int) (cpuset.Set, error) {
	quota := h.quotas(set)
	var all cpuset.Set
	for _, pos := range set {
		part := *h
		part.n = quota[pos]
		pieces, _ := part.inside([]int{pos})
		h.explain(pieces)
		v := h.t.View(h.v.Free.Intersect(h.cpus(pieces)), cpuset.Set{})
		cpus, err := v.Take(part.n, part.stages(pieces), h.why)
		if err != nil {
			return all, err
		}
		all = all.Union(cpus)
	}
	return all, nil
}

// quotas divides n over the nodes of the set: evenly in whole cores if asked,
// else all of the roomiest first.
func (h *search) quotas(set []int) []int {
	quota := make([]int, len(h.room))
	left := h.n
	if h.strategy != place.DistributeEvenly {
		order := slices.Clone(set)
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(h.room[b], h.room[a]) })
		for _, pos := range order {
			quota[pos] = min(left, h.room[pos])
			left -= quota[pos]
		}
		return quota
	}
	grain, _ := h.t.ThreadsPerCore()
	if h.n%grain != 0 || h.r.Bind == place.SpreadByPCPUs {
		grain = 1
	}
	for left > 0 {
		best := -1
		for _, pos := range set {
			if quota[pos] < h.room[pos] && (best < 0 || quota[pos] < quota[best]) {
				best = pos
			}
		}
		if best < 0 {
			break
		}
		got := min(grain, left, h.room[best]-quota[best])
		quota[best] += got
		left -= got
	}
	return quota
}

// unevenness is how many CPUs more the fullest node of the set gives than the emptiest.
func (h *search) unevenness(set []int) int {
	quota := h.quotas(set)
	least, most := h.n, 0
	for _, pos := range set {
		least, most = min(least, quota[pos]), max(most, quota[pos])
	}
	return most - least
}
