package sched

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ioFile is the I/O priority of one thread, in the directory of that rather than of its process:
// proc/TID@START/sched.io. A fake kernel has the text in proc/TID/ioprio.
const ioFile = "sched.io"

// IOPriorityFile returns the name of the file under Over that is the I/O priority of a thread. Its
// text is "none", "idle", or "realtime" or "best-effort" with a level: "best-effort/4" (ioprio_set(2)).
func IOPriorityFile(tid int, start string) string { return Process{tid, start}.Dir() + "/" + ioFile }

// IOPriorityOf returns the thread of such a file; ok is false for any other.
func IOPriorityOf(name string) (tid int, ok bool) {
	if !strings.HasSuffix(name, "/"+ioFile) {
		return 0, false
	}
	p, ok := Of(name)
	return p.PID, ok
}

// ioClasses are the classes of include/uapi/linux/ioprio.h, by their numbers.
var ioClasses = []string{"none", "realtime", "best-effort", "idle"}

// ParseIOPriority returns the number that ioprio_set takes: the class times 8192, and the level.
func ParseIOPriority(text string) (int, error) {
	class, level, leveled := strings.Cut(strings.TrimSpace(text), "/")
	switch n := slices.Index(ioClasses, class); {
	case n < 0:
	case n == 0 || n == 3:
		if leveled {
			return 0, fmt.Errorf("I/O priority %q: %s has no levels", text, class)
		}
		return n << 13, nil
	default:
		l, err := strconv.Atoi(level)
		if err == nil && l >= 0 && l <= 7 && strconv.Itoa(l) == level {
			return n<<13 | l, nil
		}
	}
	return 0, fmt.Errorf("I/O priority %q: not idle, best-effort/0 to best-effort/7 or realtime/0 to realtime/7", text)
}

// ioText is the text of such a number.
func ioText(n int) string {
	class, level := n>>13&7, n&7
	switch {
	case class >= len(ioClasses): // of a kernel to come: nothing that could be written
		return fmt.Sprintf("class-%d/%d", class, level)
	case class == 0 || class == 3:
		return ioClasses[class]
	}
	return fmt.Sprintf("%s/%d", ioClasses[class], level)
}

const (
	// ioHints are the bits of a number that hint at how long operations may take (Linux 6.5).
	ioHints = 0x3ff << 3
	// whoProcess has the system calls mean one thread.
	whoProcess = 1
)

func ioPriority(tid int) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, whoProcess, uintptr(tid), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func fakeFile(tid int) string { return fmt.Sprintf("proc/%d/ioprio", tid) }

// readIO returns the I/O priority of a thread.
func (f *files) readIO(p Process) (text string, err error) {
	if f.root.IsLive() {
		var n int
		n, err = ioPriority(p.PID)
		text = ioText(n)
	} else {
		var data []byte
		data, err = fs.ReadFile(f.fsys, fakeFile(p.PID))
		text = strings.TrimSpace(string(data))
	}
	if err != nil && !f.is(p) {
		return "", fs.ErrNotExist
	}
	return text, err
}

// writeIO leaves the hints of a thread as they are.
func (f *files) writeIO(p Process, text string) error {
	n, err := ParseIOPriority(text)
	if err != nil {
		return fmt.Errorf("%w: %w", err, syscall.EINVAL)
	}
	if !f.root.IsLive() {
		return f.root.Files.WriteFile(fakeFile(p.PID), text)
	}
	was, err := ioPriority(p.PID)
	if err == nil {
		if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, whoProcess, uintptr(p.PID), uintptr(n|was&ioHints)); errno != 0 {
			err = errno
		}
	}
	if err != nil && !f.is(p) {
		return fs.ErrNotExist
	}
	return err
}
