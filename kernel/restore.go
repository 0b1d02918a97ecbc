package kernel

import (
	"cmp"
	"errors"
	"fmt"
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
	// Alive are undo logs that were left alone because their process lives.
	Alive []Owner `json:"alive,omitempty"`
	// Stale are undo logs of an earlier boot, removed: their changes are gone.
	Stale []Owner `json:"stale,omitempty"`
	// Foreign are undo logs of another Root, left alone.
	Foreign []Owner `json:"foreign,omitempty"`
}

// Owner is the process that an undo log belongs to.
type Owner struct {
	Program string    `json:"program,omitempty"`
	PID     int       `json:"pid,omitempty"`
	Started time.Time `json:"started,omitzero"`
	// Log is the name of its file.
	Log  string `json:"journal"`
	Root string `json:"root,omitempty"`
}

// Item is one step that was to be undone.
type Item struct {
	Step    Step    `json:"step"`
	Outcome Outcome `json:"outcome"`
	// Original is the value that was there before the step.
	Original string `json:"original,omitempty"`
	Error    string `json:"error,omitempty"`
	Owner    Owner  `json:"owner"`
	// Since is when a value of a process was first written, by the clock of Process.Start but in
	// nanoseconds; 0 is not known.
	Since int64 `json:"-"`
}

// Restore undoes the entries in the undo logs of a directory that dead processes did not undo
// themselves, newest run first, last step first. A value is restored only where the file
// still has the value that was written. A log is removed when everything in it is
// undone. Restore may be killed at any instant and called again.
//
// The error joins those of the entries that could not be undone. Three cases are in the
// report and are no error: another writer changed a value; other groups still use a
// controller; a cpuset could only be widened. The log stays for the last two. If
// there is no directory, there is nothing to restore.
func Restore(root *Root, dir string) (Report, error) { return restore(root, dir, false) }

// Preview reports what Restore would undo, with the outcome Pending, and
// changes nothing.
func Preview(root *Root, dir string) (Report, error) { return restore(root, dir, true) }

func restore(root *Root, dir string, dry bool) (Report, error) {
	report := Report{Items: []Item{}}
	logs, err := deadLogs(root, dir, &report, dry)
	var errs []error
	if err != nil {
		errs = append(errs, fmt.Errorf("restore: %w", err))
	}
	defer func() {
		for _, l := range logs {
			_ = Unlock(l.file)
		}
	}()
	for _, l := range logs {
		owner, begun := l.owner(), l.header.Version != 0
		isCurrent, err := l.isCurrent()
		switch {
		case begun && absolute(l.header.Root) != root.absolute():
			report.Foreign = append(report.Foreign, owner)
		case err != nil:
			errs = append(errs, unrestored(err))
		case begun && !isCurrent:
			report.Stale = append(report.Stale, owner)
			if !dry {
				errs = append(errs, IgnoreAbsent(os.Remove(l.name)))
			}
		case dry:
			ground := root.ground()
			for _, e := range slices.Backward(l.entries) {
				item := Item{Step: e.Step, Outcome: Pending, Original: e.Original, Owner: owner}
				if err := ground.refuses(e); err != nil {
					item.Outcome, item.Error = Failed, err.Error()
					errs = append(errs, err)
				}
				report.Items = append(report.Items, item)
			}
			errs = append(errs, l.Damage())
		default:
			items, err := l.Undo(func(Step) bool { return true })
			errs = append(errs, err, l.Damage())
			left := l.damage != nil
			for _, item := range items {
				item.Owner = owner
				report.Items = append(report.Items, item)
				left = left || Stays(item.Outcome)
			}
			if !left {
				errs = append(errs, IgnoreAbsent(os.Remove(l.name)))
			}
		}
	}
	return report, errors.Join(errs...)
}

// unrestored is the error of a log of which no line can be read, or of an unknown boot.
func unrestored(err error) error {
	if header, ok := errors.AsType[*HeaderError](err); ok {
		err = fmt.Errorf("undo log %s: %w", header.File, header.Cause)
	}
	return fmt.Errorf("%w: nothing of it is restored; check by hand, then delete the file", err)
}

// deadLogs opens the undo logs of dead processes, newest first, and takes their locks. It
// goes on after a file that is no log; the error joins one for each.
func deadLogs(root *Root, dir string, report *Report, dry bool) (logs []*UndoLog, err error) {
	err = CheckPrivateDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err == nil && !dry { // to look, no lock is made or waited for
		var lock *os.File
		if lock, err = lockDir(dir); err == nil {
			defer Unlock(lock)
		}
	}
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), logSuffix) {
			continue
		}
		l, alive, err := openDead(root, filepath.Join(dir, entry.Name()))
		switch {
		case errors.Is(err, os.ErrNotExist): // its process has just ended well
		case err != nil:
			errs = append(errs, err)
		case alive:
			report.Alive = append(report.Alive, l.owner())
		default:
			logs = append(logs, l)
		}
	}
	slices.SortStableFunc(logs, func(a, b *UndoLog) int {
		return cmp.Or(cmp.Compare(b.header.Since, a.header.Since), b.header.Started.Compare(a.header.Started))
	})
	return logs, errors.Join(errs...)
}

// openDead opens a log and takes its lock, unless its owner has it: then it is only read. A
// file that is not a regular file of this user is no log.
func openDead(root *Root, name string) (l *UndoLog, alive bool, err error) {
	l = newUndoLog(root, name)
	if l.file, err = OpenPrivateFile(name, os.O_RDWR|os.O_APPEND); err != nil {
		return nil, false, fmt.Errorf("undo log: %w", err)
	}
	err = lock(l.file, false)
	if alive = errors.Is(err, syscall.EWOULDBLOCK); err == nil || alive {
		err = l.load(l.file)
	}
	if _, ok := errors.AsType[*HeaderError](err); ok {
		err = unrestored(err)
	}
	if err != nil || alive {
		err = errors.Join(err, Unlock(l.file))
	}
	return l, alive, err
}

func (l *UndoLog) owner() Owner {
	h := &l.header
	return Owner{Program: h.Program, PID: h.PID, Started: h.Started, Log: l.name, Root: h.Root}
}
