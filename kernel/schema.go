package kernel

import (
	"slices"
	"strconv"
	"strings"
)

// schemaLine returns the line of a schemata file that has the resource of value: "" if
// there is none. The kernel pads names and values with spaces.
func schemaLine(text, value string) string {
	want := resourceOf(value)
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); resourceOf(line) == want {
			return line
		}
	}
	return ""
}

// SameResource reports whether two lines of schemata are of the same resource.
func SameResource(a, b string) bool { return resourceOf(a) == resourceOf(b) }

func resourceOf(line string) string {
	name, _, _ := strings.Cut(line, ":")
	return strings.TrimSpace(name)
}

// domains reads the values of a line by cache id, masks as the numbers that they are; nil
// if it is none.
func domains(line string) map[string]uint64 {
	name, list, ok := strings.Cut(line, ":")
	if !ok {
		return nil
	}
	base := 10
	if name = strings.TrimSpace(name); strings.HasPrefix(name, "L") {
		base = 16
	}
	all := map[string]uint64{}
	for item := range strings.SplitSeq(list, ";") {
		if strings.TrimSpace(item) == "" {
			continue
		}
		id, text, _ := strings.Cut(item, "=")
		n, err := strconv.ParseUint(strings.TrimSpace(text), base, 64)
		if err != nil {
			return nil
		}
		all[strings.TrimSpace(id)] = n
	}
	return all
}

// sameSchema compares the caches that both lines have: those of value that are not in text
// are offline.
func sameSchema(text, value string) bool {
	have, want := domains(text), domains(value)
	both := false
	for id, n := range want {
		if now, online := have[id]; online {
			if now != n {
				return false
			}
			both = true
		}
	}
	return both && resourceOf(text) == resourceOf(value)
}

// schemaOnline leaves out of a line the caches that another line does not have.
func schemaOnline(line, have string) string {
	online := domains(have)
	name, list, _ := strings.Cut(line, ":")
	items := slices.DeleteFunc(strings.Split(list, ";"), func(item string) bool {
		id, _, _ := strings.Cut(item, "=")
		_, ok := online[strings.TrimSpace(id)]
		return !ok
	})
	for i := range items {
		items[i] = strings.ReplaceAll(items[i], " ", "")
	}
	return strings.TrimSpace(name) + ":" + strings.Join(items, ";")
}
