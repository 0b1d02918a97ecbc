package actuate

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// files are those that a remedy writes, by base name, on v2 and v1.
func files(r detect.Remedy) []string {
	switch r {
	case detect.Weight:
		return []string{"cpu.idle", "cpu.weight", "cpu.shares"}
	case detect.HeadroomCap:
		return []string{"cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"}
	case detect.Burst:
		return []string{"cpu.max.burst", "cpu.cfs_burst_us"}
	case detect.ShrinkCPUs:
		return []string{"cpuset.cpus"}
	case detect.MemoryHigh:
		return []string{"memory.high"}
	case detect.IOWeight:
		return []string{"io.weight", "io.bfq.weight", "blkio.weight", "blkio.bfq.weight"}
	}
	return nil
}

// controller is the one that a remedy needs.
func controller(r detect.Remedy) string {
	switch r {
	case detect.Weight, detect.HeadroomCap, detect.Burst:
		return cgroup.CPU
	case detect.ShrinkCPUs:
		return cgroup.CPUSet
	case detect.MemoryHigh:
		return cgroup.Memory
	case detect.IOWeight:
		return cgroup.IO
	}
	return ""
}

// of matches the steps that an action took.
func (h *Host) of(a control.Action) func(kernel.Step) bool {
	dirs := h.base.Child(a.Group).Dirs()
	return func(s kernel.Step) bool {
		dir, file := path.Split(s.Path)
		if !slices.Contains(files(a.Remedy), file) {
			return false
		}
		dir = strings.TrimSuffix(dir, "/")
		if a.Remedy != detect.ShrinkCPUs {
			return slices.Contains(dirs, dir)
		}
		return slices.ContainsFunc(dirs, func(d string) bool { return control.Within(dir, d) })
	}
}

// plan is what puts an action into force.
func (h *Host) plan(a control.Action) (kernel.Plan, error) {
	plan, err := h.planned(a)
	if err != nil {
		return nil, h.failed("plan", a, err)
	}
	for i := range plan {
		plan[i].Why = fmt.Sprintf("%v for %s", a.Remedy, a.Victim)
	}
	return plan, nil
}

func (h *Host) planned(a control.Action) (kernel.Plan, error) {
	name := controller(a.Remedy)
	if name == "" {
		return nil, unsupported(a.Remedy)
	}
	if a.Group == "" || a.Group != path.Clean(a.Group) || strings.HasPrefix(a.Group, "/") || strings.HasPrefix(a.Group, "..") {
		return nil, fmt.Errorf("group %q: not a path below the root group", a.Group)
	}
	group := h.base.Child(a.Group)
	if err := group.Has(name); err != nil {
		return nil, err
	}
	if !h.has(a.Group) {
		return nil, fs.ErrNotExist
	}
	if !h.exists(name, a.Group) {
		return nil, &kernel.NotSupportedError{
			Feature: a.Remedy.String(), Reason: fmt.Sprintf("the group is not in /%s, the tree of the %s controller", h.trees[name].Dir, name),
		}
	}
	if a.Remedy == detect.ShrinkCPUs {
		return h.shrink(a.Group, a.Limits.CPUs)
	}
	return group.Set(only(a.Remedy, a.Limits))
}

// only keeps the limits that belong to a remedy.
func only(r detect.Remedy, l cgroup.Limits) cgroup.Limits {
	switch r {
	case detect.Weight:
		return cgroup.Limits{Idle: l.Idle, Weight: l.Weight}
	case detect.HeadroomCap:
		return cgroup.Limits{Quota: l.Quota, Period: l.Period}
	case detect.Burst:
		return cgroup.Limits{Burst: l.Burst}
	case detect.MemoryHigh:
		return cgroup.Limits{MemoryHigh: l.MemoryHigh}
	}
	return cgroup.Limits{IOWeight: l.IOWeight}
}

// exists reports whether a group is in the tree of a controller.
func (h *Host) exists(controller, group string) bool {
	t := h.trees[controller]
	if t == nil {
		return false
	}
	info, err := fs.Stat(h.root.FS(), path.Join(t.Dir, group))
	return err == nil && info.IsDir()
}

// shrink plans the set of a group and, as a v1 set must hold those of its children,
// of the groups below it: what they had themselves, as far as their parents still
// have it, or else what those have.
func (h *Host) shrink(group string, to cpuset.Set) (kernel.Plan, error) {
	if to.IsEmpty() {
		return nil, errors.New("no CPUs would be left")
	}
	t := h.trees[cgroup.CPUSet]
	if t.Version == 2 {
		return h.base.Child(group).Set(cgroup.Limits{CPUs: to})
	}
	below, err := h.below(path.Join(t.Dir, group))
	if err != nil {
		return nil, err
	}
	placements := []cgroup.Placement{{Group: h.base.Child(group), CPUs: to}}
	next := map[string]cpuset.Set{path.Join(t.Dir, group): to}
	for _, dir := range below {
		had, err := h.original(dir + "/cpuset.cpus")
		if err != nil {
			return nil, err
		}
		if had.IsEmpty() {
			continue // nobody is in there
		}
		parent := next[path.Dir(dir)]
		cpus := had.Intersect(parent)
		if h.follows(group, dir) {
			cpus = parent
		}
		if cpus.IsEmpty() {
			cpus = parent
		}
		next[dir] = cpus
		placements = append(placements, cgroup.Placement{Group: h.base.Child(strings.TrimPrefix(dir, t.Dir+"/")), CPUs: cpus})
	}
	return cgroup.Place(placements...)
}

// below are the directories below one, parents first.
func (h *Host) below(dir string) ([]string, error) {
	entries, err := fs.ReadDir(h.root.FS(), dir)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		sub := path.Join(dir, entry.Name())
		more, err := h.below(sub)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		all = append(append(all, sub), more...)
	}
	return all, nil
}

// original is the set that a file had before anything was done.
func (h *Host) original(file string) (cpuset.Set, error) {
	text, ok := h.noted(file)
	if !ok {
		var err error
		if text, err = h.read(file); err != nil {
			return cpuset.Set{}, err
		}
	}
	return cpuset.Parse(strings.TrimSpace(text))
}

func (h *Host) read(file string) (string, error) {
	text, err := fs.ReadFile(h.root.FS(), file)
	return strings.TrimSpace(string(text)), err
}

// unsupported says why a remedy cannot be had here.
func unsupported(r detect.Remedy) error {
	no := &kernel.NotSupportedError{Feature: r.Words(), Reason: "it is not for the guard to decide"}
	switch r {
	case detect.CacheWays, detect.BandwidthCap:
		no.Reason, no.Remedy = "the guard does not write schemata of resctrl", "set them by hand: mount resctrl, see docs/guard.md"
	case detect.CoreSched:
		no.Reason = "cookies are of processes, not of groups: those that start later have none, and nothing could take them back after a crash"
		no.Remedy = "give the victim whole cores: berth run --class LSE"
	case detect.ExclusiveCPUs:
		no.Reason, no.Remedy = "it takes CPUs away from every other group", "place the victim by berth run --class LSE"
	}
	return no
}
