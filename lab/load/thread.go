package load

import (
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// clock reads CLOCK_MONOTONIC through the runtime, which reads it without a
// system call; the offset between the two is taken once.
type clock struct {
	base time.Time
	mono int64 // CLOCK_MONOTONIC at base
}

func newClock() clock {
	var c clock
	best := time.Duration(math.MaxInt64)
	for range 8 {
		before := time.Now()
		var ts unix.Timespec
		// CLOCK_MONOTONIC always exists and &ts is always valid.
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
		if width := time.Since(before); width < best {
			best = width
			c = clock{base: before, mono: ts.Nano() - int64(width/2)}
		}
	}
	return c
}

func (c clock) now() int64 { return c.mono + int64(time.Since(c.base)) }

// processTime is the processor time of all threads so far, in nanoseconds.
func processTime() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts) // as above
	return ts.Nano()
}

// threadPolicy names the calling thread's scheduling policy as read back from
// the kernel: "SCHED_FIFO 50", "SCHED_OTHER nice 0".
func threadPolicy() string {
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return "unknown: " + err.Error()
	}
	switch attr.Policy {
	case unix.SCHED_FIFO:
		return fmt.Sprintf("SCHED_FIFO %d", attr.Priority)
	case unix.SCHED_RR:
		return fmt.Sprintf("SCHED_RR %d", attr.Priority)
	case unix.SCHED_NORMAL:
		return fmt.Sprintf("SCHED_OTHER nice %d", attr.Nice)
	case unix.SCHED_BATCH:
		return fmt.Sprintf("SCHED_BATCH nice %d", attr.Nice)
	case unix.SCHED_IDLE:
		return "SCHED_IDLE"
	case unix.SCHED_DEADLINE:
		return "SCHED_DEADLINE"
	}
	return fmt.Sprintf("policy %d", attr.Policy)
}

// steady prepares the calling thread, and with it the process, for sending on
// time. It returns what it could not do.
func steady() (perturbed []string) {
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		perturbed = append(perturbed, "timer slack not reduced: "+err.Error())
	}
	// On fault: locking the runtime's reserved address space would commit it.
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		perturbed = append(perturbed, "memory not locked: "+err.Error())
	}
	return perturbed
}
