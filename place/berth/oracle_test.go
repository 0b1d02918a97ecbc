package berth_test

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
)

// On machines of at most 12 CPUs no set of CPUs has a better rank than the one
// that the policy chose.
func TestNeverWorseThanBruteForce(t *testing.T) {
	t.Parallel()
	compared := 0
	seeds := uint64(300)
	if os.Getenv(placetest.LongEnv) != "" {
		seeds = 10000
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 12))
		topo, err := place.NewTopology(placetest.Machine(rng, 12))
		if err != nil {
			t.Fatal(err)
		}
		s, err := place.Start(berth.Policy{}, topo, place.Config{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			r := plain(rng, i)
			o, err := place.Place(berth.Policy{}, s, &r)
			if err != nil {
				// each of several nodes keeps room for a fence
				if best := brute(s, &r); best != nil && (r.Class != place.LSE || topo.Count(machine.Node, best.Own) == 1) {
					t.Fatalf("seed %d: %+v: %v, but %s would do", seed, r, err, best.Own)
				}
				continue
			}
			if !o.Grant.Own.IsEmpty() {
				compared++
				best := brute(s, &r)
				if best == nil {
					t.Fatalf("seed %d: %+v: got %s, which the books refuse", seed, r, o.Grant.Own)
				}
				if slices.Compare(rank(s, best), rank(s, o.Grant)) < 0 {
					t.Fatalf("seed %d: %+v: got %s of rank %v, but there is %+v of rank %v", seed, r, o.Grant.Own, rank(s, o.Grant), best.Own, rank(s, best))
				}
			}
			if s, err = s.Commit(o); err != nil {
				t.Fatal(err)
			}
		}
	}
	if compared < 100 {
		t.Errorf("only %d placements were compared", compared)
	}
}

// plain makes requests without preferences.
func plain(rng *rand.Rand, i int) place.Request {
	r := place.Request{ID: fmt.Sprintf("w%d", i), Class: place.LSR, Milli: 1000 * (1 + rng.IntN(5))}
	switch rng.IntN(5) {
	case 0:
		r.Class = place.LSE
	case 1:
		r.Class = place.BE
	case 2:
		r.Memory = []place.Amount{{Resource: place.Memory, Bytes: int64(1+rng.IntN(3000)) << 20}}
	}
	return r
}

// brute tries all sets of CPUs that the books allow, or nil.
func brute(s *place.State, r *place.Request) *place.Grant {
	t := s.Topology()
	free := s.Ownable(r.Class)
	if r.Class == place.LSE {
		free = t.Whole(machine.Core, free)
	}
	free = free.Minus(t.Machine().Isolated)
	cpus, n := free.Slice(), own(r)
	var best *place.Grant
	var bestRank []int
	for mask := uint(0); mask < 1<<len(cpus); mask++ {
		if bits.OnesCount(mask) != n {
			continue
		}
		g := &place.Grant{ID: r.ID, Request: *r}
		for m := mask; m != 0; m &= m - 1 {
			g.Own, _ = g.Own.With(cpus[bits.TrailingZeros(m)])
		}
		if r.Class == place.LSE {
			g.Fence = t.Touched(machine.Core, g.Own).Minus(g.Own)
		}
		if !roomFor(s, g) {
			continue
		}
		if _, _, err := s.FitMemory(t.NodesOf(g.Own), r.Memory); err != nil {
			continue
		}
		if got := rank(s, g); best == nil || slices.Compare(got, bestRank) < 0 {
			best, bestRank = g, got
		}
	}
	return best
}

// roomFor reports whether the books take the grant.
func roomFor(s *place.State, g *place.Grant) bool {
	if g.Own.IsEmpty() {
		return own(&g.Request) == 0
	}
	o := s.Offer()
	o.Grant = g
	_, err := s.Commit(o)
	return err == nil
}

func TestClasses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		r                 place.Request
		own, fence, share string
		lent              bool
	}{
		"LSE":                {place.Request{Class: place.LSE, Milli: 4000}, "1-2,9-10", "", "", false},
		"LSE rounds up":      {place.Request{Class: place.LSE, Milli: 2500}, "1-2,9", "10", "", false},
		"LSR":                {place.Request{Class: place.LSR, Milli: 2000}, "1,9", "", "", true},
		"LSR odd":            {place.Request{Class: place.LSR, Milli: 3000}, "1,8-9", "", "", true},
		"LSR with a rest":    {place.Request{Class: place.LSR, Milli: 2500}, "1,9", "", "0-3,8-11", true},
		"LS":                 {place.Request{Class: place.LS, Milli: 2000}, "", "", "0-3,8-11", false},
		"LS too large":       {place.Request{Class: place.LS, Milli: 9000}, "", "", "0-15", false},
		"LS of high limit":   {place.Request{Class: place.LS, Milli: 100, LimitMilli: 9000}, "", "", "0-15", false},
		"LS of nothing":      {place.Request{Class: place.LS}, "", "", "0-15", false},
		"BE":                 {place.Request{Class: place.BE, Milli: 500}, "", "", "0-15", false},
		"LS of its own":      {place.Request{Class: place.LS, Milli: 2000, Mode: place.Exclusive}, "1,9", "", "", false},
		"LSR shared":         {place.Request{Class: place.LSR, Milli: 2000, Mode: place.Shared}, "", "", "0-3,8-11", false},
		"mixed":              {place.Request{Class: place.LS, Milli: 3700, Mode: place.Mixed, SharedMilli: 1700}, "1,9", "", "0-3,8-11", false},
		"spread":             {place.Request{Class: place.LSR, Milli: 3000, Bind: place.SpreadByPCPUs}, "1-3", "", "", true},
		"PCPULevel":          {place.Request{Class: place.LSR, Milli: 1000, Exclusivity: place.PCPULevel}, "1", "9", "", false},
		"PCPULevel spread":   {place.Request{Class: place.LSR, Milli: 2000, Bind: place.SpreadByPCPUs, Exclusivity: place.PCPULevel}, "1-2", "9-10", "", false},
		"NUMANodeLevel":      {place.Request{Class: place.LSR, Milli: 2000, Exclusivity: place.NUMANodeLevel}, "4,12", "5-7,13-15", "", false},
		"node asked":         {place.Request{Class: place.LSR, Milli: 2000, Nodes: cpuset.MustOf(1)}, "4,12", "", "", true},
		"more than one node": {place.Request{Class: place.LSR, Milli: 10000}, "1-5,9-13", "", "", true},
		"even":               {place.Request{Class: place.LSR, Milli: 12000, Strategy: place.DistributeEvenly}, "1-3,4-6,9-11,12-14", "", "", true},
		"emptiest node":      {place.Request{Class: place.LSR, Milli: 2000, Strategy: place.LeastAllocated}, "4,12", "", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := place.Start(berth.Policy{}, placetest.Topology(t, "1s2n4c2t"), place.Config{})
			if err != nil {
				t.Fatal(err)
			}
			tc.r.ID = "x"
			o, err := place.Place(berth.Policy{}, s, &tc.r)
			if err != nil {
				t.Fatal(err)
			}
			g := o.Grant
			want := &place.Grant{Own: cpuset.MustParse(tc.own), Fence: cpuset.MustParse(tc.fence), Lent: tc.lent}
			if g.Own != want.Own || g.Fence != want.Fence || g.Share.Within != cpuset.MustParse(tc.share) || g.Lent != want.Lent {
				t.Errorf("own %s fence %s share %s lent %v, want %s %s %s %v", g.Own, g.Fence, g.Share.Within, g.Lent, tc.own, tc.fence, tc.share, tc.lent)
			}
		})
	}
}
