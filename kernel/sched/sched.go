// Package sched sets CPU affinity, nice value and scheduling policy of every
// thread of a process. An ordinary user can isolate a neighbour with these, without
// control groups; Berth's own load generator uses them, too.
//
// It is the lesser backend. Affinity is a request that the process can take
// back, and SCHED_IDLE and nice values weigh a thread only against threads of
// the same group. With autogroup, or cgroups between the two, they have no
// effect.
//
// Settings are made by system calls on the running kernel. Set is for processes that end with
// Berth. For those of others Over shows the settings as files of a kernel.Root, which plans and
// undo logs work with.
package sched

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
)

// Policy is a scheduling policy (sched(7)).
type Policy int

// The policies. Deadline and Ext can be read and not set.
const (
	Leave Policy = iota // as it is
	Other               // SCHED_OTHER, time-sharing
	Batch               // SCHED_BATCH, time-sharing without wake-up preemption
	Idle                // SCHED_IDLE, when nothing else in the group wants to run; going back needs privilege or RLIMIT_NICE
	FIFO                // SCHED_FIFO, real-time until it blocks
	RR                  // SCHED_RR, real-time in turns
	Deadline
	Ext
)

var policies = [...]struct {
	name   string
	kernel uint32
}{
	Leave:    {"", 0},
	Other:    {"SCHED_OTHER", unix.SCHED_NORMAL},
	Batch:    {"SCHED_BATCH", unix.SCHED_BATCH},
	Idle:     {"SCHED_IDLE", unix.SCHED_IDLE},
	FIFO:     {"SCHED_FIFO", unix.SCHED_FIFO},
	RR:       {"SCHED_RR", unix.SCHED_RR},
	Deadline: {"SCHED_DEADLINE", unix.SCHED_DEADLINE},
	Ext:      {"SCHED_EXT", unix.SCHED_EXT},
}

// String returns the policy's name in sched.h.
func (p Policy) String() string {
	if p < 0 || int(p) >= len(policies) {
		return fmt.Sprintf("policy(%d)", int(p))
	}
	return policies[p].name
}

func (p Policy) realTime() bool { return p == FIFO || p == RR }

// Attr are the attributes to set. The zero value leaves everything as it is.
type Attr struct {
	// Affinity is the mask of CPUs; empty leaves it.
	Affinity cpuset.Set
	// Policy is the policy to set, with Priority (1 to 99) for FIFO and RR.
	Policy   Policy
	Priority int
	// Nice is -20 to 19, for Other and Batch; nil leaves it. Lowering a raised
	// value again needs CAP_SYS_NICE or RLIMIT_NICE.
	Nice *int
}

// Validate reports attributes that no kernel accepts.
func (a Attr) Validate() error {
	switch {
	case a.Policy < Leave || a.Policy > RR:
		return fmt.Errorf("policy %v: cannot be set", a.Policy)
	case a.Policy.realTime() && (a.Priority < 1 || a.Priority > 99):
		return fmt.Errorf("priority %d: not 1 to 99", a.Priority)
	case !a.Policy.realTime() && a.Priority != 0:
		return fmt.Errorf("priority %d: only for SCHED_FIFO and SCHED_RR", a.Priority)
	case a.Nice != nil && (*a.Nice < -20 || *a.Nice > 19):
		return fmt.Errorf("nice %d: not -20 to 19", *a.Nice)
	}
	return nil
}

// State is how one thread is scheduled.
type State struct {
	Affinity cpuset.Set
	Policy   Policy
	Priority int // FIFO and RR
	Nice     int // Other and Batch
}

// String is for display: "SCHED_FIFO 50", "SCHED_OTHER nice 5", "SCHED_IDLE".
func (s State) String() string {
	switch {
	case s.Policy.realTime():
		return fmt.Sprintf("%v %d", s.Policy, s.Priority)
	case s.Nice != 0 && s.Policy != Idle:
		return fmt.Sprintf("%v nice %d", s.Policy, s.Nice)
	}
	return s.Policy.String()
}

// Get reads how a thread is scheduled; a process id stands for its first
// thread, 0 for the calling one.
func Get(tid int) (State, error) {
	attr, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		return State{}, fmt.Errorf("get scheduling of thread %d: %w", tid, err)
	}
	s := State{Nice: int(attr.Nice), Priority: int(attr.Priority)}
	for p := Other; p <= Ext; p++ {
		if policies[p].kernel == attr.Policy {
			s.Policy = p
		}
	}
	if s.Affinity, err = affinity(tid); err != nil {
		return State{}, fmt.Errorf("get affinity of thread %d: %w", tid, err)
	}
	return s, nil
}

// maxCPUs is the most that Linux can be built for; the kernel refuses a mask
// that is shorter than its own.
const maxCPUs = 8192

func affinity(tid int) (cpuset.Set, error) {
	mask := unix.NewCPUSet(maxCPUs)
	if err := unix.SchedGetaffinityDynamic(tid, mask); err != nil {
		return cpuset.Set{}, err
	}
	var ids []int
	for id := range maxCPUs {
		if mask.IsSet(id) {
			ids = append(ids, id)
		}
	}
	return cpuset.Of(ids...)
}

func setAffinity(tid int, cpus cpuset.Set) error {
	mask := unix.NewCPUSet(cpuset.Limit)
	for id := range cpus.All() {
		mask.Set(id)
	}
	return unix.SchedSetaffinityDynamic(tid, mask)
}

// setPolicy uses sched_setscheduler rather than sched_setattr, which would
// turn the default time slice that it reads back into a custom one.
func setPolicy(tid int, p Policy, priority int) error {
	attr, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		return err
	}
	policy := uintptr(policies[p].kernel)
	if attr.Flags&unix.SCHED_FLAG_RESET_ON_FORK != 0 {
		policy |= 0x40000000 // SCHED_RESET_ON_FORK: stays as it is
	}
	param := struct{ priority int32 }{int32(priority)}
	_, _, errno := unix.Syscall(unix.SYS_SCHED_SETSCHEDULER, uintptr(tid), policy, uintptr(unsafe.Pointer(&param)))
	if errno != 0 {
		return errno
	}
	return nil
}

func threads(fsys fs.FS, pid int) ([]int, error) {
	tids, err := kernel.ThreadsOf(fsys, pid)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("threads of process %d: %w", pid, unix.ESRCH)
	}
	return tids, err
}

// started is the start time of a thread, by which a later thread of the same number
// differs; "" if the thread has ended.
func started(tid int) string {
	thread, _ := kernel.ReadProcess(os.DirFS("/"), strconv.Itoa(tid))
	return thread.Start
}
