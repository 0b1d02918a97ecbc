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

// A request that asks for an explanation gets the candidates, their ranks and
// what the others lost on.
func Example_explain() {
	m, _ := machine.Short("1s2n2l2c2t")
	t, _ := place.NewTopology(m)
	p := berth.Policy{}
	s, _ := place.Start(p, t, place.Config{})
	offer, err := place.Place(p, s, &place.Request{ID: "db", Class: place.LSR, Milli: 4000, Explain: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("own", offer.Grant.Own)
	fmt.Print(offer.Grant.Why)
	// Output:
	// own 2-3,10-11
	// node by devices far away, MiB from elsewhere, repulsion, distance, asked strategy, L3 domains, split cores, whole cores opened, whole L3 domains opened, left over
	//   * node 0 [0 0 0 0 0 1 0 0 0 3] chosen
	//     node 1 [0 0 0 0 0 1 0 0 0 4] left over: 4 > 3
	// from l3 1 of node 0: 4 free, 4 of them in whole cores
	// whole L3 by smaller by
	//     l3 0 nothing free
	//   * l3 1 [-4] chosen
	//     l3 2 nothing free
	//     l3 3 nothing free
}
