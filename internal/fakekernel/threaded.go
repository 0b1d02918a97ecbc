package fakekernel

import (
	"io/fs"
	"path"
	"slices"
	"syscall"
)

// Threaded is a kernel in which some groups of v2 are threaded: it does not tell their processes.
type Threaded struct {
	*Kernel
	Dirs []string
}

// FS returns the tree for readers.
func (t *Threaded) FS() fs.FS { return threadedFS{t.Kernel.FS(), t.Dirs} }

type threadedFS struct {
	fs.FS
	dirs []string
}

func (t threadedFS) Open(name string) (fs.File, error) {
	f, err := t.FS.Open(name)
	if err == nil && path.Base(name) == "cgroup.procs" && slices.Contains(t.dirs, path.Dir(name)) {
		f = untold{f, name}
	}
	return f, err
}

type untold struct {
	fs.File
	name string
}

func (u untold) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: u.name, Err: syscall.EOPNOTSUPP}
}
