package place_test

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

func fullest(k machine.Kind) func(*place.View, int) place.Rank {
	return func(v *place.View, pos int) place.Rank { return place.Rank{v.FreeIn(k, pos)} }
}

func TestTake(t *testing.T) {
	t.Parallel()
	node := func(mode place.StageMode) place.Stage {
		return place.Stage{Mode: mode, Kind: machine.Node, Rank: fullest(machine.Node)}
	}
	core := place.Stage{Kind: machine.Core, Rank: fullest(machine.Core)}
	cpu := place.Stage{Kind: place.CPU, Rank: func(v *place.View, pos int) place.Rank {
		return place.Rank{v.FreeIn(machine.Core, v.Up(machine.Core, place.CPU, pos))}
	}}
	oneCore := place.Stage{Kind: place.CPU, Again: true, Rank: func(v *place.View, pos int) place.Rank {
		return place.Rank{v.TakenIn(machine.Core, v.Up(machine.Core, place.CPU, pos))}
	}}
	limited := node(place.Spill)
	limited.Limit = func(*place.View, int) int { return 3 }
	second := node(place.Enter)
	second.Fits = func(_ *place.View, pos int) string {
		if pos == 0 {
			return "the first"
		}
		return ""
	}
	dies := place.Stage{Mode: place.Spill, Kind: machine.Die, Rank: fullest(machine.Die)}
	scant := node(place.Spill)
	scant.Limit = func(*place.View, int) int { return 1 }
	for name, tc := range map[string]struct {
		from, near string
		n          int
		stages     []place.Stage
		want       string
	}{
		"no stages: the lowest":          {"0-15", "", 3, nil, "0-2"},
		"none":                           {"0-15", "", 0, nil, ""},
		"enter the fullest node":         {"0-3,8-11,4-5", "", 2, []place.Stage{node(place.Enter)}, "4-5"},
		"enter one that holds all":       {"0-3,8-11,4-5", "", 3, []place.Stage{node(place.Enter)}, "0-2"},
		"enter none":                     {"0-1,4-5", "", 3, []place.Stage{node(place.Enter)}, "0-1,4"},
		"enter what fits":                {"0-15", "", 2, []place.Stage{second}, "4-5"},
		"fill whole nodes only":          {"0-3,8-10,4-7,12-15", "", 9, []place.Stage{node(place.Fill)}, "0,4-7,12-15"},
		"whole cores":                    {"0-3,9-11", "", 4, []place.Stage{core}, "1-2,9-10"},
		"a half core for the odd one":    {"0-3,9-11", "", 3, []place.Stage{core, cpu}, "0-1,9"},
		"spill with a limit":             {"0-15", "", 6, []place.Stage{limited, core}, "0,1,4,5,8,12"},
		"spill over no units":            {"0-3,9-11", "", 4, []place.Stage{dies, core}, "1-2,9-10"},
		"spill leaves some":              {"0-3,9-11,4", "", 4, []place.Stage{scant, core}, "0-1,4,9"},
		"one CPU per core":               {"0-3,8-11", "", 4, []place.Stage{oneCore}, "0-3"},
		"one per core beside held ones":  {"0-3,8-11", "0-1", 2, []place.Stage{oneCore}, "2-3"},
		"held ones are not taken":        {"0-3", "0-2", 1, nil, "3"},
		"all there is, after two stages": {"1,9,2", "", 3, []place.Stage{core, cpu}, "1-2,9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from, near := cpuset.MustParse(tc.from), cpuset.MustParse(tc.near)
			topo := placetest.Topology(t, "1s2n4c2t")
			got, err := topo.View(from, near).Take(tc.n, tc.stages, nil)
			if err != nil || got != cpuset.MustParse(tc.want) {
				t.Errorf("got %s, %v, want %s", got, err, tc.want)
			}
			if again, err := topo.View(from, near).Take(tc.n, tc.stages, &place.Why{}); err != nil || again != got {
				t.Errorf("explained: got %s, %v, want %s", again, err, got)
			}
		})
	}
}

func TestTakeTooMuch(t *testing.T) {
	t.Parallel()
	topo := placetest.Topology(t, "1s2n4c2t")
	for _, q := range []struct {
		from, near string
		n          int
	}{
		{"0-3", "", 5},
		{"0-3", "3", 4},
		{"14-20", "", 3},
		{"", "", 1},
		{"", "", -1},
	} {
		var e *place.CPUsError
		v := topo.View(cpuset.MustParse(q.from), cpuset.MustParse(q.near))
		if _, err := v.Take(q.n, nil, nil); !errors.As(err, &e) || e.Asked != q.n {
			t.Errorf("%+v: got %v", q, err)
		}
	}
}

// The counts of a view agree with the sets at every moment of a take.
func TestViewCounts(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(6, 6))
	for range 200 {
		m := placetest.Machine(rng, 40)
		topo, err := place.NewTopology(m)
		if err != nil {
			t.Fatal(err)
		}
		check := func(v *place.View, _ int) place.Rank {
			for _, k := range append(machine.Kinds(), place.CPU) {
				for pos, u := range topo.Units(k) {
					free, taken := u.CPUs.Overlap(&v.Free), u.CPUs.Overlap(&v.Taken)
					whole := topo.Whole(machine.Core, v.Free)
					if v.FreeIn(k, pos) != free || v.TakenIn(k, pos) != taken || v.WholeIn(k, pos) != u.CPUs.Overlap(&whole) {
						t.Fatalf("%s: free %d taken %d whole %d, want %d %d %d", topo.Label(k, pos),
							v.FreeIn(k, pos), v.TakenIn(k, pos), v.WholeIn(k, pos), free, taken, u.CPUs.Overlap(&whole))
					}
				}
			}
			return place.Rank{}
		}
		stages := []place.Stage{
			{Mode: place.Spill, Kind: machine.Node, Rank: check},
			{Mode: place.Enter, Kind: machine.L3, Rank: check},
			{Kind: machine.Core, Again: true, Rank: check},
			{Kind: place.CPU, Again: true, Rank: check},
		}
		n := rng.IntN(m.Online.Len() + 1)
		got, err := topo.View(m.Online, cpuset.Set{}).Take(n, stages, nil)
		if err != nil || got.Len() != n {
			t.Fatalf("%d of %s: %s, %v", n, m.Online, got, err)
		}
	}
}

func TestWhyTellsWhatLost(t *testing.T) {
	t.Parallel()
	why := &place.Why{}
	values := []place.Rank{{1, 5}, {1, 3}, {2, 0}, {1, 3}}
	c := place.Choice{
		Name: "pick", Criteria: []string{"far", "full"}, Count: 5,
		Fits: func(i int) string {
			if i == 4 {
				return "too small"
			}
			return ""
		},
		Rank: func(i int) place.Rank { return values[i] },
	}
	if got := c.Best(why); got != 1 {
		t.Errorf("chose %d", got)
	}
	want := []string{"full: 5 > 3", "", "far: 2 > 1", "tie", "too small"}
	var lost []string
	for _, cand := range why.Decisions[0].Candidates {
		lost = append(lost, cand.Lost)
	}
	if diff := cmp.Diff(want, lost); diff != "" {
		t.Error(diff)
	}
	c.Fits = func(int) string { return "no" }
	if got := c.Best(nil); got != -1 {
		t.Errorf("chose %d of none", got)
	}
}

func TestRequestValidate(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]place.Request{
		"no id":              {},
		"negative":           {ID: "a", Milli: -1},
		"huge":               {ID: "a", Milli: 1 << 40},
		"shared above all":   {ID: "a", Milli: 1, SharedMilli: 2},
		"half own":           {ID: "a", Mode: place.Mixed, Milli: 1500, SharedMilli: 200},
		"memory of nothing":  {ID: "a", Memory: []place.Amount{{Bytes: 1}}},
		"negative memory":    {ID: "a", Memory: []place.Amount{{Resource: place.Memory, Bytes: -1}}},
		"device of nothing":  {ID: "a", Devices: []place.DeviceRequest{{Count: 1}}},
		"negative devices":   {ID: "a", Devices: []place.DeviceRequest{{Kind: "gpu", Count: -1}}},
		"negative max nodes": {ID: "a", MaxNodes: -1},
	} {
		if err := r.Validate(); !errors.As(err, new(*place.InvalidError)) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	good := place.Request{ID: "a", Mode: place.Mixed, Milli: 2700, SharedMilli: 700}
	if own, shared := good.Split(); good.Validate() != nil || own != 2 || shared != 700 {
		t.Errorf("split %d and %dm, %v", own, shared, good.Validate())
	}
}

func TestGrantSurvivesJSON(t *testing.T) {
	t.Parallel()
	g := own("a", "1-3")
	g.Request = place.Request{
		ID: "a", Class: place.LSR, Role: place.Sidecar, Mode: place.Mixed, Bind: place.SpreadByPCPUs, Exclusivity: place.NUMANodeLevel,
		Strategy: place.DistributeEvenly, Isolated: place.Avoid, Milli: 3500, Nodes: cpuset.MustParse("1"),
	}
	g.Share = place.Share{Within: cpuset.MustParse("0,8"), Milli: 500}
	g.Memory = []place.Block{{Node: 1, Resource: place.Memory, Bytes: 5}}
	text, err := json.Marshal(g)
	if err != nil {
		t.Fatal(err)
	}
	var back place.Grant
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*g, back); diff != "" {
		t.Errorf("%s\n%s", text, diff)
	}
	for _, bad := range []string{`{"request":{"class":"XX"}}`, `{"request":{"class":"LS","bind":"Full"}}`, `{"own":"3-1"}`} {
		if err := json.Unmarshal([]byte(bad), &back); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

// What is taken is what choosing the best of all units again and again takes, by
// ranks of the start. Explaining it changes nothing, even if ranks look at what
// was taken so far.
func TestFillAgainstSelection(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(8, 8))
	for range 300 {
		m := placetest.Machine(rng, 48)
		topo, err := place.NewTopology(m)
		if err != nil {
			t.Fatal(err)
		}
		kinds := []machine.Kind{machine.Node, machine.L3, machine.Core, place.CPU}
		kind := kinds[rng.IntN(len(kinds))]
		weight := rng.Perm(len(topo.Units(kind)))
		stage := place.Stage{Name: "any", Kind: kind, Criteria: []string{"weight"}, Rank: func(v *place.View, pos int) place.Rank {
			return place.Rank{(weight[pos] + v.Taken.Len()) % 5}
		}}
		n := rng.IntN(m.Online.Len() + 1)
		got, err := topo.View(m.Online, cpuset.Set{}).Take(n, []place.Stage{stage}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if want := selected(topo, kind, n, func(pos int) int { return weight[pos] % 5 }); got != want {
			t.Fatalf("%d of %s by %s: got %s, want %s", n, m.Online, kind, got, want)
		}
		why := &place.Why{}
		if explained, err := topo.View(m.Online, cpuset.Set{}).Take(n, []place.Stage{stage}, why); err != nil || explained != got {
			t.Fatalf("explained: got %s, %v, want %s", explained, err, got)
		}
		for _, d := range why.Decisions {
			if len(d.Candidates) != len(topo.Units(kind)) || d.Chosen >= 0 && d.Candidates[d.Chosen].Lost != "" {
				t.Fatalf("%+v", d)
			}
		}
	}
}

// selected takes n CPUs by whole units, always the best that is not too large,
// and the lowest CPUs after them.
func selected(topo *place.Topology, k machine.Kind, n int, weight func(pos int) int) cpuset.Set {
	var taken cpuset.Set
	units := topo.Units(k)
	for {
		best := -1
		for pos, u := range units {
			if u.Size == 0 || u.Size > n || taken.Overlaps(u.CPUs) {
				continue
			}
			if best < 0 || weight(pos) < weight(best) || weight(pos) == weight(best) && u.First < units[best].First {
				best = pos
			}
		}
		if best < 0 {
			break
		}
		taken = taken.Union(units[best].CPUs)
		n -= units[best].Size
	}
	for cpu := range topo.Online().Minus(taken).All() {
		if n == 0 {
			break
		}
		taken, _ = taken.With(cpu)
		n--
	}
	return taken
}

// BenchmarkTake takes 90 scattered CPUs one by one, by ranks of the start.
func BenchmarkTake(b *testing.B) {
	topo := placetest.Topology(b, "2s4n4l4c2t")
	var from cpuset.Set
	for cpu := range topo.Online().All() {
		if cpu%5 != 0 {
			from, _ = from.With(cpu)
		}
	}
	stages := []place.Stage{{Kind: place.CPU, Rank: func(v *place.View, pos int) place.Rank {
		return place.Rank{v.FreeIn(machine.Core, v.Up(machine.Core, place.CPU, pos)), pos % 7}
	}}}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if _, err := topo.View(from, cpuset.Set{}).Take(90, stages, nil); err != nil {
			b.Fatal(err)
		}
	}
}
