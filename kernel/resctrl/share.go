package resctrl

import (
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

// Origin returns the group that threads are in: the default group, or that of a class. Threads
// that others have put into a group of theirs, or that are in several groups, are a
// *kernel.NotSupportedError: those are not taken out of them.
func (t *Tree) Origin(fsys fs.FS, threads []int) (*Group, error) {
	no := &kernel.NotSupportedError{Feature: "cache and bandwidth of a group"}
	var found *Group
	for i := range t.Groups {
		g := &t.Groups[i]
		if g.Name == "" {
			continue
		}
		tids, err := Tasks(fsys, t.Dir, g.Name)
		if err != nil {
			return nil, err
		}
		tids = append(tids, monitored(fsys, t, g.Name)...)
		both := 0
		for _, tid := range threads {
			if slices.Contains(tids, tid) {
				both++
			}
		}
		switch {
		case both == 0:
		case !g.Own():
			no.Reason = fmt.Sprintf("resctrl group %s of another program has its threads", g.Name)
			return nil, no
		case both < len(threads):
			no.Reason = fmt.Sprintf("some of its threads are in resctrl group %s, and some are not", g.Name)
			return nil, no
		default:
			found = g
		}
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
