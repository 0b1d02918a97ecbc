package sysfs_test

import (
	"fmt"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"
)

func Example() {
	m, err := sysfs.Lscpu("0,0,0,0,0\n1,1,0,0,0\n2,0,0,0,0\n3,1,0,0,0\n")
	if err != nil {
		fmt.Println(err)
		return
	}
	tree, err := fakekernel.Sysfs(m) // a synthetic /sys, for a test or a demonstration
	if err != nil {
		fmt.Println(err)
		return
	}
	m, err = sysfs.Read(tree)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, core := range m.ByKind(machine.Core) {
		fmt.Println(core, "has CPUs", core.CPUs)
	}
	// Output:
	// core 0 has CPUs 0,2
	// core 1 has CPUs 1,3
}
