package power

import (
	"fmt"
	"iter"
	"slices"
	"strconv"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
)

const (
	governorFile   = "/scaling_governor"
	preferenceFile = "/energy_performance_preference"
	minFile        = "/scaling_min_freq"
	maxFile        = "/scaling_max_freq"
	boostFile      = "/boost"
	biasFile       = "/power/energy_perf_bias"
	resumeFile     = "/power/pm_qos_resume_latency_us"
	uncoreMinFile  = "/min_freq_khz"
	uncoreMaxFile  = "/max_freq_khz"
)

// boostWhat is boost in words.
const boostWhat = "boost"

// setting is a file that there is: what it has now, and of which CPUs it is.
type setting struct {
	path, now string
	what      string // in words
	cpus      cpuset.Set
	// strength says how far a value favours speed; nil for what is of one CPU alone.
	strength func(text string) int
	// disturbs are files that the driver changes along with this one.
	disturbs []string
	// sets are files that have the same value, as they are the same register: they are not written.
	sets []string
	// late is for what counts only with what is written before it: it is switched off first, and
	// the last of such settings before the others.
	late bool
}

// group are settings whose order of writing matters: two limits, the lower one first, or
// a governor and its preference.
type group struct {
	settings []setting
	limits   bool
}

// settings are all settings of a host, by path.
func (h *Host) settings() iter.Seq[setting] {
	return func(yield func(setting) bool) {
		for _, g := range h.groups {
			for _, s := range g.settings {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// list makes the groups of a host.
func (h *Host) list() (all []group) {
	one := func(s setting) { all = append(all, group{settings: []setting{s}}) }
	limits := func(policies ...Policy) (files []string) { // what boost lowers
		for _, p := range policies {
			if p.lowers() {
				files = append(files, p.file(maxFile), p.file(minFile))
			}
		}
		return files
	}
	if h.boost != "" {
		one(setting{path: h.boost, now: h.boostNow, what: boostWhat, cpus: h.Online(), disturbs: limits(h.Policies...), strength: func(text string) int {
			if h.inverted {
				return -number(text)
			}
			return number(text)
		}})
	}
	for _, p := range h.Policies {
		of := func(file, now, what string, strength func(string) int) setting {
			return setting{path: p.file(file), now: now, what: what, cpus: p.CPUs, strength: strength}
		}
		if p.Boost != "" {
			boost := of(boostFile, p.Boost, boostWhat, number)
			boost.disturbs = limits(p)
			one(boost)
		}
		governor := of(governorFile, p.Governor, "frequency governor", governorStrength)
		choice := group{}
		if p.Preference != "" {
			governor.disturbs = []string{p.file(preferenceFile)}
			choice.settings = append(choice.settings, of(preferenceFile, p.Preference, "energy preference", preferenceStrength))
		} else {
			for _, c := range h.CPUs {
				if p.CPUs.Has(c.ID) && c.Bias != nil {
					governor.disturbs = append(governor.disturbs, cpuPath(c.ID)+biasFile)
				}
			}
		}
		choice.settings = slices.Insert(choice.settings, 0, governor)
		all = append(all, choice, group{[]setting{
			of(minFile, strconv.Itoa(p.Min), "frequency limit", number), of(maxFile, strconv.Itoa(p.Max), "frequency limit", number),
		}, true})
	}
	for _, u := range h.Uncore {
		of := func(file string, now int) setting {
			return setting{path: u.file(file), now: strconv.Itoa(now), what: "uncore frequency limit", cpus: h.around(u), strength: number}
		}
		all = append(all, group{[]setting{of(uncoreMinFile, u.Min), of(uncoreMaxFile, u.Max)}, true})
	}
	for _, s := range h.speedSettings() {
		one(s)
	}
	for _, c := range h.CPUs {
		cpu := cpuset.MustOf(c.ID)
		if c.Bias != nil {
			one(setting{path: cpuPath(c.ID) + biasFile, now: strconv.Itoa(*c.Bias), what: "energy bias", cpus: cpu})
		}
		for _, state := range c.States {
			one(setting{path: state.file(c.ID), now: word(state.Disabled), what: "idle state", cpus: cpu})
		}
		if c.ResumeLatency != "" {
			one(setting{path: cpuPath(c.ID) + resumeFile, now: c.ResumeLatency, what: "wake-up latency", cpus: cpu})
		}
	}
	return all
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return -1
	}
	return n
}

// governors are in the order of cpufreq.rst: how soon one asks for speed.
var governors = []string{performance, "schedutil", "ondemand", "conservative", "userspace", "powersave"}

// governorStrength is the less, the later a governor asks for speed; that of an unknown one is
// the least.
func governorStrength(text string) int {
	i := slices.Index(governors, text)
	if i < 0 {
		i = len(governors)
	}
	return -i
}

// preferenceStrength is the order of intel_pstate.rst, of words and of raw values, 0 to 255.
func preferenceStrength(text string) int {
	raw, isWord := map[string]int{performance: 0, "balance_performance": 128, "default": 128, "balance_power": 192, "power": 255}[text]
	if !isWord {
		raw = number(text)
	}
	return -raw
}

// alone returns an error if what files are to have would be so for other CPUs, too.
func (h *Host) alone(cpus cpuset.Set, want values) error {
	for s := range h.settings() {
		if _, wanted := want[s.path]; !wanted {
			continue
		}
		if others := s.cpus.Minus(cpus); !others.IsEmpty() {
			return &kernel.NotSupportedError{
				Feature: s.what + " of their own", Reason: fmt.Sprintf("CPUs %s have one (/%s)", s.cpus, s.path), Remedy: fmt.Sprintf("name CPUs %s, too", others),
			}
		}
	}
	return nil
}

// steps are the writes that lead to the wanted values, in an order that the drivers take now,
// and in reverse when they are undone.
func (h *Host) steps(want values) (plan kernel.Plan, err error) {
	after := func(s setting) string {
		if v, wanted := want[s.path]; wanted {
			return v.text
		}
		return s.now
	}
	var first, last kernel.Plan
	same := map[string]bool{}
	for _, g := range h.groups {
		settings := slices.Clone(g.settings)
		head := settings[0]
		disturbed := false
		if len(settings) == 2 {
			second := settings[1]
			low, high := number(after(head)), number(after(second))
			switch {
			case g.limits && low > high:
				return nil, fmt.Errorf("/%s: limits of %d and %d kHz cross: set both", head.path, low, high)
			case g.limits && low > number(second.now), !g.limits && after(head) == performance:
				// The lower limit is never above the upper one. The governor performance comes
				// last, as it admits no other preference.
				slices.Reverse(settings)
			case !g.limits:
				disturbed = after(head) != head.now
			}
		}
		for i, s := range settings {
			v, wanted := want[s.path]
			if !wanted || same[s.path] || v.text == s.now && !(i > 0 && disturbed) {
				continue
			}
			for _, path := range s.sets {
				same[path] = want[path].text == v.text
			}
			step := kernel.Step{Path: s.path, Value: v.text, Why: v.why, Disturbs: append(slices.Clone(s.disturbs), s.sets...)}
			switch {
			case s.late && s.strength(v.text) < s.strength(s.now):
				first = slices.Insert(first, 0, step)
			case s.what == boostWhat && s.strength(v.text) < s.strength(s.now):
				last = append(last, step) // without boost, limits above the base frequency cannot be written, nor read
			default:
				plan = append(plan, step)
			}
		}
	}
	return slices.Concat(first, plan, last), nil
}
