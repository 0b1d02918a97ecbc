package stats

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/google/go-cmp/cmp"
)

// fill records n latencies of about a millisecond, a few of them long.
func fill(t testing.TB, r *rand.Rand, n int) *hdrhistogram.Histogram {
	t.Helper()
	h := NewHistogram()
	for range n {
		v := int64(500 + r.ExpFloat64()*700)
		if r.IntN(50) == 0 {
			v = r.Int64N(MaxLatency + 1)
		}
		if err := h.RecordValue(v); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// compact is the distribution of a histogram.
func compact(h *hdrhistogram.Histogram) Distribution {
	text, err := Encode(h)
	if err != nil {
		panic(err)
	}
	d, err := Decode(text)
	if err != nil {
		panic(err)
	}
	return d
}

func TestEncodeDecode(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 2000} {
		h := fill(t, r, n)
		text, err := Encode(h)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Decode(text)
		if err != nil {
			t.Fatal(err)
		}
		if !h.Equals(back.Histogram()) {
			t.Errorf("%d requests: decoded histogram differs", n)
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]*hdrhistogram.Histogram{
		"nil":      nil,
		"range":    hdrhistogram.New(1, 1000, 3),
		"digits":   hdrhistogram.New(1, MaxLatency, 2),
		"not from": hdrhistogram.New(1000, MaxLatency, 3),
	} {
		if text, err := Encode(h); err == nil {
			t.Errorf("%s: encoded as %q", name, text)
		}
	}
}

// wire wraps the bytes of a histogram as the format does: compressed, base64.
func wire(t testing.TB, inner []byte) string {
	t.Helper()
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	if _, err := w.Write(inner); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	out := binary.BigEndian.AppendUint32(nil, uint32(hdrhistogram.V2CompressedEncodingCookieBase|0x10))
	out = binary.BigEndian.AppendUint32(out, uint32(z.Len()))
	return base64.StdEncoding.EncodeToString(append(out, z.Bytes()...))
}

// header is that of a histogram with the given layout and length of counts.
func header(length, digits uint32, low, high uint64) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(hdrhistogram.V2EncodingCookieBase|0x10))
	for _, v := range []uint32{length, 0, digits} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	for _, v := range []uint64{low, high, 0x3ff0000000000000} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return b
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	good, err := Encode(fill(t, rand.New(rand.NewPCG(1, 2)), 100))
	if err != nil {
		t.Fatal(err)
	}
	other, err := hdrhistogram.New(1, 1000, 3).Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		t.Fatal(err)
	}
	huge := append(header(9, 3, 1, uint64(MaxLatency)), 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f)
	for name, text := range map[string]string{
		"empty":           "",
		"not base64":      "?" + good[1:],
		"short":           "HISTFA==",
		"cut":             good[:len(good)/2],
		"other layout":    string(other),
		"five digits":     wire(t, header(0, 5, 1, 1<<62)),
		"wide":            wire(t, header(0, 3, 1, 1<<62)),
		"header cut":      wire(t, header(0, 3, 1, uint64(MaxLatency))[:20]),
		"length lies":     wire(t, header(1000, 3, 1, uint64(MaxLatency))),
		"too many counts": wire(t, huge),
		"too long":        strings.Repeat("A", maxEncoded+1),
	} {
		if h, err := Decode(text); err == nil {
			t.Errorf("%s: accepted with %d requests", name, h.Requests())
		}
	}
	if _, err := Decode(wire(t, header(0, 3, 1, uint64(MaxLatency)))); err != nil {
		t.Errorf("empty histogram made by hand: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	good, err := Encode(fill(f, rand.New(rand.NewPCG(1, 2)), 100))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add("")
	f.Add(wire(f, header(0, 5, 1, 1<<62)))
	f.Fuzz(func(t *testing.T, text string) {
		d, err := Decode(text)
		if err != nil {
			return
		}
		library, err := hdrhistogram.Decode([]byte(text))
		if err != nil || !library.Equals(d.Histogram()) {
			t.Fatalf("the library reads something else: %v", err)
		}
		again, err := Encode(library)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Decode(again)
		if diff := cmp.Diff(d, back, cmp.AllowUnexported(Distribution{}, bucket{})); err != nil || diff != "" {
			t.Fatalf("not the same after encoding: %v\n%s", err, diff)
		}
	})
}

// TestDistribution: the compact form has the quantiles of the histogram, and
// merging it is merging the histograms.
func TestDistribution(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	all := NewHistogram()
	var parts []Distribution
	for _, n := range []int{0, 1, 2, 999, 5000} {
		h := fill(t, r, n)
		d := compact(h)
		checkQuantiles(t, h, d)
		all.Merge(h)
		parts = append(parts, d)
	}
	checkQuantiles(t, all, Merge(parts...))
	if _, ok := Merge().Quantile(50); ok {
		t.Error("a quantile of nothing")
	}
}

func checkQuantiles(t *testing.T, h *hdrhistogram.Histogram, d Distribution) {
	t.Helper()
	if d.Requests() != h.TotalCount() {
		t.Errorf("%d requests, want %d", d.Requests(), h.TotalCount())
	}
	for _, p := range []float64{0, 0.01, 25, 50, 90, 95, 99, 99.9, 99.99, 100} {
		got, ok := d.Quantile(p)
		if want := float64(h.ValueAtQuantile(p)); got != want || ok != (h.TotalCount() > 0) {
			t.Errorf("p%g of %d requests: %v, %v, want %v", p, h.TotalCount(), got, ok, want)
		}
	}
}

// TestSlot: the layout of the buckets is that of the library.
func TestSlot(t *testing.T) {
	t.Parallel()
	h := NewHistogram()
	for i := range slots {
		if v := valueOf(i); slot(v) != i {
			t.Fatalf("slot(valueOf(%d)) = %d", i, slot(v))
		}
	}
	for v := int64(0); v <= MaxLatency; v += 1 + v/97 {
		if !h.ValuesAreEquivalent(v, valueOf(slot(v))) || v < MaxLatency && valueOf(slot(v)) < v {
			t.Fatalf("%d is in the bucket up to %d", v, valueOf(slot(v)))
		}
	}
	if got := slot(1 << 50); got != slots-1 {
		t.Errorf("a value beyond is in slot %d", got)
	}
}

// slot is the bucket of a value (of the last one, if it is beyond).
func slot(value int64) int {
	shift := max(0, bits.Len64(uint64(value))-11)
	return min(shift<<10+int(value>>shift), slots-1)
}

// Values come to the distribution that a histogram of them has.
func TestDistributionOf(t *testing.T) {
	t.Parallel()
	h := NewHistogram()
	var values []int64
	for v := int64(0); v <= MaxLatency; v += 1 + v/37 {
		values = append(values, v)
		if err := h.RecordValue(v); err != nil {
			t.Fatal(err)
		}
	}
	got := DistributionOf(append(values, -5, 2*MaxLatency))
	_, _ = h.RecordValue(0), h.RecordValue(MaxLatency)
	text, err := Encode(h)
	if err != nil {
		t.Fatal(err)
	}
	want, err := Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Distribution{}, bucket{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
