package kernel

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"syscall"
)

const procsFile = "cgroup.procs"

// mostIDs is the length of the longest list of processes or threads: as many as the kernel
// can have (PID_MAX_LIMIT of <linux/threads.h>), each with seven digits and the end of its line.
const mostIDs = 1 << 22 * 8

// ReadProcs returns the processes in a control group, a directory of fsys, without those in
// groups below it, by rising id. Those of other PID namespaces, which the kernel lists as 0,
// are left out. Of a group that is gone the error is fs.ErrNotExist. Of a threaded group it is
// a *NotSupportedError: the kernel lists its processes in the nearest group above that is not
// (cgroups(7)).
func ReadProcs(fsys fs.FS, dir string) ([]int, error) { return readIDs(fsys, dir, procsFile) }

// ReadThreads returns the threads in a control group, as ReadProcs does its processes: those of
// cgroup.threads in v2, of tasks in v1.
func ReadThreads(fsys fs.FS, dir string) (tids []int, err error) {
	for _, file := range []string{"cgroup.threads", "tasks", procsFile} {
		if tids, err = readIDs(fsys, dir, file); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return tids, err
}

// HasProcs reports whether a control group itself has processes, those of other PID namespaces
// included, or threads if it is threaded. Of a group that is gone the error is fs.ErrNotExist.
func HasProcs(fsys fs.FS, dir string) (bool, error) {
	const some = 16 // more than one line
	text, err := readStart(fsys, dir, procsFile, some)
	if errors.Is(err, ErrNotSupported) {
		text, err = readStart(fsys, dir, "cgroup.threads", some)
	}
	word, _ := Word(text)
	return len(word) > 0, err
}

// ParsePIDs reads a list of processes or threads, in any order: by rising id, each once, without
// the 0 of those of other PID namespaces.
func ParsePIDs(text []byte) (pids []int, err error) {
	for {
		var word []byte
		if word, text = Word(text); len(word) == 0 {
			break
		}
		pid, err := strconv.ParseUint(string(word), 10, 31)
		if err != nil {
			return nil, fmt.Errorf("%.20q: not a process id", word)
		}
		if pid > 0 {
			pids = append(pids, int(pid))
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

func readIDs(fsys fs.FS, dir, file string) (pids []int, err error) {
	name := path.Join(dir, file)
	info, err := fs.Stat(fsys, name)
	if err == nil && info.Size() > mostIDs { // of a stored tree: the kernel's own files have no size
		err = fmt.Errorf("longer than %d bytes, more than the kernel has processes for", mostIDs)
	}
	var text []byte
	if err == nil {
		text, err = fs.ReadFile(fsys, name)
	}
	if err == nil {
		pids, err = ParsePIDs(text)
	}
	if err != nil {
		return nil, fmt.Errorf("read /%s: %w", name, procsError(dir, err))
	}
	return pids, nil
}

// readStart reads the first bytes of a file of a control group.
func readStart(fsys fs.FS, dir, file string, most int64) ([]byte, error) {
	f, err := fsys.Open(path.Join(dir, file))
	if err != nil {
		return nil, procsError(dir, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most))
	return text, procsError(dir, err)
}

// procsError says what the kernel means when it refuses to list what is in a control group.
func procsError(dir string, err error) error {
	switch {
	case errors.Is(err, syscall.ENODEV): // it was removed meanwhile
		return fs.ErrNotExist
	case errors.Is(err, syscall.EOPNOTSUPP):
		return &NotSupportedError{
			Feature: "processes of a threaded group", Reason: "/" + dir + " has threads of processes of a group above",
			Remedy: "name the group above whose cgroup.type is domain threaded",
		}
	}
	return err
}
