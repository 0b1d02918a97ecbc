package limits

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/lab"
)

// bed plays rounds that last as long as they are to, and a little between them.
type bed struct{ between time.Duration }

func (b bed) Round(_ context.Context, c lab.Cell, block, position int) (lab.Round, error) {
	time.Sleep(c.Settle + c.Window + b.between)
	return lab.Round{Block: block, Position: position, Scenario: c.Name}, nil
}

// A run lasts as long as it announces, within a fifth.
func TestLength(t *testing.T) {
	t.Parallel()
	long := Noise()
	long.Experiment.For, long.Experiment.Blocks = lab.Duration(20*time.Minute), 10_000
	for _, x := range []*Experiment{Limits(), Ramp(), Noise(), Routing(), long} {
		for _, between := range []time.Duration{30 * time.Millisecond, 100 * time.Millisecond} { // a quiet machine, and a busy one
			synctest.Test(t, func(t *testing.T) {
				announced, began := x.Length(nil), time.Now()
				s := x.Experiment
				var cells []lab.Cell
				for _, c := range x.cells(2) {
					c.Prepare, c.Keep = nil, func(lab.Round) error { return nil }
					c.Settle, c.Window = time.Duration(s.Settle), time.Duration(s.Window)
					cells = append(cells, c)
				}
				for _, kind := range s.kinds() { // tiles of 12 and 300 ms are rendered
					time.Sleep(time.Duration(s.Sample) * map[string]time.Duration{small: 12 * time.Millisecond, large: 300 * time.Millisecond}[kind])
				}
				e := lab.Experiment{Parts: []lab.Part{{Blocks: s.Blocks, Cells: cells}}, Result: x, Header: &lab.Header{}}
				if s.For > 0 {
					e.Ends = began.Add(time.Duration(s.For))
				}
				if err := lab.Run(t.Context(), e, bed{between}, lab.Options{Dir: t.TempDir()}); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took < announced*8/10 || took > announced*12/10 {
					t.Errorf("%s, %s between rounds: took %s, %s announced", s.Name, between, took, announced)
				}
			})
		}
	}
}
