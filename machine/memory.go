package machine

import (
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
)

// MemoryKind is a kind of memory, by how fast the kernel takes it to be beside that of the NUMA
// nodes with CPUs.
type MemoryKind = plain.Enum[memoryWords]

// The kinds of memory. They are an index of Memories.Of.
const (
	DRAM MemoryKind = iota // that of nodes with CPUs, and what is as fast
	PMEM                   // slower: persistent memory, memory behind CXL
	HBM                    // faster: high-bandwidth memory
)

type memoryWords struct{}

func (memoryWords) Words() []string { return []string{"dram", "pmem", "hbm"} }

// MemoryKinds returns all kinds.
func MemoryKinds() []MemoryKind { return []MemoryKind{DRAM, PMEM, HBM} }

// Memories says which NUMA nodes have memory of which kind.
type Memories struct {
	// Of are the nodes of each kind.
	Of [HBM + 1]cpuset.Set
	// Untold are nodes without CPUs of which the kernel does not tell the kind.
	Untold cpuset.Set
	// Movable are those of all these nodes that have only memory of the kernel's zone Movable.
	Movable cpuset.Set
}

// MemoryKindError is that a machine has no memory of some kinds that a program can live on.
type MemoryKindError struct {
	Kinds  []MemoryKind
	Reason string
}

func (e *MemoryKindError) Error() string {
	var words []string
	for _, k := range e.Kinds {
		words = append(words, k.String())
	}
	return fmt.Sprintf("memory of kind %s: %s", strings.Join(words, " or "), e.Reason)
}

// Nodes returns the nodes of each of the kinds that the machine has. Some of what a program needs the
// kernel does not put on movable memory: where each kind has some, those without are one more set,
// so that the nearest of each set are not all movable. That the machine has none of the kinds, or
// has all of it movable, is a *MemoryKindError.
func (m *Memories) Nodes(kinds []MemoryKind) (sets []cpuset.Set, err error) {
	var all cpuset.Set
	for _, k := range kinds {
		if of := m.Of[k]; !of.IsEmpty() {
			sets, all = append(sets, of), all.Union(of)
		}
	}
	reason := ""
	switch {
	case all.IsEmpty() && !m.Untold.IsEmpty():
		reason = fmt.Sprintf("the kernel does not tell of what kind NUMA nodes %s are, which have no CPUs (memory tiers, Linux 6.1)", m.Untold)
	case all.IsEmpty():
		reason = "no NUMA node is known to have it"
	case m.Movable.Contains(all):
		reason = fmt.Sprintf("NUMA nodes %s have movable memory only, on which alone no program starts: allow another kind too, or bring it online as the kernel's (daxctl reconfigure-device --no-movable)", all)
	}
	if reason != "" {
		return nil, &MemoryKindError{kinds, reason}
	}
	if !slices.ContainsFunc(sets, func(of cpuset.Set) bool { return !of.Overlaps(m.Movable) }) {
		sets = append(sets, all.Minus(m.Movable))
	}
	return sets, nil
}
