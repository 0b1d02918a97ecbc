package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
)

// Switches are what the scheduler did with the living threads of a process so far.
type Switches struct {
	// All context switches, and of those the ones that the threads did not ask for.
	All, Involuntary int64
	// Migrations are how often a thread went on on another CPU.
	Migrations int64
}

// ProcessSwitches sums /proc/PID/task/TID/sched over the living threads of a process.
// ok is false where the kernel does not show it (CONFIG_SCHED_DEBUG before Linux 6.15).
func ProcessSwitches(fsys fs.FS, pid int) (s Switches, ok bool, err error) {
	dir := "proc/" + strconv.Itoa(pid) + "/task"
	tasks, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return s, false, fmt.Errorf("list threads of process %d: %w", pid, gone(err))
	}
	for _, task := range tasks {
		path := dir + "/" + task.Name() + "/sched"
		text, err := fs.ReadFile(fsys, path)
		if errors.Is(gone(err), fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return s, false, fmt.Errorf("read switches of thread: %w", err)
		}
		one, err := parseSwitches(text)
		if err != nil {
			return s, false, fmt.Errorf("parse %s: %w", path, err)
		}
		s = Switches{s.All + one.All, s.Involuntary + one.Involuntary, s.Migrations + one.Migrations}
		ok = true
	}
	return s, ok, nil
}

// parseSwitches reads "nr_switches : 2", "nr_involuntary_switches : 1" and
// "se.nr_migrations : 0".
func parseSwitches(text []byte) (s Switches, err error) {
	found := 0
	for line := range bytes.Lines(text) {
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			continue
		}
		to := map[string]*int64{"nr_switches": &s.All, "nr_involuntary_switches": &s.Involuntary, "se.nr_migrations": &s.Migrations}[string(bytes.TrimSpace(name))]
		if to == nil {
			continue
		}
		if *to, err = strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64); err != nil {
			return s, err
		}
		found++
	}
	if found < 3 {
		return s, fmt.Errorf("%d of the 3 lines wanted", found)
	}
	return s, nil
}
