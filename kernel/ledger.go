package kernel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// OpenLedger opens a journal that outlives its processes (a ledger), or starts one: the
// next process that opens the file continues it. The caller keeps other processes away
// while it is open, and does not store it in a directory in which Restore looks for the
// journals of dead processes.
//
// Several writes to one file are one entry, with the original value and every value that
// Berth has written since. Writes in a directory that Berth made, by an entry of the
// ledger, have no entry: undoing removes the directory.
//
// A ledger of an earlier boot is started anew. One whose first line cannot be read, or
// that is no file, is a *HeaderError and stays as it is. Other lines that cannot be read
// stay in place, too: the other entries can be undone, and no entry can be added (see
// Damage).
func OpenLedger(root *Root, name, program string) (*Journal, error) {
	j, file, err := readLedger(root, name, os.O_RDWR|os.O_APPEND)
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	if file != nil {
		if j.file = file; j.torn {
			err = j.mend()
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open ledger: %w", err), file.Close())
		}
		if !j.long {
			return j, nil
		}
	}
	h, err := newHeader(root, program)
	if err == nil {
		err = j.rewrite(name, h)
	}
	switch {
	case err == nil && file != nil:
		err = file.Close()
	case err != nil && file != nil: // as on a full disk: it can wait
		j.file, err = file, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	return j, nil
}

// ReadLedger reads a ledger without opening it: the file stays as it is, also if another
// process has it open. No entry can be added or undone. A ledger that does not exist, or
// is of an earlier boot, has no entries.
func ReadLedger(root *Root, name string) (*Journal, error) {
	j, file, err := readLedger(root, name, os.O_RDONLY)
	if file != nil {
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("read ledger: %w", err)
	}
	return j, nil
}

// readLedger reads the entries. The file is nil if there is none, or one of an
// earlier boot.
func readLedger(root *Root, name string, flag int) (j *Journal, file *os.File, err error) {
	j = &Journal{ledger: true, open: map[int]bool{}, root: root, at: map[string][]*entry{}, beside: map[string]*entry{}}
	file, err = OpenPrivateFile(name, flag)
	if errors.Is(err, fs.ErrNotExist) {
		return j, nil, nil
	}
	if alien, ok := errors.AsType[*alienError](err); ok {
		return nil, nil, &HeaderError{name, errors.New(alien.rule)}
	}
	if err != nil {
		return nil, nil, err
	}
	current, err := j.load(file)
	if err != nil || !current {
		return j, nil, errors.Join(err, file.Close())
	}
	return j, file, nil
}

// load reads the ledger's file; current is false for one of an earlier boot.
func (j *Journal) load(file *os.File) (current bool, err error) {
	text, err := io.ReadAll(file)
	if err != nil {
		return false, err
	}
	n, damage, err := parseLedger(text)
	if err != nil {
		return false, &HeaderError{file.Name(), err}
	}
	if n.Journal == 0 {
		return false, nil
	}
	boot, err := j.root.bootID()
	if err != nil {
		return false, fmt.Errorf("%s: whether it is of this boot is not known: %w", file.Name(), err)
	}
	isCurrent, err := n.isOfBoot(boot)
	switch {
	case err != nil:
		return false, &HeaderError{file.Name(), err}
	case !isCurrent:
		return false, nil
	case n.Root != j.root.absolute():
		return false, fmt.Errorf("%s: it is of the tree %s, not %s", file.Name(), n.Root, j.root.absolute())
	}
	if damage != nil {
		j.damage = &DamageError{file.Name(), damage}
	}
	j.size, j.next, j.torn = n.size, n.last, n.size < int64(len(text))
	j.long = damage == nil && strings.Count(string(text), "\n") > 64+2*len(n.entries)
	for _, e := range n.entries {
		j.open[e.seq] = true
		j.remember(e)
	}
	return true, nil
}

// HeaderError is a ledger of which no line can be read, as the first line gives the
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

// DamageError is a ledger with lines that cannot be read, by mishap or by hand.
type DamageError struct {
	File  string
	Cause error // the lines
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("undo log %s: %v: no change can be added to it; restore the values of the other lines with 'berth restore --all', check these lines by hand, then delete them or the file", e.File, e.Cause)
}

// Unwrap returns the cause.
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

// reserve allocates space on the disk for the records of undoing all entries, so that
// undoing works when the disk is full. Not every file system can.
func (j *Journal) reserve() error {
	const perNote, block = 512, 1 << 12 // the records of an undoing, with a value
	need := j.size + int64(len(j.open)+2)*perNote
	if need <= j.reserved {
		return nil
	}
	err := syscall.Fallocate(int(j.file.Fd()), fallocKeepSize, j.size, need-j.size+block)
	if isFull(err) {
		return fmt.Errorf("make room in %s: %w; free some space there", j.file.Name(), err)
	}
	if err == nil {
		j.reserved = need + block
	}
	return nil
}

// isFull reports whether there is no room, on the disk or for this user.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

const fallocKeepSize = 1 // FALLOC_FL_KEEP_SIZE of <linux/falloc.h>

// rewrite replaces the ledger's file by one without undone entries.
func (j *Journal) rewrite(name string, h header) (err error) {
	temporary := name + ".new"
	if j.file, err = OpenPrivateFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND); err != nil {
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
		err = os.Rename(temporary, name)
	}
	if err != nil {
		return errors.Join(err, j.file.Close())
	}
	if err := j.file.Close(); err != nil {
		return err
	}
	j.file, err = OpenPrivateFile(name, os.O_WRONLY|os.O_APPEND)
	j.size, j.reserved, j.torn = int64(len(text)), 0, false
	return err
}

// Notes returns the entries that are not undone, in the order in which the changes were
// made, with the outcome Pending.
func (j *Journal) Notes() []Item {
	var items []Item
	for _, e := range j.notes {
		items = append(items, Item{Step: e.Step, Outcome: Pending, Original: e.Original})
	}
	return items
}

// Original returns the text of a file before Berth's first write to it, or to a file that
// changes it as a side effect. It ignores the entry of a file that was removed and made
// anew since.
func (j *Journal) Original(path string) (text string, ok bool) {
	for _, e := range j.at[path] {
		if e.Op == Write && j.root.isSame(e) {
			return e.Original, true
		}
	}
	if e := j.beside[path]; e != nil && j.root.isSame(e) {
		i := slices.IndexFunc(e.Disturbed, func(d saved) bool { return d.Path == path })
		return e.Disturbed[i].Value, true
	}
	if j.above == "" {
		return "", false
	}
	current, err := j.root.read(path)
	if err != nil {
		return "", false
	}
	if e, err := j.lies(Step{Op: Write, Path: path}, current); e != nil && err == nil {
		return e.Original, true
	}
	return "", false
}

// Outdated reports whether all entries of a path concern a file or directory that no
// longer exists: it was removed, and maybe made anew by another process.
func (j *Journal) Outdated(path string) bool {
	return !slices.ContainsFunc(j.at[path], j.root.isSame)
}

// isSame reports whether the file or directory of e still exists.
func (r *Root) isSame(e *entry) bool {
	inode, err := r.inode(e.Path)
	return err == nil && (e.Inode == 0 || inode == e.Inode) || err != nil && !gone(err)
}

// Undo undoes the entries that match, the last first, as Restore does. The error joins
// those of the entries that could not be undone, which stay.
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
		if v.outcome == Failed || v.outcome == Covered {
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
		if err := j.write(record{Seq: old.seq, Also: &e.Value}); err != nil {
			return false, err
		}
		old.Also = append(old.Also, e.Value)
		return true, nil
	}
	return false, nil
}

func key(line string) string {
	k, _, _ := strings.Cut(line, " ")
	return k
}

// remember adds e to the ledger's entries, forget removes it.
func (j *Journal) remember(e *entry) {
	j.notes = append(j.notes, e)
	j.at[e.Path] = append(j.at[e.Path], e)
	for _, d := range e.Disturbed {
		j.beside[d.Path] = e
	}
}

func (j *Journal) forget(e *entry) {
	same := func(n *entry) bool { return n.seq == e.seq }
	j.notes = slices.DeleteFunc(j.notes, same)
	if j.at[e.Path] = slices.DeleteFunc(j.at[e.Path], same); len(j.at[e.Path]) == 0 {
		delete(j.at, e.Path)
	}
	for _, d := range e.Disturbed {
		if n := j.beside[d.Path]; n != nil && same(n) {
			delete(j.beside, d.Path)
		}
	}
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
