package actuate

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/resctrl"
)

// The guard's values are overrides: they lie above base values, in the same files. The
// writer of base values (the node) sees and changes those by Base.
//
// Before a base value is written, the overrides in its group are removed, so that the new
// value is the one that the kernel checks, and the kernel's rules (a v1 set holds those
// below it, the weight of an idle group is locked) are those that the writer knows. The
// guard then applies what is active again, as far as it still fits.

// Base returns the files without the overrides. It calls uncovered after overrides were
// removed for a write: not to block, as the writer waits.
func (h *Host) Base(uncovered func()) *kernel.Root {
	h.mu.Lock()
	h.givesWay = true
	h.mu.Unlock()
	r := *h.root
	r.Files = baseFiles{h.root.Files, h, uncovered}
	return &r
}

// uncover removes the overrides that a write would come under: those in the same group
// or, for CPUs, in one around or below it.
func (h *Host) uncover(name string) (some bool, err error) {
	dir, file := path.Dir(name), path.Base(name)
	if file == "cgroup.kill" || file == "freezer.state" {
		return false, nil // no setting of the guard's; a release writes them without the node's lock
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	sets := strings.HasPrefix(file, "cpuset.")
	classes := h.touchesClasses(name)
	ends := func(d *division) bool { return classes || d.inPlace && path.Base(dir) == d.name }
	match := func(s kernel.Step) bool {
		if classes && divided(s, resctrl.GuardPrefix) {
			return true
		}
		for _, d := range h.divided {
			if ends(d) && d.made(s) {
				return true
			}
		}
		at := path.Dir(s.Path)
		if _, same := h.original(s.Path); !same {
			return false // the group was made anew since
		}
		return at == dir || sets && strings.HasPrefix(path.Base(s.Path), "cpuset.") && (kernel.Within(at, dir) || kernel.Within(dir, at))
	}
	if !slices.ContainsFunc(h.notes(), func(item kernel.Item) bool { return match(item.Step) }) {
		return false, nil
	}
	var groups []string
	if sets {
		t := h.trees[cgroup.CPUSet]
		for group := range h.existed {
			if at := path.Join(t.Dir, group); kernel.Within(at, dir) || kernel.Within(dir, at) {
				groups = append(groups, group)
			}
		}
	}
	follow := h.followers(groups...)
	_, err = h.undo(match)
	if err == nil {
		maps.DeleteFunc(h.divided, func(_ string, d *division) bool { return ends(d) })
	}
	return true, errors.Join(err, follow())
}

// touchesClasses reports whether a write changes what classes of resctrl there are, or have: the
// guard's groups are made of that, keep classes from having ways alone, and take a CLOSID each.
func (h *Host) touchesClasses(name string) bool {
	for _, item := range h.notes() {
		if dir, _, _ := strings.Cut(item.Step.Path, "/"+resctrl.GuardPrefix); divided(item.Step, resctrl.GuardPrefix) {
			return kernel.Within(path.Dir(name), dir) && path.Base(name) != "tasks"
		}
	}
	return false
}

// baseText returns the base value of a file that an override has changed.
func (h *Host) baseText(files fs.FS, name string) (text string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if text, ok := h.original(name); ok || h.log == nil {
		return text, ok
	}
	if slices.Contains(effectiveSets, path.Base(name)) {
		return effective(files, h.original, name)
	}
	return "", false
}

// effectiveSets are the files of the CPUs that a group's own set and those around it come
// to, on v2 and v1.
var effectiveSets = []string{"cpuset.cpus.effective", "cpuset.effective_cpus"}

// effective is what a group's CPUs come to without the guard's sets; false if there are
// none in the group or around it.
func effective(files fs.FS, original func(string) (string, bool), name string) (text string, ok bool) {
	dir, file := path.Split(name)
	dir = path.Clean(dir)
	own, ours := original(dir + "/cpuset.cpus")
	around := ""
	if dir != "." {
		around, ok = effective(files, original, path.Join(path.Dir(dir), file))
	}
	if !ours && !ok {
		return "", false
	}
	if !ours {
		text, err := fs.ReadFile(files, dir+"/cpuset.cpus")
		if err != nil {
			return "", false
		}
		own = string(text)
	}
	if !ok {
		if text, err := fs.ReadFile(files, path.Join(path.Dir(dir), file)); err == nil {
			around = string(text)
		}
	}
	set, err := cpuset.Parse(strings.TrimSpace(own))
	has, err2 := cpuset.Parse(strings.TrimSpace(around))
	if err != nil || err2 != nil {
		return "", false
	}
	switch both := set.Intersect(has); {
	case has.IsEmpty():
		has = set
	case !both.IsEmpty():
		has = both
	}
	return has.String() + "\n", true
}

// baseFiles are the kernel's files without the overrides.
type baseFiles struct {
	kernel.Files
	h         *Host
	uncovered func()
}

// Signal is that of the real root.
func (f baseFiles) Signal(pid int, sig syscall.Signal) error { return f.h.root.Signal(pid, sig) }

// FS is the tree for readers.
func (f baseFiles) FS() fs.FS { return below{f.Files.FS(), f.h} }

// WriteFile writes once no override lies above.
func (f baseFiles) WriteFile(name, data string) error {
	if err := f.uncover(name); err != nil {
		return err
	}
	return f.Files.WriteFile(name, data)
}

// Mkdir makes a directory, a class of resctrl as if the guard had no groups there.
func (f baseFiles) Mkdir(name string) error {
	if err := f.uncover(name); err != nil {
		return err
	}
	return f.Files.Mkdir(name)
}

func (f baseFiles) uncover(name string) error {
	some, err := f.h.uncover(name)
	if some {
		f.uncovered()
	}
	if err != nil {
		return fmt.Errorf("remove the guard's values above /%s: %w", name, err)
	}
	return nil
}

// below is what lies below the overrides.
type below struct {
	fs.FS
	h *Host
}

func (b below) ReadFile(name string) ([]byte, error) {
	if text, ok := b.h.baseText(b.FS, name); ok {
		return []byte(text), nil
	}
	return fs.ReadFile(b.FS, name)
}

func (b below) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(b.FS, name) }

func (b below) Stat(name string) (fs.FileInfo, error) { return fs.Stat(b.FS, name) }

func (b below) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(b.FS, name) }

// Renamed implements kernel.OverlayRenames.
func (b below) Renamed(name string, inode uint64) string { return kernel.Renamed(b.FS, name, inode) }

func (b below) ReadLink(name string) (string, error) { return fs.ReadLink(b.FS, name) }
