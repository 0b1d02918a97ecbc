package cli

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/place"
	"berth.dev/berth/replay"
)

// replayTable has a row for each step.
func replayTable(b *strings.Builder, s *replay.Scenario, r *replay.Result) {
	rows := [][]string{{"step", "do", "id", "class", "asked", "own", "runs on", "mems", "result"}}
	for i := range r.Steps {
		step := &r.Steps[i]
		asked := ""
		switch {
		case step.Do == replay.Place || step.Do == replay.Resize:
			asked = cpuTime(s.Steps[i].Request.Milli)
		case step.Do == replay.PlacePod && s.Steps[i].Pod.Milli > 0:
			asked = cpuTime(s.Steps[i].Pod.Milli)
		}
		add := func(number, do string, r *replay.StepResult, asked string, expect *replay.Expect) {
			rows = append(rows, []string{
				number, do, plain.Line(r.ID), r.Class, asked, cell(r.Own.Union(r.Counted)), cell(r.CPUs), cell(r.Mems), stepOutcome(r, expect),
			})
		}
		add(strconv.Itoa(step.Step), string(step.Do), step, asked, s.Steps[i].Expect)
		for k := range step.Containers {
			add("", "", &step.Containers[k], cpuTime(s.Steps[i].Pod.Containers[k].Milli), nil)
		}
		for _, what := range step.Unmet {
			rows = append(rows, []string{"", "", "", "", "", "", "", "", "FAILED: " + plain.Line(what)})
		}
	}
	plain.Columns(b, rows, 0, 4)
}

func cell(set cpuset.Set) string {
	if set.IsEmpty() {
		return absent
	}
	return list(set)
}

// cpuTime writes thousandths of a CPU as CPUs.
func cpuTime(milli int) string {
	return strconv.FormatFloat(float64(milli)/1000, 'f', -1, 64)
}

// stepOutcome says in a few words how a step went.
func stepOutcome(step *replay.StepResult, expect *replay.Expect) string {
	var parts []string
	switch {
	case step.Error == "":
		parts = append(parts, "ok")
	default:
		text := "refused: "
		if step.Do == replay.Restart {
			text = "incomplete: "
		}
		text += step.Error
		if expect != nil && len(step.Unmet) == 0 && expect.Error != "" {
			text += " (as expected)"
		}
		parts = append(parts, plain.Line(text))
	}
	if step.Pool != "" {
		parts = append(parts, "in pool "+plain.Line(step.Pool))
	}
	if !step.Fence.IsEmpty() {
		parts = append(parts, "keeps "+list(step.Fence)+" idle")
	}
	if len(step.Devices) > 0 {
		parts = append(parts, "has "+plain.Line(strings.Join(step.Devices, ", ")))
	}
	if len(step.Moved) > 0 && (step.Do == replay.Release || step.Do == replay.ReleasePod || step.Do == replay.Restart) {
		parts = append(parts, "moves "+plain.Line(strings.Join(step.Moved, ", ")))
	}
	return strings.Join(parts, ", ")
}

// compareReplay puts policies side by side, and marks the best of each row.
func compareReplay(b *strings.Builder, results []*replay.Result) {
	rows := [][]string{{"policy"}}
	var right []int
	for i, r := range results {
		rows[0] = append(rows[0], plain.Line(r.Policy)+" ")
		right = append(right, i+1)
	}
	row := func(name string, value func(s *replay.Summary) (text string, badness float64)) {
		cells, bad := []string{name}, make([]float64, len(results))
		for i, r := range results {
			text, badness := value(&r.Summary)
			cells, bad[i] = append(cells, text), badness
		}
		best := slices.Min(bad)
		for i := range bad {
			mark := " "
			if bad[i] == best && best < slices.Max(bad) {
				mark = "*"
			}
			cells[i+1] += mark
		}
		rows = append(rows, cells)
	}
	few := func(n int) (string, float64) { return strconv.Itoa(n), float64(n) }
	many := func(n int) (string, float64) { return strconv.Itoa(n), -float64(n) }
	fact := func(n int) (string, float64) { return strconv.Itoa(n), 0 }
	near := func(s replay.Spread) (string, float64) {
		if s.Workloads == 0 {
			return absent, math.Inf(1)
		}
		return spread(s), s.Mean
	}
	row("admitted", func(s *replay.Summary) (string, float64) { return many(s.Admitted) })
	row("refused", func(s *replay.Summary) (string, float64) { return few(s.Refused) })
	row("asked for exclusive CPUs", func(s *replay.Summary) (string, float64) { return fact(s.Nodes.Workloads) })
	row("  got CPUs of their own", func(s *replay.Summary) (string, float64) { return many(s.Own) })
	row("  NUMA nodes each", func(s *replay.Summary) (string, float64) { return near(s.Nodes) })
	row("  L3 domains each", func(s *replay.Summary) (string, float64) { return near(s.L3s) })
	row("asked for a share", func(s *replay.Summary) (string, float64) { return fact(s.PoolNodes.Workloads) })
	row("  NUMA nodes each", func(s *replay.Summary) (string, float64) { return near(s.PoolNodes) })
	row("cores shared with strangers", func(s *replay.Summary) (string, float64) { return few(s.SharedCores) })
	row("moved on release or restart", func(s *replay.Summary) (string, float64) { return few(s.Moves) })
	for i, l := range results[0].Summary.Left {
		row(fmt.Sprintf("largest left on node %d", l.Node), func(s *replay.Summary) (string, float64) { return fact(s.Left[i].Any) })
		row("  in whole cores", func(s *replay.Summary) (string, float64) { return fact(s.Left[i].Whole) })
	}
	plain.Columns(b, rows, right...)
	b.WriteString("* the best of its row\n")
}

// spread writes a mean and, where it says more, the largest.
func spread(s replay.Spread) string {
	if s.Workloads == 0 {
		return absent
	}
	mean := strings.TrimSuffix(strconv.FormatFloat(s.Mean, 'f', 1, 64), ".0")
	if mean == strconv.Itoa(s.Max) {
		return mean
	}
	return fmt.Sprintf("%s (at most %d)", mean, s.Max)
}

// explainStep writes the decisions that led to a grant or a refusal.
func explainStep(b *strings.Builder, step *replay.StepResult) {
	for i := range step.Containers {
		fmt.Fprintf(b, "  container %s\n", plain.Line(step.Containers[i].ID))
		explainStep(b, &step.Containers[i])
	}
	switch {
	case step.Why == nil:
		return
	case len(step.Why.Decisions) > 0:
	case step.Error != "":
		b.WriteString("  refused before there was anything to choose\n")
	default:
		b.WriteString("  there was nothing to choose\n")
	}
	for _, d := range step.Why.Decisions {
		explainDecision(b, d)
	}
}

func explainDecision(b *strings.Builder, d *place.Decision) {
	if len(d.Candidates) == 0 {
		fmt.Fprintf(b, "  %s\n", plain.Line(d.Name))
		return
	}
	fmt.Fprintf(b, "  choose %s", plain.Line(d.Name))
	if d.Chosen < 0 {
		b.WriteString(": none would do")
	} else if len(d.Criteria) > 0 {
		fmt.Fprintf(b, ", lowest first by: %s", strings.Join(d.Criteria, ", "))
	}
	b.WriteByte('\n')
	var rows [][]string
	for i, c := range d.Candidates {
		rank := make([]string, len(c.Rank))
		for k, n := range c.Rank {
			rank[k] = strconv.Itoa(n)
		}
		verdict := "chosen"
		switch {
		case d.Chosen < 0:
			verdict = c.Lost
		case i != d.Chosen && len(c.Rank) == 0:
			verdict = "cannot: " + c.Lost
		case i != d.Chosen:
			verdict = "lost on " + c.Lost
		}
		rows = append(rows, []string{"   ", plain.Line(c.Name), strings.Join(rank, " "), plain.Line(verdict)})
	}
	plain.Columns(b, joinAlike(rows))
}

// joinAlike makes one row of neighbours that differ in nothing but the name.
func joinAlike(rows [][]string) [][]string {
	var joined [][]string
	for i := 0; i < len(rows); {
		row, last := rows[i], i
		for last+1 < len(rows) && slices.Equal(rows[last+1][2:], row[2:]) {
			last++
		}
		if last > i {
			row = slices.Clone(row)
			row[1] += " … " + rows[last][1]
		}
		joined = append(joined, row)
		i = last + 1
	}
	return joined
}
