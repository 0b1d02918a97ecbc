package agent

import (
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

// TestGivenMems has memory nodes named, and CPUs chosen by the policy.
func TestGivenMems(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, layout)
			n := h.open()
			for _, class := range []place.Class{place.LS, place.LSE} {
				s := spec(class.String(), class, 1000, 0)
				s.Mems = cpuset.MustParse("1")
				s.Request.Nodes, s.Request.NodesRequired = s.Mems, true
				w := h.place(n, s)
				if w.Mems != s.Mems || !cpuset.MustParse("4-7").Contains(w.CPUs) {
					t.Errorf("%s: memory nodes %s, CPUs %s", class, w.Mems, w.CPUs)
				}
				s.Mems, s.Request.Nodes = cpuset.MustParse("0"), cpuset.MustParse("0")
				w, err := n.Resize(t.Context(), s)
				if err != nil || w.Mems != s.Mems {
					t.Errorf("%s: resized: memory nodes %s, %v", class, w.Mems, err)
				}
			}
		})
	}
}
