package limits

import (
	"time"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
)

// Limits is what limits cost: the same CPU time in many small and in few large limits, under
// half of the load that the CPUs can bear.
func Limits() *Experiment {
	return begin(Spec{
		Name: "limits",
		Configs: []Config{
			{Name: "none", Servers: 1, Means: "one server without a limit"},
			{Name: "none again", Servers: 1, Means: "the same once more, to see by how much the same thing differs"},
			{Name: "8 no limit", Servers: 8, Means: "eight servers without limits"},
			{Name: "1", Servers: 1, Limit: 1, Means: "one server, limited to all CPUs"},
			{Name: "2", Servers: 2, Limit: 0.5, Means: "two servers, limited to half of the CPUs each"},
			{Name: "4", Servers: 4, Limit: 0.25, Means: "four servers with a quarter each"},
			{Name: "8", Servers: 8, Limit: 0.125, Means: "eight servers with an eighth each"},
			{Name: "8 burst", Servers: 8, Limit: 0.125, Burst: 1, Means: "the same, and each may save up a period's limit (cpu.max.burst)"},
			{Name: "8 one thread", Servers: 8, Limit: 0.125, Threads: 1, Means: "eight servers that render one tile at a time"},
			{Name: "8 over", Servers: 8, Limit: 0.5, Means: "eight servers with half of the CPUs each: four times what there is"},
		},
		Loads:   []Load{{Share: 0.5, Tiles: small}},
		Compare: []Pair{{"8", "1"}, {"8", "2"}, {"8 burst", "8"}, {"8 one thread", "8"}, {"8 over", "8"}},
		Sample:  64, Blocks: 20, For: lab.Duration(10 * time.Minute), Settle: lab.Duration(200 * time.Millisecond), Window: lab.Duration(2 * time.Second),
	})
}

// Ramp is the same over clients: from one to four for each CPU, over small and large tiles.
func Ramp() *Experiment {
	s := Spec{
		Name: "limits-ramp",
		Configs: []Config{
			{Name: "none", Servers: 1, Means: "one server without a limit"},
			{Name: "1", Servers: 1, Limit: 1, Means: "one server, limited to all CPUs"},
			{Name: "2", Servers: 2, Limit: 0.5, Means: "two servers, limited to half of the CPUs each"},
			{Name: "4", Servers: 4, Limit: 0.25, Means: "four servers with a quarter each"},
			{Name: "8", Servers: 8, Limit: 0.125, Means: "eight servers with an eighth each"},
		},
		Sample: 16, Blocks: 3, For: lab.Duration(10 * time.Minute), Settle: lab.Duration(time.Second), Window: lab.Duration(3 * time.Second),
	}
	for _, tiles := range []string{small, large} {
		for _, clients := range []float64{0.5, 1, 2, 4} {
			s.Loads = append(s.Loads, Load{ClientsPerCPU: clients, Tiles: tiles})
		}
	}
	return begin(s)
}

// Noise is a server under little load beside another group that spins, with and without
// limits, for any length of time.
func Noise() *Experiment {
	return begin(Spec{
		Name: "limits-noise",
		Configs: []Config{
			{Name: "alone", Servers: 1, Means: "the server alone, without a limit"},
			{Name: "alone again", Servers: 1, Means: "the same once more, to see by how much the same thing differs"},
			{Name: "alone limited", Servers: 1, Limit: 0.5, Means: "the server alone, limited to half of the CPUs"},
			{Name: "noise", Servers: 1, Noise: true, Means: "beside noise, no limits"},
			{Name: "noise limited", Servers: 1, Noise: true, NoiseLimit: 0.5, Means: "beside noise that is limited to half of the CPUs"},
			{Name: "both limited", Servers: 1, Limit: 0.5, Noise: true, NoiseLimit: 0.5, Means: "half of the CPUs for each of both"},
			{Name: "server limited", Servers: 1, Limit: 0.5, Noise: true, Means: "the server is limited, and the noise is not"},
		},
		Loads:   []Load{{Share: 0.2, Tiles: small}},
		Compare: []Pair{{"noise limited", "noise"}, {"both limited", "noise limited"}},
		Sample:  64, Blocks: 20, For: lab.Duration(10 * time.Minute), Settle: lab.Duration(200 * time.Millisecond), Window: lab.Duration(3 * time.Second),
	})
}

// Routing is one request after the other to eight limited servers, by each policy. On up to
// eight CPUs, a server of one thread has no more than a CPU to use.
func Routing() *Experiment {
	s := Spec{
		Name:    "routing",
		Configs: []Config{{Name: "one server", Servers: 1, Means: "one server without a limit, which needs no routing"}},
		Loads:   []Load{{Share: 0.5, Tiles: small}},
		Sample:  64, Blocks: 20, For: lab.Duration(10 * time.Minute), Settle: lab.Duration(200 * time.Millisecond), Window: lab.Duration(2 * time.Second),
	}
	means := map[load.Routing]string{
		load.Random: "a server by chance", load.RoundRobin: "each server in turn", load.RoundRobins: "four routers that know nothing of each other, each server in turn",
		load.LeastOutstanding: "the server with the fewest requests under way", load.JoinIdle: "the server that is idle for longest; any if none is",
	}
	for _, r := range load.Routings() {
		s.Configs = append(s.Configs, Config{Name: string(r), Servers: 8, Limit: 0.125, Threads: 1, Routing: r, Means: means[r]})
		if r != load.Random {
			s.Compare = append(s.Compare, Pair{string(r), string(load.Random)})
		}
	}
	return begin(s)
}
