package sysfs

import (
	"io/fs"
	"strconv"
	"strings"
)

// Memory is MemTotal of /proc/meminfo in bytes, 0 if that cannot be read. NUMA nodes may add
// up to less: some kernels count there only what was there at boot.
func Memory(fsys fs.FS) int64 {
	text, err := fs.ReadFile(fsys, "proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" && f[2] == "kB" {
			if kib, err := strconv.ParseInt(f[1], 10, 54); err == nil && kib > 0 {
				return kib << 10
			}
		}
	}
	return 0
}
