package noise

import "fmt"

const (
	kib = 1 << 10
	mib = 1 << 20

	// minBytes is the least working set: a few chunks.
	minBytes = 256 * kib
	// grain is what working sets are rounded down to.
	grain = 64 * kib
	// defaultCache stands for a last-level cache of unknown size.
	defaultCache = 32 * mib
	// memoryShare is the part of the available memory (one in so many) that
	// all threads together may take when the size is chosen here.
	memoryShare = 8
)

// Size is the working set of one thread.
type Size struct {
	Bytes int64 // 0 for a kernel without one
	// Note says where and why Bytes is less than what the kernel wants; "" if
	// it is not.
	Note string
}

// Plan chooses the working set of one thread: Config.Bytes where given, else its
// part of four times the L3, which all threads press on together, but at least
// four times its own L2 (where no size is known, an L3 of 32 MiB is assumed);
// and for all threads together no more than one eighth of available,
// the memory in bytes that the neighbour could take (0 = unknown: no such
// limit). Where a control group limits the neighbour's memory, available is
// what that leaves. The Config must be valid.
//
// The limit matters in guests: a hypervisor may report the whole host's L3 to a
// machine of two CPUs.
func Plan(c Config, available int64) Size {
	k, _ := lookup(c.Kernel)
	switch {
	case !k.Memory:
		return Size{}
	case c.Bytes > 0:
		return Size{Bytes: c.Bytes / grain * grain}
	}
	cache := max(c.L2Bytes, c.L3Bytes) // an L2 without an L3 is the last level
	if cache == 0 {
		cache = defaultCache
	}
	wanted := max(4*cache/int64(c.Threads), 4*c.L2Bytes, minBytes) / grain * grain
	if available <= 0 {
		return Size{Bytes: wanted}
	}
	limit := max(available/memoryShare/int64(c.Threads)/grain*grain, minBytes)
	if wanted <= limit {
		return Size{Bytes: wanted}
	}
	note := fmt.Sprintf("working set of a thread is %g MiB, not %g (four times the cache): %d threads may take 1/%d of the memory available",
		float64(limit)/mib, float64(wanted)/mib, c.Threads, memoryShare)
	if limit*int64(c.Threads) < 2*cache {
		note += "; that does not exceed the cache by much, if the cache is as large as reported"
	}
	return Size{Bytes: limit, Note: note}
}
