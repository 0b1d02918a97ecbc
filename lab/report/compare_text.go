package report

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab/stats"
)

// Text writes the comparison for a terminal: what is compared, what differs
// between the two, what changed of the protection, and the plain latencies.
func (c *Comparison) Text(w io.Writer, o Options) error {
	s := NewSheet(o)
	s.Fact("A", sideLine(c.A))
	s.Fact("B", sideLine(c.B))
	for _, d := range c.Differences {
		s.Warning("differs", fmt.Sprintf("%s: %s in A, %s in B", d.What, d.A, d.B))
	}
	if len(c.Differences) > 0 {
		s.Warning("warning", "A and B were not measured under the same conditions: any change below may be the doing of what differs.")
	}
	for _, side := range c.Saturated {
		s.Warning("warning", "The baseline of "+side+" is itself saturated: ratios to it mean nothing.")
	}
	if len(c.Missing) > 0 {
		s.Warning("warning", "Left out, with valid rounds in one of the two only: "+strings.Join(c.Missing, ", ")+".")
	}
	c.writeRatios(s)
	c.writeLatencies(s)
	s.Legend(compareLegend)
	s.Paragraph(c.summary())
	return s.Flush(w)
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
func (c *Comparison) writeRatios(s *Sheet) {
	format := times
	if s.o.width() < 96 {
		format = func(iv stats.Interval) string { return digits3(iv.Estimate) }
	}
	names, ps := Column{Head: "× baseline", Left: true}, Column{}
	inA, inB := Column{Head: "A"}, Column{Head: "B"}
	change, verdict, more := Column{Head: "B / A"}, Column{Head: "verdict", Left: true}, Column{Head: "rounds"}
	last := ""
	for _, row := range c.Rows {
		if row.Ratio == nil {
			continue
		}
		names.Add(first(row.Scenario, &last))
		ps.Add(quantileName(row.P))
		inA.Add(atLeast(row.AtLeastA) + format(*row.RatioA))
		inB.Add(atLeast(row.AtLeastB) + format(*row.RatioB))
		mark := ""
		if row.Verdict == stats.Inconclusive {
			mark = "~"
		}
		change.Add(mark + times(*row.Ratio))
		verdict.Cells = append(verdict.Cells, Cell{plain.Line(string(row.Verdict)), verdictStyle(row.Verdict)})
		needs := ""
		if row.MoreRounds > 0 {
			needs = "+" + strconv.Itoa(row.MoreRounds)
		}
		more.Add(needs)
		if row.Ratio.Confidence > 0 {
			change.Unit = fmt.Sprintf("[%s %%]", percent(row.Ratio.Confidence))
		}
	}
	if len(names.Cells) > 0 {
		s.Table([]Column{names, ps, inA, inB, change, verdict, more}, nil)
	}
}

func (c *Comparison) writeLatencies(s *Sheet) {
	names, ps := Column{Head: "latency", Left: true}, Column{}
	inA, inB, change := Column{Head: "A"}, Column{Head: "B"}, Column{Head: "B / A"}
	last := ""
	for _, row := range c.Rows {
		names.Add(first(row.Scenario, &last))
		ps.Add(quantileName(row.P))
		inA.Add(atLeast(row.AtLeastA) + latency(row.LatencyA.Estimate))
		inB.Add(atLeast(row.AtLeastB) + latency(row.LatencyB.Estimate))
		change.Add(times(row.Latency))
	}
	s.Table([]Column{names, ps, inA, inB, change}, nil)
}

// first is the name where it differs from the row's above.
func first(name string, last *string) string {
	if name == *last {
		return ""
	}
	*last = name
	return plain.Line(name)
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
		name := plain.Line(row.Scenario) + " " + quantileName(row.P)
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
