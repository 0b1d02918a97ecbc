package limits

import (
	"fmt"
	"strings"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
)

// answer is what to know, a sentence or two each.
func (a *Analysis) answer(x *Experiment) []string {
	e := x.Experiment
	var all []string
	for i, l := range e.Loads {
		row, _ := a.row(e.Configs[0].Name, l)
		figure, what := lab.P99, "one request in 100 takes "+short(row.P99/1e6)
		if l.ClientsPerCPU > 0 {
			figure, what = lab.Throughput, fmt.Sprintf("%s tiles are rendered a second", report.Digits(row.Throughput))
		}
		if row.Rounds == 0 || l.Share > 0 && row.P99 == 0 {
			continue
		}
		first := fmt.Sprintf("With %s, %q: %s.", l, e.Configs[0].Name, what)
		all = append(all, first+a.verdicts(e, i, figure))
		if l.Share > 0 {
			all = append(all, a.pairs(e, i)...)
		}
	}
	if s := a.wasted(e); s != "" {
		all = append(all, s)
	}
	return all
}

// verdicts are those of the configs against the first, by a figure.
func (a *Analysis) verdicts(e Spec, load int, figure stats.Figure) string {
	by := map[stats.Verdict][]string{}
	for _, c := range e.Configs[1:] {
		v, ok := stats.Of(a.Compared[load].Compared, c.Name, e.Configs[0].Name, figure.Name)
		if !ok {
			continue
		}
		text := fmt.Sprintf("%q", c.Name)
		if v.Verdict == stats.Worse || v.Verdict == stats.Better {
			text += " " + v.Words()
		}
		by[v.Verdict] = append(by[v.Verdict], text)
	}
	var b strings.Builder
	for _, v := range []stats.Verdict{stats.Equivalent, stats.Better, stats.Worse, stats.Inconclusive} {
		if names := by[v]; names != nil {
			fmt.Fprintf(&b, " %s: %s.", strings.ToUpper(v.Against("that")[:1])+v.Against("that")[1:], strings.Join(names, "; "))
		}
	}
	return b.String()
}

// pairs are the further comparisons of a load.
func (a *Analysis) pairs(e Spec, load int) (all []string) {
	var words []string
	for _, p := range e.Compare {
		if v, ok := stats.Of(a.Compared[load].Compared, p.Config, p.Against, lab.P99.Name); ok {
			words = append(words, fmt.Sprintf("%q against %q: %s", p.Config, p.Against, v.Words()))
		}
	}
	if words == nil {
		return nil
	}
	return []string{"The p99 of " + plain.Count(len(words), "pair") + ": " + strings.Join(words, "; ") + "."}
}

// wasted names where limits withheld most while CPUs were idle.
func (a *Analysis) wasted(e Spec) string {
	var worst Row
	for _, r := range a.Rows {
		if r.Waste > worst.Waste {
			worst = r
		}
	}
	if worst.Waste < 0.01 {
		return ""
	}
	where := fmt.Sprintf("%q", worst.Config)
	if len(e.Loads) > 1 {
		where += " (" + worst.Load + ")"
	}
	return fmt.Sprintf("Limits wasted most in %s: they stopped servers in %s %% of their periods, and withheld %.2g CPUs while CPUs were idle; %.2g CPUs of the machine were idle on average.",
		where, percent(worst.Throttled), worst.Waste, worst.Idle)
}
