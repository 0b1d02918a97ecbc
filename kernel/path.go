package kernel

import (
	"errors"
	"io/fs"
	"path"
	"strings"
)

// LeafLinks is how many links the directory of a control group has when no group lies in
// it: two, and one for each directory in it. To look at them costs less than to list the
// directory's files.
const LeafLinks = 2

// Within reports whether a path is that of a directory or lies in it. Both are clean.
// Every relative path lies in ".", every absolute one in "/". "" is no path: nothing lies
// in it, and it lies in nothing.
func Within(name, dir string) bool {
	switch {
	case name == dir:
		return true
	case name == "" || dir == "":
		return false
	case dir == ".":
		return name[0] != '/'
	case dir == "/":
		return name[0] == '/'
	}
	return len(name) > len(dir) && name[len(dir)] == '/' && strings.HasPrefix(name, dir)
}

// Covers reports whether a glob (path.Match) names a path or a directory that the path
// lies in. No glob names "." or "/", and one that is not valid names none.
func Covers(glob, name string) bool {
	for at := name; at != "" && at != "." && at != "/"; at = path.Dir(at) {
		if ok, _ := path.Match(glob, at); ok {
			return true
		}
	}
	return false
}

// IgnoreAbsent returns nil for an error that says that a file is not there, else the error.
func IgnoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
