package power

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"syscall"
	"time"

	"berth.dev/berth/cpuset"
)

// Scale has the upper limit of the clock of a pool follow what the busiest of its CPUs needs,
// between Floor and the Max of the profile.
type Scale struct {
	// Busy is what part of its time the busiest CPU may be busy because of the limit, in
	// percent, 20 to 95. Default: 70.
	Busy int `json:"busy,omitempty"`
	// Floor is the least that the limit comes to, as in 1.6GHz, or in percent of the range that
	// the hardware has, as in 50%. Default: the Min of the profile, else the hardware's lowest.
	Floor string `json:"floor,omitempty"`
	// Hold is for how long less must have been enough before the limit goes down, 2s to 1h.
	// Default: 30s.
	Hold string `json:"hold,omitempty"`
}

// ScaleEvery is how long the windows are in which the load of pools is measured.
const ScaleEvery = 2 * time.Second

const (
	// levelStep is what levels count in, in percent.
	levelStep = 5
	// fullyBusy is from when on a CPU may need more than one can see: it had no time left. The
	// kernel counts in ticks, so that a CPU that never waits is not always busy for all of them.
	fullyBusy = 0.97
	// defaultBusy and defaultHold are those of Scale.
	defaultBusy = 70
	defaultHold = 30 * time.Second
)

// Level is how far the clock of a pool is limited by its load. The zero value is not at all.
type Level struct {
	// Percent is the limit, in percent of the highest clock that the CPUs can have, without boost where the profile
	// switches that off, by steps of 5.
	Percent int
	// least is the most that the pool needed since less than Percent was enough, and held is
	// for how long it has been enough.
	least int
	held  time.Duration
}

// Window is what a CPU did for a while.
type Window struct {
	Busy  float64 // the part of the time in which it was not idle, 0 to 1
	Limit float64 // the upper limit of its clock then, as part of the highest
}

// Scales reports whether the limits of pools follow their load.
func (c *Config) Scales() bool {
	if c == nil {
		return false
	}
	names := []string{c.Shared, c.Reserved}
	for _, s := range c.Schedules {
		names = append(names, s.Shared, s.Reserved)
	}
	return slices.ContainsFunc(names, func(name string) bool { return c.Profiles[name].Scale != nil })
}

func (s *Scale) validate(field string, fail func(string, error)) {
	if s.Busy != 0 && (s.Busy < 20 || s.Busy > 95) {
		fail(field+".busy", fmt.Errorf("%d: want 20 to 95 percent", s.Busy))
	}
	if hold, err := time.ParseDuration(cmp.Or(s.Hold, "30s")); err != nil || hold < ScaleEvery || hold > time.Hour {
		fail(field+".hold", fmt.Errorf("%q is no time from %v to 1h, as in 30s", s.Hold, ScaleEvery))
	}
	_, _, err := parseClock(s.Floor)
	fail(field+".floor", err)
}

// hold is for how long less must have been enough.
func (s *Scale) hold() time.Duration {
	if d, err := time.ParseDuration(s.Hold); err == nil {
		return d
	}
	return defaultHold
}

// Next is the level of a pool after a window. A CPU does the work of a window at another
// clock in inverse proportion of the time; one that had no time left may have any amount of it.
// So the limit goes up at once to where no CPU is busier than it may be, to the highest if one
// was busy all the time, and down once less was enough for the whole hold, to the most that was
// needed meanwhile. It stays within least and most (Host.Levels). What a CPU did below its limit
// it may have done at a lower clock: then it needs less than this says, never more.
func (s *Scale) Next(now Level, cpus []Window, took time.Duration, least, most int) Level {
	at, wants := cmp.Or(now.Percent, most), 0
	for _, c := range cpus {
		need := c.Busy * c.Limit * 100 / (float64(cmp.Or(s.Busy, defaultBusy)) / 100)
		if c.Busy >= fullyBusy {
			need = 100
		}
		wants = max(wants, int(math.Ceil(need/levelStep-1e-9))*levelStep)
	}
	wants, at = min(max(wants, least), most), min(max(at, least), most)
	if len(cpus) == 0 || wants >= at {
		return Level{Percent: max(wants, at)}
	}
	now = Level{at, max(now.least, wants), now.held + took}
	if now.held < s.hold() {
		return now
	}
	return Level{Percent: now.least}
}

// Levels are the least and the most that the level of CPUs may be with a profile, in percent
// of their highest clock; 0 and 0 where no driver scales it.
func (h *Host) Levels(cpus cpuset.Set, p Profile) (least, most int) {
	for _, policy := range h.Policies {
		if !policy.CPUs.Overlaps(cpus) || policy.Most == 0 {
			continue
		}
		policy = policy.within(p.Boost)
		floor, ceiling := p.scaled(policy)
		low, high := floor*100/policy.Most/levelStep*levelStep, (ceiling*100/policy.Most+levelStep-1)/levelStep*levelStep
		least, most = min(cmp.Or(least, low), low), max(most, high)
	}
	return max(least, min(levelStep, most)), most
}

// scaled are the bounds of the upper limit of a policy, in kHz, as its driver takes them.
func (p Profile) scaled(policy Policy) (floor, ceiling int) {
	ceiling = policy.takes(cmp.Or(clock(p.Max, policy.Least, policy.Most), policy.Most), true)
	floor = policy.takes(cmp.Or(clock(cmp.Or(p.Scale.Floor, p.Min), policy.Least, policy.Most), policy.Least), false)
	return min(floor, ceiling), ceiling
}

// limit is the upper limit of a policy at a level: no less than the level says where there are
// few steps, so that what was measured at a step is enough for the work.
func (p Profile) limit(policy Policy, level int) int {
	floor, ceiling := p.scaled(policy)
	if level == 0 {
		return ceiling
	}
	return min(max(policy.takes(policy.Most/100*level, false), floor), ceiling)
}

// Windows are what CPUs did, from the part of the time in which they were busy, at the limits
// that their files have now. Those of which there is no figure, or no limit, are left out.
func (h *Host) Windows(root fs.FS, cpus cpuset.Set, busy map[int]float64) (all []Window, err error) {
	for _, policy := range h.Policies {
		if !policy.CPUs.Overlaps(cpus) || policy.Most == 0 {
			continue
		}
		r := reader{fs: root}
		limit := r.number(policy.file(maxFile), 0)
		switch {
		case errors.Is(r.err, syscall.EBUSY), r.err == nil && limit == 0: // offline by now
			continue
		case r.err != nil:
			return nil, fmt.Errorf("read frequency limits: %w", r.err)
		}
		for cpu := range policy.CPUs.Intersect(cpus).All() {
			if part, ok := busy[cpu]; ok {
				all = append(all, Window{Busy: part, Limit: float64(limit) / float64(policy.Most)})
			}
		}
	}
	return all, nil
}
