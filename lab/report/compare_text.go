package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// Sheet says first what changed, then what is compared and what differs between the two, and
// all figures.
func (c *Comparison) Sheet() *Sheet {
	s := &Sheet{Title: "comparison of two results of " + c.Experiment, Headline: c.headline(), Answer: c.summary(), Document: c}
	s.Open = !slices.ContainsFunc(c.Rows, func(row Change) bool { return row.Verdict != stats.Inconclusive })
	s.Fact("A", sideLine(c.A))
	s.Fact("B", sideLine(c.B))
	for _, d := range c.Differences {
		s.Warn("differs", fmt.Sprintf("%s: %s in A, %s in B", d.What, d.A, d.B))
	}
	if len(c.Differences) > 0 {
		s.Warn("warning", "A and B were not measured under the same conditions: any change may be the doing of what differs.")
	}
	for _, side := range c.Saturated {
		s.Warn("warning", "In "+side+" even what others are compared with cannot keep up: ratios to that mean nothing.")
	}
	if len(c.Missing) > 0 {
		s.Warn("warning", "Left out, with rounds that count in one of the two only: "+strings.Join(c.Missing, ", ")+".")
	}
	for _, group := range c.groups() {
		heading := group
		if effects := c.effects(group); effects.rows() > 0 {
			s.Add(Block{Heading: heading, Table: effects})
			heading = ""
		}
		s.Add(Block{Heading: heading, Table: c.figures(group)})
	}
	s.Body[len(s.Body)-1].Table.Legend = compareLegend
	s.Page = func() Page {
		plot := c.plot()
		if len(plot.Panels[0].Series) == 0 {
			return Page{}
		}
		return Page{Plots: []Plot{plot}}
	}
	return s
}

const compareLegend = "×: relative to that cell of the same run, in the typical block, which a machine that is faster as a whole does not change; plain figures are of the typical round. " +
	"Shares differ in points. A verdict is given of each effect, and of the plain figure where there is none, each kind corrected for its number. " +
	"Intervals are of what varies within a run: two runs of the same thing differ by more. ≥ lower bound; ~ not decided."

func sideLine(s ComparisonSide) string {
	when := ""
	if !s.Started.IsZero() {
		when = s.Started.UTC().Format("2006-01-02 15:04 UTC")
	}
	complete := ""
	if !s.Complete {
		complete = "did not finish"
	}
	return dotted(s.Name, when, programLine(s.Program), complete)
}

// groups are the names of the tables, in their order.
func (c *Comparison) groups() (names []string) {
	for _, row := range c.Rows {
		if !slices.Contains(names, row.Group) {
			names = append(names, row.Group)
		}
	}
	return names
}

// effects is the table of a group's ratios to the reference.
func (c *Comparison) effects(group string) *Table {
	names, figures := Column{Head: "effect", Left: true}, Column{}
	inA, inB, change, verdict := Column{Head: "A", Inline: 1, Roomy: true}, Column{Head: "B", Inline: 1, Roomy: true}, Column{Head: "B / A"}, Column{Head: "verdict", Left: true}
	last := ""
	for _, row := range c.Rows {
		if row.Group != group || row.Ratio == nil {
			continue
		}
		names.Head = "× " + shownName(row.Reference)
		names.Add(first(shownName(row.Cell), &last))
		figures.Add(row.Figure.Name)
		inA.Cells = append(inA.Cells, row.ratioCell(row.AtLeastA, *row.RatioA))
		inB.Cells = append(inB.Cells, row.ratioCell(row.AtLeastB, *row.RatioB))
		change.Cells, verdict.Cells = append(change.Cells, row.changeCell(*row.Ratio)), append(verdict.Cells, row.verdictCell())
	}
	return &Table{Columns: []Column{names, figures, inA, inB, change, verdict}}
}

// figures is the table of a group's plain figures, with a verdict of those that have no effect.
func (c *Comparison) figures(group string) *Table {
	names, figures := Column{Head: "figures", Left: true}, Column{}
	inA, inB, change, verdict := Column{Head: "A", Roomy: true}, Column{Head: "B", Roomy: true}, Column{Head: "B / A"}, Column{Left: true}
	last := ""
	for _, row := range c.Rows {
		if row.Group != group {
			continue
		}
		names.Add(first(shownName(row.Cell), &last))
		figures.Add(row.Figure.Name)
		inA.Add(atLeast(row.AtLeastA) + row.value(row.A.Estimate))
		inB.Add(atLeast(row.AtLeastB) + row.value(row.B.Estimate))
		if row.Ratio == nil {
			change.Cells, verdict.Cells = append(change.Cells, row.changeCell(row.Change)), append(verdict.Cells, row.verdictCell())
		} else {
			change.Add(row.times(row.Change))
			verdict.Add("")
		}
	}
	return &Table{Columns: []Column{names, figures, inA, inB, change, verdict}}
}

func (row Change) ratioCell(bound bool, iv stats.Interval) Cell {
	ratio, interval, _ := strings.Cut(row.times(iv), " ")
	return Cell{Text: atLeast(bound) + ratio, Below: interval}
}

func (row Change) changeCell(iv stats.Interval) Cell {
	if row.Verdict == stats.Inconclusive {
		return Cell{Text: "~" + row.times(iv)}
	}
	return Cell{Text: row.times(iv)}
}

func (row Change) verdictCell() Cell {
	return Cell{Text: verdictWord(row.Verdict), Mood: moodOf(row.Verdict)}
}

func verdictWord(v stats.Verdict) string {
	switch v {
	case stats.Equivalent:
		return "the same"
	case stats.Inconclusive, stats.Invalid:
		return "not decided"
	}
	return string(v)
}

// of is what the verdict is about.
func (row Change) of() stats.Interval {
	if row.Ratio != nil {
		return *row.Ratio
	}
	return row.Change
}

// times is a ratio with its interval, or the difference of shares in points.
func (row Change) times(iv stats.Interval) string {
	if row.Figure.Share {
		return differenceText("slow", iv)
	}
	return times(iv)
}

// value is a figure with its unit.
func (row Change) value(v float64) string {
	switch {
	case row.Figure.Unit == stats.Microseconds:
		return latency(v)
	case row.Figure.Unit == "s":
		return latency(v * 1e6)
	case row.Figure.Share:
		return percent(v) + " %"
	case v >= 1e6:
		return digits3(v/1e6) + " M" + strings.TrimPrefix(row.Figure.Unit, "1")
	}
	return strings.TrimSpace(digits3(v) + " " + strings.TrimPrefix(row.Figure.Unit, "1"))
}

// first is the name where it differs from the row's above.
func first(name string, last *string) string {
	if name == *last {
		return ""
	}
	*last = name
	return name
}

// name is a cell and its figure.
func (row Change) name() string { return cellName(row.Group, row.Cell) + " " + row.Figure.Name }

// fewNames is how many are listed in words.
const fewNames = 8

// summary is what changed, in words.
func (c *Comparison) summary() []string {
	by := map[stats.Verdict][]string{}
	for _, row := range c.Rows {
		text := row.name()
		if row.Verdict == stats.Worse || row.Verdict == stats.Better {
			text += " (× " + row.times(row.of()) + ")"
			if row.Figure.Share {
				text = row.name() + " (" + row.times(row.of()) + " points)"
			}
		}
		by[row.Verdict] = append(by[row.Verdict], text)
	}
	var all []string
	for _, p := range []struct {
		verdict stats.Verdict
		words   string
	}{{stats.Worse, "Worse in B: "}, {stats.Better, "Better in B: "}, {stats.Equivalent, "The same in both, within ±10 %: "}, {stats.Inconclusive, "Not decided: "}} {
		names := by[p.verdict]
		switch {
		case len(names) == 0:
		case len(names) > fewNames:
			all = append(all, fmt.Sprintf("%s%s, and %d more.", p.words, strings.Join(names[:fewNames], ", "), len(names)-fewNames))
		default:
			all = append(all, p.words+strings.Join(names, ", ")+".")
		}
	}
	if len(by[stats.Worse])+len(by[stats.Better]) == 0 {
		all = append([]string{"No change is decided among " + plain.Count(len(c.Rows), "figure") + "."}, all...)
	}
	return append(all, c.act(len(by[stats.Worse])+len(by[stats.Better]), len(by[stats.Inconclusive]))...)
}

// act is what to do next, given how many figures changed and of how many that is not decided: measure B
// again, measure both with more blocks, or keep what B is.
func (c *Comparison) act(changed, open int) []string {
	run := "Do it: berth lab run " + c.Experiment
	switch {
	case changed > 0:
		return []string{fmt.Sprintf("Two runs of the same thing may differ by more than these intervals: run it once more as for B, and compare that with %s.", c.A.Name), run}
	case open == 0:
		return []string{"B is as good as A. Run it once more after the next change.", run}
	}
	return []string{"To decide more, run it with more blocks, as for A and as for B.", run + " --set blocks=N"}
}

// first is the figure that comes first: the p99 where there is one.
func (c *Comparison) first() string {
	if slices.ContainsFunc(c.Rows, func(row Change) bool { return row.Figure.Name == lab.P99.Name }) {
		return lab.P99.Name
	}
	return c.Rows[0].Figure.Name
}

// headline is the largest change of that figure that is decided.
func (c *Comparison) headline() string {
	figure := c.first()
	var most Change
	same := true
	for _, row := range c.Rows {
		if row.Figure.Name != figure {
			continue
		}
		same = same && row.Verdict == stats.Equivalent
		if (row.Verdict == stats.Worse || row.Verdict == stats.Better) && row.far() > most.far() {
			most = row
		}
	}
	switch {
	case same:
		return "Every " + figure + " is the same in both, within 10 %"
	case most.Cell == "":
		return "No change of " + figure + " is decided"
	}
	of := figure + " of " + cellName(most.Group, most.Cell)
	if most.Ratio != nil {
		of += " relative to " + shownName(most.Reference)
	}
	if most.Figure.Share {
		return fmt.Sprintf("%s changed by %s points from A to B", of, most.times(most.of()))
	}
	return fmt.Sprintf("%s in B is %s times that in A", of, most.times(most.of()))
}

// far is how much changed, whatever the direction.
func (row Change) far() float64 {
	if of := row.of(); !row.Figure.Share && of.Estimate > 0 {
		return math.Abs(math.Log(of.Estimate))
	}
	return math.Abs(row.of().Estimate)
}

// plot has a row for each cell, by the figure that comes first.
func (c *Comparison) plot() Plot {
	figure := c.first()
	p := Plot{ID: "change", Heading: "What changed of " + figure, Caption: "B divided by A, with the 95 % interval: of the effect within each run where there is one, else of the figure. The shaded band is ±10 %.",
		X: Axis{Log: true, Min: 0.8, Max: 1.25, Format: shortTimes, Grid: true, Label: figure + ", B / A",
			Bands: []Band{{From: 1 - stats.Margin, To: 1 + stats.Margin, Class: "band10", Tip: "within 10 %: nobody should care"}, {From: 1, To: 1, Class: "one"}}}}
	panel := Panel{Y: Axis{Rows: true}}
	for _, row := range c.Rows {
		of := row.of()
		if row.Figure.Name != figure || row.Figure.Share || !(of.Estimate > 0) {
			continue
		}
		at := float64(len(panel.Y.Ticks))
		look := Look(len(panel.Y.Ticks)%Looks + 1)
		name := cellName(row.Group, row.Cell)
		panel.Y.Ticks = append(panel.Y.Ticks, Tick{At: at, Text: name, Value: "× " + times(of), Look: look})
		panel.Series = append(panel.Series, Series{Look: look, Tip: name + ": × " + times(of) + ", " + verdictWord(row.Verdict),
			Points: []Point{{X: of.Estimate, XLow: of.Low, XHigh: of.High, Y: at, Low: at, High: at, Radius: 4.5}}})
	}
	n := float64(len(panel.Y.Ticks))
	panel.Height, panel.Y.Min, panel.Y.Max = 34*n, -.5, n-.5
	p.Panels = []Panel{panel}
	return p
}
