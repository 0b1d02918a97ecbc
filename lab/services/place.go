package services

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/lab"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
)

// Place is where a placement has the services on a machine.
type Place struct {
	Cell  string `json:"cell"`
	Parts []Part `json:"parts"` // one without a rule: all
	// Neighbour are the CPUs of the neighbour; empty without one.
	Neighbour cpuset.Set `json:"neighbour,omitzero"`
	// Crossing is how many calls of a request go from one part to another, on average, as the
	// graph has it.
	Crossing float64 `json:"crossing"`

	elsewhere Part // the neighbour's
}

// Part is CPUs of a machine, and the services that stand there.
type Part struct {
	CPUs cpuset.Set `json:"cpus"`
	// Mems are the memory nodes that the services are bound to; empty is any.
	Mems     cpuset.Set `json:"mems,omitzero"`
	Services []string   `json:"services"`
}

// site is a machine, and the CPUs of it that take part.
type site struct {
	machine *machine.Machine
	free    cpuset.Set
}

// memories are the NUMA nodes with memory.
func (s site) memories() (nodes []machine.Domain) {
	for _, d := range s.machine.ByKind(machine.Node) {
		if d.Bytes > 0 {
			nodes = append(nodes, d)
		}
	}
	return nodes
}

// numa says whether the CPUs are near different memories: where a service's memory is then
// depends on where it stood when it took it.
func (s site) numa() bool {
	near := 0
	for _, d := range s.memories() {
		if d.CPUs.Overlaps(s.free) {
			near++
		}
	}
	return near > 1
}

// near are the memory nodes of CPUs; none where there is one memory.
func (s site) near(cpus cpuset.Set) (nodes cpuset.Set) {
	memories := s.memories()
	if len(memories) < 2 {
		return nodes
	}
	for _, d := range memories {
		if d.CPUs.Overlaps(cpus) {
			nodes = nodes.Union(cpuset.MustOf(d.ID))
		}
	}
	return nodes
}

// parts are the two first ones of a kind.
func (s site) parts(over string) ([]Part, error) {
	if over == Nodes {
		return s.nodes()
	}
	return s.halves()
}

// nodes are the CPUs of the two first NUMA nodes that have memory and CPUs that take part.
func (s site) nodes() (parts []Part, err error) {
	for _, d := range s.memories() {
		if cpus := d.CPUs.Intersect(s.free); !cpus.IsEmpty() {
			parts = append(parts, Part{CPUs: cpus, Mems: cpuset.MustOf(d.ID)})
		}
	}
	if len(parts) < 2 {
		return nil, &kernel.NotSupportedError{
			Feature: "two NUMA nodes", Reason: fmt.Sprintf("the CPUs that take part (%s) are on one", s.free),
			Remedy: "run on a machine with two sockets, or with sub-NUMA clusters; --set cpus=LIST lets other CPUs take part",
		}
	}
	return parts[:2], nil
}

// halves are CPUs of whole cores, as place/berth gives them to two workloads with cores of
// their own, each of half of the cores.
func (s site) halves() (parts []Part, err error) {
	t, err := place.NewTopology(s.machine)
	if err != nil {
		return nil, fmt.Errorf("halves: %w", err)
	}
	state, err := place.New(t, place.Config{Allowed: s.free, NoFloor: true})
	if err != nil {
		return nil, fmt.Errorf("halves: %w", err)
	}
	cores := t.Count(machine.Core, s.free)
	each := s.free.Len() * (cores / 2) / max(cores, 1)
	if each == 0 {
		return nil, &kernel.NotSupportedError{Feature: "halves of the cores", Reason: "one core takes part", Remedy: "let more take part: --set cpus=LIST"}
	}
	for _, id := range []string{"first", "second"} {
		offer, err := place.Place(berth.Policy{}, state, &place.Request{ID: id, Class: place.LSE, Milli: 1000 * each})
		if err == nil {
			state, err = state.Commit(offer)
		}
		if err != nil {
			return nil, &kernel.NotSupportedError{Feature: "halves of the cores", Reason: err.Error(), Remedy: "let whole cores take part: --set cpus=LIST"}
		}
		parts = append(parts, Part{CPUs: offer.Grant.Own, Mems: s.near(offer.Grant.Own)})
	}
	return parts, nil
}

// most is how much of a part's CPUs the services there may want.
const most = 0.75

// place finds out where a placement has the services, which want so many CPUs together.
func (g *graph) place(p Placement, s site, wants float64) (*Place, error) {
	out := &Place{Cell: p.Name, Parts: []Part{{CPUs: s.free}}}
	first := make([]bool, len(g.services))
	for i := range first {
		first[i] = true
	}
	if p.Parts > 0 {
		parts, err := s.parts(p.Over)
		if err != nil {
			return nil, err
		}
		out.Parts, out.elsewhere = parts[:p.Parts], parts[1]
		switch {
		case p.Pairs != "":
			first = g.split(p.Pairs == Together)
		case p.Parts == 2:
			for i, service := range g.services {
				first[i] = slices.Contains(p.First, service.Name)
			}
		}
	}
	out.Crossing = g.crossing(first)
	share := g.share(first)
	for i := range out.Parts {
		part := &out.Parts[i]
		for n, service := range g.services {
			if first[n] == (i == 0) {
				part.Services = append(part.Services, service.Name)
			}
		}
		if want := wants * share; want > most*float64(part.CPUs.Len()) {
			return nil, &kernel.NotSupportedError{
				Feature: "room for the services", Reason: fmt.Sprintf("they want %.2g CPUs of CPUs %s, more than %.0f %% of them", want, part.CPUs, 100*most),
				Remedy: "ask for less: --set demand=0.1",
			}
		}
		share = 1 - share
	}
	switch p.Neighbour {
	case Everywhere:
		out.Neighbour, out.elsewhere = s.free, Part{}
	case Elsewhere:
		out.Neighbour = out.elsewhere.CPUs
	}
	return out, nil
}

// same says whether two placements come to the same.
func (p *Place) same(o *Place) bool {
	return p.Neighbour == o.Neighbour && slices.EqualFunc(p.Parts, o.Parts, func(a, b Part) bool {
		return a.CPUs == b.CPUs && a.Mems == b.Mems && slices.Equal(a.Services, b.Services)
	})
}

// placed is a placement with its place, or why there is none.
type placed struct {
	Placement
	at  *Place
	err error
}

// places are those of all placements. One with parts that comes to the same as one before it
// is left out.
func (e Spec) places(g *graph, s site, wants float64) (all []placed) {
	for _, p := range e.Placements {
		at, err := g.place(p, s, wants)
		if err == nil && p.Parts > 0 {
			for _, before := range all {
				if before.Parts > 0 && before.err == nil && before.at.same(at) {
					err = &kernel.NotSupportedError{Feature: "another place", Reason: fmt.Sprintf("it is the same as %q here", before.Name)}
					break
				}
			}
		}
		all = append(all, placed{p, at, err})
	}
	return all
}

// impossible says that an error is no reason to leave a placement out.
func (p placed) impossible() bool { return p.err != nil && !errors.Is(p.err, kernel.ErrNotSupported) }

// settings are those of the services' groups, and of the neighbour's. Servers are in the
// order of the graph.
func (g *graph) settings(p placed) lab.Settings {
	s := lab.Settings{}
	if p.Parts > 0 {
		for _, part := range p.at.Parts {
			for n, i := range g.order {
				if slices.Contains(part.Services, g.services[i].Name) {
					s[lab.Server(n+1)] = cgroup.Limits{CPUs: part.CPUs, Mems: part.Mems}
				}
			}
		}
	}
	if p.Neighbour == Elsewhere {
		s[lab.Neighbour] = cgroup.Limits{CPUs: p.at.elsewhere.CPUs, Mems: p.at.elsewhere.Mems}
	}
	return s
}

// on is where a service stands.
func (p *Place) on(service string) (Part, bool) {
	i := slices.IndexFunc(p.Parts, func(part Part) bool { return slices.Contains(part.Services, service) })
	if i < 0 {
		return Part{}, false
	}
	return p.Parts[i], true
}

// nodeOf is the number of the NUMA node of each CPU.
func nodeOf(m *machine.Machine) map[int]int {
	nodes := map[int]int{}
	for _, d := range m.ByKind(machine.Node) {
		for cpu := range d.CPUs.All() {
			nodes[cpu] = d.ID
		}
	}
	return nodes
}

// orDash is a list of CPUs, or a dash for none.
func orDash(s cpuset.Set) string { return cmp.Or(s.String(), "–") }
