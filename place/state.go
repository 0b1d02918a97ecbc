package place

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
)

// Config says which CPUs, memory and devices of a machine workloads may get.
type Config struct {
	// Allowed are the CPUs that may be used at all; empty is all online ones.
	Allowed cpuset.Set `json:"allowed,omitzero"`
	// Reserved are kept for the host's own services: only Class System may own
	// them. They may be in pools.
	Reserved cpuset.Set `json:"reserved,omitzero"`
	// Floor are CPUs that never become exclusive, so that a workload without CPU
	// request always has one. Empty is Reserved or, where that is empty too, the lowest
	// allowed CPU that is not isolated.
	Floor cpuset.Set `json:"floor,omitzero"`
	// NoFloor keeps no floor. Then all CPUs may become exclusive, as long as no
	// workload in the default pool needs them.
	NoFloor bool `json:"noFloor,omitempty"`
	// Memory is the memory of the NUMA nodes; nil stands for the machine's own figures
	// of the resource Memory. If no node has a figure for Memory, it is without limit;
	// any other resource without a figure is absent.
	Memory  []Block  `json:"memory,omitempty"`
	Devices []Device `json:"devices,omitempty"`
	// MaxRefs is how many grants may hold a counted CPU; 0 is 1.
	MaxRefs int `json:"maxRefs,omitempty"`
}

// Device is a named thing near some NUMA nodes.
type Device struct {
	Name string `json:"name"`
	Kind string `json:"kind,omitempty"`
	// Nodes are the kernel's numbers of the near nodes; empty is no locality.
	Nodes cpuset.Set `json:"nodes,omitzero"`
}

// State says which CPUs, memory and devices are held and which are free. It is immutable: Commit returns the
// next one. All methods are safe for concurrent use.
type State struct {
	t       *Topology
	conf    *Config
	devices []Device // by name
	gen     uint64

	grants    table
	groups    table        // those with a group
	owners    table        // those that hold CPUs (Grant.Held)
	pools     []*poolState // by name
	bounds    []Bound      // no bound is empty
	*holdings              // shared by states between which no CPU changed hands
	resources []string     // by name
	total     []int64      // by node position × resource
	free      []int64      // likewise; never below 0
	using     []string     // by device: the holder's id
}

// holdings says which CPUs are owned or counted.
type holdings struct {
	refs   []uint16   // by CPU number: grants that count it
	owned  cpuset.Set // owned or fenced by grants, or in a named pool
	closed cpuset.Set // counted, and out of the default pool
	lent   cpuset.Set // exclusive, and shared with best effort
}

// Bound sums the grants that live in the same part of the default pool.
type Bound struct {
	*Region
	Load
}

// Region is a part of the default pool.
type Region struct {
	Within cpuset.Set
	Node   int  // position of the NUMA node that holds all of Within, -1 if no node does
	BE     bool // of class BE, which may also run on lent CPUs
}

// poolState is a named pool and the load of its members.
type poolState struct {
	Pool
	Load
}

// New returns the state of an empty machine.
func New(t *Topology, c Config) (*State, error) {
	s := &State{t: t, conf: &c, groups: table{grouped: true}}
	if c.Allowed.IsEmpty() {
		c.Allowed = t.online
	}
	c.Allowed = c.Allowed.Intersect(t.online)
	if c.Allowed.IsEmpty() {
		return nil, &InvalidError{Reason: "none of the allowed CPUs is online"}
	}
	if !t.online.Contains(c.Reserved) || !t.online.Contains(c.Floor) {
		return nil, &InvalidError{Reason: fmt.Sprintf("reserved or floor CPUs %s are not online", c.Reserved.Union(c.Floor).Minus(t.online))}
	}
	if err := s.floor(&c); err != nil {
		return nil, err
	}
	c.MaxRefs = max(c.MaxRefs, 1)
	last, _ := t.online.Last()
	s.holdings = &holdings{refs: make([]uint16, last+1)}
	if err := s.stock(&c); err != nil {
		return nil, err
	}
	return s, s.equip(&c)
}

func (s *State) floor(c *Config) error {
	switch {
	case c.NoFloor && !c.Floor.IsEmpty():
		return &InvalidError{Reason: "both a floor and no floor"}
	case c.NoFloor || !c.Floor.IsEmpty():
	case !c.Reserved.IsEmpty():
		c.Floor = c.Reserved
	default:
		first, _ := c.Allowed.Without(s.t.m.Isolated).First()
		c.Floor = cpuset.MustOf(first)
	}
	return nil
}

func (s *State) stock(c *Config) error {
	if c.Memory == nil {
		for _, u := range s.t.units[machine.Node] {
			if u.Bytes > 0 {
				c.Memory = append(c.Memory, Block{u.ID, Memory, u.Bytes})
			}
		}
	}
	for _, b := range c.Memory {
		if !slices.Contains(s.resources, b.Resource) {
			s.resources = append(s.resources, b.Resource)
		}
	}
	slices.Sort(s.resources)
	s.total = make([]int64, len(s.t.units[machine.Node])*len(s.resources))
	for _, b := range c.Memory {
		i, ok := s.cell(b.Node, b.Resource)
		if !ok || b.Bytes < 0 {
			return &InvalidError{Reason: fmt.Sprintf("%d bytes of %s on node %d", b.Bytes, b.Resource, b.Node)}
		}
		s.total[i] += b.Bytes
	}
	s.free = s.total
	return nil
}

func (s *State) equip(c *Config) error {
	s.devices = slices.Clone(c.Devices)
	slices.SortFunc(s.devices, func(a, b Device) int { return strings.Compare(a.Name, b.Name) })
	for i, d := range s.devices {
		if i > 0 && d.Name == s.devices[i-1].Name {
			return &InvalidError{Reason: fmt.Sprintf("two devices named %q", d.Name)}
		}
		for node := range d.Nodes.All() {
			if _, ok := s.t.Node(node); !ok {
				return &InvalidError{Reason: fmt.Sprintf("device %q: no node %d", d.Name, node)}
			}
		}
	}
	s.using = make([]string, len(s.devices))
	return nil
}

// cell returns the place of a node's resource in total and free.
func (s *State) cell(node int, resource string) (i int, ok bool) {
	pos, ok := s.t.Node(node)
	if !ok {
		return 0, false
	}
	r, ok := slices.BinarySearch(s.resources, resource)
	return pos*len(s.resources) + r, ok
}

// Topology returns the machine.
func (s *State) Topology() *Topology { return s.t }

// Config returns the state's configuration, defaults filled in. The caller must not
// change it.
func (s *State) Config() *Config { return s.conf }

// Len returns the number of grants.
func (s *State) Len() int { return s.grants.n }

// Grants yields the grants by rising id. Do not change them.
func (s *State) Grants() iter.Seq[*Grant] { return s.grants.all() }

// Grant returns the workload's grant.
func (s *State) Grant(id string) (*Grant, bool) {
	g := s.grants.get(id)
	return g, g != nil
}

// Members yields the grants of a group, which is not "", by rising id.
func (s *State) Members(group string) iter.Seq[*Grant] { return s.groups.group(group) }

// Pool returns a named pool. Do not change it.
func (s *State) Pool(name string) (*Pool, bool) {
	i, ok := s.pool(name)
	if !ok {
		return nil, false
	}
	return &s.pools[i].Pool, true
}

func (s *State) pool(name string) (int, bool) {
	return slices.BinarySearchFunc(s.pools, name, func(p *poolState, name string) int { return strings.Compare(p.Name, name) })
}

// Owned returns the CPUs that grants own or fence, and those of named pools.
func (s *State) Owned() cpuset.Set { return s.owned }

// Lent returns the exclusive CPUs that best-effort work may use.
func (s *State) Lent() cpuset.Set { return s.lent }

// Counted returns the CPUs bound by reference count that left the default pool.
func (s *State) Counted() cpuset.Set { return s.closed }

// Refs returns how many grants hold a CPU by reference count.
func (s *State) Refs(cpu int) int {
	if cpu < 0 || cpu >= len(s.refs) {
		return 0
	}
	return int(s.refs[cpu])
}

// Sharable returns the CPUs of the default pool: allowed, and neither owned nor
// counted out of it. Isolated and reserved ones are included.
func (s *State) Sharable() cpuset.Set {
	return s.conf.Allowed.Minus(s.owned).Minus(s.closed)
}

// Ownable returns the CPUs that could become exclusive as far as the state goes:
// allowed, not held or counted by any grant, not of the floor, and not reserved unless
// the class is System. It does not check whether a workload would lose its last shared
// CPU.
func (s *State) Ownable(c Class) cpuset.Set {
	free := s.conf.Allowed.Minus(s.owned).Minus(s.conf.Floor).Minus(s.closed)
	if !c.Traits().Reserved {
		free = free.Minus(s.conf.Reserved)
	}
	return free
}

// CPUs returns the CPUs that the workload may run on now; ok is false if it holds
// nothing.
func (s *State) CPUs(id string) (cpus cpuset.Set, ok bool) {
	g := s.grants.get(id)
	if g == nil {
		return cpuset.Set{}, false
	}
	return s.Effective(g), true
}

// Effective returns the CPUs that a workload with this grant may run on in this
// state: its exclusive CPUs and the rest of its pool.
func (s *State) Effective(g *Grant) cpuset.Set {
	cpus := g.Own
	if sh := s.shared(&g.Share, g.Request.Class.Traits().Borrow); !sh.IsEmpty() {
		cpus = cpus.Union(sh)
	}
	if g.Share.OneThread {
		cpus = s.t.FirstThreads(cpus)
	}
	return cpus
}

func (s *State) shared(sh *Share, be bool) cpuset.Set {
	switch {
	case sh.Counted:
		return sh.Within
	case sh.Pool != "":
		i, ok := s.pool(sh.Pool)
		if !ok {
			return cpuset.Set{}
		}
		p := s.pools[i]
		return p.Pool.CPUs.Union(p.Idle.Intersect(s.Sharable()))
	case sh.Within.IsEmpty():
		return sh.Within
	}
	if be {
		return sh.Within.Minus(s.owned.Minus(s.lent))
	}
	return sh.Within.Minus(s.owned).Minus(s.closed)
}

// Bounds yields the parts of the default pool that grants live in. Do not
// change them.
func (s *State) Bounds() iter.Seq[Bound] { return slices.Values(s.bounds) }

// SharedMilli returns the CPU time that grants of the default pool take inside
// a set of CPUs, and the number of those grants: those whose bound lies wholly in
// it. Best-effort grants count for the number only.
func (s *State) SharedMilli(set cpuset.Set) (milli, grants int) {
	for _, b := range s.bounds {
		if set.Contains(b.Within) {
			grants += b.Grants
			if !b.BE {
				milli += b.Milli
			}
		}
	}
	return milli, grants
}

// PoolMilli returns the CPU time that the members of a named pool take, and how
// many they are.
func (s *State) PoolMilli(name string) (milli, grants int) {
	i, ok := s.pool(name)
	if !ok {
		return 0, 0
	}
	return s.pools[i].Milli, s.pools[i].Grants
}

// OwnableBy returns Ownable for the request's class and the CPUs that it may own in
// turn with the init workloads of its group.
func (s *State) OwnableBy(r *Request) cpuset.Set {
	free := s.Ownable(r.Class)
	if r.Group == "" {
		return free
	}
	reused := s.inTurn(r.Group)
	if !r.Class.Traits().Reserved {
		reused = reused.Minus(s.conf.Reserved)
	}
	return free.Union(reused)
}

// Reusable returns the CPUs that only the init workloads of a group own. It leaves
// out reserved CPUs, which not every class may own (OwnableBy considers the class).
func (s *State) Reusable(group string) cpuset.Set {
	if group == "" {
		return cpuset.Set{}
	}
	return s.inTurn(group).Minus(s.conf.Reserved)
}

func (s *State) inTurn(group string) cpuset.Set {
	var init, others cpuset.Set
	for g := range s.Members(group) {
		if g.Request.Role == Init {
			init = init.Union(g.Own)
		} else {
			others = others.Union(g.Own).Union(g.Fence)
		}
	}
	return init.Minus(others)
}
