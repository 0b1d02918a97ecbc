package cgroupstat

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// again is after how long it is told again that a subtree is not looked at group by
// group.
const again = 10 * time.Minute

// subtree is one of another user, from the directory on whose owner is not trusted.
type subtree struct {
	top    *node
	uid    uint32
	groups int // that are known, the top among them
	// changes counts the events since the last scan. With more of them than there may be
	// groups the subtree is restless: it has no watches until the next scan.
	changes  int
	restless bool
	// crowded is true while there are more groups than there may be: the top is known,
	// and of the others those to keep, as its children by their paths. None has a watch.
	crowded bool
	seen    int
	told    time.Time
}

// belong notes in whose subtree a new directory lies.
func (w *Watcher) belong(n *node, info directory) {
	switch {
	case n.parent != nil && n.parent.sub != nil:
		n.sub = n.parent.sub
		n.sub.groups++
	case !w.config.Bounds.trusts(info):
		n.sub = &subtree{top: n, uid: info.uid, groups: 1}
		w.subtrees[n.sub] = true
		if w.config.Bounds.survey(n.dir, func(string, bool) {}) > w.config.Bounds.max() {
			w.crowd(n.sub)
		}
	}
}

// give makes a directory that was trusted the top of a subtree: it was given to another
// user.
func (w *Watcher) give(top *node, uid uint32) {
	s := &subtree{top: top, uid: uid}
	var join func(*node)
	join = func(n *node) {
		if n.sub != nil {
			delete(w.subtrees, n.sub)
		}
		n.sub = s
		s.groups++
		for _, child := range n.children {
			join(child)
		}
	}
	join(top)
	w.subtrees[s] = true
	if s.groups > w.config.Bounds.max() {
		w.crowd(s)
	}
}

// leave forgets a directory of a subtree.
func (w *Watcher) leave(n *node) {
	if n.sub == nil {
		return
	}
	n.sub.groups--
	if n == n.sub.top {
		delete(w.subtrees, n.sub)
		w.publish()
	}
}

// mayChange counts a change that a watch has told. Where there are too many it takes all
// watches of the subtree back, and returns false.
func (w *Watcher) mayChange(s *subtree) bool {
	s.changes++
	if s.changes <= w.config.Bounds.max() {
		return true
	}
	s.restless = true
	w.unwatchAll(s.top)
	w.note(s)
	return false
}

func (w *Watcher) unwatchAll(n *node) {
	w.unwatch(n)
	for _, child := range n.children {
		w.unwatchAll(child)
	}
}

// resume is done to a subtree at the begin of a scan. It reports whether its groups are
// to be compared with those that are known.
func (w *Watcher) resume(s *subtree) bool {
	s.changes, s.restless = 0, false
	if !s.crowded {
		w.watch(s.top)
		return true
	}
	if w.compareKept(s); s.seen > w.config.Bounds.max() {
		return false
	}
	w.disperse(s)
	return false
}

// crowd has a subtree taken as one group from now on.
func (w *Watcher) crowd(s *subtree) {
	s.crowded = true
	w.unwatch(s.top)
	kept := map[string]*node{}
	w.reduce(s.top, kept)
	s.top.children = kept
	s.groups = 1 + len(kept)
	w.compareKept(s)
	w.note(s)
}

// reduce forgets what is below a directory, the deepest first, and collects what is to
// be kept by path below the top.
func (w *Watcher) reduce(n *node, kept map[string]*node) {
	for _, name := range sortedNames(n.children) {
		child := n.children[name]
		w.reduce(child, kept)
		w.unwatch(child)
		if !w.keeps(child.path()) {
			w.tell(child, true)
			continue
		}
		top := child.sub.top
		child.parent, child.name, child.children = top, strings.TrimPrefix(child.dir, top.dir+"/"), map[string]*node{}
		kept[child.name] = child
	}
}

func (w *Watcher) keeps(path string) bool { return w.config.Keep != nil && w.config.Keep(path) }

// compareKept counts the groups of a crowded subtree, and compares those to keep with
// those that are known.
func (w *Watcher) compareKept(s *subtree) {
	for _, name := range sortedNames(s.top.children) {
		if child := s.top.children[name]; !w.keeps(child.path()) || !w.same(child) {
			w.vanish(child)
		}
	}
	var found []string
	s.seen = w.config.Bounds.survey(s.top.dir, func(path string, _ bool) {
		if path != "." && s.top.children[path] == nil && w.keeps(filepath.Join(s.top.path(), path)) {
			found = append(found, path)
		}
	})
	slices.Sort(found) // parents first
	for _, path := range found {
		dir := filepath.Join(s.top.dir, path)
		if info, ok := identify(dir); ok {
			s.top.children[path] = &node{
				root: s.top.root, parent: s.top, name: path, dir: dir, id: info.id, sub: s, watch: -1, children: map[string]*node{},
			}
			s.groups++
			w.tell(s.top.children[path], false)
		}
	}
}

// disperse has the groups of a subtree looked at one by one again. Those that were kept
// are known already.
func (w *Watcher) disperse(s *subtree) {
	known := s.top.children
	s.crowded, s.groups, s.top.children = false, 1, map[string]*node{}
	before := len(w.ready)
	w.watch(s.top)
	s.top.childless = false
	w.list(s.top)
	told := w.ready[before:]
	w.ready = w.ready[:before:before]
	for _, e := range told {
		path := strings.TrimPrefix(filepath.Join(e.Root, e.Path), s.top.dir+"/")
		if known[path] == nil || e.Vanished || e.Crowd != nil {
			w.ready = append(w.ready, e)
		}
		delete(known, path)
	}
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(known))) {
		w.tell(known[name], true)
	}
}

// note tells that a subtree is not looked at group by group, but not all the time.
func (w *Watcher) note(s *subtree) {
	w.publish()
	if !s.told.IsZero() && time.Since(s.told) < again {
		return
	}
	s.told = time.Now()
	crowd := s.report()
	w.ready = append(w.ready, Event{Root: s.top.root, Path: crowd.Path, Crowd: &crowd})
}

func (s *subtree) report() Crowd {
	c := Crowd{Path: s.top.path(), UID: int(s.uid), Seen: s.seen, Kept: s.groups, Changes: !s.crowded}
	if c.Changes {
		c.Seen = s.groups
	}
	return c
}

// publish lets other goroutines see which subtrees are crowded.
func (w *Watcher) publish() {
	crowds := []Crowd{}
	for s := range w.subtrees {
		if s.crowded || s.restless {
			crowds = append(crowds, s.report())
		}
	}
	slices.SortFunc(crowds, func(a, b Crowd) int { return strings.Compare(a.Path, b.Path) })
	w.crowds.Store(&crowds)
}

// Crowds returns the subtrees that are not looked at group by group, by path. It may be
// called by any goroutine.
func (w *Watcher) Crowds() []Crowd { return *w.crowds.Load() }
