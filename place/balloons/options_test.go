package balloons_test

import (
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/balloons"
)

// option is one option: what the steps lead to with it, which must not be what
// they lead to without it.
type option struct {
	name           string
	with, without  balloons.Policy
	machine        *machine.Machine // nil is two
	conf           place.Config
	steps          []step
	want           string
	pools, classes string // "" is not looked at
}

func namespace(ns string) func(r *place.Request) {
	return func(r *place.Request) { r.Namespace, r.Hints = ns, nil }
}

func label(key, value string) func(r *place.Request) {
	return func(r *place.Request) { r.Labels = map[string]string{key: value} }
}

func group(name string) func(r *place.Request) {
	return func(r *place.Request) { r.Group = name }
}

func matching(op balloons.Operator, values ...string) balloons.Policy {
	return only(balloons.Type{MinCPUs: 3, Match: []balloons.Expression{{Key: "labels/tier", Operator: op, Values: values}}})
}

func unhinted(id string) step {
	return add(id, "", 1000).with(func(r *place.Request) { r.Hints = nil })
}

func sizeOptions() []option {
	x := func(ty balloons.Type) balloons.Policy { return only(ty) }
	return []option{
		{
			name: "minCPUs", with: x(balloons.Type{MinCPUs: 4}), without: x(balloons.Type{}),
			steps: some(1, "a", "x", 1000), want: "a0=1-2,17-18",
		},
		{
			name: "maxCPUs", with: x(balloons.Type{MaxCPUs: 2}), without: x(balloons.Type{}),
			steps: some(3, "a", "x", 1000), want: "a0=1,16 a1=1,16 a2=17",
		},
		{
			name: "minBalloons", with: x(balloons.Type{MinBalloons: 2, MinCPUs: 2}), without: x(balloons.Type{MinCPUs: 2}),
			want: "", pools: "x/0=1,17 x/1=2,18",
		},
		{
			name: "maxBalloons", with: x(balloons.Type{MaxCPUs: 1, MaxBalloons: 2}), without: x(balloons.Type{MaxCPUs: 1}),
			steps: some(3, "a", "x", 1000), want: "a0=16 a1=1 a2=refused",
		},
		{
			name: "slots", with: x(balloons.Type{MinCPUs: 4, Slots: 2}), without: x(balloons.Type{MinCPUs: 4}),
			steps: some(3, "a", "x", 100), want: "a0=1-2,17-18 a1=1-2,17-18 a2=4-5,20-21",
			pools: "x/0=1-2,17-18 x/1=4-5,20-21",
		},
		{
			name: "overcommit", with: x(balloons.Type{MinCPUs: 2, MaxBalloons: 1, Overcommit: true}), without: x(balloons.Type{MinCPUs: 2, MaxBalloons: 1}),
			steps: some(3, "a", "x", 2000), want: "a0=1,17 a1=1,17 a2=1,17",
		},
		{
			name: "lists", with: x(balloons.Type{Lists: lists("4-5", "6-7")}), without: x(balloons.Type{}),
			steps: some(3, "a", "x", 2000), want: "a0=4-5 a1=6-7 a2=refused",
		},
	}
}

func chainOptions() []option {
	x := func(ty balloons.Type) balloons.Policy { return only(ty) }
	fill := func(f balloons.Fill) balloons.Policy {
		return only(balloons.Type{MinCPUs: 2, MaxCPUs: 2, MinBalloons: 2, Fill: f})
	}
	// Two balloons of two CPUs; the first has 500 of its 2,000 left, the other 1,200.
	filled := []step{add("a", "x", 1500), add("b", "x", 800), add("c", "x", 300)}
	// Two of two; the second has less left.
	later := []step{add("a", "x", 800), add("b", "x", 1500), add("c", "x", 300)}
	app := func(id, app string) step { return add(id, "x", 500).with(label("app", app)) }
	return []option{
		{
			name: "fill packed", with: fill(balloons.Fullest), without: fill(balloons.Emptiest),
			steps: []step{add("a", "x", 1500), add("b", "x", 800), add("c", "x", 300)}, want: "a=1,17 b=2,18 c=1,17",
		},
		{name: "fill balanced", with: fill(balloons.Emptiest), without: fill(balloons.Fullest), steps: filled, want: "a=1,17 b=2,18 c=2,18"},
		{name: "fill first-free", with: fill(balloons.FirstFree), without: fill(balloons.Fullest), steps: later, want: "a=1,17 b=2,18 c=1,17"},
		{
			name: "groupBy", with: x(balloons.Type{MinCPUs: 2, MaxCPUs: 3, GroupBy: "${pod/labels/app}-${namespace}", PreferNew: true}), without: x(balloons.Type{MinCPUs: 2, MaxCPUs: 3, PreferNew: true}),
			steps: []step{app("a", "web"), app("b", "db"), app("c", "web"), app("d", "db")}, want: "a=1,17 b=2,18 c=1,17 d=2,18",
		},
		{
			name: "preferSpreadingPods", with: x(balloons.Type{PreferNew: true, SpreadPods: true}), without: x(balloons.Type{PreferNew: true}),
			steps: []step{add("a", "x", 500).with(group("pod")), add("b", "x", 500).with(group("pod"))}, want: "a=16 b=1",
		},
		{
			name: "same pod first", with: x(balloons.Type{PreferNew: true}), without: x(balloons.Type{PreferNew: true, SpreadPods: true}),
			steps: []step{add("a", "x", 500).with(group("pod")), add("b", "x", 500).with(group("pod"))}, want: "a=16 b=16",
		},
		{
			name: "preferPerNamespaceBalloon", with: x(balloons.Type{Namespaces: []string{"*"}, PerNamespace: true}), without: x(balloons.Type{Namespaces: []string{"*"}}),
			steps: []step{add("a", "", 400).with(namespace("n")), add("b", "", 400).with(namespace("m")), add("c", "", 400).with(namespace("n"))}, want: "a=16 b=1 c=16",
		},
		{
			name: "preferNewBalloons", with: x(balloons.Type{PreferNew: true}), without: x(balloons.Type{}),
			steps: some(2, "a", "x", 400), want: "a0=16 a1=1",
		},
		{
			name: "elseDefault", with: x(balloons.Type{MaxCPUs: 1, MaxBalloons: 1, ElseDefault: true}), without: x(balloons.Type{MaxCPUs: 1, MaxBalloons: 1}),
			steps: some(2, "a", "x", 1000), want: "a0=16 a1=1", pools: "default/0=1 x/0=16",
		},
	}
}

func matchOptions() []option {
	x := func(ty balloons.Type) balloons.Policy { return only(ty) }
	tier := func(id, value string) step { return unhinted(id).with(label("tier", value)) }
	kube := place.Config{Reserved: set("0-1")}
	return []option{
		{
			name: "namespaces", with: x(balloons.Type{MinCPUs: 3, Namespaces: []string{"prod-*"}}), without: x(balloons.Type{MinCPUs: 3}),
			steps: []step{unhinted("a").with(namespace("prod-1")), unhinted("b").with(namespace("test"))}, want: "a=1,16-17 b=2",
		},
		{name: "Equals", with: matching(balloons.Equals, "gold"), without: matching(balloons.Equals, "tin"), steps: []step{tier("a", "gold")}, want: "a=1,16-17"},
		{name: "NotEqual", with: matching(balloons.NotEqual, "tin"), without: matching(balloons.NotEqual, "gold"), steps: []step{tier("a", "gold")}, want: "a=1,16-17"},
		{name: "In", with: matching(balloons.In, "tin", "gold"), without: matching(balloons.In, "tin"), steps: []step{tier("a", "gold")}, want: "a=1,16-17"},
		{name: "NotIn", with: matching(balloons.NotIn, "tin", "lead"), without: matching(balloons.NotIn, "tin", "gold"), steps: []step{tier("a", "gold")}, want: "a=1,16-17"},
		{name: "Exists", with: matching(balloons.Exists), without: matching(balloons.NotExist), steps: []step{tier("a", "gold")}, want: "a=1,16-17"},
		{name: "NotExist", with: matching(balloons.NotExist), without: matching(balloons.Exists), steps: []step{unhinted("a")}, want: "a=1,16-17"},
		{name: "AlwaysTrue", with: matching(balloons.AlwaysTrue), without: only(balloons.Type{MinCPUs: 3}), steps: []step{unhinted("a")}, want: "a=1,16-17"},
		{name: "Matches", with: matching(balloons.Matches, "g*"), without: matching(balloons.Matches, "t*"), steps: []step{tier("a", "gold")}, want: "a=1,16-17"},
		{name: "MatchesNot", with: matching(balloons.MatchesNot, "t*"), without: matching(balloons.MatchesNot, "g*"), steps: []step{tier("a", "gold")}, want: "a=1,16-17"},
		{name: "MatchesAny", with: matching(balloons.MatchesAny, "t*", "?old"), without: matching(balloons.MatchesAny, "t*"), steps: []step{tier("a", "gold")}, want: "a=1,16-17"},
		{name: "MatchesNone", with: matching(balloons.MatchesNone, "t*", "l*"), without: matching(balloons.MatchesNone, "t*", "g*"), steps: []step{tier("a", "gold")}, want: "a=1,16-17"},
		{
			name: "first type that agrees", steps: []step{unhinted("a").with(namespace("prod"))}, want: "a=1,16-17",
			with:    balloons.Policy{Types: []balloons.Type{{Name: "x", MinCPUs: 3, Namespaces: []string{"prod"}}, {Name: "y", MinCPUs: 2, Namespaces: []string{"*"}}, {Name: "default"}}},
			without: balloons.Policy{Types: []balloons.Type{{Name: "y", MinCPUs: 2, Namespaces: []string{"*"}}, {Name: "x", MinCPUs: 3, Namespaces: []string{"prod"}}, {Name: "default"}}},
		},
		{
			name: "reservedPoolNamespaces", conf: kube, steps: []step{unhinted("a").with(namespace("infra-1"))}, want: "a=0-1",
			with:    balloons.Policy{ReservedNamespaces: []string{"infra-*"}},
			without: balloons.Policy{},
		},
		{
			name: "hint type", with: x(balloons.Type{MinCPUs: 3}), without: balloons.Policy{}, steps: []step{add("a", "x", 1000)}, want: "a=1,16-17",
		},
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for _, options := range [][]option{sizeOptions(), chainOptions(), matchOptions(), cpuOptions(), compositeOptions()} {
		for _, o := range options {
			t.Run(o.name, func(t *testing.T) {
				t.Parallel()
				m := o.machine
				if m == nil {
					m = fakekernel.Short(t, two)
				}
				got := run(t, o.with, m, o.conf, o.steps)
				if got.workloads != o.want {
					t.Errorf("workloads %q, want %q (pools %s)", got.workloads, o.want, got.pools)
				}
				if o.pools != "" && got.pools != o.pools {
					t.Errorf("pools %q, want %q", got.pools, o.pools)
				}
				if o.classes != "" && got.classes != o.classes {
					t.Errorf("classes %q, want %q", got.classes, o.classes)
				}
				bare := run(t, o.without, m, o.conf, o.steps)
				if bare.workloads == got.workloads && (o.pools == "" || bare.pools == got.pools) && (o.classes == "" || bare.classes == got.classes) {
					t.Errorf("without the option the same: %q", bare.workloads)
				}
			})
		}
	}
}
