package replay_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/machine"
	"berth.dev/berth/replay"
)

const churn = `
machine: 2s4c2t
config: {reserved: "0,8"}
options: {kubelet: {cpuManagerPolicy: static}}
generate:
  settle: 20
  arrivals: 200
  seeds: 3
  load: 0.9
  mix:
    - {weight: 3, class: LSE, sizes: {2: 2, 4: 1}}
    - {weight: 1, class: LS, cpus: 500m}
    - {weight: 1, class: BE, stay: 0.5}
`

// TestStreamIsKnown keeps the stream of a seed from changing unnoticed.
func TestStreamIsKnown(t *testing.T) {
	t.Parallel()
	var got strings.Builder
	for _, s := range parse(t, churn).Stream(7).Steps[:12] {
		fmt.Fprintf(&got, "%s %s %dm\n", s.String(), s.Request.Class, s.Request.Milli)
	}
	want := `place w00001 LSE 2000m
place w00002 LS 500m
release w00002 LS 0m
place w00003 LSE 4000m
place w00004 LS 500m
place w00005 LS 500m
place w00006 BE 0m
release w00003 LS 0m
place w00007 LSE 2000m
release w00001 LS 0m
place w00008 LSE 4000m
release w00006 LS 0m
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

func TestStreamDependsOnSeedOnly(t *testing.T) {
	t.Parallel()
	s := parse(t, churn)
	if diff := cmp.Diff(s.Stream(1).Steps, s.Stream(1).Steps); diff != "" {
		t.Errorf("the same seed gave two streams:\n%s", diff)
	}
	if cmp.Equal(s.Stream(1).Steps, s.Stream(2).Steps) {
		t.Error("two seeds gave the same stream")
	}
	if len(s.Steps) > 0 {
		t.Error("a stream changed the scenario")
	}
	steps := s.Stream(1).Steps
	if last := steps[len(steps)-1]; last.ID != "w00220" || last.Do != replay.Place {
		t.Errorf("the last step is %s, want the last arrival", last.String())
	}
}

// TestStreamMeetsItsLoad adds up the CPU time of those present if nobody were
// refused.
func TestStreamMeetsItsLoad(t *testing.T) {
	t.Parallel()
	for lifetime, within := range map[string]float64{"exponential": 0.05, "fixed": 0.05, "lognormal": 0.15} {
		s := parse(t, strings.Replace(churn, "arrivals: 200\n", "arrivals: 20000\n  lifetime: "+lifetime+"\n", 1))
		present, held, sum, n := map[string]int{}, 0, 0, 0
		for i, step := range s.Stream(1).Steps {
			if step.Do == replay.Release {
				held -= present[step.ID]
				continue
			}
			if i > 1000 {
				sum += held // what the arrival finds
				n++
			}
			present[step.ID] = step.Request.Milli
			held += step.Request.Milli
		}
		// 14 of 16 CPUs are not reserved
		if load := float64(sum) / float64(n) / 14000; math.Abs(load-0.9) > within {
			t.Errorf("%s: load %.3f, want 0.9", lifetime, load)
		}
	}
}

func TestMeasure(t *testing.T) {
	t.Parallel()
	s := parse(t, churn)
	stream := s.Stream(1)
	whole, err := stream.Run("berth")
	if err != nil {
		t.Fatal(err)
	}
	got, err := stream.Measure("berth")
	if err != nil {
		t.Fatal(err)
	}
	if n := got.Admitted + got.Refused; n != 200 {
		t.Errorf("%d arrivals are measured, want 200", n)
	}
	if diff := cmp.Diff(whole.Summary.Left, got.Left); diff != "" {
		t.Errorf("what is left differs from a run step by step:\n%s", diff)
	}
	refused, granted := 0, 0.0
	for i, arrivals := 0, 0; i < len(stream.Steps); i++ {
		if stream.Steps[i].Do != replay.Place {
			continue
		}
		if arrivals++; arrivals > 20 && whole.Steps[i].Error != "" {
			refused++
		} else if arrivals > 20 {
			granted += float64(stream.Steps[i].Request.Milli) / 1000
		}
	}
	if refused == 0 || got.Refused != refused || math.Abs(got.Granted-granted) > 1e-9 {
		t.Errorf("%d refused and %v CPUs granted, want %d and %v", got.Refused, got.Granted, refused, granted)
	}
	a := got.Average
	if a.Samples != 100 || a.Used <= 5 || a.Used > 14 || a.Largest < a.Left || a.SharedCores < a.Beside || a.Missing != 0 {
		t.Errorf("averages %+v", a)
	}
	if _, err := stream.Measure("ghost"); err == nil {
		t.Error("an unknown policy was measured")
	}
}

// TestMissing promises more than is left: the kubelet's CPU manager does not add
// up what its shared workloads ask for.
func TestMissing(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string]bool{"berth": false, "kubelet": true} {
		s := parse(t, strings.Replace(churn, "cpus: 500m", "cpus: 1500m", 1))
		got, err := s.Stream(1).Measure(policy)
		if err != nil {
			t.Fatal(err)
		}
		if (got.Average.Missing > 0) != want {
			t.Errorf("%s promises %v CPUs that are not there", policy, got.Average.Missing)
		}
	}
}

func TestGenerateNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	const (
		head = "machine: 1n8c\ngenerate:\n  load: 0.5\n  arrivals: 10\n"
		mix  = "  mix:\n  - {weight: 1, class: LSE, cpus: 2}\n"
	)
	if _, err := replay.Parse(head+mix, replay.Loader{Machine: machine.Short}); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ text, want string }{
		"steps too":        {head + mix + "steps: [{place: a}]\n", "generate: there are steps as well"},
		"no mix":           {head, "generate.mix: nobody asks for CPU time"},
		"best effort only": {head + "  mix: [{weight: 1, class: BE}]\n", "generate.mix: nobody asks for CPU time"},
		"no arrivals":      {strings.Replace(head, "10", "0", 1) + mix, "generate.arrivals: 0 is not between 1 and"},
		"too many":         {strings.Replace(head, "10", "10000000", 1) + mix, "generate.arrivals: 1e+07 is not between"},
		"negative settle":  {head + "  settle: -1\n" + mix, "generate.settle: -1 is not between"},
		"negative seeds":   {head + "  seeds: -1\n" + mix, "generate.seeds: -1 is not between"},
		"no load":          {strings.Replace(head, "load: 0.5", "settle: 1", 1) + mix, "generate.load: 0 is not between"},
		"load no number":   {strings.Replace(head, "0.5", ".nan", 1) + mix, `generate.load: ".nan" is no number`},
		"load a word":      {strings.Replace(head, "0.5", "high", 1) + mix, `line 3: generate.load: "high" is no number`},
		"lifetime":         {head + "  lifetime: short\n" + mix, `generate.lifetime: "short" is not one of exponential, lognormal, fixed`},
		"unknown field":    {head + "  rate: 3\n" + mix, `line 5: generate.rate: unknown field`},
		"unknown in mix":   {head + "  mix:\n  - {weight: 1, cpu: 2}\n", `line 6: generate.mix[0].cpu: unknown field`},
		"no weight":        {head + "  mix:\n  - {cpus: 2}\n", "line 6: generate.mix[0].weight: 0 is not between"},
		"no stay":          {head + "  mix:\n  - {weight: 1, cpus: 2, stay: 0}\n", "generate.mix[0].stay: 0 is not between"},
		"class":            {head + "  mix:\n  - {weight: 1, class: X, cpus: 2}\n", "line 6: generate.mix[0].class: "},
		"size":             {head + "  mix:\n  - {weight: 1, sizes: {two: 1}}\n", `generate.mix[0].cpus: "two" is no CPU time`},
		"weight of a size": {head + "  mix:\n  - {weight: 1, sizes: {2: 0}}\n", "generate.mix[0].sizes.2: 0 is not between"},
		"cpus and sizes":   {head + "  mix:\n  - {weight: 1, cpus: 2, sizes: {2: 1}}\n", "generate.mix[0].sizes: there are cpus as well"},
		"an id":            {head + "  mix:\n  - {weight: 1, cpus: 2, place: a}\n", `generate.mix[0].place: unknown field`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := replay.Parse(tc.text, replay.Loader{Machine: machine.Short})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v\nwant %q in it", err, tc.want)
			}
		})
	}
}

func BenchmarkMeasure(b *testing.B) {
	s, err := replay.Parse(strings.Replace(churn, "arrivals: 200", "arrivals: 10000", 1), replay.Loader{Machine: machine.Short})
	if err != nil {
		b.Fatal(err)
	}
	stream := s.Stream(1)
	for _, policy := range []string{"berth", "kubelet", "koordinator"} {
		b.Run(policy, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				if _, err := stream.Measure(policy); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
