package lab

import (
	"math"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/machine"
)

func TestChoosePlaces(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, short      string
		allowed, wanted  string
		demand           float64
		tenant           string
		neighbour        string
		generator, shape string
		noSplit          bool
	}{
		{name: "two CPUs", short: "2c", allowed: "0-1", demand: 0.6, tenant: "1", neighbour: "0"},
		{name: "one CPU", short: "1c", allowed: "0", demand: 0.2, noSplit: true},
		{name: "one core of two threads cannot be split", short: "1c2t", allowed: "0-1", demand: 0.6, noSplit: true},
		{name: "four cores spare one for the generator", short: "4c", allowed: "0-3", demand: 0.6, tenant: "1-2", neighbour: "0", generator: "3"},
		{name: "threads stay together", short: "8c2t", allowed: "0-15", demand: 0.25, tenant: "1-2,9-10", neighbour: "0,3,8,11", generator: "7,15"},
		{name: "different nodes", short: "2s16c", allowed: "0-31", demand: 0.3, tenant: "0-3", neighbour: "16-19", generator: "31"},
		{name: "different L3s of one node", short: "1s2l8c", allowed: "0-15", demand: 0.3, tenant: "0-3", neighbour: "8-11", generator: "15"},
		{name: "within what is allowed", short: "2s16c", allowed: "2-5", demand: 0.5, tenant: "3-4", neighbour: "2", generator: "5"},
		{name: "as wanted", short: "8c", allowed: "0-7", wanted: "2-5", demand: 0.3, tenant: "3-4", neighbour: "2,5", generator: "7"},
		{name: "all wanted leaves the generator none", short: "4c", allowed: "0-3", wanted: "0-3", demand: 0.3, tenant: "1-2", neighbour: "0,3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			m := fakekernel.Short(t, tc.short)
			got, err := choosePlaces(m, cpuset.MustParse(tc.allowed), cpuset.MustParse(tc.wanted), func(n int) float64 { return tc.demand * float64(n) })
			if err != nil {
				t.Fatal(err)
			}
			if tc.noSplit {
				if got.splitWhy == "" || !got.tenant.IsEmpty() || got.shared.String() != tc.allowed {
					t.Errorf("got %+v, want no split of %s", got, tc.allowed)
				}
				return
			}
			if got.tenant.String() != tc.tenant || got.neighbour.String() != tc.neighbour || got.generator.String() != tc.generator {
				t.Errorf("tenant %s, neighbour %s, generator %s; want %s, %s, %s",
					got.tenant, got.neighbour, got.generator, tc.tenant, tc.neighbour, tc.generator)
			}
			if got.shared != got.tenant.Union(got.neighbour) || got.tenant.Overlaps(got.neighbour) || got.generator.Overlaps(got.shared) {
				t.Errorf("shared %s, tenant %s, neighbour %s, generator %s overlap or do not add up", got.shared, got.tenant, got.neighbour, got.generator)
			}
		})
	}
}

// The tenant's own cores are the fewest that it fills to 60 % at most, and the neighbour keeps one,
// whatever the machine. 0.4 of the shared CPUs is what the tenant of isolation wants, 0.3 that of pinning.
func TestRoomOnCoresOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		short, wanted     string
		demand            float64
		tenant, neighbour string
		full              float64 // of the tenant's CPUs
	}{
		{short: "2c", demand: 0.4, tenant: "1", neighbour: "0", full: 0.8}, // no more without the neighbour's last core
		{short: "2c", demand: 0.3, tenant: "1", neighbour: "0", full: 0.6},
		{short: "4c", demand: 0.4, tenant: "1-2", neighbour: "0", full: 0.6},
		{short: "4c", demand: 0.3, tenant: "1-2", neighbour: "0", full: 0.45},
		{short: "4c", demand: 0.9, tenant: "1-2", neighbour: "0", full: 1.35},
		{short: "8c", demand: 0.4, tenant: "1-5", neighbour: "0,6", full: 0.56},
		{short: "8c", demand: 0.3, tenant: "1-4", neighbour: "0,5-6", full: 0.525},
		{short: "16c", demand: 0.4, tenant: "1-6", neighbour: "0,7", full: 3.2 / 6},
		{short: "16c", demand: 0.3, tenant: "1-4", neighbour: "0,5-7", full: 0.6},
		{short: "64c", demand: 0.4, tenant: "1-6", neighbour: "0,7", full: 3.2 / 6},
		{short: "64c", wanted: "0-63", demand: 0.4, tenant: "1-43", neighbour: "0,44-63", full: 25.6 / 43},
		{short: "64c", wanted: "0-63", demand: 0.3, tenant: "1-32", neighbour: "0,33-63", full: 0.6},
		{short: "64c", wanted: "0-63", demand: 0.6, tenant: "1-63", neighbour: "0", full: 38.4 / 63},
		{short: "4c2t", demand: 0.4, tenant: "1-2,5-6", neighbour: "0,4", full: 0.6},
		{short: "8c2t", demand: 0.4, tenant: "1-3,9-11", neighbour: "0,8", full: 3.2 / 6},
	} {
		m := fakekernel.Short(t, tc.short)
		need := func(n int) float64 { return tc.demand * float64(n) }
		got, err := choosePlaces(m, m.Online, cpuset.MustParse(tc.wanted), need)
		if err != nil {
			t.Fatal(err)
		}
		if got.tenant.String() != tc.tenant || got.neighbour.String() != tc.neighbour {
			t.Errorf("%s %s at %g: tenant %s, neighbour %s; want %s, %s", tc.short, tc.wanted, tc.demand, got.tenant, got.neighbour, tc.tenant, tc.neighbour)
		}
		if full := need(got.shared.Len()) / float64(got.tenant.Len()); math.Abs(full-tc.full) > 1e-9 {
			t.Errorf("%s %s at %g: %.3f of the tenant's CPUs, want %.3f", tc.short, tc.wanted, tc.demand, full, tc.full)
		}
	}
}

func TestChoosePlacesRefuses(t *testing.T) {
	t.Parallel()
	m := fakekernel.Short(t, "4c")
	for _, tc := range []struct{ name, allowed, wanted string }{
		{"no CPU", "", ""},
		{"a CPU that is not allowed", "0-1", "1-2"},
	} {
		if got, err := choosePlaces(m, cpuset.MustParse(tc.allowed), cpuset.MustParse(tc.wanted), func(n int) float64 { return 0.6 * float64(n) }); err == nil {
			t.Errorf("%s: got %+v, want an error", tc.name, got)
		}
	}
}

func TestMemsOnlyWhereThereAreSeveralNodes(t *testing.T) {
	t.Parallel()
	m := fakekernel.Short(t, "2s4c")
	if got := mems(m, cpuset.MustParse("0-3")); !got.IsEmpty() {
		t.Errorf("nodes of unknown memory: got %s, want none", got)
	}
	for i := range m.Domains {
		if m.Domains[i].Kind == machine.Node {
			m.Domains[i].Bytes = 1 << 30
		}
	}
	if got := mems(m, cpuset.MustParse("4-5")); got.String() != "1" {
		t.Errorf("mems of CPUs 4-5: got %q, want node 1", got)
	}
}
