package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"berth.dev/berth/kernel"
)

// A node with workloads has its mark on the base of its control groups, where every
// other node comes by, whatever state directory and user it has: two nodes that do
// not read each other's records would give one CPU to two owners. The mark is set
// before the kernel is told anything and goes with the last workload. It is
// one with the tree, so that it ends with it.

// mark is what is written on a base: the state directory of the node that gives
// its CPUs away.
type mark struct {
	id   string // of the directory: device and inode
	uid  int    // whose that is; -1 if the mark does not say
	path string
	text string // the mark as it was read
}

func (m mark) String() string { return fmt.Sprintf("%s %d %s", m.id, m.uid, m.path) }

// maxPath is the length of the longest path (PATH_MAX of <linux/limits.h>).
const maxPath = 4096

// parseMark reads a mark. One that says nothing is of a node that nobody can name.
func parseMark(text string) mark {
	m := mark{text: text}
	n, err := fmt.Sscanf(text, "%s %d", &m.id, &m.uid)
	m.path = strings.TrimPrefix(text, fmt.Sprintf("%s %d ", m.id, m.uid))
	if err != nil || n != 2 || m.uid < 0 || !filepath.IsAbs(m.path) || len(m.path) > maxPath {
		return mark{id: "?", uid: -1, text: text, path: text[:min(len(text), maxPath)]}
	}
	return m
}

// trusted reports whether a mark counts for the node of a user, where setter can have
// set it beside root. On a directory of their own users can say anything: there they
// are believed about themselves only. Root gives CPUs to users, and so is not kept from
// any by a user's node.
func (m mark) trusted(setter, self int) bool {
	if setter != 0 && setter != m.uid {
		return false
	}
	return self != 0 || m.uid <= 0
}

func (n *Node) marksOn(dir string) (marks []mark, err error) {
	all, err := n.root.MarksOf(dir)
	for _, one := range all {
		if m := parseMark(one.Text); m.trusted(one.Setter, n.uid) {
			marks = append(marks, m)
		}
	}
	return marks, err
}

func markOf(dir string) (m mark, err error) {
	info, err := os.Stat(dir)
	if err != nil {
		return m, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return m, fmt.Errorf("%s: no inode", dir)
	}
	name, err := filepath.Abs(dir)
	return mark{id: fmt.Sprintf("%d:%d", stat.Dev, stat.Ino), uid: int(stat.Uid), path: name}, err
}

// OwnedError is a control group tree from which another node, one with another
// state directory, gives CPUs away.
type OwnedError struct {
	Dir   string // the base of this node
	Other string // that of the other one: the same, or one around or within it
	State string // its state directory
	UID   int    // whose that is
}

// mostShown is how much of a path that another user may have written an error shows.
const mostShown = 200

func (e *OwnedError) Error() string {
	where, state := "/"+e.Dir, e.State
	if e.Other != e.Dir {
		where += ", within the same tree as /" + e.Other + ","
	}
	if len(state) > mostShown {
		state = state[:mostShown] + "..."
	}
	return fmt.Sprintf("control groups of %s: another node gives their CPUs away, user %d's with the state directory %q: that user can place by its agent or with --state, end its workloads or, if it is gone for good, give its control groups free with 'berth restore --all' and --state",
		where, e.UID, state)
}

// base is the directory in which CPUs are given by control group, "" if they are not.
func (n *Node) base() string {
	if len(n.site.Dirs) == 0 {
		return ""
	}
	return n.site.Dirs[0]
}

// takeOwnership marks the base as this node's, or returns an *OwnedError. The caller has
// the lock of the records.
func (n *Node) takeOwnership() error {
	base := n.base()
	if base == "" {
		return nil
	}
	own, err := markOf(n.opt.Dir)
	if err != nil {
		return err
	}
	all, err := n.root.MarksOf(base)
	if err != nil {
		return ignoreUnmarkable(err)
	}
	owned := false
	for _, one := range all {
		switch m := parseMark(one.Text); {
		case !m.trusted(one.Setter, n.uid):
			err = n.root.Unmark(base, one.Text)
		case m.id == own.id:
			owned = true
		default:
			err = n.conflict(base, own, m, n.root.Unmark)
		}
		if err != nil {
			return err
		}
	}
	if owned {
		return nil
	}
	now, err := n.root.Mark(base, own.String())
	if err != nil {
		return ignoreUnmarkable(err)
	}
	if other := parseMark(now.Text); other.id != own.id {
		return &OwnedError{base, base, other.path, other.uid}
	}
	// Two that come at once see each other here, as both are marked by now.
	if err := n.overlap(own, n.root.Unmark); err != nil {
		return errors.Join(err, n.root.Unmark(base, own.String()))
	}
	return nil
}

// checkOwnership returns the error that takeOwnership would, and writes nothing. Of a mark of this
// user's without workloads it tries the locks, too (see abandoned): without them it would call
// a node free that is about to place. Who begins there in that moment finds them taken.
func (n *Node) checkOwnership() error {
	base := n.base()
	if base == "" {
		return nil
	}
	own, err := markOf(n.opt.Dir) // one that is not there has no mark
	if kernel.IgnoreAbsent(err) != nil {
		return err
	}
	keep := func(string, string) error { return nil }
	marks, err := n.marksOn(base)
	if err == nil {
		err = n.conflicts(base, own, keep)
	}
	if err == nil && !slices.ContainsFunc(marks, func(m mark) bool { return m.id == own.id }) {
		err = n.overlap(own, keep)
	}
	return ignoreUnmarkable(err)
}

// conflicts reports another node's mark on a directory. One that holds nothing is removed,
// by unmark.
func (n *Node) conflicts(dir string, own mark, unmark func(dir, text string) error) error {
	marks, err := n.marksOn(dir)
	if err != nil {
		return err
	}
	for _, other := range marks {
		if err := n.conflict(dir, own, other, unmark); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) conflict(dir string, own, other mark, unmark func(dir, text string) error) error {
	if other.id == own.id || n.abandoned(other, func() error { return unmark(dir, other.text) }) {
		return nil
	}
	return &OwnedError{n.base(), dir, other.path, other.uid}
}

// mostOfStranger is how many groups of another user, in one subtree, root's node looks for marks on. The user can
// make any number of them, and no mark of the user's counts for root.
const mostOfStranger = 200

// isRoots reports whether a file is root's, or is gone.
func isRoots(e fs.DirEntry) bool {
	info, err := e.Info()
	if err != nil {
		return true
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return !ok || stat.Uid == 0
}

// overlap reports another node's mark on a group around the base or within it. One that
// holds nothing is removed, by unmark.
func (n *Node) overlap(own mark, unmark func(dir, text string) error) error {
	base := n.base()
	for dir := base; dir != n.site.Top && kernel.Within(dir, n.site.Top); {
		dir = path.Dir(dir)
		if err := n.conflicts(dir, own, unmark); err != nil {
			return err
		}
	}
	theirs, seen := "", 0 // the subtree of another user that the walk is in, and its groups so far
	return fs.WalkDir(n.root.FS(), base, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fs.SkipDir // it is gone, or not for this user
		case !e.IsDir() || name == base:
			return nil
		}
		if n.uid == 0 && !isRoots(e) {
			if !kernel.Within(name, theirs) {
				theirs, seen = name, 0
			}
			if seen++; seen > mostOfStranger {
				return fs.SkipDir
			}
		}
		err = n.conflicts(name, own, unmark)
		var owned *OwnedError
		if err != nil && !errors.As(err, &owned) {
			return nil
		}
		return err
	})
}

// releaseOwnership removes this node's mark once it has no workloads.
func (n *Node) releaseOwnership(b *nodeState) error {
	if len(b.records) > 0 || len(b.bad) > 0 || b.isDirty() {
		return nil
	}
	_, err := n.unmark(func(m mark) (bool, error) {
		own, err := markOf(n.opt.Dir)
		return m.id == own.id, err
	})
	return err
}

// removeStaleMark removes the mark of a state directory that was where this node's is now, or
// would be, and is gone, with all that its node knew; ok is false without one.
func (n *Node) removeStaleMark() (ok bool, err error) {
	return n.unmark(func(m mark) (bool, error) {
		own, err := filepath.Abs(n.opt.Dir)
		return m.path == own, err
	})
}

// unmark removes the mark on the base, if there is one that matches.
func (n *Node) unmark(match func(mark) (bool, error)) (ok bool, err error) {
	base := n.base()
	if base == "" {
		return false, nil
	}
	marks, err := n.marksOn(base)
	if err != nil {
		return false, ignoreUnmarkable(err)
	}
	for _, m := range marks {
		matches, err := match(m)
		if err == nil && matches {
			err = n.root.Unmark(base, m.text)
		}
		if err != nil {
			return false, err
		}
		ok = ok || matches
	}
	return ok, nil
}

// abandoned reports whether the node of a mark has no workloads and nobody is at
// it, and then removes the mark: the node was killed before it could. Only in a
// directory that this user alone can write to is anything looked at: another user's may lie
// on a file system that does not answer, or hold anything.
func (n *Node) abandoned(m mark, unmark func() error) bool {
	if m.uid != n.uid || kernel.CheckPrivateDir(m.path) != nil {
		return false
	}
	now, err := markOf(m.path)
	if err != nil || now.id != m.id {
		return false // gone, or another one here than where it is used
	}
	return idle(m.path, unmark)
}

// idle calls a function, unless a state directory has workloads or somebody is at it, and reports whether it
// did, without an error.
func idle(dir string, then func() error) bool {
	if HoldsWorkloads(dir) {
		return false // without a lock that its own user may be about to take
	}
	for _, name := range []string{agentLock, lockFile} {
		name = filepath.Join(dir, name)
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			continue // one that only looks makes no file
		}
		f, err := kernel.LockFile(name, false)
		if err != nil {
			return false
		}
		defer kernel.Unlock(f)
	}
	return !HoldsWorkloads(dir) && then() == nil
}

// InUse reports whether the node in a state directory, to which this user alone can write, has workloads, or
// a process that is at it.
func InUse(dir string) bool { return !idle(dir, func() error { return nil }) }

// HoldsWorkloads reports whether a state directory has records, or a change that is under way, or
// cannot be read.
func HoldsWorkloads(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err != nil || slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		name := e.Name()
		return name == batchFile || name == dirtyFile || strings.HasSuffix(name, recordExt)
	})
}

// ignoreUnmarkable drops the error of a tree that cannot be marked: there, two nodes
// do not see each other.
func ignoreUnmarkable(err error) error {
	if errors.Is(err, kernel.ErrNotSupported) {
		return nil
	}
	return err
}
