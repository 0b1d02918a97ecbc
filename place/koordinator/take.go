package koordinator

import (
	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// sign turns a number of free CPUs into a rank of the strategy.
func (k *task) sign() int {
	if k.Strategy == place.MostAllocated {
		return 1
	}
	return -1
}

// full takes n CPUs of from in whole cores, as far as these suffice.
func (k *task) full(from cpuset.Set, n int) cpuset.Set {
	whole := k.t.Whole(machine.Core, from)
	all := whole.Len()
	if n >= all {
		return whole.Union(k.leftover(from.Minus(whole), whole, n-all))
	}
	v := k.t.View(whole, cpuset.Set{})
	for _, kind := range []machine.Kind{machine.Node, machine.Socket} {
		room := func(pos int) int { return v.FreeIn(kind, pos) }
		if pos := k.unit(kind, n, room, k.order(kind, from, room)); pos >= 0 {
			v.Narrow(k.t.Units(kind)[pos].CPUs)
			return k.take(v, n, k.cores())
		}
	}
	cpus := k.take(v, n-n%k.threads, append(sockets(), k.cores()...))
	return cpus.Union(k.leftover(from.Minus(cpus), cpus, n-cpus.Len()))
}

// sockets visits sockets that are needed as a whole, the largest first, then the
// smallest.
func sockets() []place.Stage {
	return []place.Stage{{
		Name: "socket", Mode: place.Spill, Kind: machine.Socket, Criteria: []string{"more than needed", "free"},
		Rank: func(v *place.View, pos int) place.Rank {
			free := v.FreeIn(machine.Socket, pos)
			if free <= v.Need {
				return place.Rank{0, -free}
			}
			return place.Rank{1, free}
		},
	}}
}

// cores takes cores, those held by fewest first, and a part of the next one.
func (k *task) cores() []place.Stage {
	units := k.t.Units(machine.Core)
	return []place.Stage{
		{
			Name: "core", Kind: machine.Core, Criteria: []string{"smaller by", "holders"},
			Rank: func(_ *place.View, pos int) place.Rank { return place.Rank{-units[pos].Size, k.holders(pos)} },
		},
		{
			Name: "CPU", Kind: place.CPU, Criteria: []string{"holders", "core"},
			Rank: func(v *place.View, pos int) place.Rank {
				core := v.Up(machine.Core, place.CPU, pos)
				return place.Rank{k.holders(core), core}
			},
		},
	}
}

// holders returns the number of workloads that hold the CPUs of a core by count.
func (k *task) holders(core int) int {
	if k.conf.MaxRefs == 1 {
		return 0
	}
	n := 0
	for cpu := range k.t.Units(machine.Core)[core].CPUs.All() {
		n += k.s.Refs(cpu)
	}
	return n
}

func (k *task) take(v *place.View, n int, stages []place.Stage) cpuset.Set {
	cpus, err := v.Take(n, stages, k.why)
	if err != nil { // callers have counted
		return cpuset.Set{}
	}
	return cpus
}

// unit chooses a node or socket with room for n, or -1.
func (k *task) unit(kind machine.Kind, n int, room func(pos int) int, rank func(pos int) place.Rank) int {
	units := k.t.Units(kind)
	c := place.Choice{
		Name: kind.String(), Criteria: []string{"not held", "free by the strategy", "free in its socket"}, Count: len(units),
		Fits: func(pos int) string {
			if room(pos) < n {
				return "too few free"
			}
			return ""
		},
		Rank:  rank,
		Label: func(pos int) string { return k.t.Label(kind, pos) },
	}
	return c.Best(k.why)
}

// order ranks nodes or sockets by the strategy. Those that the workload holds go first.
func (k *task) order(kind machine.Kind, from cpuset.Set, room func(pos int) int) func(pos int) place.Rank {
	sign, units := k.sign(), k.t.Units(kind)
	return func(pos int) place.Rank {
		rank := place.Rank{0, sign * room(pos)}
		if !k.near.IsEmpty() && !units[pos].CPUs.Overlaps(k.near) {
			rank[0] = 1
		}
		if kind == machine.Node && units[pos].First >= 0 {
			socket := k.t.At(machine.Socket, units[pos].First)
			rank[2] = sign * k.t.Units(machine.Socket)[socket].CPUs.Overlap(&from)
		}
		return rank
	}
}

// spread takes n CPUs of from, one per core first.
func (k *task) spread(from cpuset.Set, n int) cpuset.Set {
	first := k.t.FirstThreads(from)
	free := func(set *cpuset.Set, kind machine.Kind) func(int) int {
		units := k.t.Units(kind)
		return func(pos int) int { return units[pos].CPUs.Overlap(set) }
	}
	for _, kind := range []machine.Kind{machine.Node, machine.Socket} {
		for _, set := range []*cpuset.Set{&first, &from} {
			room := free(set, kind)
			order := k.order(kind, from, room)
			if kind == machine.Node {
				order = k.order(kind, from, free(&from, kind))
			}
			if pos := k.unit(kind, n, room, order); pos >= 0 {
				return k.inTurns(from.Intersect(k.t.Units(kind)[pos].CPUs), n)
			}
		}
	}
	return k.leftover(from, cpuset.Set{}, n)
}

// inTurns takes n CPUs of from: one of each core, then the second ones.
func (k *task) inTurns(from cpuset.Set, n int) cpuset.Set {
	turn := k.turns(from)
	return k.take(k.t.View(from, cpuset.Set{}), n, []place.Stage{{
		Name: "CPU", Kind: place.CPU, Criteria: []string{"turn", "holders"},
		Rank: func(v *place.View, pos int) place.Rank {
			cpu := k.t.Units(place.CPU)[pos].First
			return place.Rank{int(turn[cpu]), k.s.Refs(cpu)}
		},
	}})
}

// turns returns, by CPU number, which of its core's CPUs it is: those with fewer
// holders first, then the lower number.
func (k *task) turns(from cpuset.Set) []uint8 {
	last, _ := from.Last()
	turn := make([]uint8, last+1)
	seen := make([]uint8, len(k.t.Units(machine.Core)))
	for refs := range k.conf.MaxRefs {
		for cpu := range from.All() {
			if k.conf.MaxRefs == 1 || k.s.Refs(cpu) == refs {
				core := k.t.At(machine.Core, cpu)
				turn[cpu] = seen[core]
				seen[core]++
			}
		}
	}
	return turn
}

// leftover takes n CPUs of from wherever they are, in turns, near those taken.
func (k *task) leftover(from, taken cpuset.Set, n int) cpuset.Set {
	if n == 0 {
		return cpuset.Set{}
	}
	rank := k.scattered(from, taken)
	return k.take(k.t.View(from, cpuset.Set{}), n, []place.Stage{{
		Name: "CPU", Kind: place.CPU,
		Criteria: []string{"turn", "taken in its socket", "free in its socket", "free in its node", "free in its core", "socket", "holders", "core"},
		Rank:     func(_ *place.View, pos int) place.Rank { return rank(k.t.Units(place.CPU)[pos].First) },
	}})
}

// scattered ranks the CPUs of from as they were before the first of them is taken.
func (k *task) scattered(from, taken cpuset.Set) func(cpu int) place.Rank {
	turn, sign := k.turns(from), k.sign()
	v := k.t.View(from, taken)
	return func(cpu int) place.Rank {
		socket, node, core := k.t.At(machine.Socket, cpu), k.t.At(machine.Node, cpu), k.t.At(machine.Core, cpu)
		rank := place.Rank{int(turn[cpu]), 0, 0, 0, v.FreeIn(machine.Core, core), socket, k.holders(core), core}
		if socket >= 0 {
			rank[1], rank[2] = -v.TakenIn(machine.Socket, socket), sign*v.FreeIn(machine.Socket, socket)
		}
		if node >= 0 {
			rank[3] = sign * v.FreeIn(machine.Node, node)
		}
		return rank
	}
}
