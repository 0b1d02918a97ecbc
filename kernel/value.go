package kernel

import (
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
)

// same reports whether text and value mean the same in a format. For Keyed,
// both are one line; see line.
func same(f Format, text, value string) bool {
	switch f {
	case List:
		a, errA := cpuset.Parse(text)
		b, errB := cpuset.Parse(value)
		if errA == nil && errB == nil {
			return a == b
		}
	case Keyed:
		have := strings.Fields(text)
		for _, word := range strings.Fields(value) {
			if !slices.Contains(have, word) {
				return false
			}
		}
		return true
	case Schema:
		return sameSchema(text, value)
	}
	return slices.Equal(strings.Fields(text), strings.Fields(value))
}

// owns reports whether the kernel shows text for value, which Berth wrote.
func owns(f Format, text, value string) bool {
	if f == Threads {
		return threadsOf(text).have(value)
	}
	if f != State {
		return same(f, text, value)
	}
	have, want := strings.Fields(text), strings.Fields(value)
	if len(have) == 0 || len(want) == 0 {
		return len(have) == len(want)
	}
	return have[0] == want[0] || onTheWay(f, text, value)
}

// onTheWay reports whether the kernel has begun to reach a State, and will.
func onTheWay(f Format, text, value string) bool {
	return f == State && strings.TrimSpace(text) == "FREEZING" && strings.TrimSpace(value) == "FROZEN"
}

// line returns the part of a file's text that step s concerns: all of it, or
// for Keyed the line with the key of s.Value, or s.Unset if there is none.
func (s *Step) line(text string) string {
	if s.Format == Schema {
		return schemaLine(text, s.Value)
	}
	if s.Format != Keyed {
		return text
	}
	key, _, _ := strings.Cut(s.Value, " ")
	for line := range strings.Lines(text) {
		if k, _, _ := strings.Cut(strings.TrimSpace(line), " "); k == key {
			return strings.TrimSpace(line)
		}
	}
	return s.Unset
}
