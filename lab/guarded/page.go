package guarded

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
)

// total is what all runs that count come to.
type total struct{ runs, valid, right, harmed, back, innocent, decoys int }

func (a *Analysis) total() (t total) {
	for _, row := range a.Faults {
		fault, _ := FaultNamed(row.Fault)
		t.runs += row.Runs
		t.valid += row.Valid
		t.right += row.Right
		t.innocent += row.Innocent
		if fault.Decoy || fault.None {
			t.decoys += row.Valid
			continue
		}
		t.harmed += row.Harmed
		t.back += row.Recovered.N
	}
	return t
}

// headline is the answer in a line; "" if no run counts.
func (a *Analysis) headline() string {
	t := a.total()
	if t.valid == 0 {
		return ""
	}
	bystanders := "never acted against a bystander"
	if t.innocent > 0 {
		bystanders = fmt.Sprintf("acted %s against one that did nothing", plain.Count(t.innocent, "time"))
	}
	return fmt.Sprintf("The guard named what was wrong in %d of %s, and %s", t.right, plain.Count(t.valid, "run"), bystanders)
}

// What to do about the guard: let it act, or only say what it would do.
const (
	enforce = "berth guard --mode enforce --sensitive SERVICE --best-effort GROUP"
	preview = "berth guard --mode preview --sensitive SERVICE --best-effort GROUP"
)

// answer is what to know first, and what to do. most is the share of the CPUs that others might take.
func (a *Analysis) answer(most float64) (words []string) {
	t := a.total()
	if t.runs == 0 {
		return nil
	}
	if t.valid == 0 {
		return []string{
			fmt.Sprintf("Nothing can be said: none of %s counts (%s). Run it on a quieter machine, or allow more.", plain.Count(t.runs, "run"), a.whyInvalid()),
			fmt.Sprintf("Do it: berth lab guard --max-others %.2g", min(1, 2*most)),
		}
	}
	words = append(words, a.headline()+".")
	if t.harmed > 0 {
		words = append(words, fmt.Sprintf("The service was harmed in %d of %s with a real antagonist; in %d of them its p99 was back under %.1f times what it was before the fault ended.",
			t.harmed, plain.Count(t.valid-t.decoys, "run"), t.back, back))
	}
	var found, acted []*float64
	for _, j := range a.Runs {
		if j.Invalid == "" {
			found, acted = append(found, j.Detected), append(acted, j.Acted)
		}
	}
	if f, d := spread(found), spread(acted); f.N > 0 && d.N > 0 {
		words = append(words, fmt.Sprintf("Medians, from the onset: the cause was found after %.2f s, the first remedy applied after %.2f s.", f.Median, d.Median))
	}
	if bad := t.runs - t.valid; bad > 0 {
		words = append(words, fmt.Sprintf("%d of %s left out: %s.", bad, plain.Count(t.runs, "run"), a.whyInvalid()))
	}
	if a.Kept != nil {
		words = append(words, fmt.Sprintf("In steady state the neighbour keeps %.0f %% of the CPU time that the service leaves.", 100**a.Kept))
	}
	if t.innocent > 0 {
		return append(words, "Read whom it would act against before it may.", "Do it: "+preview)
	}
	if a.helpless() {
		return append(words, "As it never brought the p99 back, keep the neighbour from hurting it from the start.", "Do it: berth run --class BE -- COMMAND")
	}
	return append(words, "Do it: "+enforce)
}

// helpless reports whether a neighbour harmed the service, and its p99 never came back before the fault ended.
func (a *Analysis) helpless() bool {
	harmed, back := 0, 0
	for _, row := range a.Faults {
		if fault, _ := FaultNamed(row.Fault); fault.guilty(lab.Neighbour) {
			harmed, back = harmed+row.Harmed, back+row.Recovered.N
		}
	}
	return harmed > 0 && back == 0
}

// whyInvalid is why the first run that does not count does not.
func (a *Analysis) whyInvalid() string {
	for _, j := range a.Runs {
		if j.Invalid != "" {
			return j.Invalid
		}
	}
	return ""
}

// plots are the p99 over time for each fault, and how soon the guard was.
func (a *Analysis) plots(r *Result) []report.Plot {
	if a.total().valid == 0 {
		return nil
	}
	return []report.Plot{a.overTime(r), a.confusion(), a.howSoon(), a.spreads(r), a.meanwhile(r)}
}

// confusion is what was done against what was named, in runs that count.
func (a *Analysis) confusion() report.Plot {
	names := map[string]int{}
	for _, counts := range a.Matrix {
		maps.Copy(names, counts)
	}
	answers := slices.Sorted(maps.Keys(names))
	var faults []string
	var fields []report.Field
	for _, row := range a.Faults {
		if row.Valid == 0 {
			continue
		}
		fault, _ := FaultNamed(row.Fault)
		for i, answer := range answers {
			n := a.Matrix[row.Fault][answer]
			if n == 0 {
				continue
			}
			f := report.Field{Row: len(faults), Column: i, Text: fmt.Sprint(n), Shade: float64(n) / float64(row.Valid), Mood: report.Bad,
				Tip: fmt.Sprintf("%s: %q was named in %d of %s", row.Fault, answer, n, plain.Count(row.Valid, "run"))}
			if fault.right(answer) {
				f.Mood = report.Good
			}
			fields = append(fields, f)
		}
		faults = append(faults, row.Fault)
	}
	return report.HeatMap("confusion", "What was done, and what was named", "Runs that count, by the fault and by what the guard named. Green is right, red is wrong.", "fault", "what was named", faults, answers, fields)
}

// spreads are the response times of each fault's runs, before the onset and while it lasts.
func (a *Analysis) spreads(r *Result) report.Plot {
	var rows []report.Spread
	for _, row := range a.Faults {
		var before, during []int64
		unfinished := 0
		for i, j := range a.Runs {
			if j.Fault != row.Fault || j.Invalid != "" {
				continue
			}
			c := r.Runs[i].curve()
			before, _ = c.responses(before, math.Inf(-1), 0)
			n := 0
			during, n = c.responses(during, 0, r.Runs[i].End)
			unfinished += n
		}
		if len(during) > 0 {
			rows = append(rows, report.Spread{Name: row.Fault + ", before", Look: line, Of: stats.DistributionOf(before)}, report.Spread{
				Name: row.Fault + ", meanwhile", Look: actedLook, Of: stats.DistributionOf(during), Bound: stats.AtLeast(unfinished, len(during), 99),
			})
		}
	}
	return report.Spreads("spreads", "Response times before and during each fault", "All requests of the runs that count, the guard acting.", rows)
}

// responses adds the response times of what was due between two instants, in microseconds, and
// says how many of them are lower bounds.
func (c curve) responses(to []int64, from, until float64) (all []int64, unfinished int) {
	first, last := c.between(from, until)
	for _, bin := range c.bins[first:last] {
		to, unfinished = append(to, bin.Response...), unfinished+bin.Censored
	}
	return to, unfinished
}

// meanwhile is the machine over all runs, in the order run: the service's p99 before each
// onset, and what others took.
func (a *Analysis) meanwhile(r *Result) report.Plot {
	order := make([]int, len(r.Runs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return r.Runs[x].Started.Compare(r.Runs[y].Started) })
	calm := report.Panel{Height: 150, Y: report.Axis{Label: "p99 before the onset; below, others' share of the CPUs", Log: true, Grid: true, Format: func(us float64) string { return lab.Latency(us) }}}
	others := report.Panel{Height: 90, Y: report.Axis{Max: 10, Grid: true, Format: func(v float64) string { return fmt.Sprintf("%g %%", v) }}}
	p99s, taken := report.Series{Look: line, Line: true, Tip: "p99 before the onset"}, report.Series{Look: actedLook, Line: true, Tip: "share of the CPUs that others took"}
	levels := map[int]float64{}
	p := report.Plot{
		ID: "meanwhile", Heading: "The machine meanwhile",
		Caption: "Each run in the order run. Hatched ones do not count. " + report.DriftWords,
		X:       report.Axis{Label: "runs, in the order run", Max: float64(len(order))},
	}
	for n, i := range order {
		run, j, x := &r.Runs[i], a.Runs[i], float64(n)+.5
		if j.Baseline > 0 {
			levels[n] = j.Baseline
			p99s.Points = append(p99s.Points, report.Point{X: x, Y: j.Baseline, Low: j.Baseline, High: j.Baseline, Radius: 3.5})
		}
		share := 100 * run.Others
		others.Y.Max = max(others.Y.Max, 10*math.Ceil(share/10))
		taken.Points = append(taken.Points, report.Point{X: x, Y: share, Low: share, High: share, Radius: 3.5})
		tip := fmt.Sprintf("%s %d: p99 before the onset %s, others %.0f %%", run.Fault, run.Number, lab.Latency(j.Baseline), share)
		if j.Invalid != "" {
			tip += "; does not count: " + j.Invalid
		}
		p.X.Ticks = append(p.X.Ticks, report.Tick{At: x, Text: strconv.Itoa(n + 1)})
		p.Slots = append(p.Slots, report.Slot{From: float64(n), To: float64(n + 1), Tip: tip, Hatched: j.Invalid != ""})
	}
	if m, ok := report.Drift(levels, func(n int) float64 { return float64(n) }, lab.Latency); ok {
		calm.Marks = append(calm.Marks, m)
	}
	calm.Series, others.Series = []report.Series{p99s}, []report.Series{taken}
	p.Panels = []report.Panel{calm, others}
	return p
}

// Looks of the moments of a run, in both plots.
const (
	line       report.Look = 1
	foundLook  report.Look = 4
	actedLook  report.Look = 5
	backLook   report.Look = 7
	per                    = 5 // bins in a point: a quarter of a second
	shownAhead             = 2 // seconds before the onset and after the end
)

// overTime pools the runs of each fault by the time from their onsets.
func (a *Analysis) overTime(r *Result) report.Plot {
	end := 0.0
	var panels []report.Panel
	for _, row := range a.Faults {
		var pool []curve
		last := math.Inf(1)
		for i, j := range a.Runs {
			if j.Fault == row.Fault && j.Invalid == "" {
				pool, last = append(pool, r.Runs[i].curve()), min(last, r.Runs[i].End)
			}
		}
		if len(pool) == 0 {
			continue
		}
		c := merge(pool)
		first, onset := c.between(-shownAhead, 0)
		base := c.p99(first, onset)
		if base == 0 {
			continue
		}
		end = max(end, min(last, lasts(r)))
		panels = append(panels, a.panel(row, c, base, min(last, lasts(r))))
	}
	return report.Plot{
		ID: "faults", Heading: "The service's p99 while each fault lasts",
		Caption: "p99 of every quarter of a second as a multiple of that before the onset, all runs of a fault that count together. The dashed lines are onset and end. " +
			"▲ the cause was found, ◆ the guard acted, ✚ the p99 was back: medians, with the range of the runs. The shaded band is up to " + fmt.Sprintf("%.1f times.", back),
		X:    report.Axis{Label: "seconds from the onset", Min: -shownAhead, Max: end + shownAhead, Format: func(v float64) string { return fmt.Sprintf("%.4g", v) }},
		Cuts: []float64{0, end}, Panels: panels,
	}
}

// lasts is how long a fault does.
func lasts(r *Result) float64 { return float64(r.Experiment.Last) / 1e9 }

// panel is that of a fault.
func (a *Analysis) panel(row Row, c curve, base, end float64) report.Panel {
	p := report.Panel{
		Height: 74, Name: row.Fault, About: fmt.Sprintf("right %d/%d", row.Right, row.Valid),
		Y: report.Axis{Log: true, Min: 0.7, Max: 12, Grid: true, Ticks: []report.Tick{{At: 1, Value: "1×"}, {At: 3, Value: "3×"}, {At: 10, Value: "10×"}},
			Bands: []report.Band{{From: 0.01, To: back, Class: "band10"}, {From: 1, To: 1, Class: "one"}}},
	}
	s := report.Series{Look: line, Line: true, Tip: fmt.Sprintf("%s: named rightly in %d of %d runs", row.Fault, row.Right, row.Valid)}
	first, last := c.between(-shownAhead, end+shownAhead)
	for at := first; at+per <= last; at += per {
		if v := c.p99(at, at+per) / base; v > 0 {
			s.Points = append(s.Points, report.Point{X: c.at(at) + per*binLength.Seconds()/2, Y: v, Low: v, High: v})
		}
	}
	p.Series = append(p.Series, s)
	for _, m := range moments(row) {
		if m.spread.N > 0 {
			p.Series = append(p.Series, report.Series{Look: m.look, Tip: fmt.Sprintf("%s: %s %s s", row.Fault, m.name, m.spread), Points: []report.Point{
				{X: m.spread.Median, XLow: m.spread.Least, XHigh: m.spread.Most, Y: 1, Low: 1, High: 1, Radius: 5},
			}})
		}
	}
	return p
}

// moment is when something came, in the runs of a fault.
type moment struct {
	name   string
	look   report.Look
	spread Spread
}

func moments(row Row) []moment {
	return []moment{{"found", foundLook, row.Detected}, {"acted", actedLook, row.Acted}, {"back", backLook, row.Recovered}}
}

// howSoon is a row for each moment of each fault, with the range of its runs.
func (a *Analysis) howSoon() report.Plot {
	panel := report.Panel{Y: report.Axis{Rows: true}}
	longest := 1.0
	for _, row := range a.Faults {
		for _, m := range moments(row) {
			if m.spread.N == 0 {
				continue
			}
			y := panel.Y.Max + .5
			panel.Y.Max++
			panel.Y.Ticks = append(panel.Y.Ticks, report.Tick{At: y, Text: row.Fault + " " + m.name, Value: m.spread.String(), Look: m.look})
			panel.Series = append(panel.Series, report.Series{Look: m.look, Tip: fmt.Sprintf("%s %s: %s s", row.Fault, m.name, m.spread), Points: []report.Point{
				{X: m.spread.Median, XLow: m.spread.Least, XHigh: m.spread.Most, Y: y, Radius: 5},
			}})
			longest = max(longest, m.spread.Most)
		}
	}
	panel.Height = 26 * max(panel.Y.Max, 1)
	return report.Plot{
		ID: "moments", Heading: "How soon", Caption: "Seconds from the onset: median and range of the runs that count. What is not there did not come.",
		X:      report.Axis{Label: "seconds from the onset", Max: longest * 1.05, Grid: true, Format: func(v float64) string { return fmt.Sprintf("%.4g", v) }},
		Panels: []report.Panel{panel},
	}
}

// page has the plots of the faults, and then those of the comparison in steady state.
func (a *Analysis) page(r *Result, steady *report.Sheet) func() report.Page {
	return func() report.Page {
		p := report.Page{Plots: a.plots(r)}
		if steady != nil && steady.Page != nil {
			rest := steady.Page()
			for i := range rest.Plots {
				rest.Plots[i].Heading = "Steady state: " + lower(rest.Plots[i].Heading)
			}
			p.Plots, p.Details = append(p.Plots, rest.Plots...), rest.Details
		}
		return p
	}
}

func lower(s string) string { return string(s[0]|0x20) + s[1:] }
