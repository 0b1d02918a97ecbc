package doctor

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"
)

func topology(h *host) Capability {
	if !h.exists("sys/devices/system/cpu/online") {
		return noTree("sys/devices/system/cpu/online")
	}
	m, err := sysfs.Read(h.fsys)
	if err == nil {
		err = m.Validate()
	}
	if err != nil {
		return h.fail(err)
	}
	found := []string{count(m.Online.Len(), "CPU", "CPUs")}
	for _, kind := range []machine.Kind{machine.Core, machine.L2, machine.L3, machine.Node, machine.Socket} {
		n := len(m.ByKind(kind))
		if n == 0 {
			continue
		}
		name := kind.String()
		if kind == machine.L2 || kind == machine.L3 {
			found = append(found, fmt.Sprintf("%d %s", n, strings.ToUpper(name)))
			continue
		}
		found = append(found, count(n, name, name+"s"))
	}
	fact := strings.Join(found, ", ")
	if len(m.ByKind(machine.L3)) == 0 {
		return limited(fact, "no L3 cache is described", "let the hypervisor pass the cache topology through (QEMU: -cpu host,l3-cache=on)")
	}
	return ok(fact)
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func smt(h *host) Capability {
	const dir = "sys/devices/system/cpu/smt/"
	control, found := h.text(dir + "control")
	if !found {
		return noTree(dir + "control")
	}
	switch control {
	case "on":
		if active, there := h.int(dir + "active"); there && active == 0 {
			return notApplicable("one thread per core", "no core has a second thread online")
		}
		return ok("on: threads share a core")
	case "off", "forceoff":
		return ok(control + ": every CPU is a core")
	case "notsupported", "notimplemented":
		return notApplicable("one thread per core", "the kernel says "+control)
	}
	return h.fail(fmt.Errorf("read /%scontrol: %q is no known state", dir, clip(control)))
}

func numa(h *host) Capability {
	const online = "sys/devices/system/node/online"
	if !h.exists(online) {
		return notApplicable("none", "the kernel has no NUMA support, or the machine one node")
	}
	nodes := h.set(online)
	if nodes.Len() < 2 {
		return notApplicable("1 node", "all memory is equally far")
	}
	found := fmt.Sprintf("%d nodes, %s", nodes.Len(), nodes)
	balancing, there := h.int("proc/sys/kernel/numa_balancing")
	if there && balancing != 0 {
		return limited(found+", automatic balancing", "the kernel unmaps pages to sample accesses and moves them: noise in the tail",
			"sysctl kernel.numa_balancing=0, where Berth places memory")
	}
	return ok(found)
}

func cpufreq(h *host) Capability {
	drivers := h.distinct("sys/devices/system/cpu/cpufreq/policy*/scaling_driver")
	governors := h.distinct("sys/devices/system/cpu/cpufreq/policy*/scaling_governor")
	if len(drivers) == 0 {
		reason, remedy := "no driver: firmware sets the frequency", "enable OS control of P-states in the firmware"
		if h.flags.has("hypervisor") {
			reason, remedy = "no driver: the frequency belongs to the hypervisor's host", ""
		}
		return missing("no policies", reason, remedy)
	}
	policies := len(h.glob("sys/devices/system/cpu/cpufreq/policy*"))
	found := fmt.Sprintf("%s, %s on %s", strings.Join(drivers, "+"), strings.Join(governors, "+"), count(policies, "policy", "policies"))
	found += h.turbo()
	if !slices.Equal(governors, []string{"performance"}) {
		return limited(found, "the frequency follows the load, so the first requests after a pause are slower",
			"cpupower frequency-set -g performance")
	}
	return ok(found)
}

// turbo says whether the CPU may exceed its base frequency, "" if unknown.
func (h *host) turbo() string {
	const dir = "sys/devices/system/cpu/"
	off, there := h.int(dir + "intel_pstate/no_turbo")
	if !there {
		var on int
		on, there = h.int(dir + "cpufreq/boost")
		off = 1 - on
	}
	switch {
	case !there:
		return ""
	case off == 0:
		return ", turbo on"
	}
	return ", turbo off"
}

// distinct returns the different texts of the files that match, sorted.
func (h *host) distinct(pattern string) []string {
	var texts []string
	for _, name := range h.glob(pattern) {
		text, found := h.text(name)
		if found {
			texts = append(texts, text)
		}
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

func schedExt(h *host) Capability {
	state, found := h.text("sys/kernel/sched_ext/state")
	switch {
	case !found:
		return ok("no BPF scheduler: this kernel has none")
	case state == "disabled":
		return ok("no BPF scheduler is loaded")
	}
	ops := h.word("sys/kernel/sched_ext/root/ops")
	return limited(strings.TrimSpace(state+" "+ops), "a BPF scheduler rules: cpu.weight, cpu.idle and cpu.max may have no effect, as that is up to it",
		"stop the BPF scheduler (the scx service or process), then look again")
}

// autogroup says whether nice and SCHED_IDLE of a process in no group count on the whole host.
func autogroup(h *host) Capability {
	on, there := h.int("proc/sys/kernel/sched_autogroup_enabled")
	switch {
	case !there:
		return ok("no groups by session: this kernel has none")
	case on == 0:
		return ok("off: nice and SCHED_IDLE count on the whole host")
	}
	return limited("on", "processes in no group are weighed by session, and nice and SCHED_IDLE count within one only",
		"sysctl kernel.sched_autogroup_enabled=0, where the guard may act on processes in no group (--outsiders)")
}

func fifo(h *host) Capability {
	h.fail(h.selfErr)
	runtime, there := h.int("proc/sys/kernel/sched_rt_runtime_us")
	if there && runtime == 0 {
		return missing("switched off", "kernel.sched_rt_runtime_us is 0", "sysctl kernel.sched_rt_runtime_us=950000")
	}
	right := "CAP_SYS_NICE"
	if !h.self.has(capSysNice) {
		if h.self.rtLimit == 0 {
			return missing("not permitted", "this process has neither CAP_SYS_NICE nor an RLIMIT_RTPRIO above 0",
				"run with sudo, or set an rtprio limit (limits.conf(5), LimitRTPRIO=)")
		}
		right = fmt.Sprintf("RLIMIT_RTPRIO %d", h.self.rtLimit)
	}
	h.fail(h.groupsErr)
	t := h.v1CPU()
	if t == nil {
		return ok(right)
	}
	budget, there := h.int(path.Join(t.Own, rtBudget))
	if !there || budget != 0 {
		return ok(right)
	}
	return missing(right+", own group 0 us", "RT_GROUP_SCHED: this process's cpu group has no real-time budget (EPERM)",
		"echo 50000 > cpu.rt_runtime_us in the group, or move the process to the root group")
}

const rtBudget = "cpu.rt_runtime_us"

// rtGroups looks for CONFIG_RT_GROUP_SCHED, which shows as a budget in every group of
// v1 and is invisible in v2.
func rtGroups(h *host) Capability {
	h.fail(h.groupsErr)
	t := h.v1CPU()
	if t == nil {
		return notApplicable("no budget per group", "cgroup v2 has no cpu.rt_runtime_us; a kernel with RT_GROUP_SCHED "+
			"lets the cpu controller be enabled only while all real-time tasks are in the root group")
	}
	budget, there := h.int(path.Join(t.Dir, rtBudget))
	if !there {
		return ok("no budget per group")
	}
	return limited(fmt.Sprintf("RT_GROUP_SCHED, root group %d us", budget),
		"in a new cpu group SCHED_FIFO fails (EPERM) until the group and those above it have a budget",
		"echo 50000 > cpu.rt_runtime_us in the group, or boot with rt_group_sched=0 where the kernel knows it")
}
