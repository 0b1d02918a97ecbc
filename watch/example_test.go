package watch_test

import (
	"fmt"
	"math"

	"berth.dev/berth/watch"
)

func Example() {
	used := watch.NewSeries(watch.CPUTime, 60)
	used.Add(1*watch.Second, 10.0)
	used.Add(2*watch.Second, 10.5)
	used.Add(3*watch.Second, math.NaN()) // there should have been one
	used.Add(4*watch.Second, 12.0)
	used.Add(5*watch.Second, 12.7)

	cpus, covered := used.Mean(1*watch.Second, 5*watch.Second)
	fmt.Printf("%.1f CPUs in the %.0f %% of the time that is known\n", cpus, covered*100)
	// Output: 0.6 CPUs in the 50 % of the time that is known
}
