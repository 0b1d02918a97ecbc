package balloons_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/place"
	"berth.dev/berth/place/balloons"
)

// static is a configuration of static-pools on two sockets of two cores of two
// threads (0-1 and 4-5, 2-3 and 6-7): exclusive cores, a shared pool of two lists,
// one list for the infrastructure.
func static() balloons.Policy {
	return balloons.Policy{Types: []balloons.Type{
		staticPool("exclusive", true, lists("1,5", "2,6")...),
		staticPool("shared", false, lists("3", "7")...),
		staticPool("infra", false, lists("4")...),
	}}
}

// staticPool returns a pool of static-pools as a balloon type: fixed lists of
// CPUs. Every list is used before one is used twice. A list of an exclusive pool
// has one workload; a shared pool does not count CPU time.
func staticPool(name string, exclusive bool, lists ...cpuset.Set) balloons.Type {
	ty := balloons.Type{Name: name, Lists: lists, Overcommit: true, SpreadPods: true, PreferNew: true}
	if exclusive {
		ty.Slots = 1
	}
	return ty
}

func hint(key, value string) func(r *place.Request) {
	return func(r *place.Request) { r.Hints[key] = value }
}

func TestStaticPools(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		steps []step
		want  string
	}{
		{"exclusive lists in order, then none", some(3, "a", "exclusive", 100), "a0=1,5 a1=2,6 a2=refused"},
		{"several lists", []step{add("a", "exclusive", 0).with(hint(balloons.HintLists, "2"))}, "a=1-2,5-6"},
		{"too many lists", []step{add("a", "exclusive", 0).with(hint(balloons.HintLists, "3"))}, "a=refused"},
		{"a list given back", append(some(2, "a", "exclusive", 0), drop("a0"), add("b", "exclusive", 0)), "a1=2,6 b=1,5"},
		{"socket", []step{add("a", "exclusive", 0).with(hint(balloons.HintSocket, "1"))}, "a=2,6"},
		{"no such socket", []step{add("a", "exclusive", 0).with(hint(balloons.HintSocket, "2"))}, "a=refused"},
		{"socket of a shared list", []step{add("a", "shared", 0).with(hint(balloons.HintSocket, "1")), add("b", "shared", 0).with(hint(balloons.HintSocket, "0"))}, "a=3 b=refused"},
		{"a pod has a list for each container", []step{add("a", "exclusive", 0).with(group("pod")), add("b", "exclusive", 0).with(group("pod"))}, "a=1,5 b=2,6"},
		{"shared lists, the emptiest first, without limit", some(5, "a", "shared", 5000), "a0=3 a1=7 a2=3 a3=7 a4=3"},
		{"infra", some(2, "a", "infra", 0), "a0=4 a1=4"},
		{"nobody else takes a list", some(2, "a", "default", 1000), "a0=refused a1=refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := run(t, static(), fakekernel.Short(t, "2s2c2t"), place.Config{}, tt.steps); got.workloads != tt.want {
				t.Errorf("%q, want %q (%s)", got.workloads, tt.want, got.pools)
			}
		})
	}
}

// TestStaticPoolsRestart is where the original failed with two lists or more.
func TestStaticPoolsRestart(t *testing.T) {
	t.Parallel()
	m := fakekernel.Short(t, "2s2c2t")
	s := run(t, static(), m, place.Config{}, []step{add("a", "exclusive", 0).with(hint(balloons.HintLists, "2")), add("b", "shared", 0)}).state
	fresh, err := place.New(topology(t, m), place.Config{})
	if err != nil {
		t.Fatal(err)
	}
	again, err := fresh.Reinstate(s.Save())
	if err != nil || s.Difference(again) != "" {
		t.Errorf("%v %s", err, s.Difference(again))
	}
}

// podpool returns a pool of podpools as a balloon type: two instances of two
// CPUs, each for at most three groups, which take their slots whole. A group
// without slot goes to the type default. CPU time is not counted.
func podpool(fill balloons.Fill) balloons.Policy {
	return balloons.Policy{Types: []balloons.Type{{
		Name: "dual", MinCPUs: 2, MaxCPUs: 2, MinBalloons: 2, MaxBalloons: 2,
		Slots: 3, Overcommit: true, Fill: fill, ElseDefault: true,
	}}}
}

func TestPodPools(t *testing.T) {
	t.Parallel()
	pods := func(names ...string) (steps []step) {
		for i, pod := range names {
			steps = append(steps, add(string(rune('a'+i)), "dual", 600).with(group(pod)))
		}
		return steps
	}
	for _, tt := range []struct {
		name  string
		fill  balloons.Fill
		steps []step
		want  string
	}{
		{"balanced", balloons.Emptiest, pods("p", "q", "r"), "a=1,17 b=2,18 c=1,17"},
		{"packed", balloons.Fullest, pods("p", "q", "r"), "a=1,17 b=1,17 c=1,17"},
		{"packed, a slot given back", balloons.Fullest, append(pods("p", "q", "r", "s"), drop("a"), drop("b"), add("z", "dual", 0)), "c=1,17 d=2,18 z=1,17"},
		{"first free", balloons.FirstFree, append(pods("p", "q", "r", "s", "t"), drop("a"), add("z", "dual", 0)), "b=1,17 c=1,17 d=2,18 e=2,18 z=1,17"},
		{"pods stay whole and take one slot", balloons.Emptiest, pods("p", "p", "p", "p", "q"), "a=1,17 b=1,17 c=1,17 d=1,17 e=2,18"},
		{"no slot: the default pool", balloons.Fullest, pods("p", "q", "r", "s", "t", "u", "v"), "a=1,17 b=1,17 c=1,17 d=2,18 e=2,18 f=2,18 g=16"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := run(t, podpool(tt.fill), fakekernel.Short(t, two), place.Config{}, tt.steps)
			if got.workloads != tt.want {
				t.Errorf("%q, want %q (%s)", got.workloads, tt.want, got.pools)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	x := func(ty balloons.Type) balloons.Policy {
		return balloons.Policy{Types: []balloons.Type{ty, {Name: "p"}}}
	}
	match := func(e balloons.Expression) balloons.Policy {
		return x(balloons.Type{Name: "x", Match: []balloons.Expression{e}})
	}
	for _, tt := range []struct {
		p   balloons.Policy
		bad string // part of the error, or ""
	}{
		{balloons.Policy{}, ""},
		{static(), ""},
		{podpool(balloons.Fullest), ""},
		{x(balloons.Type{Name: "x", MinCPUs: 2, MaxCPUs: 2, MinBalloons: 1, MaxBalloons: 1, GroupBy: "a${labels/x}${id}"}), ""},
		{x(balloons.Type{Name: "x", GroupBy: "${pod/labels/x}${pod/namespace}"}), ""},
		{x(balloons.Type{Name: "x", GroupBy: "${pod/id}"}), "unknown key pod/id"},
		{x(balloons.Type{Name: "x", Components: []string{"p", "p"}}), ""},
		{match(balloons.Expression{Key: "labels/a", Operator: balloons.Matches, Values: []string{"a*"}}), ""},
		{x(balloons.Type{}), "a name"},
		{x(balloons.Type{Name: "a b"}), "a name"},
		{x(balloons.Type{Name: "a/b"}), "a name"},
		{x(balloons.Type{Name: "p"}), "listed twice"},
		{x(balloons.Type{Name: "x", MinCPUs: -1}), "negative"},
		{x(balloons.Type{Name: "x", MinCPUs: 3, MaxCPUs: 2}), "minCPUs above"},
		{x(balloons.Type{Name: "x", MinBalloons: 3, MaxBalloons: 2}), "minBalloons above"},
		{x(balloons.Type{Name: "x", Fill: 7}), "unknown"},
		{x(balloons.Type{Name: "x", Cores: -1}), "unknown"},
		{x(balloons.Type{Name: "x", ShareIdle: 99}), "unknown"},
		{balloons.Policy{Branches: 5}, "unknown order"},
		{x(balloons.Type{Name: "x", BalanceComponents: true}), "no components"},
		{x(balloons.Type{Name: "x", Lists: lists("1"), MinCPUs: 1}), "lists make"},
		{x(balloons.Type{Name: "x", GroupBy: "${labels/a"}), "without }"},
		{x(balloons.Type{Name: "x", GroupBy: "${colour}"}), "unknown key colour"},
		{x(balloons.Type{Name: "x", Namespaces: []string{"["}}), "malformed glob"},
		{balloons.Policy{ReservedNamespaces: []string{"["}}, "malformed glob"},
		{match(balloons.Expression{Key: "colour", Operator: balloons.Exists}), "unknown key"},
		{match(balloons.Expression{Key: "labels/", Operator: balloons.Exists}), "unknown key"},
		{match(balloons.Expression{Key: "id", Operator: "Like"}), "unknown operator"},
		{match(balloons.Expression{Key: "id", Operator: balloons.Equals}), "wants one value"},
		{match(balloons.Expression{Key: "id", Operator: balloons.In}), "wants values"},
		{match(balloons.Expression{Key: "id", Operator: balloons.Exists, Values: []string{"a"}}), "wants no value"},
		{match(balloons.Expression{Key: "id", Operator: balloons.MatchesAny, Values: []string{"["}}), "malformed glob"},
		{x(balloons.Type{Name: "x", Components: []string{"z"}}), "no component z"},
		{x(balloons.Type{Name: "x", Components: []string{"x"}}), "has components itself"},
		{x(balloons.Type{Name: "x", Components: []string{"p"}, MaxCPUs: 2}), "those of its components"},
		{x(balloons.Type{Name: "x", Components: []string{"p"}, CPUClass: "c"}), "those of its components"},
		{balloons.Policy{Types: []balloons.Type{{Name: "x", Components: []string{"l"}}, {Name: "l", Lists: lists("1")}}}, "has lists"},
	} {
		err := tt.p.Validate()
		if tt.bad == "" && err != nil || tt.bad != "" && (!errors.As(err, new(*place.InvalidError)) || !strings.Contains(err.Error(), tt.bad)) {
			t.Errorf("%+v: %v, want %q", tt.p, err, tt.bad)
		}
	}
}

// TestStartRefuses has policies that do not suit the machine.
func TestStartRefuses(t *testing.T) {
	t.Parallel()
	for name, ty := range map[string]balloons.Type{
		"list of the floor":    {Name: "x", Lists: lists("0")},
		"list that is offline": {Name: "x", Lists: lists("99")},
		"lists that overlap":   {Name: "x", Lists: lists("1-2", "2-3")},
		"empty list":           {Name: "x", Lists: lists("")},
		"too many balloons":    {Name: "x", MinBalloons: 4, MinCPUs: 8},
		"malformed":            {},
	} {
		p := balloons.Policy{Types: []balloons.Type{ty}}
		if _, err := place.Start(p, topology(t, fakekernel.Short(t, two)), place.Config{}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	want := balloons.Policy{
		Branches: balloons.Spread, Cores: balloons.Pack,
		Types: []balloons.Type{{Name: "x", Fill: balloons.FirstFree, ShareIdle: balloons.L2Level, Lists: lists("1-2"), Match: []balloons.Expression{{Key: "id", Operator: balloons.Exists}}}},
	}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got balloons.Policy
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, text := range []string{`{"branches":"left"}`, `{"balloonTypes":[{"shareIdleCPUsInSame":"thread"}]}`, `{"balloonTypes":[{"fill":"random"}]}`} {
		if err := json.Unmarshal([]byte(text), &got); err == nil {
			t.Errorf("%s: accepted", text)
		}
	}
}
