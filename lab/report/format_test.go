package report

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/lab/stats"
)

func TestClipApart(t *testing.T) {
	t.Parallel()
	ticks := []Tick{{Text: "stress-ng-cpu"}, {Text: "stress-ng-cache"}, {Text: "stress-ng-stream"}, {Text: "a-long-name-alone"}, {Text: "fio"}}
	for i, want := range []string{"stre…ng-cpu", "stre…-cache", "stre…stream", "a-long-nam…", "fio"} {
		if got := clipApart(ticks[i].Text, 11, ticks); got != want {
			t.Errorf("%s: %q, want %q", ticks[i].Text, got, want)
		}
	}
}

func TestDigits3(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		v    float64
		want string
	}{
		{0, "0"}, {1, "1.00"}, {9.994, "9.99"}, {9.996, "10.0"}, {0.1234, "0.123"}, {0.01234, "0.0123"}, {99.96, "100"}, {123.4, "123"},
		{4823, "4823"}, {-2.5, "-2.50"}, {0.9996, "1.00"}, {1e-9, "0.000000"}, {math.NaN(), absent}, {math.Inf(1), absent},
	} {
		if got := digits3(tt.v); got != tt.want {
			t.Errorf("digits3(%v) = %s, want %s", tt.v, got, tt.want)
		}
	}
}

func TestLatency(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		us   float64
		want string
	}{
		{0, "0 µs"}, {46, "46.0 µs"}, {999, "999 µs"}, {999.6, "1.00 ms"}, {1000, "1.00 ms"}, {131000, "131 ms"}, {999600, "1.00 s"}, {6e7, "60.0 s"},
	} {
		if got := latency(tt.us); got != tt.want {
			t.Errorf("latency(%v) = %s, want %s", tt.us, got, tt.want)
		}
	}
}

func TestUnitFor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		us   []float64
		want string
	}{
		{nil, "µs"}, {[]float64{0}, "µs"}, {[]float64{99}, "µs"}, {[]float64{100, 5e6}, "ms"}, {[]float64{99999, 5e6}, "ms"}, {[]float64{1e5, 0}, "s"},
	} {
		if got := unitFor(tt.us...).name; got != tt.want {
			t.Errorf("unitFor(%v) = %s, want %s", tt.us, got, tt.want)
		}
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		iv   stats.Interval
		want string
	}{
		{stats.Interval{Estimate: 1.012, Low: 0.961, High: 1.064}, "1.01 [0.96, 1.06]"},
		{stats.Interval{Estimate: 28.44, Low: 24.9, High: 31.2}, "28.4 [24.9, 31.2]"},
		{stats.Interval{Estimate: 312, Low: 9.4, High: 5120}, "312 [9, >999]"},
		{stats.Interval{Estimate: 0.5, Low: 0.25, High: 1}, "0.50 [0.25, 1.00]"},
	} {
		if got := times(tt.iv); got != tt.want {
			t.Errorf("times(%+v) = %s, want %s", tt.iv, got, tt.want)
		}
	}
}

func TestSpan(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		d    time.Duration
		want string
	}{
		{0, "0 µs"}, {300 * time.Millisecond, "300 ms"}, {1500 * time.Microsecond, "1.5 ms"}, {2 * time.Second, "2 s"}, {97*time.Second + 400*time.Millisecond, "1m37s"},
	} {
		if got := span(tt.d); got != tt.want {
			t.Errorf("span(%v) = %s, want %s", tt.d, got, tt.want)
		}
	}
}

func TestSentence(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"": "", "  ": "", "drift": "Drift.", "Done.": "Done.", "é": "É.", "p99:": "P99:",
	} {
		if got := sentence(in); got != want {
			t.Errorf("sentence(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestTicks(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		s    scale
		n    int
		want []float64
	}{
		{scale{min: 0, max: 106}, 10, []float64{0, 20, 40, 60, 80, 100}},
		{scale{min: 0, max: 106}, 5, []float64{0, 50, 100}},
		{scale{min: 1, max: 1e6, log: true}, 7, []float64{1, 10, 100, 1e3, 1e4, 1e5, 1e6}},
		{scale{min: 0.8, max: 40, log: true}, 9, []float64{1, 2, 3, 5, 10, 20, 30}},
		{scale{min: 1, max: 1e12, log: true}, 4, []float64{1, 1e4, 1e8, 1e12}},
	} {
		got := tt.s.ticks(tt.n)
		if diff := cmp.Diff(tt.want, got, cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(a) })); diff != "" {
			t.Errorf("%+v.ticks(%d) (-want +got):\n%s", tt.s, tt.n, diff)
		}
	}
}

// Whatever the values, a scale covers them and has at least one tick and not
// many more than asked for.
func FuzzLogScale(f *testing.F) {
	f.Add(1.0, 2.0)
	f.Add(0.0, 0.0)
	f.Add(math.Inf(1), -1.0)
	f.Add(1e-99, 1e99)
	f.Add(1e-300, 1e300)
	f.Fuzz(func(t *testing.T, a, b float64) {
		s := logScale([]float64{a, b}, 400, 0)
		if !(s.min > 0 && s.max > s.min) {
			t.Fatalf("scale of %v and %v: %+v", a, b, s)
		}
		for _, v := range []float64{a, b} {
			if v > 1e-100 && v < 1e100 {
				if y := s.at(v); !(y >= -1e-6 && y <= 400+1e-6) {
					t.Errorf("%v is drawn at %v", v, y)
				}
			}
		}
		if n := len(s.ticks(8)); n < 1 || n > 9 {
			t.Errorf("scale of %v and %v: %d ticks", a, b, n)
		}
	})
}

func TestSpread(t *testing.T) {
	t.Parallel()
	got := spread([]label{{want: 100, index: 0}, {want: 101, index: 1}, {want: 99, index: 2}, {want: 10, index: 3}, {want: 199, index: 4}}, 15, 0, 200)
	var order []int
	for i, l := range got {
		order = append(order, l.index)
		if i > 0 && l.y-got[i-1].y < 14.9 {
			t.Errorf("labels %d and %d are %.1f apart", i-1, i, l.y-got[i-1].y)
		}
		if l.y < 0 || l.y > 200 {
			t.Errorf("label %d at %.1f", i, l.y)
		}
	}
	if want := []int{3, 2, 0, 1, 4}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}
