// Package berth is the default placement policy.
package berth

import (
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Policy places whole cores, in few L3 domains and few near NUMA nodes. The zero
// value is ready to use.
type Policy struct{}

// Name returns "berth".
func (Policy) Name() string { return "berth" }

// Place implements place.Policy.
func (p Policy) Place(s *place.State, r *place.Request) (place.Offer, error) {
	t, why := s.Topology(), place.NewWhy(r)
	own, shared := split(r)
	g := &place.Grant{ID: r.ID, Request: *r, Why: why}
	if own > 0 {
		cpus, err := t.Take(&place.Query{From: s.Ownable(r.Class), Count: own, Stages: stages(), Why: why})
		if err != nil {
			return place.Offer{}, err
		}
		g.Own, g.Lent = cpus, r.Class == place.LSR
	}
	if own == 0 || shared > 0 {
		g.Share = place.Share{Within: s.Config().Allowed, Milli: shared}
	}
	nodes := t.NodesOf(g.Own)
	mems, blocks, err := s.FitMemory(nodes, r.Memory)
	if err != nil {
		return place.Offer{}, err
	}
	g.Mems, g.Memory = mems, blocks
	if g.Devices, _, err = s.FitDevices(nodes, r.Devices); err != nil {
		return place.Offer{}, err
	}
	o := s.Offer()
	o.Grant = g
	return o, nil
}

func split(r *place.Request) (own, shared int) {
	q := *r
	if q.Mode == place.Auto {
		switch q.Class {
		case place.LSE:
			q.Mode = place.Exclusive
		case place.LSR:
			q.Mode = place.Mixed
		}
	}
	return q.Split()
}

func stages() []place.Stage {
	fewest := func(k machine.Kind) func(*place.View, int) place.Rank {
		return func(v *place.View, pos int) place.Rank { return place.Rank{v.FreeIn(k, pos)} }
	}
	free := []string{"free CPUs"}
	return []place.Stage{
		{Name: "node", Mode: place.Enter, Kind: machine.Node, Criteria: free, Rank: fewest(machine.Node)},
		{Name: "whole L3", Kind: machine.L3, Criteria: free, Rank: fewest(machine.L3)},
		{Name: "L3", Mode: place.Enter, Kind: machine.L3, Criteria: free, Rank: fewest(machine.L3)},
		{Name: "core", Kind: machine.Core, Criteria: free, Rank: fewest(machine.Core)},
		{Name: "CPU", Kind: place.CPU, Criteria: free, Rank: func(v *place.View, pos int) place.Rank {
			return place.Rank{v.FreeIn(machine.Core, v.Up(machine.Core, place.CPU, pos))}
		}},
	}
}
