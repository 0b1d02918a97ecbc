package guarded

import (
	"fmt"
	"math"
	"slices"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
)

// protocolPlots are the pictures of the page.
func (a *ProtocolAnalysis) protocolPlots(r *ProtocolResult) []report.Plot {
	return []report.Plot{a.ratioPlot(), a.recoveryPlot(), a.protocolSpreads(r), a.namedPlot(), a.courses(r)}
}

// ratioPlot is the p99 over alone: a row for each arm.
func (a *ProtocolAnalysis) ratioPlot() report.Plot {
	panel := report.Panel{Y: report.Axis{Rows: true}}
	most := 2.0
	for i, row := range a.Arms {
		if row.P99.Rounds == 0 {
			continue
		}
		y, look := panel.Y.Max+.5, report.Look(i%report.Looks+1)
		panel.Y.Max++
		panel.Y.Ticks = append(panel.Y.Ticks, report.Tick{At: y, Text: row.key().String(), Value: ratioText(row.P99), Look: look})
		panel.Series = append(panel.Series, report.Series{Look: look, Tip: fmt.Sprintf("%s: p99 %s times that alone", row.key().String(), ratioText(row.P99)), Points: []report.Point{
			{X: row.P99.Estimate, XLow: row.P99.Low, XHigh: row.P99.High, Y: y, Radius: 5},
		}})
		most = max(most, row.P99.High)
	}
	panel.Height = 26 * max(panel.Y.Max, 1)
	return report.Plot{
		ID: "ratios", Heading: "The service's p99 beside a neighbour, over alone", Names: 28,
		Caption: "Typical quadruplets that count, with 95 % intervals. The line is alone; the shaded band is up to 5 % more.",
		X: report.Axis{
			Label: "p99 over alone", Log: true, Min: 0.9, Max: most, Grid: true, Format: func(v float64) string { return fmt.Sprintf("%.3g×", v) },
			Bands: []report.Band{{From: 1, To: 1.05, Class: "band10"}, {From: 1, To: 1, Class: "one"}},
		},
		Panels: []report.Panel{panel},
	}
}

// recoveryPlot is the pooled p99 since the onset, in the band of placebos.
func (a *ProtocolAnalysis) recoveryPlot() report.Plot {
	var panels []report.Panel
	for i, rec := range a.Recoveries {
		if len(rec.Curve) == 0 {
			continue
		}
		s := report.Series{Look: report.Look(i%report.Looks + 1), Line: true, Tip: fmt.Sprintf("%s, %s: %s pooled", rec.Arm, rec.Fault, plain.Count(rec.Onsets, "onset"))}
		low, high := math.Inf(1), 0.0
		for n, v := range rec.Curve {
			if v > 0 {
				low, high = min(low, v), max(high, v)
				s.Points = append(s.Points, report.Point{X: float64(n) * binLength.Seconds(), Y: v, Low: v, High: v})
			}
		}
		p := report.Panel{
			Height: 84, Name: rec.Arm, About: rec.Fault, Series: []report.Series{s},
			Y: report.Axis{Log: true, Min: low, Max: high, Grid: true, Format: func(us float64) string { return lab.Latency(us) }},
		}
		if rec.High > 0 {
			p.Y.Bands = []report.Band{{From: rec.Low, To: rec.High, Class: "band10", Tip: fmt.Sprintf("placebos: %s to %s", lab.Latency(rec.Low), lab.Latency(rec.High))}}
			p.Y.Min, p.Y.Max = min(low, rec.Low), max(high, rec.High)
		}
		panels = append(panels, p)
	}
	return report.Plot{
		ID: "faults", Heading: "The service's p99 from the onset on",
		Caption: "p99 of the requests due within half a second from each instant, all onsets of an arm together. Between the edges of the shaded band lie 95 of 100 sets of as many placebos.",
		X:       report.Axis{Label: "seconds from the onset", Max: a.period, Format: func(v float64) string { return fmt.Sprintf("%.4g", v) }},
		Panels:  panels,
	}
}

// protocolSpreads are whole distributions by arm.
func (a *ProtocolAnalysis) protocolSpreads(r *ProtocolResult) report.Plot {
	var rows []report.Spread
	add := func(name string, look report.Look, of func(q *Quadruplet, i int) bool) {
		var all []int64
		unfinished := 0
		for k := range r.Quadruplets {
			q := &r.Quadruplets[k]
			for i, p := range q.Periods {
				if of(q, i) {
					n := 0
					all, n = curve{bins: q.Bins}.responses(all, p.From, p.To)
					unfinished += n
				}
			}
		}
		if len(all) > 0 {
			rows = append(rows, report.Spread{Name: name, Look: look, Of: stats.DistributionOf(all), Bound: stats.AtLeast(unfinished, len(all), 99)})
		}
	}
	add(Alone, line, func(q *Quadruplet, i int) bool { return !q.second(i) || q.Arm == Placebo })
	for i, row := range a.Arms {
		add(row.key().String(), report.Look(i%report.Looks+1), func(q *Quadruplet, i int) bool {
			return q.second(i) && q.row() == row.key()
		})
	}
	return report.Spreads("spreads", "Response times by arm", "All requests, washouts included, nothing rejected.", rows)
}

// namedPlot is what was named, by arm.
func (a *ProtocolAnalysis) namedPlot() report.Plot {
	var names, answers []string
	counts, of := map[[2]string]int{}, map[string]int{}
	right := map[[2]string]bool{}
	for _, row := range a.Arms {
		name := row.key().String()
		names = append(names, name)
		for _, o := range a.Onsets {
			if o.row == row.key() {
				at := [2]string{name, o.Named}
				counts[at]++
				of[name]++
				right[at] = o.Right
				if !slices.Contains(answers, o.Named) {
					answers = append(answers, o.Named)
				}
			}
		}
	}
	slices.Sort(answers)
	var fields []report.Field
	for y, name := range names {
		for x, answer := range answers {
			at := [2]string{name, answer}
			n := counts[at]
			if n == 0 {
				continue
			}
			f := report.Field{Row: y, Column: x, Text: fmt.Sprint(n), Shade: float64(n) / float64(of[name]), Mood: report.Bad, Tip: fmt.Sprintf("%s: %q was named in %d of %s", name, answer, n, plain.Count(of[name], "onset"))}
			if right[at] {
				f.Mood = report.Good
			}
			fields = append(fields, f)
		}
	}
	return report.HeatMap("confusion", "What was named", "All onsets, by arm and by what was named. Green is right, red is wrong. Without the guard it looks on; of the baseline it is what that did.", "arm", "what was named", names, answers, fields)
}

// courses are the p99 alone and the ratio over the whole run, quadruplet by quadruplet.
func (a *ProtocolAnalysis) courses(r *ProtocolResult) report.Plot {
	order := make([]int, len(a.Quadruplets))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return r.Quadruplets[x].Started.Compare(r.Quadruplets[y].Started) })
	calm := report.Panel{Height: 120, Y: report.Axis{Label: "p99 alone, and below the share of the time that was used", Log: true, Grid: true, Format: func(us float64) string { return lab.Latency(us) }}}
	used := report.Panel{Height: 80, Y: report.Axis{Max: 100, Grid: true, Format: func(v float64) string { return fmt.Sprintf("%g %%", v) }}}
	p99s, shares := report.Series{Look: line, Line: true, Tip: "p99 alone"}, report.Series{Look: actedLook, Line: true, Tip: "share of the time that was used"}
	levels := map[int]float64{}
	p := report.Plot{
		ID: "meanwhile", Heading: "The machine meanwhile", Caption: "Each quadruplet in the order run. Hatched ones do not count. " + report.DriftWords,
		X: report.Axis{Label: "quadruplets, in the order run", Max: float64(len(order))},
	}
	for n, i := range order {
		q, x := a.Quadruplets[i], float64(n)+.5
		if q.P99[0] > 0 {
			levels[n] = q.P99[0]
			p99s.Points = append(p99s.Points, report.Point{X: x, Y: q.P99[0], Low: q.P99[0], High: q.P99[0], Radius: 3.5})
		}
		share := 100 * min(q.Left[0], q.Left[1])
		shares.Points = append(shares.Points, report.Point{X: x, Y: share, Low: share, High: share, Radius: 3.5})
		tip := fmt.Sprintf("%s, block %d: p99 alone %s, ratio %.2f", q.Cell, q.Block+1, lab.Latency(q.P99[0]), q.Ratio)
		if q.Out != "" {
			tip += "; does not count: " + q.Out
		}
		p.X.Ticks = append(p.X.Ticks, report.Tick{At: x, Text: fmt.Sprint(n + 1)})
		p.Slots = append(p.Slots, report.Slot{From: float64(n), To: float64(n + 1), Tip: tip, Hatched: q.Out != ""})
	}
	if m, ok := report.Drift(levels, func(n int) float64 { return float64(n) }, lab.Latency); ok {
		calm.Marks = append(calm.Marks, m)
	}
	calm.Series, used.Series = []report.Series{p99s}, []report.Series{shares}
	p.Panels = []report.Panel{calm, used}
	return p
}
