package lab

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/kernel"
)

// lengthBed plays rounds that last as long as they are to, and a little between them.
type lengthBed struct{ between time.Duration }

func (b lengthBed) Round(_ context.Context, c Cell, block, position int) (Round, error) {
	time.Sleep(c.Settle + c.Window + b.between)
	return Round{Block: block, Position: position, Scenario: c.Name}, nil
}

// A run lasts as long as it announces, within a fifth: each resource, by its preset and with a
// time of its own, also where the machine can do some scenarios not. What it says is left is left.
func TestLengthIsAsAnnounced(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("computes for minutes under the race detector")
	}
	for _, resource := range Resources() {
		for _, preset := range []Preset{Presets()[0], {Name: "standard", For: 4 * time.Minute}} {
			for _, between := range []time.Duration{25 * time.Millisecond, 100 * time.Millisecond} { // a quiet machine, and a busy one
				for _, skipped := range []int{0, 2} {
					synctest.Test(t, func(t *testing.T) { lengthIsAsAnnounced(t, resource, preset, between, skipped) })
				}
			}
		}
	}
}

func lengthIsAsAnnounced(t *testing.T, resource Resource, preset Preset, between time.Duration, skipped int) {
	t.Helper()
	e, err := IsolationOf(resource)
	if err == nil {
		err = e.Use(preset.Name)
	}
	if err != nil {
		t.Fatal(err)
	}
	if preset.Blocks == 0 {
		e.Fill(preset.For)
	}
	r := &Result{Experiment: e}
	cells := (&Testbed{Setup: &Setup{}}).Scenarios(e)
	for i := range cells {
		c := &cells[i]
		c.Hooks, c.Keep = Hooks{}, func(round Round) error { r.Rounds = append(r.Rounds, round); return nil }
		c.Prepare = func(*Cell, int) error {
			if i >= len(cells)-skipped {
				return &kernel.NotSupportedError{Feature: "scenario", Reason: "a test plays it"}
			}
			return nil
		}
	}
	announced, began := e.Length(), time.Now()
	time.Sleep(5 * time.Second) // calibration
	run := Experiment{Parts: []Part{{Blocks: e.Blocks, Cells: cells}}, Result: r, Header: &r.Header, Ends: began.Add(time.Duration(e.For))}
	if e.Look > 0 { // two scenarios are decided then, and the others get their rounds
		run.Look, run.Drop = e.Look, func() ([]string, error) { return []string{cells[2].Name, cells[3].Name}, nil }
	}
	type step struct {
		at time.Time
		Progress
	}
	var steps []step
	tell := func(p Progress) { steps = append(steps, step{time.Now(), p}) }
	if err := Run(t.Context(), run, lengthBed{between}, Options{Dir: t.TempDir(), Progress: tell}); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("%s %s, %s between rounds, %d skipped", resource, preset.Name, between, skipped)
	ended := time.Now()
	if took := ended.Sub(began); took < announced*8/10 || took > announced*12/10 || len(r.Skipped) != skipped {
		t.Errorf("%s: took %s, %s announced; skipped %v", name, took, announced, r.Skipped)
	}
	for _, s := range steps {
		if s.Block < 3 || s.Block < e.Look+2 && s.Block > e.Look-2 {
			continue // it does not know yet what it will skip, or drop
		}
		if left := ended.Sub(s.at); s.Left-left > announced/8 || left-s.Left > announced/8 {
			t.Errorf("%s: %s left in block %d, and it was %s", name, s.Left, s.Block, left)
			break
		}
	}
	if last := steps[len(steps)-1]; last.Round != len(r.Rounds) || last.Rounds != len(r.Rounds) {
		t.Errorf("%s: in the end round %d of %d, of %d measured", name, last.Round, last.Rounds, len(r.Rounds))
	}
}

// A pilot at a low rate has enough requests to tell what one takes, if a round has.
func TestPilotLength(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		rate        float64
		round, want time.Duration
	}{
		{500, 5 * time.Second, time.Second},
		{8, 5 * time.Second, time.Second},
		{2, 5 * time.Second, 4 * time.Second},
		{1, 5 * time.Second, 5 * time.Second},
		{1, 100 * time.Millisecond, time.Second},
	} {
		if got := pilotLength(tt.rate, tt.round); got != tt.want {
			t.Errorf("at %v/s before rounds of %v: %v, want %v", tt.rate, tt.round, got, tt.want)
		}
	}
}
