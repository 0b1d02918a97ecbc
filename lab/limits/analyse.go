package limits

import (
	"math"
	"slices"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/routing"
	"berth.dev/berth/lab/stats"
)

// Analysis is what a result comes to: a pure function of it.
type Analysis struct {
	Answer []string `json:"answer"`
	Rows   []Row    `json:"rows"`
	// Compared are all comparisons: those of one load are a family.
	Compared []LoadCompared `json:"compared"`
	// Generator is what asking cost.
	Generator Generator `json:"generator"`
	// Foreign and Steal are what others took of the shared CPUs' time, as shares (0-1).
	Foreign float64 `json:"foreign"`
	Steal   float64 `json:"steal"`

	samples  [][]stats.Sample // by load
	measured []*lab.Measured  // likewise, cells under the names of their configs
}

// LoadCompared is the comparisons under a load.
type LoadCompared struct {
	Load string `json:"load"`
	// Undisturbed: of requests that nobody from outside disturbed.
	Undisturbed bool             `json:"undisturbed"`
	Compared    []stats.Compared `json:"compared"`
}

// Generator is what asking cost, and how late it was, at worst.
type Generator struct {
	CPUs   float64 `json:"cpus"`   // of all rounds, on average
	LagP99 float64 `json:"lagP99"` // in the cell where it is longest, in microseconds
	Policy string  `json:"policy"`
}

// Row is a config under a load: of all its rounds that count.
type Row struct {
	Cell     string `json:"cell"`
	Config   string `json:"config"`
	Load     string `json:"load"`
	Rounds   int    `json:"rounds"`
	Requests int    `json:"requests"`
	Failed   int    `json:"failed"` // or not answered
	// Quantiles of the response times of all requests together, in microseconds; those that
	// the requests are too few for are 0. Throughput is answers per second.
	P50        float64 `json:"p50"`
	P95        float64 `json:"p95"`
	P99        float64 `json:"p99"`
	Throughput float64 `json:"throughput"`
	// CPUs that the servers used, and that share (0-1) of their limits; 0 without limits.
	CPUs    float64 `json:"cpus"`
	OfLimit float64 `json:"ofLimit,omitempty"`
	// Throttled is the share (0-1) of the periods in which a server was active and its limit
	// stopped it; Withheld how much time that was, in CPUs; Waste how much of that while CPUs
	// were idle, at most.
	Throttled float64 `json:"throttled"`
	Withheld  float64 `json:"withheld"`
	Waste     float64 `json:"waste"`
	// Idle is the shared CPUs that nobody used.
	Idle float64 `json:"idle"`
	// Same is the share (0-1) of requests that went to the server of the one before.
	Same   float64 `json:"same,omitempty"`
	LagP99 float64 `json:"lagP99"` // of the generator, in microseconds
	Theory *Theory `json:"theory,omitempty"`
}

// Theory is what is expected of a config under an open load.
type Theory struct {
	// Same is by formula, or simulated where there is none.
	Same float64 `json:"same"`
	// MG1 is the p99 of random routing over servers of one thread that work steadily, at the
	// speed of their limit; 0 for others. In microseconds, as the others.
	MG1 float64 `json:"mg1,omitempty"`
	// P50 and P99 are simulated, with quotas and periods. Throttled is, too.
	P50       float64 `json:"p50"`
	P99       float64 `json:"p99"`
	Throttled float64 `json:"throttled"`
}

// Analyse computes what the result comes to.
func (x *Experiment) Analyse() (*Analysis, error) {
	shared, err := cpuset.Parse(x.Setup.CPUs)
	if err != nil {
		return nil, err
	}
	a := &Analysis{}
	for _, l := range x.Experiment.Loads {
		if err := a.load(x, l, shared.Len()); err != nil {
			return nil, err
		}
	}
	cpuTime, seconds, capacity := 0.0, 0.0, 0.0
	for _, r := range x.Rounds {
		seconds += r.Seconds
		capacity += r.Seconds * float64(r.Host.SharedCPUs)
		cpuTime += r.Load.CPUSeconds
		a.Foreign += r.Host.Foreign
		a.Steal += r.Host.Steal
		a.Generator.Policy = r.Load.Policy
	}
	if seconds > 0 {
		a.Generator.CPUs = cpuTime / seconds
		a.Foreign /= capacity
		a.Steal /= capacity
	}
	a.Answer = a.answer(x)
	return a, nil
}

// load enters what a load came to.
func (a *Analysis) load(x *Experiment, l Load, cpus int) error {
	s := x.Experiment
	of := &lab.Result{Header: x.Header}
	names := map[string]string{}
	for _, c := range s.Configs {
		names[s.cell(c, l)] = c.Name
	}
	for _, r := range x.Rounds {
		if name, ok := names[r.Scenario]; ok {
			r.Scenario = name
			of.Rounds = append(of.Rounds, r)
		}
	}
	m, err := lab.Measure(of)
	if err != nil {
		return err
	}
	samples, undisturbed := m.Samples()
	a.samples, a.measured = append(a.samples, samples), append(a.measured, m)
	var family []stats.Versus
	for _, c := range s.Configs[1:] {
		v := stats.Versus{Cell: c.Name, Against: s.Configs[0].Name}
		if references := s.references(); !slices.Contains(references, c.Name) {
			v.References = references
		}
		family = append(family, v)
	}
	for _, p := range s.Compare {
		family = append(family, stats.Versus{Cell: p.Config, Against: p.Against})
	}
	a.Compared = append(a.Compared, LoadCompared{l.String(), undisturbed, stats.Compare(samples, figures(l), family)})
	for _, c := range s.Configs {
		row := Row{Cell: s.cell(c, l), Config: c.Name, Load: l.String()}
		row.measure(m.Valid(c.Name), c, cpus)
		row.Theory = x.theory(c, l, cpus)
		a.Generator.LagP99 = max(a.Generator.LagP99, row.LagP99)
		a.Rows = append(a.Rows, row)
	}
	return nil
}

// figures are what configs are compared by under a load.
func figures(l Load) []stats.Figure {
	if l.ClientsPerCPU > 0 {
		return []stats.Figure{lab.P50, lab.P99, lab.Throughput}
	}
	return []stats.Figure{lab.P50, lab.P95, lab.P99}
}

// measure fills a row in.
func (row *Row) measure(rounds []lab.Decoded, c Config, cpus int) {
	var responses, lags []stats.Round
	var all lab.Usage
	seconds, busy, withheld, same, done := 0.0, 0.0, 0.0, 0, 0
	for _, d := range rounds {
		responses, lags = append(responses, d.Response), append(lags, d.Lag)
		row.Requests += d.Load.Offered
		row.Failed += d.Censored
		done += d.Load.DoneInWindow
		same += d.Load.Same
		seconds += d.Seconds
		busy += d.Tenant.CPUSeconds + d.Host.Foreign + d.Host.Steal + d.Load.CPUSeconds
		if d.Neighbour != nil {
			busy += d.Neighbour.CPUSeconds
		}
		all.CPUSeconds += d.Tenant.CPUSeconds
		all.Periods += d.Tenant.Periods
		all.ThrottledPeriods += d.Tenant.ThrottledPeriods
		all.ThrottledSeconds += d.Tenant.ThrottledSeconds
		withheld += d.Waste
	}
	row.Rounds = len(rounds)
	if seconds == 0 {
		return
	}
	row.P50, row.P95, row.P99 = stats.Pooled(responses, 50), stats.Pooled(responses, 95), stats.Pooled(responses, 99)
	row.LagP99 = stats.Pooled(lags, 99)
	row.Throughput, row.CPUs = float64(done)/seconds, all.CPUSeconds/seconds
	row.Withheld, row.Waste = all.ThrottledSeconds/seconds, withheld/seconds
	row.Idle = max(0, float64(cpus)-busy/seconds)
	if all.Periods > 0 {
		row.Throttled = float64(all.ThrottledPeriods) / float64(all.Periods)
	}
	if c.Limit > 0 {
		quota, period := c.quota(c.Limit, cpus)
		row.OfLimit = row.CPUs / (float64(c.Servers) * quota.Seconds() / period.Seconds())
	}
	if c.Servers > 1 && row.Requests > len(rounds) {
		row.Same = float64(same) / float64(row.Requests-len(rounds)) // the first of a round follows none
	}
}

// simulated is how many requests theory looks at.
const simulated = 10_000

// theory is what is expected; nil beside noise, in a closed loop, or beyond what limits allow,
// where queues grow without end.
func (x *Experiment) theory(c Config, l Load, cpus int) *Theory {
	tiles, mean, err := x.tiles(l.Tiles)
	quota, period := c.quota(c.Limit, cpus)
	able := float64(min(cpus, c.Servers*c.tenant(cpus).Procs))
	if c.Limit > 0 {
		able = min(able, float64(c.Servers)*quota.Seconds()/period.Seconds())
	}
	if err != nil || c.Noise || l.Share == 0 || l.Share*float64(cpus) > 0.95*able {
		return nil
	}
	var costs []time.Duration
	for _, t := range tiles {
		costs = append(costs, time.Duration(t.CPU))
	}
	m := routing.Model{
		Servers: c.Servers, Threads: c.tenant(cpus).Procs, CPUs: cpus, Routing: c.Routing,
		Rate: l.Share * float64(cpus) / mean.Seconds(), Costs: costs, Requests: simulated, Seed: x.Experiment.Seed,
	}
	if c.Limit > 0 {
		m.Quota, m.Period, m.Burst = quota, period, time.Duration(c.Burst*float64(quota))
	}
	o := routing.Simulate(m)
	us := func(d time.Duration) float64 { return math.Round(float64(d) / 1e3) }
	t := &Theory{Same: o.Same, Throttled: o.Throttled, P50: us(routing.Percentile(o.Responses, 50)), P99: us(routing.Percentile(o.Responses, 99))}
	if same, ok := routing.SameShare(c.Routing, c.Servers); ok {
		t.Same = same
	}
	if speed := quota.Seconds() / period.Seconds(); c.Limit > 0 && c.Threads == 1 && speed <= 1 && (c.Routing == load.Random || c.Routing == "") {
		slow := make([]time.Duration, len(costs))
		for i, cost := range costs {
			slow[i] = time.Duration(float64(cost) / speed)
		}
		t.MG1 = us(routing.MG1(slow, m.Rate/float64(c.Servers)*mean.Seconds()/speed, 99, x.Experiment.Seed))
	}
	return t
}
