package balloons_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/balloons"
)

// none is that no member owns CPUs.
func none(*place.Request) int { return 0 }

// request leaves out what no balloon can do.
func request(rng *rand.Rand, m *machine.Machine, id string) place.Request {
	r := placetest.Request(rng, m, id)
	if rng.IntN(4) > 0 {
		r.Mode, r.BindRequired = place.Auto, false
	}
	return r
}

func TestProperties(t *testing.T) {
	t.Parallel()
	app := func(i int) []balloons.Expression {
		return []balloons.Expression{{Key: "labels/app", Operator: balloons.Equals, Values: []string{fmt.Sprintf("a%d", i)}}}
	}
	for name, p := range map[string]balloons.Policy{
		"zero value": {},
		"packed": {Types: []balloons.Type{
			{Name: "a", Match: app(0), MaxCPUs: 4, HideHyperthreads: true},
			{Name: "b", Match: app(1), PreferNew: true, MinCPUs: 2, ShareIdle: balloons.NUMALevel, Slots: 2, ElseDefault: true},
			{Name: "c", Match: app(2), PerNamespace: true, PreferIsolated: true, ElseDefault: true, PreferCoreKind: machine.KindP},
		}},
		"spread": {Branches: balloons.Spread, Cores: balloons.Spread, Types: []balloons.Type{
			{Name: "a", Match: app(0), GroupBy: "${namespace}", Fill: balloons.Fullest, MaxCPUs: 6},
			{Name: "b", Match: app(1), SpreadPods: true, Fill: balloons.FirstFree, MaxBalloons: 2, ShareIdle: balloons.SystemLevel},
			{Name: "c", Match: app(2), PreferNear: []string{"gpu0", "gpu1"}},
			{Name: "default"},
		}},
		"composite": {Types: []balloons.Type{
			{Name: "left", MaxCPUs: 3}, {Name: "right", Cores: balloons.Spread, MaxBalloons: 3},
			{Name: "a", Match: app(0), Components: []string{"left", "right"}},
			{Name: "b", Match: app(1), Components: []string{"left", "right"}, BalanceComponents: true, PreferNew: true},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			placetest.Check(t, placetest.Suite{Policy: p, Request: request, Own: none})
		})
	}
}

func BenchmarkPlace(b *testing.B) { placetest.Benchmark(b, byClass(balloons.AsPolicy, 0), nil) }

// BenchmarkSettings is BenchmarkPlace with other settings.
func BenchmarkSettings(b *testing.B) {
	for name, p := range map[string]balloons.Policy{
		"zero": {}, "spread": byClass(balloons.Spread, 0), "slots": byClass(balloons.AsPolicy, 4),
	} {
		b.Run(name, func(b *testing.B) { placetest.Benchmark(b, p, nil) })
	}
}

func byClass(order balloons.Order, slots int) balloons.Policy {
	class := func(names ...string) []balloons.Expression {
		return []balloons.Expression{{Key: "class", Operator: balloons.In, Values: names}}
	}
	return balloons.Policy{Branches: order, Cores: order, Types: []balloons.Type{
		{Name: "own", Match: class("LSE", "LSR"), PreferNew: true, Slots: slots},
		{Name: "shared", Match: class("LS"), MaxCPUs: 8, Slots: slots},
	}}
}

func BenchmarkRestart(b *testing.B) { placetest.BenchmarkRestart(b, balloons.Policy{}) }
