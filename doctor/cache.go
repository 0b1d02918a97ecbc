package doctor

import (
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/kernel/resctrl"
)

const resctrlDir = resctrl.Usual

// allocation judges one use of the resctrl file system. flags are the words of
// proc/cpuinfo that stand for it on x86, info its directories below info/.
func allocation(what string, flags, info []string) func(*host) Capability {
	return func(h *host) Capability { return h.resctrl(what, flags, info) }
}

func (h *host) resctrl(what string, flags, info []string) Capability {
	filesystems, known := h.text("proc/filesystems")
	if !known {
		return noTree("proc/filesystems")
	}
	supported := slices.Contains(strings.Fields(filesystems), "resctrl")
	if supported && h.exists(resctrlDir+"/info") {
		return h.mountedResctrl(what, info)
	}
	h.fail(h.flagsErr)
	has := slices.DeleteFunc(slices.Clone(flags), func(f string) bool { return !h.flags.has(f) })
	switch x86 := h.flags.vendor != ""; {
	case x86 && len(has) == 0:
		return missing("not in this CPU", "the CPU shows none of: "+strings.Join(flags, " "), noRDT(h))
	case !supported && x86:
		return missing(strings.Join(has, " "), "the CPU can, the kernel has no resctrl", "a kernel with CONFIG_X86_CPU_RESCTRL=y")
	case !supported:
		return missing("no resctrl", "the kernel has no resctrl, or firmware describes no MPAM",
			"a kernel with CONFIG_RESCTRL_FS=y and MPAM")
	}
	return limited(words(has, "resctrl")+", not mounted", "the resctrl file system is not mounted",
		"mount -t resctrl resctrl /sys/fs/resctrl")
}

// noRDT is the remedy for a CPU without the flags.
func noRDT(h *host) string {
	if h.flags.has("hypervisor") {
		return "bare metal: hypervisors rarely pass this through"
	}
	return ""
}

func (h *host) mountedResctrl(what string, info []string) Capability {
	var facts []string
	for _, name := range info {
		dir := resctrlDir + "/info/" + name
		if !h.exists(dir) {
			continue
		}
		facts = append(facts, name)
		for _, unit := range []string{"CLOSIDs", "RMIDs"} {
			n, there := h.int(dir + "/num_" + strings.ToLower(unit))
			if there {
				facts[len(facts)-1] += fmt.Sprintf(" %d %s", n, unit)
			}
		}
	}
	if len(facts) == 0 {
		return missing("resctrl without it", "resctrl is mounted and has no "+what,
			"a CPU that has it, and no kernel parameter rdt= that turns it off (rdt=!l3cat,!mba,!cmt)")
	}
	return ok(strings.Join(append(facts, h.resctrlModes(info)...), ", "))
}

// resctrlModes says how what a mount has is divided, limited or counted; nothing where the tree
// cannot be read in full.
func (h *host) resctrlModes(info []string) (modes []string) {
	t, err := resctrl.Read(h.fsys)
	if err != nil {
		return nil
	}
	switch info[0] {
	case "L3":
		l3, l2 := t.Find("L3CODE") != nil, t.Find("L2CODE") != nil
		if l3 {
			modes = append(modes, "code and data apart (cdp)")
		}
		if l2 {
			modes = append(modes, "code and data of L2 apart (cdpl2)")
		}
		if !l3 && !l2 && (h.flags.has("cdp_l3") || h.flags.has("cdp_l2")) {
			modes = append(modes, "code and data together (mount with -o cdp, or cdpl2, to tell them apart)")
		}
		if t.DevicesHaveClass() {
			modes = append(modes, "devices have a class of their own, which takes a CLOSID (io_alloc)")
		}
	case "MB":
		if r := t.Find("MB"); r != nil {
			modes = append(modes, "in "+map[resctrl.Unit]string{resctrl.Percent: "percent", resctrl.EighthG: "1/8 GB/s", resctrl.MBps: "MiB/s (mba_MBps)"}[r.Unit])
		}
	case "L3_MON":
		if t.Monitoring.Assigned {
			least := 0
			for _, n := range t.Monitoring.Counters {
				if least == 0 || n < least {
					least = n
				}
			}
			modes = append(modes, fmt.Sprintf("%d counters of bandwidth for each cache, assigned to groups (mbm_event)", least))
		}
		modes = append(modes, fmt.Sprintf("%d control groups at a time beside all classes, more in turns", t.Slots()))
	}
	return modes
}
