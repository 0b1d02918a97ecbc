package report

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// HistorySchema names the version of a history's JSON form.
const HistorySchema = "berth.dev/lab-history/v1"

// History is how the results of one experiment went from run to run.
type History struct {
	Schema string   `json:"schema"` // "berth.dev/lab-history/v1"
	Runs   []Run    `json:"runs"`   // by the time when they began
	Series []Course `json:"series"`
}

// Run is one of the results.
type Run struct {
	Name    string      `json:"name"`
	Started time.Time   `json:"started"`
	Program lab.Program `json:"program"`
	// Changed are conditions that are not those of the run before.
	Changed []Difference `json:"changed,omitempty"`
}

// Course is one figure over the runs: the p99 of the tenant alone in microseconds, or that of
// a scenario relative to alone.
type Course struct {
	Scenario string `json:"scenario"`
	// Values has one for each run, nil where the run does not have it.
	Values []*float64 `json:"values"`
	// Shift is where the level changed, if it did: at the run of that number, from 0. It needs
	// 8 runs at least.
	Shift *Shift `json:"shift,omitempty"`
	Few   bool   `json:"few,omitempty"` // too few runs to tell
}

// Shift is a change of level.
type Shift struct {
	Run  int             `json:"run"`
	Kind stats.DriftKind `json:"kind"`
	From float64         `json:"from"` // medians
	To   float64         `json:"to"`
}

// HistoryOf looks for changes of level in runs of the same experiment.
func HistoryOf(runs []Side) *History {
	runs = slices.Clone(runs)
	slices.SortStableFunc(runs, func(a, b Side) int { return a.Result.Started.Compare(b.Result.Started) })
	h := &History{Schema: HistorySchema}
	for i, run := range runs {
		r := Run{Name: run.Name, Started: run.Result.Started, Program: run.Result.Program}
		if i > 0 {
			r.Changed = differences(runs[i-1].Result.Result, run.Result.Result)
		}
		h.Runs = append(h.Runs, r)
		for _, row := range run.Analysis.Rows {
			at := slices.IndexFunc(h.Series, func(c Course) bool { return c.Scenario == row.Scenario })
			if at < 0 {
				at = len(h.Series)
				h.Series = append(h.Series, Course{Scenario: row.Scenario, Values: make([]*float64, len(runs))})
			}
			h.Series[at].Values[i] = level(row)
		}
	}
	for i := range h.Series {
		h.Series[i].judge()
	}
	return h
}

// level is what a history follows of a row; nil if it is not known, or a lower bound.
func level(row lab.Row) *float64 {
	if row.LowerBound() {
		return nil
	}
	if row.Scenario == lab.Baseline {
		if q, ok := quantileOf(row, 99); ok {
			return &q.Estimate
		}
		return nil
	}
	if row.Ratio == nil || row.Ratio.Estimate <= 0 {
		return nil
	}
	return &row.Ratio.Estimate
}

// judge looks for a change of level among the runs that have a value.
func (c *Course) judge() {
	var values []float64
	var at []int
	for i, v := range c.Values {
		if v != nil {
			values, at = append(values, *v), append(at, i)
		}
	}
	d, ok := stats.FindDrift(values)
	switch {
	case !ok:
		c.Few = true
	case d.Kind != stats.Steady:
		c.Shift = &Shift{Run: at[d.Index], Kind: d.Kind, From: d.From, To: d.To}
	}
}

// value formats a figure of the course.
func (c Course) value(v float64) string {
	if c.Scenario == lab.Baseline {
		return latency(v)
	}
	return digits3(v) + "×"
}

// name says what the course is of.
func (c Course) name() string {
	if c.Scenario == lab.Baseline {
		return "p99 alone"
	}
	return shownName(c.Scenario) + " ÷ alone"
}

// Sheet says what shifted, with a table of the runs and a plot.
func (h *History) Sheet() *Sheet {
	s := &Sheet{Title: "history: " + plain.Count(len(h.Runs), "run"), Document: h}
	var shifted, steady, few []string
	for _, c := range h.Series {
		switch {
		case c.Few:
			few = append(few, c.name())
		case c.Shift == nil:
			steady = append(steady, c.name())
		default:
			shifted = append(shifted, h.shifted(c))
		}
	}
	s.Answer = shifted
	if len(shifted) > 0 {
		s.Headline, _, _ = strings.Cut(strings.TrimSuffix(shifted[0], "."), ". ")
	}
	if len(steady) > 0 {
		s.Answer = append(s.Answer, "No change of level: "+strings.Join(steady, ", ")+".")
	}
	if len(few) > 0 {
		s.Answer = append(s.Answer, "Too few runs to tell (8 with a figure are needed): "+strings.Join(few, ", ")+".")
	}
	s.Open = len(shifted)+len(steady) == 0
	s.Add(Block{Table: h.table()})
	s.Page = func() Page { return Page{Plots: []Plot{h.plot()}} }
	return s
}

// shifted says how a course changed, and what else did in the same run.
func (h *History) shifted(c Course) string {
	run := h.Runs[c.Shift.Run]
	if c.Shift.Kind == stats.Switching {
		return fmt.Sprintf("%s switches between %s and %s.", c.name(), c.value(c.Shift.From), c.value(c.Shift.To))
	}
	text := fmt.Sprintf("%s went from %s to %s (%+.0f %%) with run %d, of %s.", c.name(), c.value(c.Shift.From), c.value(c.Shift.To),
		100*(c.Shift.To/c.Shift.From-1), c.Shift.Run+1, run.Started.UTC().Format("2006-01-02 15:04 UTC"))
	var what []string
	for _, d := range run.Changed {
		what = append(what, fmt.Sprintf("%s (%s, was %s)", d.What, d.B, d.A))
	}
	if before := h.Runs[max(0, c.Shift.Run-1)].Program; before != run.Program {
		what = append(what, "the program")
	}
	if len(what) == 0 {
		return text + " No condition that is recorded changed with that run."
	}
	return text + " What else was not as in the run before: " + strings.Join(what, "; ") + "."
}

// table has a row for each run, a level that is new marked.
func (h *History) table() *Table {
	numbers, when := Column{Head: "run", Left: true}, Column{Head: "started", Left: true}
	for i, run := range h.Runs {
		numbers.Add(strconv.Itoa(i + 1))
		when.Cells = append(when.Cells, Cell{Text: run.Started.UTC().Format("2006-01-02 15:04"), Below: run.Name})
	}
	t := &Table{Columns: []Column{numbers, when}, Legend: "p99 alone: of the tenant alone; ÷ alone: p99 in the typical block relative to that; → a new level from this run on; " + absent + " not known, or a lower bound."}
	for _, c := range h.Series {
		column := Column{Head: c.name()}
		for i, v := range c.Values {
			cell := Cell{Text: absent}
			if v != nil {
				cell.Text = c.value(*v)
			}
			if c.Shift != nil && c.Shift.Kind == stats.Shifted && c.Shift.Run == i {
				cell.Text, cell.Mood = "→ "+cell.Text, Unsure
			}
			column.Cells = append(column.Cells, cell)
		}
		t.Columns = append(t.Columns, column)
	}
	return t
}

// plot has a panel for the tenant alone and one for the ratios; shifts are dashed lines.
func (h *History) plot() Plot {
	alone := Panel{Height: 130, Y: Axis{Label: "p99 alone, and below p99 ÷ p99 alone", Log: true, Format: shortLatency, Grid: true}, Margin: true}
	ratios := Panel{Height: 260, Y: Axis{Log: true, Min: 1 / near, Max: near, Format: shortTimes, Grid: true, Bands: []Band{{From: 1 - stats.Margin, To: 1 + stats.Margin, Class: "band10"}}}, Margin: true}
	p := Plot{
		ID: "history", Heading: "From run to run",
		Caption: "Each run in the order in which they began. Dashed lines are changes of level, found by ranks at 1 % and of 5 % at least. The shaded band is ±10 % of alone.",
		X:       Axis{Label: "run", Max: float64(len(h.Runs) + 1), Format: func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }},
	}
	var rows []lab.Row
	for _, c := range h.Series {
		rows = append(rows, lab.Row{Scenario: c.Scenario})
	}
	looks := looksOf(rows)
	for _, c := range h.Series {
		s := Series{Label: shownName(c.Scenario), Look: looks[c.Scenario], Line: true}
		for i, v := range c.Values {
			if v != nil {
				s.Points = append(s.Points, Point{X: float64(i + 1), Y: *v, Low: *v, High: *v, Radius: 4, Tip: fmt.Sprintf("run %d, %s: %s", i+1, c.name(), c.value(*v))})
				s.Tip = c.name()
			}
		}
		if c.Scenario == lab.Baseline {
			alone.Series = append(alone.Series, s)
		} else {
			ratios.Series = append(ratios.Series, s)
		}
		if c.Shift != nil && c.Shift.Kind == stats.Shifted {
			p.Cuts = append(p.Cuts, float64(c.Shift.Run)+0.5)
		}
	}
	p.Panels = []Panel{alone, ratios}
	return p
}
