// Package actuate puts the guard's decisions into effect on a host, and restores
// the original settings.
//
// A Host is the control.Actuator of one tree of control groups. It turns an Action
// into a kernel.Plan by kernel/cgroup, notes the originals in an undo log before it
// writes, reads back, and undoes only what is still as it wrote it. One process at a
// time can have a tree; what a killed one left, Open finds in the log.
package actuate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/knob"
	"berth.dev/berth/kernel/sched"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/watch/pods"
)

// StateDir returns the directory of a user's guard: /run/berth/guard for root, see
// kernel.RunDir for others. It does not outlive the boot.
func StateDir(uid int, xdgRuntimeDir string) string {
	return filepath.Join(kernel.RunDir(uid, xdgRuntimeDir), "guard")
}

const undoLogName = "ledger"

// UndoLogFile returns the name of the undo log in a guard's state directory.
func UndoLogFile(dir string) string { return filepath.Join(dir, undoLogName) }

// Options say what to act on. Root and Dir must be set.
type Options struct {
	Root *kernel.Root
	// Dir is the state directory, made if need be (mode 0700). Without one the Host
	// can only preview, and takes nothing.
	Dir string
	// Program is for the reader of a report; "" is "berth guard".
	Program string
	// Lock is held during each call of a method, but not by Base. It may be nil.
	Lock sync.Locker
}

// Host acts on the control groups of a host. Several goroutines may use it.
type Host struct {
	root     *kernel.Root
	program  string
	caller   sync.Locker
	mu       sync.Mutex // of what follows, and the writes to groups; taken after caller
	remedies []control.Remedy
	base     cgroup.Group
	trees    map[string]*cgroup.Hierarchy // by controller
	log      *kernel.UndoLog
	lock     *os.File
	// existed are the v1 directories below a group when its set was first shrunk, by
	// group; those made since follow their parents.
	existed map[string][]string
	// divided are the groups whose share of caches or bandwidth is cut.
	divided map[string]*division
	// lowered are the classes of the groups whose rate is lowered, by group.
	lowered map[string]uint16
	// givesWay says that the writer of classes has its groups removed where it needs room (Base).
	givesWay bool
	turn     int // of those that are monitored
}

// Open opens the groups of a host and, with a state directory, takes the tree: it is a
// *BusyError if another process has it, and a kernel.NotSupportedError where there are no
// groups that could be acted on. What an earlier process left stays until Restore.
func Open(o Options) (*Host, error) {
	h := &Host{
		root: traffic.Over(sched.Over(o.Root)), program: cmp.Or(o.Program, "berth guard"), caller: o.Lock, remedies: control.Remedies(),
		trees: map[string]*cgroup.Hierarchy{}, existed: map[string][]string{}, divided: map[string]*division{},
		lowered: map[string]uint16{},
	}
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
	if o.Dir != "" {
		if err := h.take(o.Dir); err != nil {
			return nil, fmt.Errorf("open guard: %w", err)
		}
	}
	return h, nil
}

func (h *Host) take(dir string) error {
	if err := kernel.MakePrivateDir(dir); err != nil {
		return err
	}
	lock, err := lockTree(h.root, h.tree(), dir, h.program)
	if err != nil {
		return err
	}
	log, err := kernel.OpenUndoLog(h.root, UndoLogFile(dir), h.program)
	if err != nil {
		return errors.Join(err, kernel.Unlock(lock))
	}
	h.lock, h.log = lock, log
	return nil
}

// Take takes the tree for a Host that could only preview, until Close, and restores what
// a killed guard left; nothing if it has the tree already. Errors are those of Open and
// Restore: then it does not have the tree.
func (h *Host) Take(dir string) ([]kernel.Item, error) {
	defer h.enter()()
	if h.log != nil {
		return nil, nil
	}
	if err := h.take(dir); err != nil {
		return nil, fmt.Errorf("open guard: %w", err)
	}
	items, err := h.restore()
	if err != nil {
		err = errors.Join(err, h.close())
	}
	return items, err
}

// enter takes the locks of a call.
func (h *Host) enter() (leave func()) {
	if h.caller != nil {
		h.caller.Lock()
	}
	h.mu.Lock()
	return func() {
		h.mu.Unlock()
		if h.caller != nil {
			h.caller.Unlock()
		}
	}
}

// Recover restores what a killed guard left active, as Restore does, and closes.
// It comes before anything else notes original values of the same groups: those would be
// the guard's. It is a *BusyError while another guard may act, a
// *kernel.HeaderError or *kernel.DamageError if what is active cannot be read, and
// nothing where there are no groups.
func Recover(o Options) ([]kernel.Item, error) {
	h, err := Open(o)
	if errors.Is(err, kernel.ErrNotSupported) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	items, err := h.Restore()
	return items, errors.Join(err, h.Close())
}

// Close releases the tree; the Host can preview still. Active settings stay, and so do
// their entries in the undo log.
func (h *Host) Close() error {
	defer h.enter()()
	return h.close()
}

func (h *Host) close() error {
	if h.log == nil {
		return nil
	}
	name, notes := h.log.Path(), len(h.log.Notes())
	err := h.log.Close()
	if err == nil && notes == 0 && h.log.Damage() == nil && name != "" {
		err = os.Remove(name)
	}
	err = errors.Join(err, h.lock.Truncate(0), kernel.Unlock(h.lock))
	h.log, h.lock = nil, nil
	return err
}

// Notes returns the active changes, the first first.
func (h *Host) Notes() []kernel.Item {
	defer h.enter()()
	return h.notes()
}

func (h *Host) notes() []kernel.Item {
	if h.log == nil {
		return nil
	}
	return h.log.Notes()
}

// original returns what a file had before the guard changed it; false if it has not.
func (h *Host) original(file string) (text string, ok bool) {
	if h.log == nil {
		return "", false
	}
	return h.log.Original(file)
}

// Preview returns what Apply would change, and changes nothing. In the undo log it notes
// which CPUs have gone offline.
func (h *Host) Preview(_ context.Context, a control.Action) ([]control.Change, error) {
	defer h.enter()()
	if h.log != nil {
		if err := h.log.NoteOffline(); err != nil {
			return nil, err
		}
	}
	if h.remedy(a.Remedy).Divides() {
		return h.previewShare(a)
	}
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
		p, is := sched.Of(s.Path)
		if err != nil && is {
			continue // it has ended, or makes threads faster than they can be read: that is not the others' affair
		}
		if err != nil {
			return nil, err
		}
		if !same {
			all = append(all, control.Change{Path: "/" + s.Path, From: from, To: s.Value, Process: control.Process{PID: p.PID, Start: p.Start}})
		}
	}
	return all, nil
}

// Apply applies an action, in place of an earlier one of the same remedy and
// group, and returns what it changed. After an error what was active before is
// active still. For a group that is gone it is fs.ErrNotExist.
func (h *Host) Apply(_ context.Context, a control.Action) ([]control.Change, error) {
	defer h.enter()()
	return h.apply(a)
}

func (h *Host) apply(a control.Action) ([]control.Change, error) {
	if h.log == nil {
		return nil, fmt.Errorf("apply %v of %s: opened without a state directory, to preview only", a.Remedy, a.Group)
	}
	if h.remedy(a.Remedy).Divides() {
		return h.applyShare(a)
	}
	var before []control.Change
	if a.Limits.Idle != cgroup.On && h.idles(a) {
		// The weight of an idle group is locked, and must be the original one again.
		var err error
		if before, err = h.revert(a); err != nil {
			return nil, err
		}
	}
	if err := h.letTheirs(a); err != nil {
		return before, h.failed("apply", a, err)
	}
	plan, err := h.plan(a)
	if err != nil {
		return before, err
	}
	left, err := h.leave(a)
	before = append(before, left...)
	if err != nil {
		return before, err
	}
	changes, err := h.changes(plan)
	if err != nil {
		return before, h.failed("apply", a, err)
	}
	if err := h.remember(a, plan); err != nil {
		return before, h.failed("apply", a, err)
	}
	if h.remedy(a.Remedy).Processes {
		changes, err = h.applyEach(plan, changes)
	} else {
		_, err = kernel.Apply(h.root, plan, h.log)
	}
	if err != nil {
		return before, h.failed("apply", a, err)
	}
	return append(before, changes...), nil
}

// letTheirs forgets the originals of what another writer has changed since the action was last applied: from now on that
// writer's values are the originals. A class of a network device is Berth's own; a process with a value of its own is
// left alone by the next look at drift; and what the kernel shows as the weight of an idle group is nobody's value.
func (h *Host) letTheirs(a control.Action) error {
	if r := h.remedy(a.Remedy); r.Processes || r.Sends() || slices.Contains(r.Knobs, "idle") {
		return nil
	}
	of := h.of(a)
	theirs := func(s kernel.Step) bool { return of(s) && h.log.Overwritten(s) }
	if !h.log.Has(theirs) {
		return nil
	}
	_, err := h.undo(theirs)
	return err
}

// idles reports whether the remedy of an action has made its group, or processes, idle.
func (h *Host) idles(a control.Action) bool {
	if r := h.remedy(a.Remedy); r.Processes {
		return slices.ContainsFunc(h.notes(), func(i kernel.Item) bool { return h.of(a)(i.Step) && path.Base(i.Step.Path) == processPolicy })
	}
	idle := knob.Find("idle").V2[0].Name
	t := h.trees[cgroup.CPU]
	if t == nil || !slices.Contains(h.remedy(a.Remedy).Files(), idle) {
		return false
	}
	file := path.Join(t.Dir, a.Group, idle)
	_, noted := h.original(file)
	text, err := h.read(file)
	return noted && err == nil && text == "1"
}

// Revert restores what the group had before the first Apply of the remedy. A value
// that somebody else has changed since stays, and is a kernel.ErrChanged.
func (h *Host) Revert(_ context.Context, a control.Action) ([]control.Change, error) {
	defer h.enter()()
	return h.revert(a)
}

func (h *Host) revert(a control.Action) ([]control.Change, error) {
	if h.remedy(a.Remedy).Divides() {
		return h.revertShare(a)
	}
	changes, err := h.revertOf(a, h.of(a))
	if h.remedy(a.Remedy).Sends() && !slices.ContainsFunc(h.notes(), func(i kernel.Item) bool { return h.of(a)(i.Step) }) {
		delete(h.lowered, a.Group)
	}
	return changes, err
}

// revertOf restores some of what an action changed.
func (h *Host) revertOf(a control.Action, match func(kernel.Step) bool) ([]control.Change, error) {
	follow := func() error { return nil }
	if r := h.remedy(a.Remedy); r.Controller() == cgroup.CPUSet && !r.Processes {
		follow = h.followers(a.Group)
	}
	items, err := h.undo(match)
	if err = errors.Join(err, follow()); err != nil {
		return nil, h.failed("revert", a, err)
	}
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

// owner names the likely writer of a value of a group.
func (h *Host) owner(file string) string {
	for at := path.Dir(file); at != "." && at != "/"; at = path.Dir(at) {
		switch name := path.Base(at); {
		case pods.Parse(name).Level == pods.AllPods:
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
	gone := !h.has(a.Group) || h.remedy(a.Remedy).Processes && errors.Is(err, fs.ErrNotExist)
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
