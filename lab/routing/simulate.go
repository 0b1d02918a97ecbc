package routing

import (
	"math"
	"math/rand/v2"
	"time"

	"berth.dev/berth/lab/load"
)

// Model is servers on a host, and what they are asked for.
type Model struct {
	Servers int
	Threads int // of each server: so many requests are worked on at once, the others wait in turn
	CPUs    int // of the host, which all servers share
	// Quota is what each server may use of its CPU time in each Period; 0 is no limit. Burst
	// is what it may save up of it.
	Quota, Period, Burst time.Duration
	Routing              load.Routing
	// Rate is that of Poisson arrivals, in requests per second; each takes one of Costs, by
	// chance.
	Rate     float64
	Costs    []time.Duration
	Requests int
	Seed     uint64
}

// Outcome is what became of the requests.
type Outcome struct {
	Responses []time.Duration // in the order of arrival
	Same      float64         // share (0-1) that went to the server of the one before
	// Throttled is the share of the periods in which a server was active, and its quota ran
	// out.
	Throttled float64
}

// step is the resolution of the simulation.
const step = 100 * time.Microsecond

// job is a request at a server.
type job struct {
	number int
	left   time.Duration
}

// host is the simulated servers.
type host struct {
	Model
	servers     []simulated
	outstanding []int
	idle        func(server int)
	arrived     []time.Duration
	outcome     Outcome
	running     int
	periods     int
	throttled   int
}

type simulated struct {
	jobs   []job // the first Threads are worked on
	budget time.Duration
	next   time.Duration // when the budget is filled up again
	active bool          // in this period
	out    bool          // of budget, in this period
}

// Simulate plays a model in steps of 0.1 ms. CPUs are shared evenly by all requests that are
// worked on; a server whose quota is used up stands still until its period ends. The periods
// of the servers begin at different instants. The kernel hands quota out in slices of 5 ms
// per CPU (cfs_bandwidth), which is left out: so it is within a slice of the truth.
func Simulate(m Model) Outcome {
	random := rand.New(rand.NewPCG(m.Seed, 2))
	pick, idle := m.Routing.Pick(m.Servers, m.Seed)
	h := &host{Model: m, servers: make([]simulated, m.Servers), outstanding: make([]int, m.Servers), idle: idle}
	h.outcome.Responses = make([]time.Duration, m.Requests)
	for i := range h.servers {
		h.servers[i].budget = m.Quota
		if m.Quota > 0 {
			h.servers[i].next = time.Duration(random.Int64N(int64(m.Period)))
		}
	}
	gap := func() time.Duration { return time.Duration(random.ExpFloat64() / m.Rate * float64(time.Second)) }
	last, same, done := -1, 0, 0
	due := gap()
	for now := time.Duration(0); done < m.Requests; {
		for due <= now && len(h.arrived) < m.Requests {
			to := pick(h.outstanding)
			if to == last {
				same++
			}
			last = to
			h.outstanding[to]++
			h.servers[to].jobs = append(h.servers[to].jobs, job{len(h.arrived), m.Costs[random.IntN(len(m.Costs))]})
			h.arrived = append(h.arrived, due)
			due += gap()
		}
		if h.running = h.refill(now); h.running > 0 {
			done += h.work(now)
			now += step
			continue
		}
		now = h.next(due) // nothing happens until then
	}
	h.outcome.Same = float64(same) / float64(max(1, m.Requests-1))
	if h.periods > 0 {
		h.outcome.Throttled = float64(h.throttled) / float64(h.periods)
	}
	return h.outcome
}

// work does a step and says how many requests were done in it.
func (h *host) work(now time.Duration) (done int) {
	each := min(step, step*time.Duration(h.CPUs)/time.Duration(h.running))
	for i := range h.servers {
		s := &h.servers[i]
		n := h.working(s)
		for j := range n {
			s.jobs[j].left -= each
		}
		if n > 0 && h.Quota > 0 {
			s.budget -= time.Duration(n) * each
			s.active, s.out = true, s.budget <= 0
		}
		left := s.jobs[:0]
		for j, job := range s.jobs {
			if j < n && job.left <= 0 {
				h.outcome.Responses[job.number] = now + step - h.arrived[job.number]
				done++
				if h.outstanding[i]--; h.outstanding[i] == 0 {
					h.idle(i)
				}
				continue
			}
			left = append(left, job)
		}
		s.jobs = left
	}
	return done
}

// refill fills up the budgets of periods that are over, and says how many requests are
// worked on.
func (h *host) refill(now time.Duration) (running int) {
	for i := range h.servers {
		s := &h.servers[i]
		for h.Quota > 0 && now >= s.next {
			h.begin(s)
		}
		running += h.working(s)
	}
	return running
}

// next is when a request is due, or a server that has work a new budget.
func (h *host) next(due time.Duration) time.Duration {
	if len(h.arrived) == h.Requests {
		due = math.MaxInt64
	}
	for i := range h.servers {
		if s := &h.servers[i]; len(s.jobs) > 0 {
			due = min(due, s.next)
		}
	}
	return due
}

// working is how many requests of a server are worked on.
func (h *host) working(s *simulated) int {
	if h.Quota > 0 && s.budget <= 0 {
		return 0
	}
	return min(len(s.jobs), h.Threads)
}

// begin begins a period of a server. What was used beyond the quota is owed.
func (h *host) begin(s *simulated) {
	if s.active {
		h.periods++
		if s.out {
			h.throttled++
		}
	}
	s.active, s.out = false, s.budget <= 0
	s.budget = min(s.budget+h.Quota, h.Quota+h.Burst)
	s.out = s.budget <= 0
	s.next += h.Period
}
