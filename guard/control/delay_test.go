package control

import (
	"math"
	"testing"
	"time"
)

// The level is what was waited over what was run: neither a window in which the victim hardly ran nor
// one in which it did not wait at all makes it grow. By the mean of a log-normal distribution it was
// 9.3 and 0.60 here.
func TestLevel(t *testing.T) {
	t.Parallel()
	before := &delayed{total: 1, part: 0.8, probed: true}
	for name, c := range map[string]struct {
		odd, rest delayed
		want      float64
	}{
		"one in which it hardly ran": {delayed{total: 1000, part: 900, run: 0.001}, delayed{total: 0.5, part: 0.2, run: 0.8}, (1 + 9*0.4) / (0.001 + 9*0.8)},
		"one without a wait":         {delayed{run: 0.8}, delayed{total: 0.5, part: 0.2, run: 0.8}, 0.45},
	} {
		var y, more tally
		for range 9 {
			y.add(&c.rest, before)
		}
		more.add(&c.odd, before)
		y.join(&more)
		if got := y.level(); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: level %v, want %v", name, got, c.want)
		}
		if math.IsInf(y.total.Mean, 0) || math.IsNaN(y.total.Mean) {
			t.Errorf("%s: the mean of the logarithms is %v", name, y.total.Mean)
		}
		if y.gain(before) <= 0 {
			t.Errorf("%s: no gain over %v by %v", name, before.total, y.level())
		}
		if c.odd.total == 0 && math.Abs(y.partLevel()-0.18) > 1e-9 {
			t.Errorf("%s: the suspect's part is %v, want 0.18", name, y.partLevel())
		}
	}
}

// How much windows tell of a step: as noise lasts for half a second, short ones tell little, and no more than
// the three before it do.
func TestSince(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		window  time.Duration
		windows int
		want    float64
	}{
		{time.Second, 5, 1.5 * 2.5 / 4}, {time.Second, 1000, 1.5 * 500 / 501.5}, {40 * time.Millisecond, 26, 0.5},
	} {
		y := tally{}
		for range tc.windows {
			y.total.Add(1)
		}
		if got := y.since(tc.window); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("%d windows of %v: %v, want %v", tc.windows, tc.window, got, tc.want)
		}
	}
}
