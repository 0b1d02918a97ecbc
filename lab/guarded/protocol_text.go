package guarded

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
)

// ProtocolReportSchema names the version of the ProtocolReport's format.
const ProtocolReportSchema = "berth.dev/lab-guard-protocol-report/v1"

// ProtocolReport is what was planned, and what it came to. What was measured is in the result.
type ProtocolReport struct {
	lab.Header
	Experiment Protocol          `json:"experiment"`
	Analysis   *ProtocolAnalysis `json:"analysis"`
}

// NewProtocolReport returns the report of a result.
func NewProtocolReport(r *ProtocolResult, a *ProtocolAnalysis) *ProtocolReport {
	d := &ProtocolReport{r.Header, r.Experiment, a}
	d.Schema = ProtocolReportSchema
	return d
}

// ProtocolSheet is what a result comes to: what each hypothesis came to, and a row for each arm.
func ProtocolSheet(r *ProtocolResult, a *ProtocolAnalysis) *report.Sheet {
	s := report.NewSheet("guard, by a protocol", &r.Header)
	s.Document = NewProtocolReport(r, a)
	s.Fact("tenant", fmt.Sprintf("%.0f requests/s of %s each: %.2f of CPUs %s", r.Setup.Rate, r.Setup.CPUPerRequest, r.Setup.TenantCPUs, r.Setup.CPUs))
	window := "of berth guard's length"
	if r.Experiment.Window > 0 {
		window = "of " + r.Experiment.Window.String()
	}
	s.Fact("guard", fmt.Sprintf("windows %s, run-queue probe armed: %s", window, r.Experiment.Probe))
	s.Fact("periods", fmt.Sprintf("of %s, of which the first %s is left out; seed %d", r.Experiment.Period, r.Experiment.Washout, r.Experiment.Seed))
	if len(r.Quadruplets) == 0 {
		s.Answer, s.Open = []string{"Nothing was measured."}, true
		for _, skipped := range r.Skipped {
			s.Warn("skipped", skipped.Scenario+": "+skipped.Reason)
		}
		return s
	}
	s.Headline, s.Answer, s.Open = a.headline(), a.answer(r), a.of(Shown) == 0
	s.Fact("looks", a.looks(r))
	s.Fact("generator", protocolGenerator(r))
	s.Fact("placebos", a.placebos())
	s.Fact("others", "took of the shared CPUs: "+byArm(a.Others))
	s.Fact("rejection", a.rejection())
	if behind := a.behind(); behind != "" {
		s.Warn("queues", behind)
	}
	s.Fact("adjustment", a.adjustment(r))
	for _, skipped := range r.Skipped {
		s.Warn("skipped", skipped.Scenario+": "+skipped.Reason)
	}
	s.Add(
		report.Block{Heading: "What was to be shown", Table: a.hypotheses()},
		report.Block{Heading: "Response times, and what the neighbour kept", Table: a.ratioTable()},
		report.Block{Heading: "What was named and done", Table: a.deeds(), Text: a.alone()},
		report.Block{Heading: "From the onset", Table: a.soon()},
	)
	s.Page = func() report.Page {
		return report.Page{Plots: a.protocolPlots(r), Details: []report.Block{{Heading: "Quadruplets", Table: a.quadrupletTable(), Fold: true}}}
	}
	return s
}

// headline is what the hypotheses came to in a line; "" if none is decided.
func (a *ProtocolAnalysis) headline() string {
	var parts []string
	for _, word := range []Word{Shown, Refuted, Undecided} {
		if n := a.of(word); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, word))
		}
	}
	if a.of(Shown)+a.of(Refuted) == 0 {
		return ""
	}
	return fmt.Sprintf("Hypotheses: %s", strings.Join(parts, ", "))
}

func (a *ProtocolAnalysis) of(word Word) (n int) {
	for _, v := range a.Verdicts {
		if v.Word == word {
			n++
		}
	}
	return n
}

// answer is a sentence for each hypothesis.
func (a *ProtocolAnalysis) answer(r *ProtocolResult) (words []string) {
	for _, v := range a.Verdicts {
		words = append(words, fmt.Sprintf("%s is %s: %s.", upper(v.Hypothesis.String()), v.Word, v.figure()))
	}
	if len(words) == 0 {
		words = []string{fmt.Sprintf("Nothing was to be shown; %s were run.", plain.Count(len(r.Quadruplets), "quadruplet"))}
	}
	return words
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// figure is the interval in the unit of the hypothesis.
func (d Decided) figure() string {
	if d.Interval.Rounds == 0 {
		return "not measured"
	}
	switch d.Figure {
	case P99:
		return between(d.Interval, "%.2f", "times")
	case Reaction:
		return between(d.Interval, "%.2f", "s")
	}
	return between(percent(d.Interval), "%.1f", "%")
}

// percent is an interval of shares in percent.
func percent(i stats.Interval) stats.Interval {
	i.Estimate, i.Low, i.High = 100*i.Estimate, 100*i.Low, 100*i.High
	return i
}

// between is "1.62 [1.10, 2.31] times".
func between(i stats.Interval, format, unit string) string {
	text := fmt.Sprintf(format, i.Estimate)
	if i.Known() {
		text += fmt.Sprintf(" ["+format+", "+format+"]", i.Low, i.High)
	}
	return strings.TrimSpace(text + " " + unit)
}

func (a *ProtocolAnalysis) looks(r *ProtocolResult) string {
	if a.Look == 0 {
		return fmt.Sprintf("none yet of %d", len(r.Experiment.Looks))
	}
	return fmt.Sprintf("%d of %d; this one decides up to a chance of %.4f on one side", a.Look, len(r.Experiment.Looks), a.Chance)
}

func protocolGenerator(r *ProtocolResult) string {
	used, length := 0.0, 0.0
	var lags []int64 // the longest of each bin: 99 of 100 requests had less than 99 of 100 bins
	for _, q := range r.Quadruplets {
		for _, p := range q.Periods {
			used, length = used+p.Use.Generator, length+p.Use.Seconds
		}
		for _, b := range q.Machine {
			lags = append(lags, int64(b.Lag))
		}
	}
	text := r.Setup.GeneratorPolicy
	if length > 0 {
		text += fmt.Sprintf(" · used %.3g CPUs", used/length)
	}
	return strings.TrimPrefix(text+" · own lag p99 at most "+lab.Latency(p99(lags)), " · ")
}

func (a *ProtocolAnalysis) placebos() string {
	if a.Placebo.Rounds == 0 {
		return "none counts"
	}
	return fmt.Sprintf("p99 of the same over the same: %s; chance of so much %.2f", between(a.Placebo, "%.2f", "times"), a.PlaceboChance)
}

func (a *ProtocolAnalysis) rejection() string {
	out := 0
	for _, q := range a.Quadruplets {
		if q.Out != "" {
			out++
		}
	}
	text := fmt.Sprintf("%d of %s do not count; used of the time: %s", out, plain.Count(len(a.Quadruplets), "quadruplet"), byArm(a.Left))
	if !a.Blind {
		text += fmt.Sprintf("; it was not blind (periods differ by %+.1f points): what counts is without it", 100*a.Unlike)
	}
	return text
}

// behind says where the tenant fell behind.
func (a *ProtocolAnalysis) behind() string {
	n := 0
	for _, q := range a.Quadruplets {
		if q.queued {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("in %d of %s the tenant fell behind for good: more than 1 %% of a period's requests were not answered before the end; they say nothing of the p99", n, plain.Count(len(a.Quadruplets), "quadruplet"))
}

// byArm is shares, "alone 95 %, guarded 88 %".
func byArm(shares map[string]float64) string {
	var all []string
	for _, arm := range append([]string{Alone}, arms()...) {
		if share, ok := shares[arm]; ok {
			all = append(all, fmt.Sprintf("%s %.0f %%", arm, 100*share))
		}
	}
	return strings.Join(all, ", ")
}

func (a *ProtocolAnalysis) adjustment(r *ProtocolResult) string {
	if len(a.Adjusted) == 0 {
		return fmt.Sprintf("none: fewer than %d placebos count", placebosEach)
	}
	var parts []string
	for i, name := range a.Adjusted {
		parts = append(parts, fmt.Sprintf("%s %+.2g", name, a.Coefficients[i]))
	}
	return fmt.Sprintf("%s of %s, by placebos: log p99 for one more of each", strings.Join(parts, ", "), strings.Join(r.Experiment.Covariates, ", "))
}

func (a *ProtocolAnalysis) hypotheses() *report.Table {
	var rows [][]string
	for _, v := range a.Verdicts {
		rows = append(rows, []string{v.Hypothesis.String(), string(v.Word), v.figure(), v.Why})
	}
	t := report.NewTable([]string{"hypothesis", "", "figure", "by"}, rows...)
	moods := map[string]report.Mood{string(Shown): report.Good, string(Refuted): report.Bad, string(Undecided): report.Unsure}
	for i := range t.Columns {
		t.Columns[i].Left = true
		t.Columns[i].Roomy = i == 3
	}
	for i, c := range t.Columns[1].Cells {
		t.Columns[1].Cells[i].Mood = moods[c.Text]
	}
	return t
}

// rowsOf is a table with a row for each arm.
func (a *ProtocolAnalysis) rowsOf(heads []string, cells func(ArmRow) []string) *report.Table {
	var rows [][]string
	for _, row := range a.Arms {
		rows = append(rows, append([]string{row.key().String()}, cells(row)...))
	}
	t := report.NewTable(append([]string{"arm"}, heads...), rows...)
	for i := range t.Columns {
		t.Columns[i].Left = true
	}
	return t
}

func (a *ProtocolAnalysis) ratioTable() *report.Table {
	nothing := !slices.ContainsFunc(a.Arms, func(row ArmRow) bool { return row.All.Rounds > 0 })
	heads := []string{"quadruplets", "work kept, %"}
	if !nothing {
		heads = append(heads, "p99 over alone", "without rejection", "slow requests", "fewer than unguarded")
	}
	t := a.rowsOf(heads, func(row ArmRow) []string {
		saved := ""
		if row.Saved.Rounds > 0 {
			saved = between(row.Saved, "%.0f", "")
		}
		work := ""
		if fault, _ := FaultNamed(row.Fault); fault.guilty(lab.Neighbour) {
			work = between(percent(row.Work), "%.1f", "")
		}
		cells := []string{fmt.Sprintf("%d of %d", row.Counted, row.Quadruplets), work}
		if nothing {
			return cells
		}
		excess := ""
		if row.Excess.Rounds > 0 {
			excess = between(row.Excess, "%.0f", "")
		}
		return append(cells, ratioText(row.P99), ratioText(row.All), excess, saved)
	})
	t.Legend = "Ratios and shares are typical ones (Hodges and Lehmann). Intervals, here and above, have what the sign-flip test does not reject at the chance of the look, where there are enough quadruplets. " +
		"Work kept: the neighbour's CPU time of what all others leave, of all quadruplets that were read in time."
	if !nothing {
		t.Legend += " Slow requests: per onset, those that take longer than 99 of 100 alone, beyond the one in 100."
	}
	return t
}

func ratioText(i stats.Interval) string {
	if i.Rounds == 0 {
		return "none counts"
	}
	return between(i, "%.2f", "")
}

// shareText is "5 of 6 [36, 100] %".
func shareText(k, n int) string {
	if n == 0 {
		return ""
	}
	low, high := stats.Share(k, n, 0.95)
	return fmt.Sprintf("%d of %d [%.0f, %.0f] %%", k, n, 100*low, 100*high)
}

func (a *ProtocolAnalysis) deeds() *report.Table {
	t := a.rowsOf([]string{"named rightly", "of those that do not count", "in force at the end", "reverted", "gave up", "innocent accused", "acted against", "refused"}, func(row ArmRow) []string {
		acts := func(k int) string {
			if row.Arm == NoGuard {
				return ""
			}
			return shareText(k, row.Onsets)
		}
		accused := shareText(row.Accused, row.Onsets)
		if row.Windows > 0 {
			accused += ", " + plain.Count(row.Windows, "window")
		}
		named, outNamed := shareText(row.Named, row.Onsets), shareText(row.OutNamed, row.OutOnsets)
		if row.Arm == Hand {
			named, outNamed = "", "" // there should be nothing left to be named
		}
		return []string{named, outNamed, acts(row.InForce), acts(row.Reverted), acts(row.GaveUp), accused, acts(row.Innocent), acts(row.Refused)}
	})
	t.Legend = "In onsets, with 95 % intervals whose unit is the onset: the two of a quadruplet are alike, so that they are too short. Refused: a remedy against the innocent was wanted, and not permitted. All onsets are in it, those of quadruplets too that do not count for the p99. In the arms without the guard it looks on, and names."
	return t
}

func (a *ProtocolAnalysis) alone() string {
	return fmt.Sprintf("Where nothing was done, somebody was accused in %s of the periods (%s).", shareText(a.Alone.Accused, a.Alone.Periods), plain.Count(a.Alone.Windows, "window"))
}

func (a *ProtocolAnalysis) soon() *report.Table {
	t := a.rowsOf([]string{"reacted", "median, s", "95th percentile, s", "p99 back in the band, s"}, func(row ArmRow) []string {
		acts := row.Arm == Guarded || row.Arm == Blame
		cells := []string{"", "", "", "not above it"}
		if acts {
			cells[0], cells[1], cells[2] = shareText(row.Reaction.Came, row.Reaction.N), row.Reaction.P50.String(), row.Reaction.P95.String()
		}
		for _, rec := range a.Recoveries {
			if rec.key() != row.key() {
				continue
			}
			switch {
			case rec.High == 0:
				cells[3] = "no placebo to tell it by"
			case rec.Recovered != nil:
				cells[3] = fmt.Sprintf("%.2f", *rec.Recovered)
			case rec.Harmed:
				cells[3] = fmt.Sprintf("not within %.0f s", a.period)
			}
		}
		return cells
	})
	t.Legend = "Reaction: from an onset after a period alone until a remedy against who is to blame was written; an onset without one counts as a whole period. Back: from when on the p99 of half a second of all onsets together " +
		"was not above the band of as many placebos, for half a second."
	return t
}

// String is "0.32 [0.21, 0.40]".
func (d Delay) String() string {
	if d.Estimate == nil {
		return ""
	}
	side := func(v *float64) string {
		if v == nil {
			return "…"
		}
		return fmt.Sprintf("%.2f", *v)
	}
	return fmt.Sprintf("%.2f [%s, %s]", *d.Estimate, side(d.Low), side(d.High))
}

func (a *ProtocolAnalysis) quadrupletTable() *report.Table {
	var rows [][]string
	for _, q := range a.Quadruplets {
		order := ""
		for i := range q.of.Periods {
			if q.of.second(i) {
				order += "B"
			} else {
				order += "A"
			}
		}
		rows = append(rows, []string{
			fmt.Sprint(q.Block + 1), q.Cell, order, fmt.Sprint(q.of.Life), lab.Latency(q.P99[0]), lab.Latency(q.P99[1]), fmt.Sprintf("%.2f", q.Ratio), fmt.Sprintf("%.2f", q.RatioAll),
			fmt.Sprintf("%.0f %%", 100*min(q.Left[0], q.Left[1])), q.Out,
		})
	}
	return report.NewTable([]string{"block", "quadruplet", "order", "life", "p99 of A", "of B", "ratio", "of all", "used", "does not count"}, rows...)
}

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
