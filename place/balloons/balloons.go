// Package balloons places workloads into balloons: groups of whole CPUs that
// belong to one instance of a balloon type, shared by its members only. The
// semantics are those of the balloons policy of the NRI plugins
// (github.com/containers/nri-plugins), and of static-pools and podpools of the
// CRI Resource Manager, whose pools are balloon types here.
//
// # Which type
//
// The hint "balloon" names the type; an unknown name is refused. Else a
// workload of class SYSTEM, of namespace kube-system or of one that
// Policy.ReservedNamespaces matches has the type "reserved". Else the first type
// whose Namespaces or Match agree, else "default". The two always exist; where
// they are not listed, default has one instance from the start and never more,
// and reserved has as many as it needs.
//
// # Which instance
//
// The first of these that works: an instance with a member of the same GroupBy
// value; one with a member of the same group (pod) unless SpreadPods; with
// PerNamespace one with a member of the same namespace, then a new one; then one
// with room as it is, one that can grow, a new one, or the new one first with
// PreferNew. Among several that fit, Fill decides. A new instance is an
// empty one of the type, else the lowest free number.
//
// # Which size
//
// The sum of the members' CPU time in whole CPUs, at least MinCPUs and 1. A sum
// above MaxCPUs is refused unless the type has Overcommit.
// When a member leaves or is resized the balloon shrinks or grows; an empty
// instance is removed unless it is one of the MinBalloons made at the start,
// which then has its first CPUs again.
//
// # Which CPUs
//
// The narrowest domain (core, L2, L3, NUMA node, die, socket) that has enough,
// one with CPUs of the balloon first; of these the fullest branch of the machine,
// or the emptiest with Branches Spread. Inside, whole cores before single CPUs,
// or one CPU per core first with Cores Spread. Before that, the CPUs to choose
// from are narrowed to those near PreferNear, to isolated ones and to cores of a
// kind, in this order, each only while enough are left. A type without such
// preferences avoids the CPUs that another type prefers, as long as it can; isolated
// CPUs are the last to be taken unless preferred.
//
// # Reserved CPUs
//
// Workloads of the type reserved run on Config.Reserved until its CPU time is
// used up, then in balloons of that type from ordinary CPUs. Those of the types
// default and reserved that ask for no CPU time and find no balloon run on the floor.
//
// # Composites
//
// A type with Components has instances made of one part per component, or of
// the part of a single one with BalanceComponents. Each part follows its
// component's rules on size and CPUs, and counts as an instance of it. CPU time is
// divided among the parts so that the sum is kept.
//
// # Fields of a request
//
// CPU time, memory, devices, and the hints HintType, HintHide, HintLists and
// HintSocket. Nodes are a condition if NodesRequired: a balloon elsewhere is
// refused. Mode Exclusive or Mixed, and a required bind policy, are refused, for
// members of a balloon share it; a type of one slot may be Exclusive. Limits,
// preferences and exclusivity beyond that are set by the type. Affinity is
// ignored: GroupBy, Group and Namespace say which workloads share a balloon. An init
// workload counts like any other member until it is released. Memory stays
// where it was placed when a balloon changes.
//
// # Differences from the originals, on purpose
//
// A sum above MaxCPUs is never admitted. Reserved grows. Resizing in place works. A
// restart reinstates every balloon as it was. Parts of a composite are never
// smaller than their share. A shared list of a static pool is the emptiest, not a
// random one.
package balloons

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

// The types that always exist.
const (
	Default  = "default"
	Reserved = "reserved"
)

// The hints of a request that the policy knows.
const (
	HintType   = "balloon"           // name of the type
	HintHide   = "hide-hyperthreads" // "true" or "false", in place of the type's
	HintLists  = "lists"             // least number of lists of a type with Lists
	HintSocket = "socket"            // number of the socket that lists must be on
)

// Policy places into balloons.
type Policy struct {
	// Types are matched in order.
	Types []Type `json:"balloonTypes,omitempty"`
	// ReservedNamespaces are globs, besides kube-system.
	ReservedNamespaces []string `json:"reservedPoolNamespaces,omitempty"`
	// Branches and Cores apply to types that do not say; AsPolicy is Pack.
	Branches Order `json:"branches,omitzero"`
	Cores    Order `json:"cores,omitzero"`
	// IdleCPUClass is the CPU class of allowed CPUs in no balloon; "" is no class.
	IdleCPUClass string `json:"idleCPUClass,omitempty"`
	// As is the name of the policy whose options the types are made of (StaticPools, PodPools);
	// "" is this one's own.
	As string `json:"-"`
}

// Type is a kind of balloon.
type Type struct {
	Name string `json:"name"`
	// Namespaces are globs; Match are conditions. One that agrees is enough.
	Namespaces []string     `json:"namespaces,omitempty"`
	Match      []Expression `json:"matchExpressions,omitempty"`
	// GroupBy is a text with keys in it, such as "${labels/app}": workloads for
	// which it reads the same go to the same instance.
	GroupBy string `json:"groupBy,omitempty"`

	// MinCPUs and MaxCPUs bound the size of an instance; 0 is no bound.
	MinCPUs int `json:"minCPUs,omitempty"`
	MaxCPUs int `json:"maxCPUs,omitempty"`
	// MinBalloons instances exist from the start; there are never more than
	// MaxBalloons, 0 is no bound.
	MinBalloons int `json:"minBalloons,omitempty"`
	MaxBalloons int `json:"maxBalloons,omitempty"`
	// Slots is the most groups (pods) in an instance, a workload without group
	// counting as one; with SpreadPods it is the most workloads. 0 is no bound.
	Slots int `json:"slots,omitempty"`
	// Overcommit admits without adding up CPU time; instances keep their MinCPUs.
	Overcommit bool `json:"overcommit,omitempty"`
	// Lists are the CPUs of the instances: each is one list, or several if its
	// first member needs them. No other type takes these CPUs.
	Lists []cpuset.Set `json:"lists,omitempty"`

	// Fill decides between instances that would do.
	Fill Fill `json:"fill,omitzero"`
	// SpreadPods lets the workloads of a group go to different instances.
	SpreadPods bool `json:"preferSpreadingPods,omitempty"`
	// PerNamespace prefers an instance of its own for each namespace.
	PerNamespace bool `json:"preferPerNamespaceBalloon,omitempty"`
	// PreferNew prefers new instances to filling those that are.
	PreferNew bool `json:"preferNewBalloons,omitempty"`
	// ElseDefault sends a workload that finds no place to the type default.
	ElseDefault bool `json:"elseDefault,omitempty"`

	// ShareIdle lets members use CPUs of the same domain that are in no balloon,
	// isolated and reserved ones aside.
	ShareIdle Level `json:"shareIdleCPUsInSame,omitzero"`
	// HideHyperthreads shows members one CPU of each core; the balloon still
	// holds all.
	HideHyperthreads bool `json:"hideHyperthreads,omitempty"`
	// CPUClass is the class of the balloon's CPUs, for Policy.CPUClasses.
	CPUClass string `json:"cpuClass,omitempty"`

	// Branches says which branch of the machine to take CPUs from, Cores
	// whether to take different cores before second threads.
	Branches Order `json:"branches,omitzero"`
	Cores    Order `json:"cores,omitzero"`
	// PreferNear are devices of place.Config, the most important first.
	PreferNear     []string `json:"preferCloseToDevices,omitempty"`
	PreferIsolated bool     `json:"preferIsolCpus,omitempty"`
	// PreferCoreKind is a kind of core (machine.KindP, ...); "" is no preference.
	PreferCoreKind string `json:"preferCoreType,omitempty"`

	// Components are the types of a composite's parts. A composite has no size
	// and no CPU options of its own.
	Components []string `json:"components,omitempty"`
	// BalanceComponents makes each instance of one component, the one with
	// the fewest instances.
	BalanceComponents bool `json:"balanceComponents,omitempty"`
}

// Name returns "balloons".
func (p Policy) Name() string { return cmp.Or(p.As, "balloons") }

// kind is what a type is called in the options, before its name.
func (p Policy) kind() string {
	if p.As != "" {
		return "pool "
	}
	return "balloon type "
}

// Ignores implements place.Ignorer.
func (p Policy) Ignores() []place.Field {
	ignored := []place.Field{
		place.FieldBind, place.FieldExclusivity, place.FieldStrategy, place.FieldIsolated, place.FieldIsolatedRequired, place.FieldCoreKind, place.FieldNodes,
		place.FieldMaxNodes, place.FieldAffinity,
	}
	if !slices.ContainsFunc(p.Types, Type.groups) {
		ignored = append(ignored, place.FieldGroup)
	}
	return ignored
}

// groups reports whether the group of a workload may decide which balloon it gets.
func (ty Type) groups() bool {
	return !ty.SpreadPods && (ty.MaxBalloons != 1 || ty.Slots > 0) || strings.Contains(ty.GroupBy, "${group}") ||
		slices.ContainsFunc(ty.Match, func(e Expression) bool { return e.Key == "group" })
}

// Place implements place.Policy.
func (p Policy) Place(s *place.State, r *place.Request) (place.Offer, error) {
	ty, err := p.typeOf(r)
	if err != nil {
		return place.Offer{}, err
	}
	k := p.task(s, r)
	o, err := k.place(ty)
	if err != nil && ty.ElseDefault && ty.Name != Default {
		k.why.Note("%s: %v; else default", ty.Name, err)
		o, err = k.place(p.find(Default))
	}
	if err != nil {
		return place.Offer{Why: k.why}, err
	}
	return o, nil
}

// Start implements place.Starter: it makes the MinBalloons of every type, after
// checking the policy and its lists against the machine.
func (p Policy) Start(s *place.State) (place.Offer, error) {
	if err := p.Validate(); err != nil {
		return place.Offer{}, err
	}
	if err := p.checkLists(s); err != nil {
		return place.Offer{}, err
	}
	pools, err := p.first(s)
	o := s.Offer()
	o.Pools = pools
	return o, err
}

// Resize implements place.Resizer: the balloon grows or shrinks around its
// members. Memory and devices cannot change.
func (p Policy) Resize(s *place.State, r *place.Request, old *place.Grant) (place.Offer, error) {
	if !slices.Equal(old.Request.Memory, r.Memory) || !old.Request.SameDevices(r) {
		return place.Offer{}, &place.RejectedError{ID: r.ID, Reason: "memory and devices cannot change in place"}
	}
	k := p.task(s, r)
	o, err := k.resize(old)
	if err != nil {
		return place.Offer{Why: k.why}, err
	}
	return o, nil
}

func (k *task) resize(old *place.Grant) (place.Offer, error) {
	g := *old
	g.Request, g.Why, g.Share.Milli = *k.r, k.why, k.r.Milli
	o := k.s.Offer()
	o.Grant = &g
	if old.Share.Pool == "" {
		if left := k.timeIn(old.Share.Within); k.r.Milli > left {
			return o, &place.CPUsError{Asked: k.r.Milli, Available: left, Milli: true}
		}
		return o, nil
	}
	pool, _ := k.s.Pool(old.Share.Pool)
	ty := k.find(typeName(pool))
	if pool == nil || ty == nil {
		return place.Offer{}, &place.RejectedError{ID: k.r.ID, Reason: "the policy has no type for balloon " + old.Share.Pool}
	}
	if err := k.mayJoin(ty); err != nil {
		return place.Offer{}, err
	}
	milli, _ := k.s.PoolMilli(pool.Name)
	next, err := k.fit(ty, pool, milli+k.r.Milli)
	if err != nil {
		return place.Offer{}, err
	}
	if next != *pool {
		o.Pools = []place.Pool{next}
	}
	return o, k.nodes(next.CPUs)
}

// Release implements place.Releaser: the balloon shrinks, or ceases to be.
func (p Policy) Release(s *place.State, g *place.Grant) (place.Offer, error) {
	o := s.Offer()
	pool, ok := s.Pool(g.Share.Pool)
	if !ok {
		return o, nil
	}
	ty := p.find(typeName(pool))
	milli, members := s.PoolMilli(pool.Name)
	if members == 1 && (ty == nil || number(pool.Name) >= ty.MinBalloons) {
		o.Pools = []place.Pool{{Name: pool.Name}}
		return o, nil
	}
	if ty == nil {
		return o, nil // of a type that is no more: it keeps its size
	}
	next, err := p.task(s, &g.Request).fit(ty, pool, milli-g.Share.Milli)
	if err == nil && next != *pool {
		o.Pools = []place.Pool{next}
	}
	return o, nil
}

// CPUClasses returns which CPUs have which CPU class: those of balloons their
// type's, others that are allowed IdleCPUClass. CPUs of no class are left out.
func (p Policy) CPUClasses(s *place.State) map[string]cpuset.Set {
	classes := map[string]cpuset.Set{}
	idle := s.Config().Allowed
	for pool := range s.Pools() {
		idle = idle.Minus(pool.CPUs)
		ty := p.find(typeName(pool))
		if ty == nil {
			continue
		}
		for _, part := range p.parts(ty, pool) {
			if class := part.ty.CPUClass; class != "" {
				classes[class] = classes[class].Union(part.cpus)
			}
		}
	}
	if ty := p.find(Reserved); ty.CPUClass != "" {
		reserved := s.Config().Reserved.Intersect(idle)
		classes[ty.CPUClass] = classes[ty.CPUClass].Union(reserved)
		idle = idle.Minus(reserved)
	}
	if p.IdleCPUClass != "" {
		classes[p.IdleCPUClass] = classes[p.IdleCPUClass].Union(idle)
	}
	for class, cpus := range classes {
		if cpus.IsEmpty() {
			delete(classes, class)
		}
	}
	return classes
}

// task is one request on its way.
type task struct {
	Policy
	s   *place.State
	t   *place.Topology
	r   *place.Request
	why *place.Why
}

func (p Policy) task(s *place.State, r *place.Request) *task {
	return &task{Policy: p, s: s, t: s.Topology(), r: r, why: place.NewWhy(r)}
}

// hides reports whether second threads are hidden from the workload.
func (k *task) hides(ty *Type) bool {
	if text, ok := k.r.Hints[HintHide]; ok {
		hide, err := strconv.ParseBool(text)
		return err == nil && hide
	}
	return ty.HideHyperthreads
}

// finish adds to the grant the memory and devices near its CPUs.
func (k *task) finish(o place.Offer, sh place.Share, cpus cpuset.Set) (place.Offer, error) {
	if err := k.nodes(cpus); err != nil {
		return place.Offer{}, err
	}
	g := &place.Grant{ID: k.r.ID, Share: sh, Request: *k.r, Why: k.why}
	if err := k.s.Refit(g, nil, k.t.NodesOf(cpus), k.r.Memory); err != nil {
		return place.Offer{}, err
	}
	o.Grant = g
	return o, nil
}

// nodes refuses CPUs outside the nodes that are a condition.
func (k *task) nodes(cpus cpuset.Set) error {
	if !k.r.NodesRequired || k.r.Nodes.IsEmpty() || k.r.Nodes.Contains(k.t.NodesOf(cpus)) {
		return nil
	}
	return &place.NUMAError{Nodes: k.r.Nodes, Reason: fmt.Sprintf("the balloon has CPUs %s", cpus)}
}
