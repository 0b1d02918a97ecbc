package controlplane_test

import (
	"fmt"

	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/controlplane"
)

func Example() {
	m, _ := machine.Short("1s2n4c2t")
	t, _ := place.NewTopology(m)
	p := controlplane.Policy{Allocator: controlplane.NUMANamespaceExclusive, Buckets: 2}
	s, _ := place.Start(p, t, place.Config{})
	for _, r := range []place.Request{
		{ID: "api", Namespace: "shop", Class: place.LSE, Milli: 2000},
		{ID: "web", Namespace: "shop", Class: place.LS, Milli: 500},
		{ID: "batch", Namespace: "reports", Class: place.BE},
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
		fmt.Printf("%-5s %s\n", g.ID, s.Effective(g))
	}
	// Output:
	// api   1,8
	// batch 4-7,12-15
	// web   0,2-3,9-11
}
