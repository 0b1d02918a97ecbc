package cgroup

import (
	"errors"
	"io/fs"

	"berth.dev/berth/kernel"
)

// Below returns the groups below a directory of a tree of groups, each before those in it. Those
// that go meanwhile are left out. The error joins those of the groups that cannot be read, beside
// the others; it is fs.ErrNotExist if the directory itself is gone.
func Below(fsys fs.FS, dir string) (all []string, err error) {
	var errs []error
	err = fs.WalkDir(fsys, dir, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil && name == dir:
			return err
		case err != nil:
			errs = append(errs, kernel.IgnoreAbsent(err))
		case e.IsDir() && name != dir:
			all = append(all, name)
		}
		return nil
	})
	return all, errors.Join(append(errs, err)...)
}

// Threads returns the threads in a directory of a tree of groups and in those below it; none
// if it is gone.
func Threads(fsys fs.FS, dir string) ([]int, error) {
	return gather(fsys, dir, func(name string) ([]int, error) { return kernel.ReadThreads(fsys, name) })
}

// Processes returns the processes in a directory of a tree of groups and in those below it,
// which has them for threaded groups below; none if it is gone.
func Processes(fsys fs.FS, dir string) ([]int, error) {
	return gather(fsys, dir, func(name string) ([]int, error) {
		pids, err := kernel.ReadProcs(fsys, name)
		if name != dir && errors.Is(err, kernel.ErrNotSupported) {
			err = nil
		}
		return pids, err
	})
}

// gather joins what read returns of a directory and of those below it that are not gone.
func gather(fsys fs.FS, dir string, read func(name string) ([]int, error)) (all []int, err error) {
	below, err := Below(fsys, dir)
	if err != nil {
		return nil, kernel.IgnoreAbsent(err)
	}
	for _, name := range append([]string{dir}, below...) {
		some, err := read(name)
		if kernel.IgnoreAbsent(err) != nil {
			return all, err
		}
		all = append(all, some...)
	}
	return all, nil
}
