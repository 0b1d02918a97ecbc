package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/resctrl"
	"berth.dev/berth/place"
)

// isCacheStep reports whether a step is one of resctrl, which alone says why it refuses.
func isCacheStep(s kernel.Step) bool { return s.Status != "" }

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
		name, err := config.classIn(c, CacheClass, w)
		if err != nil {
			return nil, err
		}
		if name == "" {
			continue
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
	if err := k.read(); errors.Is(err, kernel.ErrNotSupported) && !k.asked(c) {
		return nil, nil // a note says so
	} else if err != nil {
		return nil, fmt.Errorf("cache classes: %w", err)
	}
	layout, err := k.n.opt.Classes.Cache.Layout(k.t)
	if err != nil {
		return nil, fmt.Errorf("cache classes: %w", err)
	}
	var used []string
	for group := range members {
		name := strings.TrimPrefix(group, resctrl.Prefix)
		if k.t.Group(group) != nil && !k.made(c.Log, group) {
			err := k.foreign(group)
			if k.n.wants(c, CacheClass, name, "") {
				return nil, err
			}
			k.n.without(CacheClass, name, "", err)
			continue
		}
		used = append(used, name)
	}
	plan := layout.Plan(k.t, used)
	return slices.DeleteFunc(plan, func(s kernel.Step) bool { return s.Op == kernel.Write && c.Yielded(s.Path) }), nil
}

// asked reports whether a transition is about a workload that asks for a class by name. One
// that has it by its class of service goes without where there are none.
func (k *cacheClasses) asked(c *Transition) bool {
	for w := range c.Workloads() {
		if w.Spec.asksFor(CacheClass) && c.asks(w.ID()) {
			return true
		}
	}
	return false
}

// foreign is the error of a group of somebody else's that has the name of a class.
func (k *cacheClasses) foreign(group string) error {
	return &ClassError{Kind: CacheClass, Name: strings.TrimPrefix(group, resctrl.Prefix), Reason: fmt.Sprintf("/%s is there, and this node did not make it: remove it (rmdir), or name the class otherwise", path.Join(k.t.Dir, group))}
}

// made reports whether this node made a group, by its undo log.
func (k *cacheClasses) made(log *kernel.UndoLog, group string) bool {
	dir := path.Join(k.t.Dir, group)
	return log.Has(func(s kernel.Step) bool { return s.Op == kernel.Mkdir && s.Path == dir }) && !log.Outdated(dir)
}

// IsCacheGroup reports whether a group of resctrl has the name of one that a node makes for a class.
func IsCacheGroup(name string) bool { return strings.HasPrefix(name, resctrl.Prefix) }

// CacheGroup is the group of resctrl of a workload's cache class, by its name in Linux's directory for
// resctrl, /sys/fs/resctrl: that is there, this node made it, and it stays as long as the workload
// has the class, one that is Reserved too. It is "" if there is none, or resctrl is mounted elsewhere.
// An unknown workload is a *place.NotHeldError.
func (n *Node) CacheGroup(ctx context.Context, id string) (group string, err error) {
	err = n.look(ctx, func(t *transaction) error {
		of := t.records[id]
		if of == nil {
			return &place.NotHeldError{ID: id}
		}
		k, name := &cacheClasses{n: n}, n.classesNow().ClassOf(CacheClass, &of.Workload.Spec)
		if name == "" {
			return nil
		}
		if err := k.read(); err != nil {
			return fmt.Errorf("cache class %q: %w", name, err)
		}
		if has := resctrl.Prefix + name; k.t.Dir == resctrl.Usual && k.t.Group(has) != nil && k.made(t.log, has) {
			group = has
		}
		return nil
	})
	if errors.Is(err, kernel.ErrNotSupported) {
		err = nil
	}
	return group, err
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

func (k *cacheClasses) about(_ *Transition, s kernel.Step) (name, id string) {
	if rest, ok := strings.CutPrefix(s.Path, path.Join(k.t.Dir, resctrl.Prefix)); ok {
		name, _, _ = strings.Cut(rest, "/")
	}
	return name, ""
}

// follow puts the threads of workloads into the groups of their classes, and takes those that
// are no workload's of the class any more out of them.
func (k *cacheClasses) follow(c *Transition) (moved int, undo func() error, err error) {
	before := map[string][]int{} // by group, threads that are moved out of it
	undo = func() error {        // those that were in a group that is there still
		var errs []error
		for group, tids := range before {
			_, err := resctrl.Assign(k.n.root, k.t.Dir, group, tids)
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	members, err := k.members(c)
	if err != nil {
		return 0, undo, err
	}
	if err := k.read(); errors.Is(err, kernel.ErrNotSupported) && !k.asked(c) {
		return 0, undo, nil // or it was unmounted, and all groups with it
	} else if err != nil {
		return 0, undo, err
	}
	come, err := k.enter(c, members)
	if err != nil {
		return come, undo, err
	}
	gone, err := k.leave(c, members, before)
	return come + gone, undo, err
}

// enter puts the threads of workloads, by group, into the groups.
func (k *cacheClasses) enter(c *Transition, members map[string][]*Workload) (moved int, err error) {
	for _, group := range slices.Sorted(maps.Keys(members)) {
		come := slices.DeleteFunc(slices.Clone(members[group]), func(w *Workload) bool { return !c.looksAt(w) })
		if len(come) == 0 || k.t.Group(group) != nil && !k.made(c.Log, group) {
			continue
		}
		n, _, err := resctrl.Follow(k.n.root, k.t, group, func() ([]int, error) { return k.threads(come) })
		moved += n
		name := strings.TrimPrefix(group, resctrl.Prefix)
		switch {
		case err == nil:
		case k.n.wants(c, CacheClass, name, ""):
			return moved, fmt.Errorf("cache class %q: %w", name, err)
		default:
			k.n.without(CacheClass, name, "", err)
		}
	}
	return moved, nil
}

// leave takes the threads that are no workload's of a class any more out of its group, and notes
// in before which these are. Where only some workloads are looked at, theirs are taken.
func (k *cacheClasses) leave(c *Transition, members map[string][]*Workload, before map[string][]int) (moved int, err error) {
	leaving, scattered := k.n.leaving(c, CacheClass)
	all := c.All || scattered
	gone := map[string][]*Workload{}
	for _, w := range leaving {
		group := resctrl.Prefix + k.n.opt.Classes.ClassOf(CacheClass, &w.Spec)
		gone[group] = append(gone[group], w)
	}
	for i := range k.t.Groups {
		group := k.t.Groups[i].Name
		if !k.t.Groups[i].Own() || !all && gone[group] == nil || !k.made(c.Log, group) {
			continue
		}
		have, err := resctrl.Tasks(k.n.root.FS(), k.t.Dir, group)
		if err != nil || len(have) == 0 {
			continue
		}
		of := gone[group]
		if all {
			of = members[group]
		}
		theirs, err := k.threads(of)
		if err != nil {
			return moved, err
		}
		is := map[int]bool{}
		for _, tid := range theirs {
			is[tid] = true
		}
		strays := slices.DeleteFunc(have, func(tid int) bool { return is[tid] == all })
		if len(strays) == 0 {
			continue
		}
		before[group] = strays
		n, err := resctrl.Assign(k.n.root, k.t.Dir, "", strays)
		if moved += n; err != nil {
			return moved, err
		}
	}
	return moved, nil
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

// notes say what devices fill too, and what other programs keep.
func (k *cacheClasses) notes(w *Workload) []string {
	name := k.n.opt.Classes.ClassOf(CacheClass, &w.Spec)
	return k.n.notesOnce(CacheClass, name, func() []string { return k.notesOf(name) })
}

func (k *cacheClasses) notesOf(name string) (notes []string) {
	if err := k.read(); errors.Is(err, kernel.ErrNotSupported) {
		return []string{fmt.Sprintf("cache class %q: the workload goes without: %v", name, err)}
	} else if err != nil {
		return []string{fmt.Sprintf("cache class %q: %v", name, err)}
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
