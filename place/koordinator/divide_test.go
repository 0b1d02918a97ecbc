package koordinator

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestDivide(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		amount, unit int
		room, want   []int
	}{
		"nothing":                {0, 1, []int{2, 3}, []int{0, 0}},
		"even":                   {4, 1, []int{8, 8}, []int{2, 2}},
		"the rest to the larger": {5, 1, []int{3, 4}, []int{2, 3}},
		"a part too small":       {6, 1, []int{1, 8, 8}, []int{1, 2, 3}},
		"an empty part":          {4, 1, []int{0, 8, 8}, []int{0, 2, 2}},
		"in cores":               {6, 2, []int{8, 8}, []int{2, 4}},
		"one core":               {2, 2, []int{8, 8, 8}, []int{0, 0, 2}},
		"rounding leaves some":   {5, 2, []int{2, 2, 2}, []int{1, 2, 2}},
		"all of it":              {6, 2, []int{2, 4}, []int{2, 4}},
		"too much":               {7, 1, []int{2, 4}, nil},
		"no part":                {1, 1, nil, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := divide(tt.amount, tt.unit, tt.room); !slices.Equal(got, tt.want) {
				t.Errorf("divide(%d, %d, %v) = %v, want %v", tt.amount, tt.unit, tt.room, got, tt.want)
			}
		})
	}
}

// TestDivideIsExact divides at random: the shares sum to the amount and fit, and
// those in single units differ by at most one where there is room.
func TestDivideIsExact(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		room, total := make([]int, 1+rng.IntN(6)), 0
		for i := range room {
			room[i] = rng.IntN(10)
			total += room[i]
		}
		amount, unit := rng.IntN(total+3), 1+rng.IntN(3)
		shares := divide(amount, unit, room)
		if (shares == nil) != (amount > total) {
			t.Fatalf("divide(%d, %d, %v) = %v", amount, unit, room, shares)
		}
		most, sum := 0, 0
		for i, n := range shares {
			sum += n
			most = max(most, n)
			if n < 0 || n > room[i] {
				t.Fatalf("divide(%d, %d, %v) = %v", amount, unit, room, shares)
			}
		}
		if shares != nil && sum != amount {
			t.Fatalf("divide(%d, %d, %v) = %v", amount, unit, room, shares)
		}
		for i, n := range shares {
			if unit == 1 && n < room[i] && n < most-1 {
				t.Fatalf("divide(%d, %d, %v) = %v is not even", amount, unit, room, shares)
			}
		}
	}
}
