package stats

import "fmt"

// LagGate says whether the generator's own lag is small against the response
// time at the same quantile (both in microseconds, of one round), and if not,
// why, as a clause. Call it for each quantile that is reported.
//
// Lag is part of the response time, so a quantile may be too long by up to the
// lag. The limit is a tenth of the response, the Margin of the verdicts. Below
// 500 µs of response time it is 50 µs, which is what waking a real-time process
// costs, but never more than a fifth.
func LagGate(lag, response float64) (ok bool, why string) {
	limit := max(response/10, min(50, response/5))
	if lag <= limit {
		return true, ""
	}
	return false, fmt.Sprintf("generator lag of %.0f µs is not small against a response of %.0f µs (limit %.0f µs)", lag, response, limit)
}

// Saturated says whether responses came more slowly than requests were due:
// fewer than 95 % of the offered number came within the window. Latency then
// grows with the length of the round. The other 5 % allow for the requests
// under way when the window ends and for the scatter of arrivals.
func Saturated(doneInWindow, offered int) bool {
	return float64(doneInWindow) < 0.95*float64(offered)
}

// HostGate says whether the host was the experiment's own during a round: steal
// is the CPU time taken by the hypervisor and foreign that used by other
// processes, each as a share (0-1) of all the host's CPU time. More than 1 % of
// steal or 5 % of foreign load is worth a warning, with the clause that says so.
func HostGate(steal, foreign float64) (ok bool, why string) {
	switch {
	case steal > 0.01 && foreign > 0.05:
		return false, fmt.Sprintf("the hypervisor took %.1f %% and other processes %.1f %% of the CPU time", 100*steal, 100*foreign)
	case steal > 0.01:
		return false, fmt.Sprintf("the hypervisor took %.1f %% of the CPU time", 100*steal)
	case foreign > 0.05:
		return false, fmt.Sprintf("other processes used %.1f %% of the CPU time", 100*foreign)
	}
	return true, ""
}
