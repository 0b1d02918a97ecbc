package e2e

import (
	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/vmtest"
)

// withDisk is the machine that has disks, which hold nothing.
const withDisk = "2s4n"

// withNet is the machine whose kernel has what divides a link.
const withNet = "flat8"

// machines are those that guest tests meet, about in the order of what their guests
// take, the longest first.
func machines() []vmtest.Machine {
	return []vmtest.Machine{
		{
			Name:    "server-order",
			Sockets: 2, Cores: 4, Threads: 2,
			Order: vmtest.FirstThreadsFirst,
			Nodes: evenNodes(2, 8),
		},
		{
			Name:    "128cpus",
			Sockets: 2, Cores: 32, Threads: 2,
			Nodes: evenNodes(8, 16),
		},
		{
			Name:    withDisk,
			Sockets: 2, Dies: 2, Cores: 4, Threads: 2,
			Disk:  &vmtest.SlowDisk{MiB: 64, IOPS: 50, Depth: 8},
			Nodes: evenNodes(4, 8),
			Distances: [][]int{
				{10, 12, 32, 32},
				{12, 10, 32, 32},
				{32, 32, 10, 12},
				{32, 32, 12, 10},
			},
		},
		{Name: "virtual4", Cores: 4, VirtualTime: true},
		{Name: "flat8", Cores: 8},
		{
			// Four L3 per node, and memory far from every CPU.
			Name:    "l3-memory-only",
			Sockets: 2, Modules: 4, Cores: 2,
			L3:    vmtest.PerModule,
			Nodes: append(evenNodes(2, 8), vmtest.Node{}, vmtest.Node{}),
			Distances: [][]int{
				{10, 20, 14, 24},
				{20, 10, 24, 14},
				{14, 24, 10, 28},
				{24, 14, 28, 10},
			},
		},
		{
			// Two cores with two threads, four slower ones with one.
			Name:  "uneven",
			Cores: 6, Threads: 2,
			SingleThread: positions(2, 5),
			MaxKHz:       []int{4_000_000, 4_000_000, 2_400_000, 2_400_000, 2_400_000, 2_400_000},
		},
	}
}

// evenNodes returns nodes of consecutive positions. The first has room for the
// kernel and the files of the guest, and for three services of the lab at once, too.
func evenNodes(nodes, cpus int) []vmtest.Node {
	list := make([]vmtest.Node, nodes)
	for i := range list {
		list[i].CPUs = positions(i*cpus, (i+1)*cpus-1)
		list[i].MiB = 2 * vmtest.DefaultNodeMiB // the lab and its services, where they all came to be on one
	}
	list[0].MiB = 4 * vmtest.DefaultNodeMiB
	return list
}

func positions(first, last int) cpuset.Set {
	set, err := cpuset.Range(first, last)
	if err != nil {
		panic(err) // a constant above is wrong
	}
	return set
}
