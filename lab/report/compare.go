package report

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// ComparisonSchema names the version of a comparison's JSON form.
const ComparisonSchema = "berth.dev/lab-compare/v1"

// Side is one of the two results that are compared.
type Side struct {
	Name     string // a file, for the reader
	Result   *lab.Measured
	Analysis *lab.Analysis
}

// Comparison is what changed from result A to result B.
type Comparison struct {
	Schema string         `json:"schema"` // "berth.dev/lab-compare/v1"
	A      ComparisonSide `json:"a"`
	B      ComparisonSide `json:"b"`
	// Differences are conditions that were not the same: each may explain a change.
	Differences []Difference `json:"differences,omitempty"`
	// Missing are scenarios that only one of the two measured.
	Missing []string `json:"missing,omitempty"`
	// Saturated are the sides ("A", "B") whose baseline is a lower bound itself:
	// ratios to it mean nothing, and no verdict is given.
	Saturated []string `json:"saturated,omitempty"`
	Rows      []Change `json:"rows"`
}

// ComparisonSide says which result a side is.
type ComparisonSide struct {
	Name     string      `json:"name"`
	Started  time.Time   `json:"started"`
	Program  lab.Program `json:"program"`
	Complete bool        `json:"complete"`
}

// Difference is a condition that was not the same in A and B.
type Difference struct {
	What string `json:"what"`
	A    string `json:"a"`
	B    string `json:"b"`
}

// Change is what became of one percentile of one scenario.
type Change struct {
	Scenario string  `json:"scenario"`
	P        float64 `json:"p"`
	// LatencyA and LatencyB are those of the typical round in microseconds; Latency is
	// B's divided by A's. It takes in whatever changed, the machine and its load included.
	LatencyA stats.Interval `json:"latencyA"`
	LatencyB stats.Interval `json:"latencyB"`
	Latency  stats.Interval `json:"latency"`
	// RatioA and RatioB are relative to the baseline of their own run, and Ratio
	// is B's divided by A's: what changed of the protection. Nil for the baseline.
	RatioA *stats.Interval `json:"ratioA,omitempty"`
	RatioB *stats.Interval `json:"ratioB,omitempty"`
	Ratio  *stats.Interval `json:"ratio,omitempty"`
	// Verdict is about Ratio: better or worse in B than in A. Empty for the baseline.
	Verdict stats.Verdict `json:"verdict,omitempty"`
	// AtLeastA and AtLeastB: the side's figures are lower bounds.
	AtLeastA bool `json:"atLeastA,omitempty"`
	AtLeastB bool `json:"atLeastB,omitempty"`
}

// Compare says what changed from a to b. It is an error if they have no
// scenario in common; any other difference is listed for the reader to weigh.
func Compare(a, b Side) (*Comparison, error) {
	c := &Comparison{
		Schema: ComparisonSchema, A: sideOf(a), B: sideOf(b),
		Differences: differences(a.Result.Result, b.Result.Result),
	}
	rowsB := map[string]lab.Row{}
	for _, row := range b.Analysis.Rows {
		rowsB[row.Scenario] = row
	}
	for _, row := range a.Analysis.Rows {
		other := rowsB[row.Scenario]
		delete(rowsB, row.Scenario)
		if row.Valid == 0 || other.Valid == 0 {
			if row.Valid > 0 || other.Valid > 0 {
				c.Missing = append(c.Missing, row.Scenario)
			}
			continue
		}
		c.Rows = append(c.Rows, changes(row, other, a.Result, b.Result)...)
	}
	for _, row := range b.Analysis.Rows {
		if _, only := rowsB[row.Scenario]; only && row.Valid > 0 {
			c.Missing = append(c.Missing, row.Scenario)
		}
	}
	if len(c.Rows) == 0 {
		return nil, fmt.Errorf("compare %s with %s: %w", a.Name, b.Name, errNothingShared)
	}
	if a.Analysis.BaselineBound() {
		c.Saturated = append(c.Saturated, "A")
	}
	if b.Analysis.BaselineBound() {
		c.Saturated = append(c.Saturated, "B")
	}
	c.judge(func(row Change, confidence float64) stats.Interval {
		return quotient(b.Result.Ratio(row.Scenario, row.P, confidence), a.Result.Ratio(row.Scenario, row.P, confidence))
	})
	return c, nil
}

var errNothingShared = errors.New("no scenario has valid rounds in both")

func sideOf(s Side) ComparisonSide {
	return ComparisonSide{Name: s.Name, Started: s.Result.Started, Program: s.Result.Program, Complete: s.Result.Complete}
}

// changes are one scenario's, for each percentile that both support.
func changes(a, b lab.Row, ma, mb *lab.Measured) []Change {
	var out []Change
	for _, q := range a.Quantiles {
		qa, okA := quantileOf(a, q.P)
		qb, okB := quantileOf(b, q.P)
		if !okA || !okB || qa.Typical == nil || qb.Typical == nil {
			continue
		}
		c := Change{
			Scenario: a.Scenario, P: q.P, LatencyA: *qa.Typical, LatencyB: *qb.Typical, Latency: quotient(*qb.Typical, *qa.Typical),
			AtLeastA: qa.AtLeast || a.Saturated, AtLeastB: qb.AtLeast || b.Saturated,
		}
		if a.Scenario != lab.Baseline {
			ra, rb := ma.Ratio(a.Scenario, q.P, confidence), mb.Ratio(a.Scenario, q.P, confidence)
			if ra.Estimate > 0 && rb.Estimate > 0 {
				change := quotient(rb, ra)
				c.RatioA, c.RatioB, c.Ratio = &ra, &rb, &change
			}
		}
		out = append(out, c)
	}
	return out
}

// confidence of the intervals that are printed.
const confidence = 0.95

// quotient is b/a of two independent estimates. Its limits come from those of
// the two on the log scale, added in quadrature on each side (Zou and Donner
// 2008, "method of variance estimates recovery").
func quotient(b, a stats.Interval) stats.Interval {
	if !(a.Estimate > 0 && b.Estimate > 0) {
		return stats.Interval{}
	}
	out := stats.Interval{Estimate: b.Estimate / a.Estimate, Confidence: min(a.Confidence, b.Confidence), Rounds: min(a.Rounds, b.Rounds)}
	if !a.Known() || !b.Known() {
		out.Low, out.High = out.Estimate, out.Estimate
		return out
	}
	down := math.Hypot(logRatio(b.Estimate, b.Low), logRatio(a.High, a.Estimate))
	up := math.Hypot(logRatio(b.High, b.Estimate), logRatio(a.Estimate, a.Low))
	out.Low, out.High = out.Estimate*math.Exp(-down), out.Estimate*math.Exp(up)
	return out
}

// logRatio is the logarithm of x/y, 0 if either is not positive.
func logRatio(x, y float64) float64 {
	if !(x > 0 && y > 0) {
		return 0
	}
	return math.Log(x / y)
}

// judge gives every ratio its verdict: worse or better where the interval at 5 % divided
// by the number of comparisons excludes 1, and the estimate is beyond the margin;
// equivalent where it lies within the margin. at is a row's Ratio with another confidence.
func (c *Comparison) judge(at func(row Change, confidence float64) stats.Interval) {
	n := 0
	for _, row := range c.Rows {
		if row.Ratio != nil {
			n++
		}
	}
	for i := range c.Rows {
		row := &c.Rows[i]
		if row.Ratio == nil {
			continue
		}
		rate := (1 - confidence) / float64(n)
		two, one := at(*row, 1-rate), at(*row, 1-2*rate)
		row.Verdict = stats.Inconclusive
		switch {
		case !row.Ratio.Known():
		case two.Known() && two.Low > 1 && row.Ratio.Estimate > 1+stats.Margin:
			row.Verdict = stats.Worse
		case two.Known() && two.High < 1 && row.Ratio.Estimate < 1-stats.Margin:
			row.Verdict = stats.Better
		case one.Known() && one.Low > 1-stats.Margin && one.High < 1+stats.Margin:
			row.Verdict = stats.Equivalent
		}
		// A lower bound supports only the verdict that a larger value would too.
		switch {
		case len(c.Saturated) > 0,
			row.AtLeastA && row.AtLeastB,
			row.AtLeastB && row.Verdict != stats.Worse,
			row.AtLeastA && row.Verdict != stats.Better:
			row.Verdict = stats.Inconclusive
		}
	}
}

// differences lists what was not the same. Figures that are measured or
// calibrated count as the same within a few percent.
func differences(a, b *lab.Result) []Difference {
	var out []Difference
	add := func(what, x, y string) {
		if x != y {
			out = append(out, Difference{what, orUnknown(x), orUnknown(y)})
		}
	}
	near := func(what string, x, y, tolerance float64, format func(float64) string) {
		if math.Abs(x-y) > tolerance*max(math.Abs(x), math.Abs(y)) {
			add(what, format(x), format(y))
		}
	}
	ea, eb, ua, ub := a.Experiment, b.Experiment, a.Setup, b.Setup
	add("experiment", ea.Name, eb.Name)
	ma, mb := a.Host, b.Host
	ka, kb := ma.Kernel, mb.Kernel
	add("machine", machineIdentity(ma), machineIdentity(mb))
	add("kernel", ka, kb)
	add("frequency governor", ma.Governor, mb.Governor)
	add("backend", ua.Backend, ub.Backend)
	add("shared CPUs", ua.CPUs, ub.CPUs)
	add("generator", dotted(ua.GeneratorPolicy, ua.GeneratorCPUs), dotted(ub.GeneratorPolicy, ub.GeneratorCPUs))
	near("rate, requests/s", ua.Rate, ub.Rate, 0.01, digits3)
	add("tenant", ea.Tenant.String(), eb.Tenant.String())
	near("tenant's CPU time per request", float64(ua.CPUPerRequest), float64(ub.CPUPerRequest), 0.05, func(v float64) string { return span(time.Duration(v)) })
	near("tenant's demand, CPUs", ua.TenantCPUs, ub.TenantCPUs, 0.05, digits3)
	add("tenant's working set", plain.Bytes(ea.Tenant.WorkingSetBytes), plain.Bytes(eb.Tenant.WorkingSetBytes))
	na, nb := neighbour(a), neighbour(b)
	add("neighbour", na.Kernel, nb.Kernel)
	add("neighbour's threads", strconv.Itoa(na.Threads), strconv.Itoa(nb.Threads))
	add("neighbour's intensity, %", strconv.Itoa(na.Intensity), strconv.Itoa(nb.Intensity))
	add("neighbour's bytes per thread", plain.Bytes(na.Bytes), plain.Bytes(nb.Bytes))
	add("window of a round", span(time.Duration(ea.Window)), span(time.Duration(eb.Window)))
	add("settling", span(time.Duration(ea.Settle)), span(time.Duration(eb.Settle)))
	for _, s := range ea.Scenarios {
		for _, o := range eb.Scenarios {
			if s.Name == o.Name {
				add("what "+s.Name+" does", isolationText(s), isolationText(o))
			}
		}
	}
	return out
}

// machineIdentity is what makes two hosts the same for a comparison; a host
// that was renamed or has new memory is the same.
func machineIdentity(h lab.Host) string {
	if h.Machine == nil {
		return ""
	}
	return dotted(h.Machine.Model, shape(h.Machine), h.Hypervisor)
}

func isolationText(s lab.Scenario) string {
	i := s.Isolation
	var parts []string
	if !s.Neighbour {
		parts = append(parts, "no neighbour")
	}
	for _, value := range []struct {
		name string
		n    int64
	}{
		{"weight", int64(i.Weight)}, {"memory max", i.MemoryMax}, {"memory high", i.MemoryHigh}, {"memory low", i.MemoryLow},
		{"I/O weight", int64(i.IOWeight)}, {"I/O max", i.IOMax},
	} {
		if value.n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", value.name, value.n))
		}
	}
	for _, flag := range []struct {
		on   bool
		word string
	}{{i.Idle, "idle"}, {i.Cap, "cap"}, {i.Split, "split"}} {
		if flag.on {
			parts = append(parts, flag.word)
		}
	}
	if i.Scheduler != "" {
		parts = append(parts, "scheduler "+i.Scheduler)
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}
