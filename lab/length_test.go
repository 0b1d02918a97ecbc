package lab

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// lengthBed plays rounds that last as long as they are to, and a little between them.
type lengthBed struct{ between time.Duration }

func (b lengthBed) Round(_ context.Context, c Cell, block, position int) (Round, error) {
	time.Sleep(c.Settle + c.Window + b.between)
	return Round{Block: block, Position: position, Scenario: c.Name}, nil
}

// A run lasts as long as it announces, within a fifth: each resource, by its preset and with a
// time of its own.
func TestLengthIsAsAnnounced(t *testing.T) {
	t.Parallel()
	for _, resource := range []Resource{CPU, Memory, IO} {
		for _, preset := range []Preset{Presets()[0], {Name: "standard", For: 4 * time.Minute}} {
			for _, between := range []time.Duration{25 * time.Millisecond, 100 * time.Millisecond} { // a quiet machine, and a busy one
				synctest.Test(t, func(t *testing.T) {
					e, err := IsolationOf(resource)
					if err == nil {
						err = e.Use(preset.Name)
					}
					if err != nil {
						t.Fatal(err)
					}
					if e.For = Duration(preset.For); preset.Blocks == 0 {
						e.Fill(preset.For)
					}
					var cells []Cell
					for _, s := range e.Scenarios {
						cells = append(cells, Cell{Name: s.Name, Settle: time.Duration(e.Settle), Window: time.Duration(e.Window), Keep: func(Round) error { return nil }})
					}
					announced, began := e.Length(), time.Now()
					time.Sleep(5 * time.Second) // calibration
					r := &Result{Experiment: e}
					run := Experiment{Parts: []Part{{Blocks: e.Blocks, Cells: cells}}, Result: r, Header: &r.Header, Ends: began.Add(time.Duration(e.For))}
					if e.Look > 0 { // two scenarios are decided then, and the others get their rounds
						run.Look, run.Drop = e.Look, func() ([]string, error) { return []string{cells[2].Name, cells[3].Name}, nil }
					}
					if err := Run(t.Context(), run, lengthBed{between}, Options{Dir: t.TempDir()}); err != nil {
						t.Fatal(err)
					}
					if took := time.Since(began); took < announced*8/10 || took > announced*12/10 {
						t.Errorf("%s %s, %s between rounds: took %s, %s announced", resource, preset.Name, between, took, announced)
					}
				})
			}
		}
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
