package place

import (
	"fmt"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
)

// Lacking adds, for a refusal, how many CPUs of a set each NUMA node has; no node
// has enough. Name describes the CPUs, as in "CPUs to own".
func (w *Why) Lacking(t *Topology, name string, free cpuset.Set) {
	w.Nodes(t, name, func(pos int) string {
		u := &t.units[machine.Node][pos]
		return fmt.Sprintf("%d of %d CPUs", u.CPUs.Overlap(&free), u.Size)
	})
}

// Nodes adds, for a refusal, what each NUMA node has.
func (w *Why) Nodes(t *Topology, name string, has func(pos int) string) {
	if w == nil {
		return
	}
	c := Choice{
		Name: name, Count: len(t.units[machine.Node]), Fits: has,
		Label: func(pos int) string { return t.Label(machine.Node, pos) },
	}
	c.Best(w)
}
