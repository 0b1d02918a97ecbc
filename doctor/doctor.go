// Package doctor reports a host's capabilities for Berth: one Capability per thing
// that placing, guarding or measuring needs, with a reason and a remedy where
// it is limited or missing, and what Berth does without it.
//
// Look reads a tree that stands for "/" and asks the kernel only by the
// given Probes, so that another host's tree or a test's can be examined. A
// file that cannot be read or understood makes its capability Unknown; it is
// never an error of the whole. The doctor changes nothing but, when asked, the
// one setting that Berth can make for the user, see Delegation.
package doctor

import (
	"io/fs"
	"slices"

	"berth.dev/berth/kernel/power"
)

// Schema names the version of Report in JSON; docs/doctor.md documents it.
const Schema = "berth.dev/doctor/v1"

// State is how much of a capability is there.
type State string

// The states.
const (
	OK      State = "ok"
	Limited State = "limited" // there, in a lesser form
	Missing State = "missing"
	Unknown State = "unknown" // a file is unreadable or malformed
	// NotApplicable: this kind of machine has no use for it.
	NotApplicable State = "not applicable"
)

// Group is the purpose of a capability.
type Group string

// The groups, in the order of a report.
const (
	Place   Group = "place"
	Guard   Group = "guard"
	Measure Group = "measure"
)

// Groups returns the groups in the order of a report.
func Groups() []Group { return []Group{Place, Guard, Measure} }

// Capability is one thing that a host can or cannot do.
type Capability struct {
	// Name is unique in a report and part of the schema: "cpuset", "pmu".
	Name  string `json:"name"`
	Group Group  `json:"group"`
	State State  `json:"state"`
	// Found is one short fact, with numbers: "v2, 8 CPUs".
	Found string `json:"found"`
	// Reason says why the state is not OK.
	Reason string `json:"reason,omitempty"`
	// Remedy is a command or a setting that would help, or "".
	Remedy string `json:"remedy,omitempty"`
	// Without describes Berth's fallback; it is set where the state is Limited,
	// Missing or Unknown.
	Without string `json:"without,omitempty"`
}

// Report holds the doctor's findings about a host.
type Report struct {
	Schema       string       `json:"schema"`
	Host         string       `json:"host,omitempty"`
	Kernel       string       `json:"kernel,omitempty"` // uname -r
	Capabilities []Capability `json:"capabilities"`
	Summary      Summary      `json:"summary"`
}

// Get returns the capability of that name.
func (r *Report) Get(name string) (c Capability, ok bool) {
	i := slices.IndexFunc(r.Capabilities, func(c Capability) bool { return c.Name == name })
	if i < 0 {
		return Capability{}, false
	}
	return r.Capabilities[i], true
}

// Probes ask the running kernel for facts that no file shows. A nil probe is skipped.
// For a tree that is not the live root all must be nil.
type Probes struct {
	// HardwareCounter opens and closes a hardware performance counter.
	HardwareCounter func() error
	// Links returns what can divide each network device among classes, in a few words, by name.
	Links func() (map[string]string, error)
	// Power reads what power profiles set, Intel Speed Select included, which no tree has.
	Power func() (*power.Host, error)
}

// Look examines the tree fsys, which stands for "/".
func Look(fsys fs.FS, probes Probes) *Report {
	h := newHost(fsys, probes)
	r := &Report{Schema: Schema, Host: h.word("proc/sys/kernel/hostname"), Kernel: h.release}
	for _, check := range checks() {
		h.err = nil
		c := check.look(h)
		if h.err != nil {
			c = Capability{State: Unknown, Found: "unreadable", Reason: h.err.Error()}
		}
		c.Name, c.Group = check.name, check.group
		if c.State != OK && c.State != NotApplicable {
			c.Without = check.without
		}
		r.Capabilities = append(r.Capabilities, c)
	}
	r.Summary = summarise(r, h)
	return r
}

// check is how one capability is found out. Its look leaves Name, Group and Without to Look.
// What it returns does not count after a host.fail.
type check struct {
	name    string
	group   Group
	without string
	look    func(*host) Capability
}

func checks() []check {
	cacheWays := allocation("cache allocation", []string{"cat_l3", "cat_l2", "cdp_l3"}, []string{"L3", "L3CODE", "L3DATA", "L2", "L2CODE", "L2DATA"})
	memoryBandwidth := allocation("bandwidth allocation", []string{"mba", "smba"}, []string{"MB", "SMBA"})
	cacheMonitoring := allocation("monitoring", []string{"cqm_occup_llc", "cqm_mbm_total", "cqm_mbm_local"}, []string{"L3_MON"})
	return []check{
		{"topology", Place, "treats all CPUs as one domain", topology},
		{"smt", Place, "treats every CPU as a core", smt},
		{"numa", Place, "leaves memory where the kernel puts it", numa},
		{"cgroup", Place, "v1 groups where there are any; else affinity, nice and SCHED_IDLE, process by process", cgroups},
		{"cgroup-rights", Place, "acts only on its own processes, by affinity, nice and SCHED_IDLE", rights},
		{"cpuset", Place, "CPU affinity, which a process can undo and new ones must be told", cpusets},
		{"cpu", Place, "nice values, which weigh threads and not workloads", cpuController},
		{"memory", Place, "the hard limit of v1 where there is one, else none", memory},
		{"io", Place, "the throttling of v1 where there is one, else none", ioController},
		{"io-weights", Place, "limits what is read and written per second instead", ioWeights},
		{"io-latency", Place, "weights and limits, which look at no latency", ioLatency},
		{"pids", Place, "does not limit the number of processes", pids},
		{"hugetlb", Place, "counts the huge pages of workloads, and does not limit them", hugeTLB},
		{"cache-ways", Place, "separates caches only by choosing CPUs of different L3 domains", cacheWays},
		{"delegation", Place, "isolation of an ordinary user's work needs root or systemd units", delegated},
		{"network", Place, "divides no link of the network", network},
		{"systemd", Place, "writes to cgroup files itself", systemd},
		{"kubelet", Place, "leaves the cpusets of containers to the kubelet", kubelet},
		{"container-runtime", Place, "sees cgroups, not containers", runtimes},

		{"cpu.idle", Guard, "the lowest weight, which a 512:1 ratio makes nearly as good", cpuIdle},
		{"sched_ext", Guard, "cpusets only: the BPF scheduler need not honour weight, idle and max", schedExt},
		{"autogroup", Guard, "weighs no process in no group; keeps it off some CPUs, where it may", autogroup},
		{"freezer", Guard, "SIGSTOP, which a process's parent sees", freezer},
		{"rt-groups", Guard, "real-time threads stay in the root group, outside of their workload's", rtGroups},
		{"memory-bandwidth", Guard, "moves or slows the neighbour as a whole", memoryBandwidth},
		{"cpufreq", Guard, "measures with whatever frequency it gets", cpufreq},
		{"energy-preference", Guard, "power profiles set governor and limits only", preference},
		{"cpuidle", Guard, "power profiles say nothing of how deep CPUs sleep", idleStates},
		{"uncore", Guard, "leaves the clock of mesh and last-level cache as it is", uncore},
		{"speed-select", Guard, "power profiles set no priority of cores, and no turbo by priority", speedSelect},
		{"psi", Guard, "figures of the whole host where there are any, run delay per thread, throttling counters", pressure},
		{"psi-triggers", Guard, "a window of 1 s arms the run-queue probe", pressureTriggers},

		{"pmu", Measure, "no cycles, instructions or cache misses: time and run delay only", pmu},
		{"cache-monitoring", Measure, "tells cache and bandwidth contention only from its effect on latency", cacheMonitoring},
		{"btf", Measure, "run delay from schedstat, which names no antagonist", btf},
		{"bpf", Measure, "run delay from schedstat, which names no antagonist", bpf},
		{"run-delay", Measure, "pressure totals only", runDelay},
		{"fifo", Measure, "the load generator runs at normal priority; its lag is measured and may void a result", fifo},
		{"clock", Measure, "timestamps cost a system call and more", clock},
		{"hypervisor", Measure, "subtracts nothing: results with steal are marked", hypervisor},
		{"energy", Measure, "shows no watts", energy},
		{"thp", Measure, "reports the setting beside results", hugePages},
	}
}

func ok(found string) Capability { return Capability{State: OK, Found: found} }

func limited(found, reason, remedy string) Capability {
	return Capability{State: Limited, Found: found, Reason: reason, Remedy: remedy}
}

func missing(found, reason, remedy string) Capability {
	return Capability{State: Missing, Found: found, Reason: reason, Remedy: remedy}
}

func notApplicable(found, reason string) Capability {
	return Capability{State: NotApplicable, Found: found, Reason: reason}
}

// noTree is for a tree without that part of /proc or /sys.
func noTree(name string) Capability {
	return Capability{State: Unknown, Found: "not told", Reason: "/" + name + " is absent"}
}
