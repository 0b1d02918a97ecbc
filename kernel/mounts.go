package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Mount is one line of /proc/PID/mountinfo (proc_pid_mountinfo(5)).
type Mount struct {
	// Type is the file system's: "cgroup2".
	Type string
	// Root is the directory of the file system that is mounted: "/" unless it is a
	// bind mount. Some file systems (nsfs) have no directories there.
	Root string
	// Dir is the mount point, relative to "/" and clean; "." is "/" itself.
	Dir string
	// Device is the number of the block device, "254:1"; the major number 0 is none. Source
	// is what was mounted, as the file system has it: "/dev/vda1".
	Device, Source string
	// ReadOnly is true where either mount or file system is read-only.
	ReadOnly bool
	// Options are the file system's own options.
	Options []string
}

// IsCgroup reports whether a tree of control groups is mounted, of v1 or v2.
func (m *Mount) IsCgroup() bool { return m.Type == "cgroup" || m.Type == "cgroup2" }

// ReadMounts reads the mounts that this process sees, in the file's order, below the file
// system that stands for "/".
func ReadMounts(fsys fs.FS) ([]Mount, error) { return ReadMountsOf(fsys, "self") }

// ReadMountsOf reads those that another process sees: "1" is the first of a host.
func ReadMountsOf(fsys fs.FS, pid string) ([]Mount, error) {
	text, err := fs.ReadFile(fsys, path.Join("proc", pid, "mountinfo"))
	if err != nil {
		return nil, err
	}
	return parseMounts(string(text))
}

// parseMounts reads the text of /proc/PID/mountinfo, in the file's order.
func parseMounts(text string) ([]Mount, error) {
	var mounts []Mount
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		m, err := parseMount(line)
		if err != nil {
			return nil, fmt.Errorf("mountinfo %q: %w", line, err)
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

// MountOf returns the mount that a path, relative to "/" and clean, lies in; nil if none is known.
func MountOf(mounts []Mount, name string) (at *Mount) {
	for i := range mounts {
		if m := &mounts[i]; (m.Dir == "." || Within(name, m.Dir)) && (at == nil || at.Dir == "." || Within(m.Dir, at.Dir)) {
			at = m // of those at the same place, the last one lies above
		}
	}
	return at
}

// parseMount reads one line. The fields are: id, parent, major:minor, root, mount
// point, options, any number of optional fields, "-", type, source, super options.
func parseMount(line string) (m Mount, err error) {
	fields := strings.Split(line, " ")
	sep := slices.Index(fields, "-")
	if sep < 6 || len(fields) < sep+4 {
		return m, errors.New("fields are missing")
	}
	m.Type, m.Device = fields[sep+1], fields[2]
	if m.Source, err = unescape(fields[sep+2]); err != nil {
		return m, err
	}
	if m.Root, err = unescape(fields[3]); err != nil {
		return m, err
	}
	dir, err := unescape(fields[4])
	if err != nil {
		return m, err
	}
	if !path.IsAbs(dir) {
		return m, errors.New("the mount point is not absolute")
	}
	if m.Dir = strings.TrimPrefix(path.Clean(dir), "/"); m.Dir == "" {
		m.Dir = "."
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

// IsResctrl reports whether classes of caches and memory bandwidth are mounted
// (Documentation/filesystems/resctrl.rst).
func (m *Mount) IsResctrl() bool { return m.Type == "resctrl" }

// ground is where undoing may write: in mounted trees of control groups and resctrl, the
// power settings of CPUs, disciplines of network devices and how processes are scheduled, as all
// plans with an undo log do. A note comes from a file, and
// could name any other.
type ground struct {
	fsys   fs.FS
	mounts []Mount
	err    error // why the mounts are not known
}

// ground reads the tree's own /proc/self/mountinfo.
func (r *Root) ground() ground {
	g := ground{fsys: r.FS()}
	g.mounts, g.err = ReadMounts(g.fsys)
	return g
}

// refuses returns an error if undoing e could write elsewhere.
func (g *ground) refuses(e *entry) error {
	names := []string{e.Path}
	if e.Op == Attach || e.Back != "" {
		names = append(names, e.Back)
	}
	for _, d := range e.Disturbed {
		names = append(names, d.Path)
	}
	for _, name := range names {
		if err := g.outside(name); err != nil {
			return fmt.Errorf("note %d (%s %q) is refused: %q %w; it stays noted: check it by hand, then delete its lines", e.seq, e.Op, "/"+e.Path, "/"+name, err)
		}
	}
	return nil
}

// isPower says that a name is of a power setting of a CPU, as kernel/power writes them.
func isPower(name string) bool {
	rest, ok := strings.CutPrefix(name, "sys/devices/system/cpu/")
	return ok && slices.ContainsFunc([]string{
		"cpufreq/boost", "cpufreq/policy[0-9]*/boost", "cpufreq/policy[0-9]*/scaling_governor",
		"cpufreq/policy[0-9]*/scaling_m??_freq", "cpufreq/policy[0-9]*/energy_performance_preference",
		"cpu[0-9]*/power/energy_perf_bias", "cpu[0-9]*/power/pm_qos_resume_latency_us", "cpu[0-9]*/cpuidle/state[0-9]*/disable",
		"intel_pstate/no_turbo", "intel_uncore_frequency/*/m??_freq_khz",
		"speed_select/cpu[0-9]*/clos", "speed_select/package[0-9]*/core_power", "speed_select/package[0-9]*/priority_type",
		"speed_select/package[0-9]*/turbo_freq",
	}, func(pattern string) bool {
		matches, err := path.Match(pattern, rest)
		return matches && err == nil
	})
}

// isProcess says that a name is of how a process or thread is scheduled, as kernel/sched writes it.
func isProcess(name string) bool {
	rest, ok := strings.CutPrefix(name, "proc/")
	dir, file, _ := strings.Cut(rest, "/")
	pid, start, both := strings.Cut(dir, "@")
	number := func(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
	return ok && both && number(pid) && number(start) && slices.Contains([]string{"sched.policy", "sched.nice", "sched.cpus", "sched.io"}, file)
}

// isLink says that a name is of what divides a network device, or one of its classes, as
// kernel/traffic writes them.
func isLink(name string) bool {
	return slices.ContainsFunc([]string{"sys/net/*/htb", "sys/net/*/htb/????", "sys/net/*/edt", "sys/net/*/edt/????"}, func(pattern string) bool {
		ok, _ := path.Match(pattern, name)
		return ok
	})
}

// outside returns an error unless a name is of what divides a network device, or leads, without symbolic
// links, to a tree of control groups, a power setting or how a process is scheduled. Of the
// mounts around it the innermost counts, and of several at one place the last, which hides the
// others.
func (g *ground) outside(name string) error {
	if isLink(name) {
		return nil
	}
	if g.err != nil {
		return fmt.Errorf("may be anything, as the mounted trees of control groups are not known: %w", g.err)
	}
	if !fs.ValidPath(name) {
		return errors.New("is no clean path below the root")
	}
	around := MountOf(g.mounts, name)
	if around == nil || !around.IsCgroup() && !around.IsResctrl() && !(around.Type == "sysfs" && isPower(name)) && !(around.Type == "proc" && isProcess(name)) {
		return errors.New("is in no mounted tree of control groups, no power setting of a CPU and not how a process is scheduled, and Berth changes nothing else")
	}
	for at := name; at != "."; at = path.Dir(at) {
		info, err := fs.Lstat(g.fsys, at)
		switch {
		case err != nil && !Absent(err):
			return fmt.Errorf("cannot be looked at: %w", bare(err))
		case err == nil && info.Mode().Type() == fs.ModeSymlink:
			return fmt.Errorf("leads through a symbolic link, /%s", at)
		}
	}
	return nil
}
