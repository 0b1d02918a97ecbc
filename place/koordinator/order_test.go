package koordinator_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/koordinator"
)

// TestOrder has a row for each criterion that chooses among nodes, sockets, cores
// and CPUs. On 2s2n4c2t node n is CPUs 4n to 4n+3 and their siblings, 16 higher.
func TestOrder(t *testing.T) {
	t.Parallel()
	ask := func(cpus int, bind place.Bind, strategy place.Strategy, nodes string) place.Request {
		return place.Request{
			Class: place.LSR, Milli: 1000 * cpus, Bind: bind, Strategy: strategy,
			Nodes: cpuset.MustParse(nodes), NodesRequired: nodes != "",
		}
	}
	with := func(r place.Request, change func(*place.Request)) place.Request { change(&r); return r }
	full := func(cpus int, nodes string) place.Request {
		return ask(cpus, place.FullPCPUs, place.LeastAllocated, nodes)
	}
	spread := func(cpus int, nodes string) place.Request {
		return ask(cpus, place.SpreadByPCPUs, place.LeastAllocated, nodes)
	}
	most := func(r place.Request) place.Request { r.Strategy = place.MostAllocated; return r }
	even := func(cpus, maxNodes int) place.Request {
		return place.Request{Class: place.LSR, Milli: 1000 * cpus, Strategy: place.DistributeEvenly, MaxNodes: maxNodes}
	}
	prefer := func(cpus string) func(*place.Request) {
		return func(r *place.Request) { r.Hints = map[string]string{koordinator.PreferredCPUs: cpus} }
	}
	const four = "2s2n4c2t"
	tests := map[string]struct {
		form string
		conf place.Config
		held []place.Request
		r    place.Request
		want string
	}{
		"the fullest node of a socket":       {held: []place.Request{full(4, "1")}, r: most(full(2, "")), want: "own 6,22 lent"},
		"the emptiest node of a socket":      {held: []place.Request{full(2, "0"), full(4, "2"), full(4, "3")}, r: full(2, ""), want: "own 4,20 lent"},
		"then the fullest socket":            {held: []place.Request{full(4, "0"), full(4, "2"), full(2, "3")}, r: most(full(2, "")), want: "own 10,26 lent"},
		"free CPUs, not cores":               {held: []place.Request{full(2, "0"), spread(4, "1")}, r: most(spread(2, "")), want: "own 20-21 lent"},
		"a node with enough cores":           {held: []place.Request{full(4, "0")}, r: most(spread(3, "")), want: "own 4-6 lent"},
		"a socket with enough cores":         {held: []place.Request{full(4, "0"), full(4, "1"), spread(4, "2"), spread(4, "3")}, r: spread(6, ""), want: "own 24-29 lent"},
		"the socket taken already":           {held: []place.Request{spread(8, "0-1"), spread(3, "2"), spread(4, "3")}, r: full(3, ""), want: "own 11,27-28 lent"},
		"the fullest socket for second ones": {held: []place.Request{full(2, "0")}, r: most(spread(18, "")), want: "own 1-15,17-19 lent"},
		"the emptiest socket for them":       {held: []place.Request{full(2, "0")}, r: spread(18, ""), want: "own 1-15,24-26 lent"},
		"a half core for the odd one":        {held: []place.Request{with(spread(1, ""), prefer("6"))}, r: most(full(17, "")), want: "own 8-15,22,24-31 lent"},
		"the rest from the fewest": {
			form: "3s4c2t", held: []place.Request{full(2, "1")}, r: full(10, ""), want: "own 0-3,5,12-15,17 lent",
		},
		"a core with fewer holders": {
			conf: place.Config{MaxRefs: 2}, held: []place.Request{full(2, "0")}, r: full(2, "0"), want: "in 1,17 counted",
		},
		"half a core with fewer holders": {
			conf: place.Config{MaxRefs: 2}, held: []place.Request{full(2, "0")}, r: full(1, "0"), want: "in 1 counted",
		},
		"a CPU with fewer holders": {
			conf: place.Config{MaxRefs: 2}, held: []place.Request{full(2, "0")}, r: spread(3, "0"), want: "in 1-3 counted",
		},
		"a sibling with fewer holders": {
			conf: place.Config{MaxRefs: 2}, held: []place.Request{spread(4, "0")}, r: spread(4, "0"), want: "in 16-19 counted",
		},
		"over two nodes":     {r: even(4, 2), want: "own 0,4,16,20 lent"},
		"over the emptiest":  {held: []place.Request{full(2, "0")}, r: even(4, 2), want: "own 8,12,24,28 lent"},
		"over the nearest":   {held: []place.Request{full(2, "0"), full(2, "2")}, r: even(4, 2), want: "own 1,4,17,20 lent"},
		"over all of them":   {r: even(8, 0), want: "own 0,4,8,12,16,20,24,28 lent"},
		"memory on few only": {conf: place.Config{Memory: gib(4, 1, 1, 4)}, r: with(full(2, ""), func(r *place.Request) { r.MaxNodes, r.Memory = 2, amount(7) }), want: "own 0,16 lent 0=4 3=3"},
		"preferred whole cores only": {
			r: with(full(2, ""), func(r *place.Request) { prefer("5")(r); r.BindRequired = true }), want: "own 0,16 lent",
		},
		"preferred whole cores": {
			r: with(full(2, ""), func(r *place.Request) { prefer("5,21")(r); r.BindRequired = true }), want: "own 5,21 lent",
		},
		"preferred second threads": {
			r: with(spread(2, ""), func(r *place.Request) { prefer("21")(r); r.BindRequired = true }), want: "own 8,21 lent",
		},
		"initial CPUs first": {
			held: []place.Request{with(full(2, "1"), func(r *place.Request) { r.Group, r.Role = "pod", place.Init })},
			r:    with(full(2, ""), func(r *place.Request) { r.Group = "pod" }), want: "own 4,20 lent",
		},
		"BE when all is lent": {held: []place.Request{full(32, "")}, r: place.Request{Class: place.BE}, want: "in 0-31"},
		"the last CPU of SYSTEM": {
			form: "1s4c2t", conf: place.Config{Reserved: cpuset.MustOf(0, 4)},
			held: []place.Request{{Class: place.System, Milli: 500}},
			r:    place.Request{Class: place.System, Mode: place.Exclusive, Milli: 2000}, want: "*place.FloorError",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tt.form == "" {
				tt.form = four
			}
			tt.conf.NoFloor = true
			p := koordinator.Policy{}
			s, err := place.New(placetest.Topology(t, tt.form), tt.conf)
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range tt.held {
				r.ID = fmt.Sprint("held", i)
				s = commit(t, s)(place.Place(p, s, &r))
			}
			tt.r.ID = "new"
			o, err := place.Place(p, s, &tt.r)
			if got := describe(t, s, o, err); got != tt.want {
				t.Errorf("got  %s\nwant %s (%v)", got, tt.want, err)
			}
		})
	}
}

func gib(of ...int64) (blocks []place.Block) {
	for node, n := range of {
		blocks = append(blocks, place.Block{Node: node, Resource: place.Memory, Bytes: n << 30})
	}
	return blocks
}

func amount(n int64) []place.Amount { return []place.Amount{{Resource: place.Memory, Bytes: n << 30}} }

// TestConditions checks on random machines that conditions hold and that
// exclusivity is symmetric.
func TestConditions(t *testing.T) {
	t.Parallel()
	grants := 0
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 11))
		m := placetest.Machine(rng, 48)
		topology, err := place.NewTopology(m)
		if err != nil {
			t.Fatal(err)
		}
		p := koordinator.Policy{Strategy: place.Strategy(rng.IntN(4))}
		conf := placetest.Config(rng, m)
		conf.MaxRefs = 1 + rng.IntN(2)
		s, err := place.Start(p, topology, conf)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 30 {
			r := placetest.Request(rng, m, fmt.Sprint("w", i))
			r.Bind, r.BindRequired = place.Bind(rng.IntN(3)), rng.IntN(2) == 0
			o, err := place.Place(p, s, &r)
			if err != nil {
				continue
			}
			grants++
			if err := holds(topology, p, o.Grant); err != nil {
				t.Fatalf("seed %d: %+v: %v", seed, r, err)
			}
			s = commit(t, s)(o, nil)
		}
		if err := apart(topology, s); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	if grants < 1000 {
		t.Errorf("only %d grants", grants)
	}
}

func held(g *place.Grant) cpuset.Set {
	if g.Share.Counted {
		return g.Share.Within
	}
	return g.Own
}

// holds checks the conditions of one grant.
func holds(t *place.Topology, p koordinator.Policy, g *place.Grant) error {
	r, cpus := &g.Request, held(g)
	switch {
	case cpus.IsEmpty():
		return nil
	case r.BindRequired && r.Bind != place.SpreadByPCPUs && t.Whole(machine.Core, cpus) != cpus:
		return fmt.Errorf("%s are no whole cores", cpus)
	case r.BindRequired && r.Bind == place.SpreadByPCPUs && t.FirstThreads(cpus) != cpus:
		return fmt.Errorf("%s are several of a core", cpus)
	case r.NodesRequired && !r.Nodes.IsEmpty() && !t.CPUsOf(r.Nodes).Contains(cpus):
		return fmt.Errorf("%s are not on the nodes %s", cpus, r.Nodes)
	case r.MaxNodes > 0 && t.Count(machine.Node, cpus) > r.MaxNodes:
		return fmt.Errorf("%s are on too many nodes", cpus)
	}
	return nil
}

// apart checks that nobody else is where somebody is alone.
func apart(t *place.Topology, s *place.State) error {
	for g := range s.Grants() {
		around := t.Touched(machine.Core, held(g))
		switch g.Request.Exclusivity {
		case place.CPULevel:
			continue
		case place.NUMANodeLevel:
			around = t.Touched(machine.Node, held(g))
		}
		if held(g).IsEmpty() {
			continue
		}
		for o := range s.Grants() {
			own := s.Effective(o)
			if o.ID != g.ID && own.Overlaps(around) && (g.Request.Group == "" || o.Request.Group != g.Request.Group) {
				return fmt.Errorf("%s is on %s, where %s is alone", o.ID, own.Intersect(around), g.ID)
			}
		}
	}
	return nil
}
