package kernel

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// entry is a step that is about to be done, with what is needed to undo it.
// It is what the journal stores.
type entry struct {
	Step
	// Inode is that of the file, or of the directory once it was made; 0 if unknown.
	Inode uint64 `json:"inode,omitempty"`
	// Original is the text before: the value, or the words of subtree_control.
	Original  string  `json:"original,omitempty"`
	Disturbed []saved `json:"disturbed,omitempty"`
	// Children are, for Enable, the child groups that were there before, with
	// their inodes.
	Children map[string]uint64 `json:"children,omitempty"`
	// Also are values that count as Berth's own beside Value: what the kernel
	// made of it, and what an undo wrote instead of Original.
	Also []string `json:"also,omitempty"`
	// Start is, for Attach, the start time of the process.
	Start string `json:"start,omitempty"`

	seq int
	// undoing: undoing it has begun, so Path may have its original value while
	// the disturbed files do not yet.
	undoing bool
	// covered: a ledger has an earlier note that undoes this one too, number seq
	// or, if 0, that of its directory.
	covered bool
}

// saved is the value of a file that a step disturbs.
type saved struct {
	Path  string `json:"path"`
	Inode uint64 `json:"inode,omitempty"`
	Value string `json:"value"`
}

// Apply carries out a plan, step by step: save the original, journal it, write,
// read back. When a step fails, everything done so far is undone and the error
// is a StepError, joined with what could not be undone.
//
// The returned function undoes the plan, last step first, and only where the
// value is still the one written here; a value that someone else changed since
// stays and is reported as a ChangedError. It goes on after an error; calling
// it again retries what is left. A controller that other groups have come to
// use stays enabled, which is no error, and stays in the journal.
//
// The journal may be nil: then nothing survives the process. Apply and the
// undo of different plans may run at the same time; the caller keeps two of
// them from one file.
func Apply(root *Root, plan Plan, journal *Journal) (undo func() error, err error) {
	var done []*entry
	for _, step := range plan {
		e, err := root.do(step, journal)
		if e != nil {
			done = append(done, e)
		}
		if err != nil {
			_, left := root.undoAll(done, journal)
			return nil, errors.Join(err, left)
		}
	}
	return func() (err error) {
		done, err = root.undoAll(done, journal)
		return err
	}, nil
}

// do carries out one step. It returns the entry to revert, also on error, or
// nil if nothing can have changed.
func (r *Root) do(s Step, journal *Journal) (*entry, error) {
	e, err := r.prepare(s)
	if err != nil {
		return nil, refused(s, err)
	}
	if e == nil {
		return nil, nil
	}
	if s.Keep {
		journal = nil
	}
	if err := journal.begin(e); err != nil {
		return nil, fmt.Errorf("%s /%s: %w", s.Op, s.Path, err)
	}
	if s.Op == Mkdir {
		err = r.Mkdir(s.Path)
	} else {
		err = r.write(s.Path, s.Value)
	}
	if err != nil {
		if s.Op == Mkdir { // what is there now is not ours to remove
			return nil, errors.Join(refused(s, err), journal.undone(e))
		}
		return keep(e), refused(s, err)
	}
	switch s.Op {
	case Mkdir:
		if e.Inode, err = r.inode(s.Path); err == nil {
			err = journal.made(e)
		}
	case Write:
		err = r.readBack(e, journal)
	case Enable:
		err = r.enabled(s)
	}
	if err != nil {
		return keep(e), refused(s, err)
	}
	return keep(e), nil
}

// owns reports whether text is a value that Berth wrote.
func (e *entry) owns(text string) bool {
	return e.Format.owns(text, e.Value) || slices.ContainsFunc(e.Also, func(own string) bool { return e.Format.same(text, own) })
}

// keep returns e if it is to be undone.
func keep(e *entry) *entry {
	if e.Keep {
		return nil
	}
	return e
}

// prepare reads what must be known to undo s. It returns nil if there is
// nothing to do.
func (r *Root) prepare(s Step) (*entry, error) {
	e := &entry{Step: s}
	if s.Op == Mkdir {
		_, err := r.inode(s.Path)
		if err == nil {
			return nil, errExist
		}
		if !gone(err) {
			return nil, err
		}
		return e, nil
	}
	var err error
	if e.Inode, err = r.inode(s.Path); err != nil {
		return nil, err
	}
	if s.Op == Attach {
		if s.Back == s.Path {
			return nil, nil
		}
		e.Start = r.startTime(s.Value)
		return e, nil
	}
	text, err := r.read(s.Path)
	if err != nil {
		return nil, err
	}
	e.Original = s.line(text)
	if s.Op == Enable {
		if len(missing(s.Value, e.Original)) == 0 {
			return nil, nil
		}
		e.Children, err = r.children(path.Dir(s.Path))
		return e, err
	}
	if s.Format.same(e.Original, s.Value) {
		return nil, nil
	}
	if s.Format == State { // what qualifies it cannot be written
		e.Original, _, _ = strings.Cut(strings.TrimSpace(e.Original), " ")
	}
	for _, name := range s.Disturbs {
		d := saved{Path: name}
		if d.Inode, err = r.inode(name); err != nil {
			return nil, err
		}
		if d.Value, err = r.read(name); err != nil {
			return nil, err
		}
		e.Disturbed = append(e.Disturbed, d)
	}
	return e, nil
}

// missing returns the words of "+a +b" that the list "b c" lacks, bare.
func missing(enable, list string) []string {
	have := strings.Fields(list)
	var words []string
	for _, w := range strings.Fields(enable) {
		if w = strings.TrimPrefix(w, "+"); !slices.Contains(have, w) {
			words = append(words, w)
		}
	}
	return words
}

// readBack compares what the kernel shows with what was written. States may
// take a moment to be reached. What is shown instead is noted as Berth's own,
// so that it is undone all the same.
func (r *Root) readBack(e *entry, journal *Journal) error {
	var shown string
	for range 20 {
		text, err := r.read(e.Path)
		if err != nil {
			return err
		}
		shown = e.line(text)
		if e.Format.same(shown, e.Value) {
			return nil
		}
		if !e.owns(shown) {
			if err := journal.also(e, shown); err != nil {
				return err
			}
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("the kernel shows %q instead", shown)
}

func (r *Root) enabled(s Step) error {
	text, err := r.read(s.Path)
	if err != nil {
		return err
	}
	if left := missing(s.Value, text); len(left) > 0 {
		return fmt.Errorf("the kernel did not enable %s", strings.Join(left, " "))
	}
	return nil
}
