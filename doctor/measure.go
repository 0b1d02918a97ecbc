package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/watch/proc"
)

func pmu(h *host) Capability {
	const devices = "sys/bus/event_source/devices"
	if !h.exists(devices) {
		return noTree(devices)
	}
	var names []string
	for _, pattern := range []string{"cpu", "cpu_*", "armv*_pmu*", "armv*_cortex_*", "armv*_neoverse_*"} {
		for _, dir := range h.glob(path.Join(devices, pattern)) {
			names = append(names, path.Base(dir))
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	found := words(names, "no hardware PMU")
	if h.probes.HardwareCounter == nil {
		if len(names) == 0 {
			return missing(found, "the kernel lists no CPU performance counters", vPMU(h))
		}
		return h.paranoid(found)
	}
	err := h.probes.HardwareCounter()
	switch {
	case err == nil:
		return ok(words(names, "hardware counters"))
	case errors.Is(err, fs.ErrPermission):
		if h.selfErr == nil && (h.self.has(capPerfmon) || h.self.has(capSysAdmin)) {
			return missing(found+", not permitted", "perf_event_open is refused in spite of the capability: a seccomp filter, as in containers",
				"allow perf_event_open in the container's seccomp profile")
		}
		level := h.word("proc/sys/kernel/perf_event_paranoid")
		return missing(found+", not permitted", "perf_event_paranoid is "+level+" and this process lacks CAP_PERFMON",
			"sysctl kernel.perf_event_paranoid=1, or run with CAP_PERFMON")
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errors.ErrUnsupported):
		return missing(found, "the kernel has no hardware counter ("+err.Error()+")", vPMU(h))
	}
	return Capability{State: Unknown, Found: found, Reason: err.Error()}
}

// paranoid judges counters that were not opened by the sysctl alone.
func (h *host) paranoid(found string) Capability {
	level, there := h.int("proc/sys/kernel/perf_event_paranoid")
	if there && level > 2 && h.selfErr == nil && !h.self.has(capPerfmon) && !h.self.has(capSysAdmin) {
		return missing(found+", not permitted", fmt.Sprintf("perf_event_paranoid is %d", level), "sysctl kernel.perf_event_paranoid=1")
	}
	return ok(found)
}

func vPMU(h *host) string {
	if h.flags.has("hypervisor") {
		return "let the hypervisor expose a virtual PMU (QEMU: -cpu host,pmu=on), or bare metal"
	}
	return "a kernel with CONFIG_PERF_EVENTS=y and the CPU's PMU driver"
}

func btf(h *host) Capability {
	info, err := fs.Stat(h.fsys, "sys/kernel/btf/vmlinux")
	if errors.Is(err, fs.ErrNotExist) {
		return missing("no /sys/kernel/btf/vmlinux", "the kernel does not describe its types", "a kernel with CONFIG_DEBUG_INFO_BTF=y")
	}
	if err != nil {
		return h.fail(err)
	}
	return ok(fmt.Sprintf("%.1f MiB", float64(info.Size())/(1<<20)))
}

func bpf(h *host) Capability {
	h.fail(h.selfErr)
	lockdown, _, err := h.read("sys/kernel/security/lockdown")
	if !errors.Is(err, fs.ErrPermission) {
		h.fail(err)
	}
	if strings.Contains(lockdown, "[confidentiality]") {
		return missing("locked down", "kernel lockdown in confidentiality mode keeps BPF from reading the kernel",
			"boot with lockdown=integrity or without (kernel command line)")
	}
	if newer, known := h.newer(5, 8); known && !newer {
		return missing("kernel "+h.release, "tracing programs with a ring buffer need kernel 5.8", "kernel 5.8 or newer")
	}
	switch {
	case h.self.has(capBPF) && h.self.has(capPerfmon):
		return ok("CAP_BPF and CAP_PERFMON")
	case h.self.has(capSysAdmin):
		return ok("CAP_SYS_ADMIN")
	}
	unprivileged := h.word("proc/sys/kernel/unprivileged_bpf_disabled")
	return missing("not permitted, unprivileged_bpf_disabled "+words(strings.Fields(unprivileged), "absent"),
		"this process lacks CAP_BPF and CAP_PERFMON; tracing programs need both", "run with sudo, or with CAP_BPF and CAP_PERFMON")
}

func runDelay(h *host) Capability {
	if _, there := h.text("proc/self/schedstat"); !there {
		return missing("no /proc/PID/schedstat", "the kernel does not count waiting time", "a kernel with CONFIG_SCHED_INFO=y")
	}
	if !h.exists("proc/schedstat") {
		return ok("per thread; no figures per CPU")
	}
	return ok("per thread and per CPU")
}

func clock(h *host) Capability {
	const name = "sys/devices/system/clocksource/clocksource0/current_clocksource"
	source, found := h.text(name)
	if !found {
		return noTree(name)
	}
	switch source {
	case "tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "riscv_clocksource":
		return ok(source + ", read without a system call")
	}
	available := h.word(path.Join(path.Dir(name), "available_clocksource"))
	remedy := "find out why the kernel rejected the TSC (dmesg | grep -i tsc)"
	if slices.Contains(strings.Fields(available), "tsc") {
		remedy = "echo tsc > /" + name
	}
	return limited(source, "every timestamp is a system call or slower", remedy)
}

func hypervisor(h *host) Capability {
	name := h.hypervisorName()
	if name == "" {
		h.fail(h.flagsErr)
		return ok("none seen: bare metal")
	}
	steal := ""
	stat, err := proc.ReadStat(h.fsys)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		h.fail(err)
	case stat.Total.HasSteal() && stat.Total.All() > 0:
		share := 100 * stat.Total.Steal.Seconds() / stat.Total.All().Seconds()
		steal = fmt.Sprintf(", steal %.2f %% since boot", share)
	}
	return limited(name+steal, "neighbours outside of this virtual machine show only as steal; caches and frequency are not this kernel's",
		"a dedicated host or bare metal, for results to publish")
}

// hypervisorName returns the hypervisor's name, if the tree shows it; "" for bare
// metal.
func (h *host) hypervisorName() string {
	if name := h.word("sys/hypervisor/type"); name != "" {
		return name
	}
	for _, vendor := range []string{"QEMU", "Amazon EC2", "Google", "Microsoft Corporation", "VMware, Inc.", "Xen", "innotek GmbH"} {
		product := h.word("sys/class/dmi/id/product_name")
		if h.word("sys/class/dmi/id/sys_vendor") == vendor && !strings.HasSuffix(product, ".metal") {
			if !h.flags.has("hypervisor") && h.flags.vendor != "" {
				continue // the vendor's own bare machine
			}
			return strings.TrimSpace(vendor + " " + product)
		}
	}
	if h.flags.has("hypervisor") {
		return "a virtual machine"
	}
	return ""
}

func hugePages(h *host) Capability {
	const name = "sys/kernel/mm/transparent_hugepage/enabled"
	text, found := h.text(name)
	if !found {
		return notApplicable("none", "the kernel has no transparent huge pages")
	}
	_, rest, open := strings.Cut(text, "[")
	mode, _, closed := strings.Cut(rest, "]")
	if !open || !closed {
		return h.fail(fmt.Errorf("read /%s: %q names no mode", name, clip(text)))
	}
	return ok(mode)
}
