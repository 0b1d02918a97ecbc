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
	dir, file, _ := strings.Cut(strings.TrimPrefix(name, "proc/"), "/")
	pid, start, both := strings.Cut(dir, "@")
	n, err := strconv.Atoi(pid)
	if _, known := attributes[file]; err != nil || n <= 0 || !both || !known || !strings.HasPrefix(name, "proc/") {
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

// Over returns a root that has, beside the kernel's own files, three for each process:
//
//	proc/PID@START/sched.policy   SCHED_OTHER, SCHED_FIFO:50 ...
//	proc/PID@START/sched.nice     0
//	proc/PID@START/sched.cpus     0-1
//
// and one for each thread:
//
//	proc/TID@START/sched.io       none, best-effort/4 ...
//
// A file of a process has the value of the process's first thread and then those of threads with another
// (kernel.Threads). Writing it changes all threads, those that start meanwhile included. The
// files are there as long as the process or thread that started then. Fakes of processes have
// the methods of Calls; else only the live host has any.
func Over(root *kernel.Root) *kernel.Root {
	calls, ok := root.Files.(Calls)
	if !ok && root.IsLive() {
		calls = systemCalls{}
	}
	return root.Lay(&files{root, root.FS(), calls})
}

// files are the kernel.Overlay.
type files struct {
	root  *kernel.Root // the one below
	fsys  fs.FS        // its
	calls Calls        // nil where there are no processes
}

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
	now, err := kernel.ReadProcess(f.fsys, strconv.Itoa(p.PID))
	return err == nil && now.Start == p.Start && !now.Ended()
}

// has reports whether a file of the process is there.
func (f *files) has(p Process, of attribute) bool {
	return (f.calls != nil || of.text == nil) && f.is(p)
}

// threads calls f once for every thread, those that start meanwhile included.
func (f *files) threads(p Process, do func(tid int, thread string) error) error {
	return eachThread(f.fsys, p.PID, func(tid int) error {
		one, err := kernel.ReadProcess(f.fsys, strconv.Itoa(p.PID)+"/task/"+strconv.Itoa(tid))
		if errors.Is(err, fs.ErrNotExist) {
			return unix.ESRCH
		}
		if err != nil {
			return err
		}
		return do(tid, strconv.Itoa(tid)+"@"+one.Start)
	})
}

// Has reports whether a name is one of the files.
func (*files) Has(name string) bool {
	_, ok := Of(name)
	return ok
}

// Stat has a file be there as long as its process.
func (f *files) Stat(name string) (inode uint64, dir bool, err error) {
	if p, of, _ := parse(name); !f.has(p, of) {
		err = fs.ErrNotExist
	}
	return 0, false, err
}

// Read returns the text of a file.
func (f *files) Read(name string) (string, error) {
	p, of, _ := parse(name)
	if !f.has(p, of) {
		return "", fs.ErrNotExist
	}
	if of.text == nil {
		return f.readIO(p)
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
		return "", fs.ErrNotExist
	}
	if err != nil {
		return "", err
	}
	for _, thread := range others {
		if values[thread] != first {
			first += " " + thread + "=" + values[thread]
		}
	}
	return first, nil
}

// Write sets an attribute of all threads of a process, or the I/O priority of one.
func (f *files) Write(name, data string) error {
	p, of, _ := parse(name)
	if !f.has(p, of) {
		return fs.ErrNotExist
	}
	if of.text == nil {
		return f.writeIO(p, data)
	}
	words := strings.Fields(data)
	if len(words) == 0 {
		return syscall.EINVAL
	}
	wanted := map[string]Attr{}
	for i, w := range words {
		thread := ""
		if i > 0 {
			thread, w, _ = strings.Cut(w, "=")
		}
		a, err := of.attr(w)
		if err != nil {
			return fmt.Errorf("%w: %w", err, syscall.EINVAL)
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
		return fs.ErrNotExist
	}
	return err
}

var _ kernel.Subject = Process{}
