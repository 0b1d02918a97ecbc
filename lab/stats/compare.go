package stats

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Figure is a quantity that cells are compared by: by its ratio, or, a share, by its difference.
type Figure struct {
	Name string `json:"name"`           // "p99"
	Unit string `json:"unit,omitempty"` // "µs": a response time; "1/s", ...
	// More of it is better, as of throughput.
	More bool `json:"more,omitempty"`
	// Share is of 0 to 1.
	Share bool `json:"share,omitempty"`
	// Leads: people decide by it, so it has most of a comparison's chance of a false verdict (Among).
	Leads bool `json:"-"`
}

// Microseconds is the unit of response times.
const Microseconds = "µs"

// Sample is what one round of a cell came to.
type Sample struct {
	Cell    string
	Block   int
	Figures map[string]float64 // by name; what was not measured is not in it
	// Bound: the response times are lower bounds, as requests failed or queued without end;
	// Failed: as they failed.
	Bound, Failed bool
	// Late says why figures of the cell are upper bounds, by name: the generator was late itself.
	Late map[string]string
}

// Versus is one comparison: of a cell with one or more references, which are called Against.
type Versus struct {
	Cell, Against string
	References    []string // nil: Against alone
}

// Compared is one figure of a cell against its references.
type Compared struct {
	Cell    string `json:"cell"`
	Against string `json:"against"`
	Figure  string `json:"figure"`
	// Interval is of the ratio of the figures, or of the difference of shares, in the
	// typical block.
	Interval
	// P is the p-value of no difference, corrected for all comparisons of the family.
	P       float64 `json:"p"`
	Verdict Verdict `json:"verdict"`
	Why     string  `json:"why,omitempty"`
	// MoreBlocks would decide one that is inconclusive, about; 0 if unknown.
	MoreBlocks int `json:"moreBlocks,omitempty"`
	// Sees is the smallest change for the worse that is found with 80 % chance; 0 if unknown.
	Sees float64 `json:"sees,omitempty"`
}

// Compare judges a family of comparisons by each figure: all that is said of it together is false with a chance of
// 5 % at most. One figure may lead. What has no block with both is left out.
func Compare(samples []Sample, figures []Figure, family []Versus) []Compared {
	var all []Compared
	led := slices.ContainsFunc(figures, func(f Figure) bool { return f.Leads })
	for _, v := range family {
		if v.References == nil {
			v.References = []string{v.Against}
		}
		for _, f := range figures {
			p := f.paired(samples, v)
			if p.Blocks() == 0 {
				continue
			}
			among := float64(len(family) * len(figures))
			if led {
				among = Among(len(family), len(figures), f.Leads)
			}
			j := p.Judge(among)
			if f.Unit == Microseconds {
				j.Temper(BoundsOf(samples, f.Name, v.Cell), BoundsOf(samples, f.Name, v.References...), v.Against)
			}
			all = append(all, f.compared(v, j))
		}
	}
	return all
}

// paired are the figures of a comparison: the inverse of what is better if there is more.
func (f Figure) paired(samples []Sample, v Versus) *Paired {
	if v.References == nil {
		v.References = []string{v.Against}
	}
	if f.Share {
		return Differences(f.blocks(samples, v))
	}
	return Ratios(f.blocks(samples, v))
}

// Within is the ratio of the figure of a cell to that of its references, or the difference
// of shares, in the typical block.
func (f Figure) Within(samples []Sample, v Versus, confidence float64) Interval {
	return f.own(f.paired(samples, v).Interval(confidence))
}

// own takes an interval back to the figure's own direction.
func (f Figure) own(i Interval) Interval {
	switch {
	case !f.More || i.Rounds == 0:
	case f.Share:
		i.Estimate, i.Low, i.High = -i.Estimate, -i.High, -i.Low
	default:
		i.Estimate, i.Low, i.High = 1/i.Estimate, 1/i.High, 1/i.Low
	}
	return i
}

// Typically is the figure of a cell in the typical round.
func (f Figure) Typically(samples []Sample, cell string, confidence float64) Interval {
	var rounds [][]float64
	for _, s := range samples {
		if value, ok := s.Figures[f.Name]; ok && s.Cell == cell {
			rounds = append(rounds, []float64{value, map[bool]float64{false: 1}[f.Share]})
		}
	}
	if f.Share {
		return Differences(rounds).Interval(confidence)
	}
	return Ratios(rounds).Interval(confidence)
}

// LowerBound says whether the response times of a cell are lower bounds, in a fifth of its rounds or more.
func LowerBound(samples []Sample, cell string) bool { return BoundsOf(samples, "", cell).Lower() }

// blocks are the figures of the cell and its references, of each block that has both. Of what is better if there is
// more the inverse is compared.
func (f Figure) blocks(samples []Sample, v Versus) [][]float64 {
	rows := map[int][]float64{}
	add := func(cell string, first bool) {
		for _, s := range samples {
			value, ok := s.Figures[f.Name]
			if s.Cell != cell || !ok {
				continue
			}
			if f.More && !f.Share {
				value = 1 / value
			} else if f.More {
				value = -value
			}
			if first || rows[s.Block] != nil {
				rows[s.Block] = append(rows[s.Block], value)
			}
		}
	}
	add(v.Cell, true)
	for _, reference := range v.References {
		add(reference, false)
	}
	var blocks [][]float64
	for _, s := range samples { // in their order
		if row := rows[s.Block]; s.Cell == v.Cell && len(row) > 1 {
			blocks = append(blocks, row)
		}
	}
	return blocks
}

// compared takes a judgement back to the figure's own direction.
func (f Figure) compared(v Versus, j Judgement) Compared {
	c := Compared{v.Cell, v.Against, f.Name, j.Interval, j.P, j.Verdict, j.Why, j.MoreBlocks, j.Sees}
	if !f.More {
		return c
	}
	if c.Interval = f.own(j.Interval); !f.Share && j.Sees > 0 {
		c.Sees = 1 / j.Sees
	}
	of := Paired{ratio: !f.Share}
	switch {
	case j.Verdict == Worse:
		c.Why = of.figure(c.High) + " at most"
	case j.Verdict == Better:
		c.Why = of.figure(c.Low) + " at least"
	case j.Why == of.chance(j.Estimate):
		c.Why = of.chance(c.Estimate)
	}
	return c
}

// Bounds says of what a cell's response times are only bounds: any of the following together.
type Bounds int

// The response times of a cell are exact; or upper bounds, as the generator was late itself; or lower
// bounds, as requests queued for as long as a round lasted, and so are as bad as the round is long, or
// as requests failed.
const (
	Exact Bounds = 0
	Late  Bounds = 1 << iota
	Queued
	Failed
)

// Lower says that they are lower bounds, in some rounds at least.
func (b Bounds) Lower() bool { return b&(Queued|Failed) != 0 }

// Both says that they are lower bounds in some rounds, and upper bounds in some.
func (b Bounds) Both() bool { return b.Lower() && b&Late != 0 }

// BoundsOf are those of a figure of any of the cells: lower ones, where a fifth of its rounds or more are.
func BoundsOf(samples []Sample, figure string, cells ...string) (all Bounds) {
	for _, cell := range cells {
		n, bound, failed := 0, 0, 0
		for _, s := range samples {
			if s.Cell != cell {
				continue
			}
			n++
			if s.Bound {
				bound++
			}
			if s.Failed {
				failed++
			}
			if s.Late[figure] != "" {
				all |= Late
			}
		}
		switch {
		case Mostly(failed, n):
			all |= Failed
		case Mostly(bound, n):
			all |= Queued
		}
	}
	return all
}

// Mostly says whether so many of n rounds are enough for what they show to be said of all: a fifth.
func Mostly(k, n int) bool { return k > 0 && 5*k >= n }

// Temper takes back a verdict that bounds do not support: own are those of the cell, other those of the reference. A lower
// bound supports only what a larger value would, too, an upper bound what a smaller one would, and both together nothing.
// Where both queue without end, which one is worse is true of rounds of this length, as the figures are.
func (j *Judgement) Temper(own, other Bounds, against string) {
	const (
		lower = " lower bounds: requests failed, were unfinished, or queued without end"
		upper = " upper bounds: the machine held up the generator, too"
		both  = " lower bounds in some rounds and upper bounds in others: requests queued or failed, and the machine held up the generator"
	)
	why := ""
	switch {
	case j.Verdict == Inconclusive || j.Verdict == Invalid:
	case own.Both():
		why = "its figures are" + both
	case other.Both():
		why = "the figures of " + against + " are" + both
	case own == Queued && other == Queued && j.Verdict != Equivalent:
		j.Why += ", in rounds of this length: neither keeps up"
	case own.Lower() && other.Lower():
		why = "both are lower bounds"
	case own == Late && other == Late:
		why = "both are" + upper
	case own.Lower() && j.Verdict != Worse:
		why = "its figures are" + lower
	case own == Late && j.Verdict != Better:
		why = "its figures are" + upper
	case other.Lower() && j.Verdict != Better:
		why = "the figures of " + against + " are" + lower
	case other == Late && j.Verdict != Worse:
		why = "the figures of " + against + " are" + upper
	}
	if why != "" {
		j.Verdict, j.Why, j.MoreBlocks, j.Sees = Inconclusive, why, 0, 0
	}
}

// Typical is the median of a figure over a cell's rounds; ok is false where none has it.
func Typical(samples []Sample, cell, figure string) (v float64, ok bool) {
	var values []float64
	for _, s := range samples {
		if value, has := s.Figures[figure]; s.Cell == cell && has {
			values = append(values, value)
		}
	}
	if len(values) == 0 {
		return 0, false
	}
	return Median(values), true
}

// Of finds the figure of a cell.
func Of(all []Compared, cell, against, figure string) (Compared, bool) {
	i := slices.IndexFunc(all, func(c Compared) bool { return c.Cell == cell && c.Against == against && c.Figure == figure })
	if i < 0 {
		return Compared{}, false
	}
	return all[i], true
}

// Words is what a ratio comes to: "3.2 times (2.5 to 4.1)", "as good as REFERENCE, within 10 %", "not told from
// REFERENCE (0.8 to 1.4 times)".
func (c Compared) Words() string {
	if math.IsNaN(c.Estimate) || c.Verdict == Invalid {
		return "not measured"
	}
	three := func(v float64) string {
		if v >= 1000 {
			return strconv.FormatFloat(v, 'f', 0, 64)
		}
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	span := fmt.Sprintf("%s to %s", three(c.Low), three(c.High))
	switch {
	case c.Verdict == Equivalent:
		return fmt.Sprintf("as good as %s, within %.0f %%", c.Against, 100*Margin)
	case c.Verdict == Worse || c.Verdict == Better:
		return fmt.Sprintf("%s times (%s)", three(c.Estimate), span)
	case !c.Known():
		return fmt.Sprintf("not told from %s (%s times, of too few blocks for an interval)", c.Against, three(c.Estimate))
	}
	return fmt.Sprintf("not told from %s (%s times)", c.Against, span)
}
