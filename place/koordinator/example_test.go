package koordinator_test

import (
	"fmt"

	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/koordinator"
)

func Example() {
	m, _ := machine.Short("2s4c2t")
	t, _ := place.NewTopology(m)
	p := koordinator.Policy{Strategy: place.MostAllocated}
	s, _ := place.Start(p, t, place.Config{})
	for _, r := range []place.Request{
		{ID: "db", Class: place.LSE, Milli: 2000, Exclusivity: place.PCPULevel, Bind: place.SpreadByPCPUs},
		{ID: "api", Class: place.LSR, Milli: 4000},
		{ID: "web", Class: place.LS, Milli: 500},
		{ID: "batch", Class: place.BE},
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
		fmt.Printf("%-5s own %-11q idle %-6q runs on %s\n", g.ID, g.Own, g.Fence, s.Effective(g))
	}
	// Output:
	// api   own "4-5,12-13" idle ""     runs on 4-5,12-13
	// batch own ""          idle ""     runs on 0,3-8,11-15
	// db    own "1-2"       idle "9-10" runs on 1-2
	// web   own ""          idle ""     runs on 0,3,6-8,11,14-15
}
