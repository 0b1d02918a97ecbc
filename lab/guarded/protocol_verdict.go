package guarded

import (
	"fmt"
	"slices"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab/stats"
)

// Word is what a hypothesis comes to.
type Word string

// The words.
const (
	Shown     Word = "shown"
	Refuted   Word = "refuted"
	Undecided Word = "undecided"
)

// Decided is a hypothesis and what the run says of it.
type Decided struct {
	Hypothesis
	Word Word `json:"word"`
	// Interval is of the figure; without limits where nothing tells them.
	Interval stats.Interval `json:"interval"`
	// ForChance and AgainstChance are the p-values of what was seen if the figure were just at
	// its limit: the smaller, the more is said for it, or against it. 0 where the interval decides.
	ForChance     float64 `json:"forChance,omitempty"`
	AgainstChance float64 `json:"againstChance,omitempty"`
	Why           string  `json:"why"`
}

// decided says whether the looks have decided all that they may decide.
func (a *ProtocolAnalysis) decided() bool {
	some := false
	for _, v := range a.Verdicts {
		if v.Figure == P99 || v.Figure == Work {
			if some = true; v.Word == Undecided {
				return false
			}
		}
	}
	return some
}

// decide says what a hypothesis comes to.
func (a *ProtocolAnalysis) decide(h Hypothesis) Decided {
	d := Decided{Hypothesis: h, Word: Undecided}
	arm := func(q *Quadruple) bool { return q.Arm == h.Arm }
	var row ArmRow
	a.count(&row, func(o Onset) bool { return o.row.arm == h.Arm })
	switch h.Figure {
	case P99:
		a.decideP99(&d, arm)
	case Work:
		a.test(&d, a.works(arm))
	case Reaction:
		p := row.Reaction.P50
		if h.Percentile == 95 {
			p = row.Reaction.P95
		}
		d.within(p, row.Reaction)
	case Named:
		d.share(row.Named, row.Onsets)
	case Against:
		d.share(row.Innocent, row.Onsets)
	}
	if a.Look == 0 {
		d.Word = Undecided
		d.Why += "; not looked at yet"
	}
	return d
}

// decideP99 has a p99 shown only if it is so with rejection and without, and if the quadruplets that
// queued to the end count against it: an arm under which the tenant falls behind is not as good as
// alone.
func (a *ProtocolAnalysis) decideP99(d *Decided, arm func(*Quadruple) bool) {
	with, without := a.ratios(arm, adjusted), a.ratios(arm, unrejected)
	if a.Blind {
		a.test(d, stats.Ratios(with))
	} else {
		a.test(d, stats.Ratios(without))
		d.Why += "; without rejection, as that was not blind"
	}
	worst := []float64{1e9, 1}
	if d.Least != nil {
		worst[0] = 1e-9
	}
	var queued [][]float64
	for i := range a.Quadruplets {
		if q := &a.Quadruplets[i]; arm(q) && q.queued && !q.invalid {
			queued = append(queued, worst)
		}
	}
	if len(queued) > 0 {
		d.Why += fmt.Sprintf("; %d more queued to the end", len(queued))
	}
	if d.Word != Shown {
		return
	}
	for _, blocks := range [][][]float64{with, without} {
		if forIt, _ := d.chances(stats.Ratios(slices.Concat(blocks, queued))); forIt > a.Chance {
			d.Word = Undecided
			d.Why += "; not shown both with rejection and without, those that queued against it"
			return
		}
	}
}

// chances are the p-values of what was seen if the figure were just at its limit: for the hypothesis,
// and against it.
func (d *Decided) chances(p *stats.Paired) (forIt, against float64) {
	above, below := p.Beyond(d.limit())
	if d.Least != nil {
		return above, below
	}
	return below, above
}

// test is the sign-flip test, inverted at the limit.
func (a *ProtocolAnalysis) test(d *Decided, p *stats.Paired) {
	d.Interval = p.Unrejected(a.Chance)
	if d.Why = plain.Count(p.Blocks(), "quadruplet"); p.Blocks() == 0 {
		return
	}
	d.ForChance, d.AgainstChance = d.chances(p)
	switch {
	case d.ForChance <= a.Chance:
		d.Word = Shown
	case d.AgainstChance <= a.Chance:
		d.Word = Refuted
	}
	d.Why += fmt.Sprintf("; chance at the limit %.4f for it, %.4f against it, of %.4f to decide at look %d", d.ForChance, d.AgainstChance, a.Chance, max(a.Look, 1))
}

// within decides by the interval of a delay.
func (d *Decided) within(p Delay, all Delays) {
	d.Interval = stats.Interval{Confidence: 0.95, Rounds: all.N}
	if p.Estimate != nil {
		d.Interval.Estimate = *p.Estimate
		d.Interval.Low, d.Interval.High = d.Interval.Estimate, d.Interval.Estimate
		if p.Low != nil && p.High != nil {
			d.Interval.Low, d.Interval.High = *p.Low, *p.High
		}
	}
	d.Why = fmt.Sprintf("%d of %d onsets after a period alone had a remedy", all.Came, all.N)
	if all.Rested != nil {
		d.Why += fmt.Sprintf("; the run-queue probe rested at %d of the %d", *all.Rested, all.N)
	}
	if all.N == 0 {
		return
	}
	shown, refuted := p.High != nil && *p.High <= d.limit(), p.Low != nil && *p.Low > d.limit()
	if d.Least != nil {
		shown, refuted = p.Low != nil && *p.Low >= d.limit(), p.High != nil && *p.High < d.limit()
	}
	switch {
	case shown:
		d.Word = Shown
	case refuted:
		d.Word = Refuted
	}
}

// share decides by the interval of a share.
func (d *Decided) share(k, n int) {
	low, high := stats.Share(k, n, 0.95)
	d.Interval = stats.Interval{Low: low, High: high, Confidence: 0.95, Rounds: n}
	if n > 0 {
		d.Interval.Estimate = float64(k) / float64(n)
	}
	d.Why = fmt.Sprintf("%d of %d onsets", k, n)
	switch {
	case n == 0:
	case d.Least != nil && low >= *d.Least, d.Most != nil && high <= *d.Most:
		d.Word = Shown
	case d.Least != nil && high < *d.Least, d.Most != nil && low > *d.Most:
		d.Word = Refuted
	}
}
