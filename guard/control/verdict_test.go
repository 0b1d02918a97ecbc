package control_test

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/place"
)

var runs = flag.Int("runs", 4, "simulated runs per cell of the table of verdicts")

// effects of a remedy on the run delay: the suspect's part of it that is left, and the
// part of what it has less that others take up.
type effects struct {
	name        string
	left, taken float64
}

// hazy is a victim that waits for one suspect and for others, by a random process: each
// part varies with that standard deviation of its logarithm, and for so long at a time, and
// so does how much it runs.
type hazy struct {
	suspect, others float64 // means, in seconds per second that it runs
	sd              float64
	memory          float64 // correlation of a window with the next
	probe           bool
	effects
	r, ran  *rand.Rand // of the waits, and of how much it runs: 0.5 CPUs on average
	z       [3]float64 // the third of how much it runs
	history []detect.RunDelay
	force   bool
}

func (h *hazy) step() {
	for i, r := range []*rand.Rand{h.r, h.r, h.ran} {
		h.z[i] = h.memory*h.z[i] + math.Sqrt(1-h.memory*h.memory)*r.NormFloat64()
	}
	suspect, others := h.suspect, h.others
	if h.force {
		gone := suspect * (1 - h.left)
		suspect, others = suspect-gone, others+h.taken*gone
	}
	suspect *= math.Exp(h.sd*h.z[0] - h.sd*h.sd/2)
	others *= math.Exp(h.sd*h.z[1] - h.sd*h.sd/2)
	share := h.suspect / (h.suspect + h.others)
	run := 0.5 * math.Exp(h.sd*h.z[2]-h.sd*h.sd/2)
	r := detect.RunDelay{Run: run, Wait: suspect + others, Others: math.NaN(), Suspect: math.NaN(), UseShare: share, Outside: 1 - share}
	if h.probe {
		r.Others, r.Suspect = suspect+others, suspect
	}
	h.history = append(h.history, r)
}

func (h *hazy) RunDelay(_, _ string, windows int) (detect.RunDelay, bool) {
	of := h.history[max(len(h.history)-windows, 0):]
	sum := of[len(of)-1]
	sum.Run, sum.Wait, sum.Others, sum.Suspect = 0, 0, 0, 0
	for _, r := range of {
		sum.Run += r.Run
	}
	for _, r := range of {
		sum.Wait += r.Wait * r.Run / sum.Run
		sum.Others += r.Others * r.Run / sum.Run
		sum.Suspect += r.Suspect * r.Run / sum.Run
	}
	sum.Run /= float64(len(of))
	return sum, true
}

// Symptom is that of the time waited in all that it waits or runs, 10 % of which counts.
func (h *hazy) Symptom(_ string, r detect.Resource) (detect.Symptom, bool) {
	d, _ := h.RunDelay("", "", 1)
	typical, _ := h.RunDelay("", "", 3)
	return detect.Symptom{Strength: 10 * d.Wait / (1 + d.Wait), Typical: 10 * typical.Wait / (1 + typical.Wait)}, r == detect.CPU
}

func (h *hazy) Apply(_ context.Context, a control.Action) ([]control.Change, error) {
	h.force = h.force || a.Remedy == detect.Weight
	return nil, nil
}

func (h *hazy) Revert(_ context.Context, a control.Action) ([]control.Change, error) {
	h.force = h.force && a.Remedy != detect.Weight
	return nil, nil
}

func (h *hazy) Preview(context.Context, control.Action) ([]control.Change, error) { return nil, nil }

// verdict runs a loop until it has decided about its first action, and returns how that
// came out at first, with the trial of what was not decided, and after how long.
func (h *hazy) verdict(t *testing.T, window time.Duration) (first, last string, after time.Duration) {
	t.Helper()
	now := time.Unix(1e9, 0)
	loop, err := control.New(control.Config{Mode: control.Enforce, Window: window, Now: func() time.Time { return now }}, h)
	if err != nil {
		t.Fatal(err)
	}
	in := control.Input{
		Symptoms:  h,
		Findings:  []detect.Finding{{Victim: victim, Suspect: "pods/batch", Resource: detect.CPU, Confidence: 0.5, Remedies: detect.RemediesFor(detect.CPU, false)}},
		Workloads: []control.Workload{{Group: victim, Class: place.LS, Use: 0.2}, {Group: "pods/batch", Class: place.BE, Use: 1}},
		Host:      control.Host{CPUs: cpuset.MustParse("0-1"), Use: 2},
	}
	for range 20 {
		h.step() // so that the noise is as it is later
	}
	var applied time.Time
	for range int(10 * time.Minute / window) {
		h.step()
		now = now.Add(window)
		for _, e := range loop.Step(t.Context(), in) {
			if e.Action == nil || e.Action.Remedy != detect.Weight {
				continue
			}
			switch {
			case e.Outcome == control.Applied:
				applied = e.Time
			case first == "":
				first = e.Outcome.String()
			}
			if e.Outcome == control.Kept || e.Outcome == control.Reverted || e.Outcome == control.Restored && !strings.Contains(e.Text, "not decided") || e.Outcome == control.Relaxed {
				return first, e.Outcome.String(), e.Time.Sub(applied)
			}
		}
	}
	return first, "", now.Sub(applied)
}

// TestVerdicts says how often the loop is right about a remedy beside processes in no
// group, by the suspect's share of the run delay and the noise. The table in
// docs/measurements/remedies.md is that of -runs 200 -v: kept at once, kept in the end or by a
// trial, active and not decided after ten minutes, and the mean time until it is decided.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	for _, pace := range []struct {
		name   string
		window time.Duration
		memory float64 // noise that lasts for about half a second
		probe  bool
	}{{"fast", 100 * time.Millisecond, 0.8, true}, {"slow", time.Second, 0.15, true}, {"slow, no probe", time.Second, 0.15, false}} {
		for _, e := range []effects{{"helps", 0.02, 0}, {"helps by half", 0.5, 0}, {"does nothing", 1, 0}, {"others take it up", 0.02, 1}} {
			for _, share := range []float64{0.2, 0.4, 0.7} {
				line := fmt.Sprintf("| %s | %s | %.0f %% |", pace.name, e.name, 100*share)
				for _, sd := range []float64{0.1, 0.3, 0.6} {
					kept, reverted, open, stays := 0, 0, 0, 0
					var took time.Duration
					for seed := range *runs {
						h := &hazy{suspect: 5 * share, others: 5 * (1 - share), sd: sd, memory: pace.memory, probe: pace.probe, effects: e}
						h.r, h.ran = rand.New(rand.NewPCG(uint64(seed), uint64(1000*share+10*sd))), rand.New(rand.NewPCG(uint64(seed), 5))
						first, last, after := h.verdict(t, pace.window)
						took += after
						if first == "kept" {
							kept++
						}
						if first == "reverted" {
							reverted++
						}
						switch last {
						case "kept", "restored":
							stays++
						case "":
							open++
						}
					}
					part := func(n int) float64 { return 100 * float64(n) / float64(*runs) }
					line += fmt.Sprintf(" %.0f, %.0f, %.0f; %.1f s |", part(kept), part(stays), part(open), took.Seconds()/float64(*runs))
					slack := 20 / math.Sqrt(float64(*runs)) // few runs tell little
					if most := 5 + slack; part(reverted) > most {
						t.Errorf("%s sd %.1f: reverted at once in %.1f %%, want at most %.0f", line, sd, part(reverted), most)
					}
					if e.name == "helps" && pace.probe && part(stays)+part(open) < 95-slack {
						t.Errorf("%s sd %.1f: active after ten minutes in %.1f %%, want at least %.0f", line, sd, part(stays)+part(open), 95-slack)
					}
					if e.name == "helps" && share > 0.3 && pace.probe && part(kept) < 90-slack {
						t.Errorf("%s sd %.1f: kept at once in %.1f %%, want at least %.0f", line, sd, part(kept), 90-slack)
					}
					most := 5 + slack
					if sd > 0.5 {
						most = 10 + slack
					}
					if e.left == 1 && part(kept) > most {
						t.Errorf("%s sd %.1f: kept at once in %.1f %%, want at most %.0f", line, sd, part(kept), most)
					}
				}
				t.Log(line)
			}
		}
	}
}
