package kernel

import (
	"io/fs"
	"path"
	"syscall"
	"time"
)

// Overlay are files that stand for what the kernel has calls for, and no files. So plans, their
// undo log, and what a killed process left work for it as for files. Errors name neither the
// operation nor the file.
type Overlay interface {
	// Has reports whether a name is of the overlay, whether it is there or not.
	Has(name string) bool
	// Stat returns the inode, 0 if it is not known, and whether it is a directory.
	Stat(name string) (inode uint64, dir bool, err error)
	// Read returns the text of a file, without a newline at its end.
	Read(name string) (string, error)
	// Write hands over a text, as WriteFile of Files does.
	Write(name, text string) error
}

// OverlayDirs are the directories of an Overlay that has some.
type OverlayDirs interface {
	List(name string) ([]string, error) // sorted
	Mkdir(name string) error
	Rmdir(name string) error
}

// OverlayRenames is an Overlay of what others may rename.
type OverlayRenames interface {
	// Renamed returns the name that a directory of an inode has instead of an earlier one; "" if
	// it is not there.
	Renamed(name string, inode uint64) string
}

// Renamed asks the overlays of a tree; "" if it has none.
func Renamed(fsys fs.FS, name string, inode uint64) string {
	if r, ok := fsys.(OverlayRenames); ok {
		return r.Renamed(name, inode)
	}
	return ""
}

// Lay returns a root that has the files of an overlay beside its own.
func (r *Root) Lay(o Overlay) *Root {
	over := *r
	over.Files = laid{r.Files, r, o}
	return &over
}

type laid struct {
	Files
	root    *Root
	overlay Overlay
}

// Signal is that of the root below.
func (l laid) Signal(pid int, sig syscall.Signal) error { return l.root.Signal(pid, sig) }

func (l laid) FS() fs.FS { return laidFS{l.Files.FS(), l.overlay} }

func (l laid) WriteFile(name, data string) error {
	if !l.overlay.Has(name) {
		return l.Files.WriteFile(name, data)
	}
	return pathError("write", name, l.overlay.Write(name, data))
}

func (l laid) Mkdir(name string) error {
	if dirs, ok := l.overlay.(OverlayDirs); ok && l.overlay.Has(name) {
		return pathError("mkdir", name, dirs.Mkdir(name))
	}
	return l.Files.Mkdir(name)
}

func (l laid) Rmdir(name string) error {
	if dirs, ok := l.overlay.(OverlayDirs); ok && l.overlay.Has(name) {
		return pathError("rmdir", name, dirs.Rmdir(name))
	}
	return l.Files.Rmdir(name)
}

func pathError(op, name string, err error) error {
	if err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
}

// laidFS is the tree for readers.
type laidFS struct {
	fs.FS
	overlay Overlay
}

func (l laidFS) ReadFile(name string) ([]byte, error) {
	if !l.overlay.Has(name) {
		return fs.ReadFile(l.FS, name)
	}
	text, err := l.overlay.Read(name)
	return []byte(text + "\n"), pathError("read", name, err)
}

func (l laidFS) Stat(name string) (fs.FileInfo, error) {
	if !l.overlay.Has(name) {
		return fs.Stat(l.FS, name)
	}
	inode, dir, err := l.overlay.Stat(name)
	return laidInfo{path.Base(name), inode, dir}, pathError("stat", name, err)
}

func (l laidFS) Lstat(name string) (fs.FileInfo, error) {
	if !l.overlay.Has(name) {
		return fs.Lstat(l.FS, name)
	}
	return l.Stat(name)
}

func (l laidFS) ReadDir(name string) ([]fs.DirEntry, error) {
	dirs, ok := l.overlay.(OverlayDirs)
	if !ok || !l.overlay.Has(name) {
		return fs.ReadDir(l.FS, name)
	}
	names, err := dirs.List(name)
	var all []fs.DirEntry
	for _, n := range names {
		if info, err := l.Stat(path.Join(name, n)); err == nil {
			all = append(all, fs.FileInfoToDirEntry(info))
		}
	}
	return all, pathError("readdir", name, err)
}

func (l laidFS) ReadLink(name string) (string, error) { return fs.ReadLink(l.FS, name) }

// Renamed implements OverlayRenames for what reads the tree.
func (l laidFS) Renamed(name string, inode uint64) string {
	if o, ok := l.overlay.(OverlayRenames); ok && l.overlay.Has(name) {
		return o.Renamed(name, inode)
	}
	return Renamed(l.FS, name, inode)
}

// laidInfo describes a file of an overlay.
type laidInfo struct {
	name  string
	inode uint64
	dir   bool
}

func (i laidInfo) Name() string     { return i.name }
func (laidInfo) Size() int64        { return 0 }
func (laidInfo) ModTime() time.Time { return time.Time{} }
func (i laidInfo) IsDir() bool      { return i.dir }

func (i laidInfo) Mode() fs.FileMode {
	if i.dir {
		return fs.ModeDir | 0o700
	}
	return 0o600
}

func (i laidInfo) Sys() any {
	if i.inode == 0 {
		return nil
	}
	return &syscall.Stat_t{Ino: i.inode}
}
