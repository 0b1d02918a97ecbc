package traffic

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// dropped is the text of allDropped.
func (f *files) dropped() (string, error) {
	devices, err := f.calls.Devices()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, device := range slices.Sorted(maps.Keys(devices)) {
		for _, by := range []Mechanism{HTB, EDT} {
			index, err := f.own(name{device, string(by)}, by)
			if err != nil {
				continue // it does not divide the device
			}
			lost, err := f.calls.Dropped(by, index)
			if err != nil {
				continue // it was just removed
			}
			for _, minor := range slices.Sorted(maps.Keys(lost)) {
				fmt.Fprintf(&b, "%s %04x %d\n", device, minor, lost[minor])
			}
		}
	}
	return b.String(), nil
}

// DroppedOf returns how many packets the limit of a control group has dropped since it was set, and
// how many that of its class, of all groups in that; ok is false where there is neither.
func DroppedOf(fsys fs.FS, group string) (own, together uint64, ok bool) {
	text, err := fs.ReadFile(fsys, path.Join(group, droppedFile))
	if err == nil {
		_, err = fmt.Sscan(string(text), &own, &together)
	}
	return own, together, err == nil
}

// Dropped returns how many packets each class has lost at each device that is divided into classes,
// since it came: those that found its queue full or, by EDT, were due too late. Without any it is empty.
func Dropped(fsys fs.FS) map[string]map[uint16]uint64 {
	all := map[string]map[uint16]uint64{}
	text, _ := fs.ReadFile(fsys, path.Join(dir, allDropped)) // without it, nothing is known
	for line := range strings.Lines(string(text)) {
		var device string
		var minor uint16
		var packets uint64
		if _, err := fmt.Sscanf(line, "%s %x %d", &device, &minor, &packets); err != nil {
			continue
		}
		if all[device] == nil {
			all[device] = map[uint16]uint64{}
		}
		all[device][minor] = packets
	}
	return all
}
