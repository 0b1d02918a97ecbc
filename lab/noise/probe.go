package noise

import (
	"fmt"
	"math"
	"math/bits"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ProbeReading is one run of one probe.
type ProbeReading struct {
	Probe string  `json:"probe"` // "alu", "l2", "l3", "dram"
	NS    float64 `json:"ns"`    // nanoseconds per operation (alu: per dependent multiply; others: per dependent load)
}

const (
	defaultL2 = 1 * mib
	defaultL3 = 32 * mib
	// maxDRAM caps the memory that the DRAM probe takes and keeps.
	maxDRAM = 256 * mib
	minBody = 64 * kib // the least of any working set
)

// ProbeSizes are the working sets of the probes, in bytes, powers of two.
type ProbeSizes struct {
	L2, L3, DRAM int64
	// Note says where DRAM is less than four times the L3; "" if it is not.
	Note string
}

// planProbes chooses working sets for caches of that many bytes, those that one CPU
// can use (0 = unknown: 1 MiB of L2 and 32 MiB of L3 are assumed):
//
//   - L2: half the L2
//   - L3: half the L3, but at most four times the L2: the part of a large, or
//     exaggerated, L3 that one CPU can count on; and at least twice the L2
//   - DRAM: four times the L3, at most 256 MiB
//
// each rounded down to a power of two.
func planProbes(l2Bytes, l3Bytes int64) ProbeSizes {
	if l2Bytes <= 0 {
		l2Bytes = defaultL2
	}
	if l3Bytes <= 0 {
		l3Bytes = defaultL3
	}
	l2Bytes = min(l2Bytes, maxDRAM)
	s := ProbeSizes{
		L2:   powerOfTwo(l2Bytes / 2),
		L3:   powerOfTwo(max(min(l3Bytes/2, 4*l2Bytes), 2*l2Bytes)),
		DRAM: powerOfTwo(maxDRAM),
	}
	if l3Bytes <= maxDRAM/4 {
		s.DRAM = max(powerOfTwo(4*l3Bytes), 2*s.L3)
	} else {
		s.Note = fmt.Sprintf("the DRAM probe uses %d MiB, less than four times an L3 of %d MiB: part of it may be answered by the L3",
			s.DRAM/mib, l3Bytes/mib)
	}
	s.DRAM = min(s.DRAM, maxDRAM)
	s.L3 = min(s.L3, s.DRAM)
	s.L2 = min(s.L2, s.L3)
	return s
}

// powerOfTwo rounds down, but not below minBody.
func powerOfTwo(n int64) int64 {
	return 1 << (bits.Len64(uint64(max(n, minBody))) - 1)
}

const (
	// repetitions of each probe. A ProbeReading is the fastest of them: what else ran
	// on the CPU meanwhile is foreign load, which is measured elsewhere, and each
	// is short enough to fit between two preemptions.
	repetitions = 21
	// multiplies and loads of one repetition: 0.1 to 0.6 ms.
	multiplies = 1 << 17
	l2Loads    = 1 << 14
	farLoads   = 1 << 12
)

// Probes measure the machine itself between rounds: four fixed pieces of work (ALU,
// L2, L3, DRAM) whose speed should not change while an experiment runs. Where it
// does, the machine changed under the experiment. Each is a chain of dependent
// operations, so that latency is measured, not throughput.
//
// Their memory is allocated once and kept. They may not be used concurrently.
type Probes struct {
	sizes ProbeSizes
	mem   []byte
	l2    chain
	l3    chain
	dram  chain
	sink  uint64 // keeps results alive
}

// NewProbes allocates the probes for caches of that many bytes (0 = unknown, see planProbes)
// and runs them once. It takes a fraction of a second, and the sum of Sizes in
// memory.
func NewProbes(l2Bytes, l3Bytes int64) (*Probes, error) {
	s := &Probes{sizes: planProbes(l2Bytes, l3Bytes)}
	total := s.sizes.L2 + s.sizes.L3 + s.sizes.DRAM
	mem, err := unix.Mmap(-1, 0, int(total), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes for probes: %w", total, err)
	}
	// Huge pages keep page walks out of the figures. Where the kernel has none,
	// the figures are higher and just as comparable with each other.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	s.mem = mem
	words := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), total/8)
	// DRAM first: the largest wants the alignment.
	s.dram = newChain(words[:s.sizes.DRAM/8])
	s.l3 = newChain(words[s.sizes.DRAM/8:][:s.sizes.L3/8])
	s.l2 = newChain(words[(s.sizes.DRAM+s.sizes.L3)/8:][:s.sizes.L2/8])
	s.Run()
	return s, nil
}

// Sizes returns the working sets.
func (s *Probes) Sizes() ProbeSizes { return s.sizes }

// Close frees the memory. The Probes cannot be used after.
func (s *Probes) Close() error {
	if s.mem == nil {
		return nil
	}
	err := unix.Munmap(s.mem)
	s.mem = nil
	if err != nil {
		return fmt.Errorf("unmap probes: %w", err)
	}
	return nil
}

// Run runs the probes on one OS thread: alu, l2, l3, dram, in this order. It
// takes 15 to 60 ms of CPU time.
func (s *Probes) Run() []ProbeReading {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	readings := make([]ProbeReading, 0, 4)
	measure := func(name string, operations int, work func()) {
		best := time.Duration(math.MaxInt64)
		for range repetitions {
			began := time.Now()
			work()
			best = min(best, time.Since(began))
		}
		readings = append(readings, ProbeReading{Probe: name, NS: float64(best) / float64(operations)})
	}
	measure("alu", multiplies, func() { s.sink = multiply(s.sink) })
	s.sink += s.l2.touch()
	measure("l2", l2Loads, func() { s.l2.chase(l2Loads) })
	s.sink += s.l3.touch()
	s.l3.chase(int(s.sizes.L2) / 64 * 2) // leave in the L2 what is not up next
	measure("l3", farLoads, func() { s.l3.chase(farLoads) })
	measure("dram", farLoads, func() { s.dram.chase(farLoads) })
	return readings
}

// multiply is a chain of dependent multiplications.
func multiply(x uint64) uint64 {
	x |= 1
	for range multiplies {
		x *= 6364136223846793005
	}
	return x
}

// chain is a working set whose cache lines form one cycle: the first word of a
// line is the index of the next line's.
type chain struct {
	words []uint64
	at    uint64
}

// newChain links the lines of words, a power of two of them, in the order of a
// linear congruential generator of full period (Hull and Dobell 1962), which
// jumps all over the set as no prefetcher foresees, and is quickly written.
func newChain(words []uint64) chain {
	lines := uint64(len(words)) / lineWords
	for i := range lines {
		next := (i*0xd1342543de82ef95 + 0x9e3779b97f4a7c15) & (lines - 1)
		words[i*lineWords] = next * lineWords
	}
	return chain{words: words}
}

// chase follows the cycle for n loads, from where the last chase ended, so that
// a set larger than the chase is visited everywhere in turn.
func (c *chain) chase(n int) {
	at := c.at
	words := c.words
	for range n {
		at = words[at]
	}
	c.at = at
}

// touches is how often a set is read to bring it into its cache. Once is not
// enough where a line enters the L3 only when the L2 gives it up, and the L2
// forgets lines that were never used again.
const touches = 3

// touch brings the set into the caches, as far as they hold it.
func (c *chain) touch() uint64 {
	var sum uint64
	for range touches {
		for i := 0; i < len(c.words); i += lineWords {
			sum += c.words[i]
		}
	}
	return sum
}
