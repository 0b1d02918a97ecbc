package detect_test

import (
	"fmt"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch"
)

// A service is throttled by its own quota in nine periods out of ten.
func Example() {
	d, err := detect.New(detect.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	d.Track(detect.Workload{Group: "api", Sensitive: true})
	api := watch.Subject{Scope: watch.Group, Name: "api"}
	for second := range 6 {
		now := watch.Time(second) * watch.Second
		d.Observe([]watch.Sample{
			{Time: now, Subject: api, Quantity: watch.CPUPeriods, Value: 10 * float64(second)},
			{Time: now, Subject: api, Quantity: watch.CPUThrottledPeriods, Value: 9 * float64(second)},
		})
		findings := d.Judge(now)
		if second == 5 {
			fmt.Print(findings[0])
		}
	}
	// Output:
	// api is throttled by its own CPU limit
	//   sure: 86 % (5 of 5 windows)
	//   seen: group api: periods in which its quota ran out 90 % (at least 10 % counts)
	//   unknown: CPU time withheld by quotas
	//   would help: let the victim burst above its quota
	//   would help: raise the victim's own limit
}
