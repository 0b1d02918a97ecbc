package control

import (
	"fmt"
	"slices"
	"strconv"
)

func name(names []string, i int) string {
	if i >= len(names) {
		return "unknown(" + strconv.Itoa(i) + ")"
	}
	return names[i]
}

func marshal(names []string, i int) ([]byte, error) {
	if i >= len(names) {
		return nil, fmt.Errorf("marshal %d: no such name", i)
	}
	return []byte(names[i]), nil
}

func unmarshal[T ~uint8](names []string, text []byte, to *T) error {
	i := slices.Index(names, string(text))
	if i < 0 {
		return fmt.Errorf("unmarshal %q: not one of %v", text, names)
	}
	*to = T(i)
	return nil
}
