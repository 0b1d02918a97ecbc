package evidence_test

import (
	"flag"
	"math"
	"math/rand/v2"
	"testing"

	"berth.dev/berth/guard/evidence"
)

var runs = flag.Int("runs", 2000, "simulated runs")

// A hypothesis that is true is rejected in 5 % of runs at most, though it is looked at
// after each figure; as it is where the figures are compared with the mean of few others.
func TestTrueHypothesis(t *testing.T) {
	t.Parallel()
	for _, before := range []int{1, 3, 30, math.MaxInt32} {
		wrong := 0
		for seed := range *runs {
			r := rand.New(rand.NewPCG(uint64(seed), uint64(before)))
			base := r.NormFloat64() / math.Sqrt(float64(before))
			var m evidence.Mean
			for n := 1.0; n <= 500; n++ {
				m.Add(r.NormFloat64())
				if evidence.Against(m.Mean-base, evidence.Information(float64(before), n)) >= evidence.Enough {
					wrong++
					break
				}
			}
		}
		if part := float64(wrong) / float64(*runs); part > 0.05 {
			t.Errorf("compared with %d figures: rejected in %.1f %% of runs, want at most 5", before, 100*part)
		} else {
			t.Logf("compared with %d figures: rejected in %.1f %% of runs", before, 100*part)
		}
	}
}

// A false one is rejected, the sooner the larger the difference is.
func TestFalseHypothesis(t *testing.T) {
	t.Parallel()
	last := 1 << 30
	for _, difference := range []float64{0.3, 1, 3} {
		took := 0
		for seed := range 200 {
			r := rand.New(rand.NewPCG(uint64(seed), 1))
			var m evidence.Mean
			for evidence.Against(m.Mean, float64(m.N)) < evidence.Enough {
				if m.Add(r.NormFloat64() + difference); m.N > 2000 {
					t.Fatalf("%v standard deviations: not rejected after %d figures", difference, m.N)
				}
			}
			took += m.N
		}
		if took > last || difference == 3 && took > 2*200 {
			t.Errorf("%v standard deviations: rejected after %.1f figures", difference, float64(took)/200)
		}
		last = took
		t.Logf("%v standard deviations: rejected after %.1f figures", difference, float64(took)/200)
	}
}

func TestAgainst(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ difference, information, least, most float64 }{
		{math.NaN(), 5, 1, 1},
		{3, 0, 1, 1},
		{3, math.Inf(1), 1, 1},
		{0, 1e6, 0, 0.001},             // nothing is there, by much information
		{-3, 10, 0, 0.01},              // the contrary
		{-1e9, 1e9, 0, 0},              // no NaN
		{1e9, 1e9, 1e290, math.Inf(1)}, // nor that
	} {
		if got := evidence.Against(c.difference, c.information); !(got >= c.least && got <= c.most) {
			t.Errorf("Against(%v, %v) = %v, want %v to %v", c.difference, c.information, got, c.least, c.most)
		}
	}
}

func TestMean(t *testing.T) {
	t.Parallel()
	var all, a, b evidence.Mean
	for i, v := range []float64{3, 1, 4, 1, 5, 9, 2, 6} {
		all.Add(v)
		if i < 3 {
			a.Add(v)
		} else {
			b.Add(v)
		}
	}
	a.Join(&b)
	a.Join(&evidence.Mean{})
	if a.N != all.N || math.Abs(a.Mean-all.Mean) > 1e-12 || math.Abs(a.Deviation(0, 0)-all.Deviation(0, 0)) > 1e-12 {
		t.Errorf("joined %+v, want %+v", a, all)
	}
	if got := all.Deviation(0, 0); math.Abs(got-2.748376) > 1e-6 {
		t.Errorf("deviation %v, want 2.748376", got)
	}
	var none evidence.Mean
	if none.Join(&evidence.Mean{}); none != (evidence.Mean{}) {
		t.Errorf("none joined with none: %+v", none)
	}
	var one evidence.Mean
	one.Add(7)
	if got := one.Deviation(0.1, 3); math.Abs(got-0.1) > 1e-12 {
		t.Errorf("deviation of one figure %v, want the guess", got)
	}
}

// The information in a difference is that of two rows of figures, and none without one of them.
func TestInformation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ m, n, want float64 }{{4, 4, 2}, {1, math.MaxInt32, 1}, {0, 5, 0}, {5, 0, 0}, {0, 0, 0}, {math.NaN(), 5, 0}} {
		if got := evidence.Information(c.m, c.n); math.Abs(got-c.want) > 1e-6 || math.IsNaN(got) {
			t.Errorf("Information(%v, %v) = %v, want %v", c.m, c.n, got, c.want)
		}
	}
}
