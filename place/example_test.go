package place_test

import (
	"fmt"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// tight is a whole policy: own CPUs in the fullest node that has room, whole
// cores first.
type tight struct{}

func (tight) Name() string { return "tight" }

func (tight) Place(s *place.State, r *place.Request) (place.Offer, error) {
	free := func(k machine.Kind) func(*place.View, int) place.Rank {
		return func(v *place.View, pos int) place.Rank { return place.Rank{v.FreeIn(k, pos)} }
	}
	v := s.Topology().View(s.Ownable(r.Class), cpuset.Set{})
	cpus, err := v.Take(r.Whole(), []place.Stage{
		{Name: "node", Mode: place.Enter, Kind: machine.Node, Criteria: []string{"free"}, Rank: free(machine.Node)},
		{Name: "core", Mode: place.Fill, Kind: machine.Core, Criteria: []string{"free"}, Rank: free(machine.Core)},
	}, nil)
	if err != nil {
		return place.Offer{}, err
	}
	o := s.Offer()
	o.Grant = &place.Grant{ID: r.ID, Own: cpus, Request: *r}
	return o, nil
}

func Example() {
	m, _ := machine.Short("1s2n4c2t")
	t, _ := place.NewTopology(m)
	s, _ := place.Start(tight{}, t, place.Config{})
	for _, r := range []place.Request{{ID: "a", Milli: 4000}, {ID: "b", Milli: 5000}, {ID: "c", Milli: 7000}} {
		offer, err := place.Place(tight{}, s, &r)
		if err != nil {
			fmt.Println(r.ID, err)
			continue
		}
		if s, err = s.Commit(offer); err != nil {
			fmt.Println(r.ID, err)
			continue
		}
		fmt.Println(r.ID, "owns", offer.Grant.Own)
	}
	fmt.Println("left to share:", s.Sharable())
	// Output:
	// a owns 1-2,9-10
	// b owns 4-6,12-13
	// c not enough CPUs: 7 asked, 6 available
	// left to share: 0,3,7-8,11,14-15
}
