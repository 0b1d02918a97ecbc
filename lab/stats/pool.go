package stats

import (
	"cmp"
	"slices"
)

// pool is the rounds of one scenario, laid out so that the quantile of any
// weighted merge of their seconds is a binary search: no histogram is merged.
type pool struct {
	// values are the occupied buckets of all seconds, ascending, in µs.
	values []float64
	// below[k*seconds+s] is how many requests of second s are in values[k] or less.
	below   []int64
	seconds int
	// first[r] is the index of round r's first second; first[rounds] is seconds.
	first []int
}

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
			if next < len(d.buckets) && float64(d.buckets[next].value) == v {
				seen += d.buckets[next].count
				next++
			}
			p.below[k*p.seconds+s] = seen
		}
	}
	return p
}

// union returns the values of all buckets, ascending, each once.
func union(all []Distribution) []float64 {
	seen := map[int64]bool{}
	var values []int64
	for _, d := range all {
		for _, b := range d.buckets {
			if !seen[b.value] {
				seen[b.value] = true
				values = append(values, b.value)
			}
		}
	}
	slices.SortFunc(values, cmp.Compare[int64])
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = float64(v)
	}
	return out
}

func (p *pool) rounds() int { return len(p.first) - 1 }

// quantile is the p-th percentile of the seconds merged with the given weights
// (how often each second counts), by nearest rank. It is false where nothing
// was recorded.
func (p *pool) quantile(percent float64, weights []int64) (float64, bool) {
	n := len(p.values)
	if n == 0 {
		return 0, false
	}
	total := p.count(n-1, weights)
	if total == 0 {
		return 0, false
	}
	rank := nearestRank(percent, total)
	low, high := 0, n-1
	for low < high {
		if mid := (low + high) / 2; p.count(mid, weights) >= rank {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return p.values[low], true
}

// count is the weighted number of requests in values[k] or less.
func (p *pool) count(k int, weights []int64) int64 {
	var sum int64
	for s, n := range p.below[k*p.seconds : (k+1)*p.seconds] {
		sum += n * weights[s]
	}
	return sum
}
