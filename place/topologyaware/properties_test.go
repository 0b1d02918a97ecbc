package topologyaware_test

import (
	"testing"

	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/place"
	"berth.dev/berth/place/topologyaware"
)

func policies() map[string]topologyaware.Policy {
	all := map[string]topologyaware.Policy{"default": topologyaware.Default(), "zero": {}}
	p := topologyaware.Default()
	p.PreferSharedCPUs, p.ColocatePods, p.ReservedPoolNamespaces, p.UnlimitedBurstable = true, true, []string{"ns1"}, topologyaware.NUMA
	all["sharing"] = p
	p = topologyaware.Default()
	p.PinMemory, p.PreferIsolatedCPUs, p.ColocateNamespaces, p.UnlimitedBurstable = false, false, true, topologyaware.System
	all["loose"] = p
	return all
}

func TestProperties(t *testing.T) {
	t.Parallel()
	for name, p := range policies() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			suite := placetest.Suite{Policy: p, Rank: rank(p)}
			if name == "default" {
				suite.Own = own
			}
			placetest.Check(t, suite)
		})
	}
}

// rank returns the rank of the pool that was chosen; nil where there was no choice.
func rank(p place.Policy) func(s *place.State, g *place.Grant) []int {
	return func(s *place.State, g *place.Grant) []int {
		r := g.Request
		r.Explain = true
		o, err := p.Place(s, &r)
		if err != nil {
			return nil
		}
		for _, d := range o.Grant.Why.Decisions {
			if d.Name == "pool" && d.Chosen >= 0 {
				return d.Candidates[d.Chosen].Rank
			}
		}
		return nil
	}
}

// own is what the table of classes promises with the default settings, -1 where
// the reserved CPUs decide.
func own(r *place.Request) int {
	whole, fraction := r.Milli/1000, r.Milli%1000
	switch {
	case r.Class == place.System:
		return -1
	case r.Mode == place.Exclusive:
		return r.Whole()
	case r.Mode == place.Mixed:
		return whole
	case r.Mode == place.Shared, r.Class != place.LSE && r.Class != place.LSR, whole >= 2 && fraction > 0:
		return 0
	}
	return whole
}

func BenchmarkPlace(b *testing.B) { placetest.Benchmark(b, topologyaware.Default(), nil) }

func BenchmarkRestart(b *testing.B) { placetest.BenchmarkRestart(b, topologyaware.Default()) }
