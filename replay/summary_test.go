package replay

import (
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// TestLargest compares adding halves with adding CPUs one by one.
func TestLargest(t *testing.T) {
	t.Parallel()
	s, err := Parse(`
machine: 2s6c2t
policy: kubelet
options: {kubelet: {cpuManagerPolicy: static}}
steps:
  - {place: a, nodes: "1", nodesRequired: true}
  - {place: b, class: LSE, cpus: 5}
  - {place: c, nodes: "0", nodesRequired: true}
  - {place: d, class: LSE, cpus: 3}
  - {release: b}
`, Loader{Machine: machine.Short})
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Run(s.Policy)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for i := range r.Steps {
		state := r.Steps[i].State
		var own cpuset.Set
		units := ones(state.Ownable(place.LSE))
		for _, u := range units {
			o := state.Offer()
			more := own.Union(u)
			o.Grant = &place.Grant{ID: "x", Own: more, Request: place.Request{ID: "x", Class: place.LSE, Milli: 1000 * more.Len()}}
			if _, err := state.Commit(o); err == nil {
				own = more
			} else {
				refused++
			}
		}
		if got := largest(state, units); got != own.Len() {
			t.Errorf("step %d: %d CPUs, one by one %d", i+1, got, own.Len())
		}
	}
	if refused == 0 {
		t.Error("nothing was refused")
	}
}
