package balloons_test

import (
	"fmt"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/balloons"
)

// Two services in balloons of their own, on a node that keeps CPU 0 for itself.
func Example() {
	m, err := machine.Short("1s8c2t")
	if err != nil {
		fmt.Println(err)
		return
	}
	t, err := place.NewTopology(m)
	if err != nil {
		fmt.Println(err)
		return
	}
	p := balloons.Policy{Types: []balloons.Type{
		{Name: "quiet", Namespaces: []string{"prod"}, PreferNew: true, MaxCPUs: 4, ShareIdle: balloons.CoreLevel, CPUClass: "turbo"},
	}}
	s, err := place.Start(p, t, place.Config{Reserved: cpuset.MustOf(0)})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range []place.Request{
		{ID: "web", Namespace: "prod", Milli: 2500},
		{ID: "db", Namespace: "prod", Milli: 4000},
		{ID: "dns", Namespace: "kube-system", Milli: 100},
		{ID: "job", Namespace: "test"},
	} {
		o, err := place.Place(p, s, &r)
		if err != nil {
			fmt.Println(err)
			return
		}
		if s, err = s.Commit(o); err != nil {
			fmt.Println(err)
			return
		}
	}
	for g := range s.Grants() {
		cpus, _ := s.CPUs(g.ID)
		fmt.Printf("%s runs on %s\n", g.ID, cpus)
	}
	fmt.Println("turbo:", p.CPUClasses(s)["turbo"])
	// Output:
	// db runs on 3-4,11-12
	// dns runs on 0
	// job runs on 8
	// web runs on 1-2,9-10
	// turbo: 1-4,9,11-12
}
