package fakekernel

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
)

// ResctrlDir is where the file system is mounted.
const ResctrlDir = "sys/fs/resctrl"

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
			if r.Devices != nil && strings.HasPrefix(l.Name, "L3") { // "disabled" and "not supported" show no masks
				var masks []string
				for _, id := range r.Domains {
					masks = append(masks, fmt.Sprintf("%d=%x", id, r.Devices[id]))
				}
				files[info+"io_alloc"], files[info+"io_alloc_cbm"] = "enabled", strings.Join(masks, ";")
			}
			continue
		}
		files[info+"min_bandwidth"], files[info+"bandwidth_gran"], files[info+"delay_linear"] = fmt.Sprint(l.Min), fmt.Sprint(l.Step), map[bool]string{true: "1", false: "0"}[l.Max == 100]
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
		for _, id := range r.domains(l) {
			n := k.most(l)
			if l.cache() {
				n = l.Mask
				for _, other := range k.resctrlGroups() {
					if other != dir && k.get(other, "mode") == "exclusive" {
						n &^= k.schemata(other)[l.Name][id]
					}
				}
				if bits.OnesCount64(n) < l.MinBits {
					return k.status(syscall.ENOSPC, "No space on %s:%d", l.Name, id)
				}
				if n != 0 {
					n = run(n, l.Sparse)
				}
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
		for _, id := range r.domains(l) {
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
	if !monitors && len(k.resctrlGroups()) >= r.closids() {
		return k.status(syscall.ENOSPC, "Out of CLOSIDs")
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

// Settle has the lines of removed groups leave the cache.
func (k *Kernel) Settle() { k.limbo = 0 }
