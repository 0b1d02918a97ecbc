package doctor

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/kernel/power"
)

// hypervisors is why a virtual machine has no such setting.
const hypervisors = "it belongs to the hypervisor's host"

// preference judges the energy preference of the drivers that choose frequencies themselves.
func preference(h *host) Capability {
	const policies = "sys/devices/system/cpu/cpufreq/policy*/"
	has := h.distinct(policies + "energy_performance_preference")
	drivers := h.distinct(policies + "scaling_driver")
	switch {
	case len(has) > 0:
		return ok(strings.Join(has, "+"))
	case len(drivers) == 0 && h.flags.has("hypervisor"):
		return missing("no policies", hypervisors, "")
	case len(drivers) == 0:
		return missing("no policies", "no driver scales frequencies", "enable OS control of P-states in the firmware")
	}
	return missing(strings.Join(drivers, "+"), "this driver has none", "boot with intel_pstate=active or amd_pstate=active, on a CPU that can")
}

// idleStates judges in which states CPUs may wait, and how long the deepest takes to leave.
func idleStates(h *host) Capability {
	p, err := power.Read(h.fsys)
	if err != nil {
		return h.fail(err)
	}
	if p.IdleDriver == "" || len(p.CPUs) == 0 || len(p.CPUs[0].States) == 0 {
		return missing("no driver", "the kernel has no cpuidle driver: idle CPUs only halt", "a kernel with CONFIG_CPU_IDLE and a driver for the processor")
	}
	states := p.CPUs[0].States
	deepest := slices.MaxFunc(states, func(a, b power.IdleState) int { return a.Latency - b.Latency })
	found := fmt.Sprintf("%s, %s, the deepest %s (%d µs to leave)", p.IdleDriver, count(len(states), "state", "states"), deepest.Name, deepest.Latency)
	if h.flags.has("hypervisor") {
		return limited(found, "how deep an idle CPU sleeps is the hypervisor's to say", "")
	}
	return ok(found)
}

// uncore judges the clock of the mesh and the last-level cache.
func uncore(h *host) Capability {
	p, err := power.Read(h.fsys)
	switch {
	case err != nil:
		return h.fail(err)
	case len(p.Uncore) > 0:
		u := p.Uncore[0]
		return ok(fmt.Sprintf("%s, %g to %g GHz", count(len(p.Uncore), "die", "dies"), float64(u.Min)/1e6, float64(u.Max)/1e6))
	case h.flags.has("hypervisor"):
		return missing("no dies", hypervisors, "")
	case h.flags.vendor != "GenuineIntel":
		return notApplicable("no Intel CPU", "only servers of Intel have the setting")
	}
	return missing("no dies", "there is no intel_uncore_frequency", "modprobe intel_uncore_frequency, on a server")
}

// speedSelect judges Intel's priorities of cores and turbo by priority (SST-CP, SST-TF), which a
// device sets (Documentation/admin-guide/pm/intel-speed-select.rst). Base frequencies (SST-BF)
// are in cpufreq, and count in placing.
func speedSelect(h *host) Capability {
	var p *power.Host
	if h.probes.Power != nil {
		var err error
		if p, err = h.probes.Power(); err != nil {
			return h.fail(err)
		}
	}
	there := h.exists("dev/isst_interface")
	switch {
	case p != nil && len(p.Speed) > 0:
		return speedPackages(p.Speed)
	case there && p == nil:
		return limited("isst_interface", "a tree has no answers of the device", "run it on the host itself")
	case there:
		lacks := p.LacksSpeed()
		return limited("isst_interface", lacks.Reason, lacks.Remedy)
	case h.flags.has("hypervisor"):
		return missing("no device", hypervisors, "")
	case h.flags.vendor != "GenuineIntel":
		return notApplicable("no Intel CPU", "only servers of Intel have it")
	}
	return missing("no device", "there is no /dev/isst_interface", "modprobe -a isst_if_mbox_pci isst_if_mmio, or isst_tpmi on newer servers")
}

// speedPackages judges what packages have of Intel Speed Select.
func speedPackages(all []power.SpeedPackage) Capability {
	found, priorities, turbo := count(len(all), "package", "packages"), true, true
	for _, p := range all {
		priorities, turbo = priorities && p.CorePower != "", turbo && p.Turbo != ""
	}
	switch {
	case !priorities:
		return missing(found, "not all have priorities of cores (SST-CP)", "")
	case !turbo:
		return limited(found+", priorities of cores", "not all have turbo by priority (SST-TF) at their performance level", "intel-speed-select perf-profile info tells which level has it")
	}
	return ok(found + ", priorities of cores, turbo by priority")
}

// energy judges the counters of RAPL.
func energy(h *host) Capability {
	var zones []string
	for _, name := range h.glob("sys/class/powercap/intel-rapl:*/name") {
		if zone, _ := h.text(name); strings.HasPrefix(zone, "package-") || zone == "dram" {
			if !slices.Contains(zones, zone) {
				zones = append(zones, zone)
			}
			if _, _, err := h.read(path.Dir(name) + "/energy_uj"); err != nil {
				return limited(strings.Join(zones, ", "), err.Error(), "run as root: since Linux 5.10 nobody else may read them")
			}
		}
	}
	switch {
	case len(zones) > 0:
		return ok(strings.Join(zones, ", "))
	case h.flags.has("hypervisor"):
		return missing("no zones", hypervisors, "")
	}
	return missing("no zones", "there is no intel-rapl zone", "modprobe intel_rapl_msr")
}
