package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Report is the result of a Restore.
type Report struct {
	// Items are the steps of dead runs, in the order in which they were undone.
	Items []Item `json:"items"`
	// Alive are journals that were left alone because their process lives.
	Alive []Owner `json:"alive,omitempty"`
	// Stale are journals of an earlier boot, removed: their changes are gone.
	Stale []Owner `json:"stale,omitempty"`
	// Foreign are journals of another Root, left alone.
	Foreign []Owner `json:"foreign,omitempty"`
}

// Owner is the process that a journal belongs to.
type Owner struct {
	Program string    `json:"program,omitempty"`
	PID     int       `json:"pid,omitempty"`
	Started time.Time `json:"started,omitzero"`
	Journal string    `json:"journal"`
	Root    string    `json:"root,omitempty"`
}

// Item is one step that was to be undone.
type Item struct {
	Step    Step    `json:"step"`
	Outcome Outcome `json:"outcome"`
	// Original is the value that was there before the step.
	Original string `json:"original,omitempty"`
	Error    string `json:"error,omitempty"`
	Owner    Owner  `json:"owner"`
}

// journalFile is one journal that Restore holds the lock of.
type journalFile struct {
	file  *os.File
	notes notes
	err   error // the text is not a journal from some line on
}

// Restore undoes the entries in the journals of dir that dead processes did not undo
// themselves, newest run first, last step first. A value is restored only where the file
// still has the value that was written. A journal is removed when everything in it is
// undone. Restore may be killed at any instant and called again.
//
// The error joins those of the entries that could not be undone. Three cases are in the
// report and are no error: another writer changed a value; other groups still use a
// controller; a cpuset could only be widened. The journal stays for the last two. If
// there is no directory, there is nothing to restore.
func Restore(root *Root, dir string) (Report, error) { return restore(root, dir, false) }

// Preview reports what Restore would undo, with the outcome Pending, and
// changes nothing.
func Preview(root *Root, dir string) (Report, error) { return restore(root, dir, true) }

func restore(root *Root, dir string, dry bool) (Report, error) {
	report := Report{Items: []Item{}}
	files, err := lockJournals(dir, &report, dry)
	var errs []error
	if err != nil {
		errs = append(errs, fmt.Errorf("restore: %w", err))
	}
	defer func() {
		for _, f := range files {
			_ = Unlock(f.file)
		}
	}()
	boot, bootErr := root.bootID()
	name := root.absolute()
	for _, f := range files {
		owner := f.owner()
		begun := f.err == nil && f.notes.Journal != 0
		isCurrent, err := true, error(nil)
		if begun {
			isCurrent, err = f.notes.isOfBoot(boot)
		}
		if err = cmp.Or(bootErr, err); err != nil && begun {
			err = fmt.Errorf("journal %s: %w: nothing of it is restored; check by hand, then delete the file", f.file.Name(), err)
		}
		switch {
		case begun && absolute(f.notes.Root) != name:
			report.Foreign = append(report.Foreign, owner)
		case begun && err != nil:
			errs = append(errs, err)
		case begun && !isCurrent:
			report.Stale = append(report.Stale, owner)
			if !dry {
				errs = append(errs, os.Remove(f.file.Name()))
			}
		case dry:
			ground := root.ground()
			for _, e := range slices.Backward(f.notes.entries) {
				item := Item{Step: e.Step, Outcome: Pending, Original: e.Original, Owner: owner}
				if err := ground.refuses(e); err != nil {
					item.Outcome, item.Error = Failed, err.Error()
					errs = append(errs, err)
				}
				report.Items = append(report.Items, item)
			}
			errs = append(errs, f.err)
		default:
			errs = append(errs, f.restore(root, &report))
		}
	}
	return report, errors.Join(errs...)
}

// lockJournals opens the journals of dead processes, newest first. It goes on
// after a file that is no journal; the error joins one for each.
func lockJournals(dir string, report *Report, dry bool) ([]journalFile, error) {
	err := CheckPrivateDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err == nil && !dry { // to look, no lock is made or waited for
		var lock *os.File
		if lock, err = lockDir(dir); err == nil {
			defer lock.Close()
		}
	}
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []journalFile
	var errs []error
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), journalSuffix) {
			continue
		}
		f, alive, err := openDead(filepath.Join(dir, entry.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // its process has just ended well
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if alive {
			report.Alive = append(report.Alive, f.owner())
			f.file.Close()
			continue
		}
		files = append(files, f)
	}
	slices.SortStableFunc(files, func(a, b journalFile) int {
		return cmp.Or(cmp.Compare(b.notes.Since, a.notes.Since), b.notes.Started.Compare(a.notes.Started))
	})
	return files, errors.Join(errs...)
}

// openDead opens a journal and takes its lock, unless its owner has it. A file that is
// not a regular file of this user is no journal.
func openDead(name string) (f journalFile, alive bool, err error) {
	f.file, err = OpenPrivateFile(name, os.O_RDWR|os.O_APPEND)
	if err != nil {
		return f, false, fmt.Errorf("journal: %w", err)
	}
	err = Lock(f.file, false)
	alive = errors.Is(err, syscall.EWOULDBLOCK)
	if err != nil && !alive {
		f.file.Close()
		return f, false, fmt.Errorf("lock %s: %w", name, err)
	}
	text, err := io.ReadAll(f.file)
	if err != nil {
		f.file.Close()
		return f, false, err
	}
	if f.notes, err = parseJournal(text); err != nil {
		f.err = fmt.Errorf("journal %s: %w; what it holds beyond that is not restored: check by hand, then delete the file", name, err)
	}
	return f, alive, nil
}

func (f *journalFile) owner() Owner {
	h := f.notes.header
	return Owner{Program: h.Program, PID: h.PID, Started: h.Started, Journal: f.file.Name(), Root: h.Root}
}

// restore undoes one journal and removes its file if nothing is left.
func (f *journalFile) restore(root *Root, report *Report) error {
	if f.err == nil {
		if err := f.file.Truncate(f.notes.size); err != nil { // a torn last line
			return err
		}
	}
	j := &Journal{file: f.file, open: map[int]bool{}, next: f.notes.last, size: f.notes.size}
	if f.err != nil {
		j = nil // nothing may follow an illegible line
	}
	all, err := root.revertAll(f.notes.entries, j)
	errs := []error{f.err, err}
	left := f.err != nil
	for _, v := range all {
		item := Item{Step: v.Step, Outcome: v.outcome, Original: v.Original, Owner: f.owner()}
		if v.err != nil {
			item.Error = v.err.Error()
		}
		report.Items = append(report.Items, item)
		if v.outcome == Failed {
			errs = append(errs, v.err)
		}
		left = left || v.outcome.stays()
	}
	if !left {
		errs = append(errs, os.Remove(f.file.Name()))
	}
	return errors.Join(errs...)
}
