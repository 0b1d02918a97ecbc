package actuate

import (
	"errors"
	"path"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/traffic"
)

// On v1 a new group has no CPUs until somebody gives it some: container runtimes give
// it those of its parent. If the guard has narrowed that, the new group would stay
// narrow for good; so it is widened with its parent. This is known of groups that
// were made while this process had the parent narrowed.

// remember notes which groups are there before a set is shrunk, and the class of one whose rate
// is lowered.
func (h *Host) remember(a control.Action, plan kernel.Plan) (err error) {
	if h.remedy(a.Remedy).Sends() {
		h.lowered[a.Group], err = traffic.ParseMark(plan[len(plan)-1].Value)
		return err
	}
	t := h.trees[cgroup.CPUSet]
	if r := h.remedy(a.Remedy); r.Processes || r.Controller() != cgroup.CPUSet || t.Version != 1 || h.existed[a.Group] != nil {
		return nil
	}
	dir := path.Join(t.Dir, a.Group)
	below, err := cgroup.Below(h.root.FS(), dir)
	h.existed[a.Group] = append(below, dir)
	return err
}

// follows reports whether a directory below a group was made while the group was
// narrowed, and has just what its parent has.
func (h *Host) follows(group, dir string) bool {
	existed := h.existed[group]
	if existed == nil || slices.Contains(existed, dir) {
		return false
	}
	own, err := h.read(dir + "/cpuset.cpus")
	around, err2 := h.read(path.Dir(dir) + "/cpuset.cpus")
	return err == nil && err2 == nil && own != "" && own == around
}

// followers finds the directories below groups that are to follow their parents. The
// function that it returns has them do so, once the sets of the groups are as they were.
func (h *Host) followers(groups ...string) func() error {
	var dirs []string // parents first
	for _, group := range groups {
		if h.existed[group] == nil {
			continue
		}
		below, err := cgroup.Below(h.root.FS(), path.Join(h.trees[cgroup.CPUSet].Dir, group))
		if err != nil {
			continue // it is gone
		}
		for _, dir := range below {
			if h.follows(group, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	return func() error {
		var errs []error
		for _, group := range groups {
			delete(h.existed, group)
		}
		for _, dir := range dirs {
			errs = append(errs, kernel.IgnoreAbsent(h.follow(dir)))
		}
		return errors.Join(errs...)
	}
}

// follow gives a group its parent's set.
func (h *Host) follow(dir string) error {
	text, err := h.read(path.Dir(dir) + "/cpuset.cpus")
	if err != nil {
		return err
	}
	cpus, err := cpuset.Parse(text)
	if err != nil {
		return err
	}
	t := h.trees[cgroup.CPUSet]
	plan, err := cgroup.Place(cgroup.Placement{Group: h.base.Child(dir[len(t.Dir)+1:]), CPUs: cpus})
	if err == nil {
		_, err = kernel.Apply(h.root, plan, nil)
	}
	return err
}
