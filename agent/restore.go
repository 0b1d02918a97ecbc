package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// Restore gives everything back: every value that Berth overwrote, every
// process to the group that it came from, every group that Berth made, and the
// records. It returns what was undone. The error joins what could not be.
func (n *Node) Restore(ctx context.Context) (items []kernel.Item, err error) {
	err = n.with(ctx, func(b *nodeState) error {
		t := &transaction{n: n, nodeState: b, ctx: ctx}
		_, err := n.removeStaleMark()
		errs := []error{err, t.recoverGuard(), t.resume()}
		for _, id := range t.ids() {
			errs = append(errs, n.enforcer.Release(t.records[id].Workload, true, b.log))
		}
		errs = append(errs, t.setAside())
		n.refused.asking.Done() // whoever restores has systemd asked, however lately it could not be
		c := t.everything()
		items, err = c.undo(c.undoAll, func(kernel.Step) bool { return true })
		errs = append(errs, b.log.Damage())
		empty, startErr := place.Start(n.opt.Policy, n.topology, n.config)
		errs = append(errs, err, startErr)
		if startErr == nil {
			errs = append(errs, t.save(snapshot{empty, map[string]*record{}}), t.remove(settingsFile))
		}
		err = errors.Join(errs...)
		if err == nil {
			err = t.markClean()
		}
		return err // what is left is for the next opener
	})
	if err == nil {
		n.tell(Restored, "", "", fmt.Sprintf("%d steps undone", len(items)))
	}
	return items, err
}

// setAside keeps the records that this version cannot read, or not change, under other
// names, once the processes have left the groups that Berth made for them.
func (t *transaction) setAside() error {
	var errs []error
	names := slices.Collect(maps.Keys(t.bad))
	for _, id := range t.ids() {
		name := fileName(id) + recordExt
		if t.records[id].format > 0 && t.bad[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		errs = append(errs, t.drainUnread(strings.TrimSuffix(name, recordExt)))
		to, err := t.aside(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("set aside a record: %w", err))
			continue
		}
		t.n.tell(Dropped, "", to, "it could not be read, and is kept here")
	}
	t.records = maps.Clone(t.records)
	maps.DeleteFunc(t.records, func(_ string, b *record) bool { return b.format > 0 })
	t.bad = map[string]error{}
	return errors.Join(errs...)
}

// drainUnread has the processes leave the group that Berth made for a workload of which
// only the file's name is known.
func (t *transaction) drainUnread(name string) error {
	var errs []error
	for _, around := range []string{ownGroup, idleGroup} {
		w := &Workload{Group: path.Join(around, name)}
		for _, dir := range t.n.site.Dirs {
			w.Dirs = append(w.Dirs, path.Join(dir, w.Group))
		}
		if len(w.Dirs) > 0 {
			errs = append(errs, t.n.enforcer.Release(w, true, t.log))
		}
	}
	return errors.Join(errs...)
}

// Restore gives everything back that a node holds, also where Open could not
// settle it: see Node.Restore. A node that an agent keeps is left alone, and is
// a *BusyError. To give back what dead owners left, and no more, Open with Keep
// and Close are enough.
func Restore(ctx context.Context, opt Options) ([]kernel.Item, error) {
	n, err := newNode(opt)
	if err != nil {
		return nil, fmt.Errorf("restore node: %w", err)
	}
	if err := n.keep(ctx); err != nil {
		return nil, err
	}
	items, err := n.Restore(ctx)
	return items, errors.Join(err, n.Close())
}

// RemoveMark removes the mark of a node whose state directory is gone, with all that it
// knew, from the control groups, so that another one may place there. It makes nothing;
// ok is false if there is no such mark.
func RemoveMark(opt Options) (ok bool, err error) {
	n := &Node{opt: opt, root: opt.Root}
	err = n.fill()
	if err == nil {
		err = n.survey()
	}
	if err != nil {
		return false, fmt.Errorf("remove the mark of node: %w", err)
	}
	if ok, err = n.removeStaleMark(); err != nil {
		return false, fmt.Errorf("remove the mark of node %s: %w", n.opt.Dir, err)
	}
	return ok, nil
}

// SetAside keeps a node's undo log of which nothing can be read (kernel.HeaderError)
// under another name, which it returns, so that the node can go on without it: what
// it notes is not given back. The name is "" if the log can be read.
func SetAside(ctx context.Context, opt Options) (to string, err error) {
	n, err := newNode(opt)
	if err != nil {
		return "", fmt.Errorf("set aside undo log: %w", err)
	}
	if err := n.keep(ctx); err != nil {
		return "", err
	}
	log, err := kernel.OpenUndoLog(n.root, filepath.Join(n.opt.Dir, logFile), "berth")
	var header *kernel.HeaderError
	switch {
	case errors.As(err, &header):
		to, err = store{n.opt.Dir, func(string) error { return nil }}.aside(logFile)
	case err == nil:
		err = log.Close()
	}
	return to, errors.Join(err, n.Close())
}
