package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/knob"
)

// Unlimited, for a limit, takes it away. Zero leaves it as it is.
const Unlimited = -1

// Switch is something to turn on or off, or to leave as it is.
type Switch int

// The positions of a Switch.
const (
	Leave Switch = iota
	On
	Off
)

var switchNames = [...]string{Leave: "", On: "on", Off: "off"}

// MarshalText writes "on", "off", or nothing for Leave.
func (s Switch) MarshalText() ([]byte, error) {
	if s < 0 || int(s) >= len(switchNames) {
		return nil, fmt.Errorf("marshal switch %d: no such position", s)
	}
	return []byte(switchNames[s]), nil
}

// UnmarshalText reads what MarshalText writes.
func (s *Switch) UnmarshalText(text []byte) error {
	i := slices.Index(switchNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("unmarshal switch %q: not on or off", text)
	}
	*s = Switch(i)
	return nil
}

// Limits are settings of one group as a struct, the usual way to write them down: each
// field is the row of the knob table whose name is the field's in JSON. The zero value of
// each field leaves that setting as it is. In JSON, times are in nanoseconds and what is
// zero is absent.
type Limits struct {
	// Weight is the share of CPU time relative to siblings, 1 to 10000, 100 by
	// default: cpu.weight; on v1 cpu.shares in the same ratio.
	Weight int `json:"weight,omitzero"`
	// Idle makes the group run only when no sibling wants to: cpu.idle (5.15).
	// It locks the weight.
	Idle Switch `json:"idle,omitzero"`
	// Quota is the CPU time, summed over CPUs, that the group may use per
	// Period: cpu.max; at least 1 ms.
	Quota time.Duration `json:"quota,omitzero"`
	// Period is 1 ms to 1 s; 0 with a Quota is 100 ms.
	Period time.Duration `json:"period,omitzero"`
	// Burst is unused quota that may be saved up for later periods, at most
	// Quota: cpu.max.burst (5.14). Unlimited stands for none.
	Burst time.Duration `json:"burst,omitzero"`

	// CPUs and Mems are where the group may run and have memory: cpuset.cpus,
	// cpuset.mems. Setting Mems on v2 moves the pages of processes already there.
	// CPUs that a sibling's partition holds are a kernel.NotSupportedError.
	CPUs cpuset.Set `json:"cpus,omitzero"`
	Mems cpuset.Set `json:"mems,omitzero"`
	// Partition is "member", "root" or "isolated": cpuset.cpus.partition, v2 only.
	// The parent of a root or isolated partition must be one already.
	Partition string `json:"partition,omitzero"`

	// MemoryMax is the limit in bytes beyond which the group is out of memory:
	// memory.max; v1 memory.limit_in_bytes. All three are rounded down to pages.
	MemoryMax int64 `json:"memoryMax,omitzero"`
	// MemoryHigh is where the group is slowed down and reclaimed: memory.high, v2 only.
	MemoryHigh int64 `json:"memoryHigh,omitzero"`
	// MemoryLow is what others' pressure leaves it: memory.low, v2 only (v1's
	// soft limit marks what is taken first, not what is kept).
	MemoryLow int64 `json:"memoryLow,omitzero"`

	// IOWeight is the share of disk time, 1 to 10000, 100 by default: io.weight,
	// or BFQ's own file, which ends at 1000.
	IOWeight int `json:"ioWeight,omitzero"`
	// IOMax are settings per device: io.max and v1 blkio.throttle, weights, io.latency.
	IOMax []IOMax `json:"ioMax,omitempty"`

	// PIDsMax is the number of processes and threads: pids.max.
	PIDsMax int64 `json:"pidsMax,omitzero"`
	// Frozen stops every process in the group: cgroup.freeze; v1 freezer.state.
	Frozen Switch `json:"frozen,omitzero"`
}

// IOMax limits the use of one block device, and weighs it. Zero leaves a setting as it is.
type IOMax struct {
	Device    string `json:"device"`             // "MAJOR:MINOR"
	ReadBPS   int64  `json:"readBPS,omitzero"`   // bytes per second
	WriteBPS  int64  `json:"writeBPS,omitzero"`  // bytes per second
	ReadIOPS  int64  `json:"readIOPS,omitzero"`  // operations per second
	WriteIOPS int64  `json:"writeIOPS,omitzero"` // operations per second

	// Weight is the share of the time of a device that io.cost divides (io.weight), 1 to
	// 10000; BFQWeight, 1 to 1000, that of one whose scheduler is BFQ. Unlimited is the
	// weight that the group has on all others.
	Weight    int64 `json:"weight,omitzero"`
	BFQWeight int64 `json:"bfqWeight,omitzero"`
	// Latency is how long an operation may take before groups with longer ones, or none, are
	// slowed down: io.latency, v2 only.
	Latency time.Duration `json:"latency,omitzero"`
}

// Over returns m with what base has where m has nothing.
func (m IOMax) Over(base IOMax) IOMax {
	return IOMax{
		Device: m.Device, ReadBPS: cmp.Or(m.ReadBPS, base.ReadBPS), WriteBPS: cmp.Or(m.WriteBPS, base.WriteBPS),
		ReadIOPS: cmp.Or(m.ReadIOPS, base.ReadIOPS), WriteIOPS: cmp.Or(m.WriteIOPS, base.WriteIOPS),
		Weight: cmp.Or(m.Weight, base.Weight), BFQWeight: cmp.Or(m.BFQWeight, base.BFQWeight), Latency: cmp.Or(m.Latency, base.Latency),
	}
}

// settings are the values of the device by the names of their rows.
func (m IOMax) settings() map[string]any {
	return map[string]any{
		"readBPS": m.ReadBPS, "writeBPS": m.WriteBPS, "readIOPS": m.ReadIOPS, "writeIOPS": m.WriteIOPS,
		"ioDeviceWeight": m.Weight, "bfqDeviceWeight": m.BFQWeight, "ioLatency": m.Latency,
	}
}

// limitKnobs are the rows of the fields of Limits; nil for one that is no row.
var limitKnobs = func() (rows []*knob.Knob) {
	for field := range reflect.TypeFor[Limits]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		rows = append(rows, knob.Find(name))
	}
	return rows
}()

// Settings returns the limits as values of the knob table.
func (l Limits) Settings() knob.Settings {
	settings := knob.Settings{}
	fields := reflect.ValueOf(&l).Elem()
	for i, k := range limitKnobs {
		if k != nil && !fields.Field(i).IsZero() {
			settings[knob.ID{Knob: k}] = value(k, fields.Field(i).Interface())
		}
	}
	if l.Quota != 0 {
		settings[knob.ID{Knob: knob.Find("quota")}] += fmt.Sprintf(" %d", cmp.Or(l.Period, 100*time.Millisecond).Microseconds())
	}
	for _, m := range l.IOMax {
		for name, field := range m.settings() {
			if !reflect.ValueOf(field).IsZero() {
				k := knob.Find(name)
				settings[knob.ID{Knob: k, Key: m.Device}] = value(k, field)
			}
		}
	}
	return settings
}

func value(k *knob.Knob, field any) string {
	switch v := field.(type) {
	case Switch:
		return map[Switch]string{On: "1", Off: "0"}[v]
	case int64:
		if v != Unlimited {
			return strconv.FormatInt(v, 10)
		}
		return knob.Max
	case time.Duration:
		switch {
		case v < 0 && v != Unlimited:
			return strconv.FormatInt(int64(v), 10) // which no check accepts
		case v != Unlimited:
			return strconv.FormatInt(v.Microseconds(), 10)
		case k.Type == knob.Bandwidth:
			return knob.Max
		}
		return k.Default
	}
	return fmt.Sprint(field)
}

// Validate reports the fields that no kernel could accept.
func (l Limits) Validate() error {
	errs := []error{check(l.Settings())}
	if l.Period != 0 && l.Quota == 0 {
		errs = append(errs, fmt.Errorf("period %v: without a quota", l.Period))
	}
	if l.Quota > 0 && l.Burst > l.Quota {
		errs = append(errs, fmt.Errorf("burst %v: more than the quota", l.Burst))
	}
	devices := map[string]bool{}
	for _, m := range l.IOMax {
		errs = append(errs, knob.Find("readBPS").Key(m.Device))
		if devices[m.Device] {
			errs = append(errs, fmt.Errorf("device %q twice: put its limits together", m.Device))
		}
		devices[m.Device] = true
	}
	return errors.Join(errs...)
}

// check is Settings.Check for a kernel with this one's pages.
func check(settings knob.Settings) error {
	errs := []error{settings.Check()}
	page := int64(os.Getpagesize())
	for _, id := range settings.IDs() {
		if n, err := strconv.ParseInt(settings[id], 10, 64); err == nil && id.Type == knob.Bytes && 0 < n && n < page {
			errs = append(errs, fmt.Errorf("%s %d: less than a page", id.Words, n))
		}
	}
	return errors.Join(errs...)
}
