// Package lab proves what an isolation strategy is worth on this machine: it
// runs a tenant beside a neighbour under each strategy, in randomised blocks,
// and judges the difference.
//
// An Experiment is data, a Result is everything that was measured, Analyse
// turns the one into statistics and words. lab/load generates the load,
// lab/tenant and lab/noise are the two parties, lab/stats judges, lab/report
// draws.
package lab
