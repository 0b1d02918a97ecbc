package doctor

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"berth.dev/berth/kernel/cgroup"
)

// network judges what network classes need: HTB, programs of control groups, devices.
func network(h *host) Capability {
	var divides map[string]string
	if h.probes.Links != nil {
		var err error
		if divides, err = h.probes.Links(); err != nil {
			return h.fail(err)
		}
	}
	var devices, untold []string
	for _, name := range h.glob("sys/class/net/*/device") {
		dir := path.Dir(name)
		// A device without a carrier has an error instead of its speed.
		speed, err := strconv.Atoi(h.word(dir + "/speed"))
		if known := err == nil && speed > 0; known {
			devices = append(devices, fmt.Sprintf("%s %d Mbit/s", path.Base(dir), speed))
		} else {
			devices, untold = append(devices, path.Base(dir)), append(untold, path.Base(dir))
		}
		if by := divides[path.Base(dir)]; by != "" {
			devices[len(devices)-1] += " (" + by + ")"
		}
	}
	found := strings.Join(devices, ", ")
	if len(devices) == 0 {
		found = "no devices of hardware"
	}
	for _, needed := range [][2]string{{"CONFIG_NET_SCH_HTB", "HTB"}, {"CONFIG_CGROUP_BPF", "programs of control groups"}} {
		if h.lacksOption(needed[0]) {
			return missing(found, "the kernel has no "+needed[1], "a kernel with "+needed[0])
		}
	}
	if _, v2 := h.groups.Hierarchy(cgroup.Pressure); !v2 {
		return missing(found, "cgroup v2 is not mounted, and on v1 no program sees the packets of a group", "mount -t cgroup2 none /sys/fs/cgroup/unified, or boot with cgroup v2")
	}
	if group := h.tracked(); group != "" {
		return limited(found, fmt.Sprintf("processes are in groups of v2 (%s), by which another program keeps track of them: only a workload that is given a group that is in v1 and in v2 has its packets told apart", group), "boot with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1)")
	}
	switch {
	case len(devices) == 0:
		return limited(found, "the speed of a link is not told", "say rate in classes.net.devices")
	case len(untold) > 0:
		return limited(found, "no speed is told by "+strings.Join(untold, ", "), "say their rate in classes.net.devices, unless they are not to be divided")
	}
	return ok(found)
}

// tracked is the v2 group of the first process or of this one, where CPUs are given in v1; ""
// where both are at the top, as in the groups of v1 that Berth makes.
func (h *host) tracked() string {
	if t, given := h.groups.Hierarchy(cgroup.CPUSet); !given || t.Version == 2 {
		return ""
	}
	for _, pid := range []string{"1", "self"} {
		all, err := cgroup.ParseMembership(h.word("proc/" + pid + "/cgroup"))
		for _, m := range all {
			if err == nil && m.ID == 0 && m.Path != "/" {
				return m.Path
			}
		}
	}
	return ""
}

// lacksOption reports whether the kernel's own configuration (CONFIG_IKCONFIG_PROC) is there and
// has an option neither built in nor as a module.
func (h *host) lacksOption(option string) bool {
	packed, err := fs.ReadFile(h.fsys, "proc/config.gz")
	if err != nil {
		return false
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return false
	}
	const most = 4 << 20
	text, err := io.ReadAll(io.LimitReader(z, most))
	if err != nil {
		return false
	}
	return !bytes.Contains(text, []byte("\n"+option+"=y")) && !bytes.Contains(text, []byte("\n"+option+"=m"))
}
