package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/systemd"
)

// initScope holds the host's first process under systemd.
const initScope = "init.scope"

func validGlobs(field string, globs []string) error {
	for _, glob := range globs {
		if _, err := path.Match(glob, ""); err != nil || path.IsAbs(glob) || path.Clean(glob) != glob || glob == "." || kernel.Within(glob, "..") {
			return fmt.Errorf("%s %q: not a glob of group names below the base", field, glob)
		}
	}
	return nil
}

// others are the groups that are not Berth's and are kept off exclusive CPUs:
// those to confine, and those whose CPUs Berth has changed and could not yet
// give back. One that is protected by now gets its CPUs back.
func (g *groups) others(c *Transition) ([]*subtree, error) {
	if !c.Disturbs() {
		return nil, nil
	}
	taken := c.Owned()
	dirs, err := g.confined(c, taken)
	if err != nil {
		return nil, err
	}
	protected, err := g.protected()
	if err != nil {
		return nil, err
	}
	var freed, subtrees []*subtree
	for _, dir := range slices.Sorted(slices.Values(g.overridden(c))) {
		if !spares(protected, dir) {
			dirs[dir] = true
			continue
		}
		m, err := g.member(c, dir)
		if err == nil {
			freed = append(freed, &subtree{members: []member{m}, want: m.original, why: "protected"})
		} else if err = kernel.IgnoreAbsent(err); err != nil {
			return nil, err
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		g.theirs = append(g.theirs, dir)
		if slices.ContainsFunc(subtrees, func(u *subtree) bool { return kernel.Within(dir, u.members[0].dir) && g.version == 1 }) {
			continue
		}
		u, err := g.other(c, dir, taken)
		if err != nil {
			return nil, err
		}
		if u != nil {
			subtrees = append(subtrees, u)
		}
	}
	return append(freed, subtrees...), nil
}

func (g *groups) confined(c *Transition, taken cpuset.Set) (dirs map[string]bool, err error) {
	dirs = map[string]bool{}
	if taken.IsEmpty() || len(g.confine) == 0 {
		return dirs, nil
	}
	kept, err := g.kept(c)
	if err != nil {
		return nil, err
	}
	for _, glob := range g.confine {
		names, err := g.glob(glob)
		if err != nil {
			return nil, err
		}
		for _, dir := range names {
			if err := g.expand(dir, kept, dirs); err != nil {
				return nil, err
			}
		}
	}
	return dirs, nil
}

// other is a group kept off the taken CPUs; nil if there is nothing to do, or to
// be done by giving back.
func (g *groups) other(c *Transition, dir string, taken cpuset.Set) (*subtree, error) {
	members, err := g.followers(c, dir)
	if kernel.Absent(err) || isAway(err) && c.Yielded(dir+"/"+cpusFile) {
		return nil, nil
	}
	if err != nil {
		return nil, &theirError{dir, fmt.Errorf("confine /%s: %w", dir, err)}
	}
	was := members[0].original
	want := was.Minus(taken)
	u := &subtree{members: members, want: want, why: "kept off exclusive CPUs", fixed: c.Yielded(dir + "/" + cpusFile)}
	if !g.within.IsEmpty() {
		u.want = g.within.Intersect(g.allowed).Minus(taken) // the others are offline
	}
	if u.want.IsEmpty() {
		u.want = g.allowed.Minus(taken)
	}
	if u.want == was && (members[0].bare || was == members[0].cpus) || u.want.IsEmpty() {
		u.fixed = true
	}
	return u, nil
}

// theirError is a group that is not Berth's and that cannot be read as a whole.
type theirError struct {
	dir string
	err error
}

func (e *theirError) Error() string { return e.err.Error() }

func (e *theirError) Unwrap() error { return e.err }

// leave reports whether a change is to be tried again after an error about a group that
// is not Berth's and that it is not about. On v1 the groups below one have to follow it,
// and users who own them can have any, and change them meanwhile: after some tries the
// group is yielded, as others' workloads are not theirs to prevent. Where systemd could not be asked
// it only waits.
func (g *groups) leave(c *Transition, err error) bool {
	var their *theirError
	var step *kernel.StepError
	i := -1
	switch {
	case errors.As(err, &their):
		i = slices.Index(g.theirs, their.dir)
	case errors.As(err, &step):
		i = slices.IndexFunc(g.theirs, func(dir string) bool { return kernel.Within(step.Step.Path, dir) })
	}
	if i < 0 || c.Yielded(g.theirs[i]+"/"+cpusFile) {
		return false
	}
	c.Yield(g.theirs[i], err)
	return !isAway(err) || c.Yielded(g.theirs[i]+"/"+cpusFile) // else it would be asked for ever
}

func (g *groups) glob(pattern string) ([]string, error) {
	below, err := fs.Sub(g.root.FS(), g.dir)
	if err != nil {
		return nil, err
	}
	names, err := fs.Glob(below, pattern)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, name := range names {
		info, err := fs.Stat(below, name)
		if err == nil && info.IsDir() {
			dirs = append(dirs, path.Join(g.dir, name))
		}
	}
	return dirs, nil
}

// expand adds a group to those to confine, or its children where it holds a
// workload or what is protected.
func (g *groups) expand(dir string, kept []string, to map[string]bool) error {
	if _, err := fs.Stat(g.root.FS(), dir+"/"+cpusFile); unreachable(err) {
		return nil // without the controller, it has what is around it
	} else if err != nil {
		return err
	}
	holds := g.own != g.dir && kernel.Within(g.own, dir) && g.handsOn(dir)
	for _, keep := range kept {
		if kernel.Within(dir, keep) {
			return nil
		}
		holds = holds || kernel.Within(keep, dir)
	}
	if !holds {
		to[dir] = true
		return nil
	}
	entries, err := fs.ReadDir(g.root.FS(), dir)
	if err != nil {
		return kernel.IgnoreAbsent(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := g.expand(path.Join(dir, e.Name()), kept, to); err != nil {
				return err
			}
		}
	}
	return nil
}

// kept are the groups that are not confined.
func (g *groups) kept(c *Transition) ([]string, error) {
	keep, err := g.protected()
	if err != nil {
		return nil, err
	}
	keep = append(keep, path.Join(g.dir, ownGroup), path.Join(g.dir, idleGroup), path.Join(g.dir, initScope))
	if g.own != g.dir && g.handsOn(path.Dir(g.own)) {
		keep = append(keep, g.own)
	}
	for w := range c.Workloads() {
		if w.Group != "" { // one without a group keeps none, and not all of them
			keep = append(keep, g.cpusetDir(w))
		}
	}
	return keep, nil
}

// spares reports whether a group is protected, or holds one that is.
func spares(protected []string, dir string) bool {
	return slices.ContainsFunc(protected, func(p string) bool { return kernel.Within(dir, p) || kernel.Within(p, dir) })
}

func (g *groups) protected() (dirs []string, err error) {
	for _, glob := range g.protect {
		names, err := g.glob(glob)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, names...)
	}
	return dirs, nil
}

// handsOn reports whether the children of a group can have CPUs of their own.
func (g *groups) handsOn(dir string) bool {
	if g.version == 1 {
		return true
	}
	text, _ := kernel.ReadText(g.root.FS(), dir+"/cgroup.subtree_control")
	return slices.Contains(strings.Fields(text), cgroup.CPUSet)
}

// overridden are the groups that Berth did not make and whose CPUs it has
// changed, and those that it made and could not remove, but for the workloads'.
func (g *groups) overridden(c *Transition) []string {
	var placed, around dirSet // unless there is a note
	var dirs []string
	for _, note := range c.Log.Notes() {
		dir := note.Step.Path
		switch {
		case note.Step.Op == kernel.Write && path.Base(dir) == cpusFile:
			dir = path.Dir(dir)
		case note.Step.Op != kernel.Mkdir || !g.isParent(path.Dir(dir)) || !kernel.Within(dir, g.dir):
			continue
		}
		if placed == nil {
			placed, around = g.dirsOf(c.Workloads()), g.ancestorDirs(c.Workloads())
		}
		if !placed.hold(dir) && !around[dir] && !c.Log.Outdated(note.Step.Path) { // outdated: another group of that name by now
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

type dirSet map[string]bool

// dirsOf are the groups of workloads, also of those that another Enforcer places.
func (g *groups) dirsOf(workloads iter.Seq[*Workload]) dirSet {
	dirs := dirSet{}
	for w := range workloads {
		if w.Group != "" {
			dirs[g.cpusetDir(w)] = true
		}
		for _, dir := range w.dirsIn(g.base.Dirs()) {
			dirs[dir] = true
		}
	}
	return dirs
}

func (d dirSet) hold(name string) bool {
	for ; name != "." && name != "/"; name = path.Dir(name) {
		if d[name] {
			return true
		}
	}
	return false
}

// giveBack undoes what concerns no workload any more: the CPUs of groups that
// need not be kept off any, other values in groups that are no longer placed,
// and groups that are left over. With the last workload everything goes but what classes have
// of their own.
func (g *groups) giveBack(c *Transition) error {
	if c.Empties() {
		_, err := c.undo(c.undoAll, func(s kernel.Step) bool { return !isClassStep(s) })
		return err
	}
	if !c.Log.Has(func(s kernel.Step) bool { return !isClassStep(s) }) {
		return nil // as of an Enforcer that has others write: what follows looks at every workload
	}
	protected, err := g.protected()
	if err != nil {
		return err
	}
	taken := c.Owned()
	dirs, around := g.dirsOf(c.Workloads()), g.ancestorDirs(c.Workloads())
	former := g.formerLimits(c)
	_, err = c.undo(c.Log.Undo, func(s kernel.Step) bool {
		switch {
		case isClassStep(s):
			return false // the classes' own to undo
		case former(s):
			return true
		case g.idles != nil && path.Base(s.Path) == idleFile && !dirs.hold(s.Path) && !g.isParent(path.Dir(s.Path)):
			return !g.idles[path.Dir(s.Path)]
		case dirs.hold(s.Path), around[path.Dir(s.Path)] && s.Op == kernel.Write, s.Op == kernel.Enable, g.isParent(s.Path), g.isParent(path.Dir(s.Path)) && s.Op == kernel.Write:
			return false
		case s.Op == kernel.Write && path.Base(s.Path) == cpusFile:
			if spares(protected, path.Dir(s.Path)) {
				return true
			}
			if c.Log.Outdated(s.Path) {
				return true
			}
			text, _ := c.Log.Original(s.Path)
			was, err := cpuset.Parse(text)
			if was.IsEmpty() {
				was = g.allowed
			}
			return err == nil && !was.Overlaps(taken)
		}
		return true
	})
	return err
}

// undo undoes the steps that match, but leaves the files of systemd's units to a later transaction
// while systemd cannot be asked, and what was enabled for them too: the error is a
// *systemd.ConnectionError then, and the items of these steps are Pending. The last of those files is
// tried before the others, and tells whether systemd can be asked.
func (c *Transition) undo(undo func(match func(kernel.Step) bool) ([]kernel.Item, error), match func(kernel.Step) bool) (items []kernel.Item, err error) {
	asks := func(s kernel.Step) bool { return s.Op == kernel.Write && systemd.Asks(s.Path) }
	waits := func(s kernel.Step) bool { return asks(s) && c.waits(s.Path) }
	try := func(match func(kernel.Step) bool) error {
		some, err := undo(match)
		items = append(items, some...)
		if isAway(err) {
			c.away(err)
		} else if slices.ContainsFunc(some, func(i kernel.Item) bool {
			return (i.Outcome == kernel.Restored || i.Outcome == kernel.Widened) && asks(i.Step)
		}) {
			c.answered()
		}
		return err
	}
	last := ""
	for s := range c.Log.Steps() {
		if asks(s) && !waits(s) && match(s) {
			last = s.Path
		}
	}
	if last != "" {
		_ = try(func(s kernel.Step) bool { return s.Path == last && asks(s) && match(s) })
		items = done(items) // what is left is tried again with the others, or waits
	}
	var waiting []kernel.Item
	for _, note := range c.Log.Notes() {
		if waits(note.Step) && match(note.Step) {
			waiting = append(waiting, note)
		}
	}
	if len(waiting) == 0 {
		err = try(match)
		return items, err
	}
	err = try(func(s kernel.Step) bool { return s.Op != kernel.Enable && !waits(s) && match(s) })
	left := waiting[len(waiting)-1].Step.Path
	return append(items, waiting...), errors.Join(err, &systemd.ConnectionError{Err: fmt.Errorf("/%s waits until systemd can be asked", left)})
}

// undoAll undoes all steps that match. A v1 set that is held back by one around it is tried
// again once that is undone. Where systemd cannot be asked, nothing is tried again: that takes long, and is of no use.
// Each step that is left has one item, of the last try.
func (c *Transition) undoAll(match func(kernel.Step) bool) (items []kernel.Item, err error) {
	for range 3 {
		var some []kernel.Item
		some, err = c.Log.Undo(match)
		items = append(done(items), some...)
		if err == nil || isAway(err) {
			break
		}
	}
	return items, err
}

// done removes the items of steps that are still to be undone.
func done(items []kernel.Item) []kernel.Item {
	return slices.DeleteFunc(items, func(i kernel.Item) bool { return kernel.Stays(i.Outcome) })
}
