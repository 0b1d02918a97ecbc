package stats

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// second is the distribution of the given latencies.
func second(latencies ...int64) Distribution {
	h := NewHistogram()
	for _, v := range latencies {
		if err := h.RecordValue(v); err != nil {
			panic(err)
		}
	}
	return compact(h)
}

// flat is a round of one second with n requests of the same latency.
func flat(latency int64, n int) Round {
	all := make([]int64, n)
	for i := range all {
		all[i] = latency
	}
	return Round{Seconds: []Distribution{second(all...)}}
}

func TestQuantileByHand(t *testing.T) {
	t.Parallel()
	// 1 to 10 over two rounds and three seconds.
	rounds := []Round{
		{Seconds: []Distribution{second(1, 10), second(2, 9, 3)}},
		{},
		{Seconds: []Distribution{{}, second(8, 4, 7, 5, 6)}},
	}
	for _, tc := range []struct{ p, want float64 }{
		{0, 1}, {10, 1}, {15, 2}, {50, 5}, {55, 6}, {90, 9}, {99, 10}, {100, 10},
	} {
		got := quantile(rounds, tc.p, Options{})
		if got.Estimate != tc.want || got.Rounds != 2 || got.Confidence != 0.95 {
			t.Errorf("p%g: %+v, want %v of 2 rounds", tc.p, got, tc.want)
		}
		if got.Low > got.Estimate || got.High < got.Estimate {
			t.Errorf("p%g: %+v: estimate outside its interval", tc.p, got)
		}
	}
}

func TestQuantileEdges(t *testing.T) {
	t.Parallel()
	if got := quantile(nil, 99, Options{}); got != (Interval{}) {
		t.Errorf("of nothing: %+v", got)
	}
	if got := quantile([]Round{{}, {Seconds: []Distribution{{}}}}, 99, Options{}); got != (Interval{}) {
		t.Errorf("of empty rounds: %+v", got)
	}
	one := Interval{Estimate: 7, Low: 7, High: 7, Confidence: 0.95, Rounds: 1}
	if got := quantile([]Round{flat(7, 3)}, 50, Options{}); got != one {
		t.Errorf("of one round: %+v, want %+v", got, one)
	}
	same := Interval{Estimate: 7, Low: 7, High: 7, Confidence: 0.95, Rounds: 2}
	if got := quantile([]Round{flat(7, 3), flat(7, 5)}, 50, Options{}); got != same {
		t.Errorf("of two alike: %+v, want %+v", got, same)
	}
	// Two rounds: the tail is so thin that the interval is all there is.
	wide := Interval{Estimate: 5, Low: 5, High: 9, Confidence: 0.95, Rounds: 2}
	if got := quantile([]Round{flat(5, 3), flat(9, 3)}, 50, Options{}); got != wide {
		t.Errorf("of two unlike: %+v, want %+v", got, wide)
	}
}

// sampleRounds simulates rounds that differ.
func sampleRounds(seed uint64, rounds, seconds int) []Round {
	q := queue{rate: 500, service: 400, stalls: 1, stall: 8000, roundShift: 0.1}
	r, c := rand.New(rand.NewPCG(seed, 1)), new(recorder)
	out := make([]Round, rounds)
	for i := range out {
		out[i] = q.round(r, c, seconds)
	}
	return out
}

func TestDeterministic(t *testing.T) {
	t.Parallel()
	base, other := sampleRounds(1, 6, 2), sampleRounds(2, 6, 2)
	ps := []float64{50, 95, 99, 99.9}
	all := Quantiles(base, ps, Options{})
	for i, p := range ps {
		if got := quantile(base, p, Options{}); got != all[i] {
			t.Errorf("p%g: %+v alone, %+v together", p, got, all[i])
		}
		if a, b := Ratio(base, other, p, Options{}), Ratio(base, other, p, Options{}); a != b {
			t.Errorf("p%g: ratio %+v, then %+v", p, a, b)
		}
	}
}

// TestPoolOracle: a weighted quantile of the pool is that of real histograms
// merged as often as the weights say.
func TestPoolOracle(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(9, 9))
	for trial := range 20 {
		seconds := make([][]Distribution, 1+r.IntN(4))
		for i := range seconds {
			seconds[i] = make([]Distribution, 1+r.IntN(3))
			for j := range seconds[i] {
				seconds[i][j] = compact(fill(t, r, 1+r.IntN(200)))
			}
		}
		rounds := make([]Round, len(seconds))
		for i := range rounds {
			rounds[i].Seconds = seconds[i]
		}
		for name, p := range map[string]*pool{"seconds": poolSeconds(rounds), "rounds": poolRounds(rounds)} {
			weights := make([]int64, p.parts)
			for i := range weights {
				weights[i] = r.Int64N(3)
			}
			merged := NewHistogram()
			for i := range rounds {
				for j, d := range seconds[i] {
					part := i
					if name == "seconds" {
						part = p.first[i] + j
					}
					for _, b := range d.buckets {
						if err := merged.RecordValues(valueOf(b.slot), b.count*weights[part]); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			for _, percent := range []float64{0, 1, 50, 90, 99, 99.9, 100} {
				if got, want := p.quantile(percent, weights), float64(merged.ValueAtQuantile(percent)); got != want {
					t.Errorf("trial %d, %s: p%g is %v, want %v", trial, name, percent, got, want)
				}
			}
		}
	}
}

// TestRatioByHand: with two blocks a resample is one of three, with chances
// 1/4, 1/2, 1/4, so the interval can be worked out.
func TestRatioByHand(t *testing.T) {
	t.Parallel()
	base := []Round{flat(100, 10), flat(100, 10)}
	other := []Round{flat(200, 30), flat(400, 10)}
	// Pooled p50 of other is 200 unless block 2 is drawn twice: log ratios are
	// ln 2 (3/4) and ln 4 (1/4), of variance (ln 2)²·3/16. Student's t with one
	// degree of freedom is 12.706; the small-sample factor is sqrt 2.
	half := 12.706 * math.Sqrt2 * math.Ln2 * math.Sqrt(3.0/16)
	got := Ratio(base, other, 50, Options{Resamples: 100_000})
	if got.Estimate != 2 || got.Rounds != 2 || got.Confidence != 0.95 {
		t.Errorf("%+v, want 2 of 2 rounds", got)
	}
	near := cmpopts.EquateApprox(0.01, 0)
	if h := halfLog(got); !cmp.Equal(h, half, near) {
		t.Errorf("half width %v, want %v", h, half)
	}
	if !cmp.Equal(got.Low*got.High, 4.0, near) {
		t.Errorf("%+v is not symmetric on the log scale", got)
	}
}

func TestRatioPairs(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		base, other []Round
		want        Interval
	}{
		"nothing":      {nil, nil, Interval{}},
		"one side":     {[]Round{flat(5, 1)}, nil, Interval{}},
		"no pair":      {[]Round{flat(5, 1), {}}, []Round{{}, flat(5, 1)}, Interval{}},
		"one block":    {[]Round{flat(5, 1)}, []Round{flat(10, 1)}, Interval{2, 2, 2, 0.95, 1}},
		"without pair": {[]Round{flat(5, 1), flat(50, 9)}, []Round{flat(10, 1)}, Interval{2, 2, 2, 0.95, 1}},
		"a gap": {
			[]Round{flat(5, 1), flat(50, 9), flat(5, 3)},
			[]Round{flat(10, 1), {}, flat(10, 2)},
			Interval{2, 2, 2, 0.95, 2},
		},
		// The machine is twice as slow in the second block, on both sides.
		"a drift": {[]Round{flat(5, 1), flat(10, 1)}, []Round{flat(10, 1), flat(20, 1)}, Interval{2, 2, 2, 0.95, 2}},
	} {
		if diff := cmp.Diff(tc.want, Ratio(tc.base, tc.other, 50, Options{}), cmpopts.EquateApprox(1e-9, 0)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestTail(t *testing.T) {
	t.Parallel()
	near := cmpopts.EquateApprox(0.001, 0)
	for _, tc := range []struct {
		n       int
		t, tail float64
	}{
		// Student's t from the tables; Φ(-t·sqrt(n/(n-1))).
		{2, 12.7062, 1.6e-72}, {6, 2.57058, 0.0024325}, {10, 2.26216, 0.0085459}, {20, 2.09302, 0.0158831},
	} {
		if got := student(tc.n, 0.95); !cmp.Equal(got, tc.t, near) {
			t.Errorf("t of %d: %v, want %v", tc.n, got, tc.t)
		}
		if got := expandedTail(tc.n, 0.95); !cmp.Equal(got, tc.tail, near) && tc.n > 2 {
			t.Errorf("tail of %d: %v, want %v", tc.n, got, tc.tail)
		}
	}
}

// BenchmarkReport is the intervals of a whole report: seven scenarios of 6
// rounds of 10 seconds, four quantiles each, and six ratios of each.
func BenchmarkReport(b *testing.B) {
	scenarios := make([][]Round, 7)
	q := queue{rate: 2000, service: 200, stalls: 0.5, stall: 8000, roundShift: 0.03}
	r, c := rand.New(rand.NewPCG(1, 1)), new(recorder)
	for i := range scenarios {
		for range 6 {
			scenarios[i] = append(scenarios[i], q.round(r, c, 10))
		}
	}
	ps := []float64{50, 95, 99, 99.9}
	b.ReportAllocs()
	for b.Loop() {
		for i, s := range scenarios {
			Quantiles(s, ps, Options{})
			for _, p := range ps {
				if i > 0 {
					Ratio(scenarios[0], s, p, Options{})
				}
			}
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	h := NewHistogram()
	for _, bar := range sampleRounds(1, 1, 1)[0].Seconds[0].buckets {
		if err := h.RecordValues(valueOf(bar.slot), bar.count); err != nil {
			b.Fatal(err)
		}
	}
	text, err := Encode(h)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(text); err != nil {
			b.Fatal(err)
		}
	}
}

// quantile is one of Quantiles.
func quantile(rounds []Round, p float64, opt Options) Interval {
	return Quantiles(rounds, []float64{p}, opt)[0]
}
