package detect_test

import (
	"fmt"
	"slices"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch"
)

// A group waits behind more antagonists than a subject has meters for: each of hundreds
// of groups takes a little of its CPU. That it waits behind others is found all the
// same, a group that has most of it is named, and what else is told of it has its
// meters.
func TestCulpritsBeyondAllMeters(t *testing.T) {
	t.Parallel()
	for name, hog := range map[string]float64{"nobody has much": 0, "one has most": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := detect.New(detect.Config{Window: watch.Second})
			if err != nil {
				t.Fatal(err)
			}
			d.Track(detect.Workload{Group: "web", Sensitive: true, CPUs: cpuset.MustParse("0-1")})
			const crowd = 1000
			web := watch.Subject{Scope: watch.Group, Name: "web"}
			counters := map[string]float64{}
			var found []detect.Finding
			for at := range 60 {
				now := watch.Time(at) * watch.Second
				suffers := at >= 40
				var samples []watch.Sample
				add := func(q watch.Quantity, perSecond float64, by string) {
					key := fmt.Sprint(q, by)
					counters[key] += perSecond
					samples = append(samples, watch.Sample{Time: now, Subject: web, Quantity: q, By: by, Value: counters[key]})
				}
				add(watch.CPUTime, 0.5, "")
				samples = append(samples, watch.Sample{Time: now, Quantity: watch.Steal}, watch.Sample{Time: now, Quantity: watch.CPUTime, Value: float64(at)})
				whole := 0.01
				add(watch.QueuedBy, 0.01, "web")
				for i := range crowd {
					each := 0.
					if suffers {
						each = 2. / crowd
					}
					whole += each
					add(watch.QueuedBy, each, fmt.Sprintf("crowd/%d", i))
				}
				if hog > 0 {
					own := 0.
					if suffers {
						own = hog
					}
					whole += own
					samples = slices.Insert(samples, 0, watch.Sample{})
					add(watch.QueuedBy, own, "hog")
					samples[0], samples = samples[len(samples)-1], samples[:len(samples)-1]
				}
				for _, q := range []watch.Quantity{watch.QueuedKernel, watch.QueuedIdle, watch.QueuedThrottled, watch.CPUPeriods, watch.CPUThrottledPeriods, watch.CPUThrottled} {
					add(q, 0, "")
				}
				add(watch.Queued, whole, "")
				d.Observe(samples)
				found = d.Judge(now)
			}
			i := slices.IndexFunc(found, func(f detect.Finding) bool { return f.Victim == "web" && f.Resource == detect.CPU })
			if i < 0 {
				t.Fatalf("findings %v, want one of the CPU", found)
			}
			want := ""
			if hog > 0 {
				want = "hog"
			}
			if found[i].Suspect != want {
				t.Errorf("suspect %q, want %q", found[i].Suspect, want)
			}
		})
	}
}
