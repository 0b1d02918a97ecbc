package lab

import (
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
)

// readHost describes the machine that a run is on. What cannot be read stays empty.
func readHost(m *machine.Machine) Host {
	h := Host{
		Machine:     m,
		Clocksource: readWord("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
		Governor:    readWord("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
		Hypervisor:  hypervisor(),
	}
	var uname unix.Utsname
	if unix.Uname(&uname) == nil {
		h.Kernel = unix.ByteSliceToString(uname.Release[:])
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		h.MemoryBytes = int64(info.Totalram) * int64(info.Unit)
	}
	return h
}

func readWord(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// hypervisor names what the kernel runs under: /sys/hypervisor/type (Xen), the
// DMI product, or just that the CPU says so; "" on bare metal.
func hypervisor() string {
	if kind := readWord("/sys/hypervisor/type"); kind != "" {
		return kind
	}
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || !hasWord(string(text), "hypervisor") {
		return ""
	}
	if product := readWord("/sys/class/dmi/id/product_name"); product != "" {
		return product
	}
	return "virtual machine"
}

// hasWord reports whether one of the flags lines of cpuinfo has the word.
func hasWord(cpuinfo, word string) bool {
	for line := range strings.Lines(cpuinfo) {
		key, value, ok := strings.Cut(line, ":")
		if !ok || strings.TrimSpace(key) != "flags" {
			continue
		}
		return slices.Contains(strings.Fields(value), word)
	}
	return false
}

// plausibleL3 bounds the L3 that is believed, per CPU that shares it: more than
// processors have today (an EPYC 7373X without SMT has 48 MiB). A virtual machine
// may be shown its host's whole cache, of which it has a part of unknown size.
const plausibleL3 = 64 << 20

// cacheBytes returns the size of one L2 and of one L3 that serve cpus, 0 if unknown.
func cacheBytes(m *machine.Machine, cpus cpuset.Set) (l2, l3 int64) {
	first, ok := cpus.First()
	if !ok {
		return 0, 0
	}
	if d, ok := m.Of(machine.L2, first); ok {
		l2 = d.Bytes
	}
	if d, ok := m.Of(machine.L3, first); ok {
		l3 = min(d.Bytes, plausibleL3*int64(d.CPUs.Len()))
	}
	return l2, l3
}
