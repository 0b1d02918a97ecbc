package limits

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
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
	if s := a.advice(x); s != "" {
		all = append(all, s)
	}
	return all
}

// advice is what to do, as far as a load shows it; "" where none does.
func (a *Analysis) advice(x *Experiment) string {
	for at := range x.Experiment.Loads {
		for _, of := range []func(*Experiment, int) string{a.route, a.quiet, a.unlimited} {
			if how := of(x, at); how != "" {
				return "Do it: " + how
			}
		}
	}
	return ""
}

// judgedBy is the figure by which a load is judged.
func (l Load) judgedBy() stats.Figure {
	if l.ClientsPerCPU > 0 {
		return lab.Throughput
	}
	return lab.P99
}

// verdict is that of a config against another under a load.
func (a *Analysis) verdict(e Spec, at int, name, against string) stats.Compared {
	v, _ := stats.Of(a.Compared[at].Compared, name, against, e.Loads[at].judgedBy().Name)
	return v
}

// betterPairs are the configs of pairs that are shown to be better than the other, the best first.
func (a *Analysis) betterPairs(e Spec, at int, want func(c, against Config) bool) (all []Config) {
	estimates := map[string]float64{}
	for _, p := range e.Compare {
		c, against := e.config(p.Config), e.config(p.Against)
		if v := a.verdict(e, at, p.Config, p.Against); v.Verdict == stats.Better && want(c, against) {
			all, estimates[c.Name] = append(all, c), v.Estimate
		}
	}
	slices.SortStableFunc(all, func(c, d Config) int { return cmp.Compare(estimates[c.Name], estimates[d.Name]) })
	if e.Loads[at].judgedBy().More {
		slices.Reverse(all)
	}
	return all
}

func (s Spec) config(name string) Config {
	if i := slices.IndexFunc(s.Configs, func(c Config) bool { return c.Name == name }); i >= 0 {
		return s.Configs[i]
	}
	return Config{}
}

// route names the policies of routing that are better than chance.
func (a *Analysis) route(x *Experiment, at int) string {
	called := map[load.Routing]string{
		load.LeastOutstanding: " (least_conn in nginx, leastconn in HAProxy, LEAST_REQUEST in Envoy)", load.RoundRobin: " (the default of nginx and HAProxy)",
	}
	var all []string
	for _, c := range a.betterPairs(x.Experiment, at, func(c, against Config) bool { return c.Routing != against.Routing && against.Routing == load.Random }) {
		all = append(all, "by "+string(c.Routing)+called[c.Routing])
	}
	if all == nil {
		return ""
	}
	return "route requests " + strings.Join(all, ", or ")
}

// quiet limits the noise, where that is shown to help.
func (a *Analysis) quiet(x *Experiment, at int) string {
	cpus, err := cpuset.Parse(x.Setup.CPUs)
	helps := a.betterPairs(x.Experiment, at, func(c, against Config) bool {
		return c.Noise && c.NoiseLimit > 0 && against.Noise && against.NoiseLimit == 0 && c.Limit == against.Limit
	})
	if err != nil || helps == nil {
		return ""
	}
	return fmt.Sprintf("berth run --quota %.1f -- COMMAND, of the noise", helps[0].NoiseLimit*float64(cpus.Len()))
}

// unlimited takes away the limits that are shown to harm, or says what else helps against them.
func (a *Analysis) unlimited(x *Experiment, at int) string {
	e := x.Experiment
	first := e.Configs[0]
	if first.Limit > 0 || first.Noise {
		return ""
	}
	var harmed, larger, saving []string
	for _, c := range e.Configs[1:] {
		if c.Limit > 0 && !c.Noise && c.Routing == first.Routing && a.verdict(e, at, c.Name, first.Name).Verdict == stats.Worse && !a.asMany(e, at, c) {
			harmed = append(harmed, c.Name)
		}
	}
	if harmed == nil {
		return ""
	}
	for _, p := range e.Compare {
		c, against := e.config(p.Config), e.config(p.Against)
		v := a.verdict(e, at, c.Name, against.Name).Verdict
		switch {
		case v == stats.Better && slices.Contains(harmed, against.Name) && !slices.Contains(harmed, c.Name) && c.Burst > against.Burst && c.Limit == against.Limit && c.Servers == against.Servers:
			saving = append(saving, c.Name)
		case v == stats.Worse && slices.Contains(harmed, c.Name) && !slices.Contains(harmed, against.Name) && against.Limit > c.Limit && against.Servers < c.Servers:
			larger = append(larger, against.Name)
		}
	}
	how := "take the CPU limits of " + quoted(harmed) + " away (berth resize NAME --quota=max; in Kubernetes leave limits.cpu out)"
	if larger != nil {
		how += ", or have fewer servers with larger limits (" + quoted(larger) + ")"
	}
	if saving != nil {
		how += ", or let servers save up what they do not use (cpu.max.burst, " + quoted(saving) + ")"
	}
	return how
}

func quoted(names []string) string {
	var all []string
	for _, name := range names {
		all = append(all, strconv.Quote(name))
	}
	return strings.Join(all, ", ")
}

// asMany says whether so many servers without a limit are shown to be worse, too: then it is not the
// limit that harms.
func (a *Analysis) asMany(e Spec, at int, of Config) bool {
	return slices.ContainsFunc(e.Configs[1:], func(c Config) bool {
		return c.Servers == of.Servers && c.Limit == 0 && !c.Noise && a.verdict(e, at, c.Name, e.Configs[0].Name).Verdict == stats.Worse
	})
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
