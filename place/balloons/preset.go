package balloons

import (
	"fmt"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

// StaticPools are the options of the CRI Resource Manager's policy static-pools: lists of
// CPUs that are made once and for all. The hint "balloon" names a workload's pool; HintLists
// and HintSocket ask for several lists of an exclusive pool, or for those of a socket.
type StaticPools struct {
	Pools []StaticPool `json:"pools,omitempty"`
}

// StaticPool is one of them. Every list is used before one is used twice.
type StaticPool struct {
	Name string `json:"name"`
	// Lists are its CPUs. Nobody else has them.
	Lists []cpuset.Set `json:"lists"`
	// Exclusive gives a list to one workload at a time; else any number share each, and
	// their CPU time is not added up.
	Exclusive bool `json:"exclusive,omitempty"`
	// Namespaces are globs of those whose workloads it takes without a hint.
	Namespaces []string `json:"namespaces,omitempty"`
}

// Policy makes the policy; an error says which options make no sense.
func (o StaticPools) Policy() (place.Policy, error) {
	p := Policy{As: "static-pools"}
	for _, pool := range o.Pools {
		if len(pool.Lists) == 0 || slices.ContainsFunc(pool.Lists, cpuset.Set.IsEmpty) {
			return nil, fmt.Errorf("static pool %q: each of its lists has a CPU, and there is one list at least", pool.Name)
		}
		ty := Type{Name: pool.Name, Namespaces: pool.Namespaces, Lists: pool.Lists, Overcommit: true, SpreadPods: true, PreferNew: true}
		if pool.Exclusive {
			ty.Slots = 1
		}
		p.Types = append(p.Types, ty)
	}
	return p, p.Validate()
}

// PodPools are the options of the CRI Resource Manager's policy podpools: pools of so many
// CPUs, each for so many pods, whatever time these ask for. The hint "balloon" names a
// workload's pool. A pod for which there is no room goes to the pool default.
type PodPools struct {
	Pools []PodPool `json:"pools,omitempty"`
}

// PodPool is one of them.
type PodPool struct {
	Name string `json:"name"`
	// CPUs is how many CPUs each of its Instances has; 0 instances are 1.
	CPUs      int `json:"cpus"`
	Instances int `json:"instances,omitempty"`
	// MaxPods is how many pods (Request.Group; a workload without one counts as one) an
	// instance takes; 0 is no bound.
	MaxPods int `json:"maxPods,omitempty"`
	// Fill decides between instances that have room.
	Fill Fill `json:"fill,omitzero"`
	// Namespaces are globs of those whose pods it takes without a hint.
	Namespaces []string `json:"namespaces,omitempty"`
}

// Policy makes the policy; an error says which options make no sense.
func (o PodPools) Policy() (place.Policy, error) {
	p := Policy{As: "podpools"}
	for _, pool := range o.Pools {
		if pool.CPUs < 1 || pool.Instances < 0 || pool.MaxPods < 0 {
			return nil, fmt.Errorf("pod pool %q: it has 1 CPU at least, and no amount is negative", pool.Name)
		}
		n := max(pool.Instances, 1)
		p.Types = append(p.Types, Type{
			Name: pool.Name, Namespaces: pool.Namespaces, MinCPUs: pool.CPUs, MaxCPUs: pool.CPUs, MinBalloons: n, MaxBalloons: n,
			Slots: pool.MaxPods, Overcommit: true, Fill: pool.Fill, ElseDefault: true,
		})
	}
	return p, p.Validate()
}

// Unenforced reports an option that says what no agent does: CPU classes are chosen
// (Policy.CPUClasses), and nobody sets them.
func (p Policy) Unenforced() error {
	class, of := p.IdleCPUClass, "idleCPUClass"
	for _, ty := range p.Types {
		if ty.CPUClass != "" {
			class, of = ty.CPUClass, "cpuClass of balloon type "+ty.Name
		}
	}
	if class == "" {
		return nil
	}
	return fmt.Errorf("%s is %q, and no agent sets classes of CPUs (frequency, idle states): leave it out; berth replay only shows them", of, class)
}
