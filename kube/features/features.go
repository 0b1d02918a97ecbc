// Package features names what a node has, for the scheduler to choose nodes by: as labels
// through node-feature-discovery (NFD), by a file that its worker reads or by an object.
// What is there is what machine and doctor say; nothing is found out here.
//
// A feature changes when hardware, kernel or settings change, not with load.
package features

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/doctor"
	"berth.dev/berth/machine"
)

// Prefix is before the name of every feature.
const Prefix = "berth.dev/"

// Features are the values by name, without Prefix. Both are parts of labels: short, of
// letters, digits and "-_.".
type Features map[string]string

// capabilities are those of the doctor that nodes are chosen by, and their names here.
func capabilities() map[string]string {
	return map[string]string{
		"cache-ways": "rdt.cache-ways", "memory-bandwidth": "rdt.memory-bandwidth", "cache-monitoring": "rdt.monitoring",
		"cpu.idle": "cpu-idle", "psi": "psi", "pmu": "pmu", "bpf": "bpf", "cpufreq": "cpufreq",
	}
}

// Of returns the features of a node. m may be nil, where the machine cannot be read. policy
// is the placement policy of Berth, "" if it does not place.
func Of(m *machine.Machine, r *doctor.Report, policy string) Features {
	f := Features{}
	if m != nil {
		f.machine(m)
	}
	for name, as := range capabilities() {
		switch c, _ := r.Get(name); c.State {
		case doctor.OK, doctor.Limited: // others cannot be relied on
			f.set(as, string(c.State))
		}
	}
	if c, ok := r.Get("cgroup"); ok && c.State == doctor.OK {
		f.set("cgroup", first(c.Found))
	}
	if c, ok := r.Get("cpufreq"); ok {
		f.frequency(c.Found)
	}
	f.set("isolation", isolation(r))
	f.set("policy", policy)
	return f
}

func (f Features) machine(m *machine.Machine) {
	count := func(name string, n int) { f.set(name, strconv.Itoa(n)) }
	count("cpus", m.Online.Len())
	for name, kind := range map[string]machine.Kind{"cores": machine.Core, "l3-domains": machine.L3, "numa-nodes": machine.Node, "sockets": machine.Socket} {
		if n := len(m.ByKind(kind)); n > 0 {
			count(name, n)
		}
	}
	if l3 := m.ByKind(machine.L3); len(l3) > 0 {
		smallest := slices.MinFunc(l3, func(a, b machine.Domain) int { return cmp.Compare(a.CPUs.Len(), b.CPUs.Len()) })
		count("l3-cpus", smallest.CPUs.Len())
		if smallest.Bytes > 0 {
			count("l3-mib", int(smallest.Bytes>>20))
		}
	}
	if cores := m.ByKind(machine.Core); len(cores) > 0 {
		threads := slices.MaxFunc(cores, func(a, b machine.Domain) int { return cmp.Compare(a.CPUs.Len(), b.CPUs.Len()) }).CPUs.Len()
		count("threads-per-core", threads)
	}
	f.set("smt", m.SMT)
	if n := m.Isolated.Len(); n > 0 {
		count("isolated-cpus", n)
	}
	kinds := map[string]bool{}
	for _, c := range m.CPUs {
		kinds[c.Kind] = true
	}
	f.set("hybrid", strconv.FormatBool(len(kinds) > 1))
}

// frequency reads the doctor's sentence: "driver, governor on 8 policies, turbo on".
func (f Features) frequency(found string) {
	driver, rest, ok := strings.Cut(found, ", ")
	if !ok {
		return
	}
	f.set("cpufreq.driver", driver)
	f.set("cpufreq.governor", first(rest))
	if _, turbo, ok := strings.Cut(rest, ", turbo "); ok {
		f.set("cpufreq.turbo", first(turbo))
	}
}

// isolation is the best that keeps others off CPUs on this node.
func isolation(r *doctor.Report) string {
	is := func(name string) bool { c, _ := r.Get(name); return c.State == doctor.OK }
	switch {
	case is("cpuset") && is("cache-ways"):
		return "cpuset-and-cache"
	case is("cpuset"):
		return "cpuset"
	}
	return "affinity"
}

func first(text string) string {
	word, _, _ := strings.Cut(text, " ")
	return strings.Trim(word, ",:")
}

// set sets a feature whose value is not empty. What a label cannot have becomes "_".
func (f Features) set(name, value string) {
	value = strings.Map(func(c rune) rune {
		if c < 128 && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_.", c)) {
			return c
		}
		return '_'
	}, value)
	if value = strings.Trim(value[:min(len(value), 63)], "-_."); value != "" {
		f[name] = value
	}
}

// Lines are the features as a file of NFD's source "local" has them, sorted.
func (f Features) Lines() []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(f)) {
		all = append(all, fmt.Sprintf("%s%s=%s", Prefix, name, f[name]))
	}
	return all
}
