package actuate

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/knob"
	"berth.dev/berth/watch/pods"
)

// Settings are those of a group without the active actions of the guard.
type Settings struct {
	// Limits has Idle, Weight, Quota and Period, IOWeight, IOMax, and the CPUs that it may run on;
	// empty is all, or not known.
	cgroup.Limits
	// Shares are cpu.shares of v1, of which Weight is a rounding; 0 on v2.
	Shares int64
	// BestEffortPods is true for groups of Kubernetes' class BestEffort, by their names.
	BestEffortPods bool
	// NoIdle says why cpu.idle must not be set on this group though the host has it; "" if it
	// may.
	NoIdle string
	// Populated is true where processes are in the group itself, not only in groups
	// below it.
	Populated bool
	// Essential says why the host depends on the group, which is not to be acted on then;
	// "" if it is not known to.
	Essential string
}

// Settings reads those of a group. A setting that the host does not show has its default.
func (h *Host) Settings(group string) (Settings, error) {
	defer h.enter()()
	return h.settings(group)
}

func (h *Host) settings(group string) (Settings, error) {
	var s Settings
	r := settingsReader{h: h, group: group}
	if r.value("idle") == "1" {
		s.Idle = cgroup.On
	}
	s.Weight, _ = strconv.Atoi(r.value("weight"))
	s.Shares, _ = strconv.ParseInt(r.text(cgroup.CPU, "cpu.shares"), 10, 64)
	s.BestEffortPods, s.NoIdle = pods.Parse(group).QoS == pods.BestEffort, h.noIdle(group)
	if s.Idle == cgroup.On {
		s.Weight, s.Shares = 0, 0
	}
	var quota, period int64
	if n, _ := fmt.Sscan(r.value("quota"), &quota, &period); n == 2 { // neither without a limit
		s.Quota, s.Period = time.Duration(quota)*time.Microsecond, time.Duration(period)*time.Microsecond
	}
	s.IOWeight, _ = strconv.Atoi(r.value("ioWeight"))
	s.IOMax = r.devices()
	s.CPUs = r.cpus()
	var pids []int
	for _, dir := range h.base.Child(group).Dirs() {
		some, _ := kernel.ReadProcs(h.root.FS(), dir)
		if pids = append(pids, some...); len(some) == 0 { // or they are of another PID namespace, or threads
			has, _ := kernel.HasProcs(h.root.FS(), dir)
			s.Populated = s.Populated || has
		}
	}
	slices.Sort(pids)
	s.Populated = s.Populated || len(pids) > 0
	s.Essential = h.essential(group, slices.Compact(pids))
	if r.err != nil {
		return s, fmt.Errorf("settings of %s: %w", group, r.err)
	}
	return s, nil
}

// settingsReader reads files of a group, as they were before the guard. What is not
// there is no error.
type settingsReader struct {
	h     *Host
	group string
	err   error
}

func (r *settingsReader) text(controller, file string) string {
	t := r.h.trees[controller]
	if t == nil {
		return ""
	}
	name := path.Join(t.Dir, r.group, file)
	if text, ok := r.h.original(name); ok {
		return strings.TrimSpace(text)
	}
	text, err := r.h.read(name)
	if kernel.IgnoreAbsent(err) != nil {
		r.err = errors.Join(r.err, err)
	}
	return text
}

// value returns the value of a knob, "" if it is not known.
func (r *settingsReader) value(name string) string {
	return r.valueOf(name, "")
}

// valueOf is value for one key.
func (r *settingsReader) valueOf(name, key string) string {
	k := knob.Find(name)
	value, _ := k.Read(key, func(file string) (string, bool) {
		text := r.text(k.Controller, file)
		return text, text != ""
	})
	return value
}

// devices are the limits of bytes per second, by rising device.
func (r *settingsReader) devices() (all []cgroup.IOMax) {
	of := map[string]*cgroup.IOMax{}
	for _, name := range []string{"readBPS", "writeBPS"} {
		k := knob.Find(name)
		for _, file := range k.Files() {
			for line := range strings.Lines(r.text(k.Controller, file)) {
				device, _, _ := strings.Cut(line, " ")
				n, err := strconv.ParseInt(r.valueOf(name, device), 10, 64)
				if k.Key(device) != nil || err != nil { // no limit
					continue
				}
				if of[device] == nil {
					of[device] = &cgroup.IOMax{Device: device}
				}
				if name == "readBPS" {
					of[device].ReadBPS = n
				} else {
					of[device].WriteBPS = n
				}
			}
		}
	}
	for _, device := range slices.Sorted(maps.Keys(of)) {
		all = append(all, *of[device])
	}
	return all
}

// cpus is the group's own set or, where it has none, the nearest one around it.
func (r *settingsReader) cpus() cpuset.Set {
	for at := *r; at.group != "." && at.group != ""; at.group = path.Dir(at.group) {
		if set, err := cpuset.Parse(at.value("cpus")); err == nil && !set.IsEmpty() {
			return set
		}
	}
	return cpuset.Set{}
}

// Unavailable says, of remedies that no group of this host can have, why.
func (h *Host) Unavailable() map[detect.Remedy]string {
	defer h.enter()()
	all := map[detect.Remedy]string{}
	for i := range h.remedies {
		r := &h.remedies[i]
		if err := h.available(r); err != nil {
			all[r.Name] = err.Error()
		}
	}
	return all
}

func (h *Host) available(r *control.Remedy) error {
	if r.Processes {
		return h.processesAvailable(r)
	}
	if r.Divides() {
		return h.availableShare(r.Name)
	}
	if r.Sends() {
		_, err := h.network()
		return err
	}
	if err := h.base.Has(r.Controller()); err != nil {
		return err
	}
	return r.Missing(h.trees[r.Controller()].Version)
}

// NoIdle says why cpu.idle cannot be used; "" if it can, or if no group is there to
// tell.
func (h *Host) NoIdle() string {
	defer h.enter()()
	t := h.trees[cgroup.CPU]
	if t == nil {
		return ""
	}
	if why, _ := t.Lacks(h.root, knob.Find("idle")); why != nil {
		return why.Reason + ": " + why.Remedy
	}
	return ""
}

// noIdle says why a group must not be made idle: something else writes its weight, and would
// fail. The kernel refuses the weight of an idle group (sched_group_set_shares in
// kernel/sched/fair.c), and the library of runc and of the kubelet
// (github.com/opencontainers/cgroups) ends at that.
//
//   - A container's runtime writes the weight first: every later update of the container
//     fails, whatever it is about.
//   - The kubelet writes the weight of its classes of pods once a minute and when it starts,
//     which it does not if that fails, and of a pod when that is resized. With its driver
//     systemd, systemd writes the weight, on v2 with cpu.idle 0 before it: the group is idle
//     no more then, which the guard finds as drift.
func (h *Host) noIdle(group string) string {
	if c, ok := pods.ContainerOf(group); ok && c.ID != "" {
		return "the container's runtime could not update a container that is idle"
	}
	t, g := h.trees[cgroup.CPU], pods.Parse(group)
	if g.Level != pods.None && (!g.Slice || t == nil || t.Version == 1) {
		return "the kubelet could not write the weight of a group that is idle, and would not start again"
	}
	return ""
}

// minShares is the least value of cpu.shares (MIN_SHARES in kernel/sched/sched.h). The
// kubelet gives it to containers that ask for no CPU, or for less than 3 m
// (MilliCPUToShares: a thousandth of a CPU is 1.024 shares), and 10 to those that ask for 10 m.
const minShares = 2

// BestEffort reports whether a group yields to all others by its settings: it is idle,
// has the least shares that v1 knows, or is Kubernetes' group of best-effort pods, or one
// of them. The least cpu.weight of v2, 1, says too little: container runtimes made it of
// 2 to 28 shares, a request of up to 28 m, by 1 + (shares-2)*9999/262142 (runc before 1.3.2), and
// only since then of 2 shares alone.
func (s Settings) BestEffort() bool {
	return s.Yields() || s.Shares == minShares || s.BestEffortPods
}

// Yields reports whether a group runs only while nobody else wants a CPU: it is idle.
func (s Settings) Yields() bool { return s.Idle == cgroup.On }
