// Package config is the agent's declarative configuration: which policy places
// the workloads of a host, which control groups are workloads and what each gets,
// what everyone else is kept off, and how the agent itself runs.
//
// Parse reads a NodeConfig strictly, Match says which workload a control group
// is, Diff says in words what another NodeConfig would change. Nothing here does
// I/O; docs/nodeconfig.md is the reference for users.
package config

import (
	"maps"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/blockio"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/kernel/resctrl"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/place"
)

// What a NodeConfig must say that it is.
const (
	APIVersion = "berth.dev/v1alpha1"
	Kind       = "NodeConfig"
)

// NodeConfig is what one host is to be like. Parse fills what a file does not name
// from Default, which differs from the zero value in Policy.Name and Agent.
type NodeConfig struct {
	// APIVersion is berth.dev/v1alpha1; required.
	APIVersion string `json:"apiVersion"`
	// Kind is NodeConfig; required.
	Kind string `json:"kind"`

	// Policy decides who gets which CPUs and memory nodes.
	Policy Policy `json:"policy,omitzero"`
	// Allowed are the CPUs that may be used at all, as in "0-7,16"; empty is all
	// online ones.
	Allowed cpuset.Set `json:"allowed,omitzero"`
	// Reserved are CPUs for the host: only class SYSTEM may own them; shared
	// pools may have them. Default: none.
	Reserved cpuset.Set `json:"reserved,omitzero"`
	// Floor are CPUs that nobody may own. Empty is reserved or, where that is
	// empty too, the lowest allowed CPU that the kernel does not isolate.
	Floor cpuset.Set `json:"floor,omitzero"`
	// NoFloor lets all CPUs become owned.
	NoFloor bool `json:"noFloor,omitempty"`

	// Devices are things of this host that workloads ask for by name or kind, each for one
	// workload at a time, near their NUMA nodes. Default: none.
	Devices []Device `json:"devices,omitempty"`

	// Confine are globs of foreign groups that are kept off exclusive CPUs:
	// their cpuset becomes what nobody owns. Default: none.
	Confine []string `json:"confine,omitempty"`
	// Protected are globs of groups, with all below them, that Berth never
	// changes, whatever else matches them. Default: none.
	Protected []string `json:"protected,omitempty"`
	// Classes are what workloads of a class of service have unless they set their own, and
	// the classes of other kinds. Default: none.
	Classes Classes `json:"classes,omitzero"`
	// Workloads say which groups are workloads, and what each gets. The first
	// that matches a group has it. Default: none.
	Workloads []Workload `json:"workloads,omitempty"`
	// Guard watches over the workloads of classes LS, LSR and LSE, and may move
	// best-effort work aside that disturbs them.
	Guard Guard `json:"guard,omitzero"`
	// Agent is how the agent runs.
	Agent Agent `json:"agent,omitzero"`
	// Kubernetes is how berth-node nri places the containers of a node of Kubernetes; the
	// agent leaves it alone.
	Kubernetes Kubernetes `json:"kubernetes,omitzero"`
}

// Classes are limits by class of service, and classes of other kinds by kind.
type Classes struct {
	// LSE are the limits of workloads of class LSE. Default: none.
	LSE Limits `json:"LSE,omitzero"`
	// LSR are those of class LSR. Default: none.
	LSR Limits `json:"LSR,omitzero"`
	// LS are those of class LS. Default: none.
	LS Limits `json:"LS,omitzero"`
	// BE are those of class BE. Default: none.
	BE Limits `json:"BE,omitzero"`
	// SYSTEM are those of class SYSTEM. Default: none.
	SYSTEM Limits `json:"SYSTEM,omitzero"`
	// Cache are classes of caches and memory bandwidth: partitions of the cache, classes in
	// them, and which class of service has which (docs/cache.md). Default: none.
	Cache *resctrl.Config `json:"cache,omitempty"`
	// IO are classes of block I/O: limits and weights of devices, and which class of service
	// has which (docs/io.md). Default: none.
	IO *blockio.Config `json:"io,omitempty"`
	// Power are power profiles beside the built-in ones, and whose CPUs have which
	// (docs/power.md). Default: none.
	Power *power.Config `json:"power,omitempty"`
	// Net are classes of what is sent through network devices: floors, ceilings and priorities,
	// and which class of service has which (docs/network.md). Default: none.
	Net *traffic.Config `json:"net,omitempty"`
}

// classSet are the classes of one kind.
type classSet interface {
	Names() []string
	Has(name string) bool
	Validate() error
}

// kinds are the classes of other kinds by their field, nil where there are none.
func (c *Classes) kinds() map[string]classSet {
	all := map[string]classSet{"cache": nil, "io": nil, "net": nil, "power": c.Power}
	if c.Cache != nil {
		all["cache"] = c.Cache
	}
	if c.IO != nil {
		all["io"] = c.IO
	}
	if c.Net != nil {
		all["net"] = c.Net
	}
	return all
}

// noClass is the word of a workload that is to have no class of a kind.
const noClass = "none"

// ClassesOf returns the classes that a workload asks for by their kind, the field's name.
func (w *Workload) ClassesOf() map[string]string {
	all := map[string]string{"cache": w.Cache, "io": w.IO, "net": w.Net, "power": w.Power}
	maps.DeleteFunc(all, func(_, name string) bool { return name == "" })
	return all
}

// Of returns the limits of a class of service.
func (c *Classes) Of(class place.Class) Limits {
	switch class {
	case place.LSE:
		return c.LSE
	case place.LSR:
		return c.LSR
	case place.LS:
		return c.LS
	case place.BE:
		return c.BE
	case place.System:
		return c.SYSTEM
	}
	return Limits{}
}

// Policy is a placement policy with its options.
type Policy struct {
	// Name is one that berth replay lists. Default: berth.
	Name string `json:"name,omitempty"`
	// Options are those that a scenario of berth replay gives the policy. Default:
	// the policy's own.
	Options map[string]any `json:"options,omitempty"`
}

// Workload is one kind of group and what each such group gets.
type Workload struct {
	// Name is unique: letters, digits, '-', '_' and '.', at most 63. Required.
	Name string `json:"name"`
	// Match says which groups; required.
	Match Match `json:"match"`
	// Class is LSE, LSR, LS, BE or SYSTEM. Default: LS.
	Class place.Class `json:"class"`
	// CPUs is the CPU time asked for, as in 4, 2.5 or 500m. Default: none, the
	// workload shares a pool.
	CPUs place.Milli `json:"cpus,omitzero"`
	// Cache is its cache class, one of classes.cache, or none. Default: that of its class of service.
	Cache string `json:"cache,omitempty"`
	// IO is its I/O class, one of classes.io, or none. Default: that of its class of service.
	IO string `json:"io,omitempty"`
	// Power is the power profile of its exclusive CPUs: a built-in one, or one of
	// classes.power. Default: that of its class of service.
	Power string `json:"power,omitempty"`
	// Net is its network class, one of classes.net, or none. Default: that of its class of service.
	Net string `json:"net,omitempty"`
	// Bandwidth is the most that it may send and receive, through all network devices together
	// but the loopback device, and beside its network class. Default: no limit.
	Bandwidth traffic.Limit `json:"bandwidth,omitzero"`
	// Bind is FullPCPUs (whole cores) or SpreadByPCPUs (a CPU per core first).
	// Default: the policy's own.
	Bind place.Bind `json:"bind,omitzero"`
	// Exclusive is PCPULevel (no one else on its cores) or NUMANodeLevel (nor on
	// its NUMA nodes). Default: only its CPUs.
	Exclusive place.Exclusivity `json:"exclusive,omitzero"`
	// Strategy is MostAllocated, LeastAllocated or DistributeEvenly: which NUMA
	// nodes to prefer. Default: the policy's own.
	Strategy place.Strategy `json:"strategy,omitzero"`
	// Nodes are the NUMA nodes to prefer, as in "0-1". Default: any.
	Nodes cpuset.Set `json:"nodes,omitzero"`
	// Memory is how much memory to find room for, in bytes, as in 2Gi. It is no
	// limit. Default: not counted.
	Memory place.Bytes `json:"memory,omitzero"`
	// Mode says how much of CPUs is its own: auto (by its class), exclusive (whole CPUs),
	// shared (time of a pool) or mixed (whole CPUs, and Shared from a pool). Default: auto.
	Mode place.Mode `json:"mode,omitzero"`
	// Shared is, with mode mixed, the part of cpus that comes from a pool, as in 500m.
	// Default: what cpus has beyond whole CPUs.
	Shared place.Milli `json:"shared,omitzero"`
	// Devices are those to have, NAME or KIND=COUNT, as in nic0 or gpu=2. CPUs near them are
	// preferred. Default: none.
	Devices []string `json:"devices,omitempty"`
	// HugePages are bytes of huge pages to find room for on its NUMA nodes, by page size, as
	// in {2Mi: 512Mi}. Where the hugetlb controller is there, it gets no more of them.
	// Default: none.
	HugePages map[string]place.Bytes `json:"hugePages,omitempty"`
	// Affinity names workloads of this configuration, or ids, whose NUMA nodes it prefers,
	// AntiAffinity those whose it avoids. Default: none.
	Affinity []string `json:"affinity,omitempty"`
	// AntiAffinity is the contrary of Affinity. Default: none.
	AntiAffinity []string `json:"antiAffinity,omitempty"`
	// Group joins entries whose workloads are placed as a whole: none before each of these
	// entries matches a control group, and then all of them or none. Default: none.
	Group string `json:"group,omitempty"`
	// Hints are words for the policy, such as {balloon: NAME}: see its options. Default:
	// none.
	Hints map[string]string `json:"hints,omitempty"`
	// Limits go over those of the class, field by field.
	Limits Limits `json:"limits,omitzero"`
}

// Device is a thing that one workload at a time may have, such as a network card. The
// agent counts it and does not keep others from it.
type Device struct {
	// Name is unique: letters, digits, '-', '_' and '.', at most 63. Required.
	Name string `json:"name"`
	// Kind is what it is, for workloads that ask for any. Default: none.
	Kind string `json:"kind,omitempty"`
	// Nodes are the NUMA nodes that it is near, as in "0". Default: those that PCI tells.
	Nodes cpuset.Set `json:"nodes,omitzero"`
	// PCI is its address, as in 0000:3b:00.0, for the kernel to tell its NUMA node. Default:
	// none.
	PCI string `json:"pci,omitempty"`
}

// Match names groups in one of three ways.
type Match struct {
	// Cgroup is a glob of the group's path below the mount of its hierarchy, as in
	// /batch.slice/*: * and ? match within a component, ** any number of components.
	Cgroup string `json:"cgroup,omitempty"`
	// Unit is a glob of a systemd unit's name, as in nginx.service or
	// batch-*.scope. It means the unit's own group, not those below.
	Unit string `json:"unit,omitempty"`
	// Container is a container, as its runtime writes it into the path.
	Container *Container `json:"container,omitempty"`
	// Delegated takes groups, too, of which a user other than root and the agent's chose
	// the name: those below a group that belongs to such a user, who can make groups of
	// any name there, as many as the kernel allows; and those in a container, where root's
	// processes may do so, too.
	Delegated bool `json:"delegated,omitempty"`
}

// Container matches the own group of a container. All fields that are set must
// match; at least one is. The path tells no labels and no namespace, and a name only
// with lxc and nspawn: the rest is refused as not supported.
type Container struct {
	// Runtime is docker, containerd, crio, podman, lxc or nspawn. Default: any.
	// Under the cgroupfs driver the path of a container in a pod does not tell it.
	Runtime string `json:"runtime,omitempty"`
	// ID is a glob of the container's id, as in 3f4e*. Default: any.
	ID string `json:"id,omitempty"`
	// Pod is a glob of the UID of the container's pod, with dashes. Default: any.
	Pod string `json:"pod,omitempty"`
	// Name is a glob of the container's name; only with lxc and nspawn. Default: any.
	Name string `json:"name,omitempty"`
	// Namespace is refused: no path tells it.
	Namespace string `json:"namespace,omitempty"`
	// Label is refused: no path tells it.
	Label map[string]string `json:"label,omitempty"`
}

// Limits are settings of a group. What is absent stays as it is found.
type Limits struct {
	// Weight is the share of CPU time among siblings, 1 to 10000; the kernel's
	// default is 100 (cpu.weight).
	Weight int `json:"weight,omitempty"`
	// Idle runs the group only when no sibling wants to (cpu.idle, 5.15). An idle
	// group has no weight.
	Idle *bool `json:"idle,omitempty"`
	// Quota is the most CPU time, in CPUs, as in 2.5 or 500m; max is no limit
	// (cpu.max). At least 10m.
	Quota place.Milli `json:"quota,omitzero"`
	// Burst is CPU time that a period may take over from earlier ones, as in 20ms, at
	// most the quota's share of the period of 100 ms (cpu.max.burst, 5.14).
	Burst Duration `json:"burst,omitzero"`
	// MemoryMax is the limit in bytes, as in 2Gi; max is no limit (memory.max).
	MemoryMax place.Bytes `json:"memoryMax,omitzero"`
	// MemoryHigh is where the group is slowed down and reclaimed, in bytes; max is
	// nowhere (memory.high, v2 only).
	MemoryHigh place.Bytes `json:"memoryHigh,omitzero"`
	// MemoryLow is what others' pressure leaves it, in bytes; max is all
	// (memory.low, v2 only).
	MemoryLow place.Bytes `json:"memoryLow,omitzero"`
	// IOWeight is the share of disk time among siblings, 1 to 10000; the kernel's
	// default is 100 (io.weight).
	IOWeight int `json:"ioWeight,omitempty"`
}

// Guard is what the guard may do. Groups that Protected names are never acted on.
type Guard struct {
	// Mode is off, observe (say who suffers and from whom), preview (also what would
	// be done about it) or enforce (do it, and revert what does not help). Default:
	// observe.
	Mode GuardMode `json:"mode,omitempty"`
	// Sensitive are globs of groups, or of the system's units as in nginx.service, that are
	// helped, with all below them, beside the workloads of classes LS, LSR and LSE.
	// Default: none.
	Sensitive []string `json:"sensitive,omitempty"`
	// BestEffort are globs of groups or units that count as class BE, with all below them.
	// Default: none.
	BestEffort []string `json:"bestEffort,omitempty"`
	// Allowed are globs of groups or units that may be acted on, with all below them,
	// though they are not of class BE. Default: none.
	Allowed []string `json:"allowed,omitempty"`
	// Weigh lets neighbours of class LS and SYSTEM have less weight, and nothing else.
	// Default: false, they are reported.
	Weigh bool `json:"weigh,omitempty"`
	// Outsiders are what may be done to processes in no group while a workload waits for them:
	// idle (SCHED_IDLE), nice (19), affinity (fewer CPUs). Default: none, they are reported.
	Outsiders []GuardOutsiders `json:"outsiders,omitempty"`
	// Probe says when the run-queue probe is armed, which tells who has the CPU while a
	// workload waits: needed, eager (sooner, at 2 % of a CPU), never or always. Default:
	// needed.
	Probe GuardProbe `json:"probe,omitempty"`
	// Hold is how long an action stays active before less is tried, at least 1s; ten
	// times that while best-effort work that yields the CPU goes on as before.
	// Default: 30s.
	Hold Duration `json:"hold,omitzero"`
	// PeakBandwidth is how many bytes per second can go between one last-level cache and
	// memory, as a benchmark of this machine measured it: "80G". Default: unknown, and nobody is
	// found to lack memory bandwidth.
	PeakBandwidth place.Bytes `json:"peakBandwidth,omitzero"`
	// Suppression limits all best-effort work by what the node has left, whether
	// somebody suffers or not; only in mode enforce. Default: none.
	Suppression *Suppression `json:"suppression,omitempty"`
}

// GuardMode is what the guard does.
type GuardMode string

// The modes.
const (
	GuardOff     GuardMode = "off"
	GuardObserve GuardMode = "observe"
	GuardPreview GuardMode = "preview"
	GuardEnforce GuardMode = "enforce"
)

// GuardModes returns all modes.
func GuardModes() []GuardMode {
	return []GuardMode{GuardOff, GuardObserve, GuardPreview, GuardEnforce}
}

// GuardProbe says when the run-queue probe is armed: a guard.ProbeUse.
type GuardProbe string

// The times.
const (
	ProbeNeeded GuardProbe = "needed"
	ProbeEager  GuardProbe = "eager"
	ProbeNever  GuardProbe = "never"
	ProbeAlways GuardProbe = "always"
)

// guardProbes returns all times.
func guardProbes() []GuardProbe {
	return []GuardProbe{ProbeNeeded, ProbeEager, ProbeNever, ProbeAlways}
}

// GuardOutsiders is something that may be done to processes in no group.
type GuardOutsiders string

// The ways.
const (
	OutsidersIdle     GuardOutsiders = "idle"
	OutsidersNice     GuardOutsiders = "nice"
	OutsidersAffinity GuardOutsiders = "affinity"
)

// GuardOutsiderUses returns all ways.
func GuardOutsiderUses() []GuardOutsiders {
	return []GuardOutsiders{OutsidersIdle, OutsidersNice, OutsidersAffinity}
}

// Suppression keeps best-effort work to a threshold of the node less what all others
// use.
type Suppression struct {
	// Group holds all best-effort work and nothing else. Default: that of Kubernetes'
	// best-effort pods, if there is one, else berth-idle, where berth run puts idle workloads.
	Group string `json:"group,omitempty"`
	// By is cpus (fewer CPUs in its cpuset) or quota. Default: cpus.
	By string `json:"by,omitempty"`
	// Threshold is the percentage of the node's CPU time that may be in use, 1 to 100.
	// Default: 65.
	Threshold int `json:"threshold,omitempty"`
	// Reserve is CPU time kept for the system, as in 500m. Default: none.
	Reserve place.Milli `json:"reserve,omitzero"`
}

// Agent is how the agent itself runs.
type Agent struct {
	// Socket is the path of the API's socket. Default: /run/berth/agent.sock.
	Socket string `json:"socket,omitempty"`
	// Group is the group, by name or number, that may use the sockets too. Its members
	// may read everything, and place their own processes. Default: none, only the
	// agent's own user.
	Group string `json:"group,omitempty"`
	// Admins are users, by name or number, who may do through the socket what root may.
	// They also need to be in the group. Default: none.
	Admins []string `json:"admins,omitempty"`
	// Metrics is the HOST:PORT of /metrics and the status page; off serves neither.
	// Default: 127.0.0.1:9750, not reachable from the network.
	Metrics string `json:"metrics,omitempty"`
	// Network lets metrics be an address that other hosts reach. Whoever does sees
	// all workloads: there is no password. Default: false, such an address is refused.
	Network bool `json:"network,omitempty"`
	// Hosts are names by which others may ask for the status page and the metrics, as in
	// node7.example.org. Default: none, only localhost and, with network, IP addresses.
	Hosts []string `json:"hosts,omitempty"`
	// Rescan is how often all groups are looked through beside watching them come
	// and go, at least 1s. Default: 30s.
	Rescan Duration `json:"rescan,omitzero"`
	// StateDir is where decisions are kept over a restart. Default: /run/berth/node.
	StateDir string `json:"stateDir,omitempty"`
	// RestoreOnExit puts every value back when the agent stops. Default: false,
	// all stays in place for the next start.
	RestoreOnExit bool `json:"restoreOnExit,omitempty"`
	// YieldAfter is how many times in a row a value that another writer changes is
	// written again before it is left to them and reported, at least 1. Default: 3.
	YieldAfter int `json:"yieldAfter,omitempty"`
}

// Default returns what holds without a file: no workloads, the default policy, and
// the agent's default settings.
func Default() *NodeConfig {
	return &NodeConfig{
		APIVersion: APIVersion,
		Kind:       Kind,
		Policy:     Policy{Name: "berth"},
		Guard:      Guard{Mode: GuardObserve, Probe: ProbeNeeded, Hold: Duration(30e9)},
		Agent: Agent{
			Socket:     "/run/berth/agent.sock",
			Metrics:    "127.0.0.1:9750",
			Rescan:     Duration(30e9),
			StateDir:   "/run/berth/node",
			YieldAfter: 3,
		},
	}
}
