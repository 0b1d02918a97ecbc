package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"syscall"
	"time"

	"berth.dev/berth/kernel"
)

// ProcessCPU returns the processor time that a process has used, all threads
// together, and that of children that have ended and were waited for. For a process that
// is gone the error is fs.ErrNotExist.
//
// Its own is the larger of two figures, each of which can only be too low: the sum
// over living threads of /proc/PID/task/TID/schedstat, in nanoseconds (late by
// up to one scheduler tick for a thread that is on a CPU), and user plus system
// time of /proc/PID/stat. So while all threads live it is exact to a tick per
// CPU; once threads have ended, whose schedstat is lost with them, it may be too
// low by up to 20 ms more. The same holds without schedstat (CONFIG_SCHED_INFO).
func ProcessCPU(fsys fs.FS, pid int) (own, children time.Duration, err error) {
	// Threads first: one that ends in between is then in the process's figure.
	all, err := threads(fsys, pid)
	if err != nil {
		return 0, 0, err
	}
	whole, err := kernel.ReadProcess(fsys, strconv.Itoa(pid))
	if err != nil {
		return 0, 0, gone(err)
	}
	return max(all.ran, whole.Own), whole.Children, nil
}

// RunDelay returns the time that the living threads of a process were ready to
// run and waited for a CPU, all together: what contention costs it, whatever
// caused it. Threads that have ended took theirs along. Without schedstat
// (CONFIG_SCHED_INFO) it is zero and ok is false.
func RunDelay(fsys fs.FS, pid int) (waited time.Duration, ok bool, err error) {
	all, err := threads(fsys, pid)
	return all.waited, all.counted > 0, err
}

// taskTimes is /proc/PID/task/TID/schedstat, summed over counted threads.
type taskTimes struct {
	ran, waited time.Duration
	counted     int
}

// threads sums schedstat over the living threads.
func threads(fsys fs.FS, pid int) (taskTimes, error) {
	dir := "proc/" + strconv.Itoa(pid) + "/task"
	tasks, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return taskTimes{}, fmt.Errorf("list threads of process %d: %w", pid, gone(err))
	}
	var sum taskTimes
	for _, task := range tasks {
		path := dir + "/" + task.Name() + "/schedstat"
		text, err := fs.ReadFile(fsys, path)
		if errors.Is(gone(err), fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return taskTimes{}, fmt.Errorf("read cpu time of thread: %w", err)
		}
		one, err := ParseTask(text)
		if err != nil {
			return taskTimes{}, fmt.Errorf("parse %s: %w", path, err)
		}
		sum.ran += one.Ran
		sum.waited += one.Waited
		sum.counted++
	}
	return sum, nil
}

// gone turns the ESRCH of a process that ended under an open file into
// fs.ErrNotExist.
func gone(err error) error {
	if errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}
