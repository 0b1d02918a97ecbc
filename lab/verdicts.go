package lab

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"berth.dev/berth/lab/stats"
)

// The quantities that scenarios are compared by.
const (
	p99  = "p99"
	slow = "slow"
)

func quantities() []string { return []string{"p50", "p95", p99, slow} }

// percentile is that of a quantity; 0 for slow.
func percentile(quantity string) float64 {
	return map[string]float64{"p50": 50, "p95": 95, p99: headline}[quantity]
}

// alone are the scenarios that are the tenant alone: together they are the reference.
func alone() []string { return []string{Baseline, BaselineAgain} }

// samples are the responses of a run by scenario and block: of all requests, or without those that were disturbed.
type samples struct {
	rounds map[string]map[int]stats.Distribution
	limit  float64 // the tenant's p99 alone, in the typical round, in µs
}

// sampled gathers the responses of the rounds that count.
func (m *Measured) sampled(calm bool) samples {
	s := samples{rounds: map[string]map[int]stats.Distribution{}}
	for _, d := range m.Decoded {
		response := stats.Merge(d.Response.Seconds...)
		ok := response.Requests() >= leastRequests
		if calm {
			response, ok = d.calm()
		}
		if d.Excluded != "" || !ok {
			continue
		}
		if s.rounds[d.Scenario] == nil {
			s.rounds[d.Scenario] = map[int]stats.Distribution{}
		}
		s.rounds[d.Scenario][d.Block] = response
	}
	var p99s []float64
	for _, scenario := range alone() {
		for _, response := range s.rounds[scenario] {
			us, _ := response.Quantile(headline)
			p99s = append(p99s, us)
		}
	}
	if len(p99s) > 0 {
		s.limit = stats.Median(p99s)
	}
	return s
}

// enough says whether there is something left without the requests that were disturbed: of most rounds of each scenario,
// as what is left of a few does not say how the scenario compares.
func (s samples) enough(of samples) bool {
	for scenario, rounds := range of.rounds {
		if 2*len(s.rounds[scenario]) < len(rounds) {
			return false
		}
	}
	return len(of.rounds) > 0
}

// blocks in which a scenario and at least one of the references count, ascending.
func (s samples) blocks(scenario string, references []string) []int {
	var blocks []int
	for block := range s.rounds[scenario] {
		if slices.ContainsFunc(references, func(r string) bool { _, ok := s.rounds[r][block]; return ok }) {
			blocks = append(blocks, block)
		}
	}
	slices.Sort(blocks)
	return blocks
}

// paired is a comparison by one quantity.
func (s samples) paired(scenario string, references []string, quantity string) *stats.Paired {
	value := func(response stats.Distribution) float64 {
		if quantity == slow {
			return response.Beyond(s.limit)
		}
		us, _ := response.Quantile(percentile(quantity))
		return max(us, 1)
	}
	var blocks [][]float64
	for _, block := range s.blocks(scenario, references) {
		row := []float64{value(s.rounds[scenario][block])}
		for _, reference := range references {
			if response, ok := s.rounds[reference][block]; ok {
				row = append(row, value(response))
			}
		}
		blocks = append(blocks, row)
	}
	if quantity == slow {
		return stats.Differences(blocks)
	}
	return stats.Ratios(blocks)
}

// pooled is the same of all blocks' requests together.
func (s samples) pooled(scenario string, references []string, quantity string) float64 {
	var above, below []stats.Distribution
	for _, block := range s.blocks(scenario, references) {
		above = append(above, s.rounds[scenario][block])
		for _, reference := range references {
			below = append(below, s.rounds[reference][block])
		}
	}
	of, to := stats.Merge(above...), stats.Merge(below...)
	if quantity == slow {
		return of.Beyond(s.limit) - to.Beyond(s.limit)
	}
	x, _ := of.Quantile(percentile(quantity))
	y, _ := to.Quantile(percentile(quantity))
	return max(x, 1) / max(y, 1)
}

// Ratio is a percentile (50, 95 or 99) of a scenario relative to the tenant alone, in the typical block.
func (m *Measured) Ratio(scenario string, p, confidence float64) stats.Interval {
	references := alone()
	if scenario == BaselineAgain {
		references = []string{Baseline}
	}
	return m.figures.paired(scenario, references, fmt.Sprintf("p%g", p)).Interval(confidence)
}

// comparison is a scenario and its references.
type comparison struct {
	scenario, against string
	references        []string
}

// comparisons are all that a run makes: alone with itself, everything else with alone, with no isolation, and each
// strategy with those before it.
func (a *analysis) comparisons() []comparison {
	all := []comparison{{BaselineAgain, Baseline, []string{Baseline}}}
	var others []string
	for _, row := range a.out.Rows {
		if row.Valid == 0 || row.Scenario == Baseline || row.Scenario == BaselineAgain {
			continue
		}
		all = append(all, comparison{row.Scenario, Baseline, alone()})
		if row.Scenario != Unisolated {
			others = append(others, row.Scenario)
		}
	}
	if row, ok := a.find(Unisolated); ok {
		for _, scenario := range others {
			all = append(all, comparison{scenario, row.Scenario, []string{row.Scenario}})
		}
	}
	for i, scenario := range others {
		for _, before := range others[:i] {
			all = append(all, comparison{scenario, before, []string{before}})
		}
	}
	return all
}

// compare makes the comparisons, and gives each its verdict.
func (a *analysis) compare() {
	family := a.comparisons()
	for _, c := range family {
		p := a.figures.paired(c.scenario, c.references, p99)
		out := Comparison{Scenario: c.scenario, Against: c.against, Blocks: p.Blocks(), Higher: p.Higher(), Lower: p.Lower()}
		for _, quantity := range quantities() {
			p := a.figures.paired(c.scenario, c.references, quantity)
			if p.Blocks() == 0 {
				continue
			}
			j := p.Judge(stats.Among(len(family)*a.Experiment.looks(), len(quantities()), quantity == p99))
			j.Temper(a.bounds(quantity, c.scenario), a.bounds(quantity, c.references...), c.against)
			f := Figure{
				Quantity: quantity, Interval: j.Interval, P: j.P, Verdict: j.Verdict, Why: j.Why, MoreBlocks: j.MoreBlocks, Sees: j.Sees,
				Pooled: a.figures.pooled(c.scenario, c.references, quantity),
			}
			if a.out.Undisturbed {
				all := a.all.paired(c.scenario, c.references, quantity).Interval(j.Confidence)
				f.All = &all
			}
			if f.Verdict == stats.Equivalent && f.Hides() {
				f.Verdict, f.Why, f.MoreBlocks = stats.Inconclusive, "as good in most blocks, but much worse in some", 0
			}
			out.Figures = append(out.Figures, f)
		}
		if len(out.Figures) > 0 {
			a.out.Comparisons = append(a.out.Comparisons, out)
		}
	}
}

// hidden is by how much the pooled ratio exceeds that of the typical block where something is rare but bad.
const hidden = 1.5

// Hides says whether the scenario is rarely but badly worse, which the typical block does not show.
func (f Figure) Hides() bool {
	if f.Quantity == slow {
		return f.Pooled-f.Estimate > 2*stats.ShareMargin && f.Pooled > f.High
	}
	return f.Pooled > hidden*f.Estimate && f.Pooled > f.High
}

// bounds says whether a quantity of any of the scenarios is a bound: slow is, as the p99 is.
func (a *analysis) bounds(quantity string, scenarios ...string) (all stats.Bounds) {
	p := cmp.Or(percentile(quantity), headline)
	for _, scenario := range scenarios {
		row, _ := a.find(scenario)
		switch {
		case row.Failed:
			all |= stats.Failed
		case row.LowerBound():
			all |= stats.Queued
		}
		if slices.ContainsFunc(row.Quantiles, func(q Quantile) bool { return q.P == p && q.AtMost != "" }) {
			all |= stats.Late
		}
	}
	return all
}

// judge gives each row its verdicts, from the comparisons.
func (a *analysis) judge() {
	unusable := a.out.BaselineBound()
	for i := range a.out.Rows {
		row := &a.out.Rows[i]
		if c, ok := a.out.Compared(row.Scenario, Unisolated); ok {
			if f, ok := c.Figure(p99); ok {
				row.Against = f.Verdict
			}
		}
		if row.Skipped != nil || row.Scenario == Baseline && row.Valid > 0 {
			continue
		}
		c, _ := a.out.Compared(row.Scenario, Baseline)
		f, compared := c.Figure(p99)
		if compared {
			ratio := f.Interval
			row.Ratio = &ratio
		}
		switch {
		case row.Valid == 0:
			row.Verdict, row.Why = stats.Invalid, a.whyInvalid(row.Scenario)
		case unusable:
			row.Verdict, row.Why = stats.Invalid, "the tenant cannot keep up even alone: lower --rate or --demand, or quieten the machine"
		case !compared:
			row.Verdict, row.Why = stats.Invalid, a.whyNotCompared(row.Scenario)
		case row.Scenario == BaselineAgain:
			row.Verdict, row.Why = "", ""
		default:
			row.Verdict, row.Why, row.MoreRounds = f.Verdict, f.Why, f.MoreBlocks
		}
	}
	if c, ok := a.out.Compared(BaselineAgain, Baseline); ok {
		f, _ := c.Figure(p99)
		a.out.Floor = &f.Interval
		if f.Verdict == stats.Worse || f.Verdict == stats.Better {
			a.out.Warnings = append(a.out.Warnings, fmt.Sprintf("the tenant alone differs from itself by a factor of %.2f (%s): nothing was changed between the two; do not trust this run", f.Estimate, between(f.Interval)))
		}
	}
}

// whyInvalid gives the first reason for which rounds of a scenario do not count.
func (a *analysis) whyInvalid(scenario string) string {
	for _, d := range a.Decoded {
		if d.Scenario == scenario && d.Excluded != "" {
			return d.Excluded
		}
	}
	return "no round was run"
}

// whyNotCompared says what is missing of a scenario with valid rounds.
func (a *analysis) whyNotCompared(scenario string) string {
	if len(a.figures.rounds[scenario]) > 0 {
		return "no block in which this and the tenant alone count"
	}
	if a.out.Undisturbed {
		return "most of its requests were disturbed from outside, in every round"
	}
	return fmt.Sprintf("its rounds have fewer than %d requests: longer rounds (--duration) or more load (--rate)", leastRequests)
}

// keep compares the neighbour's work with what it does unisolated.
func (a *analysis) keep() {
	unisolated, ok := a.find(Unisolated)
	if !ok || unisolated.Work <= 0 {
		return
	}
	worked := func(scenario string) map[int]Decoded {
		rounds := map[int]Decoded{}
		for _, d := range a.Valid(scenario) {
			if d.Neighbour != nil && d.Seconds > 0 {
				rounds[d.Block] = d
			}
		}
		return rounds
	}
	base := worked(Unisolated)
	for i := range a.out.Rows {
		row := &a.out.Rows[i]
		if row.Unit == "" {
			continue
		}
		var kept, free Total // over the same blocks: either may have settled before the other
		var blocks [][]float64
		own := worked(row.Scenario)
		for _, block := range slices.Sorted(maps.Keys(base)) {
			x, both := own[block]
			if !both {
				continue
			}
			kept.add(x)
			free.add(base[block])
			if rate, of := x.Neighbour.Work/x.Seconds, base[block].Neighbour.Work/base[block].Seconds; of > 0 {
				// What did nothing at all has the least rank, whatever stands for 0.
				blocks = append(blocks, []float64{max(rate, 1e-6*of), of})
			}
		}
		if free.Neighbour.Work > 0 {
			share := (kept.Neighbour.Work / kept.Seconds) / (free.Neighbour.Work / free.Seconds)
			row.WorkShare = &share
		}
		if row.Scenario == Unisolated {
			continue
		}
		if typical := stats.Ratios(blocks).Interval(confidence); typical.Rounds > 0 {
			row.WorkKept = &typical
		}
	}
}

// confidence of the intervals that are printed.
const confidence = 0.95

// limits counts the rounds that met the limits of the spec. All their requests count: it is what users see.
func (a *analysis) limits(row *Row, valid []Decoded) {
	for _, limit := range a.Experiment.Limits {
		met := Met{Limit: limit, Rounds: len(valid)}
		for _, d := range valid {
			us, ok := quantile([]stats.Round{d.Response}, limit.P)
			if ok && us*1e3 <= float64(limit.Most) && !stats.AtLeast(d.Censored, d.Load.Offered, limit.P) {
				met.Met++
			}
		}
		met.Low, met.High = stats.Share(met.Met, met.Rounds, confidence)
		row.Limits = append(row.Limits, met)
	}
}

// settled are the scenarios that need no more rounds, by their p99.
func (a *Analysis) settled() []string {
	var strategies []string
	nothing := ""
	for _, row := range a.Rows {
		switch {
		case row.Scenario == Baseline || row.Scenario == BaselineAgain || row.Skipped != nil || row.Valid == 0:
		case row.Scenario == Unisolated:
			nothing = Unisolated
		default:
			strategies = append(strategies, row.Scenario)
		}
	}
	return stats.Settled(strategies, Baseline, nothing, func(scenario, against string) (stats.Verdict, stats.Interval) {
		c, _ := a.Compared(scenario, against)
		f, _ := c.Figure(p99)
		return f.Verdict, f.Interval
	})
}

// looks is how often the data are looked at for verdicts.
func (e Spec) looks() int {
	if e.Look > 0 && e.Blocks > e.Look {
		return 2
	}
	return 1
}
