package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"berth.dev/berth/kernel/knob"
)

// StepError is a step that the kernel refused.
type StepError struct {
	Step Step
	Err  error
	// Hint is the usual cause of the refusal for this object, and the remedy;
	// "" if there is nothing to add.
	Hint string
}

// Error names operation, object, the kernel's error and the remedy.
func (e *StepError) Error() string {
	msg := e.Step.Op.String() + " /" + e.Step.Path
	if e.Step.Op != Mkdir {
		msg += " " + `"` + e.Step.Value + `"`
	}
	msg += ": " + e.said()
	if e.Hint != "" {
		msg += " (" + e.Hint + ")"
	}
	return msg
}

// Unwrap returns the kernel's error.
func (e *StepError) Unwrap() error { return e.Err }

// said is the error without the operation and path that the os package adds.
func (e *StepError) said() string {
	if pathErr, ok := errors.AsType[*fs.PathError](e.Err); ok {
		return strings.Replace(e.Err.Error(), pathErr.Error(), pathErr.Err.Error(), 1)
	}
	return e.Err.Error()
}

// bare strips the operation and path that the os package adds; the StepError
// has them already.
func bare(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// told adds to an error what the kernel says of it in the step's Status file: that file is
// reset by the next command (Documentation/filesystems/resctrl.rst, info directory).
func (r *Root) told(s Step, err error) error {
	if s.Status == "" {
		return err
	}
	text, readErr := r.read(s.Status)
	if text = strings.TrimSpace(text); readErr != nil || text == "" || text == "ok" {
		return err
	}
	return fmt.Errorf("%w: the kernel says %q", err, text)
}

func refused(s Step, err error) *StepError {
	return &StepError{Step: s, Err: err, Hint: hint(s, err)}
}

// hint explains an error of step s.
func hint(s Step, err error) string {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return ""
	}
	if s.Status != "" {
		return classHint(s, errno)
	}
	base := path.Base(s.Path)
	row, file := knob.OfFile(base)
	if row == nil {
		row, file = &knob.Knob{}, &knob.File{}
	}
	isCPUSet := strings.HasPrefix(base, "cpuset.")
	switch errno {
	case syscall.EACCES:
		if isCPUSet {
			return "not a subset of the parent's set, or not writable: widen the parent first, or run as root"
		}
		return "not writable for this user: run as root or in a delegated cgroup"
	case syscall.EPERM:
		return "not permitted: run as root, or with the capability that the file asks for"
	case syscall.EROFS:
		return "mounted read-only: remount it writable, or start the container with writable cgroups"
	case syscall.ENOENT:
		if s.Op == Enable {
			return "the parent group does not offer this controller: enable it in every ancestor's cgroup.subtree_control"
		}
		return "no such object: the controller is not enabled here, or the kernel is too old or built without it"
	case syscall.ESRCH:
		return "no such process: it has ended"
	case syscall.EOPNOTSUPP:
		if s.Format == Keyed {
			return knob.NoScheduler
		}
		return "not possible for a group of this cgroup.type: use a domain group"
	case syscall.EEXIST:
		return "exists already: another run made it; end that run or run 'berth restore'"
	case syscall.ERANGE:
		return cmp.Or(file.Range, row.Hint.Range, "out of range for this file")
	case syscall.EAGAIN:
		if s.Op == Mkdir {
			return "the limit on the number of groups is reached: raise cgroup.max.descendants or cgroup.max.depth of an ancestor"
		}
	case syscall.ENODEV:
		return cmp.Or(row.Hint.NoDevice, "the group was removed meanwhile")
	case syscall.ENOSPC:
		if s.Op == Attach {
			return "the group has no CPUs or memory nodes: set cpuset.cpus and cpuset.mems first"
		}
		if isCPUSet {
			return "a set that holds processes cannot be made empty"
		}
		return "the limit on the number of groups is reached"
	case syscall.EBUSY:
		return busyHint(s, row)
	case syscall.EINVAL:
		if s.Op == Attach {
			return "a real-time process (SCHED_FIFO, SCHED_RR) cannot join a v1 cpu group whose cpu.rt_runtime_us is 0 " +
				"(CONFIG_RT_GROUP_SCHED): set that, or make the process SCHED_OTHER"
		}
		return cmp.Or(row.Hint.Invalid, "the kernel does not understand this value")
	}
	return ""
}

// classHint explains an error of resctrl, which mostly explains itself in its Status file
// (Documentation/filesystems/resctrl.rst: ENOSPC without a free CLOSID or RMID, EBUSY while
// RMIDs that were given back still have lines in the cache).
func classHint(s Step, errno syscall.Errno) string {
	switch {
	case s.Op == Mkdir && errno == syscall.ENOSPC:
		return "the CPU has no class left: remove groups that are not needed, or name fewer classes"
	case s.Op == Mkdir && errno == syscall.EBUSY:
		return "monitoring numbers of removed groups are not free yet: try again in some seconds, or raise info/L3_MON/max_threshold_occupancy"
	case errno == syscall.EEXIST:
		return "exists already, and Berth did not make it: remove it, or run 'berth restore'"
	case errno == syscall.EACCES, errno == syscall.EPERM:
		return "not writable for this user: run as root"
	}
	return ""
}

func busyHint(s Step, row *knob.Knob) string {
	switch {
	case s.Op == Enable:
		return "the group itself holds processes: move them to a child group first"
	case s.Op == Attach:
		return "the group hands controllers on to children and may not hold processes: attach to a child"
	case Within(s.Path, "sys/devices/system/cpu"):
		return "if a CPU is offline, try again once it is online"
	case strings.HasPrefix(path.Base(s.Path), "cpuset."):
		return "a child group uses more than this: narrow the children first"
	}
	return cmp.Or(row.Hint.Busy, "in use")
}
