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
