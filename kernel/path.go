package kernel

import (
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
// lies in. No glob names "." or "/", and one that is not valid names none. A glob of one
// component that ends as a systemd unit does ("nginx.service") also names that unit's own
// group, in whichever slice it is.
func Covers(glob, name string) bool {
	unit := IsUnit(glob)
	for at := name; at != "" && at != "." && at != "/"; at = path.Dir(at) {
		ok, _ := path.Match(glob, at)
		if !ok && unit && inSlices(path.Dir(at)) {
			ok, _ = path.Match(glob, path.Base(at))
		}
		if ok {
			return true
		}
	}
	return false
}

// IsUnit reports whether a name, or a glob of one, is that of a systemd unit which has a
// control group and may hold workloads: a service, scope or slice.
func IsUnit(name string) bool {
	switch ext := path.Ext(name); ext {
	case ".service", ".scope", ".slice":
		return ext != name && !strings.Contains(name, "/")
	}
	return false
}

// inSlices reports whether a directory is the top or one of nested slices: there the
// system's systemd makes its units' groups. A user's own units lie in a service
// (user@1000.service), and may have any name.
func inSlices(dir string) bool {
	for ; dir != "." && dir != "/" && dir != ""; dir = path.Dir(dir) {
		if path.Ext(dir) != ".slice" {
			return false
		}
	}
	return true
}
