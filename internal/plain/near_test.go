package plain

import "testing"

func TestNear(t *testing.T) {
	t.Parallel()
	known := []string{"diagnose", "doctor", "ps", "map"}
	for name, want := range map[string]string{
		"diagnos": `; did you mean "diagnose"?`,
		"DOCTOR":  `; did you mean "doctor"?`,
		"pss":     `; did you mean "ps"?`,
		"pam":     "",
		"mpa":     `; did you mean "map"?`,
		"sp":      `; did you mean "ps"?`,
		"x":       "",
		"":        "",
		"deploy":  "",
	} {
		if got := Near(name, known); got != want {
			t.Errorf("Near(%q) = %q, want %q", name, got, want)
		}
	}
}
