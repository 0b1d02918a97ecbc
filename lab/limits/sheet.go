package limits

import (
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
)

// Document is the report in its JSON form. The raw rounds are in the result.
type Document struct {
	lab.Header
	Experiment Spec      `json:"experiment"`
	Samples    []Sample  `json:"samples"`
	Analysis   *Analysis `json:"analysis"`
}

// Sheet is what the result comes to: first words that a person can act on.
func (x *Experiment) Sheet() (*report.Sheet, error) {
	a, err := x.Analyse()
	if err != nil {
		return nil, err
	}
	e := x.Experiment
	s := report.NewSheet(e.Name+": tiles rendered by servers with limits", &x.Header)
	s.Answer, s.Document = a.Answer, Document{x.Header, e, x.Samples, a}
	m, err := x.measured(a)
	if err != nil {
		return nil, err
	}
	x.facts(s, a, m)
	s.Headline = x.judged(a, 0).Headline(lab.P99)
	if len(e.Loads) > 1 {
		s.Headline = ""
		s.Add(a.matrix(e, "Median response", "ms", millis(p50)), a.matrix(e, "p95 of response", "ms", millis(func(r Row) float64 { return r.P95 })),
			a.matrix(e, "Tiles per second", "1/s", func(r Row) string { return report.Digits(r.Throughput) }))
	}
	for i, l := range e.Loads {
		j := x.judged(a, i)
		table := j.Table()
		s.Add(report.Block{Heading: l.String(), Table: table, Fold: len(e.Loads) > 1})
	}
	for _, l := range e.Loads {
		s.Add(report.Block{Heading: strings.TrimSuffix("What the limits did: "+l.String(), ": "), Table: a.limitTable(e, l), Fold: len(e.Loads) > 1})
		if t := a.theoryTable(l); t != nil {
			s.Add(report.Block{Heading: "What theory expects", Table: t})
		}
	}
	s.Page = func() report.Page { return x.page(a, m) }
	return s, nil
}

func (x *Experiment) facts(s *report.Sheet, a *Analysis, m *lab.Measured) {
	e := x.Experiment
	for _, sample := range x.Samples {
		costs, mean := sample.costs()
		if len(costs) > 0 {
			s.Fact("tiles", fmt.Sprintf("%d %s ones of %d, %s to %s of CPU time each, %s on average; every checksum is verified",
				len(costs), sample.Kind, 26_010, short(slices.Min(costs).Seconds()), short(slices.Max(costs).Seconds()), short(mean.Seconds())))
		}
	}
	s.Fact("servers", fmt.Sprintf("on CPUs %s; limits are shares of them", x.Setup.CPUs))
	s.Fact("rounds", fmt.Sprintf("%d blocks of %d rounds, %s settling and %s measured each; seed %d", e.Blocks, len(e.Configs)*len(e.Loads), e.Settle, e.Window, e.Seed))
	s.Fact("generator", report.Generator(m))
	if e.Weight > 0 {
		s.Fact("weight", fmt.Sprintf("the servers have a CPU weight of %d against the rest of the host", e.Weight))
	}
	if ok, why := stats.HostGate(a.Steal, a.Foreign); !ok {
		s.Warn("others", why)
	}
	failed := 0
	for _, r := range a.Rows {
		failed += r.Failed
	}
	s.Failed(failed)
}

// Judged are the tables of the result: the configs compared, one table for each load.
func (x *Experiment) Judged() ([]report.Judged, error) {
	a, err := x.Analyse()
	if err != nil {
		return nil, err
	}
	var all []report.Judged
	for i := range x.Experiment.Loads {
		all = append(all, x.judged(a, i))
	}
	return all, nil
}

func (x *Experiment) judged(a *Analysis, load int) report.Judged {
	e := x.Experiment
	j := report.Judged{
		Name: e.Loads[load].String(), Head: "servers", Reference: e.Configs[0].Name, Figures: figures(e.Loads[load]),
		Samples: a.samples[load], Compared: a.Compared[load].Compared, Skipped: x.Skipped,
	}
	for _, c := range e.Configs {
		j.Cells = append(j.Cells, report.JudgedCell{Name: c.Name, Means: c.Means})
	}
	return j
}

// matrix is a figure by config and load, as a table.
func (a *Analysis) matrix(e Spec, heading, unit string, value func(Row) string) report.Block {
	heads := []string{"servers"}
	for _, l := range e.Loads {
		heads = append(heads, l.String())
	}
	var rows [][]string
	for _, c := range e.Configs {
		line := []string{c.Name}
		for _, l := range e.Loads {
			row, _ := a.row(c.Name, l)
			line = append(line, value(row))
		}
		rows = append(rows, line)
	}
	return report.Block{Heading: heading + " (" + unit + ")", Table: report.NewTable(heads, rows...)}
}

func (a *Analysis) row(config string, l Load) (Row, bool) {
	i := slices.IndexFunc(a.Rows, func(r Row) bool { return r.Config == config && r.Load == l.String() })
	if i < 0 {
		return Row{}, false
	}
	return a.Rows[i], true
}

// limitTable is what limits did to the servers under a load.
func (a *Analysis) limitTable(e Spec, l Load) *report.Table {
	var rows [][]string
	for _, c := range e.Configs {
		r, ok := a.row(c.Name, l)
		if !ok || r.Rounds == 0 {
			continue
		}
		limit, used, throttled := absent, absent, absent
		if c.Limit > 0 {
			limit, used, throttled = report.Digits(c.Limit*100), percent(r.OfLimit), percent(r.Throttled)
		}
		same := absent
		if c.Servers > 1 {
			same = percent(r.Same)
		}
		rows = append(rows, []string{c.Name, limit, report.Digits(r.CPUs), used, throttled, report.Digits(r.Withheld), report.Digits(r.Waste), report.Digits(r.Idle), same, report.Digits(r.LagP99 / 1e3), fmt.Sprint(r.Requests)})
	}
	t := report.NewTable([]string{"servers", "limit %", "CPUs used", "of limit %", "throttled %", "withheld", "wasted", "idle", "same %", "lag ms", "requests"}, rows...)
	t.Legend = "limit: of each server, of all CPUs. throttled: of the periods in which a server was active, those in which its limit stopped it; " +
		"withheld: for how long, and wasted: how much of that at most while CPUs were idle, in CPUs. " +
		"same: requests that went to the server of the one before. lag: how late the generator was (p99)."
	return t
}

// theoryTable compares with theory; nil where it says nothing.
func (a *Analysis) theoryTable(l Load) *report.Table {
	var rows [][]string
	for _, r := range a.Rows {
		if r.Load != l.String() || r.Theory == nil || r.Rounds == 0 {
			continue
		}
		mg1, same, expected := absent, absent, absent
		if r.Theory.MG1 > 0 {
			mg1 = report.Digits(r.Theory.MG1 / 1e3)
		}
		if r.Theory.Same < 1 {
			same, expected = percent(r.Same), percent(r.Theory.Same)
		}
		rows = append(rows, []string{r.Config, same, expected, report.Digits(r.P50 / 1e3), report.Digits(r.Theory.P50 / 1e3), report.Digits(r.P99 / 1e3), report.Digits(r.Theory.P99 / 1e3), mg1, percent(r.Throttled), percent(r.Theory.Throttled)})
	}
	if rows == nil {
		return nil
	}
	t := report.NewTable([]string{"servers", "same %", "theory", "p50 ms", "theory", "p99 ms", "theory", "M/G/1", "throttled %", "theory"}, rows...)
	t.Legend = "Theory is a simulation of the quotas with these tiles, this load and this routing; of same, a formula where there is one (docs/experiments/routing.md). " +
		"M/G/1 is Pollaczek and Khinchine's p99 of servers of one thread that work steadily, at the speed of their limit. Response times here are of all requests together, others' disturbances included."
	return t
}

// page has the plots.
func (x *Experiment) page(a *Analysis, m *lab.Measured) report.Page {
	e := x.Experiment
	var p report.Page
	for i := range e.Loads {
		p.Details = append(p.Details, x.judged(a, i).Comparisons())
	}
	if len(e.Loads) == 1 {
		p.Plots = x.judged(a, 0).Plots("How the tail compares", lab.P99, m, e.references()...)
		return p
	}
	p.Plots = append(p.Plots,
		a.heat(e, "median", "Median response", "Median response time by servers and load, relative to "+e.Configs[0].Name+" under the same load.", p50, true),
		a.heat(e, "tail", "p95 of response", "p95 of the response time by servers and load, relative to "+e.Configs[0].Name+" under the same load.", func(r Row) float64 { return r.P95 }, true),
		a.heat(e, "throughput", "Tiles per second", "Tiles rendered per second, relative to "+e.Configs[0].Name+" under the same load.", func(r Row) float64 { return r.Throughput }, false))
	var cells, references []string
	for _, l := range e.Loads {
		for i, c := range e.Configs {
			cells = append(cells, e.cell(c, l))
			if i == 0 {
				references = append(references, e.cell(c, l))
			}
		}
	}
	p.Plots = append(p.Plots, report.RoundPlots(m, cells, len(e.Configs), references...)...)
	return p
}

// measured is all rounds under the names of their cells.
func (x *Experiment) measured(a *Analysis) (*lab.Measured, error) {
	if len(x.Experiment.Loads) == 1 {
		return a.measured[0], nil
	}
	return lab.Measure(&lab.Result{Header: x.Header, Rounds: x.Rounds})
}

func p50(r Row) float64 { return r.P50 }

// heat is a figure by config and load, coloured by how much worse than the first config it is.
func (a *Analysis) heat(e Spec, id, heading, caption string, value func(Row) float64, lessIsBetter bool) report.Plot {
	var rows, columns []string
	var fields []report.Field
	for n, l := range e.Loads {
		columns = append(columns, l.String())
		reference, _ := a.row(e.Configs[0].Name, l)
		for i, c := range e.Configs {
			r, _ := a.row(c.Name, l)
			v, of := value(r), value(reference)
			if v == 0 || of == 0 {
				continue
			}
			worse := v / of
			text := fmt.Sprintf("%.2g ×", v/of)
			if !lessIsBetter {
				worse = of / v
			}
			f := report.Field{Row: i, Column: n, Text: text, Tip: fmt.Sprintf("%s, %s: %s %s of %s", c.Name, l, heading, text, e.Configs[0].Name)}
			f.Times(worse, 10)
			fields = append(fields, f)
		}
	}
	for _, c := range e.Configs {
		rows = append(rows, c.Name)
	}
	return report.HeatMap(id, heading, caption+" Red: worse by 10 % or more; green: better. Empty: too few requests.", "servers", "load", rows, columns, fields)
}

const absent = "–"

// millis is a response time in milliseconds.
func millis(of func(Row) float64) func(Row) string {
	return func(r Row) string { return report.Digits(of(r) / 1e3) }
}

func percent(share float64) string { return fmt.Sprintf("%.0f", 100*share) }

// short is a time for a sentence.
func short(seconds float64) string {
	switch {
	case seconds >= 1:
		return fmt.Sprintf("%.3g s", seconds)
	case seconds >= 1e-3:
		return fmt.Sprintf("%.3g ms", seconds*1e3)
	}
	return fmt.Sprintf("%.3g µs", seconds*1e6)
}
