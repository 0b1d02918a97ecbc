package stats

import (
	"math"
	"testing"
)

// The first figure has most; what is decided hands its share on, what is not keeps it.
func TestShares(t *testing.T) {
	t.Parallel()
	plain, unclear := Ratios(noisy(1, 25, 1, 30, 0.1)), Ratios(noisy(2, 25, 1, 1, 30))
	for _, tc := range []struct {
		name    string
		figures []*Paired
		want    []float64 // shares
	}{
		{"one figure", []*Paired{unclear}, []float64{1}},
		{"nothing decided", []*Paired{unclear, unclear, unclear, unclear}, []float64{0.7, 0.1, 0.1, 0.1}},
		{"all decided", []*Paired{plain, plain, plain, plain}, []float64{0.7, 0.8, 0.9, 1}},
		{"a gap", []*Paired{plain, unclear, plain, unclear}, []float64{0.7, 0.8, 0.1, 0.2}},
	} {
		s := NewShares(32, len(tc.figures))
		for i, p := range tc.figures {
			s.Judge(p)
			if math.Abs(s.has-tc.want[i]) > 1e-9 {
				t.Errorf("%s: figure %d has a share of %g, want %g", tc.name, i+1, s.has, tc.want[i])
			}
		}
	}
	// Fifteen blocks that agree decide the first figure of one of 32 comparisons, and seventeen one of 128.
	agree := Ratios(noisy(1, 15, 1, 30, 0.1))
	if j := NewShares(32, 4).Judge(agree); j.Verdict != Worse {
		t.Errorf("15 blocks, first figure: %s (%s)", j.Verdict, j.Why)
	}
	if j := agree.Judge(128); j.Verdict != Inconclusive {
		t.Errorf("15 blocks, one of 128: %s", j.Verdict)
	}
}
