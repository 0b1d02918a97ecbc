package proc_test

import (
	"fmt"

	"berth.dev/berth/watch/proc"
)

func Example_pressure() {
	p, err := proc.ParsePressure([]byte("some avg10=12.50 avg60=3.10 avg300=0.80 total=4250000\n"))
	if err != nil {
		fmt.Println(err)
	}
	fmt.Printf("some task waited for %v in all\n", p.Some)
	// Output: some task waited for 4.25s in all
}
