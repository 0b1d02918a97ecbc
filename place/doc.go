// Package place decides who gets which CPUs, memory nodes and devices.
//
// It is pure: no files, no clock, no log. A Topology is a machine indexed for
// deciding, a State says which CPUs are held and which are free, a Policy answers a
// Request with an Offer, and State.Commit turns the offer into the next State.
// The old State stays as it was, so a preview is a commit whose result is dropped.
//
// All policies choose in one way: drop the candidates that cannot hold the
// request, then compare short tuples of integers (Rank) in order; ties end in
// the lowest CPU number. View.Take walks stages of such choices, Choice
// makes a single one. A policy is its ranks and its rules.
//
// Exclusive CPUs are shared with nobody: Commit enforces this for every policy. No
// grant is ever an empty set.
package place
