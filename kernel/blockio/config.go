// Package blockio has classes of block I/O: what they are to have, in Berth's format and
// those of other programs, and which block devices of a host that is about. A class comes to
// settings of a control group (cgroup.Limits), which are planned and written as all others.
package blockio

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel/sched"
)

// Config says which classes there are to be.
type Config struct {
	// Classes are lists of entries, by name; one without entries has no settings. Of several
	// entries that are about a device the last one counts.
	Classes map[string]Class `json:"classes,omitempty"`
	// Service are the classes that workloads of a class of service have (LSE, LSR, LS, BE,
	// SYSTEM) unless they ask for another. Default: none.
	Service map[string]string `json:"service,omitempty"`
	// Cost has disks share their time by weights with io.cost while a workload has a class
	// (cgroup v2). The last entry about a disk counts. Default: as found.
	Cost []Cost `json:"cost,omitempty"`
}

// Class is what workloads of a class have.
type Class []Entry

// Entry is what a class has of some devices.
type Entry struct {
	// Devices are names (vda, /dev/vd*, /dev/disk/by-id/*SSD*), numbers (254:0), volume groups
	// (vg:NAME) or paths, which stand for the disk below what is mounted there. A partition
	// stands for its disk. Default: all, for weight and priority.
	Devices []string `json:"devices,omitempty"`
	// Weight is the share of disk time among siblings, 1 to 10000; the kernel's default is 100.
	Weight int `json:"weight,omitempty"`
	// ReadBPS is the most bytes to be read per second, as in 50M or 64Mi; max is no limit.
	ReadBPS Rate `json:"readBPS,omitzero"`
	// WriteBPS is the most bytes to be written per second.
	WriteBPS Rate `json:"writeBPS,omitzero"`
	// ReadIOPS is the most reads per second, as in 500 or 10k.
	ReadIOPS Rate `json:"readIOPS,omitzero"`
	// WriteIOPS is the most writes per second.
	WriteIOPS Rate `json:"writeIOPS,omitzero"`
	// Latency is how long operations of the class may take before groups with longer targets,
	// or none, are slowed down, as in 20ms (io.latency, v2 only).
	Latency Time `json:"latency,omitzero"`
	// Priority is that of its processes: idle, best-effort/0 (first) to best-effort/7, or
	// realtime/0 to realtime/7 (ioprio_set). Only without devices.
	Priority string `json:"priority,omitempty"`
}

// Cost is how io.cost divides the time of disks (Documentation/admin-guide/cgroup-v2.rst).
type Cost struct {
	// Devices are as those of a class; required.
	Devices []string `json:"devices"`
	// Disable turns io.cost off. Default: false.
	Disable bool `json:"disable,omitempty"`
	// ReadLatency is what ReadPercent of the reads are to take at most: beyond that the disk
	// counts as full. Default: the kernel's, by the kind of disk.
	ReadLatency Time `json:"readLatency,omitzero"`
	// ReadPercent is 0 to 100; 0 is not to look at reads.
	ReadPercent float64 `json:"readPercent,omitempty"`
	// WriteLatency and WritePercent are those of writes.
	WriteLatency Time `json:"writeLatency,omitzero"`
	// WritePercent is 0 to 100; 0 is not to look at writes.
	WritePercent float64 `json:"writePercent,omitempty"`
	// Min and Max bound the rate at which the disk is fed, in percent of what the model says,
	// 1 to 10000.
	Min float64 `json:"min,omitempty"`
	// Max is the upper bound.
	Max float64 `json:"max,omitempty"`
	// Model is what the disk can do. Default: the kernel's, by the kind of disk.
	Model *Model `json:"model,omitempty"`
}

// Model is what a disk can do per second: bytes, and sequential and random operations.
type Model struct {
	// ReadBPS are bytes read.
	ReadBPS Rate `json:"readBPS"`
	// ReadSeqIOPS are sequential reads.
	ReadSeqIOPS Rate `json:"readSeqIOPS"`
	// ReadRandIOPS are random reads.
	ReadRandIOPS Rate `json:"readRandIOPS"`
	// WriteBPS are bytes written.
	WriteBPS Rate `json:"writeBPS"`
	// WriteSeqIOPS are sequential writes.
	WriteSeqIOPS Rate `json:"writeSeqIOPS"`
	// WriteRandIOPS are random writes.
	WriteRandIOPS Rate `json:"writeRandIOPS"`
}

// Rate is a number per second; Unlimited is no limit.
type Rate int64

// Unlimited is the Rate "max".
const Unlimited Rate = -1

// unit is a suffix of amounts.
type unit struct {
	suffix string
	by     int64
}

// units are the greatest first.
var units = []unit{
	{"Ti", 1 << 40}, {"T", 1e12}, {"Gi", 1 << 30}, {"G", 1e9}, {"Mi", 1 << 20}, {"M", 1e6}, {"Ki", 1 << 10}, {"k", 1e3}, {"K", 1e3},
}

// UnmarshalText reads 500, 10k, 50M, 64Mi or max. The kernel has no limit of 0.
func (r *Rate) UnmarshalText(text []byte) error {
	word, by := strings.TrimSpace(string(text)), int64(1)
	if word == "max" {
		*r = Unlimited
		return nil
	}
	for _, u := range units {
		if number, ok := strings.CutSuffix(word, u.suffix); ok {
			word, by = number, u.by
			break
		}
	}
	n, err := strconv.ParseInt(word, 10, 64)
	if err != nil || n <= 0 || n > (1<<62)/by {
		return fmt.Errorf("%q is no amount per second above 0, such as 500, 10k, 50M or 64Mi, nor max", text)
	}
	*r = Rate(n * by)
	return nil
}

// String writes what UnmarshalText reads.
func (r Rate) String() string {
	if r == Unlimited {
		return "max"
	}
	for _, u := range units {
		if r != 0 && int64(r)%u.by == 0 {
			return strconv.FormatInt(int64(r)/u.by, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(r), 10)
}

// MarshalText writes the text of String.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Time is a length of time, in whole microseconds.
type Time time.Duration

// UnmarshalText reads 20ms.
func (t *Time) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(strings.TrimSpace(string(text)))
	if err != nil || d < time.Microsecond || d > time.Minute {
		return fmt.Errorf("%q is no length of time from 1us to 1m, such as 20ms", text)
	}
	*t = Time(d.Truncate(time.Microsecond))
	return nil
}

// String writes what UnmarshalText reads.
func (t Time) String() string { return time.Duration(t).String() }

// MarshalText writes the text of String.
func (t Time) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// Names returns the classes, sorted.
func (c *Config) Names() []string { return slices.Sorted(maps.Keys(c.Classes)) }

// Has reports whether there is a class of the name.
func (c *Config) Has(name string) bool {
	if c == nil {
		return false
	}
	_, ok := c.Classes[name]
	return ok
}

// OfService returns the class that a class of service has for its workloads that name none
// themselves; "" where it has no such class.
func (c *Config) OfService(class string) string { return c.Service[class] }

// Priority returns that of the processes of a class, "" if it is to be left.
func (c *Config) Priority(class string) (priority string) {
	if c == nil {
		return ""
	}
	for _, e := range c.Classes[class] {
		if e.Priority != "" {
			priority = e.Priority
		}
	}
	return priority
}

var className = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9_.]{0,62}$`)

// Validate reports all that is wrong on any host, joined, each as strictyaml.Error with its
// field.
func (c *Config) Validate() error {
	var v validator
	v.want(len(c.Classes) > 0, "classes", "there are none")
	for _, name := range c.Names() {
		at := "classes." + name
		v.want(className.MatchString(name) && name != "none", at, "%q is not a name: 1 to 63 letters, digits, '-', '_' or '.', a letter or digit first; none is no class", name)
		for i := range c.Classes[name] {
			v.entry(fmt.Sprintf("%s[%d]", at, i), &c.Classes[name][i])
		}
	}
	for _, service := range slices.Sorted(maps.Keys(c.Service)) {
		at, name := "service."+service, c.Service[service]
		v.want(slices.Contains([]string{"LSE", "LSR", "LS", "BE", "SYSTEM"}, service), at, "%q is no class of service: LSE, LSR, LS, BE or SYSTEM", service)
		v.want(c.Has(name), at, "there is no class %q%s", name, strictyaml.Nearest(name, c.Names()))
	}
	for i := range c.Cost {
		v.cost(fmt.Sprintf("cost[%d]", i), &c.Cost[i])
	}
	return errors.Join(v.errs...)
}

type validator struct{ errs []error }

func (v *validator) want(ok bool, field, form string, args ...any) {
	if !ok {
		v.errs = append(v.errs, &strictyaml.Error{Field: field, Err: fmt.Errorf(form, args...)})
	}
}

func (v *validator) entry(at string, e *Entry) {
	rates := map[string]Rate{"readBPS": e.ReadBPS, "writeBPS": e.WriteBPS, "readIOPS": e.ReadIOPS, "writeIOPS": e.WriteIOPS}
	limits := e.Latency != 0
	for name, rate := range rates {
		limits = limits || rate != 0
		v.want(rate >= 0 || rate == Unlimited, at+"."+name, "%d is below 0; max is no limit", rate)
	}
	v.want(e.Latency >= 0, at+".latency", "%s is below 0", e.Latency)
	v.want(e.Weight == 0 || e.Weight >= 1 && e.Weight <= 10000, at+".weight", "%d is not 1 to 10000", e.Weight)
	v.want(e.Weight != 0 || limits || e.Priority != "", at, "it says nothing: weight, readBPS, writeBPS, readIOPS, writeIOPS, latency or priority")
	v.want(len(e.Devices) > 0 || !limits, at+".devices", "is missing: the kernel limits each device on its own")
	if e.Priority != "" {
		_, err := sched.ParseIOPriority(e.Priority)
		v.want(err == nil, at+".priority", "%v", err)
		v.want(len(e.Devices) == 0, at+".priority", "a process has one for all devices: name it in an entry without devices")
	}
	v.devices(at, e.Devices)
}

func (v *validator) devices(at string, devices []string) {
	for i, name := range devices {
		v.want(checkPattern(name) == nil, fmt.Sprintf("%s.devices[%d]", at, i), "%q: %v", name, checkPattern(name))
	}
}

func (v *validator) cost(at string, c *Cost) {
	v.want(len(c.Devices) > 0, at+".devices", "is missing: which disks")
	v.devices(at, c.Devices)
	for _, f := range []struct {
		name        string
		value       float64
		least, most float64
	}{{"readPercent", c.ReadPercent, 0, 100}, {"writePercent", c.WritePercent, 0, 100}, {"min", c.Min, 1, 10000}, {"max", c.Max, 1, 10000}} {
		v.want(f.value == 0 || f.value >= f.least && f.value <= f.most, at+"."+f.name, "%g is not %g to %g", f.value, f.least, f.most)
	}
	v.want(c.ReadLatency >= 0, at+".readLatency", "%s is below 0", c.ReadLatency)
	v.want(c.WriteLatency >= 0, at+".writeLatency", "%s is below 0", c.WriteLatency)
	v.want(c.Min == 0 || c.Max == 0 || c.Min <= c.Max, at+".min", "%g is more than max, %g", c.Min, c.Max)
	if m := c.Model; m != nil {
		for name, rate := range map[string]Rate{
			"readBPS": m.ReadBPS, "readSeqIOPS": m.ReadSeqIOPS, "readRandIOPS": m.ReadRandIOPS,
			"writeBPS": m.WriteBPS, "writeSeqIOPS": m.WriteSeqIOPS, "writeRandIOPS": m.WriteRandIOPS,
		} {
			v.want(rate > 0, at+".model."+name, "is missing, or not above 0: a model has all six")
		}
	}
}

// checkPattern returns what is wrong with the name of devices.
func checkPattern(name string) error {
	if vg, ok := strings.CutPrefix(name, "vg:"); ok {
		if vg == "" || strings.Contains(vg, "/") {
			return errors.New("vg: is followed by the name of a volume group")
		}
		return nil
	}
	if _, err := path.Match(name, ""); err != nil {
		return err
	}
	switch {
	case name == "":
		return errors.New("it names no device")
	case strings.Contains(name, "/") && (!path.IsAbs(name) || path.Clean(name) != name):
		return errors.New("it is no absolute path in its shortest form")
	}
	return nil
}
