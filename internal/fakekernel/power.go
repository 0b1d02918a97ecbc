package fakekernel

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"berth.dev/berth/cpuset"
)

// PowerLayout is what the CPUs of a host have of frequencies, idle states and preferences.
type PowerLayout struct {
	CPUs      int
	PerPolicy int // CPUs of one frequency domain; 0 is no cpufreq
	Threads   int // CPUs of one core, with neighbouring numbers; 0 is that the kernel does not say
	Driver    string
	Governor  string
	Governors string
	// Least and Most are in kHz; Steps are the only frequencies, if there are some.
	Least, Most int
	Steps       []int
	Preferences bool // energy_performance_preference
	// Saved is the preference that the driver goes back to when the governor is no longer
	// performance (intel_pstate remembers one); "" leaves it.
	Saved string
	Bias  bool // energy_perf_bias
	// Boost is the file of its switch, below the directory of CPUs; "" means none. OwnBoost has
	// each policy have one, too (Linux 6.11).
	Boost    string
	OwnBoost bool
	// Base is what CPUs do at most without boost, in kHz; 0 is a driver that shows no other limits then.
	Base int
	// Idle are the states: name and exit latency in µs.
	Idle       []IdleState
	IdleDriver string
	Uncore     bool
	// Clusters are the parts of the uncore of each package by TPMI; 0 is one die without.
	Clusters int
	// Packages divide the CPUs; 0 stands for 1.
	Packages int
}

// IdleState is one of cpuidle.
type IdleState struct {
	Name    string
	Latency int
}

// PowerHosts are hosts of each driver. Values are of the kernel's documents and tables:
// intel_idle.c (Skylake server), acpi-cpufreq's table of P-states, amd-pstate.rst.
func PowerHosts() map[string]PowerLayout {
	deep := []IdleState{{"POLL", 0}, {"C1", 2}, {"C1E", 10}, {"C6", 133}}
	kernels := "conservative ondemand userspace powersave performance schedutil"
	return map[string]PowerLayout{
		"intel_pstate": {
			CPUs: 4, PerPolicy: 1, Driver: "intel_pstate", Governor: "powersave", Governors: "performance powersave", Least: 800_000, Most: 3_700_000,
			Preferences: true, Bias: true, Boost: "intel_pstate/no_turbo", Base: 2_100_000, Idle: deep, IdleDriver: "intel_idle", Uncore: true,
		},
		// from Granite Rapids on: "uncore00" and so on, with files that say of which package
		"intel_pstate, TPMI": {
			CPUs: 4, PerPolicy: 1, Driver: "intel_pstate", Governor: "powersave", Governors: "performance powersave", Least: 800_000, Most: 3_900_000,
			Preferences: true, Bias: true, Boost: "intel_pstate/no_turbo", Idle: deep, IdleDriver: "intel_idle", Uncore: true, Clusters: 2, Packages: 2,
		},
		// booted with the governor performance, as distributions for servers do
		"intel_pstate, performance": {
			CPUs: 4, PerPolicy: 1, Driver: "intel_pstate", Governor: "performance", Governors: "performance powersave", Least: 800_000, Most: 3_700_000,
			Preferences: true, Saved: "balance_performance", Bias: true, Boost: "intel_pstate/no_turbo", Idle: deep, IdleDriver: "intel_idle",
		},
		// its passive mode, with hardware P-states: governors of the kernel, and a preference that they leave alone
		"intel_cpufreq": {
			CPUs: 4, PerPolicy: 1, Driver: "intel_cpufreq", Governor: "schedutil", Governors: kernels, Least: 800_000, Most: 3_700_000,
			Preferences: true, Bias: true, Boost: "intel_pstate/no_turbo", Base: 2_100_000, Idle: deep, IdleDriver: "intel_idle",
		},
		"acpi-cpufreq": {
			CPUs: 4, PerPolicy: 2, Driver: "acpi-cpufreq", Governor: "ondemand", Governors: kernels, Least: 1_200_000, Most: 2_600_000,
			Steps: []int{1_200_000, 1_800_000, 2_600_000}, Boost: "cpufreq/boost", Idle: []IdleState{{"POLL", 0}, {"C1", 1}, {"C2", 18}}, IdleDriver: "acpi_idle",
		},
		"amd-pstate-epp": {
			CPUs: 2, PerPolicy: 1, Driver: "amd-pstate-epp", Governor: "powersave", Governors: "performance powersave", Least: 400_000, Most: 4_700_000,
			Preferences: true, Boost: "cpufreq/boost", Idle: []IdleState{{"POLL", 0}, {"C1", 1}, {"C2", 18}, {"C3", 350}}, IdleDriver: "acpi_idle",
		},
		// since Linux 6.11
		"amd-pstate-epp, boost by policy": {
			CPUs: 4, PerPolicy: 1, Driver: "amd-pstate-epp", Governor: "powersave", Governors: "performance powersave", Least: 400_000, Most: 4_700_000,
			Preferences: true, Boost: "cpufreq/boost", OwnBoost: true, Base: 3_000_000, Idle: []IdleState{{"POLL", 0}, {"C1", 1}, {"C2", 18}}, IdleDriver: "acpi_idle",
		},
		// passive mode
		"amd-pstate": {
			CPUs: 4, PerPolicy: 1, Driver: "amd-pstate", Governor: "schedutil", Governors: kernels, Least: 400_000, Most: 4_700_000,
			Boost: "cpufreq/boost", OwnBoost: true, Base: 3_000_000, Idle: []IdleState{{"POLL", 0}, {"C1", 1}, {"C2", 18}}, IdleDriver: "acpi_idle",
		},
		"cppc_cpufreq": {
			CPUs: 2, PerPolicy: 1, Driver: "cppc_cpufreq", Governor: "schedutil", Governors: "ondemand performance schedutil", Least: 1_000_000, Most: 3_000_000,
		},
		"virtual": {CPUs: 2, Idle: []IdleState{{"POLL", 0}, {"haltpoll idle", 1}}, IdleDriver: "haltpoll"},
	}
}

// Power is a kernel's sysfs of CPUs over a directory. Its methods are those of kernel.Files.
type Power struct {
	Kernel
	layout PowerLayout
	// asked are the frequency limits that were written, by file: the kernel remembers them
	// as requests, and shows what came of all (freq_qos in drivers/cpufreq/cpufreq.c).
	asked map[string]int
	// bias are the energy biases of CPUs that are offline.
	bias map[int]string
}

// NewPower builds the tree of a freshly booted host in an empty directory.
func NewPower(dir string, l PowerLayout) (*Power, error) {
	p := &Power{Kernel: Kernel{dir: dir}, layout: l, asked: map[string]int{}, bias: map[int]string{}}
	for name, text := range map[string]string{
		"proc/self/mountinfo":            "20 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n21 20 0:20 / /sys rw,nosuid - sysfs sysfs rw\n",
		"proc/sys/kernel/random/boot_id": "b007-1",
		onlineFile:                       fmt.Sprintf("0-%d", l.CPUs-1),
	} {
		if err := p.create(name, text); err != nil {
			return nil, err
		}
	}
	return p, p.boot()
}

// boot makes the files of the drivers.
func (p *Power) boot() error {
	l := p.layout
	files := map[string]string{cpuDir + "/cpuidle/current_driver": cmp.Or(l.IdleDriver, "none")}
	for cpu := range l.CPUs {
		base := fmt.Sprintf("%s/cpu%d/", cpuDir, cpu)
		files[base+"power/pm_qos_resume_latency_us"] = "0"
		files[base+"topology/physical_package_id"] = strconv.Itoa(cpu * max(l.Packages, 1) / l.CPUs)
		p.bias[cpu] = "6"
		if l.Base > 0 && !strings.HasPrefix(l.Driver, "intel") {
			files[base+"acpi_cppc/nominal_freq"] = strconv.Itoa(l.Base / 1000) // MHz
		}
	}
	if l.Boost != "" {
		files[cpuDir+"/"+l.Boost] = map[bool]string{true: "0", false: "1"}[l.Boost == "intel_pstate/no_turbo"]
	}
	for i := range max(l.Packages, 1) * max(l.Clusters, 1) { // intel_uncore_frequency_scaling.rst
		if !l.Uncore {
			break
		}
		base := fmt.Sprintf("%s/intel_uncore_frequency/package_%02d_die_00/", cpuDir, i)
		if l.Clusters > 0 {
			base = fmt.Sprintf("%s/intel_uncore_frequency/uncore%02d/", cpuDir, i)
			files[base+"package_id"], files[base+"domain_id"], files[base+"fabric_cluster_id"] = strconv.Itoa(i/l.Clusters), strconv.Itoa(i%l.Clusters), "0"
		}
		files[base+"min_freq_khz"], files[base+"max_freq_khz"] = "1200000", "2400000"
		files[base+"initial_min_freq_khz"], files[base+"initial_max_freq_khz"] = "1200000", "2400000"
	}
	for name, text := range files {
		if err := p.create(name, text); err != nil {
			return err
		}
	}
	return p.plug(p.online())
}

// plug has the drivers look after the CPUs that are online. What is offline has no idle states,
// and gets new ones, with the values of the boot, when it comes back. Its energy bias comes back
// as it was in a new file (arch/x86/kernel/cpu/intel_epb.c), and its policy stays, inactive.
func (p *Power) plug(online cpuset.Set) error {
	l := p.layout
	for cpu := range l.CPUs {
		states := fmt.Sprintf("%s/cpu%d/cpuidle", cpuDir, cpu)
		power := fmt.Sprintf("%s/cpu%d/power", cpuDir, cpu)
		const bias = "energy_perf_bias"
		if !online.Has(cpu) {
			if p.exists(power + "/" + bias) {
				p.bias[cpu] = p.get(power, bias)
			}
			if err := errors.Join(os.RemoveAll(p.real(states)), os.RemoveAll(p.real(power+"/"+bias))); err != nil {
				return err
			}
			continue
		}
		if l.Bias {
			if err := p.createNew(power+"/"+bias, p.bias[cpu]); err != nil {
				return err
			}
		}
		if l.Threads > 0 {
			var core []string
			for other := cpu / l.Threads * l.Threads; other < (cpu/l.Threads+1)*l.Threads; other++ {
				if online.Has(other) {
					core = append(core, strconv.Itoa(other))
				}
			}
			if err := p.create(fmt.Sprintf("%s/cpu%d/topology/thread_siblings_list", cpuDir, cpu), strings.Join(core, ",")); err != nil {
				return err
			}
		}
		for i, s := range l.Idle {
			state := fmt.Sprintf("%s/state%d/", states, i)
			for name, text := range map[string]string{"name": s.Name, "latency": strconv.Itoa(s.Latency), "disable": "0", "time": strconv.Itoa(1000 * i)} {
				if err := p.createNew(state+name, text); err != nil {
					return err
				}
			}
		}
	}
	for first := 0; l.PerPolicy > 0 && first < l.CPUs; first += l.PerPolicy {
		if err := p.plugPolicy(first, online); err != nil {
			return err
		}
	}
	return nil
}

func (p *Power) plugPolicy(first int, online cpuset.Set) error {
	l := p.layout
	base := fmt.Sprintf("%s/cpufreq/policy%d/", cpuDir, first)
	var cpus []string
	for cpu := first; cpu < first+l.PerPolicy; cpu++ {
		if online.Has(cpu) {
			cpus = append(cpus, strconv.Itoa(cpu))
		}
	}
	files := map[string]string{"scaling_driver": l.Driver, "scaling_governor": l.Governor, "scaling_available_governors": l.Governors + " "}
	limits := map[string]int{"cpuinfo_min_freq": l.Least, "cpuinfo_max_freq": l.Most, "scaling_min_freq": l.Least, "scaling_max_freq": l.Most}
	for name, kHz := range limits {
		if !p.exists(base + name) {
			p.asked[base+name] = kHz
		}
		files[name] = strconv.Itoa(kHz)
	}
	if l.Preferences {
		files["energy_performance_preference"] = "balance_performance"
		if l.Governor == "performance" {
			files["energy_performance_preference"] = "performance"
		}
		files["energy_performance_available_preferences"] = "default performance balance_performance balance_power power "
	}
	if l.Base > 0 && strings.HasPrefix(l.Driver, "intel") {
		files["base_frequency"] = strconv.Itoa(l.Base)
	}
	if l.OwnBoost {
		files["boost"] = p.get(cpuDir, l.Boost)
	}
	if len(l.Steps) > 0 {
		files["scaling_available_frequencies"] = strings.Trim(fmt.Sprint(l.Steps), "[]") + " "
	}
	for name, text := range files {
		if err := p.createNew(base+name, text); err != nil {
			return err
		}
	}
	return p.create(base+"affected_cpus", strings.Join(cpus, " "))
}

// inactive reports whether a file is of a policy whose CPUs are all offline.
func (p *Power) inactive(name string) bool {
	dir := path.Dir(name)
	return strings.HasPrefix(dir, cpuDir+"/cpufreq/policy") && p.get(dir, "affected_cpus") == ""
}

// FS returns the tree for readers: attributes of an inactive policy are EBUSY (show in
// drivers/cpufreq/cpufreq.c).
func (p *Power) FS() fs.FS { return powerFS{os.DirFS(p.dir).(dirFS), p} }

type dirFS interface {
	fs.StatFS
	fs.ReadDirFS
	fs.ReadFileFS
	fs.ReadLinkFS
}

type powerFS struct {
	dirFS
	power *Power
}

func (f powerFS) ReadFile(name string) ([]byte, error) {
	if f.power.inactive(name) {
		return nil, &fs.PathError{Op: "read", Path: name, Err: syscall.EBUSY}
	}
	return f.dirFS.ReadFile(name)
}

// createNew makes a file that is not there.
func (p *Power) createNew(name, text string) error {
	if p.exists(name) {
		return nil
	}
	return p.create(name, text)
}

// Mkdir and Rmdir are refused: sysfs has none.
func (p *Power) Mkdir(name string) error {
	return &fs.PathError{Op: "mkdir", Path: name, Err: syscall.EPERM}
}

// Rmdir is refused.
func (p *Power) Rmdir(name string) error {
	return &fs.PathError{Op: "rmdir", Path: name, Err: syscall.EPERM}
}

// WriteFile does to a file what the drivers would.
func (p *Power) WriteFile(name, data string) error {
	if _, err := os.Stat(filepath.Join(p.dir, name)); err != nil {
		return err
	}
	err := error(syscall.EBUSY)
	if !p.inactive(name) {
		err = p.write(path.Dir(name), path.Base(name), strings.TrimSpace(data))
	}
	if err != nil {
		return &fs.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

func (p *Power) write(dir, file, value string) error {
	name := dir + "/" + file
	number, err := strconv.Atoi(value)
	isNumber := err == nil && number >= 0
	switch file {
	case "scaling_governor":
		return p.govern(dir, value)
	case "energy_performance_preference":
		// intel_pstate.rst, amd-pstate.rst: with the governor performance others are refused.
		switch {
		case !slices.Contains(strings.Fields(p.get(dir, "energy_performance_available_preferences")), value):
			return syscall.EINVAL
		case p.active() && p.get(dir, "scaling_governor") == "performance" && value != "performance":
			return syscall.EBUSY
		}
	case "scaling_min_freq", "scaling_max_freq":
		if !isNumber {
			return syscall.EINVAL
		}
		p.asked[name] = number
		return p.limit(dir)
	case "energy_perf_bias": // intel_epb.rst; names are shown as numbers
		names := map[string]string{"performance": "0", "balance-performance": "4", "normal": "6", "balance-power": "8", "power": "15"}
		if text, ok := names[value]; ok {
			value = text
		} else if !isNumber || number > 15 {
			return syscall.EINVAL
		}
	case "disable": // cpuidle.rst: what is not 0 disables
		if !isNumber {
			return syscall.EINVAL
		}
		value = strconv.Itoa(min(number, 1))
	case "pm_qos_resume_latency_us": // sysfs-devices-power; drivers/base/power/sysfs.c
		if value != "n/a" && !isNumber {
			return syscall.EINVAL
		}
	case "min_freq_khz", "max_freq_khz": // uncore-frequency-common.c: a ratio of 7 bits
		ratio := number / 100_000
		if !isNumber || ratio == 0 || ratio > 127 {
			return syscall.EINVAL
		}
		value = strconv.Itoa(ratio * 100_000)
	case "boost", "no_turbo":
		if value != "0" && value != "1" {
			return syscall.EINVAL
		}
		return p.switchBoost(dir, file, value)
	default:
		return syscall.EACCES
	}
	return p.put(name, value)
}

// active says that the driver chooses the frequency by itself (intel_pstate.rst, amd-pstate.rst).
func (p *Power) active() bool {
	return p.layout.Driver == "intel_pstate" || p.layout.Driver == "amd-pstate-epp"
}

// policies are the directories of those that there are.
func (p *Power) policies() (dirs []string) {
	for first := 0; p.layout.PerPolicy > 0 && first < p.layout.CPUs; first += p.layout.PerPolicy {
		dirs = append(dirs, fmt.Sprintf("%s/cpufreq/policy%d", cpuDir, first))
	}
	return dirs
}

// off reports whether the switch of boost for all CPUs is off.
func (p *Power) off() bool {
	switch p.layout.Boost {
	case "":
		return false
	case "intel_pstate/no_turbo":
		return p.get(cpuDir, p.layout.Boost) == "1"
	}
	return p.get(cpuDir, p.layout.Boost) == "0"
}

// switchBoost switches boost of a policy, which is refused while it is off for all (store_local_boost
// in drivers/cpufreq/cpufreq.c), or of all, and of each policy with them (cpufreq_boost_trigger_state).
// The drivers then bound the limits anew (amd_pstate_set_boost, intel_pstate_update_limits_for_all).
func (p *Power) switchBoost(dir, file, value string) error {
	own := strings.HasPrefix(path.Base(dir), "policy")
	if own && p.off() {
		return syscall.EINVAL
	}
	if err := p.put(dir+"/"+file, value); err != nil {
		return err
	}
	if own {
		return p.limit(dir)
	}
	for _, policy := range p.policies() {
		if p.layout.OwnBoost && p.get(policy, "affected_cpus") != "" {
			if err := p.put(policy+"/boost", value); err != nil {
				return err
			}
		}
		if err := p.limit(policy); err != nil {
			return err
		}
	}
	return nil
}

// highest is the highest frequency of a policy (cpuinfo.max_freq), which without boost is its base.
func (p *Power) highest(dir string) int {
	if p.layout.Base > 0 && (p.off() || p.layout.OwnBoost && p.get(dir, "boost") == "0") {
		return p.layout.Base
	}
	return p.layout.Most
}

// govern changes a governor. The active drivers have the preference at performance with the
// governor performance. What it is afterwards is Saved.
func (p *Power) govern(dir, governor string) error {
	if !slices.Contains(strings.Fields(p.layout.Governors), governor) {
		return syscall.EINVAL
	}
	if p.layout.Preferences && p.active() && governor == "performance" {
		if err := p.put(dir+"/energy_performance_preference", "performance"); err != nil {
			return err
		}
	}
	if p.layout.Saved != "" && governor != "performance" && p.get(dir, "scaling_governor") == "performance" {
		if err := p.put(dir+"/energy_performance_preference", p.layout.Saved); err != nil {
			return err
		}
	}
	return p.put(dir+"/scaling_governor", governor)
}

// limit shows what the requests for a policy come to: within the hardware's range, of the
// steps that there are, and the lower limit not above the upper one (cpufreq_set_policy).
func (p *Power) limit(dir string) error {
	highest := p.highest(dir)
	within := func(kHz int) int { return min(max(kHz, p.layout.Least), highest) }
	most := within(p.asked[dir+"/scaling_max_freq"])
	least := min(within(p.asked[dir+"/scaling_min_freq"]), most)
	if steps := p.layout.Steps; len(steps) > 0 {
		above, exact := slices.BinarySearch(steps, most)
		if !exact {
			above = max(above-1, 0)
		}
		most = steps[above]
		below, _ := slices.BinarySearch(steps, least)
		least = min(steps[min(below, len(steps)-1)], most)
	}
	if err := cmp.Or(p.put(dir+"/cpuinfo_max_freq", strconv.Itoa(highest)), p.put(dir+"/scaling_max_freq", strconv.Itoa(most))); err != nil {
		return err
	}
	return p.put(dir+"/scaling_min_freq", strconv.Itoa(least))
}

// SetOnline has some of the CPUs online.
func (p *Power) SetOnline(cpus string) error {
	if err := p.put(onlineFile, cpus); err != nil {
		return err
	}
	return p.plug(cpuset.MustParse(cpus))
}

// Offline takes CPUs away, as hot-plugging does.
func (p *Power) Offline(cpu int) error {
	return p.SetOnline(p.online().Minus(cpuset.MustOf(cpu)).String())
}
