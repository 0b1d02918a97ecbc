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
const HistorySchema = "berth.dev/lab-history/v2"

// History is how the results of one experiment went from run to run.
type History struct {
	Schema     string   `json:"schema"` // "berth.dev/lab-history/v2"
	Experiment string   `json:"experiment"`
	Runs       []Run    `json:"runs"` // by the time when they began
	Series     []Course `json:"series"`
}

// Run is one of the results.
type Run struct {
	Name    string      `json:"name"`
	Started time.Time   `json:"started"`
	Program lab.Program `json:"program"`
	// Changed are conditions that are not those of the run before.
	Changed []Difference `json:"changed,omitempty"`
}

// Course is one figure of a cell over the runs: the p99 where the experiment has one.
type Course struct {
	// Group is which of the tables of the experiment it is of; "" where there is one.
	Group  string       `json:"group,omitempty"`
	Cell   string       `json:"cell"`
	Figure stats.Figure `json:"figure"`
	// Reference is the cell of the same run that the figure is relative to, in the typical
	// block; "" for the figure of the typical round itself.
	Reference string `json:"reference,omitempty"`
	// Values has one for each run, nil where the run does not have it, or a lower bound.
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
func HistoryOf(runs []Side) (*History, error) {
	runs = slices.Clone(runs)
	slices.SortStableFunc(runs, func(a, b Side) int { return a.Head.Started.Compare(b.Head.Started) })
	h := &History{Schema: HistorySchema}
	for i, run := range runs {
		h.Experiment = run.Kind
		r := Run{Name: run.Name, Started: run.Head.Started, Program: run.Head.Program}
		if i > 0 {
			var err error
			if r.Changed, err = differences(runs[i-1], run); err != nil {
				return nil, fmt.Errorf("history: %s: %w", run.Name, err)
			}
		}
		h.Runs = append(h.Runs, r)
		for _, j := range run.Judged {
			for _, cell := range j.Cells {
				if c, value := level(j, cell.Name); value != nil {
					h.course(c, len(runs)).Values[i] = value
				}
			}
		}
	}
	for i := range h.Series {
		h.Series[i].judge()
	}
	return h, nil
}

// course is that of the same cell and figure; a new one if there is none.
func (h *History) course(c Course, runs int) *Course {
	at := slices.IndexFunc(h.Series, func(o Course) bool {
		return o.Group == c.Group && o.Cell == c.Cell && o.Figure == c.Figure && o.Reference == c.Reference
	})
	if at < 0 {
		at, c.Values = len(h.Series), make([]*float64, runs)
		h.Series = append(h.Series, c)
	}
	return &h.Series[at]
}

// level is what a history follows of a cell; nil if it is not known, or a lower bound.
func level(j Judged, cell string) (Course, *float64) {
	f := j.First()
	c := Course{Group: j.Name, Cell: cell, Figure: f}
	bound := f.Unit == stats.Microseconds && stats.LowerBound(j.Samples, cell)
	iv := f.Typically(j.Samples, cell, confidence)
	if cell != j.Reference {
		if ratio := f.Within(j.Samples, j.Versus(cell), confidence); ratio.Rounds > 0 {
			iv, c.Reference = ratio, j.Reference
			bound = bound || f.Unit == stats.Microseconds && stats.LowerBound(j.Samples, j.Reference)
		}
	}
	if iv.Rounds == 0 || bound {
		return c, nil
	}
	return c, &iv.Estimate
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
	if c.Reference != "" && !c.Figure.Share {
		return digits3(v) + "×"
	}
	return Change{Figure: c.Figure}.value(v)
}

// name says what the course is of.
func (c Course) name() string {
	if c.Reference == "" {
		return c.Figure.Name + " " + cellName(c.Group, c.Cell)
	}
	return cellName(c.Group, c.Cell) + " ÷ " + shownName(c.Reference)
}

// Sheet says what shifted, with a table of the runs and a plot.
func (h *History) Sheet() *Sheet {
	s := &Sheet{Title: "history of " + h.Experiment + ": " + plain.Count(len(h.Runs), "run"), Document: h}
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
	switch {
	case len(shifted) > 0:
		s.Headline, _, _ = strings.Cut(strings.TrimSuffix(shifted[0], "."), ". ")
	case len(steady) > 0:
		s.Headline = "No change of level in " + plain.Count(len(h.Runs), "run")
	default:
		s.Headline = "Too few runs to tell of a change of level"
	}
	if len(steady) > 0 {
		s.Answer = append(s.Answer, "No change of level: "+strings.Join(steady, ", ")+".")
	}
	if len(few) > 0 {
		s.Answer = append(s.Answer, fmt.Sprintf("Too few runs to tell (%d with a figure are needed): ", enoughRuns)+strings.Join(few, ", ")+".")
	}
	s.Answer = append(s.Answer, h.act(len(steady))...)
	s.Open = len(shifted)+len(steady) == 0
	s.Add(Block{Table: h.table()})
	s.Page = func() Page { return Page{Plots: []Plot{h.plot()}} }
	return s
}

// enoughRuns is how many with a figure it takes to tell of a change of level.
const enoughRuns = 8

// act is what to do next: compare the two runs between which the first level changed, or the least and the
// most that it switches between; else run the experiment again. steady is how many did not change.
func (h *History) act(steady int) []string {
	for _, c := range h.Series {
		if c.Shift == nil {
			continue
		}
		a, b := c.Shift.Run-1, c.Shift.Run
		if c.Shift.Kind == stats.Switching {
			a, b = c.ends()
		}
		return []string{fmt.Sprintf("Do it: berth lab compare %s %s", plain.Shell(h.Runs[max(a, 0)].Name), plain.Shell(h.Runs[b].Name))}
	}
	if more := enoughRuns - len(h.Runs); steady == 0 && more > 0 {
		return []string{fmt.Sprintf("Do it: berth lab run %s, %s", h.Experiment, plain.Count(more, "more time"))}
	}
	return []string{"Run it once more after the next change of machine, kernel, program or settings.", "Do it: berth lab run " + h.Experiment}
}

// ends are the runs with the least and the greatest value.
func (c Course) ends() (least, most int) {
	least, most = -1, -1
	for i, v := range c.Values {
		if v != nil && (least < 0 || *v < *c.Values[least]) {
			least = i
		}
		if v != nil && (most < 0 || *v > *c.Values[most]) {
			most = i
		}
	}
	return least, most
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
	t := &Table{Columns: []Column{numbers, when}, Legend: "Figures are those of the typical round; ÷: " + h.figure() + " in the typical block relative to that; → a new level from this run on; " + absent + " not known, or a lower bound."}
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

// figure is what most of it is about.
func (h *History) figure() string {
	if len(h.Series) == 0 {
		return "the figure"
	}
	return h.Series[0].Figure.Name
}

// plot has a panel for the figures and one for the ratios; shifts are dashed lines.
func (h *History) plot() Plot {
	format := shortLatency
	if slices.ContainsFunc(h.Series, func(c Course) bool { return c.Reference == "" && c.Figure.Unit != stats.Microseconds }) {
		format = digits3
	}
	figures := Panel{Height: 130, Y: Axis{Label: h.figure() + ", and below relative to that", Log: true, Format: format, Grid: true}, Margin: true}
	ratios := Panel{Height: 260, Y: Axis{Log: true, Min: 1 / near, Max: near, Format: shortTimes, Grid: true, Bands: []Band{{From: 1 - stats.Margin, To: 1 + stats.Margin, Class: "band10"}}}, Margin: true}
	p := Plot{
		ID: "history", Heading: "From run to run",
		Caption: "Each run in the order in which they began. Dashed lines are changes of level, found by ranks at 1 % and of 5 % at least. The shaded band is ±10 % of the reference.",
		X:       Axis{Label: "run", Max: float64(len(h.Runs) + 1), Format: func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }},
	}
	for n, c := range h.Series {
		s := Series{Label: cellName(c.Group, c.Cell), Look: Look(n%Looks + 1), Line: true}
		for i, v := range c.Values {
			if v != nil && *v > 0 {
				s.Points = append(s.Points, Point{X: float64(i + 1), Y: *v, Low: *v, High: *v, Radius: 4, Tip: fmt.Sprintf("run %d, %s: %s", i+1, c.name(), c.value(*v))})
				s.Tip = c.name()
			}
		}
		if c.Reference == "" {
			figures.Series = append(figures.Series, s)
		} else {
			ratios.Series = append(ratios.Series, s)
		}
		if c.Shift != nil && c.Shift.Kind == stats.Shifted {
			p.Cuts = append(p.Cuts, float64(c.Shift.Run)+0.5)
		}
	}
	for _, panel := range []Panel{figures, ratios} {
		if len(panel.Series) > 0 {
			p.Panels = append(p.Panels, panel)
		}
	}
	return p
}
