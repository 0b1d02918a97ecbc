package place

import (
	"fmt"
	"strconv"
	"strings"
)

// Unlimited is an amount without bound, written "max" as in the kernel's files.
const Unlimited = -1

// Milli is CPU time in thousandths of a CPU: "4", "2.5", "500m", "max".
type Milli int

// String returns "4" for whole CPUs, else "2500m".
func (m Milli) String() string {
	switch {
	case m == Unlimited:
		return "max"
	case m%1000 == 0:
		return strconv.Itoa(int(m / 1000))
	}
	return strconv.Itoa(int(m)) + "m"
}

// MarshalText writes what String returns.
func (m Milli) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads CPU time: "4", "2.5", "500m" or "max".
func (m *Milli) UnmarshalText(text []byte) error {
	n, ok := parseMilli(string(text))
	if !ok {
		return fmt.Errorf("%q is no CPU time, such as 4, 2.5 or 500m", text)
	}
	*m = Milli(n)
	return nil
}

func parseMilli(text string) (milli int, ok bool) {
	if text == "max" {
		return Unlimited, true
	}
	if digits, ok := strings.CutSuffix(text, "m"); ok {
		return parseDigits(digits)
	}
	whole, part, dot := strings.Cut(text, ".")
	n, ok := parseDigits(whole)
	if !ok || dot && (part == "" || len(part) > 3) {
		return 0, false
	}
	milli, ok = parseDigits((part + "000")[:3])
	return 1000*n + milli, ok
}

// parseDigits reads a number without a sign, so low that a thousand times it is
// no overflow.
func parseDigits(text string) (n int, ok bool) {
	u, err := strconv.ParseUint(text, 10, 40)
	return int(u), err == nil
}

// Bytes is an amount of memory: "1048576", "512Mi", "2G", "max".
type Bytes int64

// String returns the amount in the greatest binary unit that it is whole in.
func (b Bytes) String() string {
	if b == Unlimited {
		return "max"
	}
	suffix := ""
	for _, next := range []string{"Ki", "Mi", "Gi", "Ti"} {
		if b == 0 || b%1024 != 0 {
			break
		}
		b, suffix = b/1024, next
	}
	return strconv.FormatInt(int64(b), 10) + suffix
}

// MarshalText writes what String returns.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText reads a number of bytes: "1048576", "512Mi", "2Gi", "2G" or "max".
func (b *Bytes) UnmarshalText(text []byte) error {
	if string(text) == "max" {
		*b = Unlimited
		return nil
	}
	number, factor := string(text), int64(1)
	for _, u := range []struct {
		suffix string
		factor int64
	}{{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40}, {"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}} {
		if n, ok := strings.CutSuffix(number, u.suffix); ok {
			number, factor = n, u.factor
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 63)
	if err != nil || int64(n) > (1<<62)/factor {
		return fmt.Errorf("%q is no amount of bytes, such as 512Mi or 2Gi", text)
	}
	*b = Bytes(int64(n) * factor)
	return nil
}
