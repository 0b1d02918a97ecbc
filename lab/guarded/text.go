package guarded

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"berth.dev/berth/guard"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
)

// Sheet is what a result comes to: the confusion matrix, a row per fault, a line per run,
// and the comparison in steady state.
func Sheet(r *Result, a *Analysis) *report.Sheet {
	s := &report.Sheet{Title: "guard: known faults beside a service", Headline: a.headline(), Answer: a.answer(r.Experiment.MaxOthers), Open: a.headline() == "", When: r.Started, Document: NewReport(r, a)}
	e := r.Experiment
	s.Fact("guard", fmt.Sprintf("windows of %s, run-queue probe armed: %s", e.Window, e.Probe))
	s.Fact("tenant", fmt.Sprintf("%.0f requests/s of %s each: %.2f of CPUs %s", r.Setup.Rate, r.Setup.CPUPerRequest, r.Setup.TenantCPUs, r.Setup.CPUs))
	s.Fact("groups", fmt.Sprintf("%s; seed %d", r.Setup.Backend, e.Seed))
	if len(r.Runs) > 0 {
		s.Fact("generator", generator(r))
	}
	if !r.Complete {
		s.Warn("warning", "the run was interrupted: this is what was measured by then")
	}
	if n := len(r.Resumed); n > 0 {
		s.Warn("warning", fmt.Sprintf("the run was interrupted and resumed (%d times)", n))
	}
	if n := len(r.Runs); n > 0 && e.Probe != guard.ProbeNever && r.Runs[n-1].ProbeReason != "" {
		s.Warn("warning", "no run-queue probe: "+r.Runs[n-1].ProbeReason)
	}
	if len(a.Runs) > 0 {
		s.Add(
			matrixBlock(a),
			report.Block{Text: "Seconds from the onset, median (range), and remedies against other groups:", Table: rows(a)},
			report.Block{
				Text:  "p99 by when requests were due, from a tenth to a hundred times that before the onset; | onset and end, f found, a acted, r back:",
				Lines: timelines(r, a),
			},
		)
	} else {
		for _, row := range a.Faults {
			if row.Skipped != nil {
				s.Warn("skipped", row.Fault+": "+row.Skipped.Reason)
			}
		}
	}
	s.Page = a.page(r, nil)
	if a.Steady == nil {
		return s
	}
	steady := report.Isolation(a.Measured, a.Steady)
	s.Add(report.Block{Heading: "In steady state", Facts: steady.Facts})
	s.Add(steady.Body...)
	s.Page, s.Advice = a.page(r, steady), a.Steady.Recommendation
	if a.Kept != nil {
		s.Add(report.Block{Text: fmt.Sprintf("Guarded, the neighbour has %.1f %% of the CPU time that the tenant leaves.", 100**a.Kept)})
	}
	return s
}

// generator is what it cost, and how late it was, in the runs of faults.
func generator(r *Result) string {
	used, lag := 0.0, 0.0
	for _, run := range r.Runs {
		used += run.GeneratorCPUs / float64(len(r.Runs))
		lag = max(lag, run.LagP99)
	}
	text := r.Setup.GeneratorPolicy
	if used > 0 {
		text += fmt.Sprintf(" · used %.3g CPUs", used)
	}
	return strings.TrimPrefix(text+" · own lag p99 at most "+lab.Latency(lag)+" in a run", " · ")
}

// matrixBlock is the confusion matrix, or why there is none.
func matrixBlock(a *Analysis) report.Block {
	if len(a.Matrix) == 0 {
		return report.Block{Text: "No run counts, so that nothing is said of what was named."}
	}
	return report.Block{Text: "What was done, and what was named (* is right), in runs:", Table: matrix(a)}
}

// matrix counts, by fault, what was named.
func matrix(a *Analysis) *report.Table {
	all := map[string]int{}
	for _, counts := range a.Matrix {
		maps.Copy(all, counts)
	}
	answers := slices.Sorted(maps.Keys(all))
	var rows [][]string
	for _, row := range a.Faults {
		counts := a.Matrix[row.Fault]
		if len(counts) == 0 {
			continue
		}
		fault, _ := FaultNamed(row.Fault)
		line := []string{row.Fault}
		for _, answer := range answers {
			cell, right := ".", " "
			if n := counts[answer]; n > 0 {
				cell = fmt.Sprint(n)
			}
			if fault.right(answer) {
				right = "*"
			}
			line = append(line, cell+right)
		}
		rows = append(rows, line)
	}
	return report.NewTable(append([]string{"fault"}, answers...), rows...)
}

// rows is a row per fault.
func rows(a *Analysis) *report.Table {
	heads := []string{"fault", "right", "found", "acted", fmt.Sprintf("p99 back under %.1f×", back), "pooled", "harmed", "calm", "well", "against", "innocent"}
	spans := map[int]string{}
	var lines [][]string
	add := func(cells ...string) { lines = append(lines, append(cells, make([]string, len(heads)-len(cells))...)) }
	for _, row := range a.Faults {
		switch {
		case row.Skipped != nil:
			spans[len(lines)] = "skipped: " + row.Skipped.Reason
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
			spans[len(lines)] = fmt.Sprintf("%d of %d runs do not count", bad, row.Runs)
			add()
		}
	}
	t := report.NewTable(heads, lines...)
	for i := range t.Columns {
		t.Columns[i].Left = true
	}
	t.Spans = spans
	t.Legend = fmt.Sprintf("harmed: runs in which the p99 of half a second was beyond %.1f times that before the onset; back: from when on the requests of half a second "+
		"were within it again; pooled: the same for the requests of all runs together; calm, well: share of the half seconds within it before the onset, "+
		"and from then on; innocent: remedies against groups that did nothing.", back)
	return t
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

// timelineColumns is how many columns a timeline has.
const timelineColumns = 78

// timelines draws each run: the p99 by instant, and what happened below it.
func timelines(r *Result, a *Analysis) string {
	var b strings.Builder
	for i := range r.Runs {
		line, marks := timeline(&r.Runs[i], a.Runs[i], timelineColumns)
		head := fmt.Sprintf("%s %d: %s", r.Runs[i].Fault, r.Runs[i].Number, a.Runs[i].Named)
		if !a.Runs[i].Right {
			head += " (wrong)"
		}
		if a.Runs[i].Invalid != "" {
			head += "; does not count: " + a.Runs[i].Invalid
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s\n  %s\n  %s\n", plain.Line(head), line, strings.TrimRight(marks, " "))
	}
	return b.String()
}

// timeline is a run in so many columns at most, a tenth of a second or more each.
func timeline(r *Trial, j Judged, columns int) (line, marks string) {
	c := r.curve()
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
