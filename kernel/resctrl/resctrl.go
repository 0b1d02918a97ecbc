// Package resctrl gives classes of work their parts of caches and memory bandwidth
// (Intel RDT, AMD PQoS, Arm MPAM) by the resctrl file system.
//
// Read tells what a host has, Config says what classes there are to be, Config.Layout
// comes to the values of each class, and Layout.Plan to the writes: all but Read are pure.
// Groups that Berth makes are called by Prefix and the class; those of others are read,
// counted, and never changed.
//
// The kernel's Documentation/filesystems/resctrl.rst describes the files.
package resctrl

import (
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"path"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel"
)

// Prefix is in front of a class in the name of its group.
const Prefix = "berth-"

// Usual is where resctrl is mounted as a rule, below the root of the file system.
const Usual = "sys/fs/resctrl"

// Default is the class that stands for the default group, which has all that is in no other.
const Default = "DEFAULT"

// Unit is what a number of a bandwidth resource means.
type Unit = plain.Enum[units]

// The units.
const (
	Percent Unit = iota // of what the CPU can (Intel, Arm)
	EighthG             // 1/8 GB/s (AMD)
	MBps                // MiB/s, as mounted with mba_MBps
)

type units struct{}

var unitNames = []string{Percent: "%", EighthG: "1/8 GB/s", MBps: "MBps"}

func (units) Words() []string { return unitNames }

// Resource is one line of schemata: a cache, or bandwidth.
type Resource struct {
	Name    string `json:"name"` // "L3", "L3CODE", "L2DATA", "MB", "SMBA"
	CLOSIDs int    `json:"closids"`
	// Domains are the cache ids, rising.
	Domains []int `json:"domains"`

	// Of caches: the mask of all ways, the least number of ways, the ways that devices fill
	// too, and whether a mask may have gaps.
	Mask      uint64 `json:"mask,omitempty"`
	MinBits   int    `json:"minBits,omitempty"`
	Shareable uint64 `json:"shareable,omitempty"`
	Sparse    bool   `json:"sparse,omitempty"`
	// Devices are the ways that devices fill too by cache id, beside Shareable, where the kernel
	// gives them a class of their own (io_alloc: AMD SDCIAE, Linux 6.19), which takes a CLOSID.
	Devices []Value `json:"devices,omitempty"`

	// Of bandwidth: steps, the value of no limit, and what the numbers mean ("%" if absent).
	Min      uint64 `json:"min,omitempty"`
	Step     uint64 `json:"step,omitempty"`
	Max      uint64 `json:"max,omitempty"`
	Unit     Unit   `json:"unit,omitempty"`
	Linear   bool   `json:"linear,omitempty"`
	Throttle string `json:"throttle,omitempty"` // thread_throttle_mode: "max", "per-thread"
}

// Cache reports whether it is a cache, and not bandwidth.
func (r *Resource) Cache() bool { return r.Mask != 0 }

// Ways is how many ways a cache has.
func (r *Resource) Ways() int { return bits.OnesCount64(r.Mask) }

// Filled are the ways of a cache id that devices fill, too.
func (r *Resource) Filled(id int) uint64 {
	for _, v := range r.Devices {
		if v.Domain == id {
			return r.Shareable | v.N
		}
	}
	return r.Shareable
}

// Level is the cache, "L3", and Kind what of it: "unified", or "code" or "data" where they are
// apart (CDP).
func (r *Resource) Level() string { level, _ := kindOf(r.Name); return level }

// Kind is what of a cache the resource is: see Level.
func (r *Resource) Kind() string { _, kind := kindOf(r.Name); return kind }

// Amount is a limit of bandwidth in a base unit: "ratio", of what the CPU can, or
// "bytes_per_second".
func (r *Resource) Amount(n uint64) (value float64, unit string) {
	switch r.Unit {
	case EighthG:
		return float64(n) * 125e6, "bytes_per_second"
	case MBps:
		return float64(n) * (1 << 20), "bytes_per_second"
	}
	return float64(n) / 100, "ratio"
}

// Monitoring is what the CPU counts.
type Monitoring struct {
	Events []string `json:"events"`
	RMIDs  int      `json:"rmids"`
	// Threshold is the occupancy in bytes below which the number of a removed group is used
	// again.
	Threshold int64 `json:"threshold,omitempty"`
	// Assigned is the mode in which events need counters (mbm_event, AMD ABMC), and Counters
	// how many there are by cache id.
	Assigned bool        `json:"assigned,omitempty"`
	Counters map[int]int `json:"counters,omitempty"`
}

// Group is a group that allocates.
type Group struct {
	Name     string   `json:"name"` // "" is the default group
	Mode     string   `json:"mode,omitempty"`
	Schemata Schemata `json:"schemata"`
}

// Own reports whether Berth made a group, by its name.
func (g *Group) Own() bool { return strings.HasPrefix(g.Name, Prefix) }

// Class is the class whose group it is.
func (g *Group) Class() string {
	if g.Name == "" {
		return Default
	}
	return strings.TrimPrefix(g.Name, Prefix)
}

// Tree is what is mounted.
type Tree struct {
	// Dir is where, relative to the kernel.Root.
	Dir        string      `json:"dir"`
	Resources  []Resource  `json:"resources"`
	Monitoring *Monitoring `json:"monitoring,omitempty"`
	// Groups are those that allocate, the default group first.
	Groups []Group `json:"groups"`
	// Mon are names of groups that only monitor, "CLASS/mon_groups/NAME".
	Mon []string `json:"mon,omitempty"`
}

// Find returns a resource by its name, or nil.
func (t *Tree) Find(name string) *Resource {
	i := slices.IndexFunc(t.Resources, func(r Resource) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return &t.Resources[i]
}

// Group returns a group by its name, or nil.
func (t *Tree) Group(name string) *Group {
	i := slices.IndexFunc(t.Groups, func(g Group) bool { return g.Name == name })
	if i < 0 {
		return nil
	}
	return &t.Groups[i]
}

// Others are the groups of other programs, but for the default one. Those of the guard are none:
// they give way to classes.
func (t *Tree) Others() (all []*Group) {
	for i := range t.Groups {
		if g := &t.Groups[i]; g.Name != "" && !g.Own() && !g.Guarded() {
			all = append(all, g)
		}
	}
	return all
}

// CLOSIDs is how many groups that allocate there can be, the default one included: "The
// kernel uses the smallest number of CLOSIDs of all enabled resources as limit." Devices with
// a class of their own have the highest one.
func (t *Tree) CLOSIDs() int {
	least := 0
	for i := range t.Resources {
		if n := t.Resources[i].CLOSIDs; least == 0 || n < least {
			least = n
		}
	}
	if t.DevicesHaveClass() {
		least--
	}
	return least
}

// DevicesHaveClass reports whether devices have a class of their own (Resource.Devices).
func (t *Tree) DevicesHaveClass() bool {
	return slices.ContainsFunc(t.Resources, func(r Resource) bool { return r.Devices != nil })
}

// mounted returns where resctrl is mounted, relative to the Root. Where it is not, that is a
// *kernel.NotSupportedError.
func mounted(fsys fs.FS) (m kernel.Mount, err error) {
	mounts, err := kernel.ReadMounts(fsys)
	if err != nil {
		return m, fmt.Errorf("find resctrl: %w", err)
	}
	for _, m := range slices.Backward(mounts) {
		if m.IsResctrl() {
			return m, nil
		}
	}
	return m, absent(fsys)
}

// absent says why nothing is mounted. Flags are those of the kernel document, "MBA" is "mba".
func absent(fsys fs.FS) error {
	no := &kernel.NotSupportedError{Feature: "cache and memory bandwidth classes"}
	filesystems, _ := fs.ReadFile(fsys, "proc/filesystems")
	cpu, _ := fs.ReadFile(fsys, "proc/cpuinfo")
	words := strings.Fields(string(cpu))
	flag := slices.ContainsFunc([]string{"rdt_a", "cat_l3", "cat_l2", "mba"}, func(f string) bool { return slices.Contains(words, f) })
	switch {
	case slices.Contains(strings.Fields(string(filesystems)), "resctrl") && (flag || !slices.Contains(words, "vendor_id")):
		no.Reason, no.Remedy = "resctrl is not mounted", "mount -t resctrl resctrl /sys/fs/resctrl"
	case flag:
		no.Reason, no.Remedy = "the kernel has no resctrl", "boot a kernel with CONFIG_X86_CPU_RESCTRL"
	case slices.Contains(words, "hypervisor"):
		no.Reason, no.Remedy = "the CPU that the hypervisor shows cannot allocate caches or bandwidth", "bare metal, or an instance type that passes RDT through"
	default:
		no.Reason, no.Remedy = "the CPU cannot allocate caches or bandwidth, or the kernel has no resctrl", "a CPU with Intel RDT, AMD PQoS or Arm MPAM, and CONFIG_X86_CPU_RESCTRL or CONFIG_RESCTRL_FS"
	}
	return no
}

// Read reads what is mounted. Without resctrl, or where it allocates nothing, it is a
// *kernel.NotSupportedError.
func Read(fsys fs.FS) (*Tree, error) {
	m, err := mounted(fsys)
	if err != nil {
		return nil, err
	}
	t := &Tree{Dir: m.Dir}
	r := reader{fsys: fsys, dir: m.Dir}
	t.Groups = r.groups()
	if r.err == nil && len(t.Groups) > 0 {
		for _, line := range t.Groups[0].Schemata {
			t.Resources = append(t.Resources, r.resource(&line, t.Groups, slices.Contains(m.Options, "mba_MBps")))
		}
	}
	t.Monitoring, t.Mon = r.monitoring(), r.mon(t.Groups)
	if r.err != nil {
		return nil, fmt.Errorf("read /%s: %w", m.Dir, r.err)
	}
	if len(t.Resources) == 0 {
		return nil, &kernel.NotSupportedError{Feature: "cache and memory bandwidth classes", Reason: "resctrl monitors here, and allocates nothing", Remedy: "a CPU with CAT or MBA, or without the kernel parameter rdt=!l3cat,!mba"}
	}
	return t, nil
}

type reader struct {
	fsys fs.FS
	dir  string
	err  error
}

func (r *reader) text(name string) (string, bool) {
	text, err := kernel.ReadText(r.fsys, path.Join(r.dir, name))
	if kernel.IgnoreAbsent(err) != nil {
		r.err = errors.Join(r.err, err)
	}
	return text, err == nil
}

func (r *reader) number(name string, base int) uint64 {
	text, ok := r.text(name)
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), base, 64)
	if err != nil {
		r.err = errors.Join(r.err, fmt.Errorf("%s: %w", name, err))
	}
	return n
}

// groups reads the groups that allocate.
func (r *reader) groups() (all []Group) {
	entries, err := fs.ReadDir(r.fsys, r.dir)
	if err != nil {
		r.err = err
		return nil
	}
	names := []string{""}
	for _, e := range entries {
		if e.IsDir() && !slices.Contains([]string{"info", "mon_data", "mon_groups"}, e.Name()) {
			names = append(names, e.Name())
		}
	}
	for _, name := range names {
		text, ok := r.text(path.Join(name, "schemata"))
		if !ok {
			continue // it allocates nothing, or has just gone
		}
		schemata, err := ParseSchemata(text)
		if err != nil {
			r.err = errors.Join(r.err, fmt.Errorf("group %q: %w", name, err))
		}
		mode, _ := r.text(path.Join(name, "mode"))
		all = append(all, Group{Name: name, Mode: mode, Schemata: schemata})
	}
	return all
}

func (r *reader) resource(line *Line, groups []Group, mbps bool) Resource {
	info := path.Join("info", line.Resource)
	res := Resource{Name: line.Resource, CLOSIDs: int(r.number(info+"/num_closids", 10))}
	for _, v := range line.Values {
		res.Domains = append(res.Domains, v.Domain)
	}
	if !line.bandwidth() {
		res.Mask, res.MinBits = r.number(info+"/cbm_mask", 16), max(1, int(r.number(info+"/min_cbm_bits", 10)))
		res.Shareable, res.Sparse = r.number(info+"/shareable_bits", 16), r.number(info+"/sparse_masks", 10) == 1
		if res.Mask == 0 && r.err == nil {
			r.err = fmt.Errorf("%s/cbm_mask: there is none", info)
		}
		if state, _ := r.text(info + "/io_alloc"); state == "enabled" {
			res.Devices = r.devices(line.Resource, info+"/io_alloc_cbm")
		}
		return res
	}
	res.Min, res.Step = r.number(info+"/min_bandwidth", 10), max(1, r.number(info+"/bandwidth_gran", 10))
	res.Linear = r.number(info+"/delay_linear", 10) == 1
	res.Throttle, _ = r.text(info + "/thread_throttle_mode")
	var most uint64
	for i := range groups {
		if l := groups[i].Schemata.Line(line.Resource); l != nil {
			for _, v := range l.Values {
				most = max(most, v.N)
			}
		}
	}
	cpu, _ := fs.ReadFile(r.fsys, "proc/cpuinfo")
	amd := strings.Contains(string(cpu), "AuthenticAMD") || strings.Contains(string(cpu), "HygonGenuine")
	switch {
	case mbps && line.Resource == "MB":
		res.Unit, res.Max, res.Min, res.Step = MBps, 1<<32-1, 1, 1
	case amd || most > 100:
		// No limit is 2048, or a higher power of two, as groups show it when they are made.
		res.Unit, res.Max, res.Min = EighthG, 1<<bits.Len64(max(most, 2048)-1), max(1, res.Min)
	default:
		res.Max = 100
	}
	return res
}

// devices reads the ways of the class that devices have, "0=ffff;1=ffff".
func (r *reader) devices(resource, name string) []Value {
	text, _ := r.text(name)
	lines, err := ParseSchemata(resource + ":" + text)
	if err == nil && (len(lines) != 1 || len(lines[0].Values) == 0) {
		err = errors.New("it names no cache")
	}
	if err != nil {
		r.err = errors.Join(r.err, fmt.Errorf("%s: %w", name, err))
		return nil
	}
	return lines[0].Values
}

func (r *reader) monitoring() *Monitoring {
	const dir = "info/L3_MON"
	events, ok := r.text(dir + "/mon_features")
	if !ok {
		return nil
	}
	m := &Monitoring{Events: strings.Fields(events), RMIDs: int(r.number(dir+"/num_rmids", 10)), Threshold: int64(r.number(dir+"/max_threshold_occupancy", 10))}
	mode, _ := r.text(dir + "/mbm_assign_mode")
	m.Assigned = strings.Contains(mode, "[mbm_event]")
	if text, ok := r.text(dir + "/num_mbm_cntrs"); ok {
		m.Counters = map[int]int{}
		for _, v := range strings.Split(text, ";") {
			id, n, _ := strings.Cut(v, "=")
			i, errI := strconv.Atoi(strings.TrimSpace(id))
			k, errK := strconv.Atoi(strings.TrimSpace(n))
			if errI == nil && errK == nil {
				m.Counters[i] = k
			}
		}
	}
	return m
}

func (r *reader) mon(groups []Group) (all []string) {
	for _, g := range groups {
		entries, err := fs.ReadDir(r.fsys, path.Join(r.dir, g.Name, "mon_groups"))
		if err != nil {
			continue // gone, or no monitoring
		}
		for _, e := range entries {
			if e.IsDir() {
				all = append(all, path.Join(g.Name, "mon_groups", e.Name()))
			}
		}
	}
	return all
}
