package cgroupstat

import (
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
)

// Signal is a kind of statistics that one or two files tell.
type Signal uint8

// The signals, with the v2 file and the v1 files.
const (
	Usage          Signal = iota // cpu.stat; cpuacct.usage
	Split                        // user and system time: cpu.stat; cpuacct.stat
	Throttling                   // by the own limit or, without the controller, one above: cpu.stat; the own: the same
	ThrottlingAny                // by the ancestors' limits too: cpu.stat.local; the same
	Memory                       // memory.current; memory.usage_in_bytes
	MemoryEvents                 // memory.events; memory.failcnt, memory.oom_control
	MemoryDetail                 // memory.stat
	NUMA                         // memory.numa_stat
	Tasks                        // pids.current
	IO                           // io.stat; blkio.throttle.io_service_bytes_recursive, …io_serviced_recursive
	CPUPressure                  // cpu.pressure, of the v2 tree
	MemoryPressure               // memory.pressure, of the v2 tree
	IOPressure                   // io.pressure, of the v2 tree
	IRQPressure                  // irq.pressure, of the v2 tree
	State                        // cgroup.events, of the v2 tree
)

// Set is a set of signals.
type Set uint32

// SetOf returns the set of some signals.
func SetOf(signals ...Signal) Set {
	var s Set
	for _, signal := range signals {
		s |= 1 << signal // of one that is unknown, nothing is found
	}
	return s
}

// Has reports whether a signal is in the set.
func (s Set) Has(signal Signal) bool { return s&SetOf(signal) != 0 }

// signals are those of the set, in order.
func (s Set) signals() []Signal {
	return slices.DeleteFunc(Signals(), func(signal Signal) bool { return !s.Has(signal) })
}

// source is where one version of cgroups tells a signal: in which controller's
// tree ("" is any of that version), in which files, of which all but the first
// came with later kernels, and which file shows that the controller is enabled,
// where the first does not. Parse reads the files; nil stands for those of their names.
// Limit says that the signal is of a CPU limit, which a group may be under without the
// controller (limitAbove).
type source struct {
	controller string
	files      []string
	proof      string
	parse      parser
	limit      bool
}

type signalInfo struct {
	name   string
	v2, v1 source
}

// signalInfos is the table of signals: a new one is a row here, and its files' parsers.
var signalInfos = []signalInfo{
	Usage: {"usage", source{files: []string{"cpu.stat"}},
		source{controller: "cpuacct", files: []string{"cpuacct.usage"}}},
	Split: {"split", source{files: []string{"cpu.stat"}},
		source{controller: "cpuacct", files: []string{"cpuacct.stat"}}},
	Throttling: {"throttling", source{controller: "cpu", files: []string{"cpu.stat"}, limit: true},
		source{controller: "cpu", files: []string{"cpu.stat"}, parse: throttlingV1}},
	ThrottlingAny: {"throttling by any limit", source{controller: "cpu", files: []string{"cpu.stat.local"}, proof: "cpu.max"},
		source{controller: "cpu", files: []string{"cpu.stat.local"}}},
	Memory: {"memory", source{controller: "memory", files: []string{"memory.current"}},
		source{controller: "memory", files: []string{"memory.usage_in_bytes"}}},
	MemoryEvents: {"memory events", source{controller: "memory", files: []string{"memory.events"}},
		source{controller: "memory", files: []string{"memory.failcnt", "memory.oom_control"}}},
	MemoryDetail: {"memory detail", source{controller: "memory", files: []string{"memory.stat"}},
		source{controller: "memory", files: []string{"memory.stat"}, parse: memoryV1}},
	NUMA: {"numa", source{controller: "memory", files: []string{"memory.numa_stat"}},
		source{controller: "memory", files: []string{"memory.numa_stat"}, parse: numaV1}},
	Tasks: {"tasks", source{controller: "pids", files: []string{"pids.current"}},
		source{controller: "pids", files: []string{"pids.current"}}},
	IO: {"io", source{controller: "io", files: []string{"io.stat"}},
		source{controller: "io", files: []string{"blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_serviced_recursive"}}},
	CPUPressure:    {name: "cpu pressure", v2: source{files: []string{"cpu.pressure"}}},
	MemoryPressure: {name: "memory pressure", v2: source{files: []string{"memory.pressure"}}},
	IOPressure:     {name: "io pressure", v2: source{files: []string{"io.pressure"}}},
	IRQPressure:    {name: "irq pressure", v2: source{files: []string{"irq.pressure"}}},
	State:          {name: "state", v2: source{files: []string{"cgroup.events"}}},
}

// Signals returns all signals.
func Signals() []Signal {
	all := make([]Signal, len(signalInfos))
	for i := range all {
		all[i] = Signal(i)
	}
	return all
}

// Always returns the signals that 250 groups can be asked for every second; the
// others are for a lower rate, or for groups in doubt.
func Always() []Signal { return []Signal{Usage, Throttling, CPUPressure, Memory} }

// String returns the signal's name.
func (s Signal) String() string {
	if !s.known() {
		return "unknown(" + strconv.Itoa(int(s)) + ")"
	}
	return signalInfos[s].name
}

func (s Signal) known() bool { return int(s) < len(signalInfos) }

// place is a source in a directory of the group, and the root of the tree that it is in.
type place struct {
	source
	version   int
	dir, root string
}

func (s *source) parserOf(file string) parser {
	if s.parse != nil {
		return s.parse
	}
	return parsers[file]
}

// find returns where a group has a signal: in the v1 tree of its controller
// where there is one, as a controller of a v1 tree is in no other.
func (s Signal) find(trees []Tree, dirs []groupDir) (place, error) {
	if !s.known() {
		return place{}, &kernel.NotSupportedError{Feature: s.String(), Reason: "there is no such signal"}
	}
	info := signalInfos[s]
	for version, src := range [...]source{1: info.v1, 2: info.v2} {
		if src.files == nil {
			continue
		}
		i := slices.IndexFunc(trees, func(t Tree) bool {
			return t.Version == version && (src.controller == "" || slices.Contains(t.Controllers, src.controller))
		})
		if i < 0 {
			continue
		}
		if dirs[i].inode == 0 {
			return place{}, &kernel.NotSupportedError{
				Feature: s.String() + " of a group",
				Reason:  "the group is not in the tree " + trees[i].Dir,
			}
		}
		if src.proof != "" && unix.Access(dirs[i].path+"/"+src.proof, unix.F_OK) != nil {
			return place{}, absent(s, src.proof, version)
		}
		return place{src, version, dirs[i].path, trees[i].Dir}, nil
	}
	return place{}, s.noTree(info)
}

func (s Signal) noTree(info signalInfo) error {
	err := &kernel.NotSupportedError{Feature: s.String() + " of a group"}
	if info.v2.controller == "" {
		err.Reason, err.Remedy = "no cgroup v2 tree is mounted", "mount cgroup2"
	} else {
		err.Reason = "the " + info.v2.controller + " controller is in no mounted tree"
		err.Remedy = "enable it in the kernel and mount it"
	}
	return err
}

func absent(s Signal, file string, version int) error {
	err := &kernel.NotSupportedError{Feature: s.String() + " of a group", Reason: "there is no " + file}
	info := signalInfos[s]
	switch {
	case file == "cpu.stat.local":
		err.Remedy = "boot a kernel 6.6 or newer"
	case version == 2 && info.v2.controller != "":
		err.Remedy = "enable the " + info.v2.controller + " controller in the parent's cgroup.subtree_control"
	case version == 2:
		err.Remedy = "boot a kernel that has it; the root group has few files"
	default:
		err.Remedy = "boot a kernel that has it"
	}
	return err
}
