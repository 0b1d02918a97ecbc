package place

import (
	"fmt"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
)

// Lacking adds, for a refusal, how many CPUs of a set each NUMA node has; no node
// has enough. Name describes the CPUs, as in "CPUs to own".
func (w *Why) Lacking(t *Topology, name string, free cpuset.Set) {
	if w == nil {
		return
	}
	units := t.units[machine.Node]
	c := Choice{
		Name: name, Count: len(units),
		Fits: func(pos int) string {
			return fmt.Sprintf("%d of %d CPUs", units[pos].CPUs.Overlap(&free), units[pos].Size)
		},
		Label: func(pos int) string { return t.Label(machine.Node, pos) },
	}
	c.Best(w)
}
