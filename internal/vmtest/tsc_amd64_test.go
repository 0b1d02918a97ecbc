package vmtest

import (
	"math"
	"testing"
)

func TestTSC(t *testing.T) {
	t.Parallel()
	a, b := float64(tscKHz()), float64(tscKHz())
	if a < 100_000 || math.Abs(a-b) > 0.01*a {
		t.Errorf("%v kHz, then %v kHz", a, b)
	}
}
