package cgroupstat

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
)

// Event says that a group appeared or vanished. A group appears after its parent
// and vanishes before it; one that was removed and made anew does both.
type Event struct {
	// Path is that of the group below the root.
	Path string
	// Vanished is false for a group that appeared.
	Vanished bool
	// Crowd is nil but for an event of a subtree, which is not looked at group by group
	// from now on. Its groups have vanished before, but for itself and those to keep.
	Crowd *Crowd
}

// WatcherConfig says what to watch.
type WatcherConfig struct {
	// Root is a directory, as for the operating system. It must be there at the start; if
	// it vanishes later, it is an empty one until it is back.
	Root string
	// Rescan is the time between scans of all groups; 0 stands for 10 s.
	Rescan time.Duration
	// Bounds are those of subtrees of other users.
	Bounds Bounds
	// Keep says which groups, by path below the root, appear in a crowded subtree all
	// the same, if they are found there. It may be nil. It may be called at any time.
	Keep func(path string) bool
}

// Watcher tells which groups come and go. It has no goroutine of its own and is for
// one goroutine at a time.
//
// inotify(7) watches every directory below the root, and an event has what it is about
// compared with what is known. A directory is listed once more after it got its watch, so
// that no group is missed in between. A scan at intervals, and after an overflow of the
// queue, repairs what inotify could not tell. Where the kernel grants no more watches,
// the Watcher scans at shorter intervals.
type Watcher struct {
	config  WatcherConfig
	inotify *os.File // nil where the kernel gave none
	lacking bool     // some groups have no watch
	hurry   time.Duration
	groups  map[string]*group // that are known, by path; "." is the root
	watches map[int]string    // the groups that have them
	due     time.Time         // of the next scan
	lost    bool              // the kernel told of fewer events than there were
	ready   []Event
	// subtrees are those of other users, by the path of their tops; crowds says which are
	// not looked at group by group, for other goroutines.
	subtrees map[string]*subtree
	crowds   atomic.Pointer[[]Crowd]
}

// group is one that is known.
type group struct {
	id    identity // tells it from another directory of the same name; a watch does too
	top   string   // of the subtree of another user in which it lies, or ""
	watch int      // -1 without
}

// subtree is one of another user, from the directory on whose owner is not trusted.
type subtree struct {
	Crowd        // by the last look
	crowded bool // it has more groups than there may be, and no watches
	// changes counts the events since the last scan. With more of them than there may be
	// groups the subtree is restless: it has no watches until the next scan.
	changes  int
	restless bool
	told     time.Time
}

type identity struct{ dev, ino uint64 }

// shortScan is the time between scans where watches are lacking.
const shortScan = 500 * time.Millisecond

// again is after how long it is told again that a subtree is not looked at group by
// group.
const again = 10 * time.Minute

// NewWatcher starts to watch. The groups that are there already appear first.
func NewWatcher(c WatcherConfig) (*Watcher, error) {
	if c.Rescan < 0 {
		return nil, fmt.Errorf("watch groups: interval %v is negative", c.Rescan)
	}
	if c.Rescan == 0 {
		c.Rescan = 10 * time.Second
	}
	info, err := os.Stat(c.Root)
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "watch", Path: c.Root, Err: unix.ENOTDIR}
	}
	if err != nil {
		return nil, fmt.Errorf("watch groups: %w", err)
	}
	w := &Watcher{
		config: c, hurry: shortScan, groups: map[string]*group{}, watches: map[int]string{}, subtrees: map[string]*subtree{},
	}
	w.crowds.Store(new([]Crowd))
	if fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err == nil {
		w.inotify = os.NewFile(uintptr(fd), "inotify")
	}
	w.scan()
	return w, nil
}

// Pending is how many events Next returns without waiting: at first, one for each group
// that was there already, and what is to be told of crowded subtrees.
func (w *Watcher) Pending() int { return len(w.ready) }

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
	return w.handleAll(buf[:n])
}

// Groups returns, by path below the root and in order, those that have none below them, and
// crowded subtrees as a whole. It does not wait: it is for a caller that does not take
// events by Next. That the root is not there is an error.
func (w *Watcher) Groups() ([]string, error) {
	err := error(unix.EAGAIN)
	if w.inotify != nil {
		err = w.control(func(fd int) error {
			buf := make([]byte, 4<<10)
			for {
				n, err := unix.Read(fd, buf)
				if err == nil {
					err = w.handleAll(buf[:n])
				}
				if err != nil {
					return err
				}
			}
		})
	}
	// No watch tells that the root is gone, or what happens in a crowded subtree.
	if root := w.groups["."]; root == nil || !w.is(".", root) || len(w.Crowds()) > 0 || !errors.Is(err, unix.EAGAIN) || !time.Now().Before(w.due) {
		w.scan()
	}
	w.ready = nil
	if w.groups["."] == nil {
		return nil, fmt.Errorf("list groups: %w", &fs.PathError{Op: "open", Path: w.config.Root, Err: fs.ErrNotExist})
	}
	around := map[string]bool{".": true}
	for path := range w.groups {
		around[filepath.Dir(path)] = true
	}
	names := slices.Collect(maps.Keys(w.groups))
	names = slices.DeleteFunc(names, func(path string) bool {
		s := w.subtrees[path]
		return path == "." || around[path] && (s == nil || !s.crowded)
	})
	slices.Sort(names)
	return names, nil
}

func (w *Watcher) handleAll(data []byte) error {
	events, err := parseInotify(data)
	for _, e := range events {
		w.handle(e)
	}
	return err
}

func (w *Watcher) handle(e inotifyEvent) {
	if e.mask&unix.IN_Q_OVERFLOW != 0 {
		w.lost = true
		w.scan()
		w.lost = false
		return
	}
	path, known := w.watches[e.watch]
	if !known {
		return // of a directory that vanished since
	}
	if e.mask&unix.IN_IGNORED != 0 {
		delete(w.watches, e.watch)
		w.groups[path].watch = -1
		return
	}
	top := w.groups[path].top
	if e.mask&unix.IN_ISDIR == 0 || top != "" && !w.mayChange(top) {
		return
	}
	name := filepath.Join(path, e.name)
	if e.mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0 {
		w.vanish(name)
	}
	// A subtree of another user is counted as a whole. A directory is given to its user
	// once it is made, and groups may be in it by then.
	if info, ok := identify(filepath.Join(w.config.Root, path)); top != "" {
		name = top
	} else if ok && !w.config.Bounds.trusts(info) {
		name = path
	}
	w.compare(name)
	w.publish()
}

// mayChange counts a change that a watch has told. Where there are too many it takes all
// watches of the subtree back, and returns false.
func (w *Watcher) mayChange(top string) bool {
	s := w.subtrees[top]
	s.changes++
	if s.changes <= w.config.Bounds.max() {
		return true
	}
	s.restless = true
	for _, g := range w.groups {
		if g.top == top {
			w.unwatch(g)
		}
	}
	w.publish()
	w.note(top)
	return false
}

// scan compares all that is known with what is there.
func (w *Watcher) scan() {
	w.lacking = w.inotify == nil // unless it shows again
	for _, s := range w.subtrees {
		s.changes, s.restless = 0, false
	}
	w.compare(".")
	w.publish()
	interval := w.config.Rescan
	if w.lacking {
		interval = w.hurry
	}
	w.due = time.Now().Add(interval)
}

// compare compares what is known at and below a group with what is there, once more as
// long as groups got their watches meanwhile.
func (w *Watcher) compare(path string) {
	for w.compareOnce(path) {
	}
}

func (w *Watcher) compareOnce(path string) (watched bool) {
	l := look{root: w.config.Root, bounds: w.config.Bounds, keep: w.config.Keep}
	l.at(path)
	slices.SortFunc(l.groups, func(a, b found) int { return strings.Compare(a.path, b.path) }) // parents first
	there := map[string]*found{}
	for i := range l.groups {
		there[l.groups[i].path] = &l.groups[i]
	}
	crowded := w.bound(path, &l)
	for _, name := range w.below(path) { // the deepest first
		g, known := there[name], w.groups[name]
		switch {
		case known == nil: // it vanished with one around it
		case g == nil && slices.ContainsFunc(l.unread, func(dir string) bool { return kernel.Within(name, dir) }):
		case g == nil && l.keeps(name) && w.is(name, known): // a survey has not come across it
			w.unwatch(known)
			known.top = l.topOf(name)
		case g == nil || g.id != known.id:
			w.vanish(name)
		case w.lost && known.watch >= 0 && w.watch(name, known): // its watch is another one: it was made anew
			w.vanish(name)
		default:
			known.top = g.top
		}
	}
	for i := range l.groups {
		g := &l.groups[i]
		known := w.groups[g.path]
		if known == nil {
			known = &group{id: g.id, top: g.top, watch: -1}
			w.groups[g.path] = known
			w.tell(g.path, false)
		}
		switch s := w.subtrees[g.top]; {
		case s != nil && (s.restless || s.crowded):
			w.unwatch(known)
		case known.watch < 0:
			w.watch(g.path, known)
			watched = watched || known.watch >= 0
		}
	}
	for _, top := range crowded {
		w.note(top)
	}
	return watched
}

// bound takes in which subtrees of other users there are at and below a group, and returns
// those that have become crowded.
func (w *Watcher) bound(path string, l *look) (crowded []string) {
	maps.DeleteFunc(w.subtrees, func(top string, _ *subtree) bool {
		return kernel.Within(top, path) && !slices.ContainsFunc(l.subtrees, func(c Crowd) bool { return c.Path == top })
	})
	for _, c := range l.subtrees {
		s := w.subtrees[c.Path]
		if s == nil {
			s = &subtree{}
			w.subtrees[c.Path] = s
		}
		was := s.crowded
		s.Crowd, s.crowded = c, c.Seen > l.bounds.max()
		if s.crowded && !was {
			crowded = append(crowded, c.Path)
		}
	}
	return crowded
}

// below returns the groups that are known at and below one, the deepest first.
func (w *Watcher) below(path string) (names []string) {
	for name := range w.groups {
		if kernel.Within(name, path) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	slices.Reverse(names)
	return names
}

// is reports whether a known group is still there.
func (w *Watcher) is(path string, known *group) bool {
	info, ok := identify(filepath.Join(w.config.Root, path))
	return ok && info.id == known.id
}

// vanish forgets a group and those below it, the deepest first.
func (w *Watcher) vanish(path string) {
	for _, name := range w.below(path) {
		w.unwatch(w.groups[name])
		delete(w.groups, name)
		w.tell(name, true)
	}
}

func (w *Watcher) tell(path string, vanished bool) {
	if path != "." {
		w.ready = append(w.ready, Event{Path: path, Vanished: vanished})
	}
}

// note tells that a subtree is not looked at group by group, but not all the time.
func (w *Watcher) note(top string) {
	if s := w.subtrees[top]; s.told.IsZero() || time.Since(s.told) >= again {
		s.told = time.Now()
		crowd := w.report(top)
		w.ready = append(w.ready, Event{Path: top, Crowd: &crowd})
	}
}

// report is what is told of a crowded or restless subtree.
func (w *Watcher) report(top string) Crowd {
	s := w.subtrees[top]
	c := s.Crowd
	c.Kept = 0
	for _, g := range w.groups {
		if g.top == top {
			c.Kept++
		}
	}
	if !s.crowded {
		c.Seen, c.Changes = c.Kept, true
	}
	return c
}

// publish lets other goroutines see which subtrees are crowded.
func (w *Watcher) publish() {
	crowds := []Crowd{}
	for _, top := range slices.Sorted(maps.Keys(w.subtrees)) {
		if s := w.subtrees[top]; s.crowded || s.restless {
			crowds = append(crowds, w.report(top))
		}
	}
	w.crowds.Store(&crowds)
}

// Crowds returns the subtrees that are not looked at group by group, by path. It may be
// called by any goroutine.
func (w *Watcher) Crowds() []Crowd { return *w.crowds.Load() }

// watch adds the inotify watch of a group, or confirms it: the kernel answers the same
// number for the same directory. It reports whether the group had another one.
func (w *Watcher) watch(path string, g *group) (changed bool) {
	const mask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW
	old, number := g.watch, -1
	err := w.control(func(fd int) (err error) {
		number, err = unix.InotifyAddWatch(fd, filepath.Join(w.config.Root, path), mask)
		return err
	})
	if err != nil {
		number = -1
		w.lacking = w.lacking || !errors.Is(err, fs.ErrNotExist)
	}
	if number == old {
		return false
	}
	w.unwatch(g)
	if g.watch = number; number >= 0 {
		w.watches[number] = path
	}
	return old >= 0
}

// unwatch takes the watch of a group back; the kernel has done so for a directory that was
// removed, and refuses then.
func (w *Watcher) unwatch(g *group) {
	number := g.watch
	g.watch = -1
	if path, ok := w.watches[number]; !ok || w.groups[path] != g {
		return // a directory that was moved has the watch, under its new name
	}
	delete(w.watches, number)
	_ = w.control(func(fd int) error {
		_, err := unix.InotifyRmWatch(fd, uint32(number))
		return err
	})
}

func (w *Watcher) control(call func(fd int) error) error {
	if w.inotify == nil {
		return unix.EBADF
	}
	conn, err := w.inotify.SyscallConn()
	if err != nil {
		return err
	}
	var cerr error
	err = conn.Control(func(fd uintptr) { cerr = call(int(fd)) })
	return errors.Join(err, cerr)
}

// Close ends all watches.
func (w *Watcher) Close() error {
	if w.inotify == nil {
		return nil
	}
	return w.inotify.Close()
}
