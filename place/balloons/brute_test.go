package balloons_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/balloons"
)

// rank is how good a choice of CPUs for a balloon is, lower is better: whether it
// lies in a domain with CPUs of the balloon, how narrow the domain is, how many of
// the balloon's CPUs it has, how full its branch of the machine is.
func rank(t *place.Topology, chosen, free, has cpuset.Set, sign int) []int {
	kinds := []machine.Kind{machine.Core, machine.L2, machine.L3, machine.Node, machine.Die, machine.Socket}
	for _, own := range []int{0, 1} {
		for narrow, kind := range kinds {
			for _, u := range t.Units(kind) {
				n := u.CPUs.Overlap(&has)
				if u.First < 0 || !u.CPUs.Contains(chosen) || own == 0 && n == 0 {
					continue
				}
				out := []int{own, narrow, -n}
				for wide := machine.Socket; wide <= kind; wide++ {
					left := 0
					if up := t.At(wide, u.First); up >= 0 {
						left = t.Units(wide)[up].CPUs.Overlap(&free)
					}
					out = append(out, sign*left)
				}
				return out
			}
		}
	}
	return []int{2}
}

// subsets yields all sets of n members.
func subsets(s []int, n int, yield func(cpuset.Set)) {
	var walk func(from, left int, got cpuset.Set)
	walk = func(from, left int, got cpuset.Set) {
		if left == 0 {
			yield(got)
			return
		}
		for i := from; i+left <= len(s); i++ {
			next, _ := got.With(s[i])
			walk(i+1, left-1, next)
		}
	}
	walk(0, n, cpuset.Set{})
}

// TestBruteForce compares every choice with all others on small machines.
func TestBruteForce(t *testing.T) {
	t.Parallel()
	checked := 0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		m := placetest.Machine(rng, 12)
		m.Isolated = cpuset.Set{}
		sign, branches := 1, balloons.Pack
		if seed%2 == 1 {
			sign, branches = -1, balloons.Spread
		}
		p := balloons.Policy{Branches: branches, Types: []balloons.Type{{Name: "x", PreferNew: true}, {Name: "y", MaxBalloons: 1}, {Name: "default"}}}
		s, err := place.Start(p, topology(t, m), place.Config{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			r := add(fmt.Sprint(i), []string{"x", "y"}[rng.IntN(2)], 1000*(1+rng.IntN(4))).place
			o, err := place.Place(p, s, &r)
			if err != nil {
				continue
			}
			next, err := s.Commit(o)
			if err != nil {
				t.Fatal(err)
			}
			var has cpuset.Set
			if old, ok := s.Pool(o.Grant.Share.Pool); ok {
				has = old.CPUs
			}
			now, _ := next.Pool(o.Grant.Share.Pool)
			chosen, free := now.CPUs.Minus(has), s.Ownable(place.LS)
			got := rank(s.Topology(), chosen, free, has, sign)
			subsets(free.Slice(), chosen.Len(), func(other cpuset.Set) {
				if better := rank(s.Topology(), other, free, has, sign); slices.Compare(better, got) < 0 {
					t.Fatalf("seed %d: %s of rank %v beside %s, but %s has %v", seed, chosen, got, has, other, better)
				}
			})
			s = next
			checked++
		}
	}
	if checked < 200 {
		t.Errorf("only %d choices", checked)
	}
}
