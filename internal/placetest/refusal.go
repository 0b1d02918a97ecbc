package placetest

import (
	"strings"
	"testing"

	"berth.dev/berth/place"
)

// Explained checks that p refuses r and, asked to explain, says all of want;
// unasked, it refuses with the same error and says nothing.
func Explained(t *testing.T, p place.Policy, s *place.State, r place.Request, want ...string) {
	t.Helper()
	r.Explain = true
	o, err := place.Place(p, s, &r)
	if err == nil {
		t.Fatalf("got %+v\n%s", o.Grant, o.Grant.Why)
	}
	for _, text := range want {
		if !strings.Contains(o.Why.String(), text) {
			t.Errorf("%v: no %q in\n%s", err, text, o.Why)
		}
	}
	r.Explain = false
	if o, again := place.Place(p, s, &r); again == nil || again.Error() != err.Error() || o.Why != nil {
		t.Errorf("unexplained: %v, %v, want %v", again, o.Why, err)
	}
}
