package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"syscall"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/kernel/traffic"
)

// NewReader returns a Node that only reads the records of opt.Dir, which others may open
// and change meanwhile; also where that directory is not there: then there are no workloads.
// It takes no lock and changes nothing: its kernel.Root is read-only, and its store refuses
// every change. So it neither finishes what a killed process began nor places anew what does
// not fit: it says so. Of opt, Root, Dir, Machine, Policies and Events count; Events hears
// once of each thing that could not be read.
func NewReader(opt Options) (*Node, error) {
	if opt.Root == nil {
		root, err := kernel.Open("/")
		if err != nil {
			return nil, fmt.Errorf("read node: %w", err)
		}
		opt.Root = root
	}
	looks := opt.Root.IsLive()
	opt.Root = power.Over(traffic.Over(opt.Root)).ReadOnly()
	n := &Node{opt: opt, root: opt.Root, unread: map[Event]bool{}, looks: looks}
	if err := n.fill(); err != nil {
		return nil, fmt.Errorf("read node: %w", err)
	}
	return n, nil
}

// tries is how often the records are read until they are the same twice. One change
// takes less time than reading them so often.
const tries = 5

func (n *Node) peek(ctx context.Context, f func(*transaction) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	b := &nodeState{store: store{dir: n.opt.Dir, touch: func(op string) error {
		return fmt.Errorf("%s a file of node %s: %w", op, n.opt.Dir, syscall.EROFS)
	}}}
	b.records = map[string]*record{}
	n.disks, n.unified, n.noted = nil, nil, nil
	if err := n.survey(); err != nil {
		return err
	}
	if err := n.readUnlocked(b); err != nil {
		return fmt.Errorf("read node %s: %w", n.opt.Dir, err)
	}
	return f(&transaction{n: n, nodeState: b, ctx: ctx})
}

// readUnlocked reads settings and records. Settings that cannot be read are the default ones.
func (n *Node) readUnlocked(b *nodeState) error {
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
	if err := n.resurvey(texts); err != nil {
		n.noteUnread("", err.Error())
	}
	if _, cut := texts[dirtyFile]; cut || !settled {
		n.noteUnread(b.path(dirtyFile), "the node is being changed, or the process that changed it was killed: what is shown may be only partly in force")
	}
	if err := n.load(b, texts, bad); err != nil {
		return err
	}
	b.log, err = kernel.ReadUndoLog(n.root, b.path(logFile))
	if err == nil {
		err = b.log.Damage()
	}
	if err != nil {
		n.noteUnread("", err.Error())
	}
	for _, name := range slices.Sorted(maps.Keys(b.bad)) {
		n.noteUnread("", (&CorruptError{b.path(name), b.bad[name]}).Error())
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

func (n *Node) noteUnread(object, text string) {
	e := Event{Kind: Failed, Object: object, Text: text}
	if !n.unread[e] {
		n.unread[e] = true
		n.opt.Events(e)
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
	text, err := kernel.ReadText(t.n.root.FS(), name)
	if err != nil {
		w.Notes = append(w.Notes, fmt.Sprintf("/%s cannot be read: %v", name, err))
		return
	}
	if is, err := cpuset.Parse(text); err == nil && !is.IsEmpty() && is != w.CPUs {
		w.Notes = append(w.Notes, fmt.Sprintf("/%s is %s instead of %s", name, is, w.CPUs))
		w.CPUs = is
	}
}
