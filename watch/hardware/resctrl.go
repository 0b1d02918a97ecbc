package hardware

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// Resctrl is the directory where the resctrl file system is mounted.
type Resctrl string

// ResctrlDir is where it is mounted by custom, below the root directory.
const ResctrlDir = "sys/fs/resctrl"

// Monitors returns nil if groups are monitored. Without resctrl, without its monitoring and
// where it is not mounted it is a kernel.NotSupportedError.
func (t Resctrl) Monitors() error {
	_, err := t.read("info/L3_MON/mon_features")
	if errors.Is(err, fs.ErrNotExist) {
		err = t.absent()
	}
	if err != nil {
		return fmt.Errorf("monitoring by resctrl: %w", err)
	}
	return nil
}

// absent says why there is no monitoring.
func (t Resctrl) absent() error {
	no := &kernel.NotSupportedError{Feature: "cache occupancy and memory bandwidth"}
	has := func(name string) bool {
		_, err := os.Stat(filepath.Join(string(t), name))
		return err == nil
	}
	switch {
	case has("info"):
		no.Reason, no.Remedy = "the CPU can allocate caches and bandwidth, but does not monitor them", "a CPU with CMT and MBM, or without the kernel parameter rdt=!cmt,!mbmtotal,!mbmlocal"
	case has("."):
		no.Reason, no.Remedy = "resctrl is not mounted", "mount -t resctrl resctrl "+string(t)
	default:
		no.Reason, no.Remedy = "the CPU or the kernel has no resctrl", "a CPU with Intel RDT or AMD PQoS that is not hidden by a hypervisor, and CONFIG_X86_CPU_RESCTRL"
	}
	return no
}

func (t Resctrl) read(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(string(t), name))
}

// ResctrlGroup is a group of resctrl, by its path in the tree: one that has resources
// allocated (CTRL_MON), or one that monitors some of its tasks (MON). "" is the default
// group.
type ResctrlGroup string

// String returns the path from the root of the tree on, "/" for the default group.
func (g ResctrlGroup) String() string { return "/" + string(g) }

// controls returns the groups that allocate, the default group first. Each task
// and CPU belongs to one of them, and their counts include those of the groups
// that monitor only.
func (t Resctrl) controls() ([]ResctrlGroup, error) {
	entries, err := os.ReadDir(string(t))
	if err != nil {
		return nil, fmt.Errorf("list groups of resctrl: %w", err)
	}
	all := []ResctrlGroup{""}
	for _, e := range entries {
		if e.IsDir() && !slices.Contains([]string{"info", "mon_data", "mon_groups"}, e.Name()) {
			all = append(all, ResctrlGroup(e.Name()))
		}
	}
	return all, nil
}

// groups returns all groups, each that allocates before those that monitor its
// tasks.
func (t Resctrl) groups() ([]ResctrlGroup, error) {
	controls, err := t.controls()
	if err != nil {
		return nil, err
	}
	var all []ResctrlGroup
	for _, g := range controls {
		all = append(all, g)
		dir := filepath.Join(string(g), "mon_groups")
		entries, err := os.ReadDir(filepath.Join(string(t), dir))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has just gone, or there is no monitoring
		}
		if err != nil {
			return nil, fmt.Errorf("list groups of resctrl: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				all = append(all, ResctrlGroup(filepath.Join(dir, e.Name())))
			}
		}
	}
	return all, nil
}

// tasks returns the ids of the threads in a group. A group that does not exist is
// watch.ErrGone.
func (t Resctrl) tasks(g ResctrlGroup) ([]int, error) {
	text, err := t.read(filepath.Join(string(g), "tasks"))
	if errors.Is(err, fs.ErrNotExist) {
		err = watch.ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("tasks of resctrl group %s: %w", g, err)
	}
	var all []int
	for _, word := range strings.Fields(string(text)) {
		tid, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("tasks of resctrl group %s: %w", g, err)
		}
		all = append(all, tid)
	}
	return all, nil
}

// stray is the part of threads by which a group may differ from those looked for,
// since threads come and go between two readings.
const stray = 0.05

// Find returns the group that monitors these threads and no others; ok is false
// where there is none. The default group is never it: it has all that are in no
// other.
func (t Resctrl) Find(threads []int) (g ResctrlGroup, ok bool, err error) {
	if len(threads) == 0 {
		return "", false, nil
	}
	groups, err := t.groups()
	if err != nil {
		return "", false, err
	}
	for _, g := range groups {
		if g == "" {
			continue
		}
		ok, err := t.Has(g, threads)
		if errors.Is(err, watch.ErrGone) {
			continue
		}
		if ok || err != nil { // a group below that monitors all of them counts the same
			return g, ok, err
		}
	}
	return "", false, nil
}

// Has says whether a group monitors these threads and no others, but for a few, which
// costs less than Find.
func (t Resctrl) Has(g ResctrlGroup, threads []int) (bool, error) {
	tasks, err := t.tasks(g)
	if err != nil {
		return false, err
	}
	wanted := make(map[int]bool, len(threads))
	for _, tid := range threads {
		wanted[tid] = true
	}
	both := 0
	for _, tid := range tasks {
		if wanted[tid] {
			both++
		}
	}
	either := len(wanted) + len(tasks) - both
	return float64(either-both) <= stray*float64(either), nil
}
