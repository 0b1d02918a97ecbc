// Package lab measures on this machine, by experiments: cells of processes in roles,
// settings and hooks, run in randomised blocks of rounds.
//
// Run runs any Experiment and can resume it; a Testbed is this machine made ready for
// one. Isolate is the experiment that this package brings: a tenant beside a neighbour
// under each isolation strategy. Its Spec is data, its Result is everything that was
// measured, and Analyse turns that into statistics and words.
//
// lab/load generates the load and is the tenant, lab/noise is the neighbour,
// lab/stats judges, lab/report draws.
package lab
