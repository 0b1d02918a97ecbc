package proc_test

import (
	"fmt"

	"berth.dev/berth/watch/proc"
)

func Example_schedstat() {
	times, err := proc.ParseTask([]byte("3000000000 1000000000 420\n"))
	if err != nil {
		fmt.Println(err)
	}
	fmt.Printf("ran %v, waited %v for it\n", times.Ran, times.Waited)
	// Output: ran 3s, waited 1s for it
}
