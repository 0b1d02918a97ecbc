package detect

import (
	"berth.dev/berth/internal/enum"
)

// Resource is what a victim lacks. Their order is that in which findings about
// one victim are listed: what is its own doing or nobody's here comes first,
// because it explains the signals of those that follow.
type Resource uint8

// The resources.
const (
	OwnLimit        Resource = iota // CPU time, which the victim's own quota withholds
	Hypervisor                      // CPU time, which another guest has
	OwnLoad                         // CPU time, which the victim itself uses up
	CPU                             // CPU time, which neighbours have
	Memory                          // memory: pages are reclaimed while the victim waits
	IO                              // block I/O
	MemoryBandwidth                 // the way to memory
	LLC                             // room in the last-level cache
	SMT                             // the core, whose other thread is busy
	NUMA                            // near memory: the victim's lies on other nodes
	Frequency                       // clock cycles: CPUs are slow or slow to wake up
)

var resourceNames = []string{
	OwnLimit: "own_limit", Hypervisor: "hypervisor", OwnLoad: "own_load", CPU: "cpu", Memory: "memory", IO: "io",
	MemoryBandwidth: "memory_bandwidth", LLC: "llc", SMT: "smt", NUMA: "numa", Frequency: "frequency",
}

const resources = int(Frequency) + 1

// plain is what a victim suffers from, in words.
var plain = []string{
	OwnLimit:        "is throttled by its own CPU limit",
	Hypervisor:      "loses CPU time to the hypervisor",
	OwnLoad:         "wants more CPU time than its CPUs have",
	CPU:             "waits for CPUs that others use",
	Memory:          "waits for memory to be reclaimed",
	IO:              "waits for block I/O",
	MemoryBandwidth: "lacks memory bandwidth",
	LLC:             "is driven out of the last-level cache",
	SMT:             "shares its cores with a busy sibling thread",
	NUMA:            "has its memory on other NUMA nodes",
	Frequency:       "runs on CPUs that are slow or slow to wake up",
}

// Resources returns all of them.
func Resources() []Resource {
	all := make([]Resource, resources)
	for i := range all {
		all[i] = Resource(i)
	}
	return all
}

// String returns the resource's name, "memory_bandwidth".
func (r Resource) String() string { return enum.Name(resourceNames, r) }

// MarshalText writes the resource's name.
func (r Resource) MarshalText() ([]byte, error) { return enum.Marshal(resourceNames, r) }

// UnmarshalText reads the resource's name.
func (r *Resource) UnmarshalText(text []byte) error { return enum.Unmarshal(resourceNames, text, r) }

// Remedy is something that would help. Which value, and whether it is allowed,
// is left to others.
type Remedy uint8

// The remedies.
const (
	Weight        Remedy = iota // cpu.weight or cpu.idle where victim and suspect diverge in the tree of groups
	HeadroomCap                 // cpu.max of best-effort work, by what is idle less a reserve
	ShrinkCPUs                  // fewer CPUs in the cpuset of best-effort work
	CacheWays                   // fewer ways of the last-level cache for best-effort work
	BandwidthCap                // memory bandwidth of best-effort work throttled
	CoreSched                   // core scheduling: the suspect never runs beside the victim on one core
	ExclusiveCPUs               // whole cores for the victim alone
	Burst                       // cpu.max.burst of the victim
	RaiseLimit                  // a higher cpu.max or memory.max of the victim
	GrowCPUs                    // more CPUs for the victim
	MemoryHigh                  // memory.high of best-effort work
	IOWeight                    // io.weight of best-effort work
	PlaceMemory                 // restart the victim with CPUs and memory on one node
	Power                       // a frequency floor or shallower idle states for the victim's CPUs
)

var remedyNames = []string{
	Weight: "weight", HeadroomCap: "headroom_cap", ShrinkCPUs: "shrink_cpus", CacheWays: "cache_ways", BandwidthCap: "bandwidth_cap",
	CoreSched: "core_sched", ExclusiveCPUs: "exclusive_cpus", Burst: "burst", RaiseLimit: "raise_limit", GrowCPUs: "grow_cpus",
	MemoryHigh: "memory_high", IOWeight: "io_weight", PlaceMemory: "place_memory", Power: "power",
}

var remedyWords = []string{
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
	PlaceMemory:   "restart the victim with its CPUs and memory on one node",
	Power:         "a frequency floor, or shallower idle states, for the victim's CPUs",
}

// Remedies returns what would help a victim that lacks the resource, the
// cheapest and easiest to revert first; nothing where nothing on this host
// does. Own says that the victim itself is the cause.
func (r Resource) Remedies(own bool) []Remedy {
	switch r {
	case OwnLimit:
		return []Remedy{Burst, RaiseLimit}
	case OwnLoad:
		return []Remedy{GrowCPUs}
	case CPU:
		return []Remedy{Weight, HeadroomCap, ShrinkCPUs, ExclusiveCPUs}
	case Memory:
		if own {
			return []Remedy{RaiseLimit}
		}
		return []Remedy{MemoryHigh}
	case IO:
		if !own {
			return []Remedy{IOWeight}
		}
	case MemoryBandwidth:
		return []Remedy{BandwidthCap, ShrinkCPUs}
	case LLC:
		return []Remedy{CacheWays, ShrinkCPUs}
	case SMT:
		return []Remedy{CoreSched, ExclusiveCPUs}
	case NUMA:
		return []Remedy{PlaceMemory}
	case Frequency:
		return []Remedy{Power}
	}
	return nil
}

// String returns the remedy's name, "headroom_cap".
func (r Remedy) String() string { return enum.Name(remedyNames, r) }

// Words says in a few words what the remedy is.
func (r Remedy) Words() string { return enum.Name(remedyWords, r) }

// MarshalText writes the remedy's name.
func (r Remedy) MarshalText() ([]byte, error) { return enum.Marshal(remedyNames, r) }

// UnmarshalText reads the remedy's name.
func (r *Remedy) UnmarshalText(text []byte) error { return enum.Unmarshal(remedyNames, text, r) }
