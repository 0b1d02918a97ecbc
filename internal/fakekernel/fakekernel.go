// Package fakekernel simulates the kernel's part in a cgroup tree, and makes the
// /sys of a machine, for tests. Tests that use the kernel's own groups take turns by
// LockHost.
//
// The tree is a directory of plain files, so that any reader sees it and it
// outlives a process that is killed. Kernel's methods (those of kernel.Files)
// treat the files as the kernel does: making a group makes its files, a value
// is refused or shown in the kernel's own form, and one write may change other
// files. On v2 that is what was recorded on kernels of several versions (Parity),
// on v1 what was seen on Linux 6.18. It knows what Berth uses and nothing else.
package fakekernel

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"berth.dev/berth/cpuset"
)

// Layout is how cgroups are mounted.
type Layout struct {
	// V1 are the v1 hierarchies, each its comma-separated controllers, mounted
	// at sys/fs/cgroup/LIST.
	V1 []string
	// V2 is where the v2 tree is mounted, "" for not at all, and V2Controllers
	// are those that it has.
	V2            string
	V2Controllers []string
	// Own is the group of process "self" and of new processes: "/" or a group
	// in every hierarchy.
	Own string
	// Inner makes what is mounted on V2 a group inside the real tree, as in a
	// container: its root is subject to the no-internal-process rule.
	Inner bool
	// CPUs and Mems are what is online.
	CPUs, Mems string
	// Weights says what shares out disks by weight: "io.cost" on v2 and "bfq" on v1 by
	// default, "bfq" or "none" on both.
	Weights string
	// Devices are the numbers of the block devices; nil stands for any.
	Devices []string
	// Version is that of the kernel whose v2 tree this is, as in "6.1"; "" stands
	// for 6.12. On v1 it only says whether there is cpu.idle (5.15).
	Version string
	// Resctrl is mounted on ResctrlDir; nil is a CPU without.
	Resctrl *Resctrl
	// Power are the frequencies and idle states of the CPUs, as many as CPUs has; nil is
	// a host without.
	Power *PowerLayout
}

// V1 is a host with v1 hierarchies only, two of them joint.
func V1() Layout {
	return Layout{
		V1:  []string{"cpu,cpuacct", "cpuset", "memory", "blkio", "pids", "freezer"},
		Own: "/", CPUs: "0-3", Mems: "0-1",
	}
}

// V2 is a host with the v2 tree only, and this process in a session below.
func V2() Layout {
	return Layout{
		V2: "sys/fs/cgroup", V2Controllers: []string{"cpu", "cpuset", "io", "memory", "pids"},
		Own: "/user.slice/session-1.scope", CPUs: "0-3", Mems: "0-1",
	}
}

// Hybrid is a host with v1 controllers beside a v2 tree that has the rest.
func Hybrid() Layout {
	return Layout{
		V1: []string{"cpu", "cpuacct", "cpuset", "memory", "freezer"},
		V2: "sys/fs/cgroup/unified", V2Controllers: []string{"io", "pids"},
		Own: "/", CPUs: "0-3", Mems: "0-1",
	}
}

// Kernel is a kernel over a directory.
type Kernel struct {
	mu     sync.Mutex // around what several goroutines may do: write, Mkdir, Rmdir, Tree
	dir    string
	layout Layout
	limbo  int // monitoring numbers of groups that are gone, see Resctrl.Limbo
	power  *Power
}

// onlineFile says which of Layout.CPUs are online.
const onlineFile = "sys/devices/system/cpu/online"

// online are the CPUs that are online.
func (k *Kernel) online() cpuset.Set {
	return k.set(path.Dir(onlineFile), path.Base(onlineFile))
}

// SetOnline has some of Layout.CPUs online, and the others offline, as hot-plugging does.
// From v1 groups below the topmost, the kernel takes what goes offline, for good.
func (k *Kernel) SetOnline(cpus string) error {
	if err := k.put(onlineFile, cpus); err != nil {
		return err
	}
	if k.power != nil {
		if err := k.power.plug(cpuset.MustParse(cpus)); err != nil {
			return err
		}
	}
	for _, m := range k.mounts() {
		switch {
		case !m.has("cpuset"):
			continue
		case m.version == 2:
			if err := k.effective(m); err != nil {
				return err
			}
			continue
		}
		for _, file := range []string{"/cpuset.cpus", "/cpuset.effective_cpus"} {
			if err := k.put(m.dir+file, cpus); err != nil {
				return err
			}
		}
		for _, dir := range k.children(m.dir) {
			if err := k.unplug(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// unplug takes what is offline from a v1 group and those below it.
func (k *Kernel) unplug(dir string) error {
	left := k.set(dir, "cpuset.cpus").Intersect(k.online()).String()
	for _, file := range []string{"/cpuset.cpus", "/cpuset.effective_cpus"} {
		if err := k.put(dir+file, left); err != nil {
			return err
		}
	}
	for _, child := range k.children(dir) {
		if err := k.unplug(child); err != nil {
			return err
		}
	}
	return nil
}

// Open returns the kernel of a tree that New has built.
func Open(dir string, l Layout) *Kernel { return &Kernel{dir: dir, layout: l} }

// New builds the tree of a freshly booted host in an empty directory, with the
// process "self" in its group.
func New(dir string, l Layout) (*Kernel, error) {
	k := Open(dir, l)
	for name, text := range map[string]string{
		"proc/self/mountinfo":             k.mountInfo(),
		"proc/sys/kernel/random/boot_id":  "b007-1",
		onlineFile:                        l.CPUs,
		"sys/devices/system/node/has_cpu": l.Mems,
	} {
		if err := k.create(name, text); err != nil {
			return nil, err
		}
	}
	if l.Resctrl != nil {
		if err := k.mountResctrl(); err != nil {
			return nil, err
		}
	}
	if l.Power != nil {
		k.power = &Power{Kernel: Kernel{dir: dir}, layout: *l.Power, asked: map[string]int{}, bias: map[int]string{}}
		if err := k.power.boot(); err != nil {
			return nil, err
		}
	}
	for _, m := range k.mounts() {
		if err := k.populate(m, m.dir, true); err != nil {
			return nil, err
		}
		dir := m.dir
		for _, element := range strings.Split(strings.Trim(l.Own, "/"), "/") {
			if element == "" {
				continue
			}
			dir = path.Join(dir, element)
			if err := k.Mkdir(dir); err != nil {
				return nil, err
			}
		}
	}
	return k, k.Start("self")
}

// Start adds a process to the layout's own group of every hierarchy. "self" is
// there as process 1.
func (k *Kernel) Start(pid string) error {
	id := pid
	if pid == "self" {
		id = "1"
	}
	var lines strings.Builder
	for i, m := range k.mounts() {
		fmt.Fprintf(&lines, "%s:%s\n", m.prefix(i), k.layout.Own)
		if err := k.addProcess(path.Join(m.dir, k.layout.Own), id); err != nil {
			return err
		}
	}
	stat := pid + " (a (odd) name) S" + strings.Repeat(" 0", 18) + " 7" + pid + "\n"
	if err := k.create("proc/"+pid+"/stat", stat); err != nil {
		return err
	}
	if k.layout.Resctrl != nil {
		if err := k.addTask(ResctrlDir, id); err != nil {
			return err
		}
	}
	if err := k.create("proc/"+pid+"/ioprio", "none"); err != nil { // see kernel/sched
		return err
	}
	return k.create("proc/"+pid+"/cgroup", lines.String())
}

// Exit ends a process.
func (k *Kernel) Exit(pid string) error {
	for _, m := range k.mounts() {
		if err := k.removeProcess(m, pid); err != nil {
			return err
		}
	}
	if k.layout.Resctrl != nil {
		k.removeTask(pid)
	}
	return os.RemoveAll(k.real("proc/" + pid))
}

// Tree returns the text of every file, and "" for every directory, whose name
// ends in a slash: two trees are the same if their maps are.
func (k *Kernel) Tree() (map[string]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	tree := map[string]string{}
	err := fs.WalkDir(os.DirFS(k.dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			tree[name+"/"] = ""
			return err
		}
		text, err := os.ReadFile(k.real(name))
		tree[name] = string(text)
		return err
	})
	return tree, err
}

// FS returns the tree for readers.
func (k *Kernel) FS() fs.FS {
	if k.power != nil {
		return k.power.FS()
	}
	return os.DirFS(k.dir)
}

// WriteFile does to a file what the kernel would.
func (k *Kernel) WriteFile(name, data string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, err := fs.Stat(k.FS(), name); err != nil {
		return err
	}
	if group, file, ok := k.inResctrl(name); ok {
		if err := k.writeResctrl(group, file, data); err != nil {
			return &fs.PathError{Op: "write", Path: name, Err: err}
		}
		return nil
	}
	if k.power != nil && strings.HasPrefix(name, cpuDir+"/") {
		return k.power.WriteFile(name, data)
	}
	m, ok := k.mountOf(name)
	if !ok {
		return k.put(name, strings.TrimSpace(data))
	}
	if err := k.write(m, path.Dir(name), path.Base(name), strings.TrimSpace(data)); err != nil {
		return &fs.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

// Mkdir makes a group with its files, or a plain directory.
func (k *Kernel) Mkdir(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, _, ok := k.inResctrl(name); ok {
		if err := k.mkdirResctrl(name); err != nil {
			return &fs.PathError{Op: "mkdir", Path: name, Err: err}
		}
		return nil
	}
	if err := os.Mkdir(k.real(name), 0o755); err != nil {
		return err
	}
	m, ok := k.mountOf(name)
	if !ok {
		return nil
	}
	if err := k.populate(m, name, false); err != nil {
		return err
	}
	return k.retype(path.Dir(name))
}

// Rmdir removes a group that has neither processes nor children, or a plain
// empty directory.
func (k *Kernel) Rmdir(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, _, ok := k.inResctrl(name); ok {
		if err := k.rmdirResctrl(name); err != nil {
			return &fs.PathError{Op: "rmdir", Path: name, Err: err}
		}
		return nil
	}
	m, ok := k.mountOf(name)
	if !ok || name == m.dir {
		return os.Remove(k.real(name))
	}
	if _, err := fs.Stat(k.FS(), name); err != nil {
		return err
	}
	if len(k.children(name)) > 0 || k.get(name, "cgroup.procs") != "" {
		return &fs.PathError{Op: "rmdir", Path: name, Err: syscall.EBUSY}
	}
	if err := os.RemoveAll(k.real(name)); err != nil || m.version == 1 {
		return err
	}
	return k.effective(m)
}

// mount is one hierarchy.
type mount struct {
	version     int
	dir         string
	controllers []string
}

func (m mount) has(controller string) bool { return slices.Contains(m.controllers, controller) }

func (m mount) prefix(i int) string {
	if m.version == 2 {
		return "0:"
	}
	return fmt.Sprintf("%d:%s", i+1, strings.Join(m.controllers, ","))
}

func (k *Kernel) mounts() []mount {
	var all []mount
	for _, list := range k.layout.V1 {
		all = append(all, mount{1, "sys/fs/cgroup/" + list, strings.Split(list, ",")})
	}
	if k.layout.V2 != "" {
		all = append(all, mount{2, k.layout.V2, k.layout.V2Controllers})
	}
	return all
}

func (k *Kernel) mountOf(name string) (mount, bool) {
	for _, m := range k.mounts() {
		if name == m.dir || strings.HasPrefix(name, m.dir+"/") {
			return m, true
		}
	}
	return mount{}, false
}

func (k *Kernel) mountInfo() string {
	var b strings.Builder
	b.WriteString("20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n")
	b.WriteString("22 20 0:22 / /proc rw,nosuid shared:3 - proc proc rw\n")
	if k.layout.Power != nil {
		b.WriteString("21 20 0:20 / /sys rw,nosuid shared:2 - sysfs sysfs rw\n")
	}
	for i, m := range k.mounts() {
		kind, options := "cgroup", "rw,"+strings.Join(m.controllers, ",")
		if m.version == 2 {
			kind, options = "cgroup2", "rw,nsdelegate"
		}
		fmt.Fprintf(&b, "%d 20 0:%d / /%s rw,nosuid,relatime shared:%d - %s cgroup %s\n", 30+i, 40+i, m.dir, 5+i, kind, options)
	}
	if r := k.layout.Resctrl; r != nil {
		options := "rw"
		if r.MBps {
			options += ",mba_MBps"
		}
		fmt.Fprintf(&b, "90 20 0:90 / /%s rw,nosuid,relatime shared:90 - resctrl resctrl %s\n", ResctrlDir, options)
	}
	return b.String()
}

func (k *Kernel) real(name string) string { return filepath.Join(k.dir, filepath.FromSlash(name)) }

// create makes a file and its directories.
func (k *Kernel) create(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(k.real(name)), 0o755); err != nil {
		return err
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return os.WriteFile(k.real(name), []byte(text), 0o644)
}

// put rewrites a file in place: its inode stays.
func (k *Kernel) put(name, text string) error { return k.create(name, text) }

func (k *Kernel) exists(name string) bool {
	_, err := os.Stat(k.real(name))
	return err == nil
}

// atLeast reports whether the kernel is of that version or later.
func (k *Kernel) atLeast(major, minor int) bool {
	a, b, _ := strings.Cut(cmp.Or(k.layout.Version, "6.12"), ".")
	x, _ := strconv.Atoi(a)
	y, _ := strconv.Atoi(b)
	return x > major || x == major && y >= minor
}

// get returns a file of a group, trimmed, or "".
func (k *Kernel) get(dir, file string) string {
	text, _ := os.ReadFile(k.real(dir + "/" + file))
	return strings.TrimSpace(string(text))
}

func (k *Kernel) number(dir, file string) int64 {
	n, _ := strconv.ParseInt(k.get(dir, file), 10, 64)
	return n
}

func (k *Kernel) set(dir, file string) cpuset.Set { return cpuset.MustParse(k.get(dir, file)) }

func (k *Kernel) children(dir string) []string {
	entries, _ := os.ReadDir(k.real(dir))
	var dirs []string
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, path.Join(dir, e.Name()))
		}
	}
	return dirs
}

// Delegate lets every user write to a file or directory.
func (k *Kernel) Delegate(name string) error {
	info, err := os.Stat(k.real(name))
	if err != nil {
		return err
	}
	return os.Chmod(k.real(name), info.Mode().Perm()|0o222)
}

// Put sets a file's text past the rules, as the kernel does by itself: for
// counters.
func (k *Kernel) Put(name, text string) error { return k.put(name, text) }
