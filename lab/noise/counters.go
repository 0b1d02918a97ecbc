package noise

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// lineBytes keeps the counters of two threads apart: two cache lines of 64
// bytes, which some processors fetch as a pair, or one of 128.
const lineBytes = 128

// counter is one thread's work, in the kernel's unit, in memory shared with the
// parent. Only its thread writes it.
type counter struct {
	work atomic.Uint64
	_    [lineBytes - 8]byte
}

// Counters is the parent's side of a neighbour's work counters: a memory file
// that the neighbour writes to and the parent reads at any instant without the
// neighbour's help. A counter moves at the end of each chunk of work (a few
// microseconds; fork: one process), so that a reading is exact to one chunk per
// thread.
//
// The methods may not be called concurrently with Close.
type Counters struct {
	file *os.File
	mem  []byte
}

// NewCounters makes zeroed counters for that many threads.
func NewCounters(threads int) (*Counters, error) {
	if threads < 1 || threads > maxThreads {
		return nil, fmt.Errorf("counters for %d threads: not within 1-%d", threads, maxThreads)
	}
	file, err := memoryFile(threads * lineBytes)
	if err != nil {
		return nil, fmt.Errorf("counters for %d threads: %w", threads, err)
	}
	mem, err := unix.Mmap(int(file.Fd()), 0, threads*lineBytes, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map counters: %w", err), file.Close())
	}
	return &Counters{file: file, mem: mem}, nil
}

// memoryFile makes a memfd whose size is fixed: a reader of a mapping
// must never find the file shorter than it was.
func memoryFile(size int) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("berth-noise", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("berth-noise", flags)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	file := os.NewFile(uintptr(fd), "berth-noise")
	if err := file.Truncate(int64(size)); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	_, err = unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("seal memory file: %w", err), file.Close())
	}
	return file, nil
}

// File is what the neighbour needs as its file descriptor 3 (the first of
// exec.Cmd.ExtraFiles). Close closes it.
func (c *Counters) File() *os.File { return c.file }

// Total is the work of all threads since NewCounters, in the kernel's unit; 0
// after Close.
func (c *Counters) Total() float64 {
	var sum uint64
	lines := counterLines(c.mem)
	for i := range lines {
		sum += lines[i].work.Load()
	}
	return float64(sum)
}

// Close releases the counters. The neighbour, if it still runs, keeps its own
// mapping.
func (c *Counters) Close() error {
	if c.mem == nil {
		return nil
	}
	err := unix.Munmap(c.mem)
	c.mem = nil
	return errors.Join(err, c.file.Close())
}

// mapCounters is the neighbour's side: it maps the parent's file for writing
// and closes the file.
func mapCounters(file *os.File, threads int) (mem []byte, err error) {
	defer func() { err = errors.Join(err, file.Close()) }()
	size := threads * lineBytes
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("counters: %w", err)
	}
	if info.Size() < int64(size) {
		return nil, fmt.Errorf("counters %s: %d bytes, want %d for %d threads", file.Name(), info.Size(), size, threads)
	}
	mem, err = unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map counters: %w", err)
	}
	return mem, nil
}

// counterLines views mapped memory as counters.
func counterLines(mem []byte) []counter {
	return unsafe.Slice((*counter)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/lineBytes)
}
