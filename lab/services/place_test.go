package services

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/lab"
	"berth.dev/berth/machine"
)

// played is a machine of a short form, with memory on its nodes, all but those in without.
func played(t *testing.T, form string, without ...int) *machine.Machine {
	t.Helper()
	m := fakekernel.Short(t, form)
	for i := range m.Domains {
		if d := &m.Domains[i]; d.Kind == machine.Node && !slices.Contains(without, d.ID) {
			d.Bytes = 1 << 30
		}
	}
	return m
}

func set(t *testing.T, list string) cpuset.Set {
	t.Helper()
	s, err := cpuset.Parse(list)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func graphOf(t *testing.T, services []Service) *graph {
	t.Helper()
	g, err := newGraph(services)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Where the default placements have the services on machines of several kinds: the CPUs of
// each part, with its memory; "" is not here.
func TestPlaces(t *testing.T) {
	t.Parallel()
	const none = ""
	type want map[string]string
	for _, tc := range []struct {
		name, form, free string
		without          []int
		wants            float64
		numa             bool
		want             want
	}{
		{name: "two cores", form: "2c", free: "0-1", want: want{
			"no rule": "0-1", "node": none, "nodes together": none, "half": "0", "halves together": "0 | 1", "halves apart": "0 | 1",
			"hog everywhere": "0-1 hog 0-1", "hog elsewhere": "0 hog 1",
		}},
		{name: "one core", form: "1c2t", free: "0-1", want: want{"no rule": "0-1", "half": none, "halves apart": none, "hog everywhere": "0-1 hog 0-1", "hog elsewhere": none}},
		{name: "one CPU", form: "2c", free: "1", want: want{"no rule": "1", "half": none, "hog elsewhere": none}},
		{name: "threads", form: "4c2t", free: "0-7", want: want{"half": "0-1,4-5", "halves together": "0-1,4-5 | 2-3,6-7"}},
		{name: "three cores with threads", form: "3c2t", free: "0-5", want: want{"half": "0,3", "halves apart": "0,3 | 1,4"}},
		{name: "caches", form: "2l4c", free: "0-7", want: want{"half": "0-3", "halves together": "0-3 | 4-7", "node": none}},
		{name: "caches, a part of them", form: "2l4c", free: "2-5", want: want{"half": "2-3", "halves together": "2-3 | 4-5"}},
		{name: "two nodes", form: "2s4c", free: "0-7", numa: true, want: want{
			"no rule": "0-7", "node": "0-3 mem 0", "nodes together": "0-3 mem 0 | 4-7 mem 1", "nodes apart": "0-3 mem 0 | 4-7 mem 1",
			"half": none, "halves together": none, "hog elsewhere": "0-3 mem 0 hog 4-7", // the halves are the nodes
		}},
		{name: "two nodes, one takes part", form: "2s4c", free: "4-7", want: want{"no rule": "4-7", "node": none, "half": "4-5 mem 1"}},
		{name: "two nodes, memory on one", form: "2s4c", free: "0-7", without: []int{1}, want: want{"node": none, "half": "0-3", "halves apart": "0-3 | 4-7"}},
		{name: "four nodes", form: "2s2n2c2t", free: "0-15", numa: true, want: want{
			"node": "0-1,8-9 mem 0", "nodes together": "0-1,8-9 mem 0 | 2-3,10-11 mem 1", "half": "0-3,8-11 mem 0-1", "halves apart": "0-3,8-11 mem 0-1 | 4-7,12-15 mem 2-3",
		}},
		{name: "four nodes, no room on one", form: "2s2n2c2t", free: "0-15", wants: 4, numa: true, want: want{"node": none, "nodes together": "0-1,8-9 mem 0 | 2-3,10-11 mem 1", "half": "0-3,8-11 mem 0-1"}},
		{name: "no room", form: "2c", free: "0-1", wants: 1.6, want: want{"no rule": none, "half": none, "halves together": none, "hog everywhere": none}},
	} {
		s := site{played(t, tc.form, tc.without...), set(t, tc.free)}
		if s.numa() != tc.numa {
			t.Errorf("%s: several memories: %v", tc.name, s.numa())
		}
		e := Default()
		all := e.places(graphOf(t, e.Services), s, tc.wants)
		for name, want := range tc.want {
			p := all[slices.IndexFunc(all, func(p placed) bool { return p.Name == name })]
			if p.impossible() {
				t.Errorf("%s, %s: %v", tc.name, name, p.err)
				continue
			}
			if got := placeText(p); got != want {
				t.Errorf("%s, %s: %q, want %q (%v)", tc.name, name, got, want, p.err)
			}
		}
	}
}

// placeText is "0-3 mem 0 | 4-7 mem 1 hog 0-7"; "" for none.
func placeText(p placed) string {
	if p.err != nil {
		return ""
	}
	var parts []string
	for _, part := range p.at.Parts {
		text := part.CPUs.String()
		if !part.Mems.IsEmpty() {
			text += " mem " + part.Mems.String()
		}
		parts = append(parts, text)
	}
	text := strings.Join(parts, " | ")
	if !p.at.Neighbour.IsEmpty() {
		text += " hog " + p.at.Neighbour.String()
	}
	return text
}

// What is skipped says why, and what would help.
func TestSkipped(t *testing.T) {
	t.Parallel()
	e := Default()
	for _, tc := range []struct {
		form      string
		wants     float64
		placement string
		want      string
	}{
		{"2c", 0.1, "node", "the CPUs that take part (0-1) are on one"},
		{"2s4c", 0.1, "half", `it is the same as "node" here`},
		{"1c", 0.1, "half", "one core takes part"},
		{"2c", 1.6, "no rule", "they want 1.6 CPUs of CPUs 0-1, more than 75 %"},
	} {
		m := played(t, tc.form)
		for _, p := range e.places(graphOf(t, e.Services), site{m, m.Online}, tc.wants) {
			if p.Name == tc.placement && (!errors.Is(p.err, kernel.ErrNotSupported) || !strings.Contains(p.err.Error(), tc.want)) {
				t.Errorf("%s on %s: %v, want %q", p.Name, tc.form, p.err, tc.want)
			}
		}
	}
}

// The default shop, by value.
func TestGraph(t *testing.T) {
	t.Parallel()
	e := Default()
	g := graphOf(t, e.Services)
	want := map[string]float64{
		"gateway": 1, "catalogue": 1.5, "recommendations": 0.5, "cart": 1.05, "checkout": 0.05, "currency": 1.1, "ads": 0.5,
		"shipping": 0.05, "payment": 0.05, "cache": 4.05, "database": 0.4,
	}
	for i, s := range e.Services {
		if math.Abs(g.requests[i]-want[s.Name]) > 1e-9 {
			t.Errorf("%s: %g requests, want %g", s.Name, g.requests[i], want[s.Name])
		}
	}
	if math.Abs(g.calls()-9.25) > 1e-9 {
		t.Errorf("%g calls", g.calls())
	}
	if from, to, calls := g.hottest(); e.Services[from].Name != "catalogue" || e.Services[to].Name != "cache" || calls != 3 {
		t.Errorf("hottest: %d calls %d %g times", from, to, calls)
	}
	at := map[int]int{}
	for n, i := range g.order {
		at[i] = n
	}
	for from := range g.edges {
		for to, calls := range g.edges[from] {
			if calls > 0 && at[to] >= at[from] {
				t.Errorf("%s calls %s, which starts later", e.Services[from].Name, e.Services[to].Name)
			}
		}
	}
	if last := g.order[len(g.order)-1]; last != 0 {
		t.Errorf("service %d is asked", last)
	}
	together, apart := g.split(true), g.split(false)
	if a, b := g.crossing(together), g.crossing(apart); a >= b/2 || b < 7 || !together[0] || !apart[0] {
		t.Errorf("together %v: %g cross; apart %v: %g cross", together, a, apart, b)
	}
	for _, first := range [][]bool{together, apart} {
		if share := g.share(first); share < 1-balanced || share > balanced {
			t.Errorf("%v: %g of the work", first, share)
		}
	}
}

// Of two services that do all the work there is one way to split them; of a chain, the one
// that cuts it once, or everywhere.
func TestSplit(t *testing.T) {
	t.Parallel()
	chain := func(n int) (all []Service) {
		for i := range n {
			s := Service{Name: fmt.Sprint("s", i), CPU: 1000}
			if i+1 < n {
				s.Steps = [][]Call{{{To: fmt.Sprint("s", i+1)}}}
			}
			all = append(all, s)
		}
		return all
	}
	for _, tc := range []struct {
		services        int
		together, apart []bool
	}{
		{2, []bool{true, false}, []bool{true, false}},
		{4, []bool{true, true, false, false}, []bool{true, false, true, false}},
		{6, []bool{true, true, true, false, false, false}, []bool{true, false, true, false, true, false}},
	} {
		g := graphOf(t, chain(tc.services))
		if diff := cmp.Diff([][]bool{tc.together, tc.apart}, [][]bool{g.split(true), g.split(false)}); diff != "" {
			t.Errorf("%d services (-want +got):\n%s", tc.services, diff)
		}
	}
	lopsided := chain(3)
	lopsided[1].CPU = 100_000_000 // whatever stands beside it, its part has nearly all of the work
	if first := graphOf(t, lopsided).split(true); first[1] || !first[0] || !first[2] {
		t.Errorf("a service with nearly all of the work has company: %v", first)
	}
}

// The servers are callees first, and settings go to the servers of the services.
func TestServers(t *testing.T) {
	t.Parallel()
	x := New()
	e := &x.Experiment
	e.Services = []Service{
		{"web", 1000, 4096, [][]Call{{{To: "cache", Times: 2}, {To: "db", Share: 0.5}}}},
		{"db", 1000, 8192, nil},
		{"cache", 1000, 16384, [][]Call{{{To: "db"}}}},
	}
	x.Work, e.Seed = []int{5, 6, 7}, 40
	g := graphOf(t, e.Services)
	out := x.servers(g, 3)
	var sizes []int64
	for _, s := range out.Services {
		sizes = append(sizes, s.WorkingSetBytes)
		if !s.Timed || s.Procs != 3 {
			t.Errorf("%+v", s)
		}
	}
	if diff := cmp.Diff([]int64{8192, 16384, 4096}, sizes); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	web := out.Services[2]
	if web.Units != 5 || web.Seed != 40 || web.Steps[0][0].To != 1 || web.Steps[0][0].Times != 2 || web.Steps[0][1].To != 0 || web.Steps[0][1].Share != 0.5 {
		t.Errorf("web: %+v", web)
	}
	p := Placement{Name: "x", Parts: 2, Over: Nodes, First: []string{"db"}}
	m := played(t, "2s2c")
	at, err := g.place(p, site{m, m.Online}, 0.1)
	if err != nil {
		t.Fatal(err)
	}
	zero, one := cgroup.Limits{CPUs: set(t, "0-1"), Mems: set(t, "0")}, cgroup.Limits{CPUs: set(t, "2-3"), Mems: set(t, "1")}
	want := lab.Settings{lab.Server(1): zero, lab.Server(2): one, lab.Server(3): one}
	if got := g.settings(placed{Placement: p, at: at}); len(got) != 3 || got[lab.Server(1)].CPUs != zero.CPUs || got[lab.Server(1)].Mems != zero.Mems || got[lab.Server(3)].CPUs != one.CPUs {
		t.Errorf("%+v, want %+v", got, want)
	}
	if at.Crossing != 2.5 { // two calls of the cache's, and one of two of web's
		t.Errorf("%g calls cross", at.Crossing)
	}
	elsewhere := Placement{Name: "y", Parts: 1, Over: Halves, Neighbour: Elsewhere}
	if at, err = g.place(elsewhere, site{m, m.Online}, 0.1); err != nil {
		t.Fatal(err)
	}
	if got := g.settings(placed{Placement: elsewhere, at: at})[lab.Neighbour]; got.CPUs != one.CPUs || got.Mems != one.Mems {
		t.Errorf("the neighbour: %+v", got)
	}
	free := Placement{Name: "z"}
	if at, err = g.place(free, site{m, m.Online}, 0.1); err != nil || len(g.settings(placed{Placement: free, at: at})) != 0 {
		t.Errorf("no rule: %+v, %v", at, err)
	}
}

func TestLocal(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		of   ServiceServed
		want float64 // below 0: not known
	}{
		{ServiceServed{}, -1},
		{ServiceServed{Bytes: map[int]int64{0: 5}}, -1},
		{ServiceServed{Ran: map[int]float64{0: 1}}, -1},
		{ServiceServed{Bytes: map[int]int64{0: 30, 1: 10}, Ran: map[int]float64{0: 1}}, 0.75},
		{ServiceServed{Bytes: map[int]int64{0: 30, 1: 10}, Ran: map[int]float64{0: 0.5, 1: 0.5}}, 0.5},
		{ServiceServed{Bytes: map[int]int64{0: 30, 1: 10}, Ran: map[int]float64{2: 1}}, 0},
	} {
		if share, ok := tc.of.local(); ok != (tc.want >= 0) || ok && math.Abs(share-tc.want) > 1e-9 {
			t.Errorf("%+v: %g, %v; want %g", tc.of, share, ok, tc.want)
		}
	}
	x := New()
	x.Served = []Served{{Block: 3, Cell: "a", Services: []ServiceServed{
		{Name: "s", Bytes: map[int]int64{0: 300}, Ran: map[int]float64{0: 1}}, {Name: "t", Bytes: map[int]int64{1: 100}, Ran: map[int]float64{0: 1}}, {Name: "u"},
	}}}
	if share, ok := x.local("a", 3); !ok || math.Abs(share-0.75) > 1e-9 {
		t.Errorf("all services: %g, %v; want it by bytes", share, ok)
	}
	if _, ok := x.local("a", 4); ok {
		t.Error("of a round that there is not")
	}
}

// The lab's own choice of CPUs is half from each of two homes, however little the services want.
func TestChosenInHalves(t *testing.T) {
	t.Parallel()
	m := fakekernel.Short(t, "1s2n8c1t")
	spec := Default()
	for _, spec.Demand = range []float64{0.05, 0.9} {
		shared, err := spec.base().SharedCPUs(m)
		if err != nil {
			t.Fatal(err)
		}
		for _, node := range m.ByKind(machine.Node) {
			if n := node.CPUs.Intersect(shared).Len(); n != 4 {
				t.Errorf("demand %g: CPUs %s, %d of node %d", spec.Demand, shared, n, node.ID)
			}
		}
	}
}
