package detect

import (
	"cmp"
	"slices"

	"berth.dev/berth/internal/plain"
)

// Resource is what a victim lacks. Their order is that in which findings about
// one victim are listed: what is its own doing or nobody's here comes first,
// because it explains the signals of those that follow.
type Resource = plain.Enum[resourceWords]

// The resources.
const (
	OwnLimit        Resource = iota // CPU time, which the victim's own quota withholds
	Hypervisor                      // CPU time, which another guest has
	OwnLoad                         // CPU time, which the victim itself uses up
	CPU                             // CPU time, which neighbours have
	Memory                          // memory: pages are reclaimed while the victim waits
	IO                              // block I/O
	Network                         // the way out of the host: a link is full
	MemoryBandwidth                 // the way to memory
	LLC                             // room in the last-level cache
	SMT                             // the core, whose other thread is busy
	NUMA                            // near memory: the victim's lies on other nodes
	Frequency                       // clock cycles: CPUs are slow or slow to wake up
)

const resources = int(Frequency) + 1

// resourceInfos has a row for each resource.
var resourceInfos = [resources]struct {
	name  string
	plain string // what a victim suffers from, in words
	// symptoms are the signals whose strength tells how much is lacked, useful those that
	// tell about it at all: where one is missing, that is a gap.
	symptoms, useful []Signal
	// remedies would help, the cheapest and easiest to revert first; own if the victim itself
	// is the cause, nil where that makes no difference.
	remedies, own []Remedy
	// outside would help where processes in no group are the cause.
	outside []Remedy
}{
	OwnLimit: {
		"own_limit", "is throttled by its own CPU limit",
		[]Signal{ThrottledPeriods, Withheld}, []Signal{ThrottledPeriods, Withheld}, []Remedy{Burst, RaiseLimit}, nil, nil,
	},
	Hypervisor: {"hypervisor", "loses CPU time to the hypervisor", []Signal{StealShare}, []Signal{StealShare}, nil, nil, nil},
	OwnLoad: {
		"own_load", "wants more CPU time than its CPUs have",
		[]Signal{RunQueueP99, WaitRatio, CPUPressure}, waitSignals, []Remedy{GrowCPUs}, nil, nil,
	},
	CPU: {
		"cpu", "waits for CPUs that others use",
		[]Signal{RunQueueP99, WaitRatio, CPUPressure, Imposed}, waitSignals, []Remedy{Weight, HeadroomCap, ShrinkCPUs, ExclusiveCPUs}, nil,
		[]Remedy{ProcessWeight, ProcessCPUs},
	},
	Memory: {
		"memory", "waits for memory to be reclaimed",
		[]Signal{MemoryPressure}, []Signal{MemoryPressure, LimitEvents}, []Remedy{MemoryHigh}, []Remedy{RaiseLimit}, nil,
	},
	IO: {"io", "waits for block I/O", []Signal{IOPressure}, []Signal{IOPressure, OwnIO}, []Remedy{IOWeight, IOThrottle}, []Remedy{}, nil},
	Network: {
		"network", "waits for a full network link",
		[]Signal{RoundTrip, Resent}, []Signal{RoundTrip}, []Remedy{SendCap}, []Remedy{}, nil,
	},
	MemoryBandwidth: {
		"memory_bandwidth", "lacks memory bandwidth",
		[]Signal{CPI}, []Signal{CPI, DomainBandwidth, ThrottledPeriods, StealShare}, []Remedy{BandwidthCap, ShrinkCPUs}, nil, nil,
	},
	LLC: {
		"llc", "is driven out of the last-level cache",
		[]Signal{CPI}, []Signal{CPI, MPKI, Occupancy, ThrottledPeriods, StealShare}, []Remedy{CacheWays, ShrinkCPUs}, nil, nil,
	},
	SMT: {
		"smt", "shares its cores with a busy sibling thread",
		[]Signal{CPI}, []Signal{CPI, MPKI, SiblingUse, ThrottledPeriods, StealShare}, []Remedy{CoreSched, ExclusiveCPUs}, nil, nil,
	},
	NUMA: {"numa", "has its memory on other NUMA nodes", nil, []Signal{LocalMemory}, []Remedy{PlaceMemory}, nil, nil},
	Frequency: {
		"frequency", "runs on CPUs that are slow or slow to wake up",
		[]Signal{Clock}, []Signal{CPI, Clock, IdleQueued, ThrottledPeriods, StealShare}, []Remedy{Power}, nil, nil,
	},
}

var waitSignals = []Signal{RunQueueP99, WaitRatio, CPUPressure, ForeignQueued, ThrottledPeriods, StealShare}

var resourceNames = func() []string {
	names := make([]string, resources)
	for i := range resourceInfos {
		names[i] = resourceInfos[i].name
	}
	return names
}()

// Resources returns all of them.
func Resources() []Resource {
	all := make([]Resource, resources)
	for i := range all {
		all[i] = Resource(i)
	}
	return all
}

type resourceWords struct{}

func (resourceWords) Words() []string { return resourceNames }

// RemediesFor returns what would help a victim that lacks a resource, the
// cheapest and easiest to revert first; nothing where nothing on this host
// does. Own says that the victim itself is the cause.
func RemediesFor(r Resource, own bool) []Remedy {
	if int(r) >= resources {
		return nil
	}
	info := &resourceInfos[r]
	if own && info.own != nil {
		return append([]Remedy(nil), info.own...)
	}
	return slices.Clone(info.remedies)
}

// RemediesOutside returns what would help a victim that lacks a resource because of processes
// in no group, if they may be acted on.
func RemediesOutside(r Resource) []Remedy {
	if int(r) >= resources {
		return nil
	}
	return slices.Clone(resourceInfos[r].outside)
}

// Remedy is the name of something that would help. Package control has those that the
// guard carries out; the others are advice.
type Remedy string

// The remedies.
const (
	Weight        Remedy = "weight"
	HeadroomCap   Remedy = "headroom_cap"
	ShrinkCPUs    Remedy = "shrink_cpus"
	CacheWays     Remedy = "cache_ways"
	BandwidthCap  Remedy = "bandwidth_cap"
	CoreSched     Remedy = "core_sched"
	ExclusiveCPUs Remedy = "exclusive_cpus"
	Burst         Remedy = "burst"
	RaiseLimit    Remedy = "raise_limit"
	GrowCPUs      Remedy = "grow_cpus"
	MemoryHigh    Remedy = "memory_high"
	IOWeight      Remedy = "io_weight"
	IOThrottle    Remedy = "io_throttle"
	SendCap       Remedy = "send_cap"
	PlaceMemory   Remedy = "place_memory"
	Power         Remedy = "power"
	ProcessWeight Remedy = "process_weight"
	ProcessCPUs   Remedy = "process_cpus"
)

var remedyWords = map[Remedy]string{
	Weight:        "lower cpu.weight, or cpu.idle, where the two diverge in the tree of groups",
	HeadroomCap:   "cap best-effort work to what is idle, less a reserve",
	ShrinkCPUs:    "fewer CPUs for best-effort work",
	CacheWays:     "fewer cache ways for best-effort work",
	BandwidthCap:  "throttle the memory bandwidth of best-effort work",
	CoreSched:     "core scheduling, so that the two never share a core",
	ExclusiveCPUs: "exclusive cores for the victim",
	Burst:         "let the victim burst above its quota",
	RaiseLimit:    "raise the victim's own limit",
	GrowCPUs:      "more CPUs for the victim",
	MemoryHigh:    "memory.high for best-effort work",
	IOWeight:      "lower io.weight for best-effort work",
	IOThrottle:    "fewer bytes per second for best-effort work, on the disks that both use",
	SendCap:       "a lower rate for what best-effort work sends over the link",
	PlaceMemory:   "restart the victim with its CPUs and memory on one node",
	ProcessWeight: "SCHED_IDLE, or the least nice value, for processes in no group",
	ProcessCPUs:   "fewer CPUs, by affinity, for processes in no group",
	Power:         "a frequency floor, or shallower idle states, for the victim's CPUs",
}

// String returns the remedy's name, "headroom_cap".
func (r Remedy) String() string { return string(r) }

// Words says in a few words what the remedy is.
func (r Remedy) Words() string { return cmp.Or(remedyWords[r], string(r)) }
