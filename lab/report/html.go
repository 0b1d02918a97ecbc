package report

import (
	_ "embed" // the page's template and style sheet
	"fmt"
	"html/template"
	"io"

	"berth.dev/berth/lab"
)

//go:embed page.html
var pageTemplate string

//go:embed page.css
var pageStyle string

// HTML writes the report as one file that needs no network and no script: the
// plots are drawn here, and the raw numbers are links to data inside the page.
func HTML(w io.Writer, r *lab.Measured, a *lab.Analysis) error {
	p, err := newPage(r, a)
	if err != nil {
		return err
	}
	t, err := template.New("report").Funcs(template.FuncMap{
		"style": func() template.CSS { return template.CSS(pageStyle) },
	}).Parse(pageTemplate)
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := t.Execute(w, p); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func newPage(m *lab.Measured, a *lab.Analysis) (p *page, err error) {
	r, rounds := m.Result, roundsOf(m)
	c := canvas{analysis: a, rounds: rounds, curves: curves(m, a), looks: looksOf(a.Rows)}
	p = &page{
		Title: title(r), Recommendation: a.Recommendation, Reading: a.Reading,
		Facts: facts(r, a), Knobs: knobTable(r, a), Machine: machineTable(r.Host),
		Experiment: experimentTable(r), Rounds: roundTable(rounds), Program: programLine(r.Program),
	}
	if !r.Started.IsZero() {
		p.When = r.Started.UTC().Format("2 January 2006, 15:04 UTC")
	}
	for _, q := range shownQuantiles(a) {
		p.Columns = append(p.Columns, quantileName(q))
	}
	p.Rows, p.Notes = pageRows(r, a, c)
	p.Effort = effortTable(a)
	p.Figures = figures(c)
	for _, s := range append(alarms(r, a), a.Warnings...) {
		p.Warnings = append(p.Warnings, sentence(s))
	}
	p.Downloads, err = downloads(m, a, rounds)
	return p, err
}

// figures draws what there is data for.
func figures(c canvas) []figure {
	var out []figure
	add := func(id, heading, caption string, draw func(canvas) template.HTML, numbers *pageTable) {
		w, n := c, c
		w.size, n.size = wide, narrow
		out = append(out, figure{id, heading, caption, draw(w), draw(n), numbers})
	}
	if hasRatio(c.analysis) {
		add("ratios", "How much slower than alone", "Each scenario's p99 divided by the baseline's, over the blocks in which both count, with its interval. "+
			"An interval inside the ±10 % band is equivalent; one that includes 1 but leaves the band decides nothing.", canvas.drawRatios, nil)
	}
	if len(tradeRows(c.analysis)) > 0 {
		add("tradeoff", "What protection costs", "Isolation is a trade. Further down the tenant is better protected; further right the neighbour gets more of its work done. "+
			"The scenario to choose is the rightmost of those in the band.", canvas.drawTradeoff, nil)
	}
	if len(c.curves) > 0 {
		numbers := curveTable(c.curves)
		add("percentiles", "Response time by percentile", "Counted from the instant a request was due. Bands are bootstrap intervals over rounds and seconds; a line stops where "+
			"the sample does not support the next percentile, and is dashed where unfinished requests make it a lower bound.", canvas.drawPercentiles, &numbers)
	}
	if len(c.rounds) > 0 {
		add("time", "Latency over time", "Every round, in the order run. Scenarios alternate in random order within a block, so a change of the machine "+
			"meets all of them alike.", canvas.drawTime, nil)
		add("probes", "The machine meanwhile", "Four fixed pieces of work, timed before each round, as deviation from their median; CPU time taken by the hypervisor; "+
			"and load that was not the lab's. Level lines mean that the machine did not change under the experiment.", canvas.drawProbes, nil)
	}
	return out
}

func hasRatio(a *lab.Analysis) bool {
	for _, row := range a.Rows {
		if row.Ratio != nil {
			return true
		}
	}
	return false
}
