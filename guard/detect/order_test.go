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

// A finding shows nothing about a suspect that the last window alone accuses.
func TestEvidenceOfAnotherSuspect(t *testing.T) {
	t.Parallel()
	for last, want := range map[string][]Signal{"batch": {WaitRatio, QueueShare, StealShare}, "mail": {WaitRatio, StealShare}} {
		w := &workload{Workload: Workload{Group: "web"}, history: new([resources]history), seen: lookBack}
		w.history[CPU] = history{
			agree: 0b1111, suspects: [lookBack]string{last, "batch", "batch", "batch"}, shares: [lookBack]float64{1, 1, 1, 1},
			last: verdict{suspect: last, evidence: []Evidence{
				{Subject: subjectOf("web"), Signal: WaitRatio}, {Subject: subjectOf(last), Signal: QueueShare}, {Signal: StealShare},
			}},
		}
		found := w.findings(nil)
		if len(found) != 1 || found[0].Suspect != "batch" {
			t.Fatalf("%v, want one about batch", found)
		}
		var seen []Signal
		for _, e := range found[0].Evidence {
			seen = append(seen, e.Signal)
		}
		if !slices.Equal(seen, want) {
			t.Errorf("the last window accuses %s: evidence by %v, want %v", last, seen, want)
		}
	}
}
