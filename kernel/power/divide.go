package power

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
)

// Wish is a profile that some CPUs are to have.
type Wish struct {
	Who     string // for people: "api", "the shared pool"
	CPUs    cpuset.Set
	Name    string // of the profile
	Profile Profile
	// Pool says that Who is a pool: a workload may have any name.
	Pool bool
	// Level is how far a pool needs its clock, with a profile that scales (Level.Percent).
	Level int
}

// why is what a setting is for.
func (w Wish) why(file string) string {
	if text := "profile " + w.Name + " of " + w.Who; w.Level == 0 || !strings.HasSuffix(file, maxFile) {
		return text
	}
	return fmt.Sprintf("profile %s of %s, whose load needs %d%% of the highest clock", w.Name, w.Who, w.Level)
}

// Division is what wishes of different CPUs come to.
type Division struct {
	// Plan are the writes that lead there.
	Plan kernel.Plan
	// Errs say, by wish, what of it this host cannot do: a wish is met as a whole, or not
	// at all.
	Errs []error

	want     values
	disturbs map[string][]string
	listed   map[string]bool
}

// Divide gives CPUs the profiles that they are to have, and gives back what was changed for
// wishes that are none any more. A setting that CPUs share has what its strongest wish asks
// for, and is never slower than it was for CPUs without a wish. was returns what a file
// had before it was first changed, left that it is left to another writer.
func (h *Host) Divide(wishes []Wish, was func(path string) (text string, changed bool), left func(path string) bool) (*Division, error) {
	d := &Division{Errs: make([]error, len(wishes)), want: values{}, disturbs: map[string][]string{}, listed: map[string]bool{}}
	type asks struct {
		value
		by cpuset.Set
	}
	asked := map[string][]asks{} // by path
	left = h.leftWith(left)
	full := h.withBoost(was).asFound(was)
	for i, w := range wishes {
		p := planner{host: full, cpus: w.CPUs.Intersect(h.Online()), want: values{}}
		if err := p.profile(w.Profile, w.Level); err != nil {
			d.Errs[i] = fmt.Errorf("power profile %s: %w", w.Name, err)
			continue
		}
		for path, v := range p.want {
			v.why, v.who = w.why(path), w.Who
			asked[path] = append(asked[path], asks{v, w.CPUs})
		}
	}
	for s := range h.settings() {
		d.listed[s.path] = true
		if s.disturbs != nil {
			d.disturbs[s.path] = s.disturbs
		}
		original, changed := was(s.path)
		if !changed {
			original = s.now
		}
		best, wanted, others := value{}, false, s.cpus
		take := func(v value) {
			if !wanted || s.strength != nil && s.strength(v.text) > s.strength(best.text) {
				best, wanted = v, true
			}
		}
		for _, a := range asked[s.path] {
			take(a.value)
			others = others.Minus(a.by)
		}
		if wanted && !others.IsEmpty() || !wanted && changed {
			take(value{text: original, why: "as it was"})
		}
		switch {
		case wanted && left(s.path):
			d.want[s.path] = value{text: s.now}
		case wanted:
			d.want[s.path] = best
		}
	}
	d.settle(h, was, left)
	var err error
	d.Plan, err = h.steps(d.want)
	return d, err
}

// withBoost is the host with the frequencies that it has with boost, where that was switched off: then
// the upper limit was up there before, as far as nobody had lowered it.
func (h *Host) withBoost(was func(string) (string, bool)) *Host {
	full := *h
	full.Policies = slices.Clone(h.Policies)
	for i := range full.Policies {
		p := &full.Policies[i]
		if text, changed := was(p.file(maxFile)); changed && p.Base > 0 && !(&Division{}).boosts(h, *p) {
			p.Most = max(p.Most, number(text))
		}
	}
	return &full
}

// For returns whose wish a file has (Wish.Who); "" where nobody wished for it.
func (d *Division) For(path string) string { return d.want[path].who }

// settle has limits not cross, and preferences and biases be what governors leave them.
func (d *Division) settle(h *Host, was func(string) (string, bool), left func(string) bool) {
	now := map[string]string{}
	for s := range h.settings() {
		now[s.path] = s.now
	}
	for governor, files := range d.disturbs {
		if _, wanted := d.want[governor]; !wanted || !strings.HasSuffix(governor, governorFile) {
			continue // limits come back with boost by themselves
		}
		for _, file := range files {
			if _, wanted := d.want[file]; !wanted && !left(file) {
				text, changed := was(file)
				if !changed {
					text = now[file]
				}
				d.want[file] = value{text: text, why: "as it was"}
			}
		}
	}
	d.settleSpeed(h, was, left)
	for _, p := range h.Policies {
		if d.boosts(h, p) {
			continue
		}
		off := false
		most := p.within(&off).Most
		for _, file := range []string{p.file(minFile), p.file(maxFile)} {
			if v, wanted := d.want[file]; wanted && most > 0 && number(v.text) > most {
				v.text = strconv.Itoa(most)
				d.want[file] = v
			}
		}
	}
	for _, g := range h.groups {
		if !g.limits {
			continue
		}
		// The kernel keeps the lower limit at the upper one, at most (cpufreq_set_policy).
		low, high := g.settings[0], g.settings[1]
		least, lowWanted := d.want[low.path]
		most, highWanted := d.want[high.path]
		if lowWanted {
			low.now = least.text
		}
		if highWanted {
			high.now = most.text
		}
		switch {
		case !lowWanted && !highWanted || number(low.now) <= number(high.now):
		case left(low.path):
			d.want[high.path] = value{text: low.now, why: "no less than the lower limit, which is left to another program"}
		default:
			d.want[low.path] = value{text: high.now, why: "no more than the upper limit"}
		}
	}
	for _, p := range h.Policies {
		preference := p.file(preferenceFile)
		governor, wanted := d.want[p.file(governorFile)]
		if !wanted {
			governor.text = p.Governor
		}
		if _, wanted := d.want[preference]; wanted && active(p.Driver) && governor.text == performance && !left(preference) {
			d.want[preference] = value{text: performance, why: "governor performance admits no other"}
		}
	}
}

// boosts reports whether the CPUs of a policy are to have boost, as far as the host switches it.
func (d *Division) boosts(h *Host, p Policy) bool {
	after := func(path, now string) string {
		if v, wanted := d.want[path]; wanted {
			return v.text
		}
		return now
	}
	return (p.Boost == "" || after(p.file(boostFile), p.Boost) == word(true)) && (h.boost == "" || after(h.boost, h.boostNow) != word(h.inverted))
}

// Keeps reports whether a file is to have another value than it had before it was first
// changed, or may be changed along with one that is. That of a CPU that is offline is kept: it
// may come back with the value that it had.
func (d *Division) Keeps(path string, was func(path string) (text string, changed bool)) bool {
	differs := func(path string) bool {
		v, wanted := d.want[path]
		text, changed := was(path)
		return wanted && changed && v.text != text
	}
	if !d.listed[path] || differs(path) {
		return true
	}
	for governor, files := range d.disturbs {
		for _, file := range files {
			if file == path && differs(governor) {
				return true
			}
		}
	}
	return false
}

// Shared are, in words, settings that a wish is about and that other CPUs have, too. The error
// says what of the wish this host cannot do.
func (h *Host) Shared(w Wish) (words []string, err error) {
	p := planner{host: h, cpus: w.CPUs.Intersect(h.Online()), want: values{}}
	if err := p.profile(w.Profile, w.Level); err != nil {
		return nil, fmt.Errorf("power profile %s: %w", w.Name, err)
	}
	for s := range h.settings() {
		if _, asks := p.want[s.path]; !asks || w.CPUs.Contains(s.cpus) || s.what == corePowerWhat || s.what == orderWhat {
			continue
		}
		text := fmt.Sprintf("its %s is that of CPUs %s, too: the strongest wish counts", s.what, s.cpus.Minus(w.CPUs))
		if !slices.Contains(words, text) {
			words = append(words, text)
		}
	}
	return append(words, h.speedWords(w)...), nil
}

// Lacks returns why no setting of the host can be changed, a *kernel.NotSupportedError; nil
// if one can.
func (h *Host) Lacks() error {
	for range h.settings() {
		return nil
	}
	return &kernel.NotSupportedError{Feature: "power profiles", Reason: "the kernel has neither cpufreq nor cpuidle, nor wake-up latencies of CPUs", Remedy: "use a kernel with CONFIG_CPU_FREQ and CONFIG_CPU_IDLE; on a virtual machine set it on the host"}
}

// InWords is what CPUs have now, each as what and value; values that differ are joined.
func (h *Host) InWords(cpus cpuset.Set) (all [][2]string) {
	add := func(what, text string) {
		i := slices.IndexFunc(all, func(v [2]string) bool { return v[0] == what })
		switch {
		case text == "":
		case i < 0:
			all = append(all, [2]string{what, text})
		case !slices.Contains(strings.Split(all[i][1], " or "), text):
			all[i][1] += " or " + text
		}
	}
	for _, p := range h.Policies {
		if p.CPUs.Overlaps(cpus) {
			if p.Preference == "" {
				add("governor", p.Governor)
			}
			add("preference", p.Preference) // which says what the governor does
			add("clock", fmt.Sprintf("%g to %g GHz", float64(p.Min)/1e6, float64(p.Max)/1e6))
		}
	}
	for _, c := range h.CPUs {
		if !cpus.Has(c.ID) {
			continue
		}
		if c.Bias != nil {
			add("bias", strconv.Itoa(*c.Bias))
		}
		deepest := ""
		for _, state := range c.States {
			if !state.Disabled {
				deepest = state.Name
			}
		}
		add("sleeps to", deepest)
		if c.ResumeLatency != "0" {
			add("wakes within (µs)", strings.Replace(c.ResumeLatency, "n/a", "0", 1))
		}
		if pkg := h.speed(c); pkg != nil && pkg.CorePower == word(true) {
			add("priority", strconv.Itoa(pkg.Priority[c.ID]))
			if pkg.Turbo == word(true) {
				add("turbo by priority", "on")
			}
		}
	}
	return all
}
