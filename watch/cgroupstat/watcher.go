package cgroupstat

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
)

// Event says that a group appeared or vanished. A group appears after its parent
// and vanishes before it; one that was removed and made anew does both.
type Event struct {
	// Root is the root as it was given, Path the group below it.
	Root, Path string
	// Vanished is false for a group that appeared.
	Vanished bool
	// Crowd is nil but for an event of a subtree, which is not looked at group by group
	// from now on. Its groups have vanished before, but for itself and those to keep.
	Crowd *Crowd
}

// Config says what to watch. The roots must be there at the start; one that
// vanishes later is an empty one until it is back.
type WatcherConfig struct {
	// Roots are directories, as for the operating system, none within another.
	Roots []string
	// Rescan is the time between re-scans; 0 stands for 10 s.
	Rescan time.Duration
	// Scan is the time between scans where watches are lacking; 0 stands for
	// 500 ms.
	Scan time.Duration
	// Bounds are those of subtrees of other users.
	Bounds Bounds
	// Keep says which groups, by path below their root, appear in a crowded subtree all
	// the same, if they are found there. It may be nil. It may be called at any time.
	Keep func(path string) bool
}

// Validate says what is wrong with the configuration.
func (c WatcherConfig) Validate() error {
	if len(c.Roots) == 0 {
		return errors.New("watch groups: no roots")
	}
	for i, a := range c.Roots {
		for j, b := range c.Roots {
			if i != j && kernel.Within(filepath.Clean(b), filepath.Clean(a)) {
				return fmt.Errorf("watch groups: root %s is in another, %s", b, a)
			}
		}
	}
	if c.Rescan < 0 || c.Scan < 0 {
		return fmt.Errorf("watch groups: interval %v or %v is negative", c.Rescan, c.Scan)
	}
	return nil
}

// Watcher tells which groups come and go. It has no goroutine of its own and is for
// one goroutine at a time.
//
// inotify(7) watches every directory below the roots. The Watcher lists a directory
// after it added the watch, so that no group is missed in between. A re-scan at
// intervals, and after an overflow of the queue, repairs what inotify could not tell.
// Where the kernel grants no more watches, the Watcher scans at shorter intervals.
type Watcher struct {
	config  WatcherConfig
	inotify *os.File // nil where the kernel gave none
	limit   error
	roots   []*node // nil for one that is not there
	watches map[int]*node
	due     time.Time // of the next scan
	lost    bool      // the kernel told of fewer events than there were
	ready   []Event
	// subtrees are those of other users; crowds says which are not looked at group by
	// group, for other goroutines.
	subtrees map[*subtree]bool
	crowds   atomic.Pointer[[]Crowd]
}

// node is a directory that is known.
type node struct {
	root   string
	parent *node  // nil for a root
	name   string // among the children of the parent
	dir    string
	sub    *subtree // of another user, in which it lies, or nil
	// id tells it from another directory of the same name; a watch does too.
	id       identity
	watch    int // -1 without
	children map[string]*node
	// childless is true if the last scan found no directory in it, and its watch
	// tells of those that came since.
	childless bool
}

type identity struct{ dev, ino uint64 }

// NewWatcher starts to watch. The groups that are there already appear first.
func NewWatcher(c WatcherConfig) (*Watcher, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Rescan == 0 {
		c.Rescan = 10 * time.Second
	}
	if c.Scan == 0 {
		c.Scan = 500 * time.Millisecond
	}
	c.Roots = slices.Clone(c.Roots)
	w := &Watcher{config: c, roots: make([]*node, len(c.Roots)), watches: map[int]*node{}, subtrees: map[*subtree]bool{}}
	w.crowds.Store(new([]Crowd))
	for _, root := range c.Roots {
		info, err := os.Stat(root)
		if err == nil && !info.IsDir() {
			err = &fs.PathError{Op: "watch", Path: root, Err: unix.ENOTDIR}
		}
		if err != nil {
			return nil, fmt.Errorf("watch groups: %w", err)
		}
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		w.limited(err)
	} else {
		w.inotify = os.NewFile(uintptr(fd), "inotify")
	}
	w.scan()
	return w, nil
}

// Limit returns nil while every group has its watch, and else the
// kernel.NotSupportedError that says why some are found by scanning only.
func (w *Watcher) Limit() error { return w.limit }

// Next returns the next event, waiting for it, or the context's error.
func (w *Watcher) Next(ctx context.Context) (Event, error) {
	for len(w.ready) == 0 {
		if err := w.step(ctx); err != nil {
			return Event{}, fmt.Errorf("watch groups: %w", err)
		}
	}
	event := w.ready[0]
	w.ready = w.ready[1:]
	return event, nil
}

// step reads one batch of inotify events, or scans when that is due.
func (w *Watcher) step(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !time.Now().Before(w.due) {
		w.scan()
		return nil
	}
	if w.inotify == nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(w.due)):
			return nil
		}
	}
	if err := w.inotify.SetReadDeadline(w.due); err != nil {
		return os.ErrClosed
	}
	stop := context.AfterFunc(ctx, func() { w.inotify.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var buf [16 << 10]byte
	n, err := w.inotify.Read(buf[:])
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ctx.Err()
	case err != nil:
		return err
	}
	events, err := parseInotify(buf[:n])
	if err != nil {
		return err
	}
	for _, e := range events {
		w.handle(e)
	}
	return nil
}

func (w *Watcher) handle(e inotifyEvent) {
	if e.mask&unix.IN_Q_OVERFLOW != 0 {
		w.lost = true
		w.scan()
		w.lost = false
		return
	}
	parent := w.watches[e.watch]
	if parent == nil {
		return // of a directory that vanished since
	}
	if e.mask&unix.IN_IGNORED != 0 {
		delete(w.watches, e.watch)
		parent.watch = -1
		return
	}
	if e.mask&unix.IN_ISDIR == 0 || parent.sub != nil && !w.mayChange(parent.sub) {
		return
	}
	switch {
	case e.mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		if parent.children[e.name] == nil {
			w.appear(parent, e.name)
		}
	case e.mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		if child := parent.children[e.name]; child != nil {
			w.vanish(child)
		}
	}
}

// scan compares all that is known with what is there.
func (w *Watcher) scan() {
	interval := w.config.Rescan
	if w.limit != nil {
		interval = w.config.Scan
		w.limit = nil // unless it shows again
		if w.inotify == nil {
			w.limited(unix.EMFILE)
		}
	}
	for i, root := range w.config.Roots {
		n := w.roots[i]
		if n != nil && !w.same(n) {
			w.vanish(n)
			w.roots[i], n = nil, nil
		}
		if n != nil {
			w.list(n)
		} else if info, ok := identify(root); ok {
			w.roots[i] = &node{root: root, dir: root, id: info.id}
			w.enter(w.roots[i], info)
		}
	}
	w.publish()
	if w.limit != nil {
		interval = w.config.Scan
	}
	w.due = time.Now().Add(interval)
}

// same reports whether a directory is still the one that is known, and renews its watch if
// that may have ended untold.
func (w *Watcher) same(n *node) bool {
	info, ok := identify(n.dir)
	if !ok || info.id != n.id {
		return false
	}
	if n.sub == nil && !w.config.Bounds.trusts(info) {
		w.give(n, info.uid)
	}
	old := n.watch
	if old < 0 || w.lost {
		w.watch(n)
	}
	n.childless = info.childless && n.watch == old
	return old < 0 || n.watch < 0 || n.watch == old
}

// appear notes a new child of a directory, if it is still there, and what is
// below it.
func (w *Watcher) appear(parent *node, name string) {
	if parent.sub != nil && parent.sub.groups >= w.config.Bounds.max() {
		w.crowd(parent.sub)
		return
	}
	dir := filepath.Join(parent.dir, name)
	info, ok := identify(dir)
	if !ok {
		return
	}
	if parent.sub == nil && !w.config.Bounds.trusts(info) {
		// A directory is given to its user once it is made.
		if of, ok := identify(parent.dir); ok && !w.config.Bounds.trusts(of) {
			w.give(parent, of.uid)
		}
	}
	child := &node{root: parent.root, parent: parent, name: name, dir: dir, id: info.id}
	parent.children[name] = child
	w.tell(child, false)
	w.enter(child, info)
}

// enter watches a directory that is new, and what is below it.
func (w *Watcher) enter(n *node, info directory) {
	n.watch = -1
	n.children = map[string]*node{}
	w.belong(n, info)
	w.watch(n)
	w.list(n)
}

// list compares the children that are known with those that are there.
func (w *Watcher) list(n *node) {
	if n.sub != nil && n == n.sub.top && !w.resume(n.sub) {
		return
	}
	if n.childless && len(n.children) == 0 {
		return
	}
	entries, err := os.ReadDir(n.dir) // sorted
	if err != nil {
		return // it vanishes: its parent's watch or the next scan tells
	}
	there := map[string]bool{}
	for _, e := range entries {
		if e.IsDir() {
			there[e.Name()] = true
		}
	}
	for _, name := range sortedNames(n.children) {
		if child := n.children[name]; !there[name] || !w.same(child) {
			w.vanish(child)
		}
	}
	for _, e := range entries {
		if n.sub != nil && n.sub.crowded { // since it was begun
			return
		}
		if child := n.children[e.Name()]; child != nil {
			w.list(child)
		} else if e.IsDir() {
			w.appear(n, e.Name())
		}
	}
}

// vanish forgets a directory and what was below it, the deepest first.
func (w *Watcher) vanish(n *node) {
	for _, name := range sortedNames(n.children) {
		w.vanish(n.children[name])
	}
	w.unwatch(n)
	w.leave(n)
	if n.parent == nil {
		return
	}
	delete(n.parent.children, n.name)
	w.tell(n, true)
}

func (w *Watcher) tell(n *node, vanished bool) {
	w.ready = append(w.ready, Event{Root: n.root, Path: n.path(), Vanished: vanished})
}

// path is that from the root on.
func (n *node) path() string {
	path, err := filepath.Rel(n.root, n.dir)
	if err != nil {
		return n.dir
	}
	return path
}

// watch adds the inotify watch of a directory, or confirms it: the kernel answers
// the same number for the same directory.
func (w *Watcher) watch(n *node) {
	if w.inotify == nil || n.sub != nil && (n.sub.crowded || n.sub.restless) {
		return
	}
	const mask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW
	number := -1
	err := w.control(func(fd int) (err error) {
		number, err = unix.InotifyAddWatch(fd, n.dir, mask)
		return err
	})
	if err != nil {
		number = -1
		if !errors.Is(err, fs.ErrNotExist) {
			w.limited(err)
		}
	}
	if n.watch >= 0 && n.watch != number {
		delete(w.watches, n.watch)
	}
	n.watch = number
	if number >= 0 {
		w.watches[number] = n
	}
}

// unwatch takes the watch back; the kernel has done so for a directory that was
// removed, and refuses then.
func (w *Watcher) unwatch(n *node) {
	if n.watch < 0 {
		return
	}
	delete(w.watches, n.watch)
	w.control(func(fd int) error {
		_, err := unix.InotifyRmWatch(fd, uint32(n.watch))
		return err
	})
	n.watch = -1
}

func (w *Watcher) control(call func(fd int) error) error {
	conn, err := w.inotify.SyscallConn()
	if err != nil {
		return err
	}
	var cerr error
	err = conn.Control(func(fd uintptr) { cerr = call(int(fd)) })
	return errors.Join(err, cerr)
}

func (w *Watcher) limited(cause error) {
	err := &kernel.NotSupportedError{
		Feature: "watching groups",
		Reason:  cause.Error(),
		Remedy:  "check the right to read the directories; they are scanned instead",
	}
	switch {
	case errors.Is(cause, unix.ENOSPC):
		err.Reason = "the user's inotify watches are used up"
		err.Remedy = "raise the sysctl fs.inotify.max_user_watches; groups are found by scanning meanwhile"
	case errors.Is(cause, unix.EMFILE):
		err.Reason = "the user's inotify instances or the process's descriptors are used up"
		err.Remedy = "raise the sysctl fs.inotify.max_user_instances or the limit of open files, and start again"
	}
	w.limit = err
}

// Close ends all watches.
func (w *Watcher) Close() error {
	if w.inotify == nil {
		return nil
	}
	return w.inotify.Close()
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

func sortedNames(nodes map[string]*node) []string {
	names := make([]string, 0, len(nodes))
	for name := range nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
