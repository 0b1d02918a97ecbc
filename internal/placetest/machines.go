// Package placetest holds what the tests of all placement policies share:
// random machines and requests, the properties that every policy has, folders of
// allocation cases, and the benchmark.
package placetest

import (
	"math/rand/v2"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
)

// Machine returns a random valid machine of at most maxCPUs online CPUs: several
// sockets, nodes, L3 domains, hybrid cores, SMT off in places, offline CPUs, gaps
// in CPU and node numbers, memory-only nodes, nodes that span sockets.
func Machine(rng *rand.Rand, maxCPUs int) *machine.Machine {
	for {
		b := builder{rng: rng, m: &machine.Machine{Name: "random"}}
		b.build()
		if n := b.m.Online.Len(); n >= 1 && n <= maxCPUs {
			return b.m
		}
	}
}

type builder struct {
	rng   *rand.Rand
	m     *machine.Machine
	next  int
	cores [][]int // CPUs of each core
}

func (b *builder) build() {
	rng := b.rng
	sockets, nodes := 1+rng.IntN(3), 1+rng.IntN(3)
	l3s, cores := 1+rng.IntN(3), 1+rng.IntN(4)
	hybrid, spans := rng.IntN(4) == 0, rng.IntN(5) == 0
	uneven := rng.IntN(3) == 0
	threads := 1 + rng.IntN(2)
	var bySocket, byNode, byL3 []cpuset.Set
	for range sockets {
		var socket cpuset.Set
		for range nodes {
			var node cpuset.Set
			for range l3s {
				var l3 cpuset.Set
				for range cores {
					l3 = l3.Union(b.core(threads, hybrid, uneven))
				}
				if !l3.IsEmpty() {
					byL3 = append(byL3, l3)
				}
				node = node.Union(l3)
			}
			if !node.IsEmpty() {
				byNode = append(byNode, node)
			}
			socket = socket.Union(node)
		}
		if !socket.IsEmpty() {
			bySocket = append(bySocket, socket)
		}
	}
	if spans {
		byNode = []cpuset.Set{b.m.Online}
	}
	b.domains(machine.Socket, bySocket)
	b.nodes(byNode)
	if rng.IntN(6) > 0 {
		b.domains(machine.L3, byL3)
	}
	var byCore []cpuset.Set
	for _, c := range b.cores {
		byCore = append(byCore, cpuset.MustOf(c...))
	}
	b.domains(machine.L2, byCore)
	b.domains(machine.Core, byCore)
}

// core adds a core and returns its online CPUs; it may have none.
func (b *builder) core(threads int, hybrid, uneven bool) cpuset.Set {
	kind := ""
	if hybrid {
		if kind = machine.KindP; b.rng.IntN(2) == 0 {
			kind, threads = machine.KindE, 1
		}
	}
	var core []int
	for range threads {
		if b.rng.IntN(12) == 0 {
			b.next += 1 + b.rng.IntN(3)
		}
		id := b.next
		b.next++
		if uneven && b.rng.IntN(5) == 0 {
			b.m.Offline, _ = b.m.Offline.With(id)
			continue
		}
		core = append(core, id)
		b.m.Online, _ = b.m.Online.With(id)
		b.m.CPUs = append(b.m.CPUs, machine.CPU{ID: id, Kind: kind})
		if b.rng.IntN(40) == 0 {
			b.m.Isolated, _ = b.m.Isolated.With(id)
		}
	}
	if len(core) > 0 {
		b.cores = append(b.cores, core)
	}
	return cpuset.MustOf(core...)
}

func (b *builder) domains(k machine.Kind, sets []cpuset.Set) {
	for i, s := range sets {
		b.m.Domains = append(b.m.Domains, machine.Domain{Kind: k, ID: i, CPUs: s, KernelID: i})
	}
}

func (b *builder) nodes(sets []cpuset.Set) {
	if b.rng.IntN(3) == 0 {
		sets = append(sets, cpuset.Set{}) // memory only
	}
	id := 0
	for _, s := range sets {
		if b.rng.IntN(5) == 0 {
			id += 1 + b.rng.IntN(2)
		}
		bytes := int64(1+b.rng.IntN(8)) << 30
		b.m.Domains = append(b.m.Domains, machine.Domain{Kind: machine.Node, ID: id, CPUs: s, KernelID: id, Bytes: bytes})
		id++
	}
	n := len(sets)
	for i := range n {
		row := make([]int, n)
		for j := range row {
			switch {
			case i == j:
				row[j] = 10
			case j < i:
				row[j] = b.m.Distances[j][i]
			default:
				row[j] = 11 + 5*b.rng.IntN(4)
			}
		}
		b.m.Distances = append(b.m.Distances, row)
	}
}
