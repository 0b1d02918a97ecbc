// Package procstat reads processor time from /proc: of the whole host
// (/proc/stat) and of one process (/proc/PID/stat, /proc/PID/task/*/schedstat).
//
// Every reader takes the file system that stands for "/". It leaves sampling,
// rates over time and the time of control groups to others.
package procstat

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// UserHZ is the number of clock ticks per second in /proc, on every
// architecture that Go runs on (USER_HZ, not the kernel's CONFIG_HZ).
const UserHZ = 100

// Ticks is processor time in units of 1/UserHZ second.
type Ticks uint64

// Seconds converts to CPU seconds.
func (t Ticks) Seconds() float64 { return float64(t) / UserHZ }

// Times is one "cpu" line of /proc/stat: processor time since boot, by use.
type Times struct {
	User    Ticks // includes Guest
	Nice    Ticks // includes GuestNice
	System  Ticks
	Idle    Ticks
	IOWait  Ticks // idle with I/O under way; proc(5) calls it unreliable
	IRQ     Ticks
	SoftIRQ Ticks
	Steal   Ticks // taken by the hypervisor
	Guest   Ticks // running virtual CPUs
	// GuestNice ran virtual CPUs of niced processes.
	GuestNice Ticks
	// Columns is how many of these the kernel gave, in this order: 4 at least.
	// The others are zero because they are absent.
	Columns int
}

// CPU is the line of one processor.
type CPU struct {
	ID int
	Times
}

// Stat is what Read takes from /proc/stat.
type Stat struct {
	Total Times // the "cpu" line: all processors that were ever online
	CPUs  []CPU // online processors, ascending
	// Ctxt counts context switches since boot; nil where the file has none.
	Ctxt *uint64
	// ProcsRunning counts runnable threads; nil where the file has none.
	ProcsRunning *uint64
}

// Read reads proc/stat.
func Read(fsys fs.FS) (Stat, error) {
	text, err := fs.ReadFile(fsys, "proc/stat")
	if err != nil {
		return Stat{}, fmt.Errorf("read cpu times: %w", err)
	}
	s, err := parse(text)
	if err != nil {
		return Stat{}, fmt.Errorf("parse proc/stat: %w", err)
	}
	return s, nil
}

// parse skips lines that it does not know: the kernel adds some.
func parse(text []byte) (Stat, error) {
	var s Stat
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, len(text)+1) // the "intr" line is long on large hosts
	for lines.Scan() {
		if err := s.line(lines.Text()); err != nil {
			return Stat{}, err
		}
	}
	if s.Total.Columns == 0 {
		return Stat{}, fmt.Errorf("no cpu line")
	}
	return s, nil
}

func (s *Stat) line(line string) error {
	key, rest, _ := strings.Cut(line, " ")
	var err error
	switch {
	case key == "cpu":
		if s.Total.Columns != 0 {
			return fmt.Errorf("two cpu lines")
		}
		s.Total, err = parseTimes(rest)
	case key == "ctxt":
		s.Ctxt, err = parseCount(rest)
	case key == "procs_running":
		s.ProcsRunning, err = parseCount(rest)
	case strings.HasPrefix(key, "cpu"):
		err = s.cpu(key, rest)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func (s *Stat) cpu(key, rest string) error {
	id, err := strconv.ParseUint(key[len("cpu"):], 10, 31)
	if err != nil {
		return err
	}
	if n := len(s.CPUs); n > 0 && s.CPUs[n-1].ID >= int(id) {
		return fmt.Errorf("after cpu%d", s.CPUs[n-1].ID)
	}
	times, err := parseTimes(rest)
	if err != nil {
		return err
	}
	s.CPUs = append(s.CPUs, CPU{ID: int(id), Times: times})
	return nil
}

func parseCount(text string) (*uint64, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return nil, err
	}
	return &n, nil
}

func parseTimes(text string) (Times, error) {
	var t Times
	columns := t.columns()
	fields := strings.Fields(text)
	if len(fields) < 4 {
		return Times{}, fmt.Errorf("%d columns, want at least 4", len(fields))
	}
	t.Columns = min(len(fields), len(columns))
	for i, field := range fields[:t.Columns] {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return Times{}, fmt.Errorf("column %d: %w", i+1, err)
		}
		*columns[i] = Ticks(n)
	}
	return t, nil
}

// columns lists the fields in the file's order.
func (t *Times) columns() [10]*Ticks {
	return [...]*Ticks{
		&t.User, &t.Nice, &t.System, &t.Idle, &t.IOWait,
		&t.IRQ, &t.SoftIRQ, &t.Steal, &t.Guest, &t.GuestNice,
	}
}

// Busy is the time in which this host's own work ran: user, nice, system, irq
// and softirq. Guest time is in user and nice already. Idle, iowait and steal
// are not busy.
func (t Times) Busy() Ticks { return t.User + t.Nice + t.System + t.IRQ + t.SoftIRQ }

// All is the time of every kind: Busy, idle, iowait and steal.
func (t Times) All() Ticks { return t.Busy() + t.Idle + t.IOWait + t.Steal }

// HasSteal says whether the kernel reports Steal.
func (t Times) HasSteal() bool { return t.Columns >= 8 }

// Since returns the time between old and t. A column that went backwards (the
// kernel's idle and iowait may, and a processor may have been replaced) counts
// as zero.
func (t Times) Since(old Times) Times {
	since := Times{Columns: min(t.Columns, old.Columns)}
	now, before := t.columns(), old.columns()
	for i, column := range since.columns() {
		if i < since.Columns && *now[i] > *before[i] {
			*column = *now[i] - *before[i]
		}
	}
	return since
}
