// Package berth is the default placement policy.
//
// Classes decide what a workload gets unless Request.Mode says otherwise:
//
//	LSE     exclusive CPUs: its CPU time rounded up to whole CPUs; no core is
//	        shared, so a sibling left over stays idle
//	LSR     exclusive CPUs for the whole CPUs of its CPU time, shared with BE
//	        while idle; a remainder from the pool
//	LS      its CPU time from the pool of one NUMA node, if one has room
//	BE      the rest of the machine and the idle CPUs of LSR; no CPU time is
//	        reserved for it
//	SYSTEM  the reserved CPUs, if there are any, else like LS
//
// Exclusive CPUs come from the fewest NUMA nodes; among those sets, in this order:
// fewest devices far away, least memory from elsewhere, strongest affinity,
// shortest distances, the asked NUMA strategy, fewest L3 domains, fewest cores
// shared with others, fewest wholly free cores and L3 domains broken, and fewest
// CPUs left over. Where cores differ in size, a small one makes up an odd number.
// If a request needs idle siblings and several nodes, each node keeps room for
// them. On each node the shared pool keeps as many CPUs as the requests of the
// node's workloads add up to, and at least one.
//
// Where cores differ in kind, capacity or base frequency, LSE gets the fastest on the
// NUMA nodes chosen, and exclusive CPUs of BE are the slowest.
//
// Only requests that ask for isolated CPUs get them. Preferences (nodes,
// isolation, kind of core, bind policy) are tried all together, then dropped from
// the last to the first until the request fits.
//
// A placement never moves another workload, and Restore reinstates a saved grant
// as it was.
package berth

import (
	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Policy is the default policy. The zero value is ready to use.
type Policy struct {
	// Strategy applies to requests without a strategy; StrategyAny is MostAllocated.
	Strategy place.Strategy
}

// Name returns "berth".
func (Policy) Name() string { return "berth" }

// Ignores implements place.Ignorer.
func (Policy) Ignores() []place.Field { return []place.Field{place.FieldGroup, place.FieldHints} }

// Place implements place.Policy.
func (p Policy) Place(s *place.State, r *place.Request) (place.Offer, error) {
	return p.place(s, r, nil)
}

// Resize implements place.Resizer: own CPUs grow next to those held and shrink
// without moving, the share stays in its pool while that has room. Devices
// cannot change.
func (p Policy) Resize(s *place.State, r *place.Request, old *place.Grant) (place.Offer, error) {
	return p.place(s, r, old)
}

// task is one request on its way to a grant.
type task struct {
	s   *place.State
	t   *place.Topology
	r   *place.Request
	why *place.Why
	old *place.Grant // the grant that the workload holds, nil if it holds none

	strategy place.Strategy
	pool     cpuset.Set   // of shared workloads: allowed and not isolated, and the floor
	sharable cpuset.Set   // the part of pool without exclusive CPUs
	shared   []place.Load // by node position
	total    place.Load
	wide     []*place.Region // that grants are bound to, on several nodes but not the whole pool
	pull     []int
}

func (p Policy) place(s *place.State, r *place.Request, old *place.Grant) (place.Offer, error) {
	k := &task{s: s, t: s.Topology(), r: r, why: place.NewWhy(r), old: old, strategy: r.Strategy, pull: s.Attraction(r)}
	if k.strategy == place.StrategyAny {
		k.strategy = p.Strategy
	}
	g := &place.Grant{ID: r.ID, Request: *r, Why: k.why}
	k.survey()
	return s.Answer(g, k.decide(g))
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
	return k.s.Refit(g, k.old, nodes, k.r.Memory)
}

// split returns the CPUs and the time of the pool that a request gets by class
// and mode.
func split(r *place.Request) (own, milli int) {
	of := *r
	if c := r.Class.Traits(); r.Mode == place.Auto && c.Own {
		of.Mode = place.Mixed
		if c.WholeCores {
			of.Mode = place.Exclusive
		}
	}
	return of.Split()
}

// survey counts the loads of the shared pool.
func (k *task) survey() {
	conf := k.s.Config()
	k.pool = conf.Allowed
	if iso := k.t.Machine().Isolated; conf.Allowed.Overlaps(iso) && !iso.Contains(conf.Allowed) {
		k.pool = conf.Allowed.Minus(iso.Minus(conf.Floor))
	}
	k.sharable = k.s.Sharable().Intersect(k.pool)
	nodes := k.t.Units(machine.Node)
	k.shared = make([]place.Load, len(nodes))
	for b := range k.s.Bounds() {
		milli := b.Milli
		if b.BE {
			milli = 0
		}
		if b.Node >= 0 {
			k.shared[b.Node].Grants += b.Grants
			k.shared[b.Node].Milli += milli
		} else if !b.BE && b.Within != k.pool {
			k.wide = append(k.wide, b.Region)
		}
		k.total.Grants += b.Grants
		k.total.Milli += milli
	}
}
