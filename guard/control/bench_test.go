package control_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/place"
)

// hosted is an Actuator that does nothing.
type hosted struct{}

func (hosted) Apply(context.Context, control.Action) ([]control.Change, error)   { return nil, nil }
func (hosted) Revert(context.Context, control.Action) ([]control.Change, error)  { return nil, nil }
func (hosted) Preview(context.Context, control.Action) ([]control.Change, error) { return nil, nil }

// alike is a symptom of one strength for all.
type alike float64

func (a alike) Symptom(string, detect.Resource) (detect.Symptom, bool) {
	return detect.Symptom{Strength: float64(a)}, true
}

func (a alike) RunDelay(string, string, int) (detect.RunDelay, bool) {
	return detect.RunDelay{Run: 1, Wait: float64(a), Others: float64(a) / 2, Suspect: float64(a) / 4}, true
}

// BenchmarkStep is one window of 250 workloads: with nothing active, and with 25
// victims for whom something is.
func BenchmarkStep(b *testing.B) {
	for _, victims := range []int{0, 25} {
		b.Run(fmt.Sprintf("victims=%d", victims), func(b *testing.B) {
			now := time.Unix(1e9, 0)
			loop, err := control.New(control.Config{Mode: control.Enforce, Burst: 100, Now: func() time.Time { return now }}, hosted{})
			if err != nil {
				b.Fatal(err)
			}
			in := control.Input{Symptoms: alike(4), Host: control.Host{CPUs: cpuset.MustParse("0-63"), Use: 40}}
			for i := range 250 {
				w := control.Workload{Group: fmt.Sprintf("pods/w%d", i), Class: place.LS, Use: 0.2}
				if i%2 == 1 {
					w.Class = place.BE
				}
				in.Workloads = append(in.Workloads, w)
				if i%2 == 1 && i/2 < victims {
					in.Findings = append(in.Findings, detect.Finding{
						Victim: in.Workloads[i-1].Group, Suspect: w.Group, Resource: detect.CPU, Remedies: []detect.Remedy{detect.Weight},
					})
				}
			}
			step := func() {
				now = now.Add(time.Second)
				loop.Step(context.Background(), in)
			}
			step()
			in.Findings, in.Symptoms = nil, alike(0.5)
			for range 10 {
				step()
			}
			if n := len(loop.Active()); n != victims {
				b.Fatalf("%d active, want %d", n, victims)
			}
			b.ReportAllocs()
			for b.Loop() {
				loop.Step(context.Background(), in)
			}
		})
	}
}
