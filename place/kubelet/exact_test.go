package kubelet

import (
	"errors"
	"math/bits"
	"math/rand/v2"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/place"
)

func randomSet(rng *rand.Rand, from cpuset.Set) cpuset.Set {
	var set cpuset.Set
	density := rng.Float64()
	for cpu := range from.All() {
		if rng.Float64() < density {
			set, _ = set.With(cpu)
		}
	}
	return set
}

// TestReach finds that passing over what cannot be reached changes nothing.
func TestReach(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 3))
	for range 500 {
		m := placetest.Machine(rng, 48)
		topo, err := place.NewTopology(m)
		if err != nil {
			t.Fatal(err)
		}
		k := &taker{t: topo, group: 1}
		from := randomSet(rng, topo.Online())
		n := rng.IntN(from.Len() + 1)
		all := k.packed(false)
		for i := range all {
			all[i].Fits = nil
		}
		got, err := topo.View(from, cpuset.Set{}).Take(n, k.packed(false), nil)
		if err != nil {
			t.Fatal(err)
		}
		if want, _ := topo.View(from, cpuset.Set{}).Take(n, all, nil); got != want {
			t.Fatalf("%d of %s: got %s, want %s", n, from, got, want)
		}
	}
}

// TestDistributeExact compares even distributions with trying all node sets.
func TestDistributeExact(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(4, 4))
	topo := placetest.Topology(t, "2s4n4c2t")
	for range 500 {
		k := &taker{t: topo, group: rng.IntN(2) + 1}
		v := topo.View(randomSet(rng, topo.Online()), cpuset.Set{})
		spots := k.spots(v)
		n := rng.IntN(40) / k.group * k.group
		for width := 1; width <= min(len(spots), n/k.group); width++ {
			least := -1
			for set := 1; set < 1<<len(spots); set++ {
				if bits.OnesCount(uint(set)) != width {
					continue
				}
				var chosen []spot
				for i := range spots {
					if set>>i&1 != 0 {
						chosen = append(chosen, spots[i])
					}
				}
				if s := k.even(spots, chosen, n); s != nil && (least < 0 || s.squares < least) {
					least = s.squares
				}
			}
			got := -1
			if s := k.best(spots, n, width); s != nil {
				got = s.squares
			}
			if got != least && (k.group == 1 || got < 0 && least >= 0) {
				t.Fatalf("%d CPUs by %d over %d of %v: squares %d, want %d", n, k.group, width, spots, got, least)
			}
		}
	}
}

// TestPodScope shows that the containers of a pod come to one node, in one
// commit, and give everything back.
func TestPodScope(t *testing.T) {
	t.Parallel()
	topo := placetest.Topology(t, "2s4c")
	start, err := place.New(topo, place.Config{
		NoFloor: true,
		Memory:  []place.Block{{Node: 0, Resource: place.Memory, Bytes: 100}, {Node: 1, Resource: place.Memory, Bytes: 100}},
		Devices: []place.Device{{Name: "gpu0", Kind: "gpu", Nodes: cpuset.MustOf(1)}, {Name: "gpu1", Kind: "gpu", Nodes: cpuset.MustOf(1)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	p := Policy{CPUManager: CPUManagerStatic, MemoryManager: MemoryManagerStatic, TopologyManager: TopologyManagerSingle, TopologyManagerScope: ScopePod}
	container := func(id string, role place.Role, cpus int) place.Request {
		return place.Request{
			ID: id, Role: role, Milli: cpus * 1000, LimitMilli: cpus * 1000,
			Memory: []place.Amount{{Resource: place.Memory, Bytes: 30}}, Devices: []place.DeviceRequest{{Kind: "gpu", Count: 1}},
		}
	}
	pod := place.Pod{ID: "p", Containers: []place.Request{container("init", place.Init, 4), container("a", place.App, 2), container("b", place.App, 2)}}
	s, _, err := place.PlacePod(p, start, pod)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{"init": "4-7", "a": "4-5", "b": "6-7"} {
		g, _ := s.Grant(id)
		if g.Own.String() != want || g.Mems != cpuset.MustOf(1) || len(g.Devices) != 1 {
			t.Errorf("%s: CPUs %s, memory of %s, devices %v; want CPUs %s, node 1, one device", id, g.Own, g.Mems, g.Devices, want)
		}
	}
	if wrong := released(p, start, s); wrong != "" {
		t.Errorf("not all is given back: %s", wrong)
	}
	pod.Containers[2].Milli, pod.Containers[2].LimitMilli = 3000, 3000
	if _, _, err := place.PlacePod(p, start, pod); err == nil {
		t.Error("a pod wider than a node is admitted")
	}
	if pod.Containers[0].Group != "" {
		t.Error("the caller's requests have changed")
	}
}

func TestResize(t *testing.T) {
	t.Parallel()
	s, err := place.New(placetest.Topology(t, "1s4c"), place.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p := Policy{CPUManager: CPUManagerStatic}
	for _, r := range []place.Request{{ID: "own", Milli: 2000, LimitMilli: 2000}, {ID: "shared", Milli: 300}} {
		o, err := place.Place(p, s, &r)
		if err != nil {
			t.Fatal(err)
		}
		if s, err = s.Commit(o); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := place.Resize(p, s, &place.Request{ID: "own", Milli: 3000, LimitMilli: 3000}); err == nil {
		t.Error("own CPUs change in place")
	}
	o, err := place.Resize(p, s, &place.Request{ID: "shared", Milli: 700})
	if err != nil || o.Grant.Share.Milli != 700 {
		t.Errorf("shared time is not resized: %v", err)
	}
}

// Memory changes in place unless the memory manager has tied some to the workload.
func TestResizeMemory(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		manager string
		limit   int // milli; Guaranteed with 300
		refused bool
	}{
		{MemoryManagerNone, 300, false}, {MemoryManagerStatic, 0, false}, {MemoryManagerStatic, 300, true},
	} {
		s, err := place.New(placetest.Topology(t, "1s4c"), place.Config{Memory: []place.Block{{Resource: place.Memory, Bytes: 8 << 30}}})
		if err != nil {
			t.Fatal(err)
		}
		p := Policy{CPUManager: CPUManagerStatic, MemoryManager: tc.manager}
		r := place.Request{ID: "x", Milli: 300, LimitMilli: tc.limit, Memory: []place.Amount{{Resource: place.Memory, Bytes: 1 << 30}}}
		o, err := place.Place(p, s, &r)
		if err == nil {
			s, err = s.Commit(o)
		}
		if err != nil {
			t.Fatal(err)
		}
		r.Memory = []place.Amount{{Resource: place.Memory, Bytes: 2 << 30}}
		if o, err = place.Resize(p, s, &r); err == nil {
			s, err = s.Commit(o)
		}
		if refused := errors.As(err, new(*place.RejectedError)); refused != tc.refused || err != nil && !refused {
			t.Errorf("memory manager %q, limit %dm: %v; refused: want %t", tc.manager, tc.limit, err, tc.refused)
		}
		if g, _ := s.Grant("x"); err == nil && g.Request.Memory[0].Bytes != 2<<30 {
			t.Errorf("memory manager %s: %+v is recorded", tc.manager, g.Request.Memory)
		}
	}
}
