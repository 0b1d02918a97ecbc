package place

import (
	"fmt"
	"strconv"
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

// UnmarshalText reads a Quantity of CPUs, no finer than a thousandth, or "max".
func (m *Milli) UnmarshalText(text []byte) error {
	if string(text) == "max" {
		*m = Unlimited
		return nil
	}
	var q Quantity
	err := q.UnmarshalText(text)
	milli, ok := q.Milli()
	if err != nil || !ok || q.nano%1_000_000 != 0 {
		return fmt.Errorf("%q is no CPU time, such as 4, 2.5 or 500m", text)
	}
	*m = Milli(milli)
	return nil
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

// UnmarshalText reads a Quantity of whole bytes, or "max".
func (b *Bytes) UnmarshalText(text []byte) error {
	if string(text) == "max" {
		*b = Unlimited
		return nil
	}
	var q Quantity
	if err := q.UnmarshalText(text); err != nil || q.nano != 0 {
		return fmt.Errorf("%q is no amount of bytes, such as 512Mi or 2Gi", text)
	}
	*b = Bytes(q.units)
	return nil
}
