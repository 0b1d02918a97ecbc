package place

import (
	"strings"
	"testing"
)

// The rules of Kubernetes' quantities, each with the value that k8s.io/apimachinery
// v0.36.3 reads: whole units and thousandths, both rounded up.
func TestQuantity(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text         string
		value, milli int64
	}{
		{"0", 0, 0}, {"2", 2, 2000}, {"2.5", 3, 2500}, {"0.5", 1, 500}, {".5", 1, 500}, {"1.", 1, 1000}, {"+1", 1, 1000}, {"-0", 0, 0},
		{"500m", 1, 500}, {"1000m", 1, 1000}, {"1500m", 2, 1500}, {"0.5m", 1, 1}, {"100u", 1, 1}, {"1n", 1, 1}, {"0.1n", 1, 1}, {"1001u", 1, 2},
		{"1k", 1e3, 1e6}, {"1M", 1e6, 1e9}, {"1G", 1e9, 1e12}, {"1T", 1e12, 1e15}, {"1P", 1e15, -1}, {"1E", 1e18, -1},
		{"1Ki", 1 << 10, 1 << 10 * 1000}, {"1.5Ki", 1536, 1536000}, {"0.3Ki", 308, 307200}, {"512Mi", 1 << 29, 1 << 29 * 1000},
		{"1Gi", 1 << 30, 1 << 30 * 1000}, {"1Ti", 1 << 40, -1}, {"1Pi", 1 << 50, -1}, {"1Ei", 1 << 60, -1},
		{"1e3", 1e3, 1e6}, {"1E3", 1e3, 1e6}, {"1e-3", 1, 1}, {"12e+2", 1200, 1200000}, {"1.5e1", 15, 15000}, {"1e-30", 1, 1}, {"0e9", 0, 0},
		{"0.0000000001", 1, 1}, {"000007", 7, 7000},
	} {
		var q Quantity
		if err := q.UnmarshalText([]byte(tt.text)); err != nil || q.Value() != tt.value {
			t.Errorf("%q is %d units, %v; want %d", tt.text, q.Value(), err, tt.value)
		}
		if milli, ok := q.Milli(); ok != (tt.milli >= 0) || ok && int64(milli) != tt.milli {
			t.Errorf("%q is %d thousandths, %v; want %d", tt.text, milli, ok, tt.milli)
		}
	}
	for text, want := range map[string]string{
		"": "no amount", "m": "no amount", "1K": "no amount", "1ki": "no amount", "1GB": "no amount", "1KiB": "no amount", "1 Gi": "no amount",
		" 1": "no amount", "1 ": "no amount", "1.2.3": "no amount", "1e": "no amount", "1e1.5": "no amount", "1e3Ki": "no amount", "--1": "no amount",
		"+-1": "no amount", "0x10": "no amount", "1_000": "no amount", "1,5": "no amount", "ten": "no amount", "max": "no amount", ".": "no amount", "Ki": "no amount",
		"-1": "below zero", "-500m": "below zero", "1e30": "larger than", "99999999999999999999": "larger than", "5Ei": "larger than", "1e999999999": "larger than",
	} {
		var q Quantity
		if err := q.UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q in it", text, err, want)
		}
	}
}

func TestQuantityCompare(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		a, b string
		want int
	}{{"1", "1000m", 0}, {"1Gi", "1G", 1}, {"0.5", "501m", -1}, {"1024", "1Ki", 0}, {"1n", "2n", -1}, {"2", "1.9", 1}} {
		var a, b Quantity
		if err := a.UnmarshalText([]byte(tt.a)); err != nil {
			t.Fatal(err)
		}
		if err := b.UnmarshalText([]byte(tt.b)); err != nil {
			t.Fatal(err)
		}
		if got := a.Compare(b); got != tt.want || (a == b) != (tt.want == 0) {
			t.Errorf("%s compared with %s is %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
