package fakekernel

import (
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

func (k *Kernel) writeResctrl(dir, file, data string) error {
	if err := k.status(nil, "ok"); err != nil {
		return err
	}
	if !k.exists(dir + "/" + file) {
		return syscall.ENOENT
	}
	if slices.Contains([]string{"schemata", "mode", "mbm_L3_assignments", "mba_MBps_event"}, file) && !strings.HasSuffix(data, "\n") {
		return syscall.EINVAL // "Valid input requires a trailing newline" (fs/resctrl)
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
			case !slices.Contains(r.domains(l), id):
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
	case n == 0 && l.MinBits > 0 || n > l.Mask:
		return 0, k.status(syscall.EINVAL, "Mask out of range")
	case !l.Sparse && bits.OnesCount64(n) != bits.Len64(n)-bits.TrailingZeros64(n):
		return 0, k.status(syscall.EINVAL, "mask %x has non-consecutive 1-bits", n)
	case bits.OnesCount64(n) < l.MinBits:
		return 0, k.status(syscall.EINVAL, "Need at least %d bits in the mask", l.MinBits)
	}
	exclusive := k.get(dir, "mode") == "exclusive"
	for _, other := range k.resctrlGroups() {
		if other == dir || k.filled(other, l, id)&n == 0 {
			continue
		}
		if k.get(other, "mode") == "exclusive" {
			return 0, k.status(syscall.EINVAL, "overlaps with exclusive group")
		}
		if exclusive {
			return 0, k.status(syscall.EINVAL, "overlaps with other group")
		}
	}
	if exclusive && n&k.layout.Resctrl.byDevices(l, id) != 0 {
		return 0, k.status(syscall.EINVAL, "overlaps with other group")
	}
	return n, nil
}

// filled are the ways that a group may fill: code and data lie in the same ones, so the kernel
// looks at both (rdtgroup_cbm_overlaps).
func (k *Kernel) filled(dir string, l *ResctrlLine, id int) (ways uint64) {
	all := k.schemata(dir)
	for i := range k.layout.Resctrl.Lines {
		if o := &k.layout.Resctrl.Lines[i]; o.cache() && o.Name[:2] == l.Name[:2] {
			ways |= all[o.Name][id]
		}
	}
	return ways
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
			overlaps := n&k.layout.Resctrl.byDevices(l, id) != 0
			for _, other := range k.resctrlGroups() {
				overlaps = overlaps || other != dir && k.filled(other, l, id)&n != 0
			}
			if overlaps {
				return k.status(syscall.EINVAL, "schemata overlaps")
			}
		}
	}
	return k.put(dir+"/mode", mode)
}
