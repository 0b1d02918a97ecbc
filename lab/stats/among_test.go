package stats

import (
	"math"
	"testing"
)

// The shares of all figures are those of their comparisons together, and the first has most.
func TestAmong(t *testing.T) {
	t.Parallel()
	for figures := 1; figures <= 5; figures++ {
		sum := 32 / Among(32, figures, true)
		for range figures - 1 {
			sum += 32 / Among(32, figures, false)
		}
		if math.Abs(sum-1) > 1e-9 {
			t.Errorf("%d figures have %g of a comparison", figures, sum)
		}
	}
	// Fifteen blocks that agree decide the first of four figures of one of 32 comparisons, but no other, and seventeen
	// one of 128.
	agree := Ratios(noisy(1, 15, 1, 30, 0.1))
	for _, tc := range []struct {
		among float64
		want  Verdict
	}{{Among(32, 4, true), Worse}, {Among(32, 4, false), Inconclusive}, {128, Inconclusive}} {
		if j := agree.Judge(tc.among); j.Verdict != tc.want {
			t.Errorf("one of %g: %s (%s)", tc.among, j.Verdict, j.Why)
		}
	}
}
