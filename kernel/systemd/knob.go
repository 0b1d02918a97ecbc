package systemd

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/knob"
)

// unset is what systemd takes for no value, or for infinity.
const unset = uint64(math.MaxUint64)

type property struct {
	*knob.Knob
	file       *knob.File
	properties []string
}

// knobOf returns the knob behind a file, given by its base name; ok is false unless the
// table names a property. A knob's second file, such as io.bfq.weight, is on a scale of
// its own, which systemd does not have.
func knobOf(file string) (k property, ok bool) {
	row, f := knob.OfFile(file)
	if row == nil || row.Property == "" || f != &row.V2[0] {
		return k, false
	}
	names := []string{row.Property}
	if row.Type == knob.Bandwidth {
		names = []string{row.Property + "PerSecUSec", row.Property + "PeriodUSec"}
	}
	return property{row, f, names}, true
}

// ioMax is the file of limits that a group has with the io controller.
const ioMax = "io.max"

// lineKnob returns the knob of the lines of devices in a file of the io controller, by its base name;
// nil if it has none.
func lineKnob(file string) *knob.Knob {
	for _, k := range knob.All() {
		if k.Controller == "io" && k.Key != nil && k.V2[0].Name == file {
			return k
		}
	}
	return nil
}

// lineOf reports whether a text is the line of a device in a file of the io controller, by its base
// name, and whether it sets no limit: all its words say "max", or that the kernel's default is to be.
func lineOf(file, text string) (unsets, ok bool) {
	device, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	k := lineKnob(file)
	if k == nil || k.Key(device) != nil {
		return false, false
	}
	sets := func(word string) bool { return word != k.V2[0].Unset && !strings.HasSuffix(word, "="+knob.Max) }
	return !slices.ContainsFunc(strings.Fields(rest), sets), true
}

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

func (k property) encode(text string) ([]any, error) {
	text = strings.TrimSpace(text)
	switch k.Type {
	case knob.Set:
		mask, err := maskOf(text)
		return []any{mask}, err
	case knob.Bandwidth:
		return encodeQuota(text)
	case knob.Switch: // cpu.idle is the weight 0; what is not idle any more has the default
		switch text {
		case "0":
			return []any{unset}, nil
		case "1":
			return []any{uint64(0)}, nil
		}
		return nil, errors.New("neither 0 nor 1")
	case knob.Share: // of a file with a line per device only the first is systemd's
		text, _, _ = strings.Cut(text, "\n")
		text = strings.TrimPrefix(text, k.file.Text("", ""))
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if text == k.Default || err == nil && strconv.FormatUint(n, 10) == k.Default { // "0100" is 100
		return []any{k.none()}, nil
	}
	return []any{n}, err
}

// decode returns the text for the properties' values; ok is false if nothing is set.
func (k property) decode(values []any) (text string, ok bool) {
	n, isNumber := values[0].(uint64)
	switch k.Type {
	case knob.Set:
		return listOf(values[0])
	case knob.Bandwidth:
		return decodeQuota(values)
	case knob.Switch:
		return "1", isNumber && n == 0
	case knob.Share:
		return k.file.Text("", strconv.FormatUint(n, 10)), isNumber && n != unset && n != 0 // 0 is idle
	}
	return strconv.FormatUint(n, 10), isNumber && n != k.none()
}

func (k property) none() uint64 {
	if n, err := strconv.ParseUint(k.Default, 10, 64); err == nil && k.Type != knob.Share {
		return n
	}
	return unset
}

func maskOf(text string) ([]byte, error) {
	set, err := cpuset.Parse(text)
	last, ok := set.Last()
	if err != nil || !ok {
		return []byte{}, err
	}
	mask := make([]byte, last/8+1)
	for member := range set.All() {
		mask[member/8] |= 1 << (member % 8)
	}
	return mask, nil
}

func listOf(value any) (text string, ok bool) {
	mask, _ := value.([]byte)
	var list []int
	for i := range 8 * len(mask) {
		if mask[i/8]&(1<<(i%8)) != 0 {
			list = append(list, i)
		}
	}
	set, err := cpuset.Of(list...)
	return set.String(), err == nil && !set.IsEmpty()
}

// systemd has a quota in microseconds per second of the clock.
const second, defaultPeriod = 1_000_000, 100_000

func encodeQuota(text string) ([]any, error) {
	fields := strings.Fields(text)
	if len(fields) != 2 {
		return nil, errors.New("not a quota and a period")
	}
	period, err := strconv.ParseUint(fields[1], 10, 32)
	if err != nil || period == 0 || period > second {
		return nil, errors.New("period is not 1 us to 1 s")
	}
	perSecond := unset
	if fields[0] != knob.Max {
		us, err := strconv.ParseUint(fields[0], 10, 43)
		if err != nil {
			return nil, err
		}
		perSecond = (us*second + period - 1) / period // rounded up, since systemd rounds down when it reckons back
	}
	if period == defaultPeriod {
		period = unset
	}
	return []any{perSecond, period}, nil
}

func decodeQuota(values []any) (text string, ok bool) {
	perSecond, ok := values[0].(uint64)
	period, ok2 := values[1].(uint64)
	if !ok || !ok2 || perSecond == unset && period == unset {
		return "", false
	}
	if period == unset {
		period = defaultPeriod
	}
	quota := knob.Max
	if perSecond != unset {
		quota = strconv.FormatUint(perSecond*period/second, 10)
	}
	return quota + " " + strconv.FormatUint(period, 10), true
}
