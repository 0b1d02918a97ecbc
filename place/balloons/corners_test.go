package balloons_test

import (
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/balloons"
)

// pairs is a machine of cores whose two threads have neighbouring numbers.
func pairs(cores int) *machine.Machine {
	m := &machine.Machine{}
	for i := range cores {
		cpus := set("")
		for _, cpu := range []int{2 * i, 2*i + 1} {
			cpus, _ = cpus.With(cpu)
			m.CPUs = append(m.CPUs, machine.CPU{ID: cpu})
		}
		m.Online = m.Online.Union(cpus)
		m.Domains = append(m.Domains, machine.Domain{Kind: machine.Core, ID: i, CPUs: cpus, KernelID: i})
	}
	return m
}

func class(c place.Class) func(r *place.Request) {
	return func(r *place.Request) { r.Class = c }
}

// TestCorners has what single options do not show.
func TestCorners(t *testing.T) {
	t.Parallel()
	types := func(types ...balloons.Type) balloons.Policy {
		return balloons.Policy{Types: append(types, balloons.Type{Name: "default"})}
	}
	x := func(ty balloons.Type) balloons.Policy {
		ty.Name = "x"
		return types(ty, balloons.Type{Name: "y", PreferNew: true})
	}
	one := []step{add("a", "x", 1000)}
	for _, tt := range []struct {
		name    string
		p       balloons.Policy
		machine *machine.Machine
		conf    place.Config
		steps   []step
		want    string
	}{
		{name: "reserved CPUs are not shared while idle", p: shares(balloons.L3Level), conf: place.Config{Reserved: set("2"), Floor: set("0")}, steps: one, want: "a=1,3,16-19"},
		{
			name: "lists are not shared while idle", p: types(balloons.Type{Name: "x", ShareIdle: balloons.L3Level}, balloons.Type{Name: "y", Lists: lists("2,18")}),
			steps: one, want: "a=1,3,16-17,19",
		},
		{name: "isolated CPUs are the last to be taken", p: x(balloons.Type{}), machine: isolated(must(two), "16"), steps: one, want: "a=1"},
		{name: "and are taken in the end", p: x(balloons.Type{}), machine: isolated(must(two), "16"), steps: []step{add("a", "x", 31000)}, want: "a=1-31"},
		{
			name: "a second thread beside its own before one beside a stranger", p: x(balloons.Type{}), conf: place.Config{Floor: set("15,31")},
			steps: []step{add("y0", "y", 1000), add("y1", "y", 1000), add("a", "x", 1000), add("y3", "y", 1000), drop("y1"), drop("y3"), resize("a", 4000)},
			want:  "y0=12 a=13-14,29-30",
		},
		{name: "growth fills its own L3 first", p: x(balloons.Type{}), steps: []step{add("a", "x", 2000), resize("a", 9000)}, want: "a=1-4,16-20"},
		{
			name: "spread looks for cores enough", p: x(balloons.Type{Cores: balloons.Spread}),
			steps: []step{add("b", "y", 8000), add("a", "x", 6000)}, want: "b=4-7,20-23 a=8-13",
		},
		{name: "spread takes second threads last", p: x(balloons.Type{Cores: balloons.Spread}), machine: pairs(5), steps: []step{add("a", "x", 6000)}, want: "a=1-4,6,8"},
		{name: "whole cores first where no L3 is told", p: x(balloons.Type{}), machine: pairs(5), steps: []step{add("a", "x", 4000)}, want: "a=2-5"},
		{
			name: "the balloon that could have the most time left grows", p: x(balloons.Type{MaxCPUs: 4, MaxBalloons: 2, PreferNew: true}),
			steps: []step{add("a", "x", 2100), add("b", "x", 1000), add("c", "x", 1000)}, want: "a=1,16-17 b=2,18 c=2,18",
		},
		{
			name: "packed into the pool with most pods", p: podpool(balloons.Fullest), want: "c=1,17 d=2,18 e=2,18 z=2,18",
			steps: []step{add("a", "dual", 0), add("b", "dual", 0), add("c", "dual", 0), add("d", "dual", 0), add("e", "dual", 0), drop("a"), drop("b"), add("z", "dual", 0)},
		},
		{
			name: "a pod that has a slot needs no other", p: x(balloons.Type{Slots: 1, MinCPUs: 2, MaxBalloons: 1}),
			steps: []step{add("a", "x", 500).with(group("p")), add("b", "x", 500).with(group("p")), add("c", "x", 500).with(group("q"))}, want: "a=1,17 b=1,17 c=refused",
		},
		{
			name: "a balloon elsewhere is passed over", p: x(balloons.Type{}), want: "a=16 b=8",
			steps: []step{add("a", "x", 500), add("b", "x", 500).with(func(r *place.Request) { r.Nodes, r.NodesRequired = set("1"), true })},
		},
		{
			name: "one elsewhere does not hide one that is right", p: x(balloons.Type{PreferNew: true, MaxBalloons: 2, Branches: balloons.Spread}), want: "a=8 b=4 c=4",
			steps: []step{add("a", "x", 100), add("b", "x", 500), add("c", "x", 100).with(func(r *place.Request) { r.Nodes, r.NodesRequired = set("0"), true })},
		},
		{
			name: "balloons count as numbers", p: x(balloons.Type{MinBalloons: 12, Slots: 1, Fill: balloons.FirstFree}),
			steps: some(3, "a", "x", 100), want: "a0=16 a1=1 a2=17",
		},
		{name: "reserved, resized", conf: place.Config{Reserved: set("0")}, p: x(balloons.Type{}), steps: []step{add("a", "reserved", 800), resize("a", 1000)}, want: "a=0"},
		{name: "reserved, resized too far", conf: place.Config{Reserved: set("0")}, p: x(balloons.Type{}), steps: []step{add("a", "reserved", 800), resize("a", 1001)}, want: "a=refused"},
		{
			name: "reserved best effort, resized too far", conf: place.Config{Reserved: set("0")}, p: x(balloons.Type{}), want: "a=refused",
			steps: []step{add("a", "reserved", 800).with(class(place.BE)), {resize: place.Request{ID: "a", Milli: 1200, Class: place.BE}}},
		},
		{name: "class SYSTEM is reserved", conf: place.Config{Reserved: set("0")}, p: x(balloons.Type{}), steps: []step{unhinted("a").with(class(place.System))}, want: "a=0"},
		{
			name: "memory does not change in place", p: x(balloons.Type{}), want: "a=refused",
			steps: []step{add("a", "x", 800), {resize: place.Request{ID: "a", Milli: 800, Memory: []place.Amount{{Resource: place.Memory, Bytes: 1}}}}},
		},
		{
			name: "shrinks to what is near its first CPUs", p: x(balloons.Type{MinBalloons: 1}), steps: []step{add("a", "x", 10000), resize("a", 2000)}, want: "a=1,16",
		},
		{
			name: "a composite counts for its components", p: types(balloons.Type{Name: "x", Components: []string{"p", "p"}}, balloons.Type{Name: "p", MaxBalloons: 3, MaxCPUs: 1}),
			steps: []step{add("a", "x", 2000), add("b", "x", 2000), add("c", "p", 1000), add("d", "p", 1000)}, want: "a=1,16 b=refused c=17 d=refused",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := tt.machine
			if m == nil {
				m = fakekernel.Short(t, two)
			}
			if got := run(t, tt.p, m, tt.conf, tt.steps); got.workloads != tt.want {
				t.Errorf("%q, want %q (%s)", got.workloads, tt.want, got.pools)
			}
		})
	}
}
