package place

import (
	"errors"
	"math/big"
	"strconv"
	"strings"
)

// Quantity is an amount as Kubernetes writes it, exact to 10^-9 and rounded up there:
// "2", "2.5", "500m", "512Mi", "2G", "1e3". The grammar is that of resource.Quantity in
// k8s.io/apimachinery. Quantities of the same amount are equal by ==.
type Quantity struct {
	units int64
	nano  int64 // 0 to 999,999,999
}

// suffixes of a quantity: powers of 2, then of 10.
var (
	binary  = map[string]int{"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
	decimal = map[string]int{"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
)

// UnmarshalText reads a quantity. One below zero, or of more than 2^62 units, is an
// error.
func (q *Quantity) UnmarshalText(text []byte) error {
	number, negative := strings.CutPrefix(string(text), "-")
	if !negative {
		number = strings.TrimPrefix(number, "+")
	}
	end := strings.IndexFunc(number, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	suffix := ""
	if end >= 0 {
		number, suffix = number[:end], number[end:]
	}
	whole, part, _ := strings.Cut(number, ".")
	two, ten, ok := scale(suffix)
	digits, isNumber := new(big.Int).SetString(whole+part, 10)
	switch {
	case !ok || !isNumber || strings.Contains(part, "."):
		return errors.New(strconv.Quote(string(text)) + " is no amount, such as 2, 2.5, 500m, 512Mi or 2G")
	case digits.Sign() == 0:
		*q = Quantity{}
		return nil
	case negative:
		return errors.New(strconv.Quote(string(text)) + " is below zero")
	case len(number) > 64 || ten > 64:
		return errors.New(strconv.Quote(string(text)) + " is larger than any machine")
	}
	digits.Lsh(digits, uint(two))
	if ten += 9 - len(part); ten < 0 {
		by := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(min(-ten, 128))), nil)
		digits.Add(digits, by).Sub(digits, big.NewInt(1)).Quo(digits, by)
	} else {
		digits.Mul(digits, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(ten)), nil))
	}
	units, nano := digits.QuoRem(digits, big.NewInt(1e9), new(big.Int))
	if !units.IsInt64() || units.Int64() > 1<<62 {
		return errors.New(strconv.Quote(string(text)) + " is larger than any machine")
	}
	*q = Quantity{units.Int64(), nano.Int64()}
	return nil
}

// scale returns a suffix as powers of two and of ten.
func scale(suffix string) (two, ten int, ok bool) {
	if ten, ok = decimal[suffix]; ok {
		return 0, ten, true
	}
	if two, ok = binary[suffix]; ok {
		return two, 0, true
	}
	if exponent, found := strings.CutPrefix(strings.Replace(suffix, "E", "e", 1), "e"); found {
		ten, err := strconv.Atoi(exponent)
		return 0, max(ten, -1000), err == nil
	}
	return 0, 0, false
}

// Value returns the amount in whole units, rounded up.
func (q Quantity) Value() int64 { return q.units + min(q.nano, 1) }

// Milli returns the amount in thousandths, rounded up; ok is false above 2^40 units.
func (q Quantity) Milli() (milli int, ok bool) {
	return int(1000*q.units + (q.nano+999_999)/1_000_000), q.units < 1<<40
}

// Compare returns -1, 0 or 1 as q is less than, equal to or more than other.
func (q Quantity) Compare(other Quantity) int {
	switch {
	case q == other:
		return 0
	case q.units < other.units, q.units == other.units && q.nano < other.nano:
		return -1
	}
	return 1
}

// IsZero reports whether the amount is 0.
func (q Quantity) IsZero() bool { return q == Quantity{} }
