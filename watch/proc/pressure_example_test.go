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
	fmt.Printf("some task waited %.1f %% of the last 10 s, %v in all\n", p.Some.Avg10*100, p.Some.Total)
	// Output: some task waited 12.5 % of the last 10 s, 4.25s in all
}
