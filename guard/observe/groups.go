package observe

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

// Groups returns the groups that have none below them, by path below the root of
// the hierarchy, in order, and subtrees of other users that have too many groups as one
// each. Processes in other groups are in none of these. Of groups without processes
// those are among them that had some when they were looked at.
func (o *Observer) Groups() ([]string, error) {
	if leaves := o.leaves; leaves != nil {
		o.leaves = nil
		return leaves, nil
	}
	return o.list()
}

func (o *Observer) list() ([]string, error) {
	groups, err := o.tree.Groups()
	if err != nil {
		return nil, err
	}
	if o.queue != nil {
		o.queue.crowded = o.Crowded()
	}
	// What a group without processes costs is a waste, however many there are.
	return slices.DeleteFunc(groups, func(group string) bool {
		return !o.groups[group] && !cgroupstat.Populated(filepath.Join(o.site.Tree, group))
	}), nil
}

// Crowded are the subtrees of other users that are read as one group each, as the last
// look found them.
func (o *Observer) Crowded() (groups []string) {
	for _, c := range o.tree.Crowds() {
		if !c.Changes {
			groups = append(groups, c.Path)
		}
	}
	return groups
}

// LeftOut is how many groups are not read, as there are no descriptors for them.
func (o *Observer) LeftOut() int { return o.left }

// Has says whether there is a group.
func (o *Observer) Has(group string) bool { return o.site.Has(group) }

// ReadGroup appends what a request asks of one group beside what Tick has read of it at the
// same time; watch.ErrGone is for one that is not read.
func (o *Observer) ReadGroup(now watch.Time, group string, q cgroupstat.Request, to []watch.Sample) ([]watch.Sample, error) {
	return o.stats.SampleGroup(now, group, q, to)
}

// StatusOf says which signals of a group there are, of those that it was asked for.
func (o *Observer) StatusOf(group string) []cgroupstat.Status { return o.stats.Signals(group) }

// GroupOf returns the group of a process; "" is the root group. For a process
// that does not exist the error is fs.ErrNotExist.
func (o *Observer) GroupOf(pid int) (string, error) {
	members, err := cgroup.ReadMembership(o.host, strconv.Itoa(pid))
	if err != nil {
		return "", fmt.Errorf("group of process %d: %w", pid, err)
	}
	group, found := "", false
	for _, m := range members {
		// A v1 hierarchy of the controller comes before v2, as for Host.Hierarchy.
		if slices.Contains(m.Controllers, cgroup.CPUAcct) || m.ID == 0 && !found {
			group, found = m.Path, true
		}
	}
	return strings.Trim(group, "/"), nil
}

// OwnGroup is the group of this process, "" if it is the root or not known.
func (o *Observer) OwnGroup() string {
	group, err := o.GroupOf(os.Getpid())
	if err != nil {
		return ""
	}
	return group
}

// Path returns the group of a directory, which is relative to the root.
func (o *Observer) Path(dir string) (group string, ok bool) {
	for _, t := range o.site.Trees {
		if group, ok = strings.CutPrefix(filepath.Join(o.cfg.Root, dir), t.Dir+"/"); ok {
			return group, true
		}
	}
	return "", false
}

// CPUs returns the CPUs that a group may use; empty where the host does not tell.
func (o *Observer) CPUs(group string) cpuset.Set {
	if o.cpuset == "" {
		return cpuset.Set{}
	}
	for dir := group; ; dir = filepath.Dir(dir) {
		if set, err := o.readSet(dir); err == nil {
			return set
		}
		if dir == "." || dir == "" {
			return cpuset.Set{}
		}
	}
}

// readSet reads the CPUs of a group from a file that stays open while the group is read.
func (o *Observer) readSet(group string) (cpuset.Set, error) {
	text, err := o.sets.Read(filepath.Join(o.cpuset, group, o.cpus))
	if err != nil {
		return cpuset.Set{}, err
	}
	return cpuset.Parse(strings.TrimSpace(text))
}

// closeSets closes those files of the groups of which matches is true.
func (o *Observer) closeSets(matches func(group string) bool) error {
	return o.sets.Close(func(name string) bool {
		group, _ := filepath.Rel(o.cpuset, filepath.Dir(name))
		return matches(group)
	})
}
