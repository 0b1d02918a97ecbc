package kernel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// OpenLedger opens a journal that outlives its processes, or starts one: who
// opens the file next goes on where the last one ended. The caller keeps other
// processes away while it is open, and does not keep it where Restore looks for
// the journals of dead processes.
//
// Several writes to one file are one note, with the value that was there before
// the first and all that Berth has written since. What is written in a
// directory that the ledger has noted as made is not noted: undoing removes the
// directory.
//
// A ledger of an earlier boot is started anew. One whose first line cannot be read, or
// that is no file, is a *HeaderError and stays as it is. Other lines that cannot be read stay in place, too:
// what the others note can be undone, and nothing new be noted (see Damage).
func OpenLedger(root *Root, name, program string) (*Journal, error) {
	j, long, err := readLedger(root, name)
	if errors.Is(err, os.ErrNotExist) {
		j, err = &Journal{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	j.ledger, j.open, j.root, j.at = true, map[int]bool{}, root, map[string][]*entry{}
	for _, e := range j.notes {
		j.open[e.seq] = true
		j.at[e.Path] = append(j.at[e.Path], e)
	}
	if old := j.file; old == nil || long {
		err := j.rewrite(name, newHeader(root, program))
		switch {
		case err == nil && old != nil:
			err = old.Close()
		case err != nil && old != nil: // as on a full disk: it can wait
			j.file, err = old, nil
		}
		if err != nil {
			return nil, fmt.Errorf("open ledger: %w", err)
		}
	}
	return j, nil
}

// readLedger reads what is noted. Its file is nil if it is of an earlier boot; it
// is long if it is better written anew, as most of it is crossed out.
func readLedger(root *Root, name string) (j *Journal, long bool, err error) {
	if info, err := os.Lstat(name); err != nil {
		return nil, false, err
	} else if !info.Mode().IsRegular() {
		return nil, false, &HeaderError{name, errors.New("not a regular file")}
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, false, err
	}
	n, damage, err := parseLedger(text)
	switch {
	case err != nil:
		return nil, false, &HeaderError{name, err}
	case n.Journal == 0 || n.Boot != root.bootID():
		return &Journal{}, false, nil
	case n.Root != root.absolute():
		return nil, false, fmt.Errorf("%s: it is of the tree %s, not %s", name, n.Root, root.absolute())
	}
	j = &Journal{notes: n.entries, next: n.last}
	if damage != nil {
		j.damage = &DamageError{name, damage}
	}
	long = damage == nil && strings.Count(string(text), "\n") > 64+2*len(n.entries)
	if j.file, err = openLedgerFile(name); err != nil {
		return nil, false, err
	}
	if err := j.file.Truncate(n.size); err != nil {
		return nil, false, errors.Join(err, j.file.Close())
	}
	return j, long, nil
}

// HeaderError is a ledger of which nothing can be read, as its first line says what
// the others are about.
type HeaderError struct {
	File  string
	Cause error
}

func (e *HeaderError) Error() string {
	return fmt.Sprintf("ledger %s: %v: what it notes cannot be given back; 'berth restore' sets it aside, then check by hand the values and groups that it lists", e.File, e.Cause)
}

// Unwrap returns what is wrong with it.
func (e *HeaderError) Unwrap() error { return e.Cause }

// DamageError is a ledger with lines that cannot be read, by mishap or by hand.
type DamageError struct {
	File  string
	Cause error // the lines
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("ledger %s: %v: nothing new is noted in it; give back what the other lines say with 'berth restore --all', check by hand what these say, then delete them or the file", e.File, e.Cause)
}

// Unwrap returns what is wrong with the lines.
func (e *DamageError) Unwrap() error { return e.Cause }

// Damage returns a *DamageError if there are lines that cannot be read, else nil.
func (j *Journal) Damage() error {
	if j == nil || j.damage == nil {
		return nil
	}
	return j.damage
}

// parseLedger is parseJournal, but goes on after a line that it cannot read, other
// than the first; damage says which.
func parseLedger(text []byte) (n notes, damage, err error) {
	end := bytes.LastIndexByte(text, '\n') + 1
	first, rest, _ := bytes.Cut(text[:end], []byte("\n"))
	if end > 0 {
		if n, err = parseJournal(append(bytes.Clone(first), '\n')); err != nil {
			return n, nil, err
		}
	}
	n.size = int64(end)
	var bad []error
	number := 1
	for line := range bytes.Lines(rest) {
		number++
		var r record
		err := json.Unmarshal(line, &r)
		if err == nil {
			err = n.add(r)
		}
		if err != nil {
			bad = append(bad, fmt.Errorf("line %d: %w", number, err))
		}
	}
	return n, errors.Join(bad...), nil
}

// reserve makes room on the disk for what undoing all notes will append, so that
// undoing needs none when the disk is full. Not every file system can.
func (j *Journal) reserve() error {
	info, err := j.file.Stat()
	if err != nil {
		return err
	}
	const perNote, block = 512, 1 << 12 // the records of an undoing, with a value
	need := info.Size() + int64(len(j.open)+2)*perNote
	if need <= j.reserved {
		return nil
	}
	size := need - info.Size() + block
	err = syscall.Fallocate(int(j.file.Fd()), fallocKeepSize, info.Size(), size)
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("make room in %s: %w; free some space there", j.file.Name(), err)
	}
	if err == nil {
		j.reserved = info.Size() + size
	}
	return nil
}

const fallocKeepSize = 1 // FALLOC_FL_KEEP_SIZE of <linux/falloc.h>

// rewrite replaces the ledger's file by one without what was crossed out.
func (j *Journal) rewrite(name string, h header) (err error) {
	temporary := name + ".new"
	if j.file, err = os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND|syscall.O_NOFOLLOW, 0o600); err != nil {
		return err
	}
	lines := []any{h}
	for _, e := range j.notes {
		lines = append(lines, record{Seq: e.seq, Do: e})
		if e.undoing {
			lines = append(lines, record{Seq: e.seq, Undoing: true})
		}
	}
	var text []byte
	for _, line := range lines {
		data, err := json.Marshal(line)
		if err != nil {
			return errors.Join(err, j.file.Close())
		}
		text = append(append(text, data...), '\n')
	}
	_, err = j.file.Write(text)
	if err == nil {
		err = j.file.Sync()
	}
	if err == nil {
		err = os.Rename(temporary, name)
	}
	if err == nil {
		err = syncDir(filepath.Dir(name))
	}
	if err != nil {
		return errors.Join(err, j.file.Close())
	}
	if err := j.file.Close(); err != nil {
		return err
	}
	j.file, err = openLedgerFile(name)
	return err
}

func openLedgerFile(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_WRONLY|os.O_APPEND|syscall.O_NOFOLLOW, 0)
}

func syncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Notes returns what the ledger has noted and not undone, in the order in which
// it was done, with the outcome Pending.
func (j *Journal) Notes() []Item {
	var items []Item
	for _, e := range j.notes {
		items = append(items, Item{Step: e.Step, Outcome: Pending, Original: e.Original})
	}
	return items
}

// Original returns what the ledger has noted as the text of a file before the
// first write. A note of a file that was removed and made anew since is of no use.
func (j *Journal) Original(path string) (text string, ok bool) {
	for _, e := range j.at[path] {
		if e.Op == Write && j.root.isSame(e) {
			return e.Original, true
		}
	}
	return "", false
}

// Outdated reports whether all that the ledger has noted of a path is about what
// is no longer there: it was removed, and maybe made anew by someone else.
func (j *Journal) Outdated(path string) bool {
	return !slices.ContainsFunc(j.at[path], j.root.isSame)
}

// isSame reports whether what e was done to is still there.
func (r *Root) isSame(e *entry) bool {
	inode, err := r.inode(e.Path)
	return err == nil && (e.Inode == 0 || inode == e.Inode) || err != nil && !gone(err)
}

// Undo undoes those of the ledger's notes that match, the last first, as
// Restore does. The error joins what could not be undone and stays noted.
func (j *Journal) Undo(match func(Step) bool) ([]Item, error) {
	var entries []*entry
	for _, e := range j.notes {
		if match(e.Step) {
			entries = append(entries, e)
		}
	}
	all, err := j.root.revertAll(entries, j)
	errs := []error{err}
	items := make([]Item, 0, len(all))
	for _, v := range all {
		item := Item{Step: v.Step, Outcome: v.outcome, Original: v.Original}
		if v.err != nil {
			item.Error = v.err.Error()
		}
		if v.outcome == Failed {
			errs = append(errs, v.err)
		}
		items = append(items, item)
	}
	return items, errors.Join(errs...)
}

// covered reports whether e needs no note of its own: an earlier one has the
// original of the same file, or the directory is to be removed. A value that is
// not known to be Berth's own is added to the earlier note.
func (j *Journal) covered(e *entry) (bool, error) {
	if !j.ledger || e.Op == Mkdir || e.Op == Attach {
		return false, nil
	}
	if slices.ContainsFunc(j.at[path.Dir(e.Path)], func(old *entry) bool { return old.Op == Mkdir }) {
		return true, nil
	}
	for _, old := range j.at[e.Path] {
		if e.Op != Write || old.Op != Write || old.Inode != e.Inode || old.Unset != e.Unset {
			continue
		}
		if e.Format == Keyed && key(old.Value) != key(e.Value) {
			continue
		}
		e.seq = old.seq
		if old.owns(e.Value) {
			return true, nil
		}
		old.Also = append(old.Also, e.Value)
		return true, j.write(record{Seq: old.seq, Also: &e.Value}, true)
	}
	return false, nil
}

func key(line string) string {
	k, _, _ := strings.Cut(line, " ")
	return k
}

// remember adds e to the ledger's notes, forget takes it out.
func (j *Journal) remember(e *entry) {
	j.notes = append(j.notes, e)
	j.at[e.Path] = append(j.at[e.Path], e)
}

func (j *Journal) forget(e *entry) {
	same := func(n *entry) bool { return n.seq == e.seq }
	j.notes = slices.DeleteFunc(j.notes, same)
	if j.at[e.Path] = slices.DeleteFunc(j.at[e.Path], same); len(j.at[e.Path]) == 0 {
		delete(j.at, e.Path)
	}
}

// Shows returns what the kernel shows of the setting that s writes, and whether
// it means the same as s.Value.
func (r *Root) Shows(s Step) (value string, same bool, err error) {
	text, err := r.read(s.Path)
	if err != nil {
		return "", false, err
	}
	value = s.line(text)
	return value, s.Format.same(value, s.Value), nil
}
