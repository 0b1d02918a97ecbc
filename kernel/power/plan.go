package power

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
)

// Settings are what CPUs are to have. The zero value changes nothing.
type Settings struct {
	Governor   string // of cpufreq
	Preference string // energy_performance_preference: "balance_power"
	Bias       *int   // energy_perf_bias, 0 to 15
	// Min and Max are limits of the frequency; 0 leaves it. What the driver would not
	// take is planned as what it would make of it: a step that it has, within its range.
	Min, Max int
	Boost    *bool
	// IdleLatency disables the idle states that take longer to leave; nil leaves them.
	IdleLatency *int
	// ResumeLatency is how long a CPU may take to wake up, whatever the states: with 0 it
	// polls. nil leaves it.
	ResumeLatency *int
	// UncoreMin and UncoreMax are limits of the uncore's frequency; 0 leaves it.
	UncoreMin, UncoreMax int
	// SpeedSelect is what the cores have of their package's power and turbo; nil leaves it.
	SpeedSelect *SpeedSelect
}

// Validate says what is wrong with the settings.
func (s Settings) Validate() error {
	switch {
	case s.Bias != nil && (*s.Bias < 0 || *s.Bias > 15):
		return fmt.Errorf("energy bias %d: want 0 (performance) to 15 (power)", *s.Bias)
	case s.Min < 0 || s.Max < 0 || s.UncoreMin < 0 || s.UncoreMax < 0:
		return errors.New("frequency: want 0 kHz or more")
	case s.Max > 0 && s.Min > s.Max:
		return fmt.Errorf("frequency: the lower limit of %d kHz is above the upper one of %d kHz", s.Min, s.Max)
	case s.UncoreMax > 0 && s.UncoreMin > s.UncoreMax:
		return fmt.Errorf("uncore frequency: the lower limit of %d kHz is above the upper one of %d kHz", s.UncoreMin, s.UncoreMax)
	case s.IdleLatency != nil && *s.IdleLatency < 0, s.ResumeLatency != nil && *s.ResumeLatency < 0:
		return errors.New("latency: want 0 µs or more")
	}
	return s.SpeedSelect.validate()
}

// Plan is the writes that give CPUs settings: none where they have them. What this host
// cannot do, or could do only to other CPUs as well, is a kernel.NotSupportedError.
func (h *Host) Plan(cpus cpuset.Set, s Settings) (kernel.Plan, error) {
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("plan power of CPUs %s: %w", cpus, err)
	}
	return h.planned(cpus, func(p *planner) error { return p.all(func(Policy) Settings { return s }, s) })
}

func (h *Host) planned(cpus cpuset.Set, want func(*planner) error) (plan kernel.Plan, err error) {
	if left := cpus.Minus(h.Online()); !left.IsEmpty() {
		return nil, fmt.Errorf("plan power: CPUs %s are not online", left)
	}
	p := planner{host: h, cpus: cpus, want: values{}}
	if err = want(&p); err == nil {
		err = h.alone(cpus, p.want)
	}
	for _, policy := range h.Policies {
		preference, asked := p.want[policy.file(preferenceFile)]
		if err == nil && asked && p.want[policy.file(governorFile)].text == "" && policy.Governor == performance {
			err = policy.admits(preference.text)
		}
	}
	if err == nil {
		plan, err = h.steps(p.want)
	}
	if err != nil {
		return nil, fmt.Errorf("plan power of CPUs %s: %w", cpus, err)
	}
	return plan, nil
}

// values are what files are to have, by path.
type values map[string]value

type value struct{ text, why, who string }

// planner collects what the settings of some CPUs come to.
type planner struct {
	host *Host
	cpus cpuset.Set
	want values
}

func (p *planner) set(file, text, why string) { p.want[file] = value{text: text, why: why} }

// all takes settings: those of frequencies by policy, and the others.
func (p *planner) all(of func(Policy) Settings, s Settings) error {
	if s.Boost != nil {
		if err := p.boost(*s.Boost); err != nil {
			return err
		}
	}
	frequency := func(s Settings) bool { return s.Governor != "" || s.Preference != "" || s.Min > 0 || s.Max > 0 }
	if frequency(s) || slices.ContainsFunc(p.host.Policies, func(policy Policy) bool { return frequency(of(policy)) }) {
		policies, err := p.policies()
		if err != nil {
			return err
		}
		for _, policy := range policies {
			policy = policy.within(s.Boost)
			if err := p.policy(policy, of(policy)); err != nil {
				return err
			}
		}
	}
	for _, part := range []struct {
		wanted bool
		plan   func(Settings) error
	}{{s.UncoreMin > 0 || s.UncoreMax > 0, p.uncore}, {s.Bias != nil, p.bias}, {s.IdleLatency != nil, p.idle}, {s.ResumeLatency != nil, p.resume}, {s.SpeedSelect != nil, p.speedSelect}} {
		if !part.wanted {
			continue
		}
		if err := part.plan(s); err != nil {
			return err
		}
	}
	return nil
}

// policies are those of the CPUs.
func (p *planner) policies() (all []Policy, err error) {
	left := p.cpus
	for _, policy := range p.host.Policies {
		if policy.CPUs.Overlaps(p.cpus) {
			left = left.Minus(policy.CPUs)
			all = append(all, policy)
		}
	}
	if !left.IsEmpty() {
		return nil, &kernel.NotSupportedError{
			Feature: "frequency scaling", Reason: fmt.Sprintf("no driver scales the clock of CPUs %s (there is no cpufreq)", left),
			Remedy: "load the CPU's driver; on a virtual machine set it on the host",
		}
	}
	return all, nil
}

func (p *planner) policy(policy Policy, s Settings) error {
	if s.Governor != "" {
		if !slices.Contains(policy.Governors, s.Governor) {
			return &kernel.NotSupportedError{
				Feature: "governor " + s.Governor, Reason: fmt.Sprintf("%s of driver %s has %s", policy.Name, policy.Driver, strings.Join(policy.Governors, ", ")),
				Remedy: "choose one of those, or load the module cpufreq_" + s.Governor,
			}
		}
		p.set(policy.file(governorFile), s.Governor, "")
	}
	if s.Preference != "" {
		if policy.Preference == "" {
			return &kernel.NotSupportedError{Feature: "energy preference", Reason: fmt.Sprintf("driver %s of %s has none", policy.Driver, policy.Name), Remedy: "use intel_pstate or amd_pstate in active mode"}
		}
		if len(policy.Preferences) > 0 && !slices.Contains(policy.Preferences, s.Preference) {
			return &kernel.NotSupportedError{Feature: "energy preference " + s.Preference, Reason: fmt.Sprintf("%s has %s", policy.Name, strings.Join(policy.Preferences, ", ")), Remedy: "choose one of those"}
		}
		if s.Governor == performance {
			if err := policy.admits(s.Preference); err != nil {
				return err
			}
		}
		p.set(policy.file(preferenceFile), s.Preference, "")
	}
	least, most := policy.takes(s.Min, false), policy.takes(s.Max, true)
	if least > 0 && most > 0 && least > most {
		return fmt.Errorf("/%s: limits of %d and %d kHz cross: no frequency of its driver is between them", policy.file(""), least, most)
	}
	for file, kHz := range map[string]int{minFile: least, maxFile: most} {
		if kHz > 0 {
			p.set(policy.file(file), strconv.Itoa(kHz), "")
		}
	}
	return nil
}

// admits returns an error if the driver refuses an energy preference under the governor
// performance: those that choose by themselves do (intel_pstate.rst, amd-pstate.rst).
func (p Policy) admits(preference string) error {
	if !active(p.Driver) || preference == performance {
		return nil
	}
	return fmt.Errorf("energy preference %s: %s has the governor performance, which admits no other than performance; ask for powersave, too", preference, p.Name)
}

func (p Policy) file(name string) string { return cpuDir + "/cpufreq/" + p.Name + name }

// takes is what a driver makes of a limit: it keeps it within what the hardware can do, and
// takes a step that there is, below an upper limit and above a lower one
// (cpufreq_set_policy in drivers/cpufreq/cpufreq.c). 0 stays 0.
func (p Policy) takes(limit int, upper bool) int {
	if limit == 0 {
		return 0
	}
	if p.Least > 0 && p.Most > 0 {
		limit = min(max(limit, p.Least), p.Most)
	}
	if len(p.Steps) == 0 {
		return limit
	}
	i, exact := slices.BinarySearch(p.Steps, limit)
	if upper && !exact {
		i--
	}
	return p.Steps[min(max(i, 0), len(p.Steps)-1)]
}

// each calls f with each of the CPUs.
func (p *planner) each(f func(CPU) error) error {
	for _, c := range p.host.CPUs {
		if !p.cpus.Has(c.ID) {
			continue
		}
		if err := f(c); err != nil {
			return err
		}
	}
	return nil
}

func (p *planner) bias(s Settings) error {
	return p.each(func(c CPU) error {
		if c.Bias == nil {
			return &kernel.NotSupportedError{Feature: "energy bias", Reason: fmt.Sprintf("CPU %d has none", c.ID), Remedy: "only processors of Intel have it; use the energy preference"}
		}
		p.set(cpuPath(c.ID)+biasFile, strconv.Itoa(*s.Bias), "")
		return nil
	})
}

func (p *planner) idle(s Settings) error {
	return p.each(func(c CPU) error {
		if len(c.States) == 0 {
			return &kernel.NotSupportedError{Feature: "idle states", Reason: fmt.Sprintf("CPU %d has none (there is no cpuidle)", c.ID), Remedy: "use a kernel with CONFIG_CPU_IDLE and a driver for the processor"}
		}
		for _, state := range c.States {
			if state.Latency > *s.IdleLatency {
				p.set(state.file(c.ID), "1", fmt.Sprintf("%s takes %d µs to leave", state.Name, state.Latency))
			}
		}
		return nil
	})
}

func (s IdleState) file(cpu int) string {
	return fmt.Sprintf("%s/cpuidle/state%d/disable", cpuPath(cpu), s.Number)
}

func (p *planner) resume(s Settings) error {
	text, why := strconv.Itoa(*s.ResumeLatency), ""
	if *s.ResumeLatency == 0 {
		text, why = "n/a", "it polls where it would sleep"
	}
	return p.each(func(c CPU) error {
		if c.ResumeLatency == "" {
			return &kernel.NotSupportedError{Feature: "wake-up latency of a CPU", Reason: fmt.Sprintf("CPU %d has no pm_qos_resume_latency_us", c.ID), Remedy: "use Linux 4.11 or newer with CONFIG_PM and CONFIG_CPU_IDLE"}
		}
		p.set(cpuPath(c.ID)+resumeFile, text, why)
		return nil
	})
}

// boost switches it for the policies where they have switches of their own, else for all.
func (p *planner) boost(on bool) error {
	policies, err := p.policies()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(policies, func(policy Policy) bool { return policy.Boost == "" }) {
		if on && p.host.boost != "" && p.host.boostNow == word(p.host.inverted) { // store_local_boost in drivers/cpufreq/cpufreq.c
			return &kernel.NotSupportedError{Feature: "boost of some CPUs", Reason: "boost is off for all (/" + p.host.boost + ")", Remedy: "switch it on for all"}
		}
		for _, policy := range policies {
			p.set(policy.file(boostFile), word(on), "")
		}
		return nil
	}
	if p.host.boost == "" {
		return &kernel.NotSupportedError{Feature: "boost", Reason: "neither the driver nor its policies have a switch", Remedy: "switch it in the firmware"}
	}
	p.set(p.host.boost, word(on != p.host.inverted), "")
	return nil
}

func word(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

// uncoreStep is what the driver counts in (intel_uncore_frequency_scaling.rst).
const uncoreStep = 100_000

// uncore sets the dies of the packages of the CPUs.
func (p *planner) uncore(s Settings) error {
	if len(p.host.Uncore) == 0 {
		return &kernel.NotSupportedError{Feature: "uncore frequency", Reason: "there is no intel_uncore_frequency", Remedy: "load the module intel_uncore_frequency, on a server of Intel"}
	}
	for _, u := range p.host.Uncore {
		if !p.host.around(u).Overlaps(p.cpus) {
			continue
		}
		for file, limit := range map[string]int{uncoreMinFile: s.UncoreMin, uncoreMaxFile: s.UncoreMax} {
			if limit > 0 {
				p.set(u.file(file), strconv.Itoa(min(max(limit/uncoreStep*uncoreStep, u.Least), u.Most)), "")
			}
		}
	}
	return nil
}

func (u Uncore) file(name string) string { return cpuDir + "/intel_uncore_frequency/" + u.Name + name }

// around are the CPUs of the package that an uncore is of; of one that does not say, all.
func (h *Host) around(u Uncore) (cpus cpuset.Set) {
	for _, c := range h.CPUs {
		if u.Package < 0 || c.Package == u.Package {
			cpus = cpus.Union(cpuset.MustOf(c.ID))
		}
	}
	return cpus
}
