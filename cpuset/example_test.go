package cpuset_test

import (
	"fmt"

	"berth.dev/berth/cpuset"
)

func Example() {
	node, err := cpuset.Parse("0-7,16-23")
	if err != nil {
		fmt.Println(err)
		return
	}
	reserved := cpuset.MustOf(0, 16)
	free := node.Minus(reserved)
	fmt.Println(free, free.Len())
	fmt.Println(free.Contains(cpuset.MustParse("1-3")), free == node)

	_, err = cpuset.Parse("0-3,2048")
	fmt.Println(err)
	// Output:
	// 1-7,17-23 14
	// true false
	// cpuset "0-3,2048": 2048: number out of range 0-2047
}
