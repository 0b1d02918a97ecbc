package detect

import (
	"testing"
	"time"

	"berth.dev/berth/watch"
)

// A quota that runs out once in its period explains what shorter windows see between.
func TestQuotaBetweenWindows(t *testing.T) {
	t.Parallel()
	w := &workload{}
	for _, tc := range []struct {
		at   time.Duration
		out  float64
		want bool
	}{{40 * time.Millisecond, 0, false}, {80 * time.Millisecond, 1, true}, {120 * time.Millisecond, 0, true}, {320 * time.Millisecond, 0, true}, {360 * time.Millisecond, 0, false}} {
		w.to, w.value[ThrottledPeriods] = watch.Time(tc.at), tc.out
		if got, _, _ := w.explained(); got != tc.want {
			t.Errorf("after %v: %v, want %v", tc.at, got, tc.want)
		}
	}
}
