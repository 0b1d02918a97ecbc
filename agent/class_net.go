package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/traffic"
)

// NetClass is a class of what a workload sends through network devices.
const NetClass ClassKind = "net"

// netGroup begins the names of groups of cgroup v2 that Berth makes, beside v1's, for the
// processes of workloads with a network class: the kernel tells packets apart by those.
const netGroup = "berth-net-"

func isNetStep(s kernel.Step) bool {
	device, _ := traffic.Divides(s.Path)
	return device != "" || traffic.IsMark(s.Path) || traffic.IsLimit(s.Path) || isNetGroup(s)
}

// isNetGroup reports whether a step makes such a group, as mark has it: workloads have any name,
// and so have the groups that Berth makes for them.
func isNetGroup(s kernel.Step) bool {
	return s.Op == kernel.Mkdir && strings.HasPrefix(path.Base(s.Path), netGroup) && s.Back == path.Dir(s.Path)+"/cgroup.procs"
}

// netClasses are the disciplines of devices, and the marks of the workloads' groups.
type netClasses struct{ n *Node }

// asks reports whether a transition is about a workload that asks for a class by name: what it
// cannot have is refused then, and left out otherwise.
func (*netClasses) asks(c *Transition, w *Workload) bool {
	return w.Spec.asksFor(NetClass) && c.asks(w.ID())
}

// members are the workloads with a class that devices have, those that are only reserved not.
func (k *netClasses) members(all iter.Seq[*Workload]) (members []*Workload) {
	config := k.n.opt.Classes
	for w := range all {
		if name := config.ClassOf(NetClass, &w.Spec); config.Net.Divides(name) && w.State != Reserved {
			members = append(members, w)
		}
	}
	slices.SortFunc(members, func(a, b *Workload) int { return strings.Compare(a.ID(), b.ID()) })
	return members
}

// concerns reports whether a transition changes whose class is which.
func (k *netClasses) concerns(c *Transition) bool {
	config := k.n.opt.Classes
	return c.All || slices.ContainsFunc(c.focus, func(id string) bool {
		was, is := c.Before(id), c.After(id)
		return was != nil && config.ClassOf(NetClass, &was.Spec) != "" || is != nil && config.ClassOf(NetClass, &is.Spec) != ""
	})
}

// divide are the writes for classes of devices.
func (k *netClasses) divide(c *Transition) (plan kernel.Plan, err error) {
	asked := false
	for w := range c.Workloads() {
		if _, err := k.n.opt.Classes.classIn(c, NetClass, w); err != nil {
			return nil, err
		}
		asked = asked || k.asks(c, w)
	}
	if !k.concerns(c) {
		return nil, nil
	}
	members := k.members(c.Workloads())
	if plan, err = k.unmark(c, members); err != nil || len(members) == 0 {
		return plan, err
	}
	layout, err := netLayout(k.n.root.FS(), k.n.opt.Classes.Net)
	if err != nil && (asked || layout == nil && !errors.Is(err, kernel.ErrNotSupported)) {
		return nil, err
	}
	if layout == nil {
		return plan, nil // a note says so
	}
	plan = append(plan, layout.Plan()...)
	for _, w := range members {
		g, err := k.groupOf(w)
		if errors.Is(err, kernel.ErrNotSupported) && !k.asks(c, w) {
			continue
		}
		if err != nil {
			err = refusal(NetClass, "", w.ID(), fmt.Errorf("workload %q: %w", w.ID(), err))
		} else if !k.awaited(w, g) {
			var some kernel.Plan
			some, err = k.mark(c, w, g, layout)
			plan = append(plan, some...)
		}
		if err != nil && c.asks(w.ID()) {
			return nil, err
		} else if err != nil {
			k.n.without(NetClass, k.n.opt.Classes.ClassOf(NetClass, &w.Spec), w.ID(), err)
		}
	}
	return slices.DeleteFunc(plan, func(s kernel.Step) bool { return s.Op == kernel.Write && c.Yielded(s.Path) }), nil
}

// unmark are the steps that take the marks of groups away that are of workloads without a class.
// Those in groups that Berth made go with the group, unless that stays for a limit.
func (k *netClasses) unmark(c *Transition, members []*Workload) (plan kernel.Plan, err error) {
	marked := map[string]bool{}
	for _, w := range members {
		marked[w.ID()] = true
	}
	for w := range c.Workloads() {
		if marked[w.ID()] {
			continue
		}
		g, err := k.groupOf(w)
		if err != nil || g.own && !k.n.opt.Classes.tellsApart(&w.Spec) {
			continue
		}
		s := traffic.Unmark(g.dir)
		if _, same, err := k.n.root.Shows(s); err == nil && !same {
			plan = append(plan, s)
		} else if kernel.IgnoreAbsent(err) != nil {
			return nil, fmt.Errorf("workload %q: %w", w.ID(), err)
		}
	}
	slices.SortFunc(plan, func(a, b kernel.Step) int { return strings.Compare(a.Path, b.Path) })
	return plan, nil
}

// netLayout is what network classes come to on a host. With an error beside it, it is of the
// devices that are as the configuration says.
func netLayout(fsys fs.FS, c *traffic.Config) (*traffic.Layout, error) {
	h, err := traffic.Read(fsys, c)
	if err != nil {
		return nil, err
	}
	layout, err := c.Layout(h)
	if err != nil {
		err = fmt.Errorf("network classes: %w", err)
	}
	return layout, err
}

// mark are the steps that have a workload's packets be of its class.
func (k *netClasses) mark(c *Transition, w *Workload, g markedGroup, layout *traffic.Layout) (plan kernel.Plan, err error) {
	name := k.n.opt.Classes.ClassOf(NetClass, &w.Spec)
	why := "network class " + name
	s := kernel.Step{Path: traffic.MarkFile(g.dir), Value: layout.MarkOf(name), Why: why}
	_, same, err := k.n.root.Shows(s)
	if absent := errors.Is(err, fs.ErrNotExist); absent && g.own {
		plan = append(plan, kernel.Step{Op: kernel.Mkdir, Path: g.dir, Back: g.top + "/cgroup.procs", Why: why})
	} else if absent && c.Before(w.ID()) != nil {
		return nil, nil // somebody removed it
	} else if err != nil && !absent {
		return nil, fmt.Errorf("workload %q: %w", w.ID(), err)
	} else if g.own && !k.made(c, g.dir) {
		return nil, &ClassError{Kind: NetClass, Name: name, Reason: errForeign(g.dir).Error()}
	}
	if !same {
		plan = append(plan, s)
	}
	return plan, nil
}

func errForeign(dir string) error {
	return fmt.Errorf("/%s is there, and this node did not make it: remove it (rmdir)", dir)
}

func (*netClasses) made(c *Transition, dir string) bool {
	return c.Log.Has(func(s kernel.Step) bool { return s.Op == kernel.Mkdir && s.Path == dir }) && !c.Log.Outdated(dir)
}

// markedGroup is a group of cgroup v2 whose packets are a workload's.
type markedGroup struct {
	dir string
	own bool   // made for this, beside the workload's groups of v1
	top string // where v2 is mounted
}

// groupOf is where a workload's packets are told apart, or a kernel.NotSupportedError.
func (k *netClasses) groupOf(w *Workload) (g markedGroup, err error) {
	lacks := func(remedy, format string, args ...any) (markedGroup, error) {
		return g, &kernel.NotSupportedError{Feature: "network classes", Reason: fmt.Sprintf(format, args...), Remedy: remedy}
	}
	dirs := w.dirsIn(k.n.site.Dirs)
	if len(dirs) == 0 {
		return lacks("run as root, with control groups", "by %s Berth has no control group for it", k.n.site.Backend)
	}
	if g.top = k.n.unifiedTop(); g.top == "" {
		return g, LacksBandwidth(k.n.root.FS())
	}
	for _, dir := range dirs {
		if kernel.Within(dir, g.top) {
			g.dir = dir
			return g, nil
		}
	}
	// The same group in v2: systemd keeps both alike, and runc makes both when its container comes.
	if w.Spec.Group != "" {
		same := path.Join(g.top, k.base(), w.Spec.Group)
		_, absent := fs.Stat(k.n.root.FS(), same)
		if _, err := fs.Stat(k.n.root.FS(), dirs[0]); absent == nil || len(w.Dirs) == 0 && errors.Is(err, fs.ErrNotExist) {
			g.dir = same
			return g, nil
		}
	}
	g.dir, g.own = path.Join(g.top, netGroup+fileName(w.ID())), true
	pids, err := k.processes(w)
	if err != nil {
		return g, err
	}
	for _, pid := range pids {
		// One of Berth's is that of a workload around this one, whose processes begin there.
		if in, ok := k.inUnified(pid); ok && in != "/" && (path.Dir(in) != "/" || !strings.HasPrefix(in, "/"+netGroup)) {
			return lacks("boot with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1)", "its process %d is in the v2 group %s, by which another program keeps track of it", pid, in)
		}
	}
	return g, nil
}

// unifiedTop is cgroup.Unified when the node was last turned to. A Kubernetes node has thousands of
// mounts, and is asked for each of its workloads.
func (n *Node) unifiedTop() string {
	if n.unified == nil {
		top := cgroup.Unified(n.root.FS())
		n.unified = &top
	}
	return *n.unified
}

// awaited reports whether a group is yet to be made by something else, a container runtime: its
// workload arrives then.
func (k *netClasses) awaited(w *Workload, g markedGroup) bool {
	if g.own || len(w.Dirs) > 0 {
		return false
	}
	_, err := fs.Stat(k.n.root.FS(), g.dir)
	return errors.Is(err, fs.ErrNotExist)
}

// base is where the groups of workloads are named from, below the top of the hierarchy: an
// Enforcer that tells no top is root's, and begins there.
func (k *netClasses) base() string {
	if k.n.site.Top == "" {
		return ""
	}
	return strings.TrimPrefix(k.n.site.Dirs[0], k.n.site.Top)
}

// inUnified is the v2 group of a process; ok is false if it has ended.
func (k *netClasses) inUnified(pid int) (group string, ok bool) {
	text, err := fs.ReadFile(k.n.root.FS(), fmt.Sprintf("proc/%d/cgroup", pid))
	if err != nil {
		return "", false
	}
	all, err := cgroup.ParseMembership(string(text))
	i := slices.IndexFunc(all, func(m cgroup.Membership) bool { return m.ID == 0 })
	if err != nil || i < 0 {
		return "", false
	}
	return all[i].Path, true
}

// processes are those of a workload, and before they are in its group the one to come.
func (k *netClasses) processes(w *Workload) (pids []int, err error) {
	if pids, err = k.n.processes(w); len(pids) == 0 && w.Spec.PID > 0 {
		pids = []int{w.Spec.PID}
	}
	return pids, err
}

func (k *netClasses) used(c *Transition) func(kernel.Step) bool {
	members := k.members(c.Workloads())
	groups := map[string]bool{}
	limits, _ := k.limited(c.Workloads(), leftOut)
	for _, w := range k.joined(c.Workloads()) {
		if g, err := k.groupOf(w); err == nil {
			groups[g.dir] = true
		}
	}
	layout := sync.OnceValue(func() *traffic.Layout {
		layout, _ := netLayout(k.n.root.FS(), k.n.opt.Classes.Net) // of the devices that can be divided
		return layout
	})
	return func(s kernel.Step) bool {
		if device, by := traffic.Divides(s.Path); device != "" {
			if _, named := k.n.opt.Classes.Net.Links()[device]; !named || len(members) == 0 {
				return false
			}
			wanted := by
			if l := layout(); l != nil {
				wanted = cmp.Or(l.By(device), by)
			}
			return by == wanted // a device that is divided by another now has no more of the former
		}
		if traffic.IsLimit(s.Path) {
			_, is := limits[path.Dir(s.Path)]
			return is
		}
		return groups[s.Path] || groups[path.Dir(s.Path)]
	}
}

func (k *netClasses) about(c *Transition, s kernel.Step) (name, id string) {
	if traffic.IsLimit(s.Path) {
		all, _ := k.changed(c, leftOut)
		ids := all[path.Dir(s.Path)].ids
		if len(ids) == 0 {
			return "", ""
		}
		return "", ids[max(slices.IndexFunc(ids, c.asks), 0)]
	}
	for _, w := range k.joined(c.Workloads()) {
		if g, err := k.groupOf(w); err == nil && (s.Path == g.dir || path.Dir(s.Path) == g.dir) {
			return k.n.opt.Classes.ClassOf(NetClass, &w.Spec), w.ID()
		}
	}
	return "", ""
}

// follow puts the processes of workloads into the groups made for them, and those that are not
// the workload's any more out of them. A second pass finds what was forked meanwhile. Limits that
// are about devices follow those.
func (k *netClasses) follow(c *Transition) (moved int, undo func() error, err error) {
	undo = func() error { return nil } // removing the group moves its processes back
	k.recount(c)
	for _, w := range k.joined(c.Workloads()) {
		if !c.looksAt(w) {
			continue
		}
		g, err := k.groupOf(w)
		if err != nil || !g.own || !k.made(c, g.dir) {
			continue // it was told
		}
		for range 2 {
			n, err := k.move(w, g)
			if moved += n; err != nil {
				return moved, undo, fmt.Errorf("processes of workload %q: %w", w.ID(), err)
			}
		}
	}
	return moved, undo, nil
}

func (k *netClasses) move(w *Workload, g markedGroup) (moved int, err error) {
	fsys := k.n.root.FS()
	list := func() (is, theirs []int, err error) {
		if is, err = kernel.ReadProcs(fsys, g.dir); err == nil {
			theirs, err = k.n.processes(w) // the number of the one that was placed may be another's by now
		}
		return is, theirs, err
	}
	is, theirs, err := list()
	if err != nil {
		return 0, kernel.IgnoreAbsent(err)
	}
	in, out := minus(theirs, is), minus(is, theirs)
	if len(in)+len(out) == 0 {
		return 0, nil
	}
	starts := startsOf(fsys, slices.Concat(in, out))
	// Who is listed again still had that start while it was listed before.
	if is, theirs, err = list(); err != nil {
		return 0, kernel.IgnoreAbsent(err)
	}
	put := func(from, to string, pids []int) error {
		for _, pid := range pids {
			step := kernel.Step{Op: kernel.Attach, Path: to + "/cgroup.procs", Value: strconv.Itoa(pid), Back: from + "/cgroup.procs", Start: starts[pid]}
			if step.Start == "" {
				continue
			}
			_, err := kernel.Apply(k.n.root, kernel.Plan{step}, nil)
			if errors.Is(err, syscall.ESRCH) {
				continue // it has ended
			}
			if moved++; err != nil {
				return err
			}
		}
		return nil
	}
	if err = put(g.top, g.dir, minus(theirs, is)); err == nil {
		err = put(g.dir, g.top, minus(is, theirs))
	}
	return moved, err
}

// minus are the numbers of a list that another one has not.
func minus(all, but []int) []int {
	return slices.DeleteFunc(slices.Clone(all), func(n int) bool { return slices.Contains(but, n) })
}

// notes say what of a class is not in force, and what it costs.
func (k *netClasses) notes(w *Workload) (notes []string) {
	config, name := k.n.opt.Classes.Net, k.n.opt.Classes.ClassOf(NetClass, &w.Spec)
	divides, from := config.Divides(name), config.FromOf(name)
	note := func(format string, args ...any) {
		notes = append(notes, fmt.Sprintf("network class %q: ", name)+fmt.Sprintf(format, args...))
	}
	if divides { // of others limitNote says what is not in force
		for _, text := range k.n.notesOnce(NetClass, "", k.layoutNotes) {
			note("%s", text)
		}
		if _, err := k.groupOf(w); err != nil {
			note("%v", err)
		}
	}
	if from != "" {
		notes = append(notes, k.n.notesOnce(NetClass, name, func() []string { return k.arrivalNotes(name) })...)
	}
	if !divides && from == "" {
		return notes
	}
	if pid, ok := k.apart(w); ok {
		if divides {
			note("its process %d has a network of its own, from which packets come to the host without their class: only those with the host's network (hostNetwork) keep it", pid)
		}
		if from != "" {
			note("its process %d has a network of its own: what that receives comes through none of %s of the host, and has no limit by the class (before Linux 6.15, it has through a device with the number of one of these)", pid, from)
		}
	}
	return notes
}

// layoutNotes are those of the devices, the same for all classes.
func (k *netClasses) layoutNotes() (notes []string) {
	layout, err := netLayout(k.n.root.FS(), k.n.opt.Classes.Net)
	if layout == nil {
		return []string{err.Error()}
	}
	for _, e := range strictyaml.Errors(err) {
		notes = append(notes, e.Err.Error())
	}
	for _, link := range layout.Links {
		notes = append(notes, link.Notes...)
	}
	return notes
}

// apart returns a process of a workload that is in another network namespace than this one.
func (k *netClasses) apart(w *Workload) (pid int, ok bool) {
	pids, _ := k.processes(w)
	own, err := fs.ReadLink(k.n.root.FS(), "proc/self/ns/net")
	if err != nil {
		return 0, false
	}
	for _, pid := range pids {
		if its, err := fs.ReadLink(k.n.root.FS(), fmt.Sprintf("proc/%d/ns/net", pid)); err == nil && its != own {
			return pid, true
		}
	}
	return 0, false
}
