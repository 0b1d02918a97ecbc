package runq

import (
	"math"
	"time"
)

const (
	buckets     = 192
	perOctave   = 8   // buckets per factor of two
	stepNS      = 128 // the narrowest bucket
	linearSteps = 2 * perOctave
)

// Histogram counts waits by their length: in buckets of 128 ns up to 2.048 µs,
// from there on in 8 buckets per factor of two, so that a bucket is at most an
// eighth wider than its lower bound. The last bucket has no upper bound.
type Histogram [buckets]uint64

// Bounds returns the bucket's range, the upper bound excluded; that of the last
// one is the longest time there is.
func (h *Histogram) Bounds(bucket int) (from, to time.Duration) {
	from = lower(bucket)
	if bucket == buckets-1 {
		return from, math.MaxInt64
	}
	return from, lower(bucket + 1)
}

func lower(bucket int) time.Duration {
	if bucket < linearSteps {
		return time.Duration(bucket * stepNS)
	}
	octave := bucket/perOctave - 1
	return time.Duration((perOctave+bucket%perOctave)*stepNS) << octave
}

// Count returns the number of waits.
func (h *Histogram) Count() uint64 {
	var n uint64
	for _, c := range h {
		n += c
	}
	return n
}

// Quantile returns the bounds between which the q-quantile lies, for q from 0
// to 1: the ceil(q*n)th shortest of n waits (the first for q = 0). Without a wait,
// or with another q, ok is false.
func (h *Histogram) Quantile(q float64) (from, to time.Duration, ok bool) {
	n := h.Count()
	if n == 0 || !(q >= 0 && q <= 1) {
		return 0, 0, false
	}
	rank := max(1, uint64(math.Ceil(q*float64(n))))
	var seen uint64
	for i, c := range h {
		if seen += c; seen >= rank {
			from, to = h.Bounds(i)
			return from, to, true
		}
	}
	from, to = h.Bounds(buckets - 1) // q*n rounded up beyond n
	return from, to, true
}
