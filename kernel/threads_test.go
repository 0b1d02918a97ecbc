package kernel

import "testing"

// Undoing gives threads back what they had, and leaves those alone that somebody else has
// changed since.
func TestThreadsLeft(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ original, current, want string }{
		"all ours":                         {"0", "19", "0"},
		"one was different":                {"0 7@70=5", "19", "0 7@70=5"},
		"one is somebody else's":           {"0", "19 7@70=3", "0 7@70=3"},
		"and was different":                {"0 7@70=5", "19 7@70=3", "0 7@70=3"},
		"the first is somebody else's":     {"0", "3 7@70=19", "3 7@70=0"},
		"the first, and one was different": {"0 7@70=5", "3 7@70=19 8@80=19 9@90=1", "3 7@70=5 8@80=0 9@90=1"},
		"one has what came later":          {"0", "19 7@70=13", "0 7@70=0"},
	} {
		if got := threadsLeft(tt.original, tt.current, "19", "13"); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	for _, tt := range []struct {
		text, value string
		want        bool
	}{
		{"19", "19", true}, {"19 7@70=0", "19", true}, {"0 7@70=19", "19", true}, {"0 7@70=1", "19", false}, {"", "19", false},
		{"119", "19", false}, {"0 7@70=119", "19", false},
	} {
		if got := owns(Threads, tt.text, tt.value); got != tt.want {
			t.Errorf("%q is of %q: %v, want %v", tt.text, tt.value, got, tt.want)
		}
	}
}
