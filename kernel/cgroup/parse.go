package cgroup

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"berth.dev/berth/kernel"
)

// MountInfo is one cgroup line of /proc/PID/mountinfo (proc_pid_mountinfo(5)).
type MountInfo struct {
	// Version is 1 or 2.
	Version int
	// Root is the directory of the hierarchy that is mounted: "/" unless it is
	// a bind mount. It starts with "/.." when it lies outside the reader's
	// cgroup namespace.
	Root string
	// Dir is the mount point, absolute.
	Dir string
	// ReadOnly is true where either mount or file system is read-only.
	ReadOnly bool
	// Options are the file system's own options; on v1 the controllers are
	// among them.
	Options []string
}

// ParseMountInfo reads the text of /proc/PID/mountinfo and returns the cgroup
// and cgroup2 mounts, in the file's order.
func ParseMountInfo(text string) ([]MountInfo, error) {
	all, err := kernel.ParseMounts(text)
	if err != nil {
		return nil, err
	}
	var mounts []MountInfo
	for _, m := range all {
		if !m.IsCgroup() {
			continue
		}
		if !path.IsAbs(m.Root) {
			return nil, fmt.Errorf("mountinfo: /%s: its root %q is not absolute", m.Dir, m.Root)
		}
		version := 1
		if m.Type == "cgroup2" {
			version = 2
		}
		mounts = append(mounts, MountInfo{Version: version, Root: m.Root, Dir: "/" + m.Dir, ReadOnly: m.ReadOnly, Options: m.Options})
	}
	return mounts, nil
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

// parsePIDs reads cgroup.procs: a process id per line. Processes of another
// pid namespace are shown as 0 and left out.
func parsePIDs(text string) ([]int, error) {
	var pids []int
	for _, word := range strings.Fields(text) {
		pid, err := strconv.Atoi(word)
		if err != nil || pid < 0 {
			return nil, fmt.Errorf("cgroup.procs %q: not a process id", word)
		}
		if pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
