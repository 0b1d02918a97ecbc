package actuate

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// Settings are what a group has without what is in force by the guard.
type Settings struct {
	control.Limits
	// CPUs are those that it may run on; empty is all, or not known.
	CPUs cpuset.Set
	// Populated is true where processes are in the group itself, not only in groups
	// below it.
	Populated bool
}

// Settings reads a group's. What the host does not tell has the default.
func (h *Host) Settings(group string) (Settings, error) {
	var s Settings
	r := settingsReader{h: h, group: group}
	s.Idle = r.text(cgroup.CPU, "cpu.idle") == "1"
	if v, ok := r.number(cgroup.CPU, "cpu.weight"); ok {
		s.Weight = int(v)
	} else if v, ok := r.number(cgroup.CPU, "cpu.shares"); ok {
		s.Weight = max(int((v*100+512)/1024), 1) // the inverse of cgroup.Shares
	}
	if s.Idle {
		s.Weight = 0
	}
	s.Quota, s.Period = r.quota()
	if words := strings.Fields(r.text(cgroup.IO, "io.weight")); len(words) > 1 && words[0] == "default" {
		s.IOWeight, _ = strconv.Atoi(words[1])
	}
	s.CPUs = r.cpus()
	for _, dir := range h.base.Child(group).Dirs() {
		if text, err := h.read(dir + "/cgroup.procs"); err == nil && text != "" {
			s.Populated = true
		}
	}
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
	if text, ok := r.h.noted(name); ok {
		return strings.TrimSpace(text)
	}
	if text, ok := r.h.disturbed[name]; ok {
		return text
	}
	text, err := r.h.read(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.err = errors.Join(r.err, err)
	}
	return text
}

func (r *settingsReader) number(controller, file string) (int64, bool) {
	n, err := strconv.ParseInt(r.text(controller, file), 10, 64)
	return n, err == nil
}

// quota is zero without one.
func (r *settingsReader) quota() (quota, period time.Duration) {
	q, p := "", ""
	if words := strings.Fields(r.text(cgroup.CPU, "cpu.max")); len(words) == 2 {
		q, p = words[0], words[1]
	} else {
		q, p = r.text(cgroup.CPU, "cpu.cfs_quota_us"), r.text(cgroup.CPU, "cpu.cfs_period_us")
	}
	us, err := strconv.ParseInt(q, 10, 64)
	per, err2 := strconv.ParseInt(p, 10, 64)
	if err != nil || err2 != nil || us <= 0 {
		return 0, 0
	}
	return time.Duration(us) * time.Microsecond, time.Duration(per) * time.Microsecond
}

// cpus is the group's own set or, where it has none, the nearest one around it.
func (r *settingsReader) cpus() cpuset.Set {
	for at := *r; at.group != "." && at.group != ""; at.group = path.Dir(at.group) {
		if set, err := cpuset.Parse(at.text(cgroup.CPUSet, "cpuset.cpus")); err == nil && !set.IsEmpty() {
			return set
		}
	}
	return cpuset.Set{}
}

// Unavailable says, of remedies that no group of this host can have, why.
func (h *Host) Unavailable() map[detect.Remedy]string {
	all := map[detect.Remedy]string{}
	for _, r := range []detect.Remedy{
		detect.Weight, detect.HeadroomCap, detect.ShrinkCPUs, detect.CacheWays, detect.BandwidthCap, detect.CoreSched, detect.ExclusiveCPUs,
		detect.Burst, detect.MemoryHigh, detect.IOWeight,
	} {
		if err := h.available(r); err != nil {
			all[r] = err.Error()
		}
	}
	return all
}

func (h *Host) available(r detect.Remedy) error {
	name := controller(r)
	if name == "" {
		return unsupported(r)
	}
	if err := h.base.Has(name); err != nil {
		return err
	}
	if r == detect.MemoryHigh && h.trees[name].Version == 1 {
		return &kernel.NotSupportedError{Feature: "memory.high", Reason: "cgroup v1 has no such setting", Remedy: "boot with cgroup v2"}
	}
	return nil
}

// NoIdle says why cpu.idle cannot be used; "" if it can, or if no group is there to
// tell.
func (h *Host) NoIdle() string {
	t := h.trees[cgroup.CPU]
	if t == nil {
		return ""
	}
	entries, err := fs.ReadDir(h.root.FS(), t.Dir)
	if err != nil {
		return ""
	}
	for _, entry := range entries {
		dir := path.Join(t.Dir, entry.Name())
		if !entry.IsDir() || !h.file(dir+"/cpu.weight") && !h.file(dir+"/cpu.shares") {
			continue
		}
		if !h.file(dir + "/cpu.idle") {
			return fmt.Sprintf("/%s has no cpu.idle: boot a kernel 5.15 or newer", dir)
		}
		return ""
	}
	return ""
}

func (h *Host) file(name string) bool {
	_, err := fs.Stat(h.root.FS(), name)
	return err == nil
}

// BestEffort reports whether a group yields to all others by its settings: it is
// idle, or has the lowest weight.
func (s Settings) BestEffort() bool { return s.Idle || s.Weight == 1 }
