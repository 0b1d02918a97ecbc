// Package topologyaware is the policy topology-aware of the CRI Resource Manager
// and the NRI plugins (github.com/containers/nri-plugins).
//
// The machine is a tree of pools: the whole of several sockets, sockets, dies,
// NUMA nodes, L3 domains; a domain that is the only one of its parent, or a node
// with CPUs but no memory, is no pool. The CPUs of a pool are isolated, reserved
// or sharable. A workload's CPUs depend on its class; the first line that applies
// counts:
//
//	SYSTEM, kube-system, ReservedPoolNamespaces  reserved CPUs, if they have time left
//	BE                                           shared, no time of its own
//	LS (Burstable)                               shared
//	LSE, LSR (Guaranteed) below 1 CPU            shared
//	    1 CPU                                    exclusive, isolated if preferred
//	    between 1 and 2 CPUs                     mixed: 1 exclusive, isolated if preferred
//	    2 and more, whole                        exclusive
//	    2 and more, with a fraction              shared; mixed if shared CPUs are refused
//
// Request.Mode overrides the table, Request.Isolated the preference for isolated
// CPUs. A workload shares all sharable CPUs of its pool that are not exclusive. A pool
// keeps as many CPUs as its sharers ask for and, if it has any, at least one.
// Where all sharable CPUs are exclusive, a workload without CPU time runs on the floor
// of place.Config, which never becomes exclusive.
//
// Pools that cannot hold the request are dropped. The others are ranked by, in
// this order: isolated CPUs if wanted, affinity, hints, CPU limit (of several
// pools that are too small the largest) or level for those without limit, NUMA
// nodes of the memory, free time for those without limit, depth, isolated or
// exclusive CPUs left, fewest sharers, and shared time left. Ties end in the
// lowest pool of a depth-first walk.
//
// The other workloads of a group reuse the exclusive CPUs of its init workloads: they
// take the nearest pool around them that can hold the request, if one can.
//
// The score of a pool by affinity is the sum of weights of the matching workloads
// in its ancestors and below it, times 0.75 per level between. Its score by hints
// is a product over asked nodes and devices: 0 for one outside of the pool, else
// 0.9 per level that the pool is wider than the NUMA node. Request.Nodes with
// NodesRequired, and MaxNodes, drop pools that reach farther.
//
// Words in Request.Hints, each "true" or "false" unless it says otherwise:
//
//	prefer-shared-cpus    shared instead of exclusive CPUs, or never shared
//	prefer-reserved-cpus  reserved CPUs
//	hide-hyperthreads     one thread per core of what is granted
//	cpu.preserve          PinCPU off for this workload
//	memory.preserve       PinMemory off for this workload
//	unlimited-burstable   a Level
//
// Unlike the original, no workload gets an empty set, a limit larger than every pool
// leads to the largest, memory does not override the CPU limit, all of the rank is
// a total order, and a restart reinstates the saved grants, in any order.
package topologyaware

import (
	"path"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/place"
)

// Level is a level of the tree of pools.
type Level = plain.Enum[levelWords]

// The levels. Package is the zero value because it is the default of
// Policy.UnlimitedBurstable.
const (
	Package Level = iota // socket
	System               // the whole machine
	Die
	NUMA
	L3Cache
)

type levelWords struct{}

func (levelWords) Words() []string { return []string{"package", "system", "die", "numa", "l3cache"} }

// height counts levels from the top.
func height(l Level) int {
	switch l {
	case System:
		return 0
	case Package:
		return 1
	}
	return int(l)
}

// Policy is the topology-aware policy. Default has the settings that the original
// starts with; the zero value pins nothing.
type Policy struct {
	// PinCPU confines workloads to their CPUs. Without it all may run on every
	// allowed CPU that is not isolated, no CPU is exclusive, and the pool only
	// decides on memory.
	PinCPU bool `json:"pinCPU"`
	// PinMemory binds memory to the NUMA nodes of the pool, and to the nearest
	// others where these have too little. Without it memory may come from anywhere.
	PinMemory bool `json:"pinMemory"`
	// PreferIsolatedCPUs gives guaranteed workloads of 1 to less than 2 CPUs an
	// isolated CPU if there is one.
	PreferIsolatedCPUs bool `json:"preferIsolatedCPUs"`
	// PreferSharedCPUs gives exclusive CPUs only to requests that ask for them.
	PreferSharedCPUs bool `json:"preferSharedCPUs"`
	// ReservedPoolNamespaces are globs, as of path.Match, of namespaces that run
	// on the reserved CPUs; kube-system always does.
	ReservedPoolNamespaces []string `json:"reservedPoolNamespaces,omitempty"`
	// ColocatePods and ColocateNamespaces draw workloads without affinities of
	// their own to those of the same group, or namespace, with weight 10.
	ColocatePods       bool `json:"colocatePods"`
	ColocateNamespaces bool `json:"colocateNamespaces"`
	// UnlimitedBurstable is the level of the pools for LS workloads without CPU
	// limit; where the tree has no such level, the nearest.
	UnlimitedBurstable Level `json:"unlimitedBurstable,omitempty"`
}

// Default returns the policy with the original's default settings.
func Default() Policy {
	return Policy{PinCPU: true, PinMemory: true, PreferIsolatedCPUs: true}
}

// Name returns "topology-aware".
func (Policy) Name() string { return "topology-aware" }

// Ignores implements place.Ignorer.
func (p Policy) Ignores() []place.Field {
	ignored := []place.Field{place.FieldBind, place.FieldStrategy}
	if !p.ColocatePods {
		ignored = append(ignored, place.FieldGroup)
	}
	return ignored
}

// Place implements place.Policy.
func (p Policy) Place(s *place.State, r *place.Request) (place.Offer, error) {
	w, err := p.classify(r)
	if err != nil {
		return place.Offer{}, err
	}
	if again := s.Reusable(r.Group); w.own > 0 && !again.IsEmpty() {
		if o, err := p.place(s, r, w, again); err == nil {
			return o, nil
		}
	}
	return p.place(s, r, w, cpuset.Set{})
}

// place finds a pool; around CPUs to use again, if there are any.
func (p Policy) place(s *place.State, r *place.Request, w demand, again cpuset.Set) (place.Offer, error) {
	k := newTask(p, s, r, w, again)
	g := &place.Grant{ID: r.ID, Request: *r, Why: k.why}
	at, err := k.home(g, again)
	if err == nil {
		err = k.rest(g, at)
	}
	return s.Answer(g, err)
}

// usesReserved reports whether r belongs on the reserved CPUs.
func (p Policy) usesReserved(r *place.Request) bool {
	if r.Class.Traits().Reserved || r.Namespace == "kube-system" {
		return true
	}
	for _, glob := range p.ReservedPoolNamespaces {
		if ok, _ := path.Match(glob, r.Namespace); ok {
			return true
		}
	}
	return false
}
