// Package power reads how fast the CPUs of a host may run and how deep they may sleep, and
// plans changes of it: frequency governors and limits, energy preferences, boost, idle
// states, wake-up latency, the limits of the uncore, and priorities of cores.
//
// Documentation/admin-guide/pm (cpufreq, cpuidle, intel_pstate, amd-pstate, intel_epb,
// intel_uncore_frequency_scaling, intel-speed-select) and Documentation/ABI/testing/sysfs-devices-power describe
// the files. Frequencies are in kHz and latencies in µs, as the kernel has them.
package power

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
)

const cpuDir = "sys/devices/system/cpu"

// Host is what is set, and what could be.
type Host struct {
	CPUs     []CPU    // online, by number
	Policies []Policy // of cpufreq, by number; none without a driver
	Uncore   []Uncore // by name; none without intel_uncore_frequency
	// Speed are the packages with Intel Speed Select, by number; none without its device.
	Speed []SpeedPackage
	// noSpeed says why there are none.
	noSpeed *kernel.NotSupportedError
	// IdleDriver is "" without cpuidle.
	IdleDriver string
	// boost is the file that switches boost for the whole host; "" where there is none.
	// With inverted, 1 means without.
	boost    string
	boostNow string
	inverted bool
	groups   []group // all settings, in the order in which they are written
}

// CPU is what a CPU has of its own.
type CPU struct {
	ID      int
	Package int // -1: the kernel does not say
	// Core are the online CPUs of the core, itself included.
	Core   cpuset.Set
	States []IdleState
	// Bias is energy_perf_bias, 0 (performance) to 15 (power); nil where the CPU has none.
	Bias *int
	// ResumeLatency is how long the CPU may take to wake up, in µs: "0" is as long as it
	// likes and "n/a" not at all; "" where the kernel has no such file.
	ResumeLatency string
}

// IdleState is a state in which a CPU waits.
type IdleState struct {
	Number   int
	Name     string // "C6"
	Latency  int    // µs to leave it
	Disabled bool
}

// Policy is a frequency domain: CPUs that have one clock, or one setting of it.
type Policy struct {
	Name      string // "policy0"
	CPUs      cpuset.Set
	Driver    string // scaling_driver: "intel_pstate"
	Governor  string
	Governors []string
	Min, Max  int // scaling_min_freq, scaling_max_freq
	// Least and Most are what the hardware can do; Steps are the frequencies that it
	// knows, ascending, where they are few.
	Least, Most int
	Steps       []int
	// Base is what the CPUs do at most without boost: Most falls to it, and so do the limits that
	// are shown. 0 is not known, or a driver that shows the same limits without boost.
	Base int
	// Preference is energy_performance_preference, "" where the driver has none.
	Preference  string
	Preferences []string
	// Boost is the policy's own switch (Linux 6.11), "0" or "1"; "" where it has none.
	Boost string
}

// Uncore is the clock of a die's mesh and last-level cache.
type Uncore struct {
	Name     string // "package_00_die_00", or "uncore00" of TPMI
	Package  int    // -1: not known
	Min, Max int
	// Least and Most are the limits that the firmware set.
	Least, Most int
}

// Read reads a host below its root directory. What a host lacks is left out: a virtual
// machine may have no more than the numbers of its CPUs.
func Read(root fs.FS) (*Host, error) {
	r := reader{fs: root}
	h := &Host{IdleDriver: r.text(cpuDir + "/cpuidle/current_driver")}
	if h.IdleDriver == "none" {
		h.IdleDriver = ""
	}
	for id := range r.set(cpuDir + "/online").All() {
		h.CPUs = append(h.CPUs, r.cpu(id))
	}
	for _, name := range r.glob(cpuDir + "/cpufreq/policy[0-9]*") {
		// One whose CPUs are offline answers EBUSY to everything (show in
		// drivers/cpufreq/cpufreq.c); they may go amid the reading.
		of := reader{fs: root}
		switch p := of.policy(name); {
		case errors.Is(of.err, syscall.EBUSY), of.err == nil && p.CPUs.IsEmpty():
		case of.err != nil:
			r.fail(of.err)
		default:
			h.Policies = append(h.Policies, p)
		}
	}
	for _, name := range r.glob(cpuDir + "/intel_uncore_frequency/*") {
		h.Uncore = append(h.Uncore, r.uncore(name))
	}
	// With intel_pstate boost is switched by no_turbo (intel_pstate.rst), else by one file
	// for all (cpufreq.rst).
	switch {
	case r.has(cpuDir + "/intel_pstate/no_turbo"):
		h.boost, h.inverted = cpuDir+"/intel_pstate/no_turbo", true
	case r.has(cpuDir + "/cpufreq/boost"):
		h.boost = cpuDir + "/cpufreq/boost"
	}
	if h.boost != "" {
		h.boostNow = r.text(h.boost)
	}
	h.Speed, h.noSpeed = r.speed()
	if r.err != nil {
		return nil, fmt.Errorf("read power settings: %w", r.err)
	}
	h.groups = h.list()
	return h, nil
}

// Online are the CPUs of the host.
func (h *Host) Online() (all cpuset.Set) {
	for _, c := range h.CPUs {
		all = all.Union(cpuset.MustOf(c.ID))
	}
	return all
}

// reader reads files, and keeps the first error.
type reader struct {
	fs  fs.FS
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *reader) has(name string) bool {
	_, err := fs.Stat(r.fs, name)
	return err == nil
}

// text is a file's, trimmed; "" of one that is not there.
func (r *reader) text(name string) string {
	text, err := kernel.ReadText(r.fs, name)
	if kernel.IgnoreAbsent(err) != nil {
		r.fail(err)
	}
	return text
}

// number is a file's, absent where there is none or it does not know ("<unsupported>").
func (r *reader) number(name string, absent int) int {
	text := r.text(name)
	if text == "" || strings.HasPrefix(text, "<") {
		return absent
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		r.fail(fmt.Errorf("/%s: %q is no number", name, text))
		return absent
	}
	return n
}

// set is a list of CPUs, with commas or spaces between its parts.
func (r *reader) set(name string) cpuset.Set {
	s, err := cpuset.Parse(strings.Join(strings.Fields(r.text(name)), ","))
	if err != nil {
		r.fail(fmt.Errorf("/%s: %w", name, err))
	}
	return s
}

// glob is the names that match, by the number at their end.
func (r *reader) glob(pattern string) []string {
	names, err := fs.Glob(r.fs, pattern)
	if err != nil {
		r.fail(err)
	}
	slices.SortFunc(names, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	return names
}

func (r *reader) cpu(id int) CPU {
	dir := cpuPath(id)
	c := CPU{ID: id, Package: r.number(dir+"/topology/physical_package_id", -1), ResumeLatency: r.text(dir + "/power/pm_qos_resume_latency_us")}
	if c.Core = r.set(dir + "/topology/thread_siblings_list"); !c.Core.Has(id) {
		c.Core = cpuset.MustOf(id) // the kernel does not say
	}
	if bias := dir + "/power/energy_perf_bias"; r.has(bias) {
		n := r.number(bias, 0)
		c.Bias = &n
	}
	for _, name := range r.glob(dir + "/cpuidle/state[0-9]*") {
		number, err := strconv.Atoi(strings.TrimPrefix(path.Base(name), "state"))
		if err != nil {
			r.fail(fmt.Errorf("/%s: no number", name))
		}
		c.States = append(c.States, IdleState{
			Number: number, Name: r.text(name + "/name"), Latency: r.number(name+"/latency", 0), Disabled: r.text(name+"/disable") != "0",
		})
	}
	return c
}

func (r *reader) policy(dir string) Policy {
	p := Policy{
		Name: path.Base(dir), CPUs: r.set(dir + "/affected_cpus"), Driver: r.text(dir + "/scaling_driver"),
		Governor: r.text(dir + "/scaling_governor"), Governors: strings.Fields(r.text(dir + "/scaling_available_governors")),
		Min: r.number(dir+"/scaling_min_freq", 0), Max: r.number(dir+"/scaling_max_freq", 0),
		Least: r.number(dir+"/cpuinfo_min_freq", 0), Most: r.number(dir+"/cpuinfo_max_freq", 0),
		Preference:  r.text(dir + "/energy_performance_preference"),
		Preferences: strings.Fields(r.text(dir + "/energy_performance_available_preferences")),
		Boost:       r.text(dir + "/boost"),
	}
	for _, word := range strings.Fields(r.text(dir + "/scaling_available_frequencies")) {
		step, err := strconv.Atoi(word)
		if err != nil {
			r.fail(fmt.Errorf("/%s/scaling_available_frequencies: %q is no number", dir, word))
		}
		p.Steps = append(p.Steps, step)
	}
	slices.Sort(p.Steps)
	if p.lowers() {
		p.Base = r.number(dir+"/base_frequency", 0)
		if first, ok := p.CPUs.First(); ok && p.Base == 0 {
			cppc := reader{fs: r.fs} // reading fails where the firmware does not tell
			if mhz := cppc.number(cpuPath(first)+"/acpi_cppc/nominal_freq", 0); cppc.err == nil {
				p.Base = 1000 * mhz
			}
		}
	}
	return p
}

// lowers reports whether the driver shows lower limits while boost is off, as all do but
// acpi-cpufreq (set_boost in drivers/cpufreq, __intel_pstate_update_max_freq).
func (p *Policy) lowers() bool { return p.Driver != "acpi-cpufreq" }

// within is the policy with what its CPUs do at most if boost is to be so; nil is as it is.
func (p Policy) within(boost *bool) Policy {
	if boost != nil && !*boost && p.Base > 0 {
		p.Most = min(p.Most, p.Base)
	}
	return p
}

func (r *reader) uncore(dir string) Uncore {
	u := Uncore{
		Name: path.Base(dir), Package: r.number(dir+"/package_id", -1),
		Min: r.number(dir+"/min_freq_khz", 0), Max: r.number(dir+"/max_freq_khz", 0),
		Least: r.number(dir+"/initial_min_freq_khz", 0), Most: r.number(dir+"/initial_max_freq_khz", 0),
	}
	if rest, ok := strings.CutPrefix(u.Name, "package_"); ok {
		number, _, _ := strings.Cut(rest, "_")
		if n, err := strconv.Atoi(number); err == nil {
			u.Package = n
		}
	}
	return u
}

func cpuPath(id int) string { return cpuDir + "/cpu" + strconv.Itoa(id) }

// Slept is for how long CPUs have been in idle states in which they do not poll, summed over
// them, since the kernel started.
func Slept(root fs.FS, cpus cpuset.Set) (time.Duration, error) {
	r := reader{fs: root}
	var slept time.Duration
	for id := range cpus.All() {
		for _, state := range r.glob(cpuPath(id) + "/cpuidle/state[0-9]*") {
			if r.text(state+"/name") != "POLL" { // drivers/cpuidle/poll_state.c
				slept += time.Duration(r.number(state+"/time", 0)) * time.Microsecond
			}
		}
	}
	if r.err != nil {
		return 0, fmt.Errorf("read idle times: %w", r.err)
	}
	return slept, nil
}
