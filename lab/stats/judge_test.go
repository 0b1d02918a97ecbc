package stats

import (
	"math"
	"strings"
	"testing"
)

func interval(estimate, low, high float64, rounds int) Interval {
	return Interval{Estimate: estimate, Low: low, High: high, Confidence: 0.95, Rounds: rounds}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	quiet := interval(1, 0.97, 1.03, 10)
	noisy := interval(1.1, 0.8, 1.5125, 10) // may differ from itself by 1.51
	for _, tc := range []struct {
		name        string
		ratio       Interval
		floor       *Interval
		comparisons int
		want        Verdict
		why         string // a part of it
	}{
		{"clear", interval(3, 2.4, 3.75, 10), &quiet, 5, Worse, "2.40 times the baseline at least; the baseline against itself is 1.00 (0.97 to 1.03)"},
		{"large", interval(312, 250, 389, 10), &quiet, 5, Worse, "250 times"},
		{"better", interval(0.5, 0.4, 0.625, 10), &quiet, 5, Better, "0.62 times the baseline at most"},
		{"alike", interval(1.01, 0.97, 1.05, 10), &quiet, 5, Equivalent, "(0.97 to 1.05) lies within ±10 %"},
		{"alike, no floor", interval(1.01, 0.97, 1.05, 10), nil, 5, Equivalent, "within"},
		{"slower, but alike", interval(1.05, 1.02, 1.08, 10), &quiet, 5, Equivalent, "within"},
		{"touches the margin", interval(1.05, 1.002, 1.1001, 10), &quiet, 5, Inconclusive, "either side of 10 %"},
		{"below the margin's lower end", interval(0.93, 0.89, 0.972, 10), &quiet, 5, Inconclusive, "either side"},
		{"includes 1", interval(1.3, 0.9, 1.88, 10), &quiet, 5, Inconclusive, "(0.90 to 1.88) includes 1"},
		{"noisy machine", interval(1.4, 1.2, 1.63, 10), &noisy, 5, Inconclusive, "no further from 1 than the baseline may be from itself; the baseline against itself is 1.10 (0.80 to 1.51)"},
		{"noisy machine, clear", interval(1.8, 1.4, 2.31, 10), &noisy, 5, Worse, "1.40 times"},
		{"noisy machine, better", interval(0.6, 0.5, 0.72, 10), &noisy, 5, Better, "0.72 times"},
		{"noisy machine, not better", interval(0.7, 0.6, 0.82, 10), &noisy, 5, Inconclusive, "from itself"},
		{"no floor", interval(3, 2.4, 3.75, 10), nil, 5, Worse, "no repeated baseline"},
		{"no floor, one comparison", interval(1.3, 1.05, 1.61, 10), nil, 1, Worse, "1.05"},
		{"no floor, five comparisons", interval(1.3, 1.05, 1.61, 10), nil, 5, Inconclusive, "not beyond chance in 5 comparisons"},
		{"floor of one round", interval(1.3, 1.05, 1.61, 10), &Interval{1, 1, 1, 0.95, 1}, 5, Inconclusive, "5 comparisons"},
		{"one round", interval(9, 9, 9, 1), &quiet, 5, Inconclusive, "one round has no interval"},
		{"no rounds", Interval{}, &quiet, 5, Invalid, "no block"},
		{"not a number", interval(math.NaN(), 1, 1, 9), &quiet, 5, Invalid, "no block"},
	} {
		got := Judge(tc.ratio, tc.floor, tc.comparisons)
		if got.Verdict != tc.want || !strings.Contains(got.Why, tc.why) {
			t.Errorf("%s: %s because %q, want %s because %q", tc.name, got.Verdict, got.Why, tc.want, tc.why)
		}
		if got.MoreRounds != 0 && got.Verdict != Inconclusive {
			t.Errorf("%s: %s asks for %d more rounds", tc.name, got.Verdict, got.MoreRounds)
		}
	}
}

func TestJudgeMoreRounds(t *testing.T) {
	t.Parallel()
	quiet := interval(1, 0.97, 1.03, 10)
	symmetric := func(estimate, factor float64, rounds int) Interval {
		return interval(estimate, estimate/factor, estimate*factor, rounds)
	}
	for _, tc := range []struct {
		name  string
		ratio Interval
		floor *Interval
		want  int
	}{
		// ln 1.5 / ln 1.3 = 1.545; with t from 2.262 to 2.080: 10·(1.545·2.080/2.262)² = 20.2.
		{"wide by half", symmetric(1.3, 1.5, 10), &quiet, 11},
		// As equivalent: the upper end has to come down to 1.1. ln 1.2 / ln 1.1 =
		// 1.913; with t from 2.262 to 2.045: 10·(1.913·2.045/2.262)² = 29.9.
		{"at one", symmetric(1, 1.2, 10), &quiet, 20},
		{"on the margin", symmetric(1.1, 1.2, 10), &quiet, 0},
		{"hopeless", symmetric(1.05, 20, 10), &quiet, 0},
		{"one round", interval(1, 1, 1, 1), &quiet, 1},
	} {
		got := Judge(tc.ratio, tc.floor, 5)
		if got.Verdict != Inconclusive || got.MoreRounds != tc.want {
			t.Errorf("%s: %s, %d more rounds, want %d", tc.name, got.Verdict, got.MoreRounds, tc.want)
		}
	}
}
