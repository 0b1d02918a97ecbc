package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// played is the rounds of an experiment by cell: what every page draws of them, whatever
// the experiment compares.
type played struct {
	cells  []playedCell // in the order of the table
	rounds []round      // in the order run
	// references are the cells in which nothing is done to the tenant: what changes in
	// them over the run is the machine's doing.
	references []string
}

// playedCell is one that was run.
type playedCell struct {
	name  string
	label string // "" is the name
	look  Look
	// limit is the lowest percentile that the analysis refuses to give; 0 for none.
	limit float64
}

// RoundPlots are what can be drawn of the rounds of any experiment: the distributions of
// response times by cell, and latency and the machine over the run. In the cells that are
// references nothing is done to the tenant: what changes in them is the machine's doing. After
// each so many cells the same looks come again.
func RoundPlots(m *lab.Measured, cells []string, each int, references ...string) []Plot {
	p := played{rounds: roundsOf(m), references: references}
	for i, name := range cells {
		if slices.ContainsFunc(p.rounds, func(r round) bool { return r.Scenario == name }) {
			p.cells = append(p.cells, playedCell{name: name, look: Look(i%each%Looks + 1)})
		}
	}
	return p.plots()
}

// shown is what the cell is called.
func (c playedCell) shown() string { return cmp.Or(c.label, shownName(c.name)) }

// valid are the rounds of a cell that count.
func (p played) valid(cell string) (valid []lab.Decoded) {
	for _, r := range p.rounds {
		if r.Scenario == cell && r.Excluded == "" {
			valid = append(valid, r.Decoded)
		}
	}
	return valid
}

// crowd is from how many cells on a curve, or a lane, for each is too much to look at.
const crowd = 12

// plots are the distributions of response times, latency over time, and the machine.
func (p played) plots() (plots []Plot) {
	if len(p.rounds) == 0 {
		return nil
	}
	if len(p.cells) > crowd {
		plots = append(plots, p.spreads()...)
	} else if curves := p.curves(); len(curves) > 0 {
		plots = append(plots, percentiles(curves))
	}
	return append(plots, p.time(), p.probes())
}

// curve is one cell's response time by percentile.
type curve struct {
	playedCell
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

// curves are computed for every cell that has valid rounds. A curve stops
// where the sample does not support the next percentile.
func (p played) curves() []curve {
	var out []curve
	for _, cell := range p.cells {
		valid := p.valid(cell.name)
		c := curve{playedCell: cell}
		var seconds []stats.Distribution
		for _, d := range valid {
			seconds = append(seconds, d.Response.Seconds...)
		}
		all := stats.Merge(seconds...)
		for _, at := range drawable(lab.Responses(valid), cell.limit) {
			if us, ok := all.Quantile(at); ok {
				c.points = append(c.points, curvePoint{at, us, p.bound(valid, at)})
			}
		}
		if len(c.points) > 0 {
			out = append(out, c)
		}
	}
	return out
}

// drawable are the percentiles that the sample supports, below a limit if there is one.
func drawable(rounds []stats.Round, limit float64) []float64 {
	var total int64
	for _, r := range rounds {
		total += r.Requests()
	}
	for i, p := range curvePercentiles {
		supported, _ := stats.Supported(rounds, p)
		if limit > 0 && p >= limit || !supported || float64(total)*(1-p/100) < minTail {
			return curvePercentiles[:i]
		}
	}
	return curvePercentiles
}

// nines is a percentile's place on the axis: 0, 1 for p90, 2 for p99.
func nines(p float64) float64 { return -math.Log10(1 - p/100) }

// percentiles is response time by percentile: the further right, the rarer the
// request. One line per cell.
func percentiles(curves []curve) Plot {
	panel := Panel{Height: 386, Margin: true, Y: Axis{Label: "response time, from due to done", Log: true, Format: shortLatency, Grid: true}}
	last := 99.0
	for _, cv := range curves {
		s := Series{Label: cv.shown(), Look: cv.look, Line: true}
		for _, q := range cv.points {
			p := Point{X: nines(q.p), Y: q.us, Low: q.us, High: q.us, Bound: q.atLeast}
			tip := fmt.Sprintf("%s %s: %s%s", cv.shown(), quantileName(q.p), map[bool]string{true: "at least "}[q.atLeast], latency(q.us))
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
		X: x, Panels: []Panel{panel}, Numbers: curveTable(curves),
	}
}

// curveTable is the percentile plot in figures.
func curveTable(curves []curve) *Table {
	heads := []string{"percentile"}
	for _, c := range curves {
		heads = append(heads, c.shown())
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

// Spread is where some response times lie, for a row of Spreads. Bound says that requests
// that never finished reach into what is rare.
type Spread struct {
	Name  string
	Look  Look
	Of    stats.Distribution // in microseconds
	Bound bool
}

// Spreads is a row for each of several distributions: from the fastest twentieth to one
// request in 100, or as far as there are requests enough to tell.
func Spreads(id, heading, caption string, rows []Spread) Plot {
	panel := Panel{Y: Axis{Rows: true}}
	for _, row := range rows {
		n := float64(row.Of.Requests())
		fast, ok := row.Of.Quantile(5)
		median, _ := row.Of.Quantile(50)
		if !ok {
			continue
		}
		most := 50.
		for _, p := range []float64{75, 90, 95, 99} {
			if n*(1-p/100) >= leastBeyond {
				most = p
			}
		}
		rare, _ := row.Of.Quantile(most)
		y := panel.Y.Max + .5
		panel.Y.Max++
		says := latency(median)
		if most > 50 {
			says += fmt.Sprintf(", %s %s%s", quantileName(most), atLeast(row.Bound), latency(rare))
		}
		panel.Y.Ticks = append(panel.Y.Ticks, Tick{At: y, Text: shownName(row.Name), Value: says, Look: row.Look})
		panel.Series = append(panel.Series, Series{Look: row.Look, Tip: shownName(row.Name) + ": " + says, Points: []Point{
			{X: median, XLow: fast, XHigh: rare, Bound: row.Bound, Y: y, Low: y, High: y, Radius: 4.5},
		}})
	}
	panel.Height = 24 * panel.Y.Max
	return Plot{
		ID: id, Heading: heading, Caption: caption + " The marker is the median, the line goes from the fastest twentieth to one request in 100 " +
			"(or as far as there are requests enough), with an arrow where unfinished requests make that a lower bound.",
		X: Axis{Label: "response time, from due to done", Log: true, Format: shortLatency, Grid: true}, Panels: []Panel{panel}, Names: 40,
	}
}

// leastBeyond is how many requests have to lie beyond a percentile for it to end a row of Spreads.
const leastBeyond = 10

// sheet is how many rows of Spreads a sheet of paper has room for.
const sheet = 32

// spreads are those of the cells, in as many plots of the same length as they need to be printed.
func (p played) spreads() (plots []Plot) {
	var rows []Spread
	for _, cell := range p.cells {
		valid := p.valid(cell.name)
		row := Spread{Name: cell.name, Look: cell.look, Bound: p.bound(valid, 99)}
		var seconds []stats.Distribution
		for _, d := range valid {
			seconds = append(seconds, d.Response.Seconds...)
		}
		row.Of = stats.Merge(seconds...)
		rows = append(rows, row)
	}
	id, heading := "spreads", "Where response times lie"
	parts := (len(rows) + sheet - 1) / sheet
	for part := range slices.Chunk(rows, (len(rows)+parts-1)/parts) {
		if parts > 1 {
			heading = fmt.Sprintf("Where response times lie, %d of %d", len(plots)+1, parts)
		}
		plots = append(plots, Spreads(id, heading, "All requests of all rounds that count.", part))
		id = fmt.Sprintf("spreads-%d", len(plots)+1)
	}
	return plots
}

// bound says whether a percentile of rounds is a lower bound.
func (p played) bound(rounds []lab.Decoded, of float64) bool {
	saturated, censored, offered := 0, 0, 0
	for _, d := range rounds {
		if stats.Saturated(d.Load.DoneInWindow, d.Load.Offered) {
			saturated++
		}
		censored, offered = censored+d.Censored, offered+d.Load.Offered
	}
	return stats.Mostly(saturated, len(rounds)) || stats.AtLeast(censored, offered, of)
}

// timeline is an axis of all rounds in the order run, each as long as its seconds, with
// a gap between blocks. It returns the slot of each round, with its tooltip, and where blocks
// meet, unless that is between all rounds.
func (p played) timeline(tip func(round) string) (x Axis, slots []Slot, cuts []float64) {
	total, gaps := 0.0, 0.0
	for i, r := range p.rounds {
		total += secondsOf(r)
		if i > 0 && r.Block != p.rounds[i-1].Block {
			gaps++
		}
	}
	gap := min(0.006*total, 0.1*total/max(gaps, 1))
	at, from := 0.0, 0.0
	for i, r := range p.rounds {
		if i > 0 && r.Block != p.rounds[i-1].Block {
			cuts = append(cuts, at+gap/2)
			at += gap
			from = at
		}
		slots = append(slots, Slot{From: at, To: at + secondsOf(r), Tip: tip(r), Hatched: r.Excluded != ""})
		at += secondsOf(r)
		if i == len(p.rounds)-1 || p.rounds[i+1].Block != r.Block {
			x.Ticks = append(x.Ticks, Tick{At: (from + at) / 2, Text: strconv.Itoa(r.Block + 1)})
		}
	}
	if len(cuts) == len(p.rounds)-1 {
		cuts = nil
	}
	x.Max, x.Label = at, "blocks of rounds, in the order run"
	return x, slots, cuts
}

func secondsOf(r round) float64 { return float64(max(len(r.Response.Seconds), 1)) }

// maxBars is how many bars a plot over time has at most, more or less.
const maxBars = 200

// time is p50 and p99 of every second in the order run, above a strip that shows
// which cell ran when. Of a crowd it shows the references alone.
func (p played) time() Plot {
	shown := p.cells
	about := "Every round, in the order run. That is random within a block, so a change of the machine meets all of them alike."
	if len(shown) > crowd {
		shown = slices.DeleteFunc(slices.Clone(shown), func(c playedCell) bool { return !slices.Contains(p.references, c.name) })
		about = "The rounds in which nothing is done to the tenant, in the order run, among those of all other cells."
		p.rounds = slices.DeleteFunc(slices.Clone(p.rounds), func(r round) bool { return !slices.Contains(p.references, r.Scenario) })
	}
	x, slots, cuts := p.timeline(func(r round) string {
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
	for _, cell := range shown {
		if !slices.ContainsFunc(p.rounds, func(r round) bool { return r.Scenario == cell.name }) {
			continue
		}
		look, y := cell.look, strip.Y.Max+.5
		bars, ran := Series{Look: look, Bars: true}, Series{Look: look, Bars: true}
		for i, r := range p.rounds {
			if r.Scenario != cell.name {
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
		strip.Y.Ticks = append(strip.Y.Ticks, Tick{At: y, Text: cell.shown(), Look: look})
		strip.Y.Max++
	}
	strip.Height = 17 * strip.Y.Max
	latencies.Marks = p.drifts(slots)
	return Plot{
		ID: "time", Heading: "Latency over time", Caption: about + " Hatched rounds do not count. " + DriftWords,
		X: x, Panels: []Panel{latencies, strip}, Slots: slots, Cuts: cuts,
	}
}

// drifts are the changes of level of the p99 of each reference.
func (p played) drifts(slots []Slot) (marks []Mark) {
	for _, name := range p.references {
		values := map[int]float64{}
		for i, r := range p.rounds {
			if r.Scenario == name && r.Excluded == "" && r.response != nil {
				values[i] = r.response[slices.Index(roundQuantiles, 99)]
			}
		}
		if m, ok := Drift(values, begins(slots), latency); ok {
			m.Text = "p99 " + shownName(name) + " " + m.Text
			marks = append(marks, m)
		}
	}
	return marks
}

// begins is where a round stands.
func begins(slots []Slot) func(int) float64 { return func(i int) float64 { return slots[i].From } }

// probes shows the machine itself over the run: control probes before each round,
// CPU time stolen, and load that was not the lab's.
func (p played) probes() Plot {
	x, slots, cuts := p.timeline(func(r round) string {
		return fmt.Sprintf("block %d, position %d, %s", r.Block+1, r.Position+1, shownName(r.Scenario))
	})
	out := Plot{
		ID: "probes", Heading: "The machine meanwhile",
		Caption: "Four fixed pieces of work, timed before each round, as deviation from their median; CPU time taken by the hypervisor; " +
			"and load that was not the lab's. Level lines mean that the machine did not change under the experiment. " + DriftWords,
		X: x, Slots: slots, Cuts: cuts,
	}
	// panel adds a panel of percentages by round, with a range that does not blow up noise.
	panel := func(name, about, format string, y Axis, values map[int]float64, marks ...Mark) {
		s, most := Series{Line: true}, 0.0
		for i := range p.rounds {
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
		out.Panels = append(out.Panels, Panel{Height: 48, Name: name, About: about, Y: y, Series: []Series{s}, Marks: marks})
	}
	probes, names := p.readings()
	for _, name := range names {
		values := probes[name]
		centre := stats.Median(slices.Collect(maps.Values(values)))
		var marks []Mark
		if m, ok := Drift(values, begins(slots), func(ns float64) string { return digits3(ns) + " ns" }); ok {
			marks = append(marks, m)
		}
		for i, ns := range values {
			values[i] = (ns/centre - 1) * 100
		}
		y := Axis{Min: -10, Max: 10, Bands: []Band{{From: -5, To: 5, Class: "band10", Tip: "within 5 %"}, {Class: "one"}}}
		panel(strings.ToUpper(clip(name, 10)), digits3(centre)+" ns", "%+.1f %%", y, values, marks...)
	}
	steal, foreign := map[int]float64{}, map[int]float64{}
	for i, r := range p.rounds {
		if capacity := float64(r.Host.SharedCPUs) * r.Seconds; capacity > 0 {
			steal[i], foreign[i] = 100*r.Host.Steal/capacity, 100*max(r.Host.Foreign, 0)/capacity
		}
	}
	panel("steal", "of shared CPUs", "%.1f %%", Axis{Max: 5}, steal)
	panel("foreign", "of shared CPUs", "%.1f %%", Axis{Max: 5}, foreign)
	return out
}

// readings are those of the control probes by name and round, and the names in order.
func (p played) readings() (probes map[string]map[int]float64, names []string) {
	probes = map[string]map[int]float64{}
	for i, r := range p.rounds {
		for _, reading := range r.Probes {
			if reading.NS <= 0 {
				continue
			}
			if probes[reading.Probe] == nil {
				probes[reading.Probe] = map[int]float64{}
				names = append(names, reading.Probe)
			}
			probes[reading.Probe][i] = reading.NS
		}
	}
	return probes, names
}
