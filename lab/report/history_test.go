package report

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// course makes up runs in which the tenant alone has a p99 and idle a ratio.
func course(t *testing.T, alone, idle []float64) []Side {
	t.Helper()
	var runs []Side
	for i := range alone {
		r := fakeHeader(1, 1)
		r.Started = r.Started.Add(time.Duration(24*i) * time.Hour)
		if i >= 10 {
			r.Host.Kernel = "6.19.0"
		}
		ratio := stats.Interval{Estimate: idle[i]}
		a := &lab.Analysis{Rows: []lab.Row{
			{Scenario: lab.Baseline, Quantiles: []lab.Quantile{{P: 99, Estimate: alone[i]}}},
			{Scenario: "idle", Ratio: &ratio},
		}}
		runs = append(runs, Side{fmt.Sprintf("results/%d", i+1), &lab.Measured{Result: r}, a})
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
	h := HistoryOf(runs)
	if c := h.Series[0]; c.Shift != nil || c.Few {
		t.Errorf("alone is steady: %+v", c)
	}
	if c := h.Series[1]; c.Shift == nil || c.Shift.Run != 10 || c.Shift.Kind != stats.Shifted {
		t.Errorf("idle shifted at 10: %+v", c.Shift)
	}
	s := h.Sheet()
	words := strings.Join(s.Answer, "\n")
	for _, want := range []string{"idle ÷ alone went from 1.20× to 1.60× (+33 %) with run 11", "kernel (6.19.0, was 6.18.0)", "No change of level: p99 alone"} {
		if !strings.Contains(words, want) {
			t.Errorf("no %q in\n%s", want, words)
		}
	}
	var text, page bytes.Buffer
	if err := Text(&text, s, Options{Width: 100}); err != nil {
		t.Fatal(err)
	}
	golden(t, "history.txt", text.Bytes())
	if err := HTML(&page, s); err != nil {
		t.Fatal(err)
	}
	golden(t, "history.html", page.Bytes())
	checkPage(t, page.String())

	few := HistoryOf(course(t, wobble(3000, 7), wobble(1.2, 7))).Sheet()
	if len(few.Answer) != 1 || !strings.Contains(few.Answer[0], "Too few runs to tell") || !few.Open {
		t.Errorf("7 runs: %q", few.Answer)
	}
}
