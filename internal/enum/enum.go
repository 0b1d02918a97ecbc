// Package enum gives small integers names, also as text in JSON. What an integer
// means, and that the names are in its order, is for others to say.
package enum

import (
	"fmt"
	"slices"
)

// Integer is what can be named: counted from 0, in the order of the names.
type Integer interface{ ~uint8 | ~int }

// Name returns the name of i, "unknown(7)" if it has none.
func Name[T Integer](names []string, i T) string {
	if !has(names, i) {
		return fmt.Sprintf("unknown(%d)", i)
	}
	return names[i]
}

// Marshal returns the name of i as text; an error if it has none.
func Marshal[T Integer](names []string, i T) ([]byte, error) {
	if !has(names, i) {
		return nil, fmt.Errorf("marshal %d: no such name", i)
	}
	return []byte(names[i]), nil
}

// Unmarshal finds the integer that has the name.
func Unmarshal[T Integer](names []string, text []byte, to *T) error {
	i := slices.Index(names, string(text))
	if i < 0 {
		return fmt.Errorf("unmarshal %q: not one of %v", text, names)
	}
	*to = T(i)
	return nil
}

func has[T Integer](names []string, i T) bool { return int(i) >= 0 && int(i) < len(names) }
