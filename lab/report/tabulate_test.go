package report

import (
	"bytes"
	"strconv"
	"strings"
	"testing"

	"berth.dev/berth/internal/golden"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// TestTabulate: verdicts are counted over runs, and the median run is not the mean of a good and a bad one.
func TestTabulate(t *testing.T) {
	t.Parallel()
	var runs []Analysed
	for i, factor := range []float64{1, 3, 9} {
		m := measured(t, slower(t, fakeResult(t, fakeBlocks), "idle", factor))
		runs = append(runs, Analysed{strconv.Itoa(i + 1), m, m.Analyse()})
	}
	got := Tabulate(runs)
	for _, row := range got.Rows {
		if row.Scenario != "idle" || row.Against != lab.Baseline {
			continue
		}
		if row.Verdicts[stats.Worse] != 2 || row.Verdicts[stats.Inconclusive] != 1 || row.Median < 3 || row.Median > 3.5 || row.Least > 1.2 || row.Most < 9 || row.HalfWidth < 1.01 || row.Widest < row.HalfWidth {
			t.Errorf("idle against alone: %+v", row)
		}
	}
	if len(got.Rows) != 11 || len(got.Runs) != 3 || got.Runs[0].Blocks != fakeBlocks || got.Runs[0].Foreign <= 0 {
		t.Errorf("%d rows, runs %+v", len(got.Rows), got.Runs)
	}
	says := strings.Join(got.words(), "\n")
	for _, want := range []string{"called different from itself in 0 of 3 runs.", "contradict each other on: idle against weighted (worse in 1, better in 1)", "Decided alike in all of 3 runs by the p99: unisolated against alone", "Decided in some: idle against alone (2)"} {
		if !strings.Contains(says, want) {
			t.Errorf("lacks %q:\n%s", want, says)
		}
	}
	mixed := &Tabulation{Runs: make([]TabulatedRun, 3), Rows: []Tabulated{
		{Scenario: "idle", Against: lab.Baseline, Verdicts: map[stats.Verdict]int{stats.Worse: 2, stats.Equivalent: 1}},
		{Scenario: "weighted", Against: lab.Baseline, Verdicts: map[stats.Verdict]int{stats.Worse: 1, stats.Equivalent: 1, stats.Inconclusive: 1}},
		{Scenario: "limited", Against: lab.Baseline, Verdicts: map[stats.Verdict]int{stats.Equivalent: 3}},
	}}
	want := "Decided alike in all of 3 runs by the p99: limited against alone.\nDecided in all, but not alike: idle against alone (as good in 1).\nDecided in some: weighted against alone (2)."
	if says := strings.Join(mixed.words(), "\n"); says != want {
		t.Errorf("%q, want %q", says, want)
	}
	var text bytes.Buffer
	if err := Text(&text, got.Sheet(), Options{Width: 110}); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/tabulate.txt", text.Bytes())
}
