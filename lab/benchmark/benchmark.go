// Package benchmark measures what a neighbour does to the figures that a benchmark of the
// user's own prints, and what each isolation strategy gives back: the isolation experiment
// with the benchmark in the generator's place.
//
// The benchmark loads the tenant as it likes, once a round, in the tenant's place. Its report
// is read, not its requests: a round is one value of each figure that it prints.
package benchmark

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/program"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
	"berth.dev/berth/machine"
)

// Schema names the version of the result file's format.
const Schema = "berth.dev/lab-benchmark/v1"

// Result is what a run measured: as JSON, the stored result.
type Result struct {
	lab.Header
	Experiment lab.Spec    `json:"experiment"`
	Rounds     []lab.Round `json:"rounds"`
}

// Default is a result to be filled by Run: Redis, and the benchmark that it brings along.
func Default() *Result {
	e := lab.IsolationSpec()
	e.Tenant.Service, e.Tenant.Exec, e.Tenant.Figures = "redis", "redis-benchmark -p {port} -t get -c 16 -n 20000 --csv", "redis-benchmark"
	return Of(e)
}

// Of is a result to be filled by Run, of the isolation experiment's settings: as many blocks as
// fit into its time.
func Of(e lab.Spec) *Result {
	e.Name, e.Preset, e.Look, e.Blocks = "benchmark", "", 0, lab.MaxBlocks
	e.Settle, e.Window = lab.Duration(100*time.Millisecond), lab.Duration(time.Second)
	if e.For == 0 {
		e.For = lab.Duration(2 * time.Minute)
	}
	return &Result{Header: lab.Header{Schema: Schema}, Experiment: e, Rounds: []lab.Round{}}
}

// Spec is what a data file sets.
func (r *Result) Spec() any { return &r.Experiment }

// Validate says what is wrong with the settings, naming the field.
func (r *Result) Validate() error {
	if r.Experiment.Tenant.Figures == "" {
		_, err := program.FormatNamed("")
		return fmt.Errorf("experiment: %w", err)
	}
	return r.Experiment.Validate()
}

// Length is about how long the run takes: how long one of the benchmark does is not known.
func (r *Result) Length(*machine.Machine) time.Duration { return r.Experiment.Length() }

// Run measures, or goes on with a run that was loaded.
func (r *Result) Run(ctx context.Context, opt lab.Options) error {
	began := time.Now()
	if !r.Started.IsZero() && r.Complete {
		return errors.New("resume: the run is complete")
	}
	study := lab.Study{
		Base: &r.Experiment, Header: &r.Header, Result: r, Rounds: &r.Rounds,
		Cells: func(b *lab.Testbed) ([]lab.Cell, error) {
			r.Experiment.Blocks = min(r.Experiment.Blocks, r.blocks())
			return b.Scenarios(r.Experiment), nil
		},
		Blocks: func(blocks int) { r.Experiment.Blocks = blocks },
	}
	if r.Experiment.For > 0 {
		study.Ends = began.Add(time.Duration(r.Experiment.For))
	}
	return study.Run(ctx, opt)
}

// blocks are as many as may fit into the time for them.
func (r *Result) blocks() int {
	e := r.Experiment
	block := time.Duration(len(e.Scenarios)) * time.Duration(e.Settle+max(r.Setup.BenchmarkTook, lab.Duration(time.Millisecond)))
	if e.For == 0 {
		return lab.MaxBlocks
	}
	return max(2, int(time.Duration(e.For)/block))
}

// figures are those that a report may have, in the order of the table.
func figures() []stats.Figure {
	return []stats.Figure{
		lab.P50, {Name: "p90", Unit: stats.Microseconds}, lab.P95, lab.P99, {Name: "p99.9", Unit: stats.Microseconds},
		{Name: program.Mean, Unit: stats.Microseconds}, lab.Throughput,
	}
}

// judged is the table: the figures that the report has, and the neighbour's work.
func (r *Result) judged() report.Judged {
	e := r.Experiment
	j := report.Judged{Head: "scenario", Reference: lab.Baseline, Again: lab.BaselineAgain, Skipped: r.Skipped}
	for _, round := range r.Rounds {
		s := stats.Sample{Cell: round.Scenario, Block: round.Block, Figures: map[string]float64{}, Bound: round.Told[program.Failed] > 0, Failed: round.Told[program.Failed] > 0}
		for _, f := range figures() {
			if v, ok := round.Told[f.Name]; ok {
				s.Figures[f.Name] = v
			}
		}
		if n := round.Neighbour; n != nil && n.Work > 0 && round.Seconds > 0 {
			s.Figures[lab.Work.Name] = n.Work / round.Seconds
		}
		j.Samples = append(j.Samples, s)
	}
	for _, f := range append(figures(), lab.Work) {
		if slices.ContainsFunc(j.Samples, func(s stats.Sample) bool { _, ok := s.Figures[f.Name]; return ok }) {
			j.Figures = append(j.Figures, f)
		}
	}
	var family []stats.Versus
	for _, s := range e.Scenarios {
		j.Cells = append(j.Cells, report.JudgedCell{Name: s.Name, Means: s.Means})
		if s.Name != lab.Baseline {
			family = append(family, j.Versus(s.Name))
		}
		if s.Neighbour && s.Name != lab.Unisolated {
			family = append(family, stats.Versus{Cell: s.Name, Against: lab.Unisolated})
		}
	}
	j.Compared = stats.Compare(j.Samples, j.Figures, family)
	return j
}

// Judged is the table of the result.
func (r *Result) Judged() ([]report.Judged, error) { return []report.Judged{r.judged()}, nil }

// Sheet is what the result comes to.
func (r *Result) Sheet() (*report.Sheet, error) {
	e, j := r.Experiment, r.judged()
	s := report.NewSheet("benchmark: "+e.Tenant.Exec, &r.Header)
	s.Answer, s.Headline = r.words(j), j.Headline(j.First())
	s.Fact("tenant", strings.TrimSuffix(fmt.Sprintf("%s, %s", e.Tenant, r.Setup.Server), ", "))
	s.Fact("benchmark", fmt.Sprintf("%s, which took %s alone, and with the tenant %.2f CPUs", e.Tenant.Exec, r.Setup.BenchmarkTook, r.Setup.TenantCPUs))
	load := "its own load, in the tenant's place: its processes share the tenant's CPUs, weight and limits"
	if f, err := program.FormatNamed(e.Tenant.Figures); err == nil && f.Closed {
		load += "; a closed loop, unless told otherwise: what is not asked while an answer is late is not in its percentiles"
	}
	s.Fact("load", load)
	n := r.Setup.Neighbour
	name := n.Kernel
	if len(n.Command) > 0 {
		name = program.Text(n.Command)
	}
	s.Fact("neighbour", fmt.Sprintf("%s, %s, shares CPUs %s", name, plain.Count(n.Threads, "thread"), r.Setup.CPUs))
	s.Fact("rounds", fmt.Sprintf("%s, each one run of the benchmark after %s of the neighbour's, seed %d", plain.Count(e.Blocks, "block"), e.Settle, e.Seed))
	r.others(s)
	if len(r.Rounds) > 0 {
		s.Add(report.Block{Table: j.Table()})
		s.Page = func() report.Page {
			p := report.Page{Plots: []report.Plot{j.Ratios("ratios", "How "+j.First().Name+" compares", j.First())}, Details: []report.Block{j.Comparisons()}}
			if matrix, ok := j.Matrix(); ok {
				p.Plots = append(p.Plots, matrix)
			}
			return p
		}
	}
	s.Document = j.Document(&r.Header, e, s.Answer)
	return s, nil
}

// others says what others took, and how many requests failed.
func (r *Result) others(s *report.Sheet) {
	var took, all, failed float64
	for _, round := range r.Rounds {
		took += round.Host.Steal + round.Host.Foreign
		all += round.Seconds * float64(round.Host.SharedCPUs)
		failed += round.Told[program.Failed]
	}
	if all > 0 {
		s.Fact("others", fmt.Sprintf("processes outside of the run and the hypervisor took %.1f %% of the shared CPUs; no round is left out for that", 100*took/all))
	}
	if failed > 0 {
		s.Warn("failed", fmt.Sprintf("%.0f requests, by the benchmark's own count: where some did, its response times are taken as lower bounds", failed))
	}
}

// words are what to know and what to do.
func (r *Result) words(j report.Judged) []string {
	f := j.First()
	value := func(cell string) string {
		v, ok := stats.Typical(j.Samples, cell, f.Name)
		switch {
		case !ok:
			return ""
		case f.Unit == stats.Microseconds:
			return lab.Latency(v)
		}
		return fmt.Sprintf("%.4g", v)
	}
	alone, nothing := value(lab.Baseline), value(lab.Unisolated)
	if alone == "" || nothing == "" {
		return []string{"Nothing can be said: the benchmark was not run both alone and beside the neighbour."}
	}
	all := []string{fmt.Sprintf("Its %s is %s alone, and %s beside the neighbour with no isolation.", f.Name, alone, nothing)}
	var better []string
	var best stats.Compared
	for _, c := range j.Cells {
		if c, ok := stats.Of(j.Compared, c.Name, lab.Unisolated, f.Name); ok && c.Verdict == stats.Better {
			better = append(better, fmt.Sprintf("%s (%s, × %.2g)", c.Cell, value(c.Cell), c.Estimate))
			if best.Cell == "" || (c.Estimate > best.Estimate) == f.More {
				best = c
			}
		}
	}
	harm, ok := stats.Of(j.Compared, lab.Unisolated, lab.Baseline, f.Name)
	switch {
	case len(better) > 0:
		all = append(all, "Better than nothing: "+strings.Join(better, ", ")+".")
		of := &lab.Result{Header: r.Header, Experiment: r.Experiment, Rounds: r.Rounds}
		if how := of.HowTo(best.Cell); how != "" {
			if len(better) > 1 {
				how += fmt.Sprintf(" (%s has the best %s; cures were not compared with each other)", best.Cell, f.Name)
			}
			all = append(all, how)
		}
	case ok && harm.Verdict == stats.Inconclusive:
		all = append(all, "That is not told from chance: run longer (--for).")
	case ok && harm.Verdict == stats.Equivalent:
		all = append(all, "The neighbour does no harm that this benchmark shows, and needs no isolation for it.")
	default:
		all = append(all, "No strategy is better than nothing, as far as this run can tell (--for, longer).")
	}
	return all
}
