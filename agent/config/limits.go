package config

import (
	"fmt"
	"time"

	"berth.dev/berth/internal/amount"
	"berth.dev/berth/kernel/cgroup"
)

// Duration is a length of time, written as in "20ms" or "1m30s".
type Duration time.Duration

// String returns the time as text that UnmarshalText reads.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes what String returns.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a length of time that is not negative.
func (d *Duration) UnmarshalText(text []byte) error {
	t, err := time.ParseDuration(string(text))
	if err != nil || t < 0 {
		return fmt.Errorf("%q is no length of time, such as 20ms or 1m30s", text)
	}
	*d = Duration(t)
	return nil
}

// over returns l with what base has where l has nothing.
func (l Limits) over(base Limits) Limits {
	if l.Idle == nil && l.Weight == 0 {
		// An idle group has no weight, so who sets one of the two has decided both.
		l.Idle, l.Weight = base.Idle, base.Weight
	}
	if l.Quota == 0 {
		l.Quota = base.Quota
	}
	if l.Burst == 0 {
		l.Burst = base.Burst
	}
	if l.MemoryMax == 0 {
		l.MemoryMax = base.MemoryMax
	}
	if l.MemoryHigh == 0 {
		l.MemoryHigh = base.MemoryHigh
	}
	if l.MemoryLow == 0 {
		l.MemoryLow = base.MemoryLow
	}
	if l.IOWeight == 0 {
		l.IOWeight = base.IOWeight
	}
	return l
}

// Cgroup returns the limits in the kernel's terms.
func (l Limits) Cgroup() cgroup.Limits {
	c := cgroup.Limits{
		Weight:     l.Weight,
		Quota:      quota(l.Quota),
		Burst:      time.Duration(l.Burst),
		MemoryMax:  int64(l.MemoryMax),
		MemoryHigh: int64(l.MemoryHigh),
		MemoryLow:  int64(l.MemoryLow),
		IOWeight:   l.IOWeight,
	}
	switch {
	case l.Idle == nil:
	case *l.Idle:
		c.Idle = cgroup.On
	default:
		c.Idle = cgroup.Off
	}
	return c
}

// quota is CPU time per the kernel's default period of 100 ms.
func quota(m amount.Milli) time.Duration {
	if m == amount.Max {
		return cgroup.Unlimited
	}
	return time.Duration(m) * 100 * time.Microsecond
}

// LimitsOf returns the limits of a workload of c: its own over those of its class.
func (c *NodeConfig) LimitsOf(w *Workload) Limits { return w.Limits.over(c.Classes[w.Class]) }
