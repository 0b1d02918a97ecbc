package kernel

import (
	"errors"
	"iter"
	"os"
	"path"
	"slices"
	"strings"
)

func (l *UndoLog) begin(e *entry) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	if e.covered, err = l.covers(e); e.covered || err != nil {
		return err
	}
	if l.damage != nil {
		return l.damage
	}
	if err := l.lookThrough(e); err != nil {
		return err
	}
	if err := l.reserve(); err != nil {
		return err
	}
	if old := l.beside[e.Path]; old != nil && e.Op == Write && e.Format == Words && l.root.isSame(old) {
		e.Original = old.saved(e.Path)
	}
	if e.Format == Threads {
		if e.Since, err = sinceBoot(); err != nil {
			return err
		}
	}
	l.last++
	e.seq = l.last
	if err := l.write(record{Seq: e.seq, Do: e}); err != nil {
		return err
	}
	l.remember(e)
	return nil
}

// made adds the inode of the directory that e made.
func (l *UndoLog) made(e *entry) error { return l.append(record{Seq: e.seq, Made: e.Inode}) }

// also notes a further value that is Berth's own, before or as soon as the
// kernel shows it.
func (l *UndoLog) also(e *entry, value string) error {
	if l != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
	}
	e.Also = append(e.Also, value)
	if l == nil || e.covered && e.seq == 0 {
		return nil
	}
	if e.covered {
		i, ok := numbered(l.entries, e.seq)
		if !ok {
			return nil // crossed out since
		}
		l.entries[i].Also = append(l.entries[i].Also, value)
	}
	return l.write(record{Seq: e.seq, Also: &value})
}

func (l *UndoLog) undoing(e *entry) error {
	if e.covered {
		return nil
	}
	return l.append(record{Seq: e.seq, Undoing: true})
}

// undone crosses e out. Where that cannot be noted, Restore looks at the object once more
// and finds nothing to do.
func (l *UndoLog) undone(e *entry) error {
	if l == nil || e.covered {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.write(record{Seq: e.seq, Undone: true}); err != nil {
		return err
	}
	l.forget(e)
	l.shorten()
	return nil
}

// Notes returns the entries that are not undone, in the order in which the changes were
// made, with the outcome Pending.
func (l *UndoLog) Notes() []Item {
	var items []Item
	for _, e := range l.entries {
		items = append(items, Item{Step: e.Step, Outcome: Pending, Original: e.Original, Since: e.Since})
	}
	return items
}

// Steps are those that are not undone, in the order in which they were taken; a log that is nil
// has none.
func (l *UndoLog) Steps() iter.Seq[Step] {
	return func(yield func(Step) bool) {
		if l == nil {
			return
		}
		for _, e := range l.entries {
			if !yield(e.Step) {
				return
			}
		}
	}
}

// Has reports whether a step that matches is not undone.
func (l *UndoLog) Has(match func(Step) bool) bool {
	for s := range l.Steps() {
		if match(s) {
			return true
		}
	}
	return false
}

// Original returns the text of a file before Berth's first write to it, or to a file that
// changes it as a side effect; of a file with many lines, what it shows with those of Berth
// as they were. It ignores the entry of a file that was removed and made anew since.
func (l *UndoLog) Original(path string) (text string, ok bool) {
	beside := l.beside[path]
	if beside != nil && !l.root.isSame(beside) {
		beside = nil
	}
	for _, e := range l.at[path] {
		switch {
		case e.Op != Write || !l.root.isSame(e) || beside != nil && e.seq > beside.seq:
		case e.Format == Keyed, e.Format == Schema:
			return l.originalLines(path)
		default:
			return e.Original, true
		}
	}
	if beside != nil {
		return beside.saved(path), true
	}
	if _, err := os.Lstat(l.above); l.above == "" || err != nil {
		return "", false // the value is not read in vain
	}
	current, err := l.root.read(path)
	if err != nil {
		return "", false
	}
	if e, err := l.lies(Step{Op: Write, Path: path}, current); e != nil && err == nil {
		return e.Original, true
	}
	return "", false
}

// Wrote reports whether a text is a value that Berth wrote to a file, of which a note tells.
func (l *UndoLog) Wrote(path, text string) bool {
	return l != nil && slices.ContainsFunc(l.at[path], func(e *entry) bool {
		return e.Op == Write && e.owns(text) && l.root.isSame(e)
	})
}

// Overwritten reports whether another writer has since changed what a noted step wrote: the file shows neither a value
// of Berth's nor the original. A file that cannot be read is not.
func (l *UndoLog) Overwritten(s Step) bool {
	return l != nil && slices.ContainsFunc(l.at[s.Path], func(e *entry) bool {
		if e.Op != Write || !e.sameLine(s.Value) || !l.root.isSame(e) {
			return false
		}
		text, err := l.root.read(e.Path)
		now := e.line(text)
		original := same(e.Format, now, e.Original) && same(e.Format, e.Original, now)
		return err == nil && !original && !l.root.owns(e, now)
	})
}

// originalLines are those of a file with a line per key or resource.
func (l *UndoLog) originalLines(path string) (text string, ok bool) {
	text, err := l.root.read(path)
	if err != nil {
		return "", false
	}
	var lines []string
	for line := range strings.Lines(text) {
		if !slices.ContainsFunc(l.at[path], func(e *entry) bool { return e.sameLine(line) && l.root.isSame(e) }) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	for _, e := range l.at[path] {
		if e.Op == Write && l.root.isSame(e) && (e.Unset == "" || e.Original != e.Unset) {
			lines = append(lines, e.Original)
		}
	}
	return strings.Join(lines, "\n"), true
}

// saved is the value of a file that the entry disturbs.
func (e *entry) saved(path string) string {
	i := slices.IndexFunc(e.Disturbed, func(d saved) bool { return d.Path == path })
	return e.Disturbed[i].Value
}

// Outdated reports whether all entries of a path concern a file or directory that no
// longer exists: it was removed, and maybe made anew by another process.
func (l *UndoLog) Outdated(path string) bool {
	return !slices.ContainsFunc(l.at[path], l.root.isSame)
}

func (r *Root) isSame(e *entry) bool {
	inode, err := r.inode(e.Path)
	return err == nil && !another(e.Inode, inode) || err != nil && !Absent(err)
}

// Undo undoes the entries that match, the last first, as Restore does. The error joins
// those of the entries that could not be undone, which stay.
func (l *UndoLog) Undo(match func(Step) bool) ([]Item, error) {
	var entries []*entry
	for _, e := range l.entries {
		if match(e.Step) {
			entries = append(entries, e)
		}
	}
	all, err := l.root.revertAll(entries, l)
	errs := []error{err}
	items := make([]Item, 0, len(all))
	for _, v := range all {
		item := Item{Step: v.Step, Outcome: v.outcome, Original: v.Original}
		if v.err != nil {
			item.Error = v.err.Error()
		}
		if v.outcome == Failed || v.outcome == Covered {
			errs = append(errs, v.err)
		}
		items = append(items, item)
	}
	return items, errors.Join(errs...)
}

// covers reports whether e needs no note of its own: an earlier one has the
// original of the same file, or the directory is to be removed. A value that is
// not known to be Berth's own is added to the earlier note.
func (l *UndoLog) covers(e *entry) (bool, error) {
	if e.Op == Mkdir || e.Op == Attach {
		return false, nil
	}
	if slices.ContainsFunc(l.at[path.Dir(e.Path)], func(old *entry) bool { return old.Op == Mkdir }) {
		return true, nil
	}
	for _, old := range l.at[e.Path] {
		if e.Op != Write || old.Op != Write || another(old.Inode, e.Inode) || old.Unset != e.Unset {
			continue
		}
		if !e.sameLine(old.Value) {
			continue
		}
		e.seq = old.seq
		if old.owns(e.Value) {
			return true, nil
		}
		if err := l.write(record{Seq: old.seq, Also: &e.Value}); err != nil {
			return false, err
		}
		old.Also = append(old.Also, e.Value)
		return true, nil
	}
	return false, nil
}

// sameLine reports whether a value is of the line that s writes, in a file with many.
func (s *Step) sameLine(value string) bool {
	switch s.Format {
	case Keyed:
		return key(s.Value) == key(value)
	case Schema:
		return resourceOf(s.Value) == resourceOf(value)
	}
	return true
}

func key(line string) string {
	k, _, _ := strings.Cut(line, " ")
	return k
}

// remember adds e to the entries, forget removes it.
func (l *UndoLog) remember(e *entry) {
	l.entries = append(l.entries, e)
	l.at[e.Path] = append(l.at[e.Path], e)
	for _, d := range e.Disturbed {
		l.beside[d.Path] = e
	}
}

func (l *UndoLog) forget(e *entry) {
	l.entries = withoutNumber(l.entries, e.seq)
	if l.at[e.Path] = withoutNumber(l.at[e.Path], e.seq); len(l.at[e.Path]) == 0 {
		delete(l.at, e.Path)
	}
	for _, d := range e.Disturbed {
		if n := l.beside[d.Path]; n != nil && n.seq == e.seq {
			delete(l.beside, d.Path)
		}
	}
}

// numbered returns where in some entries, which are by rising number, one is.
func numbered(entries []*entry, seq int) (at int, ok bool) {
	return slices.BinarySearchFunc(entries, seq, func(e *entry, seq int) int { return e.seq - seq })
}

func withoutNumber(entries []*entry, seq int) []*entry {
	at, ok := numbered(entries, seq)
	if !ok {
		return entries
	}
	return slices.Delete(entries, at, at+1)
}

// Shows returns the value that the kernel shows for the setting of s, and whether it
// means the same as s.Value. In a v1 group CPUs that are offline make no difference.
func (r *Root) Shows(s Step) (value string, same bool, err error) {
	text, err := r.read(s.Path)
	if err != nil {
		return "", false, err
	}
	value = s.line(text)
	return value, r.shows(&s, value, s.Value), nil
}
