package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"syscall"

	"berth.dev/berth/agent/config"
	"berth.dev/berth/watch/cgroupstat"
	"berth.dev/berth/watch/pods"
)

// entryOf returns what a configuration makes of a group. Delegated is true if a user
// other than root and the agent's chose its name.
func (l *loop) entryOf(c *config.NodeConfig, group string) (entry *config.Workload, delegated, ok bool) {
	by, why := l.namedBy(group)
	delegated = by != ""
	at := config.Candidate{Path: l.prefix + "/" + group, Delegated: delegated}
	entry, ok = c.Match(at)
	if ok || !delegated {
		return entry, delegated, ok
	}
	at.Delegated = false
	if other, would := c.Match(at); would {
		l.leaveOut(group, other, by, why)
	}
	return nil, true, false
}

// namedBy says who can make groups of any name where this one is, beside root and the
// agent's user, and why; "" is nobody.
func (l *loop) namedBy(group string) (by, why string) {
	if l.dir == "" {
		return "", ""
	}
	return namedBy(l.base.Root.FS(), l.dir, l.prefix, group)
}

// namedBy says who has chosen the name of a group of a tree, which is below a directory and prefix in its
// hierarchy: who owns a group around it, or may write one, or is in a container around it, be it as root. Of several
// it is that of the outermost group: only root can make that one, while those in it may be of any number.
func namedBy(fsys fs.FS, dir, prefix, group string) (by, why string) {
	const notRoots = "a group around it is not root's alone"
	for i, c := range group {
		if c != '/' {
			continue
		}
		at := group[:i]
		info, err := fs.Stat(fsys, path.Join(dir, at))
		if errors.Is(err, fs.ErrNotExist) {
			return "", "" // with the group itself, which the next comparison finds
		}
		if err != nil {
			return "an unknown user", notRoots
		}
		stat, known := info.Sys().(*syscall.Stat_t)
		switch {
		case !known:
			return "an unknown user", notRoots
		case stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
			return fmt.Sprintf("user %d", stat.Uid), notRoots
		case cgroupstat.Shared(stat.Mode, stat.Gid):
			return fmt.Sprintf("a user who may write %q, of group %d and mode %04o,", at, stat.Gid, stat.Mode&0o7777), notRoots
		}
		if _, is := pods.ContainerOf(path.Join(prefix, at)); is {
			return "who runs in a container", "it lies in one" // not which, as there may be any number
		}
	}
	return "", ""
}

// chosen returns what reports whether another user than root and this process's has chosen the name of a
// group that the guard reads. It looks once at what is around groups.
func (g *Guard) chosen() func(group string) bool {
	known := map[string]bool{}
	return func(group string) bool {
		around := path.Dir(group)
		is, ok := known[around]
		if !ok && g.tree != "" {
			by, _ := namedBy(g.o.Root.FS(), g.tree, "", group)
			is = by != ""
			known[around] = is
		}
		return is
	}
}

// leaveOut warns that a group is no workload because of its name's origin, once for
// each user and entry: the user can make any number of groups.
func (l *loop) leaveOut(group string, entry *config.Workload, by, why string) {
	key := fmt.Sprintf("%s %s", entry.Name, by)
	if l.leftOut[key] {
		return
	}
	l.leftOut[key] = true
	l.warn(idOf(entry.Name, group), fmt.Errorf("group %q is not a workload %s: %s chose its name, as %s; match.delegated: true takes such groups",
		group, entry.Name, by, why))
}
