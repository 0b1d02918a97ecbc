package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/stats"
)

// Calibration: the tenant's dial is fixed work, not time, so that a slower
// moment of the machine shows as latency. How much work makes the wanted CPU
// time per request is measured here, with the tenant alone and at its real
// rate: what a request costs besides its work depends on both.
const (
	// A pilot takes a second, or as long as so many requests take to come, but no longer
	// than a round.
	pilotWindow   = time.Second
	pilotRequests = 8
	// guess is about what a unit of work costs; the first pilot corrects it.
	guess = 7 * time.Microsecond
)

// calibrate settles the tenant's work per request and measures its demand.
func (b *Testbed) calibrate(ctx context.Context) error {
	if b.tells() {
		return b.rehearse(ctx)
	}
	if !b.spec.Tenant.builtIn() {
		return b.calibrateRate(ctx, b.setupOf(Cell{}), b.spec.Tenant.Demand*float64(b.places.shared.Len()))
	}
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
	pilot := func(what string) (pilot, error) {
		return b.pilot(ctx, what, b.pilotSetup(tenant), rate)
	}

	tenant.Units = units(want / guess.Seconds())
	first, err := pilot("first guess of the tenant's work")
	if err != nil {
		return tenant, last, err
	}
	firstUnits := float64(tenant.Units)
	tenant.Units = units(firstUnits * want / first.perRequest)
	if last, err = pilot("tenant's work"); err != nil {
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
	last, err = pilot("tenant's demand")
	return tenant, last, err
}

const (
	// firstRate is what a tenant that is not built in is first asked at, in requests per
	// second; leastPerRequest is what it must use for one, in CPU seconds.
	firstRate       = 500
	leastPerRequest = 0.5e-6
	// firstRuns is the first rate where a request starts processes, startRuns are how often
	// that is timed.
	firstRuns, startRuns = 20, 50
	// How many CPUs the generator may take: of each shared one where it has none of its
	// own, and else of that.
	generatorShare, generatorOwn = 0.15, 0.6
)

// FitRate settles at which rate the servers of a cell together want so many CPUs, beginning
// with a guess (0 for none), unless the spec says the rate; and enters into the setup what that
// came to. A run that is resumed keeps what it settled on.
func (b *Testbed) FitRate(ctx context.Context, s Serve, want, guess float64) error {
	if b.Setup.Rate > 0 {
		return nil
	}
	b.Setup.Rate = cmp.Or(b.spec.Rate, guess, firstRate)
	if err := b.calibrateRate(ctx, b.setupOf(Cell{Serve: &s}), want); err != nil {
		return fmt.Errorf("calibrate: %w", err)
	}
	return nil
}

// calibrateRate settles at which rate what a setup starts wants so many CPUs, from the CPU
// time that it uses per request, unless the rate is given.
func (b *Testbed) calibrateRate(ctx context.Context, of setup, want float64) error {
	s, shared := b.Setup, float64(b.places.shared.Len())
	limit := generatorOwn
	if b.places.generator.IsEmpty() {
		limit = generatorShare * shared
	}
	for left := 3; ; left-- {
		p, err := b.pilot(ctx, fmt.Sprintf("tenant's CPU time per request at %.4g/s", s.Rate), of, s.Rate)
		if err != nil {
			return err
		}
		if p.perRequest < leastPerRequest {
			return fmt.Errorf("tenant %s used no CPU time for its answers: is it what answers at %s?", b.spec.Tenant, b.procs.addrs[0].Addr)
		}
		s.CPUPerRequest = Duration(time.Duration(p.perRequest * float64(time.Second)).Round(100 * time.Nanosecond))
		s.TenantCPUs, s.GeneratorDemand, s.GeneratorPolicy = p.perRequest*s.Rate, p.generator, p.policy
		if left == 0 || b.spec.Rate > 0 {
			return b.timeStart(ctx)
		}
		rate, most := want/p.perRequest, limit*s.Rate/p.generator
		if s.RateNote = ""; rate > min(most, maxRate) {
			s.RateNote = fmt.Sprintf("The tenant is asked at %.0f requests per second, for which it wants %.2f CPUs, not %.2f: more would take the CPUs for the generator.",
				min(most, maxRate), min(most, maxRate)*p.perRequest, want)
		}
		s.Rate = math.Round(min(rate, most, maxRate))
		if s.Rate < 1 {
			return fmt.Errorf("tenant %s: a request takes %.1f s of CPU: it can be asked less than once a second; say --rate, and longer rounds with --duration", b.spec.Tenant, p.perRequest)
		}
	}
}

// pilotSetup is a tenant by itself, which is a server where there are some.
func (b *Testbed) pilotSetup(tenant load.TenantConfig) setup {
	return setup{servers: min(b.opt.Servers, 1), service: cmp.Or(b.spec.Tenant.Service, Article), config: tenant}
}

// timeStart times the start of a process, where a request is one.
func (b *Testbed) timeStart(ctx context.Context) error {
	if b.spec.Tenant.Exec == "" {
		return nil
	}
	if n := b.Setup.Rate * time.Duration(b.spec.Window).Seconds(); n < leastRequests {
		enough := Duration(time.Duration(1.5 * leastRequests / b.Setup.Rate * float64(time.Second)).Round(100 * time.Millisecond))
		return fmt.Errorf("tenant %s: a round of %s has %.0f runs of --exec, and a p99 needs %d: say --duration %s", b.spec.Tenant, b.spec.Window, n, leastRequests, enough)
	}
	procs, err := b.processes(ctx, b.setupOf(Cell{}))
	if err != nil {
		return err
	}
	c, err := load.Dial(ctx, procs.addrs[0])
	if err != nil {
		return err
	}
	var took []float64
	for range startRuns {
		began := time.Now()
		if err := c.Do(ctx, load.Nothing); err != nil {
			return errors.Join(err, c.Close())
		}
		took = append(took, time.Since(began).Seconds())
	}
	b.Setup.ProcessStart = Duration(time.Duration(stats.Median(took) * float64(time.Second)).Round(time.Microsecond))
	return c.Close()
}

// pilotLength is the window of a pilot at a rate, per second, before rounds of a window.
func pilotLength(rate float64, round time.Duration) time.Duration {
	enough := time.Duration(pilotRequests / rate * float64(time.Second))
	return max(pilotWindow, min(enough, round))
}

// pilot is a short run of the tenant alone.
type pilot struct {
	perRequest float64 // CPU seconds of the tenant
	generator  float64 // CPUs used by the generator
	policy     string
}

func (b *Testbed) pilot(ctx context.Context, what string, of setup, rate float64) (p pilot, err error) {
	b.opt.tell(Progress{Phase: "calibrate", Scenario: what})
	procs, err := b.processes(ctx, of)
	if err != nil {
		return p, err
	}
	var round Round
	window := pilotLength(rate, time.Duration(b.spec.Window))
	cfg := load.Config{Window: window, Grace: grace(window), Rate: rate, Seed: b.spec.Seed, RawFile: rawFile}
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
