package kernel

import (
	"errors"
	"io/fs"
	"path"
	"strings"
	"syscall"
)

// StepError is a step that the kernel refused.
type StepError struct {
	Step Step
	Err  error
	// Hint says what the refusal usually means for this object and what to do
	// about it; "" if there is nothing to add.
	Hint string
}

// Error names operation, object, what the kernel said and what to do.
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

// Unwrap returns what the kernel said.
func (e *StepError) Unwrap() error { return e.Err }

// said is the error without the operation and path that the os package adds.
func (e *StepError) said() string {
	var pathErr *fs.PathError
	if errors.As(e.Err, &pathErr) {
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

func refused(s Step, err error) *StepError {
	return &StepError{Step: s, Err: err, Hint: hint(s, err)}
}

// hint explains an error of step s.
func hint(s Step, err error) string {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return ""
	}
	file := path.Base(s.Path)
	isCPUSet := strings.HasPrefix(file, "cpuset.")
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
		return "not possible for a group of this cgroup.type: use a domain group"
	case syscall.EEXIST:
		return "exists already: another run made it; end that run or run 'berth restore'"
	case syscall.ERANGE:
		return rangeHint(file)
	case syscall.EAGAIN:
		if s.Op == Mkdir {
			return "the limit on the number of groups is reached: raise cgroup.max.descendants or cgroup.max.depth of an ancestor"
		}
	case syscall.ENODEV:
		if file == "io.max" || strings.HasPrefix(file, "blkio.") {
			return "no such block device: /proc/partitions lists those that there are"
		}
		return "the group was removed meanwhile"
	case syscall.ENOSPC:
		if s.Op == Attach {
			return "the group has no CPUs or memory nodes: set cpuset.cpus and cpuset.mems first"
		}
		if isCPUSet {
			return "a set that holds processes cannot be made empty"
		}
		return "the limit on the number of groups is reached"
	case syscall.EBUSY:
		return busyHint(s, isCPUSet)
	case syscall.EINVAL:
		return invalidHint(s, file)
	}
	return ""
}

func busyHint(s Step, isCPUSet bool) string {
	switch {
	case s.Op == Enable:
		return "the group itself holds processes: move them to a child group first"
	case s.Op == Attach:
		return "the group hands controllers on to children and may not hold processes: attach to a child"
	case isCPUSet:
		return "a child group uses more than this: narrow the children first"
	case strings.HasPrefix(path.Base(s.Path), "memory."):
		return "in use beyond that and not reclaimable: free memory first"
	}
	return "in use"
}

func rangeHint(file string) string {
	switch file {
	case "cpuset.cpus":
		return "names a CPU number that this kernel cannot have"
	case "cpuset.mems":
		return "names a memory node that this kernel cannot have"
	case "cpu.weight", "io.weight":
		return "a weight is 1 to 10000"
	case "blkio.bfq.weight", "io.bfq.weight":
		return "a weight of BFQ is 1 to 1000"
	}
	return "out of range for this file"
}

func invalidHint(s Step, file string) string {
	switch {
	case s.Op == Attach:
		return "a real-time process (SCHED_FIFO, SCHED_RR) cannot join a v1 cpu group whose cpu.rt_runtime_us is 0 " +
			"(CONFIG_RT_GROUP_SCHED): set that, or make the process SCHED_OTHER"
	case file == "cpuset.cpus":
		return "names a CPU that is not online or not in the parent's set"
	case file == "cpuset.mems":
		return "names a memory node that is not online or not in the parent's set"
	case file == "cpuset.cpus.partition":
		return "this kernel has no such kind of partition"
	case file == "cpu.weight" || file == "cpu.shares":
		return "out of range, or the group is idle: an idle group's weight is locked, write cpu.idle 0 first"
	case file == "cpu.max" || strings.HasPrefix(file, "cpu.cfs_") || file == "cpu.max.burst":
		return "quota and period are at least 1 ms, period at most 1 s, burst at most quota, and no more CPU than the parent has"
	}
	return "the kernel does not understand this value"
}
