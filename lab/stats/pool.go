package stats

import (
	"math/rand/v2"
	"slices"
)

// pool is the rounds of one scenario, laid out so that the quantile of any
// weighted merge of their seconds is a binary search: no histogram is merged.
type pool struct {
	// values are the occupied buckets of all seconds, ascending, in µs.
	values []int64
	// below[k*seconds+s] is how many requests of second s are in values[k] or less.
	below   []int64
	seconds int
	// first[r] is the index of round r's first second; first[rounds] is seconds.
	first []int
}

// newPool lays the rounds out, without the seconds that have no request.
func newPool(rounds []Round) *pool {
	p := &pool{first: make([]int, 1, len(rounds)+1)}
	var all []Distribution
	for _, r := range rounds {
		for _, s := range r.Seconds {
			if s.total > 0 {
				all = append(all, s)
			}
		}
		p.first = append(p.first, len(all))
	}
	p.seconds = len(all)
	p.values = union(all)
	p.below = make([]int64, len(p.values)*p.seconds)
	for s, d := range all {
		var seen int64
		next := 0
		for k, v := range p.values {
			if next < len(d.buckets) && d.buckets[next].value == v {
				seen += d.buckets[next].count
				next++
			}
			p.below[k*p.seconds+s] = seen
		}
	}
	return p
}

// union returns the values of all buckets, ascending, each once.
func union(all []Distribution) []int64 {
	var values []int64
	for _, d := range all {
		for _, b := range d.buckets {
			values = append(values, b.value)
		}
	}
	slices.Sort(values)
	return slices.Compact(values)
}

// merged makes one second of each round.
func merged(rounds []Round) []Round {
	out := make([]Round, len(rounds))
	for i, r := range rounds {
		out[i] = Round{Seconds: []Distribution{Merge(r.Seconds...)}}
	}
	return out
}

// once returns the weights that count every second once.
func (p *pool) once() []int64 {
	weights := make([]int64, p.seconds)
	for i := range weights {
		weights[i] = 1
	}
	return weights
}

// drawSeconds adds to weights as many seconds of the round as it has, drawn
// with replacement.
func (p *pool) drawSeconds(round int, r *rand.Rand, weights []int64) {
	first, n := p.first[round], p.first[round+1]-p.first[round]
	for range n {
		weights[first+r.IntN(n)]++
	}
}

// quantile is the p-th percentile of the seconds merged with the given weights
// (how often each second counts), by nearest rank; 0 where that is nothing.
func (p *pool) quantile(percent float64, weights []int64) float64 {
	low, high := 0, len(p.values)-1
	if high < 0 {
		return 0
	}
	total := p.count(high, weights)
	if total == 0 {
		return 0
	}
	rank := nearestRank(percent, total)
	for low < high {
		if mid := (low + high) / 2; p.count(mid, weights) >= rank {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return float64(p.values[low])
}

// count is the weighted number of requests in values[k] or less.
func (p *pool) count(k int, weights []int64) int64 {
	var sum int64
	for s, n := range p.below[k*p.seconds : (k+1)*p.seconds] {
		sum += n * weights[s]
	}
	return sum
}
