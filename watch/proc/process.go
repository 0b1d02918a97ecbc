package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the length of one of Ticks.
const tick = time.Second / UserHZ

// maxTicks bounds one figure so that the sum of two still fits a time.Duration:
// 146 years.
const maxTicks = uint64(1<<62-1) / uint64(tick)

// ProcessTimes is the processor time of one process from /proc/PID/stat, each
// rounded down to 10 ms.
type ProcessTimes struct {
	// User and System cover all threads, those that have ended too.
	User, System time.Duration
	// ChildUser and ChildSystem cover children that have ended and were waited
	// for, and theirs; children still running are not in them.
	ChildUser, ChildSystem time.Duration
}

// Process reads proc/PID/stat. For a process that is gone the error is
// fs.ErrNotExist.
func Process(fsys fs.FS, pid int) (ProcessTimes, error) {
	path := "proc/" + strconv.Itoa(pid) + "/stat"
	text, err := fs.ReadFile(fsys, path)
	if err != nil {
		return ProcessTimes{}, fmt.Errorf("read cpu time of process %d: %w", pid, gone(err))
	}
	times, err := parseProcess(string(text))
	if err != nil {
		return ProcessTimes{}, fmt.Errorf("parse %s: %w", path, err)
	}
	return times, nil
}

// parseProcess takes fields 14 to 17 of proc_pid_stat(5). The second field, the
// command, may hold anything, spaces and parentheses too; none after it does.
func parseProcess(text string) (ProcessTimes, error) {
	end := strings.LastIndexByte(text, ')')
	if end < 0 {
		return ProcessTimes{}, errors.New("no command in parentheses")
	}
	fields := strings.Fields(text[end+1:]) // from field 3 on
	const first = 14 - 3
	if len(fields) < first+4 {
		return ProcessTimes{}, fmt.Errorf("%d fields after the command, want at least %d", len(fields), first+4)
	}
	var t ProcessTimes
	for i, to := range []*time.Duration{&t.User, &t.System, &t.ChildUser, &t.ChildSystem} {
		n, err := strconv.ParseUint(fields[first+i], 10, 64)
		if err != nil {
			return ProcessTimes{}, fmt.Errorf("field %d: %w", first+3+i, err)
		}
		*to = time.Duration(min(n, maxTicks)) * tick
	}
	return t, nil
}

// ProcessCPU returns the processor time that a process has used, all threads
// together, its children not. For a process that is gone the error is
// fs.ErrNotExist.
//
// It is the larger of two figures, each of which can only be too low: the sum
// over living threads of /proc/PID/task/TID/schedstat, in nanoseconds (late by
// up to one scheduler tick for a thread that is on a CPU), and user plus system
// time of /proc/PID/stat. So while all threads live it is exact to a tick per
// CPU; once threads have ended, whose schedstat is lost with them, it may be too
// low by up to 20 ms more. The same holds without schedstat (CONFIG_SCHED_INFO).
func ProcessCPU(fsys fs.FS, pid int) (time.Duration, error) {
	// Threads first: one that ends in between is then in the process's figure.
	all, err := threads(fsys, pid)
	if err != nil {
		return 0, err
	}
	whole, err := Process(fsys, pid)
	if err != nil {
		return 0, err
	}
	return max(all.ran, whole.User+whole.System), nil
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
