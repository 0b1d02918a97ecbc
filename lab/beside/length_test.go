package beside

import (
	"context"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"berth.dev/berth/lab"
)

// bed plays rounds that last as long as they are to, and a little between them: more where the
// tenant is started anew.
type bed struct{ between time.Duration }

func (b bed) Round(_ context.Context, c lab.Cell, block, position int) (lab.Round, error) {
	time.Sleep(c.Settle + c.Window + b.between)
	if c.Fresh {
		time.Sleep(time.Second)
	}
	return lab.Round{Block: block, Position: position, Scenario: c.Name}, nil
}

// A run lasts as long as it announces, within a fifth, also where a machine has no place for
// some of its cells.
func TestLength(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		x       *Experiment
		table   string
		skipped int
	}{
		{Quick(), flat, 0}, {Pinning(), flat, 0}, {Cache(), flat, 7}, {Cache(), nodes, 6}, {SMT(), one, 1}, {SMT(), smt8, 0}, {NUMA(), nodes, 0},
	} {
		for _, between := range []time.Duration{30 * time.Millisecond, 100 * time.Millisecond} { // a quiet machine, and a busy one
			synctest.Test(t, func(t *testing.T) {
				x := tc.x.design.make()
				x.fsys = fstest.MapFS{"proc/self/mountinfo": {}, "proc/cpuinfo": {}}
				x.Host.Machine = played(t, tc.table)
				e := x.Experiment
				shared, err := e.base(x.design.name).SharedCPUs(x.Host.Machine)
				if err != nil {
					t.Fatal(err)
				}
				cells := x.cells(&lab.Testbed{Setup: &lab.Setup{CPUs: shared.String()}}, nil)
				for i := range cells {
					c := &cells[i]
					c.Settle, c.Window, c.Keep = time.Duration(e.Settle), time.Duration(e.Window), func(lab.Round) error { return nil }
					if x.design.cells[i].place != nil {
						c.Prepare = nil // it asks the testbed
					}
				}
				announced, began := x.Length(x.Host.Machine), time.Now()
				time.Sleep(5 * time.Second) // calibration
				run := lab.Experiment{Parts: []lab.Part{{Blocks: e.Blocks, Cells: cells}}, Result: x, Header: &x.Header, Ends: began.Add(time.Duration(e.For))}
				var last lab.Progress
				tell := func(p lab.Progress) {
					if last = p; p.Block == 3 && p.Left > announced {
						t.Errorf("%s: %s left, of %s", x.design.name, p.Left, announced)
					}
				}
				if err := lab.Run(t.Context(), run, bed{between}, lab.Options{Dir: t.TempDir(), Progress: tell}); err != nil {
					t.Fatal(err)
				}
				if want := x.Experiment.Blocks; last.Rounds%(len(cells)-tc.skipped) != 0 || last.Round != last.Rounds || want*(len(cells)-tc.skipped) < last.Rounds {
					t.Errorf("%s: in the end round %d of %d, of %d cells in at most %d blocks", x.design.name, last.Round, last.Rounds, len(cells)-tc.skipped, want)
				}
				if took := time.Since(began); took < announced*8/10 || took > announced*12/10 || len(x.Skipped) != tc.skipped {
					t.Errorf("%s, %s between rounds: took %s, %s announced; skipped %v, want %d", x.design.name, between, took, announced, x.Skipped, tc.skipped)
				}
			})
		}
	}
}
