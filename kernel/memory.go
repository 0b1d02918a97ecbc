package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// Memory is what the host has, in bytes (/proc/meminfo, proc_meminfo(5)).
type Memory struct {
	// Total is MemTotal. NUMA nodes may add up to less: some kernels count there only what
	// was there at boot.
	Total int64
	// Available is MemAvailable, the kernel's estimate of what can be taken without swapping.
	Available int64
}

// ReadMemory reads proc/meminfo below the file system that stands for "/". A file that lacks
// one of both, as kernels before 3.14 do, is an error.
func ReadMemory(fsys fs.FS) (Memory, error) {
	text, err := fs.ReadFile(fsys, "proc/meminfo")
	if err != nil {
		return Memory{}, fmt.Errorf("read memory: %w", err)
	}
	m, err := parseMemory(string(text))
	if err != nil {
		return Memory{}, fmt.Errorf("parse proc/meminfo: %w", err)
	}
	return m, nil
}

// parseMemory takes the text of /proc/meminfo, whose figures are in KiB.
func parseMemory(text string) (m Memory, err error) {
	total, available := false, false
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, ":")
		switch name {
		case "MemTotal":
			total = true
			m.Total, err = parseKiB(rest)
		case "MemAvailable":
			available = true
			m.Available, err = parseKiB(rest)
		}
		if err != nil {
			return Memory{}, fmt.Errorf("%s: %w", name, err)
		}
	}
	if !total || !available {
		return Memory{}, errors.New("no MemTotal or no MemAvailable")
	}
	return m, nil
}

// parseKiB reads a figure such as " 24287232 kB", which stands for KiB, as bytes.
func parseKiB(text string) (int64, error) {
	fields := strings.Fields(text)
	if len(fields) != 2 || fields[1] != "kB" {
		return 0, fmt.Errorf("%q is not a number of kB", strings.TrimSpace(text))
	}
	n, err := strconv.ParseUint(fields[0], 10, 53) // in bytes it fits an int64
	return int64(n) << 10, err
}
