package berth_test

import (
	"fmt"

	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
)

func Example() {
	m, _ := machine.Short("1s2n4c2t")
	t, _ := place.NewTopology(m)
	p := berth.Policy{}
	s, _ := place.Start(p, t, place.Config{})
	for _, r := range []place.Request{
		{ID: "api", Class: place.LSE, Milli: 4000},
		{ID: "cache", Class: place.LSR, Milli: 2500},
		{ID: "web", Class: place.LS, Milli: 500},
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
		fmt.Printf("%-5s own %-9s runs on %s\n", g.ID, "\""+g.Own.String()+"\"", s.Effective(g))
	}
	// Output:
	// api   own "1-2,9-10" runs on 1-2,9-10
	// cache own "3,11"    runs on 0,3,8,11
	// web   own ""        runs on 0,8
}
