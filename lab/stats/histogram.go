package stats

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The layout that every histogram of the lab shares, in microseconds.
const (
	lowest  = 1          // 1 µs
	highest = 60_000_000 // 60 s
	digits  = 3
)

// maxEncoded is more than the longest encoding that the layout can have:
// 17,408 counts of at most 9 bytes, incompressible, in base64.
const maxEncoded = 256 << 10

// maxRequests bounds a histogram that comes from outside, so that no sum of
// weighted counts overflows: 2^40 is a million requests a second for 12 days.
const maxRequests = 1 << 40

// NewHistogram returns an empty histogram of microseconds, 1 µs to 60 s, with
// three significant digits. Its memory is about 140 KiB. A value above 60 s is
// refused by RecordValue: clamp it to MaxLatency and count it as censored.
func NewHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(lowest, highest, digits)
}

// MaxLatency is the largest latency that a histogram takes, in microseconds.
const MaxLatency int64 = highest

// Encode returns h in the interchange format of HdrHistogram: V2, compressed,
// base64. h must have the layout of NewHistogram.
func Encode(h *hdrhistogram.Histogram) (string, error) {
	if h == nil {
		return "", errors.New("encode histogram: nil")
	}
	if err := checkLayout(h.LowestTrackableValue(), h.HighestTrackableValue(), h.SignificantFigures()); err != nil {
		return "", fmt.Errorf("encode histogram: %w", err)
	}
	b, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return "", fmt.Errorf("encode histogram: %w", err)
	}
	return string(b), nil
}

// Decode reads what Encode wrote. It refuses any other layout, so that its
// memory is bounded whatever the text says, and so that two decoded
// distributions can always be merged.
func Decode(text string) (Distribution, error) {
	d, err := decode(text)
	if err != nil {
		return Distribution{}, fmt.Errorf("decode histogram: %w", err)
	}
	return d, nil
}

// The wire format, all numbers big-endian: 8 bytes (cookie, length), and a zlib stream of
// cookie, length of the counts, index offset, digits (32 bits each), lowest, highest,
// ratio (64 bits each), and the counts: zigzag varints, of which a negative one stands
// for so many empty buckets.
const (
	outerBytes = 8
	innerBytes = 40
)

func decode(text string) (d Distribution, err error) {
	if len(text) > maxEncoded {
		return d, fmt.Errorf("%d bytes, more than any histogram of this layout (%d)", len(text), maxEncoded)
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return d, err
	}
	if len(raw) < outerBytes {
		return d, fmt.Errorf("%d bytes are too few", len(raw))
	}
	z, err := zlib.NewReader(bytes.NewReader(raw[outerBytes:]))
	if err != nil {
		return d, err
	}
	inner, err := io.ReadAll(io.LimitReader(z, maxEncoded))
	if err != nil {
		return d, err
	}
	if len(inner) < innerBytes {
		return d, fmt.Errorf("header of %d bytes, want %d", len(inner), innerBytes)
	}
	be, counts := binary.BigEndian, inner[innerBytes:]
	if err := checkLayout(int64(be.Uint64(inner[16:])), int64(be.Uint64(inner[24:])), int64(be.Uint32(inner[12:]))); err != nil {
		return d, err
	}
	outerCookie, innerCookie := int32(be.Uint32(raw)&^0xf0), int32(be.Uint32(inner)&^0xf0)
	if outerCookie != hdrhistogram.V2CompressedEncodingCookieBase || innerCookie != hdrhistogram.V2EncodingCookieBase || be.Uint32(inner[8:]) != 0 {
		return d, errors.New("not of version 2, or shifted")
	}
	if n := be.Uint32(inner[4:]); int64(n) != int64(len(counts)) {
		return d, fmt.Errorf("%d bytes of counts, not %d", len(counts), n)
	}
	for slot := int64(0); len(counts) > 0; {
		n, size := binary.Varint(counts)
		if size <= 0 || slot >= slots || n < slot-slots || n > maxRequests-d.total {
			return d, fmt.Errorf("bucket %d of %d: bad count", slot, slots)
		}
		counts = counts[size:]
		if n < 0 {
			slot -= n
			continue
		}
		if n > 0 {
			d.buckets = append(d.buckets, bucket{slot: int(slot), count: n})
			d.total += n
		}
		slot++
	}
	return d, nil
}

func checkLayout(low, high, figures int64) error {
	if low != lowest || high != highest || figures != digits {
		return fmt.Errorf("layout is %d to %d with %d digits, not %d to %d µs with %d", low, high, figures, lowest, highest, digits)
	}
	return nil
}

// Distribution is the occupied buckets of a histogram: what remains of it for
// statistics, at a tenth of the memory. The zero value is empty. It is
// immutable.
type Distribution struct {
	buckets []bucket // by slot
	total   int64
}

type bucket struct {
	slot  int
	count int64
}

// Histogram returns a histogram of the same distribution.
func (d Distribution) Histogram() *hdrhistogram.Histogram {
	h := NewHistogram()
	for _, b := range d.buckets {
		_ = h.RecordValues(valueOf(b.slot), b.count) // every slot is one of the layout's
	}
	return h
}

// Merge returns the distribution of all requests of ds together.
func Merge(ds ...Distribution) Distribution {
	var counts [slots]int64
	for _, d := range ds {
		for _, b := range d.buckets {
			counts[b.slot] += b.count
		}
	}
	return distribution(&counts)
}

// DistributionOf is that of values in microseconds: as a histogram would have them, those
// beyond its ends at the ends.
func DistributionOf(values []int64) Distribution {
	var counts [slots]int64
	for _, v := range values {
		v = min(max(v, 0), MaxLatency)
		shift := max(0, bits.Len64(uint64(v))-11)
		counts[int64(shift<<10)+v>>shift]++
	}
	return distribution(&counts)
}

func distribution(counts *[slots]int64) (d Distribution) {
	for i, n := range counts {
		if n > 0 {
			d.buckets = append(d.buckets, bucket{slot: i, count: n})
			d.total += n
		}
	}
	return d
}

// slots is how many buckets the layout has: 2,048 of one microsecond, then
// 1,024 for each doubling up to 67 s.
const slots = 2048 + 15*1024

// valueOf is the largest value of a bucket.
func valueOf(slot int) int64 {
	shift := max(0, slot>>10-1)
	return int64(slot-shift<<10+1)<<shift - 1
}

// Requests is how many requests d holds.
func (d Distribution) Requests() int64 { return d.total }

// Quantile returns the p-th percentile (0-100) by nearest rank, in
// microseconds: the same value as hdrhistogram's ValueAtQuantile. It is false
// for an empty distribution.
func (d Distribution) Quantile(p float64) (float64, bool) {
	if d.total == 0 {
		return 0, false
	}
	rank, seen := nearestRank(p, d.total), int64(0)
	for _, b := range d.buckets {
		if seen += b.count; seen >= rank {
			return float64(valueOf(b.slot)), true
		}
	}
	return float64(valueOf(d.buckets[len(d.buckets)-1].slot)), true
}

// Beyond is the share of requests that took longer than a time in µs; 0 for an empty distribution.
func (d Distribution) Beyond(us float64) float64 {
	var n int64
	for _, b := range d.buckets {
		if float64(valueOf(b.slot)) > us {
			n += b.count
		}
	}
	return float64(n) / float64(max(d.total, 1))
}

// nearestRank is the rank (1 to total) of the p-th percentile: hdrhistogram's rule.
func nearestRank(p float64, total int64) int64 {
	rank := math.Min(p, 100)/100*float64(total) + 0.5
	switch {
	case !(rank >= 1):
		return 1
	case rank >= float64(total):
		return total
	}
	return int64(rank)
}
