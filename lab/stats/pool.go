package stats

import "math/rand/v2"

// pool is the rounds of one scenario, laid out so that the quantile of any
// weighted merge of their parts is a binary search: no histogram is merged. The
// parts are what is drawn: seconds, or whole rounds.
type pool struct {
	// values are the occupied buckets of all parts, ascending, in µs.
	values []int64
	// below[k*parts+i] is how many requests of part i are in values[k] or less.
	below []int64
	parts int
	// first[r] is the index of round r's first second; first[rounds] is parts.
	first []int
}

// poolSeconds makes each second a part, but for those without a request.
func poolSeconds(rounds []Round) *pool {
	var parts [][]Distribution
	first := make([]int, 1, len(rounds)+1)
	for _, r := range rounds {
		for i, s := range r.Seconds {
			if s.total > 0 {
				parts = append(parts, r.Seconds[i:i+1])
			}
		}
		first = append(first, len(parts))
	}
	p := newPool(parts)
	p.first = first
	return p
}

// poolRounds makes each round a part.
func poolRounds(rounds []Round) *pool {
	parts := make([][]Distribution, len(rounds))
	for i, r := range rounds {
		parts[i] = r.Seconds
	}
	return newPool(parts)
}

// newPool lays out parts, each the sum of its distributions.
func newPool(parts [][]Distribution) *pool {
	var row [slots]int // 1 + index of values, of each occupied slot
	for _, part := range parts {
		for _, d := range part {
			for _, b := range d.buckets {
				row[b.slot] = 1
			}
		}
	}
	p := &pool{parts: len(parts)}
	for i, occupied := range row {
		if occupied > 0 {
			p.values = append(p.values, valueOf(i))
			row[i] = len(p.values)
		}
	}
	p.below = make([]int64, len(p.values)*p.parts)
	for i, part := range parts {
		for _, d := range part {
			for _, b := range d.buckets {
				p.below[(row[b.slot]-1)*p.parts+i] += b.count
			}
		}
	}
	for i := p.parts; i < len(p.below); i++ {
		p.below[i] += p.below[i-p.parts]
	}
	return p
}

// once returns the weights that count every part once.
func (p *pool) once() []int64 {
	weights := make([]int64, p.parts)
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

// quantile is the p-th percentile of the parts merged with the given weights
// (how often each part counts), by nearest rank; 0 where that is nothing.
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
	for i, n := range p.below[k*p.parts : (k+1)*p.parts] {
		sum += n * weights[i]
	}
	return sum
}
