package kernel

import (
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

// Report says what a Restore did.
type Report struct {
	// Items are the steps of dead runs, in the order in which they were undone.
	Items []Item `json:"items"`
	// Alive are journals that were left alone because their process lives.
	Alive []Owner `json:"alive,omitempty"`
	// Stale are journals of an earlier boot, removed: what they changed is gone.
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

// Restore undoes what dead processes noted in the journals of dir and did not
// undo themselves, newest run first, last step first. Values are restored only
// where they are still what was written. A journal is removed when everything
// in it is undone. Restore may be killed at any instant and called again.
//
// The error joins what could not be undone. That someone else changed a value,
// or still uses a controller, is in the report and is no error; so is a cpuset
// that could only be widened. The journal stays for the last two. No directory means nothing to restore.
func Restore(root *Root, dir string) (Report, error) { return restore(root, dir, false) }

// Preview reports what Restore would undo, with the outcome Pending, and
// changes nothing.
func Preview(root *Root, dir string) (Report, error) { return restore(root, dir, true) }

func restore(root *Root, dir string, dry bool) (Report, error) {
	report := Report{Items: []Item{}}
	files, err := lockJournals(dir, &report)
	var errs []error
	if err != nil {
		errs = append(errs, fmt.Errorf("restore: %w", err))
	}
	defer func() {
		for _, f := range files {
			f.file.Close()
		}
	}()
	boot, name := root.bootID(), root.absolute()
	for _, f := range files {
		owner := f.owner()
		switch {
		case f.err == nil && f.notes.Journal != 0 && absolute(f.notes.Root) != name:
			report.Foreign = append(report.Foreign, owner)
		case f.err == nil && f.notes.Journal != 0 && f.notes.Boot != boot:
			report.Stale = append(report.Stale, owner)
			if !dry {
				errs = append(errs, os.Remove(f.file.Name()))
			}
		case dry:
			for _, e := range slices.Backward(f.notes.entries) {
				report.Items = append(report.Items, Item{Step: e.Step, Outcome: Pending, Original: e.Original, Owner: owner})
			}
			errs = append(errs, f.err)
		default:
			errs = append(errs, f.restore(root, &report))
		}
	}
	return report, errors.Join(errs...)
}

// lockJournals opens the journals of dead processes, newest first. It goes on
// after a file that is no journal; the error joins those.
func lockJournals(dir string, report *Report) ([]journalFile, error) {
	lock, err := lockDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer lock.Close()
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
	slices.SortStableFunc(files, func(a, b journalFile) int { return b.notes.Started.Compare(a.notes.Started) })
	return files, errors.Join(errs...)
}

// openDead opens a journal and takes its lock, unless its owner has it. What is
// not a regular file of this user is none.
func openDead(name string) (f journalFile, alive bool, err error) {
	f.file, err = os.OpenFile(name, os.O_RDWR|os.O_APPEND|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return f, false, err
	}
	if err := regular(f.file); err != nil {
		f.file.Close()
		return f, false, err
	}
	err = flock(f.file, syscall.LOCK_EX|syscall.LOCK_NB)
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

// regular returns an error unless file is a regular file of this user.
func regular(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("journal %s: not a regular file", file.Name())
	case !ok || int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("journal %s: belongs to another user", file.Name())
	}
	return nil
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
	j := &Journal{file: f.file, open: map[int]bool{}, next: f.notes.last}
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
