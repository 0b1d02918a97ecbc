package stats

import (
	"slices"
	"strings"
	"testing"
)

func TestOrder(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "c", "d"}
	const blocks = 24_000
	seen := map[string]int{}
	for block := range blocks {
		order := Order(names, block, 5)
		if again := Order(names, block, 5); !slices.Equal(order, again) {
			t.Fatalf("block %d: %v, then %v", block, order, again)
		}
		seen[strings.Join(order, "")]++
	}
	if !slices.Equal(names, []string{"a", "b", "c", "d"}) {
		t.Errorf("the argument became %v", names)
	}
	// Chi-square with 23 degrees of freedom: 49.7 at 0.1 %.
	sum := 0.0
	for _, n := range seen {
		sum += float64((n-blocks/24)*(n-blocks/24)) / (blocks / 24)
	}
	if len(seen) != 24 || sum > 49.7 {
		t.Errorf("%d orders, chi-square %.1f", len(seen), sum)
	}
	if slices.Equal(Order(names, 1, 5), Order(names, 1, 6)) && slices.Equal(Order(names, 2, 5), Order(names, 2, 6)) && slices.Equal(Order(names, 3, 5), Order(names, 3, 6)) {
		t.Error("the seed makes no difference")
	}
	if got := Order(nil, 0, 0); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}
