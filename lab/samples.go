package lab

import "berth.dev/berth/lab/stats"

// Figures of a round of tenant and neighbour, by which cells can be compared.
var (
	P50 = stats.Figure{Name: "p50", Unit: stats.Microseconds}
	P95 = stats.Figure{Name: "p95", Unit: stats.Microseconds}
	P99 = stats.Figure{Name: p99, Unit: stats.Microseconds, Leads: true}
	// Throughput is what the tenant answered within the window.
	Throughput = stats.Figure{Name: "throughput", Unit: "1/s", More: true}
	// CPUPerRequest is the tenant's CPU time for each request that it answered.
	CPUPerRequest = stats.Figure{Name: "CPU per request", Unit: "s"}
	// IPC is the tenant's instructions per cycle, and CacheMisses those of the last-level
	// cache per 1000 instructions, where the CPUs' counters tell.
	IPC         = stats.Figure{Name: "IPC", More: true}
	CacheMisses = stats.Figure{Name: "cache misses", Unit: "/1000"}
	// NeighbourCPUs is how many CPUs the neighbour used.
	NeighbourCPUs = stats.Figure{Name: "neighbour's CPUs", More: true}
	// Work is the neighbour's, in its own unit.
	Work = stats.Figure{Name: "neighbour's work", Unit: "1/s", More: true}
)

// Samples are the figures of the rounds that count. The response times are those of
// undisturbed requests, where every cell has enough of them. undisturbed says so.
func (m *Measured) Samples() (all []stats.Sample, undisturbed bool) {
	late := map[string]map[string]string{}
	for _, d := range m.Decoded {
		if d.Excluded != "" {
			continue
		}
		if late[d.Scenario] == nil {
			late[d.Scenario] = map[string]string{}
			for _, f := range []stats.Figure{P50, P95, P99} {
				late[d.Scenario][f.Name] = m.late(d.Scenario, percentile(f.Name))
			}
		}
		s := stats.Sample{Cell: d.Scenario, Block: d.Block, Figures: map[string]float64{}, Late: late[d.Scenario]}
		s.Failed = d.failed()
		s.Bound = stats.Saturated(d.Load.DoneInWindow, d.Load.Offered) || stats.AtLeast(d.Censored, d.Load.Offered, headline)
		if response, ok := m.figures.rounds[d.Scenario][d.Block]; ok {
			for _, f := range []stats.Figure{P50, P95, P99} {
				us, _ := response.Quantile(percentile(f.Name))
				s.Figures[f.Name] = max(us, 1)
			}
		}
		if d.Seconds > 0 && d.Load.DoneInWindow > 0 {
			s.Figures[Throughput.Name] = float64(d.Load.DoneInWindow) / d.Seconds
			s.Figures[CPUPerRequest.Name] = d.Tenant.CPUSeconds / float64(d.Load.DoneInWindow)
			if d.Neighbour != nil && d.Neighbour.Work > 0 {
				s.Figures[Work.Name] = d.Neighbour.Work / d.Seconds
			}
		}
		if d.Seconds > 0 && d.Neighbour != nil {
			s.Figures[NeighbourCPUs.Name] = d.Neighbour.CPUSeconds / d.Seconds
		}
		if u := d.Tenant; u.Cycles > 0 && u.Instructions > 0 {
			s.Figures[IPC.Name] = u.Instructions / u.Cycles
			if u.References > 0 {
				s.Figures[CacheMisses.Name] = 1000 * u.Misses / u.Instructions
			}
		}
		all = append(all, s)
	}
	return all, m.undisturbed
}
