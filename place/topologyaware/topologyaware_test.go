package topologyaware_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/topologyaware"
)

// big is the machine of the observed behaviour: 2 sockets, 4 NUMA nodes, 8 L3
// domains of 8 cores, 128 CPUs; the cores are {i, i+64}. CPU 0 is reserved.
const big = "2s2n2l8c2t"

// step places a request and says what it runs on; want is the beginning of an
// error if it starts with "!".
type step struct {
	r    place.Request
	want string
}

func start(t *testing.T, p place.Policy, m *machine.Machine, c place.Config) *place.State {
	t.Helper()
	top, err := place.NewTopology(m)
	if err != nil {
		t.Fatal(err)
	}
	s, err := place.Start(p, top, c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func steps(t *testing.T, p place.Policy, s *place.State, all []step) *place.State {
	t.Helper()
	for i, st := range all {
		if st.r.ID == "" {
			st.r.ID = fmt.Sprintf("w%02d", i)
		}
		o, err := place.Place(p, s, &st.r)
		next := s
		if err == nil {
			next, err = s.Commit(o)
		}
		if want, refused := strings.CutPrefix(st.want, "!"); refused {
			if err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Fatalf("step %d: error %v, want %q", i, err, want)
			}
			continue
		}
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		s = next
		if got, _ := s.CPUs(st.r.ID); got.String() != st.want {
			t.Errorf("step %d: runs on %s, want %s", i, got, st.want)
		}
	}
	if err := s.Audit(); err != nil {
		t.Error(err)
	}
	return s
}

func gu(milli int) place.Request {
	return place.Request{Class: place.LSE, Milli: milli, LimitMilli: milli}
}

func bu(milli, limit int) place.Request {
	return place.Request{Class: place.LS, Milli: milli, LimitMilli: limit}
}

func be() place.Request { return place.Request{Class: place.BE} }

// with returns a request with a hint.
func with(r place.Request, key, value string) place.Request {
	r.Hints = map[string]string{key: value}
	return r
}

func reserved0() place.Config { return place.Config{Reserved: cpuset.MustOf(0)} }

// The observed sequence: each exclusive or shared workload finds an L3 domain of
// its own; a single CPU leaves its sibling, two CPUs are a core.
func TestObservedSequence(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	steps(t, p, start(t, p, fakekernel.Short(t, big), reserved0()), []step{
		{gu(500), "8-15,72-79"},
		{gu(1000), "16"},
		{gu(1500), "24-31,88-95"},
		{gu(2000), "32,96"},
		{gu(2500), "40-47,104-111"},
		{gu(3000), "48-49,112"},
	})
}

// A limit leads to the smallest pool that has it free; one larger than all pools
// to the largest.
func TestLimits(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	for _, tc := range []struct {
		limit int
		want  string
	}{
		{4000, "8-15,72-79"},
		{16000, "8-15,72-79"},
		{20000, "16-31,80-95"},
		{60000, "32-63,96-127"},
		{80000, "1-127"},
		{200000, "1-127"},
		{0, "32-63,96-127"}, // none: a socket
	} {
		for _, memory := range []int64{0, 1 << 30} {
			r := bu(1000, tc.limit)
			r.Memory = []place.Amount{{Resource: place.Memory, Bytes: memory}}
			conf := reserved0()
			for node := range 4 {
				conf.Memory = append(conf.Memory, place.Block{Node: node, Resource: place.Memory, Bytes: 128 << 30})
			}
			s := start(t, p, fakekernel.Short(t, big), conf)
			o, err := place.Place(p, s, &place.Request{ID: "probe", Class: r.Class, Milli: r.Milli, LimitMilli: r.LimitMilli, Memory: r.Memory})
			if err != nil {
				t.Fatal(err)
			}
			if got := s.Effective(o.Grant).String(); got != tc.want {
				t.Errorf("limit %d, memory %d: %s, want %s", tc.limit, memory, got, tc.want)
			}
		}
	}
}

// CPU locality is kept, memory widened.
func TestMemoryWidens(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	conf := reserved0()
	for node := range 4 {
		conf.Memory = append(conf.Memory, place.Block{Node: node, Resource: place.Memory, Bytes: 128 << 30})
	}
	for _, tc := range []struct {
		pin   bool
		bytes int64
		mems  string
	}{{true, 300 << 30, "0-2"}, {true, 1 << 30, "0"}, {false, 300 << 30, ""}} {
		p.PinMemory = tc.pin
		s := start(t, p, fakekernel.Short(t, big), conf)
		r := gu(10000)
		r.ID, r.Memory = "a", []place.Amount{{Resource: place.Memory, Bytes: tc.bytes}}
		o, err := place.Place(p, s, &r)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Topology().Count(machine.L3, o.Grant.Own); got != 1 {
			t.Errorf("%d bytes: CPUs of %d L3 domains", tc.bytes, got)
		}
		if got := o.Grant.Mems.String(); got != tc.mems {
			t.Errorf("%d bytes: mems %s, want %s", tc.bytes, got, tc.mems)
		}
	}
}

// Defect: best effort got an empty set when all CPUs were granted.
func TestBestEffortIsNeverEmpty(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	steps(t, p, start(t, p, fakekernel.Short(t, "2s2n8c2t"), reserved0()), []step{
		{gu(63000), "1-63"},
		{be(), "0"},
		{bu(100, 0), "!not enough CPUs: 100m asked, 0 available"},
	})
	steps(t, p, start(t, p, fakekernel.Short(t, "2s2n8c2t"), reserved0()), []step{
		{be(), "8-15,40-47"},
		{gu(63000), "!not enough CPUs: 63 asked, 62 available"},
		{gu(62000), "1-7,9-63"},
	})
	steps(t, p, start(t, p, fakekernel.Short(t, "1s1n4c"), place.Config{NoFloor: true}), []step{
		{gu(4000), "0-3"},
		{be(), "!not enough CPUs: 1 asked, 0 available"},
	})
}

// Defect: a restart placed everything anew, in random order.
func TestRestartInAnyOrder(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	s := start(t, p, fakekernel.Short(t, big), reserved0())
	for i := range 12 {
		r := gu(1000 * (1 + i%4))
		r.ID = fmt.Sprintf("w%d", i)
		o, err := place.Place(p, s, &r)
		if err != nil {
			t.Fatal(err)
		}
		if s, err = s.Commit(o); err != nil {
			t.Fatal(err)
		}
	}
	saved := s.Save()
	slices.Reverse(saved.Grants)
	fresh, err := place.New(s.Topology(), *s.Config())
	if err != nil {
		t.Fatal(err)
	}
	again, err := fresh.Reinstate(saved)
	if err != nil {
		t.Fatal(err)
	}
	if diff := s.Difference(again); diff != "" {
		t.Errorf("after the restart: %s", diff)
	}
}

func TestReserved(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	in := func(ns string, milli int) place.Request {
		return place.Request{Namespace: ns, Class: place.LS, Milli: milli, LimitMilli: 100}
	}
	conf := place.Config{Reserved: cpuset.MustOf(0)}
	steps(t, p, start(t, p, fakekernel.Short(t, "1s2n4c"), conf), []step{
		{in("kube-system", 300), "0"},
		{in("monitoring", 300), "4-7"},
		{place.Request{Class: place.System, Milli: 300}, "0"},
		{with(in("x", 300), "prefer-reserved-cpus", "true"), "0"},
		{in("kube-system", 300), "1-3"}, // no time left there
	})
	away := in("kube-system", 300)
	away.Nodes, away.NodesRequired = cpuset.MustOf(1), true
	steps(t, p, start(t, p, fakekernel.Short(t, "1s2n4c"), conf), []step{{away, "4-7"}})
	p.ReservedPoolNamespaces = []string{"moni*"}
	steps(t, p, start(t, p, fakekernel.Short(t, "1s2n4c"), conf), []step{{in("monitoring", 300), "0"}, {in("other", 300), "4-7"}})
	steps(t, p, start(t, p, fakekernel.Short(t, "1s2n4c"), place.Config{}), []step{{in("kube-system", 300), "0-3"}}) // none reserved
}

func TestPinCPU(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	conf := reserved0()
	steps(t, p, start(t, p, fakekernel.Short(t, "1s2n4c"), conf), []step{{gu(2000), "4-5"}, {with(gu(2000), "cpu.preserve", "true"), "0-3,6-7"}})
	p.PinCPU = false
	steps(t, p, start(t, p, fakekernel.Short(t, "1s2n4c"), conf), []step{
		{gu(2000), "0-7"},
		{place.Request{Mode: place.Exclusive, Milli: 1000}, `!request "w01": without PinCPU`},
		{gu(5001), "!not enough CPUs: 5001m asked, 5 available"},
	})
}

func TestColocate(t *testing.T) {
	t.Parallel()
	in := func(group, ns string, milli int) place.Request {
		r := gu(milli)
		r.Group, r.Namespace = group, ns
		return r
	}
	// Without affinity the emptier of the two nodes wins.
	for _, tc := range []struct {
		name             string
		pods, namespaces bool
		affinity         []place.Affinity
		group, ns        string
		want             string
	}{
		{name: "off", group: "pod", ns: "red", want: "5"},
		{name: "same pod", pods: true, group: "pod", want: "3"},
		{name: "another pod", pods: true, group: "other", want: "5"},
		{name: "same namespace", namespaces: true, ns: "red", want: "3"},
		{name: "another namespace", namespaces: true, ns: "blue", want: "5"},
		{name: "an affinity of its own replaces them", pods: true, group: "pod", affinity: []place.Affinity{{Group: "none", Weight: 1}}, want: "5"},
		{name: "affinity", affinity: []place.Affinity{{Group: "pod", Weight: 1}}, want: "3"},
		{name: "anti-affinity beats affinity of less weight", affinity: []place.Affinity{{Group: "pod", Weight: 1}, {Namespace: "red", Weight: -2}}, want: "5"},
	} {
		p := topologyaware.Default()
		p.ColocatePods, p.ColocateNamespaces = tc.pods, tc.namespaces
		r := in(tc.group, tc.ns, 1000)
		r.Affinity = tc.affinity
		s := start(t, p, fakekernel.Short(t, "1s2n4c"), place.Config{})
		t.Run(tc.name, func(t *testing.T) {
			steps(t, p, s, []step{
				{gu(1000), "4"},
				{in("pod", "red", 2000), "1-2"},
				{r, tc.want},
			})
		})
	}
}

func TestHints(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	near := func(nodes string, must bool) place.Request {
		r := gu(1000)
		r.Nodes, r.NodesRequired = cpuset.MustParse(nodes), must
		return r
	}
	far := gu(3000)
	far.Nodes, far.NodesRequired = cpuset.MustOf(0), true
	both := gu(2000)
	both.Nodes = cpuset.MustOf(0, 3)
	narrow := gu(5000)
	narrow.MaxNodes = 1
	device := gu(1000)
	device.Devices = []place.DeviceRequest{{Kind: "nic", Count: 1}}
	// The limit asks for a socket, the device for its node.
	limited := bu(100, 8000)
	limited.Devices = []place.DeviceRequest{{Names: []string{"gpu"}}}
	conf := place.Config{Reserved: cpuset.MustOf(0), Devices: []place.Device{
		{Name: "nic", Kind: "nic", Nodes: cpuset.MustOf(2)}, {Name: "gpu", Kind: "gpu", Nodes: cpuset.MustOf(3)},
	}}
	// 2s2n4c: nodes 0-3, 4-7, 8-11, 12-15
	steps(t, p, start(t, p, fakekernel.Short(t, "2s2n4c"), conf), []step{
		{gu(1000), "4"},
		{near("0", false), "1"},
		{near("0", true), "2"},
		{far, "!NUMA alignment on nodes 0: no pool inside the asked nodes"},
		{narrow, "!NUMA alignment: no pool inside"},
		{device, "8"},
		{limited, "12-15"},
		{both, "3,5"}, // only the whole machine has both nodes
	})
}

func TestHideHyperthreads(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	s := steps(t, p, start(t, p, fakekernel.Short(t, "1s2n4c2t"), place.Config{}), []step{
		{with(gu(4000), "hide-hyperthreads", "true"), "4-5"},
		{with(bu(100, 1000), "hide-hyperthreads", "true"), "0-3"},
		{with(bu(100, 1000), "hide-hyperthreads", "false"), "6-7,14-15"},
	})
	if g, _ := s.Grant("w00"); g.Own.String() != "4-5,12-13" {
		t.Errorf("owns %s: the hidden siblings stay allocated", g.Own)
	}
}

func TestUnlimitedBurstable(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ level, form, want string }{
		{"system", big, "1-127"},
		{"package", big, "32-63,96-127"},
		{"die", big, "32-63,96-127"}, // none: of the nearest, the one with more time
		{"numa", big, "16-31,80-95"},
		{"l3cache", big, "8-15,72-79"},
		{"package", "1s2n4c", "1-7"},
	} {
		var level topologyaware.Level
		if err := level.UnmarshalText([]byte(tc.level)); err != nil {
			t.Fatal(err)
		}
		p := topologyaware.Default()
		p.UnlimitedBurstable = level
		steps(t, p, start(t, p, fakekernel.Short(t, tc.form), reserved0()), []step{{bu(100, 0), tc.want}})
		steps(t, topologyaware.Default(), start(t, p, fakekernel.Short(t, tc.form), reserved0()), []step{{with(bu(100, 0), "unlimited-burstable", tc.level), tc.want}})
	}
}

func TestMemoryPreserve(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	s := start(t, p, fakekernel.Short(t, "1s2n4c"), place.Config{})
	for value, want := range map[string]string{"true": "", "false": "1"} {
		r := with(gu(2000), "memory.preserve", value)
		r.ID = "a"
		o, err := place.Place(p, s, &r)
		if err != nil {
			t.Fatal(err)
		}
		if got := o.Grant.Mems.String(); got != want {
			t.Errorf("memory.preserve=%s: mems %q, want %q", value, got, want)
		}
	}
}

func TestLevelText(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"package", "system", "die", "numa", "l3cache"} {
		var l topologyaware.Level
		if err := l.UnmarshalText([]byte(name)); err != nil || l.String() != name {
			t.Errorf("%q is read as %v, %v", name, l, err)
		}
		if out, err := l.MarshalText(); err != nil || string(out) != name {
			t.Errorf("%v is written as %q, %v", l, out, err)
		}
	}
	if err := new(topologyaware.Level).UnmarshalText([]byte("rack")); err == nil {
		t.Error("an unknown level is read without error")
	}
	if _, err := topologyaware.Level(9).MarshalText(); err == nil {
		t.Error("an unknown level is written without error")
	}
}

// A pool above keeps what the pools below it need.
func TestSlicingLeavesEnough(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	// 1s2n4c: CPU 0 is reserved; node 0 has 1-3, node 1 has 4-7.
	s := steps(t, p, start(t, p, fakekernel.Short(t, "1s2n4c"), reserved0()), []step{
		{bu(2500, 3000), "4-7"},
		{bu(100, 1000), "1-3"},
		{gu(4000), "!not enough CPUs: 4 asked, 3 available"},
		{gu(3000), "2-3,7"},
	})
	if got, _ := s.CPUs("w00"); got.String() != "4-6" {
		t.Errorf("the first is left with %s", got)
	}
	if got, _ := s.CPUs("w01"); got.String() != "1" {
		t.Errorf("the second is left with %s", got)
	}
}

// What is shared in a pool is missing in those above and below it.
func TestSharesCountUpAndDown(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	steps(t, p, start(t, p, fakekernel.Short(t, "1s2n4c"), place.Config{}), []step{
		{bu(6500, 0), "0-7"},
		{gu(2000), "!not enough CPUs: 2 asked, 1 available"},
		{bu(2000, 2000), "!not enough CPUs: 2 asked, 1500m available"},
		{bu(1500, 2000), "0-3"},
	})
	near := gu(1500)
	near.Nodes = cpuset.MustOf(1)
	steps(t, p, start(t, p, fakekernel.Short(t, "1s2n2c"), place.Config{}), []step{
		{gu(1000), "2"},
		{near, "0-1,3"}, // node 1 has one CPU left, which cannot be owned and shared
	})
}

func TestWholeL3First(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	steps(t, p, start(t, p, fakekernel.Short(t, "1s1n4l4c"), place.Config{}), []step{
		{gu(5000), "1,4-7"}, // and one of the L3 domain that fits best
		{gu(3000), "8-10"},
	})
}

func TestMemoryNearCPUs(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	conf := reserved0()
	conf.Memory = []place.Block{{Node: 0, Resource: place.Memory, Bytes: 100}, {Node: 1, Resource: place.Memory, Bytes: 10}}
	large := gu(1000)
	large.Memory = []place.Amount{{Resource: place.Memory, Bytes: 50}}
	huge := gu(1000)
	huge.Memory = []place.Amount{{Resource: place.Memory, Bytes: 61}}
	steps(t, p, start(t, p, fakekernel.Short(t, "1s2n4c"), conf), []step{
		{large, "1"}, // though node 1 has more CPUs
		{gu(1000), "4"},
		{huge, "!not enough memory: 61 asked, 60 available"},
	})
}

func TestNodeWithoutMemoryIsNoPool(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	m := fakekernel.Short(t, "1s2n4c")
	for i := range m.Domains {
		if m.Domains[i].Kind == machine.Node && m.Domains[i].ID == 0 {
			m.Domains[i].Bytes = 1 << 30
		}
	}
	s := steps(t, p, start(t, p, m, reserved0()), []step{{bu(100, 1000), "1-7"}})
	if g, _ := s.Grant("w00"); g.Mems.String() != "0" {
		t.Errorf("mems %s", g.Mems)
	}
}

// Of domains that cut each other the larger ones are pools.
func TestDomainsThatCutEachOther(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	m := fakekernel.Short(t, "1s8c")
	m.Domains = slices.DeleteFunc(m.Domains, func(d machine.Domain) bool {
		return d.Kind == machine.Die || d.Kind == machine.Node || d.Kind == machine.L3
	})
	at := slices.IndexFunc(m.Domains, func(d machine.Domain) bool { return d.Kind > machine.Node })
	m.Domains = slices.Insert(m.Domains, at,
		machine.Domain{Kind: machine.Die, ID: 0, CPUs: cpuset.MustParse("0-2")},
		machine.Domain{Kind: machine.Die, ID: 1, CPUs: cpuset.MustParse("3")},
		machine.Domain{Kind: machine.Die, ID: 2, CPUs: cpuset.MustParse("4-7")},
		machine.Domain{Kind: machine.Node, ID: 0, CPUs: cpuset.MustParse("3-4")},
		machine.Domain{Kind: machine.Node, ID: 1, KernelID: 1, CPUs: cpuset.MustParse("0-2,5-7")})
	m.Distances = nil
	steps(t, p, start(t, p, m, place.Config{}), []step{
		{bu(2500, 6000), "0-2,5-7"},
		{bu(100, 4000), "0-7"}, // 4-7 is no pool
		{bu(100, 2000), "3-4"},
	})
}

func TestCoreKind(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	m := fakekernel.Short(t, "1s1n4c")
	for i := range m.CPUs {
		m.CPUs[i].Kind = []string{machine.KindP, machine.KindP, machine.KindE, machine.KindE}[i]
	}
	on := func(kind string, milli int) place.Request { r := gu(milli); r.CoreKind = kind; return r }
	steps(t, p, start(t, p, m, place.Config{}), []step{
		{on(machine.KindE, 1000), "2"},
		{on(machine.KindP, 1000), "1"},
		{on(machine.KindP, 1000), "3"}, // a preference
	})
}

// Affinity fades with the levels between.
func TestAffinityFades(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	on := func(node int) place.Request {
		r := gu(1000)
		r.Namespace, r.Nodes, r.NodesRequired = "red", cpuset.MustOf(node), true
		return r
	}
	drawn := bu(100, 1000)
	drawn.Affinity = []place.Affinity{{Namespace: "red", Weight: 10}}
	steps(t, p, start(t, p, fakekernel.Short(t, "2s2n2l2c"), place.Config{}), []step{
		{on(0), "2"},
		{on(3), "12"},
		{drawn, "3"}, // next to one of them, not the whole machine around both
	})
}

func TestErrorsAreTyped(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	s := start(t, p, fakekernel.Short(t, "1s2n4c"), place.Config{})
	r := gu(99000)
	r.ID = "a"
	var e *place.CPUsError
	if _, err := place.Place(p, s, &r); !errors.As(err, &e) || e.Asked != 99 || e.Available != 7 {
		t.Errorf("error %v", err)
	}
}
