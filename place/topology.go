package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
)

// CPU is a single CPU as a unit of choice, below machine.Core.
const CPU = machine.Core + 1

const kinds = int(CPU) + 1

// Topology is a machine indexed for deciding. It is read-only and safe for
// concurrent use. Positions count the domains of a kind from 0 in the order of
// their ids; of CPU, the online CPUs by rising number.
//
// A machine without sockets or nodes counts as one socket, one node; one without
// cores has one CPU per core. Dies, L3 and L2 domains that are unknown do not exist
// here either.
type Topology struct {
	m       *machine.Machine
	online  cpuset.Set
	units   [kinds][]Unit
	at      [kinds][]int16   // by CPU number: position, -1 none
	up      [kinds][]int16   // by core position: position of the domain that holds it, -1 none
	cores   [kinds][][]int16 // by position: the core positions inside
	offset  [kinds]int       // of each kind of domain in a flat array of counts; its length at CPU
	dist    [][]int          // by node position
	byNode  []int16          // by node id: position, -1 none
	threads int
	uniform bool // every core has the same number of threads
	speeds  []cpuset.Set
	derived sync.Map // by type: values made by Derived
}

// Unit is a domain, or a single CPU, at one position of a Topology.
type Unit struct {
	ID    int // machine.Domain.ID; of a single CPU its number
	CPUs  cpuset.Set
	Size  int // online CPUs
	First int // lowest CPU, -1 for a memory-only node
	Bytes int64
}

// NewTopology indexes m, which must not change afterwards. It returns the error of
// Machine.Validate.
func NewTopology(m *machine.Machine) (*Topology, error) {
	if err := m.Validate(); err != nil {
		return nil, fmt.Errorf("topology of machine %q: %w", m.Name, err)
	}
	if m.Online.IsEmpty() {
		return nil, fmt.Errorf("topology of machine %q: no online CPUs", m.Name)
	}
	t := &Topology{m: m, online: m.Online, speeds: speedsOf(m)}
	for _, k := range machine.Kinds() {
		t.units[k] = unitsOf(m, k)
	}
	for cpu := range m.Online.All() {
		t.units[CPU] = append(t.units[CPU], unit(cpu, cpuset.MustOf(cpu), 0))
	}
	t.index()
	t.measure()
	return t, nil
}

func unitsOf(m *machine.Machine, k machine.Kind) []Unit {
	var units []Unit
	for _, d := range m.ByKind(k) {
		units = append(units, unit(d.ID, d.CPUs, d.Bytes))
	}
	if len(units) > 0 {
		return units
	}
	switch k {
	case machine.Socket, machine.Node:
		units = []Unit{unit(0, m.Online, 0)}
	case machine.Core:
		i := 0
		for cpu := range m.Online.All() {
			units = append(units, unit(i, cpuset.MustOf(cpu), 0))
			i++
		}
	}
	return units
}

func unit(id int, cpus cpuset.Set, bytes int64) Unit {
	first, ok := cpus.First()
	if !ok {
		first = -1
	}
	return Unit{ID: id, CPUs: cpus, Size: cpus.Len(), First: first, Bytes: bytes}
}

func (t *Topology) index() {
	last, _ := t.online.Last()
	for k := range t.units {
		t.at[k] = none(last + 1)
		for pos := range t.units[k] {
			for cpu := range t.units[k][pos].CPUs.All() {
				t.at[k][cpu] = int16(pos)
			}
		}
		if k < int(CPU) {
			t.offset[k+1] = t.offset[k] + len(t.units[k])
		}
	}
	for k := range int(CPU) {
		t.up[k] = none(len(t.units[machine.Core]))
		t.cores[k] = make([][]int16, len(t.units[k]))
		for core := range t.units[machine.Core] {
			pos := t.at[k][t.units[machine.Core][core].First]
			t.up[k][core] = pos
			if pos >= 0 {
				t.cores[k][pos] = append(t.cores[k][pos], int16(core))
			}
		}
	}
	least := cpuset.Limit
	for _, core := range t.units[machine.Core] {
		t.threads, least = max(t.threads, core.Size), min(least, core.Size)
	}
	t.uniform = least == t.threads
}

func none(n int) []int16 {
	return slices.Repeat([]int16{-1}, n)
}

func (t *Topology) measure() {
	nodes := t.units[machine.Node]
	t.byNode = none(nodes[len(nodes)-1].ID + 1)
	for i := range nodes {
		t.byNode[nodes[i].ID] = int16(i)
		row := make([]int, len(nodes))
		for j := range nodes {
			d, ok := t.m.Distance(nodes[i].ID, nodes[j].ID)
			if !ok && i == j {
				d = 10
			} else if !ok {
				d = 20
			}
			row[j] = d
		}
		t.dist = append(t.dist, row)
	}
}

// Machine returns the machine that t indexes.
func (t *Topology) Machine() *machine.Machine { return t.m }

// Online returns the online CPUs.
func (t *Topology) Online() cpuset.Set { return t.online }

// Units returns the domains of a kind, or the CPUs. The slice is t's own: do
// not change it.
func (t *Topology) Units(k machine.Kind) []Unit { return t.units[k] }

// At returns the position of the domain of kind k that holds the CPU; -1 where
// there is none.
func (t *Topology) At(k machine.Kind, cpu int) int {
	if cpu < 0 || cpu >= len(t.at[k]) {
		return -1
	}
	return int(t.at[k][cpu])
}

// Of returns the position of the domain of kind k that holds a core, given by
// position, or -1.
func (t *Topology) Of(k machine.Kind, core int) int { return int(t.up[k][core]) }

// Cores returns the positions of the cores in a domain. The slice is t's own.
func (t *Topology) Cores(k machine.Kind, pos int) []int16 { return t.cores[k][pos] }

// ThreadsPerCore returns the largest number of CPUs of a core, and whether all
// cores have that many.
func (t *Topology) ThreadsPerCore() (threads int, uniform bool) { return t.threads, t.uniform }

// Node returns the position of the NUMA node with the kernel's number id.
func (t *Topology) Node(id int) (pos int, ok bool) {
	if id < 0 || id >= len(t.byNode) || t.byNode[id] < 0 {
		return 0, false
	}
	return int(t.byNode[id]), true
}

// Distance returns the NUMA distance between two nodes, given by position.
// If the machine has no distances, it is 10 within a node and 20 between nodes.
func (t *Topology) Distance(from, to int) int { return t.dist[from][to] }

// NodesOf returns the numbers of the NUMA nodes that have a CPU of the set.
func (t *Topology) NodesOf(cpus cpuset.Set) cpuset.Set {
	var nodes cpuset.Set
	for i := range t.units[machine.Node] {
		if u := &t.units[machine.Node][i]; u.CPUs.Overlap(&cpus) > 0 {
			nodes, _ = nodes.With(u.ID)
		}
	}
	return nodes
}

// NodeAround returns the position of the NUMA node that has all of the CPUs; -1
// if no node has.
func (t *Topology) NodeAround(cpus cpuset.Set) int {
	first, _ := cpus.First()
	if pos := t.At(machine.Node, first); pos >= 0 && t.units[machine.Node][pos].CPUs.Contains(cpus) {
		return pos
	}
	return -1
}

// OfKind returns the CPUs of a kind of core, as of machine.KindP.
func (t *Topology) OfKind(kind string) cpuset.Set {
	var cpus cpuset.Set
	for _, c := range t.m.CPUs {
		if c.Kind == kind {
			cpus, _ = cpus.With(c.ID)
		}
	}
	return cpus
}

// Speeds returns the CPUs by how fast their cores are made to be, the fastest first: by kind
// of core, else by capacity, and then by base frequency. One set is a machine whose cores
// are alike, or that does not tell.
func (t *Topology) Speeds() []cpuset.Set { return t.speeds }

func speedsOf(m *machine.Machine) (all []cpuset.Set) {
	type speed struct{ kind, capacity, base int }
	kinds := []string{machine.KindLP, machine.KindE, machine.KindP}
	sets := map[speed]cpuset.Set{}
	for _, c := range m.CPUs {
		if !m.Online.Has(c.ID) {
			continue
		}
		s := speed{slices.Index(kinds, c.Kind), c.Capacity, c.BaseKHz}
		if c.Kind != "" {
			s.capacity = 0 // cores of one kind differ in it by how well they boost
		}
		sets[s] = sets[s].Union(cpuset.MustOf(c.ID))
	}
	order := slices.SortedFunc(maps.Keys(sets), func(a, b speed) int {
		return cmp.Or(cmp.Compare(b.kind, a.kind), cmp.Compare(b.capacity, a.capacity), cmp.Compare(b.base, a.base))
	})
	for _, s := range order {
		all = append(all, sets[s])
	}
	return all
}

// CPUsOf returns the CPUs of the NUMA nodes with the given numbers.
func (t *Topology) CPUsOf(nodes cpuset.Set) cpuset.Set {
	var cpus cpuset.Set
	for i := range t.units[machine.Node] {
		if u := &t.units[machine.Node][i]; nodes.Has(u.ID) {
			cpus = cpus.Union(u.CPUs)
		}
	}
	return cpus
}

// Touched returns the CPUs of all domains of kind k that have a CPU of the set.
func (t *Topology) Touched(k machine.Kind, cpus cpuset.Set) cpuset.Set {
	var out cpuset.Set
	last := -1
	for cpu := range cpus.All() {
		pos := t.At(k, cpu)
		if pos >= 0 && pos != last && !out.Has(cpu) {
			out = out.Union(t.units[k][pos].CPUs)
		}
		last = pos
	}
	return out
}

// Count returns the number of domains of kind k that have a CPU of the set.
func (t *Topology) Count(k machine.Kind, cpus cpuset.Set) int {
	n := 0
	for i := range t.units[k] {
		if t.units[k][i].CPUs.Overlap(&cpus) > 0 {
			n++
		}
	}
	return n
}

// Whole returns the members of the set whose domain of kind k lies wholly in it.
func (t *Topology) Whole(k machine.Kind, cpus cpuset.Set) cpuset.Set {
	var few [256]int16
	n := append(few[:0], make([]int16, len(t.units[k]))...)
	whole := cpus
	for cpu := range cpus.All() {
		if pos := t.At(k, cpu); pos >= 0 {
			n[pos]++
		} else {
			whole = whole.Minus(cpuset.MustOf(cpu))
		}
	}
	for pos := range n {
		if u := &t.units[k][pos]; 0 < n[pos] && int(n[pos]) < u.Size {
			whole = whole.Minus(u.CPUs)
		}
	}
	return whole
}

// FirstThreads returns the members of the set that are the lowest of their core
// in the set.
func (t *Topology) FirstThreads(cpus cpuset.Set) cpuset.Set {
	var out cpuset.Set
	seen := make([]bool, len(t.units[machine.Core]))
	for cpu := range cpus.All() {
		if core := t.At(machine.Core, cpu); core >= 0 && !seen[core] {
			seen[core] = true
			out, _ = out.With(cpu)
		}
	}
	return out
}
