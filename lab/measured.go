package lab

import (
	"fmt"
	"slices"

	"berth.dev/berth/lab/stats"
)

// Measured is a result with its histograms decoded, each once.
type Measured struct {
	*Result
	Decoded []Decoded // the rounds, in the order stored
}

// Decoded is a stored round with its histograms.
type Decoded struct {
	*Round
	Response, Service, Queue, Lag stats.Round
	// Censored is how many requests failed or were not answered.
	Censored int
	// Excluded says why the round does not count; "" for one that does.
	Excluded string
}

// Measure decodes the rounds of a result.
func Measure(r *Result) (*Measured, error) {
	usual := usualDisturbance(r)
	seen := map[string]bool{}
	m := &Measured{Result: r, Decoded: make([]Decoded, 0, len(r.Rounds))}
	for i := range r.Rounds {
		round := &r.Rounds[i]
		key := fmt.Sprintf("%d %s", round.Block, round.Scenario)
		if seen[key] {
			return nil, fmt.Errorf("round %d: block %d has scenario %s twice", i+1, round.Block, round.Scenario)
		}
		seen[key] = true
		d, err := decodeRound(round)
		if err != nil {
			return nil, fmt.Errorf("round %d (%s): %w", i+1, round.Scenario, err)
		}
		d.Excluded = d.excluded(usual)
		m.Decoded = append(m.Decoded, d)
	}
	return m, nil
}

func decodeRound(round *Round) (Decoded, error) {
	d := Decoded{Round: round}
	for i, s := range round.Load.Seconds {
		d.Censored += s.Censored
		for _, part := range []struct {
			of   string
			to   *stats.Round
			text string
		}{{"response", &d.Response, s.Response}, {"service", &d.Service, s.Service}, {"queue", &d.Queue, s.Queue}, {"lag", &d.Lag, s.Lag}} {
			second, err := stats.Decode(part.text)
			if err != nil {
				return d, fmt.Errorf("%s of second %d: %w", part.of, i+1, err)
			}
			part.to.Seconds = append(part.to.Seconds, second)
		}
	}
	return d, nil
}

// Valid are the rounds of a scenario that count, in block order.
func (m *Measured) Valid(scenario string) []Decoded {
	var valid []Decoded
	for _, d := range m.Decoded {
		if d.Scenario == scenario && d.Excluded == "" {
			valid = append(valid, d)
		}
	}
	slices.SortStableFunc(valid, func(x, y Decoded) int { return x.Block - y.Block })
	return valid
}

// Pair returns the responses of two scenarios in the blocks where both count.
func (m *Measured) Pair(base, other string) (b, o []stats.Round) {
	byBlock := map[int]stats.Round{}
	for _, d := range m.Valid(base) {
		byBlock[d.Block] = d.Response
	}
	for _, d := range m.Valid(other) {
		if response, ok := byBlock[d.Block]; ok {
			b, o = append(b, response), append(o, d.Response)
		}
	}
	return b, o
}

// Responses are those of rounds.
func Responses(rounds []Decoded) []stats.Round {
	return pick(rounds, func(d Decoded) stats.Round { return d.Response })
}

func pick(rounds []Decoded, part func(Decoded) stats.Round) []stats.Round {
	parts := make([]stats.Round, len(rounds))
	for i, d := range rounds {
		parts[i] = part(d)
	}
	return parts
}

// unlike is how much more of the shared CPUs' time than in the run's usual round
// others must take for a round to be left out. A host that is busy all the time
// is measured as it is, with a warning.
const unlike = 0.10

// excluded says why a round does not count. usual is the disturbance of the
// run's median round. Only how a round was measured decides, never what came
// out of it.
func (d *Decoded) excluded(usual float64) string {
	if d.Invalid != "" {
		return d.Invalid
	}
	if d.Load.Done == 0 {
		return "no request was answered"
	}
	response, _ := quantile([]stats.Round{d.Response}, headline)
	lag, _ := quantile([]stats.Round{d.Lag}, headline)
	if ok, why := stats.LagGate(lag, response); !ok {
		return why
	}
	if x := d.disturbance(); x > usual+unlike {
		return fmt.Sprintf("others took %.0f %% of the shared CPUs' time, against %.0f %% in the run's usual round", 100*x, 100*usual)
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
