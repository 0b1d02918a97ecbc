package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// groups is the backend of control groups: one for each workload, below ownGroup
// or idleGroup, or one that is there already.
type groups struct {
	root    *kernel.Root
	host    *cgroup.Host
	base    cgroup.Group
	dir     string // of the base where the cpuset controller is
	top     string // where that hierarchy is mounted
	version int    // of that hierarchy
	allowed cpuset.Set
	own     string // this process's group there, "" if not visible
	protect []string
}

const (
	cpusFile = "cpuset.cpus"
	memsFile = "cpuset.mems"
	// ownGroup and idleGroup hold the groups that Berth makes. cpu.idle acts between
	// siblings (Documentation/admin-guide/cgroup-v2.rst), so the workloads that are to
	// yield to the whole host are in a group that is idle beside all of it.
	ownGroup  = "berth"
	idleGroup = "berth-idle"
)

// IsOwn reports whether a group, named from the base on, is Berth's own: one of
// those that hold the groups that it makes, or in one.
func IsOwn(group string) bool { return within(group, ownGroup) || within(group, idleGroup) }

// isRoof reports whether a directory is that of ownGroup or idleGroup.
func (g *groups) isRoof(dir string) bool {
	name := path.Base(dir)
	return (name == ownGroup || name == idleGroup) && slices.Contains(g.base.Dirs(), path.Dir(dir))
}

// openGroups finds the base. It fails with a kernel.NotSupportedError where CPUs
// cannot be given by control group. For root the base is the top of each tree
// as it is mounted, so that all processes of the host find the same one.
func openGroups(root *kernel.Root, host *cgroup.Host) (*groups, error) {
	g := &groups{root: root, host: host}
	if t, ok := host.Hierarchy(cgroup.CPUSet); ok {
		g.own = t.Own
		g.version = t.Version
	}
	if host.UID == 0 {
		for i := range host.Hierarchies {
			if t := &host.Hierarchies[i]; t.Version == 1 {
				t.Own = t.Dir
			}
		}
	}
	var err error
	if g.base, err = host.Base(cgroup.CPUSet, cgroup.CPU, cgroup.CPUAcct, cgroup.Memory, cgroup.IO, cgroup.PIDs); err != nil {
		return nil, err
	}
	if err := g.base.Has(cgroup.CPUSet); err != nil {
		return nil, err
	}
	t, _ := host.Hierarchy(cgroup.CPUSet)
	i := slices.IndexFunc(g.base.Dirs(), func(dir string) bool { return within(dir, t.Dir) })
	g.dir, g.top = g.base.Dirs()[i], t.Dir
	for _, file := range []string{"cpuset.cpus.effective", "cpuset.effective_cpus", cpusFile} {
		text, err := fs.ReadFile(root.FS(), g.dir+"/"+file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		g.allowed, err = cpuset.Parse(strings.TrimSpace(string(text)))
		return g, err
	}
	return nil, fmt.Errorf("read /%s: no file tells its CPUs", g.dir)
}

// within reports whether a path is that of a directory or lies in it.
func within(name, dir string) bool {
	return strings.HasPrefix(name, dir) && (len(name) == len(dir) || name[len(dir)] == '/')
}

func (g *groups) name() string { return g.host.Mode() }

// notes warns where a weight or idleness does not act against the whole host: only
// the children of one group compete by them.
func (g *groups) notes(b *body) []string {
	l := &b.Workload.Spec.Limits
	idle, around := l.Idle == cgroup.On, path.Dir(b.Workload.Group)
	switch {
	case around == idleGroup && !idle:
		return []string{fmt.Sprintf("it is in %s, and so runs only when nobody else wants to; run it anew to change that", around)}
	case around == idleGroup:
		if around = g.outer(); around == "" {
			return nil
		}
	case !idle && l.Weight == 0 || around == ".":
		return nil
	}
	return []string{fmt.Sprintf("its weight or idleness counts among the groups in %s; against others, %s counts as a whole", around, around)}
}

// outer is the group around the base where CPU time is shared out, "" if that is
// the top of the tree.
func (g *groups) outer() string {
	t, _ := g.host.Hierarchy(cgroup.CPU)
	for _, dir := range g.base.Dirs() {
		if t.Dir != "" && within(dir, t.Dir) {
			return strings.TrimPrefix(dir, t.Dir)
		}
	}
	return ""
}

// admit fills in the workload's group.
func (g *groups) admit(b *body, others map[string]*body) error {
	w := b.Workload
	w.Group = w.Spec.Group
	if w.Group == "" {
		roof := ownGroup
		if w.Spec.Limits.Idle == cgroup.On {
			roof = idleGroup
		}
		w.Group = path.Join(roof, fileName(w.ID()))
	}
	w.Dirs = g.base.Child(w.Group).Dirs()
	if w.Spec.Group == "" {
		return nil
	}
	protected, err := g.protected()
	if err != nil {
		return err
	}
	if slices.ContainsFunc(protected, func(dir string) bool { return within(g.cpusetDir(w), dir) }) {
		return &GroupError{w.Group, "it is protected"}
	}
	for id, other := range others {
		if id != w.ID() && (within(w.Group, other.Workload.Group) || within(other.Workload.Group, w.Group)) {
			return &GroupError{w.Group, fmt.Sprintf("it or one around it is that of workload %q", id)}
		}
	}
	_, err = fs.Stat(g.root.FS(), g.cpusetDir(w))
	if errors.Is(err, fs.ErrNotExist) {
		return &MissingError{fmt.Sprintf("group %q", w.Group)}
	}
	return err
}

func (g *groups) seat(b *body) string { return g.cpusetDir(b.Workload) + "/" + cpusFile }

func (g *groups) cpusetDir(w *Workload) string { return path.Join(g.dir, w.Group) }

// made reports whether Berth made the workload's group.
func (w *Workload) made() bool { return w.Spec.Group == "" && w.Group != "" }

// present returns whether the workload's group is there, and its processes. In a
// group that Berth made, those that the workload moved to groups below count.
func (g *groups) present(b *body) (pids []int, ok bool, err error) {
	pids, ok, err = g.base.Child(b.Workload.Group).Procs()
	if err != nil || len(pids) > 0 || !b.Workload.made() {
		return pids, ok, err
	}
	for _, below := range g.below(b) {
		some, _, err := g.base.Child(below).Procs()
		if err != nil {
			return nil, false, err
		}
		pids = append(pids, some...)
	}
	slices.Sort(pids)
	return slices.Compact(pids), ok, nil
}

// exists reports whether a workload's group is where CPUs are given. A group that
// Berth made and that someone removed there, which takes that its processes had left
// it, is to be made again if they, or an owner who is to send one, are still there.
func (g *groups) exists(b *body) bool {
	if g.isDir(g.cpusetDir(b.Workload)) {
		return true
	}
	if !b.Workload.made() || !slices.ContainsFunc(b.Workload.Dirs, g.isDir) {
		return false
	}
	if pids, _, err := g.present(b); err != nil || len(pids) > 0 {
		return true
	}
	o := b.Workload.Spec.Owner
	start, ok := startTime(g.root, o.PID)
	return o.PID != 0 && ok && start == o.Start
}

func (g *groups) isDir(name string) bool {
	info, err := fs.Stat(g.root.FS(), name)
	return err == nil && info.IsDir()
}

// below returns the groups that a workload has made in its own, in any
// hierarchy, named from the base on: a group before those in it.
func (g *groups) below(b *body) []string {
	found := map[string]bool{}
	for i, dir := range b.Workload.Dirs {
		base := g.base.Dirs()[i]
		// What vanishes meanwhile is not there.
		_ = fs.WalkDir(g.root.FS(), dir, func(name string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() && name != dir {
				found[strings.TrimPrefix(name, base+"/")] = true
			}
			return nil
		})
	}
	return slices.Sorted(maps.Keys(found))
}

func (g *groups) kill(ctx context.Context, b *body) error {
	return g.base.Child(b.Workload.Group).Kill(ctx)
}

// enable plans the v2 controllers for the groups that a change is about.
func (g *groups) enable(c *change) (kernel.Plan, error) {
	if g.version != 2 {
		return nil, nil
	}
	offered, err := readText(g.root, g.dir+"/cgroup.controllers")
	if err != nil {
		return nil, err
	}
	var plan kernel.Plan
	for _, id := range c.focus {
		for dir := path.Dir(g.cpusetDir(c.to.bodies[id].Workload)); within(dir, g.dir); dir = path.Dir(dir) {
			step, err := g.enableIn(dir, strings.Fields(offered))
			if err != nil {
				return nil, err
			}
			if step.Value != "" && !slices.ContainsFunc(plan, func(s kernel.Step) bool { return s.Path == step.Path }) {
				plan = append(kernel.Plan{step}, plan...)
			}
		}
	}
	return plan, nil
}

// enableIn is the step that hands a group's controllers on to its children; its
// value is empty if there is none to take.
func (g *groups) enableIn(dir string, offered []string) (kernel.Step, error) {
	step := kernel.Step{Op: kernel.Enable, Path: dir + "/cgroup.subtree_control"}
	text, err := readText(g.root, step.Path)
	if err != nil {
		return step, ignoreAbsent(err) // the group is yet to be made
	}
	var words []string
	for _, name := range []string{cgroup.CPUSet, cgroup.CPU, cgroup.IO, cgroup.Memory, cgroup.PIDs} {
		if slices.Contains(offered, name) && g.base.Has(name) == nil && !slices.Contains(strings.Fields(text), name) {
			words = append(words, "+"+name)
		}
	}
	step.Value = strings.Join(words, " ")
	return step, nil
}

// plan is the difference between what the kernel shows and what c is to come to.
func (g *groups) plan(c *change) (work, error) {
	var w work
	fresh := map[string]bool{}
	for _, id := range c.focus {
		plan, err := g.create(c.to.bodies[id])
		if err != nil {
			return w, err
		}
		if len(plan) > 0 && c.from.bodies[id] != nil && !g.exists(c.to.bodies[id]) {
			return w, fmt.Errorf("workload %q: %w", id, &MissingError{fmt.Sprintf("group %q", c.to.bodies[id].Workload.Group)})
		}
		fresh[id] = len(plan) > 0
		w.plan = append(w.plan, plan...)
	}
	idle, err := g.idle(c)
	if err != nil {
		return w, err
	}
	w.plan = append(w.plan, idle...)
	units, err := g.units(c, fresh)
	if err != nil {
		return w, err
	}
	placing, err := g.place(units, c)
	if err != nil {
		return w, err
	}
	w.plan = append(w.plan, placing...)
	for _, id := range c.limited() {
		plan, err := g.limits(c, id, fresh[id])
		if err != nil {
			return w, err
		}
		w.plan = append(w.plan, plan...)
	}
	for _, id := range c.focus {
		plan, err := g.attach(c, id, fresh[id])
		if err != nil {
			return w, err
		}
		w.plan = append(w.plan, plan...)
	}
	return w, nil
}

// attach plans to move a new workload's process into its group, or into one that is
// made again, those that are in the rest of it.
func (g *groups) attach(c *change, id string, fresh bool) (plan kernel.Plan, err error) {
	b := c.to.bodies[id]
	group := g.base.Child(b.Workload.Group)
	var pids []int
	switch {
	case c.from.bodies[id] == nil && b.Workload.Spec.PID != 0:
		pids = []int{b.Workload.Spec.PID}
	case c.from.bodies[id] != nil && fresh:
		if pids, _, err = group.Procs(); err != nil {
			return nil, err
		}
	}
	for _, pid := range pids {
		steps, err := group.Attach(pid)
		if err != nil {
			return nil, err
		}
		plan = append(plan, steps...)
	}
	return plan, nil
}

// create plans the directories of a group that are missing, with v1 cpusets that
// can hold processes.
func (g *groups) create(b *body) (kernel.Plan, error) {
	if !b.Workload.made() {
		return nil, nil
	}
	there := map[string]bool{}
	missing := false
	for _, dir := range b.Workload.Dirs {
		_, err := fs.Stat(g.root.FS(), dir)
		there[dir] = err == nil
		missing = missing || err != nil
	}
	if !missing {
		return nil, nil
	}
	all, err := g.base.Child(b.Workload.Group).Create()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(s kernel.Step) bool { return there[s.Path] || s.Keep && there[path.Dir(s.Path)] }), nil
}

// limits plans a workload's settings beyond placing, as far as they are not
// what the kernel shows.
func (g *groups) limits(c *change, id string, fresh bool) (kernel.Plan, error) {
	to := c.to.bodies[id]
	l := to.Workload.Spec.Limits
	if from := c.from.bodies[id]; from != nil {
		l = withDefaults(l, from.Workload.Spec.Limits)
	}
	plan, err := g.base.Child(to.Workload.Group).Set(l)
	if err != nil || fresh {
		return plan, err
	}
	if plan, err = g.differing(c, plan); err != nil {
		return nil, fmt.Errorf("limits of workload %q: %w", id, err)
	}
	return plan, nil
}

// idle plans that idleGroup is idle where it holds a workload.
func (g *groups) idle(c *change) (kernel.Plan, error) {
	holds := func(id string) bool { return within(c.to.bodies[id].Workload.Group, idleGroup) }
	if !slices.ContainsFunc(c.limited(), holds) {
		return nil, nil
	}
	plan, err := g.base.Child(idleGroup).Set(cgroup.Limits{Idle: cgroup.On})
	if err != nil {
		return nil, err
	}
	if plan, err = g.differing(c, plan); err != nil {
		return nil, fmt.Errorf("make group %s idle: %w", idleGroup, err)
	}
	return plan, nil
}

// differing are the steps of a plan that the kernel does not show yet. A group that
// is yet to be made shows nothing.
func (g *groups) differing(c *change, plan kernel.Plan) (differs kernel.Plan, err error) {
	for _, s := range plan {
		_, same, err := g.root.Shows(s)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if !same && !c.yielded(s.Path) {
			differs = append(differs, s)
		}
	}
	return differs, nil
}

// withDefaults is l with what before had and l lacks set to the kernel's default.
func withDefaults(l, before cgroup.Limits) cgroup.Limits {
	if l.Weight == 0 && before.Weight != 0 && l.Idle != cgroup.On {
		l.Weight = 100
	}
	if l.Idle == cgroup.Leave && before.Idle == cgroup.On {
		l.Idle = cgroup.Off
	}
	if l.Quota == 0 && before.Quota != 0 {
		l.Quota, l.Period = cgroup.Unlimited, 0
	}
	if l.Burst == 0 && before.Burst != 0 {
		l.Burst = cgroup.Unlimited
	}
	for _, p := range []struct{ to, had *int64 }{
		{&l.MemoryMax, &before.MemoryMax}, {&l.MemoryHigh, &before.MemoryHigh}, {&l.PIDsMax, &before.PIDsMax},
	} {
		if *p.to == 0 && *p.had != 0 {
			*p.to = cgroup.Unlimited
		}
	}
	if l.IOWeight == 0 && before.IOWeight != 0 {
		l.IOWeight = 100
	}
	if l.Frozen == cgroup.Leave && before.Frozen == cgroup.On {
		l.Frozen = cgroup.Off
	}
	return l
}

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

// remove removes the group that Berth made for a workload, with those that the
// workload made in it.
func (g *groups) remove(c *change, b *body) error {
	if !b.Workload.made() {
		return nil
	}
	for _, below := range slices.Backward(g.below(b)) {
		for _, dir := range g.base.Child(below).Dirs() {
			_ = g.root.Rmdir(dir) // if it stays, removing what is around it says so
		}
	}
	_, err := c.ledger.Undo(func(s kernel.Step) bool {
		return s.Op == kernel.Mkdir && slices.ContainsFunc(b.Workload.Dirs, func(dir string) bool { return within(s.Path, dir) })
	})
	return err
}

// evacuate moves the processes of a group that Berth made to where the first one
// came from, or to the base. Those that were moved in are left to the ledger.
func (g *groups) evacuate(c *change, b *body) error {
	if !b.Workload.made() {
		return nil
	}
	var errs []error
	for i, dir := range b.Workload.Dirs {
		text, err := readText(g.root, dir+"/cgroup.procs")
		if err != nil {
			errs = append(errs, ignoreAbsent(err))
			continue
		}
		back, noted := g.base.Dirs()[i]+"/cgroup.procs", map[string]bool{}
		for _, note := range c.ledger.Notes() {
			if note.Step.Op == kernel.Attach && note.Step.Path == dir+"/cgroup.procs" {
				back, noted[note.Step.Value] = note.Step.Back, true
			}
		}
		for _, pid := range strings.Fields(text) {
			if noted[pid] {
				continue
			}
			if err := g.root.WriteFile(back, pid+"\n"); err != nil && !errors.Is(err, syscall.ESRCH) {
				errs = append(errs, fmt.Errorf("move process %s to /%s: %w", pid, back, err))
			}
		}
	}
	return errors.Join(errs...)
}
