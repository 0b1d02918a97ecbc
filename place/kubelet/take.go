package kubelet

import (
	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// taker takes CPUs as the static CPU manager does.
type taker struct {
	Policy
	t     *place.Topology
	group int // so many CPUs at a time are distributed over NUMA nodes
	why   *place.Why
}

func (p Policy) taker(t *place.Topology, why *place.Why) *taker {
	k := &taker{Policy: p, t: t, group: 1, why: why}
	if p.FullPCPUsOnly {
		k.group, _ = t.ThreadsPerCore()
	}
	return k
}

// ReservedCPUs returns the CPUs that the kubelet keeps for itself and the system where its
// configuration says only how many: n of all.
func (p Policy) ReservedCPUs(t *place.Topology, n int) (cpuset.Set, error) {
	return p.taker(t, nil).take(t.Online(), n)
}

// masked takes n CPUs of from: as many as fit from the CPUs of the mask, the
// rest from the other CPUs of from.
func (k *taker) masked(from cpuset.Set, n int, mask place.Hint) (cpuset.Set, error) {
	if mask.Any || n > from.Len() {
		return k.take(from, n)
	}
	aligned := from.Intersect(k.widen(mask.Nodes))
	taken, err := k.take(aligned, min(n, aligned.Len()))
	if err != nil || taken.Len() == n {
		return taken, err
	}
	rest, err := k.take(from.Minus(taken), n-taken.Len())
	return taken.Union(rest), err
}

// widen returns the CPUs of the nodes of a mask, or of their sockets.
func (k *taker) widen(mask uint64) cpuset.Set {
	cpus := k.t.CPUsOf(idsOf(k.t, mask))
	if k.AlignBySocket {
		return k.t.Touched(machine.Socket, cpus)
	}
	return cpus
}

func (k *taker) take(from cpuset.Set, n int) (cpuset.Set, error) {
	if n < 0 || n > from.Len() {
		return cpuset.Set{}, &place.CPUsError{Asked: n, Available: from.Len()}
	}
	if k.DistributeAcrossNUMA && n%k.group == 0 {
		if taken, ok, err := k.evenly(from, n); ok || err != nil {
			return taken, err
		}
	}
	return k.t.View(from, cpuset.Set{}).Take(n, k.packed(k.PreferAlignByUncoreCache && !k.DistributeAcrossNUMA), k.why)
}

// levels returns the wider and the narrower of socket and node.
func (k *taker) levels() (first, second machine.Kind) {
	if len(k.t.Units(machine.Socket)) >= k.nodesWithCPUs() {
		return machine.Node, machine.Socket
	}
	return machine.Socket, machine.Node
}

func (k *taker) nodesWithCPUs() int {
	n := 0
	for _, u := range k.t.Units(machine.Node) {
		if u.Size > 0 {
			n++
		}
	}
	return n
}

// packed returns the stages that fill sockets, NUMA nodes and cores, the fullest
// first.
func (k *taker) packed(uncore bool) []place.Stage {
	first, second := k.levels()
	inFirst := func(v *place.View, kind machine.Kind, pos int) place.Rank {
		up := v.Up(first, kind, pos)
		return place.Rank{v.FreeIn(first, up), up}
	}
	inSecond := func(v *place.View, kind machine.Kind, pos int) place.Rank {
		r, up := inFirst(v, kind, pos), v.Up(second, kind, pos)
		r[2], r[3] = v.FreeIn(second, up), up
		return r
	}
	byCore := func(v *place.View, kind machine.Kind, pos int) place.Rank {
		r, up := inSecond(v, kind, pos), v.Up(machine.Core, kind, pos)
		r[4], r[5] = v.FreeIn(machine.Core, up), v.T.Units(machine.Core)[up].First
		return r
	}
	free := func(k machine.Kind) string { return "free CPUs of the " + k.String() }
	names := []string{free(first), first.String(), free(second), second.String(), free(machine.Core), "core's first CPU"}
	stages := []place.Stage{
		{Name: "whole " + first.String(), Kind: first, Criteria: names[:2], Rank: func(v *place.View, pos int) place.Rank { return inFirst(v, first, pos) }},
		{Name: "whole " + second.String(), Kind: second, Criteria: names[:4], Rank: func(v *place.View, pos int) place.Rank { return inSecond(v, second, pos) }},
	}
	single := place.Stage{Name: "single CPUs", Kind: place.CPU, Criteria: names, Rank: func(v *place.View, pos int) place.Rank { return byCore(v, place.CPU, pos) }}
	whole := &reach{t: k.t, first: first, second: second, has: (*place.View).WholeIn}
	loose := &reach{t: k.t, first: first, second: second, has: (*place.View).FreeIn}
	near := !uncore && whole.usable()
	if k.DistributeAcrossCores {
		single.Criteria = names[:4]
		socket := inSecond
		if first == machine.Socket {
			socket = inFirst
		}
		single.Rank = func(v *place.View, pos int) place.Rank { return socket(v, place.CPU, pos) }
		return append(stages, single)
	}
	cores := place.Stage{Name: "whole cores", Kind: machine.Core, Criteria: names, Rank: func(v *place.View, pos int) place.Rank { return byCore(v, machine.Core, pos) }}
	if near {
		cores.Fits, single.Fits = whole.fits(machine.Core), loose.fits(place.CPU)
	}
	if !uncore {
		return append(stages, cores, single)
	}
	u := &uncores{k: k, kind: machine.L3}
	if len(k.t.Units(machine.L3)) == 0 {
		u.kind = machine.Socket
	}
	inUncore := func(kind machine.Kind) func(v *place.View, pos int) place.Rank {
		return func(v *place.View, pos int) place.Rank {
			if l3 := v.Up(u.kind, kind, pos); l3 >= 0 && u.lowest[l3] {
				return place.Rank{5: v.T.Units(machine.Core)[v.Up(machine.Core, kind, pos)].First}
			}
			return byCore(v, kind, pos)
		}
	}
	cores.Rank, single.Rank = inUncore(machine.Core), inUncore(place.CPU)
	return append(stages, u.whole(), u.one(), cores, single)
}

// uncores ranks L3 domains once, before any of them is taken.
type uncores struct {
	k      *taker
	kind   machine.Kind
	ranks  []place.Rank
	lowest []bool // the lowest cores with a free CPU give the needed number
	fits   []bool // by outer domain: it has such an L3
}

// rank orders L3 domains by NUMA node, then the fullest first.
func (u *uncores) rank(v *place.View, pos int) place.Rank {
	if u.ranks == nil {
		units := u.k.t.Units(u.kind)
		u.ranks = make([]place.Rank, len(units))
		for i := range units {
			u.ranks[i] = u.rankNow(v, i)
		}
	}
	return u.ranks[pos]
}

func (u *uncores) rankNow(v *place.View, pos int) place.Rank {
	units := u.k.t.Units(u.kind)
	best := place.Rank{1 << 30}
	first, _ := u.k.levels()
	for i, node := range u.k.t.Units(machine.Node) {
		if v.FreeIn(machine.Node, i) == 0 || node.CPUs.Overlap(&units[pos].CPUs) == 0 {
			continue
		}
		r := place.Rank{v.FreeIn(machine.Node, i), i}
		if first == machine.Socket {
			socket := v.Up(machine.Socket, machine.Node, i)
			r = place.Rank{v.FreeIn(machine.Socket, socket), socket, r[0], r[1]}
		}
		r[4], r[5] = v.FreeIn(u.kind, pos), units[pos].First
		if r.Compare(&best) < 0 {
			best = r
		}
	}
	return best
}

func (u *uncores) criteria() []string {
	return []string{"free CPUs of the outer domain", "outer domain", "free CPUs of the inner domain", "inner domain", "free CPUs of the L3", "L3's first CPU"}
}

// whole takes wholly free L3 domains.
func (u *uncores) whole() place.Stage {
	u.lowest = make([]bool, len(u.k.t.Units(u.kind)))
	return place.Stage{Name: "whole L3 domains", Kind: u.kind, Criteria: u.criteria(), Rank: u.rank}
}

// one goes on inside one L3 domain that has room for the rest. The kubelet looks
// for the first whose lowest cores give just the needed number; in the NUMA node of
// that one, a domain that is partly used already goes before a wholly free one.
// Where the kubelet finds no such domain, any domain with room is taken.
func (u *uncores) one() place.Stage {
	return place.Stage{
		Name: "one L3 domain", Mode: place.Enter, Kind: u.kind,
		Criteria: append([]string{"no fit in the domain"}, append(u.criteria()[:4], "wholly free", "lowest cores do not fit", u.criteria()[4], u.criteria()[5])...),
		Rank: func(v *place.View, pos int) place.Rank {
			u.fit(v)
			r := u.rank(v, pos)
			return place.Rank{flag(!u.fits[r[1]]), r[0], r[1], r[2], r[3], flag(v.IsWhole(u.kind, pos)), flag(!u.lowest[pos]), r[4], r[5]}
		},
	}
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// fit finds the L3 domains whose lowest cores give the needed number, or one CPU
// more where that is odd.
func (u *uncores) fit(v *place.View) {
	if u.fits != nil {
		return
	}
	threads, _ := u.k.t.ThreadsPerCore()
	u.fits = make([]bool, len(u.k.t.Units(machine.Node))+len(u.k.t.Units(machine.Socket)))
	for pos := range u.lowest {
		found, need := 0, ceil(v.Need, threads)
		for _, core := range u.k.t.Cores(u.kind, pos) {
			if free := v.FreeIn(machine.Core, int(core)); free > 0 && need > 0 {
				found += free
				need--
			}
		}
		if found == v.Need || v.Need%2 == 1 && found == v.Need+1 {
			u.lowest[pos] = true
			u.fits[u.rank(v, pos)[1]] = true
		}
	}
}
