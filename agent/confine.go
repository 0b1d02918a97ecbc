package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// initScope holds the host's first process under systemd.
const initScope = "init.scope"

func validGlobs(field string, globs []string) error {
	for _, glob := range globs {
		if _, err := path.Match(glob, ""); err != nil || path.IsAbs(glob) || path.Clean(glob) != glob || glob == "." || within(glob, "..") {
			return fmt.Errorf("%s %q: not a glob of group names below the base", field, glob)
		}
	}
	return nil
}

// others are the groups that are not Berth's and are kept off exclusive CPUs:
// those to confine, and those whose CPUs Berth has changed and could not yet
// give back. One that is protected by now gets its CPUs back.
func (g *groups) others(c *change) ([]*unit, error) {
	if !c.disturbs() {
		return nil, nil
	}
	taken := c.to.state.Owned()
	dirs, err := g.confined(c, taken)
	if err != nil {
		return nil, err
	}
	protected, err := g.protected()
	if err != nil {
		return nil, err
	}
	var freed, units []*unit
	for _, dir := range slices.Sorted(slices.Values(g.overridden(c))) {
		if !spares(protected, dir) {
			dirs[dir] = true
			continue
		}
		m, err := g.member(c, dir)
		if err == nil {
			freed = append(freed, &unit{members: []member{m}, want: m.original, why: "protected"})
		} else if err = ignoreAbsent(err); err != nil {
			return nil, err
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		if slices.ContainsFunc(units, func(u *unit) bool { return within(dir, u.members[0].dir) && g.version == 1 }) {
			continue
		}
		u, err := g.other(c, dir, taken)
		if err != nil {
			return nil, err
		}
		if u != nil {
			units = append(units, u)
		}
	}
	return append(freed, units...), nil
}

// confined are the groups to keep off the taken CPUs.
func (g *groups) confined(c *change, taken cpuset.Set) (dirs map[string]bool, err error) {
	dirs = map[string]bool{}
	if taken.IsEmpty() {
		return dirs, nil
	}
	kept, err := g.kept(c)
	if err != nil {
		return nil, err
	}
	for _, glob := range c.confine {
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
func (g *groups) other(c *change, dir string, taken cpuset.Set) (*unit, error) {
	members, err := g.members(c, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("confine /%s: %w", dir, err)
	}
	was := members[0].original
	want := was.Minus(taken)
	u := &unit{members: members, want: want, why: "kept off exclusive CPUs", fixed: c.yielded(dir + "/" + cpusFile)}
	if want.IsEmpty() {
		u.want = g.allowed.Minus(taken)
	}
	if u.want == was && (members[0].bare || was == members[0].cpus) || u.want.IsEmpty() {
		u.fixed = true
	}
	return u, nil
}

// glob returns the directories that a pattern names.
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
	if _, err := fs.Stat(g.root.FS(), dir+"/"+cpusFile); err != nil {
		return ignoreAbsent(err) // without the controller, it has what is around it
	}
	holds := g.own != g.dir && within(g.own, dir) && g.handsOn(dir)
	for _, keep := range kept {
		if within(dir, keep) {
			return nil
		}
		holds = holds || within(keep, dir)
	}
	if !holds {
		to[dir] = true
		return nil
	}
	entries, err := fs.ReadDir(g.root.FS(), dir)
	if err != nil {
		return ignoreAbsent(err)
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
func (g *groups) kept(c *change) ([]string, error) {
	keep, err := g.protected()
	if err != nil {
		return nil, err
	}
	keep = append(keep, path.Join(g.dir, ownGroup), path.Join(g.dir, idleGroup), path.Join(g.dir, initScope))
	if g.own != g.dir && g.handsOn(path.Dir(g.own)) {
		keep = append(keep, g.own)
	}
	for _, b := range c.to.bodies {
		keep = append(keep, g.cpusetDir(b.Workload))
	}
	return keep, nil
}

// spares reports whether a group is protected, or holds one that is.
func spares(protected []string, dir string) bool {
	return slices.ContainsFunc(protected, func(p string) bool { return within(dir, p) || within(p, dir) })
}

// protected are the directories of the groups that are to be left alone.
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
	text, _ := readText(g.root, dir+"/cgroup.subtree_control")
	return slices.Contains(strings.Fields(text), cgroup.CPUSet)
}

// overridden are the groups that Berth did not make and whose CPUs it has
// changed, and those that it made and could not remove, but for the workloads'.
func (g *groups) overridden(c *change) []string {
	placed := dirsOf(c.to.bodies)
	var dirs []string
	for _, note := range c.ledger.Notes() {
		dir := note.Step.Path
		switch {
		case note.Step.Op == kernel.Write && path.Base(dir) == cpusFile:
			dir = path.Dir(dir)
		case note.Step.Op != kernel.Mkdir || !g.isRoof(path.Dir(dir)) || !within(dir, g.dir):
			continue
		}
		if !placed.hold(dir) && !c.ledger.Outdated(note.Step.Path) { // outdated: another group of that name by now
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// dirSet is a set of directories.
type dirSet map[string]bool

func dirsOf(bodies map[string]*body) dirSet {
	dirs := dirSet{}
	for _, b := range bodies {
		for _, dir := range b.Workload.Dirs {
			dirs[dir] = true
		}
	}
	return dirs
}

// hold reports whether a path is one of the directories or lies in one.
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
// and groups that are left over. With the last workload everything goes.
func (g *groups) giveBack(c *change) error {
	if len(c.to.bodies) == 0 {
		_, err := undoAll(c.ledger)
		return err
	}
	protected, err := g.protected()
	if err != nil {
		return err
	}
	taken := c.to.state.Owned()
	dirs := dirsOf(c.to.bodies)
	_, err = c.ledger.Undo(func(s kernel.Step) bool {
		switch {
		case dirs.hold(s.Path), s.Op == kernel.Enable, g.isRoof(s.Path), g.isRoof(path.Dir(s.Path)) && s.Op == kernel.Write:
			return false
		case s.Op == kernel.Write && path.Base(s.Path) == cpusFile:
			if spares(protected, path.Dir(s.Path)) {
				return true
			}
			if c.ledger.Outdated(s.Path) {
				return true
			}
			text, _ := c.ledger.Original(s.Path)
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
