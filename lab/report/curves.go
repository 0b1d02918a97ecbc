package report

import (
	"math"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// curve is one scenario's response time by percentile.
type curve struct {
	row    lab.Row
	points []curvePoint
}

// curvePoint is one percentile, in microseconds with its interval.
type curvePoint struct {
	p float64
	stats.Interval
	atLeast bool // requests that never finished reach into it
}

// curvePercentiles are those that curves are drawn through: even on the axis
// of nines, and the ones with names.
var curvePercentiles = []float64{
	5, 10, 20, 30, 40, 50, 60, 70, 75, 80, 85, 90, 92.5, 95, 96, 97, 98, 98.5,
	99, 99.3, 99.5, 99.7, 99.8, 99.9, 99.95, 99.99,
}

// minTail is how many requests must lie above a percentile for a curve to be
// drawn that far.
const minTail = 30

// bandResamples is enough for a band that is looked at; the table's intervals
// are the analysis's.
const bandResamples = 500

// curves are computed for every scenario that has valid rounds. A curve stops
// where the sample does not support the next percentile.
func curves(m *lab.Measured, a *lab.Analysis) []curve {
	var out []curve
	for _, row := range a.Rows {
		rounds := lab.Responses(m.Valid(row.Scenario))
		ps := drawable(rounds, row)
		c := curve{row: row}
		for i, iv := range stats.Quantiles(rounds, ps, stats.Options{Resamples: bandResamples}) {
			if iv.Estimate > 0 {
				c.points = append(c.points, curvePoint{ps[i], iv, row.Saturated || stats.AtLeast(row.Censored, row.Requests, ps[i])})
			}
		}
		if len(c.points) > 0 {
			out = append(out, c)
		}
	}
	return out
}

// drawable are the percentiles that the sample supports.
func drawable(rounds []stats.Round, row lab.Row) []float64 {
	var total int64
	for _, r := range rounds {
		total += r.Requests()
	}
	limit := unsupportedFrom(row)
	for i, p := range curvePercentiles {
		supported, _ := stats.Supported(rounds, p)
		if p >= limit || !supported || float64(total)*(1-p/100) < minTail {
			return curvePercentiles[:i]
		}
	}
	return curvePercentiles
}

// unsupportedFrom is the lowest percentile that the analysis refused to give.
func unsupportedFrom(row lab.Row) float64 {
	limit := math.Inf(1)
	for _, q := range row.Quantiles {
		if q.Reason != "" {
			limit = min(limit, q.P)
		}
	}
	return limit
}

// nines is a percentile's place on the axis: 0, 1 for p90, 2 for p99.
func nines(p float64) float64 { return -math.Log10(1 - p/100) }
