package report

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/golden"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// slower is the fake result with one scenario's response times multiplied.
func slower(t *testing.T, r *lab.Result, scenario string, factor float64) *lab.Result {
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
					if err := out.RecordValues(int64(float64(bar.To)*factor), bar.Count); err != nil {
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

// side is a result to be compared.
func side(t *testing.T, name string, r *lab.Result) Side {
	t.Helper()
	return Side{Name: name, Kind: r.Experiment.Name, Settings: &r.Experiment, Head: &r.Header, Judged: []Judged{JudgedIsolation(measured(t, r))}}
}

func TestCompareGolden(t *testing.T) {
	t.Parallel()
	a, b := side(t, "before/result.json", fakeResult(t, fakeBlocks)), side(t, "after/result.json", slower(t, fakeResult(t, fakeBlocks), "idle", 3))
	b.Head.Host.Kernel, b.Head.Setup.Rate, b.Head.Setup.Neighbour.Threads = "6.19.1", 500, 4
	b.Head.Complete = false
	limited := b.Judged[0].Cells[5].Name
	b.Judged[0].Samples = slices.DeleteFunc(b.Judged[0].Samples, func(s stats.Sample) bool { return s.Cell == limited })
	c, err := Compare(a, b)
	if err != nil {
		t.Fatal(err)
	}
	for _, width := range []int{80, 100} {
		var text bytes.Buffer
		if err := Text(&text, c.Sheet(), Options{Width: width}); err != nil {
			t.Fatal(err)
		}
		golden.Check(t, fmt.Sprintf("testdata/compare_%d.txt", width), text.Bytes())
		for line := range strings.Lines(text.String()) {
			if n := len([]rune(line)); n > width+1 {
				t.Errorf("width %d: a line of %d: %q", width, n, line)
			}
		}
	}
	var doc, page bytes.Buffer
	if err := errors.Join(JSON(&doc, c), HTML(&page, c.Sheet())); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/compare.json", doc.Bytes())
	golden.Check(t, "testdata/compare.html", page.Bytes())
	checkPage(t, page.String())
	for _, row := range c.Rows {
		want := stats.Worse
		switch {
		case row.Cell != "idle" || row.Figure.Name == lab.Work.Name:
			continue
		case row.Verdict != want:
			t.Errorf("idle three times slower at %s: %s, want %s", row.Figure.Name, row.Verdict, want)
		case math.Abs(row.Ratio.Estimate-3) > 0.02:
			t.Errorf("idle three times slower at %s: %.3g times", row.Figure.Name, row.Ratio.Estimate)
		}
	}
}

// What to do next depends on what changed.
func TestCompareAct(t *testing.T) {
	t.Parallel()
	c := &Comparison{Experiment: "io", A: ComparisonSide{Name: "before/a b"}}
	for _, tc := range []struct {
		changed, open int
		want          string
	}{
		{1, 5, "Two runs of the same thing may differ by more than these intervals: run it once more as for B, and compare that with before/a b. Do it: berth lab run io"},
		{0, 0, "B is as good as A. Run it once more after the next change. Do it: berth lab run io"},
		{0, 1, "To decide more, run it with more blocks, as for A and as for B. Do it: berth lab run io --set blocks=N"},
	} {
		if got := strings.Join(c.act(tc.changed, tc.open), " "); got != tc.want {
			t.Errorf("%d changed, %d open: %q, want %q", tc.changed, tc.open, got, tc.want)
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
		alone := row.Cell == lab.Baseline // which says that the machine is another
		if decided := row.Verdict == stats.Worse; decided != alone || row.Verdict == stats.Better {
			t.Errorf("%s %s: %s", row.Cell, row.Figure.Name, row.Verdict)
		}
		if row.Ratio != nil && math.Abs(row.Ratio.Estimate-1) > 0.01 {
			t.Errorf("%s %s: ratio changed %.3g times", row.Cell, row.Figure.Name, row.Ratio.Estimate)
		}
	}
}

func TestCompareNothingShared(t *testing.T) {
	t.Parallel()
	a, b := side(t, "a", fakeResult(t, 1)), side(t, "b", fakeResult(t, 1))
	for _, j := range b.Judged {
		for i := range j.Cells {
			j.Cells[i].Name += "-other"
		}
		for i := range j.Samples {
			j.Samples[i].Cell += "-other"
		}
	}
	if c, err := Compare(a, b); err == nil {
		t.Errorf("no error, %d rows", len(c.Rows))
	}
	other := side(t, "b", fakeResult(t, 1))
	other.Head.Schema, other.Kind = "berth.dev/lab-pinning/v1", "pinning"
	if _, err := Compare(a, other); err == nil || !strings.Contains(err.Error(), "b of pinning: want two of the same experiment") {
		t.Errorf("two kinds: %v", err)
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
		}, []string{"setting tenant.service", "setting tenant.workingSetBytes"}},
		{"neighbour", func(r *lab.Result) { r.Setup.Neighbour.Kernel, r.Setup.Neighbour.Bytes = "spin", 0 }, []string{"neighbour", "neighbour's bytes per thread"}},
		{"intensity", func(r *lab.Result) { r.Setup.Neighbour.Intensity = 50 }, []string{"neighbour's intensity, %"}},
		{"backend", func(r *lab.Result) { r.Setup.Backend = "sched" }, []string{"backend"}},
		{"generator", func(r *lab.Result) { r.Setup.GeneratorCPUs = "1" }, []string{"generator"}},
		{"window", func(r *lab.Result) { r.Experiment.Window *= 5 }, []string{"setting window"}},
		{"weight", func(r *lab.Result) {
			for i := range r.Experiment.Scenarios {
				if r.Experiment.Scenarios[i].Name == "weighted" {
					r.Experiment.Scenarios[i].Isolation.Weight = 1
				}
			}
		}, []string{"setting scenarios.weighted.isolation.weight"}},
	}
	for _, tt := range tests {
		a, b := fakeHeader(6, 2), fakeHeader(6, 2)
		tt.change(b)
		var got []string
		all, err := differences(Side{Kind: "x", Head: &a.Header, Settings: a.Experiment}, Side{Kind: "x", Head: &b.Header, Settings: b.Experiment})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range all {
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
		if row.Verdict != stats.Inconclusive && row.Figure.Unit == stats.Microseconds && row.Ratio != nil {
			t.Errorf("%s %s: %s", row.Cell, row.Figure.Name, row.Verdict)
		}
	}
	var text bytes.Buffer
	m := measured(t, busy)
	if err := Text(&text, Isolation(m, m.Analyse()), Options{}); err != nil {
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
		c := Comparison{Rows: []Change{{AtLeastA: tt.a, AtLeastB: tt.b, at: func(float64) stats.Interval { return tt.ratio }}}}
		c.judge()
		if got := c.Rows[0].Verdict; got != tt.want {
			t.Errorf("%.3g, A at least %v, B at least %v: %s, want %s", tt.ratio.Estimate, tt.a, tt.b, got, tt.want)
		}
	}
}

// Of what is better if there is more of it the verdict turns over; shares are compared by their
// difference.
func TestCompareDirections(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		figure stats.Figure
		iv     stats.Interval
		want   stats.Verdict
	}{
		{stats.Figure{}, stats.Interval{Estimate: 2, Low: 1.9, High: 2.1}, stats.Worse},
		{stats.Figure{More: true}, stats.Interval{Estimate: 2, Low: 1.9, High: 2.1}, stats.Better},
		{stats.Figure{More: true}, stats.Interval{Estimate: 0.5, Low: 0.4, High: 0.6}, stats.Worse},
		{stats.Figure{Share: true}, stats.Interval{Estimate: 0.02, Low: 0.01, High: 0.03}, stats.Worse},
		{stats.Figure{Share: true}, stats.Interval{Estimate: 0.001, Low: 0.0005, High: 0.0015}, stats.Equivalent},
		{stats.Figure{Share: true, More: true}, stats.Interval{Estimate: 0.02, Low: 0.01, High: 0.03}, stats.Better},
		{stats.Figure{}, stats.Interval{Estimate: 2, Low: 2, High: 2}, stats.Inconclusive},
	} {
		row := Change{Figure: tt.figure, at: func(float64) stats.Interval { return tt.iv }}
		if got := row.judge(0.01); got != tt.want {
			t.Errorf("%+v %+v: %s, want %s", tt.figure, tt.iv, got, tt.want)
		}
	}
	if got := difference(stats.Interval{Estimate: 5, Low: 2, High: 6}, stats.Interval{Estimate: 1, Low: 0, High: 5}); got.Estimate != 4 || got.Low != -1 || math.Abs(got.High-(4+math.Sqrt2)) > 1e-9 {
		t.Errorf("difference %+v, want 4, from -1 to 5.41", got)
	}
}
