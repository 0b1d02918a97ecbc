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
	return nil
}

// Plan is the writes that give CPUs settings: none where they have them. What this host
// cannot do, or could do only to other CPUs as well, is a kernel.NotSupportedError.
func (h *Host) Plan(cpus cpuset.Set, s Settings) (kernel.Plan, error) {
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("plan power of CPUs %s: %w", cpus, err)
	}
	if left := cpus.Minus(h.Online()); !left.IsEmpty() {
		return nil, fmt.Errorf("plan power: CPUs %s are not online", left)
	}
	p := planner{host: h, cpus: cpus}
	for _, part := range []struct {
		wanted bool
		plan   func(Settings) error
	}{
		{s.Boost != nil, p.boost},
		{s.Governor != "" || s.Preference != "" || s.Min > 0 || s.Max > 0, p.frequency},
		{s.UncoreMin > 0 || s.UncoreMax > 0, p.uncore},
		{s.Bias != nil, p.bias}, {s.IdleLatency != nil, p.idle}, {s.ResumeLatency != nil, p.resume},
	} {
		if !part.wanted {
			continue
		}
		if err := part.plan(s); err != nil {
			return nil, fmt.Errorf("plan power of CPUs %s: %w", cpus, err)
		}
	}
	return p.plan, nil
}

type planner struct {
	host *Host
	cpus cpuset.Set
	plan kernel.Plan
}

func (p *planner) write(name, was, value, why string, disturbs ...string) {
	if was != value {
		p.plan = append(p.plan, kernel.Step{Path: name, Value: value, Why: why, Disturbs: disturbs})
	}
}

// policies are those of the CPUs. All CPUs of a policy change together.
func (p *planner) policies() ([]Policy, error) {
	var all []Policy
	left := p.cpus
	for _, policy := range p.host.Policies {
		if !policy.CPUs.Overlaps(p.cpus) {
			continue
		}
		if others := policy.CPUs.Minus(p.cpus); !others.IsEmpty() {
			return nil, &kernel.NotSupportedError{
				Feature: "a frequency of their own", Reason: fmt.Sprintf("CPUs %s have one frequency setting (%s)", policy.CPUs, policy.Name),
				Remedy: fmt.Sprintf("name CPUs %s, too", others),
			}
		}
		left = left.Minus(policy.CPUs)
		all = append(all, policy)
	}
	if !left.IsEmpty() {
		return nil, &kernel.NotSupportedError{
			Feature: "frequency scaling", Reason: fmt.Sprintf("no driver scales the clock of CPUs %s (there is no cpufreq)", left),
			Remedy: "load the CPU's driver; on a virtual machine set it on the host",
		}
	}
	return all, nil
}

func (p *planner) frequency(s Settings) error {
	policies, err := p.policies()
	for _, policy := range policies {
		if err == nil {
			err = p.policy(policy, s)
		}
	}
	return err
}

func (p *planner) policy(policy Policy, s Settings) error {
	dir := cpuDir + "/cpufreq/" + policy.Name
	preference := dir + "/energy_performance_preference"
	if s.Governor != "" {
		if !slices.Contains(policy.Governors, s.Governor) {
			return &kernel.NotSupportedError{
				Feature: "governor " + s.Governor, Reason: fmt.Sprintf("%s of driver %s has %s", policy.Name, policy.Driver, strings.Join(policy.Governors, ", ")),
				Remedy: "choose one of those, or load the module cpufreq_" + s.Governor,
			}
		}
		// With the governor performance, a driver that chooses by itself has the preference
		// at performance, and refuses another one (intel_pstate.rst, amd-pstate.rst).
		var disturbs []string
		if policy.Preference != "" {
			disturbs = append(disturbs, preference)
		}
		for _, c := range p.host.CPUs {
			if policy.CPUs.Has(c.ID) && c.Bias != nil && policy.Preference == "" {
				disturbs = append(disturbs, cpuPath(c.ID)+biasFile)
			}
		}
		p.write(dir+"/scaling_governor", policy.Governor, s.Governor, "", disturbs...)
	}
	if s.Preference != "" {
		if policy.Preference == "" {
			return &kernel.NotSupportedError{Feature: "energy preference", Reason: fmt.Sprintf("driver %s of %s has none", policy.Driver, policy.Name), Remedy: "use intel_pstate or amd_pstate in active mode"}
		}
		if len(policy.Preferences) > 0 && !slices.Contains(policy.Preferences, s.Preference) {
			return &kernel.NotSupportedError{Feature: "energy preference " + s.Preference, Reason: fmt.Sprintf("%s has %s", policy.Name, strings.Join(policy.Preferences, ", ")), Remedy: "choose one of those"}
		}
		if governor := s.Governor; active(policy.Driver) && s.Preference != performance && (governor == performance || governor == "" && policy.Governor == performance) {
			return fmt.Errorf("energy preference %s: %s has the governor performance, which admits no other than performance; ask for powersave, too", s.Preference, policy.Name)
		}
		was := policy.Preference
		if s.Governor != "" && s.Governor != policy.Governor {
			was = "" // the governor may change it
		}
		p.write(preference, was, s.Preference, "")
	}
	least, most := policy.takes(s.Min, false), policy.takes(s.Max, true)
	return p.bounds(dir, [2]string{"/scaling_min_freq", "/scaling_max_freq"}, [2]int{policy.Min, policy.Max}, [2]int{least, most})
}

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

// bounds plans two limits in an order in which the lower one is never above the upper one,
// neither now nor when it is undone.
func (p *planner) bounds(dir string, names [2]string, now, want [2]int) error {
	for i := range want {
		if want[i] == 0 {
			want[i] = now[i]
		}
	}
	if want[0] > want[1] {
		return fmt.Errorf("/%s: limits of %d and %d kHz cross: set both", dir, want[0], want[1])
	}
	order := []int{0, 1}
	if want[0] > now[1] {
		order = []int{1, 0}
	}
	for _, i := range order {
		p.write(dir+names[i], strconv.Itoa(now[i]), strconv.Itoa(want[i]), "")
	}
	return nil
}

const biasFile = "/power/energy_perf_bias"

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
		p.write(cpuPath(c.ID)+biasFile, strconv.Itoa(*c.Bias), strconv.Itoa(*s.Bias), "")
		return nil
	})
}

func (p *planner) idle(s Settings) error {
	return p.each(func(c CPU) error {
		if len(c.States) == 0 {
			return &kernel.NotSupportedError{Feature: "idle states", Reason: fmt.Sprintf("CPU %d has none (there is no cpuidle)", c.ID), Remedy: "use a kernel with CONFIG_CPU_IDLE and a driver for the processor"}
		}
		for _, state := range c.States {
			if state.Latency > *s.IdleLatency && !state.Disabled {
				p.write(fmt.Sprintf("%s/cpuidle/state%d/disable", cpuPath(c.ID), state.Number), "0", "1", fmt.Sprintf("%s takes %d µs to leave", state.Name, state.Latency))
			}
		}
		return nil
	})
}

func (p *planner) resume(s Settings) error {
	value, why := strconv.Itoa(*s.ResumeLatency), ""
	if *s.ResumeLatency == 0 {
		value, why = "n/a", "it polls where it would sleep"
	}
	return p.each(func(c CPU) error {
		if c.ResumeLatency == "" {
			return &kernel.NotSupportedError{Feature: "wake-up latency of a CPU", Reason: fmt.Sprintf("CPU %d has no pm_qos_resume_latency_us", c.ID), Remedy: "use Linux 4.11 or newer with CONFIG_PM and CONFIG_CPU_IDLE"}
		}
		p.write(cpuPath(c.ID)+"/power/pm_qos_resume_latency_us", c.ResumeLatency, value, why)
		return nil
	})
}

// boost switches it for the policies where they have switches of their own, else for all.
func (p *planner) boost(s Settings) error {
	policies, err := p.policies()
	if err != nil {
		return err
	}
	word := func(on bool) string {
		if on {
			return "1"
		}
		return "0"
	}
	if !slices.ContainsFunc(policies, func(policy Policy) bool { return policy.Boost == "" }) {
		for _, policy := range policies {
			p.write(cpuDir+"/cpufreq/"+policy.Name+"/boost", policy.Boost, word(*s.Boost), "")
		}
		return nil
	}
	if p.host.boost == "" {
		return &kernel.NotSupportedError{Feature: "boost", Reason: "neither the driver nor its policies have a switch", Remedy: "switch it in the firmware"}
	}
	if others := p.host.Online().Minus(p.cpus); !others.IsEmpty() {
		return &kernel.NotSupportedError{Feature: "boost of some CPUs", Reason: "/" + p.host.boost + " switches it for all", Remedy: fmt.Sprintf("name CPUs %s, too", others)}
	}
	p.write(p.host.boost, p.host.boostNow, word(*s.Boost != p.host.inverted), "")
	return nil
}

// uncoreStep is what the driver counts in (intel_uncore_frequency_scaling.rst).
const uncoreStep = 100_000

// uncore sets the dies of the packages whose CPUs are all among those that are meant.
func (p *planner) uncore(s Settings) error {
	if len(p.host.Uncore) == 0 {
		return &kernel.NotSupportedError{Feature: "uncore frequency", Reason: "there is no intel_uncore_frequency", Remedy: "load the module intel_uncore_frequency, on a server of Intel"}
	}
	others := map[int]bool{}
	meant := map[int]bool{}
	for _, c := range p.host.CPUs {
		if p.cpus.Has(c.ID) {
			meant[c.Package] = true
		} else {
			others[c.Package] = true
		}
	}
	for _, u := range p.host.Uncore {
		if u.Package >= 0 && !meant[u.Package] {
			continue
		}
		if u.Package < 0 && len(others) > 0 || others[u.Package] {
			return &kernel.NotSupportedError{Feature: "uncore frequency of some CPUs", Reason: u.Name + " is of others, too", Remedy: "name all CPUs of the package"}
		}
		var want [2]int
		for i, limit := range []int{s.UncoreMin, s.UncoreMax} {
			if limit > 0 {
				want[i] = min(max(limit/uncoreStep*uncoreStep, u.Least), u.Most)
			}
		}
		if err := p.bounds(cpuDir+"/intel_uncore_frequency/"+u.Name, [2]string{"/min_freq_khz", "/max_freq_khz"}, [2]int{u.Min, u.Max}, want); err != nil {
			return err
		}
	}
	return nil
}
