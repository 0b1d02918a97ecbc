package resctrl

import (
	"fmt"
	"strconv"
	"strings"
)

// Value is the number of one cache id: a mask of ways, or bandwidth.
type Value struct {
	Domain int    `json:"domain"`
	N      uint64 `json:"n"`
}

// Line is one line of a schemata file.
type Line struct {
	Resource string  `json:"resource"`
	Values   []Value `json:"values"`
}

// Schemata are the lines of a group.
type Schemata []Line

// bandwidth reports whether its numbers are decimal: of MB and SMBA. Those of caches are
// masks.
func (l *Line) bandwidth() bool { return !strings.HasPrefix(l.Resource, "L") }

// Get returns the number of a cache id.
func (l *Line) Get(domain int) (n uint64, ok bool) {
	for i := range l.Values {
		if l.Values[i].Domain == domain {
			return l.Values[i].N, true
		}
	}
	return 0, false
}

// set changes the number of a cache id that the line has.
func (l *Line) set(domain int, n uint64) {
	for i := range l.Values {
		if l.Values[i].Domain == domain {
			l.Values[i].N = n
		}
	}
}

// String writes the line as the kernel takes it: "L3:0=f;1=3".
func (l *Line) String() string {
	var room [128]byte // enough for most, without the heap
	b := room[:0]
	b = append(append(b, l.Resource...), ':')
	for i, v := range l.Values {
		if i > 0 {
			b = append(b, ';')
		}
		b = append(strconv.AppendInt(b, int64(v.Domain), 10), '=')
		base := 16
		if l.bandwidth() {
			base = 10
		}
		b = strconv.AppendUint(b, v.N, base)
	}
	return string(b)
}

// Line returns the line of a resource, or nil.
func (s Schemata) Line(resource string) *Line {
	for i := range s {
		if s[i].Resource == resource {
			return &s[i]
		}
	}
	return nil
}

// filled are the ways of a cache that a group may fill, with code or with data.
func (s Schemata) filled(level string, domain int) (ways uint64) {
	for i := range s {
		if l, _ := kindOf(s[i].Resource); l == level {
			n, _ := s[i].Get(domain)
			ways |= n
		}
	}
	return ways
}

// String writes all lines.
func (s Schemata) String() string {
	var b strings.Builder
	for i := range s {
		b.WriteString(s[i].String() + "\n")
	}
	return b.String()
}

// ParseSchemata reads the text of a schemata file. Kernels pad names and numbers with
// spaces, and masks with zeros or not.
func ParseSchemata(text string) (all Schemata, err error) {
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		name, list, ok := strings.Cut(line, ":")
		l := Line{Resource: strings.TrimSpace(name)}
		if !ok || l.Resource == "" {
			return nil, fmt.Errorf("schemata %q: no resource", line)
		}
		if strings.TrimSpace(list) == "uninitialized" {
			continue // of a group in mode pseudo-locksetup
		}
		base := 16
		if l.bandwidth() {
			base = 10
		}
		for item := range strings.SplitSeq(list, ";") {
			if item = strings.TrimSpace(item); item == "" {
				continue
			}
			id, number, _ := strings.Cut(item, "=")
			v := Value{}
			if v.Domain, err = strconv.Atoi(strings.TrimSpace(id)); err == nil {
				v.N, err = strconv.ParseUint(strings.TrimSpace(number), base, 64)
			}
			if err != nil {
				return nil, fmt.Errorf("schemata %q: %w", strings.TrimSpace(line), err)
			}
			l.Values = append(l.Values, v)
		}
		all = append(all, l)
	}
	return all, nil
}
