package kernel

import (
	"slices"
	"strings"
)

// threads is a value in the format Threads.
type threads struct {
	first string
	other []string // "TID@START=VALUE"
}

func threadsOf(text string) threads {
	words := strings.Fields(text)
	if len(words) == 0 {
		return threads{}
	}
	return threads{words[0], words[1:]}
}

// have reports whether some thread has what value gives to all that it does not list.
func (t threads) have(value string) bool {
	want := threadsOf(value).first
	return t.first == want || slices.ContainsFunc(t.other, func(o string) bool { return strings.HasSuffix(o, "="+want) })
}

// of is the value of a listed thread; false if it is not listed.
func (t threads) of(thread string) (value string, listed bool) {
	for _, o := range t.other {
		if name, value, _ := strings.Cut(o, "="); name == thread {
			return value, true
		}
	}
	return "", false
}

// threadsLeft is what undoing writes: the original values for threads that have what was
// written, and their present ones for the others.
func threadsLeft(original, current string, written ...string) string {
	was, now := threadsOf(original), threadsOf(current)
	ours := func(value string) bool {
		return slices.ContainsFunc(written, func(w string) bool { return threadsOf(w).first == value })
	}
	left := threads{first: now.first}
	if ours(now.first) {
		left = threads{was.first, slices.Clone(was.other)}
	}
	for _, o := range now.other {
		thread, value, _ := strings.Cut(o, "=")
		if ours(value) {
			if value, _ = was.of(thread); value == "" {
				value = was.first
			}
		}
		left.other = slices.DeleteFunc(left.other, func(o string) bool { return strings.HasPrefix(o, thread+"=") })
		left.other = append(left.other, thread+"="+value)
	}
	return strings.Join(append([]string{left.first}, left.other...), " ")
}
