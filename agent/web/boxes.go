package web

import (
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
)

// Box is a domain as it is drawn: around narrower ones, or around cores.
type Box struct {
	// Names are the domains that have these CPUs, widest first: "socket 0", "node 0".
	Names []string `json:"names"`
	Boxes []Box    `json:"boxes,omitempty"`
	// Cores are the CPUs of each core.
	Cores []cpuset.Set `json:"cores,omitempty"`
}

// boxesOf nests what a machine's CPUs share. Domains that cross are cut: the parts
// of an L3 on two nodes are two boxes of one name.
func boxesOf(m *machine.Machine) []Box {
	return split(m, m.Online, []machine.Kind{machine.Socket, machine.Node, machine.L3})
}

// split parts CPUs by the first kind, and each part by the others.
func split(m *machine.Machine, cpus cpuset.Set, kinds []machine.Kind) []Box {
	if len(kinds) == 0 {
		return []Box{{Names: []string{}, Cores: coresOf(m, cpus)}}
	}
	var out []Box
	for _, d := range m.ByKind(kinds[0]) {
		if part := d.CPUs.Intersect(cpus); !part.IsEmpty() {
			out = append(out, box(d.String(), split(m, part, kinds[1:])))
			cpus = cpus.Minus(part)
		}
	}
	if !cpus.IsEmpty() {
		out = append(out, split(m, cpus, kinds[1:])...) // no domain of the kind has them
	}
	return out
}

// box names what is within; a single box within is the same one.
func box(name string, within []Box) Box {
	name = strings.Replace(name, "l3", "L3", 1)
	if len(within) == 1 {
		within[0].Names = append([]string{name}, within[0].Names...)
		return within[0]
	}
	return Box{Names: []string{name}, Boxes: within}
}

// coresOf returns the CPUs of each core; one that no core has stands alone.
func coresOf(m *machine.Machine, cpus cpuset.Set) []cpuset.Set {
	var out []cpuset.Set
	for _, d := range m.ByKind(machine.Core) {
		if part := d.CPUs.Intersect(cpus); !part.IsEmpty() {
			out = append(out, part)
			cpus = cpus.Minus(part)
		}
	}
	for cpu := range cpus.All() {
		out = append(out, cpuset.MustOf(cpu))
	}
	return out
}
