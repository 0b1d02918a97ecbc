package kernel

import (
	"io/fs"
	"syscall"
)

// ReadOnly returns the same tree, through which nothing can be changed: each write is
// syscall.EROFS, no mark is set or removed, and no process gets a signal.
func (r *Root) ReadOnly() *Root {
	view := *r
	view.Files, view.isLive, view.readOnly = readOnly{r.Files.FS()}, false, true
	return &view
}

// readOnly is Files that can only be read.
type readOnly struct{ fs fs.FS }

func (f readOnly) FS() fs.FS { return f.fs }

func (f readOnly) WriteFile(name, _ string) error { return readOnlyError("write", name) }

func (f readOnly) Mkdir(name string) error { return readOnlyError("mkdir", name) }

func (f readOnly) Rmdir(name string) error { return readOnlyError("rmdir", name) }

func readOnlyError(op, name string) error {
	return &fs.PathError{Op: op, Path: "/" + name, Err: syscall.EROFS}
}
