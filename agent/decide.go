package agent

import (
	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

func (t *transaction) decide(s *place.State, spec *Spec) (*place.State, error) {
	if !spec.CPUs.IsEmpty() {
		return givenCPUs(s, &spec.Request, spec.CPUs, spec.Mems)
	}
	offer, err := place.Place(t.n.opt.Policy, s, &spec.Request)
	if err != nil {
		return nil, s.Blame(&spec.Request, err)
	}
	if kept := kept(s, spec, offer.Grant); kept != nil {
		return kept, nil
	}
	return s.Commit(bound(offer, spec.Mems))
}

// bound is an offer with the given memory nodes, if any.
func bound(offer place.Offer, mems cpuset.Set) place.Offer {
	if !mems.IsEmpty() && offer.Grant != nil {
		g := *offer.Grant
		g.Mems = mems
		offer.Grant = &g
	}
	return offer
}

// givenCPUs returns the state in which a workload has the given CPUs, whatever it
// had before.
func givenCPUs(s *place.State, r *place.Request, cpus, mems cpuset.Set) (*place.State, error) {
	if _, ok := s.Grant(r.ID); ok {
		var err error
		if s, err = s.Release(r.ID); err != nil {
			return nil, err
		}
	}
	g, err := grantOf(s, r, cpus, mems)
	if err != nil {
		return nil, err
	}
	next, err := granted(s, g)
	return next, s.Blame(r, err)
}

// grantOf is the grant of the given CPUs in a state in which a workload has none.
func grantOf(s *place.State, r *place.Request, cpus, mems cpuset.Set) (*place.Grant, error) {
	g := &place.Grant{ID: r.ID, Request: *r, Mems: mems}
	nodes := mems
	if nodes.IsEmpty() {
		nodes = s.Topology().NodesOf(cpus)
	}
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
