// Package place decides who gets which CPUs, memory nodes and devices.
//
// It is pure: no files, no clock, no log. A Topology is a machine indexed for
// deciding, a State is what is held and what is free, a Policy answers a
// Request with an Offer, and State.Commit turns the offer into the next State.
// The old State stays as it was, so that a preview costs nothing but the
// commit that is not kept.
//
// All policies choose in one way: drop the candidates that cannot hold the
// request, then compare short tuples of integers (Rank) in order; ties end in
// the lowest CPU number. Topology.Take walks stages of such choices, Choice
// makes a single one. A policy is its ranks and its rules.
//
// What is exclusive is shared with nobody: Commit enforces it, whatever the
// policy thought, and no grant is ever an empty set.
package place
