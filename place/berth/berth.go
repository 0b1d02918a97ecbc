// Package berth is the default placement policy.
//
// Classes decide what a workload gets unless Request.Mode says otherwise:
//
//	LSE     its CPU time rounded up to whole CPUs, of its own; cores are shared
//	        with nobody, so that a sibling left over stays idle
//	LSR     the whole CPUs of its own, lent to BE; a remainder from the pool
//	LS      its CPU time from the pool of one NUMA node, if one has room
//	BE      what is left of the machine and what LSR lends; its CPU time is not
//	        kept for it
//	SYSTEM  the reserved CPUs, if there are any, else like LS
//
// Own CPUs come from the fewest NUMA nodes; among those sets, in this order:
// fewest devices far away, least memory from elsewhere, strongest affinity,
// shortest distances, the asked NUMA strategy, fewest L3 domains, fewest cores
// shared with others, fewest wholly free cores and L3 domains broken, and fewest
// CPUs left over. Where cores differ in size, a small one makes up an odd number.
// If a request needs a fence and several nodes, each keeps room for it. The
// shared pool keeps as many CPUs on a node as the requests of those who live
// there add up to, and everywhere at least one.
//
// Isolated CPUs are given only to those who ask for them. Preferences (nodes,
// isolation, kind of core, bind policy) are tried all together, then dropped from
// the last to the first until the request fits.
//
// Nothing that is held ever moves on account of another, and a saved grant is
// reinstated as it was.
package berth

import (
	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Policy is the default policy. The zero value is ready to use.
type Policy struct {
	// Strategy applies to requests that name none; StrategyAny is MostAllocated.
	Strategy place.Strategy
}

// Name returns "berth".
func (Policy) Name() string { return "berth" }

// Place implements place.Policy.
func (p Policy) Place(s *place.State, r *place.Request) (place.Offer, error) {
	return p.place(s, r, nil)
}

// Resize implements place.Resizer: own CPUs grow next to those held and shrink
// without moving, the share stays in its pool while that has room. Devices
// cannot change.
func (p Policy) Resize(s *place.State, r *place.Request) (place.Offer, error) {
	old, ok := s.Grant(r.ID)
	if !ok {
		return place.Offer{}, &place.NotHeldError{ID: r.ID}
	}
	return p.place(s, r, old)
}

// task is one request on its way to a grant.
type task struct {
	s   *place.State
	t   *place.Topology
	r   *place.Request
	why *place.Why
	old *place.Grant // what is held already, nil if nothing

	strategy place.Strategy
	pool     cpuset.Set // of shared workloads: allowed and not isolated, and the floor
	sharable cpuset.Set // the part of pool that nobody owns
	shared   []load     // by node position
	total    load
	pull     []int
}

// load is what lives in a part of the pool.
type load struct{ grants, milli int }

// cpus returns the CPUs that the load needs.
func (l load) cpus() int {
	return max(min(1, l.grants), (l.milli+999)/1000)
}

func (p Policy) place(s *place.State, r *place.Request, old *place.Grant) (place.Offer, error) {
	k := &task{s: s, t: s.Topology(), r: r, why: place.NewWhy(r), old: old, strategy: r.Strategy, pull: s.Attraction(r)}
	if k.strategy == place.StrategyAny {
		k.strategy = p.Strategy
	}
	g := &place.Grant{ID: r.ID, Request: *r, Why: k.why}
	k.survey()
	if err := k.decide(g); err != nil {
		return place.Offer{Why: k.why}, err
	}
	o := s.Offer()
	o.Grant = g
	return o, nil
}

// decide fills in the grant.
func (k *task) decide(g *place.Grant) error {
	own, milli := split(k.r)
	var nodes cpuset.Set
	if own > 0 {
		if err := k.exclusive(g, own); err != nil {
			return err
		}
		nodes = k.t.NodesOf(g.Own)
	}
	if own == 0 || milli > 0 {
		near, err := k.share(g, milli, nodes)
		if err != nil {
			return err
		}
		if own == 0 {
			nodes = near
		}
	}
	return k.rest(g, nodes)
}

// split returns the CPUs and the time of the pool that a request gets by class
// and mode.
func split(r *place.Request) (own, milli int) {
	mode := r.Mode
	if mode == place.Auto {
		switch r.Class {
		case place.LSE:
			mode = place.Exclusive
		case place.LSR:
			mode = place.Mixed
		}
	}
	switch mode {
	case place.Exclusive:
		return r.Whole(), 0
	case place.Mixed:
		shared := r.SharedMilli
		if shared == 0 {
			shared = r.Milli % 1000
		}
		return (r.Milli - shared) / 1000, shared
	}
	return 0, r.Milli
}

// survey counts the loads of the shared pool. What the workload itself holds
// does not count.
func (k *task) survey() {
	conf := k.s.Config()
	k.pool = conf.Allowed
	if iso := k.t.Machine().Isolated; conf.Allowed.Overlaps(iso) && !iso.Contains(conf.Allowed) {
		k.pool = conf.Allowed.Minus(iso.Minus(conf.Floor))
	}
	k.sharable = k.s.Sharable().Intersect(k.pool)
	nodes := k.t.Units(machine.Node)
	k.shared = make([]load, len(nodes))
	for b := range k.s.Bounds() {
		k.add(b)
	}
	if k.old == nil {
		return
	}
	k.sharable = k.sharable.Union(k.old.Own.Union(k.old.Fence).Intersect(k.pool))
	if sh := &k.old.Share; !sh.Within.IsEmpty() {
		at := place.Region{Node: k.t.NodeAround(sh.Within), BE: k.old.Request.Class == place.BE}
		k.add(place.Bound{Region: &at, Load: place.Load{Grants: -1, Milli: -sh.Milli}})
	}
}

func (k *task) add(b place.Bound) {
	milli := b.Milli
	if b.BE {
		milli = 0
	}
	if b.Node >= 0 {
		k.shared[b.Node].grants += b.Grants
		k.shared[b.Node].milli += milli
	}
	k.total.grants += b.Grants
	k.total.milli += milli
}

// rest adds devices and memory near the nodes.
func (k *task) rest(g *place.Grant, nodes cpuset.Set) (err error) {
	switch {
	case len(k.r.Devices) == 0:
	case k.old == nil:
		if g.Devices, _, err = k.s.FitDevices(nodes, k.r.Devices); err != nil {
			return err
		}
	case !sameDevices(k.old.Request.Devices, k.r.Devices):
		return &place.RejectedError{ID: g.ID, Reason: "devices cannot change in place"}
	default:
		g.Devices = k.old.Devices
	}
	if k.old != nil {
		return k.refitMemory(g, nodes)
	}
	g.Mems = nodes
	if len(k.r.Memory) > 0 {
		g.Mems, g.Memory, err = k.s.FitMemory(nodes, k.r.Memory)
	}
	return err
}
