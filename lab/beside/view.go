package beside

import (
	"fmt"
	"slices"
	"strconv"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
)

// view is a result with its figures judged.
type view struct {
	*Experiment
	report.Judged
	measured    *lab.Measured
	undisturbed bool
}

func (x *Experiment) view() (*view, error) {
	m, err := lab.Measure(&lab.Result{Header: x.Header, Experiment: x.Experiment.base(x.design.name), Rounds: x.Rounds})
	if err != nil {
		return nil, err
	}
	d := x.design
	v := &view{Experiment: x, measured: m, Judged: report.Judged{Head: "cell", Reference: d.cells[0].name, Figures: d.figures, Skipped: x.Skipped}}
	v.Samples, v.undisturbed = m.Samples(v.Reference)
	var family []stats.Versus
	for i, c := range d.cells {
		v.Cells = append(v.Cells, report.JudgedCell{Name: c.name, Means: c.means})
		if i > 0 {
			family = append(family, stats.Versus{Cell: c.name, Against: v.Reference})
		}
	}
	v.Compared = stats.Compare(v.Samples, d.figures, append(family, d.versus...))
	return v, nil
}

// Judged is the table of the result.
func (x *Experiment) Judged() ([]report.Judged, error) {
	v, err := x.view()
	if err != nil {
		return nil, err
	}
	return []report.Judged{v.Judged}, nil
}

// Sheet is what the result comes to.
func (x *Experiment) Sheet() (*report.Sheet, error) {
	v, err := x.view()
	if err != nil {
		return nil, err
	}
	s := report.NewSheet(x.design.name, &x.Header)
	s.Answer = x.design.words(v)
	s.Fact("tenant", fmt.Sprintf("article, %.0f requests/s due (open loop), wants %.2f CPUs, %s working set", x.Setup.Rate, x.Setup.TenantCPUs, plain.Bytes(x.Experiment.WorkingSetBytes)))
	n := x.Setup.Neighbour
	s.Fact("neighbour", fmt.Sprintf("%s, %s, shares CPUs %s with the tenant", n.Kernel, plain.Count(n.Threads, "thread"), x.Setup.CPUs))
	s.Fact("rounds", fmt.Sprintf("%s × %s after %s to settle, seed %d", plain.Count(x.Experiment.Blocks, "block"), x.Experiment.Window, x.Experiment.Settle, x.Experiment.Seed))
	if x.Experiment.Weight > 0 {
		s.Fact("weight", fmt.Sprintf("the run had CPU weight %d together against all else on the host", x.Experiment.Weight))
	}
	v.others(s)
	if len(x.Rounds) > 0 {
		s.Add(report.Block{Table: v.Judged.Table()})
		if x.design.tables != nil {
			s.Add(x.design.tables(v)...)
		}
	}
	s.Page = func() report.Page {
		return report.Page{Plots: []report.Plot{v.Ratios("ratios", "How p99 compares", lab.P99)}, Details: []report.Block{v.Comparisons()}}
	}
	s.Document = v.Judged.Document(&x.Header, x.Experiment, s.Answer)
	return s, nil
}

// others says what others took, and what was done about it.
func (v *view) others(s *report.Sheet) {
	var took, all, lag float64
	for _, r := range v.Rounds {
		took += r.Host.Steal + r.Host.Foreign
		all += r.Seconds * float64(r.Host.SharedCPUs)
	}
	for _, d := range v.measured.Decoded {
		var parts []stats.Distribution
		parts = append(parts, d.Lag.Seconds...)
		us, _ := stats.Merge(parts...).Quantile(99)
		lag = max(lag, us)
	}
	if all == 0 {
		return
	}
	text := fmt.Sprintf("processes outside of the run and the hypervisor took %.1f %% of the shared CPUs", 100*took/all)
	if v.undisturbed {
		text += "; requests that they disturbed are left out"
	}
	s.Fact("others", text)
	s.Fact("generator", fmt.Sprintf("%s, own lag p99 at most %s in a round", v.Setup.GeneratorPolicy, lab.Latency(lag)))
}

// ran says whether a cell has figures.
func (v *view) ran(cell string) bool {
	return slices.ContainsFunc(v.Samples, func(s stats.Sample) bool { return s.Cell == cell })
}

// of is a figure of a cell against another; the zero value is not decided.
func (v *view) of(cell, against, figure string) stats.Compared {
	c, ok := stats.Of(v.Compared, cell, against, figure)
	if !ok {
		c = stats.Compared{Cell: cell, Against: against, Figure: figure}
		c.Verdict = stats.Invalid
	}
	return c
}

// p99 is that of the typical round in words.
func (v *view) p99(cell string) string {
	us, ok := stats.Typical(v.Samples, cell, lab.P99.Name)
	if !ok {
		return "unknown"
	}
	if v.bound(cell) {
		return "at least " + lab.Latency(us)
	}
	return lab.Latency(us)
}

func (v *view) bound(cell string) bool {
	n, k := 0, 0
	for _, s := range v.Samples {
		if s.Cell == cell {
			n++
			if s.Bound {
				k++
			}
		}
	}
	return stats.Mostly(k, n)
}

// nothing is what to say where the reference cannot carry a comparison; "" where it can.
func (v *view) nothing() string {
	switch {
	case !v.ran(v.Reference):
		return "Nothing can be said: no round of " + v.Reference + " counts."
	case v.bound(v.Reference):
		return "Nothing can be said: even " + v.Reference + " the tenant cannot keep up with its load. Offer less (--set demand=0.2), or run where the machine is not busy with something else."
	}
	return ""
}

// total sums the usage of a cell's rounds.
type total struct {
	seconds, tenant, neighbour, wait, throttled float64
	switches, involuntary, migrations           float64
	cycles, instructions, references, misses    float64
	shared                                      float64
}

func (v *view) total(cell string) (t total) {
	for _, r := range v.measured.Valid(cell) {
		t.seconds += r.Seconds
		t.tenant += r.Tenant.CPUSeconds
		t.wait += r.Tenant.WaitSeconds
		t.throttled += r.Tenant.ThrottledSeconds
		t.switches += float64(r.Tenant.Switches)
		t.involuntary += float64(r.Tenant.Involuntary)
		t.migrations += float64(r.Tenant.Migrations)
		t.cycles += r.Tenant.Cycles
		t.instructions += r.Tenant.Instructions
		t.references += r.Tenant.References
		t.misses += r.Tenant.Misses
		t.shared = float64(r.Host.SharedCPUs)
		if r.Neighbour != nil {
			t.neighbour += r.Neighbour.CPUSeconds
			t.throttled += r.Neighbour.ThrottledSeconds
		}
	}
	return t
}

// tail is a percentile of all a cell's requests together, and 100 their worst; "–" where
// fewer than ten are beyond it.
func (v *view) tail(cell string, p float64) string {
	var all []stats.Distribution
	for _, r := range lab.Responses(v.measured.Valid(cell)) {
		all = append(all, r.Seconds...)
	}
	merged := stats.Merge(all...)
	us, ok := merged.Quantile(p)
	if !ok || p < 100 && float64(merged.Requests())*(100-p) < 10*100 {
		return "–"
	}
	return lab.Latency(us)
}

// costs is the table of what each cell took.
func (v *view) costs() report.Block {
	var rows [][]string
	per := func(sum, seconds float64) string {
		if sum == 0 {
			return "–"
		}
		return strconv.FormatFloat(sum/seconds, 'f', 0, 64)
	}
	ratio := func(format string, of, to float64) string {
		if to == 0 {
			return "–"
		}
		return fmt.Sprintf(format, of/to)
	}
	for _, c := range v.Cells {
		t := v.total(c.Name)
		if t.seconds == 0 {
			continue
		}
		rows = append(rows, []string{
			c.Name, v.tail(c.Name, 99.9), v.tail(c.Name, 100), fmt.Sprintf("%.2f", t.tenant/t.seconds), fmt.Sprintf("%.2f", t.neighbour/t.seconds),
			per(t.switches, t.seconds), per(t.involuntary, t.seconds), per(t.migrations, t.seconds), per(1e3*t.wait, t.seconds), per(1e3*t.throttled, t.seconds),
			ratio("%.2f", t.instructions, t.cycles), ratio("%.0f", 100*(t.references-t.misses), t.references),
		})
	}
	table := report.NewTable([]string{"cell", "p99.9", "worst", "tenant CPUs", "neighbour CPUs", "switches/s", "unasked/s", "migrations/s", "run delay ms/s", "throttled ms/s", "IPC", "cache hits %"}, rows...)
	for i := range table.Columns {
		table.Columns[i].PageOnly = !slices.ContainsFunc(rows, func(row []string) bool { return row[i] != "–" })
	}
	table.Legend = "p99.9 and worst are of all requests together, disturbed ones included, and a few bad moments decide them; switches, those that it did not ask for, and migrations are the tenant's threads'; " +
		"run delay sums the time for which they were ready and waited. IPC (instructions per cycle) and cache hits are the tenant's, where the CPUs' counters count by group. " +
		"What nothing has is on the page alone: none of it, not shown by this kernel or machine, or too few requests."
	return report.Block{Heading: "What it took", Table: table}
}
