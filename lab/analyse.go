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
	a := &analysis{m, &Analysis{}}
	a.floor()
	for _, s := range m.Experiment.Scenarios {
		a.out.Rows = append(a.out.Rows, a.row(s))
	}
	a.judge()
	a.warn()
	a.words()
	return a.out
}

// floor compares the baseline with itself.
func (a *analysis) floor() {
	if base, again := a.Pair(Baseline, BaselineAgain); len(base) > 1 {
		f := stats.Ratio(base, again, headline, stats.Options{})
		a.out.Floor = &f
	}
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
	row.Quantiles = quantiles(valid)
	a.usage(&row, valid)
	row.LagP99, _ = quantile(pick(valid, func(d Decoded) stats.Round { return d.Lag }), headline)
	row.QueueP99, _ = quantile(pick(valid, func(d Decoded) stats.Round { return d.Queue }), headline)
	if s.Name != Baseline {
		base, other := a.Pair(Baseline, s.Name)
		ratio := stats.Ratio(base, other, headline, stats.Options{})
		if ratio.Rounds > 0 {
			row.Ratio = &ratio
		}
	}
	return row
}

// quantiles are those of response time over all valid rounds.
func quantiles(valid []Decoded) []Quantile {
	rounds := Responses(valid)
	lags := pick(valid, func(d Decoded) stats.Round { return d.Lag })
	offered, censored := 0, 0
	for _, m := range valid {
		offered += m.Load.Offered
		censored += m.Censored
	}
	intervals := stats.Quantiles(rounds, percentiles(), stats.Options{})
	var out []Quantile
	for i, p := range percentiles() {
		q := Quantile{P: p}
		lag, _ := quantile(lags, p)
		if ok, why := stats.Supported(rounds, p); !ok {
			q.Reason = why
		} else if ok, why := stats.LagGate(lag, intervals[i].Estimate); !ok {
			q.Reason = why
		} else {
			q.Interval, q.AtLeast = intervals[i], stats.AtLeast(censored, offered, p)
		}
		out = append(out, q)
	}
	return out
}

// usage sums the usage of both roles over the valid rounds. Rates are sums over
// sums, so that a longer round counts for more.
func (a *analysis) usage(row *Row, valid []Decoded) {
	var seconds, busy, capacity float64
	var tenant, neighbour Usage
	done := 0
	for _, m := range valid {
		seconds += m.Seconds
		busy += m.Host.Busy
		capacity += m.Seconds * float64(m.Host.CPUs)
		tenant = tenant.plus(m.Tenant)
		if m.Neighbour != nil {
			neighbour = neighbour.plus(*m.Neighbour)
			row.Unit = m.Neighbour.Unit
		}
		row.Requests += m.Load.Offered
		row.Censored += m.Censored
		done += m.Load.DoneInWindow
	}
	row.Saturated = stats.Saturated(done, row.Requests)
	if seconds == 0 || capacity == 0 {
		return
	}
	row.HostBusy = min(1, busy/capacity) // counted in ticks, which may add up to a little more
	row.TenantCPUs, row.NeighbourCPUs = tenant.CPUSeconds/seconds, neighbour.CPUSeconds/seconds
	row.TenantThrottled, row.NeighbourThrottled = tenant.ThrottledSeconds/seconds, neighbour.ThrottledSeconds/seconds
	row.TenantWait = tenant.WaitSeconds / seconds
	row.Work = neighbour.Work / seconds
}

func (u Usage) plus(v Usage) Usage {
	u.CPUSeconds += v.CPUSeconds
	u.WaitSeconds += v.WaitSeconds
	u.ThrottledSeconds += v.ThrottledSeconds
	u.ThrottledPeriods += v.ThrottledPeriods
	u.Work += v.Work
	return u
}

// judge gives the verdicts, and the neighbour's work relative to unisolated.
func (a *analysis) judge() {
	compared, unisolated := 0, 0.0
	unusable := a.out.BaselineBound()
	for _, row := range a.out.Rows {
		if row.Ratio != nil && row.Scenario != BaselineAgain {
			compared++
		}
		if row.Scenario == Unisolated {
			unisolated = row.Work
		}
	}
	for i := range a.out.Rows {
		row := &a.out.Rows[i]
		if unisolated > 0 && row.Unit != "" {
			share := row.Work / unisolated
			row.WorkShare = &share
		}
		switch {
		case row.Skipped != nil || row.Scenario == Baseline && row.Valid > 0:
		case row.Valid == 0:
			row.Verdict, row.Why = stats.Invalid, a.whyInvalid(row.Scenario)
		case unusable && row.Scenario != Baseline:
			row.Verdict, row.Why = stats.Invalid, "the baseline is a lower bound itself: lower --rate or --demand, or quieten the machine"
		case row.Ratio == nil:
			row.Verdict, row.Why = stats.Invalid, "no block in which this and the baseline count"
		case row.Scenario != BaselineAgain:
			j := stats.Judge(*row.Ratio, a.out.Floor, compared)
			row.Verdict, row.Why, row.MoreRounds = j.Verdict, j.Why, j.MoreRounds
			if row.LowerBound() && row.Verdict != stats.Worse {
				row.Verdict, row.Why, row.MoreRounds = stats.Inconclusive, "its p99 is a lower bound: requests failed, were unfinished, or queued without end", 0
			}
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
