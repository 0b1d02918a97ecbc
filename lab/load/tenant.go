package load

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// TenantConfig is what a tenant's parent sends on its standard input.
type TenantConfig struct {
	// Units is how many articles one request looks up and renders: the dial of
	// the service time, fixed work whatever the clock does.
	Units int `json:"units"`
	// WorkingSetBytes is the size of the article store, of which every byte is
	// equally likely to be read; it holds at least one article (1 KiB).
	WorkingSetBytes int64 `json:"workingSetBytes"`
	// File is where the article store lies, mapped, so that the kernel can reclaim
	// its pages and has to read them again. The file is made, and has no name any
	// more when the service is ready. "" keeps the store in anonymous memory.
	File string `json:"file,omitempty"`
	// Disk is a device of which every DiskEvery-th request reads a block of 4 KiB,
	// chosen at random, past the page cache, before it is answered; "" stands for no device.
	Disk      string `json:"disk,omitempty"`
	DiskEvery int    `json:"diskEvery,omitempty"`
	// Procs bounds the CPUs the service uses at once (GOMAXPROCS), and how many tiles it
	// renders at once; 0: all it may.
	Procs int `json:"procs,omitempty"`
	// Listen is the IP address at which the service listens, on a free port; "" is the loopback.
	Listen string `json:"listen,omitempty"`
	Seed   uint64 `json:"seed"`
}

// Bounds of a TenantConfig.
const (
	maxUnits      = 1_000_000
	maxWorkingSet = 1 << 40
	maxProcs      = 4096
	maxTimes      = 1000 // of a request
)

// Validate says what is wrong with c: all of it, in one line.
func (c TenantConfig) Validate() error {
	var wrong []string
	check := func(name string, value, most int64) {
		if value < 0 || value > most {
			wrong = append(wrong, fmt.Sprintf("%s %d: want 0 to %d", name, value, most))
		}
	}
	check("units", int64(c.Units), maxUnits)
	check("workingSetBytes", c.WorkingSetBytes, maxWorkingSet)
	check("procs", int64(c.Procs), maxProcs)
	check("diskEvery", int64(c.DiskEvery), maxUnits)
	if c.Disk != "" && c.DiskEvery == 0 {
		wrong = append(wrong, "diskEvery 0: want 1 or more with a disk")
	}
	if _, err := netip.ParseAddr(c.Listen); c.Listen != "" && err != nil {
		wrong = append(wrong, fmt.Sprintf("listen %q: want an IP address", c.Listen))
	}
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}
