package guarded

import (
	"fmt"
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

// answer is a sentence for each hypothesis, and what to do.
func (a *ProtocolAnalysis) answer(r *ProtocolResult) (words []string) {
	for _, v := range a.Verdicts {
		words = append(words, fmt.Sprintf("%s is %s: %s.", upper(v.Hypothesis.String()), v.Word, v.figure()))
	}
	if len(words) == 0 {
		words = []string{fmt.Sprintf("Nothing was to be shown; %s were run.", plain.Count(len(r.Quadruplets), "quadruplet"))}
	}
	return append(words, a.act(r)...)
}

// act is what to do next: end the run, look on before the guard acts, show more, or have it act.
func (a *ProtocolAnalysis) act(r *ProtocolResult) []string {
	const printed, again = " (berth lab show guard-protocol prints one).", "Do it: berth lab run FILE"
	switch undecided := a.of(Undecided); {
	case !r.Complete:
		return []string{"The run is not complete.", "Do it: berth lab run --resume FOLDER"}
	case a.of(Refuted) > 0:
		return []string{"Read what the guard would do before it may.", "Do it: " + preview}
	case len(a.Verdicts) == 0:
		return []string{"State hypotheses in a copy of the protocol" + printed, again}
	case undecided > 0:
		return []string{fmt.Sprintf("To decide the other %d of %d, run a copy of the protocol with more blocks", undecided, len(a.Verdicts)) + printed, again}
	}
	return []string{"Do it: " + enforce}
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
		t.Legend += " Slow requests: per onset, those that take longer than 99 of 100 in the period alone beside it, after its washout, beyond the one in 100."
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
