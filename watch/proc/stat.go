// Package proc reads the kernel's account of time in /proc: CPU time of the host
// (/proc/stat) and of a process (/proc/PID/stat), the run delay of threads and CPUs
// (/proc/TID/schedstat, /proc/schedstat; Documentation/scheduler/sched-stats.rst),
// and pressure stall information of the host (/proc/pressure) or of a control group
// (*.pressure; Documentation/accounting/psi.rst), of which the kernel can tell (Triggers).
//
// The kernel accounts pressure to the cgroup v2 group of a task, also on hosts
// whose controllers are on v1. What the figures mean is left to others.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"berth.dev/berth/kernel"
)

// Ticks is processor time in units of 1/kernel.UserHZ second.
type Ticks uint64

// Seconds converts to CPU seconds.
func (t Ticks) Seconds() float64 { return float64(t) / kernel.UserHZ }

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
}

// ReadStat reads proc/stat.
func ReadStat(fsys fs.FS) (Stat, error) {
	text, err := fs.ReadFile(fsys, "proc/stat")
	if err != nil {
		return Stat{}, fmt.Errorf("read cpu times: %w", err)
	}
	var s Stat
	if err := s.Parse(text); err != nil {
		return Stat{}, fmt.Errorf("parse proc/stat: %w", err)
	}
	return s, nil
}

// Parse takes the text of /proc/stat, in the memory that s has from the last one. It
// skips lines that it does not know, since kernels add some. After an error s is zero.
func (s *Stat) Parse(text []byte) error {
	*s = Stat{CPUs: s.CPUs[:0]}
	for len(text) > 0 {
		var line []byte
		line, text = kernel.Cut(text, '\n')
		if err := s.line(line); err != nil {
			*s = Stat{}
			return err
		}
	}
	if s.Total.Columns == 0 {
		*s = Stat{}
		return errors.New("no cpu line")
	}
	return nil
}

func (s *Stat) line(line []byte) error {
	key, rest := kernel.Cut(line, ' ')
	var err error
	switch {
	case string(key) == "cpu":
		if s.Total.Columns != 0 {
			return errors.New("two cpu lines")
		}
		s.Total, err = parseTimes(rest)
	case string(key) == "ctxt":
		s.Ctxt, err = parseCount(rest)
	case bytes.HasPrefix(key, []byte("cpu")):
		err = s.cpu(key[len("cpu"):], rest)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func (s *Stat) cpu(number, rest []byte) error {
	id, err := strconv.ParseUint(string(number), 10, 31)
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

func parseCount(text []byte) (*uint64, error) {
	n, err := kernel.Uint(bytes.TrimSpace(text))
	if err != nil {
		return nil, err
	}
	return &n, nil
}

func parseTimes(text []byte) (Times, error) {
	var t Times
	for i, column := range t.columns() {
		var word []byte
		if word, text = kernel.Word(text); len(word) == 0 {
			break
		}
		n, err := kernel.Uint(word)
		if err != nil {
			return Times{}, fmt.Errorf("column %d: %w", i+1, err)
		}
		*column = Ticks(n)
		t.Columns++
	}
	if t.Columns < 4 {
		return Times{}, fmt.Errorf("%d columns, want at least 4", t.Columns)
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

// BusyPart is the part of the time that was Busy, 0 to 1; ok is false of no time.
func (t Times) BusyPart() (part float64, ok bool) {
	if t.All() == 0 {
		return 0, false
	}
	return float64(t.Busy()) / float64(t.All()), true
}

// BusySince returns the BusyPart of the time from an earlier reading to s, by CPU; nothing of a CPU
// that is not in both, or has no time in between.
func (s *Stat) BusySince(before *Stat) map[int]float64 {
	was := map[int]Times{}
	for _, c := range before.CPUs {
		was[c.ID] = c.Times
	}
	busy := map[int]float64{}
	for _, c := range s.CPUs {
		if old, ok := was[c.ID]; ok {
			if part, ok := c.Since(old).BusyPart(); ok {
				busy[c.ID] = part
			}
		}
	}
	return busy
}

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
