package vmtest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"berth.dev/berth/cpuset"
)

// Machine is what the guest's kernel is to find. The zero value is one CPU.
//
// A CPU's position is its place in the order of sockets, dies, modules, cores
// and threads, counted from 0. The kernel's numbers are the same unless Order
// or SingleThread say otherwise: see CPUs.
type Machine struct {
	Name string `json:"name"`
	// How many of each there are in one of the level before it; 0 is 1.
	Sockets int `json:"sockets,omitempty"`
	Dies    int `json:"dies,omitempty"`
	Modules int `json:"modules,omitempty"`
	Cores   int `json:"cores,omitempty"`
	Threads int `json:"threads,omitempty"`
	// SingleThread are cores, counted over the machine, that have one thread
	// although Threads is more. Core 0 cannot be one.
	SingleThread cpuset.Set `json:"singleThread,omitzero"`
	// Order is how firmware numbers the CPUs.
	Order Order `json:"order,omitempty"`
	// L3 is what shares an L3.
	L3 Level `json:"l3,omitempty"`
	// Nodes are the NUMA nodes; none is one node of MiB with all CPUs.
	Nodes []Node `json:"nodes,omitempty"`
	// Distances is the SLIT: Distances[i][j] from node i to node j. Nil is
	// QEMU's default, 10 and 20.
	Distances [][]int `json:"distances,omitempty"`
	// MaxKHz is the highest frequency of each core; none is no cpufreq. The
	// lowest is half of it.
	MaxKHz []int `json:"maxKHz,omitempty"`
	// Disk is a virtio disk that holds nothing; nil for a guest without one.
	Disk *SlowDisk `json:"disk,omitempty"`
	// MiB is the memory of a machine without Nodes; 0 is 384.
	MiB int `json:"mib,omitempty"`
	// VirtualTime makes the guest's clock count instructions, so that time
	// passes as if the guest had all of its CPUs and no host beside it; a sleep
	// takes none of the host's.
	VirtualTime bool `json:"virtualTime,omitempty"`
	// Instruction is how long one takes in virtual time: 1, 2, 4 and so on up to
	// 1024 ns; 0 is 4. All CPUs share that: those of a busy guest are slower.
	Instruction int `json:"instruction,omitempty"`
}

// Node is a NUMA node.
type Node struct {
	// CPUs are positions; empty is a memory-only node.
	CPUs cpuset.Set `json:"cpus,omitzero"`
	// MiB is the node's memory; 0 is DefaultNodeMiB.
	MiB int `json:"mib,omitempty"`
}

// SlowDisk is a disk in the host's memory, as slow as it is to be.
type SlowDisk struct {
	MiB int `json:"mib"`
	// IOPS is how many operations it does per second of the host's time, Depth how many of them
	// it has at a time, a power of two from 4 on.
	IOPS  int `json:"iops"`
	Depth int `json:"depth"`
}

// Order is how firmware numbers CPUs.
type Order string

const (
	// ByPosition numbers the threads of a core one after the other: 0,1 | 2,3.
	ByPosition Order = ""
	// FirstThreadsFirst numbers the first threads of all cores, then the second
	// ones, as servers do: 0,4 | 1,5 | 2,6 | 3,7.
	FirstThreadsFirst Order = "first-threads-first"
)

// Level is a level of the hierarchy that can share an L3.
type Level string

const (
	PerDie    Level = ""
	PerModule Level = "module"
)

const (
	defaultMiB     = 384
	DefaultNodeMiB = 192
)

// CPU is where one of the machine's CPUs is. Socket, Die, Module and Core count
// over the whole machine, Thread within the core.
type CPU struct {
	Socket, Die, Module, Core, Thread int
	Position                          int
	// Node is the NUMA node, by its number.
	Node int
}

// CPUs returns the CPUs that are there in the order of the kernel's numbers.
func (m Machine) CPUs() []CPU {
	var cpus []CPU
	n := m.normal()
	for position := range n.positions() {
		c := n.at(position)
		if c.Thread == 0 || !m.SingleThread.Has(c.Core) {
			cpus = append(cpus, c)
		}
	}
	if m.Order == FirstThreadsFirst {
		slices.SortStableFunc(cpus, func(a, b CPU) int { return cmp.Compare(a.Thread, b.Thread) })
	}
	return cpus
}

// Validate reports what QEMU or the guest's kernel would not make of m.
func (m Machine) Validate() error {
	var errs []error
	complain := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, n := range []int{m.Sockets, m.Dies, m.Modules, m.Cores, m.Threads, m.MiB} {
		if n < 0 {
			complain("negative count %d", n)
			return errors.Join(errs...)
		}
	}
	n := m.normal()
	all, err := cpuset.Range(0, n.positions()-1)
	if err != nil {
		return err
	}
	cores := n.positions() / n.Threads
	if last, ok := m.SingleThread.Last(); ok && last >= cores || m.SingleThread.Has(0) {
		complain("single-thread cores %s: not of 1 to %d", m.SingleThread, cores-1)
	}
	if len(m.MaxKHz) != 0 && len(m.MaxKHz) != cores {
		complain("%d maximum frequencies for %d cores", len(m.MaxKHz), cores)
	}
	var seen cpuset.Set
	for i, node := range m.Nodes {
		if seen.Overlaps(node.CPUs) {
			complain("node %d: CPUs %s are in another node too", i, seen.Intersect(node.CPUs))
		}
		seen = seen.Union(node.CPUs)
	}
	if len(m.Nodes) > 0 && seen != all {
		complain("nodes have CPUs %s of %s", seen, all)
	}
	for _, row := range m.Distances {
		if len(row) != len(m.Nodes) || len(m.Distances) != len(m.Nodes) {
			complain("distances are not %d rows of %d", len(m.Nodes), len(m.Nodes))
			break
		}
	}
	if m.Order != ByPosition && m.Order != FirstThreadsFirst {
		complain("order %q", m.Order)
	}
	if ns := m.Instruction; ns < 0 || ns > 1024 || ns&(ns-1) != 0 || ns > 0 && !m.VirtualTime {
		complain("instructions of %d ns: want a power of two up to 1024, in virtual time", ns)
	}
	if d := m.Disk; d != nil && (d.MiB < 1 || d.IOPS < 1 || d.Depth < 4 || d.Depth&(d.Depth-1) != 0) {
		complain("disk of %d MiB, %d operations per second, %d at a time: want at least 1, 1, and a power of two from 4 on", d.MiB, d.IOPS, d.Depth)
	}
	if m.Disk != nil && m.VirtualTime {
		complain("a disk, which is as slow as it is by the host's clock, in virtual time")
	}
	if m.L3 != PerDie && m.L3 != PerModule {
		complain("L3 per %q", m.L3)
	}
	return errors.Join(errs...)
}

// normal returns m with every count and size written out.
func (m Machine) normal() Machine {
	for _, n := range []*int{&m.Sockets, &m.Dies, &m.Modules, &m.Cores, &m.Threads} {
		*n = max(*n, 1)
	}
	m.MiB = cmp.Or(m.MiB, defaultMiB)
	m.Instruction = cmp.Or(m.Instruction, 4)
	m.Nodes = slices.Clone(m.Nodes)
	for i := range m.Nodes {
		m.Nodes[i].MiB = cmp.Or(m.Nodes[i].MiB, DefaultNodeMiB)
	}
	return m
}

// positions counts the positions of a normal machine.
func (m Machine) positions() int { return m.Sockets * m.Dies * m.Modules * m.Cores * m.Threads }

// at returns the CPU at a position of a normal machine.
func (m Machine) at(position int) CPU {
	c := CPU{Position: position, Thread: position % m.Threads, Core: position / m.Threads}
	c.Module = c.Core / m.Cores
	c.Die = c.Module / m.Modules
	c.Socket = c.Die / m.Dies
	c.Node = max(0, slices.IndexFunc(m.Nodes, func(n Node) bool { return n.CPUs.Has(position) }))
	return c
}
