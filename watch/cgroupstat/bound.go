package cgroupstat

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// Listing is the groups of a tree.
type Listing struct {
	// Groups are, by path below the root and in order, those that have none below them,
	// and crowded subtrees as a whole.
	Groups []string
	Crowds []Crowd
}

// List lists the groups below a root, within bounds. Groups that go meanwhile are left
// out; that the root cannot be read is an error.
func List(root string, b Bounds) (Listing, error) {
	l := lister{root: root, bounds: b}
	if err := l.list("."); err != nil {
		return Listing{}, fmt.Errorf("list groups: %w", err)
	}
	slices.Sort(l.Groups)
	return l.Listing, nil
}

type lister struct {
	Listing
	root   string
	bounds Bounds
}

// list adds what is at and below a group.
func (l *lister) list(path string) error {
	dir := filepath.Join(l.root, path)
	info, ok := identify(dir)
	switch {
	case !ok && path == ".":
		_, err := os.ReadDir(dir)
		return err
	case !ok:
		return nil
	case !l.bounds.trusts(info):
		l.survey(path, info.uid)
		return nil
	case info.childless && path != ".":
		l.Groups = append(l.Groups, path)
		return nil
	}
	names, err := subdirectories(dir, -1)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && path != "." {
			return nil
		}
		return err
	}
	if len(names) == 0 && path != "." {
		l.Groups = append(l.Groups, path)
	}
	for _, name := range names {
		if err := l.list(filepath.Join(path, name)); err != nil {
			return err
		}
	}
	return nil
}

// survey adds a subtree of another user.
func (l *lister) survey(path string, uid uint32) {
	var leaves []string
	seen := l.bounds.survey(filepath.Join(l.root, path), func(below string, leaf bool) {
		if group := filepath.Join(path, below); leaf && group != "." {
			leaves = append(leaves, group)
		}
	})
	if seen <= l.bounds.max() {
		l.Groups = append(l.Groups, leaves...)
		return
	}
	l.Crowds = append(l.Crowds, Crowd{Path: path, UID: int(uid), Seen: seen, Kept: 1})
	if path != "." {
		l.Groups = append(l.Groups, path)
	}
}

// survey counts the groups at and below a directory, those that lie higher first, and
// calls with what it comes across, by path below it. It looks into as many of them as a
// subtree may have: if the count is not more, it is complete, and leaf says of each
// group whether there are none below it.
func (b Bounds) survey(dir string, each func(path string, leaf bool)) (seen int) {
	seen = 1
	names := maxNames
	queue := []string{"."}
	for looks := 0; len(queue) > 0 && looks < b.max(); looks++ {
		path := queue[0]
		queue = queue[1:]
		info, ok := identify(filepath.Join(dir, path))
		if !ok {
			continue
		}
		var below []string
		if !info.childless && names > 0 {
			below, _ = subdirectories(filepath.Join(dir, path), names)
		}
		each(path, len(below) == 0)
		seen += len(below)
		names -= len(below)
		for _, name := range below {
			queue = append(queue, filepath.Join(path, name))
		}
	}
	for _, path := range queue {
		each(path, false)
	}
	return seen
}

// subdirectories returns the names of the directories in one, in order, some of them
// where there are more than most; -1 is all.
func subdirectories(dir string, most int) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var names []string
	for most < 0 || len(names) < most {
		entries, err := f.ReadDir(1024)
		for _, e := range entries {
			if e.IsDir() {
				names = append(names, e.Name())
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(names)
	return names, nil
}

// Populated reports whether there are processes in a group or below it, by the line of
// cgroup.events on v2, and by cgroup.procs, which is of the group alone, on v1. Where
// neither can be read there may be.
func Populated(dir string) bool {
	if text, err := os.ReadFile(filepath.Join(dir, "cgroup.events")); err == nil {
		return !slices.Contains(strings.Split(string(text), "\n"), "populated 0")
	}
	f, err := os.Open(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return true
	}
	defer f.Close()
	var some [32]byte
	n, err := f.Read(some[:])
	return err != nil && !errors.Is(err, io.EOF) || len(bytes.TrimSpace(some[:n])) > 0
}
