package balloons_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/place"
	"berth.dev/berth/place/balloons"
)

// TestDefects has a row for each defect of the originals that a sequence of
// steps shows, and what is right.
func TestDefects(t *testing.T) {
	t.Parallel()
	third := []balloons.Type{{Name: "x", Components: []string{"p", "p", "p"}}, {Name: "p"}, {Name: "default"}}
	for _, tt := range []struct {
		name  string
		p     balloons.Policy
		form  string
		conf  place.Config
		steps []step
		want  string
		pools string
	}{
		{
			name: "a request above maxCPUs is not squeezed in",
			p:    only(balloons.Type{MaxCPUs: 2}), steps: []step{add("a", "x", 2001)}, want: "a=refused", pools: "",
		},
		{
			// Two CPUs held, three free, at most four: five were admitted once.
			name: "a sum above maxCPUs is not admitted because enough is free", form: "1s1n1l6c1t",
			p: only(balloons.Type{MaxCPUs: 4, MaxBalloons: 1}), steps: []step{add("a", "x", 2000), add("b", "x", 3000), add("c", "x", 2000)},
			want: "a=1-4 b=refused c=1-4", pools: "x/0=1-4",
		},
		{
			name: "reserved has the reserved CPUs whatever its maxCPUs", conf: place.Config{Reserved: set("0-1")},
			p: only(balloons.Type{Name: "reserved", MinCPUs: 1}), steps: []step{add("a", "reserved", 1500)}, want: "a=0-1", pools: "",
		},
		{
			name: "reserved grows", conf: place.Config{Reserved: set("0")}, p: balloons.Policy{Types: only(balloons.Type{}).Types},
			steps: some(4, "a", "reserved", 800), want: "a0=0 a1=1,16-17 a2=1,16-17 a3=1,16-17", pools: "reserved/0=1,16-17",
		},
		{
			name: "reserved has several balloons", conf: place.Config{Reserved: set("0")},
			p: only(balloons.Type{Name: "reserved", MaxCPUs: 1}), steps: some(3, "a", "reserved", 800), want: "a0=0 a1=16 a2=1", pools: "reserved/0=16 reserved/1=1",
		},
		{
			name: "resizing in place is done: grow", p: only(balloons.Type{}),
			steps: []step{add("a", "x", 2000), add("b", "x", 1000), resize("a", 3500)}, want: "a=1-2,16-18 b=1-2,16-18",
		},
		{
			name: "resizing in place is done: shrink", p: only(balloons.Type{}),
			steps: []step{add("a", "x", 3500), resize("a", 1500)}, want: "a=1,17",
		},
		{
			name: "resizing in place says what cannot be", p: only(balloons.Type{MaxCPUs: 2}),
			steps: []step{add("a", "x", 2000), resize("a", 2500)}, want: "a=refused", pools: "x/0=1,17",
		},
		{
			// A third of 3,001 is more than one CPU somewhere.
			name: "parts of a composite are as large as their share", p: balloons.Policy{Types: third},
			steps: []step{add("a", "x", 3001)}, want: "a=1-2,16-17", pools: "x/0=1-2,16-17",
		},
		{
			name: "nine CPUs over four parts are three each", steps: []step{add("a", "x", 9000)}, want: "a=1-6,16-18,20-22",
			p: balloons.Policy{Types: []balloons.Type{{Name: "x", Components: []string{"p", "p", "p", "p"}}, {Name: "p", MaxCPUs: 3}, {Name: "default"}}},
		},
		{
			name: "a composite that fails half-way leaves nothing behind", form: "1s1n1l4c1t",
			p: balloons.Policy{Types: third}, steps: []step{add("a", "x", 6000), add("b", "default", 3000)}, want: "a=refused b=1-3", pools: "default/0=1-3",
		},
		{
			name: "nobody has an empty set", form: "1s1n1l4c1t",
			p: only(balloons.Type{}), steps: []step{add("a", "x", 3000), add("b", "default", 0)}, want: "a=1-3 b=0",
		},
		{
			name: "one CPU is never nobody's because of its sibling", p: only(balloons.Type{PreferNew: true}),
			steps: some(2, "a", "x", 1000), want: "a0=16 a1=1",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.form == "" {
				tt.form = two
			}
			got := run(t, tt.p, fakekernel.Short(t, tt.form), tt.conf, tt.steps)
			if got.workloads != tt.want || tt.pools != "" && got.pools != tt.pools {
				t.Errorf("%q of %q, want %q of %q", got.workloads, got.pools, tt.want, tt.pools)
			}
		})
	}
}

// TestRestart reinstates balloons as they were, whatever the order; the original
// placed all anew.
func TestRestart(t *testing.T) {
	t.Parallel()
	p := balloons.Policy{Types: []balloons.Type{
		{Name: "x", MaxCPUs: 4, ShareIdle: balloons.NUMALevel}, {Name: "pair", Components: []string{"x", "x"}}, {Name: "fixed", Lists: lists("4-5", "6-7"), Slots: 2},
	}}
	steps := append(some(5, "a", "x", 1500), add("b", "pair", 3000), add("c", "fixed", 2000), add("d", "fixed", 1000), drop("a1"), drop("a3"))
	m := fakekernel.Short(t, two)
	s := run(t, p, m, place.Config{}, steps).state
	rng := rand.New(rand.NewPCG(1, 1))
	for range 10 {
		saved := s.Save()
		rng.Shuffle(len(saved.Grants), func(i, j int) { saved.Grants[i], saved.Grants[j] = saved.Grants[j], saved.Grants[i] })
		fresh, err := place.New(topology(t, m), place.Config{})
		if err != nil {
			t.Fatal(err)
		}
		again, err := fresh.Reinstate(saved)
		if err != nil {
			t.Fatal(err)
		}
		if diff := s.Difference(again); diff != "" {
			t.Fatal(diff)
		}
	}
}

// TestGivesBack is that balloons made at the start have their first CPUs again.
func TestGivesBack(t *testing.T) {
	t.Parallel()
	p := balloons.Policy{Types: []balloons.Type{
		{Name: "x", MinBalloons: 2, MinCPUs: 3}, {Name: "p"}, {Name: "y", MinBalloons: 1, Components: []string{"p", "x"}},
	}}
	m := fakekernel.Short(t, two)
	start := run(t, p, m, place.Config{}, nil)
	if want := "default/0=21 x/0=1,16-17 x/1=2-3,18 y/0=4-5,19-20"; start.pools != want {
		t.Fatalf("at the start %s, want %s", start.pools, want)
	}
	all := append(some(3, "a", "x", 3000), add("b", "y", 6000), add("c", "default", 2500))
	for _, order := range [][]string{{"a0", "b", "a1", "c", "a2"}, {"c", "b", "a2", "a1", "a0"}} {
		steps := all
		for _, id := range order {
			steps = append(steps[:len(steps):len(steps)], drop(id))
		}
		if end := run(t, p, m, place.Config{}, steps); end.state.Difference(start.state) != "" {
			t.Errorf("%v: %s", order, end.state.Difference(start.state))
		}
	}
}

// TestChangedPolicy releases and resizes members of a type that is no more.
func TestChangedPolicy(t *testing.T) {
	t.Parallel()
	s := run(t, only(balloons.Type{}), fakekernel.Short(t, two), place.Config{}, some(2, "a", "x", 1000)).state
	var rejected *place.RejectedError
	if _, err := place.Resize(balloons.Policy{}, s, &place.Request{ID: "a0", Milli: 500}); !errors.As(err, &rejected) {
		t.Errorf("resize: %v", err)
	}
	for _, id := range []string{"a0", "a1"} {
		o, err := place.Release(balloons.Policy{}, s, id)
		if err != nil {
			t.Fatal(err)
		}
		if s, err = s.Commit(o); err != nil {
			t.Fatal(err)
		}
	}
	if got := pools(s); got != "" {
		t.Errorf("left: %s", got)
	}
}

// TestRefusals has requests that no balloon can serve as they are.
func TestRefusals(t *testing.T) {
	t.Parallel()
	p := balloons.Policy{Types: []balloons.Type{{Name: "x"}, {Name: "one", Slots: 1}, {Name: "fixed", Lists: lists("4-5")}}}
	for _, tt := range []struct {
		name   string
		change func(r *place.Request)
		want   any // what the error must be, or nil
	}{
		{"as it is", func(*place.Request) {}, nil},
		{"unknown type", func(r *place.Request) { r.Hints[balloons.HintType] = "z" }, new(*place.RejectedError)},
		{"exclusive among others", func(r *place.Request) { r.Mode = place.Exclusive }, new(*place.RejectedError)},
		{"exclusive alone", func(r *place.Request) { r.Mode, r.Hints[balloons.HintType] = place.Exclusive, "one" }, nil},
		{"mixed", func(r *place.Request) { r.Mode = place.Mixed }, new(*place.RejectedError)},
		{"bind policy", func(r *place.Request) { r.Bind, r.BindRequired = place.FullPCPUs, true }, new(*place.RejectedError)},
		{"bind wish", func(r *place.Request) { r.Bind = place.FullPCPUs }, nil},
		{"malformed hide", func(r *place.Request) { r.Hints[balloons.HintHide] = "perhaps" }, new(*place.RejectedError)},
		{"malformed lists", func(r *place.Request) { r.Hints[balloons.HintLists], r.Hints[balloons.HintType] = "many", "fixed" }, new(*place.RejectedError)},
		{"lists of a type without", func(r *place.Request) { r.Hints[balloons.HintLists] = "1" }, new(*place.RejectedError)},
		{"negative socket", func(r *place.Request) { r.Hints[balloons.HintSocket], r.Hints[balloons.HintType] = "-1", "fixed" }, new(*place.RejectedError)},
		{"no such node", func(r *place.Request) { r.Nodes, r.NodesRequired = set("7"), true }, new(*place.CPUsError)},
		{"no such device", func(r *place.Request) { r.Devices = []place.DeviceRequest{{Names: []string{"gpu"}}} }, new(*place.DeviceError)},
		{"no such memory", func(r *place.Request) { r.Memory = []place.Amount{{Resource: "hugepages-1Gi", Bytes: 1 << 30}} }, new(*place.MemoryError)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := run(t, p, fakekernel.Short(t, two), place.Config{}, nil).state
			r := add("a", "x", 1000).place
			tt.change(&r)
			_, err := place.Place(p, s, &r)
			if tt.want == nil && err != nil || tt.want != nil && !errors.As(err, tt.want) {
				t.Errorf("%v, want %T", err, tt.want)
			}
		})
	}
}

// TestRequiredNodes keeps a balloon where a member requires it, also when it
// grows for others.
func TestRequiredNodes(t *testing.T) {
	t.Parallel()
	p := only(balloons.Type{MaxBalloons: 1})
	here := add("a", "x", 2000).with(func(r *place.Request) { r.Nodes, r.NodesRequired = set("1"), true })
	got := run(t, p, fakekernel.Short(t, two), place.Config{}, []step{here, add("b", "x", 13000), add("c", "x", 2000)})
	if want := "a=8-15,24-30 b=8-15,24-30 c=refused"; got.workloads != want {
		t.Errorf("%q, want %q", got.workloads, want)
	}
	elsewhere := add("d", "x", 0).with(func(r *place.Request) { r.Nodes, r.NodesRequired = set("0"), true })
	got = run(t, p, fakekernel.Short(t, two), place.Config{}, []step{here, elsewhere})
	if want := "a=8,24 d=refused"; got.workloads != want {
		t.Errorf("%q, want %q", got.workloads, want)
	}
}

// TestMemoryAndDevices come from near the balloon.
func TestMemoryAndDevices(t *testing.T) {
	t.Parallel()
	conf := place.Config{
		Memory:  []place.Block{{Node: 0, Resource: place.Memory, Bytes: 1 << 30}, {Node: 1, Resource: place.Memory, Bytes: 1 << 30}},
		Devices: []place.Device{{Name: "g0", Kind: "gpu", Nodes: set("0")}, {Name: "g1", Kind: "gpu", Nodes: set("1")}},
	}
	p := only(balloons.Type{Branches: balloons.Spread})
	st := add("a", "x", 1000).with(func(r *place.Request) {
		r.Memory = []place.Amount{{Resource: place.Memory, Bytes: 3 << 29}}
		r.Devices = []place.DeviceRequest{{Kind: "gpu", Count: 1}}
	})
	g, _ := run(t, p, fakekernel.Short(t, two), conf, []step{st}).state.Grant("a")
	if g == nil || g.Mems != set("0-1") || len(g.Memory) != 2 || g.Memory[0].Node != 1 || len(g.Devices) != 1 || g.Devices[0] != "g1" {
		t.Errorf("%+v", g)
	}
}

// TestWhy is that an explanation names what was chosen and what lost.
func TestWhy(t *testing.T) {
	t.Parallel()
	p := only(balloons.Type{MaxCPUs: 1, PreferIsolated: true, ElseDefault: true, MaxBalloons: 2})
	explain := func(r *place.Request) { r.Explain = true }
	var steps []step
	for _, st := range some(4, "a", "x", 600) {
		steps = append(steps, st.with(explain))
	}
	s := run(t, p, fakekernel.Short(t, two), place.Config{}, steps).state
	for id, want := range map[string][]string{
		"a0": {"new balloon x/0", "not isolated: too few", "core"},
		"a1": {"x/0", "more than its type may have (maxCPUs)", "new balloon x/1"},
		"a2": {"else default", "new balloon default/0"},
		"a3": {"balloon to grow", "default/0"},
	} {
		g, ok := s.Grant(id)
		if !ok {
			t.Fatalf("%s is not placed", id)
		}
		for _, part := range want {
			if text := g.Why.String(); !strings.Contains(text, part) {
				t.Errorf("%s: no %q in\n%s", id, part, text)
			}
		}
	}
}
