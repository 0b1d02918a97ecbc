package place_test

import (
	"sync"
	"testing"

	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/place"
)

func TestDerived(t *testing.T) {
	t.Parallel()
	type cpus int
	type nodes int
	top, other := placetest.Topology(t, "1s4c"), placetest.Topology(t, "1s8c")
	count := func(t *place.Topology) cpus { return cpus(t.Online().Len()) }
	var wg sync.WaitGroup
	got := make([]*cpus, 8)
	for i := range got {
		wg.Go(func() { got[i] = place.Derived(top, count) })
	}
	wg.Wait()
	for _, p := range got {
		if p != got[0] || *p != 4 {
			t.Errorf("%p to %d, want the same %p to 4", p, *p, got[0])
		}
	}
	if again := place.Derived(top, func(*place.Topology) cpus { return 9 }); again != got[0] {
		t.Errorf("derived again: %d", *again)
	}
	if p := place.Derived(other, count); *p != 8 {
		t.Errorf("of another machine: %d, want 8", *p)
	}
	if p := place.Derived(top, func(*place.Topology) nodes { return 1 }); *p != 1 {
		t.Errorf("of another type: %d, want 1", *p)
	}
}
