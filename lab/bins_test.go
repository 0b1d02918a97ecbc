package lab

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/lab/stats"
)

const ms = time.Millisecond

func TestJudgeBins(t *testing.T) {
	t.Parallel()
	requests := []Request{
		{Due: 10 * ms, Seen: 10*ms + 900*time.Microsecond, Done: 12 * ms},
		{Due: 20 * ms, Seen: 20*ms + 100*time.Microsecond, Done: 22 * ms},
		{Due: 60 * ms, Seen: 61*ms + time.Microsecond, Done: 62 * ms},
		{Due: 120 * ms, Seen: -1, Done: -1, Failed: true},
	}
	for name, tc := range map[string]struct {
		taken Bin // in the first bin
		cpus  int
		ahead bool
		want  []bool
	}{
		"late once":        {Bin{}, 2, true, []bool{false, true, true}},
		"rounding":         {Bin{Foreign: 0.02}, 2, true, []bool{false, true, true}},
		"foreign":          {Bin{Foreign: 0.021}, 2, true, []bool{true, true, true}},
		"steal":            {Bin{Steal: 0.03}, 2, true, []bool{true, true, true}},
		"both":             {Bin{Steal: 0.011, Foreign: 0.01}, 2, true, []bool{true, true, true}},
		"of more CPUs":     {Bin{Foreign: 0.021}, 3, true, []bool{false, true, true}},
		"late as all are":  {Bin{}, 2, false, []bool{false, false, false}},
		"late, and steal":  {Bin{Steal: 0.03}, 2, false, []bool{true, false, false}},
		"others have less": {Bin{Foreign: 0.011}, 1, true, []bool{true, true, true}},
	} {
		bins := make([]Bin, 3)
		bins[0] = tc.taken
		judgeBins(bins, requests, tc.cpus, 400*ms, tc.ahead)
		var got []bool
		for _, b := range bins {
			got = append(got, b.Disturbed)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if bins[0].Lag != 900 || bins[2].Lag != 280_000 {
			t.Errorf("%s: lags %g and %g, want the longest, 900, and 280000 until the end", name, bins[0].Lag, bins[2].Lag)
		}
	}
}

// What is due in a disturbed bin, or in the three after it, is left out, and nothing else.
func TestUndisturbed(t *testing.T) {
	t.Parallel()
	bins := make([]Bin, 10)
	bins[2].Disturbed, bins[9].Disturbed = true, true
	var requests []Request
	for i := range 10 {
		due := time.Duration(i)*binLength + 49*ms
		requests = append(requests, Request{Due: due, Seen: due, Done: due + time.Duration(i+1)*ms})
	}
	requests[6].Failed = true
	requests[8].Done = -1
	u, err := undisturbed(bins, requests, 750*ms)
	if err != nil {
		t.Fatal(err)
	}
	d, err := stats.Decode(u.Response)
	if err != nil {
		t.Fatal(err)
	}
	u.Response = ""
	if diff := cmp.Diff(&Undisturbed{Requests: 5, Censored: 2, LeftOut: 5}, u); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// Left are those of bins 0, 1, 6, 7 and 8, which took 1, 2, 7, 8 and at least 301 ms.
	for p, want := range map[float64]float64{10: 1000, 30: 2000, 50: 7000, 70: 8000, 99: 301_000} {
		if got, _ := d.Quantile(p); got < 0.99*want || got > 1.01*want {
			t.Errorf("p%g: %g µs, want about %g", p, got, want)
		}
	}
}
