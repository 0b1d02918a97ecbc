package kernel

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
)

// entry is a step that is about to be done, with the data to undo it. The undo log
// stores entries.
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
	// Also are further values that count as Berth's own: the value that the kernel
	// made of Value, and the value that an undo wrote instead of Original.
	Also []string `json:"also,omitempty"`
	// Since is, for Threads, when it was first written, CLOCK_BOOTTIME in nanoseconds: processes
	// that started before have not inherited it.
	Since int64 `json:"since,omitempty"`

	seq int
	// undoing: undoing it has begun, so Path may have its original value while
	// the disturbed files do not yet.
	undoing bool
	// covered: the undo log has an earlier entry that undoes this one too, number seq
	// or, if 0, that of its directory.
	covered bool
}

// saved is the value of a file that a step disturbs.
type saved struct {
	Path  string `json:"path"`
	Inode uint64 `json:"inode,omitempty"`
	Value string `json:"value"`
}

// Apply carries out a plan, step by step: note the original, write,
// read back. When a step fails, everything done so far is undone and the error
// is a StepError, joined with the errors of undoing.
//
// The returned function undoes the plan, last step first, and only where the
// value is still the one written here. A value that another writer changed since
// stays and is reported as a ChangedError. The function goes on after an error;
// calling it again retries the rest. A controller that other groups use by now stays
// enabled, without an error, and stays in the log.
//
// The log may be nil: then nothing survives the process. Apply and the
// undo of different plans may run at the same time; the caller keeps two of
// them from one file.
func Apply(root *Root, plan Plan, log *UndoLog) (undo func() error, err error) {
	var done []*entry
	for _, step := range plan {
		e, err := root.do(step, log)
		if e != nil {
			done = append(done, e)
		}
		if err != nil {
			_, left := root.undoAll(done, log)
			return nil, errors.Join(err, left)
		}
	}
	return func() (err error) {
		done, err = root.undoAll(done, log)
		return err
	}, nil
}

// do carries out one step. It returns the entry to revert, also on error, or
// nil if nothing can have changed.
func (r *Root) do(s Step, log *UndoLog) (*entry, error) {
	e, err := r.prepare(s)
	if err != nil {
		return nil, refused(s, err)
	}
	if e == nil {
		return nil, nil
	}
	if s.Keep {
		log = nil
	}
	if err := log.begin(e); err != nil {
		return nil, fmt.Errorf("%s /%s: %w", s.Op, s.Path, err)
	}
	if s.Op == Mkdir {
		err = r.Mkdir(s.Path)
	} else {
		err = r.write(s.Path, s.Value)
	}
	if err != nil {
		err = r.told(s, err)
		if s.Op == Mkdir { // a directory that exists already is not removed
			return nil, errors.Join(refused(s, err), log.undone(e))
		}
		return keep(e), refused(s, err)
	}
	switch s.Op {
	case Mkdir:
		if e.Inode, err = r.inode(s.Path); err == nil {
			err = log.made(e)
		}
	case Write:
		err = r.readBack(e, log)
	case Enable:
		err = r.enabled(s)
	case Attach:
		// The start was right just before. The process that has the number now was
		// moved, and undo moves it to Back.
		if now := r.startTime(s.Value); now != e.Start && now != "" {
			e.Start = now
			err = fmt.Errorf("process %s ended meanwhile, and another one has its number: %w", s.Value, syscall.ESRCH)
		}
	}
	if err != nil {
		return keep(e), refused(s, err)
	}
	return keep(e), nil
}

// owns reports whether text is a value that Berth wrote.
func (e *entry) owns(text string) bool {
	return owns(e.Format, text, e.Value) || slices.ContainsFunc(e.Also, func(own string) bool { return same(e.Format, text, own) })
}

func keep(e *entry) *entry {
	if e.Keep {
		return nil
	}
	return e
}

// prepare reads the original value, to undo s. It returns nil if there is nothing
// to do.
func (r *Root) prepare(s Step) (*entry, error) {
	e := &entry{Step: s}
	if s.Op == Mkdir {
		_, err := r.inode(s.Path)
		if err == nil {
			return nil, errExist
		}
		if !Absent(err) {
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
		start := r.startTime(s.Value)
		if e.Start == "" {
			e.Start = start
		}
		if e.Start != start {
			return nil, fmt.Errorf("process %s has ended: %w", s.Value, syscall.ESRCH)
		}
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
	if same(s.Format, e.Original, s.Value) {
		return nil, nil
	}
	if s.Format == State { // a qualifier cannot be written
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

// readBack compares the value that the kernel shows with the one written. A State may
// take a moment to be reached. A value that the kernel made of the written one is noted
// as Berth's own, so that it is undone all the same. A value that another writer has set
// meanwhile stays, and is ErrChanged.
func (r *Root) readBack(e *entry, log *UndoLog) error {
	var shown string
	for try := 0; try < 20 || try < 2000 && onTheWay(e.Format, shown, e.Value); try++ { // tasks freeze once they run
		text, err := r.read(e.Path)
		if err != nil {
			return err
		}
		shown = e.line(text)
		if same(e.Format, shown, e.Value) {
			return nil
		}
		if !e.owns(shown) && !same(e.Format, shown, e.Original) {
			ours, err := r.makes(e, shown)
			if err != nil {
				return err
			}
			if !ours {
				return fmt.Errorf("%w: it is %q", ErrChanged, shown)
			}
			if err := log.also(e, shown); err != nil {
				return err
			}
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("the kernel shows %q instead", shown)
}

// makes reports whether the kernel makes text of the value of e: then the kernel shows
// text each time that the value is written. A value of another writer is written back.
func (r *Root) makes(e *entry, text string) (bool, error) {
	for range 3 {
		if err := r.write(e.Path, e.Value); err != nil {
			return false, err
		}
		again, err := r.read(e.Path)
		if err != nil {
			return false, err
		}
		switch again = e.line(again); {
		case same(e.Format, again, e.Value):
			return false, r.write(e.Path, text)
		case !same(e.Format, again, text):
			return false, nil // another writer wrote it once more
		}
	}
	return true, nil
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
