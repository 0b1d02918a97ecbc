package replay

import (
	"math"
	"testing"
)

func TestPair(t *testing.T) {
	t.Parallel()
	nan := math.NaN()
	for name, tc := range map[string]struct {
		base, other []float64
		pairs       int
		mean, half  float64
	}{
		"none":               {nil, nil, 0, 0, nan},
		"one":                {[]float64{1}, []float64{3}, 1, 2, nan},
		"alike":              {[]float64{1, 5, 9}, []float64{3, 7, 11}, 3, 2, 0},
		"five":               {[]float64{0, 0, 0, 0, 0}, []float64{1, 2, 3, 4, 5}, 5, 3, 2.776 * math.Sqrt(2.5/5)},
		"spread of both":     {[]float64{100, 1, 50}, []float64{101, 3, 53}, 3, 2, 4.303 * math.Sqrt(1.0/3)},
		"absent is not zero": {[]float64{1, nan, 2, 5}, []float64{2, 7, 3, nan}, 2, 1, 0},
	} {
		got := Pair(tc.base, tc.other)
		halves := math.Abs(got.Half-tc.half) < 0.002 || math.IsNaN(got.Half) && math.IsNaN(tc.half)
		if got.Pairs != tc.pairs || math.Abs(got.Mean-tc.mean) > 1e-9 || !halves {
			t.Errorf("%s: %+v, want %d pairs, %v ± %v", name, got, tc.pairs, tc.mean, tc.half)
		}
	}
}
