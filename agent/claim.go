package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"berth.dev/berth/kernel"
)

// A node with workloads has its mark on the base of its control groups, where every
// other node comes by, whatever state directory and user it has: two nodes that do
// not read each other's books would give one CPU to two owners. The mark is set
// before the kernel is told anything and goes with the last workload. It is
// one with the tree, so that it ends with it.

// mark is what is written on a base: the state directory of the node that gives
// its CPUs away.
type mark struct {
	id   string // of the directory: device and inode
	uid  int
	path string
}

func (m mark) String() string { return fmt.Sprintf("%s %d %s", m.id, m.uid, m.path) }

// parseMark reads a mark. What is none is of a node that nobody can name.
func parseMark(text string) (m mark) {
	if n, err := fmt.Sscanf(text, "%s %d", &m.id, &m.uid); err != nil || n != 2 {
		return mark{id: "?", path: text}
	}
	m.path = strings.TrimPrefix(text, fmt.Sprintf("%s %d ", m.id, m.uid))
	return m
}

// markOf is the mark of a state directory.
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
	return mark{fmt.Sprintf("%d:%d", stat.Dev, stat.Ino), int(stat.Uid), name}, err
}

// ClaimedError is a control group tree from which another node, one with another
// state directory, gives CPUs away.
type ClaimedError struct {
	Dir   string // the base of this node
	Other string // that of the other one: the same, or one around or within it
	State string // its state directory
	UID   int    // whose that is
}

func (e *ClaimedError) Error() string {
	where := "/" + e.Dir
	if e.Other != e.Dir {
		where += ", within the same tree as /" + e.Other + ","
	}
	return fmt.Sprintf("control groups of %s: another node gives their CPUs away, with the state directory %s (user %d): use that one, by its agent or with --state, or end its workloads; if it is gone for good, 'berth restore --all --state %s' as that user",
		where, e.State, e.UID, e.State)
}

// claim marks the base as this node's, or returns a *ClaimedError. The caller has the
// lock of the books.
func (n *Node) claim() error {
	g, ok := n.backend.(*groups)
	if !ok {
		return nil
	}
	own, err := markOf(n.opt.Dir)
	if err != nil {
		return err
	}
	if err := n.rival(g, g.dir, own); err != nil {
		return ignoreUnmarkable(err)
	}
	if now, err := n.root.MarkOf(g.dir); err != nil || now != "" {
		return ignoreUnmarkable(err) // it is this node's
	}
	now, err := n.root.Mark(g.dir, own.String())
	if err != nil {
		return ignoreUnmarkable(err)
	}
	if other := parseMark(now); other.id != own.id {
		return &ClaimedError{g.dir, g.dir, other.path, other.uid}
	}
	// Two that come at once see each other here, as both are marked by now.
	if err := n.overlap(g, own); err != nil {
		return errors.Join(err, n.root.Unmark(g.dir, own.String()))
	}
	return nil
}

// free reports who claims the base, without claiming it.
func (n *Node) free() error {
	g, ok := n.backend.(*groups)
	if !ok {
		return nil
	}
	own, err := markOf(n.opt.Dir)
	if err != nil {
		return err
	}
	return ignoreUnmarkable(n.rival(g, g.dir, own))
}

// rival reports another node's mark on a directory. One that holds nothing is removed.
func (n *Node) rival(g *groups, dir string, own mark) error {
	text, err := n.root.MarkOf(dir)
	if err != nil || text == "" {
		return err
	}
	other := parseMark(text)
	if other.id == own.id {
		return nil
	}
	if other.abandoned(func() error { return n.root.Unmark(dir, text) }) {
		return nil
	}
	return &ClaimedError{g.dir, dir, other.path, other.uid}
}

// overlap reports another node's mark on a group around the base or within it.
func (n *Node) overlap(g *groups, own mark) error {
	for dir := g.dir; dir != g.top && within(dir, g.top); {
		dir = path.Dir(dir)
		if err := n.rival(g, dir, own); err != nil {
			return err
		}
	}
	return fs.WalkDir(n.root.FS(), g.dir, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fs.SkipDir // it is gone, or not for this user
		case !e.IsDir() || name == g.dir:
			return nil
		}
		err = n.rival(g, name, own)
		var claimed *ClaimedError
		if err != nil && !errors.As(err, &claimed) {
			return nil
		}
		return err
	})
}

// unclaim removes this node's mark once it has no workloads.
func (n *Node) unclaim(b *books) error {
	if len(b.bodies) > 0 || b.wasKilled() {
		return nil
	}
	_, err := n.unmark(func(m mark) (bool, error) {
		own, err := markOf(n.opt.Dir)
		return m.id == own.id, err
	})
	return err
}

// disclaim removes the mark of a state directory that was where this node's is now, or
// would be, and is gone, with all that its node knew; ok is false if there is none.
func (n *Node) disclaim() (ok bool, err error) {
	return n.unmark(func(m mark) (bool, error) {
		own, err := filepath.Abs(n.opt.Dir)
		return m.path == own, err
	})
}

// unmark removes the mark on the base, if there is one that matches.
func (n *Node) unmark(match func(mark) (bool, error)) (ok bool, err error) {
	g, isGroups := n.backend.(*groups)
	if !isGroups {
		return false, nil
	}
	text, err := n.root.MarkOf(g.dir)
	if err != nil || text == "" {
		return false, ignoreUnmarkable(err)
	}
	if ok, err = match(parseMark(text)); !ok || err != nil {
		return false, err
	}
	return true, n.root.Unmark(g.dir, text)
}

// abandoned reports whether the node of a mark has no workloads and nobody is at
// it, and then removes the mark: the node was killed before it could.
func (m mark) abandoned(unmark func() error) bool {
	now, err := markOf(m.path)
	if err != nil || now.id != m.id {
		return false // gone, or another one here than where it is used
	}
	for _, name := range []string{keeperFile, lockFile} {
		f, err := os.OpenFile(filepath.Join(m.path, name), os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false
		}
		defer f.Close()
		if flock(f, syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			return false
		}
	}
	entries, err := os.ReadDir(m.path)
	if err != nil {
		return false
	}
	for _, e := range entries {
		if name := e.Name(); name == batchFile || name == beganFile || strings.HasSuffix(name, recordExt) {
			return false
		}
	}
	return unmark() == nil
}

// ignoreUnmarkable drops the error of a tree that cannot be marked: there, two nodes
// do not see each other.
func ignoreUnmarkable(err error) error {
	if errors.Is(err, kernel.ErrNotSupported) {
		return nil
	}
	return err
}
