package berth_test

import (
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
)

// hybrid returns a machine of one node from the number of CPUs of each core in
// each L3 domain; CPUs are numbered in that order.
func hybrid(l3s ...[]int) *machine.Machine {
	m := &machine.Machine{Name: "hybrid"}
	var domains, cores []machine.Domain
	for i, sizes := range l3s {
		var l3 cpuset.Set
		for _, size := range sizes {
			next := m.Online.Len()
			core, _ := cpuset.Range(next, next+size-1)
			for cpu := range core.All() {
				m.CPUs = append(m.CPUs, machine.CPU{ID: cpu})
			}
			cores = append(cores, machine.Domain{Kind: machine.Core, ID: len(cores), KernelID: len(cores), CPUs: core})
			l3, m.Online = l3.Union(core), m.Online.Union(core)
		}
		domains = append(domains, machine.Domain{Kind: machine.L3, ID: i, KernelID: i, CPUs: l3})
	}
	m.Domains = append([]machine.Domain{{Kind: machine.Socket, CPUs: m.Online}, {Kind: machine.Node, CPUs: m.Online}}, append(domains, cores...)...)
	return m
}

func TestCoresAndL3Domains(t *testing.T) {
	t.Parallel()
	// CPU 0 is the floor
	for name, tc := range map[string]struct {
		l3s   [][]int
		held  string
		r     place.Request
		own   string
		fence string
	}{
		"an intact L3 is not broken":           {[][]int{{1, 1, 1, 1, 1, 1}, {1, 1, 1, 1}}, "", lsr("x", 2), "1-2", ""},
		"an intact L3 that fits exactly":       {[][]int{{1, 1, 1, 1, 1, 1}, {1, 1, 1, 1}}, "", lsr("x", 4), "6-9", ""},
		"the small core for one CPU":           {[][]int{{2, 2, 1, 2}}, "", lsr("x", 1), "4", ""},
		"the small core for the odd CPU":       {[][]int{{1, 2, 1, 2}}, "", lsr("x", 3), "1-3", ""},
		"small cores where large ones run out": {[][]int{{1, 2, 1, 1}}, "", lsr("x", 4), "1-4", ""},
		"a half core before a whole one":       {[][]int{{1, 2, 2, 2}}, "1", lsr("x", 3), "2-4", ""},
		"an L3 as a whole, the rest beside it": {[][]int{{1, 1, 2, 2}, {2, 2, 1}}, "1", lsr("x", 7), "2-3,6-10", ""},
		"an L3 open for its small core":        {[][]int{{1, 1, 2, 2}, {2, 1}}, "1", lsr("x", 6), "2-7", ""},
		"no L3 opened where another set fits":  {[][]int{{1, 1, 2, 2}, {2, 1}, {2, 2}}, "1", lsr("x", 6), "2-3,9-12", ""},
		"no fence beside a small core": {
			[][]int{{2, 1}}, "", place.Request{ID: "x", Class: place.LSE, Milli: 1000}, "2", "",
		},
		"a fence beside half a core": {
			[][]int{{1, 1, 2}}, "1", place.Request{ID: "x", Class: place.LSE, Milli: 1000}, "2", "3",
		},
		"four threads: the free half of a core": {[][]int{{1, 4}, {4, 4}}, "5-6,9-12", lsr("x", 2), "7-8", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topo, err := place.NewTopology(hybrid(tc.l3s...))
			if err != nil {
				t.Fatal(err)
			}
			s, err := place.Start(berth.Policy{}, topo, place.Config{})
			if err != nil {
				t.Fatal(err)
			}
			o := s.Offer()
			if held := cpuset.MustParse(tc.held); !held.IsEmpty() {
				o.Grant = &place.Grant{ID: "held", Own: held, Request: place.Request{ID: "held"}}
			} else {
				o.Grant = &place.Grant{ID: "web", Share: place.Share{Within: topo.Online(), Milli: 1000}, Request: place.Request{ID: "web"}}
			}
			if s, err = s.Commit(o); err != nil {
				t.Fatal(err)
			}
			got, err := place.Place(berth.Policy{}, s, &tc.r)
			if err != nil {
				t.Fatal(err)
			}
			if g := got.Grant; g.Own.String() != tc.own || g.Fence.String() != tc.fence {
				t.Errorf("own %q fence %q, want %q and %q", g.Own, g.Fence, tc.own, tc.fence)
			}
		})
	}
}

// Of two nodes, the one where an L3 domain is broken already is preferred to the
// one that would be filled better.
func TestNodeWithBrokenL3ComesFirst(t *testing.T) {
	t.Parallel()
	// node 0 has the L3 domains {0,1,8,9} and {2,3,10,11}, node 1 {4,5,12,13} and {6,7,14,15}
	s := start(t, "1s2n2l2c2t", place.Config{})
	o := s.Offer()
	o.Grant = &place.Grant{ID: "held", Own: cpuset.MustParse("3,6-7,11,14-15"), Request: place.Request{ID: "held"}}
	s, err := s.Commit(o)
	if err != nil {
		t.Fatal(err)
	}
	s = placed(t, s, lsr("x", 2))
	if g, _ := s.Grant("x"); g.Own.String() != "2,10" {
		t.Errorf("own %s, want 2,10", g.Own)
	}
}
