package cgroupstat

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
)

const (
	// MaxGroups is how many groups a subtree of another user may have, itself included,
	// before it is taken as one group.
	MaxGroups = 200
	// maxNames is how many names of groups in such a subtree one look reads.
	maxNames = 50 * MaxGroups
)

// Bounds say how much is looked at in subtrees of other users. Its zero value works.
//
// Everyone may make groups in a subtree that was delegated to them, as many as they
// like, and each of them costs who watches or reads it. Such a subtree begins at the
// first directory, from the root of the tree on, whose owner is not trusted, or that
// others may write; whatever is below it belongs to it, whoever owns that. Its size does not matter to other subtrees.
type Bounds struct {
	// Max is how many groups a subtree may have; 0 stands for MaxGroups.
	Max int
	// Trusts says whose groups are not bounded; nil is those of root and of the user of
	// this process.
	Trusts func(uid uint32) bool
}

func (b Bounds) max() int {
	if b.Max == 0 {
		return MaxGroups
	}
	return b.Max
}

// trusts reports whether nobody but root and those who are trusted may make groups in a
// directory.
func (b Bounds) trusts(d directory) bool {
	if b.Trusts != nil {
		return b.Trusts(d.uid)
	}
	return !d.open && (d.uid == 0 || d.uid == uint32(os.Geteuid()))
}

// directory is what Lstat says of one.
type directory struct {
	id  identity
	uid uint32
	// open is true if others than the owner and root's group may write it.
	open bool
	// childless is true if there is no other in it.
	childless bool
}

// identify tells which directory this is.
func identify(dir string) (directory, bool) {
	var stat unix.Stat_t
	if err := unix.Lstat(dir, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		return directory{}, false
	}
	return directory{identity{stat.Dev, stat.Ino}, stat.Uid, Shared(stat.Mode, stat.Gid), stat.Nlink == kernel.LeafLinks}, true
}

// Shared reports whether others than its owner, root's group and that of this process may
// write a directory, by its mode (stat(2)) and group.
func Shared(mode, gid uint32) bool {
	return mode&unix.S_IWOTH != 0 || mode&unix.S_IWGRP != 0 && gid != 0 && gid != uint32(os.Getegid())
}

// Crowd is a subtree of another user that is not looked at group by group.
type Crowd struct {
	// Path is that of the subtree, from the root of the tree on; "." is the root. UID is
	// the user who owns it.
	Path string `json:"path"`
	UID  int    `json:"uid"`
	// Seen is how many groups at and below it were counted, at least. Kept is how many
	// of them are looked at: the subtree as one group, and those that are to be kept.
	Seen int `json:"seen"`
	Kept int `json:"kept"`
	// Changes is true for one whose groups are all looked at, but found by scans only,
	// as too many of them come and go.
	Changes bool `json:"changes,omitempty"`
}

func (c Crowd) String() string {
	if c.Changes {
		return fmt.Sprintf("subtree %s of user %d: groups come and go too often, so they are looked for at intervals only", c.Path, c.UID)
	}
	return fmt.Sprintf("subtree %s of user %d: %d groups or more, %d of them looked at: it is taken as one group", c.Path, c.UID, c.Seen, c.Kept)
}

// look is what is found at and below a group.
type look struct {
	root     string
	bounds   Bounds
	keep     func(path string) bool // of crowded subtrees; nil is none
	groups   []found                // those around others before them
	subtrees []Crowd                // all of other users
	unread   []string               // groups that cannot be read
}

// found is a group that a look has found.
type found struct {
	path string // below the root; "." is the root
	id   identity
	top  string // of the subtree of another user in which it lies, "" for none
}

// at looks at a group whose surroundings are trusted, and at what is below it.
func (l *look) at(path string) {
	dir := filepath.Join(l.root, path)
	info, ok := identify(dir)
	switch {
	case !ok:
		return
	case !l.bounds.trusts(info):
		l.survey(path, info.uid)
		return
	}
	var names []string
	if !info.childless || path == "." {
		var err error
		names, err = kernel.Subdirectories(dir, -1)
		l.failed(path, err)
	}
	l.groups = append(l.groups, found{path, info.id, ""})
	for _, name := range names {
		l.at(filepath.Join(path, name))
	}
}

func (l *look) failed(path string, err error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.unread = append(l.unread, path)
	}
}

// survey looks at a subtree of another user, at groups that lie higher first, and into as
// many of them as a subtree may have. If there are more, it is taken as one group, with
// those to keep that it came across.
func (l *look) survey(top string, uid uint32) {
	from, seen, names := len(l.groups), 1, maxNames
	queue := []string{top}
	for looks := 0; len(queue) > 0 && looks < l.bounds.max(); looks++ {
		path := queue[0]
		queue = queue[1:]
		dir := filepath.Join(l.root, path)
		info, ok := identify(dir)
		if !ok {
			continue
		}
		var below []string
		if !info.childless && names > 0 {
			var err error
			below, err = kernel.Subdirectories(dir, names)
			l.failed(path, err)
		}
		l.groups = append(l.groups, found{path, info.id, top})
		seen += len(below)
		names -= len(below)
		for _, name := range below {
			queue = append(queue, filepath.Join(path, name))
		}
	}
	crowd := Crowd{Path: top, UID: int(uid), Seen: seen}
	defer func() { l.subtrees = append(l.subtrees, crowd) }()
	if seen <= l.bounds.max() {
		return
	}
	kept := slices.DeleteFunc(l.groups[from:], func(g found) bool { return g.path != top && !l.keeps(g.path) })
	for _, path := range queue {
		if info, ok := identify(filepath.Join(l.root, path)); ok && l.keeps(path) {
			kept = append(kept, found{path, info.id, top})
		}
	}
	l.groups = append(l.groups[:from], kept...)
	crowd.Kept = len(kept)
}

// topOf is the top of the subtree of another user in which a group lies, "" without one.
func (l *look) topOf(path string) string {
	for i := range l.subtrees {
		if kernel.Within(path, l.subtrees[i].Path) {
			return l.subtrees[i].Path
		}
	}
	return ""
}

func (l *look) keeps(path string) bool { return l.keep != nil && l.keep(path) }

// Populated reports whether there are processes in a group or below it, by the line of
// cgroup.events on v2, and by cgroup.procs, which is of the group alone, on v1. Where
// neither can be read there may be.
func Populated(dir string) bool {
	if text, err := os.ReadFile(filepath.Join(dir, "cgroup.events")); err == nil {
		return !slices.Contains(strings.Split(string(text), "\n"), "populated 0")
	}
	has, err := kernel.HasProcs(os.DirFS(dir), ".")
	return has || err != nil
}
