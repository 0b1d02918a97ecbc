package traffic

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"syscall"

	"berth.dev/berth/kernel"
)

// The guard lowers the rate of one control group. That gets a class of its own, as the class that
// it has may be that of others, too: with the floor and the priority of that, and a lower ceiling.

// Of returns the device of an index if Berth divides it, else nil.
func (h *Host) Of(fsys fs.FS, index int) *Device {
	for _, d := range h.Devices {
		if d.By == "" {
			continue
		}
		info, err := fs.Stat(fsys, d.dir(d.By))
		if err != nil {
			continue
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Ino == uint64(index) {
			return d
		}
	}
	return nil
}

// Class returns what a class of a mark, 0 for none, has of a device. Without one, and where the
// device does not have it, that is what everybody else has; no floor of that is one's own.
func (d *Device) Class(minor uint16) Class {
	if c, ok := d.Has[minor]; ok && minor != 0 {
		return c
	}
	c := classOf(d.Has, othersMinor)
	c.Rate = min(noFloor, c.Ceil)
	return c
}

// FreeMinor returns a number for a class of the guard that no device has, and that is not taken.
// It is a *kernel.NotSupportedError where all are in use.
func (h *Host) FreeMinor(taken map[uint16]bool) (uint16, error) {
	for minor := uint16(firstGuarded); minor <= lastGuarded; minor++ {
		used := taken[minor]
		for _, d := range h.Devices {
			_, has := d.Has[minor]
			used = used || has
		}
		if !used {
			return minor, nil
		}
	}
	return 0, &kernel.NotSupportedError{Feature: "a lower rate of its own", Reason: fmt.Sprintf("all %d groups that can have one do", lastGuarded-firstGuarded+1)}
}

// Lower returns the writes that give a control group, of the class of a mark, class minor in its
// place: with at most so many bytes per second on a device, and never less than the floor. The
// other devices have a copy of the class.
func (h *Host) Lower(group string, of, minor uint16, device string, bytes int64) (plan kernel.Plan) {
	for _, name := range slices.Sorted(maps.Keys(h.Devices)) {
		d := h.Devices[name]
		c := d.Class(of)
		_, own := d.Has[of]
		switch {
		case d.By == "" || c.Ceil == 0:
			continue
		case name == device:
			c.Ceil = max(c.Rate, min(c.Ceil, uint64(bytes)))
		case !own:
			continue // it is among everybody else there, with or without a mark
		}
		plan = append(plan, kernel.Step{Path: d.file(d.By, minor), Value: c.String()})
	}
	return append(plan, kernel.Step{Path: MarkFile(group), Value: mark(minor)})
}

// IsClass reports whether a file stands for a class of a number, on any device.
func IsClass(name string, minor uint16) bool {
	n, ok := parse(name)
	_, of, isClass := n.class()
	return ok && isClass && of == minor
}
