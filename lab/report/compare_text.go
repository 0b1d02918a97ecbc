package report

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"berth.dev/berth/lab/stats"
)

// Text writes the comparison for a terminal: what is compared, what differs
// between the two, what changed of the protection, and the plain latencies.
func (c *Comparison) Text(w io.Writer, o Options) error {
	var b strings.Builder
	writeFacts(&b, []fact{{"A", sideLine(c.A)}, {"B", sideLine(c.B)}}, o)
	for _, d := range c.Differences {
		writeNote(&b, o.paint(yellow, "differs"), len("differs"), fmt.Sprintf("%s: %s in A, %s in B", d.What, d.A, d.B), o)
	}
	if len(c.Differences) > 0 {
		writeNote(&b, o.paint(yellow, "warning"), len("warning"), "A and B were not measured under the same conditions: any change below may be the doing of what differs.", o)
	}
	for _, s := range c.Saturated {
		writeNote(&b, o.paint(yellow, "warning"), len("warning"), "The baseline of "+s+" is itself saturated: ratios to it mean nothing.", o)
	}
	if len(c.Missing) > 0 {
		writeNote(&b, o.paint(yellow, "warning"), len("warning"), "Left out, with valid rounds in one of the two only: "+strings.Join(c.Missing, ", ")+".", o)
	}
	c.writeRatios(&b, o)
	c.writeLatencies(&b, o)
	b.WriteString("\n")
	for _, line := range wrap(compareLegend, o.width()) {
		b.WriteString(o.paint(faint, line) + "\n")
	}
	b.WriteString("\n" + strings.Join(wrap(c.summary(), o.width()), "\n") + "\n")
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write comparison: %w", err)
	}
	return nil
}

const compareLegend = "B / A below 1: less latency in B. The verdict is about the ratio to the baseline of the same run, corrected for the number of comparisons; " +
	"plain latency takes in whatever changed. ≥ lower bound; ~ inconclusive; rounds: how many more, in each run, would decide."

func sideLine(s ComparisonSide) string {
	when := ""
	if !s.Started.IsZero() {
		when = s.Started.UTC().Format("2006-01-02 15:04 UTC")
	}
	complete := ""
	if !s.Complete {
		complete = "did not finish"
	}
	return joined(s.Name, when, programLine(s.Program), complete)
}

// writeRatios is the table of protection; intervals of A and B are shown where
// there is room.
func (c *Comparison) writeRatios(b *strings.Builder, o Options) {
	format := times
	if o.width() < 96 {
		format = func(iv stats.Interval) string { return digits3(iv.Estimate) }
	}
	names, ps := column{head: "× baseline", left: true}, column{}
	inA, inB := column{head: "A"}, column{head: "B"}
	change, verdict, more := column{head: "B / A"}, column{head: "verdict", left: true}, column{head: "rounds"}
	last := ""
	for _, row := range c.Rows {
		if row.Ratio == nil {
			continue
		}
		names.add(first(row.Scenario, &last))
		ps.add(quantileName(row.P))
		inA.add(atLeast(row.AtLeastA) + format(*row.RatioA))
		inB.add(atLeast(row.AtLeastB) + format(*row.RatioB))
		mark := ""
		if row.Verdict == stats.Inconclusive {
			mark = "~"
		}
		change.add(mark + times(*row.Ratio))
		verdict.cells = append(verdict.cells, cell{printable(string(row.Verdict)), verdictStyle(row.Verdict)})
		needs := ""
		if row.MoreRounds > 0 {
			needs = "+" + strconv.Itoa(row.MoreRounds)
		}
		more.add(needs)
		if row.Ratio.Confidence > 0 {
			change.unit = fmt.Sprintf("[%s %%]", percent(row.Ratio.Confidence))
		}
	}
	if len(names.cells) > 0 {
		b.WriteString("\n")
		layTable(b, []column{names, ps, inA, inB, change, verdict, more}, nil, o)
	}
}

func (c *Comparison) writeLatencies(b *strings.Builder, o Options) {
	names, ps := column{head: "latency", left: true}, column{}
	inA, inB, change := column{head: "A"}, column{head: "B"}, column{head: "B / A"}
	last := ""
	for _, row := range c.Rows {
		names.add(first(row.Scenario, &last))
		ps.add(quantileName(row.P))
		inA.add(atLeast(row.AtLeastA) + latency(row.LatencyA.Estimate))
		inB.add(atLeast(row.AtLeastB) + latency(row.LatencyB.Estimate))
		change.add(times(row.Latency))
	}
	b.WriteString("\n")
	layTable(b, []column{names, ps, inA, inB, change}, nil, o)
}

// first is the name where it differs from the row's above.
func first(name string, last *string) string {
	if name == *last {
		return ""
	}
	*last = name
	return printable(name)
}

func atLeast(bound bool) string {
	if bound {
		return "≥"
	}
	return ""
}

// summary counts the verdicts in words.
func (c *Comparison) summary() string {
	var better, worse, unsure, same []string
	for _, row := range c.Rows {
		name := printable(row.Scenario) + " " + quantileName(row.P)
		switch row.Verdict {
		case stats.Better:
			better = append(better, name)
		case stats.Worse:
			worse = append(worse, name)
		case stats.Equivalent:
			same = append(same, name)
		case stats.Inconclusive, stats.Invalid:
			unsure = append(unsure, name)
		}
	}
	var parts []string
	for _, p := range []struct {
		names []string
		words string
	}{{worse, "Worse protected in B"}, {better, "Better protected in B"}, {same, "The same within ±10 %"}, {unsure, "Not decided"}} {
		if len(p.names) > 0 {
			parts = append(parts, p.words+": "+strings.Join(p.names, ", ")+".")
		}
	}
	if len(parts) == 0 {
		return "No ratio to a baseline can be compared."
	}
	return strings.Join(parts, " ")
}
