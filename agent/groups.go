package agent

import (
	"context"
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
)

// groups enforces by control groups: one for each workload, below ownGroup or idleGroup,
// or one that is there already.
type groups struct {
	root    *kernel.Root
	host    *cgroup.Host
	base    cgroup.Group
	dir     string // of the base where the cpuset controller is
	top     string // where that hierarchy is mounted
	version int    // of that hierarchy
	allowed cpuset.Set
	own     string   // this process's group there, "" if not visible
	confine []string // see Options
	protect []string
	// io is what a workload has by its I/O class; nil without any.
	io func(*Spec) (ioClass, error)
	// without is told which workload goes without a limit, and why.
	without func(id string, err error)
	// refused are the limits that the kernel refused; nil remembers none.
	refused *refusals
	within  cpuset.Set // the CPUs of what is confined; empty is all that nobody owns
	// idles are, of an Enforcer that has made some idle, the directories of groups that it did
	// not make and that are to be so still.
	idles map[string]bool
	// theirs are the groups in the last plan that are not Berth's, and that it is not about.
	theirs []string

	// shown are workloads, by id, with plans for their limits that the kernel showed in full
	// when everything was last compared.
	shown map[string]shown

	idleWhy   string // why there is no cpu.idle
	idleKnown bool
}

const (
	cpusFile = "cpuset.cpus"
	memsFile = "cpuset.mems"
	idleFile = "cpu.idle"
	// ownGroup and idleGroup hold the groups that Berth makes. cpu.idle acts between
	// siblings (Documentation/admin-guide/cgroup-v2.rst), so the workloads that are to
	// yield to the whole host are in a group that is idle beside all of it.
	ownGroup  = "berth"
	idleGroup = "berth-idle"
)

// IsOwn reports whether a group, named from the base on, is Berth's own: one of
// those that hold the groups that it makes, or in one.
func IsOwn(group string) bool {
	return kernel.Within(group, ownGroup) || kernel.Within(group, idleGroup)
}

// isParent reports whether a directory is that of ownGroup or idleGroup.
func (g *groups) isParent(dir string) bool {
	name := path.Base(dir)
	return (name == ownGroup || name == idleGroup) && slices.Contains(g.base.Dirs(), path.Dir(dir))
}

// openGroups finds the base. It fails with a kernel.NotSupportedError where CPUs
// cannot be given by control group. For root the base is the top of each tree
// as it is mounted, so that all processes of the host find the same one.
func openGroups(root *kernel.Root, host *cgroup.Host) (*groups, error) {
	g := &groups{root: root, host: host, shown: map[string]shown{}, without: func(string, error) {}}
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
	controllers := []string{cgroup.CPUSet, cgroup.CPU, cgroup.CPUAcct, cgroup.Memory, cgroup.IO, cgroup.PIDs}
	// A v2 tree beside v1's is left to whoever tracks processes by it.
	for _, controller := range []string{cgroup.Freezer, cgroup.HugeTLB} {
		if t, ok := host.Hierarchy(controller); ok && (t.Version == 1 || g.version == 2) {
			controllers = append(controllers, controller)
		}
	}
	var err error
	if g.base, err = host.Base(controllers...); err != nil {
		return nil, err
	}
	if err := g.base.Has(cgroup.CPUSet); err != nil {
		return nil, err
	}
	t, _ := host.Hierarchy(cgroup.CPUSet)
	i := slices.IndexFunc(g.base.Dirs(), func(dir string) bool { return kernel.Within(dir, t.Dir) })
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

func (g *groups) site() Site {
	rest := slices.DeleteFunc(slices.Clone(g.base.Dirs()), func(dir string) bool { return dir == g.dir })
	return Site{Backend: g.host.Mode(), CPUs: g.allowed, Dirs: append([]string{g.dir}, rest...), Top: g.top}
}

// Close implements Enforcer.
func (*groups) Close() error { return nil }

// Observe implements Enforcer.
func (g *groups) Observe(w *Workload) Observed {
	if w.Group != "" && w.Backend != g.host.Mode() { // the group is another's, but for its I/O class
		class, _ := g.ofIO(&w.Spec) // a note says what is not defined
		return Observed{There: g.exists(w), Limits: withIO(w.Spec.Limits, class.limits), CPUFile: g.cpusetDir(w) + "/" + cpusFile}
	}
	l, lack := g.settings(&w.Spec)
	return Observed{There: g.exists(w), Limits: l, Lack: lack, Notes: g.notes(w, l, lack), CPUFile: g.cpusetDir(w) + "/" + cpusFile}
}

// notes warns where a weight or idleness does not act against the whole host: only
// the children of one group compete by them.
func (g *groups) notes(w *Workload, l cgroup.Limits, lack string) []string {
	around := path.Dir(w.Group)
	idle := l.Idle == cgroup.On || lack != ""
	var notes []string
	if _, unlimited := g.huge(&w.Spec); unlimited != "" {
		notes = append(notes, unlimited)
	}
	if lack != "" {
		notes = append(notes, lack)
	}
	switch {
	case around == idleGroup && !idle:
		return append(notes, fmt.Sprintf("it is in %s, and so runs only when nobody else wants to; run it anew to change that", around))
	case around == idleGroup:
		if around = g.outer(); around == "" {
			return notes
		}
	case !idle && l.Weight == 0 || around == ".":
		return notes
	}
	return append(notes, fmt.Sprintf("its weight or idleness counts among the groups in %s; against others, %s counts as a whole", around, around))
}

// outer is the group around the base where CPU time is shared out, "" if that is
// the top of the tree.
func (g *groups) outer() string {
	t, _ := g.host.Hierarchy(cgroup.CPU)
	for _, dir := range g.base.Dirs() {
		if t.Dir != "" && kernel.Within(dir, t.Dir) {
			return strings.TrimPrefix(dir, t.Dir)
		}
	}
	return ""
}

// Locate implements Enforcer.
func (g *groups) Locate(w *Workload, others iter.Seq[*Workload]) error {
	w.Group = w.Spec.Group
	if w.Group == "" {
		parent := ownGroup
		if s := w.Spec.Settings(); s.Idle == cgroup.On {
			parent = idleGroup
		}
		w.Group = path.Join(parent, fileName(w.ID()))
	}
	w.Dirs = g.base.Child(w.Group).Dirs()
	if w.Spec.Group == "" {
		return nil
	}
	protected, err := g.protected()
	if err != nil {
		return err
	}
	if slices.ContainsFunc(protected, func(dir string) bool { return kernel.Within(g.cpusetDir(w), dir) }) {
		return &GroupError{w.Group, "it is protected"}
	}
	for other := range others {
		if id := other.ID(); id != w.ID() && (kernel.Within(w.Group, other.Group) || kernel.Within(other.Group, w.Group)) {
			return &GroupError{w.Group, fmt.Sprintf("it or one around it is that of workload %q", id)}
		}
	}
	_, err = fs.Stat(g.root.FS(), g.cpusetDir(w))
	if errors.Is(err, fs.ErrNotExist) {
		return &MissingError{fmt.Sprintf("group %q", w.Group)}
	}
	return err
}

func (g *groups) cpusetDir(w *Workload) string { return path.Join(g.dir, w.Group) }

func (w *Workload) made() bool { return w.Spec.Group == "" && w.Group != "" }

// Processes implements Supervisor. In a group that Berth made, those that the workload
// moved to groups below count.
func (g *groups) Processes(w *Workload) (pids []int, ok bool, err error) {
	pids, ok, err = g.base.Child(w.Group).Procs()
	if err != nil || len(pids) > 0 || !w.made() {
		return pids, ok, err
	}
	for _, below := range g.below(w) {
		some, _, err := g.base.Child(below).Procs()
		if err != nil && !errors.Is(err, kernel.ErrNotSupported) { // a group above lists those of a threaded one
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
func (g *groups) exists(w *Workload) bool {
	if g.isDir(g.cpusetDir(w)) {
		return true
	}
	if !w.made() || !slices.ContainsFunc(w.Dirs, g.isDir) {
		return false
	}
	if pids, _, err := g.Processes(w); err != nil || len(pids) > 0 {
		return true
	}
	o := w.Spec.Owner
	start, ok := startTime(g.root, o.PID)
	return o.PID != 0 && ok && start == o.Start
}

func (g *groups) isDir(name string) bool {
	info, err := fs.Stat(g.root.FS(), name)
	return err == nil && info.IsDir()
}

// below returns the groups that a workload has made in its own, in any
// hierarchy, named from the base on: a group before those in it.
func (g *groups) below(w *Workload) []string {
	found := map[string]bool{}
	for i, dir := range w.Dirs {
		base := g.base.Dirs()[i]
		all, _ := cgroup.Below(g.root.FS(), dir) // what cannot be read is not there
		for _, name := range all {
			found[strings.TrimPrefix(name, base+"/")] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// Kill implements Supervisor.
func (g *groups) Kill(ctx context.Context, w *Workload) error {
	return g.base.Child(w.Group).Kill(ctx)
}

// Enforce implements Enforcer. What has to be enabled comes first, since only then there
// is something to look at.
func (g *groups) Enforce(_ context.Context, c *Transition) (done Enforced, err error) {
	enable, err := g.enable(c)
	if err != nil {
		return done, err
	}
	disable, err := kernel.Apply(g.root, enable, c.Log)
	if err != nil {
		return done, err
	}
	var restore func() error
	for again := true; again; again = err != nil && g.leave(c, err) {
		plan, planErr := g.plan(c)
		if planErr != nil {
			return done, errors.Join(planErr, disable())
		}
		if restore, err = kernel.Apply(g.root, plan, c.Log); err == nil {
			g.refused.written("", plan)
		}
	}
	if err != nil {
		return done, errors.Join(err, disable())
	}
	var unlimited func() error
	follow, err := g.follow(c)
	if err == nil {
		err = g.verify(c)
	}
	if err == nil {
		unlimited, err = g.limitEach(c, c.unasked())
	}
	done.Undo = join(disable, restore, follow, unlimited)
	if err != nil {
		return done, errors.Join(err, done.Undo())
	}
	done.Finish = func() error {
		if !c.Leaves() && !c.Log.Has(g.formerLimits(c)) {
			return nil
		}
		return g.giveBack(c)
	}
	return done, nil
}
