// Package controlplane has the four allocators of the CPU Control Plane plugin
// for Kubernetes (github.com/intel/cpu-control-plane-plugin-for-kubernetes).
//
// A workload is guaranteed if it asks for a whole number of CPUs and its class
// is LSE or LSR, or if its mode is Exclusive; SYSTEM runs on the reserved CPUs,
// if there are any; all others share. The allocators differ in the CPUs that they give:
//
//	default                   the lowest CPUs of the first run of consecutive free
//	                          CPU numbers that is long enough
//	numa                      the first CPUs of the deepest part of the tree NUMA
//	                          node, socket, die, core, CPU that has enough free
//	                          ones; of several, the first
//	numa-namespace            the CPUs in the order of that tree are cut into equal
//	                          buckets, to which namespaces are dealt in turn.
//	                          Guaranteed workloads are bound to the first CPUs of
//	                          their bucket that no other one is bound to; the others
//	                          use the whole bucket, those CPUs included
//	numa-namespace-exclusive  the same, but guaranteed workloads own their CPUs
//
// Guaranteed workloads reuse the CPUs of the init workloads of their group, as if they
// grew from these or shrank, where that works.
//
// Namespaces of held workloads keep their bucket. A new one gets the first of those
// with the fewest namespaces, which is round robin until one leaves.
//
// Unlike the original: exclusive CPUs are never shared; a release restores the CPUs
// exactly as they were; a run or bucket can be used up, except that a bucket keeps
// one CPU for its sharers unless place.Config.NoFloor is set; ownership counts for
// all namespaces of a bucket; a guaranteed workload with a fraction of a CPU
// shares; and the time that sharers ask for has to fit the CPUs they have.
// Reserved CPUs are for SYSTEM alone, isolated ones are used only where there
// are no others. A condition that the allocators do not know (nodes, bind policy,
// isolation, mixed mode) is refused, a preference is ignored.
package controlplane

import (
	"cmp"
	"fmt"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Allocator is one of the four ways to choose CPUs.
type Allocator = plain.Enum[allocatorWords]

// The allocators.
const (
	Default Allocator = iota
	NUMA
	NUMANamespace
	NUMANamespaceExclusive
)

type allocatorWords struct{}

func (allocatorWords) Words() []string {
	return []string{"default", "numa", "numa-namespace", "numa-namespace-exclusive"}
}

// Policy is the control plane's policy. The zero value is its default allocator.
type Policy struct {
	Allocator Allocator `json:"allocator,omitempty"`
	// Buckets is the number of buckets of the namespace allocators, at most one
	// per CPU; 0 is one per NUMA node with CPUs.
	Buckets int `json:"buckets,omitempty"`
	// PinMemory binds memory to the NUMA nodes of the CPUs, and to the nearest
	// others where these have too little. Without it memory may come from anywhere.
	PinMemory bool `json:"pinMemory,omitempty"`
}

// Name returns the allocator's name after "controlplane-", as in "controlplane-numa".
func (p Policy) Name() string { return "controlplane-" + p.Allocator.String() }

// Ignores implements place.Ignorer.
func (Policy) Ignores() []place.Field {
	return []place.Field{
		place.FieldBind, place.FieldStrategy, place.FieldIsolated, place.FieldCoreKind, place.FieldNodes, place.FieldAffinity, place.FieldGroup, place.FieldHints,
	}
}

// Place implements place.Policy.
func (p Policy) Place(s *place.State, r *place.Request) (place.Offer, error) {
	if err := p.refuse(r); err != nil {
		return place.Offer{}, err
	}
	k := newTask(p, s, r, nil)
	g := &place.Grant{ID: r.ID, Request: *r, Why: k.why}
	k.held = s.Reusable(r.Group).Intersect(k.bucket)
	err := k.cpus(g)
	if err != nil && !k.held.IsEmpty() {
		k.held = cpuset.Set{}
		err = k.cpus(g)
	}
	if err == nil {
		err = k.rest(g)
	}
	return s.Answer(g, err)
}

// refuse reports a condition of r, or a setting of p, that cannot be met.
func (p Policy) refuse(r *place.Request) error {
	reason := ""
	switch {
	case p.Allocator < Default || p.Allocator > NUMANamespaceExclusive || p.Buckets < 0:
		return &place.InvalidError{ID: r.ID, Reason: fmt.Sprintf("%s with %d buckets is no allocator", p.Allocator, p.Buckets)}
	case r.Mode == place.Mixed:
		reason = "the control plane has no mixed allocations"
	case r.Mode == place.Exclusive && p.Allocator == NUMANamespace:
		reason = "numa-namespace shares all CPUs"
	case r.Nodes != (cpuset.Set{}) && r.NodesRequired, r.MaxNodes > 0:
		reason = "the control plane cannot promise NUMA nodes"
	case r.Bind != place.BindAny && r.BindRequired:
		reason = "the control plane has no CPU bind policies"
	case r.Isolated == place.Require || r.Exclusivity != place.CPULevel:
		reason = "the control plane knows neither isolated CPUs nor levels of exclusivity"
	default:
		return nil
	}
	return &place.RejectedError{ID: r.ID, Reason: reason}
}

// guaranteed returns how many CPUs r is guaranteed, 0 if it shares.
func guaranteed(r *place.Request) int {
	switch {
	case r.Mode == place.Exclusive:
		return r.Whole()
	case r.Mode == place.Auto && r.Class.Traits().Own && r.Milli%1000 == 0:
		return r.Milli / 1000
	}
	return 0
}

// rest adds devices and memory near the CPUs.
func (k *task) rest(g *place.Grant) (err error) {
	err = k.s.Refit(g, nil, k.t.NodesOf(g.Own.Union(g.Share.Within)), k.r.Memory)
	if !k.p.PinMemory {
		g.Mems = cpuset.Set{}
	}
	return err
}

// walk is the online CPUs in the order of the tree NUMA node, socket, die, core,
// CPU.
type walk []int

// leaves returns the first n CPUs of a set in the order of the tree; there are as
// many.
func leaves(t *place.Topology, set cpuset.Set, n int) []int {
	out := make([]int, 0, n)
	for _, cpu := range *place.Derived(t, newWalk) {
		if len(out) == n {
			break
		}
		if set.Has(cpu) {
			out = append(out, cpu)
		}
	}
	return out
}

func newWalk(t *place.Topology) walk {
	var w walk
	cores := t.Units(machine.Core)
	for node := range t.Units(machine.Node) {
		for _, core := range coresInOrder(t, node) {
			w = append(w, cores[core].CPUs.Slice()...)
		}
	}
	return w
}

// coresInOrder returns the cores of a node by socket, die and lowest CPU.
func coresInOrder(t *place.Topology, node int) []int16 {
	return slices.SortedFunc(slices.Values(t.Cores(machine.Node, node)), func(a, b int16) int {
		return cmp.Or(
			cmp.Compare(t.Of(machine.Socket, int(a)), t.Of(machine.Socket, int(b))),
			cmp.Compare(t.Of(machine.Die, int(a)), t.Of(machine.Die, int(b))), cmp.Compare(a, b))
	})
}
