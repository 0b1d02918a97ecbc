package guarded

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab/report"
)

// Text writes what a result comes to for a terminal: the confusion matrix, a row per
// fault, a line per run, and the comparison in steady state.
func Text(w io.Writer, r *Result, a *Analysis, o report.Options) error {
	s := report.NewSheet(o)
	s.Indent = 9
	e := r.Experiment
	probe := map[ProbeUse]string{
		ProbeAlways: "the run-queue probe always armed", ProbeNeeded: "the run-queue probe armed when needed", ProbeNever: "no run-queue probe",
	}[e.Probe]
	s.Title("guard")
	s.Fact("guard", fmt.Sprintf("windows of %s, %s", e.Window, probe))
	s.Fact("tenant", fmt.Sprintf("%.0f requests/s of %s each: %.2f of CPUs %s", r.Setup.Rate, r.Setup.CPUPerRequest, r.Setup.TenantCPUs, r.Setup.CPUs))
	s.Fact("groups", fmt.Sprintf("%s; seed %d", r.Setup.Backend, e.Seed))
	if !r.Complete {
		s.Warning("warning", "interrupted: this is what there is")
	}
	if n := len(r.Resumed); n > 0 {
		s.Warning("warning", fmt.Sprintf("the run was interrupted and resumed (%d times)", n))
	}
	if n := len(r.Runs); n > 0 && e.Probe != ProbeNever && r.Runs[n-1].ProbeReason != "" {
		s.Warning("warning", "no run-queue probe: "+r.Runs[n-1].ProbeReason)
	}
	if len(a.Runs) > 0 {
		matrix(s, a)
		rows(s, a)
		timelines(s, r, a, max(o.Width, 60))
	} else {
		for _, row := range a.Faults {
			if row.Skipped != nil {
				s.Warning("skipped", row.Fault+": "+row.Skipped.Reason)
			}
		}
	}
	if err := s.Flush(w); err != nil || a.Steady == nil {
		return err
	}
	if _, err := io.WriteString(w, "\nIn steady state:\n\n"); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := report.Text(w, r.Steady, a.Steady, o); err != nil || a.Kept == nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "\nGuarded, the neighbour has %.1f %% of the CPU time that the tenant leaves.\n", 100**a.Kept); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// matrix counts, by fault, what was named.
func matrix(s *report.Sheet, a *Analysis) {
	columns := []report.Column{{}}
	var answers []string
	for _, counts := range a.Matrix {
		answers = append(answers, slices.Collect(maps.Keys(counts))...)
	}
	slices.Sort(answers)
	for _, answer := range slices.Compact(answers) {
		columns = append(columns, report.Column{Head: answer})
	}
	for _, row := range a.Faults {
		counts := a.Matrix[row.Fault]
		if len(counts) == 0 {
			continue
		}
		fault, _ := FaultNamed(row.Fault)
		columns[0].Add("  " + row.Fault)
		for i := range columns[1:] {
			c := &columns[i+1]
			answer, cell := c.Head, "."
			if n := counts[answer]; n > 0 {
				cell = fmt.Sprint(n)
			}
			if answer == fault.answer() {
				c.Add(cell + "*")
			} else {
				c.Add(cell + " ")
			}
		}
	}
	s.Paragraph("What was done, and what was named (* is right), in runs:")
	s.Table(columns, nil)
}

// rows is a row per fault.
func rows(s *report.Sheet, a *Analysis) {
	var columns []report.Column
	for _, head := range []string{"fault", "right", "found", "acted", fmt.Sprintf("p99 back under %.1f×", back), "pooled", "harmed", "calm", "well", "against", "innocent"} {
		columns = append(columns, report.Column{Head: head, Left: true})
	}
	spans := map[int]string{}
	add := func(cells ...string) {
		for i := range columns {
			columns[i].Add(append(cells, make([]string, len(columns))...)[i])
		}
	}
	for _, row := range a.Faults {
		switch {
		case row.Skipped != nil:
			spans[len(columns[0].Cells)] = "skipped: " + row.Skipped.Reason
			add(row.Fault)
			continue
		case row.Runs == 0:
			continue
		}
		pooled := "–"
		if row.Pooled != nil {
			pooled = fmt.Sprintf("%.2f", *row.Pooled)
		}
		add(row.Fault, fmt.Sprintf("%d/%d", row.Right, row.Valid), row.Detected.String(), row.Acted.String(), row.Recovered.String(), pooled, fmt.Sprint(row.Harmed),
			fmt.Sprintf("%.0f %%", 100*row.Calm), fmt.Sprintf("%.0f %%", 100*row.Well), fmt.Sprint(row.Against), fmt.Sprint(row.Innocent))
		if bad := row.Runs - row.Valid; bad > 0 {
			spans[len(columns[0].Cells)] = fmt.Sprintf("%d of %d runs do not count", bad, row.Runs)
			add()
		}
	}
	s.Paragraph("Seconds from the onset, median (range), and remedies against other groups:")
	s.Table(columns, spans)
	s.Lines(fmt.Sprintf("\nharmed: runs in which the p99 of half a second was beyond %.1f times that before the onset; back: from when on the requests of half a second\n"+
		"were within it again; pooled: the same for the requests of all runs together; calm, well: share of the half seconds within it before the onset,\n"+
		"and from then on; innocent: remedies against groups that did nothing.\n", back))
}

// String is "0.32 (0.21–0.40) of 5".
func (s Spread) String() string {
	switch s.N {
	case 0:
		return "–"
	case 1:
		return fmt.Sprintf("%.2f", s.Median)
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f) of %d", s.Median, s.Least, s.Most, s.N)
}

// timelines draws each run: the p99 by instant, and what happened below it.
func timelines(s *report.Sheet, r *Result, a *Analysis, width int) {
	s.Lines("\np99 by when requests were due, from a tenth to a hundred times that before the onset; | onset and end, f found, a acted, r back:\n")
	for i := range r.Runs {
		line, marks := timeline(&r.Runs[i], a.Runs[i], width-2)
		head := fmt.Sprintf("%s %d: %s", r.Runs[i].Fault, r.Runs[i].Number, a.Runs[i].Named)
		if !a.Runs[i].Right {
			head += " (wrong)"
		}
		if a.Runs[i].Invalid != "" {
			head += "; does not count: " + a.Runs[i].Invalid
		}
		s.Lines(fmt.Sprintf("\n%s\n  %s\n  %s\n", plain.Line(head), line, strings.TrimRight(marks, " ")))
	}
}

// timeline is a run in so many columns at most, a tenth of a second or more each.
func timeline(r *Trial, j Judged, columns int) (line, marks string) {
	c := newCurve(r)
	if j.Baseline == 0 {
		return "", ""
	}
	const shown = 2 // seconds before the onset and after the end
	first, _ := c.between(-shown, 0)
	_, last := c.between(0, r.End+shown)
	per := max(2, (last-first+columns-1)/columns)
	var bars, under []rune
	for at := first; at < last; at += per {
		end := min(at+per, last)
		bars = append(bars, bar(c.p99(at, end)/j.Baseline))
		from, to := c.at(at), c.at(end)
		mark := ' '
		in := func(t float64) bool { return t >= from-1e-9 && t < to-1e-9 }
		if in(0) || in(r.End) {
			mark = '|'
		}
		for _, f := range r.Findings {
			if in(f.At) && mark == ' ' {
				mark = 'f'
			}
		}
		for _, e := range r.Events {
			if in(e.At) && e.Outcome == control.Applied {
				mark = 'a'
			}
		}
		if j.Recovered != nil && in(*j.Recovered) && mark != 'a' {
			mark = 'r'
		}
		under = append(under, mark)
	}
	return string(bars), string(under)
}

// bar draws a ratio from a tenth to a hundred on a scale of powers.
func bar(ratio float64) rune {
	if ratio <= 0 {
		return ' '
	}
	return plain.Bar((math.Log10(ratio) + 1) / 3)
}
