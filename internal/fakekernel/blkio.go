package fakekernel

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// keyed replaces, adds or removes the line of one device.
func (k *Kernel) keyed(dir, file, value string) error {
	words := strings.Fields(value)
	most := map[string]uint64{"io.weight": 10000, "io.bfq.weight": 1000, "blkio.bfq.weight_device": 1000}[file] // 0 for others
	if most > 0 && len(words) == 1 && file != "blkio.bfq.weight_device" {
		words = append([]string{"default"}, words...)
	}
	if len(words) == 0 || len(words) == 1 && file != "io.max" {
		return syscall.EINVAL
	}
	if err := k.device(words[0]); err != nil {
		return err
	}
	if most > 0 && words[0] != "default" && !k.weighed(words[0], file) {
		return syscall.EOPNOTSUPP
	}
	rest, lines := words[len(words)-1], k.lines(dir, file)
	if most > 0 && words[0] != "default" && rest == "default" {
		rest = ""
	} else if file == "io.max" {
		var err error
		if rest, err = ioMax(lines[words[0]], words[1:]); err != nil {
			return err
		}
	} else if n, err := strconv.ParseUint(rest, 10, 64); err != nil || most > 0 && (n < 1 || n > most) {
		return syscall.EINVAL
	} else if n == 0 {
		rest = ""
	}
	lines[words[0]] = rest
	return k.putLines(dir, file, lines)
}

// lines are those of a file by their keys.
func (k *Kernel) lines(dir, file string) map[string]string {
	lines := map[string]string{}
	for line := range strings.Lines(k.get(dir, file)) {
		key, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		lines[key] = rest
	}
	return lines
}

// putLines writes lines, but those of which nothing is left.
func (k *Kernel) putLines(dir, file string, lines map[string]string) error {
	var text []string
	for key, rest := range lines {
		if rest != "" {
			text = append(text, key+" "+rest)
		}
	}
	slices.Sort(text)
	return k.put(dir+"/"+file, strings.Join(text, "\n"))
}

// weighed reports whether a disk shares its time by a file: those of BFQ are for disks whose
// scheduler it is, io.weight is for those of io.cost (blkg_conf_prep in block/blk-cgroup.c).
func (k *Kernel) weighed(number, file string) bool {
	disk, there := k.disk(number)
	if !there {
		return k.layout.Devices == nil // any device, and any that shares its time
	}
	if file != "io.weight" {
		return strings.Contains(k.get(disk, "queue/scheduler"), "[bfq]")
	}
	for _, m := range k.mounts() {
		if m.version == 2 && strings.Contains(k.lines(m.dir, "io.cost.qos")[number], "enable=1") {
			return true
		}
	}
	return false
}

// latency is a write to io.latency: one word, target (iolatency_set_limit in
// block/blk-iolatency.c).
func (k *Kernel) latency(dir, value string) error {
	words := strings.Fields(value)
	if len(words) != 2 {
		return syscall.EINVAL
	}
	if err := k.device(words[0]); err != nil {
		return err
	}
	target, ok := strings.CutPrefix(words[1], "target=")
	if _, err := strconv.ParseUint(target, 10, 64); !ok || err != nil && target != "max" {
		return syscall.EINVAL
	}
	lines := k.lines(dir, "io.latency")
	if lines[words[0]] = words[1]; target == "max" || target == "0" {
		lines[words[0]] = ""
	}
	return k.putLines(dir, "io.latency", lines)
}

// costDefaults are the words of a line of io.cost.qos and io.cost.model (block/blk-iocost.c).
var costDefaults = map[string][][2]string{
	"io.cost.qos": {
		{"enable", "0"}, {"ctrl", "auto"}, {"rpct", "0.00"}, {"rlat", "250000"}, {"wpct", "0.00"}, {"wlat", "250000"}, {"min", "1.00"}, {"max", "10000.00"},
	},
	"io.cost.model": {
		{"ctrl", "auto"}, {"model", "linear"}, {"rbps", "174019176"}, {"rseqiops", "41708"}, {"rrandiops", "370"},
		{"wbps", "178075866"}, {"wseqiops", "42705"}, {"wrandiops", "378"},
	},
}

// cost merges words into the line of a disk, which then stays. A setting but for enable, ctrl
// and model makes it the user's.
func (k *Kernel) cost(dir, file, value string) error {
	words := strings.Fields(value)
	if len(words) < 2 {
		return syscall.EINVAL
	}
	if err := k.device(words[0]); err != nil {
		return err
	}
	lines := k.lines(dir, file)
	have := map[string]string{}
	for _, d := range costDefaults[file] {
		have[d[0]] = d[1]
	}
	for i, word := range append(strings.Fields(lines[words[0]]), words[1:]...) {
		name, text, ok := strings.Cut(word, "=")
		if _, known := have[name]; !ok || !known || text == "" {
			return syscall.EINVAL
		}
		have[name] = text
		if own := i >= len(strings.Fields(lines[words[0]])); own && name != "enable" && name != "ctrl" && name != "model" {
			have["ctrl"] = "user"
		}
	}
	var line []string
	for _, d := range costDefaults[file] {
		if have["ctrl"] == "auto" && d[0] != "enable" && d[0] != "model" { // ioc_refresh_params
			have[d[0]] = d[1]
		}
		line = append(line, d[0]+"="+have[d[0]])
	}
	lines[words[0]] = strings.Join(line, " ")
	return k.putLines(dir, file, lines)
}

// disk is the directory of a disk that was plugged in, by its number.
func (k *Kernel) disk(number string) (dir string, there bool) {
	all, _ := os.ReadDir(k.real("sys/block"))
	for _, e := range all {
		if dir := "sys/block/" + e.Name(); k.get(dir, "dev") == number {
			return dir, true
		}
	}
	return "", false
}

// PlugDisk makes a disk be there, with an I/O scheduler, "" for none, and with partitions,
// whose names are to begin with its own.
func (k *Kernel) PlugDisk(name, number, scheduler string, parts ...string) error {
	dir, text := "sys/block/"+name, "none mq-deadline"
	if scheduler != "" {
		text = "none [" + scheduler + "]"
	}
	files := map[string]string{dir + "/dev": number, dir + "/queue/scheduler": text}
	major, minor, _ := strings.Cut(number, ":")
	first, err := strconv.Atoi(minor)
	for i, part := range parts {
		files[dir+"/"+part+"/partition"] = strconv.Itoa(i + 1)
		files[dir+"/"+part+"/dev"] = fmt.Sprintf("%s:%d", major, first+i+1)
	}
	for file, text := range files {
		err = errors.Join(err, k.create(file, text))
	}
	if k.layout.Devices == nil {
		k.layout.Devices = []string{}
	}
	k.layout.Devices = append(k.layout.Devices, number)
	return err
}

// UnplugDisk takes a disk away, and its lines out of the files of all groups.
func (k *Kernel) UnplugDisk(name string) error {
	number := k.get("sys/block/"+name, "dev")
	k.layout.Devices = slices.DeleteFunc(k.layout.Devices, func(d string) bool { return d == number })
	err := os.RemoveAll(k.real("sys/block/" + name))
	for _, m := range k.mounts() {
		if !m.has("io") && !m.has("blkio") {
			continue
		}
		for dirs := []string{m.dir}; len(dirs) > 0; dirs = append(dirs[1:], k.children(dirs[0])...) {
			entries, _ := os.ReadDir(k.real(dirs[0]))
			for _, e := range entries {
				if io := strings.HasPrefix(e.Name(), "io.") || strings.HasPrefix(e.Name(), "blkio."); !io || e.IsDir() {
					continue
				}
				if lines := k.lines(dirs[0], e.Name()); lines[number] != "" {
					lines[number] = ""
					err = errors.Join(err, k.putLines(dirs[0], e.Name(), lines))
				}
			}
		}
	}
	return err
}

// device looks for the block device that a line is about.
func (k *Kernel) device(number string) error {
	major, minor, ok := strings.Cut(number, ":")
	_, errMajor := strconv.ParseUint(major, 10, 12)
	_, errMinor := strconv.ParseUint(minor, 10, 20)
	switch {
	case number == "default":
		return nil
	case !ok || errMajor != nil || errMinor != nil:
		return syscall.EINVAL
	case k.layout.Devices != nil && !slices.Contains(k.layout.Devices, number):
		return syscall.ENODEV
	}
	return nil
}

// ioMax merges "rbps=1 wiops=max" into a line of io.max; all max is no line.
func ioMax(line string, words []string) (string, error) {
	keys := []string{"rbps", "wbps", "riops", "wiops"}
	values := map[string]string{"rbps": "max", "wbps": "max", "riops": "max", "wiops": "max"}
	for _, word := range append(strings.Fields(line), words...) {
		key, value, ok := strings.Cut(word, "=")
		n, err := strconv.ParseUint(value, 10, 64)
		switch {
		case !ok || values[key] == "" || value != "max" && err != nil:
			return "", syscall.EINVAL
		case err == nil && n == 0:
			return "", syscall.ERANGE
		}
		values[key] = value
	}
	var out []string
	limited := false
	for _, key := range keys {
		out = append(out, key+"="+values[key])
		limited = limited || values[key] != "max"
	}
	if !limited {
		return "", nil
	}
	return strings.Join(out, " "), nil
}
