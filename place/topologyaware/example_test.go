package topologyaware_test

import (
	"fmt"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/topologyaware"
)

func Example() {
	m, _ := machine.Short("2s2n2l8c2t")
	t, _ := place.NewTopology(m)
	p := topologyaware.Default()
	s, _ := place.Start(p, t, place.Config{Reserved: cpuset.MustOf(0)})
	for _, r := range []place.Request{
		{ID: "api", Class: place.LSE, Milli: 2000, LimitMilli: 2000},
		{ID: "cache", Class: place.LSR, Milli: 1500, LimitMilli: 1500},
		{ID: "web", Class: place.LS, Milli: 1000, LimitMilli: 20000},
	} {
		offer, err := place.Place(p, s, &r)
		if err != nil {
			fmt.Println(r.ID, err)
			continue
		}
		if s, err = s.Commit(offer); err != nil {
			fmt.Println(r.ID, err)
		}
	}
	for g := range s.Grants() {
		fmt.Printf("%-5s own %-6s runs on %s\n", g.ID, "\""+g.Own.String()+"\"", s.Effective(g))
	}
	// Output:
	// api   own "8,72" runs on 8,72
	// cache own "16"   runs on 16-23,80-87
	// web   own ""     runs on 32-47,96-111
}
