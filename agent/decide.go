package agent

import (
	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

func (t *transaction) decide(s *place.State, spec *Spec) (*place.State, error) {
	if !spec.CPUs.IsEmpty() {
		return givenCPUs(s, spec)
	}
	offer, err := place.Place(t.n.opt.Policy, s, &spec.Request)
	if err != nil {
		return nil, s.Blame(&spec.Request, err)
	}
	next := kept(s, spec, offer.Grant)
	if next == nil {
		if next, err = s.Commit(offer); err != nil {
			return nil, err
		}
	}
	return bound(next, spec, nil)
}

// bound returns a state in which a workload takes its memory from where its spec says. What is
// promised to it then lies there, too; what it had there stays, as its pages do.
func bound(s *place.State, spec *Spec, had []place.Block) (*place.State, error) {
	g, ok := s.Grant(spec.Request.ID)
	if !ok || spec.Mems.IsEmpty() && len(spec.NearMems) == 0 {
		return s, nil
	}
	next, within := *g, spec.Mems
	next.Mems = spec.Mems
	if within.IsEmpty() {
		near := g.Own.Union(g.Share.Within) // not only what is left of a pool now
		if near.IsEmpty() {
			near = s.Effective(g)
		}
		for _, of := range spec.NearMems {
			within, next.Mems = within.Union(of), next.Mems.Union(s.Topology().Nearest(of, near))
		}
	}
	if len(g.Memory) > 0 {
		free, err := s.Release(g.ID)
		if err == nil {
			next.Mems, next.Memory, err = free.RefitMemoryWithin(within, next.Mems, had, g.Request.Memory)
		}
		if err != nil {
			return nil, s.Blame(&spec.Request, err)
		}
	}
	return granted(s, &next)
}

// givenCPUs returns the state in which a workload has the CPUs that its spec says, whatever it
// had before.
func givenCPUs(s *place.State, spec *Spec) (*place.State, error) {
	r := &spec.Request
	if _, ok := s.Grant(r.ID); ok {
		var err error
		if s, err = s.Release(r.ID); err != nil {
			return nil, err
		}
	}
	g, err := grantOf(s, r, spec.CPUs)
	if err != nil {
		return nil, err
	}
	next, err := granted(s, g)
	if err != nil {
		return nil, s.Blame(r, err)
	}
	return bound(next, spec, nil)
}

// grantOf is the grant of the given CPUs in a state in which a workload has none.
func grantOf(s *place.State, r *place.Request, cpus cpuset.Set) (*place.Grant, error) {
	g, nodes := &place.Grant{ID: r.ID, Request: *r}, s.Topology().NodesOf(cpus)
	if len(r.Memory) > 0 {
		var err error
		if g.Mems, g.Memory, err = s.FitMemory(nodes, r.Memory); err != nil {
			return nil, err
		}
	}
	if len(r.Devices) > 0 {
		var err error
		if g.Devices, _, err = s.FitDevices(nodes, r.Devices); err != nil {
			return nil, err
		}
	}
	if ownsByClass(r) {
		g.Own, g.Lent = cpus, r.Class.Traits().Lends
	} else {
		g.Share = place.Share{Within: cpus, Milli: r.Milli}
	}
	if r.Explain {
		g.Why = place.NewWhy(r)
		g.Why.Note("CPUs %s as asked for", cpus)
	}
	return g, nil
}

func granted(s *place.State, g *place.Grant) (*place.State, error) {
	offer := s.Offer()
	offer.Grant = g
	return s.Commit(offer)
}

// ownsByClass reports whether CPUs that are given to a request are its own.
func ownsByClass(r *place.Request) bool {
	return r.Mode == place.Exclusive || r.Mode == place.Auto && r.Class.Traits().Own
}
