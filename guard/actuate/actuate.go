// Package actuate puts the guard's decisions into force on a host, and gives back
// what was there before.
//
// A Host is the control.Actuator of one tree of control groups. It turns an Action
// into a kernel.Plan by kernel/cgroup, notes the originals in a ledger before it
// writes, reads back, and undoes only what is still as it wrote it. One process at a
// time can have a tree; what a killed one left, Open finds in the ledger.
package actuate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// StateDir returns the directory of a user's guard: /run/berth/guard for root, see
// kernel.JournalDir for others. It does not outlive the boot.
func StateDir(uid int, xdgRuntimeDir string) string {
	return filepath.Join(kernel.JournalDir(uid, xdgRuntimeDir), "guard")
}

const ledgerName = "ledger"

// BusyError says that another process guards the tree.
type BusyError struct{ Tree string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("guard /%s: another guard that may act is running; stop it first (berth guard status)", e.Tree)
}

// Options say what to act on. Root and Dir must be set.
type Options struct {
	Root *kernel.Root
	// Dir is the state directory, made if need be (mode 0700). Without one the Host
	// can only preview, and takes nothing.
	Dir string
	// Program is for the reader of a report; "" is "berth guard".
	Program string
}

// Host acts on the control groups of a host. It is for one goroutine at a time.
type Host struct {
	root   *kernel.Root
	base   cgroup.Group
	trees  map[string]*cgroup.Hierarchy // by controller
	ledger *kernel.Journal
	lock   *os.File
	// force are the limits applied, by group and remedy, as far as this process did.
	force map[knob]cgroup.Limits
	// existed are the v1 directories below a group when its set was first shrunk, by
	// group; those made since follow their parents.
	existed map[string][]string
	// disturbed are the texts of files that changed as a side effect, as they were.
	disturbed map[string]string
}

type knob struct {
	group  string
	remedy detect.Remedy
}

// Open takes the tree; it is a *BusyError if another process has it, and a
// kernel.NotSupportedError where there are no groups that could be acted on. What
// an earlier process left stays until Restore.
func Open(o Options) (*Host, error) {
	h := &Host{root: o.Root, trees: map[string]*cgroup.Hierarchy{}, force: map[knob]cgroup.Limits{}, existed: map[string][]string{}, disturbed: map[string]string{}}
	host, err := cgroup.Detect(o.Root)
	if err != nil {
		return nil, fmt.Errorf("open guard: %w", err)
	}
	// Groups are named from the root of each tree, not from where this process is.
	for i := range host.Hierarchies {
		host.Hierarchies[i].Own = ""
	}
	for _, c := range cgroup.Controllers() {
		if t, ok := host.Hierarchy(c); ok {
			h.trees[c] = t
		}
	}
	if h.base, err = host.Base(cgroup.CPU, cgroup.CPUAcct, cgroup.CPUSet, cgroup.Memory, cgroup.IO); err != nil {
		return nil, fmt.Errorf("open guard: %w", err)
	}
	if o.Dir == "" {
		return h, nil
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open guard: %w", err)
	}
	if h.lock, err = lockTree(o.Root, h.tree()); err != nil {
		return nil, err
	}
	h.ledger, err = kernel.OpenLedger(o.Root, filepath.Join(o.Dir, ledgerName), cmp.Or(o.Program, "berth guard"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open guard: %w", err), h.lock.Close())
	}
	return h, nil
}

// tree is the directory that stands for what is guarded: that of the CPU controller,
// or of any other.
func (h *Host) tree() string {
	for _, c := range []string{cgroup.CPU, cgroup.CPUSet, cgroup.Memory} {
		if t := h.trees[c]; t != nil {
			return t.Dir
		}
	}
	return h.base.Dirs()[0]
}

// lockTree locks the directory of a tree for this process, until it ends.
func lockTree(root *kernel.Root, tree string) (*os.File, error) {
	f, err := os.Open(filepath.Join(root.Name(), tree))
	if err != nil {
		return nil, fmt.Errorf("lock the tree of groups: %w", err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errors.Join(&BusyError{tree}, f.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock /%s: %w", tree, err), f.Close())
	}
	return f, nil
}

// Close gives the tree free. What is in force stays, and noted.
func (h *Host) Close() error {
	if h.ledger == nil {
		return nil
	}
	name, notes := h.ledger.Path(), len(h.ledger.Notes())
	err := h.ledger.Close()
	if err == nil && notes == 0 && name != "" {
		err = os.Remove(name)
	}
	return errors.Join(err, h.lock.Close())
}

// Notes returns what is in force, in the order in which it was done.
func (h *Host) Notes() []kernel.Item {
	if h.ledger == nil {
		return nil
	}
	return h.ledger.Notes()
}

// noted is what a file had before it was written, if it was.
func (h *Host) noted(file string) (text string, ok bool) {
	if h.ledger == nil {
		return "", false
	}
	return h.ledger.Original(file)
}

// Restore gives everything back, what was done last first. What somebody else has
// changed since stays, and is no error.
func (h *Host) Restore() ([]kernel.Item, error) {
	clear(h.force)
	clear(h.disturbed)
	follow := h.followers(slices.Collect(maps.Keys(h.existed))...)
	items, err := h.undo(func(kernel.Step) bool { return true })
	err = errors.Join(err, follow())
	if err != nil {
		err = fmt.Errorf("give back what the guard changed: %w", err)
	}
	return items, err
}

// undo undoes what matches. The weight of a group that is idle still cannot be told
// from one that somebody else has set, and is left for the next time.
func (h *Host) undo(match func(kernel.Step) bool) ([]kernel.Item, error) {
	if h.ledger == nil {
		return nil, nil
	}
	idle := func(s kernel.Step) bool { return path.Base(s.Path) == "cpu.idle" }
	items, err := h.ledger.Undo(func(s kernel.Step) bool { return match(s) && idle(s) })
	stuck := map[string]bool{}
	for _, item := range items {
		if item.Outcome == kernel.Failed {
			stuck[path.Dir(item.Step.Path)] = true
		}
	}
	rest, err2 := h.ledger.Undo(func(s kernel.Step) bool {
		return match(s) && !idle(s) && !(stuck[path.Dir(s.Path)] && slices.Contains(files(detect.Weight), path.Base(s.Path)))
	})
	rest, err2 = h.replace(rest, err2)
	return append(items, rest...), errors.Join(err, err2)
}

// replace gives back v1 sets that could not be undone one by one, as sets within
// each other went different ways: all together, by way of what they have and had.
func (h *Host) replace(items []kernel.Item, failed error) ([]kernel.Item, error) {
	var placements []cgroup.Placement
	var stuck []string
	for _, item := range items {
		dir, file := path.Split(item.Step.Path)
		t := h.trees[cgroup.CPUSet]
		if item.Outcome != kernel.Failed || file != "cpuset.cpus" || t == nil || t.Version != 1 {
			continue
		}
		cpus, err := cpuset.Parse(item.Original)
		if err != nil || cpus.IsEmpty() {
			continue
		}
		group := h.base.Child(strings.TrimPrefix(path.Clean(dir), t.Dir+"/"))
		placements, stuck = append(placements, cgroup.Placement{Group: group, CPUs: cpus}), append(stuck, item.Step.Path)
	}
	if len(stuck) == 0 {
		return items, failed
	}
	plan, err := cgroup.Place(placements...)
	if err == nil {
		_, err = kernel.Apply(h.root, plan, h.ledger)
	}
	if err != nil {
		return items, failed
	}
	again, err := h.ledger.Undo(func(s kernel.Step) bool { return slices.Contains(stuck, s.Path) })
	for i := range again {
		if again[i].Outcome == kernel.Untouched {
			again[i].Outcome = kernel.Restored
		}
	}
	items = slices.DeleteFunc(items, func(i kernel.Item) bool { return slices.Contains(stuck, i.Step.Path) })
	errs := []error{err}
	for _, item := range items {
		if item.Outcome == kernel.Failed {
			errs = append(errs, errors.New(item.Error))
		}
	}
	return append(items, again...), errors.Join(errs...)
}

// Preview returns what Apply would change, and changes nothing.
func (h *Host) Preview(_ context.Context, a control.Action) ([]control.Change, error) {
	plan, err := h.plan(a)
	if err != nil {
		return nil, err
	}
	return h.changes(plan)
}

// changes are the steps of a plan that would change something.
func (h *Host) changes(plan kernel.Plan) ([]control.Change, error) {
	var all []control.Change
	for _, s := range plan {
		from, same, err := h.root.Shows(s)
		if err != nil {
			return nil, err
		}
		if !same {
			all = append(all, control.Change{Path: "/" + s.Path, From: from, To: s.Value})
		}
	}
	return all, nil
}

// Apply puts an action into force, in place of an earlier one of the same remedy and
// group, and returns what it changed. After an error what was in force before is in
// force still. For a group that is gone it is fs.ErrNotExist.
func (h *Host) Apply(ctx context.Context, a control.Action) ([]control.Change, error) {
	if h.ledger == nil {
		return nil, fmt.Errorf("apply %v of %s: opened without a state directory, to preview only", a.Remedy, a.Group)
	}
	k := knob{a.Group, a.Remedy}
	var before []control.Change
	if h.force[k].Idle == cgroup.On && a.Limits.Idle != cgroup.On {
		// The weight of an idle group is locked, and must be the original one again.
		var err error
		if before, err = h.Revert(ctx, a); err != nil {
			return nil, err
		}
	}
	plan, err := h.plan(a)
	if err != nil {
		return before, err
	}
	changes, err := h.changes(plan)
	if err != nil {
		return before, h.failed("apply", a, err)
	}
	h.keep(plan)
	if err := h.remember(a); err != nil {
		return before, h.failed("apply", a, err)
	}
	if _, err = kernel.Apply(h.root, plan, h.ledger); err != nil {
		return before, h.failed("apply", a, err)
	}
	h.force[k] = a.Limits
	return append(before, changes...), nil
}

// keep notes what a plan disturbs, for Settings.
func (h *Host) keep(plan kernel.Plan) {
	for _, s := range plan {
		for _, file := range s.Disturbs {
			if _, kept := h.disturbed[file]; kept {
				continue
			}
			if _, noted := h.noted(s.Path); noted {
				continue // it is disturbed already
			}
			if text, err := h.read(file); err == nil {
				h.disturbed[file] = text
			}
		}
	}
}

// Revert gives back what the group had before the first Apply of the remedy. A value
// that somebody else has changed since stays, and is a kernel.ErrChanged.
func (h *Host) Revert(_ context.Context, a control.Action) ([]control.Change, error) {
	follow := func() error { return nil }
	if a.Remedy == detect.ShrinkCPUs {
		follow = h.followers(a.Group)
	}
	items, err := h.undo(h.of(a))
	if err = errors.Join(err, follow()); err != nil {
		return nil, h.failed("revert", a, err)
	}
	delete(h.force, knob{a.Group, a.Remedy})
	match := h.of(a)
	maps.DeleteFunc(h.disturbed, func(file, _ string) bool { return match(kernel.Step{Path: file}) })
	var changes []control.Change
	var changed []error
	gone := len(items) > 0
	for _, item := range items {
		gone = gone && item.Outcome == kernel.Gone
		switch item.Outcome {
		case kernel.Restored:
			changes = append(changes, control.Change{Path: "/" + item.Step.Path, From: item.Step.Value, To: item.Original})
		case kernel.Changed:
			changed = append(changed, fmt.Errorf("%w%s: %s", kernel.ErrChanged, h.owner(item.Step.Path), item.Error))
		}
	}
	if gone {
		return nil, fmt.Errorf("revert %v of %s: %w", a.Remedy, a.Group, fs.ErrNotExist)
	}
	return changes, errors.Join(changed...)
}

// owner names who is likely to have written a value of a group.
func (h *Host) owner(file string) string {
	for at := path.Dir(file); at != "." && at != "/"; at = path.Dir(at) {
		switch name := path.Base(at); {
		case name == "kubepods" || name == "kubepods.slice":
			return " (the kubelet's)"
		case slices.Contains([]string{".slice", ".service", ".scope"}, path.Ext(name)):
			return " (systemd's)"
		}
	}
	return ""
}

// failed says what could not be done. A group that is gone is fs.ErrNotExist; one
// that is there but lacks a file is not.
func (h *Host) failed(what string, a control.Action, err error) error {
	gone := !h.has(a.Group)
	err = fmt.Errorf("%s %v of %s: %w", what, a.Remedy, a.Group, err)
	switch {
	case gone && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", err, fs.ErrNotExist)
	case !gone && errors.Is(err, fs.ErrNotExist):
		return errors.New(err.Error())
	}
	return err
}

// has reports whether the group is there in any tree.
func (h *Host) has(group string) bool {
	return slices.ContainsFunc(h.base.Child(group).Dirs(), func(dir string) bool {
		info, err := fs.Stat(h.root.FS(), dir)
		return err == nil && info.IsDir()
	})
}
