package resctrl

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"io/fs"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/kernel"
)

// GuardPrefix is in front of the names of groups that the guard makes, of work whose share it
// cuts. They belong to no class.
const GuardPrefix = "guard-berth-"

// GuardGroup is the name of the guard's group for a control group.
func GuardGroup(of string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(of))
	return fmt.Sprintf("%s%x", GuardPrefix, h.Sum64())
}

// Guarded reports whether the guard made a group, by its name.
func (g *Group) Guarded() bool { return strings.HasPrefix(g.Name, GuardPrefix) }

// Members says of threads in which group they are, of those that only monitor, too:
// "berth-bulk/mon_groups/x". Threads that are in none are in the default group.
func (t *Tree) Members(fsys fs.FS) (map[int]string, error) {
	in := map[int]string{}
	names := make([]string, 0, len(t.Groups)+len(t.Mon))
	for i := range t.Groups {
		if t.Groups[i].Name != "" {
			names = append(names, t.Groups[i].Name)
		}
	}
	for _, name := range append(names, t.Mon...) { // a group that allocates lists those that are monitored within it, too
		tids, err := Tasks(fsys, t.Dir, name)
		if err != nil {
			return nil, err
		}
		for _, tid := range tids {
			in[tid] = name
		}
	}
	return in, nil
}

// Foreign reports whether the group that only monitors, by its name in Members, is another
// program's: a thread that is moved to another group that allocates is lost to it.
func Foreign(name string) bool {
	_, ours := MonOf(name)
	return Around(name) != name && !ours
}

// Around is the name of the group that allocates around one that only monitors, and else its own.
func Around(name string) string {
	switch dir := path.Dir(name); {
	case dir == "mon_groups":
		return ""
	case path.Base(dir) == "mon_groups":
		return path.Dir(dir)
	}
	return name
}

// Origin returns the group that threads are in: the default group, or that of a class. Threads
// that others have put into a group of theirs, or that are in several groups, are a
// *kernel.NotSupportedError: those are not taken out of them.
func (t *Tree) Origin(in map[int]string, threads []int) (*Group, error) {
	no := &kernel.NotSupportedError{Feature: "cache and bandwidth of a group"}
	var found *Group
	for i, tid := range threads {
		name := Around(in[tid])
		g := t.Group(name)
		switch {
		case g == nil:
			return nil, fs.ErrNotExist // made since the tree was read
		case name != "" && !g.Own():
			no.Reason = fmt.Sprintf("resctrl group %s of another program has its threads", name)
		case Foreign(in[tid]):
			no.Reason = fmt.Sprintf("resctrl group %s of another program monitors its threads", in[tid])
		case i > 0 && g != found:
			no.Reason = fmt.Sprintf("some of its threads are in resctrl group %s, and some are not", cmp.Or(name, found.Name))
		}
		if no.Reason != "" {
			return nil, no
		}
		found = g
	}
	if found == nil {
		found = t.Group("")
	}
	return found, nil
}

// Narrow returns the line with at most so many ways of each cache, the lowest that it has, as
// devices fill the highest on known CPUs; or at most so much bandwidth. 0 is no bound.
func (r *Resource) Narrow(l *Line, most uint64) Line {
	to := Line{Resource: l.Resource, Values: slices.Clone(l.Values)}
	for i := range to.Values {
		v := &to.Values[i]
		switch {
		case most == 0:
		case r.Cache():
			v.N = lowest(v.N, max(int(most), r.MinBits))
		default:
			v.N = min(v.N, r.round(most))
		}
	}
	return to
}

// Alone plans a group of the guard's, with lines from those of the group that its threads are
// in, to which they go back when it is removed.
func (t *Tree) Alone(name string, from *Group, lines Schemata) kernel.Plan {
	dir, status := path.Join(t.Dir, name), path.Join(t.Dir, "info/last_cmd_status")
	made := kernel.Step{Op: kernel.Mkdir, Path: dir, Status: status}
	if from.Name != "" {
		made.Back = path.Join(t.Dir, from.Name, "tasks")
	}
	return append(kernel.Plan{made}, t.Lines(name, lines)...)
}

// Lines plans the lines of a group.
func (t *Tree) Lines(name string, lines Schemata) (plan kernel.Plan) {
	for i := range lines {
		plan = append(plan, kernel.Step{
			Path: path.Join(t.Dir, name, "schemata"), Value: lines[i].String(), Format: kernel.Schema, Status: path.Join(t.Dir, "info/last_cmd_status"),
		})
	}
	return plan
}
