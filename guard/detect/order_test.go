package detect

import (
	"slices"
	"testing"
)

// What names somebody, or is the victim's own doing, comes before what others do without
// being told who.
func TestOrderOfFindings(t *testing.T) {
	t.Parallel()
	told := func(v verdict) history {
		h := history{agree: 1<<agree - 1, last: v}
		for i := range agree {
			h.suspects[i], h.shares[i] = v.suspect, 1
		}
		return h
	}
	w := &workload{history: new([resources]history)}
	w.history[CPU] = told(verdict{})
	w.history[Memory] = told(verdict{suspect: "batch"})
	w.history[IO] = told(verdict{own: true})
	w.history[NUMA] = told(verdict{})
	var order []Resource
	for _, f := range w.findings(nil) {
		order = append(order, f.Resource)
	}
	if want := []Resource{Memory, IO, NUMA, CPU}; !slices.Equal(order, want) {
		t.Errorf("%v, want %v", order, want)
	}
}
