// Package cpuset holds a set of CPU numbers or NUMA node numbers.
//
// Set is the one set type of Berth: machine describes hardware with it, place
// computes with it, kernel writes it. It knows the kernel's list syntax
// ("0-3,8") and nothing else; what a number means is its user's business.
package cpuset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Limit is the number of members that a Set can hold: 0 to Limit-1. Linux
// allows at most 8,192 CPUs (CONFIG_NR_CPUS on x86 with MAXSMP); the largest
// machines that run one image have fewer than 2,048.
const Limit = 2048

const (
	words = Limit / 64
	// near are the words that a Set has in itself: those of 256 CPUs. What a Set takes is what
	// most of Berth's records take, and few machines have more CPUs.
	near = 4
	far  = words - near
)

// ErrRange reports a number that no Set can hold.
var ErrRange = errors.New("number out of range 0-" + strconv.Itoa(Limit-1))

// Set is an immutable set of numbers below Limit. The zero value is the empty
// set. Sets are comparable: == is equality, and a Set can be a map key.
//
// A set of numbers below 256 is made without allocating; one with others takes an allocation.
type Set struct {
	w [near]uint64
	// rest are the words beyond, of 8 bytes each, the lowest first, up to the last one that is
	// not zero.
	rest string
}

// bitmap is a set in the making.
type bitmap [words]uint64

func (m *bitmap) add(id int) { m[id/64] |= 1 << (id % 64) }

func (m *bitmap) fill(first, last int) {
	for i := first / 64; i <= last/64; i++ {
		w := ^uint64(0)
		if i == first/64 {
			w &= ^uint64(0) << (first % 64)
		}
		if i == last/64 {
			w &= ^uint64(0) >> (63 - last%64)
		}
		m[i] |= w
	}
}

func (m *bitmap) set() (s Set) {
	s.w = [near]uint64(m[:near])
	n := far
	for n > 0 && m[near+n-1] == 0 {
		n--
	}
	s.rest = rest("", "", func(i int, _, _ uint64) uint64 { return m[near+i] }, n)
	return s
}

// rest makes the rest of a set of n words: word i is what of returns for it and those of a and b.
func rest(a, b string, of func(i int, a, b uint64) uint64, n int) string {
	var text [8 * far]byte
	end := 0
	for i := range n {
		w := of(i, word(a, i), word(b, i))
		if binary.LittleEndian.PutUint64(text[8*i:], w); w != 0 {
			end = 8 * (i + 1)
		}
	}
	if string(text[:end]) == a {
		return a
	}
	if string(text[:end]) == b {
		return b
	}
	return string(text[:end])
}

// word is word i of a rest.
func word(rest string, i int) uint64 {
	if 8*i >= len(rest) {
		return 0
	}
	b := rest[8*i : 8*i+8]
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
		uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
}

// count is how many words a set has, word is one of them.
func (s *Set) count() int { return near + len(s.rest)/8 }

func (s *Set) word(i int) uint64 {
	if i < near {
		return s.w[i]
	}
	return word(s.rest, i-near)
}

// Of returns the set of the given numbers.
func Of(ids ...int) (Set, error) {
	var m bitmap
	for _, id := range ids {
		if id < 0 || id >= Limit {
			return Set{}, fmt.Errorf("cpuset member %d: %w", id, ErrRange)
		}
		m.add(id)
	}
	return m.set(), nil
}

// MustOf is Of for numbers known to be in range, such as constants in tests
// and tables. It panics on any other.
func MustOf(ids ...int) Set {
	s, err := Of(ids...)
	if err != nil {
		panic(err)
	}
	return s
}

// Range returns the set of first to last, both included; it is empty where
// last < first.
func Range(first, last int) (Set, error) {
	if last < first {
		return Set{}, nil
	}
	if first < 0 || last >= Limit {
		return Set{}, fmt.Errorf("cpuset range %d-%d: %w", first, last, ErrRange)
	}
	var m bitmap
	m.fill(first, last)
	return m.set(), nil
}

// Len returns the number of members.
func (s Set) Len() int {
	n := 0
	for _, w := range s.w {
		n += bits.OnesCount64(w)
	}
	for i := range len(s.rest) / 8 {
		n += bits.OnesCount64(word(s.rest, i))
	}
	return n
}

// IsEmpty reports whether s has no member.
func (s Set) IsEmpty() bool { return s == Set{} }

// Equal is s == t, under the name that comparing libraries look for.
func (s Set) Equal(t Set) bool { return s == t }

// Has reports whether id is a member. Numbers out of range are not.
func (s Set) Has(id int) bool {
	return id >= 0 && id < Limit && s.word(id/64)&(1<<(id%64)) != 0
}

// First returns the lowest member; ok is false for the empty set.
func (s Set) First() (id int, ok bool) {
	for i := range s.count() {
		if w := s.word(i); w != 0 {
			return i*64 + bits.TrailingZeros64(w), true
		}
	}
	return 0, false
}

// Last returns the highest member; ok is false for the empty set.
func (s Set) Last() (id int, ok bool) {
	for i := s.count() - 1; i >= 0; i-- {
		if w := s.word(i); w != 0 {
			return i*64 + 63 - bits.LeadingZeros64(w), true
		}
	}
	return 0, false
}

// All yields the members in rising order.
func (s Set) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range s.count() {
			for w := s.word(i); w != 0; w &= w - 1 {
				if !yield(i*64 + bits.TrailingZeros64(w)) {
					return
				}
			}
		}
	}
}

// Slice returns the members in rising order.
func (s Set) Slice() []int {
	return slices.AppendSeq(make([]int, 0, s.Len()), s.All())
}

// Union returns the members of s or t.
func (s Set) Union(t Set) Set {
	for i, w := range t.w {
		s.w[i] |= w
	}
	if t.rest != "" {
		s.rest = rest(s.rest, t.rest, func(_ int, a, b uint64) uint64 { return a | b }, max(len(s.rest), len(t.rest))/8)
	}
	return s
}

// Intersect returns the members of both s and t.
func (s Set) Intersect(t Set) Set {
	for i, w := range t.w {
		s.w[i] &= w
	}
	if s.rest != "" {
		s.rest = rest(s.rest, t.rest, func(_ int, a, b uint64) uint64 { return a & b }, min(len(s.rest), len(t.rest))/8)
	}
	return s
}

// Minus returns the members of s that t does not have.
func (s Set) Minus(t Set) Set {
	for i, w := range t.w {
		s.w[i] &^= w
	}
	if s.rest != "" && t.rest != "" {
		s.rest = rest(s.rest, t.rest, func(_ int, a, b uint64) uint64 { return a &^ b }, len(s.rest)/8)
	}
	return s
}

// Without returns the members of s that t does not have, or s if that leaves none.
func (s Set) Without(t Set) Set {
	if left := s.Minus(t); !left.IsEmpty() {
		return left
	}
	return s
}

// With returns s and id.
func (s Set) With(id int) (Set, error) {
	if id < 0 || id >= Limit {
		return s, fmt.Errorf("cpuset member %d: %w", id, ErrRange)
	}
	if id < 64*near {
		s.w[id/64] |= 1 << (id % 64)
		return s, nil
	}
	return s.Union(MustOf(id)), nil
}

// Overlap returns the number of members that s and t share, without building
// their intersection.
func (s *Set) Overlap(t *Set) int {
	n := 0
	for i, w := range s.w {
		n += bits.OnesCount64(w & t.w[i])
	}
	for i := range min(len(s.rest), len(t.rest)) / 8 {
		n += bits.OnesCount64(word(s.rest, i) & word(t.rest, i))
	}
	return n
}

// Overlaps reports whether s and t share a member.
func (s Set) Overlaps(t Set) bool {
	var both uint64
	for i, w := range s.w {
		both |= w & t.w[i]
	}
	for i := range min(len(s.rest), len(t.rest)) / 8 {
		both |= word(s.rest, i) & word(t.rest, i)
	}
	return both != 0
}

// Contains reports whether every member of t is one of s; the empty set is
// contained in every set.
func (s Set) Contains(t Set) bool {
	var more uint64
	for i, w := range t.w {
		more |= w &^ s.w[i]
	}
	for i := range len(t.rest) / 8 {
		more |= word(t.rest, i) &^ word(s.rest, i)
	}
	return more == 0
}

// String returns the kernel's list form, as in cpuset.cpus: "0-3,8", and ""
// for the empty set. Parse(s.String()) == s.
func (s Set) String() string {
	var b strings.Builder
	first, last := -2, -2
	flush := func() {
		if first < 0 {
			return
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(first))
		if last > first {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(last))
		}
	}
	for id := range s.All() {
		if id == last+1 {
			last = id
			continue
		}
		flush()
		first, last = id, id
	}
	flush()
	return b.String()
}

// Parse reads the kernel's list form (cpuset(7), "List format"): numbers and
// ranges between commas, such as "0-3,8". White space around the whole is
// ignored; the empty string is the empty set. Everything else is an error.
func Parse(list string) (Set, error) {
	trimmed := strings.TrimSpace(list)
	if trimmed == "" {
		return Set{}, nil
	}
	var m bitmap
	for part := range strings.SplitSeq(trimmed, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		first, err := number(lo)
		if err != nil {
			return Set{}, fmt.Errorf("cpuset %q: %w", list, err)
		}
		last := first
		if isRange {
			if last, err = number(hi); err != nil {
				return Set{}, fmt.Errorf("cpuset %q: %w", list, err)
			}
		}
		if last < first {
			return Set{}, fmt.Errorf("cpuset %q: range %q runs backwards", list, part)
		}
		m.fill(first, last)
	}
	return m.set(), nil
}

// MustParse is Parse for lists known to be good. It panics on any other.
func MustParse(list string) Set {
	s, err := Parse(list)
	if err != nil {
		panic(err)
	}
	return s
}

func number(text string) (int, error) {
	if text == "" {
		return 0, errors.New("a number is missing")
	}
	n := 0
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("%q is not a number", text)
		}
		if n = n*10 + int(c-'0'); n >= Limit {
			return 0, fmt.Errorf("%s: %w", text, ErrRange)
		}
	}
	return n, nil
}

// MarshalText writes the kernel's list form, so that a Set is a string in JSON
// and YAML.
func (s Set) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the kernel's list form.
func (s *Set) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err == nil {
		*s = parsed
	}
	return err
}
