package stats

import (
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// Options steer the resampling. The zero value works.
type Options struct {
	Resamples int // of the bootstrap; 2,000 if not positive
}

func (o Options) resamples() int {
	if o.Resamples <= 0 {
		return 2000
	}
	return o.Resamples
}

// confidence is the nominal coverage of all intervals.
const confidence = 0.95

// newRandom is the source of one interval: nothing is shared, so the order in
// which intervals are computed does not matter, and the same data gives the same one.
func newRandom() *rand.Rand { return rand.New(rand.NewPCG(0, 0x6265727468)) }

// Quantiles are percentiles (0-100) of all requests of the rounds together, in
// microseconds, with their confidence intervals. Rounds without a request are
// ignored; with no request at all an Interval is zero.
//
// The intervals come from a two-level bootstrap: rounds are drawn with
// replacement, then seconds within each of them, and the quantile is that of the
// merged histograms. A plain percentile interval is too short where rounds are
// few, so its tails are moved out to where a t distribution would have them
// (Hesterberg 2015, "expanded percentile interval").
func Quantiles(rounds []Round, ps []float64, opt Options) []Interval {
	rounds = recorded(rounds)
	out := make([]Interval, len(ps))
	if len(rounds) == 0 {
		return out
	}
	data := poolSeconds(rounds)
	weights := data.once()
	for i, p := range ps {
		q := data.quantile(p, weights)
		out[i] = Interval{Estimate: q, Low: q, High: q, Confidence: confidence, Rounds: len(rounds)}
	}
	if len(rounds) < 2 {
		return out
	}
	drawn := make([][]float64, len(ps))
	r := newRandom()
	for range opt.resamples() {
		clear(weights)
		for range rounds {
			data.drawSeconds(r.IntN(len(rounds)), r, weights)
		}
		for i, p := range ps {
			drawn[i] = append(drawn[i], data.quantile(p, weights))
		}
	}
	tail := expandedTail(len(rounds), confidence)
	for i := range out {
		slices.Sort(drawn[i])
		k := max(1, int(tail*float64(opt.resamples()+1)))
		out[i].Low = min(drawn[i][k-1], out[i].Estimate)
		out[i].High = max(drawn[i][opt.resamples()-k], out[i].Estimate)
	}
	return out
}

// Ratio is the p-th percentile (0-100) of other divided by that of base, each
// over all blocks together, with its confidence interval. The two are paired:
// rounds at the same index belong to one block. A block without a request on
// either side is left out, and so are rounds without a partner.
//
// The interval is symmetric on the log scale: blocks are drawn with
// replacement, whole; the standard deviation of the log ratio, corrected for
// small samples by sqrt(R/(R-1)), is taken times Student's t with R-1 degrees
// of freedom. Seconds are not drawn within the rounds here: they vary within
// the blocks already, and counting that twice made the interval of p99 up to
// 1.7 times too long (docs/statistics.md).
func Ratio(base, other []Round, p float64, opt Options) Interval {
	base, other = paired(base, other)
	blocks := len(base)
	if blocks == 0 {
		return Interval{}
	}
	below, above := poolRounds(base), poolRounds(other)
	weights := below.once()
	ratio := func() float64 { return max(above.quantile(p, weights), 1) / max(below.quantile(p, weights), 1) }
	estimate := ratio()
	half := 0.0
	if blocks >= 2 {
		r := newRandom()
		var sum, squares float64
		for range opt.resamples() {
			clear(weights)
			for range blocks {
				weights[r.IntN(blocks)]++
			}
			d := math.Log(ratio() / estimate)
			sum += d
			squares += d * d
		}
		n := float64(opt.resamples())
		variance := max(0, squares/n-(sum/n)*(sum/n))
		half = student(blocks, confidence) * smallSample(blocks) * math.Sqrt(variance)
	}
	return Interval{
		Estimate: estimate, Low: estimate * math.Exp(-half), High: estimate * math.Exp(half),
		Confidence: confidence, Rounds: blocks,
	}
}

// student is the two-sided quantile of Student's t with n-1 degrees of freedom.
func student(n int, confidence float64) float64 {
	return distuv.StudentsT{Sigma: 1, Nu: float64(n - 1)}.Quantile((1 + confidence) / 2)
}

// smallSample undoes that the bootstrap's variance of n things is short by (n-1)/n.
func smallSample(n int) float64 { return math.Sqrt(float64(n) / float64(n-1)) }

// expandedTail is the share to cut off at each end of the bootstrap's
// distribution: that of a normal distribution beyond the t quantile.
func expandedTail(n int, confidence float64) float64 {
	return distuv.UnitNormal.CDF(-student(n, confidence) * smallSample(n))
}

// recorded returns the rounds that have requests.
func recorded(rounds []Round) []Round {
	var out []Round
	for _, r := range rounds {
		if r.Requests() > 0 {
			out = append(out, r)
		}
	}
	return out
}

// paired returns the rounds of the blocks that have requests on both sides.
func paired(base, other []Round) (b, o []Round) {
	for i := range min(len(base), len(other)) {
		if base[i].Requests() > 0 && other[i].Requests() > 0 {
			b, o = append(b, base[i]), append(o, other[i])
		}
	}
	return b, o
}
