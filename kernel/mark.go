package kernel

import (
	"errors"
	"io/fs"
	"path/filepath"
	"syscall"
)

// markNames are the extended attributes that may hold a mark: one that every
// owner of a directory may write, in control groups since Linux 5.7, and one
// that needs CAP_SYS_ADMIN, since Linux 3.7 (xattr(7), Documentation/admin-guide/
// cgroup-v1/cgroups.rst).
var markNames = [...]string{"user.berth.node", "trusted.berth.node"}

// Mark writes a text onto a directory that has none yet, in one step, and
// returns what it has then: that text, or the one of who was first. The mark
// goes with the directory. It is a NotSupportedError where directories cannot
// have any, and so in every Root without Marks.
func (r *Root) Mark(dir, text string) (now string, err error) {
	if now, err = r.MarkOf(dir); now != "" || err != nil {
		return now, err
	}
	for _, name := range markNames {
		err = syscall.Setxattr(r.marks(dir), name, []byte(text), xattrCreate)
		if !errors.Is(err, syscall.ENOTSUP) && !errors.Is(err, syscall.EPERM) {
			break
		}
	}
	switch {
	case err == nil:
		return text, nil
	case errors.Is(err, syscall.EEXIST):
		return r.MarkOf(dir)
	}
	return "", markError("mark", dir, err)
}

// MarkOf returns the text on a directory, "" if there is none.
func (r *Root) MarkOf(dir string) (string, error) {
	if r.Marks == "" {
		return "", markError("read the mark of", dir, syscall.ENOTSUP)
	}
	for _, name := range markNames {
		text := make([]byte, 1<<13)
		n, err := syscall.Getxattr(r.marks(dir), name, text)
		switch {
		case err == nil:
			return string(text[:n]), nil
		case !errors.Is(err, syscall.ENODATA) && !errors.Is(err, syscall.ENOTSUP):
			return "", markError("read the mark of", dir, err)
		}
	}
	return "", nil
}

// Unmark removes the mark of a directory if it is that text.
func (r *Root) Unmark(dir, text string) error {
	now, err := r.MarkOf(dir)
	if err != nil || now != text {
		return err
	}
	for _, name := range markNames {
		err = syscall.Removexattr(r.marks(dir), name)
		if err == nil {
			return nil
		}
	}
	return markError("unmark", dir, err)
}

const xattrCreate = 1 // XATTR_CREATE of <linux/xattr.h>

// marks is where a directory is for extended attributes, which are set by path.
func (r *Root) marks(dir string) string { return filepath.Join(r.Marks, dir) }

func markError(op, dir string, err error) error {
	if errors.Is(err, syscall.ENOTSUP) {
		return &NotSupportedError{Feature: "marks on directories", Reason: "/" + dir + " has no extended attributes", Remedy: "Linux 5.7 or newer"}
	}
	return &fs.PathError{Op: op, Path: "/" + dir, Err: err}
}
