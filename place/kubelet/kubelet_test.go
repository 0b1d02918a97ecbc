package kubelet_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/kubelet"
)

func policies() map[string]kubelet.Policy {
	static := kubelet.Policy{CPUManager: kubelet.CPUManagerStatic}
	full, spread, even, socket := static, static, static, static
	full.FullPCPUsOnly, full.PreferAlignByUncoreCache, full.TopologyManager = true, true, kubelet.TopologyManagerSingle
	spread.DistributeAcrossCores, spread.StrictReservation = true, true
	even.DistributeAcrossNUMA, even.FullPCPUsOnly = true, true
	socket.AlignBySocket, socket.DistributeAcrossNUMA, socket.TopologyManager = true, true, kubelet.TopologyManagerBestEffort
	memory := static
	memory.MemoryManager, memory.TopologyManager, memory.PreferClosestNUMANodes = kubelet.MemoryManagerStatic, kubelet.TopologyManagerRestricted, true
	return map[string]kubelet.Policy{"none": {}, "static": static, "full": full, "spread": spread, "even": even, "socket": socket, "memory": memory}
}

// own is how many CPUs a grant has for itself.
func own(p kubelet.Policy) func(r *place.Request) int {
	return func(r *place.Request) int {
		whole := r.Milli > 0 && r.Milli%1000 == 0 && (r.LimitMilli == r.Milli || r.Class == place.LSE || r.Class == place.LSR)
		if p.CPUManager == kubelet.CPUManagerStatic && (r.Mode == place.Exclusive || r.Mode == place.Auto && whole) {
			return r.Whole()
		}
		return 0
	}
}

func TestProperties(t *testing.T) {
	for name, p := range policies() {
		t.Run(name, func(t *testing.T) {
			placetest.Check(t, placetest.Suite{Policy: p, Own: own(p)})
		})
	}
}

// TestWholeCores finds that full-pcpus-only never splits a core.
func TestWholeCores(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 1))
	p := policies()["full"]
	p.TopologyManager = ""
	for range 200 {
		m := placetest.Machine(rng, 32)
		topo, err := place.NewTopology(m)
		if err != nil {
			t.Fatal(err)
		}
		s, err := place.New(topo, placetest.Config(rng, m))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 8 {
			n := rng.IntN(6) + 1
			r := guaranteed(fmt.Sprint(i), n)
			o, err := place.Place(p, s, &r)
			if err != nil {
				continue
			}
			if cpus := o.Grant.Own; topo.Whole(machine.Core, cpus) != cpus {
				t.Fatalf("%d CPUs: %s splits a core", n, cpus)
			}
			if s, err = s.Commit(o); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func guaranteed(id string, cpus int) place.Request {
	return place.Request{ID: id, Milli: cpus * 1000, LimitMilli: cpus * 1000}
}

// last places requests in turn and returns the last answer.
func last(t *testing.T, p kubelet.Policy, form string, c place.Config, requests ...place.Request) (*place.Grant, error) {
	t.Helper()
	s, err := place.New(placetest.Topology(t, form), c)
	if err != nil {
		t.Fatal(err)
	}
	var o place.Offer
	for i := range requests {
		if o, err = place.Place(p, s, &requests[i]); err != nil {
			if i < len(requests)-1 {
				t.Fatal(err)
			}
			return nil, err
		}
		if s, err = s.Commit(o); err != nil {
			t.Fatal(err)
		}
	}
	return o.Grant, nil
}

// TestFitAllocatable refuses what the CPU manager alone would share out.
func TestFitAllocatable(t *testing.T) {
	t.Parallel()
	c := place.Config{Reserved: cpuset.MustOf(0)}
	held := []place.Request{guaranteed("a", 2), {ID: "b", Milli: 500}, {ID: "i", Milli: 400, Role: place.Init, Group: "g"}}
	for _, tc := range []struct {
		name string
		fit  bool
		r    place.Request
		ok   bool
	}{
		{"without", false, place.Request{ID: "c", Milli: 9000}, true},
		{"all that is left", true, place.Request{ID: "c", Milli: 500}, true},
		{"more", true, place.Request{ID: "c", Milli: 501}, false},
		{"init", true, place.Request{ID: "c", Milli: 501, Role: place.Init, Group: "g"}, true},
	} {
		p := kubelet.Policy{CPUManager: kubelet.CPUManagerStatic, FitAllocatable: tc.fit}
		_, err := last(t, p, "1n4c", c, append(held, tc.r)...)
		var few *place.CPUsError
		if (err == nil) != tc.ok || err != nil && (!errors.As(err, &few) || !few.Milli || few.Available != 500) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// TestOptions shows what every option changes: with it and without.
func TestOptions(t *testing.T) {
	t.Parallel()
	set := func(change func(p *kubelet.Policy)) kubelet.Policy {
		p := kubelet.Policy{CPUManager: kubelet.CPUManagerStatic}
		change(&p)
		return p
	}
	reserved := place.Config{Reserved: cpuset.MustOf(0)}
	shared := place.Request{ID: "s", Milli: 500}
	restricted := func(p *kubelet.Policy) { p.TopologyManager = kubelet.TopologyManagerRestricted }
	bestEffort := func(p *kubelet.Policy) { p.TopologyManager = kubelet.TopologyManagerBestEffort }
	tests := []struct {
		name          string
		form          string
		conf          place.Config
		requests      []place.Request
		with, without kubelet.Policy
		on, off       string // the last grant's CPUs, "refused" for an error
	}{
		{"cpuManagerPolicy", "1s4c2t", reserved, []place.Request{guaranteed("a", 2)}, set(func(*kubelet.Policy) {}), kubelet.Policy{}, "1,5", ""},
		{"full-pcpus-only", "1s4c2t", reserved, []place.Request{guaranteed("a", 1)}, set(func(p *kubelet.Policy) { p.FullPCPUsOnly = true }), set(func(*kubelet.Policy) {}), "refused", "4"},
		{"distribute-cpus-across-cores", "1s4c2t", reserved, []place.Request{guaranteed("a", 2)}, set(func(p *kubelet.Policy) { p.DistributeAcrossCores = true }), set(func(*kubelet.Policy) {}), "1-2", "1,5"},
		{"distribute-cpus-across-numa", "2s4c", place.Config{NoFloor: true}, []place.Request{guaranteed("a", 6)}, set(func(p *kubelet.Policy) { p.DistributeAcrossNUMA = true }), set(func(*kubelet.Policy) {}), "0-2,4-6", "0-5"},
		{"prefer-align-cpus-by-uncorecache", "1s2l4c2t", reserved, []place.Request{guaranteed("a", 8)}, set(func(p *kubelet.Policy) { p.PreferAlignByUncoreCache = true }), set(func(*kubelet.Policy) {}), "4-7,12-15", "1-4,9-12"},
		{"align-by-socket", "2s2n4c", place.Config{NoFloor: true}, []place.Request{guaranteed("a", 3), {ID: "b", Milli: 3000, LimitMilli: 3000, Nodes: cpuset.MustOf(1)}, {ID: "c", Milli: 2000, LimitMilli: 2000, Nodes: cpuset.MustOf(0)}}, set(func(p *kubelet.Policy) { p.AlignBySocket = true }), set(func(*kubelet.Policy) {}), "6-7", "3,7"},
		{"topologyManagerPolicy restricted", "2s4c", place.Config{NoFloor: true}, []place.Request{guaranteed("a", 3), guaranteed("b", 3), guaranteed("c", 2)}, set(restricted), set(bestEffort), "refused", "3,7"},
		{"topologyManagerPolicy single-numa-node", "2s4c", place.Config{NoFloor: true}, []place.Request{guaranteed("a", 6)}, set(func(p *kubelet.Policy) { p.TopologyManager = kubelet.TopologyManagerSingle }), set(bestEffort), "refused", "0-5"},
		{"align-by-socket, hints", "2s2n4c", place.Config{NoFloor: true, Allowed: cpuset.MustParse("3,7,11,15")}, []place.Request{guaranteed("a", 2)}, set(func(p *kubelet.Policy) { restricted(p); p.AlignBySocket = true }), set(restricted), "3,7", "refused"},
		{"prefer-closest-numa-nodes on many nodes", "2s8n4c", place.Config{NoFloor: true}, []place.Request{guaranteed("a", 28), guaranteed("b", 8)}, set(func(p *kubelet.Policy) { restricted(p); p.PreferClosestNUMANodes = true }), set(restricted), "32-39", "28-35"},
		{"strict-cpu-reservation", "1s4c", reserved, []place.Request{shared}, set(func(p *kubelet.Policy) { p.StrictReservation = true }), set(func(*kubelet.Policy) {}), "shared 1-3", "shared 0-3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, v := range []struct {
				p    kubelet.Policy
				want string
			}{{tt.with, tt.on}, {tt.without, tt.off}} {
				g, err := last(t, v.p, tt.form, tt.conf, tt.requests...)
				got := "refused"
				if err == nil {
					got = g.Own.String()
					if tt.requests[0].ID == "s" {
						got = "shared " + g.Share.Within.String()
					}
				}
				if got != v.want {
					t.Errorf("%+v: %s (%v), want %s", v.p, got, err, v.want)
				}
			}
		})
	}
}

// TestMemory shows that the static memory manager binds CPUs and memory to the
// same node.
func TestMemory(t *testing.T) {
	t.Parallel()
	conf := place.Config{NoFloor: true, Memory: []place.Block{{Node: 0, Resource: place.Memory, Bytes: 100}, {Node: 1, Resource: place.Memory, Bytes: 100}}}
	request := func(id string, bytes int64) place.Request {
		r := guaranteed(id, 2)
		r.Memory = []place.Amount{{Resource: place.Memory, Bytes: bytes}}
		return r
	}
	p := kubelet.Policy{CPUManager: kubelet.CPUManagerStatic, TopologyManager: kubelet.TopologyManagerRestricted, MemoryManager: kubelet.MemoryManagerStatic}
	g, err := last(t, p, "2s4c", conf, request("a", 80), request("b", 80))
	if err != nil {
		t.Fatal(err)
	}
	if g.Own.String() != "4-5" || g.Mems.String() != "1" {
		t.Errorf("b has CPUs %s and memory of %s, want 4-5 and 1", g.Own, g.Mems)
	}
	var numa *place.NUMAError
	if _, err := last(t, p, "2s4c", conf, request("a", 80), request("b", 80), request("c", 30)); !errors.As(err, &numa) {
		t.Errorf("c: %v, want a NUMAError", err)
	}
	p.MemoryManager = kubelet.MemoryManagerNone
	if g, err = last(t, p, "2s4c", conf, request("a", 80), request("b", 80)); err != nil || g.Own.String() != "2-3" || !g.Mems.IsEmpty() {
		t.Errorf("without memory manager: %+v, %v", g, err)
	}
}

// TestDevices shows that CPUs follow a device.
func TestDevices(t *testing.T) {
	t.Parallel()
	conf := place.Config{NoFloor: true, Devices: []place.Device{
		{Name: "gpu0", Kind: "gpu", Nodes: cpuset.MustOf(1)}, {Name: "gpu1", Kind: "gpu", Nodes: cpuset.MustOf(1)},
	}}
	r := guaranteed("a", 2)
	r.Devices = []place.DeviceRequest{{Kind: "gpu", Count: 1}}
	r.Hints = map[string]string{kubelet.PreferredDevices: "gpu1"}
	p := kubelet.Policy{CPUManager: kubelet.CPUManagerStatic, TopologyManager: kubelet.TopologyManagerSingle}
	g, err := last(t, p, "2s4c", conf, r)
	if err != nil {
		t.Fatal(err)
	}
	if g.Own.String() != "4-5" || fmt.Sprint(g.Devices) != "[gpu1]" {
		t.Errorf("CPUs %s and %v, want 4-5 and [gpu1]", g.Own, g.Devices)
	}
	var few *place.DeviceError
	r.Devices[0].Count = 3
	p.TopologyManager = kubelet.TopologyManagerBestEffort
	if _, err := last(t, p, "2s4c", conf, r); !errors.As(err, &few) {
		t.Errorf("three of two devices: %v", err)
	}
}

// TestNodesRequired keeps a workload on its nodes, whatever would be tighter.
func TestNodesRequired(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"2s4c", "2s8n4c"} {
		for _, manager := range []string{"", kubelet.TopologyManagerBestEffort, kubelet.TopologyManagerSingle} {
			p := kubelet.Policy{CPUManager: kubelet.CPUManagerStatic, TopologyManager: manager}
			r := guaranteed("a", 2)
			r.Nodes, r.NodesRequired = cpuset.MustOf(1), true
			if g, err := last(t, p, form, place.Config{NoFloor: true}, r); err != nil || g.Own.String() != "4-5" {
				t.Errorf("%s %q: %+v, %v, want CPUs 4-5", form, manager, g, err)
			}
			r.Milli, r.LimitMilli = 5000, 5000
			if g, err := last(t, p, form, place.Config{NoFloor: true}, r); err == nil {
				t.Errorf("%s %q: 5 CPUs of a node of 4: %s", form, manager, g.Own)
			}
			r.Milli = 500
			if g, err := last(t, p, form, place.Config{NoFloor: true}, r); err != nil || g.Share.Within.String() != "4-7" {
				t.Errorf("%s %q: shared: %+v, %v, want CPUs 4-7", form, manager, g, err)
			}
		}
	}
}

// TestManyNodes compares the search for narrow node sets with what lists of all
// node sets give on half of the machine.
func TestManyNodes(t *testing.T) {
	t.Parallel()
	for _, manager := range []string{kubelet.TopologyManagerBestEffort, kubelet.TopologyManagerRestricted, kubelet.TopologyManagerSingle} {
		p := kubelet.Policy{CPUManager: kubelet.CPUManagerStatic, TopologyManager: manager}
		for _, n := range []int{1, 4, 5, 9, 30} {
			requests := []place.Request{guaranteed("a", 3), guaranteed("b", n)}
			small, errSmall := last(t, p, "1s8n4c", place.Config{NoFloor: true}, requests...)
			large, errLarge := last(t, p, "2s8n4c", place.Config{NoFloor: true}, requests...)
			if (errSmall == nil) != (errLarge == nil) && n < 30 {
				t.Errorf("%s, %d CPUs: %v on 8 nodes, %v on 16", manager, n, errSmall, errLarge)
			}
			if errSmall == nil && errLarge == nil && n < 30 && small.Own != large.Own {
				t.Errorf("%s, %d CPUs: %s on 8 nodes, %s on 16", manager, n, small.Own, large.Own)
			}
		}
	}
}

func BenchmarkPlace(b *testing.B) {
	placetest.Benchmark(b, kubelet.Policy{CPUManager: kubelet.CPUManagerStatic, TopologyManager: kubelet.TopologyManagerBestEffort}, nil)
}

func BenchmarkRestart(b *testing.B) {
	placetest.BenchmarkRestart(b, kubelet.Policy{CPUManager: kubelet.CPUManagerStatic})
}

func Example() {
	m, err := machine.Short("2s4c2t")
	if err != nil {
		panic(err)
	}
	t, err := place.NewTopology(m)
	if err != nil {
		panic(err)
	}
	s, err := place.New(t, place.Config{Reserved: cpuset.MustOf(0)})
	if err != nil {
		panic(err)
	}
	p := kubelet.Policy{CPUManager: kubelet.CPUManagerStatic, FullPCPUsOnly: true, TopologyManager: kubelet.TopologyManagerSingle}
	for _, cpus := range []int{4, 3, 10} {
		o, err := place.Place(p, s, &place.Request{ID: "web", Milli: cpus * 1000, LimitMilli: cpus * 1000})
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(o.Grant.Own)
	}
	// Output:
	// 1-2,9-10
	// SMT alignment: 3 CPUs asked, not a multiple of the 2 CPUs of a core (full-pcpus-only)
	// NUMA alignment: single-numa-node wants all of it from one NUMA node (topologyManagerPolicy)
}
