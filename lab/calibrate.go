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
	fitted, last, err := b.fit(ctx, setup.Tenant, setup.Rate, time.Duration(setup.CPUPerRequest))
	if err != nil {
		return err
	}
	setup.Tenant = fitted
	setup.CPUPerRequest = Duration(time.Duration(last.perRequest * float64(time.Second)).Round(time.Microsecond))
	setup.TenantCPUs = last.perRequest * setup.Rate
	setup.GeneratorDemand = last.generator
	setup.GeneratorPolicy = last.policy
	return nil
}

// Fit settles the work of a tenant per request, so that one takes about so much CPU time at
// a rate, and returns it with the CPUs that it uses then.
func (b *Testbed) Fit(ctx context.Context, tenant load.TenantConfig, rate float64, want time.Duration) (load.TenantConfig, float64, error) {
	fitted, last, err := b.fit(ctx, tenant, rate, want)
	if err != nil {
		return fitted, 0, fmt.Errorf("calibrate: %w", err)
	}
	return fitted, last.perRequest * rate, nil
}

func (b *Testbed) fit(ctx context.Context, tenant load.TenantConfig, rate float64, each time.Duration) (_ load.TenantConfig, last pilot, err error) {
	want := each.Seconds()
	units := func(u float64) int { return max(1, int(math.Round(u))) }

	tenant.Units = units(want / guess.Seconds())
	first, err := b.pilot(ctx, "first guess of the tenant's work", tenant, rate)
	if err != nil {
		return tenant, last, err
	}
	firstUnits := float64(tenant.Units)
	tenant.Units = units(firstUnits * want / first.perRequest)
	if last, err = b.pilot(ctx, "tenant's work", tenant, rate); err != nil {
		return tenant, last, err
	}
	// Two points make a line: what a unit costs, and what a request costs besides.
	if more := float64(tenant.Units) - firstUnits; more != 0 {
		if perUnit := (last.perRequest - first.perRequest) / more; perUnit > 0 {
			step := (want - last.perRequest) / perUnit
			limit := 0.2 * float64(tenant.Units) // two points close together make a wild line
			tenant.Units = units(float64(tenant.Units) + min(max(step, -limit), limit))
		}
	}
	last, err = b.pilot(ctx, "tenant's demand", tenant, rate)
	return tenant, last, err
}

// pilot is a short run of the tenant alone.
type pilot struct {
	perRequest float64 // CPU seconds of the tenant
	generator  float64 // CPUs used by the generator
	policy     string
}

func (b *Testbed) pilot(ctx context.Context, what string, tenant load.TenantConfig, rate float64) (p pilot, err error) {
	b.opt.tell(Progress{Phase: "calibrate", Scenario: what})
	procs, err := b.processes(ctx, setup{min(b.opt.Servers, 1), tenant})
	if err != nil {
		return p, err
	}
	var round Round
	cfg := load.Config{Window: pilotWindow, Grace: grace(pilotWindow), Rate: rate, Seed: b.spec.Seed, RawFile: rawFile}
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
