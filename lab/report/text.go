package report

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// Sheet is a report for the terminal, written from the top down: facts, tables,
// words. Nothing that it is given can steer the terminal, but for Lines.
type Sheet struct {
	// Indent is where the values of facts begin.
	Indent int
	b      strings.Builder
	o      Options
}

// NewSheet starts a sheet.
func NewSheet(o Options) *Sheet { return &Sheet{Indent: 13, o: o} }

// Title heads the sheet.
func (s *Sheet) Title(text string) {
	s.b.WriteString(s.o.paint(bold, plain.Line(text)) + s.o.paint(faint, "   on this host, this kernel, this load") + "\n\n")
}

// Fact writes a name and its value, hanging.
func (s *Sheet) Fact(name, value string) { s.note(faint, name, value) }

// Warning writes a fact that is not to be missed.
func (s *Sheet) Warning(name, text string) { s.note(yellow, name, text) }

func (s *Sheet) note(style Style, name, text string) {
	indent := strings.Repeat(" ", s.Indent)
	lines := plain.Wrap(plain.Line(text), s.o.width()-s.Indent)
	s.b.WriteString(s.o.paint(style, name) + indent[min(len(name), s.Indent-1):] + strings.Join(lines, "\n"+indent) + "\n")
}

// Paragraph writes a blank line and the text, wrapped.
func (s *Sheet) Paragraph(text string) {
	s.Lines("\n" + strings.Join(plain.Wrap(plain.Line(text), s.o.width()), "\n") + "\n")
}

// Legend writes a paragraph that explains a table.
func (s *Sheet) Legend(text string) {
	s.b.WriteString("\n")
	for _, line := range plain.Wrap(text, s.o.width()) {
		s.b.WriteString(s.o.paint(faint, line) + "\n")
	}
}

// Lines writes text as it is.
func (s *Sheet) Lines(text string) { s.b.WriteString(text) }

// Flush writes the sheet out.
func (s *Sheet) Flush(w io.Writer) error {
	if _, err := io.WriteString(w, s.b.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// Text writes the report for a terminal: what ran, the table (one row per
// scenario), its footnotes, and what it means. Where the table does not fit the
// width it is written as two.
func Text(w io.Writer, r *lab.Result, a *lab.Analysis, o Options) error {
	s := NewSheet(o)
	s.Title(title(r))
	for _, f := range facts(r, a) {
		s.Fact(f.Name, f.Value)
	}
	for _, text := range append(alarms(r, a), a.Warnings...) {
		s.Warning("warning", text)
	}
	if len(a.Rows) == 0 {
		s.Paragraph("No round was stored: there is nothing to tell.")
	} else {
		s.scenarios(a)
	}
	for _, text := range a.Reading {
		s.Paragraph(text)
	}
	if a.Recommendation != "" {
		s.Paragraph("Recommendation: " + a.Recommendation)
	}
	return s.Flush(w)
}

// scenarios writes the rows: in one table where it fits, else latency first
// and the rest below.
func (s *Sheet) scenarios(a *lab.Analysis) {
	notes := &footnotes{}
	names := nameColumn(a, notes)
	left := append(latencyColumns(a), workColumn(a))
	right := costColumns(a)
	spans := map[int]string{}
	for i, row := range a.Rows {
		switch {
		case row.Skipped != nil:
			spans[i] = plain.Line(skippedText(*row.Skipped))
		case row.Rounds == 0:
			spans[i] = "not run"
		}
	}
	all := slices.Concat([]Column{names}, left, right)
	if tableWidth(all) <= s.o.width() {
		s.Table(all, spans)
	} else {
		s.Table(slices.Concat([]Column{names}, left), spans)
		rest, kept := costRows(names, right, spans)
		s.Table(slices.Concat([]Column{rest}, kept), nil)
	}
	s.Legend(legend)
	notes.write(s)
}

const legend = "work: the neighbour's, relative to unisolated; CPU: of the whole host; wait: the tenant's threads ready and waiting for a CPU; throttled: CPU time withheld by a limit; " +
	"lag: the generator's own, p99; n: rounds counted of those run; ≥ lower bound; ~ inconclusive."

// costRows drops the spanned rows, which the first table has shown.
func costRows(names Column, columns []Column, spans map[int]string) (Column, []Column) {
	drop := func(c Column) Column {
		var cells []Cell
		for i, cell := range c.Cells {
			if _, ok := spans[i]; !ok {
				cells = append(cells, cell)
			}
		}
		c.Cells = cells
		return c
	}
	out := make([]Column, len(columns))
	for i, c := range columns {
		out[i] = drop(c)
	}
	return drop(names), out
}

func skippedText(s lab.Skipped) string {
	text := "skipped: " + s.Reason
	if s.Remedy != "" {
		text += " (" + s.Remedy + ")"
	}
	return text
}

func nameColumn(a *lab.Analysis, notes *footnotes) Column {
	c := Column{Head: "scenario", Left: true}
	for _, row := range a.Rows {
		c.Cells = append(c.Cells, Cell{Text: plain.Line(row.Scenario) + notes.of(row)})
	}
	return c
}

// latencyColumns are the quantiles, the ratio and the verdict.
func latencyColumns(a *lab.Analysis) []Column {
	var columns []Column
	for _, p := range shownQuantiles(a) {
		columns = append(columns, quantileColumn(a, p))
	}
	ratio := Column{Head: "× baseline p99"}
	verdict := Column{Head: "verdict", Left: true}
	for _, row := range a.Rows {
		if row.Ratio != nil && row.Ratio.Confidence > 0 {
			ratio.Unit = fmt.Sprintf("[%s %%]", percent(row.Ratio.Confidence))
		}
		ratio.Cells = append(ratio.Cells, Cell{Text: ratioText(a, row)})
		verdict.Cells = append(verdict.Cells, Cell{plain.Line(string(row.Verdict)), verdictStyle(row.Verdict)})
	}
	return append(columns, ratio, verdict)
}

// shownQuantiles are those that at least one row supports; without any, the
// usual three.
func shownQuantiles(a *lab.Analysis) []float64 {
	var ps []float64
	for _, row := range a.Rows {
		for _, q := range row.Quantiles {
			if _, ok := quantileOf(row, q.P); ok && !slices.Contains(ps, q.P) {
				ps = append(ps, q.P)
			}
		}
	}
	if len(ps) == 0 {
		return []float64{50, 95, 99}
	}
	slices.Sort(ps)
	return ps
}

func quantileColumn(a *lab.Analysis, p float64) Column {
	var values []float64
	for _, row := range a.Rows {
		if q, ok := quantileOf(row, p); ok {
			values = append(values, q.Estimate)
		}
	}
	u := unitFor(values...)
	c := Column{Head: quantileName(p), Unit: u.name}
	for _, row := range a.Rows {
		text := absent
		if q, ok := quantileOf(row, p); ok {
			text = u.in(q.Estimate)
			if q.AtLeast || row.Saturated {
				text = "≥" + text
			}
		}
		c.Cells = append(c.Cells, Cell{Text: text})
	}
	return c
}

func ratioText(a *lab.Analysis, row lab.Row) string {
	if row.Ratio == nil || row.Ratio.Estimate <= 0 {
		return absent
	}
	mark := ""
	switch {
	case ratioBound(a, row):
		mark = "≥"
	case row.Verdict == stats.Inconclusive || a.BaselineBound():
		mark = "~"
	}
	return mark + times(*row.Ratio)
}

// ratioBound says whether the row's ratio is a lower bound.
func ratioBound(a *lab.Analysis, row lab.Row) bool { return row.LowerBound() && !a.BaselineBound() }

func verdictStyle(v stats.Verdict) Style {
	switch v {
	case stats.Better, stats.Equivalent:
		return green
	case stats.Worse:
		return red
	case stats.Inconclusive, stats.Invalid:
		return yellow
	}
	return normal
}

// workColumn is what protecting the tenant costs the neighbour.
func workColumn(a *lab.Analysis) Column {
	c := Column{Head: "work", Unit: "%"}
	for _, row := range a.Rows {
		c.Add(workText(row))
	}
	return c
}

func workText(row lab.Row) string {
	if row.WorkShare == nil {
		return absent
	}
	return percent(*row.WorkShare)
}

// costColumns are what the host, the limits and the generator did.
func costColumns(a *lab.Analysis) []Column {
	host := Column{Head: "CPU", Unit: "%"}
	wait := Column{Head: "wait", Unit: "ms/s"}
	throttled := Column{Head: "throttled", Unit: "ms/s"}
	lag := Column{Head: "lag", Unit: "µs"}
	rounds := Column{Head: "n"}
	for _, row := range a.Rows {
		if row.Valid == 0 {
			host.Add(absent)
			wait.Add(absent)
			throttled.Add(absent)
			lag.Add(absent)
		} else {
			host.Add(strconv.FormatFloat(row.HostBusy*100, 'f', 0, 64))
			wait.Add(waitText(row))
			throttled.Add(throttledText(row))
			lag.Add(strconv.FormatFloat(row.LagP99, 'f', 0, 64))
		}
		rounds.Add(fmt.Sprintf("%d/%d", row.Valid, row.Rounds))
	}
	return []Column{host, wait, throttled, lag, rounds}
}

// waitText is the tenant's run delay; a kernel without schedstat does not count it.
func waitText(row lab.Row) string {
	if row.TenantWait == 0 {
		return absent
	}
	return strconv.FormatFloat(row.TenantWait*1e3, 'f', 0, 64)
}

// throttledText is the throttled time of both roles; a throttled tenant has a
// footnote as well.
func throttledText(row lab.Row) string {
	total := row.NeighbourThrottled + row.TenantThrottled
	if total == 0 {
		return absent
	}
	return digits3(total * 1e3)
}
