package runq

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/watch/cgroupstat"
)

// idsBelow returns the ids of a group and of all below it, its own first.
func idsBelow(root, path string) ([]uint64, error) {
	ids, all, err := cgroupstat.IDsBelow(root, path, MaxBelow)
	if err == nil && !all {
		err = &CrowdedError{path}
	}
	return ids, err
}

// Name returns the group of a culprit, as a path below the root that begins with a
// slash. For one that has ended and was made while the probe was armed that is the
// closest group above it that is still there. It is fs.ErrNotExist without one. Of a
// program it is what stands for its path (Program).
// It takes a few system calls however many groups there are.
func (p *Probe) Name(id uint64) (string, error) {
	if id >= firstProgram {
		if i := slices.IndexFunc(p.slots, func(s slot) bool { return s.id == id }); i >= 0 {
			return p.slots[i].path, nil
		}
		return "", fmt.Errorf("name of program %d: %w", id, fs.ErrNotExist)
	}
	for range maxDepth {
		path, err := p.names.Of(id)
		if !errors.Is(err, fs.ErrNotExist) {
			return path, err
		}
		var from runqOrigin
		if p.objects.Made.Lookup(id, &from) != nil {
			break // made before the probe was armed, or long ago
		}
		id = from.Above
	}
	return "", fmt.Errorf("name of control group %d: %w", id, fs.ErrNotExist)
}

// maxDepth is how many groups above one are looked at for one that is still there.
const maxDepth = 16

// hierarchyNumber is that of the v1 cpu controller (/proc/cgroups, cgroups(7)).
func hierarchyNumber() (int32, error) {
	const file = "/proc/cgroups"
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("number of the cpu hierarchy: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "cpu" {
			number, err := strconv.ParseInt(fields[1], 10, 32)
			if err != nil {
				return 0, fmt.Errorf("number of the cpu hierarchy: %s: %w", file, err)
			}
			return int32(number), nil
		}
	}
	return 0, fmt.Errorf("number of the cpu hierarchy: not in %s", file)
}
