package proc_test

import (
	"fmt"
	"testing/fstest"

	"berth.dev/berth/watch/proc"
)

func Example() {
	at := func(text string) proc.Times {
		stat, err := proc.ReadStat(fstest.MapFS{"proc/stat": {Data: []byte(text)}})
		if err != nil {
			fmt.Println(err)
		}
		return stat.Total
	}
	before := at("cpu 1000 0 500 9000 0 0 0 20 0 0\n")
	after := at("cpu 1150 0 550 9190 0 0 0 30 0 0\n")

	passed := after.Since(before)
	fmt.Printf("busy %.2f CPU seconds, steal %.2f, of %.2f\n",
		passed.Busy().Seconds(), passed.Steal.Seconds(), passed.All().Seconds())
	// Output: busy 2.00 CPU seconds, steal 0.10, of 4.00
}
