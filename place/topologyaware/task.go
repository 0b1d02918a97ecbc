package topologyaware

import (
	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// task is one request on its way to a grant.
type task struct {
	demand
	p    Policy
	s    *place.State
	r    *place.Request
	why  *place.Why
	conf *place.Config
	*tree
	has []stock // by pool

	sharable cpuset.Set // the CPUs that a pool shares while they are not exclusive
	open     cpuset.Set // those that are not exclusive
	ownable  cpuset.Set // those that can be owned
	iso      cpuset.Set // isolated CPUs that can be owned
	held     cpuset.Set // CPUs that the workload is to have: those that it owns, or uses again
	again    cpuset.Set // the sharable part of held that others of the group own
	pull     []int      // by pool: weights of the matching workloads there
}

// stock are the CPUs and the CPU time of a pool.
type stock struct {
	free       int // sharable CPUs that are not exclusive
	own        int // CPUs that can become exclusive, by the state
	iso        int // isolated CPUs that can be owned
	again      int // CPUs to use again
	place.Load     // of the sharers below
	room       int // milli-CPU that can be shared, and not less above
	slice      int // CPUs that can be owned and leave enough to sharers
}

// newTask surveys the state; held are the CPUs that the workload is to have.
func newTask(p Policy, s *place.State, r *place.Request, w demand, held cpuset.Set) *task {
	k := &task{demand: w, p: p, s: s, r: r, held: held, why: place.NewWhy(r), conf: s.Config()}
	isolated := s.Topology().Machine().Isolated
	k.tree = place.Derived(s.Topology(), plant)
	k.sharable = k.conf.Allowed.Without(isolated)
	if k.isolated != place.Unasked && isolated.Contains(k.sharable) {
		k.isolated = place.Unasked // all CPUs are
	}
	k.sharable = k.sharable.Without(k.conf.Reserved)
	k.open = k.s.Sharable().Intersect(k.sharable)
	ownable := k.s.Ownable(r.Class)
	if !held.IsEmpty() {
		k.again = held.Minus(ownable).Intersect(k.sharable)
		ownable = ownable.Union(held)
	}
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

// supply computes the stock of the pools.
func (k *task) supply() {
	k.has = make([]stock, len(k.pools))
	again := !k.again.IsEmpty()
	for i := range k.pools {
		p, has := &k.pools[i], &k.has[i]
		has.free = p.cpus.Overlap(&k.open)
		if k.own > 0 {
			has.own = p.cpus.Overlap(&k.ownable)
			has.iso = p.cpus.Overlap(&k.iso)
		}
		if again {
			has.again = p.cpus.Overlap(&k.again)
		}
	}
	for b := range k.s.Bounds() {
		if !k.sharable.Overlaps(b.Within) {
			continue // on the reserved CPUs
		}
		has := &k.has[k.locate(&b.Within)]
		has.Grants += b.Grants
		if !b.BE {
			has.Milli += b.Milli
		}
	}
	for i := len(k.has) - 1; i > 0; i-- {
		parent := &k.has[k.pools[i].parent]
		parent.Grants += k.has[i].Grants
		parent.Milli += k.has[i].Milli
	}
	k.spare()
}

// spare computes how many CPUs can be shared and owned while every pool above and below
// keeps the CPUs that it needs.
func (k *task) spare() {
	for i := len(k.pools) - 1; i >= 0; i-- {
		has := &k.has[i]
		has.slice = has.own
		for _, c := range k.pools[i].children {
			has.slice -= k.has[c].own - k.has[c].slice
		}
		has.slice = max(0, min(has.slice, has.free+has.again-has.CPUs()))
	}
	for i := range k.has {
		has := &k.has[i]
		has.room = 1000*has.free - has.Milli
		if parent := k.pools[i].parent; parent >= 0 {
			has.room = min(has.room, k.has[parent].room)
			has.slice = min(has.slice, k.has[parent].slice)
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
	if k.r.Class.Traits().Uncounted {
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

// home gives the workload its CPUs: in the best pool or, where it has CPUs, in the
// nearest one around them that can hold it.
func (k *task) home(g *place.Grant, cpus cpuset.Set) (at int, err error) {
	switch {
	case k.reserve(g):
		return 0, nil
	case cpus.IsEmpty():
		at, err = k.choose()
	default:
		at, err = k.around(&cpus)
	}
	if err != nil {
		return 0, err
	}
	return at, k.fill(g, at)
}

// fill gives the workload its CPUs in the chosen pool.
func (k *task) fill(g *place.Grant, at int) error {
	p, has := &k.pools[at], &k.has[at]
	if k.own > 0 {
		from, err := cpuset.Set{}, error(nil)
		if k.isolated >= place.Prefer && has.iso >= k.own {
			from = k.iso.Intersect(p.cpus)
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
		g.Share.Within = k.conf.Allowed.Without(k.t.Machine().Isolated)
	case has.free == 0:
		g.Share.Within = k.conf.Floor
	default:
		g.Share.Within = k.sharable.Intersect(p.cpus)
	}
	return nil
}

// sliceable returns the CPUs of a pool that can be owned: those that the pools
// below need are held back.
func (k *task) sliceable(at int) (cpuset.Set, error) {
	from := k.ownable.Intersect(k.pools[at].cpus)
	for i := len(k.pools) - 1; i > at; i-- {
		has := &k.has[i]
		if has.Grants == 0 || !k.below(i, at) {
			continue
		}
		inside := from.Intersect(k.pools[i].cpus)
		if hold := has.CPUs() - (has.free + has.again - inside.Len()); hold > 0 {
			inside = inside.Minus(k.held)
			kept, err := k.t.View(inside, cpuset.Set{}).Take(min(hold, inside.Len()), []place.Stage{threads()}, nil)
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
	if k.r.CoreKind != "" {
		if kind := from.Intersect(k.t.OfKind(k.r.CoreKind)); kind.Len() >= n {
			from = kind
		}
	}
	stages := []place.Stage{{Name: "whole socket", Kind: machine.Socket}, {Name: "whole L3", Kind: machine.L3}}
	if n > 1 {
		stages = append(stages, place.Stage{
			Name: "L3", Mode: place.Enter, Kind: machine.L3, Criteria: []string{"free"},
			Rank: func(v *place.View, pos int) place.Rank { return place.Rank{v.FreeIn(machine.L3, pos)} },
		})
		stages = append(stages, place.Stage{
			Name: "core", Kind: machine.Core, Again: k.t.Count(machine.Node, from) > 1, Criteria: []string{"of the node not taken", "of the socket not taken"},
			Rank: func(v *place.View, pos int) place.Rank {
				return place.Rank{-takenAround(v, machine.Node, machine.Core, pos), -takenAround(v, machine.Socket, machine.Core, pos)}
			},
		})
	}
	stages = append(stages, threads())
	return k.t.View(from, cpuset.Set{}).Take(n, stages, k.why)
}

// threads takes single CPUs: near the taken ones, of cores that are partly used already.
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

// rest adds devices and memory near the pool.
func (k *task) rest(g *place.Grant, at int) (err error) {
	err = k.s.Refit(g, nil, k.pools[at].mems, k.r.Memory)
	if !k.pinMem {
		g.Mems = cpuset.Set{}
	}
	return err
}
