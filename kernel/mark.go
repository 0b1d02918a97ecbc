package kernel

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// The extended attributes that hold a mark: one that every owner of a directory may
// write, in control groups since Linux 5.7, and one that only CAP_SYS_ADMIN may write
// and read, since Linux 3.7 (xattr(7), Documentation/admin-guide/cgroup-v1/cgroups.rst).
const (
	userMark    = "user.berth.node"
	trustedMark = "trusted.berth.node"
)

// maxMark is the size of the longest mark that is read; Berth's hold a path.
const maxMark = 1 << 13

// Mark is a text on a directory.
type Mark struct {
	Text string
	// Setter is the user, beside root, that can have set it: root if no other user can,
	// else the owner of the directory, or Anyone.
	Setter int
}

// Anyone is the Setter of a mark on a directory of root's that others may write to.
const Anyone = -2

// Mark writes a text onto a directory without a mark, in one step, and returns the
// directory's mark: that text, or the text of an earlier writer. Root sets the attribute
// that only root can set and, for other users to see, the other one. The mark disappears
// with the directory. The error is a NotSupportedError where directories cannot have
// marks, and so in every Root without Marks.
func (r *Root) Mark(dir, text string) (now Mark, err error) {
	switch {
	case r.readOnly:
		return now, readOnlyError("mark", dir)
	case r.Marks == "":
		return now, markError("mark", dir, syscall.ENOTSUP)
	}
	err = syscall.Setxattr(r.marks(dir), trustedMark, []byte(text), xattrCreate)
	if err == nil {
		// Where this cannot be set, root's mark is seen by root.
		_ = syscall.Setxattr(r.marks(dir), userMark, []byte(text), 0)
	} else if errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.EPERM) {
		err = syscall.Setxattr(r.marks(dir), userMark, []byte(text), xattrCreate)
	}
	if err != nil && !errors.Is(err, syscall.EEXIST) {
		return now, markError("mark", dir, err)
	}
	all, err := r.MarksOf(dir)
	if len(all) == 0 {
		return now, err // removed meanwhile
	}
	return all[0], err
}

// MarksOf returns the marks of a directory, that which only root can set first. It has at
// most one of each kind.
func (r *Root) MarksOf(dir string) (all []Mark, err error) {
	if r.Marks == "" {
		return nil, markError("read the mark of", dir, syscall.ENOTSUP)
	}
	for _, name := range []string{trustedMark, userMark} {
		text, err := r.attribute(dir, name)
		if err != nil {
			return nil, err
		}
		if text == "" {
			continue
		}
		m := Mark{Text: text}
		if name == userMark {
			info, err := os.Lstat(r.marks(dir))
			if err != nil {
				return nil, err
			}
			stat, ok := info.Sys().(*syscall.Stat_t)
			if !ok {
				return nil, markError("read the mark of", dir, errors.New("its owner is not known"))
			}
			if m.Setter = int(stat.Uid); m.Setter == 0 && info.Mode().Perm()&0o022 != 0 {
				m.Setter = Anyone
			}
		}
		all = append(all, m)
	}
	return all, nil
}

// attribute is the text of an extended attribute, "" if there is no valid one.
func (r *Root) attribute(dir, name string) (string, error) {
	text := make([]byte, maxMark)
	n, err := syscall.Getxattr(r.marks(dir), name, text)
	switch {
	case err == nil:
		return string(text[:n]), nil
	case errors.Is(err, syscall.ENODATA), errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ERANGE): // ERANGE: longer than any of Berth's
		return "", nil
	}
	return "", markError("read the mark of", dir, err)
}

// Unmark removes the marks of a directory that are that text.
func (r *Root) Unmark(dir, text string) error {
	if r.readOnly {
		return readOnlyError("unmark", dir)
	}
	var errs []error
	for _, name := range []string{trustedMark, userMark} {
		now, err := r.attribute(dir, name)
		if err == nil && now == text && text != "" {
			if err = syscall.Removexattr(r.marks(dir), name); err != nil {
				err = markError("unmark", dir, err)
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
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
