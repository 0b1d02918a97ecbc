// Package koordinator places workloads by Koordinator's rules for CPU binding
// (its scheduler plugin nodenumaresource and its node agent, as of mid-2026), with
// exclusivity that is symmetric and enforced.
//
// The class says how a workload runs, unless Request.Mode does:
//
//	LSE     bound to whole CPUs, exclusive
//	LSR     bound to whole CPUs, which BE may use as well
//	LS      in the shared pool: the CPUs that are neither bound nor reserved
//	BE      in the shared pool and on the CPUs of LSR; no CPU time is reserved for it
//	SYSTEM  on the reserved CPUs, if there are any, else like LS
//
// A bound workload asks for a whole number of CPUs; LSE or LSR without CPU time
// runs in the shared pool. Where Config.MaxRefs is more than 1, LSR is bound by
// reference count: that many workloads may hold a CPU, and those with fewer
// holders go first. LSE, and a request for exclusivity, is never counted.
//
// FullPCPUs takes whole cores: from one NUMA node if one has enough of them, from
// one socket, else from the sockets with most of them, the rest from the socket with
// fewest. SpreadByPCPUs takes one CPU of each core, then the second ones: from one
// node with enough cores, from one node, from one socket with enough cores, from one
// socket. The rest comes from sockets in use, then by the strategy. The strategy orders
// nodes and sockets by their free CPUs: MostAllocated the fewest first, LeastAllocated
// the most. DistributeEvenly, which Koordinator names but does not have, divides the
// CPUs over all nodes that have some, as evenly as these allow and in whole cores for
// FullPCPUs. If bound by preference only, a request may get half cores; if by
// requirement, it is refused instead.
//
// Request.Nodes are the chosen NUMA nodes: CPUs are divided over them as evenly as
// their free CPUs allow. MaxNodes looks for the fewest nodes that have room, for
// memory too. LS with nodes runs in the pool of these, and its CPU time counts on
// each of them in the same way; on all nodes it counts on none in particular.
//
// PCPULevel keeps a bound workload's cores to itself, NUMANodeLevel its nodes: it
// enters no node that another uses, and the rest of its nodes stays idle for all, BE
// included. Koordinator keeps apart only bound pods of the same level, and gives up
// silently. A node with a CPU that must stay shared or reserved is never exclusive.
//
// Preferred CPUs are taken first: those of the hint PreferredCPUs, those of the
// init workloads of the group, and on resizing the held ones.
//
// Isolated, CoreKind, Affinity and LimitMilli are ignored, but a request that
// requires isolated CPUs is refused. Memory of kinds that the nodes do not count is
// ignored.
package koordinator

import (
	"fmt"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// PreferredCPUs is the hint that names CPUs to take first, in the kernel's list
// form, such as those of a reservation that the workload replaces.
const PreferredCPUs = "preferred-cpus"

// Policy is Koordinator's placement. The zero value has its defaults.
type Policy struct {
	// Bind applies to requests without a bind policy; BindAny is FullPCPUs.
	Bind place.Bind
	// Strategy applies to requests without a strategy; StrategyAny is LeastAllocated.
	Strategy place.Strategy
	// Amplification is the CPU time that a shared CPU is worth to LS, in percent: the
	// node's resource amplification ratio. A bound CPU counts for as much. 0 is 100.
	Amplification int
	// ShareReserved lets LS and BE use the reserved CPUs as well: a system QoS
	// resource that is not exclusive.
	ShareReserved bool
}

// Name returns "koordinator".
func (Policy) Name() string { return "koordinator" }

// Ignores implements place.Ignorer.
func (Policy) Ignores() []place.Field {
	return []place.Field{place.FieldIsolated, place.FieldCoreKind, place.FieldAffinity, place.FieldGroup}
}

// Place implements place.Policy.
func (p Policy) Place(s *place.State, r *place.Request) (place.Offer, error) {
	return p.place(s, r, nil)
}

// Resize implements place.Resizer: the CPUs that are held are preferred to all
// others, so that they grow in place and shrink without moving. Devices cannot
// change.
func (p Policy) Resize(s *place.State, r *place.Request, old *place.Grant) (place.Offer, error) {
	return p.place(s, r, old)
}

// task is one request on its way to a grant.
type task struct {
	Policy
	s   *place.State // without the workload's own grant
	t   *place.Topology
	r   *place.Request
	why *place.Why
	old *place.Grant // the workload's grant, nil if it has none

	conf      *place.Config
	pool      cpuset.Set // of LS and BE
	sharable  cpuset.Set // the part of pool that is not bound
	threads   int        // of the largest core
	preferred cpuset.Set
	near      cpuset.Set // CPUs that the workload holds already
	few       cpuset.Set // the nodes found for MaxNodes
}

func (p Policy) place(s *place.State, r *place.Request, old *place.Grant) (place.Offer, error) {
	k := p.task(s, r)
	k.old = old
	g := &place.Grant{ID: r.ID, Request: *r, Why: k.why}
	return s.Answer(g, k.decide(g))
}

func (p Policy) task(s *place.State, r *place.Request) *task {
	k := &task{Policy: p, s: s, t: s.Topology(), r: r, why: place.NewWhy(r), conf: s.Config()}
	if r.Bind != place.BindAny {
		k.Bind = r.Bind
	}
	if k.Bind == place.BindAny {
		k.Bind = place.FullPCPUs
	}
	if r.Strategy != place.StrategyAny {
		k.Strategy = r.Strategy
	}
	if k.Amplification == 0 {
		k.Amplification = 100
	}
	k.pool = k.conf.Allowed
	if !p.ShareReserved {
		k.pool = k.pool.Minus(k.conf.Reserved)
	}
	k.sharable = s.Sharable().Intersect(k.pool)
	k.threads, _ = k.t.ThreadsPerCore()
	return k
}

// decide fills in the grant.
func (k *task) decide(g *place.Grant) error {
	if k.Amplification < 0 {
		return &place.InvalidError{Reason: "the amplification is negative"}
	}
	if k.r.Isolated == place.Require {
		return &place.RejectedError{ID: k.r.ID, Reason: "isolated CPUs are not told apart"}
	}
	n, milli, err := k.split()
	if err != nil {
		return err
	}
	if n > 0 {
		if err := k.bind(g, n); err != nil {
			return err
		}
	}
	if n == 0 || milli > 0 {
		if err := k.share(g, milli); err != nil {
			return err
		}
	}
	return k.rest(g)
}

// split returns the CPUs to bind and the time of the shared pool.
func (k *task) split() (n, milli int, err error) {
	r := *k.r
	if r.Mode == place.Auto && r.Class.Traits().Own {
		r.Mode = place.Exclusive
	}
	if r.Mode == place.Exclusive && r.Milli%1000 != 0 {
		return 0, 0, &place.RejectedError{ID: r.ID, Reason: fmt.Sprintf("bound to %d milli-CPU, which is no whole number of CPUs", r.Milli)}
	}
	n, milli = r.Split()
	return n, milli, nil
}

// rest adds devices and memory.
func (k *task) rest(g *place.Grant) (err error) {
	if err = k.s.Refit(g, k.old, k.home(g), k.counted()); err != nil {
		return err
	}
	bound := !g.Own.IsEmpty() || g.Share.Counted
	switch {
	case k.r.NodesRequired && !k.r.Nodes.IsEmpty() && !k.r.Nodes.Contains(g.Mems):
		return &place.NUMAError{Nodes: k.r.Nodes, Reason: "too little memory is free"}
	case k.r.MaxNodes > 0 && bound && g.Mems.Len() > k.r.MaxNodes:
		return &place.NUMAError{Nodes: g.Mems, Reason: "more nodes than asked"}
	}
	return nil
}

// home returns the nodes to take memory and devices from; empty is any.
func (k *task) home(g *place.Grant) cpuset.Set {
	switch {
	case !k.few.IsEmpty():
		return k.few
	case !g.Own.IsEmpty():
		return k.t.NodesOf(g.Own)
	case g.Share.Within == k.pool && len(k.r.Memory) == 0 && len(k.r.Devices) == 0:
		return cpuset.Set{}
	}
	return k.t.NodesOf(g.Share.Within)
}

// counted returns the amounts of resources that nodes count, each resource once.
func (k *task) counted() []place.Amount {
	var amounts []place.Amount
	for _, a := range k.r.Memory {
		if !slices.Contains(k.s.Resources(), a.Resource) {
			k.why.Note("%s is not counted by nodes", a.Resource)
		} else if i := slices.IndexFunc(amounts, func(b place.Amount) bool { return b.Resource == a.Resource }); i >= 0 {
			amounts[i].Bytes += a.Bytes
		} else {
			amounts = append(amounts, a)
		}
	}
	return amounts
}

// nodes returns the units of the NUMA nodes.
func (k *task) nodes() []place.Unit { return k.t.Units(machine.Node) }
