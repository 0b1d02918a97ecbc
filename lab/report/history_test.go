package report

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/golden"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// course is stored runs in which the tenant alone has a p99 and idle a ratio.
func course(t *testing.T, alone, idle []float64) []Side {
	t.Helper()
	two := func() *lab.Result {
		r := fakeResult(t, 2)
		r.Rounds = slices.DeleteFunc(r.Rounds, func(r lab.Round) bool { return r.Scenario != lab.Baseline && r.Scenario != "idle" })
		return r
	}
	samples := JudgedIsolation(measured(t, two())).Samples
	var runs []Side
	for i := range alone {
		r := two()
		r.Started = r.Started.Add(time.Duration(24*i) * time.Hour)
		if i >= 10 {
			r.Host.Kernel = "6.19.0"
		}
		for cell, us := range map[string]float64{lab.Baseline: alone[i], "idle": alone[i] * idle[i]} {
			now, _ := stats.Typical(samples, cell, lab.P99.Name)
			slower(t, r, cell, us/now)
		}
		runs = append(runs, side(t, fmt.Sprintf("results/%d", i+1), r))
	}
	return runs
}

// wobble is a level with a little noise.
func wobble(level float64, n int) (out []float64) {
	for i := range n {
		out = append(out, level*(1+0.01*float64(i*7%5-2)))
	}
	return out
}

func TestHistory(t *testing.T) {
	t.Parallel()
	runs := course(t, wobble(3000, 20), append(wobble(1.2, 10), wobble(1.6, 10)...))
	runs[3], runs[15] = runs[15], runs[3] // sorted by when they began
	h := history(t, runs)
	if c := h.Series[0]; c.Shift != nil || c.Few {
		t.Errorf("alone is steady: %+v", c)
	}
	if c := h.Series[1]; c.Shift == nil || c.Shift.Run != 10 || c.Shift.Kind != stats.Shifted {
		t.Errorf("idle shifted at 10: %+v", c.Shift)
	}
	s := h.Sheet()
	words := strings.Join(s.Answer, "\n")
	for _, want := range []string{"idle ÷ alone went from 1.20× to 1.60× (+33 %) with run 11", "kernel (6.19.0, was 6.18.0)", "No change of level: p99 alone", "Do it: berth lab compare results/10 results/11"} {
		if !strings.Contains(words, want) {
			t.Errorf("no %q in\n%s", want, words)
		}
	}
	var text, page bytes.Buffer
	if err := Text(&text, s, Options{Width: 100}); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/history.txt", text.Bytes())
	if err := HTML(&page, s); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/history.html", page.Bytes())
	checkPage(t, page.String())

	few := history(t, course(t, wobble(3000, 7), wobble(1.2, 7))).Sheet()
	if len(few.Answer) != 2 || !strings.Contains(few.Answer[0], "Too few runs to tell") || few.Answer[1] != "Do it: berth lab run isolation, 1 more time" || !few.Open {
		t.Errorf("7 runs: %q", few.Answer)
	}
}

// What to do next depends on what was found.
func TestHistoryAct(t *testing.T) {
	t.Parallel()
	value := func(of ...float64) (all []*float64) {
		for _, v := range of {
			all = append(all, &v)
		}
		return append(all, nil)
	}
	h := &History{Experiment: "pinning"}
	for _, name := range []string{"a", "b c", "d", "e", "f"} {
		h.Runs = append(h.Runs, Run{Name: name})
	}
	for _, tc := range []struct {
		series []Course
		steady int
		want   string
	}{
		{[]Course{{Few: true}}, 0, "Do it: berth lab run pinning, 3 more times"},
		{[]Course{{Few: true}, {}}, 1, "Run it once more after the next change of machine, kernel, program or settings. Do it: berth lab run pinning"},
		{[]Course{{}, {Shift: &Shift{Run: 2, Kind: stats.Shifted}}, {Shift: &Shift{Run: 4, Kind: stats.Shifted}}}, 1, "Do it: berth lab compare 'b c' d"},
		{[]Course{{Values: value(3, 1, 4, 2), Shift: &Shift{Run: 1, Kind: stats.Switching}}}, 0, "Do it: berth lab compare 'b c' d"},
	} {
		h.Series = tc.series
		if got := strings.Join(h.act(tc.steady), " "); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}

func history(t *testing.T, runs []Side) *History {
	t.Helper()
	h, err := HistoryOf(runs)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// Figures that are no times and have no reference are followed by themselves, table by table;
// a lower bound is no figure.
func TestHistoryOfOtherFigures(t *testing.T) {
	t.Parallel()
	side := func(bound bool) Side {
		h := fakeHeader(1, 1)
		count := Judged{Name: "faults", Cells: []JudgedCell{{Name: "fork"}}, Figures: []stats.Figure{{Name: "detected", Unit: "s"}},
			Samples: []stats.Sample{{Cell: "fork", Figures: map[string]float64{"detected": 2}}}}
		late := Judged{Name: "steady", Reference: "alone", Cells: []JudgedCell{{Name: "alone"}}, Figures: []stats.Figure{lab.P99},
			Samples: []stats.Sample{{Cell: "alone", Bound: bound, Figures: map[string]float64{"p99": 2000}}}}
		return Side{Kind: "guard", Settings: struct{}{}, Head: &h.Header, Judged: []Judged{count, late}}
	}
	h := history(t, []Side{side(false), side(true)})
	if len(h.Series) != 2 {
		t.Fatalf("%d series: %+v", len(h.Series), h.Series)
	}
	if c := h.Series[0]; c.name() != "detected faults: fork" || c.value(*c.Values[0]) != "2.00 s" || c.Values[1] == nil {
		t.Errorf("%s: %+v", c.name(), c)
	}
	if c := h.Series[1]; c.Values[0] == nil || c.Values[1] != nil {
		t.Errorf("%s: %v, want the second to be no figure", c.name(), c.Values)
	}
}
