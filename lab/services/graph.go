package services

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"
)

// graph is the services and their calls, as numbers. Services have the numbers of the spec.
type graph struct {
	services []Service
	// order is callees before their callers. The first service is its last, if all are called.
	order []int
	// requests is how many each gets for one from outside, on average; edges how often each
	// calls each.
	requests []float64
	edges    [][]float64
}

// newGraph fails where a request would come back to where it has been.
func newGraph(services []Service) (*graph, error) {
	n := len(services)
	g := &graph{services: services, requests: make([]float64, n), edges: make([][]float64, n)}
	number := map[string]int{}
	for i, s := range services {
		number[s.Name] = i
	}
	for i, s := range services {
		g.edges[i] = make([]float64, n)
		for _, step := range s.Steps {
			for _, c := range step {
				g.edges[i][number[c.To]] += c.perRequest()
			}
		}
	}
	done, path := make([]bool, n), []int{}
	var visit func(int) error
	visit = func(i int) error {
		if at := slices.Index(path, i); at >= 0 {
			return g.cycle(append(path[at:], i))
		}
		if done[i] {
			return nil
		}
		path = append(path, i)
		for to, times := range g.edges[i] {
			if times > 0 {
				if err := visit(to); err != nil {
					return err
				}
			}
		}
		path, done[i] = path[:len(path)-1], true
		g.order = append(g.order, i)
		return nil
	}
	for i := range services {
		if err := visit(i); err != nil {
			return nil, err
		}
	}
	g.requests[0] = 1
	for _, from := range slices.Backward(g.order) { // callers first
		for to := range g.edges[from] {
			g.edges[from][to] *= g.requests[from]
			g.requests[to] += g.edges[from][to]
		}
	}
	return g, nil
}

func (g *graph) cycle(path []int) error {
	var names []string
	for _, i := range path {
		names = append(names, g.services[i].Name)
	}
	return fmt.Errorf("%s: a request would never end", strings.Join(names, " calls "))
}

// calls is how many a request from outside makes.
func (g *graph) calls() (n float64) {
	for _, r := range g.requests {
		n += r
	}
	return n - 1
}

// hop is about the CPU time that each end of a call takes for it, besides its own work.
const hop = 300 * time.Microsecond

// work is about the CPU time that a service takes for a request from outside.
func (g *graph) work(service int) time.Duration {
	ends := g.requests[service]
	for _, calls := range g.edges[service] {
		ends += calls
	}
	return time.Duration(g.requests[service]*float64(g.services[service].CPU) + ends*float64(hop))
}

// share is the share (0-1) of all work that some services have.
func (g *graph) share(first []bool) float64 {
	some, all := time.Duration(0), time.Duration(0)
	for i := range g.services {
		all += g.work(i)
		if first[i] {
			some += g.work(i)
		}
	}
	return some.Seconds() / all.Seconds()
}

// crossing is how many of a request's calls go from one part to the other.
func (g *graph) crossing(first []bool) (n float64) {
	for from := range g.edges {
		for to, calls := range g.edges[from] {
			if first[from] != first[to] {
				n += calls
			}
		}
	}
	return n
}

// balanced is the largest share of the work that a part may have, where that is possible.
const balanced = 0.6

// split divides the services in two parts of about half of the work each: so that the fewest
// calls cross, or the most. The first service is in the first part.
func (g *graph) split(together bool) []bool {
	n := len(g.services)
	sides := func(code int) []bool {
		first := make([]bool, n)
		for i := range first {
			first[i] = code>>i&1 == 1
		}
		return first
	}
	type way struct {
		code, services int
		share, crosses float64
	}
	better := func(a, b way) bool {
		if fair := a.share <= balanced; fair != (b.share <= balanced) {
			return fair
		} else if !fair && a.share != b.share {
			return a.share < b.share
		}
		if a.crosses != b.crosses {
			return (a.crosses < b.crosses) == together
		}
		if a.share != b.share {
			return a.share < b.share
		}
		return a.services < b.services || a.services == b.services && a.code < b.code
	}
	best := way{share: 2}
	for code := 1; code < 1<<n-1; code += 2 {
		first := sides(code)
		share := g.share(first)
		w := way{code, bits.OnesCount(uint(code)), max(share, 1-share), g.crossing(first)}
		if better(w, best) {
			best = w
		}
	}
	return sides(best.code)
}

// hottest are the services that call each other most often, and how often.
func (g *graph) hottest() (from, to int, calls float64) {
	for i := range g.edges {
		for j, n := range g.edges[i] {
			if n > calls {
				from, to, calls = i, j, n
			}
		}
	}
	return from, to, calls
}
