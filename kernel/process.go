package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Process identifies a process or thread.
type Process struct {
	// Name is that of its program (comm): at most 15 bytes of any kind, more of a kernel
	// thread, which Kernel says that it is.
	Name   string
	Kernel bool
	// Threads is how many it has.
	Threads int
	// State is 'R', 'S' and so on; see Ended.
	State byte
	// Parent is the number of its parent; 0 if it has none in this namespace.
	Parent int
	// LeadsTerminal says that it is the first process of a session that has a terminal.
	LeadsTerminal bool
	// Start is when it started, in clock ticks since boot. Together with its
	// number it names it for as long as the kernel runs.
	Start string
	// Own is the processor time of all its threads, those that have ended too. Children is
	// that of children that have ended and were waited for, and theirs; children still
	// running are not in it. Both are rounded down to 10 ms.
	Own, Children time.Duration
}

// UserHZ is the number of clock ticks per second in /proc, on every
// architecture that Go runs on (USER_HZ, not the kernel's CONFIG_HZ).
const UserHZ = 100

// maxTicks bounds one figure so that the sum of two still fits a time.Duration:
// 146 years.
const maxTicks = uint64(1<<62-1) / uint64(time.Second/UserHZ)

// Ended reports whether the process has ended and is there only until its parent
// has waited for it.
func (p Process) Ended() bool { return p.State == 'Z' || p.State == 'X' }

// ReadProcess reads /proc/PID/stat below fsys; pid may be "self". For one that
// is gone the error is fs.ErrNotExist or ESRCH.
func ReadProcess(fsys fs.FS, pid string) (Process, error) {
	text, err := fs.ReadFile(fsys, "proc/"+pid+"/stat")
	if err != nil {
		return Process{}, fmt.Errorf("read process %s: %w", pid, err)
	}
	p, err := ParseProcess(text)
	if err != nil {
		return Process{}, fmt.Errorf("parse proc/%s/stat: %w", pid, err)
	}
	return p, nil
}

// kthread is PF_KTHREAD of linux/sched.h.
const kthread = 0x00200000

// ParseProcess takes fields 1 to 4, 6, 7, 9, 14 to 17, 20 and 22 of proc_pid_stat(5). The second
// field, the command in brackets, may hold any character; the fields after it do not.
func ParseProcess(stat []byte) (Process, error) {
	text := string(stat)
	begin, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	fields := strings.Fields(text[end+1:])
	if begin < 0 || end < begin || len(fields) < 20 || len(fields[0]) != 1 {
		return Process{}, errors.New("too few fields after the command")
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return Process{}, fmt.Errorf("parent: %w", err)
	}
	if _, err := strconv.ParseUint(fields[19], 10, 64); err != nil {
		return Process{}, fmt.Errorf("start: %w", err)
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	if err != nil {
		return Process{}, fmt.Errorf("flags: %w", err)
	}
	threads, err := strconv.ParseUint(fields[17], 10, 31)
	if err != nil {
		return Process{}, fmt.Errorf("threads: %w", err)
	}
	p := Process{
		Name: text[begin+1 : end], Kernel: flags&kthread != 0, Threads: int(threads),
		State: fields[0][0], Parent: parent, Start: fields[19],
		LeadsTerminal: fields[3] == strings.TrimSpace(text[:begin]) && fields[4] != "0",
	}
	for i, to := range []*time.Duration{&p.Own, &p.Own, &p.Children, &p.Children} { // user and system of each
		n, err := strconv.ParseUint(fields[11+i], 10, 64)
		if err != nil {
			return Process{}, fmt.Errorf("field %d: %w", 14+i, err)
		}
		*to += time.Duration(min(n, maxTicks)) * (time.Second / UserHZ)
	}
	return p, nil
}

// ThreadsOf returns the threads of a process, rising; fs.ErrNotExist if it has ended.
func ThreadsOf(fsys fs.FS, pid int) (tids []int, err error) {
	entries, err := fs.ReadDir(fsys, fmt.Sprintf("proc/%d/task", pid))
	if err != nil {
		return nil, fmt.Errorf("threads of process %d: %w", pid, err)
	}
	for _, e := range entries {
		if tid, err := strconv.Atoi(e.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	slices.Sort(tids)
	return tids, nil
}

// Descendants returns some processes and those below them, each once. Of one process,
// parents come before their children. One that ends meanwhile may be among them.
func Descendants(fsys fs.FS, pids ...int) ([]int, error) {
	tree, _, err := DescendantStarts(fsys, pids...)
	return tree, err
}

// DescendantStarts is Descendants with the starts (Process.Start) of all processes but pids, by
// number. Each start was read together with the parent, in one read.
func DescendantStarts(fsys fs.FS, pids ...int) (tree []int, starts map[int]string, err error) {
	entries, err := fs.ReadDir(fsys, "proc")
	if err != nil {
		return nil, nil, fmt.Errorf("list processes: %w", err)
	}
	children := map[int][]int{}
	starts = map[int]string{}
	for _, e := range entries {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, err := ReadProcess(fsys, e.Name()); err == nil && !slices.Contains(pids, id) {
			children[p.Parent] = append(children[p.Parent], id)
			starts[id] = p.Start
		}
	}
	tree = slices.Clone(pids)
	for i := 0; i < len(tree); i++ {
		tree = append(tree, children[tree[i]]...)
	}
	return tree, starts, nil
}

// ReadUIDs reads the real, the effective and the saved user of a process from
// /proc/PID/status below fsys, see proc_pid_status(5).
func ReadUIDs(fsys fs.FS, pid int) (uids [3]int, err error) {
	text, err := fs.ReadFile(fsys, fmt.Sprintf("proc/%d/status", pid))
	if err != nil {
		return uids, fmt.Errorf("read users of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(text)) {
		words, ok := strings.CutPrefix(line, "Uid:")
		if !ok {
			continue
		}
		if _, err := fmt.Sscan(words, &uids[0], &uids[1], &uids[2]); err != nil {
			return uids, fmt.Errorf("parse proc/%d/status: users %q: %w", pid, strings.TrimSpace(words), err)
		}
		return uids, nil
	}
	return uids, fmt.Errorf("parse proc/%d/status: no line Uid", pid)
}
