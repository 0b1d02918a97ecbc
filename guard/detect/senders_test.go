package detect

import (
	"math"
	"testing"
)

func TestMostOf(t *testing.T) {
	t.Parallel()
	const link = 100
	for name, c := range map[string]struct {
		senders []sender
		want    string
		share   float64
		known   bool
	}{
		"by the link":                 {[]sender{{"", 5, 0, true}, {"bulk", 90, 0, true}}, "bulk", 0.9, true},
		"in a namespace":              {[]sender{{"", 5, 0, true}, {"pod", 0, 90, true}}, "pod", 0.9, true},
		"in one, and within the host": {[]sender{{"", 5, 0, true}, {"pod", 0, 1e6, true}}, "", 0, false},
		"beside one that does":        {[]sender{{"bulk", 80, 0, true}, {"pod", 0, 1e6, true}}, "bulk", 0.8, true},
		"beside one, and not most":    {[]sender{{"bulk", 30, 0, true}, {"pod", 0, 1e6, true}}, "", 0, false},
		"the link drops some":         {[]sender{{"", 5, 0, true}, {"flood", 300, 0, true}}, "flood", 300.0 / 305, true},
		"nobody has enough":           {[]sender{{"one", 20, 0, true}, {"two", 20, 0, true}}, "", 0, true},
		"of some time ago":            {[]sender{{"bulk", 90, 0, false}}, "", 0, false},
		"the workload itself":         {[]sender{{"", 95, 0, true}}, "", 0, true},
	} {
		if got := mostOf(link, c.senders); got.name != c.want || got.known != c.known || math.Abs(got.share-c.share) > 1e-9 {
			t.Errorf("%s: %+v, want %q with %v, %v", name, got, c.want, c.share, c.known)
		}
	}
	if got := mostOf(math.NaN(), []sender{{"bulk", 90, 0, true}}); got != (claim{}) {
		t.Errorf("of a link that tells nothing: %+v", got)
	}
}
