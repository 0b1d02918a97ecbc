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

func readIDs(fsys fs.FS, dir, file string) ([]int, error) {
	text, err := readStart(fsys, dir, file, mostIDs+1)
	if err != nil {
		return nil, err
	}
	pids, err := ParsePIDs(text)
	if len(text) > mostIDs { // of a stored tree
		err = fmt.Errorf("longer than %d bytes, more than the kernel has processes for", mostIDs)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", shown(path.Join(dir, file)), err)
	}
	return pids, nil
}

// readStart reads the first bytes of a file of a control group. In a stored tree it may be
// anything: a pipe would be waited for.
func readStart(fsys fs.FS, dir, file string, most int64) (text []byte, err error) {
	name := path.Join(dir, file)
	info, err := fs.Stat(fsys, name)
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err == nil {
		text, err = readFirst(fsys, name, most)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", shown(name), bare(procsError(err)))
	}
	return text, nil
}

func readFirst(fsys fs.FS, name string, most int64) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}

// shown is a name of a tree in an error. Where a group is all of the tree, nobody knows what is
// above it.
func shown(name string) string {
	if path.Dir(name) == "." {
		return name
	}
	return "/" + name
}

// procsError says what the kernel means when it refuses to list what is in a control group.
func procsError(err error) error {
	switch {
	case errors.Is(err, syscall.ENODEV): // it was removed meanwhile
		return fs.ErrNotExist
	case errors.Is(err, syscall.EOPNOTSUPP):
		return &NotSupportedError{
			Feature: "processes of a threaded group", Reason: "the group has threads of processes of a group above",
			Remedy: "name the group above whose cgroup.type is domain threaded",
		}
	}
	return err
}
