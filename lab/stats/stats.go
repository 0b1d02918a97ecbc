// Package stats judges the lab's numbers. It is pure: histograms in, intervals
// and verdicts out.
//
// The round is the unit of replication, not the request: requests inside one
// stall are not independent (see docs/lab.md).
package stats

import "github.com/HdrHistogram/hdrhistogram-go"

// Round is one round of one scenario: a histogram per second, of latency in
// microseconds. Rounds of two scenarios at the same index belong to one block.
type Round struct {
	Seconds []*hdrhistogram.Histogram
}

// Interval is an estimate with its confidence interval.
type Interval struct {
	Estimate float64 `json:"estimate"`
	Low      float64 `json:"low"`
	High     float64 `json:"high"`
	// Confidence is the nominal coverage, e.g. 0.95.
	Confidence float64 `json:"confidence"`
}

// Verdict is what a comparison with the baseline comes to.
type Verdict string

// The verdicts.
const (
	Better       Verdict = "better"
	Worse        Verdict = "worse"
	Equivalent   Verdict = "equivalent"
	Inconclusive Verdict = "inconclusive"
	Invalid      Verdict = "invalid"
)
