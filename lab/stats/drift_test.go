package stats

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFindDrift(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		series []float64
		want   Drift
		text   string
	}{
		{"constant", []float64{4, 4, 4, 4, 4, 4, 4, 4}, Drift{Kind: Steady, From: 4, To: 4}, "steady"},
		{"an outlier", []float64{4, 4.1, 4, 9, 4.1, 4, 4.1, 4, 4.1, 4}, Drift{Kind: Steady, From: 4.05, To: 4.05}, "steady"},
		{
			"a step", []float64{100, 101, 100, 101, 100, 101, 115, 116, 115, 116, 115, 116},
			Drift{Kind: Shifted, Index: 6, From: 100.5, To: 115.5, Serious: true},
			"went from 100 to 116 (+15 %) at reading 7",
		},
		{
			"a step down of 7 %", []float64{100, 101, 100, 101, 100, 101, 93, 94, 93, 94, 93, 94},
			Drift{Kind: Shifted, Index: 6, From: 100.5, To: 93.5}, "went from 100 to 93.5 (-7 %) at reading 7",
		},
		{
			"a small step", []float64{100, 101, 100, 101, 100, 101, 103, 104, 103, 104, 103, 104},
			Drift{Kind: Steady, From: 102, To: 102}, "steady",
		},
		{
			"two levels", []float64{14, 140, 14.2, 14.1, 139, 141, 14, 143, 14.3, 135, 14, 14.1},
			Drift{Kind: Switching, Index: 1, From: 14.1, To: 140, Serious: true}, "switched between 14.1 and 140",
		},
		{
			"two levels within 5 %", []float64{100, 104, 100, 104, 100, 104, 100, 104, 100, 104},
			Drift{Kind: Steady, From: 102, To: 102}, "steady",
		},
		{
			"a ramp", []float64{100, 102, 104, 106, 108, 110, 112, 114, 116, 118, 120, 122},
			Drift{Kind: Shifted, Index: 6, From: 105, To: 117, Serious: true},
			"went from 105 to 117 (+11 %) at reading 7",
		},
	} {
		got, ok := FindDrift(tc.series)
		if diff := cmp.Diff(tc.want, got); diff != "" || !ok || got.String() != tc.text {
			t.Errorf("%s: %v, %q: %s", tc.name, ok, got, diff)
		}
	}
}

func TestFindDriftRefuses(t *testing.T) {
	t.Parallel()
	for name, series := range map[string][]float64{
		"nothing":      nil,
		"seven":        {1, 1, 1, 1, 1, 1, 1},
		"a zero":       {1, 1, 1, 0, 1, 1, 1, 1},
		"a negative":   {1, 1, 1, -1, 1, 1, 1, 1},
		"not a number": {1, 1, 1, math.NaN(), 1, 1, 1, 1},
		"infinite":     {1, 1, 1, math.Inf(1), 1, 1, 1, 1},
	} {
		if d, ok := FindDrift(series); ok {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// noise is the reading of a probe that does not drift.
type noise struct {
	name   string
	next   func(r *rand.Rand, last float64) float64 // its log, about 0
	alarms float64                                  // share of series that may be called drifting, at most
	steps  float64                                  // share of steps of 15 % to find, at least
}

func noises() []noise {
	return []noise{
		{"normal 2 %", func(r *rand.Rand, _ float64) float64 { return 0.02 * r.NormFloat64() }, 0.01, 0.95},
		{"normal 5 %", func(r *rand.Rand, _ float64) float64 { return 0.05 * r.NormFloat64() }, 0.02, 0.90},
		{"normal 2 %, every tenth +50 %", func(r *rand.Rand, _ float64) float64 {
			x := 0.02 * r.NormFloat64()
			if r.IntN(10) == 0 {
				x += math.Log(1.5)
			}
			return x
		}, 0.60, 0.50}, // a tenth at another level counts as switching
		{"exponential tail 5 %", func(r *rand.Rand, _ float64) float64 { return 0.05 * r.ExpFloat64() }, 0.02, 0.90},
		{"autocorrelated (0.5) 2 %", func(r *rand.Rand, last float64) float64 {
			return 0.5*last + 0.02*math.Sqrt(0.75)*r.NormFloat64()
		}, 0.05, 0.90},
	}
}

// TestDriftRates logs and checks how often noise is called drift, and how often a real step of
// 15 % or two real levels are found.
func TestDriftRates(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("simulation in short mode")
	}
	n, lengths := 60, []int{42}
	if fullSimulation() {
		n, lengths = 4000, []int{42, 140}
	}
	for _, readings := range lengths {
		for _, kind := range noises() {
			var alarms, switches, steps, near, levels int
			for i := range n {
				r := rand.New(rand.NewPCG(uint64(i), uint64(readings)))
				quiet, step, two := make([]float64, readings), make([]float64, readings), make([]float64, readings)
				last := 0.0
				for j := range quiet {
					last = kind.next(r, last)
					quiet[j] = 14 * math.Exp(last)
					step[j], two[j] = quiet[j], quiet[j]
					if j >= readings/3 {
						step[j] *= 1.15
					}
					if r.IntN(3) == 0 {
						two[j] *= 10
					}
				}
				d, _ := FindDrift(quiet)
				alarms += count(d.Kind == Shifted)
				switches += count(d.Kind == Switching)
				d, _ = FindDrift(step)
				steps += count(d.Kind == Shifted && d.Serious)
				near += count(d.Kind == Shifted && math.Abs(float64(d.Index-readings/3)) <= 2)
				d, _ = FindDrift(two)
				levels += count(d.Kind == Switching)
			}
			percent := func(k int) float64 { return 100 * float64(k) / float64(n) }
			t.Logf("| %s | %d | %d | %.1f | %.1f | %.1f | %.1f | %.1f |", kind.name, readings, n,
				percent(alarms), percent(switches), percent(steps), percent(near), percent(levels))
			if low, _ := bounds(alarms+switches, n, checked); low > kind.alarms {
				t.Errorf("%s, %d readings: %.1f %% false alarms", kind.name, readings, percent(alarms+switches))
			}
			if float64(steps) < kind.steps*float64(n) || levels < n*9/10 {
				t.Errorf("%s, %d readings: found %d steps and %d pairs of levels of %d", kind.name, readings, steps, levels, n)
			}
		}
	}
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}
