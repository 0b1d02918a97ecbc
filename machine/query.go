package machine

import (
	"sort"

	"berth.dev/berth/cpuset"
)

// ByKind returns the domains of kind k by rising id, none if the source has none. The
// caller must not change the slice.
func (m *Machine) ByKind(k Kind) []Domain {
	n := len(m.Domains)
	first := sort.Search(n, func(i int) bool { return m.Domains[i].Kind >= k })
	end := sort.Search(n, func(i int) bool { return m.Domains[i].Kind > k })
	return m.Domains[first:end:end]
}

// Of returns the domain of kind k that holds the CPU. ok is false without one: the
// CPU is offline or unknown, or the source has no such domains.
func (m *Machine) Of(k Kind, cpu int) (d Domain, ok bool) {
	domains := m.ByKind(k)
	for i := range domains {
		if domains[i].CPUs.Has(cpu) {
			return domains[i], true
		}
	}
	return Domain{}, false
}

// Inside returns the domains of kind k that lie wholly inside set. A
// memory-only node has no CPUs and is inside no set.
func (m *Machine) Inside(k Kind, set cpuset.Set) []Domain {
	var inside []Domain
	domains := m.ByKind(k)
	for i := range domains {
		if !domains[i].CPUs.IsEmpty() && set.Contains(domains[i].CPUs) {
			inside = append(inside, domains[i])
		}
	}
	return inside
}

// Distance returns the NUMA distance from node a to node b, by their numbers;
// ok is false where it is unknown.
func (m *Machine) Distance(a, b int) (distance int, ok bool) {
	row, col := -1, -1
	for i, d := range m.ByKind(Node) {
		if d.ID == a {
			row = i
		}
		if d.ID == b {
			col = i
		}
	}
	if row < 0 || col < 0 || row >= len(m.Distances) || col >= len(m.Distances[row]) {
		return 0, false
	}
	return m.Distances[row][col], true
}
