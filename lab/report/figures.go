package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// canvas is what the plots of a comparison of scenarios are made from.
type canvas struct {
	analysis *lab.Analysis
	rounds   []round
	looks    map[string]Look
}

// plots are those that there is data for.
func (c canvas) plots() []Plot {
	var plots []Plot
	if slices.ContainsFunc(c.analysis.Rows, func(row lab.Row) bool { return row.Ratio != nil }) {
		plots = append(plots, c.ratios())
	}
	if rows := tradeRows(c.analysis); len(rows) > 0 {
		plots = append(plots, c.tradeoff(rows))
	}
	if p, ok := c.matrix(); ok {
		plots = append(plots, p)
	}
	return append(plots, c.played().plots()...)
}

// played is the rounds by scenario.
func (c canvas) played() played {
	p := played{rounds: c.rounds, references: []string{lab.Baseline, lab.BaselineAgain}}
	for _, row := range c.analysis.Rows {
		if row.Skipped != nil || row.Rounds == 0 {
			continue
		}
		cell := playedCell{name: row.Scenario, look: c.looks[row.Scenario]}
		for _, q := range row.Quantiles {
			if q.Reason != "" && (cell.limit == 0 || q.P < cell.limit) {
				cell.limit = q.P
			}
		}
		p.cells = append(p.cells, cell)
	}
	return p
}

// matrix is each scenario's p99 against that of each other.
func (c canvas) matrix() (Plot, bool) {
	var names []string
	for _, row := range c.analysis.Rows {
		if row.Scenario != lab.BaselineAgain && row.Valid > 0 {
			names = append(names, row.Scenario)
		}
	}
	var pairs []stats.Compared
	for _, c := range c.analysis.Comparisons {
		if f, ok := c.Figure("p99"); ok {
			pairs = append(pairs, stats.Compared{Cell: c.Scenario, Against: c.Against, Interval: f.Interval, Verdict: f.Verdict})
		}
	}
	return eachAgainstEach("p99", names, pairs)
}

// eachAgainstEach is a figure of each cell against that of each other: what is compared once
// stands on both sides. There is none for a single comparison.
func eachAgainstEach(figure string, names []string, pairs []stats.Compared) (Plot, bool) {
	var fields []Field
	var shown []string
	for _, name := range names {
		shown = append(shown, shownName(name))
	}
	for _, c := range pairs {
		row, column := slices.Index(names, c.Cell), slices.Index(names, c.Against)
		if row < 0 || column < 0 || c.Estimate <= 0 {
			continue
		}
		there, back := ratioField(row, column, c.Estimate, c.Verdict), ratioField(column, row, 1/c.Estimate, c.Verdict.Turned())
		there.Tip = fmt.Sprintf("%s of %s against %s: × %s, %s", figure, shown[row], shown[column], times(c.Interval), c.Verdict.Against(shown[column]))
		back.Tip = there.Tip
		fields = append(fields, there, back)
	}
	if len(fields) < 4 {
		return Plot{}, false
	}
	return HeatMap("matrix", "Each against each", figure+" of the row divided by that of the column, in the typical block. "+moodWords, figure+" of", "divided by that of", shown, shown, fields), true
}

// ratioField is a ratio in a heat map.
func ratioField(row, column int, ratio float64, v stats.Verdict) Field {
	return Field{Row: row, Column: column, Text: "× " + digits3(ratio), Shade: math.Abs(math.Log10(ratio)), Mood: moodOf(v)}
}

// near is what an axis of ratios covers at least, on either side of 1.
const near = 1.2

// ratioBands are ±10 % around no difference, and by how much alone differs from itself.
func (c canvas) ratioBands(note string) []Band {
	bands := []Band{{From: 1 - stats.Margin, To: 1 + stats.Margin, Class: "band10", Tip: "within 10 % of alone"}}
	if f := c.analysis.Floor; f != nil && f.Low > 0 {
		bands = append(bands, Band{From: f.Low, To: f.High, Class: "floor", Tip: "the tenant alone measured twice: " + times(*f)})
	}
	return append(bands, Band{From: 1, To: 1, Class: "one", Note: note})
}

// ratios is each scenario's p99 relative to the baseline, with its interval.
func (c canvas) ratios() Plot {
	rows := c.analysis.Rows
	panel := Panel{Height: 34 * float64(len(rows)), Y: Axis{Max: float64(len(rows)), Rows: true}}
	for i, row := range rows {
		y, says, look := float64(i)+.5, ratioWords(c.analysis, row), c.looks[row.Scenario]
		panel.Y.Ticks = append(panel.Y.Ticks, Tick{At: y, Text: shownName(row.Scenario), Value: clip(says, 38), Look: look})
		p := Point{Y: y, Radius: 5}
		switch {
		case row.Ratio != nil && row.Ratio.Estimate > 0:
			p.X, p.XLow, p.XHigh, p.Bound = row.Ratio.Estimate, row.Ratio.Low, row.Ratio.High, ratioBound(c.analysis, row, 99)
		case row.Scenario == lab.Baseline:
			p.X, p.XLow, p.XHigh = 1, 1, 1
		default:
			continue
		}
		panel.Series = append(panel.Series, Series{Tip: shownName(row.Scenario) + ": " + says, Look: look, Points: []Point{p}})
	}
	return Plot{
		ID: "ratios", Heading: "How much slower than alone",
		Caption: "Each scenario's p99 divided by that of the tenant alone, in the typical block, with its interval. " +
			"The shaded band is ±10 %" + c.floorWords() + ". An interval that includes 1 but leaves the shaded band decides nothing.",
		X:      Axis{Label: "p99 ÷ p99 alone, in the same blocks", Log: true, Min: 1 / near, Max: near, Format: shortTimes, Grid: true, Bands: c.ratioBands("")},
		Panels: []Panel{panel},
	}
}

// floorWords says what the dashed frame is, if there is one.
func (c canvas) floorWords() string {
	if f := c.analysis.Floor; f == nil || f.Low <= 0 {
		return ""
	}
	return "; the dashed frame is by how much the tenant alone differs from itself"
}

// ratioWords is "3.41 [2.97, 4.02] worse".
func ratioWords(a *lab.Analysis, row lab.Row) string {
	switch {
	case row.Skipped != nil:
		return "skipped"
	case row.Scenario == lab.Baseline:
		return "the reference"
	case row.Rounds == 0:
		return "not run"
	case row.Ratio == nil:
		return strings.TrimSpace("no ratio " + string(row.Verdict))
	}
	return strings.TrimSpace(ratioText(a, row) + " " + row.Verdict.Against("alone"))
}

// tradeRows are those with both a ratio and a neighbour.
func tradeRows(a *lab.Analysis) []lab.Row {
	return slices.DeleteFunc(slices.Clone(a.Rows), func(row lab.Row) bool {
		return row.Ratio == nil || row.Ratio.Estimate <= 0 || row.WorkShare == nil
	})
}

// tradeoff sets what the tenant gets against what the neighbour keeps.
func (c canvas) tradeoff(rows []lab.Row) Plot {
	panel := Panel{Height: 340, Y: Axis{Label: "tenant's p99 ÷ its p99 alone", Log: true, Min: 1 / near, Max: near, Format: shortTimes, Grid: true, Bands: c.ratioBands("as if alone")}}
	least, most := 100.0, 100.0
	for _, row := range rows {
		work, says, name := *row.WorkShare*100, ratioWords(c.analysis, row), row.Scenario
		bound := ratioBound(c.analysis, row, 99)
		label := clip(name, 12)
		if bound {
			label += " (≥)"
		}
		panel.Series = append(panel.Series, Series{
			Label: label, Tip: fmt.Sprintf("%s: p99 %s, work %s %%", name, says, percent(*row.WorkShare)), Look: c.looks[name],
			Points: []Point{{X: work, Y: row.Ratio.Estimate, Low: row.Ratio.Low, High: row.Ratio.High, Bound: bound, Radius: 6}},
		})
		least, most = min(least, work), max(most, work)
	}
	return Plot{
		ID: "tradeoff", Heading: "What protection costs",
		Caption: "Isolation is a trade. Further down the tenant is better protected; further right the neighbour gets more of its work done. " +
			"The scenario to choose is the rightmost of those in the shaded band, which is ±10 %" + c.floorWords() + ".",
		X: Axis{
			Label: "neighbour's work, % of what it does unisolated →", Min: max(0, 10*math.Floor(least/10)-10), Max: most * 1.06, Grid: true,
			Format: func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) },
		},
		Panels: []Panel{panel},
	}
}
