package load

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// Routing is how requests are spread over several servers. Its zero value is Random.
type Routing string

// The policies.
const (
	// Random draws a server for each request, as kube-proxy does for each connection.
	Random Routing = "random"
	// RoundRobin gives each server its turn.
	RoundRobin Routing = "round-robin"
	// RoundRobins is four routers that know nothing of each other. A request comes to one of
	// them by chance, and each gives each server its turn.
	RoundRobins Routing = "round-robins"
	// LeastOutstanding takes a server with the fewest requests under way; chance decides
	// between equals. It is what the literature calls join the shortest queue.
	LeastOutstanding Routing = "least-outstanding"
	// JoinIdle takes the server that has been idle for longest, and any if none is: join
	// idle queue with one router (Lu et al., Performance Evaluation 68, 2011).
	JoinIdle Routing = "join-idle"
)

// Uncoordinated is how many routers RoundRobins has.
const Uncoordinated = 4

// Routings lists the policies.
func Routings() []Routing {
	return []Routing{Random, RoundRobin, RoundRobins, LeastOutstanding, JoinIdle}
}

// Validate says whether it is one.
func (r Routing) Validate() error {
	if r == "" || slices.Contains(Routings(), r) {
		return nil
	}
	var names []string
	for _, known := range Routings() {
		names = append(names, string(known))
	}
	return fmt.Errorf("routing %q: not one of %s", string(r), strings.Join(names, ", "))
}

// Pick makes a router: pick is asked for the server of each request in turn and told how
// many requests are under way at each; idle is told when a server has none left.
// It depends on nothing but its arguments.
func (r Routing) Pick(servers int, seed uint64) (pick func(outstanding []int) int, idle func(server int)) {
	x := newRouter(r, servers, seed)
	return x.pick, x.idle
}

// router spreads the requests of one run.
type router struct {
	routing Routing
	random  *rand.Rand
	turns   []int // of each round robin
	waiting []int // the servers without a request, the one that is idle for longest first
}

const routerStream = 0x726f757465 // separates its random numbers from others of the same seed

func newRouter(r Routing, servers int, seed uint64) *router {
	x := &router{routing: r, random: rand.New(rand.NewPCG(seed, routerStream))}
	switch r {
	case RoundRobin:
		x.turns = []int{0}
	case RoundRobins:
		for range Uncoordinated {
			x.turns = append(x.turns, x.random.IntN(servers))
		}
	case JoinIdle:
		x.waiting = x.random.Perm(servers)
	}
	return x
}

func (x *router) pick(outstanding []int) int {
	switch x.routing {
	case RoundRobin, RoundRobins:
		turn := &x.turns[x.random.IntN(len(x.turns))]
		now := *turn
		*turn = (now + 1) % len(outstanding)
		return now
	case LeastOutstanding:
		return x.least(outstanding)
	case JoinIdle:
		if len(x.waiting) > 0 {
			first := x.waiting[0]
			copy(x.waiting, x.waiting[1:]) // in place: nothing is allocated
			x.waiting = x.waiting[:len(x.waiting)-1]
			return first
		}
	}
	return x.random.IntN(len(outstanding))
}

// least draws one of those with the fewest.
func (x *router) least(outstanding []int) int {
	best, equals := 0, 0
	for i, n := range outstanding {
		switch {
		case equals == 0 || n < outstanding[best]:
			best, equals = i, 1
		case n == outstanding[best]:
			if equals++; x.random.IntN(equals) == 0 {
				best = i
			}
		}
	}
	return best
}

func (x *router) idle(server int) {
	if x.routing == JoinIdle {
		x.waiting = append(x.waiting, server)
	}
}
