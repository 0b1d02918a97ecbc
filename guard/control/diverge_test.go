package control

import (
	"testing"

	"berth.dev/berth/kernel"
)

func TestDiverge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		victim, suspect, ofVictim, ofSuspect string
		ok                                   bool
	}{
		{"api", "batch", "api", "batch", true},
		{"kubepods/a/x", "kubepods/b/y", "kubepods/a", "kubepods/b", true},
		{"system.slice/x", "kubepods/besteffort/y", "system.slice", "kubepods", true},
		{"kubepods/besteffort/a", "kubepods/besteffort/b/c", "kubepods/besteffort/a", "kubepods/besteffort/b", true},
		{"kube", "kubepods/a", "kube", "kubepods", true},
		{"a/bc", "a/bd", "a/bc", "a/bd", true},
		{"a", "a/b", "", "", false},
		{"a/b", "a", "", "", false},
		{"a", "a", "", "", false},
		{"", "a", "", "", false},
		{"a", "", "", "", false},
	} {
		v, s, ok := Diverge(c.victim, c.suspect)
		if v != c.ofVictim || s != c.ofSuspect || ok != c.ok {
			t.Errorf("Diverge(%q, %q) = %q, %q, %v, want %q, %q, %v", c.victim, c.suspect, v, s, ok, c.ofVictim, c.ofSuspect, c.ok)
		}
	}
}

func TestGlobs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		glob, group    string
		matches, below bool
	}{
		{"system.slice", "system.slice", true, false},
		{"system.slice", "system.slice/ssh", true, false},
		{"system.slice/ssh*", "system.slice", false, true},
		{"system.slice/ssh*", "system.slice/sshd", true, false},
		{"system.slice/ssh*", "system.slice/cron", false, false},
		{"*/db", "a", false, true},
		{"*", "a/b", true, false},
		{"a/*/c", "a", false, true},
		{"a/*/c", "b", false, false},
	} {
		if got := kernel.Covers(c.glob, c.group); got != c.matches {
			t.Errorf("Covers(%q, %q) = %v", c.glob, c.group, got)
		}
		if got := below(c.glob, c.group); got != c.below {
			t.Errorf("below(%q, %q) = %v", c.glob, c.group, got)
		}
	}
}
