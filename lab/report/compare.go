package report

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// ComparisonSchema names the version of a comparison's JSON form.
const ComparisonSchema = "berth.dev/lab-compare/v2"

// Side is one of the two results that are compared, of whatever experiment.
type Side struct {
	Name string // a file, for the reader
	// Kind is the name of the experiment, Settings what its data file sets.
	Kind     string
	Settings any
	Head     *lab.Header
	Judged   []Judged
}

// Comparison is what changed from result A to result B.
type Comparison struct {
	Schema     string         `json:"schema"` // "berth.dev/lab-compare/v2"
	Experiment string         `json:"experiment"`
	A          ComparisonSide `json:"a"`
	B          ComparisonSide `json:"b"`
	// Differences are conditions that were not the same: each may explain a change.
	Differences []Difference `json:"differences,omitempty"`
	// Missing are cells of which only one of the two has figures.
	Missing []string `json:"missing,omitempty"`
	// Saturated are the sides ("A", "B") in which a reference is a lower bound itself: ratios
	// to it mean nothing, and no verdict is given of them.
	Saturated []string `json:"saturated,omitempty"`
	Rows      []Change `json:"rows"`
}

// ComparisonSide says which result a side is.
type ComparisonSide struct {
	Name     string      `json:"name"`
	Started  time.Time   `json:"started"`
	Program  lab.Program `json:"program"`
	Complete bool        `json:"complete"`
}

// Change is what became of one figure of one cell. Of a share (0-1) all that is called a
// ratio is a difference.
type Change struct {
	// Group is which of the tables of the experiment it is of: a tenant, a load; "" where there
	// is one.
	Group        string `json:"group,omitempty"`
	Cell         string `json:"cell"`
	stats.Figure `json:"figure"`
	// A and B are those of the typical round, in the figure's unit; Change is B's divided by
	// A's. It takes in whatever changed, the machine and its load included.
	A      stats.Interval `json:"a"`
	B      stats.Interval `json:"b"`
	Change stats.Interval `json:"change"`
	// RatioA and RatioB are relative to the reference of their own run, in the typical block,
	// and Ratio is B's divided by A's: what changed of the effect. Nil for the reference
	// itself, and where that has no such figure.
	Reference string          `json:"reference,omitempty"`
	RatioA    *stats.Interval `json:"ratioA,omitempty"`
	RatioB    *stats.Interval `json:"ratioB,omitempty"`
	Ratio     *stats.Interval `json:"ratio,omitempty"`
	// Verdict is about Ratio, or about Change where there is none: better or worse in B than
	// in A.
	Verdict stats.Verdict `json:"verdict"`
	// AtLeastA and AtLeastB: the side's figures are lower bounds.
	AtLeastA bool `json:"atLeastA,omitempty"`
	AtLeastB bool `json:"atLeastB,omitempty"`

	// at is what the verdict is about, with another confidence; moot says that the reference
	// is a lower bound.
	at   func(confidence float64) stats.Interval
	moot bool
}

// Compare says what changed from a to b. It is an error if they are of different experiments,
// or have no cell in common; any other difference is listed for the reader to weigh.
func Compare(a, b Side) (*Comparison, error) {
	if a.Head.Schema != b.Head.Schema {
		return nil, fmt.Errorf("compare: %s is a result of %s, %s of %s: want two of the same experiment", a.Name, a.Kind, b.Name, b.Kind)
	}
	c := &Comparison{Schema: ComparisonSchema, Experiment: a.Kind, A: sideOf(a), B: sideOf(b)}
	var err error
	if c.Differences, err = differences(a, b); err != nil {
		return nil, fmt.Errorf("compare %s with %s: %w", a.Name, b.Name, err)
	}
	groups := map[string]Judged{}
	for _, j := range b.Judged {
		groups[j.Name] = j
	}
	for _, j := range a.Judged {
		c.group(j, groups[j.Name])
		delete(groups, j.Name)
	}
	for _, j := range b.Judged {
		if _, only := groups[j.Name]; only {
			c.group(Judged{Name: j.Name}, j)
		}
	}
	if len(c.Rows) == 0 {
		return nil, fmt.Errorf("compare %s with %s: %w", a.Name, b.Name, errNothingShared)
	}
	c.judge()
	return c, nil
}

var errNothingShared = errors.New("no cell has rounds that count in both")

func sideOf(s Side) ComparisonSide {
	return ComparisonSide{Name: s.Name, Started: s.Head.Started, Program: s.Head.Program, Complete: s.Head.Complete}
}

// group compares the cells of one table.
func (c *Comparison) group(a, b Judged) {
	cells := slices.Clone(a.Cells)
	for _, cell := range b.Cells {
		if !a.has(cell.Name) {
			cells = append(cells, cell)
		}
	}
	for side, j := range map[string]Judged{"A": a, "B": b} {
		if stats.LowerBound(j.Samples, j.Reference) && !slices.Contains(c.Saturated, side) {
			c.Saturated = append(c.Saturated, side)
		}
	}
	slices.Sort(c.Saturated)
	for _, cell := range cells {
		inA, inB := a.rounds(cell.Name), b.rounds(cell.Name)
		if inA == 0 || inB == 0 {
			if inA+inB > 0 {
				c.Missing = append(c.Missing, cellName(a.Name, cell.Name))
			}
			continue
		}
		for _, f := range a.Figures {
			if row, ok := change(a, b, cell.Name, f); ok {
				c.Rows = append(c.Rows, row)
			}
		}
	}
}

// cellName is a cell and its table.
func cellName(group, cell string) string {
	if group == "" {
		return shownName(cell)
	}
	return group + ": " + shownName(cell)
}

func (j Judged) has(cell string) bool {
	return slices.ContainsFunc(j.Cells, func(c JudgedCell) bool { return c.Name == cell })
}

// rounds is how many rounds of a cell count.
func (j Judged) rounds(cell string) (n int) {
	for _, s := range j.Samples {
		if s.Cell == cell {
			n++
		}
	}
	return n
}

// confidence of the intervals that are printed.
const confidence = 0.95

// change is what became of a figure of a cell; ok is false where one of the two lacks it.
func change(a, b Judged, cell string, f stats.Figure) (row Change, ok bool) {
	quotient := quotient
	if f.Share {
		quotient = difference
	}
	plain := func(confidence float64) stats.Interval {
		return quotient(f.Typically(b.Samples, cell, confidence), f.Typically(a.Samples, cell, confidence))
	}
	row = Change{
		Group: a.Name, Cell: cell, Figure: f, A: f.Typically(a.Samples, cell, confidence), B: f.Typically(b.Samples, cell, confidence),
		Change: plain(confidence), at: plain,
	}
	if row.A.Rounds == 0 || row.B.Rounds == 0 {
		return row, false
	}
	if f.Unit == stats.Microseconds {
		row.AtLeastA, row.AtLeastB = stats.LowerBound(a.Samples, cell), stats.LowerBound(b.Samples, cell)
	}
	if cell == a.Reference || a.Reference != b.Reference {
		return row, true
	}
	within := func(j Judged, confidence float64) stats.Interval {
		return f.Within(j.Samples, j.Versus(cell), confidence)
	}
	ra, rb := within(a, confidence), within(b, confidence)
	if ra.Rounds == 0 || rb.Rounds == 0 {
		return row, true
	}
	row.at = func(confidence float64) stats.Interval { return quotient(within(b, confidence), within(a, confidence)) }
	ratio := row.at(confidence)
	row.Reference, row.RatioA, row.RatioB, row.Ratio = a.Reference, &ra, &rb, &ratio
	row.moot = f.Unit == stats.Microseconds && (stats.LowerBound(a.Samples, a.Reference) || stats.LowerBound(b.Samples, b.Reference))
	return row, true
}

// quotient is b/a of two independent estimates. Its limits come from those of
// the two on the log scale, added in quadrature on each side (Zou and Donner
// 2008, "method of variance estimates recovery").
func quotient(b, a stats.Interval) stats.Interval {
	if !(a.Estimate > 0 && b.Estimate > 0) {
		return stats.Interval{}
	}
	out := stats.Interval{Estimate: b.Estimate / a.Estimate, Confidence: min(a.Confidence, b.Confidence), Rounds: min(a.Rounds, b.Rounds)}
	if !a.Known() || !b.Known() {
		out.Low, out.High = out.Estimate, out.Estimate
		return out
	}
	down := math.Hypot(logRatio(b.Estimate, b.Low), logRatio(a.High, a.Estimate))
	up := math.Hypot(logRatio(b.High, b.Estimate), logRatio(a.Estimate, a.Low))
	out.Low, out.High = out.Estimate*math.Exp(-down), out.Estimate*math.Exp(up)
	return out
}

// difference is b-a of two independent estimates, by the same method.
func difference(b, a stats.Interval) stats.Interval {
	out := stats.Interval{Estimate: b.Estimate - a.Estimate, Confidence: min(a.Confidence, b.Confidence), Rounds: min(a.Rounds, b.Rounds)}
	out.Low, out.High = out.Estimate, out.Estimate
	if a.Known() && b.Known() {
		out.Low -= math.Hypot(b.Estimate-b.Low, a.High-a.Estimate)
		out.High += math.Hypot(b.High-b.Estimate, a.Estimate-a.Low)
	}
	return out
}

// logRatio is the logarithm of x/y, 0 if either is not positive.
func logRatio(x, y float64) float64 {
	if !(x > 0 && y > 0) {
		return 0
	}
	return math.Log(x / y)
}

// judge gives every row its verdict: worse or better where the interval at 5 % divided by the
// number of rows excludes no change, and the estimate is beyond the margin; equivalent where
// it lies within the margin. The effects within the runs answer one question, and the plain
// figures another: each has its own 5 %.
func (c *Comparison) judge() {
	of := map[bool]int{}
	for _, row := range c.Rows {
		of[row.Ratio != nil]++
	}
	for i := range c.Rows {
		row := &c.Rows[i]
		row.Verdict = row.judge((1 - confidence) / float64(of[row.Ratio != nil]))
	}
}

func (row Change) judge(rate float64) stats.Verdict {
	none, margin := 1.0, stats.Margin
	if row.Share {
		none, margin = 0, stats.ShareMargin
	}
	more, less := stats.Worse, stats.Better
	if row.More {
		more, less = less, more
	}
	usual, two, one := row.at(confidence), row.at(1-rate), row.at(1-2*rate)
	verdict := stats.Inconclusive
	switch {
	case row.moot || !usual.Known():
		return verdict
	case two.Known() && two.Low > none && usual.Estimate > none+margin:
		verdict = more
	case two.Known() && two.High < none && usual.Estimate < none-margin:
		verdict = less
	case one.Known() && one.Low > none-margin && one.High < none+margin:
		verdict = stats.Equivalent
	}
	// A lower bound supports only the verdict that a larger value would too.
	if row.AtLeastA && row.AtLeastB || row.AtLeastB && verdict != stats.Worse || row.AtLeastA && verdict != stats.Better {
		return stats.Inconclusive
	}
	return verdict
}
