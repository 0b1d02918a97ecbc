// Package kubelet decides as the kubelet's resource managers do: the CPU,
// topology, memory and device managers of Kubernetes 1.37, with their options.
// The semantics are those of KEP-3570 (CPU manager), KEP-693 (topology manager),
// KEP-1769 (memory manager) and the options' own KEPs, named at each field.
//
// A workload gets exclusive CPUs under the static CPU manager if its CPU time is
// a whole number of CPUs and also its limit, or its class is LSE or LSR; Mode
// Exclusive asks for them in any case, rounded up, and Mode Shared forbids them.
// All others share the rest. Workloads that start later reuse the CPUs of their group's
// Init workloads.
//
// Defects of the kubelet are left out: only free CPUs are granted, also on machines
// with unlike cores; an even distribution always comes to an
// end, keeps whole cores whole and stays in one socket where that is as even; a
// wholly free L3 domain is not broken while another one of the NUMA node has
// room; CPUs of init containers count where whole cores are asked for. Merging
// hints does not take time exponential in the number of resources, and beyond
// eight NUMA nodes, where the kubelet does not start by default, the
// narrowest node sets are searched for instead of listing all.
package kubelet

import (
	"cmp"
	"fmt"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// The CPU managers.
const (
	CPUManagerNone   = "none" // the default
	CPUManagerStatic = "static"
)

// The topology managers.
const (
	TopologyManagerNone       = "none" // the default
	TopologyManagerBestEffort = "best-effort"
	TopologyManagerRestricted = "restricted"
	TopologyManagerSingle     = "single-numa-node"
)

// The memory managers.
const (
	MemoryManagerNone   = "None" // the default
	MemoryManagerStatic = "Static"
)

// PreferredDevices is the hint in a Request that names, between commas, the
// devices that the device plugin would choose. Alignment goes before it.
const PreferredDevices = "preferred-devices"

// The scopes of the topology manager.
const (
	ScopeContainer = "container" // the default
	ScopePod       = "pod"
)

// Policy places as a kubelet with these settings does. The zero value has the
// kubelet's defaults, under which everything is shared. Validate checks which
// settings go together.
type Policy struct {
	CPUManager string `json:"cpuManagerPolicy,omitempty"`
	// FullPCPUsOnly gives out whole cores only (KEP-2625): others are refused
	// with a *place.SMTError.
	FullPCPUsOnly bool `json:"full-pcpus-only,omitempty"`
	// DistributeAcrossNUMA divides CPUs evenly over the fewest NUMA nodes
	// (KEP-2902).
	DistributeAcrossNUMA bool `json:"distribute-cpus-across-numa,omitempty"`
	// AlignBySocket widens alignment from NUMA nodes to sockets (KEP-3327).
	AlignBySocket bool `json:"align-by-socket,omitempty"`
	// DistributeAcrossCores takes CPUs of different cores first (KEP-4176).
	DistributeAcrossCores bool `json:"distribute-cpus-across-cores,omitempty"`
	// StrictReservation keeps shared workloads off the reserved CPUs (KEP-4540).
	StrictReservation bool `json:"strict-cpu-reservation,omitempty"`
	// PreferAlignByUncoreCache prefers few L3 domains (KEP-4800).
	PreferAlignByUncoreCache bool `json:"prefer-align-cpus-by-uncorecache,omitempty"`

	TopologyManager string `json:"topologyManagerPolicy,omitempty"`
	// TopologyManagerScope is about pods: all of a pod is admitted to one node set
	// (PlacePod), or each container to one of its own (Place).
	TopologyManagerScope string `json:"topologyManagerScope,omitempty"`
	// PreferClosestNUMANodes prefers near nodes among sets of the same size
	// (KEP-3545).
	PreferClosestNUMANodes bool `json:"prefer-closest-numa-nodes,omitempty"`

	MemoryManager string `json:"memoryManagerPolicy,omitempty"`

	// FitAllocatable refuses, with a *place.CPUsError, a request with which all
	// requests would add up to more than the allowed CPUs without the reserved ones.
	// The kubelet and the scheduler check that before the resource managers.
	FitAllocatable bool `json:"fit-allocatable,omitempty"`
	// ReservedMilli is the CPU time, in thousandths of a CPU, that is not allocatable; 0
	// is that of the reserved CPUs.
	ReservedMilli place.Milli `json:"reserved-cpu,omitempty"`
	// MaxPods is how many pods are admitted; 0 is any number. A workload without a
	// group counts as one.
	MaxPods int `json:"maxPods,omitempty"`
}

// Name returns "kubelet".
func (Policy) Name() string { return "kubelet" }

// Validate reports settings that are unknown or exclude each other, as an
// *place.InvalidError.
func (p Policy) Validate() error {
	bad := func(reason string) error { return &place.InvalidError{Reason: "kubelet: " + reason} }
	switch {
	case !known(p.CPUManager, CPUManagerNone, CPUManagerStatic):
		return bad("no CPU manager " + p.CPUManager)
	case !known(p.TopologyManager, TopologyManagerNone, TopologyManagerBestEffort, TopologyManagerRestricted, TopologyManagerSingle):
		return bad("no topology manager " + p.TopologyManager)
	case !known(p.TopologyManagerScope, ScopeContainer, ScopePod):
		return bad("no topology manager scope " + p.TopologyManagerScope)
	case !known(p.MemoryManager, MemoryManagerNone, MemoryManagerStatic):
		return bad("no memory manager " + p.MemoryManager)
	case p.DistributeAcrossCores && (p.FullPCPUsOnly || p.DistributeAcrossNUMA || p.PreferAlignByUncoreCache):
		return bad("distribute-cpus-across-cores excludes full-pcpus-only, distribute-cpus-across-numa and prefer-align-cpus-by-uncorecache")
	case p.DistributeAcrossNUMA && p.PreferAlignByUncoreCache:
		return bad("distribute-cpus-across-numa excludes prefer-align-cpus-by-uncorecache")
	case p.AlignBySocket && p.TopologyManager == TopologyManagerSingle:
		return bad("align-by-socket excludes single-numa-node")
	}
	return nil
}

func known(name string, names ...string) bool { return name == "" || slices.Contains(names, name) }

// Ignores implements place.Ignorer.
func (p Policy) Ignores() []place.Field {
	ignored := []place.Field{
		place.FieldMixed, place.FieldBind, place.FieldBindRequired, place.FieldExclusivity, place.FieldStrategy, place.FieldIsolated,
		place.FieldIsolatedRequired, place.FieldCoreKind, place.FieldMaxNodes, place.FieldAffinity,
	}
	if p.MemoryManager != MemoryManagerStatic {
		ignored = append(ignored, place.FieldMemory)
	}
	if p.TopologyManager != "" && p.TopologyManager != TopologyManagerNone {
		ignored = append(ignored, place.FieldNodes)
	}
	if p.MaxPods == 0 && !p.PodScope() {
		ignored = append(ignored, place.FieldGroup)
	}
	return ignored
}

// Place implements place.Policy. A request that the topology manager does not
// admit is refused with a *place.NUMAError. Request.Nodes is the mask to take
// from where there is no topology manager; with NodesRequired all resources must
// come from these nodes under any.
func (p Policy) Place(s *place.State, r *place.Request) (place.Offer, error) {
	if err := p.Validate(); err != nil {
		return place.Offer{}, err
	}
	k := p.task(s, r)
	if err := k.fit(r.Milli); err != nil {
		return place.Offer{Why: k.why}, err
	}
	mask, err := k.admit()
	if err != nil {
		return place.Offer{Why: k.why}, err
	}
	g, err := k.grant(mask)
	return s.Answer(g, err)
}

// task is one request on its way to a grant.
type task struct {
	p    Policy
	s    *place.State
	t    *place.Topology
	r    *place.Request
	why  *place.Why
	take *taker

	cpus     int        // of its own
	free     cpuset.Set // CPUs that may be taken
	reusable cpuset.Set // those of the group's init workloads
	need     []place.Amount
}

func (p Policy) task(s *place.State, r *place.Request) *task {
	k := &task{p: p, s: s, t: s.Topology(), r: r, why: place.NewWhy(r)}
	k.take = p.taker(k.t, k.why)
	if p.CPUManager == CPUManagerStatic {
		k.cpus = ownCPUs(r)
	}
	if k.cpus > 0 {
		k.free = s.Ownable(place.LS)
		if r.Group != "" {
			k.reusable = s.Reusable(r.Group)
			k.free = k.free.Union(k.reusable)
		}
	}
	if p.MemoryManager == MemoryManagerStatic && guaranteed(r) {
		for _, a := range r.Memory {
			if a.Bytes > 0 && s.Shortage(cpuset.Set{}, []place.Amount{a}) > 0 {
				k.need = append(k.need, a)
			}
		}
	}
	return k
}

// fit refuses more CPU time than is allocatable, if the policy checks that. The
// workload's own grant, and init workloads, do not count.
func (k *task) fit(milli int) error {
	if most := k.p.MaxPods; most > 0 && k.pods() >= most {
		return &place.RejectedError{ID: k.r.ID, Reason: fmt.Sprintf("the node takes at most %s (maxPods)", plain.Count(most, "pod"))}
	}
	if !k.p.FitAllocatable || k.r.Role == place.Init {
		return nil
	}
	conf := k.s.Config()
	all := 1000*conf.Allowed.Len() - cmp.Or(int(k.p.ReservedMilli), 1000*conf.Allowed.Intersect(conf.Reserved).Len())
	free := all
	var by []string
	for g := range k.s.Grants() {
		if g.ID != k.r.ID && g.Request.Role != place.Init && g.Request.Milli > 0 {
			free -= g.Request.Milli
			by = append(by, g.ID)
		}
	}
	if milli <= free {
		return nil
	}
	k.why.Note("%dm of %dm allocatable CPU time are free", free, all)
	rule := fmt.Sprintf("%s CPUs are allocatable (reservedSystemCPUs, systemReserved, kubeReserved)", place.Milli(all))
	if len(by) > 0 {
		rule += fmt.Sprintf(", and %s asked for %s", place.Names(by), place.Milli(all-free))
	}
	return &place.CPUsError{Asked: milli, Available: max(0, free), Milli: true, Rule: place.Rule{Text: rule, Alone: true}}
}

// pods counts the pods that are there, without that of the request; 0 where it is
// there.
func (k *task) pods() int {
	seen := map[string]bool{}
	for g := range k.s.Grants() {
		seen[cmp.Or(g.Request.Group, g.ID)] = true
	}
	if seen[cmp.Or(k.r.Group, k.r.ID)] {
		return 0
	}
	return len(seen)
}

// grant takes all that is asked for, from the nodes of the mask first.
func (k *task) grant(mask place.Hint) (*place.Grant, error) {
	g := &place.Grant{ID: k.r.ID, Request: *k.r, Why: k.why}
	var err error
	if k.cpus > 0 {
		g.Own, err = k.exclusive(mask)
	} else {
		g.Share, err = k.shared()
	}
	if err == nil {
		err = k.rest(g, mask)
	}
	return g, err
}

// rest takes memory and devices.
func (k *task) rest(g *place.Grant, mask place.Hint) (err error) {
	if len(k.need) > 0 {
		if g.Mems, g.Memory, err = k.memory(mask); err != nil {
			return err
		}
	}
	if g.Devices, err = k.devices(mask); err != nil || !k.bound() {
		return err
	}
	far := !k.r.Nodes.Contains(g.Mems)
	for _, name := range g.Devices {
		d, _, _ := k.s.Device(name)
		far = far || !d.Nodes.IsEmpty() && !d.Nodes.Overlaps(k.r.Nodes)
	}
	if far {
		return &place.NUMAError{Nodes: k.r.Nodes, Reason: "memory or devices would come from elsewhere"}
	}
	return nil
}

// bound reports whether the request must stay on its nodes.
func (k *task) bound() bool { return k.r.NodesRequired && !k.r.Nodes.IsEmpty() }

// guaranteed reports whether the kubelet would call the workload Guaranteed, by its CPU
// time alone; Mode Shared says that the pod as a whole is not.
func guaranteed(r *place.Request) bool {
	return r.Milli > 0 && r.Mode != place.Shared && (r.LimitMilli == r.Milli || r.Class.Traits().Own)
}

// ownCPUs returns how many CPUs a workload gets for itself.
func ownCPUs(r *place.Request) int {
	switch {
	case r.Mode == place.Exclusive:
		return r.Whole()
	case r.Mode == place.Auto && guaranteed(r) && r.Milli%1000 == 0:
		return r.Milli / 1000
	}
	return 0
}

// exclusive takes CPUs, from those of the mask first. A request that would leave a
// shared workload without CPU is refused with a *place.FloorError.
func (k *task) exclusive(mask place.Hint) (cpus cpuset.Set, err error) {
	from := k.free
	if k.bound() {
		from = from.Intersect(k.t.CPUsOf(k.r.Nodes))
	}
	_, uniform := k.t.ThreadsPerCore()
	switch {
	case !k.p.FullPCPUsOnly:
		cpus, err = k.take.masked(from, k.cpus, mask)
	default:
		if err := k.wholeCores(from); err != nil {
			k.why.Lacking(k.t, "free CPUs in whole cores", k.t.Whole(machine.Core, from))
			return cpus, err
		}
		if from = k.t.Whole(machine.Core, from); uniform {
			cpus, err = k.take.masked(from, k.cpus, mask)
		} else {
			cpus, err = k.unlikeCores(from, mask)
		}
	}
	if err != nil {
		return cpuset.Set{}, err
	}
	left := k.s.Sharable().Minus(cpus)
	for b := range k.s.Bounds() {
		if !b.Within.Overlaps(left) {
			return cpuset.Set{}, &place.FloorError{CPUs: b.Within.Intersect(k.s.Sharable())}
		}
	}
	return cpus, nil
}

// unlikeCores takes whole cores where they have unlike numbers of threads: those
// with the most go first, so that no core is split.
func (k *task) unlikeCores(from cpuset.Set, mask place.Hint) (cpuset.Set, error) {
	scopes := []cpuset.Set{from}
	if !mask.Any {
		scopes = []cpuset.Set{from.Intersect(k.take.widen(mask.Nodes)), from}
	}
	threads, _ := k.t.ThreadsPerCore()
	for _, scope := range scopes {
		var taken cpuset.Set
		for size := threads; size > 0 && taken.Len() < k.cpus; size-- {
			class := k.ofSize(scope, size)
			n := min(class.Len(), (k.cpus-taken.Len())/size*size)
			got, err := k.take.take(class, n)
			if err != nil {
				return cpuset.Set{}, err
			}
			taken = taken.Union(got)
		}
		if taken.Len() == k.cpus && k.t.Whole(machine.Core, taken) == taken {
			return taken, nil
		}
	}
	return cpuset.Set{}, &place.SMTError{Asked: k.cpus, PerCore: threads, Available: from.Len(), Setting: "full-pcpus-only"}
}

// ofSize returns the CPUs of the set that lie in cores of so many threads.
func (k *task) ofSize(set cpuset.Set, threads int) cpuset.Set {
	var out cpuset.Set
	for _, u := range k.t.Units(machine.Core) {
		if u.Size == threads {
			out = out.Union(u.CPUs)
		}
	}
	return out.Intersect(set)
}

// wholeCores refuses a request that whole cores cannot serve.
func (k *task) wholeCores(from cpuset.Set) error {
	threads, _ := k.t.ThreadsPerCore()
	e := &place.SMTError{Asked: k.cpus, PerCore: threads, Setting: "full-pcpus-only"}
	e.Available = from.Minus(k.t.Touched(machine.Core, k.s.Config().Reserved)).Len()
	if k.cpus%threads != 0 || k.cpus > e.Available {
		return e
	}
	if e.Available = k.t.Whole(machine.Core, from).Len(); k.cpus > e.Available {
		return e
	}
	return nil
}

// shared returns a share of the CPUs that are not exclusive.
func (k *task) shared() (place.Share, error) {
	conf := k.s.Config()
	within := conf.Allowed
	if k.p.StrictReservation {
		within = within.Minus(conf.Reserved)
	}
	if k.r.Class.Traits().Reserved && !conf.Reserved.IsEmpty() {
		within = conf.Reserved.Intersect(conf.Allowed)
	}
	if k.bound() {
		within = within.Intersect(k.t.CPUsOf(k.r.Nodes))
	}
	if !within.Overlaps(k.s.Sharable()) {
		k.why.Lacking(k.t, "CPUs to share", within.Intersect(k.s.Sharable()))
		return place.Share{}, &place.CPUsError{Asked: 1}
	}
	return place.Share{Within: within, Milli: k.r.Milli}, nil
}

// nodes returns a set of node numbers as a mask of positions.
func (k *task) nodes(ids cpuset.Set) uint64 {
	var mask uint64
	for id := range ids.All() {
		if pos, ok := k.t.Node(id); ok {
			mask |= 1 << pos
		}
	}
	return mask
}

// ids returns a mask of positions as a set of node numbers.
func (k *task) ids(mask uint64) cpuset.Set { return idsOf(k.t, mask) }

func idsOf(t *place.Topology, mask uint64) cpuset.Set {
	var ids cpuset.Set
	for pos, u := range t.Units(machine.Node) {
		if mask>>pos&1 != 0 {
			ids, _ = ids.With(u.ID)
		}
	}
	return ids
}
