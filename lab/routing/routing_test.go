package routing

import (
	"math"
	"testing"
	"time"

	"berth.dev/berth/lab/load"
)

const ms = time.Millisecond

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if math.Abs(got-want) > within*math.Abs(want) {
		t.Errorf("%s: %.4g, want %.4g within %.0f %%", what, got, want, 100*within)
	}
}

// exponential is costs whose distribution is about exponential, with a mean of 10 ms.
func exponential() (costs []time.Duration) {
	for i := range 1000 {
		costs = append(costs, time.Duration(-math.Log((float64(i)+0.5)/1000)*float64(10*ms)))
	}
	return costs
}

// With exponential costs the response of a queue is exponential, too: its p99 is ln 100 times
// the mean, which is the cost over what is left of the server (M/M/1).
func TestMG1(t *testing.T) {
	t.Parallel()
	for _, share := range []float64{0.3, 0.6, 0.8} {
		want := math.Log(100) * 0.010 / (1 - share)
		near(t, "M/M/1 p99", MG1(exponential(), share, 99, 1).Seconds(), want, 0.04)
	}
	// Of constant costs the mean wait is half of that: Pollaczek and Khinchine.
	if light := MG1([]time.Duration{10 * ms}, 0.001, 50, 1); light != 10*ms {
		t.Errorf("an empty queue: median %v, want 10ms", light)
	}
}

// The simulation comes to what the formula says, where there is one: random routing over
// servers with a CPU each.
func TestSimulateAgainstFormula(t *testing.T) {
	t.Parallel()
	costs := exponential()
	for _, share := range []float64{0.3, 0.6} {
		got := Simulate(Model{Servers: 4, Threads: 1, CPUs: 4, Rate: 400 * share, Costs: costs, Requests: 60_000, Seed: 5})
		near(t, "p99", Percentile(got.Responses, 99).Seconds(), MG1(costs, share, 99, 1).Seconds(), 0.1)
		near(t, "same", got.Same, 0.25, 0.05)
	}
}

func TestSameShare(t *testing.T) {
	t.Parallel()
	for _, r := range load.Routings() {
		got := Simulate(Model{Servers: 4, Threads: 1, CPUs: 4, Routing: r, Rate: 200, Costs: exponential(), Requests: 20_000, Seed: 5})
		want, ok := SameShare(r, 4)
		if looks := r == load.LeastOutstanding || r == load.JoinIdle; looks == ok {
			t.Errorf("%s: a formula: %v", r, ok)
		}
		if ok && math.Abs(got.Same-want) > 0.02 {
			t.Errorf("%s: %.3f go to the server of the one before, want %.3f", r, got.Same, want)
		}
	}
	if one, ok := SameShare(load.RoundRobin, 1); one != 1 || !ok {
		t.Errorf("one server: %g, %v", one, ok)
	}
}

// Those who look at the servers are better than a turn for each, and that is better than
// chance.
func TestOrderOfPolicies(t *testing.T) {
	t.Parallel()
	p99 := map[load.Routing]float64{}
	for _, r := range load.Routings() {
		p99[r] = Percentile(Simulate(Model{Servers: 4, Threads: 1, CPUs: 4, Routing: r, Rate: 280, Costs: exponential(), Requests: 40_000, Seed: 2}).Responses, 99).Seconds()
	}
	order := []load.Routing{load.LeastOutstanding, load.RoundRobin, load.Random}
	for i := 1; i < len(order); i++ {
		if p99[order[i-1]] >= p99[order[i]] {
			t.Errorf("p99 of %s is %.3f s, of %s %.3f s: want less", order[i-1], p99[order[i-1]], order[i], p99[order[i]])
		}
	}
	if p99[load.JoinIdle] >= p99[load.RoundRobin] || p99[load.RoundRobins] >= p99[load.Random] {
		t.Errorf("p99 of join idle %.3f s, of several round robins %.3f s: %v", p99[load.JoinIdle], p99[load.RoundRobins], p99)
	}
}

// A quota of 25 ms in 100 ms: 20 ms of work are done at once, 40 ms wait for the next period.
func TestQuota(t *testing.T) {
	t.Parallel()
	rare := Model{Servers: 1, Threads: 1, CPUs: 2, Quota: 25 * ms, Period: 100 * ms, Rate: 0.5, Requests: 300, Seed: 3}
	rare.Costs = []time.Duration{20 * ms}
	got := Simulate(rare)
	if p := Percentile(got.Responses, 50); p < 20*ms || p > 21*ms {
		t.Errorf("20 ms of work take %v", p)
	}
	rare.Costs = []time.Duration{40 * ms}
	got = Simulate(rare)
	if p := Percentile(got.Responses, 50); p < 60*ms || p > 116*ms || got.Throttled < 0.4 {
		t.Errorf("40 ms of work take %v, %.2f of the periods were throttled", p, got.Throttled)
	}
	rare.Burst = 25 * ms
	got = Simulate(rare)
	if p := Percentile(got.Responses, 50); p < 40*ms || p > 41*ms || got.Throttled > 0.15 {
		t.Errorf("with a burst, 40 ms of work take %v, %.2f of the periods were throttled", p, got.Throttled)
	}
	// Two threads use a quota up in half of the time, and then both stand still.
	two := Model{Servers: 1, Threads: 2, CPUs: 2, Quota: 50 * ms, Period: 100 * ms, Rate: 7, Requests: 4000, Seed: 3, Costs: []time.Duration{45 * ms}}
	one := two
	one.Threads = 1
	if a, b := Simulate(two).Throttled, Simulate(one).Throttled; a <= b {
		t.Errorf("%.2f of the periods throttled with two threads, %.2f with one", a, b)
	}
}

// Many small limits are worse than few large ones, which add up to the same; no limit is as
// good as one limit of all CPUs.
func TestSplits(t *testing.T) {
	t.Parallel()
	const cpus = 8
	p99 := map[int]float64{}
	for _, servers := range []int{0, 1, 2, 4, 8} { // 0: no limit
		m := Model{Servers: max(1, servers), Threads: cpus, CPUs: cpus, Rate: 43, Requests: 15_000, Seed: 9}
		m.Costs = []time.Duration{3 * ms, 3 * ms, 3 * ms, 3 * ms, 450 * ms} // half of the CPUs' time
		if servers > 0 {
			m.Period, m.Quota = 100*ms, 100*ms*time.Duration(cpus/servers)
		}
		p99[servers] = Percentile(Simulate(m).Responses, 99).Seconds()
	}
	near(t, "one limit of all CPUs against none", p99[1], p99[0], 0.02)
	if !(p99[1] <= p99[2] && p99[2] < p99[4] && p99[4] < p99[8]) || p99[8] < 3*p99[0] {
		t.Errorf("p99 by servers: %v; want more with more servers, and 3 times at least with 8", p99)
	}
}
