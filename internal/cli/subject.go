package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/pods"
)

// programOf is the name of the program whose processes a workload is; false for a group.
func programOf(workload string) (string, bool) {
	return strings.CutPrefix(workload, detect.Name(watch.Subject{Scope: watch.Process}))
}

// find returns the workload that a user names: a workload of Berth's, a group with or
// without the slash before it, a systemd unit, a pod or a container of one, a process by its number, or a program. Processes
// in no group of their own are those of their program.
func (o *observation) find(name string) (string, error) {
	if group, ok := groupName(&o.header, name); ok {
		return group, nil
	}
	if group, err := findPod(&o.header, name); group != "" || err != nil {
		return group, err
	}
	if comm, ok := programOf(name); ok && o.host == nil {
		return name, nil
	} else if ok {
		name = comm
	}
	var pids []int
	var names map[string][]int
	if pid, err := strconv.Atoi(name); err == nil {
		pids = []int{pid}
	} else if o.host != nil {
		if names, err = o.host.Names(); err != nil {
			return "", err
		}
		pids = names[name]
	}
	if len(pids) == 0 && o.host != nil {
		if root, err := kernel.Open("/"); err == nil {
			if where := unreadable(root, name); where != "" {
				return "", fmt.Errorf("%s: %s", name, where)
			}
		}
	}
	if len(pids) == 0 || o.host == nil {
		return "", fmt.Errorf("%s: no such control group, unit, workload or pod, and no process has that name%s", name, o.near(name, names))
	}
	var found []string
	for _, pid := range pids {
		its, err := o.ofProcess(pid)
		if errors.Is(err, fs.ErrNotExist) && len(pids) > 1 {
			continue // it has ended
		}
		if err != nil {
			return "", err
		}
		if !slices.Contains(found, its) {
			found = append(found, its)
		}
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%s: processes of that name are in %d groups: %s; name one of them", name, len(found), plain.Line(strings.Join(found, ", ")))
	}
	return found[0], nil
}

// findPod returns the group of a pod or of a container that a user names; of a pod with
// one container that of the container, and "" if there is neither.
func findPod(h *observe.Header, name string) (string, error) {
	all := podsOf(h)
	found := pods.Find(name, all)
	if len(found) == 0 {
		return "", nil
	}
	if len(found) > 1 {
		var names []string
		for _, group := range found {
			names = append(names, shownName(h, group))
		}
		return "", fmt.Errorf("%s: that is the name of %d pods or containers: %s; name one of them", name, len(found), strings.Join(names, ", "))
	}
	var in []string
	for group, n := range all {
		if path.Dir(group) == found[0] && n.Container != pods.Sandbox {
			in = append(in, group)
		}
	}
	if len(in) == 1 {
		return in[0], nil
	}
	return found[0], nil
}

// unreadable says why a control group that is there has no figures: it is without processes
// or, on v1, in some hierarchies only; "" if it is not there, or is all right.
func unreadable(root *kernel.Root, group string) string {
	host, err := cgroup.Detect(root)
	group = strings.Trim(group, "/")
	if err != nil || group == "" || !fs.ValidPath(group) {
		return ""
	}
	var has, lacks, used, unused []string // the last two of those that have it
	for _, controller := range []string{cgroup.CPU, cgroup.CPUAcct, cgroup.CPUSet, cgroup.Memory, cgroup.IO} {
		t, ok := host.Hierarchy(controller)
		if !ok {
			continue
		}
		dir := path.Join(t.Dir, group)
		if _, err := fs.Stat(root.FS(), dir); err == nil {
			has = append(has, controller)
			if populated(root.FS(), dir) {
				used = append(used, controller)
			} else {
				unused = append(unused, "/"+path.Join(dir, "cgroup.procs"))
			}
		} else if t.Version == 1 {
			lacks = append(lacks, "/"+dir)
		}
	}
	switch {
	case len(has) == 0:
		return ""
	case len(lacks) > 0:
		return fmt.Sprintf("this control group is in the hierarchies of %s only; make it, with its processes, in the others too, where its figures are read and its limits are written: mkdir %s", strings.Join(has, ", "), strings.Join(lacks, " "))
	case len(used) == 0:
		return "this control group has no processes"
	case len(unused) > 0:
		return fmt.Sprintf("the processes of this control group are in the hierarchies of %s only; put them into it in the others too, where its figures are read and its limits are written: %s", strings.Join(used, ", "), strings.Join(unused, " "))
	}
	return ""
}

// populated reports whether a control group, or one below it, has processes.
func populated(root fs.FS, dir string) (found bool) {
	_ = fs.WalkDir(root, dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			if found, _ = kernel.HasProcs(root, name); found {
				return fs.SkipAll
			}
		}
		return nil
	})
	return found
}

// ofProcess is the group of a process or, in no group of its own, its program.
func (o *observation) ofProcess(pid int) (string, error) {
	group, err := o.host.GroupOf(pid)
	if err == nil && group == "" {
		var p kernel.Process
		if p, err = o.host.Process(pid); err == nil {
			group = detect.Name(watch.Subject{Scope: watch.Process, Name: p.Name})
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("process %d: there is %w", pid, noSuchProcess{})
	}
	return group, err
}

// noSuchProcess is fs.ErrNotExist in plain words.
type noSuchProcess struct{}

func (noSuchProcess) Error() string { return "no such process" }
func (noSuchProcess) Unwrap() error { return fs.ErrNotExist }

// groupName finds a group by its path, by the name of its workload, or by that of its unit
// if that is the only one.
func groupName(h *observe.Header, arg string) (string, bool) {
	for _, g := range h.Groups {
		if g.Name == arg {
			return g.Path, true
		}
	}
	path := strings.Trim(arg, "/")
	for _, g := range h.Groups {
		if kernel.Within(g.Path, path) {
			return path, true
		}
	}
	// A unit is a directory somewhere on the way to a group.
	units := map[string]bool{}
	for _, g := range h.Groups {
		at := ""
		for part := range strings.SplitSeq(g.Path, "/") {
			at = strings.TrimPrefix(at+"/"+part, "/")
			if base, kind, _ := strings.Cut(part, "."); part == arg || base == arg && (kind == "service" || kind == "scope" || kind == "slice") {
				units[at] = true
			}
		}
	}
	// A user's own units may have any name: one of the system's goes first.
	if system := slices.DeleteFunc(slices.Collect(maps.Keys(units)), foreignUnit); len(system) == 1 {
		return system[0], true
	}
	for unit := range units {
		if len(units) == 1 {
			return unit, true
		}
	}
	return "", false
}

// foreignUnit reports whether a group is called like a unit and is none of the system's
// systemd.
func foreignUnit(group string) bool {
	name := path.Base(group)
	return kernel.IsUnit(name) && !kernel.Covers(name, group)
}

// near is a hint at what a name may have been meant to be; names are those of programs.
func (o *observation) near(name string, names map[string][]int) string {
	known := slices.Sorted(maps.Keys(names))
	for _, g := range o.header.Groups {
		known = append(known, g.Path, g.Name)
		if g.Pod != nil {
			known = append(known, g.Pod.Namespace+"/"+g.Pod.Pod)
		}
		for part := range strings.SplitSeq(g.Path, "/") {
			base, _, _ := strings.Cut(part, ".")
			known = append(known, part, base)
		}
	}
	return plain.Near(name, known)
}

// noGroupError is a name that stands for no control group of its own.
type noGroupError struct{ name, reason string }

func (e *noGroupError) Error() string { return e.name + ": " + e.reason }

// group is find for who needs a control group, whose processes may be others by the next
// minute.
func (o *observation) group(name string) (string, error) {
	group, err := o.find(name)
	if err != nil {
		return "", err
	}
	if program, ok := programOf(group); ok {
		return "", &noGroupError{program, "its processes are in no control group of their own: give them one, with 'berth adopt --pid' or as a service"}
	}
	if foreignUnit(group) && !strings.Contains(name, "/") {
		return "", &noGroupError{name, "a user's own unit has that name: if you mean it, name its path, /" + group}
	}
	return group, nil
}

// shownName is the workload, the container or the pod in a group, or the group.
func shownName(h *observe.Header, group string) string {
	for _, g := range h.Groups {
		if g.Path == group && g.Name != "" {
			return g.Name
		}
	}
	if n, ok := pods.PodName(group, podsOf(h)); ok {
		return n.String()
	}
	return group
}
