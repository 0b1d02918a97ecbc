package kubelet

import (
	"math/bits"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// listed is the most NUMA nodes for which all node sets are listed; the kubelet's
// default limit.
const listed = 8

// cpuHints returns the node sets whose CPUs of from suffice for n, and that have
// all reusable ones. Preferred are those as narrow as an empty machine would
// allow, with socket those in as few sockets.
func cpuHints(t *place.Topology, from, reusable cpuset.Set, n int, socket bool) []place.Hint {
	units := t.Units(machine.Node)
	free := make([]int, len(units))
	var must uint64
	for i := range units {
		free[i] = units[i].CPUs.Overlap(&from)
		if units[i].CPUs.Overlap(&reusable) > 0 {
			must |= 1 << i
		}
	}
	least := leastWidth(t, n)
	perSocket := max(1, len(units)/len(t.Units(machine.Socket)))
	hints := []place.Hint{}
	sums := make([]int, 1<<len(units))
	for m := uint64(1); m < 1<<len(units); m++ {
		sums[m] = sums[m&(m-1)] + free[bits.TrailingZeros64(m)]
		if sums[m] < n || m&must != must {
			continue
		}
		preferred := bits.OnesCount64(m) == least
		if socket && !preferred {
			preferred = sockets(t, m) == ceil(least, perSocket)
		}
		hints = append(hints, place.Hint{Nodes: m, Preferred: preferred})
	}
	return hints
}

// leastWidth returns how many nodes it takes to hold n CPUs on an empty machine.
func leastWidth(t *place.Topology, n int) int {
	var sizes []int
	for _, u := range t.Units(machine.Node) {
		sizes = append(sizes, u.Size)
	}
	slices.Sort(sizes)
	width := 0
	for i := len(sizes) - 1; i >= 0 && n > 0; i-- {
		n -= sizes[i]
		width++
	}
	return max(1, width)
}

// sockets returns how many sockets a mask of nodes spans.
func sockets(t *place.Topology, mask uint64) int {
	var seen uint64
	for ; mask != 0; mask &= mask - 1 {
		if first := t.Units(machine.Node)[bits.TrailingZeros64(mask)].First; first >= 0 {
			seen |= 1 << t.At(machine.Socket, first)
		}
	}
	return bits.OnesCount64(seen)
}
