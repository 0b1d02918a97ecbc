package control

import (
	"math"
	"testing"
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
		if y.gain(before) <= 0 {
			t.Errorf("%s: no gain over %v by %v", name, before.total, y.level())
		}
		if c.odd.total == 0 && math.Abs(y.partLevel()-0.18) > 1e-9 {
			t.Errorf("%s: the suspect's part is %v, want 0.18", name, y.partLevel())
		}
	}
}
