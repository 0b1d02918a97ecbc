package stats

import (
	"math"

	"gonum.org/v1/gonum/stat/distuv"
)

// OBrienFleming is for each look at a run, which has the given share (0-1) of all figures by then, up to which one-sided
// p-value it may decide: over all looks a false decision has the given chance. The bound is that of O'Brien and Fleming
// (1979), strict at first, and at the end nearly that of a run with one look. Shares ascend; the last one is 1.
func OBrienFleming(shares []float64, chance float64) []float64 {
	low, high := 0.0, 10.0
	for range 40 {
		if bound := (low + high) / 2; crossed(shares, bound) > chance {
			low = bound
		} else {
			high = bound
		}
	}
	bounds := make([]float64, len(shares))
	for i, share := range shares {
		bounds[i] = distuv.UnitNormal.Survival(high / math.Sqrt(share))
	}
	return bounds
}

// crossed is the chance that a Brownian motion is beyond a bound at any of some instants up to 1
// (Armitage, McPherson and Rowe 1969).
func crossed(at []float64, bound float64) (chance float64) {
	const points, from = 200, -6.0
	step := (bound - from) / points
	value := func(i int) float64 { return from + (float64(i)+0.5)*step }
	var density []float64 // of where it is, if it was not beyond so far; nil is at 0
	before := 0.0
	for _, t := range at {
		move := distuv.Normal{Sigma: math.Sqrt(t - before)}
		next := make([]float64, points)
		if density == nil {
			chance += move.Survival(bound)
			for i := range next {
				next[i] = move.Prob(value(i))
			}
		} else {
			for j, d := range density {
				chance += d * step * move.Survival(bound-value(j))
				for i := range next {
					next[i] += d * step * move.Prob(value(i)-value(j))
				}
			}
		}
		density, before = next, t
	}
	return chance
}

// QuantileRanks are the ranks, from 1, of the ordered values between which the quantile p (0-1) of
// what n values were drawn from lies with at least the given confidence, whatever its distribution.
// A rank of 0 or n+1 says that there are too few values for a limit on that side.
func QuantileRanks(n int, p, confidence float64) (low, high int) {
	below := distuv.Binomial{N: float64(n), P: p}
	tail := (1 - confidence) / 2
	for low < n && below.CDF(float64(low)) <= tail {
		low++
	}
	high = n + 1
	for high > 1 && 1-below.CDF(float64(high-2)) <= tail {
		high--
	}
	return low, high
}

// Settled are the scenarios that need no more rounds, by a look at the run so far: a strategy that is decided against its
// references, the tenant alone and no isolation, and is beaten by another strategy; and no isolation ("" if there is none)
// where it is decided against alone, and all strategies are against it. Beaten is said of an interval that lies beyond 1: no
// verdict comes of it, but only to whom the time goes.
//
// What is dropped keeps the verdicts of the look, and the others get those of the end: each look has its own half of the
// chance of a false one (Judge with twice the number of comparisons).
func Settled(strategies []string, alone, nothing string, ratio func(scenario, against string) (Verdict, Interval)) []string {
	decided := func(scenario, against string) bool {
		v, _ := ratio(scenario, against)
		return v == Worse || v == Better || v == Equivalent
	}
	beaten := func(scenario, by string) bool {
		_, own := ratio(scenario, by)
		_, other := ratio(by, scenario)
		return own.Known() && own.Low > 1 || other.Known() && other.High < 1
	}
	var settled []string
	all := true
	for _, s := range strategies {
		all = all && (nothing == "" || decided(s, nothing))
		if !decided(s, alone) || nothing != "" && !decided(s, nothing) {
			continue
		}
		for _, other := range strategies {
			if beaten(s, other) {
				settled = append(settled, s)
				break
			}
		}
	}
	if nothing != "" && all && decided(nothing, alone) {
		settled = append(settled, nothing)
	}
	return settled
}
