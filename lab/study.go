package lab

import (
	"context"
	"errors"
	"time"
)

// Study is an experiment on the testbed whose metrics are those of a round: it opens the
// testbed, runs the cells in blocks, and keeps every round.
type Study struct {
	// Base is what the testbed is asked for; its seed is filled in. Its scenarios do not
	// matter.
	Base *Spec
	// Result is stored after each round; Header and Rounds are the parts of it that Run
	// fills.
	Result any
	Header *Header
	Rounds *[]Round
	// Cells are made once the testbed is ready. Those without lengths and Keep get the
	// base's, and the usual one.
	Cells func(*Testbed) ([]Cell, error)

	// Ends, Enough, Look, Drop and Blocks are those of an Experiment.
	Ends   time.Time
	Enough func() (bool, error)
	Look   int
	Drop   func() (cells []string, err error)
	Blocks func(blocks int)
}

// Run runs the study, or goes on with it where its header was filled in before. Whatever
// happens, children are gone and the kernel is as it was when it returns.
func (s Study) Run(ctx context.Context, opt Options) error {
	_, err := s.run(ctx, opt)
	return err
}

// run says, too, whether the testbed was ready.
func (s Study) run(ctx context.Context, opt Options) (ready bool, err error) {
	if opt.Finished == nil && !s.Header.Started.IsZero() {
		opt.Finished = func(cell string, block int) bool { return hasRound(*s.Rounds, cell, block) }
	}
	bed, err := Open(ctx, s.Base, s.Header, opt)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	cells, err := s.Cells(bed)
	if err != nil {
		return true, err
	}
	for i := range cells {
		c := &cells[i]
		if c.Window == 0 {
			c.Settle, c.Window = time.Duration(s.Base.Settle), time.Duration(s.Base.Window)
		}
		if c.Keep == nil {
			c.Keep = func(round Round) error {
				*s.Rounds = append(*s.Rounds, round)
				return nil
			}
		}
	}
	return true, Run(ctx, Experiment{
		Parts: []Part{{Blocks: s.Base.Blocks, Cells: cells}}, Seed: s.Base.Seed, Result: s.Result, Header: s.Header,
		Ends: s.Ends, Enough: s.Enough, Look: s.Look, Drop: s.Drop, Blocks: s.Blocks,
	}, bed, opt)
}
