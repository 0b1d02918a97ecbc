package controlplane_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/place"
	"berth.dev/berth/place/controlplane"
)

// node 0 of 1s2n4c2t has CPUs 0-3 and 8-11, cores 0,8 to 3,11; node 1 the others.
func TestResize(t *testing.T) {
	t.Parallel()
	numa := controlplane.Policy{Allocator: controlplane.NUMA, PinMemory: true}
	bound := controlplane.Policy{Allocator: controlplane.NUMANamespace}
	exclusive := controlplane.Policy{Allocator: controlplane.NUMANamespaceExclusive}
	for name, tc := range map[string]struct {
		policy controlplane.Policy
		others []int // milli-CPU of those placed before and after
		milli  int
		to     int
		want   string // "" if refused
	}{
		"default grows upwards":       {controlplane.Policy{}, nil, 2000, 4000, "0-3"},
		"default shrinks to lowest":   {controlplane.Policy{}, nil, 4000, 2000, "0-1"},
		"default is in the way":       {controlplane.Policy{}, []int{2000}, 2000, 3000, ""},
		"numa grows in its node":      {numa, []int{1000}, 4000, 6000, "0-1,3,8-10"},
		"numa grows over its node":    {numa, nil, 8000, 10000, "0-4,8-12"},
		"numa shrinks to a core":      {numa, nil, 5000, 2000, "0,8"},
		"numa has too little":         {numa, []int{8000}, 2000, 9000, ""},
		"bound grows in its bucket":   {bound, nil, 2000, 4000, "0-1,8-9"},
		"bound shrinks":               {bound, nil, 4000, 1000, "0"},
		"bound has a full bucket":     {bound, nil, 2000, 9000, ""},
		"exclusive grows":             {exclusive, nil, 2000, 3000, "0-1,8"},
		"exclusive has a full bucket": {exclusive, nil, 2000, 9000, ""},
		"owned, then shared":          {exclusive, nil, 2000, 1500, "0-3,8-11"},
		"numa, the same once again":   {numa, nil, 3000, 3000, "0-1,8"},
		"shared, then owned":          {numa, nil, 1500, 2000, "0,8"},
		"shared, with too much time":  {bound, nil, 1500, 8500, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := place.Start(tc.policy, placetest.Topology(t, "1s2n4c2t"), place.Config{NoFloor: true})
			if err != nil {
				t.Fatal(err)
			}
			put := func(id string, milli int) {
				o, err := place.Place(tc.policy, s, &place.Request{ID: id, Class: place.LSE, Milli: milli})
				if err == nil {
					s, err = s.Commit(o)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			put("a", tc.milli)
			for i, milli := range tc.others {
				put(string(rune('b'+i)), milli)
			}
			o, err := place.Resize(tc.policy, s, &place.Request{ID: "a", Class: place.LSE, Milli: tc.to, Explain: true})
			if err != nil {
				if tc.want != "" || !errors.As(err, new(*place.CPUsError)) || len(o.Why.Decisions) == 0 {
					t.Fatalf("%v\n%s", err, o.Why)
				}
				return
			}
			if s, err = s.Commit(o); err != nil {
				t.Fatal(err)
			}
			if got, _ := s.CPUs("a"); got.String() != tc.want {
				t.Errorf("has %s, want %s", got, tc.want)
			}
		})
	}
}

func TestInitialCPUsAreUsedAgain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		allocator controlplane.Allocator
		init, app int
		group     string
		want      string
	}{
		"default, fewer":      {controlplane.Default, 4000, 2000, "g", "2-3"},
		"default, more":       {controlplane.Default, 2000, 4000, "g", "2-5"},
		"numa, the same":      {controlplane.NUMA, 4000, 4000, "g", "1-2,9-10"},
		"numa, more":          {controlplane.NUMA, 2000, 6000, "g", "1-3,9-11"},
		"all that there are":  {controlplane.NUMA, 14000, 14000, "g", "1-7,9-15"},
		"not another group's": {controlplane.NUMA, 2000, 2000, "h", "2,10"},
		"of a bucket":         {controlplane.NUMANamespaceExclusive, 3000, 4000, "g", "1-2,9-10"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := controlplane.Policy{Allocator: tc.allocator}
			s, err := place.Start(p, placetest.Topology(t, "1s2n4c2t"), place.Config{})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range []place.Request{
				{ID: "gap", Class: place.LSE, Milli: 1000},
				{ID: "init", Class: place.LSE, Milli: tc.init, Group: "g", Role: place.Init},
				{ID: "app", Class: place.LSE, Milli: tc.app, Group: tc.group},
			} {
				o, err := place.Place(p, s, &r)
				if err == nil {
					s, err = s.Commit(o)
				}
				if err != nil {
					t.Fatal(err)
				}
				if r.ID == "init" && tc.allocator == controlplane.Default {
					if s, err = s.Release("gap"); err != nil { // a lower CPU is free
						t.Fatal(err)
					}
				}
			}
			if g, _ := s.Grant("app"); g.Own.String() != tc.want {
				t.Errorf("owns %s, want %s", g.Own, tc.want)
			}
		})
	}
}

// What cannot change is refused; memory stays where it is.
func TestResizeKeeps(t *testing.T) {
	t.Parallel()
	p := controlplane.Policy{Allocator: controlplane.NUMA, PinMemory: true}
	memory := []place.Block{{Node: 0, Resource: place.Memory, Bytes: 10}, {Node: 1, Resource: place.Memory, Bytes: 100}}
	s, err := place.Start(p, placetest.Topology(t, "1s2n4c2t"), place.Config{
		Memory: memory, Reserved: cpuset.MustOf(0), Devices: []place.Device{{Name: "gpu0", Kind: "gpu"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	held := place.Request{
		ID: "a", Class: place.LSE, Milli: 2000,
		Memory: []place.Amount{{Resource: place.Memory, Bytes: 50}}, Devices: []place.DeviceRequest{{Kind: "gpu", Count: 1}},
	}
	o, err := place.Place(p, s, &held)
	if err == nil {
		s, err = s.Commit(o)
	}
	if err != nil {
		t.Fatal(err)
	}
	before := o.Grant
	for name, change := range map[string]func(r *place.Request){
		"memory":  func(r *place.Request) { r.Memory = nil },
		"devices": func(r *place.Request) { r.Devices = nil },
		"role":    func(r *place.Request) { r.Role = place.Init },
		"group":   func(r *place.Request) { r.Group = "g" },
		"class":   func(r *place.Request) { r.Class, r.Mode = place.System, place.Exclusive },
		"mode":    func(r *place.Request) { r.Mode = place.Mixed },
	} {
		r := held
		change(&r)
		if _, err := place.Resize(p, s, &r); !errors.As(err, new(*place.RejectedError)) {
			t.Errorf("%s: %v, want a *RejectedError", name, err)
		}
	}
	held.Milli = 4000
	if o, err = place.Resize(p, s, &held); err != nil {
		t.Fatal(err)
	}
	if !cmp.Equal(o.Grant.Memory, before.Memory) || !cmp.Equal(o.Grant.Devices, before.Devices) || o.Grant.Mems != before.Mems {
		t.Errorf("got %+v, want the memory and devices of %+v", o.Grant, before)
	}
}

// A refusal that is to be explained says what was looked at and what it lacks.
func TestRefusalsAreExplained(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		allocator controlplane.Allocator
		r         place.Request
		want      []string
	}{
		"runs":    {controlplane.Default, place.Request{Class: place.LSE, Milli: 12000}, []string{"run of CPUs", "2-4 too short", "6-15 too short"}},
		"numa":    {controlplane.NUMA, place.Request{Class: place.LSE, Milli: 14000}, []string{"free CPUs", "node 0 6 of 8 CPUs", "node 1 7 of 8 CPUs"}},
		"sharers": {controlplane.NUMA, place.Request{Class: place.LSE, Milli: 13000}, []string{"those who share need 2 CPUs, 1 are left"}},
		"time":    {controlplane.NUMA, place.Request{Milli: 12001}, []string{"have 12000m free", "node 0 7 of 8 CPUs"}},
		"bucket":  {controlplane.NUMANamespaceExclusive, place.Request{Class: place.LSE, Milli: 9000, Namespace: "x"}, []string{"namespace \"x\" has bucket", "of 8 CPUs"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := controlplane.Policy{Allocator: tc.allocator}
			s, err := place.Start(p, placetest.Topology(t, "1s2n4c2t"), place.Config{})
			if err != nil {
				t.Fatal(err)
			}
			held := place.Grant{ID: "db", Own: cpuset.MustOf(1, 5)}
			held.Request.ID = "db"
			web := place.Grant{ID: "web", Share: place.Share{Within: s.Config().Allowed, Milli: 2000}}
			web.Request.ID = "web"
			if s, err = s.Reinstate(place.Saved{Grants: []*place.Grant{&held, &web}}); err != nil {
				t.Fatal(err)
			}
			tc.r.ID = "x"
			placetest.Explained(t, p, s, tc.r, tc.want...)
		})
	}
}
