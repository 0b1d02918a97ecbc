package control_test

import (
	"context"
	"fmt"
	"testing"

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

type weak struct{}

func (weak) Symptom(string, detect.Resource) (detect.Symptom, bool) {
	return detect.Symptom{Strength: 0.5}, true
}

// BenchmarkStep is one window of 250 workloads: with nothing in force, and with 25
// victims for whom something is.
func BenchmarkStep(b *testing.B) {
	for _, victims := range []int{0, 25} {
		b.Run(fmt.Sprintf("victims=%d", victims), func(b *testing.B) {
			in := control.Input{Symptoms: weak{}, Host: control.Host{CPUs: cpuset.MustParse("0-63"), Use: 40}}
			var held []control.Held
			for i := range 250 {
				w := control.Workload{Group: fmt.Sprintf("pods/w%d", i), Class: place.LS, Use: 0.2}
				if i%2 == 1 {
					w.Class = place.BE
				}
				in.Workloads = append(in.Workloads, w)
				if i%2 == 1 && i/2 < victims {
					held = append(held, control.Held{Kept: true, Action: control.Action{
						Remedy: detect.CacheWays, Group: w.Group, Victim: in.Workloads[i-1].Group, Suspect: w.Group, Resource: detect.LLC, Part: 0.3,
					}})
				}
			}
			loop, err := control.New(control.Config{Mode: control.Enforce}, hosted{})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := loop.Adopt(held); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				loop.Step(context.Background(), in)
			}
		})
	}
}
