package lab

import "berth.dev/berth/lab/stats"

// headline is the percentile that verdicts are about.
const headline = 99

// percentiles are those of the table.
func percentiles() []float64 { return []float64{50, 95, headline, 99.9} }

// analysis is one under way.
type analysis struct {
	*Measured
	out *Analysis
}

// Analyse computes what a result comes to. It is pure: the same result always
// gives the same analysis.
func Analyse(r *Result) (*Analysis, error) {
	m, err := Measure(r)
	if err != nil {
		return nil, err
	}
	return m.Analyse(), nil
}

// Analyse computes what a result comes to.
func (m *Measured) Analyse() *Analysis {
	a := &analysis{m, &Analysis{Undisturbed: m.undisturbed}}
	for _, s := range m.Experiment.Scenarios {
		a.out.Rows = append(a.out.Rows, a.row(s))
	}
	a.keep()
	a.compare()
	a.judge()
	a.warn()
	a.words()
	return a.out
}

func (a *analysis) row(s Scenario) Row {
	row := Row{Scenario: s.Name}
	for _, d := range a.Decoded {
		if d.Scenario == s.Name {
			row.Rounds++
		}
	}
	for i, skip := range a.Skipped {
		if skip.Scenario == s.Name {
			row.Skipped = &a.Skipped[i]
			return row
		}
	}
	valid := a.Valid(s.Name)
	row.Valid = len(valid)
	if row.Valid == 0 {
		return row
	}
	row.Quantiles = a.quantiles(s.Name, valid)
	a.usage(&row, valid)
	a.limits(&row, valid)
	row.LagP99, _ = quantile(pick(valid, func(d Decoded) stats.Round { return d.Lag }), headline)
	row.QueueP99, _ = quantile(pick(valid, func(d Decoded) stats.Round { return d.Queue }), headline)
	return row
}

// quantiles are those of response time over all valid rounds.
func (a *analysis) quantiles(scenario string, valid []Decoded) []Quantile {
	all := Responses(valid)
	rounds, offered, censored := all, 0, 0
	if a.out.Undisturbed {
		rounds = nil
	}
	for _, d := range valid {
		calm, ok := d.calm()
		switch {
		case !a.out.Undisturbed:
			offered += d.Load.Offered
			censored += d.Censored
		case ok:
			rounds = append(rounds, stats.Round{Seconds: []stats.Distribution{calm}})
			offered += d.Undisturbed.Requests
			censored += d.Undisturbed.Censored
		}
	}
	var out []Quantile
	for _, p := range percentiles() {
		q := Quantile{P: p}
		estimate, _ := quantile(rounds, p)
		if ok, why := stats.Supported(rounds, p); !ok {
			q.Reason = why
		} else {
			q.Estimate, q.AtLeast = estimate, stats.AtLeast(censored, offered, p)
			q.AtMost = a.late(scenario, p)
			if a.out.Undisturbed {
				q.All, _ = quantile(all, p)
			}
			q.Typical = a.figures.typical(scenario, p)
		}
		out = append(out, q)
	}
	return out
}

// typical is a percentile of the typical round, in µs.
func (s samples) typical(scenario string, p float64) *stats.Interval {
	if p > headline {
		return nil
	}
	var rounds [][]float64
	for _, block := range s.blocks(scenario, []string{scenario}) {
		us, _ := s.rounds[scenario][block].Quantile(p)
		rounds = append(rounds, []float64{max(us, 1), 1})
	}
	typical := stats.Ratios(rounds).Interval(confidence)
	if typical.Rounds == 0 {
		return nil
	}
	return &typical
}

// usage sums the usage of both roles over the valid rounds. Rates are sums over
// sums, so that a longer round counts for more.
func (a *analysis) usage(row *Row, valid []Decoded) {
	var seconds, busy, capacity float64
	var sent *float64
	var tenant, neighbour Usage
	saturated, bound, failed := 0, 0, 0
	for _, m := range valid {
		seconds += m.Seconds
		busy += m.Host.Busy
		capacity += m.Seconds * float64(m.Host.CPUs)
		tenant = tenant.plus(m.Tenant)
		if m.LinkBytes != nil {
			if sent == nil {
				sent = new(float64)
			}
			*sent += *m.LinkBytes
		}
		if m.Neighbour != nil {
			neighbour = neighbour.plus(*m.Neighbour)
			row.Unit = m.Neighbour.Unit
		}
		row.Requests += m.Load.Offered
		row.Censored += m.Censored
		if m.Undisturbed != nil {
			row.Disturbed += m.Undisturbed.LeftOut
		}
		if stats.Saturated(m.Load.DoneInWindow, m.Load.Offered) {
			saturated++
		}
		if stats.AtLeast(m.Censored, m.Load.Offered, headline) {
			bound++
		}
		if m.failed() {
			failed++
		}
	}
	row.Failed = stats.Mostly(failed, len(valid))
	row.Saturated, row.Bound = stats.Mostly(saturated, len(valid)), stats.Mostly(bound, len(valid))
	if seconds == 0 || capacity == 0 {
		return
	}
	row.HostBusy = min(1, busy/capacity) // counted in ticks, which may add up to a little more
	row.TenantCPUs, row.NeighbourCPUs = tenant.CPUSeconds/seconds, neighbour.CPUSeconds/seconds
	row.TenantThrottled, row.NeighbourThrottled = tenant.ThrottledSeconds/seconds, neighbour.ThrottledSeconds/seconds
	row.TenantWait = tenant.WaitSeconds / seconds
	row.Work = neighbour.Work / seconds
	if rate := float64(a.Experiment.LinkRate); sent != nil && rate > 0 {
		row.LinkUse = new(8 * *sent / seconds / rate)
	}
}

func (u Usage) plus(v Usage) Usage {
	u.CPUSeconds += v.CPUSeconds
	u.WaitSeconds += v.WaitSeconds
	u.ThrottledSeconds += v.ThrottledSeconds
	u.ThrottledPeriods += v.ThrottledPeriods
	u.Periods += v.Periods
	u.Cycles += v.Cycles
	u.Instructions += v.Instructions
	u.References += v.References
	u.Misses += v.Misses
	u.Switches += v.Switches
	u.Involuntary += v.Involuntary
	u.Migrations += v.Migrations
	u.Work += v.Work
	return u
}
