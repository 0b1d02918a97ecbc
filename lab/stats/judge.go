package stats

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/stat/distuv"
)

// Margins are the differences below which no reader should care: a scenario within them is as good as its reference, and
// a smaller difference is never called worse or better.
const (
	Margin      = 0.10  // of a ratio: within ±10 %
	ShareMargin = 0.005 // of a share of requests: one in 200
)

// errorRate is the chance that a run says anything false: it is shared out over its comparisons.
const errorRate = 0.05

// Judgement is what one comparison comes to.
type Judgement struct {
	// Interval is the ratio to the reference, or the difference from it, in the typical block, with its 95 % interval.
	Interval
	// P is the two-sided p-value of no difference, times the number of comparisons (at most 1).
	P       float64
	Verdict Verdict
	// Why is one clause without a full stop.
	Why string
	// MoreBlocks is about how many further blocks would decide a comparison that is not decided, if its estimate stayed
	// where it is; 0 if that cannot be said or is more than maxMoreBlocks.
	MoreBlocks int
	// Sees is the smallest ratio, or difference, that such a comparison finds with 80 % chance; 0 if unknown.
	Sees float64
}

// maxMoreBlocks bounds the advice of Judge.
const maxMoreBlocks = 1000

// Judge says what a comparison comes to that is one of so many of the run (not a whole number where some weigh more).
//
// Worse or better: no difference is rejected at 5 % divided by the number of comparisons, and the estimate is beyond the
// margin. Equivalent: differences of the margin, and more, are rejected at the same rate, on either side (two one-sided
// tests). Of the two, "no difference" and "the margin or more", one at most is true, so the chance that a run says
// anything false is at most 5 %, whatever its comparisons have in common (Bonferroni). All else is Inconclusive.
func (p *Paired) Judge(comparisons float64) Judgement {
	n := p.Blocks()
	if n == 0 {
		return Judgement{Verdict: Invalid, P: 1, Why: "no block in which both count"}
	}
	j := Judgement{Interval: p.Interval(confidence), Verdict: Inconclusive, P: min(1, p.P()*comparisons)}
	up, down := math.Log(1+Margin), math.Log(1-Margin)
	if !p.ratio {
		up, down = ShareMargin, -ShareMargin
	}
	rate := errorRate / comparisons
	needs := p.enough(rate)
	switch beyond := p.effect > up || p.effect < down; {
	case j.P < errorRate && beyond && p.effect > 0:
		j.Verdict, j.Why = Worse, p.figure(j.Low)+" at least"
	case j.P < errorRate && beyond:
		j.Verdict, j.Why = Better, p.figure(j.High)+" at most"
	case p.within(down, up) < rate:
		j.Verdict, j.Why = Equivalent, fmt.Sprintf("the difference is less than %s", p.margin())
	case n < needs:
		j.Why = fmt.Sprintf("%d %s cannot decide one of %.0f comparisons", n, plural(float64(n), "block"), comparisons)
	case j.P < errorRate:
		j.Why = fmt.Sprintf("the two differ, but maybe by less than %s", p.margin())
	default:
		j.Why = p.chance(j.Estimate)
	}
	spread := p.spread(j.Interval)
	if n < leastBlocks || spread == 0 {
		if n < needs {
			j.MoreBlocks = needs - n
		}
		return j
	}
	z := normal(1 - rate)
	j.Sees = p.natural((z + power) * spread)
	if j.Verdict == Inconclusive {
		gap := math.Abs(p.effect) // to no difference, or to the margin, whichever is easier to reject
		if inside := min(up-p.effect, p.effect-down); p.effect < up && p.effect > down {
			gap = inside
		}
		j.MoreBlocks = max(blocksFor(n, z*spread, gap), needs) - n
		if j.MoreBlocks <= 0 {
			j.MoreBlocks = 1
		}
		if gap <= 0 || j.MoreBlocks > maxMoreBlocks {
			j.MoreBlocks = 0
		}
	}
	return j
}

// power is how far beyond its limit an effect has to lie to be found with 80 % chance, in standard errors.
const power = 0.84

// leastBlocks is how many blocks an interval takes, and a guess at what more of them would do.
const leastBlocks = 8

// BlocksFor is about how many blocks, instead of those of the judgement, see a ratio with 80 % chance; 0 if unknown.
func (j Judgement) BlocksFor(ratio float64) int {
	if !(j.Sees > 1) {
		return 0
	}
	return blocksFor(j.Rounds, math.Log(j.Sees), math.Log(ratio))
}

// blocksFor is how many blocks bring a width that n blocks have down to gap.
func blocksFor(n int, width, gap float64) int {
	return int(math.Ceil(min(float64(n)*(width/gap)*(width/gap), 1e6)))
}

// enough is how many blocks that all agree reject no difference at a rate: of all exchanges in so many, one alone has the
// scenario beyond its references in all of them.
func (p *Paired) enough(rate float64) int {
	values := 1 + float64(len(p.diffs))/float64(len(p.blocks))
	return int(math.Floor(math.Log(2/rate)/math.Log(values))) + 1
}

// spread is the standard error of the effect, from its interval.
func (p *Paired) spread(i Interval) float64 {
	if i.Rounds < leastBlocks {
		return 0
	}
	width := i.High - i.Low
	if p.ratio {
		width = math.Log(i.High / i.Low)
	}
	return width / 2 / normal(i.Confidence)
}

func (p *Paired) margin() string {
	if p.ratio {
		return fmt.Sprintf("%.0f %%", 100*Margin)
	}
	return fmt.Sprintf("%.1f points", 100*ShareMargin)
}

func (p *Paired) figure(v float64) string {
	if p.ratio {
		return figure(v) + " times"
	}
	return fmt.Sprintf("%+.1f points", 100*v)
}

// chance says that an estimate is not told from no difference.
func (p *Paired) chance(estimate float64) string { return p.figure(estimate) + " is not beyond chance" }

// normal is the two-sided quantile of the normal distribution.
func normal(confidence float64) float64 { return distuv.UnitNormal.Quantile((1 + confidence) / 2) }

// figure prints a ratio with two decimals, or three digits where it is large.
func figure(x float64) string {
	switch {
	case x < 0.01:
		return "less than 0.01"
	case x >= 1000:
		return "more than 1000"
	case x < 10:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.3g", x)
}
