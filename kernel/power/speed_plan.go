package power

import (
	"fmt"
	"slices"
	"strconv"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
)

// SpeedSelect is what cores have of the power and the turbo of their package (Intel SST-CP and
// SST-TF).
type SpeedSelect struct {
	// Priority is that of the cores when power is short: 0 is slowed down last, 3 first. Default: 0.
	Priority int `json:"priority,omitempty"`
	// Turbo lets cores of priority 0 and 1 of the package run faster, and limits those of 2 and 3.
	// Default: as found.
	Turbo bool `json:"turbo,omitempty"`
}

func (s *SpeedSelect) validate() error {
	switch {
	case s == nil:
		return nil
	case s.Priority < 0 || s.Priority >= Priorities:
		return fmt.Errorf("priority %d of cores: want 0 (slowed down last) to %d", s.Priority, Priorities-1)
	case s.Turbo && s.Priority > highest:
		return fmt.Errorf("turbo with priority %d: it is for cores of priority 0 and 1, and limits the others", s.Priority)
	}
	return nil
}

// highest is the last priority of cores that turbo is for.
const highest = 1

const (
	coresWhat     = "priority of cores"
	corePowerWhat = "switch of priorities (SST-CP)"
	orderWhat     = "kind of priorities (SST-CP)"
	turboWhat     = "turbo by priority (SST-TF)"
)

// speedSettings are those of Intel Speed Select, each after what it needs: a core's priority, that
// priorities count, how, and turbo, which takes priorities (intel-speed-select.rst).
func (h *Host) speedSettings() (all []setting) {
	for i := range h.Speed {
		pkg := &h.Speed[i]
		if pkg.CorePower == "" {
			continue
		}
		var cpus cpuset.Set
		for _, c := range h.CPUs {
			priority, known := pkg.Priority[c.ID]
			if !known {
				continue
			}
			cpus = cpus.Union(cpuset.MustOf(c.ID))
			s := setting{path: closFile(c.ID), now: strconv.Itoa(priority), what: coresWhat, cpus: c.Core, strength: func(text string) int { return -number(text) }}
			for other := range c.Core.All() {
				if _, known := pkg.Priority[other]; known && other != c.ID {
					s.sets = append(s.sets, closFile(other))
				}
			}
			all = append(all, s)
		}
		is := func(file, now, what, strong string) {
			if now != "" {
				all = append(all, setting{path: pkg.file(file), now: now, what: what, cpus: cpus, late: true, strength: func(text string) int {
					if text == strong {
						return 1
					}
					return 0
				}})
			}
		}
		is(speedPower, pkg.CorePower, corePowerWhat, word(true))
		is(speedOrder, pkg.Order, orderWhat, ordered)
		is(speedTurbo, pkg.Turbo, turboWhat, word(true))
	}
	return all
}

// speed is the package of a CPU; nil if Intel Speed Select does not know it.
func (h *Host) speed(c CPU) *SpeedPackage {
	for i := range h.Speed {
		if _, ok := h.Speed[i].Priority[c.ID]; ok {
			return &h.Speed[i]
		}
	}
	return nil
}

// leftWith has what is left to another writer by one name be left by the other names that it has.
func (h *Host) leftWith(left func(string) bool) func(string) bool {
	same := map[string][]string{}
	for s := range h.settings() {
		if s.sets != nil {
			same[s.path] = s.sets
		}
	}
	return func(path string) bool { return left(path) || slices.ContainsFunc(same[path], left) }
}

// asFound is the host with the switches of Intel Speed Select as they were before the first change.
func (h *Host) asFound(was func(string) (string, bool)) *Host {
	found := *h
	found.Speed = slices.Clone(h.Speed)
	for i := range found.Speed {
		p := &found.Speed[i]
		for file, to := range map[string]*string{speedPower: &p.CorePower, speedOrder: &p.Order, speedTurbo: &p.Turbo} {
			if text, changed := was(p.file(file)); changed {
				*to = text
			}
		}
	}
	return &found
}

// speedSelect has priorities of cores count, by order, and gives the cores of the CPUs theirs.
func (p *planner) speedSelect(s Settings) error {
	if len(p.host.Speed) == 0 {
		return p.host.noSpeed
	}
	return p.each(func(c CPU) error {
		pkg := p.host.speed(c)
		if pkg == nil || pkg.CorePower == "" {
			return &kernel.NotSupportedError{Feature: coresWhat, Reason: fmt.Sprintf("the processor of CPU %d has none (SST-CP)", c.ID), Remedy: "leave speedSelect out of the profile"}
		}
		if err := p.free(pkg, s.SpeedSelect.Priority); err != nil {
			return err
		}
		for cpu := range c.Core.All() {
			p.set(closFile(cpu), strconv.Itoa(s.SpeedSelect.Priority), "")
		}
		p.set(pkg.file(speedPower), word(true), "")
		p.set(pkg.file(speedOrder), ordered, "")
		if !s.SpeedSelect.Turbo {
			return nil
		}
		if pkg.Turbo == "" {
			return &kernel.NotSupportedError{Feature: turboWhat, Reason: fmt.Sprintf("package %d has none at its performance level", pkg.ID), Remedy: "choose a level that has it: intel-speed-select perf-profile info"}
		}
		p.set(pkg.file(speedTurbo), word(true), "")
		return nil
	})
}

// free returns an error if another program has set up a package so that ordered priorities would
// change what it does.
func (p *planner) free(pkg *SpeedPackage, priority int) error {
	on := pkg.CorePower == word(true)
	refuse := func(reason, remedy string) error {
		return &kernel.NotSupportedError{Feature: fmt.Sprintf("priorities of cores of package %d", pkg.ID), Reason: reason, Remedy: remedy}
	}
	switch {
	case pkg.CorePower == unlike || pkg.Order == unlike || pkg.Turbo == unlike:
		return refuse("another program has set its power domains to differ, which could not be restored", "set them alike, by intel-speed-select")
	case on && pkg.Order == proportional:
		return refuse("another program has its power divided by weights", "switch that off: intel-speed-select core-power disable")
	}
	most := 0
	for _, policy := range p.host.Policies {
		for cpu := range policy.CPUs.All() {
			if _, ok := pkg.Priority[cpu]; ok {
				most = max(most, policy.Most)
			}
		}
	}
	for other, kHz := range pkg.Most {
		if kHz > 0 && kHz < most && (!on || other == priority) {
			return refuse(fmt.Sprintf("another program has limited the clock of cores of priority %d to %g GHz", other, float64(kHz)/1e6),
				fmt.Sprintf("take the limit back: intel-speed-select core-power config --clos %d", other))
		}
	}
	return nil
}

// settleSpeed leaves cores without a wish as they were: as long as priorities did not count, all were
// the first. And where another program has switched priorities off, nothing that needs them is asked for.
func (d *Division) settleSpeed(h *Host, was func(string) (string, bool), left func(string) bool) {
	for _, p := range h.asFound(was).Speed {
		v, wanted := d.want[p.file(speedPower)]
		if !wanted {
			continue
		}
		if v.text != word(true) {
			for _, file := range []string{speedOrder, speedTurbo} {
				if v, wanted := d.want[p.file(file)]; wanted && v.who != "" {
					delete(d.want, p.file(file))
				}
			}
			continue
		}
		for cpu, now := range p.Priority {
			v, wanted := d.want[closFile(cpu)]
			if wanted {
				now = number(v.text)
			}
			if v.who == "" && p.CorePower == word(false) && now != 0 && !left(closFile(cpu)) {
				d.want[closFile(cpu)] = value{text: "0", why: "as long as priorities did not count, none was behind others"}
			}
		}
	}
}

// speedWords say what keeps a wish's priority or turbo from bringing anything as the host is now.
func (h *Host) speedWords(w Wish) (words []string) {
	if w.Profile.SpeedSelect == nil {
		return nil
	}
	for i := range h.Speed {
		p := &h.Speed[i]
		var own, others cpuset.Set
		first := map[int]bool{} // a CPU of each core that turbo counts
		same := true
		for _, c := range h.CPUs {
			priority, known := p.Priority[c.ID]
			if !known {
				continue
			}
			if w.CPUs.Has(c.ID) {
				own, priority = own.Union(cpuset.MustOf(c.ID)), w.Profile.SpeedSelect.Priority
			} else if others = others.Union(cpuset.MustOf(c.ID)); priority != w.Profile.SpeedSelect.Priority {
				same = false
			}
			if head, _ := c.Core.First(); priority <= highest {
				first[head] = true
			}
		}
		if own.IsEmpty() {
			continue
		}
		if same && !others.IsEmpty() {
			words = append(words, fmt.Sprintf("CPUs %s have priority %d, too, so it brings nothing: give them a profile with another (shared, reserved)", others, w.Profile.SpeedSelect.Priority))
		}
		if !w.Profile.SpeedSelect.Turbo {
			continue
		}
		for _, d := range p.Domains {
			cores := 0
			for cpu := range first {
				if d.CPUs.Has(cpu) {
					cores++
				}
			}
			if d.HighCores > 0 && cores > d.HighCores && d.CPUs.Overlaps(own) {
				words = append(words, fmt.Sprintf("turbo by priority is for %d cores of CPUs %s at most, and %d have priority 0 or 1", d.HighCores, d.CPUs, cores))
			}
		}
	}
	return words
}
