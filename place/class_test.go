package place_test

import (
	"strings"
	"testing"

	"berth.dev/berth/place"
)

func TestClassInAnyCase(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]place.Class{
		"LSE": place.LSE, "lse": place.LSE, "System": place.System, "be": place.BE,
		"Guaranteed": place.LSR, "burstable": place.LS, "BestEffort": place.BE,
	} {
		var c place.Class
		if err := c.UnmarshalText([]byte(text)); err != nil || c != want {
			t.Errorf("%s: %v, %v", text, c, err)
		}
	}
	var c place.Class
	if err := c.UnmarshalText([]byte("LSX")); err == nil || !strings.Contains(err.Error(), `did you mean "LS`) {
		t.Error(err)
	}
}
