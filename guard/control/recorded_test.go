package control_test

import (
	"context"
	"encoding/csv"
	"math"
	"os"
	"strconv"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/place"
)

// recorded plays what a loop was told on a host in short windows: nginx beside stress-ng, with
// processes in no group that spin, while cpu.idle of stress-ng's group was 0 and 1 by turns
// (testdata/d3.csv, by TestRecordRunDelay). What is told next is from a turn with the value that
// the loop has set.
type recorded struct {
	turns [2][]window // by cpu.idle
	next  [2]int
	idle  int
	told  []window
	calls int
}

type window struct{ wait, others, suspect, strength, typical float64 }

func openRecorded(t *testing.T) *recorded {
	t.Helper()
	f, err := os.Open("testdata/d3.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	r := &recorded{}
	for _, row := range rows {
		var v [7]float64
		for i := range v {
			if v[i], err = strconv.ParseFloat(row[i], 64); err != nil {
				t.Fatal(err)
			}
		}
		r.turns[int(v[1])] = append(r.turns[int(v[1])], window{v[2], v[3], v[4], v[5], v[6]})
	}
	return r
}

func (r *recorded) step() {
	of := r.turns[r.idle]
	r.told = append(r.told, of[r.next[r.idle]%len(of)])
	r.next[r.idle]++
}

func (r *recorded) RunDelay(_, _ string, windows int) (sum detect.RunDelay, ok bool) {
	of := r.told[max(len(r.told)-windows, 0):]
	n := float64(len(of))
	for _, w := range of {
		sum.Wait += w.wait / n
		sum.Others += w.others / n
		sum.Suspect += w.suspect / n
	}
	sum.UseShare = 0.5
	return sum, !math.IsNaN(sum.Others)
}

func (r *recorded) Symptom(_ string, of detect.Resource) (detect.Symptom, bool) {
	w := r.told[len(r.told)-1]
	return detect.Symptom{Strength: w.strength, Typical: w.typical}, of == detect.CPU
}

func (r *recorded) Apply(_ context.Context, a control.Action) ([]control.Change, error) {
	if r.calls++; a.Remedy == detect.Weight {
		r.idle = 1
	}
	return nil, nil
}

func (r *recorded) Revert(_ context.Context, a control.Action) ([]control.Change, error) {
	if a.Remedy == detect.Weight {
		r.idle = 0
	}
	return nil, nil
}

func (r *recorded) Preview(context.Context, control.Action) ([]control.Change, error) {
	return nil, nil
}

// In the scene that an earlier guard gave up on, the remedy that doubled what nginx did is kept,
// wherever in the recording it begins, and is in force nine tenths of the time over ten minutes,
// trials included.
func TestRecordedScene(t *testing.T) {
	t.Parallel()
	const width = 40 * time.Millisecond
	for begin := 0; begin < 20; begin++ {
		r := openRecorded(t)
		r.next = [2]int{begin * len(r.turns[0]) / 20, begin * len(r.turns[1]) / 20}
		now := time.Unix(1e9, 0)
		loop, err := control.New(control.Config{Mode: control.Enforce, Window: width, Now: func() time.Time { return now }}, r)
		if err != nil {
			t.Fatal(err)
		}
		in := control.Input{
			Symptoms:  r,
			Findings:  []detect.Finding{{Victim: victim, Suspect: "pods/batch", Resource: detect.CPU, Confidence: 0.5, Remedies: detect.RemediesFor(detect.CPU, false)}},
			Workloads: []control.Workload{{Group: victim, Class: place.LS, Use: 0.5}, {Group: "pods/batch", Class: place.BE, Use: 1}},
			Host:      control.Host{CPUs: cpuset.MustParse("0-1"), Use: 2},
		}
		for range 10 {
			r.step()
		}
		active, windows := 0, int(10*time.Minute/width)
		for range windows {
			r.step()
			now = now.Add(width)
			active += r.idle
			for _, e := range loop.Step(t.Context(), in) {
				if e.Action == nil || e.Action.Remedy != detect.Weight {
					continue
				}
				if e.Outcome == control.Reverted || e.Outcome == control.Relaxed {
					t.Errorf("begun at %d of 20: %v", begin, e)
				}
			}
		}
		if part := float64(active) / float64(windows); part < 0.9 {
			t.Errorf("begun at %d of 20: in force %.0f %% of the time, want 90 at least", begin, 100*part)
		}
	}
}
