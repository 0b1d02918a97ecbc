package fakekernel

import (
	"maps"
	"slices"
	"strings"
)

// Resctrl is a CPU that allocates caches and bandwidth, and the kernel's file system for it.
// Names, formats and refusals are those of Documentation/filesystems/resctrl.rst, whose
// sections the functions name. Words of last_cmd_status beyond those of that document are
// approximate.
type Resctrl struct {
	Vendor  string // vendor_id of /proc/cpuinfo; "" means none (Arm)
	Flags   string
	Lines   []ResctrlLine
	Domains []int // cache ids of the last level
	RMIDs   int   // 0: it monitors nothing
	Events  []string
	// Counters is how many events can be counted by cache id (mbm_event); 0 is as many as
	// there are.
	Counters int
	MBps     bool // mounted with mba_MBps
	// Limbo has the number of a removed group stay unusable until Settle.
	Limbo bool
	// Padded shows masks with leading zeros, as kernels before 7 do.
	Padded bool
	// Single takes one task id per write, as kernels before 6.8 do.
	Single bool
	// Devices are the ways of the class that devices have, by cache id of the last level, where
	// that is enabled ("io_alloc", since Linux 6.19): it has the highest CLOSID.
	Devices map[int]uint64
}

// ResctrlLine is one line of schemata.
type ResctrlLine struct {
	Name      string // "L3", "L3CODE", "MB"
	CLOSIDs   int
	Mask      uint64 // of a cache
	MinBits   int
	Shareable uint64
	Sparse    bool
	Min, Step uint64 // of bandwidth
	Max       uint64
	Throttle  string // "" is no such file
	// Domains are the ids of another level's caches.
	Domains []int
}

// domains are the cache ids of a line.
func (r *Resctrl) domains(l *ResctrlLine) []int {
	if l.Domains != nil {
		return l.Domains
	}
	return r.Domains
}

func (l *ResctrlLine) cache() bool { return l.Mask != 0 }

// byDevices are the ways of a cache that devices fill: "shareable_bits" and "io_alloc_cbm", which
// is the same for code and data.
func (r *Resctrl) byDevices(l *ResctrlLine, id int) uint64 {
	if !strings.HasPrefix(l.Name, "L3") {
		return l.Shareable
	}
	return l.Shareable | r.Devices[id]
}

// closids is how many groups there can be.
func (r *Resctrl) closids() int {
	least := r.Lines[0].CLOSIDs
	for _, l := range r.Lines {
		least = min(least, l.CLOSIDs)
	}
	if r.Devices != nil {
		least--
	}
	return least
}

func (l *ResctrlLine) base() int {
	if l.cache() {
		return 16
	}
	return 10
}

var mbm = []string{"llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"}

// ResctrlCPUs are CPUs as the kernel document, the kernel's drivers and the vendors' manuals
// describe them: none of these is a copy of a real machine's tree. Some values were seen by others on
// real ones, and told on github.com: ways and CLOSIDs of Cascade Lake (intel/intel-cmt-cat, issues 177
// and 252), the ways that devices fill on Ice Lake (tbarbette/fastclick, 392), masks of both caches of
// Sapphire Rapids (unvariance/collector, 93), cache ids with a gap and bandwidth of an EPYC
// (koordinator-sh/koordinator, 1777), and that masks may have gaps from Granite Rapids on
// (deepin-community/kernel, 830). Each that can tell code and data apart is there with that, too.
func ResctrlCPUs() map[string]Resctrl {
	sapphire := intel(0x7fff, 0x6000, 15, false)
	sapphire.Flags += " cat_l2 cdp_l2"
	sapphire.Lines = append(sapphire.Lines, ResctrlLine{Name: "L2", CLOSIDs: 8, Mask: 0xffff, MinBits: 1, Domains: []int{0, 2, 4, 6}})
	sapphire.Lines[1].Throttle = "per-thread"
	milan := amd(16, false, 0)
	for i := range 8 {
		milan.Domains[8+i] = 16 + i
	}
	io := amd(16, true, 32)
	io.Devices = map[int]uint64{0: 0xf000}
	for _, id := range io.Domains[1:] {
		io.Devices[id] = 0xc000
	}
	all := map[string]Resctrl{
		"skylake": intel(0x7ff, 0x600, 16, false), "cascadelake": intel(0x7ff, 0x600, 16, false), "icelake": intel(0xfff, 0xc00, 15, false),
		"sapphirerapids": sapphire, "emeraldrapids": intel(0xfffff, 0xc0000, 15, false), "graniterapids": intel(0xffff, 0, 15, true),
		"zen2": amd(8, false, 0), "zen3": milan, "zen4": amd(12, true, 0), "zen5": amd(16, true, 32), "zen5-io": io,
		// "shareable_bits" are all: any device may use partition 0 (drivers/resctrl/mpam_resctrl.c).
		"mpam": {Domains: []int{1, 2, 7}, RMIDs: 64, Events: mbm[:1], Lines: []ResctrlLine{
			{Name: "L3", CLOSIDs: 32, Mask: 0xffff, MinBits: 1, Sparse: true, Shareable: 0xffff}, {Name: "MB", CLOSIDs: 32, Min: 1, Step: 1, Max: 100},
		}},
	}
	for _, name := range slices.Collect(maps.Keys(all)) {
		r := all[name]
		if strings.Contains(r.Flags, "cdp_l3") {
			all[name+"-cdp"] = r.cdp("L3")
		}
		if strings.Contains(r.Flags, "cdp_l2") {
			all[name+"-cdpl2"] = r.cdp("L2")
		}
	}
	return all
}

// intel is a CPU with 2 sockets: __get_mem_config_intel and rdt_init_res_defs_intel in
// arch/x86/kernel/cpu/resctrl/core.c.
func intel(ways, shareable uint64, closids int, sparse bool) Resctrl {
	return Resctrl{
		Vendor: "GenuineIntel", Flags: "rdt_a cat_l3 cdp_l3 mba cqm_llc", Domains: []int{0, 1}, RMIDs: 176, Events: mbm, Padded: true,
		Lines: []ResctrlLine{
			{Name: "L3", CLOSIDs: closids, Mask: ways, MinBits: 1, Shareable: shareable, Sparse: sparse},
			{Name: "MB", CLOSIDs: 8, Min: 10, Step: 10, Max: 100, Throttle: "max"},
		},
	}
}

// amd is a CPU with so many L3 caches, with SMBA or not: __rdt_get_mem_config_amd and
// rdt_init_res_defs_amd, by which a mask may be empty and bandwidth 0.
func amd(domains int, smba bool, counters int) Resctrl {
	r := Resctrl{Vendor: "AuthenticAMD", Flags: "rdt_a cat_l3 cdp_l3 mba cqm_llc", RMIDs: 256, Events: mbm, Counters: counters}
	for i := range domains {
		r.Domains = append(r.Domains, i)
	}
	r.Lines = []ResctrlLine{{Name: "MB", CLOSIDs: 16, Step: 1, Max: 2048}, {Name: "L3", CLOSIDs: 16, Mask: 0xffff, Sparse: true}}
	if smba {
		r.Lines = append([]ResctrlLine{{Name: "SMBA", CLOSIDs: 16, Step: 1, Max: 2048}}, r.Lines...)
	}
	return r
}

// cdp is a CPU with a level mounted with cdp, or cdpl2: "When CDP is enabled L3 control is split
// into two separate resources", with half of the CLOSIDs.
func (r Resctrl) cdp(level string) Resctrl {
	i := slices.IndexFunc(r.Lines, func(l ResctrlLine) bool { return l.Name == level })
	data := r.Lines[i]
	data.CLOSIDs /= 2
	code := data
	data.Name, code.Name = level+"DATA", level+"CODE"
	r.Lines = slices.Replace(slices.Clone(r.Lines), i, i+1, data, code)
	return r
}
