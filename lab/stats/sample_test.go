package stats

import "testing"

// timed is a round of the given length with n requests in each second.
func timed(seconds, n int) Round {
	r := Round{}
	for range seconds {
		r.Seconds = append(r.Seconds, flat(100, n).Seconds...)
	}
	return r
}

func TestSupported(t *testing.T) {
	t.Parallel()
	repeat := func(n int, r Round) []Round {
		out := make([]Round, n)
		for i := range out {
			out[i] = r
		}
		return out
	}
	for _, tc := range []struct {
		name   string
		rounds []Round
		p      float64
		want   string // "" is supported
	}{
		{"nothing", nil, 50, "no requests"},
		{"empty", []Round{{}, {}}, 50, "no requests"},
		{"p50 just", repeat(1, timed(1, 6)), 50, ""},
		{"p50 not", repeat(1, timed(1, 5)), 50, "needs 1 more round"},
		{"p95 just", repeat(1, timed(1, 72)), 95, ""},
		{"p95 not", repeat(1, timed(1, 71)), 95, "needs 1 more round"},
		{"p5 just", repeat(1, timed(1, 72)), 5, ""},
		{"p99 just", repeat(2, timed(1, 184)), 99, ""},
		{"p99 not", repeat(3, timed(1, 122)), 99, "needs 1 more round"},
		{"p99 by far not", repeat(1, timed(1, 10)), 99, "needs 36 more rounds"},
		{"p99 with an empty round", append(repeat(2, timed(1, 184)), Round{}), 99, "needs rounds of 1 s or more (1 requests each; the smallest has 0)"},
		{"p99.9 just", repeat(10, timed(10, 1000)), 99.9, ""},
		{"p99.9 too few", repeat(6, timed(10, 1000)), 99.9, "needs 4 more rounds"},
		{"p99.9 too short", repeat(50, timed(2, 2000)), 99.9, "needs rounds of 5 s or more (10000 requests each; the smallest has 4000)"},
		{"p99.9 quick", repeat(6, timed(2, 2000)), 99.9, "needs rounds of 5 s or more (10000 requests each; the smallest has 4000) and 100000 requests in all, not 24000"},
		{"p99.99", repeat(10, timed(10, 1000)), 99.99, "needs rounds of 100 s or more (100000 requests each; the smallest has 10000) and 1000000 requests in all, not 100000"},
		{"maximum", repeat(10, timed(10, 1000)), 100, "p100 cannot be estimated from any sample"},
		{"minimum", repeat(10, timed(10, 1000)), 0, "p0 cannot be estimated from any sample"},
	} {
		ok, reason := Supported(tc.rounds, tc.p)
		if ok != (tc.want == "") || reason != tc.want {
			t.Errorf("%s: %v, %q, want %q", tc.name, ok, reason, tc.want)
		}
	}
}

func TestAtLeast(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		censored, offered int
		p                 float64
		want              bool
	}{
		{0, 0, 99, false}, {0, 1000, 99, false}, {9, 1000, 99, false}, {11, 1000, 99, true},
		{11, 1000, 95, false}, {2, 1000, 99.9, true}, {1000, 1000, 50, true}, {500, 1000, 50, false},
	} {
		if got := AtLeast(tc.censored, tc.offered, tc.p); got != tc.want {
			t.Errorf("AtLeast(%d, %d, %g) = %v", tc.censored, tc.offered, tc.p, got)
		}
	}
}

func TestLagGate(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		lag, response float64
		ok            bool
	}{
		{0, 0, true}, {1, 0, false},
		{20, 100, true}, {21, 100, false}, // a fifth
		{50, 250, true}, {50, 400, true}, {51, 400, false}, // 50 µs
		{100, 1000, true}, {101, 1000, false}, // a tenth
		{8000, 32000, false}, {2000, 32000, true},
	} {
		if ok, why := LagGate(tc.lag, tc.response); ok != tc.ok || ok != (why == "") {
			t.Errorf("LagGate(%v, %v) = %v, %q", tc.lag, tc.response, ok, why)
		}
	}
}

func TestLoadGates(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		done, offered int
		want          bool
	}{{100, 100, false}, {95, 100, false}, {94, 100, true}, {101, 100, false}, {0, 0, false}} {
		if got := Saturated(tc.done, tc.offered); got != tc.want {
			t.Errorf("Saturated(%d, %d) = %v", tc.done, tc.offered, got)
		}
	}
	for _, tc := range []struct {
		steal, foreign float64
		want           string
	}{
		{0, 0, ""}, {0.01, 0.05, ""},
		{0.02, 0, "the hypervisor took 2.0 % of the CPU time"},
		{0, 0.06, "other processes used 6.0 % of the CPU time"},
		{0.02, 0.06, "the hypervisor took 2.0 % and other processes 6.0 % of the CPU time"},
	} {
		if ok, why := HostGate(tc.steal, tc.foreign); why != tc.want || ok != (why == "") {
			t.Errorf("HostGate(%v, %v) = %v, %q", tc.steal, tc.foreign, ok, why)
		}
	}
}

// flat is a round of one second with n requests of the same latency.
func flat(latency int64, n int) Round {
	h := NewHistogram()
	if err := h.RecordValues(latency, int64(n)); err != nil {
		panic(err)
	}
	return Round{Seconds: []Distribution{compact(h)}}
}
