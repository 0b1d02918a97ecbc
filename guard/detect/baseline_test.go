package detect

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMeanConverges(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	var m Mean
	for range 5000 {
		m.add(10 + 2*r.NormFloat64())
	}
	if math.Abs(m.Mean-10) > 0.6 || math.Abs(math.Sqrt(m.Variance)-2) > 0.4 {
		t.Errorf("mean %v, standard deviation %v, want 10 and 2", m.Mean, math.Sqrt(m.Variance))
	}
	before := m.Mean
	if m.add(m.clip(1e6)); m.Mean > before+0.02*3*3 {
		t.Errorf("one outlier moves the mean from %v to %v", before, m.Mean)
	}
}

// The first values are weighted alike: the plain mean and variance.
func TestMeanStart(t *testing.T) {
	t.Parallel()
	var m Mean
	for _, v := range []float64{1, 2, 3, 6} {
		m.add(v)
	}
	if want := (Mean{N: 4, Mean: 3, Variance: 3.5}); !cmp.Equal(m, want) {
		t.Errorf("got %+v, want %+v", m, want)
	}
}

func TestLevel(t *testing.T) {
	t.Parallel()
	for use, want := range map[float64]int{0: 0, 0.12: 0, 0.125: 1, 0.24: 1, 0.25: 2, 1: 4, 2: 5, 1e9: levels - 1, math.Inf(1): levels - 1} {
		if got := level(use); got != want {
			t.Errorf("level(%v) = %d, want %d", use, got, want)
		}
	}
	if got := level(math.NaN()); got != 0 {
		t.Errorf("level(NaN) = %d", got)
	}
}

func TestThreshold(t *testing.T) {
	t.Parallel()
	learn := func(b *Baseline, use, cpi, clock float64, n int) {
		w := window{}
		for i := range w.value {
			w.value[i] = math.NaN()
		}
		w.value[CPUUse], w.value[CPI], w.value[Clock] = use, cpi, clock
		for range n {
			b.add(&w, func(Signal) bool { return true })
		}
	}
	var b Baseline
	learn(&b, 1, 2, 3e9, enough-1)
	if _, _, ok := b.threshold(CPI, 1); ok {
		t.Error("a threshold from too few values")
	}
	learn(&b, 1, 2, 3e9, 1)
	learn(&b, 2, 4, 2e9, enough)
	for _, tc := range []struct {
		signal     Signal
		use        float64
		want, mean float64
		ok         bool
	}{
		{CPI, 0.1, 0, 0, false},
		{CPI, 0.5, 2.2, 2, true}, // a level below: that of 1 CPU counts
		{CPI, 1, 4.4, 4, true},   // the level above allows more
		{CPI, 4, 4.4, 4, true},
		{Clock, 0.5, 2.7e9, 3e9, true},
		{Clock, 1, 1.8e9, 2e9, true},
		{MPKI, 1, 0, 0, false},
		{CPUUse, 1, 0, 0, false},
	} {
		got, mean, ok := b.threshold(tc.signal, tc.use)
		if math.Abs(got-tc.want) > 1e-6*tc.want || mean != tc.mean || ok != tc.ok {
			t.Errorf("threshold of %v at %v CPUs = %v, %v, %v, want %+v", tc.signal, tc.use, got, mean, ok, tc)
		}
	}
}

// What was long ago is forgotten, and what varies has a threshold beyond that.
func TestThresholdOfWhatVaries(t *testing.T) {
	t.Parallel()
	var m Mean
	for i := range 1100 {
		v := 1.
		if i < 1000 {
			v = 0
		}
		m.add(v)
	}
	if m.Mean < 0.8 {
		t.Errorf("mean %v after a hundred values of 1, want most of it", m.Mean)
	}
	var b Baseline
	w := window{}
	for i := range w.value {
		w.value[i] = math.NaN()
	}
	w.value[CPUUse] = 1
	for i := range enough {
		w.value[CPI] = float64(1 + 2*(i%2))
		b.add(&w, func(Signal) bool { return true })
	}
	if threshold, _, _ := b.threshold(CPI, 1); math.Abs(threshold-4) > 0.01 {
		t.Errorf("threshold %v, want two standard deviations of 1 above 2", threshold)
	}
}

// An outlier hardly moves what is usual.
func TestOutlier(t *testing.T) {
	t.Parallel()
	var b Baseline
	w := window{}
	for i := range w.value {
		w.value[i] = math.NaN()
	}
	w.value[CPUUse], w.value[CPI] = 1, 2
	for range enough {
		b.add(&w, func(Signal) bool { return true })
	}
	w.value[CPI] = 100
	b.add(&w, func(Signal) bool { return true })
	if _, mean, _ := b.threshold(CPI, 1); mean > 2.01 || mean == 2 {
		t.Errorf("usually %v after one of 100, want hardly more than 2", mean)
	}
}

func TestNamesAreComplete(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	check := func(kind, name, words string) {
		if name == "" || words == "" || strings.Contains(name, " ") || seen[kind+name] {
			t.Errorf("%s %q (%q) is empty, used twice or no word", kind, name, words)
		}
		seen[kind+name] = true
	}
	for _, r := range Resources() {
		check("resource", r.String(), resourceInfos[r].plain)
		if len(resourceInfos[r].useful) == 0 {
			t.Errorf("%v: no signal tells about it", r)
		}
	}
	for r, words := range remedyWords {
		check("remedy", r.String(), words)
	}
	for _, info := range resourceInfos {
		for _, r := range slices.Concat(info.remedies, info.own) {
			if remedyWords[r] == "" {
				t.Errorf("remedy %s of %s: no words", r, info.name)
			}
		}
	}
	for s := range Signal(signals) {
		check("signal", s.String(), s.Words())
	}
	for _, bad := range []string{"", "heat", "unknown(3)"} {
		var r Resource
		var s Signal
		if r.UnmarshalText([]byte(bad)) == nil || s.UnmarshalText([]byte(bad)) == nil {
			t.Errorf("%q is taken for a name", bad)
		}
	}
	if _, err := Resource(99).MarshalText(); err == nil {
		t.Error("resource 99 has a name")
	}
}
