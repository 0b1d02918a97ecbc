package kernel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// ReadUndoLog reads a log without opening it: the file stays as it is, also if another
// process has it open. No entry can be added or undone. A log that does not exist, or is of
// an earlier boot, has no entries.
func ReadUndoLog(root *Root, name string) (*UndoLog, error) {
	l, err := readUndoLog(root, name, os.O_RDONLY)
	if err = errors.Join(err, closeFile(l.opened())); err != nil {
		return nil, fmt.Errorf("read undo log: %w", err)
	}
	l.file = nil
	return l, nil
}

// readUndoLog reads the entries. The log has no file if the file is absent, or of an earlier
// boot.
func readUndoLog(root *Root, name string, flag int) (*UndoLog, error) {
	l := newUndoLog(root, name)
	file, err := OpenPrivateFile(name, flag)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if alien, ok := errors.AsType[*alienError](err); ok {
		return nil, &HeaderError{name, errors.New(alien.rule)}
	}
	if err != nil {
		return nil, err
	}
	current := false
	if err = l.load(file); err == nil {
		current, err = l.isCurrent()
	}
	if err == nil && current && l.header.Root != root.absolute() {
		err = fmt.Errorf("%s: it is of the tree %s, not %s", name, l.header.Root, root.absolute())
	}
	if err != nil || !current {
		return newUndoLog(root, name), errors.Join(err, file.Close())
	}
	l.file = file
	return l, nil
}

// isCurrent reports whether the log has begun, and in this boot.
func (l *UndoLog) isCurrent() (bool, error) {
	if l.header.Version == 0 {
		return false, nil
	}
	boot, err := l.root.bootID()
	if err != nil {
		return false, fmt.Errorf("%s: whether it is of this boot is not known: %w", l.name, err)
	}
	if l.header.Boot == "" {
		return false, &HeaderError{l.name, errors.New("it does not say of which boot it is")}
	}
	return l.header.Boot == boot, nil
}

// load reads the text of a log. A last line without its newline was being written when the
// process was killed: its change was not made. Other lines that cannot be read are damage,
// the first one is a *HeaderError.
func (l *UndoLog) load(file io.Reader) error {
	text, err := io.ReadAll(file)
	if err != nil {
		return err
	}
	l.size = int64(bytes.LastIndexByte(text, '\n') + 1)
	l.torn = l.size < int64(len(text))
	l.lines = 0
	var bad []error
	for line := range bytes.Lines(text[:l.size]) {
		l.lines++
		if l.lines == 1 {
			if err = json.Unmarshal(line, &l.header); err == nil && l.header.Version != logVersion {
				err = fmt.Errorf("format %d, not %d", l.header.Version, logVersion)
			}
			if err != nil {
				return &HeaderError{l.name, fmt.Errorf("line 1: %w", err)}
			}
			continue
		}
		var r record
		if err = json.Unmarshal(line, &r); err == nil {
			err = l.add(r)
		}
		if err != nil {
			bad = append(bad, fmt.Errorf("line %d: %w", l.lines, err))
		}
	}
	if len(bad) > 0 {
		l.damage = &DamageError{l.name, errors.Join(bad...)}
	}
	return nil
}

func (l *UndoLog) add(r record) error {
	if r.Do != nil {
		if r.Seq <= l.last {
			return fmt.Errorf("number %d after %d", r.Seq, l.last)
		}
		if r.Do.Path == "" {
			return errors.New("a step without a path")
		}
		l.last, r.Do.seq = r.Seq, r.Seq
		l.remember(r.Do)
		return nil
	}
	i, ok := numbered(l.entries, r.Seq)
	if !ok {
		return fmt.Errorf("nothing has number %d", r.Seq)
	}
	e := l.entries[i]
	switch {
	case r.Made != 0:
		e.Inode = r.Made
	case r.Also != nil:
		e.Also = append(e.Also, *r.Also)
	case r.Undoing:
		e.undoing = true
	case r.Undone:
		l.forget(e)
	}
	return nil
}

// HeaderError is a log of which no line can be read, as the first line gives the
// others their meaning.
type HeaderError struct {
	File  string
	Cause error
}

func (e *HeaderError) Error() string {
	return fmt.Sprintf("undo log %s: %v: its values cannot be restored; 'berth restore' sets it aside, then check by hand the values and groups that it lists", e.File, e.Cause)
}

// Unwrap returns the cause.
func (e *HeaderError) Unwrap() error { return e.Cause }

// DamageError is a log with lines that cannot be read, by mishap or by hand.
type DamageError struct {
	File  string
	Cause error // the lines
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("undo log %s: %v: no change can be added to it; 'berth restore --all' restores the values of the other lines; check these by hand, then delete them or the file", e.File, e.Cause)
}

// Unwrap returns the cause.
func (e *DamageError) Unwrap() error { return e.Cause }

// Damage returns a *DamageError if there are lines that cannot be read, else nil.
func (l *UndoLog) Damage() error {
	if l == nil {
		return nil
	}
	return l.damage
}
