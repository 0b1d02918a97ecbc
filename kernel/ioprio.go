package kernel

import (
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The kernel has system calls and no file for the I/O priority of a thread. The live host's
// Files show one all the same, proc/TID/ioprio, so that a priority is planned, read back,
// noted and undone as any other setting. A step on it names in Start when the thread started.

const prioFile = "ioprio"

// PriorityFile returns the name of the file that stands for the I/O priority of a thread. Its
// text is none, idle, or realtime or best-effort with a level: "best-effort/4"
// (ioprio_set(2)).
func PriorityFile(tid int) string { return fmt.Sprintf("proc/%d/%s", tid, prioFile) }

// PriorityOf returns the thread of such a file; ok is false for any other.
func PriorityOf(name string) (tid int, ok bool) {
	dir, file := path.Split(name)
	number, found := strings.CutPrefix(dir, "proc/")
	tid, err := strconv.Atoi(strings.TrimSuffix(number, "/"))
	return tid, found && file == prioFile && err == nil && tid > 0
}

// prioClasses are the classes of include/uapi/linux/ioprio.h, by their numbers.
var prioClasses = []string{"none", "realtime", "best-effort", "idle"}

// ParsePriority returns the number that ioprio_set takes: the class times 8192, and the level.
func ParsePriority(text string) (int, error) {
	class, level, leveled := strings.Cut(strings.TrimSpace(text), "/")
	for n, name := range prioClasses {
		if name != class {
			continue
		}
		if n == 0 || n == 3 {
			if leveled {
				return 0, fmt.Errorf("I/O priority %q: %s has no levels", text, class)
			}
			return n << 13, nil
		}
		l, err := strconv.Atoi(level)
		if err == nil && l >= 0 && l <= 7 && strconv.Itoa(l) == level {
			return n<<13 | l, nil
		}
	}
	return 0, fmt.Errorf("I/O priority %q: not idle, best-effort/0 to best-effort/7 or realtime/0 to realtime/7", text)
}

// priorityText is the text of such a number.
func priorityText(n int) string {
	class, level := n>>13&7, n&7
	switch {
	case class >= len(prioClasses): // of a kernel to come: nothing that could be written
		return fmt.Sprintf("class-%d/%d", class, level)
	case class == 0 || class == 3:
		return prioClasses[class]
	}
	return fmt.Sprintf("%s/%d", prioClasses[class], level)
}

// prioHints are the bits of a number that hint at how long operations may take (Linux 6.5).
const prioHints = 0x3ff << 3

// whoProcess has the system calls mean one thread.
const whoProcess = 1

func readPriority(name string, tid int) ([]byte, error) {
	n, err := getPriority(name, tid)
	if err != nil {
		return nil, err
	}
	return []byte(priorityText(n) + "\n"), nil
}

func getPriority(name string, tid int) (int, error) {
	n, _, errno := syscall.Syscall(syscall.SYS_IOPRIO_GET, whoProcess, uintptr(tid), 0)
	if errno != 0 {
		return 0, prioError("read", name, errno)
	}
	return int(n), nil
}

// writePriority leaves the hints of a thread as they are.
func writePriority(name string, tid int, text string) error {
	n, err := ParsePriority(text)
	if err != nil {
		return &fs.PathError{Op: "write", Path: name, Err: syscall.EINVAL}
	}
	was, err := getPriority(name, tid)
	if err != nil {
		return err
	}
	if _, _, errno := syscall.Syscall(syscall.SYS_IOPRIO_SET, whoProcess, uintptr(tid), uintptr(n|was&prioHints)); errno != 0 {
		return prioError("write", name, errno)
	}
	return nil
}

// prioError has a thread that has ended be a file that is not there.
func prioError(op, name string, errno syscall.Errno) error {
	if errno == syscall.ESRCH {
		errno = syscall.ENOENT
	}
	return &fs.PathError{Op: op, Path: name, Err: errno}
}

// prioInfo is what is known of such a file.
type prioInfo struct{ fs.FileInfo }

func (prioInfo) Name() string       { return prioFile }
func (prioInfo) Mode() fs.FileMode  { return 0o644 }
func (prioInfo) IsDir() bool        { return false }
func (prioInfo) Size() int64        { return 0 }
func (prioInfo) ModTime() time.Time { return time.Time{} }
func (prioInfo) Sys() any           { return nil }

// startedOther reports whether the thread that a step on an I/O priority is about has ended,
// though there is one of its number.
func (r *Root) startedOther(s *Step) bool {
	tid, ok := PriorityOf(s.Path)
	return ok && r.startTime(strconv.Itoa(tid)) != s.Start
}
