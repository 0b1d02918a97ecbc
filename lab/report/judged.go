package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// Judged is cells compared with one: what any experiment can show whose cells differ in
// what their rounds came to.
type Judged struct {
	// Name tells it from others of the same result: a tenant, a load; "" where it is the only one.
	Name string
	// Head is what the cells are: "scenario", "limit". Reference is what the others are
	// compared with: the Against of the comparisons, and the cell of that name.
	Head, Reference string
	// Again is the cell that is the reference once more: the others are compared with both. ""
	// where there is none.
	Again   string
	Cells   []JudgedCell
	Figures []stats.Figure
	// Samples have what each figure typically is, Compared how it compares.
	Samples  []stats.Sample
	Compared []stats.Compared
	Skipped  []lab.Skipped
}

// JudgedCell is one row.
type JudgedCell struct{ Name, Means string }

// JudgedIsolation is a result of scenarios as cells, each beside the tenant alone.
func JudgedIsolation(m *lab.Measured) Judged {
	j := Judged{
		Head: "scenario", Reference: lab.Baseline, Again: lab.BaselineAgain, Skipped: m.Skipped,
		Figures: []stats.Figure{lab.P50, lab.P95, lab.P99},
	}
	for _, s := range m.Experiment.Scenarios {
		j.Cells = append(j.Cells, JudgedCell{s.Name, s.Means})
	}
	j.Samples, _ = m.Samples()
	return j
}

// Versus is what a cell is compared with.
func (j Judged) Versus(cell string) stats.Versus {
	v := stats.Versus{Cell: cell, Against: j.Reference}
	if j.Again != "" && cell != j.Again {
		v.References = []string{j.Reference, j.Again}
	}
	return v
}

// First is the figure that comes first: the p99 where there is one.
func (j Judged) First() stats.Figure {
	if i := slices.IndexFunc(j.Figures, func(f stats.Figure) bool { return f.Name == lab.P99.Name }); i >= 0 {
		return j.Figures[i]
	}
	if len(j.Figures) == 0 {
		return lab.P99 // nothing was measured
	}
	return j.Figures[0]
}

// Table has a row for each cell: each figure, and its ratio to the reference with its
// interval, coloured by the verdict. Figures that no cell has are left out.
func (j Judged) Table() *Table {
	t := &Table{Spans: map[int]string{}, Legend: "Figures are those of the typical round, ratios (×) those of the typical block to " + shownName(j.Reference) +
		", with the 95 % interval; ~ not decided. Differences of shares are in points."}
	names := Column{Head: j.Head, Left: true}
	n := Column{Head: "rounds"}
	var bounds []string
	for i, c := range j.Cells {
		names.Cells = append(names.Cells, Cell{Text: shownName(c.Name), Below: c.Means, Look: Look(i%Looks + 1)})
		rounds := 0
		for _, s := range j.Samples {
			if s.Cell == c.Name {
				rounds++
			}
		}
		n.Add(strconv.Itoa(rounds))
		if at := slices.IndexFunc(j.Skipped, func(s lab.Skipped) bool { return s.Scenario == c.Name }); at >= 0 {
			t.Spans[i] = skippedText(j.Skipped[at])
		} else if rounds == 0 {
			t.Spans[i] = "not run"
		}
		if k := boundRounds(j.Samples, c.Name); stats.Mostly(k, rounds) {
			bounds = append(bounds, fmt.Sprintf("%s (%s)", shownName(c.Name), plain.Count(k, "round")))
		}
	}
	t.Columns = []Column{names}
	for i, f := range j.Figures {
		value, ratio := j.columns(f)
		if value.Cells == nil {
			continue
		}
		// A phone has room for one figure.
		value.Roomy, ratio.Roomy = f != j.First(), f != j.First()
		t.Columns = append(t.Columns, value)
		if slices.ContainsFunc(ratio.Cells, func(c Cell) bool { return c.Text != absent }) {
			inline := i + 2
			if f == j.First() {
				inline = 1
			}
			t.Columns = append(t.Columns, ratio.split(inline))
		}
	}
	t.Columns = append(t.Columns, n)
	if len(bounds) > 0 {
		t.Notes = append(t.Notes, "Response times are lower bounds, as requests failed, were unfinished or queued without end: "+strings.Join(bounds, ", ")+".")
	}
	if why := j.lateness(); why != "" {
		t.Notes = append(t.Notes, "≤ upper bound, as the machine held up the generator, too: "+why+".")
		if j.bothBounds() {
			t.Notes = append(t.Notes, "≈ upper bound in some rounds, lower bound in others.")
		}
	}
	return t
}

func boundRounds(samples []stats.Sample, cell string) (n int) {
	for _, s := range samples {
		if s.Cell == cell && s.Bound {
			n++
		}
	}
	return n
}

// columns are those of a figure: what it is, and its ratio. Without a value there are none.
func (j Judged) columns(f stats.Figure) (value, ratio Column) {
	typical := map[string]float64{}
	least, most := math.Inf(1), 0.0
	for _, c := range j.Cells {
		if v, ok := stats.Typical(j.Samples, c.Name, f.Name); ok {
			typical[c.Name] = v
			least, most = min(least, v), max(most, v)
		}
	}
	if len(typical) == 0 {
		return value, ratio
	}
	value, ratio = Column{Head: f.Name, Unit: f.Unit}, Column{Head: "×"}
	write := digits3
	switch {
	case f.Unit == stats.Microseconds:
		u := unitFor(least)
		value.Unit, write = u.name, u.in
	case f.Unit == "s":
		u := unitFor(least * 1e6)
		value.Unit, write = u.name, func(v float64) string { return u.in(v * 1e6) }
	case f.Share:
		value.Unit, write, ratio.Head = "%", percent, "±"
	case most >= 1e6:
		value.Unit, write = "M"+f.Unit, func(v float64) string { return digits3(v / 1e6) }
	}
	for _, c := range j.Cells {
		cell := Cell{Text: absent}
		if v, ok := typical[c.Name]; ok {
			cell.Text = j.bounds(f, c.Name, "≥", "≤") + write(v)
		}
		value.Cells = append(value.Cells, cell)
		ratio.Cells = append(ratio.Cells, j.ratio(f, c.Name))
	}
	return value, ratio
}

// Ran says whether a cell has figures.
func (j Judged) Ran(cell string) bool {
	return slices.ContainsFunc(j.Samples, func(s stats.Sample) bool { return s.Cell == cell })
}

// Of is a figure of a cell against another; one that is not there is invalid.
func (j Judged) Of(cell, against, figure string) stats.Compared {
	c, ok := stats.Of(j.Compared, cell, against, figure)
	if !ok {
		c = stats.Compared{Cell: cell, Against: against, Figure: figure, Verdict: stats.Invalid}
	}
	return c
}

// P99 is that of the typical round in words.
func (j Judged) P99(cell string) string {
	us, ok := stats.Typical(j.Samples, cell, lab.P99.Name)
	if !ok {
		return "unknown"
	}
	return j.bounds(lab.P99, cell, "at least ", "at most ") + lab.Latency(us)
}

// bounds marks a figure of a cell that is a lower or an upper bound.
func (j Judged) bounds(f stats.Figure, cell, lower, upper string) string {
	switch b := stats.BoundsOf(j.Samples, f.Name, cell); {
	case f.Unit != stats.Microseconds:
	case b.Both():
		return map[string]string{"at least ": "about ", "≥": "≈"}[lower]
	case b.Lower():
		return lower
	case b == stats.Late:
		return upper
	}
	return ""
}

// lateness says of the first figure that is an upper bound why it is one.
func (j Judged) lateness() string {
	for _, s := range j.Samples {
		for _, f := range j.Figures {
			if why := s.Late[f.Name]; why != "" && stats.BoundsOf(j.Samples, f.Name, s.Cell)&stats.Late != 0 && f.Unit == stats.Microseconds {
				return why
			}
		}
	}
	return ""
}

// bothBounds says whether a figure is a lower bound in some rounds, and an upper bound in some.
func (j Judged) bothBounds() bool {
	return slices.ContainsFunc(j.Figures, func(f stats.Figure) bool {
		return f.Unit == stats.Microseconds && slices.ContainsFunc(j.Samples, func(s stats.Sample) bool { return stats.BoundsOf(j.Samples, f.Name, s.Cell).Both() })
	})
}

// Bound says whether the response times of a cell are lower bounds.
func (j Judged) Bound(cell string) bool {
	n := 0
	for _, s := range j.Samples {
		if s.Cell == cell {
			n++
		}
	}
	return stats.Mostly(boundRounds(j.Samples, cell), n)
}

func (j Judged) ratio(f stats.Figure, cell string) Cell {
	c, ok := stats.Of(j.Compared, cell, j.Reference, f.Name)
	if !ok {
		return Cell{Text: absent}
	}
	text := times(c.Interval)
	if f.Share {
		text, _ = differenceText("slow", c.Interval), ok
	}
	if c.Verdict == stats.Inconclusive {
		text = "~" + text
	}
	return Cell{Text: text, Mood: moodOf(c.Verdict)}
}

// Comparisons are all of them, with what is behind each verdict: folded on a page.
func (j Judged) Comparisons() Block {
	var rows [][]string
	for _, c := range j.Compared {
		difference := "× " + times(c.Interval)
		if slices.ContainsFunc(j.Figures, func(f stats.Figure) bool { return f.Share && f.Name == c.Figure }) {
			difference = differenceText("slow", c.Interval)
		}
		more := absent
		if c.MoreBlocks > 0 {
			more = "+" + strconv.Itoa(c.MoreBlocks)
		}
		rows = append(rows, []string{
			shownName(c.Cell), shownName(c.Against), c.Figure, difference, c.Verdict.Against(shownName(c.Against)), c.Why,
			strconv.FormatFloat(c.P, 'g', 2, 64), strconv.Itoa(c.Rounds), more,
		})
	}
	t := NewTable([]string{j.Head, "against", "of", "difference", "verdict", "why", "p-value", "blocks", "more"}, rows...)
	for _, i := range []int{1, 2, 4, 5} {
		t.Columns[i].Left = true
	}
	t.Legend = "The p-values are corrected for all comparisons; more: blocks that would decide."
	return Block{Heading: "All comparisons", Table: t, Fold: true}
}

// Ratios is a plot of the comparisons with the reference by one figure: one row a cell.
func (j Judged) Ratios(id, heading string, f stats.Figure) Plot {
	p := Plot{ID: id, Heading: heading, Caption: "The ratio of " + f.Name + " to that of " + shownName(j.Reference) + " in the typical block, with its 95 % interval.",
		X: Axis{Log: true, Min: 0.8, Max: 1.25, Format: shortTimes, Grid: true, Label: f.Name + " relative to " + shownName(j.Reference),
			Bands: []Band{{From: 1 - stats.Margin, To: 1 + stats.Margin, Class: "band10", Tip: "within 10 %: nobody should care"}, {From: 1, To: 1, Class: "one"}}}}
	panel := Panel{Y: Axis{Rows: true}}
	for i, cell := range j.Cells {
		c, ok := stats.Of(j.Compared, cell.Name, j.Reference, f.Name)
		if !ok {
			continue
		}
		row := float64(len(panel.Y.Ticks))
		look := Look(i%Looks + 1)
		panel.Y.Ticks = append(panel.Y.Ticks, Tick{At: row, Text: shownName(cell.Name), Value: "× " + times(c.Interval), Look: look})
		panel.Series = append(panel.Series, Series{Look: look, Tip: shownName(cell.Name) + ": × " + times(c.Interval) + ", " + c.Verdict.Against(j.Reference),
			Points: []Point{{X: c.Estimate, XLow: c.Low, XHigh: c.High, Y: row, Low: row, High: row, Radius: 4.5}}})
	}
	n := float64(len(panel.Y.Ticks))
	panel.Height, panel.Y.Min, panel.Y.Max = 34*n, -.5, n-.5
	p.Panels = []Panel{panel}
	return p
}

// Matrix is each cell's figures relative to the reference, by every figure that is a ratio. Of a
// single figure it is each cell against each other.
func (j Judged) Matrix() (Plot, bool) {
	var rows, columns []string
	var fields []Field
	for _, f := range j.Figures {
		if !f.Share && slices.ContainsFunc(j.Compared, func(c stats.Compared) bool { return c.Figure == f.Name && c.Against == j.Reference }) {
			columns = append(columns, f.Name)
		}
	}
	for _, cell := range j.Cells {
		var line []Field
		for i, name := range columns {
			if c, ok := stats.Of(j.Compared, cell.Name, j.Reference, name); ok && c.Estimate > 0 {
				f := ratioField(len(rows), i, c.Estimate, c.Verdict)
				f.Tip = fmt.Sprintf("%s of %s: × %s, %s", name, shownName(cell.Name), times(c.Interval), c.Verdict.Against(shownName(j.Reference)))
				line = append(line, f)
			}
		}
		if line != nil {
			rows, fields = append(rows, shownName(cell.Name)), append(fields, line...)
		}
	}
	if len(columns) == 1 {
		var names []string
		var pairs []stats.Compared
		for _, c := range j.Cells {
			names = append(names, c.Name)
		}
		for _, c := range j.Compared {
			if c.Figure == columns[0] {
				pairs = append(pairs, c)
			}
		}
		return eachAgainstEach(columns[0], names, pairs)
	}
	if len(rows) == 0 {
		return Plot{}, false
	}
	return HeatMap("matrix", "Every figure at a glance", "Each figure relative to that of "+shownName(j.Reference)+", in the typical block. "+moodWords, j.Head, "relative to "+shownName(j.Reference), rows, columns, fields), true
}

// Headline is the answer in a line: what differs most from the reference, beyond chance, by a
// figure of which less is better; "" where nothing is compared.
func (j Judged) Headline(f stats.Figure) string {
	var worst, best stats.Compared
	same, compared := true, false
	for _, c := range j.Compared {
		if c.Figure != f.Name || c.Against != j.Reference {
			continue
		}
		same, compared = same && c.Verdict == stats.Equivalent, true
		if c.Verdict == stats.Worse && c.Estimate > worst.Estimate {
			worst = c
		}
		if c.Verdict == stats.Better && (best.Estimate == 0 || c.Estimate < best.Estimate) {
			best = c
		}
	}
	if worst.Estimate == 0 {
		worst = best
	}
	switch {
	case worst.Estimate > 0:
		least := map[bool]string{true: "at least "}[j.Bound(worst.Cell)]
		return fmt.Sprintf("The %s of %q is %s%s times that of %q", f.Name, shownName(worst.Cell), least, times(worst.Interval), shownName(j.Reference))
	case !compared:
		return ""
	case same:
		return fmt.Sprintf("No %s differs from that of %q by 10 %%", f.Name, shownName(j.Reference))
	}
	return fmt.Sprintf("No %s is shown to differ from that of %q", f.Name, shownName(j.Reference))
}

// Undecided says whether no cell is told from the reference by a figure, nor shown to be as good.
func (j Judged) Undecided(f stats.Figure) bool {
	return !slices.ContainsFunc(j.Compared, func(c stats.Compared) bool {
		return c.Figure == f.Name && c.Against == j.Reference && c.Verdict != stats.Inconclusive && c.Verdict != stats.Invalid
	})
}

// moodWords say what the colours of ratios are.
const moodWords = "Red: worse; green: better, or as good within 10 %; amber: not decided. The darker, the further from 1."

// Plots are those that every page of compared cells has: the comparisons by the figure that
// matters most, all figures as a matrix, the distributions of response times, and the run over
// time. The rounds are those of the cells, and references the cells in which nothing is done
// to the tenant.
func (j Judged) Plots(heading string, f stats.Figure, m *lab.Measured, references ...string) []Plot {
	plots := []Plot{j.Ratios("ratios", heading, f)}
	if p, ok := j.Matrix(); ok {
		plots = append(plots, p)
	}
	var names []string
	for _, c := range j.Cells {
		names = append(names, c.Name)
	}
	return append(plots, RoundPlots(m, names, len(names), references...)...)
}

// JudgedDocument is the report for programs.
type JudgedDocument struct {
	lab.Header
	Experiment any              `json:"experiment"`
	Answer     []string         `json:"answer"`
	Reference  string           `json:"reference"`
	Cells      []JudgedFigures  `json:"cells"`
	Compared   []stats.Compared `json:"compared"`
}

// JudgedFigures is what a cell typically is, by figure; response times in µs.
type JudgedFigures struct {
	Cell    string             `json:"cell"`
	Rounds  int                `json:"rounds"`
	Figures map[string]float64 `json:"figures"`
}

// Document is the report for programs: what the header and the settings are, and what it
// comes to.
func (j Judged) Document(h *lab.Header, settings any, answer []string) *JudgedDocument {
	d := &JudgedDocument{Header: *h, Experiment: settings, Answer: answer, Reference: j.Reference, Compared: j.Compared}
	for _, c := range j.Cells {
		f := JudgedFigures{Cell: c.Name, Figures: map[string]float64{}}
		for _, s := range j.Samples {
			if s.Cell != c.Name {
				continue
			}
			f.Rounds++
			for name := range s.Figures {
				f.Figures[name], _ = stats.Typical(j.Samples, c.Name, name)
			}
		}
		d.Cells = append(d.Cells, f)
	}
	return d
}
