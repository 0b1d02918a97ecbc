package berth_test

import (
	"errors"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
)

// placed places requests one after the other; each must fit.
func placed(t *testing.T, s *place.State, requests ...place.Request) *place.State {
	t.Helper()
	for _, r := range requests {
		o, err := place.Place(berth.Policy{}, s, &r)
		if err != nil {
			t.Fatalf("%s: %v", r.ID, err)
		}
		if s, err = s.Commit(o); err != nil {
			t.Fatalf("%s: %v", r.ID, err)
		}
	}
	return s
}

func start(t *testing.T, form string, c place.Config) *place.State {
	t.Helper()
	s, err := place.Start(berth.Policy{}, placetest.Topology(t, form), c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func lsr(id string, cpus int) place.Request {
	return place.Request{ID: id, Class: place.LSR, Milli: 1000 * cpus}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	// node 0 has CPUs 0-3 and 16-19, node 1 4-7 and 20-23, node 2 8-11 and 24-27 ...
	const form = "2s2n4c2t"
	var memory []place.Block
	for node := range 4 {
		memory = append(memory, place.Block{Node: node, Resource: place.Memory, Bytes: 8 << 30})
	}
	conf := place.Config{Memory: memory, Devices: []place.Device{
		{Name: "gpu0", Kind: "gpu", Nodes: cpuset.MustOf(3)}, {Name: "gpu1", Kind: "gpu", Nodes: cpuset.MustOf(1)},
	}}
	with := func(r place.Request, change func(*place.Request)) place.Request {
		change(&r)
		return r
	}
	for name, tc := range map[string]struct {
		before   []place.Request
		r        place.Request
		own      string
		mems     string
		device   string
		disabled func(*place.Request) // takes the option away; the answer must differ
	}{
		"device": {
			r:   with(lsr("x", 2), func(r *place.Request) { r.Devices = []place.DeviceRequest{{Kind: "gpu", Count: 1}} }),
			own: "4,20", mems: "1", device: "gpu1",
			disabled: func(r *place.Request) { r.Devices = nil },
		},
		"named device": {
			r:   with(lsr("x", 2), func(r *place.Request) { r.Devices = []place.DeviceRequest{{Names: []string{"gpu0"}}} }),
			own: "12,28", mems: "3", device: "gpu0",
			disabled: func(r *place.Request) { r.Devices = nil },
		},
		"memory": {
			before: []place.Request{with(lsr("m", 1), func(r *place.Request) { r.Memory = []place.Amount{{Resource: place.Memory, Bytes: 7 << 30}} })},
			r:      with(lsr("x", 2), func(r *place.Request) { r.Memory = []place.Amount{{Resource: place.Memory, Bytes: 8 << 30}} }),
			own:    "4,20", mems: "1",
			disabled: func(r *place.Request) { r.Memory = nil },
		},
		"memory from the nearest besides": {
			r:   with(lsr("x", 2), func(r *place.Request) { r.Memory = []place.Amount{{Resource: place.Memory, Bytes: 9 << 30}} }),
			own: "1,17", mems: "0-1",
			disabled: func(r *place.Request) { r.Memory = nil },
		},
		"affinity": {
			before: []place.Request{
				with(lsr("friend", 2), func(r *place.Request) { r.Nodes = cpuset.MustOf(2) }),
				with(lsr("other", 4), func(r *place.Request) { r.Nodes = cpuset.MustOf(1) }),
			},
			r:   with(lsr("x", 2), func(r *place.Request) { r.Affinity = []place.Affinity{{ID: "friend", Weight: 5}} }),
			own: "9,25", mems: "2",
			disabled: func(r *place.Request) { r.Affinity = nil },
		},
		"anti-affinity": {
			before: []place.Request{with(lsr("foe", 2), func(r *place.Request) { r.Labels = map[string]string{"app": "noisy"} })},
			r: with(lsr("x", 2), func(r *place.Request) {
				r.Affinity = []place.Affinity{{Labels: map[string]string{"app": "noisy"}, Weight: -1}}
			}),
			own: "4,20", mems: "1",
			disabled: func(r *place.Request) { r.Affinity = nil },
		},
		"nodes": {
			r:   with(lsr("x", 2), func(r *place.Request) { r.Nodes = cpuset.MustOf(3) }),
			own: "12,28", mems: "3",
			disabled: func(r *place.Request) { r.Nodes = cpuset.Set{} },
		},
		"two near nodes": {
			r:   lsr("x", 16),
			own: "8-15,24-31", mems: "2-3",
		},
		"one CPU of each core": {
			r:   with(lsr("x", 4), func(r *place.Request) { r.Bind, r.BindRequired = place.SpreadByPCPUs, true }),
			own: "1-3,16", mems: "0",
			disabled: func(r *place.Request) { r.Bind = place.BindAny },
		},
		"group takes turns": {
			before: []place.Request{with(lsr("init", 4), func(r *place.Request) { r.Group, r.Role = "g", place.Init })},
			r:      with(lsr("x", 4), func(r *place.Request) { r.Group = "g" }),
			own:    "1-2,17-18", mems: "0",
			disabled: func(r *place.Request) { r.Group = "" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := placed(t, start(t, form, conf), tc.before...)
			o, err := place.Place(berth.Policy{}, s, &tc.r)
			if err != nil {
				t.Fatal(err)
			}
			g := o.Grant
			if g.Own.String() != tc.own || g.Mems.String() != tc.mems || tc.device != "" && (len(g.Devices) != 1 || g.Devices[0] != tc.device) {
				t.Errorf("own %s, mems %s, devices %v, want %s, %s, %q", g.Own, g.Mems, g.Devices, tc.own, tc.mems, tc.device)
			}
			if tc.disabled == nil {
				return
			}
			tc.disabled(&tc.r)
			if o, err = place.Place(berth.Policy{}, s, &tc.r); err == nil && o.Grant.Own == g.Own && o.Grant.Mems == g.Mems {
				t.Errorf("own %s, mems %s without the option too", g.Own, g.Mems)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		r    place.Request
		want any
	}{
		"too many":                {lsr("x", 16), new(*place.CPUsError)},
		"too much time":           {place.Request{ID: "x", Milli: 16001}, new(*place.CPUsError)},
		"half a core":             {place.Request{ID: "x", Class: place.LSR, Milli: 3000, Bind: place.FullPCPUs, BindRequired: true}, new(*place.SMTError)},
		"too many whole cores":    {place.Request{ID: "x", Class: place.LSR, Milli: 16000, Bind: place.FullPCPUs, BindRequired: true}, new(*place.SMTError)},
		"two nodes of one":        {place.Request{ID: "x", Class: place.LSR, Milli: 10000, MaxNodes: 1}, new(*place.NUMAError)},
		"not on the asked node":   {place.Request{ID: "x", Class: place.LSR, Milli: 9000, Nodes: cpuset.MustOf(1), NodesRequired: true}, new(*place.CPUsError)},
		"isolated where none is":  {place.Request{ID: "x", Class: place.LSR, Milli: 1000, Isolated: place.Require}, new(*place.CPUsError)},
		"spread over no cores":    {place.Request{ID: "x", Class: place.LSR, Milli: 9000, Bind: place.SpreadByPCPUs, BindRequired: true}, new(*place.CPUsError)},
		"a node with the floor":   {place.Request{ID: "x", Class: place.LSR, Milli: 9000, Exclusivity: place.NUMANodeLevel}, new(*place.NUMAError)},
		"huge pages of nobody":    {place.Request{ID: "x", Memory: []place.Amount{{Resource: "hugepages-1Gi", Bytes: 1}}}, new(*place.MemoryError)},
		"a device there is not":   {place.Request{ID: "x", Devices: []place.DeviceRequest{{Kind: "gpu", Count: 1}}}, new(*place.DeviceError)},
		"a request without an id": {place.Request{}, new(*place.InvalidError)},
	} {
		s := start(t, "1s2n4c2t", place.Config{})
		if _, err := place.Place(berth.Policy{}, s, &tc.r); !errors.As(err, tc.want) {
			t.Errorf("%s: got %v, want %T", name, err, tc.want)
		}
	}
}

func TestSharedTimeIsKept(t *testing.T) {
	t.Parallel()
	s := placed(t, start(t, "1s2n4c2t", place.Config{}), place.Request{ID: "web", Milli: 6000})
	// node 0 has 8 CPUs, of which web needs 6
	if _, err := place.Place(berth.Policy{}, s, &place.Request{ID: "x", Class: place.LSE, Milli: 4000, Nodes: cpuset.MustOf(0), NodesRequired: true}); !errors.As(err, new(*place.CPUsError)) {
		t.Errorf("4 CPUs of a node with 2 to spare: %v", err)
	}
	s = placed(t, s, lsr("x", 4), lsr("y", 4), lsr("w", 2))
	if cpus, _ := s.CPUs("web"); cpus.Len() != 6 {
		t.Errorf("web runs on %s", cpus)
	}
	if _, err := place.Place(berth.Policy{}, s, &place.Request{ID: "z", Milli: 1}); !errors.As(err, new(*place.CPUsError)) {
		t.Errorf("time that there is not: %v", err)
	}
}

func TestResize(t *testing.T) {
	t.Parallel()
	s := placed(t, start(t, "2s2n4c2t", place.Config{}), lsr("a", 4), lsr("b", 2))
	for _, cpus := range []int{5, 4, 2, 1, 3} {
		old, _ := s.Grant("a")
		r := lsr("a", cpus)
		o, err := place.Resize(berth.Policy{}, s, &r)
		if err != nil {
			t.Fatal(err)
		}
		own := o.Grant.Own
		if own.Len() != cpus || !own.Contains(old.Own) && !old.Own.Contains(own) {
			t.Errorf("from %s to %s", old.Own, own)
		}
		if s.Topology().Count(machine.Node, own) != 1 {
			t.Errorf("%s spans nodes", own)
		}
		if s, err = s.Commit(o); err != nil {
			t.Fatal(err)
		}
		if err := s.Audit(); err != nil {
			t.Error(err)
		}
	}
	big := lsr("a", 40)
	var few *place.CPUsError
	if _, err := place.Resize(berth.Policy{}, s, &big); !errors.As(err, &few) || few.Asked != 40 || few.Available >= 32 || few.Available < 28 {
		t.Errorf("40 CPUs of 32: %v", err)
	}
	other := lsr("a", 3)
	other.Devices = []place.DeviceRequest{{Kind: "gpu", Count: 1}}
	if _, err := place.Resize(berth.Policy{}, s, &other); !errors.As(err, new(*place.RejectedError)) {
		t.Errorf("another device: %v", err)
	}
	if _, err := place.Resize(berth.Policy{}, s, &place.Request{ID: "nobody"}); !errors.As(err, new(*place.NotHeldError)) {
		t.Errorf("nobody: %v", err)
	}
}

func TestSystemAndIsolated(t *testing.T) {
	t.Parallel()
	m := fakekernel.Short(t, "1s1n8c")
	m.Isolated = cpuset.MustParse("6-7")
	for i := range m.CPUs {
		if m.CPUs[i].Kind = machine.KindE; i%2 == 1 {
			m.CPUs[i].Kind = machine.KindP
		}
	}
	topo, err := place.NewTopology(m)
	if err != nil {
		t.Fatal(err)
	}
	s, err := place.Start(berth.Policy{}, topo, place.Config{Reserved: cpuset.MustParse("0-1")})
	if err != nil {
		t.Fatal(err)
	}
	s = placed(t, s,
		place.Request{ID: "isolated", Class: place.LSE, Milli: 1000, Isolated: place.Require},
		place.Request{ID: "fast", Class: place.LSR, Milli: 2000, CoreKind: machine.KindP},
		place.Request{ID: "system", Class: place.System, Milli: 500},
		place.Request{ID: "web"}, place.Request{ID: "batch", Class: place.BE})
	for id, want := range map[string]string{"isolated": "7", "fast": "3,5", "system": "0-1", "web": "0-2,4", "batch": "0-5"} {
		if cpus, _ := s.CPUs(id); cpus.String() != want {
			t.Errorf("%s runs on %s, want %s", id, cpus, want)
		}
	}
}

func TestHalfCoresComeFirst(t *testing.T) {
	t.Parallel()
	// cores {0,4}, {1,5} share an L3, {2,6}, {3,7} another; CPU 0 is the floor
	s := start(t, "1s1n2l2c2t", place.Config{})
	o := s.Offer()
	o.Grant = &place.Grant{ID: "a", Own: cpuset.MustParse("2,6"), Request: place.Request{ID: "a"}}
	s, err := s.Commit(o)
	if err != nil {
		t.Fatal(err)
	}
	s = placed(t, s, lsr("x", 1))
	if g, _ := s.Grant("x"); g.Own.String() != "4" {
		t.Errorf("own %s, want the half core 4, not one of the free cores", g.Own)
	}
}

// What two nodes give together is divided by the room of each: node 0 keeps a
// CPU for the pool though a lower one of its own would do for the request.
func TestTightNodeGivesOnlyItsRoom(t *testing.T) {
	t.Parallel()
	s := placed(t, start(t, "1s2n4c", place.Config{}), // node 0 has CPUs 0-3, node 1 4-7
		place.Request{ID: "pool", Class: place.LS, Milli: 1500},
		place.Request{ID: "beside", Class: place.LSR, Milli: 1000, Nodes: cpuset.MustOf(1), NodesRequired: true},
	)
	r := lsr("x", 5)
	o, err := place.Place(berth.Policy{}, s, &r)
	if err != nil {
		t.Fatal(err)
	}
	if want := cpuset.MustParse("1-2,5-7"); o.Grant.Own != want {
		t.Errorf("own CPUs %s, want %s", o.Grant.Own, want)
	}
}

// The time of shares that several nodes give is not promised to others on one of them.
func TestRequiredNodesKeepTheirTime(t *testing.T) {
	t.Parallel()
	on := func(id, nodes string, milli int) place.Request {
		return place.Request{ID: id, Class: place.LS, Milli: milli, Nodes: cpuset.MustParse(nodes), NodesRequired: true}
	}
	x := on("x", "0-1", 12000) // of 8 CPUs a node: 4000m are left there
	s := placed(t, start(t, "2s2n4c2t", place.Config{}), x, place.Request{ID: "y", Class: place.LS, Milli: 8000})
	if g, _ := s.Grant("y"); s.Topology().NodesOf(g.Share.Within).String() != "2" {
		t.Errorf("y shares CPUs %s, want those of node 2", g.Share.Within)
	}
	for _, tc := range []struct {
		r    place.Request
		fits bool
	}{
		{on("z", "0", 4000), true}, {on("z", "0", 4001), false}, {on("z", "0-1", 4000), true}, {on("z", "0-1", 4001), false},
		{on("x", "0-1", 16000), true}, {on("x", "0-1", 16001), false},
	} {
		try := place.Place
		if tc.r.ID == "x" {
			try = place.Resize
		}
		if _, err := try(berth.Policy{}, s, &tc.r); (err == nil) != tc.fits || err != nil && !errors.As(err, new(*place.NUMAError)) {
			t.Errorf("%s, %dm on nodes %s: %v; fits: want %t", tc.r.ID, tc.r.Milli, tc.r.Nodes, err, tc.fits)
		}
	}
	// What is bound to three nodes counts for two of them.
	s = placed(t, start(t, "2s2n4c2t", place.Config{}), on("w", "0-2", 20000))
	for milli, fits := range map[int]bool{4000: true, 4001: false, 12000: false} {
		r := on("x", "0-1", milli)
		if _, err := place.Place(berth.Policy{}, s, &r); (err == nil) != fits {
			t.Errorf("%dm on nodes 0-1 beside 20000m on 0-2: %v; fits: want %t", milli, err, fits)
		}
	}
}

// A workload's own share does not stand in the way of its exclusive CPUs.
func TestResizeOverItsOwnShare(t *testing.T) {
	t.Parallel()
	s, err := place.New(placetest.Topology(t, "1s2n4c1t"), place.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := place.Request{ID: "a", Class: place.LSR, Milli: 1500, Nodes: cpuset.MustOf(1)}
	o, err := place.Place(berth.Policy{}, s, &r)
	if err == nil {
		s, err = s.Commit(o)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.Milli = 4500
	o, err = place.Resize(berth.Policy{}, s, &r)
	if err == nil {
		s, err = s.Commit(o)
	}
	if err != nil || o.Grant.Own != cpuset.MustParse("4-7") || s.Audit() != nil {
		t.Errorf("resized to %+v, %v; want CPUs 4-7", o.Grant, err)
	}
}
