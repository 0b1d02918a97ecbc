package place

import "fmt"

// Class is a class of service.
type Class int

// The classes of service, from the one to guard most to the one to squeeze
// first; System stands apart.
const (
	LS     Class = iota // latency-sensitive: runs in a shared pool
	LSE                 // latency-sensitive, exclusive: own cores, shared with nobody
	LSR                 // latency-sensitive, reserved: own CPUs, lent to best effort while idle
	BE                  // best effort: first to be squeezed
	System              // the host's own services: on the reserved CPUs
)

func classNames() []string { return []string{"LS", "LSE", "LSR", "BE", "SYSTEM"} }

// String returns the field's name of the class: "LSE", "LSR", "LS", "BE", "SYSTEM".
func (c Class) String() string { return name(classNames(), int(c), "class") }

// MarshalText writes the class's name.
func (c Class) MarshalText() ([]byte, error) { return marshal(classNames(), int(c), "class") }

// UnmarshalText reads a class's name.
func (c *Class) UnmarshalText(text []byte) error {
	n, err := unmarshal(classNames(), text, "class")
	*c = Class(n)
	return err
}

// Mode says how much of a request is to be the workload's own.
type Mode int

// The modes.
const (
	Auto      Mode = iota // the policy decides by class and amount
	Exclusive             // whole CPUs, owned
	Shared                // CPU time of a pool
	Mixed                 // whole CPUs owned, the rest from a pool
)

func modeNames() []string { return []string{"auto", "exclusive", "shared", "mixed"} }

// String returns "auto", "exclusive", "shared" or "mixed".
func (m Mode) String() string { return name(modeNames(), int(m), "mode") }

// MarshalText writes the mode's name.
func (m Mode) MarshalText() ([]byte, error) { return marshal(modeNames(), int(m), "mode") }

// UnmarshalText reads a mode's name.
func (m *Mode) UnmarshalText(text []byte) error {
	n, err := unmarshal(modeNames(), text, "mode")
	*m = Mode(n)
	return err
}

// Bind says how exclusive CPUs lie on physical cores.
type Bind int

// The CPU bind policies.
const (
	BindAny       Bind = iota // the policy's own preference
	FullPCPUs                 // whole cores
	SpreadByPCPUs             // one CPU per core first
)

func bindNames() []string { return []string{"", "FullPCPUs", "SpreadByPCPUs"} }

// String returns "FullPCPUs", "SpreadByPCPUs" or "".
func (b Bind) String() string { return name(bindNames(), int(b), "bind policy") }

// MarshalText writes the bind policy's name.
func (b Bind) MarshalText() ([]byte, error) { return marshal(bindNames(), int(b), "bind policy") }

// UnmarshalText reads a bind policy's name.
func (b *Bind) UnmarshalText(text []byte) error {
	n, err := unmarshal(bindNames(), text, "bind policy")
	*b = Bind(n)
	return err
}

// Exclusivity says how far a workload keeps others away from its own CPUs.
type Exclusivity int

// The levels of exclusivity.
const (
	CPULevel      Exclusivity = iota // only the CPUs themselves
	PCPULevel                        // the physical cores
	NUMANodeLevel                    // the NUMA nodes
)

func exclusivityNames() []string { return []string{"", "PCPULevel", "NUMANodeLevel"} }

// String returns "PCPULevel", "NUMANodeLevel" or "".
func (e Exclusivity) String() string { return name(exclusivityNames(), int(e), "exclusivity") }

// MarshalText writes the level's name.
func (e Exclusivity) MarshalText() ([]byte, error) {
	return marshal(exclusivityNames(), int(e), "exclusivity")
}

// UnmarshalText reads a level's name.
func (e *Exclusivity) UnmarshalText(text []byte) error {
	n, err := unmarshal(exclusivityNames(), text, "exclusivity")
	*e = Exclusivity(n)
	return err
}

// Strategy says which NUMA nodes to prefer among those that can hold a request.
type Strategy int

// The NUMA strategies.
const (
	StrategyAny      Strategy = iota // the policy's own preference
	MostAllocated                    // the fullest node
	LeastAllocated                   // the emptiest node
	DistributeEvenly                 // the same number of CPUs on every node
)

func strategyNames() []string {
	return []string{"", "MostAllocated", "LeastAllocated", "DistributeEvenly"}
}

// String returns "MostAllocated", "LeastAllocated", "DistributeEvenly" or "".
func (s Strategy) String() string { return name(strategyNames(), int(s), "NUMA strategy") }

// MarshalText writes the strategy's name.
func (s Strategy) MarshalText() ([]byte, error) {
	return marshal(strategyNames(), int(s), "NUMA strategy")
}

// UnmarshalText reads a strategy's name.
func (s *Strategy) UnmarshalText(text []byte) error {
	n, err := unmarshal(strategyNames(), text, "NUMA strategy")
	*s = Strategy(n)
	return err
}

// Role is the part that a workload plays in its group.
type Role int

// The roles.
const (
	App     Role = iota // runs with the others
	Init                // runs to its end before the apps start: its CPUs are used again
	Sidecar             // starts before the apps and runs beside them
)

func roleNames() []string { return []string{"app", "init", "sidecar"} }

// String returns "app", "init" or "sidecar".
func (r Role) String() string { return name(roleNames(), int(r), "role") }

// MarshalText writes the role's name.
func (r Role) MarshalText() ([]byte, error) { return marshal(roleNames(), int(r), "role") }

// UnmarshalText reads a role's name.
func (r *Role) UnmarshalText(text []byte) error {
	n, err := unmarshal(roleNames(), text, "role")
	*r = Role(n)
	return err
}

func name(names []string, i int, what string) string {
	if i < 0 || i >= len(names) {
		return fmt.Sprintf("%s(%d)", what, i)
	}
	return names[i]
}

func marshal(names []string, i int, what string) ([]byte, error) {
	if i < 0 || i >= len(names) {
		return nil, fmt.Errorf("%s %d: no such %s", what, i, what)
	}
	return []byte(names[i]), nil
}

func unmarshal(names []string, text []byte, what string) (int, error) {
	for i, n := range names {
		if n == string(text) {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%s %q: no such %s", what, text, what)
}
