package detect

import (
	"math/rand/v2"
	"testing"
)

// Growth that goes on for a while before anybody suffers must not have become
// usual by then: by a jump, and by a ramp that is longer than the delay.
func TestGrowthIsNotLearnt(t *testing.T) {
	t.Parallel()
	for name, grown := range map[string]func(windows int) float64{
		"jump": func(int) float64 { return 0.5 },
		"ramp": func(windows int) float64 { return 0.04 * float64(windows) },
	} {
		for _, usual := range []int{20, 300} {
			for _, windows := range []int{3, 10, 25} {
				if name == "jump" && windows > 10 {
					continue // that is the new normal
				}
				m, r := meter{}, rand.New(rand.NewPCG(1, 2))
				level := func(growth float64) float64 { return 1e9 * (1 + growth + 0.005*r.NormFloat64()) }
				for range usual {
					m.updateUsual(level(0), 10)
				}
				for i := range windows {
					m.updateUsual(level(grown(i+1)), 10)
				}
				want := 1e9 * grown(windows)
				if got := m.growth(level(grown(windows))); got < 0.5*want {
					t.Errorf("%s of %d windows after %d usual ones: grown by %.3g, want about %.3g", name, windows, usual, got, want)
				}
			}
		}
	}
}

// What stays is usual in the end.
func TestGrowthThatStays(t *testing.T) {
	t.Parallel()
	m, r := meter{}, rand.New(rand.NewPCG(1, 2))
	for i := range 400 {
		at := 1e9
		if i >= 100 {
			at = 2e9
		}
		m.updateUsual(at*(1+0.005*r.NormFloat64()), 10)
	}
	if got := m.growth(2e9); got > 0 {
		t.Errorf("grown by %.3g after 300 windows, want 0", got)
	}
}
