package stats

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"
)

// aligned are the logarithms of one figure of each block, of a scenario and of the references that it is compared with.
// The order within a block is drawn, so that under a ratio of 1 to all references every exchange of the values of one
// block is as likely: the aligned rank test of Hodges and Lehmann (1962) takes the block's mean off, ranks all values of
// all blocks together, and compares the scenario's ranks with those of the exchanges. With one reference it is nearly
// Wilcoxon's signed-rank test.
type aligned [][]float64 // by block; the scenario first

// align leaves out the blocks in which a value is not positive.
func align(scenario []float64, references ...[]float64) (a aligned) {
blocks:
	for b := range scenario {
		row := []float64{math.Log(scenario[b])}
		for _, r := range references {
			row = append(row, math.Log(r[b]))
		}
		for _, v := range row {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				continue blocks
			}
		}
		a = append(a, row)
	}
	return a
}

// exactBlocks is up to how many blocks all exchanges are counted.
const exactBlocks = 12

// above is the chance, if the log ratio is theta, that the scenario's ranks are at least as high as they are.
func (a aligned) above(theta float64) float64 {
	if len(a) == 0 {
		return 1
	}
	ranks := a.ranks(theta)
	var sum, mean, variance float64
	for _, row := range ranks {
		of := 0.0
		for _, r := range row {
			of += r / float64(len(row))
		}
		for _, r := range row {
			variance += (r - of) * (r - of) / float64(len(row))
		}
		sum, mean = sum+row[0], mean+of
	}
	switch {
	case len(a) <= exactBlocks:
		return exchanges(ranks, sum)
	case variance == 0:
		return 1
	}
	return distuv.UnitNormal.Survival((sum - mean) / math.Sqrt(variance))
}

// ranks are those of the aligned values if the log ratio is theta; equal values share theirs.
func (a aligned) ranks(theta float64) [][]float64 {
	type place struct {
		value float64
		rank  *float64
	}
	var places []place
	ranks := make([][]float64, len(a))
	for b, row := range a {
		ranks[b] = make([]float64, len(row))
		mean := -theta / float64(len(row))
		for _, v := range row {
			mean += v / float64(len(row))
		}
		for i, v := range row {
			if i == 0 {
				v -= theta
			}
			places = append(places, place{v - mean, &ranks[b][i]})
		}
	}
	slices.SortFunc(places, func(p, q place) int { return cmp.Compare(p.value, q.value) })
	for from := 0; from < len(places); {
		to := from
		for to < len(places) && places[to].value-places[from].value < 1e-12 {
			to++
		}
		for _, p := range places[from:to] {
			*p.rank = float64(from+to+1) / 2
		}
		from = to
	}
	return ranks
}

// exchanges is the share of all exchanges in which the scenario's ranks add up to at least sum.
func exchanges(ranks [][]float64, sum float64) float64 {
	chance := []float64{1} // by twice the sum
	for _, row := range ranks {
		next := make([]float64, len(chance)+int(2*slices.Max(row)))
		for at, c := range chance {
			for _, r := range row {
				next[at+int(2*r)] += c / float64(len(row))
			}
		}
		chance = next
	}
	total := 0.0
	for _, c := range chance[int(2*sum):] {
		total += c
	}
	return total
}

// p is the two-sided p-value of a ratio of 1.
func (a aligned) p() float64 {
	upper := a.above(0)
	lower := a.swapped().above(0)
	return min(1, 2*min(upper, lower))
}

// swapped is a with all values negated.
func (a aligned) swapped() aligned {
	out := make(aligned, len(a))
	for b, row := range a {
		for _, v := range row {
			out[b] = append(out[b], -v)
		}
	}
	return out
}

// reach bounds the ratios that are looked at: 1/reach to reach.
const reach = 1e6

// interval holds the ratios that the test does not reject.
func (a aligned) interval(confidence float64) Interval {
	solve := func(a aligned, chance float64) float64 { // the log ratio from which on above is at least chance
		low, high := -math.Log(reach), math.Log(reach)
		for range 30 {
			if at := (low + high) / 2; a.above(at) < chance {
				low = at
			} else {
				high = at
			}
		}
		return (low + high) / 2
	}
	tail := (1 - confidence) / 2
	other := a.swapped()
	return Interval{
		Estimate: math.Exp((solve(a, 0.5) - solve(other, 0.5)) / 2),
		Low:      math.Exp(solve(a, tail)), High: math.Exp(-solve(other, tail)),
		Confidence: confidence, Rounds: len(a),
	}
}

// TestAlignedOracle holds p against all exchanges of the values within blocks, ranked anew each time.
func TestAlignedOracle(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		a := make(aligned, 2+r.IntN(5))
		for b := range a {
			a[b] = []float64{r.NormFloat64() + 1, r.NormFloat64(), float64(r.IntN(2))}
		}
		sum := func(a aligned) (sum float64) {
			for _, row := range a.ranks(0) {
				sum += row[0]
			}
			return sum
		}
		atLeast, all, was := 0, 0, sum(a)
		var exchange func(b int)
		exchange = func(b int) {
			if b == len(a) {
				if all++; sum(a) >= was {
					atLeast++
				}
				return
			}
			for i := range a[b] {
				a[b][0], a[b][i] = a[b][i], a[b][0]
				exchange(b + 1)
				a[b][0], a[b][i] = a[b][i], a[b][0]
			}
		}
		exchange(0)
		if got, want := a.above(0), float64(atLeast)/float64(all); math.Abs(got-want) > 1e-9 {
			t.Fatalf("chance of %v = %g, want %g", a, got, want)
		}
	}
}

// TestAlignedNormal: where all exchanges are no longer counted, the chances hardly change.
func TestAlignedNormal(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		a := make(aligned, exactBlocks+1)
		for b := range a {
			a[b] = []float64{r.NormFloat64() + 0.3, r.NormFloat64(), r.NormFloat64()}
		}
		ranks, sum := a.ranks(0), 0.0
		for _, row := range ranks {
			sum += row[0]
		}
		if got, want := a.above(0), exchanges(ranks, sum); math.Abs(got-want) > 0.02 {
			t.Errorf("chance = %g, want %g", got, want)
		}
	}
}

func TestAlignedInterval(t *testing.T) {
	scenario, ones := []float64{2, 2.2, 1.8, 2.1, 1.9, 2.05, 400, 0}, slices.Repeat([]float64{1}, 8)
	got := align(scenario, ones, ones).interval(0.95)
	if got.Rounds != 7 || got.Low < 1.7 || got.Estimate < 1.9 || got.Estimate > 2.3 || got.High < 2.1 {
		t.Errorf("interval %+v", got)
	}
	if got := align(ones, ones).p(); got != 1 {
		t.Errorf("alike: p = %g", got)
	}
	if got := align(scenario[:2], ones[:2]).interval(0.95); got.High < reach/2 || got.Low > 2/reach {
		t.Errorf("two blocks have an interval: %+v", got)
	}
}
