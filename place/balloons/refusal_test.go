package balloons_test

import (
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/place"
	"berth.dev/berth/place/balloons"
)

// A refusal that is to be explained names every balloon and what it has.
func TestRefusalsAreExplained(t *testing.T) {
	t.Parallel()
	p := balloons.Policy{Types: []balloons.Type{
		{Name: "own", MaxCPUs: 4, MaxBalloons: 2, Slots: 1},
		{Name: "big"},
	}}
	// node 0 has CPUs 0-3 and 8-11, node 1 4-7 and 12-15; CPU 0 is the floor
	s, err := place.Start(p, placetest.Topology(t, "1s2n4c2t"), place.Config{})
	if err != nil {
		t.Fatal(err)
	}
	typed := func(id, name string, milli int) place.Request {
		return place.Request{ID: id, Milli: milli, Hints: map[string]string{balloons.HintType: name}}
	}
	for _, r := range []place.Request{typed("a", "own", 3000), typed("b", "own", 1000), typed("c", "big", 3000)} {
		o, err := place.Place(p, s, &r)
		if err == nil {
			s, err = s.Commit(o)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	nodes := typed("x", "big", 9000)
	nodes.Nodes, nodes.NodesRequired = cpuset.MustOf(1), true
	for name, tc := range map[string]struct {
		r    place.Request
		want []string
	}{
		"no slot":   {typed("x", "own", 1000), []string{"own/0 no slot", "own/1 no slot"}},
		"too much":  {typed("x", "big", 12000), []string{"big/0 too little time left (3 CPUs, 3000m taken, 7 CPUs free)", "big/0 too few CPUs to grow", "no new balloon big/1: not enough CPUs", "free CPUs\n"}},
		"the limit": {typed("x", "default", 99000), []string{"default/0 too few CPUs to grow"}},
		"nodes":     {nodes, []string{"big/0 on other nodes", "no new balloon big/1", "node 0 0 of 8 CPUs"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			placetest.Explained(t, p, s, tc.r, tc.want...)
		})
	}
	more := typed("c", "big", 14000)
	more.Explain = true
	if o, err := place.Resize(p, s, &more); err == nil || !strings.Contains(o.Why.String(), "free CPUs\n") {
		t.Errorf("resize: %v\n%s", err, o.Why)
	}
}
