package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"

	"berth.dev/berth/kernel"
)

// Threads returns the threads in a directory of a tree of groups and in those below it; none
// if it is gone.
func Threads(fsys fs.FS, dir string) (all []int, err error) {
	err = fs.WalkDir(fsys, dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return kernel.IgnoreAbsent(err) // a group that has just gone
		}
		tids, err := threadsIn(fsys, name)
		all = append(all, tids...)
		return err
	})
	return all, err
}

// threadsIn are the threads in one group: "cgroup.threads" in v2, "tasks" in v1.
func threadsIn(fsys fs.FS, dir string) (all []int, err error) {
	for _, file := range []string{"cgroup.threads", "tasks", "cgroup.procs"} {
		text, err := fs.ReadFile(fsys, path.Join(dir, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if errors.Is(err, syscall.ENODEV) {
			return nil, nil // the group was removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		for _, word := range strings.Fields(string(text)) {
			tid, err := strconv.Atoi(word)
			if err != nil {
				return nil, fmt.Errorf("read /%s/%s: %w", dir, file, err)
			}
			if tid > 0 { // 0 stands for those of other PID namespaces
				all = append(all, tid)
			}
		}
		return all, nil
	}
	return nil, nil
}
