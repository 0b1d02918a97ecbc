package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
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

// Limits are settings of one group. The zero value of each field leaves that
// setting as it is. In JSON, times are in nanoseconds and what is zero is absent.
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
	// IOMax are limits per device: io.max; v1 blkio.throttle.
	IOMax []IOMax `json:"ioMax,omitempty"`

	// PIDsMax is the number of processes and threads: pids.max.
	PIDsMax int64 `json:"pidsMax,omitzero"`
	// Frozen stops every process in the group: cgroup.freeze; v1 freezer.state.
	Frozen Switch `json:"frozen,omitzero"`
}

// IOMax limits the use of one block device. Zero leaves a limit as it is.
type IOMax struct {
	Device    string `json:"device"`             // "MAJOR:MINOR"
	ReadBPS   int64  `json:"readBPS,omitzero"`   // bytes per second
	WriteBPS  int64  `json:"writeBPS,omitzero"`  // bytes per second
	ReadIOPS  int64  `json:"readIOPS,omitzero"`  // operations per second
	WriteIOPS int64  `json:"writeIOPS,omitzero"` // operations per second
}

// Validate reports the fields that no kernel could accept.
func (l Limits) Validate() error {
	var errs []error
	bad := func(wrong bool, field string, value any, want string) {
		if wrong {
			errs = append(errs, fmt.Errorf("%s %v: %s", field, value, want))
		}
	}
	bad(l.Weight < 0 || l.Weight > 10000, "weight", l.Weight, "not 1 to 10000")
	bad(l.IOWeight < 0 || l.IOWeight > 10000, "io weight", l.IOWeight, "not 1 to 10000")
	bad(l.Quota != 0 && l.Quota != Unlimited && l.Quota < time.Millisecond, "quota", l.Quota, "less than 1 ms")
	bad(l.Period != 0 && (l.Period < time.Millisecond || l.Period > time.Second), "period", l.Period, "not 1 ms to 1 s")
	bad(l.Period != 0 && l.Quota == 0, "period", l.Period, "without a quota")
	bad(l.Burst < 0 && l.Burst != Unlimited, "burst", l.Burst, "negative")
	bad(l.Quota > 0 && l.Burst > l.Quota, "burst", l.Burst, "more than the quota")
	bad(l.Idle == On && l.Weight != 0, "weight", l.Weight, "an idle group's weight is locked")
	bad(l.Partition != "" && l.Partition != "member" && l.Partition != "root" && l.Partition != "isolated",
		"partition", strconv.Quote(l.Partition), "not member, root or isolated")
	page := int64(os.Getpagesize())
	for _, m := range []struct {
		field string
		bytes int64
	}{{"memory max", l.MemoryMax}, {"memory high", l.MemoryHigh}, {"memory low", l.MemoryLow}} {
		bad(m.bytes != 0 && m.bytes != Unlimited && m.bytes < page, m.field, m.bytes, "less than a page")
	}
	bad(l.PIDsMax < Unlimited, "pids max", l.PIDsMax, "negative")
	for _, m := range l.IOMax {
		bad(!isDevice(m.Device), "io max device", strconv.Quote(m.Device), "not MAJOR:MINOR")
		bad(min(m.ReadBPS, m.WriteBPS, m.ReadIOPS, m.WriteIOPS) < Unlimited, "io max", m, "negative")
	}
	return errors.Join(errs...)
}

func isDevice(s string) bool {
	major, minor, ok := strings.Cut(s, ":")
	_, err1 := strconv.ParseUint(major, 10, 32)
	_, err2 := strconv.ParseUint(minor, 10, 32)
	return ok && err1 == nil && err2 == nil
}

// Set plans the limits of a group, in an order in which no step on the way is
// refused. It reads the group's present values; where the group is yet to be
// created, it takes those of a new group.
func (g Group) Set(l Limits) (kernel.Plan, error) {
	if err := l.Validate(); err != nil {
		return nil, fmt.Errorf("limits of group %q: %w", g.rel, err)
	}
	s := setting{group: g}
	s.cpu(l)
	s.cpuset(l)
	s.memory(l)
	s.io(l)
	s.pids(l)
	s.freeze(l)
	if s.err != nil {
		return nil, s.err
	}
	return s.plan, nil
}

// setting gathers the plan of one Set. After an error it does nothing.
type setting struct {
	group Group
	plan  kernel.Plan
	err   error

	// of the controller chosen by use
	part part
	dir  string
}

// use chooses a controller; false if it cannot be had.
func (s *setting) use(controller string) bool {
	if s.err != nil {
		return false
	}
	s.part, s.err = s.group.part(controller)
	s.dir = s.group.dir(s.part)
	return s.err == nil
}

// file chooses the first file that exists of those given for v2, then v1; in a
// group yet to be created, simply the first.
func (s *setting) file(feature, remedy string, v2, v1 []string) string {
	if s.err != nil {
		return ""
	}
	names := v2
	if s.part.Version == 1 {
		names = v1
	}
	host := s.group.base.host
	for _, name := range names {
		if !host.exists(s.dir) || host.exists(s.dir+"/"+name) {
			return name
		}
	}
	reason := fmt.Sprintf("cgroup v%d has no such setting", s.part.Version)
	if len(names) > 0 {
		reason = fmt.Sprintf("/%s has no %s", s.dir, strings.Join(names, " or "))
	}
	s.err = &kernel.NotSupportedError{Feature: feature, Reason: reason, Remedy: remedy}
	return ""
}

// write plans one value; v2 and v1 are the file's names, "" where there is none.
func (s *setting) write(file string, step kernel.Step) {
	if s.err == nil {
		step.Path = s.dir + "/" + file
		s.plan = append(s.plan, step)
	}
}

// value returns the present text of a file, or what a new group has.
func (s *setting) value(file, fresh string) string {
	text, ok, err := s.group.base.host.read(s.dir + "/" + file)
	if err != nil && s.err == nil {
		s.err = err
	}
	if !ok {
		return fresh
	}
	return strings.TrimSpace(text)
}

const newerKernel = "boot a newer kernel, with the option built in"

func (s *setting) cpu(l Limits) {
	if l.Weight == 0 && l.Idle == Leave && l.Quota == 0 && l.Burst == 0 || !s.use(CPU) {
		return
	}
	weight := s.file("cpu.weight", newerKernel, []string{"cpu.weight"}, []string{"cpu.shares"})
	switch l.Idle {
	case On:
		file := s.file("cpu.idle", "boot a kernel 5.15 or newer", []string{"cpu.idle"}, []string{"cpu.idle"})
		s.write(file, kernel.Step{Value: "1", Disturbs: []string{s.dir + "/" + weight}})
	case Off:
		file := s.file("cpu.idle", "boot a kernel 5.15 or newer", []string{"cpu.idle"}, []string{"cpu.idle"})
		s.write(file, kernel.Step{Value: "0"})
	}
	if l.Weight != 0 {
		value := l.Weight
		if s.part.Version == 1 {
			value = Shares(l.Weight)
		}
		s.write(weight, kernel.Step{Value: strconv.Itoa(value)})
	}
	s.bandwidth(l)
}

// Shares returns the v1 cpu.shares in the same ratio to its default (1024) as
// weight is to its own (100), within 2 to 262144.
func Shares(weight int) int { return min(max(weight*1024/100, 2), 262144) }

// bandwidth orders quota, period and burst. The kernel checks each write
// against what the other files hold: burst at most quota, and on v1, where
// quota and period are two files, no more than the parent's quota:period.
func (s *setting) bandwidth(l Limits) {
	if l.Quota == 0 && l.Burst == 0 {
		return
	}
	file := s.file("cpu.max", "build the kernel with CONFIG_CFS_BANDWIDTH", []string{"cpu.max"}, []string{"cpu.cfs_quota_us"})
	var burst string
	if l.Burst != 0 {
		burst = s.file("cpu.max.burst", "boot a kernel 5.14 or newer", []string{"cpu.max.burst"}, []string{"cpu.cfs_burst_us"})
	} else if s.part.Version == 1 {
		burst = "cpu.cfs_burst_us"
	} else {
		burst = "cpu.max.burst"
	}
	oldBurst := s.number(burst, 0)
	if s.err != nil {
		return
	}
	newBurst := oldBurst
	if l.Burst != 0 {
		newBurst = max(l.Burst.Microseconds(), 0)
	}
	if l.Quota > 0 && newBurst > l.Quota.Microseconds() {
		s.err = fmt.Errorf("limits of group %q: burst is %d us, more than the quota: set Burst too", s.group.rel, newBurst)
		return
	}
	burstStep := kernel.Step{Value: strconv.FormatInt(newBurst, 10)}
	if newBurst < oldBurst {
		s.write(burst, burstStep)
	}
	if l.Quota != 0 {
		s.quota(file, l)
	}
	if newBurst > oldBurst {
		s.write(burst, burstStep)
	}
}

func (s *setting) quota(file string, l Limits) {
	period := l.Period
	if period == 0 {
		period = 100 * time.Millisecond
	}
	q, p := l.Quota.Microseconds(), period.Microseconds()
	if s.part.Version == 2 {
		word := "max"
		if l.Quota > 0 {
			word = strconv.FormatInt(q, 10)
		}
		s.write(file, kernel.Step{Value: fmt.Sprintf("%s %d", word, p)})
		return
	}
	if l.Quota == Unlimited {
		q = -1
	}
	oldQ, oldP := s.number(file, -1), s.number("cpu.cfs_period_us", 100000)
	quotaStep := kernel.Step{Value: strconv.FormatInt(q, 10)}
	periodStep := kernel.Step{Value: strconv.FormatInt(p, 10)}
	// Pass through the pair with the lower quota:period: it is at most the
	// higher of old and new, so the parent allows it.
	quotaFirst := q < 0 || oldQ >= 0 && q*p < oldQ*oldP
	if quotaFirst {
		s.write(file, quotaStep)
	}
	if p != oldP {
		s.write("cpu.cfs_period_us", periodStep)
	}
	if !quotaFirst {
		s.write(file, quotaStep)
	}
}

// number returns the present value of a file with one number.
func (s *setting) number(file string, fresh int64) int64 {
	text := s.value(file, strconv.FormatInt(fresh, 10))
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil && s.err == nil {
		s.err = fmt.Errorf("read /%s/%s: %w", s.dir, file, err)
	}
	return n
}

func (s *setting) cpuset(l Limits) {
	if l.CPUs.IsEmpty() && l.Mems.IsEmpty() && l.Partition == "" || !s.use(CPUSet) {
		return
	}
	partition := func() {
		file := s.file("cpuset.cpus.partition", "boot a kernel 5.0 or newer with cgroup v2", []string{"cpuset.cpus.partition"}, nil)
		s.write(file, kernel.Step{Value: l.Partition, Format: kernel.State})
	}
	if l.Partition == "root" || l.Partition == "isolated" {
		s.partitionable()
	}
	if s.err == nil && s.part.Version == 2 {
		s.err = s.group.base.host.unpartitioned(s.dir, l.CPUs)
	}
	if l.Partition == "member" {
		partition() // give exclusive CPUs back before the set changes
	}
	if !l.Mems.IsEmpty() {
		s.write("cpuset.mems", kernel.Step{Value: l.Mems.String(), Format: kernel.List})
	}
	if !l.CPUs.IsEmpty() {
		s.write("cpuset.cpus", kernel.Step{Value: l.CPUs.String(), Format: kernel.List})
	}
	if l.Partition != "" && l.Partition != "member" {
		partition()
	}
}

// partitionable refuses a partition below an ordinary group, which the kernel
// would make and show as invalid. One with cpuset.cpus.exclusive (6.7) of its
// own can be remote from its parent.
func (s *setting) partitionable() {
	parent := path.Dir(s.dir)
	state, ok, err := s.group.base.host.read(parent + "/cpuset.cpus.partition")
	if err != nil && s.err == nil {
		s.err = err
	}
	state = strings.TrimSpace(state)
	if s.err != nil || !ok || state == "root" || state == "isolated" || s.value("cpuset.cpus.exclusive", "") != "" {
		return
	}
	s.err = &kernel.NotSupportedError{
		Feature: "cpuset.cpus.partition",
		Reason:  fmt.Sprintf("/%s, which holds the group, is not a partition root: %s", parent, state),
		Remedy:  "make the parent a partition root first, or the partition a child of the tree's root",
	}
}

// unpartitioned refuses CPUs of a group that a sibling's partition holds. Before
// Linux 7, writing them ends that partition, and undoing does not bring it back;
// since then, the group does not get them.
func (h *Host) unpartitioned(dir string, cpus cpuset.Set) error {
	parent := path.Dir(dir)
	siblings, err := fs.ReadDir(h.root.FS(), parent)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("partitions beside /%s: %w", dir, err)
	}
	for _, entry := range siblings {
		sibling := path.Join(parent, entry.Name())
		if !entry.IsDir() || sibling == dir {
			continue
		}
		held, err := h.partition(sibling)
		if err != nil {
			return fmt.Errorf("partition /%s: %w", sibling, err)
		}
		if held.Overlaps(cpus) {
			return &kernel.NotSupportedError{
				Feature: fmt.Sprintf("CPUs %v for /%s", cpus, dir),
				Reason:  fmt.Sprintf("/%s is a partition and holds %v", sibling, held.Intersect(cpus)),
				Remedy:  "leave them out, or make that group a member first",
			}
		}
	}
	return nil
}

// partition returns the CPUs that a group holds as a partition, none if it is no
// valid one.
func (h *Host) partition(dir string) (cpuset.Set, error) {
	state, _, err := h.read(dir + "/cpuset.cpus.partition")
	state = strings.TrimSpace(state)
	if err != nil || state != "root" && state != "isolated" {
		return cpuset.Set{}, err
	}
	cpus, ok, err := h.read(dir + "/cpuset.cpus.exclusive.effective") // 6.7
	if err == nil && !ok {
		cpus, _, err = h.read(dir + "/cpuset.cpus")
	}
	if err != nil {
		return cpuset.Set{}, err
	}
	return cpuset.Parse(cpus)
}

func (s *setting) memory(l Limits) {
	if l.MemoryMax == 0 && l.MemoryHigh == 0 && l.MemoryLow == 0 || !s.use(Memory) {
		return
	}
	const onlyV2 = "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1)"
	for _, m := range []struct {
		bytes  int64
		v2, v1 string
	}{
		{l.MemoryLow, "memory.low", ""},
		{l.MemoryHigh, "memory.high", ""},
		{l.MemoryMax, "memory.max", "memory.limit_in_bytes"},
	} {
		if m.bytes == 0 {
			continue
		}
		var v1 []string
		if m.v1 != "" {
			v1 = []string{m.v1}
		}
		file := s.file(m.v2, onlyV2, []string{m.v2}, v1)
		s.write(file, kernel.Step{Value: s.bytes(m.bytes)})
	}
}

// bytes writes an amount of memory as the kernel will show it.
func (s *setting) bytes(n int64) string {
	page := int64(os.Getpagesize())
	if n == Unlimited {
		if s.part.Version == 2 {
			return "max"
		}
		n = 1<<63 - 1 // v1 shows "no limit" as the highest number of whole pages
	}
	return strconv.FormatInt(n/page*page, 10)
}

func (s *setting) pids(l Limits) {
	if l.PIDsMax == 0 || !s.use(PIDs) {
		return
	}
	value := "max"
	if l.PIDsMax > 0 {
		value = strconv.FormatInt(l.PIDsMax, 10)
	}
	s.write("pids.max", kernel.Step{Value: value})
}

func (s *setting) freeze(l Limits) {
	if l.Frozen == Leave || !s.use(Freezer) {
		return
	}
	file := s.file("cgroup.freeze", "boot a kernel 5.2 or newer", []string{"cgroup.freeze"}, []string{"freezer.state"})
	value := map[bool]string{true: "1", false: "0"}[l.Frozen == On]
	if s.part.Version == 1 {
		value = map[bool]string{true: "FROZEN", false: "THAWED"}[l.Frozen == On]
	}
	s.write(file, kernel.Step{Value: value, Format: kernel.State})
}
