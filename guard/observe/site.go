package observe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
	"berth.dev/berth/watch/hardware"
	"berth.dev/berth/watch/proc"
)

// Site is where a host keeps its groups.
type Site struct {
	// Root is the directory that stands for "/".
	Root string
	// Trees are the hierarchies of groups, each from its mount point on or from a
	// directory below it: a group has the same path in all.
	Trees []cgroupstat.Tree
	// Tree is the directory of one of them, in which groups are listed and have their
	// threads.
	Tree string
	// Packets has what groups send and receive counted while no link is busy, too.
	Packets bool
}

// Has says whether there is a group.
func (s *Site) Has(group string) bool {
	info, err := os.Stat(filepath.Join(s.Tree, group))
	return err == nil && info.IsDir()
}

// tree is the directory of the hierarchy of a v1 controller, else that of v2, "" if
// there is neither.
func (s *Site) tree(controller string) string {
	v2 := ""
	for _, t := range s.Trees {
		if t.Version == 1 && slices.Contains(t.Controllers, controller) {
			return t.Dir
		}
		if t.Version == 2 {
			v2 = t.Dir
		}
	}
	return v2
}

// v2 is the directory of the v2 tree of the running kernel, which sockets belong to the
// groups of.
func (s *Site) v2(feature string) (string, error) {
	i := slices.IndexFunc(s.Trees, func(t cgroupstat.Tree) bool { return t.Version == 2 })
	switch {
	case s.Root != "/":
		return "", s.notLive(feature)
	case i < 0:
		return "", &kernel.NotSupportedError{Feature: feature, Reason: "no cgroup v2 tree is mounted", Remedy: "mount cgroup2"}
	}
	return s.Trees[i].Dir, nil
}

// notLive says that something is known of the running kernel only.
func (s *Site) notLive(feature string) error {
	return &kernel.NotSupportedError{
		Feature: feature, Reason: "the root directory is not that of the running kernel", Remedy: "look at the live host",
	}
}

func (s *Site) proc() string { return filepath.Join(s.Root, "proc") }

// online are the CPUs that are online; empty where the host does not tell.
func (s *Site) online() cpuset.Set {
	text, err := os.ReadFile(filepath.Join(s.Root, hardware.CPUDir, "online"))
	if err != nil {
		return cpuset.Set{}
	}
	cpus, _ := cpuset.Parse(strings.TrimSpace(string(text)))
	return cpus
}

// openWaits opens the run delay of the threads of a group and of those below it, of which one
// reading visits some.
func (s *Site) openWaits(group string, maxThreads int, switches bool) (Reader, error) {
	return proc.OpenGroup(proc.GroupConfig{
		Proc: s.proc(), Dir: filepath.Join(s.Tree, group), Below: true, Name: group, MaxThreads: maxThreads, Switches: switches,
	})
}

// openPerf opens perf events of a group, "" for the host, on some CPUs, all of a set if
// none is named.
func (s *Site) openPerf(group string, cpus cpuset.Set, set hardware.EventSet, only ...watch.Quantity) (Reader, error) {
	no := &kernel.NotSupportedError{Feature: set.String()}
	tree := s.tree("perf_event")
	switch {
	case s.Root != "/":
		return nil, s.notLive(no.Feature)
	case group == "":
		return hardware.OpenCounter(hardware.CounterConfig{CPUs: cpus, Set: set, Only: only})
	case tree == "":
		no.Reason, no.Remedy = "the perf_event controller is in no mounted tree", "mount cgroup2"
		return nil, no
	}
	c, err := hardware.OpenCounter(hardware.CounterConfig{Dir: filepath.Join(tree, group), Name: group, CPUs: cpus, Set: set, Only: only})
	if errors.Is(err, watch.ErrGone) && s.Has(group) {
		no.Reason = "the group is not in the tree of the perf_event controller, " + tree
		no.Remedy = "make it there, too, or use cgroup v2 without v1 controllers"
		return nil, no
	}
	return c, err
}

func (s *Site) resctrl() hardware.Resctrl {
	return hardware.Resctrl(filepath.Join(s.Root, hardware.ResctrlDir))
}

// openCache opens the resctrl group that has the threads of a group and no others.
func (s *Site) openCache(group string) (Reader, error) {
	tree := s.resctrl()
	if err := tree.Monitors(); err != nil {
		return nil, err
	}
	threads, err := s.threads(group)
	if err != nil {
		return nil, err
	}
	own, ok, err := tree.Find(threads)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, &kernel.NotSupportedError{
			Feature: "cache and bandwidth of a group", Reason: "no resctrl group has the threads of this group and no others",
			Remedy: "make one below mon_groups and write them to its tasks, or have the container runtime make one",
		}
	}
	r, err := hardware.OpenCache(hardware.CacheConfig{Tree: tree, Group: own, Subject: subject(group)})
	return caches{r, s, own, group}, err
}

// caches reads a resctrl group for as long as it has the threads of a group.
type caches struct {
	*hardware.CacheReader
	site  *Site
	own   hardware.ResctrlGroup
	group string
}

func (c caches) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	threads, err := c.site.threads(c.group)
	if err != nil {
		return to, err
	}
	if ok, err := c.site.resctrl().Has(c.own, threads); err != nil || !ok {
		return to, errors.Join(err, fmt.Errorf("resctrl group %s has other threads now", c.own))
	}
	return c.CacheReader.Read(now, to)
}

// threads are those of a group and of the groups below it.
func (s *Site) threads(group string) ([]int, error) {
	var all []int
	err := filepath.WalkDir(filepath.Join(s.Tree, group), func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.threads"))
		if errors.Is(err, fs.ErrNotExist) {
			text, err = os.ReadFile(filepath.Join(dir, "tasks")) // v1
		}
		if err != nil {
			return err
		}
		for _, word := range strings.Fields(string(text)) {
			tid, err := strconv.Atoi(word)
			if err != nil {
				return fmt.Errorf("threads of %s: %w", dir, err)
			}
			all = append(all, tid)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("threads of group %s: %w", group, err)
	}
	return all, nil
}
