package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/resctrl"
)

// ClassKind says of what a class is: a workload has at most one class of each kind.
type ClassKind string

// CacheClass are classes of caches and memory bandwidth.
const CacheClass ClassKind = "cache"

// ClassKinds returns the kinds that there are.
func ClassKinds() []ClassKind { return []ClassKind{CacheClass} }

// ClassConfig says which classes there are, by kind. The zero value has none.
type ClassConfig struct {
	// Cache are classes of caches and memory bandwidth. Default: none.
	Cache *resctrl.Config `json:"cache,omitempty"`
}

// Names returns the classes of a kind, sorted.
func (c ClassConfig) Names(kind ClassKind) []string {
	if kind == CacheClass && c.Cache != nil {
		return c.Cache.Names()
	}
	return nil
}

// ClassOf returns the class of a kind that a workload has: that which it asks for, or that of
// its class of service; "" means none.
func (c ClassConfig) ClassOf(kind ClassKind, s *Spec) string {
	if name := s.Classes[kind]; name != "" {
		return name
	}
	if kind == CacheClass && c.Cache != nil {
		return c.Cache.Service[s.Request.Class.String()]
	}
	return ""
}

// Classes returns the classes that there are, and which of each kind a workload has.
func (n *Node) Classes() ClassConfig {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.opt.Classes
}

// ClassError is a class that a workload cannot have.
type ClassError struct {
	Kind         ClassKind
	Name, Reason string
}

func (e *ClassError) Error() string {
	return fmt.Sprintf("%s class %q: %s", e.Kind, e.Name, e.Reason)
}

// classifier gives workloads their classes of one kind, beside the Enforcer and whichever
// that is: groups of the kernel with settings, of which workloads are members.
type classifier interface {
	// plan returns the writes that lead from what the kernel shows to what a transition is to
	// come to. A class that is not defined is a *ClassError.
	plan(c *Transition) (kernel.Plan, error)
	// follow makes members of the threads of workloads, and returns how many it moved and
	// what undoes that.
	follow(c *Transition) (moved int, undo func() error, err error)
	// used reports whether a step made what a transition still needs.
	used(c *Transition) func(kernel.Step) bool
	// notes are plain warnings about the class of a workload.
	notes(w *Workload) []string
}

// isClassStep reports whether a step is one of a classifier.
func isClassStep(s kernel.Step) bool { return s.Status != "" }

// classifiers are those that a transition concerns.
func (n *Node) classifiers(c *Transition) (all []classifier) {
	of := func(workloads iter.Seq[*Workload]) bool {
		for w := range workloads {
			if n.opt.Classes.ClassOf(CacheClass, &w.Spec) != "" {
				return true
			}
		}
		return false
	}
	if of(c.Workloads()) || of(c.Former()) || c.Log.Has(isClassStep) {
		all = append(all, &cacheClasses{n: n})
	}
	return all
}

// planClasses are the writes of all kinds.
func (n *Node) planClasses(c *Transition) (plan kernel.Plan, err error) {
	for _, k := range n.classifiers(c) {
		some, err := k.plan(c)
		if err != nil {
			return nil, err
		}
		plan = append(plan, some...)
	}
	return plan, nil
}

// classed adds to what the Enforcer has done what workloads get by their classes; after an
// error all is undone.
func (n *Node) classed(c *Transition, done Enforced) (Enforced, error) {
	more, err := n.enforceClasses(c)
	if err != nil {
		return Enforced{}, errors.Join(err, call(done.Undo))
	}
	return Enforced{
		Undo:   func() error { return errors.Join(call(more.Undo), call(done.Undo)) },
		Finish: func() error { return errors.Join(call(more.Finish), call(done.Finish)) },
	}, nil
}

// writes are what an Enforcer that knows it in advance would write, and the classes beside
// it; needed is false if there is nothing to do.
func (n *Node) writes(c *Transition) (plan kernel.Plan, needed bool, err error) {
	if p, ok := n.enforcer.(Planner); ok {
		if plan, needed, err = p.Plan(c); err != nil {
			return nil, false, err
		}
	}
	classes, err := n.planClasses(c)
	return append(plan, classes...), needed || len(classes) > 0, err
}

// enforceClasses has workloads get their classes. It follows the Enforcer, which puts
// processes where they are looked for.
func (n *Node) enforceClasses(c *Transition) (done Enforced, err error) {
	kinds := n.classifiers(c)
	var undos []func() error
	for _, k := range kinds {
		plan, err := k.plan(c)
		if err == nil {
			var undo func() error
			if undo, err = kernel.Apply(n.root, plan, c.Log); err == nil {
				undos = append(undos, undo)
				_, undo, err = k.follow(c)
				undos = append(undos, undo)
			}
		}
		if err != nil {
			return done, errors.Join(err, join(undos...)())
		}
	}
	done.Undo = join(undos...)
	done.Finish = func() error {
		var errs []error
		for _, k := range kinds {
			used := k.used(c)
			_, err := c.Log.Undo(func(s kernel.Step) bool { return isClassStep(s) && !used(s) })
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	return done, nil
}

// followClasses looks for threads that have come to workloads, or left them, since.
func (n *Node) followClasses(c *Transition) (moved int, err error) {
	for _, k := range n.classifiers(c) {
		some, _, err := k.follow(c)
		if moved += some; err != nil {
			return moved, err
		}
	}
	return moved, nil
}

// cacheClasses are groups of resctrl.
type cacheClasses struct {
	n *Node
	t *resctrl.Tree
}

// members are the workloads of each class in use after a transition, by group.
func (k *cacheClasses) members(c *Transition) (map[string][]*Workload, error) {
	config := k.n.opt.Classes
	all := map[string][]*Workload{}
	for w := range c.Workloads() {
		name := config.ClassOf(CacheClass, &w.Spec)
		if name == "" {
			continue
		}
		if !config.Cache.Has(name) {
			reason := "the configuration defines no cache classes (docs/cache.md)"
			if names := config.Names(CacheClass); len(names) > 0 {
				reason = "it is not defined" + strictyaml.Nearest(name, names)
			}
			return nil, &ClassError{Kind: CacheClass, Name: name, Reason: fmt.Sprintf("workload %q: %s", w.ID(), reason)}
		}
		all[resctrl.Prefix+name] = append(all[resctrl.Prefix+name], w)
	}
	return all, nil
}

func (k *cacheClasses) read() (err error) {
	if k.t == nil {
		k.t, err = resctrl.Read(k.n.root.FS())
	}
	return err
}

func (k *cacheClasses) plan(c *Transition) (kernel.Plan, error) {
	members, err := k.members(c)
	if err != nil || len(members) == 0 {
		return nil, err
	}
	k.t = nil
	if err := k.read(); err != nil {
		return nil, fmt.Errorf("cache classes: %w", err)
	}
	layout, err := k.n.opt.Classes.Cache.Layout(k.t)
	if err != nil {
		return nil, fmt.Errorf("cache classes: %w", err)
	}
	var used []string
	for group := range members {
		if g := k.t.Group(group); g != nil && !k.made(c, group) {
			return nil, &ClassError{Kind: CacheClass, Name: g.Class(), Reason: fmt.Sprintf("/%s is there, and this node did not make it: remove it (rmdir), or name the class otherwise", path.Join(k.t.Dir, group))}
		}
		used = append(used, strings.TrimPrefix(group, resctrl.Prefix))
	}
	plan := layout.Plan(k.t, used)
	return slices.DeleteFunc(plan, func(s kernel.Step) bool { return s.Op == kernel.Write && c.Yielded(s.Path) }), nil
}

// made reports whether this node made a group, by its undo log.
func (k *cacheClasses) made(c *Transition, group string) bool {
	dir := path.Join(k.t.Dir, group)
	return c.Log.Has(func(s kernel.Step) bool { return s.Op == kernel.Mkdir && s.Path == dir }) && !c.Log.Outdated(dir)
}

func (k *cacheClasses) used(c *Transition) func(kernel.Step) bool {
	members, err := k.members(c)
	return func(s kernel.Step) bool {
		if err != nil {
			return true
		}
		if k.t == nil {
			return len(members) > 0
		}
		group, _, _ := strings.Cut(strings.TrimPrefix(s.Path, k.t.Dir+"/"), "/")
		if !strings.HasPrefix(group, resctrl.Prefix) {
			return len(members) > 0 // the default group's
		}
		return len(members[group]) > 0
	}
}

// follow puts the threads of workloads into the groups of their classes, and takes those that
// are no workload's of the class any more out of them.
func (k *cacheClasses) follow(c *Transition) (moved int, undo func() error, err error) {
	undo = func() error { return nil }
	members, err := k.members(c)
	if err != nil {
		return 0, undo, err
	}
	if err := k.read(); errors.Is(err, kernel.ErrNotSupported) && len(members) == 0 {
		return 0, undo, nil // it was unmounted, and all groups with it
	} else if err != nil {
		return 0, undo, err
	}
	before := map[string][]int{} // by group, threads that are moved out of it
	for _, group := range slices.Sorted(maps.Keys(members)) {
		n, _, err := resctrl.Follow(k.n.root, k.t, group, func() ([]int, error) { return k.threads(members[group]) })
		if moved += n; err != nil {
			return moved, undo, fmt.Errorf("cache class %q: %w", strings.TrimPrefix(group, resctrl.Prefix), err)
		}
	}
	undo = func() error { // those that were in a group that is there still
		var errs []error
		for group, tids := range before {
			_, err := resctrl.Assign(k.n.root, k.t.Dir, group, tids)
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	for i := range k.t.Groups {
		group := k.t.Groups[i].Name
		if !k.t.Groups[i].Own() || !k.made(c, group) {
			continue
		}
		have, err := resctrl.Tasks(k.n.root.FS(), k.t.Dir, group)
		if err != nil || len(have) == 0 {
			continue
		}
		theirs, err := k.threads(members[group])
		if err != nil {
			return moved, undo, err
		}
		is := map[int]bool{}
		for _, tid := range theirs {
			is[tid] = true
		}
		strays := slices.DeleteFunc(have, func(tid int) bool { return is[tid] })
		if len(strays) == 0 {
			continue
		}
		before[group] = strays
		n, err := resctrl.Assign(k.n.root, k.t.Dir, "", strays)
		if moved += n; err != nil {
			return moved, undo, err
		}
	}
	return moved, undo, nil
}

// threads are those of some workloads: in their control groups and those below, or, without,
// of their processes.
func (k *cacheClasses) threads(workloads []*Workload) (all []int, err error) {
	for _, w := range workloads {
		if w.State == Reserved {
			continue
		}
		some, err := k.n.threadsOf(w)
		if err != nil {
			return nil, fmt.Errorf("threads of workload %q: %w", w.ID(), err)
		}
		all = append(all, some...)
	}
	return all, nil
}

// threadsOf are the threads of a workload.
func (n *Node) threadsOf(w *Workload) (all []int, err error) {
	for _, dir := range w.Dirs {
		err := fs.WalkDir(n.root.FS(), dir, func(name string, e fs.DirEntry, err error) error {
			if err != nil || !e.IsDir() {
				return kernel.IgnoreAbsent(err) // a group that has just gone
			}
			tids, err := n.threadsIn(name)
			all = append(all, tids...)
			return err
		})
		if err != nil || len(all) > 0 {
			return all, err // any hierarchy has all of them
		}
	}
	if s, ok := n.enforcer.(Supervisor); ok && len(w.Dirs) == 0 {
		pids, _, err := s.Processes(w)
		if err != nil {
			return nil, err
		}
		for _, pid := range pids {
			all = append(all, n.threadsOfProcess(pid)...)
		}
	}
	return all, nil
}

// threadsIn are the threads in one control group: "cgroup.threads" in v2, "tasks" in v1.
func (n *Node) threadsIn(dir string) (all []int, err error) {
	for _, file := range []string{"cgroup.threads", "tasks", "cgroup.procs"} {
		text, err := fs.ReadFile(n.root.FS(), path.Join(dir, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if errors.Is(err, syscall.ENODEV) {
			return nil, nil // the group was removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		for _, word := range strings.Fields(string(text)) {
			tid, err := strconv.Atoi(word)
			if err != nil {
				return nil, fmt.Errorf("read /%s/%s: %w", dir, file, err)
			}
			if tid > 0 { // 0 stands for those of other PID namespaces
				all = append(all, tid)
			}
		}
		return all, nil
	}
	return nil, nil
}

// threadsOfProcess are those of a process that has not ended.
func (n *Node) threadsOfProcess(pid int) (all []int) {
	entries, err := fs.ReadDir(n.root.FS(), fmt.Sprintf("proc/%d/task", pid))
	if err != nil {
		return []int{pid}
	}
	for _, e := range entries {
		if tid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, tid)
		}
	}
	return all
}

// notes say what devices fill too, and what other programs keep.
func (k *cacheClasses) notes(w *Workload) (notes []string) {
	name := k.n.opt.Classes.ClassOf(CacheClass, &w.Spec)
	if name == "" || !k.n.opt.Classes.Cache.Has(name) || k.read() != nil {
		return nil
	}
	layout, err := k.n.opt.Classes.Cache.Layout(k.t)
	if err != nil {
		return []string{fmt.Sprintf("cache class %q: %v", name, err)}
	}
	for _, note := range layout.Find(name).Notes {
		notes = append(notes, fmt.Sprintf("cache class %q: %s", name, note))
	}
	if layout.Find(resctrl.Default) == nil && layout.Find(name).Partition != "" {
		notes = append(notes, fmt.Sprintf("cache class %q: work without a class may fill its ways, as the configuration has no class %s", name, resctrl.Default))
	}
	return notes
}
