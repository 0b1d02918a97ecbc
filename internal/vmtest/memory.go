package vmtest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// GuestMemory is how a guest got on with its memory.
type GuestMemory struct {
	// Lowest is the least free memory that was seen on each NUMA node, in KiB, in the order
	// of the nodes. In virtual time it is looked at before the command and after it only:
	// to look takes instructions.
	Lowest []int64 `json:"lowest"`
	// Shortages are the kernel's lines about processes that it killed because the guest,
	// or the nodes that they may use, had no memory left. Kills for a group's own limit
	// are not among them.
	Shortages []string `json:"shortages,omitempty"`
}

// Look reads the free memory of each node in a /sys, and keeps the least.
func (m *GuestMemory) Look(sys fs.FS) error {
	names, err := fs.Glob(sys, "devices/system/node/node[0-9]*/meminfo")
	if err == nil && len(names) == 0 {
		err = errors.New("no memory node in devices/system/node: the kernel wants CONFIG_NUMA")
	}
	if err != nil {
		return err
	}
	number := func(name string) int {
		n, _ := strconv.Atoi(strings.TrimPrefix(path.Base(path.Dir(name)), "node"))
		return n
	}
	slices.SortFunc(names, func(a, b string) int { return number(a) - number(b) })
	for i, name := range names {
		text, err := fs.ReadFile(sys, name)
		if err != nil {
			return err
		}
		free, err := memFree(string(text))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if i == len(m.Lowest) {
			m.Lowest = append(m.Lowest, free)
		}
		m.Lowest[i] = min(m.Lowest[i], free)
	}
	return nil
}

// memFree is MemFree of a node's meminfo, in KiB.
func memFree(meminfo string) (int64, error) {
	for line := range strings.Lines(meminfo) {
		// Node 0 MemFree:          201232 kB
		if words := strings.Fields(line); len(words) == 5 && words[2] == "MemFree:" {
			return strconv.ParseInt(words[3], 10, 64)
		}
	}
	return 0, errors.New("no MemFree")
}

// Shortages are those of the lines of a kernel's log that GuestMemory tells.
func Shortages(log []string) (lines []string) {
	for _, line := range log {
		if strings.Contains(line, "oom-kill:constraint=") && !strings.Contains(line, "constraint=CONSTRAINT_MEMCG,") {
			lines = append(lines, line)
		}
	}
	return lines
}

// KernelLog returns the lines that the kernel's log still has, without what precedes their
// text (dev-kmsg in Documentation/ABI/testing).
func KernelLog() ([]string, error) {
	read, err := OpenKernelLog()
	if err != nil {
		return nil, err
	}
	return read()
}

// kernelLog is the file of the log.
const kernelLog = "/dev/kmsg"

// OpenKernelLog opens the log for KernelLog, which may be called later, once, and wherever the
// file is by then.
func OpenKernelLog() (read func() ([]string, error), err error) {
	// Not os.Open, which would wait for the next line at the end.
	fd, err := unix.Open(kernelLog, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: kernelLog, Err: err}
	}
	return func() ([]string, error) {
		defer unix.Close(fd)
		return readLog(fd)
	}, nil
}

func readLog(fd int) ([]string, error) {
	var lines []string
	record := make([]byte, 8<<10) // the longest that the kernel makes
	for {
		n, err := unix.Read(fd, record)
		switch {
		case err == unix.EPIPE || err == unix.EINTR: // lines were overwritten meanwhile
			continue
		case err == unix.EAGAIN:
			return lines, nil
		case err != nil:
			return lines, &os.PathError{Op: "read", Path: kernelLog, Err: err}
		}
		// 6,339,5140900,-;text, then lines with properties
		_, text, _ := strings.Cut(string(record[:n]), ";")
		text, _, _ = strings.Cut(text, "\n")
		lines = append(lines, text)
	}
}
