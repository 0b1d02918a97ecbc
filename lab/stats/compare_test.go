package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// rounds of cells whose latency and throughput are times those of the reference.
func rounds(seed uint64, blocks int, times map[string]float64) []Sample {
	r := rand.New(rand.NewPCG(seed, 3))
	var all []Sample
	for block := range blocks {
		level := math.Exp(0.5 * r.NormFloat64()) // of the machine at the time
		for cell, t := range times {
			noise := math.Exp(0.05 * r.NormFloat64())
			all = append(all, Sample{Cell: cell, Block: block, Figures: map[string]float64{"p99": 10 * level * t * noise, "rate": 100 / t / noise / level, "hit": 0.9 - 0.1*t}})
		}
	}
	return all
}

var figures = []Figure{{Name: "p99", Unit: Microseconds}, {Name: "rate", More: true}, {Name: "hit", Share: true, More: true}}

func TestCompare(t *testing.T) {
	t.Parallel()
	all := Compare(rounds(1, 30, map[string]float64{"ref": 1, "again": 1, "bad": 2, "good": 0.5}), figures, []Versus{
		{Cell: "bad", Against: "ref", References: []string{"ref", "again"}}, {Cell: "good", Against: "ref"}, {Cell: "again", Against: "ref"}, {Cell: "absent", Against: "ref"},
	})
	if len(all) != 9 {
		t.Fatalf("%d comparisons, want 9: %+v", len(all), all)
	}
	for _, tc := range []struct {
		cell, figure string
		verdict      Verdict
		estimate     float64
		words        string
	}{
		{"bad", "p99", Worse, 2, " times ("}, {"bad", "rate", Worse, 0.5, "0.5"}, {"bad", "hit", Worse, -0.1, ""},
		{"good", "p99", Better, 0.5, "0."}, {"good", "rate", Better, 2, " times ("}, {"good", "hit", Better, 0.05, ""},
		{"again", "p99", Equivalent, 1, "as good as ref, within 10 %"}, {"again", "rate", Equivalent, 1, ""}, {"again", "hit", Equivalent, 0, ""},
	} {
		c, ok := Of(all, tc.cell, "ref", tc.figure)
		if !ok || c.Verdict != tc.verdict || math.Abs(c.Estimate-tc.estimate) > 0.06*max(1, tc.estimate) || c.Low > c.Estimate || c.High < c.Estimate || !strings.Contains(c.Words(), tc.words) && !strings.HasPrefix(tc.words, "0") {
			t.Errorf("%s %s: %+v, %q; want %s of %g", tc.cell, tc.figure, c, c.Words(), tc.verdict, tc.estimate)
		}
	}
	if v, ok := Typical(rounds(1, 3, map[string]float64{"ref": 1}), "ref", "hit"); !ok || math.Abs(v-0.8) > 1e-9 {
		t.Errorf("typical %g, %v", v, ok)
	}
}

// Why is of the figure itself, as the estimate is: where more is better, of its inverse it says nothing.
func TestCompareWhy(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 3))
	var samples []Sample
	for block := range 30 {
		noise := r.NormFloat64()
		samples = append(samples,
			Sample{Cell: "ref", Block: block, Figures: map[string]float64{"p99": 10, "rate": 100, "hit": 0.5}},
			Sample{Cell: "wild", Block: block, Figures: map[string]float64{"p99": 12 * math.Exp(noise), "rate": 80 * math.Exp(noise), "hit": 0.48 + 0.1*noise}})
	}
	all := Compare(samples, figures, []Versus{{Cell: "wild", Against: "ref"}})
	for figure, format := range map[string]string{"p99": "%.2f times", "rate": "%.2f times", "hit": "%+.1f points"} {
		c, _ := Of(all, "wild", "ref", figure)
		shown, one := c.Estimate, 1.
		if figure == "hit" {
			shown, one = 100*shown, 0
		}
		if want := fmt.Sprintf(format, shown) + " is not beyond chance"; c.Verdict != Inconclusive || c.Why != want || math.Abs(c.Estimate-one) < 0.001 {
			t.Errorf("%s: %s, %q, want it undecided: %q (%+v)", figure, c.Verdict, c.Why, want, c.Interval)
		}
	}
}

// What queued without end is worse, if its lower bound is; it is never as good or better.
// Of two that queue without end one may be worse, in rounds of their length; of two of which requests failed, neither.
func TestCompareLowerBounds(t *testing.T) {
	t.Parallel()
	compareLowerBounds(t, false, Better)
	compareLowerBounds(t, true, Inconclusive)
}

func compareLowerBounds(t *testing.T, failed bool, both Verdict) {
	t.Helper()
	samples := rounds(2, 30, map[string]float64{"ref": 1, "bad": 2, "good": 0.5})
	for i := range samples {
		samples[i].Bound = samples[i].Cell != "ref" && samples[i].Block%5 == 0
		samples[i].Failed = samples[i].Bound && failed
	}
	all := Compare(samples, figures, []Versus{{Cell: "bad", Against: "ref"}, {Cell: "good", Against: "ref"}, {Cell: "good", Against: "bad"}, {Cell: "ref", Against: "good"}})
	for _, tc := range []struct {
		cell, against, figure string
		want                  Verdict
	}{
		{"bad", "ref", "p99", Worse}, {"good", "ref", "p99", Inconclusive}, {"good", "ref", "rate", Better}, {"good", "bad", "p99", both}, {"ref", "good", "p99", Inconclusive},
	} {
		if c, _ := Of(all, tc.cell, tc.against, tc.figure); c.Verdict != tc.want {
			t.Errorf("%s of %s against %s: %s (%s), want %s", tc.figure, tc.cell, tc.against, c.Verdict, c.Why, tc.want)
		}
	}
}

// Of two upper bounds neither is better; against an exact figure the lower one is. Only response times are late.
func TestCompareUpperBounds(t *testing.T) {
	t.Parallel()
	samples := rounds(2, 30, map[string]float64{"ref": 1, "again": 1, "bad": 2, "good": 0.5, "best": 0.25})
	for i := range samples {
		if cell := samples[i].Cell; cell == "again" || cell == "good" {
			samples[i].Late = map[string]string{"p99": "lag of 5", "p50": ""}
		}
	}
	all := Compare(samples, figures, []Versus{
		{Cell: "good", Against: "ref"}, {Cell: "good", Against: "both", References: []string{"ref", "again"}}, {Cell: "bad", Against: "again"}, {Cell: "best", Against: "good"}, {Cell: "good", Against: "bad"},
	})
	for _, tc := range []struct {
		cell, against, figure string
		want                  Verdict
	}{
		{"good", "ref", "p99", Better}, {"good", "both", "p99", Inconclusive}, {"good", "both", "rate", Better}, {"bad", "again", "p99", Worse},
		{"best", "good", "p99", Inconclusive}, {"best", "good", "rate", Better}, {"good", "bad", "p99", Better},
	} {
		if c, _ := Of(all, tc.cell, tc.against, tc.figure); c.Verdict != tc.want {
			t.Errorf("%s of %s against %s: %s (%s), want %s", tc.figure, tc.cell, tc.against, c.Verdict, c.Why, tc.want)
		}
	}
	if LowerBound(samples, "good") || BoundsOf(samples, "p99", "ref", "good") != Late || BoundsOf(samples, "p50", "good") != Exact {
		t.Error("an upper bound is taken for another")
	}
}

// Each verdict stays where the true values, beyond the bounds, make it only truer.
func TestTemper(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		own, other Bounds
		stays      []Verdict
		why        string // of one that does not
	}{
		{Exact, Exact, []Verdict{Worse, Better, Equivalent}, ""},
		{Late, Exact, []Verdict{Better}, "its figures are upper bounds"},
		{Exact, Late, []Verdict{Worse}, "the figures of ref are upper bounds"},
		{Late, Late, nil, "both are upper bounds: the machine held up the generator"},
		{Queued, Exact, []Verdict{Worse}, "its figures are lower bounds"},
		{Exact, Queued, []Verdict{Better}, "the figures of ref are lower bounds"},
		{Failed, Exact, []Verdict{Worse}, "its figures are lower bounds"},
		{Queued, Queued, []Verdict{Worse, Better}, "both are lower bounds"},
		{Failed, Queued, nil, "both are lower bounds"},
		{Queued, Late, []Verdict{Worse}, "its figures are lower bounds"},
		{Late, Queued, []Verdict{Better}, "its figures are upper bounds"},
		{Failed, Late, []Verdict{Worse}, "its figures are lower bounds"},
		{Late, Failed, []Verdict{Better}, "its figures are upper bounds"},
		{Queued | Late, Exact, nil, "its figures are lower bounds in some rounds and upper bounds in others"},
		{Failed | Late, Queued, nil, "its figures are lower bounds in some rounds and upper bounds in others"},
		{Exact, Queued | Late, nil, "the figures of ref are lower bounds in some rounds and upper bounds in others"},
		{Queued | Failed, Exact, []Verdict{Worse}, "its figures are lower bounds"},
		{Queued | Failed, Queued, nil, "both are lower bounds"},
	} {
		for _, v := range []Verdict{Worse, Better, Equivalent} {
			j := Judgement{Verdict: v, Why: "so", MoreBlocks: 7, Sees: 1.2}
			j.Temper(tc.own, tc.other, "ref")
			if slices.Contains(tc.stays, v) {
				if j.Verdict != v || j.MoreBlocks != 7 || j.Sees != 1.2 || !strings.HasPrefix(j.Why, "so") {
					t.Errorf("%s of %d against %d: %+v, want it to stay", v, tc.own, tc.other, j)
				}
			} else if j.Verdict != Inconclusive || j.MoreBlocks != 0 || j.Sees != 0 || !strings.HasPrefix(j.Why, tc.why) {
				t.Errorf("%s of %d against %d: %+v, want it taken back as %q", v, tc.own, tc.other, j, tc.why)
			}
		}
		for _, v := range []Verdict{Inconclusive, Invalid} {
			j := Judgement{Verdict: v, Why: "so", MoreBlocks: 7, Sees: 1.2}
			if j.Temper(tc.own, tc.other, "ref"); j.Verdict != v || j.Why != "so" || j.MoreBlocks != 7 {
				t.Errorf("%s of %d against %d: %+v", v, tc.own, tc.other, j)
			}
		}
	}
}
