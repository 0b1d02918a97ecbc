package place

import (
	"slices"

	"berth.dev/berth/cpuset"
)

// Grant holds the CPUs, memory and devices of one workload. It is immutable once committed, and plain data:
// saved and read back, Restore reinstates it.
type Grant struct {
	ID string `json:"id"`
	// Own are the exclusive CPUs. No other workload may use them, unless Lent.
	Own cpuset.Set `json:"own,omitzero"`
	// Lent shares Own with best-effort work while it is idle.
	Lent bool `json:"lent,omitempty"`
	// Fence are the idle siblings of Own: no workload may use them.
	Fence cpuset.Set `json:"fence,omitzero"`
	// Share is the part in a pool.
	Share Share `json:"share,omitzero"`
	// Mems are the NUMA nodes to take memory from; empty is any.
	Mems    cpuset.Set `json:"mems,omitzero"`
	Memory  []Block    `json:"memory,omitempty"`
	Devices []string   `json:"devices,omitempty"`
	// Request is the request that the grant answers.
	Request Request `json:"request"`
	Why     *Why    `json:"why,omitempty"`
}

// Share is the shared part of a grant: none, a bound on the default pool, a
// named pool, or counted CPUs.
//
// The CPUs that the workload may use are not stored but follow the State: in the
// default pool Within without the exclusive CPUs, in a named pool that pool's CPUs.
type Share struct {
	// Within bounds the default pool, and is the very CPUs if Counted.
	Within cpuset.Set `json:"within,omitzero"`
	// Pool names a Pool of the State; then Within is empty.
	Pool string `json:"pool,omitempty"`
	// Milli is the CPU time taken from the pool, in thousandths of a CPU.
	Milli int `json:"milli,omitempty"`
	// Counted binds to Within by reference count: at most Config.MaxRefs grants
	// hold a CPU, and the CPU is not exclusive.
	Counted bool `json:"counted,omitempty"`
	// Open leaves counted CPUs in the default pool.
	Open bool `json:"open,omitempty"`
	// OneThread hides all but one CPU of each core from the workload.
	OneThread bool `json:"oneThread,omitempty"`
}

// follows reports whether the grant lives in the default pool.
func (s *Share) follows() bool { return !s.Counted && s.Pool == "" && !s.Within.IsEmpty() }

// Block is a quantity of a resource on one NUMA node.
type Block struct {
	Node     int    `json:"node"` // the kernel's number
	Resource string `json:"resource"`
	Bytes    int64  `json:"bytes"`
}

// Pool is a named set of CPUs that only its members may use.
type Pool struct {
	Name string     `json:"name"`
	CPUs cpuset.Set `json:"cpus"`
	// Idle bounds the CPUs that members may also use while they are not exclusive.
	Idle cpuset.Set `json:"idle,omitzero"`
	// Kind is a word for the policy, such as the type of the pool.
	Kind string `json:"kind,omitempty"`
}

// Held returns the CPUs that the workload holds by name: exclusive ones and counted ones.
func (g *Grant) Held() cpuset.Set {
	if g.Share.Counted {
		return g.Own.Union(g.Share.Within)
	}
	return g.Own
}

// Equal reports whether two grants are the same in all but Why.
func (g *Grant) Equal(o *Grant) bool {
	return g.ID == o.ID && g.Own == o.Own && g.Lent == o.Lent && g.Fence == o.Fence && g.Share == o.Share && g.Mems == o.Mems &&
		slices.Equal(g.Memory, o.Memory) && slices.Equal(g.Devices, o.Devices) &&
		g.Request.Milli == o.Request.Milli && g.Request.Class == o.Request.Class && g.Request.Role == o.Request.Role &&
		g.Request.Group == o.Request.Group
}
