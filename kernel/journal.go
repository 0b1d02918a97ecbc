package kernel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Journal is an undo log: the file in which one running process notes each change
// before it makes the change, so that a later Restore can restore the original. Each
// line is a JSON object: first a header, then records. A record of its own marks a
// change as undone. The file is locked (flock) for as long as its process lives. It
// must outlive the process but not the boot, as the values that it could restore do, so
// nothing waits for a disk.
//
// The nil *Journal stores nothing.
type Journal struct {
	mu   sync.Mutex
	file *os.File
	open map[int]bool // noted and not crossed out
	next int
	size int64 // of the file, up to the end of the last whole line
	torn bool  // after size there may be the start of a line whose append failed

	// of a ledger
	ledger   bool
	above    string // the undo log whose values may lie above, see Above
	long     bool   // most of it is crossed out: it is better written anew
	damage   error  // lines that could not be read
	reserved int64  // bytes of the file that have room on the disk
	root     *Root
	notes    []*entry            // noted and not crossed out, in order
	at       map[string][]*entry // those by path
	beside   map[string]*entry   // those that disturb a file, by its path
}

// header is the first line of a journal.
type header struct {
	Journal int    `json:"berthJournal"` // version of the format: 1
	Root    string `json:"root"`         // the Root's directory, absolute
	Boot    string `json:"boot"`         // /proc/sys/kernel/random/boot_id
	// Since is when it was started, CLOCK_BOOTTIME in nanoseconds: unlike Started it is
	// not set by anyone. 0: a version of Berth that did not note it.
	Since   int64     `json:"since,omitempty"`
	PID     int       `json:"pid"`
	Program string    `json:"program"`
	Started time.Time `json:"started"`
}

// record is every other line: one of its fields besides Seq is set.
type record struct {
	Seq     int     `json:"seq"`
	Do      *entry  `json:"do,omitempty"`      // about to be done
	Made    uint64  `json:"made,omitempty"`    // inode of the directory that was made
	Also    *string `json:"also,omitempty"`    // a further value that is Berth's own
	Undoing bool    `json:"undoing,omitempty"` // about to be undone
	Undone  bool    `json:"undone,omitempty"`  // to be forgotten
}

// newHeader returns an error if the boot has no name: entries of an earlier boot would
// look like entries of this one.
func newHeader(root *Root, program string) (header, error) {
	h := header{Journal: journalVersion, Root: root.absolute(), PID: os.Getpid(), Program: program, Started: time.Now()}
	var err error
	if h.Boot, err = root.bootID(); err != nil {
		return h, err
	}
	var now unix.Timespec
	if err = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return h, fmt.Errorf("clock_gettime CLOCK_BOOTTIME: %w", err)
	}
	h.Since = now.Nano()
	return h, nil
}

// isOfBoot reports whether a journal is of the boot of that name. It is an error for one
// that does not say.
func (h *header) isOfBoot(boot string) (bool, error) {
	if h.Boot == "" {
		return false, errors.New("it does not say of which boot it is")
	}
	return h.Boot == boot, nil
}

const (
	journalVersion = 1
	journalSuffix  = ".journal"
	journalsLock   = "journals.lock" // of their directory
)

// JournalDir returns the directory for journals of the live host: /run/berth
// for root; for others berth in their run-time directory ($XDG_RUNTIME_DIR),
// or /tmp/berth-UID without one. All are gone, or out of date, after a reboot,
// and so are the values that they could restore.
func JournalDir(uid int, xdgRuntimeDir string) string {
	switch {
	case uid == 0:
		return "/run/berth"
	case filepath.IsAbs(xdgRuntimeDir):
		return filepath.Join(xdgRuntimeDir, "berth")
	}
	return fmt.Sprintf("/tmp/berth-%d", uid)
}

// RunDir returns the directory of this user's journals and locks for the tree that the
// Root stands for: JournalDir for the live host, run/berth in any other.
func (r *Root) RunDir() string {
	if r.absolute() == "/" {
		return JournalDir(os.Geteuid(), os.Getenv("XDG_RUNTIME_DIR"))
	}
	return filepath.Join(r.name, "run/berth")
}

// OpenJournal starts a journal in dir, which is made (mode 0700) if need be.
// It refuses a directory that others could write to, as Restore writes the values of a
// journal. program is for the reader of a report: "berth lab".
func OpenJournal(root *Root, dir, program string) (*Journal, error) {
	if err := MakePrivateDir(dir); err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	h, err := newHeader(root, program)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	defer lock.Close()
	name := filepath.Join(dir, fmt.Sprintf("%d-%d%s", h.PID, h.Since, journalSuffix))
	file, err := OpenPrivateFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	j := &Journal{file: file, open: map[int]bool{}}
	if err = Lock(file, false); err == nil {
		err = j.write(h)
	}
	if err != nil {
		file.Close()
		return nil, errors.Join(fmt.Errorf("open journal: %w", err), os.Remove(name))
	}
	return j, nil
}

// Close ends the journal. Its file is removed if everything was undone, and
// stays for Restore otherwise, also for controllers that others still use.
func (j *Journal) Close() error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == nil {
		return nil
	}
	var err error
	if len(j.open) == 0 && !j.ledger {
		err = os.Remove(j.file.Name())
	}
	err = errors.Join(err, Unlock(j.file))
	j.file = nil
	return err
}

// Path returns the name of the journal's file, "" for the nil Journal.
func (j *Journal) Path() string {
	if j == nil || j.file == nil {
		return ""
	}
	return j.file.Name()
}

// begin notes e.
func (j *Journal) begin(e *entry) error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	var err error
	if e.covered, err = j.covered(e); e.covered || err != nil {
		return err
	}
	if j.damage != nil {
		return j.damage
	}
	if err := j.lookThrough(e); err != nil {
		return err
	}
	if j.ledger && j.file != nil {
		if err := j.reserve(); err != nil {
			return err
		}
	}
	j.next++
	e.seq = j.next
	if err := j.write(record{Seq: e.seq, Do: e}); err != nil {
		return err
	}
	j.open[e.seq] = true
	if j.ledger {
		j.remember(e)
	}
	return nil
}

// made adds the inode of the directory that e made.
func (j *Journal) made(e *entry) error { return j.mark(record{Seq: e.seq, Made: e.Inode}) }

// also notes a further value that is Berth's own, before or as soon as the
// kernel shows it.
func (j *Journal) also(e *entry, value string) error {
	if !e.covered || e.seq != 0 {
		if err := j.mark(record{Seq: e.seq, Also: &value}); err != nil {
			return err
		}
	}
	e.Also = append(e.Also, value)
	if e.covered && e.seq != 0 {
		i := slices.IndexFunc(j.notes, func(n *entry) bool { return n.seq == e.seq })
		j.notes[i].Also = append(j.notes[i].Also, value)
	}
	return nil
}

// undoing notes that undoing e begins.
func (j *Journal) undoing(e *entry) error {
	if e.covered {
		return nil
	}
	return j.mark(record{Seq: e.seq, Undoing: true})
}

// undone crosses e out.
func (j *Journal) undone(e *entry) error {
	if j == nil || e.covered {
		return nil
	}
	if err := j.mark(record{Seq: e.seq, Undone: true}); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.open, e.seq)
	if j.ledger {
		j.forget(e)
	}
	return nil
}

// mark appends a record that need not survive more than this process: without
// it, Restore looks at an object once more and finds nothing to do.
func (j *Journal) mark(r record) error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.write(r)
}

// write appends a line, all of it or nothing. After an error, as on a full disk, the next
// one is tried anew.
func (j *Journal) write(line any) error {
	if j.file == nil {
		return fmt.Errorf("append to journal: %w", os.ErrClosed)
	}
	text, err := json.Marshal(line)
	if err == nil && j.torn {
		err = j.mend()
	}
	if err == nil {
		var n int
		n, err = j.file.Write(append(text, '\n'))
		if j.torn = err != nil && n > 0; j.torn {
			err = errors.Join(err, j.mend())
		}
	}
	if err != nil {
		return fmt.Errorf("append to journal: %w", err)
	}
	j.size += int64(len(text)) + 1
	return nil
}

// mend takes away the start of a line, behind which nothing may be written.
func (j *Journal) mend() error {
	if err := j.file.Truncate(j.size); err != nil {
		return err
	}
	j.torn, j.reserved = false, 0
	return nil
}

// lockDir takes the lock under which journals are made and looked for, so that
// no one sees a journal between its creation and its lock. The directory must
// belong to this user and be closed to others.
func lockDir(dir string) (*os.File, error) {
	if err := CheckPrivateDir(dir); err != nil {
		return nil, err
	}
	lock, err := OpenPrivateFile(filepath.Join(dir, journalsLock), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	if err := Lock(lock, true); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", lock.Name(), err), lock.Close())
	}
	return lock, nil
}

// notes is a journal as read back.
type notes struct {
	header
	entries []*entry // not crossed out, in the order in which they were done
	last    int      // the highest number used
	size    int64    // bytes up to the end of the last whole line
}

// parseJournal reads a journal's text. A last line without its newline was being
// written when the process was killed: its change was not made. Any other text that
// is not a journal is an error.
func parseJournal(text []byte) (notes, error) {
	var n notes
	end := bytes.LastIndexByte(text, '\n') + 1
	n.size = int64(end)
	lineNumber := 0
	for line := range strings.Lines(string(text[:end])) {
		lineNumber++
		var err error
		if lineNumber == 1 {
			err = json.Unmarshal([]byte(line), &n.header)
			if err == nil && n.Journal != journalVersion {
				err = fmt.Errorf("format %d, not %d", n.Journal, journalVersion)
			}
		} else {
			var r record
			if err = json.Unmarshal([]byte(line), &r); err == nil {
				err = n.add(r)
			}
		}
		if err != nil {
			return n, fmt.Errorf("line %d: %w", lineNumber, err)
		}
	}
	return n, nil
}

func (n *notes) add(r record) error {
	if r.Do != nil {
		if r.Seq <= n.last {
			return fmt.Errorf("number %d after %d", r.Seq, n.last)
		}
		if r.Do.Path == "" {
			return errors.New("a step without a path")
		}
		n.last = r.Seq
		r.Do.seq = r.Seq
		n.entries = append(n.entries, r.Do)
		return nil
	}
	i := slices.IndexFunc(n.entries, func(e *entry) bool { return e.seq == r.Seq })
	if i < 0 {
		return fmt.Errorf("nothing has number %d", r.Seq)
	}
	e := n.entries[i]
	switch {
	case r.Made != 0:
		e.Inode = r.Made
	case r.Also != nil:
		e.Also = append(e.Also, *r.Also)
	case r.Undoing:
		e.undoing = true
	case r.Undone:
		n.entries = slices.Delete(n.entries, i, i+1)
	}
	return nil
}
