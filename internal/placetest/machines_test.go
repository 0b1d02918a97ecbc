package placetest_test

import (
	"math/rand/v2"
	"testing"

	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/place"
)

func TestMachinesAreValid(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		m := placetest.Machine(rand.New(rand.NewPCG(seed, 1)), 64)
		if _, err := place.NewTopology(m); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}
