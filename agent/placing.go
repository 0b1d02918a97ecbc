package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// member is a group of a unit, as it is in the course of a plan.
type member struct {
	dir      string
	cpus     cpuset.Set
	bare     bool       // cpuset.cpus is empty and cpus is what that comes to
	original cpuset.Set // before Berth
}

// unit is a group that is placed, with those below it that must follow (v1).
type unit struct {
	members []member // a group before those below it; none if it stands
	want    cpuset.Set
	mems    cpuset.Set // empty is as it is
	why     string
	fixed   bool // stays as it is
	fresh   bool // is yet to be made
}

func (u *unit) stands() bool { return len(u.members) == 0 }

// units are all groups whose CPUs Berth decides. Of those that stand on the same
// CPUs there is one.
func (g *groups) units(c *change, fresh map[string]bool) ([]*unit, error) {
	var units []*unit
	standing := map[cpuset.Set]bool{}
	for _, id := range c.to.ids() {
		w := c.to.bodies[id].Workload
		dir := g.cpusetDir(w)
		u := &unit{want: w.CPUs, why: id, fresh: fresh[id], fixed: c.yielded(dir + "/" + cpusFile)}
		if !u.fresh && !u.fixed && c.stands(id) {
			if !standing[w.CPUs] {
				standing[w.CPUs] = true
				units = append(units, u)
			}
			continue
		}
		if _, ok := c.to.state.Grant(id); !ok {
			return nil, fmt.Errorf("workload %q: %w", id, &place.NotHeldError{ID: id})
		}
		if !c.keepsMems(id) {
			u.mems = w.Mems
		}
		var err error
		switch {
		case u.fresh:
			u.members = []member{{dir: dir}}
		case c.follows(id) && !u.fixed && (g.version == 2 || g.isLeaf(dir)):
			was := c.from.bodies[id].Workload.CPUs
			u.members = []member{{dir: dir, cpus: was, original: was}}
		default:
			u.members, err = g.members(c, dir)
		}
		if err != nil {
			return nil, fmt.Errorf("workload %q: %w", id, err)
		}
		units = append(units, u)
	}
	others, err := g.others(c)
	return append(units, others...), err
}

// members reads a group and, on v1, those below it.
func (g *groups) members(c *change, dir string) ([]member, error) {
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
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		below, err := g.members(c, path.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, below...)
	}
	return all, nil
}

// isLeaf reports whether a group is known to have none below it, which costs less
// than to list its files: a directory of a cgroup file system has two links and one
// for each directory in it.
func (g *groups) isLeaf(dir string) bool {
	info, err := fs.Stat(g.root.FS(), dir)
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Nlink == 2
}

func (g *groups) member(c *change, dir string) (member, error) {
	m := member{dir: dir}
	var err error
	if m.cpus, err = g.set(dir + "/" + cpusFile); err != nil {
		return m, err
	}
	if m.cpus.IsEmpty() && g.version == 2 {
		m.bare = true
		if m.cpus, err = g.set(dir + "/cpuset.cpus.effective"); err != nil {
			return m, err
		}
	}
	m.original = m.cpus
	if text, ok := c.ledger.Original(dir + "/" + cpusFile); ok {
		if m.original, err = cpuset.Parse(text); err != nil {
			return m, err
		}
		if m.original.IsEmpty() {
			m.original = g.allowed
		}
	}
	return m, nil
}

func (g *groups) set(name string) (cpuset.Set, error) {
	text, err := fs.ReadFile(g.root.FS(), name)
	if err != nil {
		return cpuset.Set{}, err
	}
	return cpuset.Parse(strings.TrimSpace(string(text)))
}

// place plans the units' CPUs and memory nodes.
func (g *groups) place(units []*unit, c *change) (kernel.Plan, error) {
	p := placing{groups: g}
	for _, name := range []string{ownGroup, idleGroup} {
		if err := p.roof(path.Join(p.dir, name), units); err != nil {
			return nil, err
		}
	}
	// Units that go from the same CPUs to the same ones go together.
	type way struct{ have, want cpuset.Set }
	var seats []seat
	crews, known := [][]*unit{}, map[way]int{}
	for _, u := range units {
		s := seat{u.why, u.want, u.want}
		if !u.stands() {
			s.have = u.members[0].cpus
		}
		if u.fixed {
			s.want = s.have
		}
		i, ok := known[way{s.have, s.want}]
		if !ok {
			i = len(seats)
			known[way{s.have, s.want}] = i
			seats, crews = append(seats, s), append(crews, nil)
		}
		crews[i] = append(crews[i], u)
		if u.stands() {
			continue
		}
		if !u.mems.IsEmpty() && !c.yielded(u.members[0].dir+"/"+memsFile) {
			if err := p.mems(u); err != nil {
				return nil, err
			}
		}
	}
	moves, err := order(seats, c.contested(), g.allowed)
	if err != nil {
		return nil, err
	}
	for _, m := range moves {
		for _, u := range crews[m.seat] {
			p.cpus(u, m.cpus)
		}
	}
	for _, u := range units {
		if !u.stands() && u.members[0].bare && !u.fixed && u.members[0].cpus == u.want {
			p.write(u.members[0].dir, cpusFile, u.want, u.why)
		}
	}
	return p.plan, nil
}

// placing gathers the plan of CPUs and memory nodes.
type placing struct {
	*groups
	plan kernel.Plan
}

func (p *placing) write(dir, file string, set cpuset.Set, why string) {
	p.plan = append(p.plan, kernel.Step{Path: dir + "/" + file, Value: set.String(), Format: kernel.List, Why: why})
}

// roof keeps one of Berth's own v1 groups as wide as the base: CPUs that went
// offline and came back are missing in every v1 set below the top.
func (p *placing) roof(roof string, units []*unit) error {
	if p.version != 1 || !slices.ContainsFunc(units, func(u *unit) bool { return !u.stands() && within(u.members[0].dir, roof) }) {
		return nil
	}
	have, err := p.set(roof + "/" + cpusFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // made by this plan
	}
	if err == nil && !have.Contains(p.allowed) {
		p.write(roof, cpusFile, p.allowed, "as wide as what is around it")
	}
	return err
}

// cpus moves a unit: wider from the top down, then narrower from the bottom up,
// so that every v1 set holds those below it at any time.
func (p *placing) cpus(u *unit, to cpuset.Set) {
	next := make([]cpuset.Set, len(u.members))
	for i, m := range u.members {
		next[i] = to
		if i > 0 {
			next[i] = fit(m.original, next[u.parent(i)])
		}
		both := m.cpus.Union(next[i])
		if len(u.members) > 1 && both != m.cpus && !m.cpus.IsEmpty() {
			p.write(m.dir, cpusFile, both, u.why)
			u.members[i].cpus = both
		}
	}
	for i := len(u.members) - 1; i >= 0; i-- {
		m := &u.members[i]
		if m.cpus == next[i] || i > 0 && m.cpus.IsEmpty() {
			continue
		}
		p.write(m.dir, cpusFile, next[i], u.why)
		m.cpus, m.bare = next[i], false
	}
}

// fit is what of a set lies within another, or all of that if nothing does.
func fit(set, in cpuset.Set) cpuset.Set {
	if both := set.Intersect(in); !both.IsEmpty() {
		return both
	}
	return in
}

// parent is the position of the member that holds member i.
func (u *unit) parent(i int) int {
	dir := path.Dir(u.members[i].dir)
	return slices.IndexFunc(u.members, func(m member) bool { return m.dir == dir })
}

// mems gives a unit its memory nodes, those below it on v1 likewise.
func (p *placing) mems(u *unit) error {
	have := make([]cpuset.Set, len(u.members))
	next := make([]cpuset.Set, len(u.members))
	for i, m := range u.members {
		if !u.fresh {
			var err error
			if have[i], err = p.set(m.dir + "/" + memsFile); err != nil {
				return err
			}
		}
		next[i] = u.mems
		if i > 0 {
			next[i] = fit(have[i], next[u.parent(i)])
		}
		if both := have[i].Union(next[i]); len(u.members) > 1 && both != have[i] && !have[i].IsEmpty() {
			p.write(m.dir, memsFile, both, u.why)
			have[i] = both
		}
	}
	for i := len(u.members) - 1; i >= 0; i-- {
		if have[i] != next[i] && (i == 0 || !have[i].IsEmpty()) {
			p.write(u.members[i].dir, memsFile, next[i], u.why)
		}
	}
	return nil
}

// verify reports a workload whose group did not get the CPUs that were written:
// on v2, one within a narrower group.
func (g *groups) verify(c *change) error {
	if g.version != 2 || c.all {
		return nil
	}
	for _, id := range c.focus {
		w := c.to.bodies[id].Workload
		want, _ := c.to.state.CPUs(id)
		have, err := g.set(g.cpusetDir(w) + "/cpuset.cpus.effective")
		if err != nil {
			return err
		}
		if have != want && !c.yielded(g.cpusetDir(w)+"/"+cpusFile) {
			return fmt.Errorf("workload %q: the kernel gives CPUs %s instead of %s: a group around /%s is narrower", id, have, want, g.cpusetDir(w))
		}
	}
	return nil
}
