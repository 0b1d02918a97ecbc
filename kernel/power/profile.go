package power

import (
	"fmt"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel"
)

const performance = "performance"

// builtin is a trade of speed for energy by name, the same on each driver as far as that can.
type builtin struct {
	name string
	// governor is for drivers that choose the frequency by themselves and know two governors:
	// intel_pstate and amd-pstate-epp in active mode (intel_pstate.rst, amd-pstate.rst).
	governor string
	// governors are for drivers that are told it, acpi-cpufreq, cppc_cpufreq, intel_cpufreq and
	// amd-pstate (cpufreq.rst): the first one that the kernel has.
	governors []string
	// preference and bias are the words and numbers of intel_pstate.rst and intel_epb.rst,
	// where driver and processor have them.
	preference string
	bias       int
}

// builtins are those that there are without a configuration, the fastest first.
var builtins = []builtin{
	{performance, performance, []string{performance}, performance, 0},
	{"balance-performance", "powersave", []string{"schedutil", "ondemand"}, "balance_performance", 4},
	{"balance-power", "powersave", []string{"conservative", "schedutil", "ondemand"}, "balance_power", 8},
	{"power", "powersave", []string{"powersave"}, "power", 15},
}

// Builtins are the names of the built-in profiles, the fastest first.
func Builtins() (names []string) {
	for _, b := range builtins {
		names = append(names, b.name)
	}
	return names
}

func builtinOf(name string) *builtin {
	if i := slices.IndexFunc(builtins, func(b builtin) bool { return b.name == name }); i >= 0 {
		return &builtins[i]
	}
	return nil
}

// active says that a driver chooses the frequency by itself.
func active(driver string) bool { return driver == "intel_pstate" || driver == "amd-pstate-epp" }

// Profile plans a built-in profile for CPUs. Energy preference and bias are set where they
// exist.
func (h *Host) Profile(cpus cpuset.Set, name string) (kernel.Plan, error) {
	if builtinOf(name) == nil {
		return nil, fmt.Errorf("power profile %q: not one of %v%s", name, Builtins(), strictyaml.Nearest(name, Builtins()))
	}
	plan, err := h.planned(cpus, func(p *planner) error { return p.profile(Profile{Like: name}, 0) })
	if err != nil {
		return nil, fmt.Errorf("power profile %s: %w", name, err)
	}
	return plan, nil
}

// profile takes what a profile comes to on each policy and CPU, at a level if it scales.
func (p *planner) profile(profile Profile, level int) error {
	s, err := profile.settings()
	if err != nil {
		return err
	}
	like := builtinOf(profile.Like)
	if like != nil || profile.Min != "" || profile.Max != "" || profile.Scale != nil {
		if _, err := p.policies(); err != nil {
			return err
		}
	}
	if like != nil {
		for _, c := range p.host.CPUs {
			if p.cpus.Has(c.ID) && c.Bias != nil {
				p.set(cpuPath(c.ID)+biasFile, fmt.Sprint(like.bias), "")
			}
		}
	}
	return p.all(func(policy Policy) Settings {
		of := s
		if like != nil {
			of = like.on(policy, s)
		}
		of.Min, of.Max = clock(profile.Min, policy.Least, policy.Most), clock(profile.Max, policy.Least, policy.Most)
		if profile.Scale != nil && level > 0 {
			of.Max = profile.limit(policy, level)
		}
		return of
	}, s)
}

// on is a built-in profile on a policy, where settings do not say otherwise.
func (b *builtin) on(policy Policy, s Settings) Settings {
	if s.Governor == "" && active(policy.Driver) {
		s.Governor = b.governor
	} else if s.Governor == "" {
		i := slices.IndexFunc(b.governors, func(g string) bool { return slices.Contains(policy.Governors, g) })
		s.Governor = b.governors[max(i, 0)] // that of no policy is what is refused
	}
	if s.Preference == "" && policy.Preference != "" {
		s.Preference = b.preference
	}
	return s
}
