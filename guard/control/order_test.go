package control

import (
	"slices"
	"testing"
	"time"

	"berth.dev/berth/guard/detect"
)

// What has helped against a suspect is tried first, for as long as that counts.
func TestOrder(t *testing.T) {
	t.Parallel()
	l, err := New(Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	all := []detect.Remedy{detect.Weight, detect.HeadroomCap, detect.ShrinkCPUs}
	at := &escalation{}
	at.helped.add(l.now, verdict{suspect: "hog", remedy: detect.ShrinkCPUs, until: l.now.Add(time.Second)})
	for _, tc := range []struct {
		suspect string
		later   time.Duration
		want    []detect.Remedy
	}{
		{"hog", 0, []detect.Remedy{detect.ShrinkCPUs, detect.Weight, detect.HeadroomCap}},
		{"other", 0, all},
		{"hog", time.Second, all},
	} {
		l.now = l.now.Add(tc.later)
		if got := l.order(at, &detect.Finding{Suspect: tc.suspect, Remedies: all}); !slices.Equal(got, tc.want) {
			t.Errorf("%s, %v later: %v, want %v", tc.suspect, tc.later, got, tc.want)
		}
	}
}
