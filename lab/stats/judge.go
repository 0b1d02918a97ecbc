package stats

import (
	"fmt"
	"math"
	"sort"
)

// Margin is the relative difference below which no reader should care: a scenario
// within ±10 % of the baseline is equivalent to it, and a smaller difference is
// never called worse or better.
const Margin = 0.10

// maxMoreRounds bounds the advice of Judge: what would take more rounds than
// these is not worth waiting for.
const maxMoreRounds = 200

// Judgement is a verdict with its grounds.
type Judgement struct {
	Verdict Verdict
	// Why is one clause without a full stop.
	Why string
	// MoreRounds is about how many further rounds would decide an inconclusive
	// comparison if its estimate stayed where it is; 0 if that cannot be said or
	// would take more than 200.
	MoreRounds int
}

// Judge says what a ratio to the baseline (from Ratio) comes to. floor is the
// ratio of the repeated baseline to the baseline at the same quantile, nil if
// the run has none; comparisons is how many scenarios are compared with this
// baseline in the same table.
//
// Worse or better needs three things: the interval excludes 1; the estimate is
// beyond the Margin; and it is further from 1 (on the log scale) than the
// farther end of floor's interval, that is, than the baseline's difference from
// itself may be. The third also keeps the chance that any of five comparisons
// is called worse or better, when all are alike, below 5 %; without a floor the
// interval is widened for the number of comparisons instead (Bonferroni).
//
// Equivalent means that the whole interval lies within the Margin: two
// one-sided tests, each at half of 1 - Confidence. Anything else is
// Inconclusive. A ratio without blocks is Invalid.
func Judge(ratio Interval, floor *Interval, comparisons int) Judgement {
	if ratio.Rounds == 0 || !(ratio.Estimate > 0) {
		return Judgement{Verdict: Invalid, Why: "no block with both a valid baseline and a valid round of this scenario"}
	}
	if ratio.Rounds < 2 {
		return Judgement{Verdict: Inconclusive, Why: "one round has no interval", MoreRounds: 1}
	}
	c := comparison{
		rounds: ratio.Rounds, confidence: ratio.Confidence,
		effect: math.Log(ratio.Estimate), half: halfLog(ratio),
		t: student(ratio.Rounds, ratio.Confidence),
	}
	if floor != nil && floor.Rounds >= 2 && floor.Estimate > 0 {
		c.reach = math.Abs(math.Log(floor.Estimate)) + halfLog(*floor)
	} else {
		c.comparisons = max(1, comparisons)
	}
	j := Judgement{Verdict: c.verdict(c.rounds)}
	j.Why = c.why(j.Verdict, ratio, floor)
	if j.Verdict == Inconclusive && ratio.Rounds >= minAdvice {
		j.MoreRounds = c.moreRounds()
	}
	return j
}

// minAdvice is how many blocks a guess at the rounds still needed takes.
const minAdvice = 4

// comparison is a ratio on the log scale, with what it has to exceed.
type comparison struct {
	rounds       int
	confidence   float64
	effect, half float64 // estimate, half width of its interval
	t            float64 // Student's, in half
	reach        float64 // the floor's; 0 without one
	comparisons  int     // to correct for; 0 with a floor
}

// verdict is that of the same estimates after the given number of rounds: the
// widths shrink with the square root of it, and with Student's t. Where there
// is no floor, the effect must exceed a half width corrected for the number of
// comparisons.
func (c comparison) verdict(rounds int) Verdict {
	t, shrink := c.t, 1.0
	if rounds != c.rounds {
		t = student(rounds, c.confidence)
		shrink = math.Sqrt(float64(c.rounds)/float64(rounds)) * t / c.t
	}
	half, needed := c.half*shrink, c.half*shrink
	if c.comparisons > 1 {
		needed *= student(rounds, 1-(1-c.confidence)/float64(c.comparisons)) / t
	}
	if c.effect-half > math.Log(1-Margin) && c.effect+half < math.Log(1+Margin) {
		return Equivalent
	}
	if math.Abs(c.effect) <= max(needed, c.reach*shrink) || !beyondMargin(c.effect) {
		return Inconclusive
	}
	if c.effect > 0 {
		return Worse
	}
	return Better
}

// moreRounds searches by halving: what is decided stays decided with more rounds.
func (c comparison) moreRounds() int {
	more := 1 + sort.Search(maxMoreRounds, func(i int) bool {
		return c.verdict(c.rounds+1+i) != Inconclusive
	})
	if more > maxMoreRounds {
		return 0
	}
	return more
}

func (c comparison) why(v Verdict, ratio Interval, floor *Interval) string {
	own := "no repeated baseline to compare with"
	if c.comparisons == 0 {
		own = fmt.Sprintf("the baseline against itself is %s (%s to %s)", figure(floor.Estimate), figure(floor.Low), figure(floor.High))
	}
	switch v {
	case Worse:
		return fmt.Sprintf("%s times the baseline at least; %s", figure(ratio.Low), own)
	case Better:
		return fmt.Sprintf("%s times the baseline at most; %s", figure(ratio.High), own)
	case Equivalent:
		return fmt.Sprintf("the interval (%.2f to %.2f) lies within ±%.0f %% of the baseline", ratio.Low, ratio.High, 100*Margin)
	}
	switch {
	case math.Abs(c.effect) <= c.half:
		return fmt.Sprintf("the interval (%s to %s) includes 1 and reaches beyond ±%.0f %%", figure(ratio.Low), figure(ratio.High), 100*Margin)
	case !beyondMargin(c.effect):
		return fmt.Sprintf("the two differ, but the difference may be on either side of %.0f %% (%.2f to %.2f)", 100*Margin, ratio.Low, ratio.High)
	case c.comparisons > 0:
		return fmt.Sprintf("not beyond chance in %d comparisons; %s", c.comparisons, own)
	}
	return "no further from 1 than the baseline may be from itself; " + own
}

func beyondMargin(effect float64) bool {
	return effect > math.Log(1+Margin) || effect < math.Log(1-Margin)
}

// halfLog is the half width of a ratio's interval on the log scale.
func halfLog(i Interval) float64 { return math.Log(i.High/i.Low) / 2 }

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
