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
// agent's user, and why: who owns a group around it, or may write one, or is in a container around it,
// be it as root; "" is nobody.
func (l *loop) namedBy(group string) (by, why string) {
	if l.dir == "" {
		return "", ""
	}
	const notRoots = "a group around it is not root's alone"
	for at := path.Dir(group); at != "."; at = path.Dir(at) {
		info, err := fs.Stat(l.base.Root.FS(), path.Join(l.dir, at))
		if errors.Is(err, fs.ErrNotExist) {
			continue // with the group itself, which the next comparison finds
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
		if _, is := pods.ContainerOf(path.Join(l.prefix, at)); is {
			return "who runs in a container", "it lies in one" // not which, as there may be any number
		}
	}
	return "", ""
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
