package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The bounds are those that are tabled: z of 4.05, 2.86, 2.34, 2.02 for four looks at 2.5 %.
func TestOBrienFleming(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		shares []float64
		chance float64
		z      []float64
	}{
		{[]float64{0.25, 0.5, 0.75, 1}, 0.025, []float64{4.049, 2.863, 2.337, 2.024}},
		{[]float64{0.5, 1}, 0.025, []float64{2.797, 1.977}},
		{[]float64{1}, 0.025, []float64{1.96}},
	} {
		for i, p := range OBrienFleming(tt.shares, tt.chance) {
			if want := 0.5 * math.Erfc(tt.z[i]/math.Sqrt2); math.Abs(p-want) > 0.03*want {
				t.Errorf("looks at %v, look %d: p %.6f, want %.6f", tt.shares, i+1, p, want)
			}
		}
	}
}

// Ranks are those of the review's table: 40 to 61 for the median of 100, 90 to 99 for its 95th percentile.
func TestQuantileRanks(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		n         int
		p         float64
		low, high int
	}{{100, 0.5, 40, 61}, {100, 0.95, 90, 100}, {24, 0.5, 7, 18}, {5, 0.5, 0, 6}, {6, 0.5, 1, 6}, {24, 0.95, 20, 25}} {
		if low, high := QuantileRanks(tt.n, tt.p, 0.95); low != tt.low || high != tt.high {
			t.Errorf("percentile %g of %d: ranks %d to %d, want %d to %d", 100*tt.p, tt.n, low, high, tt.low, tt.high)
		}
	}
}

// Of six blocks that all say the same, one of 64 draws of the signs does: the test is exact.
func TestSignFlips(t *testing.T) {
	t.Parallel()
	var blocks [][]float64
	for _, ratio := range []float64{1.4, 1.5, 1.6, 1.7, 1.8, 9} {
		blocks = append(blocks, []float64{ratio, 1})
	}
	p := Ratios(blocks)
	for limit, want := range map[float64][2]float64{1.05: {1. / 64, 1}, 1.3: {1. / 64, 1}, 10: {1, 1. / 64}} {
		if above, below := p.Beyond(limit); math.Abs(above-want[0]) > 1e-9 || math.Abs(below-want[1]) > 1e-9 {
			t.Errorf("against %g: %g above, %g below, want %v", limit, above, below, want)
		}
	}
	// At 2.5 % of each side the smallest and the largest value are the limits of six; one bad block moves the
	// estimate little.
	i := p.Unrejected(0.025)
	if math.Abs(i.Low-1.4) > 1e-3 || math.Abs(i.High-9) > 1e-2 || i.Estimate < 1.5 || i.Estimate > 2 || i.Rounds != 6 {
		t.Errorf("interval %+v", i)
	}
	if i := Ratios(blocks[:5]).Unrejected(0.025); i.Known() {
		t.Errorf("five blocks decide nothing at 2.5 %%: %+v", i)
	}
	d := Differences([][]float64{{0.9, 0}, {0.91, 0}, {0.92, 0}, {0.93, 0}, {0.94, 0}, {0.95, 0}})
	if above, below := d.Beyond(0.97); math.Abs(below-1./64) > 1e-9 || above != 1 {
		t.Errorf("all below 0.97: %g, %g", above, below)
	}
	if i := (&Paired{}).Unrejected(0.025); i != (Interval{}) {
		t.Errorf("of nothing: %+v", i)
	}
}

// At the limit a run says "shown" by mistake with a chance of 2.5 % at most, over both looks (8 and 12 blocks), whatever
// the shape of what differs symmetrically around it.
func TestFalselyShown(t *testing.T) {
	t.Parallel()
	const limit, lives = 1.05, 4000
	looks := []int{8, 12}
	bounds := OBrienFleming([]float64{8. / 12, 1}, 0.025)
	for name, draw := range map[string]func(*rand.Rand) float64{
		"normal":        func(r *rand.Rand) float64 { return 0.2 * r.NormFloat64() },
		"heavy tails":   func(r *rand.Rand) float64 { return 0.2 * r.NormFloat64() / math.Abs(r.NormFloat64()) },
		"skewed figure": func(r *rand.Rand) float64 { return math.Log(r.ExpFloat64() / r.ExpFloat64()) },
		"some are bad":  func(r *rand.Rand) float64 { return []float64{0.05, 3}[r.IntN(5)/4] * r.NormFloat64() },
	} {
		r := rand.New(rand.NewPCG(5, 6))
		shown := 0
		for range lives {
			var blocks [][]float64
			for range looks[len(looks)-1] {
				blocks = append(blocks, []float64{limit * math.Exp(draw(r)), 1})
			}
			for i, n := range looks {
				if _, below := Ratios(blocks[:n]).Beyond(limit); below <= bounds[i] {
					shown++
					break
				}
			}
		}
		most := 0.025*lives + 3.1*math.Sqrt(0.025*0.975*lives)
		if shown < lives/100 || float64(shown) > most {
			t.Errorf("%s: shown in %d of %d runs at the limit, want %d to %.0f", name, shown, lives, lives/100, most)
		}
	}
}

func TestRegress(t *testing.T) {
	t.Parallel()
	x := [][]float64{{1, 0}, {0, 1}, {1, 1}, {2, -1}}
	var y []float64
	for _, row := range x {
		y = append(y, 2*row[0]-3*row[1])
	}
	c := Regress(y, x)
	if len(c) != 2 || math.Abs(c[0]-2) > 1e-9 || math.Abs(c[1]+3) > 1e-9 {
		t.Errorf("coefficients %v, want 2 and -3", c)
	}
	for name, x := range map[string][][]float64{"the same twice": {{1, 1}, {2, 2}, {3, 3}, {1, 1}}, "nothing moves": {{0}, {0}, {0}, {0}}, "none": nil} {
		if c := Regress(y, x); c != nil {
			t.Errorf("%s: %v", name, c)
		}
	}
}
