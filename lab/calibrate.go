package lab

import (
	"context"
	"fmt"
	"math"
	"time"

	"berth.dev/berth/lab/load"
)

// Calibration: the tenant's dial is fixed work, not time, so that a slower
// moment of the machine shows as latency. How much work makes the wanted CPU
// time per request is measured here, with the tenant alone and at its real
// rate: what a request costs besides its work depends on both.
const (
	pilotWindow = time.Second
	// guess is about what a unit of work costs; the first pilot corrects it.
	guess = 7 * time.Microsecond
)

// calibrate settles the tenant's work per request and measures its demand.
func (b *Testbed) calibrate(ctx context.Context) error {
	setup := b.Setup
	want := time.Duration(setup.CPUPerRequest).Seconds()
	units := func(u float64) int { return max(1, int(math.Round(u))) }

	setup.Tenant.Units = units(want / guess.Seconds())
	first, err := b.pilot(ctx, "first guess of the tenant's work")
	if err != nil {
		return err
	}
	firstUnits := float64(setup.Tenant.Units)
	setup.Tenant.Units = units(firstUnits * want / first.perRequest)
	last, err := b.pilot(ctx, "tenant's work")
	if err != nil {
		return err
	}
	// Two points make a line: what a unit costs, and what a request costs besides.
	if more := float64(setup.Tenant.Units) - firstUnits; more != 0 {
		if perUnit := (last.perRequest - first.perRequest) / more; perUnit > 0 {
			step := (want - last.perRequest) / perUnit
			limit := 0.2 * float64(setup.Tenant.Units) // two points close together make a wild line
			setup.Tenant.Units = units(float64(setup.Tenant.Units) + min(max(step, -limit), limit))
		}
	}
	if last, err = b.pilot(ctx, "tenant's demand"); err != nil {
		return err
	}
	setup.CPUPerRequest = Duration(time.Duration(last.perRequest * float64(time.Second)).Round(time.Microsecond))
	setup.TenantCPUs = last.perRequest * setup.Rate
	setup.GeneratorDemand = last.generator
	setup.GeneratorPolicy = last.policy
	return nil
}

// pilot is a short run of the tenant alone.
type pilot struct {
	perRequest float64 // CPU seconds of the tenant
	generator  float64 // CPUs used by the generator
	policy     string
}

func (b *Testbed) pilot(ctx context.Context, what string) (p pilot, err error) {
	b.opt.tell(Progress{Phase: "calibrate", Scenario: what})
	procs, err := b.processes(ctx, b.setupOf(Cell{}))
	if err != nil {
		return p, err
	}
	var round Round
	cfg := load.Config{Window: pilotWindow, Grace: grace(pilotWindow), Rate: b.Setup.Rate, Seed: b.spec.Seed, RawFile: rawFile}
	err = procs.play(ctx, Cell{}, cfg, &round)
	if err := procs.leave(ctx, func() error { return nil }, Cell{}, err, &round); err != nil {
		return p, err
	}
	if round.Load.DoneInWindow == 0 {
		return p, fmt.Errorf("tenant answered none of %d requests", round.Load.Offered)
	}
	return pilot{
		perRequest: round.Tenant.CPUSeconds / round.Seconds * cfg.Window.Seconds() / float64(round.Load.DoneInWindow),
		generator:  round.Load.CPUSeconds / cfg.Window.Seconds(),
		policy:     round.Load.Policy,
	}, nil
}
