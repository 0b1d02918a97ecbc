package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// host is a tree and the facts that several checks need, read once.
type host struct {
	fsys    fs.FS
	probes  Probes
	release string // proc/sys/kernel/osrelease

	groups    *cgroup.Host
	groupsErr error
	self      process
	selfErr   error
	refused   map[string]*kernel.NotSupportedError // by controller that is mounted
	flags     cpuFlags
	flagsErr  error

	err error // the first of the check that is made now
}

func newHost(fsys fs.FS, probes Probes) *host {
	h := &host{fsys: fsys, probes: probes}
	h.release = h.word("proc/sys/kernel/osrelease")
	h.groups, h.groupsErr = h.detect()
	h.self, h.selfErr = readProcess(h)
	h.refused = h.refusals()
	h.flags, h.flagsErr = readCPUFlags(h)
	return h
}

// read returns a file's text without the space around it; ok is false where
// there is no such file.
func (h *host) read(name string) (text string, ok bool, err error) {
	data, err := fs.ReadFile(h.fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("read /%s: %w", name, cause(err))
	}
	return strings.TrimSpace(string(data)), true, nil
}

// cause strips the path that fs errors repeat.
func cause(err error) error {
	if e, isPath := errors.AsType[*fs.PathError](err); isPath {
		return e.Err
	}
	return err
}

// word returns a file's text, "" where it cannot be read.
func (h *host) word(name string) string {
	text, _, _ := h.read(name)
	return text
}

// fail notes that something could not be read, if err is an error: what is checked now is
// unknown then.
func (h *host) fail(err error) Capability {
	h.err = cmp.Or(h.err, err)
	return Capability{}
}

// text is read for a check; a file that cannot be read fails it.
func (h *host) text(name string) (text string, ok bool) {
	text, ok, err := h.read(name)
	h.fail(err)
	return text, ok
}

// int reads a file that holds one decimal number, for a check.
func (h *host) int(name string) (n int, ok bool) {
	text, ok := h.text(name)
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		h.fail(fmt.Errorf("read /%s: %q is not a number", name, clip(text)))
	}
	return n, err == nil
}

// clip shortens text that is quoted in an error.
func clip(text string) string {
	if len(text) > 40 {
		return text[:40] + "..."
	}
	return text
}

func (h *host) exists(name string) bool {
	_, err := fs.Stat(h.fsys, name)
	return err == nil
}

// lstat looks at a file for a check, and at no link's target; there is false where there
// is none.
func (h *host) lstat(name string) (info fs.FileInfo, there bool) {
	info, err := fs.Lstat(h.fsys, name)
	h.fail(kernel.IgnoreAbsent(err))
	return info, err == nil
}

// glob returns the names that match; a pattern that is written in this
// package is never malformed.
func (h *host) glob(pattern string) []string {
	names, _ := fs.Glob(h.fsys, pattern)
	return names
}

// newer reports whether the kernel is of that version or newer; known is false
// if the tree does not show the version.
func (h *host) newer(major, minor int) (newer, known bool) {
	first, rest, _ := strings.Cut(h.release, ".")
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end >= 0 {
		rest = rest[:end]
	}
	a, err1 := strconv.Atoi(first)
	b, err2 := strconv.Atoi(rest)
	if err1 != nil || err2 != nil {
		return false, false
	}
	return a > major || (a == major && b >= minor), true
}

// reading is the tree to kernel/cgroup, which looks at it and changes nothing.
type reading struct{ tree fs.FS }

func (r reading) FS() fs.FS                      { return r.tree }
func (r reading) WriteFile(string, string) error { return errors.ErrUnsupported }
func (r reading) Mkdir(string) error             { return errors.ErrUnsupported }
func (r reading) Rmdir(string) error             { return errors.ErrUnsupported }

// detect lets cgroup.Detect choose among the mounts, so that the doctor judges those that
// Berth would use. The host is not nil.
func (h *host) detect() (*cgroup.Host, error) {
	groups := &cgroup.Host{}
	mounts, err := cgroup.ReadMounts(h.fsys)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return groups, errors.New("/proc/self/mountinfo is absent")
	case err != nil:
		return groups, fmt.Errorf("read /proc/self/mountinfo: %w", cause(err))
	}
	detected, err := cgroup.Detect(kernel.NewRoot("/", reading{h.fsys}))
	if err != nil {
		return groups, err
	}
	if len(detected.Hierarchies) == 0 {
		err = unseen(mounts)
	}
	return detected, err
}

// unseen is the error of mounts that are listed and cannot be used; nil where
// no hierarchy with controllers is mounted at all.
func unseen(mounts []kernel.Mount) error {
	for _, m := range mounts {
		named := slices.ContainsFunc(m.Options, func(o string) bool { return strings.HasPrefix(o, "name=") })
		if m.Type == "cgroup2" {
			return fmt.Errorf("the cgroup2 mount at /%s cannot be used: another mount hides its cgroup.controllers, or /proc/self/cgroup is incomplete", m.Dir)
		}
		if !named {
			return fmt.Errorf("the cgroup mount at /%s is not told of in /proc/self/cgroup", m.Dir)
		}
	}
	return nil
}

// UnifiedMount returns where the cgroup v2 hierarchy is mounted, relative to
// the tree's top; "" if it is not, or if the tree does not show it.
func UnifiedMount(fsys fs.FS) (string, error) {
	h := &host{fsys: fsys}
	if !h.exists("proc/self/mountinfo") {
		return "", nil
	}
	var err error
	h.groups, err = h.detect()
	return h.v2().Dir, err
}

// v2 is the cgroup v2 hierarchy; without one, its Dir is "".
func (h *host) v2() (t cgroup.Hierarchy) {
	for _, t = range h.groups.Hierarchies {
		if t.Version == 2 {
			return t
		}
	}
	return cgroup.Hierarchy{}
}

// v1 returns the v1 names of the controllers in v1 hierarchies.
func (h *host) v1() (names []string) {
	for _, t := range h.groups.Hierarchies {
		for _, name := range t.Controllers {
			switch {
			case t.Version == 2:
			case name == cgroup.IO:
				names = append(names, "blkio")
			default:
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// v1CPU is the v1 hierarchy of the cpu controller, nil without one.
func (h *host) v1CPU() *cgroup.Hierarchy {
	if t, _ := h.groups.Hierarchy(cgroup.CPU); t != nil && t.Version == 1 {
		return t
	}
	return nil
}

// process holds the rights of this process, from proc/self.
type process struct {
	uid     int
	caps    uint64 // effective
	rtLimit int    // soft RLIMIT_RTPRIO
}

// Capabilities (capability.h).
const (
	capSysAdmin    = 21
	capSysNice     = 23
	capSysResource = 24
	capPerfmon     = 38
	capBPF         = 39
)

func (p process) has(capability int) bool { return p.caps&(1<<capability) != 0 }

func readProcess(h *host) (process, error) {
	p := process{}
	status, found, err := h.read("proc/self/status")
	if err != nil {
		return p, err
	}
	if !found {
		return p, errors.New("/proc/self/status is absent")
	}
	uid, hasUID := field(status, "Uid:", 1) // effective
	caps, hasCaps := field(status, "CapEff:", 0)
	if !hasUID || !hasCaps {
		return p, errors.New("read /proc/self/status: Uid or CapEff is missing")
	}
	if p.uid, err = strconv.Atoi(uid); err != nil {
		return p, fmt.Errorf("read /proc/self/status: Uid: %w", err)
	}
	if p.caps, err = strconv.ParseUint(caps, 16, 64); err != nil {
		return p, fmt.Errorf("read /proc/self/status: CapEff: %w", err)
	}
	limits, _, err := h.read("proc/self/limits")
	if err != nil {
		return p, err
	}
	if limit, hasLimit := field(limits, "Max realtime priority", 0); hasLimit {
		if limit == "unlimited" {
			limit = "99"
		}
		if p.rtLimit, err = strconv.Atoi(limit); err != nil {
			return p, fmt.Errorf("read /proc/self/limits: Max realtime priority: %w", err)
		}
	}
	return p, nil
}

// field returns the i-th word after the label of a "label words..." line.
func field(text, label string, i int) (word string, ok bool) {
	for line := range strings.Lines(text) {
		if rest, found := strings.CutPrefix(line, label); found {
			words := strings.Fields(rest)
			if i >= len(words) {
				return "", false
			}
			return words[i], true
		}
	}
	return "", false
}

// cpuFlags are the flags of the first CPU in proc/cpuinfo.
type cpuFlags struct {
	vendor string // "GenuineIntel", "AuthenticAMD", "" on arm
	words  []string
}

func (f cpuFlags) has(flag string) bool { return slices.Contains(f.words, flag) }

// readCPUFlags reads the first CPU's part of proc/cpuinfo. x86 writes "flags",
// arm "Features".
func readCPUFlags(h *host) (cpuFlags, error) {
	file, err := h.fsys.Open("proc/cpuinfo")
	if errors.Is(err, fs.ErrNotExist) {
		return cpuFlags{}, errors.New("/proc/cpuinfo is absent")
	}
	if err != nil {
		return cpuFlags{}, fmt.Errorf("read /proc/cpuinfo: %w", cause(err))
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, 16<<10)) // it grows with the CPUs
	if err != nil {
		return cpuFlags{}, fmt.Errorf("read /proc/cpuinfo: %w", cause(err))
	}
	f := cpuFlags{}
	first, _, _ := strings.Cut(string(text), "\n\n")
	for line := range strings.Lines(first) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "vendor_id":
			f.vendor = strings.TrimSpace(value)
		case "flags", "Features":
			f.words = strings.Fields(value)
		}
	}
	if len(f.words) == 0 {
		return f, errors.New("read /proc/cpuinfo: no flags")
	}
	return f, nil
}
