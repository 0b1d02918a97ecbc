package report

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// Text writes the report for a terminal: what ran, the table (one row per
// scenario), its footnotes, and what it means. Where the table does not fit the
// width it is written as two.
func Text(w io.Writer, r *lab.Result, a *lab.Analysis, o Options) error {
	var b strings.Builder
	b.WriteString(o.paint(bold, printable(title(r))) + o.paint(faint, "   on this host, this kernel, this load") + "\n\n")
	writeFacts(&b, facts(r, a), o)
	for _, s := range append(alarms(r, a), a.Warnings...) {
		writeNote(&b, o.paint(yellow, "warning"), len("warning"), s, o)
	}
	b.WriteString("\n")
	if len(a.Rows) == 0 {
		b.WriteString("No round was stored: there is nothing to tell.\n")
	} else {
		writeTable(&b, a, o)
	}
	for _, s := range a.Reading {
		writeParagraph(&b, s, o)
	}
	if a.Recommendation != "" {
		writeParagraph(&b, "Recommendation: "+a.Recommendation, o)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

const factIndent = 13

func writeFacts(b *strings.Builder, facts []fact, o Options) {
	for _, f := range facts {
		writeNote(b, o.paint(faint, f.Name), len(f.Name), f.Value, o)
	}
}

// writeNote writes a label of labelWidth visible characters and the text, hanging.
func writeNote(b *strings.Builder, label string, labelWidth int, text string, o Options) {
	indent := strings.Repeat(" ", factIndent)
	lines := wrap(printable(text), o.width()-factIndent)
	b.WriteString(label + indent[min(labelWidth, factIndent-1):] + strings.Join(lines, "\n"+indent) + "\n")
}

func writeParagraph(b *strings.Builder, text string, o Options) {
	b.WriteString("\n" + strings.Join(wrap(printable(text), o.width()), "\n") + "\n")
}

// writeTable writes the rows: in one table where it fits, else latency first
// and the rest below.
func writeTable(b *strings.Builder, a *lab.Analysis, o Options) {
	notes := &footnotes{}
	names := nameColumn(a, notes)
	left := append(latencyColumns(a), workColumn(a))
	right := costColumns(a)
	spans := map[int]string{}
	for i, row := range a.Rows {
		switch {
		case row.Skipped != nil:
			spans[i] = printable(skippedText(*row.Skipped))
		case row.Rounds == 0:
			spans[i] = "not run"
		}
	}
	all := slices.Concat([]column{names}, left, right)
	if tableWidth(all) <= o.width() {
		layTable(b, all, spans, o)
	} else {
		layTable(b, slices.Concat([]column{names}, left), spans, o)
		b.WriteString("\n")
		rest, kept := costRows(names, right, spans)
		layTable(b, slices.Concat([]column{rest}, kept), nil, o)
	}
	b.WriteString("\n")
	for _, line := range wrap(legend, o.width()) {
		b.WriteString(o.paint(faint, line) + "\n")
	}
	notes.write(b, o)
}

const legend = "work: the neighbour's, relative to unisolated; CPU: of the whole host; wait: the tenant's threads ready and waiting for a CPU; throttled: CPU time withheld by a limit; " +
	"lag: the generator's own, p99; n: rounds counted of those run; ≥ lower bound; ~ inconclusive."

// costRows drops the spanned rows, which the first table has shown.
func costRows(names column, columns []column, spans map[int]string) (column, []column) {
	drop := func(c column) column {
		var cells []cell
		for i, cell := range c.cells {
			if _, ok := spans[i]; !ok {
				cells = append(cells, cell)
			}
		}
		c.cells = cells
		return c
	}
	out := make([]column, len(columns))
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

func nameColumn(a *lab.Analysis, notes *footnotes) column {
	c := column{head: "scenario", left: true}
	for _, row := range a.Rows {
		c.cells = append(c.cells, cell{text: printable(row.Scenario) + notes.of(row)})
	}
	return c
}

// latencyColumns are the quantiles, the ratio and the verdict.
func latencyColumns(a *lab.Analysis) []column {
	var columns []column
	for _, p := range shownQuantiles(a) {
		columns = append(columns, quantileColumn(a, p))
	}
	ratio := column{head: "× baseline p99"}
	verdict := column{head: "verdict", left: true}
	for _, row := range a.Rows {
		if row.Ratio != nil && row.Ratio.Confidence > 0 {
			ratio.unit = fmt.Sprintf("[%s %%]", percent(row.Ratio.Confidence))
		}
		ratio.cells = append(ratio.cells, cell{text: ratioText(a, row)})
		verdict.cells = append(verdict.cells, cell{printable(string(row.Verdict)), verdictStyle(row.Verdict)})
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

func quantileColumn(a *lab.Analysis, p float64) column {
	var values []float64
	for _, row := range a.Rows {
		if q, ok := quantileOf(row, p); ok {
			values = append(values, q.Estimate)
		}
	}
	u := unitFor(values...)
	c := column{head: quantileName(p), unit: u.name}
	for _, row := range a.Rows {
		text := absent
		if q, ok := quantileOf(row, p); ok {
			text = u.in(q.Estimate)
			if q.AtLeast || row.Saturated {
				text = "≥" + text
			}
		}
		c.cells = append(c.cells, cell{text: text})
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

func verdictStyle(v stats.Verdict) style {
	switch v {
	case stats.Better, stats.Equivalent:
		return green
	case stats.Worse:
		return red
	case stats.Inconclusive, stats.Invalid:
		return yellow
	}
	return plain
}

// workColumn is what protecting the tenant costs the neighbour.
func workColumn(a *lab.Analysis) column {
	c := column{head: "work", unit: "%"}
	for _, row := range a.Rows {
		c.add(workText(row))
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
func costColumns(a *lab.Analysis) []column {
	host := column{head: "CPU", unit: "%"}
	wait := column{head: "wait", unit: "ms/s"}
	throttled := column{head: "throttled", unit: "ms/s"}
	lag := column{head: "lag", unit: "µs"}
	rounds := column{head: "n"}
	for _, row := range a.Rows {
		if row.Valid == 0 {
			host.add(absent)
			wait.add(absent)
			throttled.add(absent)
			lag.add(absent)
		} else {
			host.add(strconv.FormatFloat(row.HostBusy*100, 'f', 0, 64))
			wait.add(waitText(row))
			throttled.add(throttledText(row))
			lag.add(strconv.FormatFloat(row.LagP99, 'f', 0, 64))
		}
		rounds.add(fmt.Sprintf("%d/%d", row.Valid, row.Rounds))
	}
	return []column{host, wait, throttled, lag, rounds}
}

func (c *column) add(text string) { c.cells = append(c.cells, cell{text: text}) }

// waitText is the tenant's run delay; a kernel without schedstat tells none.
func waitText(row lab.Row) string {
	if row.TenantWait == 0 {
		return absent
	}
	return strconv.FormatFloat(row.TenantWait*1e3, 'f', 0, 64)
}

// throttledText is the throttled time of both parties; a throttled tenant has a
// footnote as well.
func throttledText(row lab.Row) string {
	total := row.NeighbourThrottled + row.TenantThrottled
	if total == 0 {
		return absent
	}
	return digits3(total * 1e3)
}
