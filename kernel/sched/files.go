package sched

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/knob"
)

// Process is a kernel.Subject: one process, for as long as it runs. Another one with its
// number is another subject.
type Process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // kernel.Process.Start
}

// Dir is the directory of the process's files under Over, "proc/4711@8812".
func (p Process) Dir() string { return "proc/" + strconv.Itoa(p.PID) + "@" + p.Start }

// Of returns the process of a file under Over; false if it is of none.
func Of(name string) (p Process, ok bool) {
	if !strings.HasPrefix(name, "proc/") {
		return p, false
	}
	dir, file, _ := strings.Cut(strings.TrimPrefix(name, "proc/"), "/")
	pid, start, both := strings.Cut(dir, "@")
	n, err := strconv.Atoi(pid)
	if _, known := attributes[file]; err != nil || n <= 0 || !both || !known {
		return p, false
	}
	if _, err := strconv.ParseUint(start, 10, 64); err != nil {
		return p, false
	}
	return Process{n, start}, true
}

// Locate returns the file of a knob.
func (p Process) Locate(k *knob.Knob) (dir string, f *knob.File, err error) {
	if len(k.Process) == 0 {
		return "", nil, &kernel.NotSupportedError{Feature: k.Words + " of a process", Reason: "only control groups have it"}
	}
	return p.Dir(), &k.Process[0], nil
}

// Plan plans settings of the process.
func (p Process) Plan(s knob.Settings) (kernel.Plan, error) {
	plan, err := kernel.Set(p, s)
	for i := range plan {
		plan[i].Format = kernel.Threads
		plan[i].Disturbs = nil
	}
	return plan, err
}

// Calls are the system calls for one thread.
type Calls interface {
	GetScheduling(tid int) (State, error)
	SetScheduling(tid int, a Attr) error
}

type systemCalls struct{}

func (systemCalls) GetScheduling(tid int) (State, error) { return Get(tid) }
func (systemCalls) SetScheduling(tid int, a Attr) error  { return set(tid, a) }

// Over returns a root that has, beside the kernel's own files, three for each process and one for
// each thread:
//
//	proc/PID@START/sched.policy   SCHED_OTHER, SCHED_FIFO:50 ...
//	proc/PID@START/sched.nice     0
//	proc/PID@START/sched.cpus     0-1
//	proc/TID@START/sched.io       none, best-effort/4 ...
//
// So plans, their undo log, and what a killed process left work for them as for other files.
// A file of a process has the value of its first thread and then those of threads with another
// (kernel.Threads). Writing it changes all threads, those that start meanwhile included. The
// files are there as long as the process or thread that started then. Files that play processes have
// the methods of Calls; else only the live host has any.
func Over(root *kernel.Root) *kernel.Root {
	if _, ok := root.Files.(*files); ok {
		return root
	}
	r := *root
	calls, ok := root.Files.(Calls)
	if !ok && root.IsLive() {
		calls = systemCalls{}
	}
	r.Files = &files{root.Files, root, calls}
	return &r
}

type files struct {
	kernel.Files
	root  *kernel.Root
	calls Calls // nil where there are no processes
}

// Signal is that of the root below.
func (f *files) Signal(pid int, sig syscall.Signal) error { return f.root.Signal(pid, sig) }

// FS is the tree for readers.
func (f *files) FS() fs.FS { return tree{f.Files.FS(), f} }

// attribute is a file: its text for a thread, and what sets that.
type attribute struct {
	text func(State) string
	attr func(text string) (Attr, error)
}

var attributes = map[string]attribute{
	ioFile: {}, // see readIO
	"sched.policy": {
		func(s State) string {
			if s.Policy.realTime() {
				return fmt.Sprintf("%v:%d", s.Policy, s.Priority)
			}
			return s.Policy.String()
		},
		func(text string) (a Attr, err error) {
			name, priority, some := strings.Cut(text, ":")
			i := slices.IndexFunc(policies[:], func(p struct {
				name   string
				kernel uint32
			}) bool {
				return p.name == name
			})
			if a.Policy = Policy(i); i <= int(Leave) {
				return a, fmt.Errorf("policy %q: there is none", text)
			}
			if some {
				a.Priority, err = strconv.Atoi(priority)
			}
			return a, cmp.Or(err, a.Validate())
		},
	},
	"sched.nice": {
		func(s State) string { return strconv.Itoa(s.Nice) },
		func(text string) (a Attr, err error) {
			nice, err := strconv.Atoi(text)
			a.Nice = &nice
			return a, cmp.Or(err, a.Validate())
		},
	},
	"sched.cpus": {
		func(s State) string { return s.Affinity.String() },
		func(text string) (a Attr, err error) {
			if a.Affinity, err = cpuset.Parse(text); err == nil && a.Affinity.IsEmpty() {
				err = errors.New("no CPUs")
			}
			return a, err
		},
	},
}

func parse(name string) (p Process, file attribute, ok bool) {
	p, ok = Of(name)
	return p, attributes[name[strings.LastIndexByte(name, '/')+1:]], ok
}

// is reports whether the process runs.
func (f *files) is(p Process) bool {
	now, err := kernel.ReadProcess(f.Files.FS(), strconv.Itoa(p.PID))
	return err == nil && now.Start == p.Start && !now.Ended()
}

// has reports whether a file of the process is there.
func (f *files) has(p Process, of attribute) bool {
	return (f.calls != nil || of.text == nil) && f.is(p)
}

func (f *files) gone(op, name string) error {
	return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
}

// threads calls f once for every thread, those that start meanwhile included.
func (f *files) threads(p Process, do func(tid int, thread string) error) error {
	return eachThread(func() ([]int, error) { return threads(f.Files.FS(), p.PID) }, func(tid int) error {
		one, err := kernel.ReadProcess(f.Files.FS(), strconv.Itoa(p.PID)+"/task/"+strconv.Itoa(tid))
		if errors.Is(err, fs.ErrNotExist) {
			return unix.ESRCH
		}
		if err != nil {
			return err
		}
		return do(tid, strconv.Itoa(tid)+"@"+one.Start)
	})
}

// read returns the text of a file.
func (f *files) read(name string, p Process, of attribute) (string, error) {
	if of.text == nil {
		return f.readIO(name, p)
	}
	var first string
	var others []string
	values := map[string]string{}
	err := f.threads(p, func(tid int, thread string) error {
		s, err := f.calls.GetScheduling(tid)
		if err != nil {
			return err
		}
		if tid == p.PID {
			first = of.text(s)
		} else {
			others = append(others, thread)
			values[thread] = of.text(s)
		}
		return nil
	})
	if errors.Is(err, unix.ESRCH) || err == nil && (first == "" || !f.is(p)) {
		return "", f.gone("read", name)
	}
	if err != nil {
		return "", &fs.PathError{Op: "read", Path: name, Err: err}
	}
	for _, thread := range others {
		if values[thread] != first {
			first += " " + thread + "=" + values[thread]
		}
	}
	return first, nil
}

// WriteFile sets an attribute of all threads of a process; other files are the kernel's.
func (f *files) WriteFile(name, data string) error {
	p, of, ok := parse(name)
	if !ok {
		return f.Files.WriteFile(name, data)
	}
	if !f.has(p, of) {
		return f.gone("write", name)
	}
	if of.text == nil {
		return f.writeIO(name, p, data)
	}
	words := strings.Fields(data)
	if len(words) == 0 {
		return &fs.PathError{Op: "write", Path: name, Err: syscall.EINVAL}
	}
	wanted := map[string]Attr{}
	for i, w := range words {
		thread := ""
		if i > 0 {
			thread, w, _ = strings.Cut(w, "=")
		}
		a, err := of.attr(w)
		if err != nil {
			return &fs.PathError{Op: "write", Path: name, Err: fmt.Errorf("%w: %w", err, syscall.EINVAL)}
		}
		wanted[thread] = a
	}
	err := f.threads(p, func(tid int, thread string) error {
		if !f.is(p) {
			return unix.ESRCH // another process may have the number by now
		}
		a, listed := wanted[thread]
		if !listed {
			a = wanted[""]
		}
		now, err := f.calls.GetScheduling(tid)
		if err != nil || a.in(now) {
			return err
		}
		return f.calls.SetScheduling(tid, a)
	})
	if !f.is(p) {
		return f.gone("write", name)
	}
	if err != nil {
		return &fs.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

// tree has the files for readers.
type tree struct {
	fs.FS
	files *files
}

func (t tree) ReadFile(name string) ([]byte, error) {
	if p, of, ok := parse(name); ok {
		if !t.files.has(p, of) {
			return nil, t.files.gone("read", name)
		}
		text, err := t.files.read(name, p, of)
		return []byte(text + "\n"), err
	}
	return fs.ReadFile(t.FS, name)
}

func (t tree) Stat(name string) (fs.FileInfo, error) {
	if p, of, ok := parse(name); ok {
		if !t.files.has(p, of) {
			return nil, t.files.gone("stat", name)
		}
		return info(name[strings.LastIndexByte(name, '/')+1:]), nil
	}
	return fs.Stat(t.FS, name)
}

func (t tree) Lstat(name string) (fs.FileInfo, error) {
	if _, _, ok := parse(name); ok {
		return t.Stat(name)
	}
	return fs.Lstat(t.FS, name)
}

func (t tree) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(t.FS, name) }

func (t tree) ReadLink(name string) (string, error) { return fs.ReadLink(t.FS, name) }

// info describes one of the files.
type info string

func (i info) Name() string     { return string(i) }
func (info) Size() int64        { return 0 }
func (info) Mode() fs.FileMode  { return 0o600 }
func (info) ModTime() time.Time { return time.Time{} }
func (info) IsDir() bool        { return false }
func (info) Sys() any           { return nil }

var _ kernel.Subject = Process{}
