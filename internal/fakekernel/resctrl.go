package fakekernel

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// ResctrlDir is where the file system is mounted.
const ResctrlDir = "sys/fs/resctrl"

// Resctrl is a CPU that allocates caches and bandwidth, and the kernel's file system for it.
// Names, formats and refusals are those of Documentation/filesystems/resctrl.rst, whose
// sections the functions name. Words of last_cmd_status beyond those of that document are
// approximate.
type Resctrl struct {
	Vendor  string // vendor_id of /proc/cpuinfo; "" means none (Arm)
	Flags   string
	Lines   []ResctrlLine
	Domains []int // cache ids
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
	Throttle  string
}

func (l *ResctrlLine) cache() bool { return l.Mask != 0 }

func (l *ResctrlLine) base() int {
	if l.cache() {
		return 16
	}
	return 10
}

var mbm = []string{"llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"}

// ResctrlCPUs are CPUs as the kernel document and the vendors' manuals describe them: none
// of these is a copy of a real machine's tree.
func ResctrlCPUs() map[string]Resctrl {
	intel := func(ways, shareable uint64, closids int, cdp, sparse bool) Resctrl {
		r := Resctrl{Vendor: "GenuineIntel", Flags: "rdt_a cat_l3 cdp_l3 mba cqm_llc", Domains: []int{0, 1}, RMIDs: 176, Events: mbm, Padded: true}
		l3 := ResctrlLine{Name: "L3", CLOSIDs: closids, Mask: ways, MinBits: 1, Shareable: shareable, Sparse: sparse}
		r.Lines = []ResctrlLine{l3}
		if cdp { // "When CDP is enabled L3 control is split into two separate resources"
			l3.CLOSIDs /= 2
			data, code := l3, l3
			data.Name, code.Name = "L3DATA", "L3CODE"
			r.Lines = []ResctrlLine{data, code}
		}
		r.Lines = append(r.Lines, ResctrlLine{Name: "MB", CLOSIDs: 8, Min: 10, Step: 10, Max: 100, Throttle: "max"})
		return r
	}
	amd := func(domains int, smba bool, counters int) Resctrl {
		r := Resctrl{Vendor: "AuthenticAMD", Flags: "rdt_a cat_l3 cdp_l3 mba cqm_llc", RMIDs: 256, Events: mbm, Counters: counters}
		for i := range domains {
			r.Domains = append(r.Domains, i)
		}
		r.Lines = []ResctrlLine{{Name: "MB", CLOSIDs: 16, Min: 1, Step: 1, Max: 2048}, {Name: "L3", CLOSIDs: 16, Mask: 0xffff, MinBits: 1, Sparse: true}}
		if smba {
			r.Lines = append([]ResctrlLine{{Name: "SMBA", CLOSIDs: 16, Min: 1, Step: 1, Max: 2048}}, r.Lines...)
		}
		return r
	}
	sapphire := intel(0x7fff, 0, 15, false, false)
	sapphire.Lines = append(sapphire.Lines, ResctrlLine{Name: "L2", CLOSIDs: 8, Mask: 0xffff, MinBits: 1})
	sapphire.Lines[1].Throttle = "per-thread"
	return map[string]Resctrl{
		"skylake": intel(0x7ff, 0x600, 16, false, false), "skylake-cdp": intel(0x7ff, 0x600, 16, true, false),
		"icelake": intel(0xfff, 0xc00, 15, false, false), "sapphirerapids": sapphire, "emeraldrapids": intel(0xfffff, 0, 15, false, true), "emeraldrapids-cdp": intel(0xfffff, 0, 15, true, true),
		"zen2": amd(8, false, 0), "zen3": amd(8, false, 0), "zen4": amd(12, true, 0), "zen5": amd(16, true, 32),
		"mpam": {Domains: []int{1, 2, 7}, RMIDs: 64, Events: mbm[:1], Lines: []ResctrlLine{
			{Name: "L3", CLOSIDs: 32, Mask: 0xffff, MinBits: 1, Sparse: true}, {Name: "MB", CLOSIDs: 32, Min: 1, Step: 1, Max: 100},
		}},
	}
}

// mountResctrl makes what is there after mounting ("Info directory", "Resource alloc and
// monitor groups").
func (k *Kernel) mountResctrl() error {
	r := k.layout.Resctrl
	files := map[string]string{
		"proc/filesystems": "nodev\tresctrl", ResctrlDir + "/info/last_cmd_status": "ok",
		"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu " + r.Flags,
	}
	if r.Vendor != "" {
		files["proc/cpuinfo"] = "processor\t: 0\nvendor_id\t: " + r.Vendor + "\nflags\t\t: fpu " + r.Flags
	}
	for i := range r.Lines {
		l := &r.Lines[i]
		info := ResctrlDir + "/info/" + l.Name + "/"
		files[info+"num_closids"] = fmt.Sprint(l.CLOSIDs)
		if l.cache() {
			files[info+"cbm_mask"], files[info+"min_cbm_bits"], files[info+"shareable_bits"] = fmt.Sprintf("%x", l.Mask), fmt.Sprint(l.MinBits), fmt.Sprintf("%x", l.Shareable)
			files[info+"sparse_masks"] = map[bool]string{true: "1", false: "0"}[l.Sparse]
			continue
		}
		files[info+"min_bandwidth"], files[info+"bandwidth_gran"], files[info+"delay_linear"] = fmt.Sprint(l.Min), fmt.Sprint(l.Step), "1"
		if l.Throttle != "" {
			files[info+"thread_throttle_mode"] = l.Throttle
		}
	}
	if r.RMIDs > 0 {
		mon := ResctrlDir + "/info/L3_MON/"
		files[mon+"mon_features"], files[mon+"num_rmids"], files[mon+"max_threshold_occupancy"] = strings.Join(r.Events, "\n"), fmt.Sprint(r.RMIDs), "65536"
		if r.Counters > 0 {
			files[mon+"mbm_assign_mode"] = "[mbm_event]\ndefault"
			var n []string
			for _, id := range r.Domains {
				n = append(n, fmt.Sprintf("%d=%d", id, r.Counters))
			}
			files[mon+"num_mbm_cntrs"] = strings.Join(n, ";")
		}
	}
	for name, text := range files {
		if err := k.create(name, text); err != nil {
			return err
		}
	}
	return k.newResctrlGroup(ResctrlDir, true)
}

// inResctrl splits a path into the directory of a group and a file.
func (k *Kernel) inResctrl(name string) (group, file string, ok bool) {
	if k.layout.Resctrl == nil || !strings.HasPrefix(name, ResctrlDir+"/") {
		return "", "", false
	}
	return path.Dir(name), path.Base(name), true
}

// newResctrlGroup makes the files of a group ("All groups contain the following files").
func (k *Kernel) newResctrlGroup(dir string, controls bool) error {
	r := k.layout.Resctrl
	files := map[string]string{"tasks": "", "cpus": "0", "cpus_list": ""}
	if controls {
		files["mode"] = "shareable"
		if r.MBps {
			files["mba_MBps_event"] = "mbm_local_bytes"
		}
	}
	for _, id := range r.Domains {
		for _, event := range r.Events {
			files[fmt.Sprintf("mon_data/mon_L3_%02d/%s", id, event)] = "0"
		}
	}
	if r.Counters > 0 { // "mbm_assign_on_mkdir" is "1": as far as counters are free
		var lines []string
		for _, event := range r.Events {
			if strings.HasPrefix(event, "mbm_") {
				lines = append(lines, k.assignment(event, k.counted(event) < r.Counters/2))
			}
		}
		files["mbm_L3_assignments"] = strings.Join(lines, "\n")
	}
	for name, text := range files {
		if err := k.create(dir+"/"+name, text); err != nil {
			return err
		}
	}
	if !controls {
		return nil
	}
	if r.RMIDs > 0 {
		if err := os.MkdirAll(k.real(dir+"/mon_groups"), 0o755); err != nil {
			return err
		}
	}
	// "A new resource group will on creation not overlap with an exclusive resource group".
	all := map[string]map[int]uint64{}
	for i := range r.Lines {
		l := &r.Lines[i]
		all[l.Name] = map[int]uint64{}
		for _, id := range r.Domains {
			n := k.most(l)
			if l.cache() {
				n = l.Mask
				for _, other := range k.resctrlGroups() {
					if other != dir && k.get(other, "mode") == "exclusive" {
						n &^= k.schemata(other)[l.Name][id]
					}
				}
				if n == 0 {
					return k.status(syscall.ENOSPC, "No space on %s:%d", l.Name, id)
				}
				n = run(n, l.Sparse)
			}
			all[l.Name][id] = n
		}
	}
	return k.putSchemata(dir, all)
}

// run is the lowest run of bits.
func run(n uint64, sparse bool) uint64 {
	if sparse {
		return n
	}
	start := bits.TrailingZeros64(n)
	return n & (1<<(start+bits.TrailingZeros64(^(n>>start))) - 1)
}

func (k *Kernel) most(l *ResctrlLine) uint64 {
	if k.layout.Resctrl.MBps && l.Name == "MB" {
		return 1<<32 - 1
	}
	return l.Max
}

// status sets last_cmd_status and returns the error of the command.
func (k *Kernel) status(err error, form string, args ...any) error {
	return cmp.Or(k.put(ResctrlDir+"/info/last_cmd_status", fmt.Sprintf(form, args...)), err)
}

// resctrlGroups are those that allocate, the default group first.
func (k *Kernel) resctrlGroups() []string {
	all := []string{ResctrlDir}
	for _, dir := range k.children(ResctrlDir) {
		if k.exists(dir + "/schemata") {
			all = append(all, dir)
		}
	}
	return all
}

func (k *Kernel) schemata(dir string) map[string]map[int]uint64 {
	all := map[string]map[int]uint64{}
	for line := range strings.Lines(k.get(dir, "schemata")) {
		name, list, _ := strings.Cut(strings.TrimSpace(line), ":")
		all[name] = map[int]uint64{}
		base := 10
		if name[0] == 'L' {
			base = 16
		}
		for item := range strings.SplitSeq(list, ";") {
			id, n, _ := strings.Cut(item, "=")
			i, _ := strconv.Atoi(strings.TrimSpace(id))
			all[name][i], _ = strconv.ParseUint(strings.TrimSpace(n), base, 64)
		}
	}
	return all
}

func (k *Kernel) putSchemata(dir string, all map[string]map[int]uint64) error {
	r := k.layout.Resctrl
	var b strings.Builder
	for i := range r.Lines {
		l := &r.Lines[i]
		var items []string
		for _, id := range r.Domains {
			n := all[l.Name][id]
			switch {
			case !l.cache():
				items = append(items, fmt.Sprintf("%d=%4d", id, n))
			case r.Padded:
				items = append(items, fmt.Sprintf("%d=%0*x", id, (bits.Len64(l.Mask)+3)/4, n))
			default:
				items = append(items, fmt.Sprintf("%d=%x", id, n))
			}
		}
		fmt.Fprintf(&b, "%6s:%s\n", l.Name, strings.Join(items, ";"))
	}
	return k.put(dir+"/schemata", b.String())
}

func (k *Kernel) writeResctrl(dir, file, data string) error {
	if err := k.status(nil, "ok"); err != nil {
		return err
	}
	if !k.exists(dir + "/" + file) {
		return syscall.ENOENT
	}
	switch file {
	case "schemata":
		return k.writeSchemata(dir, data)
	case "mode":
		return k.writeMode(dir, strings.TrimSpace(data))
	case "tasks":
		return k.writeTasks(dir, strings.TrimSpace(data))
	case "mbm_L3_assignments":
		return k.writeAssignments(dir, strings.TrimSpace(data))
	case "mba_MBps_event", "max_threshold_occupancy":
		return k.put(dir+"/"+file, strings.TrimSpace(data))
	}
	return syscall.EACCES
}

// writeSchemata: "When writing you only need to specify those values which you wish to
// change." Nothing changes unless all is right.
func (k *Kernel) writeSchemata(dir, data string) error {
	r := k.layout.Resctrl
	all := k.schemata(dir)
	for line := range strings.Lines(data) {
		name, list, ok := strings.Cut(strings.TrimSpace(line), ":")
		i := slices.IndexFunc(r.Lines, func(l ResctrlLine) bool { return l.Name == strings.TrimSpace(name) })
		switch {
		case !ok:
			return k.status(syscall.EINVAL, "Missing ':'")
		case list == "":
			return k.status(syscall.EINVAL, "Missing '%s' value", name)
		case i < 0:
			return k.status(syscall.EINVAL, "Unknown or unsupported resource name '%s'", name)
		}
		l, seen := &r.Lines[i], map[int]bool{}
		for item := range strings.SplitSeq(strings.TrimSuffix(list, ";"), ";") {
			idText, text, ok := strings.Cut(item, "=")
			id, err := strconv.Atoi(strings.TrimSpace(idText))
			switch {
			case !ok || err != nil:
				return k.status(syscall.EINVAL, "Missing '=' or non-numeric domain")
			case !slices.Contains(r.Domains, id):
				return k.status(syscall.EINVAL, "Unknown domain %d", id)
			case seen[id]:
				return k.status(syscall.EINVAL, "Duplicate domain %d", id)
			}
			seen[id] = true
			n, err := k.validate(dir, l, id, strings.TrimSpace(text))
			if err != nil {
				return err
			}
			all[l.Name][id] = n
		}
	}
	return k.putSchemata(dir, all)
}

// validate checks one number ("Cache Bit Masks", "Memory bandwidth Allocation").
func (k *Kernel) validate(dir string, l *ResctrlLine, id int, text string) (uint64, error) {
	n, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), l.base(), 64)
	if !l.cache() {
		switch {
		case err != nil:
			return 0, k.status(syscall.EINVAL, "Non-decimal digit in MB value %s", text)
		case k.layout.Resctrl.MBps && l.Name == "MB":
			return n, nil
		case n < l.Min || n > l.Max:
			return 0, k.status(syscall.EINVAL, "MB value %d out of range [%d,%d]", n, l.Min, l.Max)
		}
		// "Intermediate values are rounded to the next control step".
		return min(l.Max, l.Min+(n-l.Min+l.Step-1)/l.Step*l.Step), nil
	}
	switch {
	case err != nil:
		return 0, k.status(syscall.EINVAL, "Non-hex character in the mask %s", text)
	case n == 0 || n > l.Mask:
		return 0, k.status(syscall.EINVAL, "Mask out of range")
	case !l.Sparse && bits.OnesCount64(n) != bits.Len64(n)-bits.TrailingZeros64(n):
		return 0, k.status(syscall.EINVAL, "mask %x has non-consecutive 1-bits", n)
	case bits.OnesCount64(n) < l.MinBits:
		return 0, k.status(syscall.EINVAL, "Need at least %d bits in the mask", l.MinBits)
	}
	exclusive := k.get(dir, "mode") == "exclusive"
	for _, other := range k.resctrlGroups() {
		if other == dir || k.schemata(other)[l.Name][id]&n == 0 {
			continue
		}
		if k.get(other, "mode") == "exclusive" {
			return 0, k.status(syscall.EINVAL, "overlaps with exclusive group")
		}
		if exclusive {
			return 0, k.status(syscall.EINVAL, "overlaps with other group")
		}
	}
	if exclusive && n&l.Shareable != 0 {
		return 0, k.status(syscall.EINVAL, "overlaps with other group")
	}
	return n, nil
}

// writeMode: example 4 of the document.
func (k *Kernel) writeMode(dir, mode string) error {
	if mode == k.get(dir, "mode") {
		return nil
	}
	switch mode {
	case "shareable":
		return k.put(dir+"/mode", mode)
	case "exclusive":
	default:
		return k.status(syscall.EINVAL, "Unknown or unsupported mode")
	}
	own := k.schemata(dir)
	for i := range k.layout.Resctrl.Lines {
		l := &k.layout.Resctrl.Lines[i]
		if !l.cache() {
			continue
		}
		for id, n := range own[l.Name] {
			overlaps := n&l.Shareable != 0
			for _, other := range k.resctrlGroups() {
				overlaps = overlaps || other != dir && k.schemata(other)[l.Name][id]&n != 0
			}
			if overlaps {
				return k.status(syscall.EINVAL, "schemata overlaps")
			}
		}
	}
	return k.put(dir+"/mode", mode)
}

// mkdirResctrl: "the creation of a "CTRL_MON" directory may fail if we run out of either
// CLOSID or RMID and creation of "MON" group may fail if we run out of RMIDs", and EBUSY if
// there are some in limbo.
func (k *Kernel) mkdirResctrl(dir string) error {
	r := k.layout.Resctrl
	if err := k.status(nil, "ok"); err != nil {
		return err
	}
	around, monitors := k.parentOf(dir)
	switch {
	case k.exists(dir):
		return syscall.EEXIST
	case strings.ContainsAny(path.Base(dir), "\n"):
		return syscall.EINVAL
	case !monitors && path.Dir(dir) != ResctrlDir, monitors && !k.exists(around+"/mon_groups"):
		return syscall.EPERM
	}
	if r.RMIDs > 0 && len(k.allResctrlGroups())+k.limbo >= r.RMIDs {
		if k.limbo > 0 {
			return k.status(syscall.EBUSY, "Out of RMIDs")
		}
		return k.status(syscall.ENOSPC, "Out of RMIDs")
	}
	if !monitors {
		least := r.Lines[0].CLOSIDs
		for _, l := range r.Lines {
			least = min(least, l.CLOSIDs)
		}
		if len(k.resctrlGroups()) >= least {
			return k.status(syscall.ENOSPC, "Out of CLOSIDs")
		}
	}
	if err := os.Mkdir(k.real(dir), 0o755); err != nil {
		return err
	}
	if err := k.newResctrlGroup(dir, !monitors); err != nil {
		return errors.Join(err, os.RemoveAll(k.real(dir)))
	}
	return nil
}

// rmdirResctrl: "Removing a directory will move all tasks and cpus owned by the group it
// represents to the parent. Removing one of the created CTRL_MON groups will automatically
// remove all MON groups below it."
func (k *Kernel) rmdirResctrl(dir string) error {
	around, monitors := k.parentOf(dir)
	if !k.exists(dir) {
		return syscall.ENOENT
	}
	if !k.exists(dir+"/tasks") || path.Base(dir) == "info" {
		return syscall.EPERM
	}
	to, gone := ResctrlDir, append([]string{dir}, k.children(dir+"/mon_groups")...)
	if monitors {
		to, gone = around, []string{dir}
	}
	tasks := strings.Fields(k.get(to, "tasks"))
	for _, g := range gone {
		tasks = append(tasks, strings.Fields(k.get(g, "tasks"))...)
	}
	if k.layout.Resctrl.Limbo {
		k.limbo += len(gone)
	}
	return cmp.Or(k.put(to+"/tasks", strings.Join(tasks, "\n")), os.RemoveAll(k.real(dir)))
}

// assignment is a line of mbm_L3_assignments: "e" for an exclusive counter, "_" for none.
func (k *Kernel) assignment(event string, on bool) string {
	var items []string
	for _, id := range k.layout.Resctrl.Domains {
		items = append(items, fmt.Sprintf("%d=%s", id, map[bool]string{true: "e", false: "_"}[on]))
	}
	return event + ":" + strings.Join(items, ";")
}

// counted is how many groups have a counter for an event; half of the counters are for either.
func (k *Kernel) counted(event string) (n int) {
	for _, g := range k.allResctrlGroups() {
		if strings.Contains(k.get(g, "mbm_L3_assignments"), event+":"+"0=e") {
			n++
		}
	}
	return n
}

// writeAssignments: "echo "mbm_total_bytes:*=e" > mbm_L3_assignments", and "_" gives the counter
// back. Here it is of all domains at once.
func (k *Kernel) writeAssignments(dir, data string) error {
	event, how, ok := strings.Cut(data, ":*=")
	if !ok || how != "e" && how != "_" {
		return k.status(syscall.EINVAL, "Invalid assign state")
	}
	lines := strings.Split(k.get(dir, "mbm_L3_assignments"), "\n")
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, event+":") })
	switch {
	case i < 0:
		return k.status(syscall.EINVAL, "Event %s not found", event)
	case how == "e" && lines[i] != k.assignment(event, true) && k.counted(event) >= k.layout.Resctrl.Counters/2:
		return k.status(syscall.ENOSPC, "Failed to allocate counter for %s", event)
	}
	lines[i] = k.assignment(event, how == "e")
	return k.put(dir+"/mbm_L3_assignments", strings.Join(lines, "\n"))
}

// Settle has the lines of removed groups leave the cache.
func (k *Kernel) Settle() { k.limbo = 0 }
