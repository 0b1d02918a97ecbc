// Package cpuset holds a set of CPU numbers or NUMA node numbers.
//
// Set is the one set type of Berth: machine describes hardware with it, place
// computes with it, kernel writes it. It knows the kernel's list syntax
// ("0-3,8") and nothing else; what a number means is its user's business.
package cpuset

import (
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

const words = Limit / 64

// ErrRange reports a number that no Set can hold.
var ErrRange = errors.New("number out of range 0-" + strconv.Itoa(Limit-1))

// Set is an immutable set of numbers below Limit. The zero value is the empty
// set. Sets are comparable: == is equality, and a Set can be a map key.
type Set struct {
	n int // words up to the last one that is not zero; the others need no look
	w [words]uint64
}

// used returns the words up to the last one that is not zero.
func (s *Set) used() []uint64 { return s.w[:s.n] }

// add makes id, which is in range, a member.
func (s *Set) add(id int) {
	s.w[id/64] |= 1 << (id % 64)
	s.n = max(s.n, id/64+1)
}

// trim restores n after members went.
func (s *Set) trim() {
	for s.n > 0 && s.w[s.n-1] == 0 {
		s.n--
	}
}

// Of returns the set of the given numbers.
func Of(ids ...int) (Set, error) {
	var s Set
	for _, id := range ids {
		if id < 0 || id >= Limit {
			return Set{}, fmt.Errorf("cpuset member %d: %w", id, ErrRange)
		}
		s.add(id)
	}
	return s, nil
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
	var s Set
	if last < first {
		return s, nil
	}
	if first < 0 || last >= Limit {
		return s, fmt.Errorf("cpuset range %d-%d: %w", first, last, ErrRange)
	}
	s.fill(first, last)
	return s, nil
}

func (s *Set) fill(first, last int) {
	for i := first / 64; i <= last/64; i++ {
		m := ^uint64(0)
		if i == first/64 {
			m &= ^uint64(0) << (first % 64)
		}
		if i == last/64 {
			m &= ^uint64(0) >> (63 - last%64)
		}
		s.w[i] |= m
	}
	s.n = max(s.n, last/64+1)
}

// Len returns the number of members.
func (s Set) Len() int {
	n := 0
	for _, w := range s.used() {
		n += bits.OnesCount64(w)
	}
	return n
}

// IsEmpty reports whether s has no member.
func (s Set) IsEmpty() bool { return s.n == 0 }

// Equal is s == t, under the name that comparing libraries look for.
func (s Set) Equal(t Set) bool { return s == t }

// Has reports whether id is a member. Numbers out of range are not.
func (s Set) Has(id int) bool {
	return id >= 0 && id < Limit && s.w[id/64]&(1<<(id%64)) != 0
}

// First returns the lowest member; ok is false for the empty set.
func (s Set) First() (id int, ok bool) {
	for i, w := range s.used() {
		if w != 0 {
			return i*64 + bits.TrailingZeros64(w), true
		}
	}
	return 0, false
}

// Last returns the highest member; ok is false for the empty set.
func (s Set) Last() (id int, ok bool) {
	if s.n == 0 {
		return 0, false
	}
	return s.n*64 - 1 - bits.LeadingZeros64(s.w[s.n-1]), true
}

// All yields the members in rising order.
func (s Set) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, w := range s.used() {
			for ; w != 0; w &= w - 1 {
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
	for i, w := range t.used() {
		s.w[i] |= w
	}
	s.n = max(s.n, t.n)
	return s
}

// Intersect returns the members of both s and t.
func (s Set) Intersect(t Set) Set {
	for i := range s.used() {
		s.w[i] &= t.w[i]
	}
	s.trim()
	return s
}

// Minus returns the members of s that t does not have.
func (s Set) Minus(t Set) Set {
	for i := range s.used() {
		s.w[i] &^= t.w[i]
	}
	s.trim()
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
	s.add(id)
	return s, nil
}

// Overlap returns the number of members that s and t share, without building
// their intersection.
func (s *Set) Overlap(t *Set) int {
	n := 0
	for i, w := range s.used() {
		n += bits.OnesCount64(w & t.w[i])
	}
	return n
}

// Overlaps reports whether s and t share a member.
func (s Set) Overlaps(t Set) bool {
	for i, w := range s.used() {
		if w&t.w[i] != 0 {
			return true
		}
	}
	return false
}

// Contains reports whether every member of t is one of s; the empty set is
// contained in every set.
func (s Set) Contains(t Set) bool {
	for i, w := range t.used() {
		if w&^s.w[i] != 0 {
			return false
		}
	}
	return true
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
	var s Set
	trimmed := strings.TrimSpace(list)
	if trimmed == "" {
		return s, nil
	}
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
		s.fill(first, last)
	}
	return s, nil
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
