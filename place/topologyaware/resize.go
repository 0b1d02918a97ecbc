package topologyaware

import (
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Resize implements place.Resizer. The workload stays in its pool or, where that
// has too little, moves to the nearest one around it that has enough. Own CPUs
// grow next to those held and shrink without moving. Memory is kept, unless
// another amount is asked for; devices cannot change.
func (p Policy) Resize(s *place.State, r *place.Request, old *place.Grant) (place.Offer, error) {
	if !old.Request.SameDevices(r) {
		return place.Offer{}, &place.RejectedError{ID: r.ID, Reason: "devices cannot change in place"}
	}
	w, err := p.classify(r)
	if err != nil {
		return place.Offer{}, err
	}
	k := newTask(p, s, r, w, old.Own)
	if lost := old.Own.Minus(s.OwnableBy(r)); w.own > 0 && !lost.IsEmpty() {
		return place.Offer{}, &place.RejectedError{ID: r.ID, Reason: "may not own CPUs " + lost.String() + " any longer"}
	}
	g := &place.Grant{ID: r.ID, Request: *r, Why: k.why, Devices: old.Devices}
	at, err := k.home(g, old.Own.Union(old.Share.Within))
	if err == nil {
		err = k.keepMemory(g, old, at)
	}
	return s.Answer(g, err)
}

// keepMemory leaves memory where it is if the amounts are the same.
func (k *task) keepMemory(g, old *place.Grant, at int) error {
	if slices.Equal(k.r.Memory, old.Request.Memory) && (k.pinMem || old.Mems.IsEmpty()) {
		g.Mems, g.Memory = old.Mems, old.Memory
		return nil
	}
	nodes := old.Mems
	if nodes.IsEmpty() {
		nodes = k.pools[at].mems
	}
	mems, blocks, err := k.s.FitMemory(nodes, k.r.Memory)
	if err != nil {
		return err
	}
	if g.Memory = blocks; k.pinMem {
		g.Mems = mems
	}
	return nil
}

// regrown returns n CPUs: some of those held, or all of them and more from the
// set, nearest first.
func (k *task) regrown(from cpuset.Set, n int) (cpuset.Set, error) {
	switch held := k.held.Len(); {
	case held == 0:
		return k.pick(from, n)
	case k.isolated == place.Require && !k.t.Machine().Isolated.Contains(k.held):
		return k.held, &place.RejectedError{ID: k.r.ID, Reason: "not all CPUs held are isolated"}
	case held >= n:
		return k.pick(k.held, n)
	}
	more, err := k.t.View(from, k.held).Take(n-k.held.Len(), []place.Stage{{
		Name: "thread", Kind: place.CPU, Again: true, Criteria: []string{"of the core not held", "of the L3 not held", "of the node not held", "free in its core"},
		Rank: func(v *place.View, pos int) place.Rank {
			return place.Rank{
				-takenAround(v, machine.Core, place.CPU, pos), -takenAround(v, machine.L3, place.CPU, pos), -takenAround(v, machine.Node, place.CPU, pos),
				-v.FreeIn(machine.Core, v.Up(machine.Core, place.CPU, pos)),
			}
		},
	}}, k.why)
	return k.held.Union(more), err
}
