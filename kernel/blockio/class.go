package blockio

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// Limits returns what a class comes to on a host: settings of a control group. Notes say what
// of it is not there.
func (c *Config) Limits(class string, d *Devices) (l cgroup.Limits, notes []string) {
	of := map[string]cgroup.IOMax{}
	note := func(form string, args ...any) {
		if text := fmt.Sprintf(form, args...); !slices.Contains(notes, text) {
			notes = append(notes, text)
		}
	}
	for _, e := range c.Classes[class] {
		if len(e.Devices) == 0 && e.Weight != 0 {
			l.IOWeight = e.Weight
		}
		for _, pattern := range e.Devices {
			disks, absent := d.Find(pattern)
			if absent != "" {
				note("device %s: %s", pattern, absent)
			}
			for _, disk := range disks {
				m := cgroup.IOMax{
					Device: disk.Number, ReadBPS: int64(e.ReadBPS), WriteBPS: int64(e.WriteBPS), ReadIOPS: int64(e.ReadIOPS), WriteIOPS: int64(e.WriteIOPS),
					Latency: time.Duration(e.Latency),
				}
				switch {
				case e.Weight == 0:
				case disk.Scheduler == "bfq":
					m.BFQWeight = min(int64(e.Weight), 1000)
				case disk.Cost:
					m.Weight = int64(e.Weight)
				default:
					note("disk %s: its weight is not set, as nothing shares out its time: make BFQ its scheduler (echo bfq > /sys/block/%s/queue/scheduler), or name it in cost", disk.Name, strings.ReplaceAll(disk.Name, "/", "!"))
				}
				if m == (cgroup.IOMax{Device: disk.Number}) {
					delete(of, disk.Number)
				} else {
					of[disk.Number] = m
				}
			}
		}
	}
	for _, disk := range d.Disks {
		if d.cost && l.IOWeight != 0 && disk.Scheduler == "bfq" { // the file of the group is not BFQ's then
			m := of[disk.Number]
			m.Device, m.BFQWeight = disk.Number, cmp.Or(m.BFQWeight, min(int64(l.IOWeight), 1000))
			of[disk.Number] = m
		}
	}
	for _, number := range slices.Sorted(maps.Keys(of)) {
		l.IOMax = append(l.IOMax, of[number])
	}
	return l, notes
}

// PlanCost plans io.cost.qos and io.cost.model of the root group dir, and says what is not
// there.
func (c *Config) PlanCost(dir string, d *Devices) (plan kernel.Plan, notes []string) {
	of := map[string]*Cost{}
	for i := range c.Cost {
		for _, pattern := range c.Cost[i].Devices {
			disks, absent := d.Find(pattern)
			if absent != "" {
				notes = append(notes, fmt.Sprintf("device %s: %s", pattern, absent))
			}
			for _, disk := range disks {
				of[disk.Number] = &c.Cost[i]
			}
		}
	}
	step := func(file, line, unset string) {
		number, _, _ := strings.Cut(line, " ")
		plan = append(plan, kernel.Step{Path: dir + "/" + file, Value: line, Format: kernel.Keyed, Unset: number + " " + unset, Why: "io.cost"})
	}
	for _, number := range slices.Sorted(maps.Keys(of)) {
		if m := of[number].Model; m != nil {
			step(CostModel, number+" "+m.words(), "ctrl=auto model=linear")
		}
		step(CostQoS, number+" "+of[number].words(), "enable=0 ctrl=auto")
	}
	return plan, notes
}

// The files of the root group by which io.cost is set.
const (
	CostQoS   = "io.cost.qos"
	CostModel = "io.cost.model"
)

// words are the settings as the kernel spells them.
func (c *Cost) words() string {
	if c.Disable {
		return "enable=0"
	}
	words := []string{"enable=1"}
	if c.ReadLatency != 0 || c.WriteLatency != 0 || c.ReadPercent != 0 || c.WritePercent != 0 || c.Min != 0 || c.Max != 0 {
		words = append(words, "ctrl=user")
	}
	add := func(name string, percent float64) {
		if percent != 0 {
			words = append(words, fmt.Sprintf("%s=%.2f", name, percent))
		}
	}
	latency := func(name string, t Time) {
		if t != 0 {
			words = append(words, fmt.Sprintf("%s=%d", name, time.Duration(t).Microseconds()))
		}
	}
	add("rpct", c.ReadPercent)
	latency("rlat", c.ReadLatency)
	add("wpct", c.WritePercent)
	latency("wlat", c.WriteLatency)
	add("min", c.Min)
	add("max", c.Max)
	return strings.Join(words, " ")
}

func (m *Model) words() string {
	return fmt.Sprintf("ctrl=user model=linear rbps=%d rseqiops=%d rrandiops=%d wbps=%d wseqiops=%d wrandiops=%d",
		m.ReadBPS, m.ReadSeqIOPS, m.ReadRandIOPS, m.WriteBPS, m.WriteSeqIOPS, m.WriteRandIOPS)
}
