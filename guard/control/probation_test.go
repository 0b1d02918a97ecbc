package control_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/place"
)

// A step that costs the suspect CPU time, and of which noise does not let it be said whether it helps: no other is put on
// top of it, and after three trials that have not shown it it is taken back.
func TestUndecidedStepThatCosts(t *testing.T) {
	t.Parallel()
	undecided, takenBack := 0, 0
	for seed := range uint64(6) {
		h := &hazy{suspect: 2, others: 3, sd: 0.6, memory: 0.8, effects: effects{left: 1}, r: rand.New(rand.NewPCG(seed, 7)), ran: rand.New(rand.NewPCG(seed, 5))}
		for range 20 {
			h.step()
		}
		now := time.Unix(1e9, 0)
		loop, err := control.New(control.Config{Mode: control.Enforce, Window: time.Second, Now: func() time.Time { return now }}, h)
		if err != nil {
			t.Fatal(err)
		}
		in := control.Input{
			Symptoms:  h,
			Findings:  []detect.Finding{{Victim: victim, Suspect: "pods/batch", Resource: detect.CPU, Confidence: 0.5, Remedies: []detect.Remedy{detect.HeadroomCap, detect.ShrinkCPUs}}},
			Workloads: []control.Workload{{Group: victim, Class: place.LS, Use: 1}, {Group: "pods/batch", Class: place.BE, Use: 3}},
			Host:      control.Host{CPUs: cpuset.MustParse("0-3"), Use: 4},
		}
		last, trials := control.GaveUp, 0
		for range 30 * 60 {
			h.step()
			now = now.Add(time.Second)
			for _, e := range loop.Step(t.Context(), in) {
				switch {
				case e.Outcome == control.Applied && last == control.Undecided:
					t.Errorf("seed %d: a step is taken on top of one that is undecided", seed)
				case e.Outcome == control.Applied:
					trials = 0
				case e.Outcome == control.Undecided:
					undecided++
				case e.Outcome == control.Restored && strings.HasPrefix(e.Text, "not decided yet"):
					if trials++; trials > 2 {
						t.Errorf("seed %d: restored after %d trials that have not shown that it helps", seed, trials)
					}
				case strings.HasPrefix(e.Text, "3 trials have not shown"):
					takenBack++
				}
				last = e.Outcome
			}
		}
	}
	if undecided < 6 || takenBack < 3 {
		t.Errorf("%d steps are undecided, %d taken back for want of proof: too few for a test", undecided, takenBack)
	}
}
