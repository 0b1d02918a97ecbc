package noise

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// slice is how long a thread works without a pause when its intensity is below
// 100.
const slice = time.Millisecond

// pacer cuts time into periods that start at fixed instants, whatever happened
// before. A thread works in the first slice of each period; a slice that it
// came too late for, or was pushed out of, is lost.
type pacer struct {
	start  time.Duration // of the first period
	period time.Duration // 0: always work
}

// newPacer spreads the slices of the threads over the period, so that they do
// not pulse together.
func newPacer(intensity, thread, threads int) pacer {
	if intensity >= 100 {
		return pacer{}
	}
	period := slice * 100 / time.Duration(intensity)
	return pacer{start: period * time.Duration(thread) / time.Duration(threads), period: period}
}

// at says what to do at the instant now: work until the instant until, or sleep
// until then.
func (p pacer) at(now time.Duration) (work bool, until time.Duration) {
	if now < p.start {
		return false, p.start
	}
	begin := now - (now-p.start)%p.period
	if now < begin+slice {
		return true, begin + slice
	}
	return false, begin + p.period
}

// clock measures time since it was made, on CLOCK_MONOTONIC.
type clock struct {
	began time.Time
	zero  unix.Timespec // the same instant, as the kernel counts
}

func newClock() (clock, error) {
	c := clock{began: time.Now()}
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &c.zero); err != nil {
		return clock{}, fmt.Errorf("read clock: %w", err)
	}
	return c, nil
}

func (c clock) now() time.Duration { return time.Since(c.began) }

// sleep sleeps until the instant t, or a signal. The Go scheduler is not told:
// it would take the thread's processor away each time, and wake a thread of its
// own to do so.
func (c clock) sleep(t time.Duration) error {
	wake := unix.NsecToTimespec(c.zero.Nano() + int64(t))
	_, _, errno := unix.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP,
		unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, uintptr(unsafe.Pointer(&wake)), 0, 0, 0)
	if errno != 0 && errno != unix.EINTR {
		return fmt.Errorf("sleep: %w", errno)
	}
	return nil
}

// sharpenTimer makes the calling thread's sleeps end on time, not up to 50 µs
// later.
func sharpenTimer() error {
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set timer slack: %w", err)
	}
	return nil
}
