package sched

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel/cgroup"
)

// passes bounds how often the threads of a process are listed anew. Set gives up on a
// process whose threads multiply faster than that.
const passes = 100

type thread struct {
	started  string
	original State
}

// SetThread changes one thread, and reads it back: 0 is the calling one, which the goroutine must hold
// (runtime.LockOSThread). Processes and threads that it starts inherit the settings. undo gives back what the thread had.
func SetThread(tid int, a Attr) (undo func() error, err error) {
	if err := a.Validate(); err != nil {
		return nil, fmt.Errorf("set scheduling of thread %d: %w", tid, err)
	}
	was, err := Get(tid)
	if err != nil {
		return nil, err
	}
	undo = func() error { return set(tid, a.back(was)) }
	if err := set(tid, a); err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// Set changes every thread of a process, listing them again until no new one
// turns up, and reads each back. A thread that ends meanwhile is skipped. On an error,
// the threads changed so far are restored.
//
// undo restores the threads that still have the attributes set here, and leaves others
// alone. Threads started since have inherited the settings and get
// those that the process's first thread had before. A process that has ended
// is no error.
func Set(pid int, a Attr) (undo func() error, err error) {
	if err := a.Validate(); err != nil {
		return nil, fmt.Errorf("set scheduling of process %d: %w", pid, err)
	}
	before := map[int]thread{}
	undo = func() error { return restore(pid, a, before) }
	err = eachThread(os.DirFS("/"), pid, func(tid int) error {
		original, err := Get(tid)
		if err != nil {
			return err
		}
		before[tid] = thread{started(tid), original}
		return set(tid, a)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set scheduling of process %d: %w", pid, err), undo())
	}
	return undo, nil
}

// eachThread calls f once for every thread of a process, those that start meanwhile
// included, until no thread is new. Threads that end meanwhile are no error.
func eachThread(fsys fs.FS, pid int, f func(tid int) error) error {
	seen := map[int]bool{}
	for range passes {
		tids, err := threads(fsys, pid)
		if err != nil {
			return err
		}
		fresh := false
		for _, tid := range tids {
			if seen[tid] {
				continue
			}
			seen[tid], fresh = true, true
			if err := f(tid); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		if !fresh {
			return nil
		}
	}
	return fmt.Errorf("new threads after %d passes", passes)
}

func set(tid int, a Attr) error {
	if !a.Affinity.IsEmpty() {
		if err := setAffinity(tid, a.Affinity); err != nil {
			return explain("affinity "+a.Affinity.String(), tid, err)
		}
	}
	if a.Policy != Leave {
		if err := setPolicy(tid, a.Policy, a.Priority); err != nil {
			return explain(State{Policy: a.Policy, Priority: a.Priority}.String(), tid, err)
		}
	}
	if a.Nice != nil {
		if err := unix.Setpriority(unix.PRIO_PROCESS, tid, *a.Nice); err != nil {
			return explain("nice "+strconv.Itoa(*a.Nice), tid, err)
		}
	}
	now, err := Get(tid)
	if err != nil {
		return err
	}
	if !a.in(now) {
		return fmt.Errorf("thread %d: the kernel shows %v on CPUs %v instead", tid, now, now.Affinity)
	}
	return nil
}

// in reports whether s has the attributes of a.
func (a Attr) in(s State) bool {
	return (a.Affinity.IsEmpty() || a.Affinity == s.Affinity) &&
		(a.Policy == Leave || a.Policy == s.Policy && a.Priority == s.Priority) &&
		(a.Nice == nil || *a.Nice == s.Nice)
}

// back are the attributes that restore s after a was set.
func (a Attr) back(s State) Attr {
	var b Attr
	if !a.Affinity.IsEmpty() {
		b.Affinity = s.Affinity
	}
	if a.Policy != Leave {
		b.Policy, b.Priority = s.Policy, s.Priority
	}
	if a.Nice != nil {
		b.Nice = &s.Nice
	}
	return b
}

func restore(pid int, a Attr, before map[int]thread) error {
	first, known := before[pid]
	var errs []error
	err := eachThread(os.DirFS("/"), pid, func(tid int) error {
		now, err := Get(tid)
		if err != nil || !a.in(now) {
			return err
		}
		was, ok := before[tid]
		if !ok || was.started != started(tid) {
			was = first
			if !known {
				return nil
			}
		}
		if err := set(tid, a.back(was.original)); err != nil {
			errs = append(errs, err)
		}
		return nil
	})
	if err != nil && !errors.Is(err, unix.ESRCH) {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return fmt.Errorf("restore scheduling of process %d: %w", pid, errors.Join(errs...))
	}
	return nil
}

// explain adds the usual cause of a refusal.
func explain(what string, tid int, err error) error {
	hint := ""
	switch {
	case errors.Is(err, unix.EINVAL) && strings.HasPrefix(what, "affinity"):
		hint = "none of these CPUs is online and in the thread's cpuset"
	case !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES):
	case !strings.HasPrefix(what, "SCHED_FIFO") && !strings.HasPrefix(what, "SCHED_RR"):
		hint = "needs CAP_SYS_NICE, or RLIMIT_NICE; other users' processes always need it"
	case os.Geteuid() == 0 && cpuGroup(tid) != "":
		hint = "the kernel has CONFIG_RT_GROUP_SCHED: cpu.rt_runtime_us of cgroup " + cpuGroup(tid) +
			" is 0; give it real-time run time, from the top down, or stay in the root group"
	default:
		hint = "needs CAP_SYS_NICE or RLIMIT_RTPRIO"
	}
	if hint != "" {
		return fmt.Errorf("%s for thread %d: %w (%s)", what, tid, err, hint)
	}
	return fmt.Errorf("%s for thread %d: %w", what, tid, err)
}

// cpuGroup returns the v1 cpu cgroup of a thread, "" for the root group or
// if there is none.
func cpuGroup(tid int) string {
	members, _ := cgroup.ReadMembership(os.DirFS("/"), strconv.Itoa(tid))
	for _, m := range members {
		if m.Path != "/" && slices.Contains(m.Controllers, cgroup.CPU) {
			return m.Path
		}
	}
	return ""
}
