package knob

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
)

// Max is the value of no limit.
const Max = "max"

// Type is how a value is written and compared.
type Type uint8

// The types of values.
const (
	Number    Type = iota // a number, or Max
	Bytes                 // memory in bytes, which the kernel rounds down to pages, or Max
	Time                  // in microseconds
	Share                 // a weight relative to siblings; the default is 100
	Set                   // CPUs or memory nodes, in list syntax; "" is all of the parent's
	Bandwidth             // "QUOTA PERIOD" in microseconds; the quota may be Max
	Switch                // "0" or "1"
	Word                  // a word that the kernel may qualify, or reach with a delay
)

// Check returns an error for a value that no kernel could accept.
func (k *Knob) Check(value string) error {
	if err := k.check(value); err != nil {
		return fmt.Errorf("%s %s: %w", k.Words, k.shown(value), err)
	}
	return nil
}

// shown is a value for people: a number as it is, any other text in quotes.
func (k *Knob) shown(value string) string {
	if _, ok := number(value); ok {
		return value
	}
	return strconv.Quote(value)
}

func (k *Knob) check(value string) error {
	switch k.Type {
	case Set:
		_, err := cpuset.Parse(value)
		return err
	case Bandwidth:
		quota, period, ok := bandwidth(value)
		switch {
		case !ok:
			return errors.New("not a quota and a period")
		case quota != unlimited && quota < 1000:
			return errors.New("the quota is less than 1 ms")
		case period < 1000 || period > 1_000_000:
			return errors.New("the period is not 1 ms to 1 s")
		}
		return nil
	case Switch, Word:
		if !slices.Contains(k.Values, value) {
			return fmt.Errorf("not %s", strings.Join(k.Values, ", "))
		}
		return nil
	}
	n, ok := number(value)
	switch {
	case !ok || value == Max && k.Type == Share:
		return errors.New("not a number")
	case n < k.Least && k.Most == 0:
		return fmt.Errorf("less than %d", k.Least)
	case n < k.Least || k.Most > 0 && n > k.Most && value != Max:
		return fmt.Errorf("not %d to %d", k.Least, k.Most)
	}
	return nil
}

// unlimited is Max as a number.
const unlimited = int64(1<<63 - 1)

func number(value string) (int64, bool) {
	if value == Max {
		return unlimited, true
	}
	n, err := strconv.ParseInt(value, 10, 64)
	return n, err == nil
}

// bandwidth splits a quota and its period, in microseconds.
func bandwidth(value string) (quota, period int64, ok bool) {
	q, p, _ := strings.Cut(value, " ")
	quota, ok = number(q)
	period, err := strconv.ParseInt(p, 10, 64)
	return quota, period, ok && err == nil && period > 0
}

// Compare returns a positive number if a leaves the subject more than b does, a negative
// one if it leaves less, and 0 if neither does or the values are not comparable.
func (k *Knob) Compare(a, b string) int {
	var order int
	switch k.Type {
	case Set:
		order = cmp.Compare(size(a), size(b))
	case Bandwidth:
		order = cmp.Compare(rate(a), rate(b))
	case Switch, Word:
		order = cmp.Compare(slices.Index(k.Values, a), slices.Index(k.Values, b))
	default:
		x, _ := number(a)
		y, _ := number(b)
		order = cmp.Compare(x, y)
	}
	switch k.Direction {
	case Down:
		return -order
	case Neither:
		return 0
	}
	return order
}

// size is how many members a set has; an empty one stands for all of the parent's.
func size(set string) int {
	s, err := cpuset.Parse(set)
	if err != nil || s.IsEmpty() {
		return cpuset.Limit + 1
	}
	return s.Len()
}

// rate is CPU time per time.
func rate(value string) float64 {
	quota, period, ok := bandwidth(value)
	if !ok || quota == unlimited {
		return float64(unlimited)
	}
	return float64(quota) / float64(period)
}

// Reaches reports whether a value takes from subjects other than its own.
func (k *Knob) Reaches(value string) bool {
	return k.Reach == Always || k.Reach == Wider && k.Compare(value, k.Default) > 0
}

// ID names a setting of a subject: a knob and, where the knob has keys, a key.
type ID struct {
	*Knob
	Key string
}

// String returns the knob's name, and the key if there is one: "readBPS 8:0".
func (id ID) String() string { return strings.TrimSpace(id.Name + " " + id.Key) }

// MarshalText writes the text of String.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// Compare orders settings as they are written: by the table, then by name and key.
func (id ID) Compare(other ID) int {
	return cmp.Or(cmp.Compare(position(id.Knob), position(other.Knob)), strings.Compare(id.Name, other.Name), strings.Compare(id.Key, other.Key))
}

func position(k *Knob) int {
	if i := slices.Index(table, k); i >= 0 {
		return i
	}
	return len(table)
}

// Settings are values of one subject.
type Settings map[ID]string

// IDs returns the settings in the order in which they are written.
func (s Settings) IDs() []ID { return slices.SortedFunc(maps.Keys(s), ID.Compare) }

// Has reports whether a knob is set, with whatever key.
func (s Settings) Has(k *Knob) bool {
	for id := range s {
		if id.Knob == k {
			return true
		}
	}
	return false
}

// Locked returns the knob whose value in s locks another one, nil if none does.
func (s Settings) Locked(k *Knob) *Knob {
	for id, value := range s {
		if value != id.Default && slices.Contains(id.Locks, k.Name) {
			return id.Knob
		}
	}
	return nil
}

// Named reports whether the settings decide on a file of the subject, or on the line of a
// key in it: by its knob, or by one that locks it, is locked by it or bounds it.
func (s Settings) Named(file, key string) bool {
	row, _ := OfFile(file)
	for id := range s {
		line := id.Key
		if f := id.file(file); f != nil && line == "" {
			line = f.Line
		}
		if line != "" && line != key {
			continue
		}
		if slices.Contains(id.Files(), file) {
			return true
		}
		if row != nil && (slices.Contains(id.Locks, row.Name) || slices.Contains(row.Locks, id.Name) || slices.Contains(id.Bounds, row.Name)) {
			return true
		}
	}
	return false
}

// file returns one of the files of the setting by its name, or nil.
func (k *Knob) file(name string) *File {
	files := k.files()
	if i := slices.IndexFunc(files, func(f File) bool { return f.Name == name }); i >= 0 {
		return &files[i]
	}
	return nil
}

// Check joins an error for each value that no kernel could accept.
func (s Settings) Check() error {
	var errs []error
	for _, id := range s.IDs() {
		err := id.Check(s[id])
		switch lock := s.Locked(id.Knob); {
		case err != nil:
		case lock != nil:
			err = fmt.Errorf("%s %s: %s", id.Words, s[id], cmp.Or(id.Hint.Locked, "locked by the setting "+lock.Words))
		case id.Knob.Key == nil && id.Key != "":
			err = fmt.Errorf("%s: has no key %q", id.Words, id.Key)
		case id.Knob.Key != nil:
			err = id.Knob.Key(id.Key)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
