package stats

import (
	"math/rand/v2"
	"slices"
)

// Order returns the scenarios in the random order of one block. Every order is
// equally likely; the same block and seed give the same one. scenarios is left
// as it is.
func Order(scenarios []string, block int, seed uint64) []string {
	out := slices.Clone(scenarios)
	r := rand.New(rand.NewPCG(seed, uint64(block)))
	r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}
