package detect_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch"
)

// BenchmarkJudge is one second of a host with 250 workloads, half of them
// sensitive, all signals but the run-queue probe's: 20 per workload.
func BenchmarkJudge(b *testing.B) {
	d, err := detect.New(detect.Config{Machine: simMachine(), PeakBandwidth: simPeak})
	if err != nil {
		b.Fatal(err)
	}
	batch, _ := simulate(troubles()[0], 1, 1)
	var samples []watch.Sample
	for i := range 250 {
		group := fmt.Sprintf("pods/pod%d", i)
		d.Track(detect.Workload{Group: group, Sensitive: i%2 == 0})
		for _, s := range batch[0] {
			if s.Subject.Name == simVictim {
				s.Subject.Name = group
				samples = append(samples, s)
			}
		}
	}
	for _, s := range batch[0] {
		if s.Subject.Scope == watch.Host {
			samples = append(samples, s)
		}
	}
	r := rand.New(rand.NewPCG(1, 1))
	now := watch.Time(0)
	second := func() {
		now += watch.Second
		for i := range samples {
			s := &samples[i]
			s.Time = now
			if s.Quantity.Counter() {
				s.Value += 0.01 * r.Float64()
			}
		}
		d.Observe(samples)
		d.Judge(now)
	}
	for range 20 {
		second()
	}
	b.ReportAllocs()
	for b.Loop() {
		second()
	}
	b.ReportMetric(float64(len(samples)), "samples/op")
}
