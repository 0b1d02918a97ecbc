package controlplane_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/controlplane"
)

// step is one request, or with release the end of one, and what it runs on
// afterwards; want is the beginning of an error if it starts with "!".
type step struct {
	id, ns  string
	class   place.Class
	milli   int
	release bool
	want    string
}

func TestPlace(t *testing.T) {
	t.Parallel()
	// 1s2n4c2t: node 0 has CPUs 0-3,8-11, node 1 has 4-7,12-15; cores are {i,i+8}.
	for _, tc := range []struct {
		name   string
		policy controlplane.Policy
		form   string
		config place.Config
		steps  []step
	}{
		{
			name: "default takes consecutive numbers of the first run", form: "1s2n4c2t",
			config: place.Config{NoFloor: true},
			steps: []step{
				{id: "a", class: place.LSE, milli: 3000, want: "0-2"},
				{id: "b", class: place.LSE, milli: 2000, want: "3-4"},
				{id: "c", class: place.LSE, milli: 2000, want: "5-6"},
				{id: "b", release: true},
				{id: "d", class: place.LSE, milli: 3000, want: "7-9"}, // 3-4 is too short
				{id: "e", class: place.LSE, milli: 2000, want: "3-4"}, // nothing leaked
			},
		},
		{
			name: "default needs one run", form: "1s1n8c", config: place.Config{NoFloor: true},
			steps: []step{
				{id: "a", class: place.LSE, milli: 3000, want: "0-2"},
				{id: "b", class: place.LSE, milli: 2000, want: "3-4"},
				{id: "a", release: true},
				{id: "c", class: place.LSE, milli: 4000, want: "!not enough CPUs: 4 asked, 3 available"},
			},
		},
		{
			name: "default uses a run up", form: "1s1n4c", config: place.Config{NoFloor: true},
			steps: []step{
				{id: "a", class: place.LSE, milli: 4000, want: "0-3"},
				{id: "b", class: place.BE, want: "!not enough CPUs: 1 asked, 0 available"},
				{id: "a", release: true},
				{id: "c", class: place.LSE, milli: 4000, want: "0-3"},
			},
		},
		{
			name: "a gap in the numbers ends a run", form: "1s1n8c",
			config: place.Config{NoFloor: true, Allowed: cpuset.MustParse("0-1,3-7")},
			steps:  []step{{id: "a", class: place.LSR, milli: 3000, want: "3-5"}},
		},
		{
			name: "the floor is never owned", form: "1s1n4c",
			steps: []step{
				{id: "a", class: place.LSE, milli: 3000, want: "1-3"},
				{id: "b", class: place.BE, want: "0"},
				{id: "c", class: place.LSE, milli: 1000, want: "!not enough CPUs"},
			},
		},
		{
			name: "reserved CPUs are for SYSTEM", form: "1s1n4c", config: place.Config{Reserved: cpuset.MustOf(0)},
			steps: []step{
				{id: "a", class: place.LS, milli: 100, want: "1-3"},
				{id: "b", class: place.System, milli: 100, want: "0"},
				{id: "c", class: place.System, milli: 1000, want: "!not enough CPUs: 1 asked, 900m available"},
			},
		},
		{
			name: "only whole guaranteed CPUs are owned", form: "1s1n4c",
			steps: []step{
				{id: "a", class: place.LSE, milli: 1500, want: "0-3"},
				{id: "b", class: place.LS, milli: 1000, want: "0-3"},
				{id: "c", class: place.BE, milli: 1000, want: "0-3"},
				{id: "d", class: place.LSE, milli: 1000, want: "1"},
				{id: "e", class: place.LSE, milli: 1000, want: "!not enough CPUs: 1 asked, 0 available"}, // 2.5 are asked for
				{id: "f", class: place.LS, milli: 501, want: "!not enough CPUs: 501m asked, 500m available"},
			},
		},
		{
			name: "numa takes the deepest part that has enough", policy: controlplane.Policy{Allocator: controlplane.NUMA}, form: "1s2n4c2t",
			config: place.Config{NoFloor: true},
			steps: []step{
				{id: "a", class: place.LSE, milli: 1000, want: "0"},
				{id: "b", class: place.LSE, milli: 2000, want: "1,9"},       // a core, not the sibling of 0
				{id: "c", class: place.LSE, milli: 6000, want: "4-6,12-14"}, // node 0 has 5
				{id: "d", class: place.LSE, milli: 3000, want: "2,8,10"},
				{id: "e", class: place.LSE, milli: 3000, want: "3,7,11"}, // the root
			},
		},
		{
			name: "numa prefers the die in a node", policy: controlplane.Policy{Allocator: controlplane.NUMA}, form: "1s1n2d4c",
			config: place.Config{NoFloor: true},
			steps: []step{
				{id: "a", class: place.LSE, milli: 2000, want: "0-1"},
				{id: "b", class: place.LSE, milli: 3000, want: "4-6"},
			},
		},
		{
			name: "numa-namespace binds, and the others use all of the bucket", form: "1s2n4c2t",
			policy: controlplane.Policy{Allocator: controlplane.NUMANamespace, Buckets: 2},
			steps: []step{
				{id: "a", ns: "red", class: place.LSE, milli: 3000, want: "0-1,8"},
				{id: "b", ns: "blue", class: place.LS, milli: 500, want: "4-7,12-15"},
				{id: "c", ns: "red", class: place.LS, milli: 500, want: "0-3,8-11"},
				{id: "d", ns: "red", class: place.LSE, milli: 2000, want: "2,9"},
				{id: "e", ns: "green", class: place.BE, want: "0-3,8-11"}, // in turn
				{id: "f", ns: "red", class: place.LSE, milli: 3000, want: "!not enough CPUs: 3 asked, 2 available"},
				{id: "a", release: true},
				{id: "g", ns: "green", class: place.LSE, milli: 1000, want: "0"},
			},
		},
		{
			name: "numa-namespace-exclusive owns, for all namespaces of the bucket", form: "1s2n4c2t",
			policy: controlplane.Policy{Allocator: controlplane.NUMANamespaceExclusive, Buckets: 2},
			config: place.Config{NoFloor: true},
			steps: []step{
				{id: "a", ns: "red", class: place.LSE, milli: 3000, want: "0-1,8"},
				{id: "b", ns: "blue", class: place.BE, want: "4-7,12-15"},
				{id: "c", ns: "green", class: place.BE, want: "2-3,9-11"},
				{id: "d", ns: "red", class: place.BE, want: "2-3,9-11"},
				{id: "d", release: true},
				{id: "e", ns: "green", class: place.LSE, milli: 4000, want: "2-3,9-10"},
				{id: "c", want: "11"},
				{id: "f", ns: "red", class: place.LSE, milli: 1000, want: "!not enough CPUs: 1 asked, 0 available"},
				{id: "a", release: true},
				{id: "c", want: "0-1,8,11"},
			},
		},
		{
			name: "a bucket keeps one CPU for its sharers", form: "1s2n2c",
			policy: controlplane.Policy{Allocator: controlplane.NUMANamespaceExclusive},
			steps: []step{
				{id: "a", ns: "red", class: place.BE, want: "0-1"},
				{id: "b", ns: "blue", class: place.LSE, milli: 2000, want: "!not enough CPUs: 2 asked, 1 available"},
				{id: "c", ns: "blue", class: place.LSE, milli: 1000, want: "2"},
				{id: "d", ns: "blue", class: place.BE, want: "3"},
			},
		},
		{
			name: "buckets follow the tree, not the numbers", form: "1s2n4c2t",
			policy: controlplane.Policy{Allocator: controlplane.NUMANamespace, Buckets: 4},
			steps: []step{
				{id: "a", ns: "a", want: "0-1,8-9"},
				{id: "b", ns: "b", want: "2-3,10-11"},
				{id: "c", ns: "c", want: "4-5,12-13"},
				{id: "d", ns: "d", want: "6-7,14-15"},
				{id: "e", ns: "e", want: "0-1,8-9"},
			},
		},
		{
			name: "idle sharers do not keep anybody from being bound", form: "1s2n2c",
			policy: controlplane.Policy{Allocator: controlplane.NUMANamespace},
			steps: []step{
				{id: "a", ns: "red", class: place.BE, want: "0-1"},
				{id: "b", ns: "red", class: place.LSE, milli: 2000, want: "0-1"},
				{id: "c", ns: "red", class: place.LS, milli: 1, want: "!not enough CPUs: 1m asked, 0 available"},
			},
		},
		{
			name: "never more buckets than CPUs", form: "1s1n2c",
			policy: controlplane.Policy{Allocator: controlplane.NUMANamespace, Buckets: 9},
			steps:  []step{{id: "a", ns: "a", want: "0"}, {id: "b", ns: "b", want: "1"}, {id: "c", ns: "c", want: "0"}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s, err := place.Start(tc.policy, placetest.Topology(t, tc.form), tc.config)
			if err != nil {
				t.Fatal(err)
			}
			for i, st := range tc.steps {
				s = st.run(t, i, tc.policy, s)
			}
		})
	}
}

func (st step) run(t *testing.T, i int, p place.Policy, s *place.State) *place.State {
	t.Helper()
	if st.release {
		next, err := s.Release(st.id)
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		return next
	}
	_, held := s.Grant(st.id)
	if !held {
		o, err := place.Place(p, s, &place.Request{ID: st.id, Namespace: st.ns, Class: st.class, Milli: st.milli})
		next := s
		if err == nil {
			next, err = s.Commit(o)
		}
		if want, refused := strings.CutPrefix(st.want, "!"); refused {
			if err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Fatalf("step %d: %s: error %v, want %q", i, st.id, err, want)
			}
			return s
		}
		if err != nil {
			t.Fatalf("step %d: %s: %v", i, st.id, err)
		}
		s = next
	}
	if got, _ := s.CPUs(st.id); got.String() != st.want {
		t.Errorf("step %d: %s runs on %s, want %s", i, st.id, got, st.want)
	}
	return s
}

func TestPinMemory(t *testing.T) {
	t.Parallel()
	memory := []place.Block{{Node: 0, Resource: place.Memory, Bytes: 100}, {Node: 1, Resource: place.Memory, Bytes: 100}}
	for _, tc := range []struct {
		pin   bool
		bytes int64
		mems  string
	}{{false, 50, ""}, {true, 50, "0"}, {true, 150, "0-1"}, {true, 0, "0"}} {
		p := controlplane.Policy{Allocator: controlplane.NUMA, PinMemory: tc.pin}
		s, err := place.Start(p, placetest.Topology(t, "1s2n4c"), place.Config{Memory: memory})
		if err != nil {
			t.Fatal(err)
		}
		r := place.Request{ID: "a", Class: place.LSE, Milli: 2000, Memory: []place.Amount{{Resource: place.Memory, Bytes: tc.bytes}}}
		o, err := place.Place(p, s, &r)
		if err != nil {
			t.Fatal(err)
		}
		if got := o.Grant.Mems.String(); got != tc.mems {
			t.Errorf("pin %v, %d bytes: mems %q, want %q", tc.pin, tc.bytes, got, tc.mems)
		}
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	nodes := cpuset.MustOf(0)
	for name, r := range map[string]place.Request{
		"mixed":       {Mode: place.Mixed, Milli: 1500},
		"exclusive":   {Mode: place.Exclusive, Milli: 1000},
		"nodes":       {Nodes: nodes, NodesRequired: true},
		"max nodes":   {MaxNodes: 1},
		"bind":        {Bind: place.FullPCPUs, BindRequired: true},
		"isolated":    {Isolated: place.Require},
		"exclusivity": {Exclusivity: place.PCPULevel},
	} {
		p := controlplane.Policy{Allocator: controlplane.NUMANamespace}
		s, err := place.Start(p, placetest.Topology(t, "1s2n4c"), place.Config{})
		if err != nil {
			t.Fatal(err)
		}
		r.ID = "a"
		if _, err := place.Place(p, s, &r); !errors.As(err, new(*place.RejectedError)) {
			t.Errorf("%s: error %v, want a *RejectedError", name, err)
		}
	}
	for _, p := range []controlplane.Policy{{Allocator: 4}, {Allocator: -1}, {Buckets: -1}} {
		s, _ := place.New(placetest.Topology(t, "1s2n4c"), place.Config{})
		if _, err := place.Place(p, s, &place.Request{ID: "a"}); !errors.As(err, new(*place.InvalidError)) {
			t.Errorf("%+v: error %v, want an *InvalidError", p, err)
		}
	}
}

func TestConfigText(t *testing.T) {
	t.Parallel()
	in := `{"allocator":"numa-namespace","buckets":2,"pinMemory":true}`
	var p controlplane.Policy
	if err := json.Unmarshal([]byte(in), &p); err != nil {
		t.Fatal(err)
	}
	if want := (controlplane.Policy{Allocator: controlplane.NUMANamespace, Buckets: 2, PinMemory: true}); p != want {
		t.Errorf("read %+v, want %+v", p, want)
	}
	if out, err := json.Marshal(p); err != nil || string(out) != in {
		t.Errorf("wrote %s, %v", out, err)
	}
	if err := json.Unmarshal([]byte(`{"allocator":"static"}`), &p); err == nil {
		t.Error("an unknown allocator is read without error")
	}
	if _, err := json.Marshal(controlplane.Policy{Allocator: 9}); err == nil {
		t.Error("an unknown allocator is written without error")
	}
}

func policies() []controlplane.Policy {
	return []controlplane.Policy{
		{}, {Allocator: controlplane.NUMA, PinMemory: true}, {Allocator: controlplane.NUMANamespace}, {Allocator: controlplane.NUMANamespaceExclusive, Buckets: 3},
	}
}

func TestProperties(t *testing.T) {
	t.Parallel()
	for _, p := range policies() {
		t.Run(p.Name(), func(t *testing.T) {
			t.Parallel()
			suite := placetest.Suite{Policy: p, Own: func(r *place.Request) int { return own(p, r) }}
			if p.Allocator == controlplane.NUMA { // the others go by CPU numbers
				suite.Rank = rank
			}
			placetest.Check(t, suite)
		})
	}
}

func own(p controlplane.Policy, r *place.Request) int {
	switch {
	case r.Mode == place.Exclusive:
		return r.Whole()
	case p.Allocator == controlplane.NUMANamespace || r.Mode != place.Auto || r.Class != place.LSE && r.Class != place.LSR || r.Milli%1000 != 0:
		return 0
	}
	return r.Milli / 1000
}

// rank is how deep in the tree the owned CPUs lie, and on which nodes.
func rank(s *place.State, g *place.Grant) []int {
	t := s.Topology()
	first, ok := g.Own.First()
	if !ok {
		return nil
	}
	var nodes []int
	for pos, u := range t.Units(machine.Node) {
		if u.CPUs.Overlaps(g.Own) {
			nodes = append(nodes, pos)
		}
	}
	for _, k := range []machine.Kind{machine.Core, machine.Die, machine.Socket, machine.Node} {
		at := t.At(k, first)
		if at < 0 || k == machine.Socket && t.Count(machine.Node, t.Units(k)[at].CPUs) > 1 {
			continue
		}
		if t.Units(k)[at].CPUs.Contains(g.Own) {
			return append(nodes, int(k))
		}
	}
	return nodes
}

func BenchmarkPlace(b *testing.B) {
	for _, p := range policies() {
		placetest.Benchmark(b, p, nil)
	}
}

// The tree is ordered by node numbers, even where those of the CPUs disagree.
func TestTreeOrder(t *testing.T) {
	t.Parallel()
	m := &machine.Machine{Online: cpuset.MustParse("0-3")}
	for cpu := range 4 {
		m.CPUs = append(m.CPUs, machine.CPU{ID: cpu})
	}
	m.Domains = []machine.Domain{
		{Kind: machine.Node, ID: 0, CPUs: cpuset.MustParse("2-3")},
		{Kind: machine.Node, ID: 1, KernelID: 1, CPUs: cpuset.MustParse("0-1")},
	}
	top, err := place.NewTopology(m)
	if err != nil {
		t.Fatal(err)
	}
	p := controlplane.Policy{Allocator: controlplane.NUMA}
	s, err := place.Start(p, top, place.Config{NoFloor: true})
	if err != nil {
		t.Fatal(err)
	}
	(step{id: "a", class: place.LSE, milli: 2000, want: "2-3"}).run(t, 0, p, s)
}
