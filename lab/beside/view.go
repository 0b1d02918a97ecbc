package beside

import (
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
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
	v.Samples, v.undisturbed = m.Samples()
	divided := x.divided()
	var family []stats.Versus
	for i, c := range d.cells {
		if c.division != nil && !divided {
			continue // few hosts can: on the others those cells widen no interval
		}
		v.Cells = append(v.Cells, report.JudgedCell{Name: c.name, Means: c.means})
		if i > 0 {
			family = append(family, stats.Versus{Cell: c.name, Against: v.Reference})
		}
		if c.division != nil {
			family = append(family, stats.Versus{Cell: c.name, Against: sameCache})
		}
	}
	if divided {
		v.Figures = append(slices.Clone(v.Figures), lab.Work)
	}
	v.addEnergy()
	v.Compared = stats.Compare(v.Samples, v.Figures, append(family, d.versus...))
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
	s.Open = v.nothing() != "" || v.Undecided(lab.P99)
	if nothing := v.nothing(); nothing != "" {
		s.Headline, _, _ = strings.Cut(nothing, ". ")
	} else {
		s.Headline = v.Headline(lab.P99)
	}
	s.Fact("tenant", fmt.Sprintf("article, %.0f requests/s due (open loop), wants %.2f CPUs, %s working set", x.Setup.Rate, x.Setup.TenantCPUs, plain.Bytes(x.Experiment.WorkingSetBytes)))
	if n := x.Setup.Neighbour; slices.ContainsFunc(x.design.cells, func(c cell) bool { return c.neighbour || c.other != "" }) {
		s.Fact("neighbour", fmt.Sprintf("%s, %s, shares CPUs %s with the tenant", n.Kernel, plain.Count(n.Threads, "thread"), x.Setup.CPUs))
	}
	s.Fact("rounds", fmt.Sprintf("%s × %s after %s to settle, seed %d", plain.Count(x.Experiment.Blocks, "block"), x.Experiment.Window, x.Experiment.Settle, x.Experiment.Seed))
	if x.Experiment.Weight > 0 {
		s.Fact("weight", fmt.Sprintf("the run had CPU weight %d together against all else on the host", x.Experiment.Weight))
	}
	s.Others(v.measured, v.undisturbed)
	if len(x.Rounds) > 0 {
		s.Add(report.Block{Table: v.Judged.Table()})
		if x.design.tables != nil {
			s.Add(x.design.tables(v)...)
		}
	}
	s.Page = func() report.Page {
		return report.Page{Plots: v.Plots("How p99 compares", lab.P99, v.measured, v.Reference), Details: []report.Block{v.Comparisons()}}
	}
	s.Document = v.Judged.Document(&x.Header, x.Experiment, s.Answer)
	return s, nil
}

// stood are the CPUs on which a role stood in a cell, as read back.
func (v *view) stood(cell string, role lab.Role) cpuset.Set {
	return lab.StoodOn(v.Rounds, cell, role)
}

// harms says whether a cell is shown to be worse than another by the p99, or by the CPU time that a
// request takes.
func (v *view) harms(name, against string) bool {
	return v.Ran(name) && v.Ran(against) &&
		(v.Of(name, against, lab.P99.Name).Verdict == stats.Worse || v.Of(name, against, lab.CPUPerRequest.Name).Verdict == stats.Worse)
}

// nothing is what to say where the reference cannot carry a comparison; "" where it can.
func (v *view) nothing() string {
	switch {
	case !v.Ran(v.Reference):
		return "Nothing can be said: no round of " + v.Reference + " counts."
	case v.Bound(v.Reference):
		return "Nothing can be said: even " + v.Reference + " the tenant cannot keep up with its load. Offer less (--set demand=0.2), or run where the machine is not busy with something else."
	}
	return ""
}
