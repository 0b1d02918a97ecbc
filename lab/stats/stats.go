// Package stats judges the lab's numbers. It is pure: figures in, intervals and
// verdicts out. It does no I/O, reads no clock and draws no random number but the
// order of rounds, so the same result file always gives the same report.
//
// The round is the unit of replication, not the request: requests inside one
// stall are not independent, and a thousand of them are worth about as much as
// one (docs/statistics.md has the method and what simulation says of it).
package stats

// Round is one round of one scenario: the latency of each of its seconds.
// Rounds of two scenarios at the same index belong to one block.
type Round struct {
	Seconds []Distribution
}

// Requests is how many requests the round recorded.
func (r Round) Requests() int64 {
	var n int64
	for _, s := range r.Seconds {
		n += s.Requests()
	}
	return n
}

// Interval is an estimate with its confidence interval. The limits can never
// be NaN; an Interval of no data is all zero.
type Interval struct {
	Estimate float64 `json:"estimate"`
	Low      float64 `json:"low"`
	High     float64 `json:"high"`
	// Confidence is the nominal coverage, e.g. 0.95.
	Confidence float64 `json:"confidence"`
	// Rounds is how many blocks it rests on. Where they are too few for an
	// interval, Low and High equal Estimate.
	Rounds int `json:"rounds,omitempty"`
}

// confidence is the nominal coverage of the intervals that are printed.
const confidence = 0.95

// Known says whether there is an interval.
func (i Interval) Known() bool { return i.Low < i.High }

// Verdict is what a comparison comes to.
type Verdict string

// The verdicts.
const (
	Better       Verdict = "better"
	Worse        Verdict = "worse"
	Equivalent   Verdict = "equivalent"
	Inconclusive Verdict = "inconclusive"
	Invalid      Verdict = "invalid"
)

// Turned is the verdict of the other side: what is worse than another has that one be better.
func (v Verdict) Turned() Verdict {
	switch v {
	case Worse:
		return Better
	case Better:
		return Worse
	}
	return v
}

// Against says the verdict in words: "worse than alone", "as good as alone".
func (v Verdict) Against(other string) string {
	switch v {
	case Better, Worse:
		return string(v) + " than " + other
	case Equivalent:
		return "as good as " + other
	case Inconclusive:
		return "not decided"
	}
	return string(v)
}
