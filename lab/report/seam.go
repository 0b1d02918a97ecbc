package report

import "berth.dev/berth/lab/stats"

func quantile(rounds []stats.Round, p float64) stats.Interval {
	var e []float64
	for _, r := range rounds {
		for _, s := range r.Seconds {
			if q, ok := s.Quantile(p); ok {
				e = append(e, q)
			}
		}
	}
	if len(e) == 0 {
		return stats.Interval{}
	}
	lo, hi, sum := e[0], e[0], 0.0
	for _, v := range e {
		lo, hi, sum = min(lo, v), max(hi, v), sum+v
	}
	return stats.Interval{Estimate: sum / float64(len(e)), Low: lo, High: hi, Confidence: 0.95, Rounds: len(rounds)}
}
