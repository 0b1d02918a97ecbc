package lab

import (
	"fmt"
	"slices"

	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/stats"
)

// measured is a stored round, decoded, and why it does not count, if so.
type measured struct {
	*Round
	response stats.Round
	lag      stats.Round
	queue    stats.Round
	censored int
	invalid  string
}

// Exclusions says of each round of a result why it does not count, "" for one
// that does.
func Exclusions(r *Result) ([]string, error) {
	all, err := measureAll(r)
	why := make([]string, len(all))
	for i, m := range all {
		why[i] = m.invalid
	}
	return why, err
}

// measureAll decodes the rounds of a result, in its order.
func measureAll(r *Result) ([]measured, error) {
	usual := usualDisturbance(r)
	seen := map[string]bool{}
	all := make([]measured, 0, len(r.Rounds))
	for i := range r.Rounds {
		round := &r.Rounds[i]
		key := fmt.Sprintf("%d %s", round.Block, round.Scenario)
		if seen[key] {
			return nil, fmt.Errorf("round %d: block %d has scenario %s twice", i+1, round.Block, round.Scenario)
		}
		seen[key] = true
		m, err := measure(round)
		if err != nil {
			return nil, fmt.Errorf("round %d (%s): %w", i+1, round.Scenario, err)
		}
		m.invalid = m.excluded(usual)
		all = append(all, m)
	}
	return all, nil
}

// measure decodes a round.
func measure(round *Round) (measured, error) {
	m := measured{Round: round}
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
	return m, nil
}

// unlike is how much more of the shared CPUs' time than in the run's usual round
// others must take for a round to be left out. A host that is busy all the time
// is measured as it is, with a warning.
const unlike = 0.10

// excluded says why a round does not count. usual is the disturbance of the
// run's median round. Only how a round was measured decides, never what came
// out of it.
func (m *measured) excluded(usual float64) string {
	if m.Invalid != "" {
		return m.Invalid
	}
	if m.Load.Done == 0 {
		return "no request was answered"
	}
	response, _ := quantile([]stats.Round{m.response}, headline)
	lag, _ := quantile([]stats.Round{m.lag}, headline)
	if ok, why := stats.LagGate(lag, response); !ok {
		return why
	}
	if d := m.disturbance(); d > usual+unlike {
		return fmt.Sprintf("others took %.0f %% of the shared CPUs' time, against %.0f %% in the run's usual round", 100*d, 100*usual)
	}
	return ""
}

// disturbance is the share of the shared CPUs' time that went to the hypervisor
// and to processes outside the lab.
func (r *Round) disturbance() float64 {
	capacity := r.Seconds * float64(r.Host.SharedCPUs)
	if capacity <= 0 {
		return 0
	}
	return (r.Host.Steal + r.Host.Foreign) / capacity
}

func usualDisturbance(r *Result) float64 {
	var all []float64
	for i := range r.Rounds {
		all = append(all, r.Rounds[i].disturbance())
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// quantile is the pooled percentile of rounds, in µs.
func quantile(rounds []stats.Round, p float64) (float64, bool) {
	var all []stats.Distribution
	for _, r := range rounds {
		all = append(all, r.Seconds...)
	}
	return stats.Merge(all...).Quantile(p)
}
