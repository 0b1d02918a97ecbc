package kubelet

import (
	"math/bits"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// listed is the most NUMA nodes for which all node sets are listed; the kubelet's
// default limit.
const listed = 8

// hintsOf returns the sets of the given nodes that serve now. Preferred are those as
// narrow as the narrowest that would serve if nothing were held, which is of least nodes.
func hintsOf(nodes uint64, serves func(set uint64) (ever, now bool)) (hints []place.Hint, least int) {
	hints, least = []place.Hint{}, 64
	for m := -nodes & nodes; m != 0; m = (m - nodes) & nodes { // rising
		ever, now := serves(m)
		if ever {
			least = min(least, bits.OnesCount64(m))
		}
		if now {
			hints = append(hints, place.Hint{Nodes: m})
		}
	}
	for i := range hints {
		hints[i].Preferred = bits.OnesCount64(hints[i].Nodes) == least
	}
	return hints, least
}

// cpuHints returns the node sets whose CPUs of from suffice for n, and that have
// all reusable ones. With socket, those in as few sockets are preferred, too.
func cpuHints(t *place.Topology, from, reusable cpuset.Set, n int, socket bool) []place.Hint {
	units := t.Units(machine.Node)
	var must uint64
	type cpus struct{ free, all int32 }
	sums := make([]cpus, 1<<len(units)) // by set
	for i := range units {
		if units[i].CPUs.Overlap(&reusable) > 0 {
			must |= 1 << i
		}
		sums[1<<i] = cpus{int32(units[i].CPUs.Overlap(&from)), int32(units[i].Size)}
	}
	hints, least := hintsOf(1<<len(units)-1, func(m uint64) (ever, now bool) {
		sum := &sums[m]
		if rest := m & (m - 1); rest != 0 {
			*sum = cpus{sums[rest].free + sums[m-rest].free, sums[rest].all + sums[m-rest].all}
		}
		return int(sum.all) >= n, int(sum.free) >= n && m&must == must
	})
	if perSocket := max(1, len(units)/len(t.Units(machine.Socket))); socket {
		for i := range hints {
			hints[i].Preferred = hints[i].Preferred || sockets(t, hints[i].Nodes) == ceil(least, perSocket)
		}
	}
	return hints
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
