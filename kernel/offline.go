package kernel

import (
	"path"
	"slices"

	"berth.dev/berth/cpuset"
)

// When a CPU goes offline, Linux takes it out of cpuset.cpus of every v1 group but the
// topmost (cpuset_update_active_cpus in kernel/cgroup/cpuset.c, Documentation/admin-guide/
// cgroup-v1/cpusets.rst), does not put it back when it comes online again, and refuses it
// (EINVAL) in a write while it is offline. On v2 cpuset.cpus stays as it was written.

// online are the CPUs that are online; ok is false if the tree does not say.
func (r *Root) online() (cpus cpuset.Set, ok bool) {
	text, err := r.read("sys/devices/system/cpu/online")
	if err != nil {
		return cpus, false
	}
	cpus, err = cpuset.Parse(text)
	return cpus, err == nil && !cpus.IsEmpty()
}

// Online returns those of some CPUs that are online, all of them if the tree does not
// say.
func (r *Root) Online(cpus cpuset.Set) cpuset.Set {
	if online, ok := r.online(); ok {
		return cpus.Intersect(online)
	}
	return cpus
}

// onlinePart is the part of a set of CPUs that the kernel leaves in a v1 group while
// some of them are offline. ok is false for other files, and if no CPU is offline.
func (r *Root) onlinePart(s *Step, value string) (part string, ok bool) {
	if s.Op != Write || s.Format != List || path.Base(s.Path) != "cpuset.cpus" {
		return "", false
	}
	set, err := cpuset.Parse(value)
	if err != nil {
		return "", false
	}
	if _, err := r.inode(path.Dir(s.Path) + "/cgroup.controllers"); err == nil {
		return "", false // v2
	}
	left := r.Online(set)
	return left.String(), left != set
}

// shows reports whether a text means the value of s, or the part of it that the kernel
// left as CPUs are offline.
func (r *Root) shows(s *Step, text, value string) bool {
	if same(s.Format, text, value) {
		return true
	}
	part, ok := r.onlinePart(s, value)
	return ok && same(s.Format, text, part)
}

// owns reports whether a text is Berth's own: a value that it wrote, or the part of one
// that the kernel left as CPUs are offline.
func (r *Root) owns(e *entry, text string) bool {
	return e.owns(text) || slices.ContainsFunc(append([]string{e.Value}, e.Also...), func(own string) bool { return r.shows(&e.Step, text, own) })
}

// NoteOffline notes as Berth's own the sets of v1 groups from which the kernel has
// removed CPUs that are offline now. So the sets are restored also once those CPUs are
// online again, when they would look like another writer's.
func (l *UndoLog) NoteOffline() error {
	for _, e := range l.entries {
		if e.Op != Write || e.Format != List {
			continue
		}
		text, err := l.root.read(e.Path)
		if err != nil || !l.root.isSame(e) || e.owns(text) || !l.root.owns(e, text) {
			continue
		}
		if err := l.also(e, text); err != nil {
			return err
		}
	}
	return nil
}
