package stats

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// Paired is one figure of a scenario and of its references (what it is compared with), block by block. The order within
// a block is drawn, and what a block has in common, as the machine's speed at the time, divides out.
//
// The estimate is that of Hodges and Lehmann (1963): the median of the means of two differences, here of two blocks,
// each from any of its references (Lehmann 1963). It bears bad blocks, up to 29 % of all. As a difference is symmetric
// about 0 where scenario and reference are alike, it is right there however skewed the figures are.
//
// The interval inverts the test that goes with the estimate. Its statistic U is the mean sign of those means, with a
// standard error from the blocks by the jackknife (Sen 1960; Arvesen 1969): a scenario that is worse also varies more,
// and a test that exchanges scenario and reference then has intervals that are too short, as Fligner and Policello
// (1981) show for two samples. The standard error is taken no smaller than at the estimate, nor than without a
// difference.
type Paired struct {
	blocks [][]float64 // the scenario first; logarithms where ratio
	ratio  bool
	own    [][]float64  // the differences of each block
	diffs  []difference // all of them, ascending
	before []float64    // weight of those before each of diffs, and of all
	means  []float64    // of the signs of each block with all others: room for statistic
	effect float64      // the estimate
	se     float64      // its U's standard error
}

// difference of a scenario from one of its block's n references, which weighs 1/n.
type difference struct {
	value, weight float64
	block         int
}

// Ratios compares positive figures by their ratio: each block has that of the scenario and then those of its references,
// one or more. Blocks with another figure are left out.
func Ratios(blocks [][]float64) *Paired {
	var logs [][]float64
	for _, block := range blocks {
		row := make([]float64, len(block))
		usable := true
		for i, v := range block {
			row[i] = math.Log(v)
			usable = usable && !math.IsNaN(row[i]) && !math.IsInf(row[i], 0)
		}
		if usable {
			logs = append(logs, row)
		}
	}
	return newPaired(logs, true)
}

// Differences compares shares (0-1) by their difference.
func Differences(blocks [][]float64) *Paired { return newPaired(blocks, false) }

func newPaired(blocks [][]float64, ratio bool) *Paired {
	p := &Paired{ratio: ratio}
	for _, block := range blocks {
		if len(block) < 2 {
			continue
		}
		var own []float64
		for _, reference := range block[1:] {
			own = append(own, block[0]-reference)
			p.diffs = append(p.diffs, difference{block[0] - reference, 1 / float64(len(block)-1), len(p.own)})
		}
		p.blocks, p.own = append(p.blocks, block), append(p.own, own)
	}
	slices.SortFunc(p.diffs, func(x, y difference) int { return cmp.Compare(x.value, y.value) })
	p.before = make([]float64, 1, len(p.diffs)+1)
	for i, d := range p.diffs {
		p.before = append(p.before, p.before[i]+d.weight)
	}
	p.means = make([]float64, len(p.blocks))
	if p.Blocks() > 1 {
		low := p.solve(func(effect float64) bool { u, _ := p.statistic(effect); return u > tied })
		high := p.solve(func(effect float64) bool { u, _ := p.statistic(effect); return u > -tied })
		p.effect = (low + high) / 2
		_, p.se = p.statistic(p.effect)
	} else if p.Blocks() == 1 {
		for _, d := range p.diffs {
			p.effect += d.value * d.weight
		}
	}
	return p
}

// Blocks is how many blocks are compared.
func (p *Paired) Blocks() int { return len(p.blocks) }

// Higher is in how many blocks the scenario is above all its references.
func (p *Paired) Higher() (n int) {
	for _, own := range p.own {
		if slices.Min(own) > tied {
			n++
		}
	}
	return n
}

// Lower is in how many blocks the scenario is below all its references.
func (p *Paired) Lower() (n int) {
	for _, own := range p.own {
		if slices.Max(own) < -tied {
			n++
		}
	}
	return n
}

// tied is how far apart values count as equal: what rounding of logarithms and shares leaves.
const tied = 1e-12

// statistic is U less an effect, and its standard error by the jackknife.
func (p *Paired) statistic(effect float64) (u, err float64) {
	n := float64(len(p.blocks))
	clear(p.means)
	below, upTo := len(p.diffs), len(p.diffs) // those whose mean with d is less than the effect; at most
	for _, d := range p.diffs {
		other := 2*effect - d.value
		for upTo > 0 && p.diffs[upTo-1].value > other+tied {
			upTo--
		}
		for below = min(below, upTo); below > 0 && p.diffs[below-1].value >= other-tied; {
			below--
		}
		p.means[d.block] += d.weight * (p.before[len(p.diffs)] - p.before[upTo] - p.before[below])
	}
	for i, own := range p.own {
		for _, x := range own {
			for _, y := range own {
				p.means[i] -= sign(x+y-2*effect) / float64(len(own)*len(own))
			}
		}
		p.means[i] /= n - 1
		u += p.means[i] / n
	}
	squares := 0.0
	for _, m := range p.means {
		squares += (m - u) * (m - u)
	}
	if n < 3 {
		return u, math.Inf(1)
	}
	return u, 2 * math.Sqrt(squares*(n-1)/n) / (n - 2)
}

func sign(x float64) float64 {
	switch {
	case x > tied:
		return 1
	case x < -tied:
		return -1
	}
	return 0
}

// without is U's standard error without a difference: sqrt(4/(3n)) with one reference, as that of Wilcoxon's signed-rank
// statistic; with a second one, half of what differs is new.
func (p *Paired) without() float64 {
	n, references := float64(len(p.blocks)), float64(len(p.diffs))/float64(len(p.blocks))
	return math.Sqrt(4 / (3 * n) * (1 + 1/references) / 2)
}

// solve returns the effect up to which f is true, among those from less than the least to more than the largest
// difference.
func (p *Paired) solve(f func(effect float64) bool) float64 {
	low, high := p.diffs[0].value-1, p.diffs[len(p.diffs)-1].value+1
	for range 28 {
		if at := (low + high) / 2; f(at) {
			low = at
		} else {
			high = at
		}
	}
	return (low + high) / 2
}

// Interval is the estimate with an interval of the given confidence (0-1): of the ratio, or of the difference. Where the
// blocks are too few for an interval, its limits are the estimate.
func (p *Paired) Interval(confidence float64) Interval {
	n := len(p.blocks)
	if n == 0 {
		return Interval{}
	}
	low, high := p.effect, p.effect
	if n >= leastBlocks {
		z, least := normal(confidence), max(p.se, p.without())
		rejects := func(effect, sign float64) bool {
			u, err := p.statistic(effect)
			return sign*u > z*max(err, least)
		}
		if z*least < 1 { // else no U is large enough
			low = min(low, p.solve(func(effect float64) bool { return rejects(effect, 1) }))
			high = max(high, p.solve(func(effect float64) bool { return !rejects(effect, -1) }))
		}
	}
	return Interval{Estimate: p.natural(p.effect), Low: p.natural(low), High: p.natural(high), Confidence: confidence, Rounds: n}
}

// natural takes an effect back to the scale of the figures.
func (p *Paired) natural(effect float64) float64 {
	if p.ratio {
		return math.Exp(effect)
	}
	return effect
}

// tail is the chance of so large a U, or of so small a one for sign -1, if the effect is the given one: by its standard
// error, which is 0 where all blocks agree.
func (p *Paired) tail(effect, sign float64) float64 {
	n := len(p.blocks)
	u, err := p.statistic(effect)
	switch {
	case n < 3 || sign*u <= 0:
		return 1
	case err == 0:
		return 0
	}
	return distuv.StudentsT{Sigma: 1, Nu: float64(n - 1)}.Survival(sign * u / err)
}

// P is the two-sided p-value of no difference, the larger of two: by U, and by the exchange of a block's values (Hodges
// and Lehmann 1962), which is exact where scenario and references are alike.
func (p *Paired) P() float64 {
	above, below := p.exchange()
	return min(1, 2*max(min(above, below), min(p.tail(0, 1), p.tail(0, -1))))
}

// within is the larger p-value of two: that the effect is up or more, and that it is down or less.
func (p *Paired) within(down, up float64) float64 {
	at := func(effect, sign float64) float64 {
		u, _ := p.statistic(effect)
		return max(p.tail(effect, sign), distuv.UnitNormal.Survival(sign*u/p.without()))
	}
	return max(at(up, -1), at(down, 1))
}

// Beyond is the sign-flip test of a true effect of the given size (a ratio, or a difference): the chances that so large a
// figure, and so small a one, comes of the order alone, which was drawn. They hold if the figure differs by that much in
// each block, or differs symmetrically around it: else the drawn order says nothing of an effect that is not 0. Signs
// are those of ranks, so that a bad block counts as one.
func (p *Paired) Beyond(effect float64) (above, below float64) {
	if p.ratio {
		effect = math.Log(effect)
	}
	return p.beyond(effect)
}

func (p *Paired) beyond(effect float64) (above, below float64) {
	shifted := Paired{blocks: make([][]float64, len(p.blocks))}
	for i, block := range p.blocks {
		shifted.blocks[i] = slices.Clone(block)
		shifted.blocks[i][0] -= effect
	}
	return shifted.exchange()
}

// Unrejected is the estimate with the effects that Beyond rejects on neither side, at a chance each. Its limits are the
// estimate where the blocks are too few to reject anything.
func (p *Paired) Unrejected(chance float64) Interval {
	i := Interval{Confidence: 1 - 2*chance, Rounds: len(p.blocks)}
	if len(p.blocks) == 0 {
		return Interval{}
	}
	low, high := p.effect, p.effect
	if least, most := p.diffs[0].value-1, p.diffs[len(p.diffs)-1].value+1; p.rejects(least, chance) && p.rejects(most, chance) {
		low = min(low, p.solve(func(effect float64) bool { above, _ := p.beyond(effect); return above <= chance }))
		high = max(high, p.solve(func(effect float64) bool { _, below := p.beyond(effect); return below > chance }))
	}
	i.Estimate, i.Low, i.High = p.natural(p.effect), p.natural(low), p.natural(high)
	return i
}

func (p *Paired) rejects(effect, chance float64) bool {
	above, below := p.beyond(effect)
	return min(above, below) <= chance
}

// exactBlocks is up to how many blocks all exchanges are counted; beyond, their sum is as good as normal.
const exactBlocks = 24

// exchange takes the block's mean off all values, ranks those of all blocks together, and adds up the scenario's ranks.
// It returns the chances that the sum is at least, and at most, what it is, if each exchange of the values of one block
// is as likely.
func (p *Paired) exchange() (above, below float64) {
	if len(p.blocks) == 0 {
		return 1, 1
	}
	ranks := p.ranks()
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
	case len(ranks) <= exactBlocks:
		return exchanges(ranks, sum)
	case variance == 0:
		return 1, 1
	}
	z := (sum - mean) / math.Sqrt(variance)
	return distuv.UnitNormal.Survival(z), distuv.UnitNormal.CDF(z)
}

// ranks are those of the aligned values; equal values share theirs.
func (p *Paired) ranks() [][]float64 {
	type place struct {
		value float64
		rank  *float64
	}
	var places []place
	ranks := make([][]float64, len(p.blocks))
	for b, block := range p.blocks {
		ranks[b] = make([]float64, len(block))
		mean := 0.0
		for _, v := range block {
			mean += v / float64(len(block))
		}
		for i, v := range block {
			places = append(places, place{v - mean, &ranks[b][i]})
		}
	}
	slices.SortFunc(places, func(x, y place) int { return cmp.Compare(x.value, y.value) })
	for from := 0; from < len(places); {
		to := from
		for to < len(places) && places[to].value-places[from].value < tied {
			to++
		}
		for _, at := range places[from:to] {
			*at.rank = float64(from+to+1) / 2
		}
		from = to
	}
	return ranks
}

// exchanges are the shares of all exchanges in which the scenario's ranks add up to at least, and to at most, sum.
func exchanges(ranks [][]float64, sum float64) (above, below float64) {
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
	for at, c := range chance {
		if at >= int(2*sum) {
			above += c
		}
		if at <= int(2*sum) {
			below += c
		}
	}
	return above, below
}
