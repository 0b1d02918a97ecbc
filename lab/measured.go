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
	// Path is where the result is stored, for commands that go on with it; "" if unknown.
	Path string

	// figures are what is compared: where the result has them, of undisturbed requests; all
	// are of all requests.
	figures, all samples
	undisturbed  bool
}

// Decoded is a stored round with its histograms.
type Decoded struct {
	*Round
	Response, Service, Queue, Lag stats.Round
	// Calm is the response of the round's undisturbed requests, all in one; nil where
	// the result has none.
	Calm *stats.Distribution
	// Censored is how many requests failed or were not answered.
	Censored int
	// Excluded says why the round does not count; "" for one that does.
	Excluded string
}

// failed says whether so many requests failed that the p99 is that of one of them.
func (d Decoded) failed() bool { return stats.AtLeast(d.Load.Failed, d.Load.Offered, headline) }

// Measure decodes the rounds of a result.
func Measure(r *Result) (*Measured, error) {
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
		m.Decoded = append(m.Decoded, d)
	}
	m.exclude()
	m.all = m.sampled(false)
	m.figures = m.all
	if calm := m.sampled(true); calm.enough(m.all) {
		m.figures, m.undisturbed = calm, true
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
	if u := round.Undisturbed; u != nil {
		calm, err := stats.Decode(u.Response)
		if err != nil {
			return d, fmt.Errorf("undisturbed response: %w", err)
		}
		d.Calm = &calm
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

// late says why a percentile of a scenario is an upper bound: the generator's own lag is a part of it, and not a small one.
// It is "" where that is small, or what the lag disturbed is left out, which is so of a generator that runs ahead only.
func (m *Measured) late(scenario string, p float64) string {
	valid := m.Valid(scenario)
	lag, known := quantile(pick(valid, func(d Decoded) stats.Round { return d.Lag }), p)
	held := slices.ContainsFunc(valid, func(d Decoded) bool { return d.Load.Policy != "" && !ahead(m.Setup.GeneratorCPUs, d.Load.Policy) })
	if m.undisturbed && !held || !known {
		return ""
	}
	response, _ := quantile(Responses(valid), p)
	_, why := stats.LagGate(lag, response)
	return why
}

// Total is what the rounds of a scenario that count came to together.
type Total struct {
	Seconds           float64
	Tenant, Neighbour Usage
	SharedCPUs        int
}

// Total sums the usage of a scenario.
func (m *Measured) Total(scenario string) (t Total) {
	for _, r := range m.Valid(scenario) {
		t.add(r)
	}
	return t
}

func (t *Total) add(r Decoded) {
	t.Seconds += r.Seconds
	t.Tenant = t.Tenant.plus(r.Tenant)
	t.SharedCPUs = r.Host.SharedCPUs
	if r.Neighbour != nil {
		t.Neighbour = t.Neighbour.plus(*r.Neighbour)
	}
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

// exclude says which rounds do not count. How a round was measured decides, and what came
// out of it only where every request failed, which leaves nothing to measure. The limit of
// the generator's lag is the same for all rounds. It comes from what the tenant's p99 is alone, in the typical round. Rounds with bins need
// no such limit: there requests leave one by one.
func (m *Measured) exclude() {
	var alone []float64
	for _, d := range m.Decoded {
		if d.Scenario == Baseline || d.Scenario == BaselineAgain {
			if p99, ok := quantile([]stats.Round{d.Response}, headline); ok {
				alone = append(alone, p99)
			}
		}
	}
	for i := range m.Decoded {
		d := &m.Decoded[i]
		switch {
		case d.Invalid != "":
			d.Excluded = d.Invalid
		case d.Load.Done+d.Load.Unfinished == 0: // none that is late, which would be a lower bound
			d.Excluded = "no request was answered"
		case d.Calm == nil && len(alone) > 0:
			lag, _ := quantile([]stats.Round{d.Lag}, headline)
			if ok, why := stats.LagGate(lag, stats.Median(alone)); !ok {
				d.Excluded = why
			}
		}
	}
}

// calm is the response of the round's undisturbed requests, if they are at least half of
// all, and enough for a p99.
func (d *Decoded) calm() (stats.Distribution, bool) {
	u := d.Undisturbed
	if u == nil || d.Calm == nil || u.Requests < u.LeftOut || d.Calm.Requests() < leastRequests {
		return stats.Distribution{}, false
	}
	return *d.Calm, true
}

// leastRequests is how many a round needs, so that its p99 is not its maximum.
const leastRequests = 100

// quantile is the pooled percentile of rounds, in µs.
func quantile(rounds []stats.Round, p float64) (float64, bool) {
	var all []stats.Distribution
	for _, r := range rounds {
		all = append(all, r.Seconds...)
	}
	return stats.Merge(all...).Quantile(p)
}
