package daemon

import (
	"cmp"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/kernel"
)

// The guard's values lie above the node's: the same files, one writer on top of the
// other. So that neither takes the other's values for a stranger's, the node has a view of
// its own of the kernel's files.
//
// The guard sees the files as they are. While it has a value active, the node sees the one
// in the guard's undo log: what it compares with its records, and what it plans from.
// Before the node writes in a group in which something is active, that is reverted, so that
// the node writes upon its own values and the kernel's rules (a v1 set holds those below
// it, the weight of an idle group is locked) are those that it knows. What was reverted is
// applied again when the node is done, as far as it still fits.

// forNode is the node's view.
func (a *actuator) forNode() *kernel.Root {
	r := *a.root
	r.Files = nodeFiles{a.root.Files, a}
	return &r
}

// above returns the active actions that a write of the node would come under: in the same
// group or, for CPUs, in one around or below it.
func (a *actuator) above(name string) []control.Action {
	dir, file := path.Dir(name), path.Base(name)
	if file == "cgroup.kill" || file == "freezer.state" {
		return nil // no setting of the guard's; a release writes them without the keeper's lock
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var actions []control.Action
	for _, action := range a.active {
		lies := func(s kernel.Step) bool {
			at := path.Dir(s.Path)
			sets := strings.HasPrefix(file, "cpuset.") && strings.HasPrefix(path.Base(s.Path), "cpuset.")
			return at == dir || sets && (kernel.Within(at, dir) || kernel.Within(dir, at))
		}
		if a.host != nil && slices.ContainsFunc(a.host.Steps(action), lies) {
			actions = append(actions, action)
		}
	}
	slices.SortFunc(actions, func(x, y control.Action) int {
		return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.Remedy, y.Remedy))
	})
	return actions
}

// before returns the text that the node sees of a file where the guard has changed it.
func (a *actuator) before(files fs.FS, name string) (text string, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.host == nil {
		return "", false
	}
	if text, ok := a.host.Original(name); ok {
		return text, true
	}
	if slices.Contains(effectiveSets, path.Base(name)) {
		return effective(files, a.host.Original, name)
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

// nodeFiles are the kernel's files without what the guard has active.
type nodeFiles struct {
	kernel.Files
	a *actuator
}

// Signal is that of the real root.
func (f nodeFiles) Signal(pid int, sig syscall.Signal) error { return f.a.root.Signal(pid, sig) }

// FS is the tree for readers.
func (f nodeFiles) FS() fs.FS { return below{f.Files.FS(), f.a} }

// WriteFile writes once nothing of the guard's lies above.
func (f nodeFiles) WriteFile(name, data string) error {
	var errs []error
	for _, action := range f.a.above(name) {
		errs = append(errs, f.a.suspend(action))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return f.Files.WriteFile(name, data)
}

// below is what lies below the guard's values.
type below struct {
	fs.FS
	a *actuator
}

func (b below) ReadFile(name string) ([]byte, error) {
	if text, ok := b.a.before(b.FS, name); ok {
		return []byte(text), nil
	}
	return fs.ReadFile(b.FS, name)
}

func (b below) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(b.FS, name) }

func (b below) Stat(name string) (fs.FileInfo, error) { return fs.Stat(b.FS, name) }

func (b below) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(b.FS, name) }

func (b below) ReadLink(name string) (string, error) { return fs.ReadLink(b.FS, name) }
