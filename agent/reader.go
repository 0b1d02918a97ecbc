package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// Reader reads a node that others may open and change meanwhile. It takes no lock and
// changes nothing: its kernel.Root is read-only, its undo log has no file to write to, and
// its store refuses every change. So it neither finishes what a killed process began nor
// places anew what does not fit: it says so.
type Reader struct {
	n    *Node
	told map[Event]bool
}

// NewReader returns a reader of the node of opt.Dir, also where that directory is not
// there: then there are no workloads. Of opt, Root, Dir, Machine, Policies and Events
// count; Events hears once of each thing that could not be read.
func NewReader(opt Options) (*Reader, error) {
	if opt.Root == nil {
		root, err := kernel.Open("/")
		if err != nil {
			return nil, fmt.Errorf("read node: %w", err)
		}
		opt.Root = root
	}
	opt.Root = opt.Root.ReadOnly()
	r := &Reader{n: &Node{opt: opt, root: opt.Root}, told: map[Event]bool{}}
	if err := r.n.fill(); err != nil {
		return nil, fmt.Errorf("read node: %w", err)
	}
	return r, nil
}

// Close does nothing: a Reader keeps nothing open.
func (*Reader) Close() error { return nil }

// List returns the workloads by rising id.
func (r *Reader) List(context.Context) (all []Workload, err error) {
	if _, err := os.Lstat(r.n.opt.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	err = r.look(func(t *transaction) error {
		all = t.list()
		for i := range all {
			t.compare(&all[i])
		}
		return nil
	})
	return all, err
}

// Get returns one workload, or a *place.NotHeldError.
func (r *Reader) Get(ctx context.Context, id string) (Workload, error) {
	all, err := r.List(ctx)
	if err != nil {
		return Workload{}, err
	}
	i := slices.IndexFunc(all, func(w Workload) bool { return w.ID() == id })
	if i < 0 {
		return Workload{}, &place.NotHeldError{ID: id}
	}
	return all[i], nil
}

// State returns who holds what and what is free.
func (r *Reader) State(context.Context) (s *place.State, err error) {
	err = r.look(func(t *transaction) error { s = t.state; return nil })
	return s, err
}

// Preview is Node.Preview.
func (r *Reader) Preview(_ context.Context, spec Spec) (w Workload, plan kernel.Plan, err error) {
	err = r.look(func(t *transaction) error {
		if t.log, err = kernel.ReadUndoLog(t.n.root, filepath.Join(t.n.opt.Dir, logFile)); err != nil {
			return err
		}
		w, plan, err = t.preview(spec)
		return err
	})
	return w, plan, err
}

// tries is how often the records are read until they are the same twice. One change
// takes less time than reading them so often.
const tries = 5

// look runs f on the records as they are now.
func (r *Reader) look(f func(*transaction) error) error {
	n := r.n
	n.mu.Lock()
	defer n.mu.Unlock()
	b := &nodeState{store: store{dir: n.opt.Dir, touch: func(op string) error {
		return fmt.Errorf("%s a file of node %s: %w", op, n.opt.Dir, syscall.EROFS)
	}}}
	b.records = map[string]*record{}
	if err := n.survey(); err != nil {
		return err
	}
	if err := r.read(b); err != nil {
		return fmt.Errorf("read node %s: %w", n.opt.Dir, err)
	}
	return f(&transaction{n: n, nodeState: b, ctx: context.Background()})
}

// read reads settings and records. Settings that cannot be read are the default ones.
func (r *Reader) read(b *nodeState) error {
	n := r.n
	err := kernel.CheckPrivateDir(b.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return n.load(b, nil, nil)
	}
	if err != nil {
		return err
	}
	texts, bad, settled, err := b.settledTexts()
	if err != nil {
		return err
	}
	if err := n.resurvey(); err != nil {
		r.tell("", "", err.Error())
	}
	if _, cut := texts[dirtyFile]; cut || !settled {
		r.tell("", b.path(dirtyFile), "the node is being changed, or the process that changed it was killed: what is shown may be only partly in force")
	}
	if err := n.load(b, texts, bad); err != nil {
		return err
	}
	log, err := kernel.ReadUndoLog(n.root, b.path(logFile))
	if err == nil {
		err = log.Damage()
	}
	if err != nil {
		r.tell("", "", err.Error())
	}
	for _, name := range slices.Sorted(maps.Keys(b.bad)) {
		r.tell("", "", (&CorruptError{b.path(name), b.bad[name]}).Error())
	}
	return nil
}

// settledTexts reads until nothing has changed between two readings; settled is false
// if that was not to be had.
func (s store) settledTexts() (texts map[string][]byte, bad map[string]error, settled bool, err error) {
	var before map[string][]byte
	for range tries {
		texts, bad, err = s.texts()
		if err == nil && before != nil && maps.EqualFunc(before, texts, bytes.Equal) {
			return texts, bad, true, nil
		}
		before = texts
	}
	return texts, bad, false, err
}

// tell passes an event on, once.
func (r *Reader) tell(id, object, text string) {
	e := Event{Kind: Failed, ID: id, Object: object, Text: text}
	if !r.told[e] {
		r.told[e] = true
		r.n.opt.Events(e)
	}
}

// compare notes where the kernel shows something else than the record of a workload says.
func (t *transaction) compare(w *Workload) {
	b := t.records[w.ID()]
	if _, ok := t.state.Grant(w.ID()); !ok {
		w.Notes = append(w.Notes, "its CPUs no longer fit the machine, or the settings of the node: the next command that changes something gives it others")
	}
	if b.format > 0 {
		w.Notes = append(w.Notes, (&newerError{b.format}).Error()+": its record is not changed")
	}
	name := t.n.enforcer.Observe(w).CPUFile
	if name == "" {
		return
	}
	text, err := readText(t.n.root, name)
	if err != nil {
		w.Notes = append(w.Notes, fmt.Sprintf("/%s cannot be read: %v", name, err))
		return
	}
	if is, err := cpuset.Parse(text); err == nil && !is.IsEmpty() && is != w.CPUs {
		w.Notes = append(w.Notes, fmt.Sprintf("/%s is %s instead of %s", name, is, w.CPUs))
		w.CPUs = is
	}
}
