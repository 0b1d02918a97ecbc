package guest

import (
	"math"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/watch"
)

// TestShares has two groups contend for one CPU, of which one does so in a child
// of its own: weight and idle act between siblings, that is where the paths of
// two groups diverge, and nowhere else.
func TestShares(t *testing.T) {
	onlyOn(t, "virtual4")
	for name, tt := range map[string]struct {
		of     string
		limits cgroup.Limits
		want   float64 // share of b
	}{
		"equal":          {"a", cgroup.Limits{Weight: 100}, 0.5},
		"weight":         {"a", cgroup.Limits{Weight: 300}, 0.25},
		"weight below":   {"a/kid", cgroup.Limits{Weight: 300}, 0.5},
		"idle below":     {"a/kid", cgroup.Limits{Idle: cgroup.On}, 0.5},
		"idle":           {"a", cgroup.Limits{Idle: cgroup.On}, 1},
		"idle neighbour": {"b", cgroup.Limits{Idle: cgroup.On}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			tr := openTree(t)
			// New groups each time: one that was idle has to wait its turn for a while.
			top := tr.group(t, "shares", "a", "a/kid", "b")
			a, b := top.Child("a"), top.Child("b")
			tr.set(t, top, cgroup.Limits{CPUs: cpuset.MustOf(2)})
			tr.child(t, top.Child("a/kid"), "spin")
			tr.child(t, b, "spin")
			tr.set(t, top.Child(tt.of), tt.limits)
			before := [2]time.Duration{usage(t, a), usage(t, b)}
			time.Sleep(time.Second)
			usedA, usedB := usage(t, a)-before[0], usage(t, b)-before[1]
			share := float64(usedB) / float64(usedA+usedB)
			t.Logf("share %.3f", share)
			if math.Abs(share-tt.want) > 0.02 {
				t.Errorf("share %.3f, want %.2f", share, tt.want)
			}
		})
	}
}

func usage(t *testing.T, g cgroup.Group) time.Duration {
	t.Helper()
	return time.Duration(sample(t, g.Name())[part{quantity: watch.CPUTime}] * float64(time.Second))
}

// TestThrottling limits a group to 20 % of a CPU and compares the counters with
// what they are documented to count: the group's own periods and its own limit,
// and in cpu.stat.local (6.6) any limit's.
func TestThrottling(t *testing.T) {
	onlyOn(t, "virtual4")
	const (
		quota, period = 20 * time.Millisecond, 100 * time.Millisecond // of the group
		periods       = 20
		// What a period more or less is, in seconds: the kernel counts at its end.
		lessCPU, lessThrottled = 0.025, 0.09
	)
	tr := openTree(t)
	top := tr.group(t, "throttled", "kid")
	tr.set(t, top, cgroup.Limits{CPUs: cpuset.MustOf(2)})
	tr.child(t, top.Child("kid"), "spin")
	tr.set(t, top, cgroup.Limits{Quota: quota, Period: period})
	time.Sleep(period)
	before := [2]samples{sample(t, "throttled"), sample(t, "throttled/kid")}
	time.Sleep(periods * period)
	own, kid := sample(t, "throttled").since(before[0]), sample(t, "throttled/kid").since(before[1])
	const seconds = float64(periods * period / time.Second)
	for _, check := range []struct {
		of       samples
		quantity watch.Quantity
		want     float64
		within   float64
	}{
		{own, watch.CPUTime, 0.2 * seconds, lessCPU},
		{own, watch.CPUPeriods, periods, 1},
		{own, watch.CPUThrottledPeriods, periods, 1},
		{own, watch.CPUThrottled, 0.8 * seconds, lessThrottled},
		{kid, watch.CPUTime, 0.2 * seconds, lessCPU},
		{kid, watch.CPUPeriods, 0, 0},
		{kid, watch.CPUThrottledPeriods, 0, 0},
		{kid, watch.CPUThrottled, 0, 0},
	} {
		if got, ok := check.of[part{quantity: check.quantity}]; !ok || math.Abs(got-check.want) > check.within {
			t.Errorf("%v: %v (%v), want %v", check.quantity, got, ok, check.want)
		}
	}
	for name, of := range map[string]samples{"limited group": own, "its child": kid} {
		got, ok := of[part{quantity: watch.CPUThrottledAny}]
		if ok != atLeast(6, 6) || ok && math.Abs(got-0.8*seconds) > lessThrottled {
			t.Errorf("%s: withheld by any limit for %v s (%v), want %v", name, got, ok, 0.8*seconds)
		}
	}
}
