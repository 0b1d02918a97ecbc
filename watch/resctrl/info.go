package resctrl

import (
	"bytes"
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

// Tree is the directory where the resctrl file system is mounted.
type Tree string

// Dir is where it is mounted by custom, below the root directory.
const Dir = "sys/fs/resctrl"

// Info is what a tree says of its monitoring (info/L3_MON).
type Info struct {
	// Features are the events that every group has, "llc_occupancy".
	Features []string
	// RMIDs is how many groups can be monitored at once.
	RMIDs int
	// Assignable is true where bandwidth is counted only for groups and events that
	// have one of the CPU's counters assigned (AMD's ABMC; mode "mbm_event").
	Assignable bool
	// Counters is how many of those each cache has, Free how many are not assigned.
	Counters, Free map[int]int
}

// Info reads what can be monitored. Without resctrl, without its monitoring and
// where it is not mounted it is a kernel.NotSupportedError.
func (t Tree) Info() (Info, error) {
	i, err := t.info()
	if err != nil {
		return Info{}, fmt.Errorf("monitoring by resctrl: %w", err)
	}
	return i, nil
}

func (t Tree) info() (i Info, err error) {
	features, err := t.read("info/L3_MON/mon_features")
	if errors.Is(err, fs.ErrNotExist) {
		return i, t.absent()
	}
	if err != nil {
		return i, err
	}
	i.Features = strings.Fields(string(features))
	if text, err := t.read("info/L3_MON/num_rmids"); err == nil {
		if i.RMIDs, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			return i, fmt.Errorf("num_rmids: %w", err)
		}
	}
	text, err := t.read("info/L3_MON/mbm_assign_mode")
	if err != nil {
		return i, nil // a kernel before 6.18, or no such counters
	}
	i.Assignable = enabledMode(text) == "mbm_event"
	for name, to := range map[string]*map[int]int{"num_mbm_cntrs": &i.Counters, "available_mbm_cntrs": &i.Free} {
		if text, err = t.read("info/L3_MON/" + name); err != nil {
			continue
		}
		if *to, err = parseDomains(text); err != nil {
			return i, fmt.Errorf("%s: %w", name, err)
		}
	}
	return i, nil
}

// absent says why there is no monitoring.
func (t Tree) absent() error {
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

func (t Tree) read(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(string(t), name))
}

// enabledMode returns the line in brackets: "[mbm_event]\ndefault\n".
func enabledMode(text []byte) string {
	for line := range strings.Lines(string(text)) {
		if mode, ok := strings.CutPrefix(strings.TrimSpace(line), "["); ok {
			return strings.TrimSuffix(mode, "]")
		}
	}
	return ""
}

// parseDomains reads numbers by domain: "0=32;1=32".
func parseDomains(text []byte) (map[int]int, error) {
	all := map[int]int{}
	for text = bytes.TrimSpace(text); len(text) > 0; {
		var part []byte
		part, text = kernel.Cut(text, ';')
		id, value := kernel.Cut(bytes.TrimSpace(part), '=')
		domain, err := strconv.ParseUint(string(id), 10, 31)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", part, err)
		}
		n, err := strconv.ParseUint(string(value), 10, 31)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", part, err)
		}
		all[int(domain)] = int(n)
	}
	return all, nil
}

// Group is a group of resctrl: one that has resources allocated (CTRL_MON), or
// one that monitors some of its tasks (MON).
type Group struct {
	// Control is "" for the default group, Monitor for a group that allocates.
	Control, Monitor string
}

// String returns the path of the group in the tree, "/" for the default group.
func (g Group) String() string { return "/" + g.path() }

func (g Group) path() string {
	if g.Monitor == "" {
		return g.Control
	}
	return filepath.Join(g.Control, "mon_groups", g.Monitor)
}

// Controls returns the groups that allocate, the default group first. Each task
// and CPU belongs to one of them, and their counts include those of the groups
// that monitor only.
func (t Tree) Controls() ([]Group, error) {
	entries, err := os.ReadDir(string(t))
	if err != nil {
		return nil, fmt.Errorf("list groups of resctrl: %w", err)
	}
	all := []Group{{}}
	for _, e := range entries {
		if e.IsDir() && !slices.Contains([]string{"info", "mon_data", "mon_groups"}, e.Name()) {
			all = append(all, Group{Control: e.Name()})
		}
	}
	return all, nil
}

// Groups returns all groups, each that allocates before those that monitor its
// tasks.
func (t Tree) Groups() ([]Group, error) {
	controls, err := t.Controls()
	if err != nil {
		return nil, err
	}
	var all []Group
	for _, g := range controls {
		all = append(all, g)
		entries, err := os.ReadDir(filepath.Join(string(t), g.Control, "mon_groups"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has just gone, or there is no monitoring
		}
		if err != nil {
			return nil, fmt.Errorf("list groups of resctrl: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				all = append(all, Group{g.Control, e.Name()})
			}
		}
	}
	return all, nil
}

// Tasks returns the ids of the threads in a group. A group that does not exist is
// watch.ErrGone.
func (t Tree) Tasks(g Group) ([]int, error) {
	text, err := t.read(filepath.Join(g.path(), "tasks"))
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
func (t Tree) Find(threads []int) (g Group, ok bool, err error) {
	if len(threads) == 0 {
		return Group{}, false, nil
	}
	groups, err := t.Groups()
	if err != nil {
		return Group{}, false, err
	}
	wanted := set(threads)
	for _, g := range groups {
		if g == (Group{}) {
			continue
		}
		tasks, err := t.Tasks(g)
		if errors.Is(err, watch.ErrGone) {
			continue
		}
		if err != nil {
			return Group{}, false, err
		}
		if same(wanted, tasks) {
			// A group below that monitors all of them counts the same.
			return g, true, nil
		}
	}
	return Group{}, false, nil
}

// Has says whether a group still monitors these threads and no others, which costs
// less than Find.
func (t Tree) Has(g Group, threads []int) (bool, error) {
	tasks, err := t.Tasks(g)
	return err == nil && same(set(threads), tasks), err
}

func set(threads []int) map[int]bool {
	all := make(map[int]bool, len(threads))
	for _, tid := range threads {
		all[tid] = true
	}
	return all
}

// same says whether tasks are the wanted ones but for a few.
func same(wanted map[int]bool, tasks []int) bool {
	both := 0
	for _, tid := range tasks {
		if wanted[tid] {
			both++
		}
	}
	either := len(wanted) + len(tasks) - both
	return float64(either-both) <= stray*float64(either)
}
