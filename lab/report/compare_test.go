package report

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// slower is the fake result with one scenario's response times multiplied.
func slower(t *testing.T, r *lab.Result, scenario string, factor int64) *lab.Result {
	t.Helper()
	for i := range r.Rounds {
		if r.Rounds[i].Scenario != scenario {
			continue
		}
		var texts []*string
		for k := range r.Rounds[i].Load.Seconds {
			texts = append(texts, &r.Rounds[i].Load.Seconds[k].Response)
		}
		if u := r.Rounds[i].Undisturbed; u != nil {
			texts = append(texts, &u.Response)
		}
		for _, text := range texts {
			h, err := stats.Decode(*text)
			if err != nil {
				t.Fatal(err)
			}
			out := stats.NewHistogram()
			for _, bar := range h.Histogram().Distribution() {
				if bar.Count > 0 {
					if err := out.RecordValues(bar.To*factor, bar.Count); err != nil {
						t.Fatal(err)
					}
				}
			}
			if *text, err = stats.Encode(out); err != nil {
				t.Fatal(err)
			}
		}
	}
	return r
}

// side is a result with what it comes to.
func side(t *testing.T, name string, r *lab.Result) Side {
	t.Helper()
	m := measured(t, r)
	return Side{name, m, m.Analyse()}
}

func TestCompareGolden(t *testing.T) {
	t.Parallel()
	a, b := side(t, "before/result.json", fakeResult(t, fakeBlocks)), side(t, "after/result.json", slower(t, fakeResult(t, fakeBlocks), "idle", 3))
	b.Result.Host.Kernel, b.Result.Setup.Rate, b.Result.Setup.Neighbour.Threads = "6.19.1", 500, 4
	b.Result.Complete = false
	b.Analysis.Rows[5].Valid = 0
	c, err := Compare(a, b)
	if err != nil {
		t.Fatal(err)
	}
	for _, width := range []int{80, 100} {
		var text bytes.Buffer
		if err := Text(&text, c.Sheet(), Options{Width: width}); err != nil {
			t.Fatal(err)
		}
		golden(t, fmt.Sprintf("compare_%d.txt", width), text.Bytes())
		for line := range strings.Lines(text.String()) {
			if n := len([]rune(line)); n > width+1 {
				t.Errorf("width %d: a line of %d: %q", width, n, line)
			}
		}
	}
	var doc bytes.Buffer
	if err := JSON(&doc, c); err != nil {
		t.Fatal(err)
	}
	golden(t, "compare.json", doc.Bytes())
	for _, row := range c.Rows {
		want := stats.Worse
		switch {
		case row.Scenario != "idle":
			continue
		case row.Verdict != want:
			t.Errorf("idle three times slower at %s: %s, want %s", quantileName(row.P), row.Verdict, want)
		case math.Abs(row.Ratio.Estimate-3) > 0.02:
			t.Errorf("idle three times slower at %s: %.3g times", quantileName(row.P), row.Ratio.Estimate)
		}
	}
}

// A machine that is slower as a whole is not worse isolation.
func TestCompareSlowerMachine(t *testing.T) {
	t.Parallel()
	a, b := fakeResult(t, fakeBlocks), fakeResult(t, fakeBlocks)
	for _, s := range a.Experiment.Scenarios {
		b = slower(t, b, s.Name, 2)
	}
	c, err := Compare(side(t, "a", a), side(t, "b", b))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range c.Rows {
		if row.Verdict == stats.Worse || row.Verdict == stats.Better {
			t.Errorf("%s %s: %s", row.Scenario, quantileName(row.P), row.Verdict)
		}
		if row.Ratio != nil && math.Abs(row.Ratio.Estimate-1) > 0.01 {
			t.Errorf("%s %s: ratio changed %.3g times", row.Scenario, quantileName(row.P), row.Ratio.Estimate)
		}
	}
}

func TestCompareNothingShared(t *testing.T) {
	t.Parallel()
	a, b := side(t, "a", fakeResult(t, 1)), side(t, "b", fakeResult(t, 1))
	for i := range b.Analysis.Rows {
		b.Analysis.Rows[i].Scenario += "-other"
	}
	if c, err := Compare(a, b); err == nil {
		t.Errorf("no error, %d rows", len(c.Rows))
	}
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*lab.Result)
		want   []string
	}{
		{"nothing", func(*lab.Result) {}, nil},
		{"measured a little differently", func(r *lab.Result) {
			r.Setup.Rate *= 1.005
			r.Setup.TenantCPUs *= 1.03
			r.Setup.CPUPerRequest += lab.Duration(60 * time.Microsecond)
		}, nil},
		{"another name of the same machine", func(r *lab.Result) { r.Host.Machine.Name = "other" }, nil},
		{"seed and date", func(r *lab.Result) { r.Experiment.Seed++; r.Started = r.Started.Add(time.Hour) }, nil},
		{"machine", func(r *lab.Result) { r.Host.Machine.Model = "Other" }, []string{"machine"}},
		{"no machine", func(r *lab.Result) { r.Host.Machine = nil }, []string{"machine"}},
		{"kernel", func(r *lab.Result) { r.Host.Kernel = "6.19" }, []string{"kernel"}},
		{"rate", func(r *lab.Result) { r.Setup.Rate *= 1.02 }, []string{"rate, requests/s"}},
		{"service time", func(r *lab.Result) { r.Setup.CPUPerRequest *= 2 }, []string{"tenant's CPU time per request"}},
		{"tenant", func(r *lab.Result) {
			r.Experiment.Tenant.Service, r.Experiment.Tenant.WorkingSetBytes = "other", 1<<30
		}, []string{"tenant", "tenant's working set"}},
		{"neighbour", func(r *lab.Result) { r.Setup.Neighbour.Kernel, r.Setup.Neighbour.Bytes = "spin", 0 }, []string{"neighbour", "neighbour's bytes per thread"}},
		{"intensity", func(r *lab.Result) { r.Setup.Neighbour.Intensity = 50 }, []string{"neighbour's intensity, %"}},
		{"backend", func(r *lab.Result) { r.Setup.Backend = "sched" }, []string{"backend"}},
		{"generator", func(r *lab.Result) { r.Setup.GeneratorCPUs = "1" }, []string{"generator"}},
		{"window", func(r *lab.Result) { r.Experiment.Window *= 5 }, []string{"window of a round"}},
		{"weight", func(r *lab.Result) {
			for i := range r.Experiment.Scenarios {
				if r.Experiment.Scenarios[i].Name == "weighted" {
					r.Experiment.Scenarios[i].Isolation.Weight = 1
				}
			}
		}, []string{"what weighted does"}},
	}
	for _, tt := range tests {
		a, b := fakeHeader(6, 2), fakeHeader(6, 2)
		tt.change(b)
		var got []string
		for _, d := range differences(a, b) {
			got = append(got, d.What)
			if d.A == d.B || d.A == "" || d.B == "" {
				t.Errorf("%s: %s: %q and %q", tt.name, d.What, d.A, d.B)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestQuotient(t *testing.T) {
	t.Parallel()
	iv := func(e, l, h float64) stats.Interval {
		return stats.Interval{Estimate: e, Low: l, High: h, Confidence: 0.95, Rounds: 6}
	}
	tests := []struct {
		name string
		b, a stats.Interval
		want stats.Interval
	}{
		{"two without intervals", iv(6, 6, 6), iv(2, 2, 2), iv(3, 3, 3)},
		{"one without", iv(4, 2, 8), iv(2, 2, 2), iv(2, 2, 2)},
		{"one is sure: the other's interval", iv(4, 2, 8), iv(2, 2, 2.0000000001), iv(2, 1, 4)},
		{"the divisor's interval turns over", iv(2, 2, 2.0000000001), iv(4, 2, 16), iv(0.5, 0.125, 1)},
		{"both: in quadrature", iv(1, 0.5, 2), iv(1, 0.5, 2), iv(1, math.Pow(2, -math.Sqrt2), math.Pow(2, math.Sqrt2))},
		{"no data", stats.Interval{}, iv(1, 1, 1), stats.Interval{}},
		{"by nothing", iv(1, 1, 1), stats.Interval{}, stats.Interval{}},
		{"not a number", iv(math.NaN(), 1, 1), iv(1, 1, 1), stats.Interval{}},
		{"a limit of zero counts as none", iv(1, 0, 2), iv(1, 1, 1.0000000001), iv(1, 1, 2)},
	}
	for _, tt := range tests {
		got := quotient(tt.b, tt.a)
		for _, v := range [][2]float64{{got.Estimate, tt.want.Estimate}, {got.Low, tt.want.Low}, {got.High, tt.want.High}} {
			if !(math.Abs(v[0]-v[1]) < 1e-9) {
				t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
				break
			}
		}
	}
}

// Where even the baseline is a lower bound nothing is judged.
func TestCompareSaturatedBaseline(t *testing.T) {
	t.Parallel()
	busy := slower(t, fakeResult(t, 2), "idle", 3)
	for i := range busy.Rounds {
		busy.Rounds[i].Load.DoneInWindow = busy.Rounds[i].Load.Offered * 8 / 10
	}
	a, b := side(t, "a", fakeResult(t, 2)), side(t, "b", busy)
	c, err := Compare(a, b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"B"}, c.Saturated); diff != "" {
		t.Errorf("saturated (-want +got):\n%s", diff)
	}
	for _, row := range c.Rows {
		if row.Verdict != "" && row.Verdict != stats.Inconclusive {
			t.Errorf("%s %s: %s", row.Scenario, quantileName(row.P), row.Verdict)
		}
	}
	var text bytes.Buffer
	if err := Text(&text, Isolation(measured(t, b.Result.Result), b.Analysis), Options{}); err != nil {
		t.Fatal(err)
	}
	if s := text.String(); !strings.Contains(s, "even alone the tenant cannot keep up") || strings.Contains(s, "Best:") {
		t.Errorf("a saturated baseline is not reported:\n%s", s)
	}
}

// A lower bound supports only the verdict that a larger value would too.
func TestCompareLowerBounds(t *testing.T) {
	t.Parallel()
	worse := stats.Interval{Estimate: 3, Low: 2.9, High: 3.1, Confidence: 0.95, Rounds: 10}
	better := stats.Interval{Estimate: 0.3, Low: 0.29, High: 0.31, Confidence: 0.95, Rounds: 10}
	same := stats.Interval{Estimate: 1, Low: 0.99, High: 1.01, Confidence: 0.95, Rounds: 10}
	tests := []struct {
		ratio stats.Interval
		a, b  bool
		want  stats.Verdict
	}{
		{worse, false, false, stats.Worse},
		{worse, false, true, stats.Worse},
		{worse, true, false, stats.Inconclusive},
		{worse, true, true, stats.Inconclusive},
		{better, false, false, stats.Better},
		{better, true, false, stats.Better},
		{better, false, true, stats.Inconclusive},
		{same, false, false, stats.Equivalent},
		{same, true, false, stats.Inconclusive},
		{same, false, true, stats.Inconclusive},
	}
	for _, tt := range tests {
		c := Comparison{Rows: []Change{{Ratio: &tt.ratio, AtLeastA: tt.a, AtLeastB: tt.b}}}
		c.judge(func(row Change, _ float64) stats.Interval { return *row.Ratio })
		if got := c.Rows[0].Verdict; got != tt.want {
			t.Errorf("%.3g, A at least %v, B at least %v: %s, want %s", tt.ratio.Estimate, tt.a, tt.b, got, tt.want)
		}
	}
}
