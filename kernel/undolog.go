package kernel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// UndoLog is the file in which a process notes each change before it makes the change, so
// that the original can be restored later. Each line is a JSON object: first a header, then
// records. A record of its own marks a change as undone. The file must outlive the process
// but not the boot, as the values that it could restore do, so nothing waits for a disk.
//
// Several writes to one file are one entry, with the original value and every value that
// Berth has written since. Writes in a directory that Berth made, by an entry of the log,
// have no entry: undoing removes the directory.
//
// The nil *UndoLog stores nothing.
type UndoLog struct {
	mu       sync.Mutex
	root     *Root
	name     string
	file     *os.File // nil once closed, and in a log that is only read
	own      bool     // of one process, see CreateUndoLog
	lasting  bool     // of one process after another, see OpenUndoLog
	above    string   // the undo log whose values may lie above, see Above
	header   header
	last     int   // the highest number used
	size     int64 // of the file, up to the end of the last whole line
	torn     bool  // after size there may be the start of a line whose append failed
	lines    int   // of the file
	reserved int64 // bytes of the file that have room on the disk
	damage   error // lines that could not be read

	entries []*entry            // not crossed out, in order
	at      map[string][]*entry // those by path
	beside  map[string]*entry   // those that disturb a file, by its path
}

type header struct {
	Version int    `json:"berthJournal"` // of the format: 1
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
	h := header{Version: logVersion, Root: root.absolute(), PID: os.Getpid(), Program: program, Started: time.Now()}
	var err error
	if h.Boot, err = root.bootID(); err != nil {
		return h, err
	}
	h.Since, err = sinceBoot()
	return h, err
}

// sinceBoot is CLOCK_BOOTTIME in nanoseconds, by which the kernel dates processes.
func sinceBoot() (int64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, fmt.Errorf("clock_gettime CLOCK_BOOTTIME: %w", err)
	}
	return now.Nano(), nil
}

const (
	logVersion = 1
	logSuffix  = ".journal"
	logsLock   = "journals.lock" // of their directory
)

// RunDir returns the directory for undo logs of the live host: /run/berth
// for root; for others berth in their run-time directory ($XDG_RUNTIME_DIR),
// or /tmp/berth-UID without one. All are gone, or out of date, after a reboot,
// and so are the values that they could restore.
func RunDir(uid int, xdgRuntimeDir string) string {
	switch {
	case uid == 0:
		return "/run/berth"
	case filepath.IsAbs(xdgRuntimeDir):
		return filepath.Join(xdgRuntimeDir, "berth")
	}
	return fmt.Sprintf("/tmp/berth-%d", uid)
}

// RunDir returns the directory of this user's undo logs and locks for the tree that the
// Root stands for: RunDir for the live host, run/berth in any other.
func (r *Root) RunDir() string {
	if r.absolute() == "/" {
		return RunDir(os.Geteuid(), os.Getenv("XDG_RUNTIME_DIR"))
	}
	return filepath.Join(r.name, "run/berth")
}

func newUndoLog(root *Root, name string) *UndoLog {
	return &UndoLog{root: root, name: name, at: map[string][]*entry{}, beside: map[string]*entry{}}
}

// CreateUndoLog starts the log of this process in dir, which is made (mode 0700) if need
// be. Its file is locked (flock) for as long as the process lives; Restore then undoes what
// it lists. A directory that others could write to is refused, as Restore writes the values
// of a log. program is for the reader of a report: "berth lab".
func CreateUndoLog(root *Root, dir, program string) (*UndoLog, error) {
	l, err := createUndoLog(root, dir, program)
	if err != nil {
		return nil, fmt.Errorf("create undo log: %w", err)
	}
	return l, nil
}

func createUndoLog(root *Root, dir, program string) (*UndoLog, error) {
	if err := MakePrivateDir(dir); err != nil {
		return nil, err
	}
	h, err := newHeader(root, program)
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	defer Unlock(lock)
	l := newUndoLog(root, filepath.Join(dir, fmt.Sprintf("%d-%d%s", h.PID, h.Since, logSuffix)))
	l.own = true
	return l, l.rewrite(h)
}

// OpenUndoLog opens a log that outlives its processes, or starts one: the next process that
// opens the file continues it. The caller keeps other processes away while it is open, and
// does not store it in a directory in which Restore looks for the logs of dead processes.
//
// A log of an earlier boot is started anew. One whose first line cannot be read, or that is
// no file, is a *HeaderError and stays as it is. Other lines that cannot be read stay in
// place, too: the other entries can be undone, and no entry can be added (see Damage).
func OpenUndoLog(root *Root, name, program string) (*UndoLog, error) {
	l, err := readUndoLog(root, name, os.O_RDWR|os.O_APPEND)
	if err == nil && l.torn {
		err = l.mend()
	}
	if old := l.opened(); err == nil && (old == nil || l.long()) {
		var h header
		if h, err = newHeader(root, program); err == nil {
			err = l.rewrite(h)
		}
		switch {
		case err == nil && old != nil:
			err = old.Close()
		case old != nil: // as on a full disk: it can wait
			err = nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open undo log: %w", errors.Join(err, closeFile(l.opened())))
	}
	l.lasting = true
	return l, nil
}

// opened returns the log's file, or nil.
func (l *UndoLog) opened() *os.File {
	if l == nil {
		return nil
	}
	return l.file
}

func closeFile(f *os.File) error {
	if f == nil {
		return nil
	}
	return f.Close()
}

// long reports whether most of the file is crossed out: it is better written anew. Lines that
// cannot be read stay.
func (l *UndoLog) long() bool { return l.damage == nil && l.lines > 64+2*len(l.entries) }

// shorten writes the file of a log that outlives its processes anew where it is long. A process
// that is killed meanwhile leaves the old one or the new one. Where there is no room for both,
// it can wait.
func (l *UndoLog) shorten() {
	if old := l.file; l.lasting && old != nil && l.long() && l.rewrite(l.header) == nil {
		_ = old.Close()
		_ = l.reserve() // in the room that the old one had
	}
}

// Close ends the log. Its file stays; that of one process stays for Restore, and is removed
// if everything was undone.
func (l *UndoLog) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	var err error
	if l.own && len(l.entries) == 0 {
		err = os.Remove(l.name)
	}
	err = errors.Join(err, Unlock(l.file))
	l.file = nil
	return err
}

// Path returns the name of the file, "" for the nil UndoLog and one that is closed.
func (l *UndoLog) Path() string {
	if l.opened() == nil {
		return ""
	}
	return l.name
}

// append is write for callers that do not hold mu.
func (l *UndoLog) append(r record) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.write(r)
}

// write appends a line, all of it or nothing. After an error, as on a full disk, the next
// one is tried anew.
func (l *UndoLog) write(r record) error {
	if l.file == nil {
		return fmt.Errorf("append to undo log: %w", os.ErrClosed)
	}
	text, err := json.Marshal(r)
	if err == nil && l.torn {
		err = l.mend()
	}
	if err == nil {
		var n int
		n, err = l.file.Write(append(text, '\n'))
		if l.torn = err != nil && n > 0; l.torn {
			err = errors.Join(err, l.mend())
		}
	}
	if err != nil {
		return fmt.Errorf("append to undo log: %w", err)
	}
	l.size += int64(len(text)) + 1
	l.lines++
	return nil
}

// mend takes away the start of a line, behind which nothing may be written.
func (l *UndoLog) mend() error {
	if err := l.file.Truncate(l.size); err != nil {
		return err
	}
	l.torn, l.reserved = false, 0
	return nil
}

// reserve allocates space on the disk for the records of undoing all entries, so that
// undoing works when the disk is full. Not every file system can.
func (l *UndoLog) reserve() error {
	if l.file == nil {
		return nil
	}
	const perNote, block = 512, 1 << 12 // the records of an undoing, with a value
	need := l.size + int64(len(l.entries)+2)*perNote
	if need <= l.reserved {
		return nil
	}
	err := syscall.Fallocate(int(l.file.Fd()), fallocKeepSize, l.size, need-l.size+block)
	if isFull(err) {
		return fmt.Errorf("make room in %s: %w; free some space there", l.file.Name(), err)
	}
	if err == nil {
		l.reserved = need + block
	}
	return nil
}

// isFull reports whether there is no room, on the disk or for this user.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

const fallocKeepSize = 1 // FALLOC_FL_KEEP_SIZE of <linux/falloc.h>

// rewrite replaces the file by one without undone entries, which is open then.
func (l *UndoLog) rewrite(h header) error {
	lines := []any{h}
	for _, e := range l.entries {
		lines = append(lines, record{Seq: e.seq, Do: e})
		if e.undoing {
			lines = append(lines, record{Seq: e.seq, Undoing: true})
		}
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	for _, line := range lines {
		if err := encoder.Encode(line); err != nil {
			return err
		}
	}
	temporary := l.name + ".new"
	file, err := OpenPrivateFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND)
	if err != nil {
		return err
	}
	if l.own {
		err = lock(file, false)
	}
	if err == nil {
		_, err = file.Write(text.Bytes())
	}
	if err == nil {
		err = os.Rename(temporary, l.name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary), file.Close())
	}
	l.file, l.header, l.size, l.reserved, l.torn = file, h, int64(text.Len()), 0, false
	l.lines = len(lines)
	return nil
}

// lockDir takes the lock under which logs of processes are made and looked for, so
// that no one sees a log between its creation and its lock. The directory must
// belong to this user and be closed to others.
func lockDir(dir string) (*os.File, error) {
	if err := CheckPrivateDir(dir); err != nil {
		return nil, err
	}
	return LockFile(filepath.Join(dir, logsLock), true)
}
