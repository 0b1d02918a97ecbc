package plain

import (
	"fmt"
	"slices"
	"strings"
)

// Integer is the type of an enumeration: counted from 0, in the order of its words.
type Integer interface{ ~uint8 | ~int }

// Word returns the word of i, "unknown(7)" if it has none.
func Word[T Integer](words []string, i T) string {
	if !has(words, i) {
		return fmt.Sprintf("unknown(%d)", i)
	}
	return words[i]
}

// MarshalWord returns the word of i as text; an error if it has none.
func MarshalWord[T Integer](words []string, i T) ([]byte, error) {
	if !has(words, i) {
		return nil, fmt.Errorf("marshal %d: no such word", i)
	}
	return []byte(words[i]), nil
}

// UnmarshalWord finds the integer that has the word, in any case. The error lists the
// words, and the nearest.
func UnmarshalWord[T Integer](words []string, text []byte, to *T) error {
	i := slices.IndexFunc(words, func(word string) bool { return strings.EqualFold(word, string(text)) })
	if i < 0 {
		known := slices.DeleteFunc(slices.Clone(words), func(word string) bool { return word == "" })
		return fmt.Errorf("%q is not one of %s%s", text, strings.Join(known, ", "), Near(string(text), known))
	}
	*to = T(i)
	return nil
}

func has[T Integer](words []string, i T) bool { return int(i) >= 0 && int(i) < len(words) }

// Words are the words of an enumeration, in the order of its integers.
type Words interface{ Words() []string }

// Enum is an integer of an enumeration, which is written as its word.
type Enum[W Words] int

// String returns the word, "unknown(7)" for an integer that has none.
func (e Enum[W]) String() string { return Word(words[W](), e) }

// MarshalText writes the word.
func (e Enum[W]) MarshalText() ([]byte, error) { return MarshalWord(words[W](), e) }

// UnmarshalText reads a word.
func (e *Enum[W]) UnmarshalText(text []byte) error { return UnmarshalWord(words[W](), text, e) }

// Known reports whether the integer has a word.
func (e Enum[W]) Known() bool { return has(words[W](), e) }

func words[W Words]() []string {
	var w W
	return w.Words()
}
