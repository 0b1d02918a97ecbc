// Package layers holds the rules of the house as data: which room may import
// which, and which library belongs to which room. Its test walks the source
// and enforces them.
package layers

// Room is one package and what it may import from Berth.
type Room struct {
	Path string // below the module, "machine/sysfs"
	// May lists the rooms it may import; "*" is every room.
	May []string
	// Pure rooms decide or describe. They do no I/O and read no clock.
	Pure bool
}

// Rooms is the house, lowest level first. A room may only be listed after
// those that it may import.
func Rooms() []Room {
	return []Room{
		// 0: standard library only
		{Path: "cpuset", Pure: true},
		{Path: "internal/plain", Pure: true},
		{Path: "internal/netlink"},
		{Path: "internal/fork"},
		{Path: "internal/strictyaml", May: []string{"internal/plain"}, Pure: true},
		// 1: the vocabularies
		{Path: "machine", May: []string{"internal/plain", "cpuset"}, Pure: true},
		{Path: "kernel/knob", May: []string{"cpuset"}, Pure: true},
		{Path: "kernel", May: []string{"cpuset", "kernel/knob", "internal/plain"}},
		{Path: "watch", May: []string{"internal/plain"}, Pure: true},
		{Path: "desired", May: []string{"kernel/knob"}, Pure: true},
		// 2: one kernel dialect each; they import each other only for a format that two share
		{Path: "machine/sysfs", May: []string{"cpuset", "machine"}},
		{Path: "kernel/cgroup", May: []string{"cpuset", "kernel/knob", "kernel"}},
		{Path: "kernel/resctrl", May: []string{"cpuset", "kernel", "internal/plain", "internal/strictyaml"}},
		{Path: "kernel/traffic", May: []string{"kernel", "internal/netlink", "internal/strictyaml"}},
		{Path: "kernel/sched", May: []string{"cpuset", "kernel", "kernel/knob", "kernel/cgroup"}},
		{Path: "kernel/blockio", May: []string{"kernel", "kernel/cgroup", "kernel/sched", "internal/strictyaml"}},
		{Path: "kernel/power", May: []string{"cpuset", "kernel", "internal/strictyaml"}},
		{Path: "kernel/systemd", May: []string{"cpuset", "kernel/knob", "kernel"}},
		{Path: "watch/hardware", May: []string{"cpuset", "kernel", "watch"}},
		{Path: "watch/proc", May: []string{"kernel", "watch"}},
		// Groups have pressure files too, in the format that watch/proc parses.
		{Path: "watch/cgroupstat", May: []string{"kernel", "watch", "watch/proc"}},
		{Path: "watch/runq", May: []string{"cpuset", "kernel", "watch/cgroupstat"}},
		{Path: "watch/network", May: []string{"kernel", "internal/netlink", "watch", "watch/cgroupstat"}},
		{Path: "watch/pods"},
		{Path: "place", May: []string{"internal/plain", "cpuset", "machine"}, Pure: true},
		{Path: "place/berth", May: []string{"internal/plain", "cpuset", "machine", "place"}, Pure: true},
		{Path: "place/kubelet", May: []string{"internal/plain", "cpuset", "machine", "place"}, Pure: true},
		{Path: "place/balloons", May: []string{"internal/plain", "cpuset", "machine", "place"}, Pure: true},
		{Path: "place/controlplane", May: []string{"internal/plain", "cpuset", "machine", "place"}, Pure: true},
		{Path: "place/topologyaware", May: []string{"internal/plain", "cpuset", "machine", "place"}, Pure: true},
		{Path: "place/koordinator", May: []string{"internal/plain", "cpuset", "machine", "place"}, Pure: true},
		{Path: "place/policies", May: []string{
			"place", "internal/strictyaml",
			"place/berth", "place/kubelet", "place/koordinator", "place/controlplane", "place/topologyaware", "place/balloons",
		}, Pure: true},
		{Path: "podwords", May: []string{"internal/plain", "internal/strictyaml", "cpuset", "machine", "place"}, Pure: true},
		{Path: "guard/detect", May: []string{"cpuset", "machine", "watch", "internal/plain"}, Pure: true},
		// 3: wiring
		{Path: "guard/observe", May: []string{
			"cpuset", "machine", "kernel", "kernel/cgroup", "kernel/resctrl", "watch", "watch/proc", "watch/runq", "watch/cgroupstat",
			"watch/hardware", "watch/network", "watch/pods",
		}},
		{Path: "guard/evidence", Pure: true},
		{Path: "guard/control", May: []string{"guard/evidence", "cpuset", "desired", "machine", "kernel/knob", "kernel", "kernel/cgroup", "place", "guard/detect", "internal/plain"}},
		{Path: "guard/actuate", May: []string{"cpuset", "kernel", "kernel/cgroup", "kernel/knob", "kernel/resctrl", "kernel/sched", "kernel/traffic", "watch/pods", "guard/detect", "guard/control"}},
		{Path: "guard", May: []string{"cpuset", "machine", "kernel", "place", "watch", "watch/pods", "watch/proc", "guard/actuate", "guard/control", "guard/detect", "guard/observe"}},
		{Path: "lab/stats"},
		{Path: "lab/noise", May: []string{"kernel"}},
		{Path: "lab/load", May: []string{"internal/fork", "lab/stats", "kernel/sched"}},
		{Path: "lab/program", May: []string{"internal/fork", "kernel", "lab/load"}},
		{Path: "lab", May: []string{"internal/plain", "internal/netlink", "internal/fork",
			"cpuset", "machine", "machine/sysfs", "kernel", "kernel/cgroup", "kernel/sched", "kernel/traffic", "watch", "watch/cgroupstat", "watch/hardware", "watch/proc",
			"lab/stats", "lab/noise", "lab/load", "lab/program",
		}},
		{Path: "lab/report", May: []string{"internal/plain", "cpuset", "machine", "lab", "lab/stats", "lab/load", "lab/noise", "lab/program"}},
		{Path: "lab/guarded", May: []string{
			"kernel", "kernel/cgroup", "place", "guard", "guard/detect", "guard/control", "guard/actuate", "lab", "lab/stats", "lab/noise", "lab/report", "internal/plain", "internal/netlink", "internal/strictyaml", "watch", "watch/cgroupstat",
		}},
		{Path: "lab/neighbours", May: []string{
			"cpuset", "machine", "kernel", "internal/plain", "lab", "lab/load", "lab/noise", "lab/stats", "lab/report",
		}},
		{Path: "lab/benchmark", May: []string{"internal/plain", "machine", "lab", "lab/program", "lab/report", "lab/stats"}},
		{Path: "lab/routing", May: []string{"lab/load"}},
		{Path: "lab/limits", May: []string{
			"internal/plain", "cpuset", "machine", "kernel/cgroup", "lab", "lab/load", "lab/routing", "lab/stats", "lab/report",
		}},
		{Path: "lab/beside", May: []string{
			"internal/plain", "cpuset", "machine", "kernel", "kernel/cgroup", "kernel/power", "kernel/resctrl", "watch", "watch/hardware", "watch/proc", "lab", "lab/noise", "lab/report", "lab/stats",
		}},
		{Path: "lab/services", May: []string{
			"internal/plain", "internal/strictyaml", "cpuset", "machine", "kernel", "kernel/cgroup", "watch/proc", "place", "place/berth",
			"lab", "lab/load", "lab/noise", "lab/report", "lab/stats",
		}},
		{Path: "lab/colocate", May: []string{
			"internal/plain", "cpuset", "machine", "kernel", "kernel/cgroup", "place", "place/policies", "lab", "lab/load", "lab/program", "lab/stats", "lab/report",
		}},
		{Path: "lab/catalog", May: []string{
			"internal/strictyaml", "machine", "lab", "lab/report", "lab/guarded", "lab/limits", "lab/neighbours", "lab/beside", "lab/colocate", "lab/services", "lab/benchmark",
		}},
		{Path: "replay", May: []string{
			"cpuset", "machine", "place", "place/kubelet", "place/policies", "podwords", "internal/plain", "internal/strictyaml",
		}, Pure: true},
		{Path: "agent/config", May: []string{
			"internal/plain", "cpuset", "place", "place/policies", "kernel", "kernel/cgroup", "kernel/blockio", "kernel/power", "kernel/resctrl", "kernel/traffic", "internal/strictyaml", "watch/pods",
		}},
		{Path: "doctor", May: []string{"cpuset", "machine", "machine/sysfs", "kernel/knob", "kernel", "kernel/cgroup", "kernel/power", "kernel/resctrl", "kernel/sched", "watch/proc"}},
		{Path: "agent", May: []string{
			"cpuset", "desired", "internal/strictyaml", "machine", "machine/sysfs", "kernel/knob", "kernel", "kernel/blockio", "kernel/cgroup", "kernel/power", "kernel/resctrl", "kernel/sched", "kernel/systemd", "kernel/traffic", "watch/proc", "place", "place/berth", "guard/actuate",
		}},
		{Path: "agent/api", May: []string{
			"cpuset", "machine", "kernel", "watch", "watch/cgroupstat", "place", "agent", "agent/config", "guard", "guard/control", "guard/detect",
		}},
		{Path: "agent/daemon", May: []string{
			"cpuset", "machine", "machine/sysfs", "kernel/knob", "kernel", "kernel/blockio", "kernel/cgroup", "kernel/power", "kernel/resctrl", "kernel/systemd", "kernel/traffic", "watch", "watch/cgroupstat", "watch/pods",
			"place", "agent", "agent/config", "agent/api", "guard", "guard/observe", "guard/actuate", "guard/control", "guard/detect",
			"internal/strictyaml",
		}},
		{Path: "agent/web", May: []string{
			"cpuset", "machine", "kernel", "kernel/cgroup", "kernel/resctrl", "watch", "watch/proc", "watch/pods", "place", "agent", "agent/api", "agent/config",
			"guard", "guard/control", "guard/detect", "internal/plain",
		}},
		// the door
		{Path: "internal/cli", May: []string{"*"}},
		{Path: "cmd/berth", May: []string{"internal/cli"}},
		// kube is a module of its own: no room of this one may import it
		{Path: "kube/rivals", May: []string{"kernel"}},
		{Path: "kube/nri", May: []string{"agent", "cpuset", "desired", "kernel", "kernel/cgroup", "kernel/power", "kernel/traffic", "machine", "machine/sysfs", "place", "podwords"}},
		{Path: "kube/metrics", May: []string{
			"agent", "agent/api", "agent/config", "agent/daemon", "agent/web", "cpuset", "guard/observe", "kernel", "place", "watch/pods",
		}},
		{Path: "kube/zones", May: []string{"cpuset", "machine", "place"}, Pure: true},
		{Path: "kube/features", May: []string{"doctor", "machine", "kube/zones"}},
		{Path: "kube/api", May: []string{"internal/plain", "place", "podwords", "kube/nri"}},
		{Path: "kube/batch", May: []string{"internal/plain"}, Pure: true},
		{Path: "kube/predict", May: []string{"kube/batch"}},
		{Path: "kube/usage", May: []string{"kernel", "kernel/cgroup", "watch", "watch/cgroupstat", "watch/pods", "watch/proc", "kube/batch"}},
		{Path: "kube/publish", May: []string{"cpuset", "doctor", "machine", "kernel", "place", "kube/api", "kube/batch", "kube/features", "kube/predict", "kube/usage", "kube/zones"}},
		{Path: "kube/cmd/berth-node", May: []string{"*"}},
		// what no other program should import
		{Path: "internal/walkthrough", Pure: true},
		{Path: "internal/fakenet", May: []string{"kernel/traffic"}},
		{Path: "internal/fakespeed", May: []string{"cpuset", "kernel/power"}},
		{Path: "internal/fakekernel", May: []string{"cpuset", "machine"}},
		{Path: "internal/placetest", May: []string{"cpuset", "machine", "machine/sysfs", "place"}},
		{Path: "internal/golden"},
		{Path: "internal/jsonschema"},
		{Path: "internal/layers"},
		{Path: "internal/browser"},
		{Path: "internal/debian"},
		{Path: "internal/labtest", May: []string{"lab/load", "lab/noise", "lab/program"}},
		{Path: "internal/testbox", May: []string{"internal/fork", "kernel"}},
		{Path: "internal/vmtest", May: []string{"cpuset"}},
		{Path: "internal/vmtest/vminit", May: []string{"internal/vmtest"}},
		{Path: "kube/image"},
		{Path: "kube/image/pack", May: []string{"kernel", "kube/image"}},
		{Path: "kube/e2e/nodekit", May: []string{"internal/debian", "internal/netlink", "kernel/traffic", "kube/image"}},
		{Path: "kube/e2e/node", May: []string{"kube/e2e/nodekit"}},
		{Path: "kube/e2e/work"},
		{Path: "e2e/idletable", May: []string{"lab/stats"}},
		{Path: "e2e/vm", May: []string{"internal/debian", "internal/vmtest"}},
	}
}

// Owned names, for an import path or a prefix of one, the only rooms that may
// import it, and why.
type Owned struct {
	Import string
	Rooms  []string
	Why    string
}

// OwnedImports lists the libraries that belong to certain rooms.
func OwnedImports() []Owned {
	return []Owned{
		{"github.com/spf13/", []string{"internal/cli", "kube/cmd/berth-node"}, "only the door knows a command line"},
		{"golang.org/x/term", []string{"internal/cli"}, "only the door knows a terminal"},
		{"github.com/HdrHistogram/", []string{"lab", "lab/stats", "lab/load"}, "histograms belong to the lab"},
		{"github.com/prometheus/", []string{"agent/web"}, "only the metrics know Prometheus"},
		{"github.com/cilium/", []string{"kernel/traffic", "watch/runq", "watch/network"}, "only these speak BPF"},
		{"github.com/intel/goresctrl/", []string{"kernel/power"}, "only kernel/power knows Intel Speed Select"},
		{"github.com/coreos/go-systemd/", []string{"kernel/systemd"}, "only kernel/systemd speaks D-Bus"},
		{"github.com/godbus/", []string{"kernel/systemd"}, "only kernel/systemd speaks D-Bus"},
		{"gonum.org/", []string{"lab/stats", "replay"}, "numerics belong to the statistics"},
		{"log", []string{"agent/daemon"}, "libraries return errors; they do not log"},
		// kernel/power has it to silence the library that it calls.
		{"log/slog", []string{"agent/daemon", "internal/cli", "kernel/power", "kube/cmd/berth-node"}, "libraries return errors; they do not log"},
		{"github.com/containerd/", []string{"kube/nri"}, "only the plugin knows container runtimes"},
		{"google.golang.org/", []string{"kube/nri"}, "only the plugin knows container runtimes"},
		{"k8s.io/", []string{"kube/api", "kube/publish"}, "only these know objects of Kubernetes"},
		{"testing", []string{"internal/browser", "internal/golden", "internal/labtest", "internal/placetest", "internal/fakekernel"}, "test code is not shipped"},
	}
}

// ForbiddenInPure lists what a pure room may not import.
func ForbiddenInPure() []string {
	return []string{"os", "io/fs", "net", "syscall", "time", "log", "log/slog", "golang.org/x/sys/unix"}
}
