package koordinator_test

import (
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/place"
	"berth.dev/berth/place/koordinator"
)

// A refusal that is to be explained says what each node has.
func TestRefusalsAreExplained(t *testing.T) {
	t.Parallel()
	// node 0 has CPUs 0-3 and 8-11, node 1 4-7 and 12-15; CPU 0 is the floor
	s, err := place.New(placetest.Topology(t, "1s2n4c2t"), place.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p := koordinator.Policy{}
	for _, r := range []place.Request{
		{ID: "db", Class: place.LSE, Milli: 4000},
		{ID: "web", Milli: 3000, Nodes: cpuset.MustOf(1)},
	} {
		o, err := place.Place(p, s, &r)
		if err == nil {
			s, err = s.Commit(o)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	lsr := func(milli int) place.Request { return place.Request{Class: place.LSR, Milli: milli} }
	few, whole, level, node := lsr(8000), lsr(8000), lsr(1000), lsr(5000)
	few.MaxNodes = 1
	whole.Bind, whole.BindRequired = place.FullPCPUs, true
	level.Exclusivity = place.NUMANodeLevel
	node.Nodes, node.NodesRequired = cpuset.MustOf(1), true
	preferred := few
	preferred.Nodes = cpuset.MustOf(1)
	for name, tc := range map[string]struct {
		r    place.Request
		want []string
	}{
		"CPUs":            {lsr(12000), []string{"CPUs to bind\n", "node 0 7 of 8 CPUs", "node 1 1 of 8 CPUs"}},
		"whole cores":     {whole, []string{"node 0 6 of 8 CPUs", "node 1 0 of 8 CPUs"}},
		"whole nodes":     {level, []string{"others use a part of every other NUMA node", "node 0 0 of 8 CPUs"}},
		"few nodes":       {few, []string{"node 0 7 of 8 CPUs", "node 1 1 of 8 CPUs"}},
		"asked nodes":     {node, []string{"node 0 0 of 8 CPUs", "node 1 1 of 8 CPUs"}},
		"preferred nodes": {preferred, []string{"without the asked nodes: not enough CPUs"}},
		"time":            {place.Request{Milli: 9001}, []string{"have 9000m free", "node 0 8 of 8 CPUs", "node 1 4 of 8 CPUs"}},
		"time on a node":  {place.Request{Milli: 5001, Nodes: cpuset.MustOf(1), NodesRequired: true}, []string{"CPUs to share", "node 1 4 of 8 CPUs"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.r.ID = "x"
			placetest.Explained(t, p, s, tc.r, tc.want...)
		})
	}
	more := place.Request{ID: "db", Class: place.LSE, Milli: 14000, Explain: true}
	if o, err := place.Resize(p, s, &more); err == nil || !strings.Contains(o.Why.String(), "node 0 7 of 8 CPUs") {
		t.Errorf("resize: %v\n%s", err, o.Why)
	}
}
