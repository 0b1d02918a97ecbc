package guarded

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"berth.dev/berth/guard/control"
)

// Text writes what a result comes to for a terminal of the given width: the
// confusion matrix, a row per fault, and a line per run. The comparison in steady
// state is a result of the lab's and drawn by lab/report.
func Text(w io.Writer, r *Result, a *Analysis, width int) error {
	var b strings.Builder
	e := r.Experiment
	probe := map[ProbeUse]string{
		ProbeAlways: "the run-queue probe always armed", ProbeNeeded: "the run-queue probe armed when needed", ProbeNever: "no run-queue probe",
	}[e.Probe]
	fmt.Fprintf(&b, "guard   on this host, this kernel, this load\n\n")
	fmt.Fprintf(&b, "guard    windows of %s, %s\n", e.Window, probe)
	fmt.Fprintf(&b, "tenant   %.0f requests/s of %s each: %.2f of CPUs %s\n", r.Setup.Rate, r.Setup.CPUPerRequest, r.Setup.TenantCPUs, r.Setup.CPUs)
	fmt.Fprintf(&b, "groups   %s; seed %d\n", r.Setup.Backend, e.Seed)
	if !r.Complete {
		b.WriteString("warning  interrupted: this is what there is\n")
	}
	if n := len(r.Runs); n > 0 && e.Probe != ProbeNever && r.Runs[n-1].ProbeReason != "" {
		fmt.Fprintf(&b, "warning  no run-queue probe: %s\n", r.Runs[n-1].ProbeReason)
	}
	if len(a.Runs) > 0 {
		writeMatrix(&b, a)
		writeRows(&b, a)
		writeTimelines(&b, r, a, max(width, 60))
	} else {
		for _, row := range a.Faults {
			if row.Skipped != nil {
				fmt.Fprintf(&b, "skipped  %s: %s\n", row.Fault, row.Skipped.Reason)
			}
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// writeMatrix counts, by fault, what was named.
func writeMatrix(b *strings.Builder, a *Analysis) {
	var answers []string
	for _, counts := range a.Matrix {
		for answer := range counts {
			if !slices.Contains(answers, answer) {
				answers = append(answers, answer)
			}
		}
	}
	slices.Sort(answers)
	fmt.Fprintf(b, "\nWhat was done, and what was named (* is right), in runs:\n\n")
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\t%s\t\n", strings.Join(answers, "\t"))
	for _, row := range a.Faults {
		counts := a.Matrix[row.Fault]
		if len(counts) == 0 {
			continue
		}
		fault, _ := FaultNamed(row.Fault)
		cells := []string{row.Fault}
		for _, answer := range answers {
			cell := "."
			if n := counts[answer]; n > 0 {
				cell = fmt.Sprint(n)
			}
			if answer == fault.answer() {
				cell += "*"
			} else {
				cell += " "
			}
			cells = append(cells, cell)
		}
		fmt.Fprintf(t, "%s\t\n", strings.Join(cells, "\t"))
	}
	t.Flush()
}

// writeRows is a row per fault.
func writeRows(b *strings.Builder, a *Analysis) {
	b.WriteString("\nSeconds from the onset, median (range), and remedies against other groups:\n\n")
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "fault\tright\tfound\tacted\tp99 back under %.1f×\tpooled\tharmed\tcalm\twell\tagainst\tinnocent\n", back)
	for _, row := range a.Faults {
		if row.Skipped != nil {
			fmt.Fprintf(t, "%s\tskipped: %s\n", row.Fault, row.Skipped.Reason)
			continue
		}
		if row.Runs == 0 {
			continue
		}
		pooled := "–"
		if row.Pooled != nil {
			pooled = fmt.Sprintf("%.2f", *row.Pooled)
		}
		fmt.Fprintf(t, "%s\t%d/%d\t%s\t%s\t%s\t%s\t%d\t%.0f %%\t%.0f %%\t%d\t%d\n", row.Fault, row.Right, row.Valid, row.Detected, row.Acted, row.Recovered,
			pooled, row.Harmed, 100*row.Calm, 100*row.Well, row.Against, row.Innocent)
		if bad := row.Runs - row.Valid; bad > 0 {
			fmt.Fprintf(t, "\t%d of %d runs do not count\n", bad, row.Runs)
		}
	}
	t.Flush()
	fmt.Fprintf(b, "\nharmed: runs in which the p99 of half a second was beyond %.1f times that before the onset; back: from when on the requests of half a second\n"+
		"were within it again; pooled: the same for the requests of all runs together; calm, well: share of the half seconds within it before the onset,\n"+
		"and from then on; innocent: remedies against groups that did nothing.\n", back)
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

// writeTimelines draws each run: the p99 by instant, and what happened below it.
func writeTimelines(b *strings.Builder, r *Result, a *Analysis, width int) {
	b.WriteString("\np99 by when requests were due, from a tenth to a hundred times that before the onset; | onset and end, f found, a acted, r back:\n")
	for i := range r.Runs {
		line, marks := timeline(&r.Runs[i], a.Runs[i], width-2)
		fmt.Fprintf(b, "\n%s %d: %s", r.Runs[i].Fault, r.Runs[i].Number, a.Runs[i].Named)
		if !a.Runs[i].Right {
			b.WriteString(" (wrong)")
		}
		if a.Runs[i].Invalid != "" {
			fmt.Fprintf(b, "; does not count: %s", a.Runs[i].Invalid)
		}
		fmt.Fprintf(b, "\n  %s\n  %s\n", line, strings.TrimRight(marks, " "))
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
	const bars = "▁▂▃▄▅▆▇█"
	if ratio <= 0 {
		return ' '
	}
	runes := []rune(bars)
	level := (math.Log10(ratio) + 1) / 3 * float64(len(runes))
	return runes[min(max(int(level), 0), len(runes)-1)]
}
