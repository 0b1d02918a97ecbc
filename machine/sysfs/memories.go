package sysfs

import (
	"fmt"
	"io/fs"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
)

const tierDir = "sys/devices/virtual/memory_tiering"

// ReadMemories reads which NUMA nodes have memory of which kind
// (Documentation/ABI/testing/sysfs-kernel-mm-memory-tiers, since Linux 6.1: a tier of a lower
// number is faster). Nothing else tells of a node without CPUs what its memory is.
func ReadMemories(fsys fs.FS) (m machine.Memories, err error) {
	r := &reader{fsys: fsys}
	memory, _ := r.list(nodeDir + "/has_memory")
	cpus, _ := r.list(nodeDir + "/has_cpu")
	if normal, ok := r.list(nodeDir + "/has_normal_memory"); ok {
		m.Movable = memory.Minus(normal)
	}
	numbers := r.numbered(tierDir, "memory_tier")
	tiers := make([]cpuset.Set, len(numbers)) // the fastest first
	first, last := len(tiers), -1             // of those of nodes with CPUs
	for i, n := range numbers {
		tiers[i], _ = r.list(fmt.Sprintf("%s/memory_tier%d/nodelist", tierDir, n))
		if tiers[i].Overlaps(cpus) {
			first, last = min(first, i), i
		}
	}
	m.Untold = memory
	for i, nodes := range tiers {
		kind := machine.DRAM
		switch {
		case last < 0:
			continue // there is nothing to compare it with
		case i < first:
			kind = machine.HBM
		case i > last:
			kind = machine.PMEM
		}
		m.Of[kind] = m.Of[kind].Union(nodes)
		m.Untold = m.Untold.Minus(nodes)
	}
	own := m.Untold.Intersect(cpus)
	m.Of[machine.DRAM], m.Untold = m.Of[machine.DRAM].Union(own), m.Untold.Minus(own)
	if r.err != nil {
		return machine.Memories{}, fmt.Errorf("read memory: %w", r.err)
	}
	return m, nil
}
