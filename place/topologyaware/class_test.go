package topologyaware_test

import (
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/place"
	"berth.dev/berth/place/topologyaware"
)

func TestClasses(t *testing.T) {
	t.Parallel()
	isolated := fakekernel.Short(t, "1s2n4c2t") // node 0: 0-3,8-11
	isolated.Isolated = cpuset.MustParse("2-3")
	pin := topologyaware.Default()
	sharing := pin
	sharing.PreferSharedCPUs = true
	plain := pin
	plain.PreferIsolatedCPUs = false
	mode := func(r place.Request, m place.Mode) place.Request { r.Mode = m; return r }
	want := func(r place.Request, w place.Want) place.Request { r.Isolated = w; return r }
	for _, tc := range []struct {
		name  string
		p     topologyaware.Policy
		r     place.Request
		own   string
		milli int // shared
		err   string
	}{
		{name: "best effort", p: pin, r: place.Request{Class: place.BE, Milli: 700}},
		{name: "burstable", p: pin, r: bu(1000, 0), milli: 1000},
		{name: "below 1", p: pin, r: gu(999), milli: 999},
		{name: "1, isolated", p: pin, r: gu(1000), own: "2"},
		{name: "1, isolated avoided", p: pin, r: want(gu(1000), place.Avoid), own: "4"},
		{name: "1, not isolated", p: plain, r: gu(1000), own: "4"},
		{name: "1, isolated wanted", p: plain, r: want(gu(1000), place.Prefer), own: "2"},
		{name: "1, shared preferred", p: sharing, r: gu(1000), milli: 1000},
		{name: "1, shared preferred by hint", p: pin, r: with(gu(1000), "prefer-shared-cpus", "true"), milli: 1000},
		{name: "1, shared refused by hint", p: sharing, r: with(gu(1000), "prefer-shared-cpus", "false"), own: "2"},
		{name: "1.5", p: pin, r: gu(1500), own: "2", milli: 500},
		{name: "1.5, shared preferred", p: sharing, r: gu(1500), milli: 1500},
		{name: "2", p: pin, r: gu(2000), own: "4,12"},
		{name: "2, isolated wanted", p: pin, r: want(gu(2000), place.Prefer), own: "2-3"},
		{name: "2, isolated required", p: pin, r: want(gu(2000), place.Require), own: "2-3"},
		{name: "3, isolated wanted", p: pin, r: want(gu(3000), place.Prefer), own: "4-5,12"},
		{name: "3, isolated required", p: pin, r: want(gu(3000), place.Require), err: "not enough CPUs: 3 asked, 2 available"},
		{name: "2, shared preferred", p: sharing, r: gu(2000), milli: 2000},
		{name: "2, shared preferred by hint", p: pin, r: with(gu(2000), "prefer-shared-cpus", "true"), milli: 2000},
		{name: "2.5", p: pin, r: gu(2500), milli: 2500},
		{name: "2.5, shared refused", p: pin, r: with(gu(2500), "prefer-shared-cpus", "false"), own: "4,12", milli: 500},
		{name: "mode exclusive", p: sharing, r: mode(gu(1500), place.Exclusive), own: "4,12"},
		{name: "mode shared", p: pin, r: mode(gu(2000), place.Shared), milli: 2000},
		{name: "mode mixed", p: pin, r: mode(gu(2500), place.Mixed), own: "4,12", milli: 500},
		{name: "isolated and shared", p: pin, r: want(bu(500, 0), place.Require), err: "request \"a\": isolated CPUs are exclusive"},
		{name: "required bind policy", p: pin, r: place.Request{Bind: place.FullPCPUs, BindRequired: true}, err: "request \"a\": topology-aware has no CPU bind"},
		{name: "level of exclusivity", p: pin, r: place.Request{Exclusivity: place.PCPULevel}, err: "request \"a\": topology-aware has no levels"},
		{name: "word neither true nor false", p: pin, r: with(gu(1000), "prefer-shared-cpus", "maybe"), err: "request \"a\": hint prefer-shared-cpus"},
		{name: "unknown level", p: pin, r: with(gu(1000), "unlimited-burstable", "rack"), err: "request \"a\": hint unlimited-burstable: \"rack\" is not one of"},
		{name: "bad glob", p: topologyaware.Policy{ReservedPoolNamespaces: []string{"["}}, r: be(), err: "request \"a\": reserved pool namespace"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, tc.p, isolated, place.Config{Reserved: cpuset.MustOf(0)})
			tc.r.ID = "a"
			o, err := place.Place(tc.p, s, &tc.r)
			if tc.err != "" || err != nil {
				if err == nil || tc.err == "" || !strings.HasPrefix(err.Error(), tc.err) {
					t.Fatalf("error %v, want %q", err, tc.err)
				}
				return
			}
			if got := o.Grant.Own.String(); got != tc.own {
				t.Errorf("owns %q, want %q", got, tc.own)
			}
			if got := o.Grant.Share.Milli; got != tc.milli {
				t.Errorf("shares %dm, want %dm", got, tc.milli)
			}
		})
	}
}
