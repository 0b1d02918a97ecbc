package watch

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSampleJSON(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		sample Sample
		json   string
		text   string // of the subject
	}{
		{Sample{Time: 5, Quantity: CPUTime, Value: 1.5},
			`{"time":5,"subject":{"scope":"host"},"quantity":"cpu_time","value":1.5}`, "host"},
		{Sample{Subject: Subject{Part: Part{CPU, 3}}, Quantity: CPUWait},
			`{"time":0,"subject":{"scope":"host","part":{"kind":"cpu","id":3}},"quantity":"cpu_wait","value":0}`, "host/cpu3"},
		{Sample{Subject: Subject{Group, "a/b", Part{Device, DeviceID(8, 1)}}, Quantity: IORead},
			`{"time":0,"subject":{"scope":"group","name":"a/b","part":{"kind":"device","id":8388609}},"quantity":"io_read","value":0}`, "group a/b/8:1"},
		{Sample{Subject: Subject{Scope: Process, Name: "42"}, Quantity: Frozen},
			`{"time":0,"subject":{"scope":"process","name":"42"},"quantity":"frozen","value":0}`, "process 42"},
	} {
		data, err := json.Marshal(tc.sample)
		if err != nil || string(data) != tc.json {
			t.Errorf("marshal: %s, %v; want %s", data, err, tc.json)
		}
		var back Sample
		if err := json.Unmarshal(data, &back); err != nil || back != tc.sample {
			t.Errorf("unmarshal: %+v, %v; want %+v", back, err, tc.sample)
		}
		if got := tc.sample.Subject.String(); got != tc.text {
			t.Errorf("subject %q, want %q", got, tc.text)
		}
	}
	for _, bad := range []string{
		`{"quantity":"heat"}`, `{"quantity":""}`, `{"quantity":1}`,
		`{"subject":{"scope":"planet"}}`, `{"subject":{"part":{"kind":"wheel"}}}`,
	} {
		var s Sample
		if err := json.Unmarshal([]byte(bad), &s); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
	if _, err := json.Marshal(Sample{Quantity: 200}); err == nil {
		t.Error("marshal an unknown quantity: no error")
	}
}

func TestQuantities(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for q := range Frozen + 1 {
		if name := q.String(); name == "" || seen[name] || strings.Contains(name, " ") {
			t.Errorf("quantity %d: name %q is empty, used twice or no word", q, name)
		}
		seen[q.String()] = true
		if q.Unit() == Seconds && !q.Counter() && q != QueueP99 {
			t.Errorf("%v: a gauge of seconds", q)
		}
	}
	if len(seen) != int(Frozen)+1 {
		t.Errorf("%d quantities, want %d", len(seen), Frozen+1)
	}
}

// series makes one from values a second apart, from 1 s on; NaN is missing.
func series(t *testing.T, q Quantity, size int, values ...float64) *Series {
	t.Helper()
	s := NewSeries(q, size)
	for i, v := range values {
		if err := s.Add(Time(i+1)*Second, v); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestMean(t *testing.T) {
	t.Parallel()
	miss := math.NaN()
	for _, tc := range []struct {
		name          string
		quantity      Quantity
		values        []float64
		from, to      Time
		mean, covered float64
	}{
		{"counter", CPUTime, []float64{10, 11, 13}, 1 * Second, 3 * Second, 1.5, 1},
		{"part of an interval", CPUTime, []float64{10, 11, 13}, 1500 * Millisecond, 2500 * Millisecond, 1.5, 1},
		{"more than is known", CPUTime, []float64{10, 11, 13}, 0, 4 * Second, 1.5, 0.5},
		{"reset", CPUTime, []float64{10, 12, 1, 2}, 1 * Second, 4 * Second, 1.5, 2.0 / 3},
		{"missing", CPUTime, []float64{10, 12, miss, 14, 15}, 1 * Second, 5 * Second, 1.5, 0.5},
		{"infinite is missing", CPUTime, []float64{10, math.Inf(1), 14, 15}, 1 * Second, 4 * Second, 1, 1.0 / 3},
		{"still", CPUTime, []float64{10, 10}, 1 * Second, 2 * Second, 0, 1},
		{"oldest forgotten", CPUTime, []float64{0, 100, 101, 102, 103}, 0, 5 * Second, 1, 0.4},
		{"gauge", Memory, []float64{10, 20, 30}, 1 * Second, 3 * Second, 25, 1},
		{"gauge goes down", Memory, []float64{30, 20, 10}, 1 * Second, 3 * Second, 15, 1},
		{"gauge missing", Memory, []float64{30, miss, 10, 10}, 1 * Second, 4 * Second, 10, 1.0 / 3},

		{"nothing", CPUTime, nil, 0, Second, 0, 0},
		{"one sample", CPUTime, []float64{10}, 0, 2 * Second, 0, 0},
		{"all missing", CPUTime, []float64{miss, miss}, 0, 2 * Second, 0, 0},
		{"before all", CPUTime, []float64{10, 11}, 0, 1 * Second, 0, 0},
		{"no time", CPUTime, []float64{10, 11}, Second, Second, 0, 0},
		{"backwards", CPUTime, []float64{10, 11}, 2 * Second, 1 * Second, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			size := 10
			if tc.name == "oldest forgotten" {
				size = 3
			}
			mean, covered := series(t, tc.quantity, size, tc.values...).Mean(tc.from, tc.to)
			if math.Abs(mean-tc.mean) > 1e-12 || math.Abs(covered-tc.covered) > 1e-12 {
				t.Errorf("Mean = %v of %v, want %v of %v", mean, covered, tc.mean, tc.covered)
			}
		})
	}
}

// Level is that of the last interval alone.
func TestLevel(t *testing.T) {
	t.Parallel()
	miss := math.NaN()
	for _, tc := range []struct {
		name     string
		quantity Quantity
		values   []float64
		want     float64
		ok       bool
	}{
		{"counter", CPUTime, []float64{0, 10, 12}, 2, true},
		{"still", CPUTime, []float64{0, 10, 10}, 0, true},
		{"reset", CPUTime, []float64{10, 12, 1}, 0, false},
		{"missing", CPUTime, []float64{10, 12, miss}, 0, false},
		{"after a missing one", CPUTime, []float64{10, miss, 12}, 0, false},
		{"gauge", Memory, []float64{30, 20}, 20, true},
		{"one sample", CPUTime, []float64{10}, 0, false},
		{"nothing", CPUTime, nil, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got, ok := series(t, tc.quantity, 2, tc.values...).Level(); got != tc.want || ok != tc.ok {
				t.Errorf("%v, %v; want %v, %v", got, ok, tc.want, tc.ok)
			}
		})
	}
}

func TestLast(t *testing.T) {
	t.Parallel()
	s := series(t, Memory, 3, 10, 20)
	if err := s.Add(5*Second, math.NaN()); err != nil {
		t.Fatal(err)
	}
	if v, age, ok := s.Last(6 * Second); v != 20 || age != 4*Second || !ok {
		t.Errorf("Last = %v, %v, %v; want 20, 4 s", v, age, ok)
	}
	if _, _, ok := series(t, Memory, 3, math.NaN()).Last(Second); ok {
		t.Error("Last of a series of missing samples is ok")
	}
}

func TestAddRefusesDisorder(t *testing.T) {
	t.Parallel()
	s := series(t, Memory, 2, 1, 2, 3)
	for _, at := range []Time{3 * Second, 2 * Second, -1} {
		if err := s.Add(at, 4); !errors.Is(err, ErrOrder) {
			t.Errorf("Add at %d: %v, want ErrOrder", at, err)
		}
	}
	if v, _, _ := s.Last(3 * Second); v != 3 || len(s.points) != 2 {
		t.Errorf("after refused samples: last %v of %d", v, len(s.points))
	}
}

// A full series allocates nothing when it is added to or asked for its mean.
func TestSeriesAllocatesNothing(t *testing.T) {
	s := series(t, CPUTime, 60, 1, 2)
	at := 3 * Second
	add := func() {
		if err := s.Add(at, float64(at)); err != nil {
			t.Fatal(err)
		}
		s.Mean(at-10*Second, at)
		at += Second
	}
	for range 60 {
		add()
	}
	if n := testing.AllocsPerRun(100, add); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzSeries(f *testing.F) {
	f.Add([]byte{1, 2, 3, 0, 255, 9}, int64(0), int64(5e9))
	f.Fuzz(func(t *testing.T, values []byte, from, to int64) {
		for _, q := range []Quantity{CPUTime, Memory} {
			s := NewSeries(q, 8)
			for i, v := range values {
				value := float64(v)
				if v == 255 {
					value = math.NaN()
				}
				if err := s.Add(Time(i)*Second, value); err != nil {
					t.Fatal(err)
				}
			}
			from, to := Time(from%1e12), Time(to%1e12)
			mean, covered := s.Mean(from, to)
			low, high, seconds := math.Inf(1), 0.0, 0.0
			for level, held := range s.levels(from, to) {
				low, high, seconds = min(low, level), max(high, level), seconds+held
			}
			if seconds == 0 {
				low = 0
			}
			if covered < 0 || covered > 1+1e-9 || (covered > 0) != (seconds > 0) || mean < low-1e-9 || mean > high+1e-9 || mean < 0 {
				t.Errorf("%v: mean %v in [%v, %v], covered %v", q, mean, low, high, covered)
			}
		}
	})
}

func BenchmarkSeries(b *testing.B) {
	b.ReportAllocs()
	s := NewSeries(CPUTime, 60)
	at := Time(0)
	for b.Loop() {
		at += Second
		if err := s.Add(at, at.Seconds()); err != nil {
			b.Fatal(err)
		}
		s.Mean(at-10*Second, at)
	}
}

func TestPartString(t *testing.T) {
	t.Parallel()
	want := []string{"", "cpu0", "node12", "259:7", "unknown(9)1"}
	var got []string
	for _, p := range []Part{{}, {CPU, 0}, {Node, 12}, {Device, DeviceID(259, 7)}, {9, 1}} {
		got = append(got, p.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Levels compare the last two ticks; what one of them lacks has none, though it was told
// before.
func TestLevels(t *testing.T) {
	t.Parallel()
	var l Levels
	show := func(at Time, values map[Quantity]float64) string {
		l.Tick(at, values)
		var b strings.Builder
		for _, q := range []Quantity{CPUTime, Memory} {
			v, told := l.Value(q)
			level, ok := l.Level(q)
			fmt.Fprintf(&b, "%v %v, %v %v; ", v, told, level, ok)
		}
		return b.String()
	}
	for i, step := range []struct {
		values map[Quantity]float64
		want   string
	}{
		{map[Quantity]float64{CPUTime: 10, Memory: 7}, "10 true, 0 false; 7 true, 0 false; "},
		{map[Quantity]float64{CPUTime: 12, Memory: 9}, "12 true, 2 true; 9 true, 9 true; "},
		{map[Quantity]float64{Memory: 8}, "0 false, 0 false; 8 true, 8 true; "},
		{map[Quantity]float64{CPUTime: 13}, "13 true, 0 false; 0 false, 0 false; "},
		{map[Quantity]float64{CPUTime: 14}, "14 true, 1 true; 0 false, 0 false; "},
		{map[Quantity]float64{CPUTime: 1}, "1 true, 0 false; 0 false, 0 false; "},
	} {
		if got := show(Time(i+1)*Second, step.values); got != step.want {
			t.Errorf("tick %d: %s; want %s", i, got, step.want)
		}
	}
}
