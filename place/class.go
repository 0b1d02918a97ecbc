package place

import (
	"fmt"
	"strings"

	"berth.dev/berth/internal/plain"
)

// Class is a class of service. Its Traits alone define its effects.
type Class int

// The classes of service, from the one to guard most to the one to squeeze
// first; System stands apart.
const (
	LS     Class = iota // latency-sensitive: runs in a shared pool
	LSE                 // latency-sensitive, exclusive: exclusive cores, shared with nobody
	LSR                 // latency-sensitive, reserved: exclusive CPUs, shared with best effort while idle
	BE                  // best effort: yields to all others
	System              // the host's own services: on the reserved CPUs
)

// Traits are the effects of a class of service. They do not depend on how a workload
// got its class.
type Traits struct {
	Name, About string
	// Own gives a request of mode Auto whole CPUs of its own, and WholeCores whole
	// cores. Lends lets the classes that Borrow run on them while they are idle.
	Own, WholeCores, Lends, Borrow bool
	// Uncounted shares the pool without a part of its time.
	Uncounted bool
	// Reserved runs on the reserved CPUs, and may own them.
	Reserved bool
	// Idle is the default of cpu.idle: to run only when no sibling group wants to. A
	// weight or a cpu.idle that the workload is given takes its place.
	Idle bool
	// Sensitive has the guard look for neighbours that disturb it. Squeezed lets the
	// guard use all its remedies on it, and Weighed only less weight, where
	// guard.weigh allows that.
	Sensitive, Squeezed, Weighed bool
}

// Classes returns all classes, the one with the most to itself first.
func Classes() []Class { return []Class{LSE, LSR, System, LS, BE} }

// Traits returns the effects of the class; those of an unknown class are zero.
func (c Class) Traits() Traits {
	if c < 0 || int(c) >= len(traits) {
		return Traits{}
	}
	return traits[c]
}

var traits = [...]Traits{
	LS: {Name: "LS", About: "a shared pool of CPUs", Sensitive: true, Weighed: true},
	LSE: {
		Name: "LSE", About: "exclusive cores, shared with nobody",
		Own: true, WholeCores: true, Sensitive: true,
	},
	LSR: {
		Name: "LSR", About: "exclusive CPUs, shared with best effort while they are idle",
		Own: true, Lends: true, Sensitive: true,
	},
	BE: {
		Name: "BE", About: "best effort: the shared pool, while no sibling group wants the CPU (cpu.idle)",
		Borrow: true, Uncounted: true, Idle: true, Squeezed: true,
	},
	System: {Name: "SYSTEM", About: "the host's own services, on the reserved CPUs", Reserved: true, Weighed: true},
}

func classNames() []string {
	names := make([]string, len(traits))
	for i := range traits {
		names[i] = traits[i].Name
	}
	return names
}

// String returns the field's name of the class: "LSE", "LSR", "LS", "BE", "SYSTEM".
func (c Class) String() string {
	if name := c.Traits().Name; name != "" {
		return name
	}
	return plain.Word(classNames(), c)
}

// MarshalText writes the class's name.
func (c Class) MarshalText() ([]byte, error) { return plain.MarshalWord(classNames(), c) }

// UnmarshalText reads a class's name, or the Kubernetes QoS class that comes nearest to
// it, in any case; best-effort is BestEffort.
func (c *Class) UnmarshalText(text []byte) error {
	for qos, class := range map[string]Class{"Guaranteed": LSR, "Burstable": LS, "BestEffort": BE} {
		if strings.EqualFold(qos, strings.ReplaceAll(string(text), "-", "")) {
			*c = class
			return nil
		}
	}
	err := plain.UnmarshalWord(classNames(), text, c)
	if hint := plain.Near(string(text), []string{"Guaranteed", "Burstable", "BestEffort"}); err != nil && hint != "" {
		return fmt.Errorf("%w%s", err, hint)
	}
	return err
}

// Mode says how much of a request is to be the workload's own.
type Mode = plain.Enum[modeWords]

// The modes.
const (
	Auto      Mode = iota // the policy decides by class and amount
	Exclusive             // whole CPUs, owned
	Shared                // CPU time of a pool
	Mixed                 // whole CPUs owned, the rest from a pool
)

type modeWords struct{}

func (modeWords) Words() []string { return []string{"auto", "exclusive", "shared", "mixed"} }

// Bind says how exclusive CPUs lie on physical cores.
type Bind = plain.Enum[bindWords]

// The CPU bind policies.
const (
	BindAny       Bind = iota // the policy's own preference
	FullPCPUs                 // whole cores
	SpreadByPCPUs             // one CPU per core first
)

type bindWords struct{}

func (bindWords) Words() []string { return []string{"", "FullPCPUs", "SpreadByPCPUs"} }

// Exclusivity says how far a workload keeps others away from its own CPUs.
type Exclusivity = plain.Enum[exclusivityWords]

// The levels of exclusivity.
const (
	CPULevel      Exclusivity = iota // only the CPUs themselves
	PCPULevel                        // the physical cores
	NUMANodeLevel                    // the NUMA nodes
)

type exclusivityWords struct{}

func (exclusivityWords) Words() []string { return []string{"", "PCPULevel", "NUMANodeLevel"} }

// Strategy says which NUMA nodes to prefer among those that can hold a request.
type Strategy = plain.Enum[strategyWords]

// The NUMA strategies.
const (
	StrategyAny      Strategy = iota // the policy's own preference
	MostAllocated                    // the fullest node
	LeastAllocated                   // the emptiest node
	DistributeEvenly                 // the same number of CPUs on every node
)

type strategyWords struct{}

func (strategyWords) Words() []string {
	return []string{"", "MostAllocated", "LeastAllocated", "DistributeEvenly"}
}

// Role is the part that a workload plays in its group.
type Role = plain.Enum[roleWords]

// The roles.
const (
	App     Role = iota // runs with the others
	Init                // runs to its end before the apps start: its CPUs are used again
	Sidecar             // starts before the apps and runs beside them
)

type roleWords struct{}

func (roleWords) Words() []string { return []string{"app", "init", "sidecar"} }
