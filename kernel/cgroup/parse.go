package cgroup

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/kernel"
)

// ReadMounts is kernel.ReadMounts of the cgroup and cgroup2 mounts alone. The Root of one starts
// with "/.." when it lies outside the reader's cgroup namespace.
func ReadMounts(fsys fs.FS) ([]kernel.Mount, error) {
	all, err := kernel.ReadMounts(fsys)
	all = slices.DeleteFunc(all, func(m kernel.Mount) bool { return !m.IsCgroup() })
	for _, m := range all {
		if !path.IsAbs(m.Root) {
			return nil, fmt.Errorf("mountinfo: /%s: its root %q is not absolute", m.Dir, m.Root)
		}
	}
	return all, err
}

// Membership is one line of /proc/PID/cgroup: where a process is in one
// hierarchy.
type Membership struct {
	// ID is the hierarchy's number, 0 for v2.
	ID int
	// Controllers are the hierarchy's controllers; none for v2 and for named
	// hierarchies without controllers.
	Controllers []string
	// Name is the name of a named hierarchy ("systemd"), else "".
	Name string
	// Path is the group, absolute within the hierarchy as the reader's cgroup
	// namespace shows it.
	Path string
}

// ReadMembership reads where a process is, below the file system that stands for "/"; pid may
// be "self". For one that is gone the error is fs.ErrNotExist or ESRCH.
func ReadMembership(fsys fs.FS, pid string) ([]Membership, error) {
	text, err := fs.ReadFile(fsys, "proc/"+pid+"/cgroup")
	if err != nil {
		return nil, err
	}
	return ParseMembership(string(text))
}

// ParseMembership reads the text of /proc/PID/cgroup (cgroups(7)).
func ParseMembership(text string) ([]Membership, error) {
	var all []Membership
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		id, rest, ok := strings.Cut(line, ":")
		controllers, group, ok2 := strings.Cut(rest, ":")
		n, err := strconv.Atoi(id)
		if !ok || !ok2 || err != nil || n < 0 || !path.IsAbs(group) {
			return nil, fmt.Errorf("cgroup membership %q: not ID:CONTROLLERS:/PATH", line)
		}
		m := Membership{ID: n, Path: strings.TrimSuffix(group, " (deleted)")}
		for _, c := range strings.Split(controllers, ",") {
			if name, named := strings.CutPrefix(c, "name="); named {
				m.Name = name
			} else if c != "" {
				m.Controllers = append(m.Controllers, c)
			}
		}
		all = append(all, m)
	}
	return all, nil
}
