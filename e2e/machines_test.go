package e2e

import (
	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/vmtest"
)

// machines are those that every guest test meets, on every kernel.
func machines() []vmtest.Machine {
	return []vmtest.Machine{
		{Name: "flat8", Cores: 8},
		{
			Name:    "2s4n",
			Sockets: 2, Dies: 2, Cores: 4, Threads: 2,
			Nodes: evenNodes(4, 8),
			Distances: [][]int{
				{10, 12, 32, 32},
				{12, 10, 32, 32},
				{32, 32, 10, 12},
				{32, 32, 12, 10},
			},
		},
	}
}

// evenNodes returns nodes of consecutive positions.
func evenNodes(nodes, cpus int) []vmtest.Node {
	list := make([]vmtest.Node, nodes)
	for i := range list {
		list[i].CPUs = positions(i*cpus, (i+1)*cpus-1)
	}
	return list
}

func positions(first, last int) cpuset.Set {
	set, err := cpuset.Range(first, last)
	if err != nil {
		panic(err) // a constant above is wrong
	}
	return set
}
