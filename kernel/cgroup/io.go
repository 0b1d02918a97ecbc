package cgroup

import (
	"fmt"
	"strconv"
	"strings"

	"berth.dev/berth/kernel"
)

func (s *setting) io(l Limits) {
	if l.IOWeight == 0 && len(l.IOMax) == 0 || !s.use(IO) {
		return
	}
	if l.IOWeight != 0 {
		s.ioWeight(l.IOWeight)
	}
	for _, m := range l.IOMax {
		if s.part.Version == 2 {
			s.ioMax(m)
		} else {
			s.ioThrottle(m)
		}
	}
}

// ioWeight writes the weight of all devices, on the scale of the file that the
// kernel has: io.weight (io.cost) 1-10000 with 100 as default, BFQ's 1-1000
// with 100, CFQ's (kernels before 5.0) 10-1000 with 500.
func (s *setting) ioWeight(weight int) {
	file := s.file("io.weight", "load the bfq I/O scheduler, or boot a kernel with CONFIG_BLK_CGROUP_IOCOST",
		[]string{"io.weight", "io.bfq.weight"}, []string{"blkio.weight", "blkio.bfq.weight"})
	step := kernel.Step{Value: strconv.Itoa(min(weight, 1000))}
	switch file {
	case "io.weight":
		step = kernel.Step{Value: "default " + strconv.Itoa(weight), Format: kernel.Keyed}
	case "io.bfq.weight":
		step = kernel.Step{Value: "default " + strconv.Itoa(min(weight, 1000)), Format: kernel.Keyed}
	case "blkio.weight":
		step.Value = strconv.Itoa(min(max(weight*5, 10), 1000))
	}
	s.write(file, step)
}

func (s *setting) ioMax(m IOMax) {
	file := s.file("io.max", "boot a kernel with CONFIG_BLK_DEV_THROTTLING", []string{"io.max"}, nil)
	value := m.Device
	for _, limit := range []struct {
		key string
		n   int64
	}{{"rbps", m.ReadBPS}, {"wbps", m.WriteBPS}, {"riops", m.ReadIOPS}, {"wiops", m.WriteIOPS}} {
		switch {
		case limit.n == Unlimited:
			value += " " + limit.key + "=max"
		case limit.n != 0:
			value += fmt.Sprintf(" %s=%d", limit.key, limit.n)
		}
	}
	if value == m.Device {
		return
	}
	s.write(file, kernel.Step{Value: value, Format: kernel.Keyed, Unset: m.Device + " rbps=max wbps=max riops=max wiops=max"})
}

func (s *setting) ioThrottle(m IOMax) {
	for _, limit := range []struct {
		file string
		n    int64
	}{
		{"read_bps_device", m.ReadBPS}, {"write_bps_device", m.WriteBPS},
		{"read_iops_device", m.ReadIOPS}, {"write_iops_device", m.WriteIOPS},
	} {
		if limit.n == 0 {
			continue
		}
		name := "blkio.throttle." + limit.file
		file := s.file(name, "boot a kernel with CONFIG_BLK_DEV_THROTTLING", nil, []string{name})
		// 0 takes a limit away, and its line with it.
		value := fmt.Sprintf("%s %d", m.Device, max(limit.n, 0))
		s.write(file, kernel.Step{Value: value, Format: kernel.Keyed, Unset: m.Device + " 0"})
	}
}

// Knob is one setting of a group as the kernel shows it.
type Knob struct {
	File  string `json:"file"`
	Value string `json:"value"`
}

// knobFiles are the settings that Knobs shows, in its order: v2's names, then
// v1's, by controller.
var knobFiles = [...]struct {
	controller string
	files      string
}{
	{CPU, "cpu.weight cpu.shares cpu.idle cpu.max cpu.cfs_quota_us cpu.cfs_period_us cpu.max.burst cpu.cfs_burst_us"},
	{CPUSet, "cpuset.cpus cpuset.cpus.effective cpuset.effective_cpus cpuset.mems cpuset.mems.effective cpuset.effective_mems cpuset.cpus.partition"},
	{Memory, "memory.low memory.high memory.max memory.limit_in_bytes"},
	{IO, "io.weight io.bfq.weight blkio.weight blkio.bfq.weight io.max blkio.throttle.read_bps_device blkio.throttle.write_bps_device blkio.throttle.read_iops_device blkio.throttle.write_iops_device"},
	{PIDs, "pids.max"},
	{Freezer, "cgroup.freeze freezer.state"},
}

// Knobs reads the settings in force, those that this host has. A value of
// several lines is joined with "; ".
func (g Group) Knobs() ([]Knob, error) {
	var knobs []Knob
	for _, k := range knobFiles {
		p, err := g.part(k.controller)
		if err != nil {
			continue
		}
		for _, file := range strings.Fields(k.files) {
			text, ok, err := g.base.host.read(g.dir(p) + "/" + file)
			if err != nil {
				return nil, fmt.Errorf("settings of group %q: %w", g.rel, err)
			}
			if ok {
				value := strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ")
				knobs = append(knobs, Knob{File: file, Value: value})
			}
		}
	}
	return knobs, nil
}
