package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Stat is what the kernel has counted for a group and its children. A nil
// field is one that this host does not tell.
type Stat struct {
	// CPU is the CPU time used: cpu.stat usage_usec; v1 cpuacct.usage.
	CPU *time.Duration
	// Periods and Throttled count the group's own enforcement periods and those
	// in which it ran out of quota: cpu.stat nr_periods, nr_throttled.
	Periods, Throttled *int64
	// ThrottledTime is the time that CPUs were withheld by the group's own limit,
	// summed over CPUs: cpu.stat throttled_usec; v1 throttled_time.
	ThrottledTime *time.Duration
	// ThrottledLocal is the same by any limit, the ancestors' included:
	// cpu.stat.local throttled_usec; v1 throttled_time.
	ThrottledLocal *time.Duration
	// Bursts counts the periods in which burst was used: cpu.stat nr_bursts.
	Bursts *int64
	// MemoryBytes is memory.current; v1 memory.usage_in_bytes.
	MemoryBytes *int64
	// PIDs is pids.current: processes and threads.
	PIDs *int64
}

// Stat reads the group's statistics. A file that is not there leaves its
// fields nil; one that cannot be understood is an error.
func (g Group) Stat() (Stat, error) {
	var s Stat
	if err := g.stat(&s); err != nil {
		return Stat{}, fmt.Errorf("statistics of group %q: %w", g.rel, err)
	}
	return s, nil
}

func (g Group) stat(s *Stat) error {
	if p, err := g.part(CPUAcct); err == nil {
		if err := g.cpuUsage(p, s); err != nil {
			return err
		}
	}
	if p, err := g.part(CPU); err == nil {
		if err := g.cpuStat(p, s); err != nil {
			return err
		}
	}
	if p, err := g.part(Memory); err == nil {
		file := "/memory.current"
		if p.Version == 1 {
			file = "/memory.usage_in_bytes"
		}
		if s.MemoryBytes, err = g.base.host.number(g.dir(p) + file); err != nil {
			return err
		}
	}
	if p, err := g.part(PIDs); err == nil {
		if s.PIDs, err = g.base.host.number(g.dir(p) + "/pids.current"); err != nil {
			return err
		}
	}
	return nil
}

func (g Group) cpuUsage(p part, s *Stat) error {
	if p.Version == 1 {
		ns, err := g.base.host.number(g.dir(p) + "/cpuacct.usage")
		if err == nil && ns != nil {
			d := time.Duration(*ns)
			s.CPU = &d
		}
		return err
	}
	values, err := g.base.host.flat(g.dir(p) + "/cpu.stat")
	if err == nil {
		s.CPU = duration(values, "usage_usec", time.Microsecond)
	}
	return err
}

func (g Group) cpuStat(p part, s *Stat) error {
	host, dir := g.base.host, g.dir(p)
	values, err := host.flat(dir + "/cpu.stat")
	if err != nil {
		return err
	}
	local, err := host.flat(dir + "/cpu.stat.local")
	if err != nil {
		return err
	}
	key, unit := "throttled_usec", time.Microsecond
	if p.Version == 1 {
		key, unit = "throttled_time", time.Nanosecond
	}
	if s.CPU == nil {
		s.CPU = duration(values, "usage_usec", time.Microsecond)
	}
	s.Periods = count(values, "nr_periods")
	s.Throttled = count(values, "nr_throttled")
	s.Bursts = count(values, "nr_bursts")
	s.ThrottledTime = duration(values, key, unit)
	s.ThrottledLocal = duration(local, key, unit)
	return nil
}

func count(values map[string]int64, key string) *int64 {
	v, ok := values[key]
	if !ok {
		return nil
	}
	return &v
}

func duration(values map[string]int64, key string, unit time.Duration) *time.Duration {
	n := count(values, key)
	if n == nil {
		return nil
	}
	d := time.Duration(*n) * unit
	return &d
}

// read returns a file's text; ok is false if it does not exist.
func (h *Host) read(name string) (text string, ok bool, err error) {
	data, err := fs.ReadFile(h.root.FS(), name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
		return "", false, nil
	}
	return string(data), err == nil, err
}

func (h *Host) flat(name string) (map[string]int64, error) {
	text, _, err := h.read(name)
	if err != nil {
		return nil, err
	}
	return parseFlat(text)
}

// number reads a file with one number; nil if it does not exist.
func (h *Host) number(name string) (*int64, error) {
	text, ok, err := h.read(name)
	if err != nil || !ok {
		return nil, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("read /%s: %w", name, err)
	}
	return &n, nil
}
