package lab

import (
	"fmt"
	"slices"

	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/stats"
)

// headline is the percentile that verdicts are about.
const headline = 99

// percentiles are those of the table.
func percentiles() []float64 { return []float64{50, 95, headline, 99.9} }

// saturated is the share of the offered rate below which responses count as
// falling behind: a queue that only grows.
const saturated = 0.97

// measured is a stored round, decoded and gated.
type measured struct {
	*Round
	response stats.Round
	lag      stats.Round
	queue    stats.Round
	censored int
	invalid  string
}

// analysis is an Analyse under way.
type analysis struct {
	r      *Result
	rounds map[string][]measured // by scenario, in block order
	out    *Analysis
}

// Analyse computes what a result comes to. It is pure: the same result always
// gives the same analysis.
func Analyse(r *Result) (*Analysis, error) {
	a := &analysis{r: r, rounds: map[string][]measured{}, out: &Analysis{}}
	for i := range r.Rounds {
		m, err := measure(&r.Rounds[i])
		if err != nil {
			return nil, fmt.Errorf("round %d (%s): %w", i+1, r.Rounds[i].Scenario, err)
		}
		a.rounds[m.Scenario] = append(a.rounds[m.Scenario], m)
	}
	for _, rounds := range a.rounds {
		slices.SortStableFunc(rounds, func(x, y measured) int { return x.Block - y.Block })
	}
	a.floor()
	for _, s := range r.Experiment.Scenarios {
		a.out.Rows = append(a.out.Rows, a.row(s))
	}
	a.judge()
	a.warn()
	a.words()
	return a.out, nil
}

// measure decodes a round and decides whether it counts.
func measure(round *Round) (measured, error) {
	m := measured{Round: round, invalid: round.Invalid}
	for _, s := range round.Load.Seconds {
		m.censored += s.Censored
	}
	for _, part := range []struct {
		of   string
		to   *stats.Round
		pick func(load.Second) string
	}{
		{"response", &m.response, func(s load.Second) string { return s.Response }},
		{"lag", &m.lag, func(s load.Second) string { return s.Lag }},
		{"queue", &m.queue, func(s load.Second) string { return s.Queue }},
	} {
		for i, s := range round.Load.Seconds {
			h, err := stats.Decode(part.pick(s))
			if err != nil {
				return m, fmt.Errorf("%s of second %d: %w", part.of, i+1, err)
			}
			part.to.Seconds = append(part.to.Seconds, stats.Compact(h))
		}
	}
	if m.invalid == "" {
		m.invalid = m.gate()
	}
	return m, nil
}

// gate says why a round cannot be trusted, or "".
func (m *measured) gate() string {
	response, ok := quantile([]stats.Round{m.response}, headline)
	if !ok {
		return "no request was answered"
	}
	lag, _ := quantile([]stats.Round{m.lag}, headline)
	if ok, why := stats.LagGate(lag, response); !ok {
		return why
	}
	return ""
}

// quantile is the pooled percentile of rounds, in µs.
func quantile(rounds []stats.Round, p float64) (float64, bool) {
	iv := stats.Quantile(rounds, p, stats.Options{Resamples: -1})
	return iv.Estimate, iv.Rounds > 0
}
