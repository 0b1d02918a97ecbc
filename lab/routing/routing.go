// Package routing says what theory has to say about requests that are spread over several
// servers with limits on their CPU time: formulas where there are some, and a simulation.
// It measures nothing: lab/limits does.
package routing

import (
	"math/rand/v2"
	"slices"
	"time"

	"berth.dev/berth/lab/load"
)

// SameShare is the share (0-1) of requests that go to the server of the one before. With
// random routing it is 1 in the number of servers. Requests that come from different ones
// of several round robins are as good as random, and those from the same one never meet.
// ok is false for policies that look at the servers: there it depends on the load.
func SameShare(r load.Routing, servers int) (share float64, ok bool) {
	random := 1 / float64(servers)
	switch {
	case servers == 1:
		return 1, true
	case r == load.Random || r == "":
		return random, true
	case r == load.RoundRobin:
		return 0, true
	case r == load.RoundRobins:
		return random * (1 - 1.0/load.Uncoordinated), true
	}
	return 0, false
}

// draws is how many responses MG1 draws: its p99 is then right to a hundredth.
const draws = 200_000

// MG1 is a percentile (0-100) of the response times of a queue with one server and Poisson
// arrivals, in which requests take one of the costs each, by chance, at a share (0-1) of
// what the server can do. Random routing makes each server such a queue. The time that a
// request waits is the sum of a number of residual costs, and that number is geometric
// (Pollaczek 1930 and Khinchine 1932, in the form of Beneš 1957); it is drawn here.
func MG1(costs []time.Duration, share, p float64, seed uint64) time.Duration {
	random := rand.New(rand.NewPCG(seed, 1))
	sums := make([]time.Duration, len(costs))
	total := time.Duration(0)
	for i, c := range costs {
		total += c
		sums[i] = total
	}
	responses := make([]time.Duration, draws)
	for i := range responses {
		r := costs[random.IntN(len(costs))]
		for random.Float64() < share {
			// The residual of a request that is met on arrival: a long one is met more often.
			at, _ := slices.BinarySearch(sums, time.Duration(random.Int64N(int64(total)))+1)
			r += time.Duration(random.Float64() * float64(costs[at]))
		}
		responses[i] = r
	}
	return Percentile(responses, p)
}

// Percentile is that of response times, which it sorts.
func Percentile(responses []time.Duration, p float64) time.Duration {
	if len(responses) == 0 {
		return 0
	}
	slices.Sort(responses)
	at := int(p / 100 * float64(len(responses)))
	return responses[min(at, len(responses)-1)]
}
