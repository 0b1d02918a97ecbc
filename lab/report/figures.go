package report

import (
	"fmt"
	"maps"
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
	curves   []curve
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
	if len(c.curves) > 0 {
		plots = append(plots, c.percentiles())
	}
	if len(c.rounds) > 0 {
		plots = append(plots, c.time(), c.probes())
	}
	return plots
}

// near is what an axis of ratios covers at least, on either side of 1.
const near = 1.2

// ratioBands are ±10 % around no difference, and by how much alone differs from itself.
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
			p.X, p.XLow, p.XHigh, p.Bound = row.Ratio.Estimate, row.Ratio.Low, row.Ratio.High, ratioBound(c.analysis, row)
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
			"The shaded band is ±10 %" + c.floorWords() + ". An interval that includes 1 but leaves the shaded band decides nothing.",
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
		bound := ratioBound(c.analysis, row)
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
			"The scenario to choose is the rightmost of those in the shaded band, which is ±10 %" + c.floorWords() + ".",
		X: Axis{
			Label: "neighbour's work, % of what it does unisolated →", Min: max(0, 10*math.Floor(least/10)-10), Max: most * 1.06, Grid: true,
			Format: func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) },
		},
		Panels: []Panel{panel},
	}
}

// curve is one scenario's response time by percentile.
type curve struct {
	row    lab.Row
	points []curvePoint
}

// curvePoint is one percentile of all requests, in microseconds.
type curvePoint struct {
	p, us   float64
	atLeast bool // requests that never finished reach into it
}

// curvePercentiles are those that curves are drawn through: even on the axis
// of nines, and the ones with names.
var curvePercentiles = []float64{
	5, 10, 20, 30, 40, 50, 60, 70, 75, 80, 85, 90, 92.5, 95, 96, 97, 98, 98.5,
	99, 99.3, 99.5, 99.7, 99.8, 99.9, 99.95, 99.99,
}

// minTail is how many requests must lie above a percentile for a curve to be
// drawn that far.
const minTail = 30

// curves are computed for every scenario that has valid rounds. A curve stops
// where the sample does not support the next percentile.
func curves(m *lab.Measured, a *lab.Analysis) []curve {
	var out []curve
	for _, row := range a.Rows {
		rounds := lab.Responses(m.Valid(row.Scenario))
		ps := drawable(rounds, row)
		c := curve{row: row}
		var seconds []stats.Distribution
		for _, r := range rounds {
			seconds = append(seconds, r.Seconds...)
		}
		all := stats.Merge(seconds...)
		for _, p := range ps {
			if us, ok := all.Quantile(p); ok {
				c.points = append(c.points, curvePoint{p, us, row.Saturated || stats.AtLeast(row.Censored, row.Requests, p)})
			}
		}
		if len(c.points) > 0 {
			out = append(out, c)
		}
	}
	return out
}

// drawable are the percentiles that the sample supports, up to the lowest that the
// analysis refused to give.
func drawable(rounds []stats.Round, row lab.Row) []float64 {
	var total int64
	for _, r := range rounds {
		total += r.Requests()
	}
	limit := math.Inf(1)
	for _, q := range row.Quantiles {
		if q.Reason != "" {
			limit = min(limit, q.P)
		}
	}
	for i, p := range curvePercentiles {
		supported, _ := stats.Supported(rounds, p)
		if p >= limit || !supported || float64(total)*(1-p/100) < minTail {
			return curvePercentiles[:i]
		}
	}
	return curvePercentiles
}

// nines is a percentile's place on the axis: 0, 1 for p90, 2 for p99.
func nines(p float64) float64 { return -math.Log10(1 - p/100) }

// percentiles is response time by percentile: the further right, the rarer the
// request. One line per scenario.
func (c canvas) percentiles() Plot {
	panel := Panel{Height: 386, Margin: true, Y: Axis{Label: "response time, from due to done", Log: true, Format: shortLatency, Grid: true}}
	last := 99.0
	for _, cv := range c.curves {
		s := Series{Label: shownName(cv.row.Scenario), Look: c.looks[cv.row.Scenario], Line: true}
		for _, q := range cv.points {
			p := Point{X: nines(q.p), Y: q.us, Low: q.us, High: q.us, Bound: q.atLeast}
			tip := fmt.Sprintf("%s %s: %s%s", shownName(cv.row.Scenario), quantileName(q.p), map[bool]string{true: "at least "}[q.atLeast], latency(q.us))
			switch q.p {
			case 50, 90, 95, 99, 99.9, 99.99:
				p.Radius, p.Tip = 4, tip
			}
			if q.p <= 99 {
				s.Tip = tip
			}
			s.Points = append(s.Points, p)
			last = max(last, q.p)
		}
		panel.Series = append(panel.Series, s)
	}
	x := Axis{Label: "percentile of requests, stretched towards the rarest", Max: nines(last), Grid: true}
	for _, p := range []float64{0, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.99} {
		if p <= last {
			x.Ticks = append(x.Ticks, Tick{At: nines(p), Text: quantileName(p)[1:]})
		}
	}
	return Plot{
		ID: "percentiles", Heading: "Response time by percentile",
		Caption: "All requests of all rounds that count, from the instant a request was due. A line stops where " +
			"the sample does not support the next percentile, and is dashed where unfinished requests make it a lower bound.",
		X: x, Panels: []Panel{panel}, Numbers: curveTable(c.curves),
	}
}

// curveTable is the percentile plot in figures.
func curveTable(curves []curve) *Table {
	heads := []string{"percentile"}
	for _, c := range curves {
		heads = append(heads, shownName(c.row.Scenario))
	}
	var rows [][]string
	for _, p := range curvePercentiles {
		line, any := []string{quantileName(p)}, false
		for _, c := range curves {
			text := absent
			if i := slices.IndexFunc(c.points, func(q curvePoint) bool { return q.p == p }); i >= 0 {
				text, any = atLeast(c.points[i].atLeast)+latency(c.points[i].us), true
			}
			line = append(line, text)
		}
		if any {
			rows = append(rows, line)
		}
	}
	return NewTable(heads, rows...)
}

// timeline is an axis of all rounds in the order run, each as long as its seconds, with
// a gap between blocks. It returns the slot of each round, with its tooltip.
func (c canvas) timeline(tip func(round) string) (x Axis, slots []Slot, cuts []float64) {
	total, gaps := 0.0, 0.0
	for i, r := range c.rounds {
		total += secondsOf(r)
		if i > 0 && r.Block != c.rounds[i-1].Block {
			gaps++
		}
	}
	gap := min(0.006*total, 0.1*total/max(gaps, 1))
	at, from := 0.0, 0.0
	for i, r := range c.rounds {
		if i > 0 && r.Block != c.rounds[i-1].Block {
			cuts = append(cuts, at+gap/2)
			at += gap
			from = at
		}
		slots = append(slots, Slot{From: at, To: at + secondsOf(r), Tip: tip(r), Hatched: r.Excluded != ""})
		at += secondsOf(r)
		if i == len(c.rounds)-1 || c.rounds[i+1].Block != r.Block {
			x.Ticks = append(x.Ticks, Tick{At: (from + at) / 2, Text: strconv.Itoa(r.Block + 1)})
		}
	}
	x.Max, x.Label = at, "blocks of rounds, in the order run"
	return x, slots, cuts
}

func secondsOf(r round) float64 { return float64(max(len(r.Response.Seconds), 1)) }

// maxBars is how many bars a plot over time has at most, more or less.
const maxBars = 200

// time is p50 and p99 of every second in the order run, above a strip that shows
// which scenario ran when.
func (c canvas) time() Plot {
	x, slots, cuts := c.timeline(func(r round) string {
		tip := fmt.Sprintf("%s, block %d, position %d", shownName(r.Scenario), r.Block+1, r.Position+1)
		if r.response != nil {
			tip += fmt.Sprintf(": p50 %s, p99 %s", at(r.response, 50), at(r.response, 99))
		}
		if r.Excluded != "" {
			tip += "; does not count: " + r.Excluded
		}
		return tip
	})
	each, n := "each second", int(math.Ceil(x.Max/maxBars))
	if n > 1 {
		each = fmt.Sprintf("each %d seconds", n)
	}
	latencies := Panel{Height: 290, Y: Axis{Label: "response time, p50 to p99 of " + each, Log: true, Format: shortLatency, Grid: true}}
	strip := Panel{Y: Axis{Rows: true}}
	for _, row := range c.analysis.Rows {
		if row.Skipped != nil || row.Rounds == 0 {
			continue
		}
		look, y := c.looks[row.Scenario], strip.Y.Max+.5
		bars, ran := Series{Look: look, Bars: true}, Series{Look: look, Bars: true}
		for i, r := range c.rounds {
			if r.Scenario != row.Scenario {
				continue
			}
			ran.Points = append(ran.Points, Point{X: slots[i].From, XHigh: slots[i].To, Low: y - .3, High: y + .3})
			from := slots[i].From
			for part := range slices.Chunk(r.Response.Seconds, n) {
				all := stats.Merge(part...)
				p50, ok := all.Quantile(50)
				p99, _ := all.Quantile(99)
				to := from + float64(len(part))
				if ok {
					bars.Points = append(bars.Points, Point{X: from, XHigh: to, Y: p50, Low: p50, High: p99})
				}
				from = to
			}
		}
		latencies.Series = append(latencies.Series, bars)
		strip.Series = append(strip.Series, ran)
		strip.Y.Ticks = append(strip.Y.Ticks, Tick{At: y, Text: shownName(row.Scenario), Look: look})
		strip.Y.Max++
	}
	strip.Height = 17 * strip.Y.Max
	return Plot{
		ID: "time", Heading: "Latency over time",
		Caption: "Every round, in the order run. Scenarios alternate in random order within a block, so a change of the machine " +
			"meets all of them alike. Hatched rounds do not count.",
		X: x, Panels: []Panel{latencies, strip}, Slots: slots, Cuts: cuts,
	}
}

// probes shows the machine itself over the run: control probes before each round,
// CPU time stolen, and load that was not the lab's.
func (c canvas) probes() Plot {
	x, slots, cuts := c.timeline(func(r round) string {
		return fmt.Sprintf("block %d, position %d, %s", r.Block+1, r.Position+1, shownName(r.Scenario))
	})
	p := Plot{
		ID: "probes", Heading: "The machine meanwhile",
		Caption: "Four fixed pieces of work, timed before each round, as deviation from their median; CPU time taken by the hypervisor; " +
			"and load that was not the lab's. Level lines mean that the machine did not change under the experiment.",
		X: x, Slots: slots, Cuts: cuts,
	}
	// panel adds a panel of percentages by round, with a range that does not blow up noise.
	panel := func(name, about, format string, y Axis, values map[int]float64) {
		s, most := Series{Line: true}, 0.0
		for i := range c.rounds {
			if v, ok := values[i]; ok {
				y.Min, y.Max, most = min(y.Min, math.Floor(v)), max(y.Max, math.Ceil(v)), max(most, math.Abs(v))
				s.Points = append(s.Points, Point{X: (slots[i].From + slots[i].To) / 2, Y: v, Radius: 1.8})
				slots[i].Tip += fmt.Sprintf("; %s "+format, name, v)
			}
			slots[i].Hatched = false // what does not count tells of the machine all the same
		}
		s.Tip = fmt.Sprintf("%s: at most "+format+" (%s)", name, most, about)
		whole := strings.Replace(format, ".1", ".0", 1)
		y.Ticks = []Tick{{At: y.Max, Value: fmt.Sprintf(whole, y.Max)}, {At: y.Min, Value: fmt.Sprintf(whole, y.Min)}}
		p.Panels = append(p.Panels, Panel{Height: 48, Name: name, About: about, Y: y, Series: []Series{s}})
	}
	probes, names := c.readings()
	for _, name := range names {
		values := probes[name]
		centre := stats.Median(slices.Collect(maps.Values(values)))
		for i, ns := range values {
			values[i] = (ns/centre - 1) * 100
		}
		y := Axis{Min: -10, Max: 10, Bands: []Band{{From: -5, To: 5, Class: "band10", Tip: "within 5 %"}, {Class: "one"}}}
		panel(strings.ToUpper(clip(name, 10)), digits3(centre)+" ns", "%+.1f %%", y, values)
	}
	steal, foreign := map[int]float64{}, map[int]float64{}
	for i, r := range c.rounds {
		if capacity := float64(r.Host.SharedCPUs) * r.Seconds; capacity > 0 {
			steal[i], foreign[i] = 100*r.Host.Steal/capacity, 100*max(r.Host.Foreign, 0)/capacity
		}
	}
	panel("steal", "of shared CPUs", "%.1f %%", Axis{Max: 5}, steal)
	panel("foreign", "of shared CPUs", "%.1f %%", Axis{Max: 5}, foreign)
	return p
}

// readings are those of the control probes by name and round, and the names in order.
func (c canvas) readings() (probes map[string]map[int]float64, names []string) {
	probes = map[string]map[int]float64{}
	for i, r := range c.rounds {
		for _, p := range r.Probes {
			if p.NS <= 0 {
				continue
			}
			if probes[p.Probe] == nil {
				probes[p.Probe] = map[int]float64{}
				names = append(names, p.Probe)
			}
			probes[p.Probe][i] = p.NS
		}
	}
	return probes, names
}
