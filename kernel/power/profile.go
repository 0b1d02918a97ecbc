package power

import (
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
)

const performance = "performance"

// Profile is a trade of speed for energy by name, the same on each driver as far as that can.
type Profile struct {
	Name string
	// Governor is for drivers that choose the frequency by themselves and know two governors:
	// intel_pstate and amd-pstate-epp in active mode (intel_pstate.rst, amd-pstate.rst).
	Governor string
	// Governors are for drivers that are told it, acpi-cpufreq, cppc_cpufreq, intel_cpufreq and
	// amd-pstate (cpufreq.rst): the first one that the kernel has.
	Governors []string
	// Preference and Bias are the words and numbers of intel_pstate.rst and intel_epb.rst,
	// where driver and processor have them.
	Preference string
	Bias       int
}

// Profiles lists them, the fastest first.
func Profiles() []Profile {
	return []Profile{
		{performance, performance, []string{performance}, performance, 0},
		{"balance-performance", "powersave", []string{"schedutil", "ondemand"}, "balance_performance", 4},
		{"balance-power", "powersave", []string{"conservative", "schedutil", "ondemand"}, "balance_power", 8},
		{"power", "powersave", []string{"powersave"}, "power", 15},
	}
}

// active says that a driver chooses the frequency by itself.
func active(driver string) bool { return driver == "intel_pstate" || driver == "amd-pstate-epp" }

// Profile plans a profile for CPUs. Energy preference and bias are set where they exist.
func (h *Host) Profile(cpus cpuset.Set, name string) (kernel.Plan, error) {
	var names []string
	for _, profile := range Profiles() {
		if profile.Name == name {
			return h.profile(cpus, profile)
		}
		names = append(names, profile.Name)
	}
	return nil, fmt.Errorf("power profile %q: not one of %s", name, strings.Join(names, ", "))
}

func (h *Host) profile(cpus cpuset.Set, profile Profile) (kernel.Plan, error) {
	p := planner{host: h, cpus: cpus}
	policies, err := p.policies()
	if err != nil {
		return nil, fmt.Errorf("power profile %s: %w", profile.Name, err)
	}
	var all kernel.Plan
	for _, policy := range policies {
		s := Settings{Governor: profile.Governor}
		if !active(policy.Driver) {
			i := slices.IndexFunc(profile.Governors, func(g string) bool { return slices.Contains(policy.Governors, g) })
			s.Governor = profile.Governors[max(i, 0)] // that of no policy is what Plan refuses
		}
		if policy.Preference != "" {
			s.Preference = profile.Preference
		}
		plan, err := h.Plan(policy.CPUs, s)
		if err != nil {
			return nil, fmt.Errorf("power profile %s: %w", profile.Name, err)
		}
		all = append(all, plan...)
	}
	for _, c := range h.CPUs {
		if !cpus.Has(c.ID) || c.Bias == nil {
			continue
		}
		plan, err := h.Plan(cpuset.MustOf(c.ID), Settings{Bias: &profile.Bias})
		if err != nil {
			return nil, fmt.Errorf("power profile %s: %w", profile.Name, err)
		}
		all = append(all, plan...)
	}
	return all, nil
}
