package lab

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// playedCounter counts so much more with each reading.
type playedCounter struct{ readings int }

func (c *playedCounter) Close() error { return nil }
func (c *playedCounter) Read(_ watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	c.readings++
	for quantity, each := range map[watch.Quantity]float64{watch.Cycles: 1000, watch.Instructions: 1500, watch.LLCReferences: 40, watch.LLCMisses: 3} {
		to = append(to, watch.Sample{Quantity: quantity, Value: each * float64(c.readings)})
	}
	return to, nil
}

// What counters tell between the ends of a window is the role's, by value.
func TestCounted(t *testing.T) {
	t.Parallel()
	b := &Testbed{counters: map[Role]counter{Tenant: &playedCounter{readings: 7}}}
	var before, after, other Usage
	for role, u := range map[Role]*Usage{Neighbour: &other} {
		if err := b.counted(role, u); err != nil || *u != (Usage{}) {
			t.Errorf("%s: %+v, %v", role, u, err)
		}
	}
	if err := errors.Join(b.counted(Tenant, &before), b.counted(Tenant, &after)); err != nil {
		t.Fatal(err)
	}
	u := after.minus(before)
	if diff := cmp.Diff(Usage{Cycles: 1000, Instructions: 1500, References: 40, Misses: 3}, u); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(Usage{Cycles: 2000, Instructions: 3000, References: 80, Misses: 6}, u.plus(u)); diff != "" {
		t.Errorf("of two (-want +got):\n%s", diff)
	}
	r := fakeResult(t, map[string]fake{Baseline: {scale: 1}, BaselineAgain: {scale: 1}})
	for i := range r.Rounds {
		r.Rounds[i].Tenant.Cycles, r.Rounds[i].Tenant.Instructions, r.Rounds[i].Tenant.References, r.Rounds[i].Tenant.Misses = 1000, 1500, 40, 3
	}
	m, err := Measure(r)
	if err != nil {
		t.Fatal(err)
	}
	samples, _ := m.Samples()
	if got := samples[0].Figures; got[IPC.Name] != 1.5 || got[CacheMisses.Name] != 2 {
		t.Errorf("%v, want 1.5 instructions per cycle and 2 misses per 1000 of them", got)
	}
}

// Without a group in a v2 tree nothing is counted, and the reason is said.
func TestCountWithoutV2(t *testing.T) {
	t.Parallel()
	layout := fakekernel.V1()
	layout.CPUs = "0-1"
	g, _ := playedGroups(t, layout, places{shared: cpuset.MustParse("0-1")}, Options{})
	b := &Testbed{backend: g, counters: map[Role]counter{}}
	if err := b.Count(Tenant); !errors.Is(err, kernel.ErrNotSupported) || len(b.counters) != 0 {
		t.Errorf("%v; %d counters", err, len(b.counters))
	}
	b.backend = openAttributes(places{})
	if err := b.Count(Tenant); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("without groups: %v", err)
	}
}
