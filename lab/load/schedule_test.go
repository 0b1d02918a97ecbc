package load

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The schedule is part of what makes runs comparable: it must never change.
func TestScheduleIsFixed(t *testing.T) {
	t.Parallel()
	got := Schedule(1000, 42, 5*time.Millisecond)
	want := []int64{1602069, 2204206, 2583224, 3056734}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Schedule(1000, 42, 5ms) (-want +got):\n%s", diff)
	}
}

func TestSchedulePrefix(t *testing.T) {
	t.Parallel()
	short := Schedule(2000, 7, time.Second)
	long := Schedule(2000, 7, 2*time.Second)
	if diff := cmp.Diff(short, long[:len(short)]); diff != "" {
		t.Errorf("a longer schedule does not begin with the shorter (-short +long):\n%s", diff)
	}
	if next := long[len(short)]; next < int64(time.Second) {
		t.Errorf("the shorter schedule lacks a request due at %d", next)
	}
	if slices.Equal(short, Schedule(2000, 8, time.Second)) {
		t.Error("another seed gives the same schedule")
	}
}

// A Poisson process: the count has the variance of its mean, and gaps are
// exponential. The bounds are five standard deviations; the seed is fixed.
func TestScheduleIsPoisson(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{0.5, 100, 20000} {
		length := time.Duration(50_000 / rate * float64(time.Second))
		due := Schedule(rate, 3, length)
		if !slices.IsSorted(due) {
			t.Fatalf("rate %v: not in order", rate)
		}
		if last := due[len(due)-1]; last >= int64(length) {
			t.Errorf("rate %v: last due at %d, the length is %d", rate, last, length)
		}
		if n := float64(len(due)); math.Abs(n-50_000) > 5*math.Sqrt(50_000) {
			t.Errorf("rate %v: %v requests, want about 50000", rate, n)
		}
		for _, times := range []float64{0.1, 1, 3} {
			longer, previous := 0.0, int64(0)
			for _, d := range due {
				if float64(d-previous) > times*1e9/rate {
					longer++
				}
				previous = d
			}
			n, p := float64(len(due)), math.Exp(-times)
			if math.Abs(longer-n*p) > 5*math.Sqrt(n*p*(1-p)) {
				t.Errorf("rate %v: %v gaps longer than %v times the mean, want about %.0f", rate, longer, times, n*p)
			}
		}
	}
}

func TestScheduleShort(t *testing.T) {
	t.Parallel()
	if due := Schedule(1e-9, 1, time.Second); len(due) != 0 {
		t.Errorf("a request per 30 years: got %v", due)
	}
}

func ExampleSchedule() {
	fmt.Println(len(Schedule(2000, 1, time.Second)), "requests in the first second")
	// Output: 1940 requests in the first second
}
