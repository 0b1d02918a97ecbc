package noise

import (
	"fmt"
	"math/bits"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// chunkBytes is one chunk of a streaming kernel: 2 to 10 µs, 60 µs at 1 GB/s.
	chunkBytes = 64 * kib
	chunkWords = chunkBytes / 8
	// chunkLoads is one chunk of random loads: 5 to 100 µs.
	chunkLoads = 512
	pageBytes  = 4 * kib
	lineWords  = 64 / 8 // of a cache line
)

// mapWords maps bytes of private memory outside the Go heap and writes a word
// to each page, different everywhere, so that the pages exist, lie on the node
// of the calling thread, and cannot be merged. advice is an madvise(2) value; a
// kernel without transparent huge pages refuses it, which does no harm.
func mapWords(bytes int64, advice int, seed uint64) ([]uint64, error) {
	mem, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", bytes, err)
	}
	_ = unix.Madvise(mem, advice)
	words := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/8)
	for i := 0; i < len(words); i += pageBytes / 8 {
		words[i] = seed + uint64(i)
	}
	return words, nil
}

func unmapWords(words []uint64) error {
	mem := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*8)
	if err := unix.Munmap(mem); err != nil {
		return fmt.Errorf("unmap working set: %w", err)
	}
	return nil
}

// stream is a working set walked chunk by chunk, round and round.
type stream struct {
	words []uint64
	at    int
}

func newStream(bytes int64, seed uint64) (stream, error) {
	words, err := mapWords(bytes, unix.MADV_HUGEPAGE, seed)
	return stream{words: words}, err
}

// next returns the next chunk; first says that it begins a round.
func (s *stream) next() (chunk []uint64, first bool) {
	if s.at+chunkWords > len(s.words) {
		s.at = 0
	}
	chunk, first = s.words[s.at:s.at+chunkWords], s.at == 0
	s.at += chunkWords
	return chunk, first
}

func (s *stream) close() error { return unmapWords(s.words) }

// scan reads its working set from end to end.
type scan struct {
	stream
	sum uint64 // keeps the loads alive
}

func newScan(_ Config, bytes int64, seed uint64) (worker, error) {
	s, err := newStream(bytes, seed)
	return &scan{stream: s}, err
}

func (s *scan) step() (uint64, error) {
	chunk, _ := s.next()
	s.sum += sumLines(chunk)
	return chunkBytes, nil
}

// sumLines adds up one word of each cache line, in four chains.
func sumLines(words []uint64) uint64 {
	var a, b, c, d uint64
	for len(words) >= 4*lineWords {
		a += words[0*lineWords]
		b += words[1*lineWords]
		c += words[2*lineWords]
		d += words[3*lineWords]
		words = words[4*lineWords:]
	}
	return a + b + c + d
}

// write overwrites its working set from end to end, each round with another
// value. It stores word by word: copy and clear turn to stores that bypass the
// caches from some size on, which presses on something else.
type write struct {
	stream
	value uint64
}

func newWrite(_ Config, bytes int64, seed uint64) (worker, error) {
	s, err := newStream(bytes, seed)
	return &write{stream: s}, err
}

func (w *write) step() (uint64, error) {
	chunk, first := w.next()
	if first {
		w.value++
	}
	storeLines(chunk, w.value)
	return chunkBytes, nil
}

func storeLines(words []uint64, v uint64) {
	for len(words) >= lineWords {
		words[0] = v
		words[1] = v
		words[2] = v
		words[3] = v
		words[4] = v
		words[5] = v
		words[6] = v
		words[7] = v
		words = words[lineWords:]
	}
}

// activations is the length of the vector that gemv multiplies by: 16 KiB, half
// of a small L1. A chunk is four rows of that many weights.
const activations = chunkWords / 4

// gemv multiplies a matrix of weights, streamed from memory, by a vector that
// stays in L1. Weights are float64: plain Go has no vector instructions, and
// with float32 the arithmetic, not the memory, would set the pace.
type gemv struct {
	stream
	x   [activations]float64
	sum float64 // keeps the products alive
}

func newGEMV(_ Config, bytes int64, seed uint64) (worker, error) {
	s, err := newStream(bytes, seed)
	if err != nil {
		return nil, err
	}
	g := &gemv{stream: s}
	weights := asFloats(g.words)
	for i := range weights {
		weights[i] = float64(i&1023) / 1024
	}
	for i := range g.x {
		g.x[i] = 1 / float64(1+i)
	}
	return g, nil
}

func (g *gemv) step() (uint64, error) {
	chunk, _ := g.next()
	g.sum += fourRows((*[4 * activations]float64)(asFloats(chunk)), &g.x)
	return chunkBytes, nil
}

// fourRows multiplies four rows of weights by x and adds up the results. Four
// rows at once keep more loads under way than one after the other.
func fourRows(m *[4 * activations]float64, x *[activations]float64) float64 {
	const r1, r2, r3 = activations, 2 * activations, 3 * activations
	var y0, y1, y2, y3 float64
	for i := 0; i <= activations-4; i += 4 {
		a, b, c, d := x[i], x[i+1], x[i+2], x[i+3]
		y0 += (m[i]*a + m[i+1]*b) + (m[i+2]*c + m[i+3]*d)
		y1 += (m[r1+i]*a + m[r1+i+1]*b) + (m[r1+i+2]*c + m[r1+i+3]*d)
		y2 += (m[r2+i]*a + m[r2+i+1]*b) + (m[r2+i+2]*c + m[r2+i+3]*d)
		y3 += (m[r3+i]*a + m[r3+i+1]*b) + (m[r3+i+2]*c + m[r3+i+3]*d)
	}
	return y0 + y1 + y2 + y3
}

func asFloats(words []uint64) []float64 {
	return unsafe.Slice((*float64)(unsafe.Pointer(unsafe.SliceData(words))), len(words))
}

// random loads from cache lines all over its working set, each address known
// long before the load before it is done. Its pages are 4 KiB, huge pages
// refused, like a key-value store's heap on most hosts.
type random struct {
	words []uint64
	state uint64
	sum   uint64 // keeps the loads alive
}

func newRandom(_ Config, bytes int64, seed uint64) (worker, error) {
	words, err := mapWords(bytes, unix.MADV_NOHUGEPAGE, seed)
	return &random{words: words, state: seed}, err
}

func (r *random) step() (uint64, error) {
	words, state, sum := r.words, r.state, r.sum
	lines := uint64(len(words) / lineWords)
	for range chunkLoads {
		state = lcg(state)
		line, _ := bits.Mul64(state, lines) // state/2^64 of the way through
		sum += words[line*lineWords]
	}
	r.state, r.sum = state, sum
	return chunkLoads, nil
}

func (r *random) close() error { return unmapWords(r.words) }

// lcg is one step of Knuth's 64-bit linear congruential generator (MMIX).
func lcg(x uint64) uint64 { return x*6364136223846793005 + 1442695040888963407 }
