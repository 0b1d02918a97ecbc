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
	"berth.dev/berth/kernel/sched"
)

// of matches the steps that an action took.
func (h *Host) of(a control.Action) func(kernel.Step) bool {
	r := h.remedy(a.Remedy)
	var dirs []string
	if !r.Processes {
		dirs = h.base.Child(a.Group).Dirs()
	}
	names := r.Files()
	if r.Sends() {
		return h.lowers(a.Group)
	}
	return func(s kernel.Step) bool {
		dir, file := path.Split(s.Path)
		if !slices.Contains(names, file) {
			return false
		}
		if r.Processes {
			_, is := sched.Of(s.Path)
			return is
		}
		dir = strings.TrimSuffix(dir, "/")
		if !r.Below {
			return slices.Contains(dirs, dir)
		}
		return slices.ContainsFunc(dirs, func(d string) bool { return kernel.Within(dir, d) })
	}
}

// plan is what applies an action.
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
	if h.remedy(a.Remedy).Processes {
		return h.planProcesses(a)
	}
	if h.remedy(a.Remedy).Sends() {
		return h.planSend(a)
	}
	name := h.remedy(a.Remedy).Controller()
	if name == "" {
		return nil, &kernel.NotSupportedError{Feature: a.Remedy.String(), Reason: "no cgroup controller carries it out"}
	}
	if err := valid(a.Group); err != nil {
		return nil, err
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
	if name == cgroup.CPUSet {
		return h.shrink(a.Group, a.Limits.CPUs)
	}
	return group.Set(a.Limits)
}

// remedy returns a remedy, one without settings if there is none of the name.
func (h *Host) remedy(name detect.Remedy) *control.Remedy {
	i := slices.IndexFunc(h.remedies, func(r control.Remedy) bool { return r.Name == name })
	if i < 0 {
		return &control.Remedy{Name: name}
	}
	return &h.remedies[i]
}

// valid reports whether a group's name is one of a group below the root.
func valid(group string) error {
	if group == "." || !fs.ValidPath(group) {
		return fmt.Errorf("group %q: not a path below the root group", group)
	}
	return nil
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
	// Another workload may have CPUs exclusively that the group does not have any more.
	if base, err := h.settings(group); err != nil || !base.CPUs.IsEmpty() && !base.CPUs.Contains(to) {
		return nil, errors.Join(err, fmt.Errorf("the group does not have all of CPUs %s, but %s", to, base.CPUs))
	}
	t := h.trees[cgroup.CPUSet]
	if t.Version == 2 {
		return h.base.Child(group).Set(cgroup.Limits{CPUs: to})
	}
	below, err := cgroup.Below(h.root.FS(), path.Join(t.Dir, group))
	if err != nil {
		return nil, err
	}
	placements := []cgroup.Placement{{Group: h.base.Child(group), CPUs: to}}
	next := map[string]cpuset.Set{path.Join(t.Dir, group): to}
	for _, dir := range below {
		had, err := h.originalSet(dir + "/cpuset.cpus")
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

// originalSet is the set that a file had before anything was done.
func (h *Host) originalSet(file string) (cpuset.Set, error) {
	text, ok := h.original(file)
	if !ok {
		var err error
		if text, err = h.read(file); err != nil {
			return cpuset.Set{}, err
		}
	}
	return cpuset.Parse(strings.TrimSpace(text))
}

func (h *Host) read(file string) (string, error) { return kernel.ReadText(h.root.FS(), file) }
