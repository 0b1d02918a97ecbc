package topologyaware_test

import (
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/place"
	"berth.dev/berth/place/topologyaware"
)

// 1s2n4c2t: node 0 has CPUs 0-3,8-11, node 1 has 4-7,12-15; CPU 0 is the floor.
func TestInitialCPUsAreUsedAgain(t *testing.T) {
	t.Parallel()
	in := func(r place.Request, role place.Role, group string) place.Request {
		r.Role, r.Group = role, group
		return r
	}
	mixed := gu(2500)
	mixed.Mode = place.Mixed
	for _, tc := range []struct {
		name   string
		before []place.Request
		r      place.Request
		want   string // owns
	}{
		{"the same", []place.Request{in(gu(4000), place.Init, "g")}, in(gu(4000), place.App, "g"), "4-5,12-13"},
		{"fewer", []place.Request{in(gu(4000), place.Init, "g")}, in(gu(2000), place.App, "g"), "4,12"},
		{"more", []place.Request{in(gu(2000), place.Init, "g")}, in(gu(4000), place.App, "g"), "4-5,12-13"},
		{"mixed", []place.Request{in(gu(2000), place.Init, "g")}, in(mixed, place.App, "g"), "4,12"},
		{"of a full machine", []place.Request{in(gu(15000), place.Init, "g")}, in(gu(15000), place.App, "g"), "1-15"},
		{"by the next initial one", []place.Request{in(gu(2000), place.Init, "g")}, in(gu(2000), place.Init, "g"), "4,12"},
		{"not by another group", []place.Request{in(gu(2000), place.Init, "g")}, in(gu(2000), place.App, "h"), "1,9"},
		{"not those of apps", []place.Request{in(gu(2000), place.App, "g")}, in(gu(2000), place.App, "g"), "1,9"},
		{"not twice", []place.Request{in(gu(2000), place.Init, "g"), in(gu(2000), place.Sidecar, "g")}, in(gu(2000), place.App, "g"), "1,9"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := topologyaware.Default()
			s := start(t, p, fakekernel.Short(t, "1s2n4c2t"), place.Config{})
			for i, r := range append(tc.before, tc.r) {
				r.ID = string(rune('a' + i))
				o, err := place.Place(p, s, &r)
				if err == nil {
					s, err = s.Commit(o)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			last := string(rune('a' + len(tc.before)))
			g, _ := s.Grant(last)
			if g.Own.String() != tc.want {
				t.Errorf("owns %s, want %s", g.Own, tc.want)
			}
			r := g.Request
			if o, err := place.Resize(p, s, &r); err != nil || o.Grant.Own != g.Own {
				t.Errorf("resized to the same: %+v, %v", o.Grant, err)
			}
		})
	}
}

// A refusal that is to be explained names every pool and what it has.
func TestRefusalsAreExplained(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	s := start(t, p, fakekernel.Short(t, "1s2n4c2t"), place.Config{})
	for i, r := range []place.Request{gu(4000), bu(2500, 0)} {
		r.ID = string(rune('a' + i))
		o, err := place.Place(p, s, &r)
		if err == nil {
			s, err = s.Commit(o)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	nodes := bu(9000, 0)
	nodes.Nodes, nodes.NodesRequired = cpuset.MustOf(0), true
	for name, tc := range map[string]struct {
		r    place.Request
		want []string
	}{
		"own":    {gu(12000), []string{"socket 0 too few CPUs that can be owned (9 CPUs to own, 0 isolated, 9500m to share)", "node 0 too few"}},
		"shared": {bu(9501, 0), []string{"socket 0 too little time left", "node 1 too little time left (4000m to share)"}},
		"nodes":  {nodes, []string{"node 1 reaches beyond the asked nodes", "node 0 too little time left"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.r.ID = "x"
			placetest.Explained(t, p, s, tc.r, tc.want...)
		})
	}
	more := gu(14000)
	more.ID, more.Explain = "a", true
	if o, err := place.Resize(p, s, &more); err == nil || !strings.Contains(o.Why.String(), "node 1: too few CPUs that can be owned (8 CPUs to own") {
		t.Errorf("resize: %v\n%s", err, o.Why)
	}
}
