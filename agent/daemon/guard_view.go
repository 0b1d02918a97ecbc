package daemon

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
)

// The guard's values lie above the node's: the same files, one writer on top of the
// other. So that neither takes the other's values for a stranger's, each has a view
// of the kernel's files of its own.
//
// The guard sees the files as they are. While it has one in force, the node sees it as
// it was before: what it compares with its books, and what it plans from. Before the
// node writes in a group in which something is in force, that is given back, so that
// the node writes upon its own values and the kernel's rules (a v1 set holds those
// below it, the weight of an idle group is locked) are those that it knows. What was
// given back is put in force again when the node is done, as far as it still fits.

// overlay knows which files the guard has in force.
type overlay struct {
	real *kernel.Root
	// lift gives back what is in force by an owner.
	lift func(owner knob) error

	mu    sync.Mutex
	held  map[string]holding // by the file's name
	owner knob               // whose writes come now
}

// holding is a file that the guard has in force.
type holding struct {
	owner knob
	text  string // before
	inode uint64
}

func newOverlay(root *kernel.Root) *overlay {
	return &overlay{real: root, held: map[string]holding{}}
}

// forNode is the node's view, forGuard the guard's.
func (o *overlay) forNode() *kernel.Root  { return o.root(nodeFiles{o.real.Files, o}) }
func (o *overlay) forGuard() *kernel.Root { return o.root(guardFiles{o.real.Files, o}) }

// root is the real one with other files.
func (o *overlay) root(files kernel.Files) *kernel.Root {
	r := *o.real
	r.Files = files
	return &r
}

// besides are the files that change with one: what is locked or reset by it, and
// what follows from it.
func besides(name string) []string {
	switch path.Base(name) {
	case "cpu.idle":
		return []string{"cpu.weight", "cpu.weight.nice", "cpu.shares"}
	case "cpu.weight":
		return []string{"cpu.weight.nice"}
	case "cpuset.cpus":
		return []string{"cpuset.cpus.effective", "cpuset.effective_cpus"}
	}
	return nil
}

// hold keeps what a file and those that change with it have, before the guard's
// first write.
func (o *overlay) hold(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, file := range append(besides(name), path.Base(name)) {
		file = path.Join(path.Dir(name), file)
		if _, ok := o.valid(file); ok {
			continue
		}
		text, err := fs.ReadFile(o.real.FS(), file)
		if is, ok := inode(o.real.FS(), file); ok && err == nil {
			o.held[file] = holding{o.owner, string(text), is}
		}
	}
}

// valid returns what is held of a file, if that is still the same file. The caller
// holds mu.
func (o *overlay) valid(name string) (holding, bool) {
	h, ok := o.held[name]
	if !ok {
		return h, false
	}
	if is, there := inode(o.real.FS(), name); !there || is != h.inode {
		delete(o.held, name)
		return h, false
	}
	return h, true
}

// inode tells files of the same name from each other; it is 0 where there is none.
func inode(fsys fs.FS, name string) (number uint64, ok bool) {
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return 0, false
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		number = stat.Ino
	}
	return number, true
}

// begin says whose writes come, and end that they were the last: unless they are to
// stay in force, nothing of that owner's is held any more.
func (o *overlay) begin(owner knob) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.owner = owner
}

func (o *overlay) end(owner knob, kept bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.owner = knob{}
	if kept {
		return
	}
	for name, h := range o.held {
		if h.owner == owner {
			delete(o.held, name)
		}
	}
}

// clear forgets everything: it was given back.
func (o *overlay) clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.held)
}

// above returns who has something in force that a write of the node would come
// under: in the same group or, for CPUs, in one around or below it.
func (o *overlay) above(name string) []knob {
	o.mu.Lock()
	defer o.mu.Unlock()
	dir, file := path.Dir(name), path.Base(name)
	var owners []knob
	for held := range o.held {
		at := path.Dir(held)
		sets := strings.HasPrefix(file, "cpuset.") && strings.HasPrefix(path.Base(held), "cpuset.")
		if at != dir && !(sets && (inDir(at, dir) || inDir(dir, at))) {
			continue
		}
		if h, ok := o.valid(held); ok && !slices.Contains(owners, h.owner) {
			owners = append(owners, h.owner)
		}
	}
	slices.SortFunc(owners, knob.compare)
	return owners
}

// inDir reports whether a path lies in a directory.
func inDir(name, dir string) bool { return strings.HasPrefix(name, dir+"/") }

// read returns what the node sees of a file where that is not what it has.
func (o *overlay) read(name string) (text string, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.held) == 0 {
		return "", false
	}
	if h, ok := o.valid(name); ok {
		return h.text, true
	}
	if path.Base(name) == "cpuset.cpus.effective" {
		return o.effective(path.Dir(name))
	}
	return "", false
}

// effective is what a v2 group's CPUs come to below one whose set is held.
func (o *overlay) effective(dir string) (text string, ok bool) {
	if h, ok := o.valid(dir + "/cpuset.cpus.effective"); ok {
		return h.text, true
	}
	if !o.holdsAround(dir) {
		return "", false
	}
	own, err := fs.ReadFile(o.real.FS(), dir+"/cpuset.cpus")
	if err != nil {
		return "", false
	}
	around, ok := o.effective(path.Dir(dir))
	if !ok {
		return "", false
	}
	set, err := cpuset.Parse(strings.TrimSpace(string(own)))
	has, err2 := cpuset.Parse(strings.TrimSpace(around))
	if err != nil || err2 != nil {
		return "", false
	}
	if both := set.Intersect(has); !both.IsEmpty() {
		has = both
	}
	return has.String() + "\n", true
}

// holdsAround reports whether the set of a group around one is held.
func (o *overlay) holdsAround(dir string) bool {
	for at := path.Dir(dir); at != "." && at != "/"; at = path.Dir(at) {
		if _, ok := o.held[at+"/cpuset.cpus.effective"]; ok {
			return true
		}
	}
	return false
}

// guardFiles are the kernel's files, where what is written is held.
type guardFiles struct {
	kernel.Files
	o *overlay
}

func (f guardFiles) WriteFile(name, data string) error {
	f.o.hold(name)
	return f.Files.WriteFile(name, data)
}

// Signal is that of the real root.
func (f guardFiles) Signal(pid int, sig syscall.Signal) error { return f.o.real.Signal(pid, sig) }

// nodeFiles are the kernel's files without what the guard has in force.
type nodeFiles struct {
	kernel.Files
	o *overlay
}

// Signal is that of the real root.
func (f nodeFiles) Signal(pid int, sig syscall.Signal) error { return f.o.real.Signal(pid, sig) }

// FS is the tree for readers.
func (f nodeFiles) FS() fs.FS { return below{f.Files.FS(), f.o} }

// WriteFile writes once nothing of the guard's lies above.
func (f nodeFiles) WriteFile(name, data string) error {
	var errs []error
	for _, owner := range f.o.above(name) {
		errs = append(errs, f.o.lift(owner))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return f.Files.WriteFile(name, data)
}

// below is what lies below the guard's values.
type below struct {
	fs.FS
	o *overlay
}

func (b below) ReadFile(name string) ([]byte, error) {
	if text, ok := b.o.read(name); ok {
		return []byte(text), nil
	}
	return fs.ReadFile(b.FS, name)
}

func (b below) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(b.FS, name) }

func (b below) Stat(name string) (fs.FileInfo, error) { return fs.Stat(b.FS, name) }
