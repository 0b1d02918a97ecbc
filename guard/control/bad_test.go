package control

import (
	"testing"

	"berth.dev/berth/guard/detect"
)

// A trial goes badly from a quarter more on than before it, by value: of the symptom, of what
// others impose, or of the run delay where that is shared out by CPU use.
func TestBad(t *testing.T) {
	t.Parallel()
	v := func(x float64) *float64 { return &x }
	for name, tc := range map[string]struct {
		before, imposed float64
		now             detect.Symptom
		want            bool
	}{
		"a little more":           {before: 2, now: detect.Symptom{Strength: 2.49}},
		"a quarter more":          {before: 2, now: detect.Symptom{Strength: 2.5}, want: true},
		"well":                    {before: 0.5, now: detect.Symptom{Strength: 0.99}},
		"well no more":            {before: 0.5, now: detect.Symptom{Strength: 1}, want: true},
		"others impose a little":  {before: 2, imposed: 1.6, now: detect.Symptom{Strength: 2, Imposed: v(1.99)}},
		"others impose a quarter": {before: 2, imposed: 1.6, now: detect.Symptom{Strength: 2, Imposed: v(2)}, want: true},
		"others impose nothing":   {before: 2, imposed: 0.1, now: detect.Symptom{Strength: 2, Imposed: v(0.99)}},
		"others begin to":         {before: 2, imposed: 0.1, now: detect.Symptom{Strength: 2, Imposed: v(1)}, want: true},
	} {
		at := &escalation{resource: detect.Memory, trial: &trial{strength: tc.before, imposed: tc.imposed}}
		if got := new(Loop).bad(at, &tc.now); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	for total, want := range map[float64]bool{0.49: false, 0.5: true} {
		d := &delayed{total: total}
		if got := d.returned(&delayed{total: 0.4}, &delayed{total: 1}); got != want {
			t.Errorf("a run delay of %g, and 0.4 before: it has returned: %v, want %v", total, got, want)
		}
	}
	// With the probe half of the part has to be back, and others not have that much less.
	for now, want := range map[delayed]bool{{total: 0.6, part: 0.3}: true, {total: 0.49, part: 0.3}: false, {total: 1, part: 0.29}: false} {
		if got := now.returned(&delayed{total: 0.4, part: 0.1}, &delayed{total: 1, part: 0.6, probed: true}); got != want {
			t.Errorf("%+v: it has returned: %v, want %v", now, got, want)
		}
	}
}
