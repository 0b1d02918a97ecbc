package load

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel/sched"
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

// stragglers describes threads of this process that are scheduled in another way than
// want. The Go runtime hands work to any of them, so one of a lesser policy can
// hold up the loop.
func stragglers(want sched.State) (perturbed []string) {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return []string{"policy of other threads unknown: " + err.Error()}
	}
	others := 0
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			continue
		}
		// A thread that cannot be read has ended meanwhile.
		if got, err := sched.Get(tid); err == nil {
			got.Affinity = want.Affinity
			if got != want {
				others++
			}
		}
	}
	if others > 0 {
		perturbed = append(perturbed, fmt.Sprintf("%d of %d threads do not have %v", others, len(tasks), want))
	}
	return perturbed
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
