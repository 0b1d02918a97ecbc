package topologyaware

import (
	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// task is one request on its way to a grant.
type task struct {
	wish
	p    Policy
	s    *place.State
	r    *place.Request
	why  *place.Why
	conf place.Config
	*tree

	sharable cpuset.Set // the CPUs that a pool shares while nobody owns them
	open     cpuset.Set // those that nobody owns
	ownable  cpuset.Set // those that can be owned
	iso      cpuset.Set // isolated CPUs that can be owned
	held     cpuset.Set // CPUs that the workload owns already and can own on
	pull     []int      // by pool: weights of the matching workloads there
}

// newTask surveys the state; held are the CPUs that the workload owned in it before.
func newTask(p Policy, s *place.State, r *place.Request, w wish, held cpuset.Set) *task {
	k := &task{wish: w, p: p, s: s, r: r, held: held, why: place.NewWhy(r), conf: s.Config()}
	online, isolated := s.Topology().Online(), s.Topology().Machine().Isolated
	k.tree = plant(s.Topology(), &online)
	k.sharable = preferred(k.conf.Allowed, isolated)
	if k.isolated != place.Unasked && isolated.Contains(k.sharable) {
		k.isolated = place.Unasked // all CPUs are
	}
	k.sharable = preferred(k.sharable, k.conf.Reserved)
	k.open = k.s.Sharable().Intersect(k.sharable)
	ownable := k.s.Ownable(r.Class)
	k.ownable = ownable.Intersect(k.sharable)
	if !held.IsEmpty() && k.isolated != place.Require {
		k.isolated = place.Unasked
		if isolated.Contains(held) {
			k.isolated = place.Prefer
		}
	}
	if k.isolated >= place.Prefer {
		k.iso = ownable.Intersect(isolated).Minus(k.sharable)
	}
	k.supply()
	k.attract()
	return k
}

// preferred returns a set without some of it, unless nothing would be left.
func preferred(set, without cpuset.Set) cpuset.Set {
	if !set.Overlaps(without) {
		return set
	}
	if left := set.Minus(without); !left.IsEmpty() {
		return left
	}
	return set
}

// supply counts what the pools have.
func (k *task) supply() {
	for i := range k.pools {
		p := &k.pools[i]
		p.free = p.cpus.Overlap(&k.open)
		if k.own > 0 {
			p.own = p.cpus.Overlap(&k.ownable)
			p.iso = p.cpus.Overlap(&k.iso)
		}
	}
	for b := range k.s.Bounds() {
		if !k.sharable.Overlaps(b.Within) {
			continue // on the reserved CPUs
		}
		p := &k.pools[k.locate(&b.Within)]
		p.grants += b.Grants
		if !b.BE {
			p.milli += b.Milli
		}
	}
	for i := len(k.pools) - 1; i > 0; i-- {
		parent := &k.pools[k.pools[i].parent]
		parent.grants += k.pools[i].grants
		parent.milli += k.pools[i].milli
	}
	k.spare()
}

// need returns the CPUs that a pool keeps for its sharers.
func (p *pool) need() int {
	return max(min(1, p.grants), (p.milli+999)/1000)
}

// spare computes what can be shared and owned, so that every pool above and below
// keeps what it needs.
func (k *task) spare() {
	for i := len(k.pools) - 1; i >= 0; i-- {
		p := &k.pools[i]
		p.slice = p.own
		for c := p.child; c >= 0; c = k.pools[c].next {
			p.slice -= k.pools[c].own - k.pools[c].slice
		}
		p.slice = max(0, min(p.slice, p.free-p.need()))
	}
	for i := range k.pools {
		p := &k.pools[i]
		p.room = 1000*p.free - p.milli
		if p.parent >= 0 {
			p.room = min(p.room, k.pools[p.parent].room)
			p.slice = min(p.slice, k.pools[p.parent].slice)
		}
	}
}

// reserve puts the workload on the reserved CPUs if it belongs there and they
// have time left.
func (k *task) reserve(g *place.Grant) bool {
	if !k.reserved {
		return false
	}
	reserved := k.conf.Reserved.Intersect(k.conf.Allowed)
	milli, _ := k.s.SharedMilli(reserved)
	free := 1000*reserved.Intersect(k.s.Sharable()).Len() - milli
	asked := k.r.Milli
	if k.r.Class == place.BE {
		asked = 0
	}
	astray := k.r.NodesRequired && !k.t.CPUsOf(k.r.Nodes).Contains(reserved)
	if reserved.IsEmpty() || asked > free || astray || !k.pinCPU {
		k.why.Note("the reserved CPUs %s have %dm left", reserved, max(0, free))
		return false
	}
	k.why.Note("runs on the reserved CPUs %s", reserved)
	g.Share = place.Share{Within: reserved, Milli: asked, OneThread: k.hideSecond}
	return true
}

// fill gives the workload its CPUs in the chosen pool.
func (k *task) fill(g *place.Grant, at int) error {
	p := &k.pools[at]
	if k.own > 0 {
		from, err := cpuset.Set{}, error(nil)
		if k.isolated >= place.Prefer && p.iso >= k.own {
			from = k.iso.Intersect(*p.cpus)
		} else if from, err = k.sliceable(at); err != nil {
			return err
		}
		if g.Own, err = k.regrown(from, k.own); err != nil {
			return err
		}
	}
	g.Share.OneThread = k.hideSecond
	if k.own > 0 && k.milli == 0 {
		return nil
	}
	g.Share.Milli = k.milli
	switch {
	case !k.pinCPU:
		g.Share.Within = preferred(k.conf.Allowed, k.t.Machine().Isolated)
	case p.free == 0:
		g.Share.Within = k.conf.Floor
	default:
		g.Share.Within = k.sharable.Intersect(*p.cpus)
	}
	return nil
}

// sliceable returns the CPUs of a pool that can be owned: those that the pools
// below need are held back.
func (k *task) sliceable(at int) (cpuset.Set, error) {
	from := k.ownable.Intersect(*k.pools[at].cpus)
	for i := len(k.pools) - 1; i > at; i-- {
		p := &k.pools[i]
		if p.grants == 0 || !k.below(i, at) {
			continue
		}
		inside := from.Intersect(*p.cpus)
		if hold := p.need() - (p.free - inside.Len()); hold > 0 {
			inside = inside.Minus(k.held)
			kept, err := k.t.Take(&place.Query{From: inside, Count: min(hold, inside.Len()), Stages: []place.Stage{threads()}})
			if err != nil {
				return from, err
			}
			from = from.Minus(kept)
		}
	}
	return from, nil
}

func (k *task) below(i, at int) bool {
	for i > at {
		i = k.pools[i].parent
	}
	return i == at
}

// pick takes n CPUs: whole sockets, whole L3 domains, inside of one L3 domain,
// whole cores, then threads.
func (k *task) pick(from cpuset.Set, n int) (cpuset.Set, error) {
	if kind := k.ofKind(from); kind.Len() >= n {
		from = kind
	}
	stages := []place.Stage{{Name: "whole socket", Kind: machine.Socket}, {Name: "whole L3", Kind: machine.L3}}
	if n > 1 {
		stages = append(stages, place.Stage{
			Name: "L3", Mode: place.Enter, Kind: machine.L3, Criteria: []string{"free"},
			Rank: func(v *place.View, pos int) place.Rank { return place.Rank{v.FreeIn(machine.L3, pos)} },
		})
		stages = append(stages, place.Stage{
			Name: "core", Kind: machine.Core, Again: k.spread(from), Criteria: []string{"of the node not taken", "of the socket not taken"},
			Rank: func(v *place.View, pos int) place.Rank {
				return place.Rank{-takenAround(v, machine.Node, machine.Core, pos), -takenAround(v, machine.Socket, machine.Core, pos)}
			},
		})
	}
	stages = append(stages, threads())
	return k.t.Take(&place.Query{From: from, Count: n, Stages: stages, Why: k.why})
}

// spread reports whether a set has CPUs of several nodes.
func (k *task) spread(set cpuset.Set) bool { return k.t.Count(machine.Node, set) > 1 }

// threads takes single CPUs: near what is taken, of cores that are broken already.
func threads() place.Stage {
	return place.Stage{
		Name: "thread", Kind: place.CPU, Again: true, Criteria: []string{"of the node not taken", "free in its core"},
		Rank: func(v *place.View, pos int) place.Rank {
			return place.Rank{-takenAround(v, machine.Node, place.CPU, pos), v.FreeIn(machine.Core, v.Up(machine.Core, place.CPU, pos))}
		},
	}
}

func takenAround(v *place.View, k, of machine.Kind, pos int) int {
	if up := v.Up(k, of, pos); up >= 0 {
		return v.TakenIn(k, up)
	}
	return 0
}

// ofKind returns the CPUs of the asked kind of core.
func (k *task) ofKind(from cpuset.Set) cpuset.Set {
	var kind cpuset.Set
	if k.r.CoreKind == "" {
		return kind
	}
	for _, c := range k.t.Machine().CPUs {
		if c.Kind == k.r.CoreKind && from.Has(c.ID) {
			kind, _ = kind.With(c.ID)
		}
	}
	return kind
}

// rest adds devices and memory near the pool.
func (k *task) rest(g *place.Grant, at int) (err error) {
	nodes := k.nodes(at)
	if len(k.r.Devices) > 0 {
		if g.Devices, _, err = k.s.FitDevices(nodes, k.r.Devices); err != nil {
			return err
		}
	}
	if len(k.r.Memory) > 0 {
		if nodes, g.Memory, err = k.s.FitMemory(nodes, k.r.Memory); err != nil {
			return err
		}
	}
	if k.pinMem {
		g.Mems = nodes
	}
	return nil
}

// nodes returns the NUMA nodes of a pool, without those that have no memory.
func (k *task) nodes(at int) cpuset.Set {
	nodes := k.t.NodesOf(*k.pools[at].cpus)
	var with []int
	for _, u := range k.t.Units(machine.Node) {
		if u.Bytes > 0 && nodes.Has(u.ID) {
			with = append(with, u.ID)
		}
	}
	if len(with) > 0 {
		return cpuset.MustOf(with...)
	}
	return nodes
}
