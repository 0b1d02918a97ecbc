// Package noise holds the noisy neighbours: small kernels that each press on
// one resource, sized from the machine, with an intensity dial, each counting
// the work it got done; a slow disk for them to read; and probes, which show
// whether the machine itself changed.
//
// A neighbour is a process of its own (Child). Its parent reads the work from
// shared memory (Counters), so that a neighbour starved to nothing still tells
// the truth about it. Starting the process, placing it and limiting it are the
// parent's business: the kernels never choose a CPU, a priority or a policy.
package noise

import (
	"fmt"
	"slices"
	"strings"
)

// Config is what a neighbour's parent sends on its standard input.
type Config struct {
	// Kernel is one of Kernels().
	Kernel string `json:"kernel"`
	// Threads run the kernel, each on an OS thread of its own.
	Threads int `json:"threads"`
	// Intensity is the share of the time that each thread wants to work, in
	// percent (1-100). Below 100 it works in slices of at most 1 ms on absolute
	// deadlines and does not make up for time it was denied.
	Intensity int `json:"intensity"`
	// Bytes is the working set of one thread; 0 lets the kernel choose from
	// L2Bytes and L3Bytes (0 = unknown).
	Bytes int64 `json:"bytes,omitempty"`
	// File is the device that kernel read reads, or the file of kernel cache.
	File string `json:"file,omitempty"`
	// Address is where kernel send sends to, by TCP: "10.0.0.2:7400".
	Address string `json:"address,omitempty"`
	// Command is a program and its arguments, of which Threads copies run, in place of a kernel
	// of this room: Kernel is Program then, and whoever starts neighbours runs it.
	Command []string `json:"command,omitempty"`
	L2Bytes int64    `json:"l2Bytes,omitempty"`
	L3Bytes int64    `json:"l3Bytes,omitempty"`
	Seed    uint64   `json:"seed"`
}

// Kernel describes one kind of neighbour.
type Kernel struct {
	Name string
	// Presses names the resource that the kernel competes for.
	Presses string
	// Unit is what its work is counted in.
	Unit string
	// Memory says whether it has a working set (Config.Bytes), File whether it needs
	// a device or a file (Config.File), Link whether it needs somebody to send to
	// (Config.Address).
	Memory, File, Link bool

	// start makes the worker of one thread with a working set of so many bytes.
	start func(c Config, bytes int64, seed uint64) (worker, error)
}

// Program is the kernel of a Config that has a command.
const Program = "program"

// maxThreads and maxBytes bound a Config to what can be meant.
const (
	maxThreads = 4096
	maxBytes   = 1 << 40 // of one thread
)

// Kernels lists the neighbours, from the simplest to the most intrusive.
func Kernels() []Kernel {
	return []Kernel{
		{Name: "spin", Presses: "CPU time, and nothing beyond the core: a chain of dependent integer operations in registers", Unit: "iterations", start: newSpin},
		{Name: "scan", Presses: "memory read bandwidth and L3 capacity: a sequential read, one load per cache line", Unit: "bytes", Memory: true, start: newScan},
		{Name: "random", Presses: "memory latency, L3 capacity and the TLB: independent random loads over 4 KiB pages", Unit: "loads", Memory: true, start: newRandom},
		{Name: "gemv", Presses: "memory read bandwidth and floating-point units: weights streamed past an activation vector in L1", Unit: "bytes", Memory: true, start: newGEMV},
		{Name: "write", Presses: "memory write bandwidth and L3 capacity: a sequential write through the caches (no non-temporal stores)", Unit: "bytes", Memory: true, start: newWrite},
		{Name: "fork", Presses: "the kernel's process, memory-mapping and page-fault paths: fork, exec and wait for true(1)", Unit: "processes", start: newFork},
		{Name: "switch", Presses: "the scheduler and wake-up path: a byte to and fro between two threads through pipes", Unit: "round trips", start: newPingPong},
		{Name: "read", Presses: "a disk: random reads past the page cache", Unit: "bytes", File: true, start: newReader},
		{Name: "cache", Presses: "memory, by reclaim: a file read through the page cache, which is to keep all of it", Unit: "bytes", File: true, start: newCache},
		{Name: "send", Presses: "a network link: a TCP connection that always has more to send", Unit: "bytes", Link: true, start: newSender},
	}
}

// lookup finds a kernel by name.
func lookup(name string) (Kernel, bool) {
	kernels := Kernels()
	i := slices.IndexFunc(kernels, func(k Kernel) bool { return k.Name == name })
	if i < 0 {
		return Kernel{}, false
	}
	return kernels[i], true
}

// Validate says what is wrong with a Config, nil if nothing is.
func (c Config) Validate() error {
	k, ok := lookup(c.Kernel)
	isProgram := c.Kernel == Program
	switch {
	case isProgram != (len(c.Command) > 0):
		return fmt.Errorf("command %q: kernel %s has one, and no other does", c.Command, Program)
	case isProgram && c.Intensity != 100:
		return fmt.Errorf("intensity %d: a program works as it likes: want 100", c.Intensity)
	case !ok && !isProgram:
		return fmt.Errorf("kernel %q: not one of %s", c.Kernel, names())
	case c.Threads < 1 || c.Threads > maxThreads:
		return fmt.Errorf("threads %d: not within 1-%d", c.Threads, maxThreads)
	case c.Intensity < 1 || c.Intensity > 100:
		return fmt.Errorf("intensity %d: not within 1-100", c.Intensity)
	case c.L2Bytes < 0 || c.L2Bytes > maxBytes:
		return fmt.Errorf("l2Bytes %d: not within 0-%d", c.L2Bytes, int64(maxBytes))
	case c.L3Bytes < 0 || c.L3Bytes > maxBytes:
		return fmt.Errorf("l3Bytes %d: not within 0-%d", c.L3Bytes, int64(maxBytes))
	case (c.File != "") != k.File:
		return fmt.Errorf("file %q: kernel read needs a device and cache a file, and no other does", c.File)
	case (c.Address != "") != k.Link:
		return fmt.Errorf("address %q: kernel send needs one, and no other does", c.Address)
	case c.Bytes != 0 && !k.Memory:
		return fmt.Errorf("bytes %d: kernel %s has no working set", c.Bytes, k.Name)
	case c.Bytes != 0 && (c.Bytes < minBytes || c.Bytes > maxBytes):
		return fmt.Errorf("bytes %d: not within %d-%d", c.Bytes, minBytes, int64(maxBytes))
	}
	return nil
}

func names() string {
	var all []string
	for _, k := range Kernels() {
		all = append(all, k.Name)
	}
	return strings.Join(all, ", ")
}
