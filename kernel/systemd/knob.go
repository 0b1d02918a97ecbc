package systemd

import (
	"errors"
	"math"
	"reflect"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/knob"
)

// unset is what systemd takes for no value, or for infinity.
const unset = uint64(math.MaxUint64)

// property is a file of a group and the properties behind it.
type property struct {
	properties []string
	// encode returns the properties' values for a file's text, decode the text for
	// the values; ok is false if nothing is set.
	encode func(text string) ([]any, error)
	decode func(values []any) (text string, ok bool)
	set    bool // of CPUs or memory nodes
}

// knobOf returns the knob behind a file, given by its base name; ok is false unless the
// table names a property. A knob's second file, such as io.bfq.weight, is on a scale of
// its own, which systemd does not have.
func knobOf(file string) (k property, ok bool) {
	row, f := knob.OfFile(file)
	if row == nil || row.Property == "" || f != &row.V2[0] {
		return k, false
	}
	switch {
	case row.Name == "idle":
		return idle(row.Property), true
	case row.Type == knob.Set:
		return members(row.Property), true
	case row.Type == knob.Share:
		return weight(row.Property, f.Text("", "")), true
	case row.Type == knob.Bandwidth:
		return quota(row.Property), true
	}
	def := unset
	if row.Default != knob.Max {
		def, _ = strconv.ParseUint(row.Default, 10, 64)
	}
	return amount(row.Property, row.Default, def), true
}

// same reports whether two texts of the file come to the same.
func (k property) same(a, b string) bool {
	x, err := k.encode(a)
	y, err2 := k.encode(b)
	return err == nil && err2 == nil && reflect.DeepEqual(x, y)
}

// isDefault reports whether a text is what a group without a setting has.
func (k property) isDefault(text string) bool {
	values, err := k.encode(text)
	if err != nil {
		return false
	}
	_, ok := k.decode(values)
	return !ok
}

// members is a set as systemd has it: byte i/8 has a bit for member i.
func members(name string) property {
	return property{
		properties: []string{name},
		set:        true,
		encode: func(text string) ([]any, error) {
			set, err := cpuset.Parse(strings.TrimSpace(text))
			if err != nil {
				return nil, err
			}
			last, ok := set.Last()
			if !ok {
				return []any{[]byte{}}, nil
			}
			mask := make([]byte, last/8+1)
			for member := range set.All() {
				mask[member/8] |= 1 << (member % 8)
			}
			return []any{mask}, nil
		},
		decode: func(values []any) (string, bool) {
			mask, _ := values[0].([]byte)
			var list []int
			for i := range 8 * len(mask) {
				if mask[i/8]&(1<<(i%8)) != 0 {
					list = append(list, i)
				}
			}
			set, err := cpuset.Of(list...)
			return set.String(), err == nil && !set.IsEmpty()
		},
	}
}

// amount is a number; word is the text of the default, which is def.
func amount(name, word string, def uint64) property {
	return property{
		properties: []string{name},
		encode: func(text string) ([]any, error) {
			text = strings.TrimSpace(text)
			if text == word {
				return []any{def}, nil
			}
			n, err := strconv.ParseUint(text, 10, 64)
			return []any{n}, err
		},
		decode: func(values []any) (string, bool) {
			n, ok := values[0].(uint64)
			return strconv.FormatUint(n, 10), ok && n != def
		},
	}
}

// weight is a share, 100 by default. Of a file with a line per device only the
// first is systemd's.
func weight(name, prefix string) property {
	k := amount(name, "100", unset)
	plain := k
	k.encode = func(text string) ([]any, error) {
		line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
		return plain.encode(strings.TrimPrefix(line, prefix))
	}
	k.decode = func(values []any) (string, bool) {
		text, ok := plain.decode(values)
		return prefix + text, ok && text != "0" // which is idle
	}
	return k
}

// idle is the weight 0. What is not idle any more has the default weight.
func idle(name string) property {
	return property{
		properties: []string{name},
		encode: func(text string) ([]any, error) {
			switch strings.TrimSpace(text) {
			case "0":
				return []any{unset}, nil
			case "1":
				return []any{uint64(0)}, nil
			}
			return nil, errors.New("neither 0 nor 1")
		},
		decode: func(values []any) (string, bool) { return "1", values[0] == uint64(0) },
	}
}

// quota is CPU time, as systemd has it in microseconds per second of the clock.
func quota(name string) property {
	const second, defaultPeriod = 1_000_000, 100_000
	return property{
		properties: []string{name + "PerSecUSec", name + "PeriodUSec"},
		encode: func(text string) ([]any, error) {
			fields := strings.Fields(text)
			if len(fields) != 2 {
				return nil, errors.New("not a quota and a period")
			}
			period, err := strconv.ParseUint(fields[1], 10, 32)
			if err != nil || period == 0 || period > second {
				return nil, errors.New("period is not 1 us to 1 s")
			}
			perSecond := unset
			if fields[0] != "max" {
				us, err := strconv.ParseUint(fields[0], 10, 43)
				if err != nil {
					return nil, err
				}
				// Rounded up, since systemd rounds down when it reckons back.
				perSecond = (us*second + period - 1) / period
			}
			if period == defaultPeriod {
				period = unset
			}
			return []any{perSecond, period}, nil
		},
		decode: func(values []any) (string, bool) {
			perSecond, ok := values[0].(uint64)
			period, ok2 := values[1].(uint64)
			if !ok || !ok2 || perSecond == unset && period == unset {
				return "", false
			}
			if period == unset {
				period = defaultPeriod
			}
			max := "max"
			if perSecond != unset {
				max = strconv.FormatUint(perSecond*period/second, 10)
			}
			return max + " " + strconv.FormatUint(period, 10), true
		},
	}
}
