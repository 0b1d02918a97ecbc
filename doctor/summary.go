package doctor

import "slices"

// Summary lists the uses that the host allows, by its capabilities.
type Summary struct {
	// Fully, Lesser and Not name uses of the host by how far it allows them,
	// Unknown those that an unreadable file decides.
	Fully   []string `json:"fully"`
	Lesser  []string `json:"lesser"`
	Not     []string `json:"not"`
	Unknown []string `json:"unknown,omitempty"`
	// For is the capability whose Remedy buys most, "" if nothing is left to do.
	For    string `json:"for,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// ability is a use of the host and the capabilities that it takes.
type ability struct {
	name string
	// needs starts with the controller where "cgroup-rights" is among them.
	needs []string
	// fallback says that there is a lesser way where all of needs are missing.
	fallback bool
}

func abilities() []ability {
	return []ability{
		{"pin to CPUs", []string{"cpuset", "cgroup-rights", "topology"}, true},
		{"favour by weight and cpu.idle", []string{"cpu", "cpu.idle", "cgroup-rights", "sched_ext"}, true},
		{"cap CPU time", []string{"cpu", "cgroup-rights", "sched_ext"}, false},
		{"limit memory", []string{"memory", "cgroup-rights"}, false},
		{"limit I/O", []string{"io", "cgroup-rights"}, false},
		{"freeze", []string{"freezer", "cgroup-rights"}, true},
		{"divide caches", []string{"cache-ways"}, false},
		{"divide memory bandwidth", []string{"memory-bandwidth"}, false},
		{"hold the frequency", []string{"cpufreq"}, false},
		{"isolate as an ordinary user", []string{"delegation"}, false},
		{"measure run delay", []string{"psi", "run-delay"}, true},
		{"name the antagonist", []string{"bpf", "btf"}, false},
		{"count cycles and cache misses", []string{"pmu"}, false},
		{"send load on time", []string{"fifo", "clock"}, true},
	}
}

func summarise(r *Report, h *host) Summary {
	s := Summary{Fully: []string{}, Lesser: []string{}, Not: []string{}}
	for _, a := range abilities() {
		switch r.judge(a, h) {
		case OK:
			s.Fully = append(s.Fully, a.name)
		case Limited:
			s.Lesser = append(s.Lesser, a.name)
		case Missing:
			s.Not = append(s.Not, a.name)
		case Unknown:
			s.Unknown = append(s.Unknown, a.name)
		}
	}
	for _, name := range byWorth() {
		c, _ := r.Get(name)
		if (c.State == Limited || c.State == Missing) && c.Remedy != "" {
			s.For, s.Remedy = name, c.Remedy
			break
		}
	}
	return s
}

// judge returns how far the host allows a use: not applicable or unknown as
// soon as one of the capabilities is, else as the worst of them allows.
func (r *Report) judge(a ability, h *host) State {
	var has []State
	for _, name := range a.needs {
		c, _ := r.Get(name)
		if name == "cgroup-rights" && c.State == Limited {
			c.State = OK // for the controllers that are not refused
			if h.refused[a.needs[0]] != nil {
				c.State = Missing
			}
		}
		has = append(has, c.State)
	}
	switch {
	case slices.Contains(has, NotApplicable):
		return NotApplicable
	case slices.Contains(has, Missing) && !a.fallback:
		return Missing
	case slices.Contains(has, Unknown):
		return Unknown
	case slices.Contains(has, Missing), slices.Contains(has, Limited):
		return Limited
	}
	return OK
}

// byWorth orders the capabilities by the value of their remedy: first the base of all
// isolation, then single knobs, then better observation.
func byWorth() []string {
	return []string{
		"cgroup-rights", "sched_ext", "cgroup", "cpuset", "cpu", "cpu.idle", "fifo", "psi", "delegation", "cpufreq", "cache-ways",
		"memory-bandwidth", "pmu", "bpf", "clock", "memory", "io", "freezer", "btf",
		"numa", "cache-monitoring", "kubelet", "psi-triggers", "rt-groups", "run-delay", "pids", "topology", "hypervisor",
	}
}
