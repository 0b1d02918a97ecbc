package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/program"
)

// tellLimit is how long a benchmark may take.
const tellLimit = 5 * time.Minute

// tells says whether the tenant is loaded by a benchmark that tells its own figures.
func (b *Testbed) tells() bool { return b.spec.Tenant.Figures != "" }

// told has the benchmark run once, and reads the counters before and after it, and its report.
func (p *processes) told(ctx context.Context, settle time.Duration, round *Round) error {
	if err := sleepUntil(ctx, monotonic()+settle.Nanoseconds()); err != nil {
		return err
	}
	format, err := program.FormatNamed(p.bed.spec.Tenant.Figures)
	if err != nil {
		return err
	}
	if round.Knobs, err = p.bed.backend.knobs(); err != nil {
		return err
	}
	before, err := p.snapshot()
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, tellLimit)
	defer cancel()
	printed, err := program.Exec{Address: p.addrs[0].Addr}.Run(limited)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the benchmark has not ended after %s", tellLimit)
	}
	if err != nil {
		return fmt.Errorf("the benchmark: %w", err)
	}
	after, err := p.snapshot()
	if err != nil {
		return err
	}
	after.since(before, round, p.bed.places.shared)
	round.Told, err = format.Read(printed)
	return err
}

// rehearse runs the benchmark once, alone: whether it can be read, and how many CPUs it and the
// tenant take together.
func (b *Testbed) rehearse(ctx context.Context) error {
	b.opt.tell(Progress{Phase: "calibrate", Scenario: "the benchmark, once"})
	procs, err := b.processes(ctx, b.setupOf(Cell{}))
	if err != nil {
		return err
	}
	var round Round
	err = procs.play(ctx, Cell{}, load.Config{}, &round)
	if err := procs.leave(ctx, func() error { return nil }, Cell{}, err, &round); err != nil {
		return err
	}
	if round.Seconds > 0 {
		b.Setup.TenantCPUs = round.Tenant.CPUSeconds / round.Seconds
		b.Setup.BenchmarkTook = Duration(time.Duration(round.Seconds * float64(time.Second)).Round(time.Millisecond))
	}
	return nil
}
