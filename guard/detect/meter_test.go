package detect

import (
	"math"
	"math/rand/v2"
	"testing"

	"berth.dev/berth/watch"
)

func TestHeld(t *testing.T) {
	t.Parallel()
	m := meter{series: *watch.NewSeries(watch.LLCOccupancy, samples)}
	for i := range watch.Time(3) {
		if err := m.series.Add((98+i)*watch.Second, float64(1+i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		to, since watch.Time // in seconds; the last level is that of 100
		want      float64    // NaN: none
		fresh     bool
	}{
		{100, 100, 3, true},
		{101, 99, 3, false},
		{101, 100, math.NaN(), false},
		{100 + heldWindows, 99, 3, false},
		{101 + heldWindows, 99, math.NaN(), false},
	} {
		to := tc.to * watch.Second
		got, fresh := m.held(to-watch.Second, to, tc.since*watch.Second)
		if !(got == tc.want || math.IsNaN(got) && math.IsNaN(tc.want)) || fresh != tc.fresh {
			t.Errorf("at %d s, after %d s: %v %v, want %v %v", tc.to, tc.since, got, fresh, tc.want, tc.fresh)
		}
	}
}

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

// Growth is what is beyond three standard deviations of what is usual, once that is known.
func TestGrowth(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		values      int
		level, want float64
	}{{enoughValues, 1.29, 0}, {enoughValues, 1.31, 0.31}, {enoughValues - 1, 1.31, 0}} {
		m := meter{usual: Mean{N: tc.values, Mean: 1, Variance: 0.01}}
		if got := m.growth(tc.level); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("%g, usually 1 by %d values: grown by %g, want %g", tc.level, tc.values, got, tc.want)
		}
	}
}

// Of a window half must be known, and of a sum all parts.
func TestPartOfAWindow(t *testing.T) {
	t.Parallel()
	var m meters
	for part, seconds := range [][]float64{{10.5625, 11}, {10, 11}, {10.25, 10.75}} {
		for _, s := range seconds {
			m.add(&watch.Sample{Time: watch.Time(s * float64(watch.Second)), Subject: watch.Subject{Part: watch.Part{Kind: watch.Cache, ID: part}}, Quantity: watch.LLCOccupancy, Value: 5}, "")
		}
	}
	for part, want := range []float64{math.NaN(), 5, 5} {
		got := m.find(watch.LLCOccupancy, watch.Part{Kind: watch.Cache, ID: part}, "").level(10*watch.Second, 11*watch.Second)
		if got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Errorf("part %d: %v, want %v", part, got, want)
		}
	}
	if got := m.sum(watch.LLCOccupancy, watch.Cache, 10*watch.Second, 11*watch.Second); !math.IsNaN(got) {
		t.Errorf("the sum is %v though a part is missing", got)
	}
}

// While somebody suffers nothing becomes usual, and where that makes a finding neither does what was about to.
func TestUsualWhileSomebodySuffers(t *testing.T) {
	t.Parallel()
	for short, want := range map[int]int{0: 2, 1: 1, agree - 1: 1, agree: 0} {
		d, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		d.Track(Workload{Group: "hog"})
		hog := d.byGroup["hog"]
		for second := range watch.Time(2) {
			hog.add(&watch.Sample{Time: (10 + second) * watch.Second, Quantity: watch.Memory, Value: 5}, "")
		}
		m := hog.find(watch.Memory, watch.Part{}, "")
		m.usual, m.pending = Mean{N: enoughValues, Mean: 1}, []float64{5}
		d.updateUsual(watch.Memory, short, 10*watch.Second, 11*watch.Second)
		if len(m.pending) != want || m.usual.Mean != 1 {
			t.Errorf("short in %d windows: %v are about to be usual, and %v is; want %d and 1", short, m.pending, m.usual.Mean, want)
		}
	}
}
