package cgroup

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
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
// and cgroup2 mounts, in the file's order. Other file systems are not looked at
// beyond their type.
func ParseMountInfo(text string) ([]MountInfo, error) {
	var mounts []MountInfo
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		m, err := parseMount(line)
		if err != nil {
			return nil, fmt.Errorf("mountinfo %q: %w", line, err)
		}
		if m.Version != 0 {
			mounts = append(mounts, m)
		}
	}
	return mounts, nil
}

// parseMount reads one line; Version is 0 for other file systems. The fields
// are: id, parent, major:minor, root, mount point, options, any number of
// optional fields, "-", type, source, super options.
func parseMount(line string) (MountInfo, error) {
	fields := strings.Split(line, " ")
	sep := slices.Index(fields, "-")
	if sep < 6 || len(fields) < sep+4 {
		return MountInfo{}, errors.New("fields are missing")
	}
	var m MountInfo
	switch fields[sep+1] {
	case "cgroup":
		m.Version = 1
	case "cgroup2":
		m.Version = 2
	default:
		return m, nil
	}
	var err error
	if m.Root, err = unescape(fields[3]); err != nil {
		return m, err
	}
	if m.Dir, err = unescape(fields[4]); err != nil {
		return m, err
	}
	if !path.IsAbs(m.Root) || !path.IsAbs(m.Dir) {
		return m, errors.New("a path is not absolute")
	}
	m.Options = strings.Split(fields[sep+3], ",")
	m.ReadOnly = slices.Contains(strings.Split(fields[5], ","), "ro") || slices.Contains(m.Options, "ro")
	return m, nil
}

// unescape replaces the octal escapes of mountinfo (\040 is a space).
func unescape(s string) (string, error) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, `\`)
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		if len(after) < 3 {
			return "", fmt.Errorf("bad escape in %q", s)
		}
		code, err := strconv.ParseUint(after[:3], 8, 8)
		if err != nil || code == 0 {
			return "", fmt.Errorf("bad escape in %q", s)
		}
		b.WriteByte(byte(code))
		s = after[3:]
	}
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

// parseFlat reads a flat keyed file ("usage_usec 12\n..."), as cpu.stat is.
func parseFlat(text string) (map[string]int64, error) {
	values := map[string]int64{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 2 {
			return nil, fmt.Errorf("flat keyed line %q: not KEY VALUE", line)
		}
		v, err := strconv.ParseUint(fields[1], 10, 63)
		if err != nil {
			return nil, fmt.Errorf("flat keyed line %q: %w", line, err)
		}
		values[fields[0]] = int64(v)
	}
	return values, nil
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
