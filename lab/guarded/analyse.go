package guarded

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
)

const (
	// ahead is over how many bins from an instant on the p99 is taken: half a second.
	ahead = 10
	// back is up to which multiple of its p99 before the onset the tenant is well.
	back = 1.2
)

// Analysis is what a Result comes to.
type Analysis struct {
	Runs   []Judged `json:"runs,omitempty"` // as in the result
	Faults []Row    `json:"faults,omitempty"`
	// Matrix counts valid runs by fault and what was named.
	Matrix map[string]map[string]int `json:"matrix,omitempty"`
	// Steady is that of the comparison in steady state, Kept the neighbour's CPU
	// time in scenario Guarded as a share (0-1) of what the tenant leaves.
	Steady *lab.Analysis `json:"steady,omitempty"`
	Kept   *float64      `json:"kept,omitempty"`

	Measured *lab.Measured `json:"-"` // of Steady
}

// Judged is what a run comes to. Times are in seconds from the onset; those that
// are nil did not come.
type Judged struct {
	Fault   string `json:"fault"`
	Number  int    `json:"number"`
	Invalid string `json:"invalid,omitempty"`
	// Named is the guard's answer: the finding of its first remedy while the fault
	// lasted, after which nothing should be found any more. Without one it is the first of
	// the findings of a window that came up in most windows. "cpu: neighbour",
	// "own_load", or "none".
	Named string `json:"named"`
	Right bool   `json:"right"`
	// Detected is the first window with the right finding, Acted when the first
	// remedy was applied against who is to blame.
	Detected *float64 `json:"detected,omitempty"`
	Acted    *float64 `json:"acted,omitempty"`
	Recovery
	// Accused is in how many windows a group was accused that did nothing, Against
	// how often a remedy was applied against any group, Innocent against one that
	// did nothing.
	Accused  int `json:"accused"`
	Against  int `json:"against"`
	Innocent int `json:"innocent"`

	end float64 // when the fault was over
}

// Recovery is how the tenant fared from the onset to the end of a fault.
type Recovery struct {
	// Baseline is the p99 before the onset in microseconds, Worst the highest of
	// half a second afterwards as a multiple of it.
	Baseline float64 `json:"baseline"`
	Worst    float64 `json:"worst"`
	// Harmed says whether half a second during the fault was beyond 1.2 times the
	// baseline. Recovered is from when on the requests of half a second were within
	// it again after the first that were not; Well the share of the half seconds
	// from then on that were, Calm that of those before the onset.
	Harmed    bool     `json:"harmed"`
	Recovered *float64 `json:"recovered,omitempty"`
	Well      float64  `json:"well"`
	Calm      float64  `json:"calm"`
}

// Row is what the runs of a fault come to.
type Row struct {
	Fault   string       `json:"fault"`
	Skipped *lab.Skipped `json:"skipped,omitempty"`
	Runs    int          `json:"runs"`
	Valid   int          `json:"valid"`
	Right   int          `json:"right"`
	Harmed  int          `json:"harmed"`
	// Against and Innocent sum those of the runs.
	Against   int    `json:"against"`
	Innocent  int    `json:"innocent"`
	Detected  Spread `json:"detected"`
	Acted     Spread `json:"acted"`
	Recovered Spread `json:"recovered"` // of the runs that were harmed
	// Pooled is when the p99 of all valid runs together was back, by the same rule.
	Pooled *float64 `json:"pooled,omitempty"`
	// Well and Calm are means of the runs'.
	Well float64 `json:"well"`
	Calm float64 `json:"calm"`
}

// Spread is the median and range of the runs in which something came.
type Spread struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
}

func spread(values []*float64) Spread {
	var known []float64
	for _, v := range values {
		if v != nil {
			known = append(known, *v)
		}
	}
	if len(known) == 0 {
		return Spread{}
	}
	return Spread{N: len(known), Median: stats.Median(known), Least: slices.Min(known), Most: slices.Max(known)}
}

// Analyse computes what a result comes to. It is pure.
func Analyse(r *Result) (*Analysis, error) {
	a := &Analysis{Matrix: map[string]map[string]int{}}
	for i := range r.Runs {
		j := judge(&r.Runs[i])
		a.Runs = append(a.Runs, j)
		if j.Invalid == "" {
			if a.Matrix[j.Fault] == nil {
				a.Matrix[j.Fault] = map[string]int{}
			}
			a.Matrix[j.Fault][j.Named]++
		}
	}
	for _, name := range r.Experiment.Faults {
		a.Faults = append(a.Faults, a.row(r, name))
	}
	if r.Steady != nil && len(r.Steady.Rounds) > 0 {
		m, err := lab.Measure(r.Steady)
		if err != nil {
			return nil, fmt.Errorf("steady state: %w", err)
		}
		a.Measured, a.Steady = m, m.Analyse()
		a.Kept = kept(a.Steady, r.Steady)
	}
	return a, nil
}

// kept is the neighbour's CPU time in scenario Guarded, of what the tenant leaves.
func kept(a *lab.Analysis, r *lab.Result) *float64 {
	i := slices.IndexFunc(a.Rows, func(row lab.Row) bool { return row.Scenario == Guarded && row.Valid > 0 })
	if i < 0 {
		return nil
	}
	shared := 0
	for _, round := range r.Rounds {
		shared = max(shared, round.Host.SharedCPUs)
	}
	share := a.Rows[i].NeighbourCPUs / (float64(shared) - a.Rows[i].TenantCPUs)
	return &share
}

// curve is the latencies of a run by bin.
type curve struct {
	from float64 // of the first bin, from the onset
	bins []Bin
}

func (r *Trial) curve() curve { return curve{r.BinsFrom, r.Bins} }

// at is the start of a bin.
func (c curve) at(i int) float64 { return c.from + float64(i)*binLength.Seconds() }

// between is the bins that lie within two instants.
func (c curve) between(from, to float64) (first, last int) {
	const slack = 1e-9
	first = max(0, int(math.Ceil((from-c.from)/binLength.Seconds()-slack)))
	last = min(len(c.bins), int(math.Floor((to-c.from)/binLength.Seconds()+slack)))
	return min(first, last), last
}

// p99 is that of the bins from first up to last; 0 if nothing was due.
func (c curve) p99(first, last int) float64 {
	var all []int64
	for _, bin := range c.bins[first:last] {
		all = append(all, bin.Response...)
	}
	return p99(all)
}

// p99 is the 99th percentile by nearest rank. It sorts.
func p99(values []int64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return float64(values[(99*len(values)+99)/100-1])
}

func (c curve) recover(end float64) Recovery {
	var r Recovery
	first, onset := c.between(math.Inf(-1), 0)
	if first == onset {
		return r
	}
	r.Baseline = c.p99(first, onset)
	r.Calm = c.within(back*r.Baseline, first, onset)
	start, last := c.between(0, end)
	for i := start; i+ahead <= last; i++ {
		v := c.p99(i, i+ahead)
		r.Worst = max(r.Worst, v/r.Baseline)
		switch {
		case v > back*r.Baseline:
			r.Harmed = true
		case r.Harmed && r.Recovered == nil:
			at := c.at(i)
			r.Recovered, r.Well = &at, c.within(back*r.Baseline, i, last)
		}
	}
	return r
}

// within is the share of the half seconds between two bins whose p99 is at most a limit.
func (c curve) within(limit float64, first, last int) float64 {
	n, of := 0, 0
	for i := first; i+ahead <= last; i++ {
		if of++; c.p99(i, i+ahead) <= limit {
			n++
		}
	}
	return float64(n) / float64(max(1, of))
}

// judge says what a run comes to.
func judge(r *Trial) Judged {
	fault, _ := FaultNamed(r.Fault)
	j := Judged{Fault: r.Fault, Number: r.Number, Invalid: r.Invalid, Named: named(r), Recovery: r.curve().recover(r.End), end: r.End}
	if ok, why := stats.LagGate(r.LagP99, j.Baseline); j.Invalid == "" && !ok {
		j.Invalid = why
	}
	j.Right = fault.right(j.Named)
	for _, f := range r.Findings {
		if f.At > 0 && f.At <= r.End && fault.right(f.answer()) && j.Detected == nil {
			j.Detected = &f.At
		}
		if f.Suspect != "" && !fault.guilty(f.Suspect) {
			j.Accused++
		}
	}
	for _, e := range r.Events {
		if e.Outcome != control.Applied || e.Action == nil || e.Action.Suspect == "" {
			continue
		}
		j.Against++
		if !fault.guilty(e.Action.Suspect) || e.At <= 0 {
			j.Innocent++
		} else if j.Acted == nil {
			j.Acted = &e.At
		}
	}
	return j
}

// none is named without a finding.
const none = "none"

// answer is the right one.
func (f Fault) answer() string {
	switch {
	case f.None:
		return none
	case f.Decoy:
		return f.Truth.String()
	}
	return f.Truth.String() + ": " + f.antagonists()[0]
}

func (f Finding) answer() string {
	if f.Suspect == "" {
		return f.Resource.String()
	}
	return f.Resource.String() + ": " + f.Suspect
}

// named is the answer of a run.
func named(r *Trial) string {
	for _, e := range r.Events {
		if e.Outcome == control.Applied && e.At > 0 && e.At <= r.End {
			return Finding{Resource: e.Resource, Suspect: e.Suspect}.answer()
		}
	}
	counts := map[string]int{}
	var answers []string // each once, the first first
	last := math.Inf(-1)
	for _, f := range r.Findings {
		if f.At <= 0 || f.At > r.End || f.At == last {
			continue // before or after it, or not the first of its window
		}
		last = f.At
		if counts[f.answer()]++; counts[f.answer()] == 1 {
			answers = append(answers, f.answer())
		}
	}
	if len(answers) == 0 {
		return none
	}
	return slices.MaxFunc(answers, func(a, b string) int { return cmp.Compare(counts[a], counts[b]) })
}

func (a *Analysis) row(r *Result, fault string) Row {
	row := Row{Fault: fault}
	for i, s := range r.Skipped {
		if s.Scenario == fault {
			row.Skipped = &r.Skipped[i]
		}
	}
	var detected, acted, recovered []*float64
	var pool []curve
	end := math.Inf(1)
	for i, j := range a.Runs {
		if j.Fault != fault {
			continue
		}
		row.Runs++
		if j.Invalid != "" {
			continue
		}
		row.Valid++
		row.Against += j.Against
		row.Innocent += j.Innocent
		if j.Right {
			row.Right++
		}
		if j.Harmed {
			row.Harmed++
		}
		detected, acted, recovered = append(detected, j.Detected), append(acted, j.Acted), append(recovered, j.Recovered)
		row.Well += j.Well
		row.Calm += j.Calm
		pool, end = append(pool, r.Runs[i].curve()), min(end, r.Runs[i].End)
	}
	if row.Valid == 0 {
		return row
	}
	row.Well /= float64(row.Valid)
	row.Calm /= float64(row.Valid)
	row.Detected, row.Acted, row.Recovered = spread(detected), spread(acted), spread(recovered)
	row.Pooled = merge(pool).recover(end).Recovered
	return row
}

// merge pools the requests of several runs by the time from their onsets, to half a
// bin.
func merge(curves []curve) curve {
	from, to := math.Inf(-1), math.Inf(1)
	for _, c := range curves {
		from, to = max(from, c.from), min(to, c.at(len(c.bins)))
	}
	out := curve{from: from}
	for i := range max(0, int((to-from)/binLength.Seconds()+1e-9)) {
		var all []int64
		for _, c := range curves {
			n := int(math.Round((from-c.from)/binLength.Seconds())) + i
			if n < len(c.bins) {
				all = append(all, c.bins[n].Response...)
			}
		}
		out.bins = append(out.bins, Bin{Response: all})
	}
	return out
}

// due are the times that a run should have, by their names in a comparison, in seconds from the onset. What did not come
// took at least until the end of the fault, which stands for it: nothing of what is no neighbour's work, nor of quiet,
// and no recovery of a tenant that was not harmed, was due.
func (j Judged) due() map[string]float64 {
	fault, _ := FaultNamed(j.Fault)
	all := map[string]float64{}
	for name, v := range map[string]*float64{"detected": j.Detected, "acted": j.Acted, "recovered": j.Recovered} {
		switch {
		case v != nil:
			all[name] = *v
		case !fault.Decoy && !fault.None && (name != "recovered" || j.Harmed):
			all[name] = j.end
		}
	}
	return all
}

// Judged are the faults by what the guard did, late or not at all, and the scenarios of steady state.
func (a *Analysis) Judged() []report.Judged {
	seconds := func(name string) stats.Figure { return stats.Figure{Name: name, Unit: "s"} }
	faults := report.Judged{Name: "faults", Head: "fault", Figures: []stats.Figure{seconds("detected"), seconds("acted"), seconds("recovered"), {Name: "worst"}}}
	for _, row := range a.Faults {
		faults.Cells = append(faults.Cells, report.JudgedCell{Name: row.Fault})
	}
	for _, run := range a.Runs {
		if run.Invalid != "" {
			continue
		}
		s := stats.Sample{Cell: run.Fault, Block: run.Number, Figures: run.due()}
		s.Figures["worst"] = run.Worst
		faults.Samples = append(faults.Samples, s)
	}
	all := []report.Judged{faults}
	if a.Measured != nil {
		steady := report.JudgedIsolation(a.Measured)
		steady.Name = "steady state"
		all = append(all, steady)
	}
	return all
}
