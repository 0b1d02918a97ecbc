package place_test

import (
	"errors"
	"runtime"
	"slices"
	"testing"
	"weak"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/place"
)

// start returns the empty state of "1s2n4c2t": node 0 has CPUs 0-3 and 8-11,
// node 1 has 4-7 and 12-15; cores are {0,8}, {1,9}, ...
func start(t *testing.T, c place.Config) *place.State {
	t.Helper()
	s, err := place.New(placetest.Topology(t, "1s2n4c2t"), c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// give commits grants one after the other.
func give(t *testing.T, s *place.State, grants ...*place.Grant) *place.State {
	t.Helper()
	for _, g := range grants {
		next, err := try(s, g)
		if err != nil {
			t.Fatalf("grant %s: %v", g.ID, err)
		}
		s = next
	}
	return s
}

func try(s *place.State, g *place.Grant) (*place.State, error) {
	g.Request.ID = g.ID
	o := s.Offer()
	o.Grant = g
	return s.Commit(o)
}

func own(id, cpus string) *place.Grant {
	return &place.Grant{ID: id, Own: cpuset.MustParse(cpus)}
}

func shared(id, within string, class place.Class) *place.Grant {
	return &place.Grant{ID: id, Share: place.Share{Within: cpuset.MustParse(within)}, Request: place.Request{Class: class}}
}

func counted(id, cpus string) *place.Grant {
	return &place.Grant{ID: id, Share: place.Share{Within: cpuset.MustParse(cpus), Counted: true}}
}

func member(g *place.Grant, group string, role place.Role) *place.Grant {
	g.Request.Group, g.Request.Role = group, role
	return g
}

func TestCommitRefuses(t *testing.T) {
	t.Parallel()
	conf := place.Config{
		Allowed: cpuset.MustParse("0-3,8-11,15"), Reserved: cpuset.MustParse("0"),
		Memory:  []place.Block{{Node: 0, Resource: place.Memory, Bytes: 100}},
		Devices: []place.Device{{Name: "gpu0"}},
	}
	held := own("a", "1")
	held.Fence = cpuset.MustParse("9")
	held.Devices = []string{"gpu0"}
	memory := func(b place.Block) *place.Grant {
		g := own("x", "2")
		g.Memory = []place.Block{b}
		return g
	}
	device := func(name string) *place.Grant {
		g := own("x", "2")
		g.Devices = []string{name}
		return g
	}
	pool := shared("x", "", place.LS)
	pool.Share.Pool = "none"
	both := own("x", "2-3")
	both.Fence = cpuset.MustParse("3")
	for name, tc := range map[string]struct {
		grant *place.Grant
		want  any
	}{
		"an owned CPU":             {own("x", "1-2"), new(*place.ConflictError)},
		"a fenced CPU":             {own("x", "9"), new(*place.ConflictError)},
		"a CPU that is not there":  {own("x", "2,99"), new(*place.ConflictError)},
		"a CPU not allowed":        {own("x", "4"), new(*place.ConflictError)},
		"the floor":                {own("x", "0"), new(*place.FloorError)},
		"owned and fenced":         {both, new(*place.ConflictError)},
		"nothing":                  {own("x", ""), new(*place.CPUsError)},
		"somebody's last CPU":      {own("x", "15"), new(*place.FloorError)},
		"an unallowed bound":       {shared("x", "5", place.LS), new(*place.ConflictError)},
		"a bound that is all held": {shared("x", "1", place.LS), new(*place.CPUsError)},
		"a pool that is not there": {pool, new(*place.RejectedError)},
		"counting an owned CPU":    {counted("x", "1-2"), new(*place.ConflictError)},
		"counting a counted CPU":   {counted("x", "10"), new(*place.ConflictError)},
		"owning a counted CPU":     {own("x", "10"), new(*place.ConflictError)},
		"too much memory":          {memory(place.Block{Node: 0, Resource: place.Memory, Bytes: 101}), new(*place.MemoryError)},
		"negative memory":          {memory(place.Block{Node: 0, Resource: place.Memory, Bytes: -1}), new(*place.MemoryError)},
		"memory of no node":        {memory(place.Block{Node: 7, Resource: place.Memory, Bytes: 1}), new(*place.MemoryError)},
		"memory of no name":        {memory(place.Block{Node: 0, Resource: "gold", Bytes: 1}), new(*place.MemoryError)},
		"a held device":            {device("gpu0"), new(*place.DeviceError)},
		"a device not there":       {device("gpu1"), new(*place.DeviceError)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := give(t, start(t, conf), held, shared("ls", "15", place.LS), counted("c", "10"))
			if _, err := try(s, tc.grant); !errors.As(err, tc.want) {
				t.Errorf("got %v, want %T", err, tc.want)
			}
			if err := s.Audit(); err != nil {
				t.Errorf("the old state changed: %v", err)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]place.Config{
		"no CPU allowed":     {Allowed: cpuset.MustParse("100")},
		"reserved offline":   {Reserved: cpuset.MustParse("0,100")},
		"floor offline":      {Floor: cpuset.MustParse("100")},
		"floor and no floor": {Floor: cpuset.MustParse("0"), NoFloor: true},
		"memory of no node":  {Memory: []place.Block{{Node: 9, Resource: place.Memory, Bytes: 1}}},
		"negative memory":    {Memory: []place.Block{{Node: 0, Resource: place.Memory, Bytes: -1}}},
		"two devices":        {Devices: []place.Device{{Name: "a"}, {Name: "a"}}},
		"device of no node":  {Devices: []place.Device{{Name: "a", Nodes: cpuset.MustParse("5")}}},
	} {
		if _, err := place.New(placetest.Topology(t, "1s2n4c2t"), c); !errors.As(err, new(*place.InvalidError)) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestEffective(t *testing.T) {
	t.Parallel()
	lsr := own("lsr", "1,9")
	lsr.Lent = true
	one := shared("one", "2-3,10-11", place.LS)
	one.Share.OneThread = true
	pooled := &place.Grant{ID: "pooled", Share: place.Share{Pool: "p"}}
	open := counted("open", "3")
	open.Share.Open = true
	s := give(t, start(t, place.Config{}), lsr, own("lse", "2"), counted("bound", "10"), open,
		shared("ls", "0-3,8-11", place.LS), shared("be", "0-3,8-11", place.BE), one)
	o := s.Offer()
	o.Grant, o.Pools = pooled, []place.Pool{{Name: "p", CPUs: cpuset.MustParse("5,13"), Idle: cpuset.MustParse("4-7,12-15")}}
	pooled.Request.ID = pooled.ID
	s, err := s.Commit(o)
	if err != nil {
		t.Fatal(err)
	}
	s = give(t, s, own("late", "4,12"))
	got := map[string]string{}
	for g := range s.Grants() {
		got[g.ID] = s.Effective(g).String()
	}
	want := map[string]string{
		"lsr": "1,9", "lse": "2", "late": "4,12", "bound": "10", "open": "3",
		"ls": "0,3,8,11", "be": "0-1,3,8-11", "one": "3", "pooled": "5-7,13-15",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := s.Audit(); err != nil {
		t.Error(err)
	}
}

func TestGroupTakesTurns(t *testing.T) {
	t.Parallel()
	s := start(t, place.Config{Devices: []place.Device{{Name: "gpu0"}}})
	first := member(own("init", "1-3"), "g", place.Init)
	first.Devices = []string{"gpu0"}
	app := member(own("app", "2"), "g", place.App)
	app.Devices = []string{"gpu0"}
	with := give(t, s, first, app)
	if got := with.Reusable("g").String(); got != "1,3" {
		t.Errorf("reusable %q, want 1,3", got)
	}
	for name, g := range map[string]*place.Grant{
		"another app": member(own("app2", "2"), "g", place.App),
		"a stranger":  member(own("other", "3"), "h", place.App),
		"no group":    own("lone", "3"),
	} {
		if _, err := try(with, g); !errors.As(err, new(*place.ConflictError)) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for _, order := range [][]string{{"init", "app"}, {"app", "init"}} {
		left := with
		for i, id := range order {
			var err error
			if left, err = left.Release(id); err != nil {
				t.Fatal(err)
			}
			if err := left.Audit(); err != nil {
				t.Errorf("after releasing %s: %v", id, err)
			}
			if _, holder, _ := left.Device("gpu0"); i == 0 && holder != order[1] {
				t.Errorf("gpu0 is held by %q, want %q", holder, order[1])
			}
		}
		if diff := left.Difference(s); diff != "" {
			t.Errorf("release %v: %s", order, diff)
		}
	}
}

// Who of several that take turns is named does not depend on the order.
func TestDeviceIsHeldByTheSameWhoeverCameFirst(t *testing.T) {
	t.Parallel()
	init := func(id, cpus string) *place.Grant {
		g := member(own(id, cpus), "g", place.Init)
		g.Devices = []string{"gpu0"}
		return g
	}
	a, b, c := init("a", "1"), init("b", "1"), init("c", "1")
	for _, grants := range [][]*place.Grant{{a, b, c}, {c, b, a}, {b, c, a}} {
		s := give(t, start(t, place.Config{Devices: []place.Device{{Name: "gpu0"}}}), grants...)
		for _, id := range []string{"a", "b"} {
			if _, holder, _ := s.Device("gpu0"); holder != id {
				t.Errorf("gpu0 is held by %q, want %q", holder, id)
			}
			if err := s.Audit(); err != nil {
				t.Error(err)
			}
			var err error
			if s, err = s.Release(id); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A device that is asked for by name does not count as one of a kind too.
func TestFitDevicesOnce(t *testing.T) {
	t.Parallel()
	s := start(t, place.Config{Devices: []place.Device{{Name: "nic0", Kind: "nic"}, {Name: "nic1", Kind: "nic"}}})
	one, named := place.DeviceRequest{Kind: "nic", Count: 1}, place.DeviceRequest{Names: []string{"nic0"}}
	for _, requests := range [][]place.DeviceRequest{{one, named}, {named, one}} {
		if names, _, err := s.FitDevices(cpuset.Set{}, requests); err != nil || !slices.Equal(names, []string{"nic0", "nic1"}) {
			t.Errorf("%+v: %v, %v; want nic0 and nic1", requests, names, err)
		}
	}
	for _, requests := range [][]place.DeviceRequest{{named, named}, {{Names: []string{"nic0", "nic0"}}}} {
		var twice *place.DeviceError
		if names, _, err := s.FitDevices(cpuset.Set{}, requests); !errors.As(err, &twice) || twice.Device != "nic0" || twice.Reason != "asked for twice" {
			t.Errorf("%+v: %v, %v; want a DeviceError of nic0", requests, names, err)
		}
	}
}

func TestPoolsChange(t *testing.T) {
	t.Parallel()
	s := start(t, place.Config{})
	set := func(s *place.State, drop []string, pools ...place.Pool) (*place.State, error) {
		o := s.Offer()
		o.Drop, o.Pools = drop, pools
		return s.Commit(o)
	}
	a, b := place.Pool{Name: "a", CPUs: cpuset.MustParse("1-2")}, place.Pool{Name: "b", CPUs: cpuset.MustParse("3")}
	s, err := set(s, nil, b, a)
	if err != nil {
		t.Fatal(err)
	}
	m := &place.Grant{ID: "m", Share: place.Share{Pool: "a", Milli: 700}}
	s = give(t, s, m)
	if milli, n := s.PoolMilli("a"); milli != 700 || n != 1 {
		t.Errorf("pool a: %dm of %d members", milli, n)
	}
	if _, err := try(s, own("x", "2")); !errors.As(err, new(*place.ConflictError)) {
		t.Errorf("a pool's CPU: got %v", err)
	}
	if _, err := set(s, nil, place.Pool{Name: "a"}); !errors.As(err, new(*place.RejectedError)) {
		t.Errorf("end of a pool with a member: got %v", err)
	}
	if _, err := set(s, nil, place.Pool{Name: "c", CPUs: cpuset.MustParse("2")}); !errors.As(err, new(*place.ConflictError)) {
		t.Errorf("two pools of one CPU: got %v", err)
	}
	if _, err := set(s, nil, place.Pool{Name: "c", CPUs: cpuset.MustParse("0")}); !errors.As(err, new(*place.FloorError)) {
		t.Errorf("a pool with the floor: got %v", err)
	}
	swapped, err := set(s, nil, place.Pool{Name: "a", CPUs: b.CPUs}, place.Pool{Name: "b", CPUs: a.CPUs})
	if err != nil {
		t.Fatalf("swap: %v", err)
	}
	if cpus, _ := swapped.CPUs("m"); cpus != b.CPUs {
		t.Errorf("the member runs on %s, want %s", cpus, b.CPUs)
	}
	if err := swapped.Audit(); err != nil {
		t.Error(err)
	}
	end, err := set(swapped, []string{"m"}, place.Pool{Name: "a"}, place.Pool{Name: "b"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := end.Difference(start(t, place.Config{})); diff != "" {
		t.Errorf("after all is given back: %s", diff)
	}
}

func TestStaleOffer(t *testing.T) {
	t.Parallel()
	s := start(t, place.Config{})
	o := s.Offer()
	o.Drop = []string{"a"}
	next := give(t, s, own("a", "1"))
	var stale *place.StaleError
	if _, err := next.Commit(o); !errors.As(err, &stale) || stale.Offered != 0 || stale.Current != 1 {
		t.Errorf("got %v", err)
	}
	if _, err := next.Commit(place.Offer{}); !errors.As(err, &stale) {
		t.Errorf("an offer of nobody: got %v", err)
	}
	if _, err := next.Release("b"); !errors.As(err, new(*place.NotHeldError)) {
		t.Errorf("release of nothing: got %v", err)
	}
}

func TestFitMemoryOverflowsToTheNearest(t *testing.T) {
	t.Parallel()
	var blocks []place.Block
	for node, bytes := range []int64{10, 10, 10, 10} {
		blocks = append(blocks, place.Block{Node: node, Resource: place.Memory, Bytes: bytes})
	}
	s, err := place.New(placetest.Topology(t, "2s2n2c"), place.Config{Memory: blocks})
	if err != nil {
		t.Fatal(err)
	}
	mems, got, err := s.FitMemory(cpuset.MustOf(2), []place.Amount{{Resource: place.Memory, Bytes: 25}})
	want := []place.Block{{Node: 2, Resource: place.Memory, Bytes: 10}, {Node: 3, Resource: place.Memory, Bytes: 10}, {Node: 0, Resource: place.Memory, Bytes: 5}}
	if err != nil || mems.String() != "0,2-3" || !cmp.Equal(got, want) {
		t.Errorf("mems %s, blocks %v, error %v", mems, got, err)
	}
	mems, got, err = s.RefitMemoryWithin(cpuset.MustOf(0, 2), cpuset.MustOf(2), nil, []place.Amount{{Resource: place.Memory, Bytes: 15}})
	if want := []place.Block{want[0], want[2]}; err != nil || mems.String() != "0,2" || !cmp.Equal(got, want) {
		t.Errorf("within 0,2: mems %s, blocks %v, error %v", mems, got, err)
	}
	had := []place.Block{{Node: 0, Resource: place.Memory, Bytes: 4}, {Node: 3, Resource: place.Memory, Bytes: 4}}
	mems, got, err = s.RefitMemoryWithin(cpuset.MustOf(0, 2), cpuset.MustOf(2), had, []place.Amount{{Resource: place.Memory, Bytes: 13}})
	if want := []place.Block{{Node: 0, Resource: place.Memory, Bytes: 10}, {Node: 2, Resource: place.Memory, Bytes: 3}}; err != nil || mems.String() != "0,2" || !cmp.Equal(got, want) {
		t.Errorf("13, of which 4 lie on 0: mems %s, blocks %v, error %v", mems, got, err)
	}
	var short *place.MemoryError
	if _, _, err := s.RefitMemoryWithin(cpuset.MustOf(0, 2), cpuset.MustOf(2), nil, []place.Amount{{Resource: place.Memory, Bytes: 21}}); !errors.As(err, &short) || short.Available != 20 {
		t.Errorf("21 bytes of 20: %v", err)
	}
	if _, _, err := s.FitMemory(cpuset.MustOf(2), []place.Amount{{Resource: place.Memory, Bytes: 41}}); !errors.As(err, &short) || short.Available != 40 {
		t.Errorf("41 bytes of 40: %v", err)
	}
	if _, _, err := s.FitMemory(cpuset.MustOf(2), []place.Amount{{Resource: "hugepages-1Gi", Bytes: 1}}); !errors.As(err, &short) {
		t.Errorf("huge pages of nobody: %v", err)
	}
}

// What a System init workload owns of the reserved CPUs, only System may own in
// turn with it.
func TestReservedCPUsAreReusedBySystemOnly(t *testing.T) {
	t.Parallel()
	s := start(t, place.Config{Reserved: cpuset.MustParse("0-1"), Floor: cpuset.MustParse("2")})
	first := member(own("init", "1,3"), "g", place.Init)
	first.Request.Class = place.System
	s = give(t, s, first)
	if got := s.Reusable("g").String(); got != "3" {
		t.Errorf("reusable %q, want 3", got)
	}
	for class, want := range map[place.Class]string{place.LSE: "3-15", place.System: "0-1,3-15"} {
		r := place.Request{ID: "app", Class: class, Group: "g"}
		got := s.OwnableBy(&r)
		if got.String() != want {
			t.Errorf("%s: ownable %q, want %q", class, got, want)
		}
		if _, err := try(s, &place.Grant{ID: "app", Own: got, Request: r}); err != nil {
			t.Errorf("%s: %v", class, err)
		}
	}
}

// A state that nobody refers to goes, though states made from it live on.
func TestOldStatesGo(t *testing.T) {
	t.Parallel()
	old := start(t, place.Config{})
	gone := weak.Make(old)
	next := give(t, old, own("a", "1"))
	old = nil
	for range 10 {
		if runtime.GC(); gone.Value() == nil {
			break
		}
	}
	if gone.Value() != nil {
		t.Error("the state before a commit is kept by the one after it")
	}
	runtime.KeepAlive(next)
}
