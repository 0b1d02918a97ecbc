package blockio

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/kernel"
)

// Disk is a whole block device, which the kernel limits and weighs; a partition is part of one.
type Disk struct {
	Name   string `json:"name"`   // as in /sys/block
	Number string `json:"number"` // "254:0"
	// Scheduler is the I/O scheduler in use, "" if it has none.
	Scheduler string `json:"scheduler,omitempty"`
	// Cost is true if io.cost divides its time.
	Cost bool `json:"cost,omitempty"`
}

// Devices are the block devices of a host, as they were when they were read.
type Devices struct {
	Disks  []Disk
	fsys   fs.FS
	parts  map[string]string // names of partitions to those of their disks
	number map[string]string // numbers to names, of partitions too
	mapped map[string]string // names of the device mapper (LVM) to those of disks
	below  map[string][]string
	mounts []kernel.Mount
	err    error // why mounts are not known
	cost   bool  // the kernel has io.cost, and so the weight of a group is that of io.cost
}

// Read reads /sys/block and the mounts. It looks at links in /dev when it is asked about
// them. costFile is the io.cost.qos of the root group, "" for none.
func Read(fsys fs.FS, costFile string) (*Devices, error) {
	d := &Devices{fsys: fsys, parts: map[string]string{}, number: map[string]string{}, mapped: map[string]string{}, below: map[string][]string{}}
	entries, err := fs.ReadDir(fsys, "sys/block")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("block devices: %w", err)
	}
	cost := ""
	if costFile != "" {
		_, err := fs.Stat(fsys, costFile)
		cost, d.cost = d.text(costFile), err == nil
	}
	for _, e := range entries {
		dir := "sys/block/" + e.Name()
		disk := Disk{Name: strings.ReplaceAll(e.Name(), "!", "/"), Number: d.text(dir + "/dev"), Scheduler: chosen(d.text(dir + "/queue/scheduler"))}
		if disk.Number == "" {
			continue // it has just gone
		}
		for line := range strings.Lines(cost) {
			words := strings.Fields(line)
			disk.Cost = disk.Cost || len(words) > 0 && words[0] == disk.Number && slices.Contains(words, "enable=1")
		}
		d.Disks = append(d.Disks, disk)
		d.number[disk.Number] = disk.Name
		if name := d.text(dir + "/dm/name"); name != "" {
			d.mapped[name] = disk.Name
		}
		d.parted(dir, e.Name(), disk.Name)
	}
	d.mounts, d.err = kernel.ReadMounts(fsys)
	return d, nil
}

// parted adds the partitions of a disk, and what it lies on.
func (d *Devices) parted(dir, base, disk string) {
	below, _ := fs.ReadDir(d.fsys, dir) // what has gone has none
	for _, e := range below {
		number := ""
		if strings.HasPrefix(e.Name(), base) && d.text(dir+"/"+e.Name()+"/partition") != "" {
			number = d.text(dir + "/" + e.Name() + "/dev")
		}
		if name := strings.ReplaceAll(e.Name(), "!", "/"); number != "" {
			d.parts[name], d.number[number] = disk, name
		}
	}
	slaves, _ := fs.ReadDir(d.fsys, dir+"/slaves")
	for _, e := range slaves {
		d.below[disk] = append(d.below[disk], strings.ReplaceAll(e.Name(), "!", "/"))
	}
}

func (d *Devices) text(name string) string {
	text, _ := fs.ReadFile(d.fsys, name) // what is not there says nothing
	return strings.TrimSpace(string(text))
}

// chosen is the word in brackets, "" for none.
func chosen(text string) string {
	_, after, _ := strings.Cut(text, "[")
	if name, _, ok := strings.Cut(after, "]"); ok && name != "none" {
		return name
	}
	return ""
}

// Find returns the disks that a name, number, volume group or path of the configuration
// stands for, by rising name; where there are none, why.
func (d *Devices) Find(pattern string) (disks []Disk, reason string) {
	var names []string
	if vg, ok := strings.CutPrefix(pattern, "vg:"); ok {
		names, reason = d.volumeGroup(vg), "no volume of the group is there"
	} else if rest, ok := strings.CutPrefix(pattern, "/dev/"); ok {
		names, reason = d.inDev(rest), "no such block device"
	} else if strings.Contains(pattern, "/") {
		names, reason = d.belowPath(pattern, 0)
	} else if name := d.number[pattern]; name != "" {
		names = []string{name}
	} else {
		names, reason = d.named(pattern), "no such block device"
	}
	for _, name := range names {
		disk := name
		if of := d.parts[name]; of != "" {
			disk = of
		}
		i := slices.IndexFunc(d.Disks, func(k Disk) bool { return k.Name == disk })
		if i >= 0 && !slices.Contains(disks, d.Disks[i]) {
			disks = append(disks, d.Disks[i])
		}
	}
	slices.SortFunc(disks, func(a, b Disk) int { return strings.Compare(a.Name, b.Name) })
	if len(disks) > 0 {
		reason = ""
	}
	return disks, reason
}

// Name returns the name of a device, by its number, or else the number.
func (d *Devices) Name(number string) string { return cmp.Or(d.number[number], number) }

// named are the devices whose name matches a glob.
func (d *Devices) named(glob string) (names []string) {
	for _, name := range d.number {
		if ok, _ := path.Match(glob, name); ok {
			names = append(names, name)
		}
	}
	return names
}

// literally makes a glob that matches one name only.
var literally = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`)

// inDev are the devices that entries of /dev stand for: by their name or, as links, by what
// they point to.
func (d *Devices) inDev(glob string) []string {
	names := d.named(glob)
	if mapped, ok := strings.CutPrefix(glob, "mapper/"); ok {
		for name, disk := range d.mapped {
			if ok, _ := path.Match(mapped, name); ok {
				names = append(names, disk)
			}
		}
	}
	found, _ := fs.Glob(d.fsys, "dev/"+glob)
	// One without wildcards is not found where what it points to is not there, as in a unit's own /dev.
	for _, name := range append(found, "dev/"+glob) {
		if target, err := fs.ReadLink(d.fsys, name); err == nil {
			if !path.IsAbs(target) {
				target = path.Join("/", path.Dir(name), target)
			}
			names = append(names, strings.TrimPrefix(target, "/dev/"))
		}
	}
	return names
}

// volumeGroup are the disks below the volumes of a group of LVM, whose names are
// GROUP-VOLUME, each with doubled dashes.
func (d *Devices) volumeGroup(vg string) (names []string) {
	prefix := strings.ReplaceAll(vg, "-", "--") + "-"
	for name, disk := range d.mapped {
		if rest, ok := strings.CutPrefix(name, prefix); ok && !strings.HasPrefix(rest, "-") {
			names = append(names, d.bottom(disk, 0)...)
		}
	}
	return names
}

// bottom are the devices that one lies on in the end.
func (d *Devices) bottom(name string, depth int) (names []string) {
	const most = 8
	if len(d.below[name]) == 0 || depth == most {
		return []string{name}
	}
	for _, below := range d.below[name] {
		names = append(names, d.bottom(below, depth+1)...)
	}
	return names
}

// belowPath is the device below what is mounted at a path. It follows no link, which another
// user may have made.
func (d *Devices) belowPath(name string, depth int) (names []string, reason string) {
	if d.err != nil {
		return nil, fmt.Sprintf("the mounts are not known: %v", d.err)
	}
	rel := strings.TrimPrefix(name, "/")
	if rel == "" {
		rel = "."
	}
	at := "."
	for element := range strings.SplitSeq(rel, "/") {
		at = path.Join(at, element)
		info, err := fs.Lstat(d.fsys, at)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, "no such path"
		}
		if err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return nil, fmt.Sprintf("/%s is a link: name what it points to", at)
		}
	}
	mount := kernel.MountOf(d.mounts, rel)
	if mount == nil {
		return nil, "nothing is mounted there"
	}
	if of := d.number[mount.Device]; of != "" {
		return []string{of}, ""
	}
	// A file system with numbers of its own; only root mounts btrfs. The source of others, of
	// FUSE say, is what a user wrote.
	if source, ok := strings.CutPrefix(mount.Source, "/dev/"); ok && mount.Type == "btrfs" {
		if names := d.inDev(literally.Replace(source)); len(names) > 0 {
			return names, ""
		}
	}
	for _, option := range mount.Options {
		if upper, ok := strings.CutPrefix(option, "upperdir="); ok && path.IsAbs(upper) && depth == 0 {
			return d.belowPath(path.Clean(upper), 1)
		}
	}
	return nil, fmt.Sprintf("%s is mounted there, which lies on no block device", mount.Type)
}
