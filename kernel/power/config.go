package power

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/strictyaml"
)

// Config says which power profiles there are beside the built-in ones (Builtins), and whose
// CPUs have which. A nil Config has the built-in ones, for workloads that ask for them.
type Config struct {
	// Profiles are own ones, by name. Default: none.
	Profiles map[string]Profile `json:"profiles,omitempty"`
	// Service are the profiles of the exclusive CPUs of workloads of a class of service (LSE,
	// LSR, LS, BE, SYSTEM) unless they ask for another. Default: none.
	Service map[string]string `json:"service,omitempty"`
	// Shared is the profile of the CPUs of the shared pool. Default: none, they stay as found.
	Shared string `json:"shared,omitempty"`
	// Reserved is that of the reserved CPUs that nobody owns. Default: that of Shared, if they
	// are in the shared pool.
	Reserved string `json:"reserved,omitempty"`
	// Schedules change these by the time of day; the first that holds counts. Default: none.
	Schedules []Schedule `json:"schedules,omitempty"`
}

// Profile is how fast CPUs run, and how deep they sleep. What is absent stays as found.
type Profile struct {
	// Like is a built-in profile that the rest changes. Default: none.
	Like string `json:"like,omitempty"`
	// Governor is one of cpufreq that the driver has, as in schedutil. Default: that of Like.
	Governor string `json:"governor,omitempty"`
	// Preference is the energy preference of intel_pstate and amd_pstate: performance,
	// balance_performance, balance_power or power. Default: that of Like.
	Preference string `json:"preference,omitempty"`
	// Bias is the energy bias of Intel, 0 (speed) to 15. Default: that of Like.
	Bias *int `json:"bias,omitempty"`
	// Min and Max are limits of the frequency, as in 2.4GHz, or in percent of the range from
	// the lowest to the highest that the hardware has, as in 60%.
	Min string `json:"min,omitempty"`
	// Max is likewise the upper one.
	Max string `json:"max,omitempty"`
	// Boost lets the CPUs run above their base frequency. Without it limits in percent are of the
	// range up to that. Most drivers have one switch for all.
	Boost *bool `json:"boost,omitempty"`
	// IdleLatency disables the idle states that take longer to leave, as in 10us.
	IdleLatency string `json:"idleLatency,omitempty"`
	// WakeLatency is how long a CPU may take to wake up, whatever the states are, as in 50us;
	// with 0us it polls, and does not sleep.
	WakeLatency string `json:"wakeLatency,omitempty"`
	// UncoreMin and UncoreMax are limits of the clock of the mesh and the last-level cache, of
	// all CPUs of a package, as in 1.8GHz.
	UncoreMin string `json:"uncoreMin,omitempty"`
	// UncoreMax is likewise the upper one.
	UncoreMax string `json:"uncoreMax,omitempty"`
	// SpeedSelect is the priority of the cores when the power of their package is short, and
	// their turbo (Intel SST-CP and SST-TF). Default: as found.
	SpeedSelect *SpeedSelect `json:"speedSelect,omitempty"`
	// Scale has Max follow the load of a pool that has the profile; it takes an agent. Default:
	// none, Max stays as it is.
	Scale *Scale `json:"scale,omitempty"`
}

// Names returns the profiles, the built-in ones first.
func (c *Config) Names() []string {
	names := Builtins()
	if c != nil {
		names = slices.AppendSeq(names, maps.Keys(c.Profiles))
		slices.Sort(names[len(builtins):])
	}
	return names
}

// Has reports whether there is a profile of the name.
func (c *Config) Has(name string) bool { return slices.Contains(c.Names(), name) }

// OfService returns the profile that a class of service has for its workloads that name none
// themselves; "" where it has no such profile.
func (c *Config) OfService(class string) string {
	if c == nil {
		return ""
	}
	return c.Service[class]
}

// Pools reports whether CPUs that no workload owns are to have a profile.
func (c *Config) Pools() bool {
	return c != nil && (c.Shared != "" || c.Reserved != "" || slices.ContainsFunc(c.Schedules, func(s Schedule) bool { return s.Shared != "" || s.Reserved != "" }))
}

// Find returns a profile of Names.
func (c *Config) Find(name string) Profile {
	if builtinOf(name) != nil {
		return Profile{Like: name}
	}
	return c.Profiles[name]
}

var governorName = regexp.MustCompile(`^[a-z]+$`)

var profileName = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9_.]{0,62}$`)

// Validate reports all that is wrong on any host, joined, each as strictyaml.Error with its
// field.
func (c *Config) Validate() error {
	if c == nil {
		return nil
	}
	var errs []error
	fail := func(field string, err error) {
		if err != nil {
			errs = append(errs, &strictyaml.Error{Field: field, Err: err})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Profiles)) {
		field := "profiles." + name
		switch {
		case name == none || builtinOf(name) != nil:
			fail(field, fmt.Errorf("the name %q is taken; give it another, and say like: for one that is built in", name))
		case !profileName.MatchString(name):
			fail(field, fmt.Errorf("%q is not a name: 1 to 63 letters, digits, '-', '_' or '.', a letter or digit first", name))
		}
		c.Profiles[name].validate(field, fail)
	}
	known := func(at string, words []string, service map[string]string, shared, reserved string) {
		check := func(field, name string) {
			if name != "" && !slices.Contains(words, name) {
				fail(at+field, fmt.Errorf("there is no profile %q%s", name, strictyaml.Nearest(name, words)))
			}
		}
		for _, class := range slices.Sorted(maps.Keys(service)) {
			if !slices.Contains([]string{"LSE", "LSR", "LS", "BE", "SYSTEM"}, class) {
				fail(at+"service."+class, fmt.Errorf("%q is no class of service: LSE, LSR, LS, BE or SYSTEM", class))
			}
			check("service."+class, service[class])
		}
		check("shared", shared)
		check("reserved", reserved)
	}
	known("", c.Names(), c.Service, c.Shared, c.Reserved)
	for i, s := range c.Schedules {
		field := fmt.Sprintf("schedules[%d]", i)
		s.validate(field, fail)
		known(field+".", append(c.Names(), none), s.Service, s.Shared, s.Reserved)
	}
	return errors.Join(errs...)
}

var preferences = []string{performance, "balance_performance", "balance_power", "power"}

func (p Profile) validate(field string, fail func(string, error)) {
	if p.Like != "" && builtinOf(p.Like) == nil {
		fail(field+".like", fmt.Errorf("%q is not built in: %s", p.Like, strings.Join(Builtins(), ", ")))
	}
	if p == (Profile{}) {
		fail(field, errors.New("it says nothing"))
	}
	if p.Governor != "" && !governorName.MatchString(p.Governor) {
		fail(field+".governor", fmt.Errorf("%q is no governor such as performance, powersave or schedutil", p.Governor))
	}
	if p.Preference != "" && !slices.Contains(preferences, p.Preference) {
		fail(field+".preference", fmt.Errorf("%q is not one of %s", p.Preference, strings.Join(preferences, ", ")))
	}
	for name, text := range map[string]string{"min": p.Min, "max": p.Max, "uncoreMin": p.UncoreMin, "uncoreMax": p.UncoreMax} {
		_, percent, err := parseClock(text)
		if err == nil && percent && strings.HasPrefix(name, "uncore") {
			err = fmt.Errorf("%q: a limit of the uncore is a frequency, as in 1.8GHz", text)
		}
		fail(field+"."+name, err)
	}
	low, lowPercent, err1 := parseClock(p.Min)
	high, highPercent, err2 := parseClock(p.Max)
	if p.Min != "" && p.Max != "" && err1 == nil && err2 == nil && lowPercent == highPercent && low > high {
		fail(field+".min", fmt.Errorf("%s is above max, %s", p.Min, p.Max))
	}
	if p.Scale != nil {
		p.Scale.validate(field+".scale", fail)
		floor, floorPercent, err := parseClock(p.Scale.Floor)
		switch {
		case p.Scale.Floor == "" || err != nil:
		case p.Max != "" && err2 == nil && floorPercent == highPercent && floor > high:
			fail(field+".scale.floor", fmt.Errorf("%s is above max, %s", p.Scale.Floor, p.Max))
		case p.Min != "" && err1 == nil && floorPercent == lowPercent && floor < low:
			fail(field+".scale.floor", fmt.Errorf("%s is below min, %s", p.Scale.Floor, p.Min))
		}
	}
	for name, text := range map[string]string{"idleLatency": p.IdleLatency, "wakeLatency": p.WakeLatency} {
		_, err := parseLatency(text)
		fail(field+"."+name, err)
	}
	fail(field+".speedSelect", p.SpeedSelect.validate())
	if s, err := p.settings(); err == nil {
		s.SpeedSelect = nil // it has a field of its own
		fail(field, s.Validate())
	}
}

// settings are what a profile says itself, without its limits in percent.
func (p Profile) settings() (s Settings, err error) {
	s = Settings{Governor: p.Governor, Preference: p.Preference, Bias: p.Bias, Boost: p.Boost, SpeedSelect: p.SpeedSelect}
	if s.IdleLatency, err = parseLatency(p.IdleLatency); err != nil {
		return s, err
	}
	if s.ResumeLatency, err = parseLatency(p.WakeLatency); err != nil {
		return s, err
	}
	s.UncoreMin, s.UncoreMax = clock(p.UncoreMin, 0, 0), clock(p.UncoreMax, 0, 0)
	return s, nil
}

// parseLatency reads "10us"; "" is nil.
func parseLatency(text string) (us *int, err error) {
	if text == "" {
		return nil, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d%time.Microsecond != 0 || d > time.Second {
		return nil, fmt.Errorf("%q is no time from 0us to 1s, in whole microseconds, as in 50us", text)
	}
	n := int(d / time.Microsecond)
	return &n, nil
}

// parseClock reads "2.4GHz", "2400MHz" and "60%": kHz, or percent; "" is 0.
func parseClock(text string) (n int, percent bool, err error) {
	if text == "" {
		return 0, false, nil
	}
	for suffix, kHz := range map[string]float64{"GHz": 1e6, "MHz": 1e3, "%": 1} {
		word, ok := strings.CutSuffix(text, suffix)
		if !ok {
			continue
		}
		x, err := strconv.ParseFloat(word, 64)
		if percent = suffix == "%"; err == nil && x >= 0 && (percent && x <= 100 || !percent && x > 0 && x*kHz <= 100e6) {
			return int(x*kHz + 0.5), percent, nil
		}
	}
	return 0, false, fmt.Errorf("%q is no frequency, as in 2.4GHz or 60%%", text)
}

// clock is a limit in kHz, within the range that the hardware has; 0 where the text is empty.
func clock(text string, least, most int) int {
	n, percent, _ := parseClock(text)
	if percent {
		return least + (most-least)*n/100
	}
	return n
}
