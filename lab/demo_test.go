package lab

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// played is a demonstration of 12 s each whose phases are slower by factors than alone.
func played(t *testing.T, hog, protected, again float64) *Measured {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 4))
	e := DemoSpec(12)
	r := &Result{Header: Header{Schema: Schema, Complete: true}, Experiment: e}
	for i, f := range []fake{{scale: 1}, {scale: hog, work: 100}, {scale: protected, work: 80}, {scale: again, work: 100}} {
		for block := range e.Blocks {
			round := fakeRound(t, rng, f, 1)
			round.Block, round.Scenario = block, e.Scenarios[i].Name
			round.Knobs = []Knob{{Of: "neighbour", File: "cpu.idle", Value: map[bool]string{true: "1", false: "0"}[i == 2]}}
			r.Rounds = append(r.Rounds, round)
		}
	}
	m, err := Measure(r)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A demonstration says that protection helped where it did, and that it did not where not.
func TestStory(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		hog, protected, again float64
		helps                 bool
		want                  []string
	}{
		"helps":               {20, 1.2, 22, true, []string{"The hog slows the service down", "Protection on (the hog in class BE)", "keeps 80 %", "the hog's cpu.idle, 1 in place of 0"}},
		"does not help":       {20, 20, 20, false, []string{"The hog slows the service down", "Protection is not shown to help on this machine"}},
		"helps before only":   {20, 1.2, 1.1, false, []string{"Protection is not shown to help"}},
		"does harm":           {3, 20, 3, false, []string{"Protection is not shown to help"}},
		"nothing to protect":  {1, 1, 1, false, []string{"The hog is not shown to slow the service down", "Protection is not shown to help"}},
		"better beside a hog": {0.5, 0.4, 0.5, false, []string{"The hog is not shown to slow the service down"}},
	} {
		s := played(t, tc.hog, tc.protected, tc.again).Tell()
		words := strings.Join(s.Words, "\n")
		if s.Helps() != tc.helps || len(s.Commands) != 3 {
			t.Errorf("%s: helps: %v, %d commands\n%s", name, s.Helps(), len(s.Commands), words)
		}
		for _, want := range tc.want {
			if !strings.Contains(words, want) {
				t.Errorf("%s: no %q in\n%s", name, want, words)
			}
		}
	}
}

// A story that was cut off, or has too few seconds, claims nothing.
func TestStoryOfLittle(t *testing.T) {
	t.Parallel()
	m := played(t, 20, 1, 20)
	m.Decoded = m.Decoded[:30]
	if s := m.Tell(); s.Helps() || !strings.Contains(s.Words[0], "not played to its end") {
		t.Errorf("helps: %v, %q", s.Helps(), s.Words)
	}
	m = played(t, 20, 1, 20)
	for i := range m.Decoded {
		if m.Decoded[i].Block > 1 {
			m.Decoded[i].Scenario = "other"
		}
	}
	if s := m.Tell(); s.Helps() || !strings.Contains(strings.Join(s.Words, " "), "too few seconds to tell") {
		t.Errorf("helps: %v, %q", s.Helps(), s.Words)
	}
}
