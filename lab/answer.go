package lab

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab/stats"
)

// answer writes what comes first: what nothing does, what helps, at what price, how sure that is, and how to have it.
func (a *analysis) answer() {
	a.tell(a.answerNothing())
	helps := a.best()
	a.tell(a.answerBest(helps))
	a.tell(a.answerAlone(helps))
	for _, row := range a.out.Rows {
		a.tell(a.answerRare(row))
	}
	for _, limit := range a.Experiment.Limits {
		a.tell(a.answerLimit(limit))
	}
	a.tell(a.answerMore(helps))
	a.tell(a.answerHow(helps))
}

func (a *analysis) tell(sentence string) {
	if sentence != "" {
		a.out.Answer = append(a.out.Answer, sentence)
	}
}

// p99of is the p99 of a scenario's requests in µs.
func p99of(row Row) (q Quantile, ok bool) {
	for _, q := range row.Quantiles {
		if q.P == headline && q.Reason == "" {
			return q, true
		}
	}
	return Quantile{}, false
}

// took is the row's p99 in words: "25 ms", "at least 131 ms", "at most 10 ms".
func took(row Row) string {
	q, ok := p99of(row)
	if !ok {
		return "unknown"
	}
	return row.Bounded(q) + Latency(q.Estimate)
}

// Bounded says "at least " or "at most " of a quantile of the row that is a bound, and "about " of one
// that is both in parts; "" of others.
func (r Row) Bounded(q Quantile) string {
	switch lower := r.Saturated || q.AtLeast || r.Bound && q.P == headline; {
	case lower && q.AtMost != "":
		return "about "
	case lower:
		return "at least "
	case q.AtMost != "":
		return "at most "
	}
	return ""
}

// Latency formats a time in µs with three digits.
func Latency(us float64) string {
	for _, unit := range []struct {
		name string
		us   float64
	}{{"s", 1e6}, {"ms", 1e3}} {
		if us >= 0.9995*unit.us {
			return Three(us/unit.us) + " " + unit.name
		}
	}
	return Three(us) + " µs"
}

// Three formats a figure with three digits, or all of a large one.
func Three(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// answerNothing says what the neighbour does to a tenant that nothing protects.
func (a *analysis) answerNothing() string {
	base, ok := a.find(Baseline)
	if !ok {
		return "Nothing can be compared: the tenant alone has no round that counts (" + a.whyInvalid(Baseline) + ")."
	}
	if a.out.BaselineBound() {
		return "Nothing can be compared: even alone the tenant cannot keep up with its load. Offer less (--rate, --demand), or run where the machine is not busy with something else."
	}
	row, ok := a.find(Unisolated)
	if !ok || row.Ratio == nil {
		const rest = "What a neighbour does with no isolation was not measured."
		if _, known := p99of(base); !known {
			return rest
		}
		return fmt.Sprintf("Alone, one request in 100 takes %s or more. %s", took(base), rest)
	}
	text := fmt.Sprintf("With no isolation one request in 100 takes %s; alone %s.", took(row), took(base))
	if row.Saturated {
		text = fmt.Sprintf("With no isolation the tenant is overloaded: it answers more slowly than requests come, and its queue grows. In rounds of %s one request in 100 takes %s; alone %s.",
			Latency(float64(a.Experiment.Window)/1e3), took(row), took(base))
	}
	switch row.Verdict {
	case stats.Equivalent, stats.Better:
		text += " That is as good as alone: no isolation is needed against this neighbour, at this load."
	case stats.Inconclusive:
		text += " Whether that is worse than alone is not decided: " + row.Why + "."
	}
	return text
}

// helpful are the strategies that are shown to be better than nothing, the best first.
func (a *analysis) helpful() []Row {
	var helps []Row
	for _, row := range a.out.Rows {
		if row.Against == stats.Better && row.Ratio != nil && row.Scenario != BaselineAgain && row.Scenario != Baseline {
			helps = append(helps, row)
		}
	}
	slices.SortStableFunc(helps, func(x, y Row) int { return cmp.Compare(x.Ratio.Estimate, y.Ratio.Estimate) })
	return helps
}

// between two strategies.
func (a *analysis) between(x, y string) (f Figure, ok bool) {
	c, ok := a.out.Compared(x, y)
	if !ok {
		c, ok = a.out.Compared(y, x)
	}
	if !ok {
		return f, false
	}
	return c.Figure(p99)
}

// best are the best of the helpful strategies, and those that are not shown to be worse than it. Of those that are as good
// as each other the cheapest comes first. Who is rarely but badly worse is not among them, unless all are.
func (a *analysis) best() []Row {
	helps := a.helpful()
	if steady := slices.DeleteFunc(slices.Clone(helps), func(row Row) bool { return a.hides(row.Scenario) }); len(steady) > 0 {
		helps = steady
	}
	if len(helps) == 0 {
		return nil
	}
	first, alike := helps[0].Scenario, true
	helps = slices.DeleteFunc(helps, func(row Row) bool {
		f, ok := a.between(row.Scenario, first)
		tie := row.Scenario == first || ok && f.Verdict != stats.Better && f.Verdict != stats.Worse
		alike = alike && (!tie || row.Scenario == first || f.Verdict == stats.Equivalent)
		return !tie
	})
	if alike {
		slices.SortStableFunc(helps, func(x, y Row) int { return cmp.Compare(workOf(y), workOf(x)) })
	}
	return helps
}

// hides says whether the typical block hides that a scenario is rarely but badly worse than alone.
func (a *analysis) hides(scenario string) bool {
	c, _ := a.out.Compared(scenario, Baseline)
	f, ok := c.Figure(p99)
	return ok && f.Hides()
}

func (a *analysis) answerBest(best []Row) string {
	if _, ok := a.find(Unisolated); !ok || a.out.BaselineBound() {
		return ""
	}
	if len(best) == 0 {
		nearest := a.nearest()
		if nearest == nil || nearest.Scenario == Unisolated {
			return "No strategy is shown to be better than nothing."
		}
		return fmt.Sprintf("No strategy is shown to be better than nothing. The nearest to alone is %s (%s).", nearest.Scenario, price(*nearest))
	}
	var parts []string
	least, most, better, of := math.Inf(1), 0.0, math.MaxInt, 0
	alike := true
	for i, row := range best {
		parts = append(parts, fmt.Sprintf("%s (%s)", row.Scenario, price(row)))
		c, _ := a.out.Compared(row.Scenario, Unisolated)
		f, _ := c.Figure(p99)
		least, most = min(least, 1/f.Estimate), max(most, 1/f.Estimate)
		better, of = min(better, c.Lower), c.Blocks
		if i > 0 {
			pair, ok := a.between(row.Scenario, best[0].Scenario)
			alike = alike && ok && pair.Verdict == stats.Equivalent
		}
	}
	text := "Best: " + strings.Join(parts, " or ")
	switch {
	case len(best) == 1:
	case alike:
		text += "; they are as good as each other"
	default:
		text += "; this run cannot tell them apart"
	}
	factor := Three(least)
	if high := Three(most); high != factor {
		factor += " to " + high
	}
	return fmt.Sprintf("%s. %s %s times better than nothing (%d of %d blocks).", text, subject(len(best), "It is", "Both are", "All are"), factor, better, of)
}

func subject(n int, one, two, more string) string {
	switch n {
	case 1:
		return one
	case 2:
		return two
	}
	return more
}

// price is what a strategy comes to: "25 ms, neighbour keeps 78 %".
func price(row Row) string {
	text := took(row)
	if row.WorkShare != nil {
		text += fmt.Sprintf(", neighbour keeps %.0f %%", 100**row.WorkShare)
	}
	return text
}

// answerAlone compares the best with the tenant alone.
func (a *analysis) answerAlone(best []Row) string {
	if a.out.BaselineBound() {
		return ""
	}
	var parts []string
	same := len(best) > 1
	least, most := math.Inf(1), 0.0
	for _, row := range best {
		switch row.Verdict {
		case stats.Worse:
			least, most = min(least, row.Ratio.Low), max(most, row.Ratio.High)
			parts = append(parts, fmt.Sprintf("%s is not as good as alone: %s to %s times", row.Scenario, Three(row.Ratio.Low), Three(row.Ratio.High)))
			continue
		case stats.Equivalent:
			parts = append(parts, row.Scenario+" is as good as alone, within 10 %")
		case stats.Better:
			parts = append(parts, row.Scenario+" is better than alone")
		default:
			why := span(*row.Ratio)
			if row.Ratio.Known() && (row.Ratio.Low > 1 || row.Ratio.High < 1) {
				why += "; " + row.Why
			}
			parts = append(parts, fmt.Sprintf("whether %s is as good as alone is not decided (%s)", row.Scenario, why))
		}
		same = false
	}
	if same {
		return fmt.Sprintf("%s as good as alone: %s to %s times.", subject(len(best), "", "Neither is", "None is"), Three(least), Three(most))
	}
	if len(parts) == 0 {
		return ""
	}
	text := strings.Join(parts, "; ")
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// span is a ratio's interval in words.
func span(iv stats.Interval) string {
	if !iv.Known() {
		return fmt.Sprintf("%s times, of too few blocks for an interval", Three(iv.Estimate))
	}
	return fmt.Sprintf("%s to %s times", Three(iv.Low), Three(iv.High))
}

// answerRare says what the typical block hides.
func (a *analysis) answerRare(row Row) string {
	if row.Verdict == stats.Invalid || row.LowerBound() || !a.hides(row.Scenario) {
		return ""
	}
	c, _ := a.out.Compared(row.Scenario, Baseline)
	f, _ := c.Figure(p99)
	name := row.Scenario
	if name == BaselineAgain {
		name = "the tenant alone, measured again,"
	}
	return fmt.Sprintf("Rare but bad, by its own doing or by chance: in the typical block %s has a p99 of %s times that of alone, over all blocks together %s times.", name, Three(f.Estimate), Three(f.Pooled))
}

// answerLimit says in how many rounds each scenario met a limit.
func (a *analysis) answerLimit(limit Limit) string {
	var parts []string
	for _, row := range a.out.Rows {
		for _, met := range row.Limits {
			if met.Limit == limit && met.Rounds > 0 {
				parts = append(parts, fmt.Sprintf("%s %d of %d (%.0f to %.0f %%)", called(row.Scenario), met.Met, met.Rounds, 100*met.Low, 100*met.High))
			}
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("Rounds with a p%g of at most %s: %s.", limit.P, limit.Most, strings.Join(parts, ", "))
}

// called is what a scenario is called in sentences.
func called(scenario string) string {
	switch scenario {
	case Baseline:
		return "alone"
	case BaselineAgain:
		return "alone again"
	case Unisolated:
		return "no isolation"
	}
	return scenario
}

// answerMore says what a longer run would see, if something is not decided.
func (a *analysis) answerMore(best []Row) string {
	var open []Figure
	add := func(f Figure, ok bool) {
		if ok && f.Verdict == stats.Inconclusive {
			open = append(open, f)
		}
	}
	for _, row := range a.out.Rows {
		for _, against := range []string{Baseline, Unisolated} {
			if c, ok := a.out.Compared(row.Scenario, against); ok && row.Scenario != BaselineAgain && (len(best) == 0 || against == Unisolated || row.Scenario == Unisolated) {
				add(c.Figure(p99))
			}
		}
	}
	for i, row := range best {
		c, _ := a.out.Compared(row.Scenario, Baseline)
		add(c.Figure(p99))
		for _, other := range best[:i] {
			add(a.between(row.Scenario, other.Scenario))
		}
	}
	more, ratio := 0, 1.5
	for _, f := range open {
		if f.Sees > 1 && f.Sees <= 1.5 {
			ratio = 1.2
		}
	}
	for _, f := range open {
		if n := (stats.Judgement{Interval: f.Interval, Sees: f.Sees}).BlocksFor(ratio); n > 0 {
			more = max(more, n-f.Rounds)
		} else {
			more = max(more, f.MoreBlocks)
		}
	}
	if more <= 0 {
		sees := 0.0
		for _, f := range open {
			sees = max(sees, f.Sees)
		}
		if sees == 0 {
			return ""
		}
		return fmt.Sprintf("Differences of %.2f times and more this run would have seen, with 80 %% chance.", sees)
	}
	long := a.takes(more)
	switch {
	case long > 2*time.Hour:
		return fmt.Sprintf("A difference of %g is out of reach on this machine: to see it would take about %.0f hours.", ratio, long.Hours())
	case long == 0 || a.Path == "":
		return fmt.Sprintf("To see a difference of %g on this machine takes about %s more.", ratio, plain.Count(more, "block"))
	}
	return fmt.Sprintf("To see a difference of %g on this machine: berth lab --continue %s --for %s", ratio, plain.Shell(a.Path), brief(long))
}

// takes is how long so many blocks take, by those that there are, rounded up.
func (a *analysis) takes(blocks int) time.Duration {
	if len(a.Rounds) < 2 {
		return 0
	}
	from, to := a.Rounds[0].Started, a.Rounds[len(a.Rounds)-1].Started
	cells := len(a.Experiment.Scenarios) - len(a.Skipped)
	each := to.Sub(from) / time.Duration(len(a.Rounds)-1) * time.Duration(cells)
	step := 30 * time.Second
	if total := each * time.Duration(blocks); each > 0 {
		return (total + step - 1) / step * step
	}
	return 0
}

// brief writes a time as a flag takes it: "4m", "90s".
func brief(d time.Duration) string {
	if d%time.Minute == 0 {
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}

// answerHow says how to have the best strategies.
func (a *analysis) answerHow(best []Row) string {
	var names []string
	for _, row := range best {
		names = append(names, row.Scenario)
	}
	return a.HowTo(names...)
}

// HowTo is a sentence with the commands that have the effect of scenarios, in this order; "" if
// there are none.
func (r *Result) HowTo(scenarios ...string) string {
	var parts []string
	for _, name := range scenarios {
		for _, s := range r.Experiment.Scenarios {
			if command := r.command(s); s.Name == name && command != "" {
				if len(scenarios) > 1 {
					command += " (" + name + ")"
				}
				parts = append(parts, command)
			}
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "Do it: " + strings.Join(parts, ", or ")
}

// command has the effect of a scenario on a neighbour that is COMMAND; "" if there is none.
func (r *Result) command(s Scenario) string {
	switch iso := s.Isolation; {
	case iso.Idle:
		return "berth run --class BE -- COMMAND"
	case iso.Weight > 0:
		return fmt.Sprintf("berth run --weight %d -- COMMAND, beside a service that berth run started", iso.Weight)
	case iso.Cap:
		left := float64(r.cpus()) - r.Setup.TenantCPUs
		if r.Setup.GeneratorCPUs == "" {
			left -= r.Setup.GeneratorDemand
		}
		return fmt.Sprintf("berth run --quota %.1f -- COMMAND", max(left, 0.1))
	case iso.MemoryMax > 0:
		return fmt.Sprintf("berth run --memory %dMi -- COMMAND", iso.MemoryMax>>20)
	case iso.MemoryHigh > 0:
		return fmt.Sprintf("systemd-run --scope -p MemoryHigh=%dM COMMAND", iso.MemoryHigh>>20)
	case iso.MemoryLow > 0:
		return fmt.Sprintf("systemctl set-property SERVICE MemoryLow=%dM", iso.MemoryLow>>20)
	case iso.IOMax > 0:
		return fmt.Sprintf("systemd-run --scope -p 'IOReadBandwidthMax=/dev/DISK %dM' COMMAND", iso.IOMax>>20)
	case iso.shares():
		return fmt.Sprintf("berth run --net-classes FILE --net bulk -- COMMAND, %s", iso.sharesText())
	case iso.Guard:
		return "berth guard --mode enforce --sensitive SERVICE --best-effort GROUP, on a device divided into network classes"
	case iso.IOWeight > 0:
		return fmt.Sprintf("echo %s > /sys/block/DISK/queue/scheduler; berth run --io-weight %d -- COMMAND", iso.Scheduler, iso.IOWeight)
	case iso.Scheduler != "":
		return fmt.Sprintf("echo %s > /sys/block/DISK/queue/scheduler", iso.Scheduler)
	case iso.Split:
		if n := r.ownCPUs(s.Name); n > 0 {
			return fmt.Sprintf("berth run --class LSE --cpus %d -- SERVICE", n)
		}
		return "berth run --class LSE --cpus N -- SERVICE"
	}
	return ""
}

// ownCPUs is how many CPUs of its own the tenant had, as read back; 0 if unknown.
func (r *Result) ownCPUs(scenario string) int { return StoodOn(r.Rounds, scenario, Tenant).Len() }

// StoodOn are the CPUs that a role was confined to in the first valid round of a cell that tells, as
// read back; none if no round does.
func StoodOn(rounds []Round, cell string, role Role) cpuset.Set {
	for i := range rounds {
		r := &rounds[i]
		if r.Scenario != cell || r.Invalid != "" {
			continue
		}
		for _, k := range r.Knobs {
			if k.Of != string(role) || k.File != "cpuset.cpus" && k.File != "affinity" {
				continue
			}
			if set, err := cpuset.Parse(k.Value); err == nil && !set.IsEmpty() {
				return set
			}
		}
	}
	return cpuset.Set{}
}
