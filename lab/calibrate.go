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
// time per request is measured here, with the tenant alone.
const (
	pilotUnits  = 16
	pilotWindow = 600 * time.Millisecond
	pilotSettle = 150 * time.Millisecond
	// pilots at the real rate, each correcting the one before.
	pilotRuns = 2
)

// calibrate settles the tenant's work per request and measures its demand.
func (r *runner) calibrate(ctx context.Context) error {
	setup := &r.result.Setup
	want := time.Duration(setup.CPUPerRequest)
	setup.Tenant.Units = 0
	fixed, err := r.pilot(ctx, "request overhead")
	if err != nil {
		return err
	}
	setup.Tenant.Units = pilotUnits
	for range pilotRuns {
		got, err := r.pilot(ctx, "service time")
		if err != nil {
			return err
		}
		perUnit := (got.perRequest - fixed.perRequest) / float64(setup.Tenant.Units)
		if perUnit <= 0 {
			return fmt.Errorf("tenant: %d units of work took no measurable CPU time", setup.Tenant.Units)
		}
		setup.Tenant.Units = max(1, int(math.Round((want.Seconds()-fixed.perRequest)/perUnit)))
	}
	final, err := r.pilot(ctx, "demand")
	if err != nil {
		return err
	}
	setup.CPUPerRequest = Duration(time.Duration(final.perRequest * float64(time.Second)).Round(time.Microsecond))
	setup.TenantCPUs = final.perRequest * setup.Rate
	setup.GeneratorDemand = final.generator
	setup.GeneratorPolicy = final.policy
	return nil
}

// pilot is a short run of the tenant alone.
type pilot struct {
	perRequest float64 // CPU seconds of the tenant
	generator  float64 // CPUs used by the generator
	policy     string
}

func (r *runner) pilot(ctx context.Context, what string) (p pilot, err error) {
	r.tell(Progress{Phase: "calibrate", Scenario: what})
	cast := &cast{r: r}
	defer func() {
		if left := cast.leave(); err == nil {
			err = left
		}
	}()
	if err := cast.enter(ctx, false); err != nil {
		return p, err
	}
	var round Round
	cfg := load.Config{Settle: pilotSettle, Window: pilotWindow, Grace: grace(pilotWindow), Rate: r.result.Setup.Rate}
	if err := cast.measure(ctx, cfg, &round); err != nil {
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
