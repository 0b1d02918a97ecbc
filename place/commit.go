package place

import (
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
)

// Offer is a change that a policy proposes. Making one changes nothing.
type Offer struct {
	// Grant answers the request, and replaces the one of the same id. Nil in an offer
	// that only releases.
	Grant *Grant
	// Drop are the ids of the workloads that are released.
	Drop []string
	// Pools are named pools to set; one without CPUs ceases to be.
	Pools []Pool
	// Why explains a refusal: the decisions up to it, in the offer that comes with
	// the error, if Request.Explain. A grant is explained by Grant.Why.
	Why *Why

	base *State
}

// Offer returns an empty offer on s, to be filled by a policy.
func (s *State) Offer() Offer { return Offer{base: s} }

// Commit returns the state after the offer. It refuses an offer made on any
// other state (*StaleError), and one that breaks a rule of the state; then
// nothing has changed.
func (s *State) Commit(o Offer) (*State, error) {
	if o.base != s {
		e := &StaleError{Current: s.gen}
		if o.base != nil {
			e.Offered = o.base.gen
		}
		return nil, e
	}
	next := *s
	c := change{State: &next}
	if err := c.apply(&o); err != nil {
		return nil, err
	}
	return &next, nil
}

// Release returns the state without the workload. It follows no policy's rules.
// *NotHeldError if the workload holds nothing.
func (s *State) Release(id string) (*State, error) {
	o := s.Offer()
	o.Drop = []string{id}
	return s.Commit(o)
}

// change builds the next state. It copies each part of the state before it writes to it.
type change struct {
	*State

	ownHoldings bool // holdings is a copy already
	narrowed    bool // a workload may have lost a shared CPU
}

func (c *change) apply(o *Offer) error {
	c.gen++
	for _, id := range o.Drop {
		g := c.grants.get(id)
		if g == nil {
			return &NotHeldError{id}
		}
		c.remove(g)
	}
	if g := o.Grant; g != nil {
		if g.ID == "" || g.ID != g.Request.ID {
			return &InvalidError{g.ID, "grant and request differ in id"}
		}
		if g.Share.Milli < 0 || g.Share.Milli > maxMilli {
			return &InvalidError{g.ID, "a share of no possible CPU time"}
		}
		if old := c.grants.get(g.ID); old != nil {
			c.remove(old)
		}
	}
	if err := c.setPools(o.Pools); err != nil {
		return err
	}
	if o.Grant != nil {
		if err := c.add(o.Grant); err != nil {
			return err
		}
	}
	return c.nobodyEmpty(o)
}

// remove removes a grant from the state.
func (c *change) remove(g *Grant) {
	c.grants = c.grants.without(g)
	if g.Request.Group != "" {
		c.groups = c.groups.without(g)
	}
	if held := g.Held(); !held.IsEmpty() {
		c.owners = c.owners.without(g)
	}
	if held := g.Own.Union(g.Fence); !held.IsEmpty() {
		turns, _ := c.inGroup(g) // no other grant can hold them too
		c.unhold(held.Minus(turns))
		c.markLent(g, held.Intersect(turns))
	}
	switch {
	case g.Share.Counted:
		c.count(g, -1)
	case g.Share.Pool != "":
		c.join(g, -1)
	case g.Share.follows():
		c.follow(g, -1)
	}
	if len(g.Memory) > 0 {
		c.free = slices.Clone(c.free)
		for _, b := range g.Memory {
			if i, ok := c.cell(b.Node, b.Resource); ok {
				c.free[i] += b.Bytes
			}
		}
	}
	for _, name := range g.Devices {
		c.yield(g, name)
	}
}

func (c *change) unhold(cpus cpuset.Set) {
	c.writeHoldings()
	c.owned = c.owned.Minus(cpus)
	c.lent = c.lent.Minus(cpus)
}

func (c *change) hold(cpus cpuset.Set) {
	if cpus.IsEmpty() {
		return
	}
	c.writeHoldings()
	c.owned = c.owned.Union(cpus)
	c.narrowed = true
}

// inGroup returns the exclusive CPUs and idle siblings of other grants of g's group:
// turns of the grants that take turns with g (init workloads and the rest), others of
// the grants that do not.
func (c *change) inGroup(g *Grant) (turns, others cpuset.Set) {
	if g.Request.Group == "" {
		return turns, others
	}
	for o := range c.Members(g.Request.Group) {
		if takeTurns(&g.Request, &o.Request) {
			turns = turns.Union(o.Own).Union(o.Fence)
		} else {
			others = others.Union(o.Own).Union(o.Fence)
		}
	}
	return turns, others
}

// add adds a grant to the state.
func (c *change) add(g *Grant) error {
	if err := c.mayOwn(g); err != nil {
		return err
	}
	c.hold(g.Own)
	c.hold(g.Fence)
	if err := c.share(g); err != nil {
		return err
	}
	if err := c.useMemory(g); err != nil {
		return err
	}
	if err := c.useDevices(g); err != nil {
		return err
	}
	c.grants = c.grants.with(g)
	if g.Request.Group != "" {
		c.groups = c.groups.with(g)
	}
	if held := g.Held(); !held.IsEmpty() {
		c.owners = c.owners.with(g)
	}
	c.markLent(g, g.Own.Union(g.Fence))
	return nil
}

// markLent shares with best effort those of the CPUs, held by g or others of its group,
// that every owner shares and no grant keeps idle.
func (c *change) markLent(g *Grant, cpus cpuset.Set) {
	if cpus.IsEmpty() {
		return
	}
	c.writeHoldings()
	if g.Request.Group == "" {
		if g.Lent {
			c.lent = c.lent.Union(g.Own.Intersect(cpus))
		}
		return
	}
	c.lent = c.lent.Union(cpus)
	for o := range c.Members(g.Request.Group) {
		c.lent = c.lent.Minus(o.Fence.Intersect(cpus))
		if !o.Lent {
			c.lent = c.lent.Minus(o.Own.Intersect(cpus))
		}
	}
}

// join adds g to or takes it from the members of its named pool.
func (c *change) join(g *Grant, by int) {
	at, ok := c.pool(g.Share.Pool)
	if !ok {
		return
	}
	c.pools = slices.Clone(c.pools)
	b := *c.pools[at]
	b.Grants += by
	b.Milli += by * g.Share.Milli
	c.pools[at] = &b
}

func (c *change) mayOwn(g *Grant) error {
	if g.Own.IsEmpty() && g.Fence.IsEmpty() {
		return nil
	}
	all := g.Own.Union(g.Fence)
	conflict := func(cpus cpuset.Set, reason string) error {
		return &ConflictError{ID: g.ID, CPUs: cpus, Reason: reason}
	}
	switch {
	case g.Own.Overlaps(g.Fence):
		return conflict(g.Own.Intersect(g.Fence), "both owned and fenced")
	case !c.conf.Allowed.Contains(g.Own) || !c.t.online.Contains(g.Fence):
		return conflict(all.Minus(c.conf.Allowed), "not allowed or not online")
	case all.Overlaps(c.conf.Floor):
		return &FloorError{CPUs: c.conf.Floor}
	case !g.Request.Class.Traits().Reserved && g.Own.Overlaps(c.conf.Reserved):
		return conflict(g.Own.Intersect(c.conf.Reserved), "reserved")
	}
	for cpu := range all.All() {
		if c.refs[cpu] > 0 {
			return conflict(cpuset.MustOf(cpu), "bound by others")
		}
	}
	if !all.Overlaps(c.owned) {
		return nil
	}
	turns, others := c.inGroup(g)
	if taken := all.Intersect(c.owned.Minus(turns).Union(others)); !taken.IsEmpty() {
		return conflict(taken, "held by others")
	}
	return nil
}

func (c *change) share(g *Grant) error {
	sh := &g.Share
	switch {
	case sh.Counted:
		if bad := sh.Within.Minus(c.conf.Allowed.Minus(c.owned)); !bad.IsEmpty() || sh.Within.IsEmpty() {
			return &ConflictError{g.ID, bad, "to be counted, but not free"}
		}
		for cpu := range sh.Within.All() {
			if int(c.refs[cpu]) >= c.conf.MaxRefs {
				return &ConflictError{g.ID, cpuset.MustOf(cpu), "bound by as many as may be"}
			}
		}
		c.count(g, 1)
	case sh.Pool != "":
		if _, ok := c.pool(sh.Pool); !ok {
			return &RejectedError{ID: g.ID, Reason: "no pool " + sh.Pool}
		}
		c.join(g, 1)
	case sh.follows():
		if bad := sh.Within.Minus(c.conf.Allowed); !bad.IsEmpty() {
			return &ConflictError{g.ID, bad, "not allowed"}
		}
		c.follow(g, 1)
	}
	return nil
}

// count binds or unbinds counted CPUs.
func (c *change) count(g *Grant, by int) {
	c.writeHoldings()
	c.refs = slices.Clone(c.refs)
	for cpu := range g.Share.Within.All() {
		c.refs[cpu] = uint16(int(c.refs[cpu]) + by)
		one := c.t.units[CPU][c.t.at[CPU][cpu]].CPUs
		if by > 0 && !g.Share.Open {
			c.closed = c.closed.Union(one)
			c.narrowed = true
		} else if c.refs[cpu] == 0 {
			c.closed = c.closed.Minus(one)
		}
	}
}

// follow adds g to or takes it from those that live in its bound.
func (c *change) follow(g *Grant, by int) {
	c.bounds = slices.Clone(c.bounds)
	be := g.Request.Class.Traits().Borrow
	i := slices.IndexFunc(c.bounds, func(b Bound) bool { return b.BE == be && b.Within == g.Share.Within })
	if i < 0 {
		i = len(c.bounds)
		c.bounds = append(c.bounds, Bound{Region: &Region{Within: g.Share.Within, Node: c.t.NodeAround(g.Share.Within), BE: be}})
	}
	b := &c.bounds[i]
	b.Grants += by
	b.Milli += by * g.Share.Milli
	if b.Grants == 0 {
		c.bounds = slices.Delete(c.bounds, i, i+1)
	}
}

func (c *change) useMemory(g *Grant) error {
	if len(g.Memory) == 0 {
		return nil
	}
	c.free = slices.Clone(c.free)
	for _, b := range g.Memory {
		i, ok := c.cell(b.Node, b.Resource)
		if !ok {
			return &MemoryError{Resource: b.Resource, Asked: b.Bytes}
		}
		if b.Bytes < 0 || b.Bytes > c.free[i] {
			return &MemoryError{Resource: b.Resource, Asked: b.Bytes, Available: c.free[i]}
		}
		c.free[i] -= b.Bytes
	}
	return nil
}

func (c *change) useDevices(g *Grant) error {
	for _, name := range g.Devices {
		c.using = slices.Clone(c.using)
		i, ok := c.device(name)
		if !ok {
			return &DeviceError{name, "no such device"}
		}
		holder := c.grants.get(c.using[i])
		if holder != nil && !takeTurns(&g.Request, &holder.Request) {
			return &DeviceError{name, "held by " + holder.ID}
		}
		if holder == nil || standsFor(g, holder) {
			c.using[i] = g.ID
		}
	}
	return nil
}

// standsFor reports whether g rather than o is named as the user of CPUs with which
// both take turns: the grant that is not Init, else the lowest id. So the answer does
// not depend on the order of placement.
func standsFor(g, o *Grant) bool {
	if g.Request.Role == Init && o.Request.Role == Init {
		return g.ID < o.ID
	}
	return g.Request.Role != Init
}

// takeTurns reports whether two workloads may hold the same thing because one
// of them has ended before the other starts.
func takeTurns(a, b *Request) bool {
	return a.Group != "" && a.Group == b.Group && (a.Role == Init || b.Role == Init)
}

// yield hands a device on to another workload of the group that holds it too.
func (c *change) yield(g *Grant, name string) {
	c.using = slices.Clone(c.using)
	i, ok := c.device(name)
	if !ok || c.using[i] != g.ID {
		return
	}
	c.using[i] = ""
	if g.Request.Group == "" {
		return
	}
	var user *Grant
	for o := range c.Members(g.Request.Group) {
		if slices.Contains(o.Devices, name) && (user == nil || standsFor(o, user)) {
			user, c.using[i] = o, o.ID
		}
	}
}

func (c *change) writeHoldings() {
	if !c.ownHoldings {
		h := *c.holdings
		c.holdings, c.ownHoldings = &h, true
	}
}

// nobodyEmpty refuses a change that leaves a workload without a CPU.
func (c *change) nobodyEmpty(o *Offer) error {
	if o.Grant != nil && c.Effective(o.Grant).IsEmpty() {
		return &CPUsError{Asked: max(1, o.Grant.Request.Whole())}
	}
	if c.narrowed {
		shut, shutBE := c.owned.Union(c.closed), c.owned.Minus(c.lent)
		for _, b := range c.bounds {
			if b.BE && shutBE.Contains(b.Within) || !b.BE && shut.Contains(b.Within) {
				return &FloorError{CPUs: b.Within}
			}
		}
	}
	return c.checkPoolMembers(o)
}

// checkPoolMembers refuses to end a pool that has members.
func (c *change) checkPoolMembers(o *Offer) error {
	if !slices.ContainsFunc(o.Pools, func(p Pool) bool { return p.CPUs.IsEmpty() }) {
		return nil
	}
	for g := range c.grants.all() {
		if g.Share.Pool != "" {
			if _, ok := c.pool(g.Share.Pool); !ok {
				return &RejectedError{ID: g.ID, Reason: "its pool " + g.Share.Pool + " would cease to be"}
			}
		}
	}
	return nil
}

// device returns the position of a device.
func (s *State) device(name string) (int, bool) {
	return slices.BinarySearchFunc(s.devices, name, func(d Device, name string) int { return strings.Compare(d.Name, name) })
}
