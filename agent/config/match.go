package config

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch/pods"
)

// Candidate is something that may be a workload: a control group or, as its runtime
// describes it, a container.
type Candidate struct {
	// Path is that of the group, relative to the mount of the hierarchy, as in
	// /proc/PID/cgroup.
	Path string
	// Delegated says that another user chose the group's name: then only entries with
	// match.delegated are asked.
	Delegated bool
	// Container is what the runtime says of the container; nil is what the path tells.
	Container *ContainerID
}

// Match returns the workload that a candidate is: of those that match, the first in the
// file. A protected group, or one below it, is no workload.
func (c *NodeConfig) Match(of Candidate) (w *Workload, ok bool) {
	if c.IsProtected(of.Path) {
		return nil, false
	}
	for i := range c.Workloads {
		m := &c.Workloads[i].Match
		if (m.Delegated || !of.Delegated) && m.matches(of) {
			return &c.Workloads[i], true
		}
	}
	return nil, false
}

// IsProtected reports whether a group, or one above it, is protected.
func (c *NodeConfig) IsProtected(groupPath string) bool {
	parts := components(groupPath)
	for n := range len(parts) + 1 {
		if matchAny(c.Protected, parts[:n]) {
			return true
		}
	}
	return false
}

// IsConfined reports whether a group is one to keep off exclusive CPUs: confine
// matches it, it is not protected, and it is no workload.
func (c *NodeConfig) IsConfined(of Candidate) bool {
	_, ok := c.Match(of)
	return !ok && !c.IsProtected(of.Path) && matchAny(c.Confine, components(of.Path))
}

func matchAny(globs, parts []string) bool {
	return slices.ContainsFunc(globs, func(g string) bool { return matchGroup(components(g), parts) })
}

func (m *Match) matches(of Candidate) bool {
	switch {
	case m.Cgroup != "":
		return matchGroup(components(m.Cgroup), components(of.Path))
	case m.Unit != "":
		unit, ok := unitOf(of.Path)
		return ok && matchGlob(m.Unit, unit)
	case m.Container == nil:
		return false
	case of.Container != nil:
		return m.Container.matches(of.Container)
	}
	id, ok := pods.ContainerOf(of.Path)
	return ok && m.Container.matches(&id)
}

func (m *Container) matches(id *ContainerID) bool {
	for _, f := range []struct{ glob, name string }{{m.ID, id.ID}, {m.Pod, id.Pod}, {m.Name, id.Name}, {m.Namespace, id.Namespace}} {
		if f.glob != "" && (f.name == "" || !matchGlob(f.glob, f.name)) {
			return false
		}
	}
	for name, value := range m.Label {
		if got, ok := id.Labels[name]; !ok || got != value {
			return false
		}
	}
	return m.Runtime == "" || m.Runtime == id.Runtime
}

// unitOf returns the systemd unit whose own group the path names. The path of a
// user manager's unit ends like that of one of the system's.
func unitOf(groupPath string) (unit string, ok bool) {
	// systemd puts an underscore before a name that the kernel could mean too.
	unit = strings.TrimPrefix(path.Base(groupPath), "_")
	return unit, kernel.IsUnit(unit)
}

// components returns the parts of a group's path.
func components(groupPath string) []string {
	return strings.FieldsFunc(groupPath, func(r rune) bool { return r == '/' })
}

// matchGroup matches a path component by component; "**" is any number of them.
// In the worst case it takes the product of both lengths.
func matchGroup(glob, parts []string) bool {
	star, retry := -1, 0 // the last "**", and where what follows it was tried
	g, p := 0, 0
	for p < len(parts) {
		switch {
		case g < len(glob) && glob[g] == "**":
			star, retry = g, p
			g++
		case g < len(glob) && matchGlob(glob[g], parts[p]):
			g, p = g+1, p+1
		case star >= 0:
			retry++
			g, p = star+1, retry
		default:
			return false
		}
	}
	for g < len(glob) && glob[g] == "**" {
		g++
	}
	return g == len(glob)
}

func matchGlob(glob, name string) bool {
	ok, err := path.Match(glob, name)
	return ok && err == nil
}

// checkGroupGlob checks a glob of a path.
func checkGroupGlob(glob string) error {
	if !strings.HasPrefix(glob, "/") || path.Clean(glob) != glob {
		return fmt.Errorf("%q is no path from the root of the groups, in its shortest form, such as /batch.slice/*", glob)
	}
	for _, part := range components(glob) {
		if err := checkGlob(part); err != nil {
			return err
		}
	}
	return nil
}

// checkGlob checks a glob of one name.
func checkGlob(glob string) error {
	switch _, err := path.Match(glob, ""); {
	case err != nil:
		return fmt.Errorf("%q is no glob: a [ is not closed, or a \\ stands at the end", glob)
	case strings.ContainsAny(glob, "/\x00\n"):
		return fmt.Errorf("%q is no glob of a name: it has a '/' or a line's end", glob)
	case strings.Contains(glob, "**") && glob != "**":
		return errors.New("** stands for whole components: /a/**/b")
	}
	return nil
}
