package machine_test

import (
	"fmt"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
)

func Example() {
	m, err := machine.Short("2s2n4c2t")
	if err != nil {
		fmt.Println(err)
		return
	}
	core, _ := m.Of(machine.Core, 3)
	node, _ := m.Of(machine.Node, 3)
	fmt.Printf("CPU 3: core %s, %s\n", core.CPUs, node)

	free := cpuset.MustParse("2-7,16-31")
	for _, n := range m.Inside(machine.Node, free) {
		fmt.Printf("%s (%s) is wholly free\n", n, n.CPUs)
	}
	for _, note := range machine.Unusual(m) {
		fmt.Println(note.Text)
	}
	// Output:
	// CPU 3: core 3,19, node 0
	// node 1 (4-7,20-23) is wholly free
	// sockets 0-1 have 2 NUMA nodes each (sub-NUMA clustering, NPS)
	// L3 caches 0-1 span 2 NUMA nodes each
}
