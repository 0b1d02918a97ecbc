package report

import (
	"fmt"
	"strings"

	"berth.dev/berth/lab/stats"
)

// Sheet says what is compared, what differs between the two, what changed of the
// protection, and the plain latencies.
func (c *Comparison) Sheet() *Sheet {
	s := &Sheet{}
	s.Fact("A", sideLine(c.A))
	s.Fact("B", sideLine(c.B))
	for _, d := range c.Differences {
		s.Warn("differs", fmt.Sprintf("%s: %s in A, %s in B", d.What, d.A, d.B))
	}
	if len(c.Differences) > 0 {
		s.Warn("warning", "A and B were not measured under the same conditions: any change below may be the doing of what differs.")
	}
	for _, side := range c.Saturated {
		s.Warn("warning", "Even alone the tenant of "+side+" cannot keep up: ratios to that mean nothing.")
	}
	if len(c.Missing) > 0 {
		s.Warn("warning", "Left out, with valid rounds in one of the two only: "+strings.Join(c.Missing, ", ")+".")
	}
	if ratios := c.ratios(); ratios.rows() > 0 {
		s.Add(Block{Table: ratios})
	}
	s.Add(Block{Table: c.latencies()}, Block{Text: c.summary()})
	return s
}

const compareLegend = "B / A below 1: less latency in B. The verdict is about the ratio to alone in the same run, corrected for the number of comparisons; " +
	"plain latency, of the typical round, takes in whatever changed. ≥ lower bound; ~ not decided."

func sideLine(s ComparisonSide) string {
	when := ""
	if !s.Started.IsZero() {
		when = s.Started.UTC().Format("2006-01-02 15:04 UTC")
	}
	complete := ""
	if !s.Complete {
		complete = "did not finish"
	}
	return dotted(s.Name, when, programLine(s.Program), complete)
}

// ratios is the table of protection.
func (c *Comparison) ratios() *Table {
	names, ps := Column{Head: "× alone", Left: true}, Column{}
	inA, inB := Column{Head: "A", Inline: true}, Column{Head: "B", Inline: true}
	change, verdict := Column{Head: "B / A"}, Column{Head: "verdict", Left: true}
	last := ""
	for _, row := range c.Rows {
		if row.Ratio == nil {
			continue
		}
		names.Add(first(shownName(row.Scenario), &last))
		ps.Add(quantileName(row.P))
		inA.Cells = append(inA.Cells, ratioCell(row.AtLeastA, *row.RatioA))
		inB.Cells = append(inB.Cells, ratioCell(row.AtLeastB, *row.RatioB))
		mark := ""
		if row.Verdict == stats.Inconclusive {
			mark = "~"
		}
		change.Add(mark + times(*row.Ratio))
		verdict.Cells = append(verdict.Cells, Cell{Text: row.Verdict.Against("A"), Mood: moodOf(row.Verdict)})
		if row.Ratio.Confidence > 0 {
			change.Unit = fmt.Sprintf("[%s %%]", percent(row.Ratio.Confidence))
		}
	}
	return &Table{Columns: []Column{names, ps, inA, inB, change, verdict}}
}

func ratioCell(bound bool, iv stats.Interval) Cell {
	ratio, interval, _ := strings.Cut(times(iv), " ")
	return Cell{Text: atLeast(bound) + ratio, Below: interval}
}

func (c *Comparison) latencies() *Table {
	names, ps := Column{Head: "latency", Left: true}, Column{}
	inA, inB, change := Column{Head: "A"}, Column{Head: "B"}, Column{Head: "B / A"}
	last := ""
	for _, row := range c.Rows {
		names.Add(first(shownName(row.Scenario), &last))
		ps.Add(quantileName(row.P))
		inA.Add(atLeast(row.AtLeastA) + latency(row.LatencyA.Estimate))
		inB.Add(atLeast(row.AtLeastB) + latency(row.LatencyB.Estimate))
		change.Add(times(row.Latency))
	}
	return &Table{Columns: []Column{names, ps, inA, inB, change}, Legend: compareLegend}
}

// first is the name where it differs from the row's above.
func first(name string, last *string) string {
	if name == *last {
		return ""
	}
	*last = name
	return name
}

// summary counts the verdicts in words.
func (c *Comparison) summary() string {
	var better, worse, unsure, same []string
	for _, row := range c.Rows {
		name := shownName(row.Scenario) + " " + quantileName(row.P)
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
		return "No ratio to the tenant alone can be compared."
	}
	return strings.Join(parts, " ")
}
