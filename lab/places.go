package lab

import (
	"fmt"
	"math"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
)

// maxShared bounds the CPUs that an experiment takes unless told otherwise, so
// that a run on a large host in use disturbs a known part of it.
const maxShared = 8

// Fullest is how full CPUs of its own may be for the tenant, as a share (0-1): with less room its
// requests wait for each other, and that would be taken for the neighbour's doing.
const Fullest = 0.6

// places says which CPUs each role gets.
type places struct {
	shared    cpuset.Set // tenant and neighbour, where the scenario does not split them
	generator cpuset.Set // empty: it shares
	// tenant and neighbour divide shared between them in whole cores;
	// splitWhy says why that is impossible, "" if it is not.
	tenant, neighbour cpuset.Set
	// tenantMems and neighbourMems are their memory nodes, empty where the
	// machine has one.
	tenantMems, neighbourMems cpuset.Set
	splitWhy                  string
}

// choosePlaces picks CPUs out of allowed: whole cores, the tenant's and the
// neighbour's under different NUMA nodes, or else different L3 caches, where
// there are several, and a core for the generator where one can be spared.
// wanted fixes the shared CPUs; the empty set leaves the choice to the machine.
// need says how many of so many shared CPUs the tenant wants.
func choosePlaces(m *machine.Machine, allowed, wanted cpuset.Set, need func(shared int) float64) (places, error) {
	if outside := wanted.Minus(allowed); !outside.IsEmpty() {
		return places{}, fmt.Errorf("cpus %s: not allowed here: %s (allowed: %s)", wanted, outside, allowed)
	}
	p := places{generator: spareCore(m, allowed.Minus(m.Isolated), wanted)}
	free := wanted
	if wanted.IsEmpty() {
		free = allowed.Minus(m.Isolated).Minus(p.generator)
	}
	if free.IsEmpty() {
		return places{}, fmt.Errorf("no CPU is left for an experiment (allowed: %s, isolated: %s)", allowed, m.Isolated)
	}
	size := free.Len()
	if wanted.IsEmpty() {
		size = min(size, maxShared)
	}
	p.divide(m, free, size, need(size))
	return p, nil
}

// SharedCPUs are those that the tenant and the neighbour would share on a machine all of whose
// CPUs are allowed: the CPUs asked for, or the lab's choice.
func (e Spec) SharedCPUs(m *machine.Machine) (cpuset.Set, error) {
	wanted, err := cpuset.Parse(e.CPUs)
	if err != nil {
		return cpuset.Set{}, err
	}
	p, err := choosePlaces(m, m.Online, wanted, e.need)
	return p.shared, err
}

// divide takes whole cores for size CPUs out of free, for the tenant from one home (NUMA node
// or L3) and for the neighbour from another if possible: for the tenant the fewest that it does
// not fill by more than Fullest, but a core at least stays with the neighbour.
func (p *places) divide(m *machine.Machine, free cpuset.Set, size int, wants float64) {
	homes := homes(m, free)
	need := int(math.Ceil(wants/Fullest - 1e-9))
	tenantCores := orderCores(m, free, homes)
	neighbourCores := orderCores(m, free, append(homes[1:len(homes):len(homes)], homes[0]))
	if len(tenantCores) < 2 {
		p.shared = free
		p.splitWhy = "all CPUs are threads of one core"
		if free.Len() == 1 {
			p.splitWhy = "one CPU for both roles"
		}
		return
	}
	p.neighbour = neighbourCores[0] // the neighbour keeps at least one core
	for _, core := range tenantCores {
		if p.tenant.Len() >= need {
			break
		}
		fits := p.tenant.IsEmpty() || p.tenant.Len()+core.Len()+p.neighbour.Len() <= size
		if fits && !core.Overlaps(p.neighbour) {
			p.tenant = p.tenant.Union(core)
		}
	}
	for _, core := range neighbourCores {
		if p.tenant.Len()+p.neighbour.Len() >= size {
			break
		}
		if !core.Overlaps(p.tenant) {
			p.neighbour = p.neighbour.Union(core)
		}
	}
	p.shared = p.tenant.Union(p.neighbour)
	p.tenantMems, p.neighbourMems = mems(m, p.tenant), mems(m, p.neighbour)
}

// homes lists the parts of free that share a NUMA node or, on a machine of one
// node, an L3; one part where neither divides it.
func homes(m *machine.Machine, free cpuset.Set) []cpuset.Set {
	for _, kind := range []machine.Kind{machine.Node, machine.L3} {
		var parts []cpuset.Set
		for _, d := range m.ByKind(kind) {
			if part := d.CPUs.Intersect(free); !part.IsEmpty() {
				parts = append(parts, part)
			}
		}
		if len(parts) > 1 {
			return parts
		}
	}
	return []cpuset.Set{free}
}

// orderCores lists the cores within free, home by home. A core that is only
// partly free counts as its free threads.
func orderCores(m *machine.Machine, free cpuset.Set, homes []cpuset.Set) []cpuset.Set {
	var cores []cpuset.Set
	var seen cpuset.Set
	for _, home := range homes {
		for cpu := range home.All() {
			if seen.Has(cpu) {
				continue
			}
			core := cpuset.MustOf(cpu)
			if d, ok := m.Of(machine.Core, cpu); ok {
				core = d.CPUs.Intersect(free)
			}
			seen = seen.Union(core)
			cores = append(cores, core)
		}
	}
	return cores
}

// spareCore returns the last whole core of free outside wanted, where enough
// remains for the experiment: three cores, if wanted does not fix them.
func spareCore(m *machine.Machine, free, wanted cpuset.Set) cpuset.Set {
	free = free.Minus(wanted)
	cores := orderCores(m, free, []cpuset.Set{free})
	if len(cores) == 0 || wanted.IsEmpty() && len(cores) < 4 {
		return cpuset.Set{}
	}
	return cores[len(cores)-1]
}

// mems returns the NUMA nodes with memory that hold cpus, or the empty set where
// the machine has only one such node: then confining memory means nothing.
func mems(m *machine.Machine, cpus cpuset.Set) cpuset.Set {
	var nodes cpuset.Set
	withMemory := 0
	for _, n := range m.ByKind(machine.Node) {
		if n.Bytes == 0 {
			continue
		}
		withMemory++
		if n.CPUs.Overlaps(cpus) {
			nodes, _ = nodes.With(n.ID)
		}
	}
	if withMemory < 2 {
		return cpuset.Set{}
	}
	return nodes
}
