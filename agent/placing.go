package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"syscall"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// member is a group of a subtree, as it is in the course of a plan.
type member struct {
	dir      string
	cpus     cpuset.Set
	bare     bool       // cpuset.cpus is empty and cpus is what that comes to
	original cpuset.Set // before Berth
}

// subtree is a group that is placed, with those below it that must follow (v1).
type subtree struct {
	members []member // a group before those below it; none if it stands
	want    cpuset.Set
	mems    cpuset.Set // empty is as it is
	why     string
	fixed   bool // stays as it is
	fresh   bool // is yet to be made
}

func (u *subtree) stands() bool { return len(u.members) == 0 }

// subtrees are all groups whose CPUs Berth decides. Of those that stand on the same
// CPUs there is one.
func (g *groups) subtrees(c *Transition, fresh map[string]bool) ([]*subtree, error) {
	var subtrees []*subtree
	standing := map[cpuset.Set]bool{}
	for _, id := range c.Present() {
		u, err := g.subtree(c, id, fresh[id])
		if err != nil {
			return nil, fmt.Errorf("workload %q: %w", id, err)
		}
		if u.stands() {
			if standing[u.want] {
				continue
			}
			standing[u.want] = true
		}
		subtrees = append(subtrees, u)
	}
	others, err := g.others(c)
	return append(subtrees, others...), err
}

// subtree is that of a workload.
func (g *groups) subtree(c *Transition, id string, fresh bool) (*subtree, error) {
	w := c.After(id)
	dir := g.cpusetDir(w)
	u := &subtree{want: w.CPUs, why: id, fresh: fresh, fixed: c.Yielded(dir + "/" + cpusFile)}
	if !u.fresh && !u.fixed && c.Stands(id) {
		return u, nil
	}
	if !c.Granted(id) {
		return nil, &place.NotHeldError{ID: id}
	}
	if !c.KeepsMems(id) {
		u.mems = w.Mems
	}
	var err error
	switch {
	case u.fresh:
		u.members = []member{{dir: dir}}
	case c.Follows(id) && !u.fixed && (g.version == 2 || g.isLeaf(dir)):
		was := c.Before(id).CPUs
		u.members = []member{{dir: dir, cpus: was, original: was}}
	default:
		u.members, err = g.followers(c, dir)
	}
	if !w.made() && (c.All && !c.strict || !slices.Contains(c.About(), id)) {
		g.theirs = append(g.theirs, dir)
		if err != nil {
			err = &theirError{dir, err}
		}
	}
	return u, err
}

// followers are the members of a group, of one that is yielded itself alone.
func (g *groups) followers(c *Transition, dir string) ([]member, error) {
	if !c.Yielded(dir + "/" + cpusFile) {
		return g.members(c, dir)
	}
	m, err := g.member(c, dir)
	return []member{m}, err
}

// members reads a group and, on v1, those below it: those of other users up to maxTheirs.
func (g *groups) members(c *Transition, dir string) ([]member, error) {
	theirs := 0
	return g.gather(c, dir, &theirs)
}

// maxTheirs is how many groups of other users are moved with the one around them. Root
// waits while they are: longer than in proportion to their number.
const maxTheirs = 200

// gather adds to theirs how many groups were made by users other than root and this one.
func (g *groups) gather(c *Transition, dir string, theirs *int) ([]member, error) {
	m, err := g.member(c, dir)
	if err != nil {
		return nil, err
	}
	all := []member{m}
	if g.version != 1 || g.isLeaf(dir) {
		return all, nil
	}
	entries, err := fs.ReadDir(g.root.FS(), dir)
	if err != nil {
		return nil, err
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return !e.IsDir() })
	stat, err := g.stat(dir)
	if err != nil {
		return nil, err
	}
	if stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		if *theirs += len(entries); *theirs > maxTheirs {
			return nil, fmt.Errorf("user %d has more than %d groups in /%s, which would have to follow it", stat.Uid, maxTheirs, dir)
		}
	}
	for _, e := range entries {
		below, err := g.gather(c, path.Join(dir, e.Name()), theirs)
		if unreachable(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, below...)
	}
	return all, nil
}

func (g *groups) stat(dir string) (*syscall.Stat_t, error) {
	info, err := fs.Stat(g.root.FS(), dir)
	if err != nil {
		return nil, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("/%s: its owner is not known", dir)
	}
	return stat, nil
}

// unreachable reports whether an error says that a group is gone, or has a name by which
// no system call or io/fs finds it: users can make such groups. One that has no CPUs of
// its own is in nobody's way, and the kernel refuses to narrow what is around another.
func unreachable(err error) bool {
	return kernel.Absent(err) || errors.Is(err, fs.ErrInvalid) || errors.Is(err, syscall.ENAMETOOLONG)
}

// isLeaf reports whether a group is known to have none below it.
func (g *groups) isLeaf(dir string) bool {
	stat, err := g.stat(dir)
	return err == nil && stat.Nlink == kernel.LeafLinks
}

func (g *groups) member(c *Transition, dir string) (member, error) {
	m := member{dir: dir}
	var err error
	if m.cpus, err = readSet(g.root, dir+"/"+cpusFile); err != nil {
		return m, err
	}
	if m.cpus.IsEmpty() && g.version == 2 {
		m.bare = true
		if m.cpus, err = readSet(g.root, dir+"/cpuset.cpus.effective"); err != nil {
			return m, err
		}
	}
	m.original = m.cpus
	if text, ok := c.Log.Original(dir + "/" + cpusFile); ok {
		if m.original, err = cpuset.Parse(text); err != nil {
			return m, err
		}
		if m.original.IsEmpty() {
			m.original = g.allowed
		}
		// From a v1 set the kernel has taken what is offline, and takes it in no write.
		if online := m.original.Intersect(g.allowed); g.version == 1 && !online.IsEmpty() {
			m.original = online
		}
	}
	return m, nil
}

func (g *groups) place(subtrees []*subtree, c *Transition) (kernel.Plan, error) {
	p := placing{groups: g}
	for _, name := range []string{ownGroup, idleGroup} {
		if err := p.widenParent(path.Join(p.dir, name), subtrees); err != nil {
			return nil, err
		}
	}
	// Subtrees that go from the same CPUs to the same ones go together.
	type way struct{ have, want cpuset.Set }
	var assignments []cgroup.Assignment
	moveGroups, known := [][]*subtree{}, map[way]int{}
	for _, u := range subtrees {
		s := cgroup.Assignment{Name: u.why, Have: u.want, Want: u.want}
		if !u.stands() {
			s.Have = u.members[0].cpus
		}
		if u.fixed {
			s.Want = s.Have
		}
		i, ok := known[way{s.Have, s.Want}]
		if !ok {
			i = len(assignments)
			known[way{s.Have, s.Want}] = i
			assignments, moveGroups = append(assignments, s), append(moveGroups, nil)
		}
		moveGroups[i] = append(moveGroups[i], u)
		if u.stands() {
			continue
		}
		if !u.mems.IsEmpty() && !c.Yielded(u.members[0].dir+"/"+memsFile) {
			if err := p.mems(u); err != nil {
				return nil, err
			}
		}
	}
	moves, err := cgroup.Order(assignments, c.Contested(), g.allowed)
	if err != nil {
		return nil, err
	}
	for _, m := range moves {
		for _, u := range moveGroups[m.Assignment] {
			p.cpus(u, m.CPUs)
		}
	}
	for _, u := range subtrees {
		if !u.stands() && u.members[0].bare && !u.fixed && u.members[0].cpus == u.want {
			p.write(u.members[0].dir, cpusFile, u.want, u.why)
		}
	}
	return p.plan, nil
}

type placing struct {
	*groups
	plan kernel.Plan
}

func (p *placing) write(dir, file string, set cpuset.Set, why string) {
	p.plan = append(p.plan, kernel.Step{Path: dir + "/" + file, Value: set.String(), Format: kernel.List, Why: why})
}

// widenParent keeps one of Berth's own v1 groups as wide as the base: CPUs that went
// offline and came back are missing in every v1 set below the top.
func (p *placing) widenParent(parent string, subtrees []*subtree) error {
	if p.version != 1 || !slices.ContainsFunc(subtrees, func(u *subtree) bool { return !u.stands() && kernel.Within(u.members[0].dir, parent) }) {
		return nil
	}
	have, err := readSet(p.root, parent+"/"+cpusFile)
	if kernel.Absent(err) {
		return nil // made by this plan
	}
	if err == nil && !have.Contains(p.allowed) {
		p.write(parent, cpusFile, p.allowed, "as wide as what is around it")
	}
	return err
}

func (p *placing) cpus(u *subtree, to cpuset.Set) {
	have, had := make([]cpuset.Set, len(u.members)), make([]cpuset.Set, len(u.members))
	for i, m := range u.members {
		have[i], had[i] = m.cpus, m.original
	}
	p.change(u, cpusFile, to, have, had)
	for i := range u.members {
		m := &u.members[i]
		m.cpus, m.bare = have[i], m.bare && m.cpus == have[i]
	}
}

// change gives the first group of a subtree a set, and those below it, if they have one,
// what they had as far as the group around them has it. It writes the new sets into have.
func (p *placing) change(u *subtree, file string, to cpuset.Set, have, had []cpuset.Set) {
	var changes cgroup.SetChanges
	next := make([]cpuset.Set, len(u.members))
	for i, m := range u.members {
		if next[i] = to; i > 0 {
			next[i] = fit(had[i], next[u.parent(i)])
		}
		if i == 0 || !have[i].IsEmpty() {
			changes = append(changes, cgroup.SetChange{File: m.dir + "/" + file, Have: have[i], Want: next[i], Why: u.why})
			have[i] = next[i]
		}
	}
	p.plan = append(p.plan, changes.Plan()...)
}

// fit is what of a set lies within another, or all of that if nothing does.
func fit(set, in cpuset.Set) cpuset.Set {
	if both := set.Intersect(in); !both.IsEmpty() {
		return both
	}
	return in
}

func (u *subtree) parent(i int) int {
	dir := path.Dir(u.members[i].dir)
	return slices.IndexFunc(u.members, func(m member) bool { return m.dir == dir })
}

// mems gives a subtree its memory nodes, those below it on v1 likewise.
func (p *placing) mems(u *subtree) (err error) {
	have := make([]cpuset.Set, len(u.members))
	for i, m := range u.members {
		if u.fresh {
			continue
		}
		if have[i], err = readSet(p.root, m.dir+"/"+memsFile); err != nil {
			return err
		}
	}
	p.change(u, memsFile, u.mems, have, slices.Clone(have))
	return nil
}

// verify reports a workload whose group did not get the CPUs that were written:
// on v2, one within a narrower group.
func (g *groups) verify(c *Transition) error {
	if g.version != 2 || c.All {
		return nil
	}
	for _, id := range c.About() {
		w := c.After(id)
		have, err := readSet(g.root, g.cpusetDir(w)+"/cpuset.cpus.effective")
		if err != nil {
			return err
		}
		if have != w.CPUs && !c.Yielded(g.cpusetDir(w)+"/"+cpusFile) {
			return fmt.Errorf("workload %q: the kernel gives CPUs %s instead of %s: a group around /%s is narrower", id, have, w.CPUs, g.cpusetDir(w))
		}
	}
	return nil
}
