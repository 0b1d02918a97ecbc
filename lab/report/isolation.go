package report

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// Isolation is the sheet of a comparison of scenarios: what to know and to do, the table
// (one row per scenario), its footnotes, and what it means.
func Isolation(m *lab.Measured, a *lab.Analysis) *Sheet {
	s := &Sheet{Title: title(m.Result), Headline: headline(a), When: m.Started, By: programLine(m.Program), Answer: a.Answer, Open: a.Recommended == "", Document: NewDocument(m.Result, a)}
	facts(s, m, a)
	for _, text := range append(alarms(m.Result), a.Warnings...) {
		s.Warn("warning", text)
	}
	looks := looksOf(a.Rows)
	if len(a.Rows) == 0 {
		s.Add(Block{Text: "No round was stored."})
	} else {
		s.Add(Block{Table: scenarioTable(m, a, looks)}, Block{Heading: "What it took, and how well it was measured", Table: costTable(a)})
	}
	if t := otherFigures(a); t.rows() > 0 {
		s.Add(Block{Heading: "The other figures, against the tenant alone", Table: t, Terminal: true})
	}
	for _, text := range a.Reading {
		s.Add(Block{Text: text})
	}
	rounds := sync.OnceValue(func() []round { return roundsOf(m) })
	s.Page = func() Page {
		c := canvas{analysis: a, rounds: rounds(), looks: looks}
		return Page{c.plots(), append(comparisonBlocks(a), details(m.Result, a, rounds())...)}
	}
	s.Files = files(m, a, rounds)
	return s
}

// headline is the answer in a line; "" if there is none.
func headline(a *lab.Analysis) string {
	p99 := func(scenario string) string {
		row := rowOf(a, scenario)
		q, ok := quantileOf(row, 99)
		if !ok {
			return ""
		}
		return row.Bounded(q) + latency(q.Estimate)
	}
	alone, nothing, best := p99(lab.Baseline), p99(lab.Unisolated), p99(a.Recommended)
	switch {
	case alone == "" || nothing == "" || a.BaselineBound():
		return ""
	case a.Recommended == lab.Unisolated:
		return fmt.Sprintf("No isolation is needed: p99 beside the neighbour is %s, alone %s", nothing, alone)
	case a.Recommended == "":
		return fmt.Sprintf("p99 beside the neighbour is %s, alone %s; no strategy is shown to help", nothing, alone)
	}
	return fmt.Sprintf("p99 beside the neighbour is %s, alone %s; with %s %s", nothing, alone, a.Recommended, best)
}

// rowOf is a scenario's row; without one it is empty.
func rowOf(a *lab.Analysis, scenario string) lab.Row {
	i := slices.IndexFunc(a.Rows, func(row lab.Row) bool { return row.Scenario == scenario })
	if i < 0 {
		return lab.Row{}
	}
	return a.Rows[i]
}

// whyLeftOut says why rounds of a scenario do not count: each reason once, with its number
// of rounds if there are several. Reasons that differ in their figures are one.
func whyLeftOut(m *lab.Measured, scenario string) string {
	var kinds, words []string
	counts := map[string]int{}
	for _, d := range m.Decoded {
		if d.Scenario != scenario || d.Excluded == "" {
			continue
		}
		kind := figure.ReplaceAllString(d.Excluded, "0")
		if counts[kind]++; counts[kind] == 1 {
			kinds, words = append(kinds, kind), append(words, d.Excluded)
		}
	}
	for i, kind := range kinds {
		if n := counts[kind]; n > 1 {
			words[i] = fmt.Sprintf("%s (and %d more like it)", words[i], n-1)
		}
	}
	return strings.Join(words, "; ")
}

// figure is a number with its unit.
var figure = regexp.MustCompile(`[0-9][0-9.]*( ?(ns|µs|ms|s|%))?`)

// shownName is what a scenario is called: the baselines are the tenant alone.
func shownName(scenario string) string {
	switch scenario {
	case lab.Baseline:
		return "alone"
	case lab.BaselineAgain:
		return "alone again"
	}
	return scenario
}

// looksOf gives each scenario its look. The scenarios of the built-in experiment always
// have the same one, whatever was left out.
func looksOf(rows []lab.Row) map[string]Look {
	known := []string{lab.Baseline, lab.BaselineAgain, lab.Unisolated, "weighted", "idle", "limited", "pinned"}
	out := map[string]Look{}
	var taken [Looks]bool
	for _, row := range rows {
		if i := slices.Index(known, row.Scenario); i >= 0 {
			out[row.Scenario], taken[i] = Look(i+1), true
		}
	}
	next := len(known)
	for _, row := range rows {
		if out[row.Scenario] != 0 {
			continue
		}
		for range Looks { // until one that is free
			if !taken[next%Looks] {
				break
			}
			next++
		}
		out[row.Scenario], taken[next%Looks] = Look(next%Looks+1), true
		next++
	}
	return out
}

// column is a value of each row.
func column(a *lab.Analysis, head, unit string, value func(lab.Row) string) Column {
	c := Column{Head: head, Unit: unit}
	for _, row := range a.Rows {
		c.Add(value(row))
	}
	return c
}

func scenarioTable(m *lab.Measured, a *lab.Analysis, looks map[string]Look) *Table {
	t := &Table{Spans: map[int]string{}, Legend: "× alone: p99 in the typical block, relative to that of the tenant alone; × better: how many times better than with no isolation; " +
		"kept: of the neighbour's work without isolation; ≥ lower bound; ~ not decided."}
	notes := footnotes{measured: m}
	names := column(a, "scenario", "", func(row lab.Row) string { return shownName(row.Scenario) + notes.of(row) })
	names.Left = true
	ratio, verdict := column(a, "× alone", "", func(row lab.Row) string { return ratioText(a, row) }), Column{Head: "than alone", Left: true}
	for i, row := range a.Rows {
		names.Cells[i].Look = looks[row.Scenario]
		for _, s := range m.Experiment.Scenarios {
			if s.Name == row.Scenario {
				names.Cells[i].Below = s.Means
			}
		}
		if row.Ratio != nil && row.Ratio.Confidence > 0 {
			ratio.Unit = fmt.Sprintf("[%s %%]", percent(row.Ratio.Confidence))
		}
		verdict.Cells = append(verdict.Cells, Cell{Text: strings.TrimSuffix(strings.TrimSuffix(row.Verdict.Against("alone"), " than alone"), " as alone"), Mood: moodOf(row.Verdict)})
		switch {
		case row.Skipped != nil:
			t.Spans[i] = skippedText(*row.Skipped)
		case row.Rounds == 0:
			t.Spans[i] = "not run"
		}
		if a.Recommended != "" && row.Scenario == a.Recommended {
			t.Chosen = i + 1
		}
	}
	t.Columns = []Column{names}
	for _, p := range shownQuantiles(a) {
		c := quantileColumn(a, p)
		c.Roomy = p < 99
		t.Columns = append(t.Columns, c)
	}
	nothing := column(a, "× better", ratio.Unit, func(row lab.Row) string { return nothingText(a, row) })
	for i, row := range a.Rows {
		nothing.Cells[i].Mood = moodOf(row.Against)
	}
	t.Columns = append(t.Columns, ratio.split(1), verdict, nothing.split(2), column(a, "kept", "%", workText).split(3))
	t.Notes = notes.lines()
	return t
}

func skippedText(s lab.Skipped) string {
	text := "skipped: " + s.Reason
	if s.Remedy != "" {
		text += " (" + s.Remedy + ")"
	}
	return text
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
		cell := Cell{Text: absent}
		if q, ok := quantileOf(row, p); ok {
			cell.Text = bound(row, q) + u.in(q.Estimate)
			if q.All > 0 {
				cell.Below = "all " + u.in(q.All)
			}
		}
		c.Cells = append(c.Cells, cell)
	}
	return c
}

// bound marks a quantile that is a lower or an upper bound.
func bound(row lab.Row, q lab.Quantile) string {
	return map[string]string{"at least ": "≥", "at most ": "≤", "about ": "≈"}[row.Bounded(q)]
}

func ratioText(a *lab.Analysis, row lab.Row) string {
	switch {
	case row.Ratio == nil || row.Ratio.Estimate <= 0:
		return absent
	case ratioBound(a, row, 99):
		return "≥" + times(*row.Ratio)
	case row.Verdict == stats.Inconclusive || a.BaselineBound():
		return "~" + times(*row.Ratio)
	}
	return times(*row.Ratio)
}

// ratioBound says whether the row's ratio of a percentile is a lower bound.
func ratioBound(a *lab.Analysis, row lab.Row, p float64) bool {
	q, _ := quantileOf(row, p)
	return (row.Saturated || row.Bound && p == 99) && q.AtMost == "" && !a.BaselineBound()
}

func moodOf(v stats.Verdict) Mood {
	switch v {
	case stats.Better, stats.Equivalent:
		return Good
	case stats.Worse:
		return Bad
	case stats.Inconclusive, stats.Invalid:
		return Unsure
	}
	return Plain
}

// nothingText is how many times the row's p99 is better than without isolation.
func nothingText(a *lab.Analysis, row lab.Row) string {
	c, _ := a.Compared(row.Scenario, lab.Unisolated)
	f, ok := c.Figure("p99")
	switch {
	case !ok || a.BaselineBound():
		return absent
	}
	better := f.Interval
	better.Estimate, better.Low, better.High = 1/f.Estimate, 1/f.High, 1/f.Low
	if f.Verdict == stats.Inconclusive {
		return "~" + times(better)
	}
	return times(better)
}

// otherFigures are those beside the p99, by which people decide: each with a mark for its verdict.
func otherFigures(a *lab.Analysis) *Table {
	t := &Table{Legend: "p50, p95: relative to those of the tenant alone, in the typical block; slow: the share of requests beyond the p99 of the typical round of the tenant alone, less its own; " +
		"▲ worse than alone, ▼ better, = as good, ~ not decided; ≥ lower bound. Against no isolation, and each against each: in the JSON form and on the page."}
	names := Column{Head: "scenario", Left: true}
	columns := []Column{{Head: "p50", Unit: "×"}, {Head: "p95", Unit: "×"}, {Head: "slow", Unit: "points"}}
	for _, c := range a.Comparisons {
		if c.Against != lab.Baseline {
			continue
		}
		names.Add(shownName(c.Scenario))
		for i := range columns {
			cell := Cell{Text: absent}
			if f, ok := c.Figure(columns[i].Head); ok {
				cell = markedFigure(a, rowOf(a, c.Scenario), f)
			}
			columns[i].Cells = append(columns[i].Cells, cell)
		}
	}
	t.Columns = []Column{names}
	for i, c := range columns {
		c = c.split(i + 1)
		if slices.ContainsFunc(c.Cells, func(cell Cell) bool { return cell.Below != "" }) {
			c.Unit += " [95 %]"
		}
		t.Columns = append(t.Columns, c)
	}
	return t
}

// markedFigure is a difference from the tenant alone with its interval, behind the mark of its verdict.
func markedFigure(a *lab.Analysis, row lab.Row, f lab.Figure) Cell {
	text, p := times(f.Interval), map[string]float64{"p50": 50, "p95": 95}[f.Quantity]
	if p == 0 {
		text, p = differenceText(f.Quantity, f.Interval), 99
	}
	if ratioBound(a, row, p) {
		text = "≥" + text
	}
	if row.Scenario == lab.BaselineAgain && f.Verdict == stats.Inconclusive {
		return Cell{Text: text} // as it should be
	}
	mark := map[stats.Verdict]string{stats.Worse: "▲", stats.Better: "▼", stats.Equivalent: "=", stats.Inconclusive: "~"}[f.Verdict]
	return Cell{Text: mark + text, Mood: moodOf(f.Verdict)}
}

// split has each cell's interval below it, or on a terminal beside it where that fits, in the
// order of the column's numbers (Column.Inline).
func (c Column) split(inline int) Column {
	c.Inline = inline
	for i, cell := range c.Cells {
		if text, interval, ok := strings.Cut(cell.Text, " ["); ok {
			c.Cells[i].Text, c.Cells[i].Below = text, "["+interval
		}
	}
	return c
}

// comparisonBlocks are all comparisons of the run.
func comparisonBlocks(a *lab.Analysis) []Block {
	if len(a.Comparisons) == 0 {
		return nil
	}
	heads := []string{"scenario", "against", "of", "difference", "verdict", "all blocks together", "p-value", "blocks", "more"}
	if a.Undisturbed {
		heads = append(heads, "with disturbed requests")
	}
	var rows [][]string
	for _, c := range a.Comparisons {
		for _, f := range c.Figures {
			verdict := f.Verdict.Against(shownName(c.Against))
			if c.Scenario == lab.BaselineAgain && f.Verdict == stats.Inconclusive {
				verdict = "no difference shown"
			}
			more := absent
			if f.MoreBlocks > 0 {
				more = "+" + strconv.Itoa(f.MoreBlocks)
			}
			row := []string{
				shownName(c.Scenario), shownName(c.Against), f.Quantity, differenceText(f.Quantity, f.Interval), verdict,
				differenceText(f.Quantity, stats.Interval{Estimate: f.Pooled}), strconv.FormatFloat(f.P, 'g', 2, 64), strconv.Itoa(f.Rounds), more,
			}
			if a.Undisturbed {
				all := absent
				if f.All != nil {
					all = differenceText(f.Quantity, *f.All)
				}
				row = append(row, all)
			}
			rows = append(rows, row)
		}
	}
	t := NewTable(heads, rows...)
	t.Legend = "p50, p95, p99: ratio; slow: requests beyond the p99 of the typical round of the tenant alone, difference of the shares in points. The p-values are corrected for all comparisons; " +
		"more: blocks that would decide."
	return []Block{{Heading: "All comparisons", Table: t, Fold: true}}
}

// differenceText is a ratio, or a difference of shares in points, with its interval.
func differenceText(quantity string, iv stats.Interval) string {
	if quantity != "slow" {
		return "× " + times(iv)
	}
	text := fmt.Sprintf("%+.2f", 100*iv.Estimate)
	if iv.Known() {
		text += fmt.Sprintf(" [%+.2f, %+.2f]", 100*iv.Low, 100*iv.High)
	}
	return text
}

// workText is what protecting the tenant costs the neighbour.
func workText(row lab.Row) string {
	if row.WorkShare == nil {
		return absent
	}
	if k := row.WorkKept; k != nil && k.Known() {
		return fmt.Sprintf("%s [%s, %s]", percent(k.Estimate), percent(k.Low), percent(k.High))
	}
	return percent(*row.WorkShare)
}

// costTable is what the host, the limits and the generator did.
func costTable(a *lab.Analysis) *Table {
	t := &Table{Beside: true, Legend: "CPU: of the whole host; run delay: of the tenant's threads, ready but waiting for a CPU; throttled: CPU time withheld by a limit; " +
		"lag: the generator's own, p99, a part of response time as is the wait for a free connection (queue); n: rounds counted of those run."}
	names := column(a, "scenario", "", func(row lab.Row) string { return shownName(row.Scenario) })
	names.Left = true
	// What is zero was not counted; a kernel without schedstat counts no run delay.
	perSecond := func(v float64) string {
		if v == 0 {
			return absent
		}
		return digits3(v * 1e3)
	}
	whole := func(v float64) string { return strconv.FormatFloat(v, 'f', 0, 64) }
	add := func(head, unit string, pageOnly bool, value func(lab.Row) string) {
		c := column(a, head, unit, func(row lab.Row) string {
			if row.Valid == 0 {
				return absent
			}
			return value(row)
		})
		c.PageOnly = pageOnly
		t.Columns = append(t.Columns, c)
	}
	t.Columns = []Column{names}
	add("CPU", "%", false, func(row lab.Row) string { return whole(row.HostBusy * 100) })
	add("tenant", "CPUs", true, func(row lab.Row) string { return digits3(row.TenantCPUs) })
	add("neighbour", "CPUs", true, func(row lab.Row) string {
		if row.Unit == "" {
			return absent
		}
		return digits3(row.NeighbourCPUs)
	})
	if slices.ContainsFunc(a.Rows, func(row lab.Row) bool { return row.LinkUse != nil }) {
		t.Legend += " Sent: by the neighbour; link: what went over it, of its rate."
		add("sent", "MB/s", false, func(row lab.Row) string {
			if row.Unit == "" {
				return absent
			}
			return digits3(row.Work / 1e6)
		})
		add("link", "%", false, func(row lab.Row) string {
			if row.LinkUse == nil {
				return absent
			}
			return percent(*row.LinkUse)
		})
	}
	add("run delay", "ms/s", false, func(row lab.Row) string { return perSecond(row.TenantWait) })
	add("throttled", "ms/s", false, func(row lab.Row) string { return perSecond(row.NeighbourThrottled + row.TenantThrottled) })
	add("lag", "µs", false, func(row lab.Row) string { return whole(row.LagP99) })
	add("queue p99", "µs", true, func(row lab.Row) string { return whole(row.QueueP99) })
	add("requests", "", true, func(row lab.Row) string { return strconv.Itoa(row.Requests) })
	add("failed or unfinished", "", true, func(row lab.Row) string { return strconv.Itoa(row.Censored) })
	t.Columns = append(t.Columns, column(a, "n", "", func(row lab.Row) string { return fmt.Sprintf("%d/%d", row.Valid, row.Rounds) }))
	t.Spans = map[int]string{}
	for i, row := range a.Rows {
		if row.Skipped != nil || row.Rounds == 0 {
			t.Spans[i] = absent
		}
	}
	return t
}
