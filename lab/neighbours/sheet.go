package neighbours

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
)

// ReportSchema names the version of the report's JSON form.
const ReportSchema = "berth.dev/lab-neighbours-report/v1"

// Document is the report as JSON: what was run, and what it came to.
type Document struct {
	lab.Header
	Experiment Spec     `json:"experiment"`
	Tenants    []Fitted `json:"tenants,omitempty"`
	Uncounted  string   `json:"uncounted,omitempty"`
	// Patterns are in the order of their harm, the worst first.
	Patterns []Pattern `json:"patterns"`
	// Compared are all comparisons: of each cell with its tenant alone.
	Compared []stats.Compared `json:"compared"`
}

// Pattern is a neighbour and the harm that it does.
type Pattern struct {
	Name    string `json:"name"` // "scan-25"
	Presses string `json:"presses,omitempty"`
	// Worst is the tenant whose p99 it harms most; "" where nothing was measured.
	Worst string `json:"worst,omitempty"`
	// Harm is how that tenant's p99 compares with alone.
	Harm *stats.Compared `json:"harm,omitempty"`
	// Skipped says why it is compared beside no tenant: it was not run, or no round of it counts.
	Skipped string `json:"skipped,omitempty"`
}

// figures are what cells are compared by.
func figures() []stats.Figure {
	return []stats.Figure{lab.P50, lab.P99, lab.CPUPerRequest, lab.IPC, lab.CacheMisses}
}

// analysis is what a result comes to.
type analysis struct {
	*Result
	measured    *lab.Measured
	patterns    []pattern
	references  []string // the tenants alone
	samples     []stats.Sample
	undisturbed bool
	compared    []stats.Compared
}

func (r *Result) analyse() (*analysis, error) {
	a := &analysis{Result: r, patterns: r.Experiment.patterns()}
	m, err := lab.Measure(&lab.Result{Header: r.Header, Experiment: r.Experiment.base(), Rounds: r.Rounds})
	if err != nil {
		return nil, err
	}
	a.measured = m
	var family []stats.Versus
	for _, tenant := range r.Experiment.Tenants {
		first, second := cellOf(tenant, alone), cellOf(tenant, again)
		if !a.ran(first) {
			continue // skipped, or not there yet
		}
		a.references = append(a.references, first, second)
		family = append(family, stats.Versus{Cell: second, Against: first})
		for _, p := range a.patterns {
			if cell := cellOf(tenant, p.name); !p.none() && a.ran(cell) {
				family = append(family, stats.Versus{Cell: cell, Against: first, References: []string{first, second}})
			}
		}
	}
	a.samples, a.undisturbed = m.Samples()
	a.compared = stats.Compare(a.samples, a.counted(), family)
	return a, nil
}

// counted are the figures that some round has: each that is compared costs the others some
// of their power.
func (a *analysis) counted() (all []stats.Figure) {
	for _, f := range figures() {
		if slices.ContainsFunc(a.samples, func(s stats.Sample) bool { _, ok := s.Figures[f.Name]; return ok }) {
			all = append(all, f)
		}
	}
	return all
}

// harm is how the p99 of a tenant beside a neighbour compares with that alone.
func (a *analysis) harm(tenant, pattern string) (stats.Compared, bool) {
	return stats.Of(a.compared, cellOf(tenant, pattern), cellOf(tenant, alone), lab.P99.Name)
}

// sorted are the patterns in the order of the harm that they do to the tenant that they harm
// most. A factor that is decided comes before one that is not, those that are neither at the end.
func (a *analysis) sorted() []Pattern {
	var all []Pattern
	for _, p := range a.patterns {
		if p.none() {
			continue
		}
		out := Pattern{Name: p.name, Presses: strings.Join(p.program.Command, " ")}
		if k, ok := kernelNamed(p.kernel); ok {
			out.Presses, _, _ = strings.Cut(k.Presses, ":")
		}
		for _, tenant := range a.Experiment.Tenants {
			if c, ok := a.harm(tenant, p.name); ok && (out.Harm == nil || rank(c) > rank(*out.Harm)) {
				out.Worst, out.Harm = tenant, &c
			}
		}
		if out.Harm == nil {
			out.Skipped = a.whyNot(p.name)
		}
		all = append(all, out)
	}
	slices.SortStableFunc(all, func(x, y Pattern) int {
		if x.Harm == nil || y.Harm == nil {
			return cmp.Compare(boolInt(x.Harm == nil), boolInt(y.Harm == nil))
		}
		return cmp.Compare(rank(*y.Harm), rank(*x.Harm))
	})
	return all
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// rank orders harm: what is surely harm by its factor; what is not decided by what it is at
// least, as a wide interval is no harm.
func rank(c stats.Compared) float64 {
	if c.Verdict == stats.Worse || !c.Known() {
		return c.Estimate
	}
	return min(c.Low, c.Estimate)
}

// whyNot says why a pattern has no figures.
func (a *analysis) whyNot(pattern string) string {
	for _, s := range a.Skipped {
		if _, name, _ := strings.Cut(s.Scenario, "/"); name == pattern {
			if s.Remedy != "" {
				return fmt.Sprintf("%s (%s)", s.Reason, s.Remedy)
			}
			return s.Reason
		}
	}
	for _, d := range a.measured.Decoded {
		if _, name, _ := strings.Cut(d.Scenario, "/"); name == pattern && d.Excluded != "" {
			return "no round counts: " + d.Excluded
		}
	}
	if slices.ContainsFunc(a.Experiment.Tenants, func(tenant string) bool { return a.ran(cellOf(tenant, pattern)) }) {
		return "no block in which it and a tenant alone count"
	}
	return "not run"
}

// Sheet is what the result comes to.
func (r *Result) Sheet() (*report.Sheet, error) {
	a, err := r.analyse()
	if err != nil {
		return nil, err
	}
	patterns := a.sorted()
	s := report.NewSheet("neighbours", &r.Header)
	s.Document = &Document{Header: r.Header, Experiment: r.Experiment, Tenants: r.Tenants, Uncounted: r.Uncounted, Patterns: patterns, Compared: a.compared}
	s.Document.(*Document).Schema = ReportSchema
	a.answer(s, patterns)
	a.facts(s)
	s.Add(report.Block{Heading: "Patterns by harm", Table: a.table(patterns)})
	var details []report.Block
	for _, tenant := range a.Experiment.Tenants {
		j := a.judged(tenant, patterns)
		s.Add(report.Block{Heading: "Tenant " + tenant, Text: a.about(tenant), Table: j.Table(), Fold: true})
		details = append(details, j.Comparisons())
	}
	s.Page = func() report.Page {
		var cells []string
		for _, tenant := range a.Experiment.Tenants {
			cells = append(cells, cellOf(tenant, alone), cellOf(tenant, again))
			for _, p := range patterns {
				cells = append(cells, cellOf(tenant, p.Name))
			}
		}
		return report.Page{Plots: append([]report.Plot{a.heat(patterns)}, report.RoundPlots(a.measured, cells, 2+len(patterns), a.references...)...), Details: details}
	}
	return s, nil
}

// answer says who hurts most, whom, and who is harmless.
func (a *analysis) answer(s *report.Sheet, patterns []Pattern) {
	say := func(format string, args ...any) { s.Answer = append(s.Answer, fmt.Sprintf(format, args...)) }
	var first *Pattern
	var worst, harmless, open []string
	for _, p := range patterns {
		switch {
		case p.Harm == nil:
		case p.Harm.Verdict == stats.Worse:
			if first == nil {
				first = &p
			}
			if len(worst) < 3 {
				worst = append(worst, fmt.Sprintf("%s (p99 of %s × %s)", p.Name, p.Worst, times(*p.Harm)))
			}
		case a.all(p.Name, stats.Equivalent, stats.Better):
			harmless = append(harmless, p.Name)
		default:
			open = append(open, p.Name)
		}
	}
	switch {
	case first != nil:
		s.Headline = fmt.Sprintf("The worst neighbour here is %s: the p99 of %s is %s times that alone", first.Name, first.Worst, times(*first.Harm))
		say("Worst here: %s.", strings.Join(worst, ", "))
	case len(a.compared) == 0:
		say("Nothing was compared: no tenant has a round alone that counts.")
	default:
		say("No neighbour is shown to harm any tenant.")
	}
	if how := a.cures(patterns); how != "" {
		say("%s", how)
	}
	if len(harmless) > 0 {
		say("Harmless to every tenant, within 10 %%: %s.", strings.Join(harmless, ", "))
	}
	if len(open) > 0 {
		say("Not decided: %s; more blocks tell (--set blocks=N).", strings.Join(open, ", "))
	}
}

// cures says how to find what helps against the worst pattern for which there is such a run; "" if
// no pattern is shown to harm.
func (a *analysis) cures(sorted []Pattern) string {
	cpus, err := cpuset.Parse(a.Setup.CPUs)
	if err != nil {
		return ""
	}
	for _, worst := range sorted {
		i := slices.IndexFunc(a.patterns, func(p pattern) bool { return p.name == worst.Name })
		if i < 0 || worst.Harm == nil || worst.Harm.Verdict != stats.Worse {
			continue
		}
		flag := "--neighbour=" + a.patterns[i].kernel
		switch a.patterns[i].kernel {
		case "read":
			flag = "--resource=io"
		case "cache":
			flag = "--resource=memory"
		case "":
			var words []string
			for _, word := range a.patterns[i].program.Command {
				word = strings.ReplaceAll(word, "{cpus}", strconv.Itoa(cpus.Len()))
				if plain.Shell("x"+word) != "x"+word { // a flag as such needs no quotes
					word = plain.Shell(word)
				}
				words = append(words, word)
			}
			text := strings.Join(words, " ")
			if strings.Contains(text, "{") {
				continue // it needs what only this experiment makes
			}
			flag = "--neighbour=" + plain.Shell(text)
		}
		return fmt.Sprintf("What helps against %s: berth lab %s", worst.Name, flag)
	}
	return ""
}

// all says whether a pattern's verdicts are among the given ones, for every tenant beside which it was run. A tenant
// of which no round counts has no verdict.
func (a *analysis) all(pattern string, verdicts ...stats.Verdict) bool {
	for _, tenant := range a.Experiment.Tenants {
		c, ok := a.harm(tenant, pattern)
		if ok && !slices.Contains(verdicts, c.Verdict) || !ok && a.ran(cellOf(tenant, pattern)) {
			return false
		}
	}
	return true
}

// ran says whether a cell has rounds, which may not count.
func (a *analysis) ran(cell string) bool {
	return slices.ContainsFunc(a.Rounds, func(r lab.Round) bool { return r.Scenario == cell })
}

func (a *analysis) facts(s *report.Sheet) {
	for _, f := range a.Tenants {
		t, _ := tenantNamed(f.Name)
		s.Fact("tenant "+f.Name, fmt.Sprintf("%s · wants %.2f CPUs", t.Means, f.CPUs))
	}
	e := a.Experiment
	s.Fact("load", fmt.Sprintf("%g requests/s due (open loop) · CPUs %s shared with the neighbour", e.Rate, a.Setup.CPUs))
	s.Fact("rounds", fmt.Sprintf("%s × %s after %s to settle (%s for programs) · seed %d", plain.Count(e.Blocks, "block"), e.Window, e.Settle, e.Warm, e.Seed))
	if e.Isolation != (lab.Isolation{}) {
		s.Fact("isolation", fmt.Sprintf("%+v", e.Isolation))
	}
	s.Fact("generator", report.Generator(a.measured))
	if a.Uncounted != "" {
		s.Fact("counters", "none: "+a.Uncounted)
	}
	steal, foreign, all := 0.0, 0.0, 0.0
	for _, r := range a.Rounds {
		steal, foreign, all = steal+r.Host.Steal, foreign+r.Host.Foreign, all+r.Seconds*float64(r.Host.SharedCPUs)
	}
	if share := (steal + foreign) / all; share > 0.05 {
		s.Warn("warning", fmt.Sprintf("others used %.0f %% of the CPU time", 100*share))
	}
	if !a.undisturbed && slices.ContainsFunc(a.Rounds, func(r lab.Round) bool { return r.Undisturbed != nil }) {
		s.Warn("warning", "most requests were disturbed from outside: figures are of all of them")
	}
}

// table is the patterns sorted by harm, with a column for each tenant.
func (a *analysis) table(patterns []Pattern) *report.Table {
	t := &report.Table{Spans: map[int]string{}, Legend: "p99 beside the neighbour relative to that of the tenant alone, in the typical block, with its 95 % interval; ~ not decided. " +
		"The worst first: what is decided by its factor, what is not by the lower end of its interval."}
	names, presses := report.Column{Head: "neighbour", Left: true}, report.Column{Head: "presses on", Left: true, PageOnly: true}
	columns := make([]report.Column, len(a.Experiment.Tenants))
	for i, p := range patterns {
		names.Add(p.Name)
		presses.Add(p.Presses)
		if p.Harm == nil {
			t.Spans[i] = "skipped: " + p.Skipped
		}
		for n, tenant := range a.Experiment.Tenants {
			columns[n].Head, columns[n].Unit = tenant, "× p99"
			cell := report.Cell{Text: "–"}
			if c, ok := a.harm(tenant, p.Name); ok {
				cell = report.Cell{Text: times(c), Mood: mood(c.Verdict)}
				if c.Verdict == stats.Inconclusive {
					cell.Text = "~" + cell.Text
				}
			}
			columns[n].Cells = append(columns[n].Cells, cell)
		}
	}
	t.Columns = append(append([]report.Column{names}, columns...), presses)
	return t
}

func mood(v stats.Verdict) report.Mood {
	switch v {
	case stats.Worse:
		return report.Bad
	case stats.Better, stats.Equivalent:
		return report.Good
	}
	return report.Unsure
}

// times is a ratio with its interval.
func times(c stats.Compared) string {
	if !c.Known() {
		return ratio(c.Estimate)
	}
	return fmt.Sprintf("%s [%s, %s]", ratio(c.Estimate), ratio(c.Low), ratio(c.High))
}

func ratio(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

func (a *analysis) about(tenant string) string {
	t, _ := tenantNamed(tenant)
	text := strings.ToUpper(t.Means[:1]) + t.Means[1:] + "."
	if c, ok := stats.Of(a.compared, cellOf(tenant, again), cellOf(tenant, alone), lab.P99.Name); ok {
		text += fmt.Sprintf(" Alone, measured twice, its p99 differs from itself by × %s.", times(c))
	}
	return text
}

// Judged are the tables of the result: one for each tenant.
func (r *Result) Judged() ([]report.Judged, error) {
	a, err := r.analyse()
	if err != nil {
		return nil, err
	}
	var all []report.Judged
	for _, tenant := range r.Experiment.Tenants {
		all = append(all, a.judged(tenant, a.sorted()))
	}
	return all, nil
}

// judged is a tenant's table: all figures of each pattern, the worst first.
func (a *analysis) judged(tenant string, patterns []Pattern) report.Judged {
	j := report.Judged{Name: tenant, Head: "neighbour", Reference: alone, Again: again, Figures: append(a.counted(), lab.NeighbourCPUs)}
	names := []string{alone, again}
	for _, p := range patterns {
		names = append(names, p.Name)
	}
	own := func(cell string) (string, bool) { return strings.CutPrefix(cell, tenant+"/") }
	for _, name := range names {
		j.Cells = append(j.Cells, report.JudgedCell{Name: name})
	}
	for _, s := range a.samples {
		if name, ok := own(s.Cell); ok {
			s.Cell = name
			j.Samples = append(j.Samples, s)
		}
	}
	for _, c := range a.compared {
		if name, ok := own(c.Cell); ok {
			c.Cell, c.Against = name, alone
			j.Compared = append(j.Compared, c)
		}
	}
	for _, skipped := range a.Skipped {
		if name, ok := own(skipped.Scenario); ok {
			skipped.Scenario = name
			j.Skipped = append(j.Skipped, skipped)
		}
	}
	return j
}

// heat is the matrix of patterns and tenants.
func (a *analysis) heat(patterns []Pattern) report.Plot {
	var rows []string
	var fields []report.Field
	most := math.Log(2)
	for _, p := range patterns {
		if p.Harm != nil {
			most = max(most, math.Log(p.Harm.Estimate))
		}
	}
	for _, p := range patterns {
		if p.Harm == nil {
			continue
		}
		for n, tenant := range a.Experiment.Tenants {
			if c, ok := a.harm(tenant, p.Name); ok {
				fields = append(fields, report.Field{
					Row: len(rows), Column: n, Text: "× " + ratio(c.Estimate), Tip: p.Name + " beside " + tenant + ": " + c.Words(),
					Shade: math.Log(max(c.Estimate, 1)) / most, Mood: mood(c.Verdict),
				})
			}
		}
		rows = append(rows, p.Name)
	}
	return report.HeatMap("harm", "Which neighbour hurts which tenant", "p99 relative to the tenant alone; the darker, the more. Red: worse; green: within 10 %; amber: not decided.", "neighbour", "tenant", rows, a.Experiment.Tenants, fields)
}
