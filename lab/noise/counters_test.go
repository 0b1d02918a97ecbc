package noise

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCounters(t *testing.T) {
	t.Parallel()
	c, err := NewCounters(3)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Total(); got != 0 {
		t.Errorf("Total = %g at first", got)
	}
	mem := mapForWriting(t, c, 3)
	for i := range counterLines(mem) {
		counterLines(mem)[i].work.Store(uint64(1) << (16 * i))
	}
	if got := c.Total(); got != 1+1<<16+1<<32 {
		t.Errorf("Total = %g, want the sum of three threads", got)
	}
	if err := c.File().Truncate(0); err == nil {
		t.Error("the file could be cut short under its readers")
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if got := c.Total(); got != 0 {
		t.Errorf("Total = %g after Close", got)
	}
	counterLines(mem)[0].work.Store(9) // the writer's mapping outlives the reader
}

// mapForWriting maps a duplicate of the parent's file as the neighbour does.
func mapForWriting(t *testing.T, c *Counters, threads int) []byte {
	t.Helper()
	fd, err := unix.FcntlInt(c.File().Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := mapCounters(os.NewFile(uintptr(fd), "counters"), threads)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}

func TestNewCountersRefuses(t *testing.T) {
	t.Parallel()
	for _, threads := range []int{-1, 0, maxThreads + 1} {
		if c, err := NewCounters(threads); err == nil {
			t.Errorf("NewCounters(%d) = %v, want an error", threads, c)
		}
	}
}

func BenchmarkTotal(b *testing.B) {
	c, err := NewCounters(64)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	b.ReportAllocs()
	for b.Loop() {
		c.Total()
	}
}
