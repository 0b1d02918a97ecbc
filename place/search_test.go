package place_test

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"berth.dev/berth/place"
)

// enough reports whether a set of positions has what is needed.
func enough(c *place.Cover, mask uint) bool {
	for r, need := range c.Need {
		for pos := range c.Has {
			if mask>>pos&1 == 1 {
				need -= c.Has[pos][r]
			}
		}
		if need > 0 {
			return false
		}
	}
	return true
}

func TestCoverAgainstAllSets(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 3))
	for range 600 {
		n, resources := 1+rng.IntN(9), 1+rng.IntN(3)
		c := place.Cover{Need: make([]int64, resources), Has: make([][]int64, n)}
		for pos := range c.Has {
			for range resources {
				c.Has[pos] = append(c.Has[pos], rng.Int64N(10))
			}
		}
		for r := range c.Need {
			c.Need[r] = rng.Int64N(int64(4*n) + 1)
		}
		weight := rng.Perm(n)
		sum := func(set []int) (s int) {
			for _, pos := range set {
				s += weight[pos]
			}
			return s
		}
		c.Rank = func(set []int) place.Rank { return place.Rank{sum(set)} }
		width, least := 0, 0
		for mask := uint(1); mask < 1<<n; mask++ {
			var set []int
			for m := mask; m != 0; m &= m - 1 {
				set = append(set, bits.TrailingZeros(m))
			}
			if enough(&c, mask) && (width == 0 || len(set) < width || len(set) == width && sum(set) < least) {
				width, least = len(set), sum(set)
			}
		}
		set, exact := c.Best()
		if !exact || len(set) != width || width > 0 && sum(set) != least {
			t.Fatalf("%+v: got %v (exact %v), want %d positions of sum %d", c, set, exact, width, least)
		}
	}
}

func TestCoverOfManyStaysBounded(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(4, 4))
	c := place.Cover{Need: []int64{3000, 3000, 3000}}
	for range 64 {
		c.Has = append(c.Has, []int64{rng.Int64N(100), rng.Int64N(100), rng.Int64N(100)})
	}
	set, exact := c.Best()
	var mask uint
	for _, pos := range set {
		mask |= 1 << pos
	}
	if set == nil || exact || !enough(&c, mask) || !slices.IsSorted(set) {
		t.Errorf("got %v, exact %v: want a set that suffices and does not claim to be the best", set, exact)
	}
	c.Most = 3
	if set, _ := c.Best(); set != nil {
		t.Errorf("got %v, want none of at most 3", set)
	}
}

// product merges hints as MergeHints promises, by trying every combination.
func product(all uint64, lists [][]place.Hint, rank func(uint64) place.Rank) (best place.Hint, ok bool) {
	var walk func(i int, nodes, named uint64, same, preferred bool)
	walk = func(i int, nodes, named uint64, same, preferred bool) {
		if i < len(lists) {
			for _, h := range lists[i] {
				switch {
				case h.Any:
					walk(i+1, nodes, named, same, preferred && h.Preferred)
				default:
					m := h.Nodes & all
					walk(i+1, nodes&m, m, same && (named == 0 || named == m), preferred && h.Preferred)
				}
			}
			return
		}
		if nodes == 0 {
			return
		}
		got := place.Hint{Nodes: nodes, Preferred: preferred && same}
		a, b := rank(got.Nodes), rank(best.Nodes)
		order := a.Compare(&b)
		if !ok || got.Preferred != best.Preferred && got.Preferred ||
			got.Preferred == best.Preferred && (order < 0 || order == 0 && got.Nodes < best.Nodes) {
			best, ok = got, true
		}
	}
	walk(0, all, 0, true, true)
	return best, ok
}

func TestMergeHintsAgainstProduct(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 5))
	for range 3000 {
		all := uint64(1)<<(1+rng.IntN(4)) - 1
		lists := make([][]place.Hint, rng.IntN(4))
		for i := range lists {
			for range rng.IntN(5) {
				h := place.Hint{Nodes: 1 + rng.Uint64N(all), Preferred: rng.IntN(2) == 0, Any: rng.IntN(6) == 0}
				lists[i] = append(lists[i], h)
			}
		}
		wide := rng.IntN(3)
		rank := func(nodes uint64) place.Rank {
			n := bits.OnesCount64(nodes) - wide
			return place.Rank{n * n}
		}
		got, ok := place.MergeHints(all, lists, rank)
		want, wantOK := product(all, lists, rank)
		if got != want || ok != wantOK {
			t.Fatalf("all %b, lists %+v: got %+v %v, want %+v %v", all, lists, got, ok, want, wantOK)
		}
	}
}

// every returns a hint for each set of nodes.
func every(nodes int) []place.Hint {
	var list []place.Hint
	for m := uint64(1); m < 1<<nodes; m++ {
		list = append(list, place.Hint{Nodes: m, Preferred: bits.OnesCount64(m) == 1})
	}
	return list
}

func BenchmarkMergeHints(b *testing.B) {
	lists := [][]place.Hint{every(8), every(8), every(8), every(8)}
	for i := range lists {
		for k := range lists[i] {
			lists[i][k].Preferred = false // the slow way: nothing in common
		}
	}
	b.ReportAllocs()
	for range b.N {
		place.MergeHints(255, lists, func(nodes uint64) place.Rank { return place.Rank{bits.OnesCount64(nodes)} })
	}
}

func BenchmarkCover(b *testing.B) {
	c := place.Cover{Need: []int64{40, 40, 40, 40}}
	for i := range 8 {
		c.Has = append(c.Has, []int64{int64(8 + i%3), int64(9 + i%2), 10, int64(7 + i%5)})
	}
	b.ReportAllocs()
	for range b.N {
		c.Best()
	}
}
