package cgroup

import (
	"errors"
	"io/fs"

	"berth.dev/berth/kernel"
)

// Threads returns the threads in a directory of a tree of groups and in those below it; none
// if it is gone.
func Threads(fsys fs.FS, dir string) (all []int, err error) {
	err = fs.WalkDir(fsys, dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return kernel.IgnoreAbsent(err) // a group that has just gone
		}
		tids, err := kernel.ReadThreads(fsys, name)
		all = append(all, tids...)
		return kernel.IgnoreAbsent(err)
	})
	return all, err
}

// Processes returns the processes in a directory of a tree of groups and in those below it,
// which has them for threaded groups below; none if it is gone.
func Processes(fsys fs.FS, dir string) (all []int, err error) {
	err = fs.WalkDir(fsys, dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return kernel.IgnoreAbsent(err)
		}
		pids, err := kernel.ReadProcs(fsys, name)
		all = append(all, pids...)
		if name != dir && errors.Is(err, kernel.ErrNotSupported) {
			return nil
		}
		return kernel.IgnoreAbsent(err)
	})
	return all, err
}
