package report

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/golden"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// judged is stored scenarios as cells, one of which queued without end and one of which was
// skipped, with a share that one of them lacks, and a figure that all of them lack.
func judged(t *testing.T) (Judged, *lab.Measured) {
	t.Helper()
	m := measured(t, fakeResult(t, fakeBlocks))
	j := JudgedIsolation(m)
	answered := stats.Figure{Name: "answered", Share: true, More: true}
	j.Figures = append(j.Figures, lab.Throughput, answered, stats.Figure{Name: "absent"})
	for _, s := range j.Samples {
		at := slices.IndexFunc(m.Rounds, func(r lab.Round) bool { return r.Scenario == s.Cell && r.Block == s.Block })
		if l := m.Rounds[at].Load; s.Cell != "limited" {
			s.Figures[answered.Name] = float64(l.DoneInWindow) / float64(l.Offered)
		}
	}
	var family []stats.Versus
	for _, c := range j.Cells {
		if c.Name != j.Reference && j.Ran(c.Name) {
			family = append(family, j.Versus(c.Name))
		}
	}
	j.Compared = stats.Compare(j.Samples, j.Figures, family)
	return j, m
}

func TestJudged(t *testing.T) {
	t.Parallel()
	j, m := judged(t)
	s := &Sheet{Title: "judged", Headline: j.Headline(lab.P99)}
	s.Add(Block{Table: j.Table()}, j.Comparisons())
	s.Page = func() Page {
		return Page{Plots: j.Plots("How p99 compares", lab.P99, m, lab.Baseline, lab.BaselineAgain)}
	}
	for _, width := range []int{80, 120} {
		var text bytes.Buffer
		if err := Text(&text, s, Options{Width: width}); err != nil {
			t.Fatal(err)
		}
		golden.Check(t, fmt.Sprintf("testdata/judged_%d.txt", width), text.Bytes())
	}
	var page bytes.Buffer
	if err := HTML(&page, s); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/judged.html", page.Bytes())
	checkPage(t, page.String())
}

// A table that is too wide shows as many intervals as fit: those that come first, and all or none of
// a number.
func TestInlined(t *testing.T) {
	t.Parallel()
	column := func(head string, inline int) Column {
		return Column{Head: head, Inline: inline, Cells: []Cell{{Text: head, Below: "[1, 2]"}}}
	}
	table := Table{Columns: []Column{{Head: "a", Cells: []Cell{{Text: "a"}}}, column("b", 2), column("c", 1), column("d", 3), column("e", 3)}}
	for width, want := range map[int]string{
		12: "a b c d e", 13: "a b c d e", 20: "a b c [1, 2] d e", 27: "a b [1, 2] c [1, 2] d e", 40: "a b [1, 2] c [1, 2] d e", 41: "a b [1, 2] c [1, 2] d [1, 2] e [1, 2]",
	} {
		var got []string
		for _, c := range table.inlined(width).Columns {
			got = append(got, c.Cells[0].Text)
		}
		if line := strings.Join(got, " "); line != want {
			t.Errorf("width %d: %s, want %s", width, line, want)
		}
	}
	if got := table.Columns[1].Cells[0].Text; got != "b" {
		t.Errorf("the table itself has changed: %q", got)
	}
}

// What is written into a field of a heat map is text, and left out where it has no room.
func TestHeatMap(t *testing.T) {
	t.Parallel()
	s := &Sheet{Title: "heat"}
	s.Page = func() Page {
		return Page{Plots: []Plot{HeatMap("heat", "Matrix", "p99 by limit and clients.", "limit", "clients", []string{"none", "half"}, []string{"1", "2", "4"}, []Field{
			{Row: 0, Column: 0, Text: "4.1 ms", Tip: "none, 1 client: 4.1 ms"}, {Row: 1, Column: 2, Text: "12 ms <&>", Shade: 1, Mood: Bad},
			{Row: 1, Column: 0, Text: strings.Repeat("too long ", 9), Shade: 0.5, Mood: Good},
		})}}
	}
	var page bytes.Buffer
	if err := HTML(&page, s); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{">4.1 ms</text>": 2, ">12 ms &lt;&amp;&gt;</text>": 2, "<&>": 0, "too long": 9, "none, 1 client: 4.1 ms</title>": 2} {
		if got := strings.Count(page.String(), text); got != want {
			t.Errorf("%q comes %d times, want %d", text, got, want)
		}
	}
}

// Where the generator was late itself, figures are upper bounds, and marked.
func TestJudgedUpperBounds(t *testing.T) {
	t.Parallel()
	j, _ := judged(t)
	for i := range j.Samples {
		if j.Samples[i].Cell == "idle" {
			j.Samples[i].Late = map[string]string{lab.P99.Name: "lag of 5 µs"}
		}
	}
	if got := j.P99("idle"); !strings.HasPrefix(got, "at most ") {
		t.Errorf("p99 of idle: %s", got)
	}
	table := j.Table()
	row := slices.IndexFunc(table.Columns[0].Cells, func(c Cell) bool { return c.Text == "idle" })
	for _, c := range table.Columns {
		if marked := strings.HasPrefix(c.Cells[row].Text, "≤"); marked != (c.Head == lab.P99.Name) {
			t.Errorf("%s of idle: %s", c.Head, c.Cells[row].Text)
		}
	}
	if !slices.Contains(table.Notes, "≤ upper bound, as the machine held up the generator, too: lag of 5 µs.") {
		t.Errorf("notes %q", table.Notes)
	}
	for i := range j.Samples {
		j.Samples[i].Bound = j.Samples[i].Cell == "idle"
	}
	if got, note := j.P99("idle"), "≈ upper bound in some rounds, lower bound in others."; !strings.HasPrefix(got, "about ") || !slices.Contains(j.Table().Notes, note) {
		t.Errorf("bounds both ways: %s, notes %q", got, j.Table().Notes)
	}
}

func TestJudgedHeadline(t *testing.T) {
	t.Parallel()
	of := func(cell string, ratio float64, v stats.Verdict) stats.Compared {
		iv := stats.Interval{Estimate: ratio, Low: ratio / 2, High: ratio * 2, Confidence: 0.95, Rounds: 9}
		return stats.Compared{Cell: cell, Against: lab.Baseline, Figure: lab.P99.Name, Interval: iv, Verdict: v}
	}
	elsewhere := of("f", 9, stats.Worse)
	elsewhere.Against = "a"
	for _, tc := range []struct {
		compared  []stats.Compared
		want      string
		undecided bool
	}{
		{nil, "", true},
		{[]stats.Compared{elsewhere}, "", true},
		{[]stats.Compared{of("a", 1, stats.Equivalent), of("b", 1, stats.Equivalent)}, `No p99 differs from that of "alone" by 10 %`, false},
		{[]stats.Compared{of("a", 1, stats.Equivalent), of("b", 2, stats.Inconclusive)}, `No p99 is shown to differ from that of "alone"`, false},
		{[]stats.Compared{of("b", 2, stats.Inconclusive), elsewhere}, `No p99 is shown to differ from that of "alone"`, true},
		{[]stats.Compared{of("a", 0.2, stats.Better), of("b", 0.5, stats.Better)}, `The p99 of "a" is 0.20 [0.10, 0.40] times that of "alone"`, false},
		{[]stats.Compared{of("a", 0.1, stats.Better), of("b", 2, stats.Worse), of("c", 4, stats.Worse)}, `The p99 of "c" is 4.00 [2.00, 8.00] times that of "alone"`, false},
	} {
		j := Judged{Reference: lab.Baseline, Compared: tc.compared}
		if got := j.Headline(lab.P99); got != tc.want || j.Undecided(lab.P99) != tc.undecided {
			t.Errorf("%q, undecided %v; want %q, %v", got, j.Undecided(lab.P99), tc.want, tc.undecided)
		}
	}
}
