// Package services measures where the services of an application should stand: a small shop
// of processes that call each other, packed on one part of the machine, split over two, or
// left to the scheduler. The graph of services is data.
//
// The testbed of lab runs the services, lab/load is each of them and asks the first, and the
// parts come from the machine's domains and from place/berth, the policy of berth run.
package services

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
)

// Spec is what a data file sets.
type Spec struct {
	// Services are processes that call each other. The first is that which is asked.
	Services []Service `json:"services"`
	// Placements are measured once a block each, in random order. The first is what the
	// others are compared with, and the second, if it is like the first but for its name, is
	// the same once more.
	Placements []Placement `json:"placements"`
	// Compare has further pairs to compare, besides each with the first.
	Compare []Pair `json:"compare,omitempty"`
	// Demand is the share (0-1) of the shared CPUs that all services want together; Rate is
	// the requests per second, 0 for those that come to the demand.
	Demand float64 `json:"demand"`
	Rate   float64 `json:"rate,omitempty"`
	// Neighbour is what works beside the services in placements that have one, with so many
	// threads for each shared CPU.
	Neighbour     noise.Config `json:"neighbour"`
	ThreadsPerCPU int          `json:"neighbourThreadsPerCPU"`
	// Blocks is how often each placement is measured, if For leaves the time for it.
	Blocks int          `json:"blocks"`
	For    lab.Duration `json:"for,omitempty"`
	// Settle is discarded at the start of each round; Window is measured, and longer where
	// fewer requests than a p99 takes would come to the demand in it.
	Settle lab.Duration `json:"settle"`
	Window lab.Duration `json:"window"`
	CPUs   string       `json:"cpus,omitempty"` // that take part; "" lets the lab choose
	// Weight is the CPU weight (1-10000) of all of it together against all else on the host;
	// 0 leaves the usual 100.
	Weight int    `json:"weight,omitempty"`
	Seed   uint64 `json:"seed,omitempty"` // of arrivals, draws and orders; 0 lets the clock choose
}

// Service is a process that answers requests, after it has called others.
type Service struct {
	Name string `json:"name"`
	// CPU is the time that a request takes of its own work: looking up and rendering
	// articles. What it takes to receive, to call and to answer comes on top of that.
	CPU lab.Duration `json:"cpu"`
	// WorkingSetBytes is the memory that the work reads, all over.
	WorkingSetBytes int64 `json:"workingSetBytes"`
	// Steps are its calls: those of a step at once, and the next step when all are answered.
	Steps [][]Call `json:"steps,omitempty"`
}

// Call is a request to another service.
type Call struct {
	To    string  `json:"to"`
	Share float64 `json:"share,omitempty"` // of requests that make it (0-1); 0 is all
	Times int     `json:"times,omitempty"` // how often, one after the other; 0 is once
}

// perRequest is how often a request makes it, on average.
func (c Call) perRequest() float64 { return cmp.Or(c.Share, 1) * float64(max(c.Times, 1)) }

// Placement says where the services stand.
type Placement struct {
	Name  string `json:"name"`
	Means string `json:"means,omitempty"`
	// Parts is on how many parts of the machine they are: 1 has all on the first, 2 each on
	// one of two, 0 has no rule.
	Parts int `json:"parts,omitempty"`
	// Over is what the parts are: Nodes or Halves.
	Over string `json:"over,omitempty"`
	// Pairs, with two parts, has services that call each other often Together in a part or
	// Apart, each part having about half of the work. First names those of the first part
	// instead.
	Pairs string   `json:"pairs,omitempty"`
	First []string `json:"first,omitempty"`
	// Neighbour says where a neighbour works: Everywhere, Elsewhere (on the second part,
	// where the services are on the first), or nowhere.
	Neighbour string `json:"neighbour,omitempty"`
}

// The words of a Placement.
const (
	Nodes      = "nodes"  // NUMA nodes with memory
	Halves     = "halves" // of the cores, each as near together as can be
	Together   = "together"
	Apart      = "apart"
	Everywhere = "everywhere"
	Elsewhere  = "elsewhere"
)

// Pair is two placements to compare.
type Pair struct {
	Placement string `json:"placement"`
	Against   string `json:"against"`
}

// Default is a shop of eleven services.
func Default() Spec {
	const us, ms, mib = lab.Duration(time.Microsecond), lab.Duration(time.Millisecond), 1 << 20
	return Spec{
		Services: []Service{
			{"gateway", 200 * us, 4 * mib, [][]Call{
				{{To: "catalogue"}, {To: "currency"}, {To: "cart"}, {To: "ads", Share: 0.5}},
				{{To: "recommendations", Share: 0.5}, {To: "checkout", Share: 0.05}},
			}},
			{"catalogue", 150 * us, 32 * mib, [][]Call{{{To: "cache", Times: 2}}, {{To: "database", Share: 0.2}}}},
			{"recommendations", 250 * us, 32 * mib, [][]Call{{{To: "catalogue"}}}},
			{"cart", 100 * us, 4 * mib, [][]Call{{{To: "cache"}}}},
			{"checkout", 300 * us, 4 * mib, [][]Call{{{To: "cart"}, {To: "currency", Times: 2}}, {{To: "shipping"}}, {{To: "payment"}}, {{To: "database", Times: 2}}}},
			{"currency", 50 * us, mib, nil},
			{"ads", 100 * us, 8 * mib, nil},
			{"shipping", 100 * us, mib, nil},
			{"payment", 150 * us, mib, nil},
			{"cache", 30 * us, 64 * mib, nil},
			{"database", 250 * us, 128 * mib, nil},
		},
		Placements: []Placement{
			{Name: "no rule", Means: "each service on all CPUs, as the scheduler likes"},
			{Name: "no rule again", Means: "the same once more, to see by how much the same thing differs"},
			{Name: "node", Parts: 1, Over: Nodes, Means: "all services on one NUMA node, with its memory"},
			{Name: "nodes together", Parts: 2, Over: Nodes, Pairs: Together, Means: "on two nodes, those that call each other often on the same one"},
			{Name: "nodes apart", Parts: 2, Over: Nodes, Pairs: Apart, Means: "on two nodes, those that call each other often on different ones"},
			{Name: "half", Parts: 1, Over: Halves, Means: "all services on half of the cores, near together"},
			{Name: "halves together", Parts: 2, Over: Halves, Pairs: Together, Means: "each on one of two halves, those that call each other often on the same one"},
			{Name: "halves apart", Parts: 2, Over: Halves, Pairs: Apart, Means: "each on one of two halves, those that call each other often on different ones"},
			{Name: "hog everywhere", Neighbour: Everywhere, Means: "no rule, and a neighbour on all CPUs, in a group of its own"},
			{Name: "hog elsewhere", Parts: 1, Over: Halves, Neighbour: Elsewhere, Means: "all services on half of the cores, the neighbour on the other half"},
		},
		Compare: []Pair{{"nodes apart", "nodes together"}, {"halves apart", "halves together"}, {"hog elsewhere", "hog everywhere"}},
		Demand:  0.25, Neighbour: noise.Config{Kernel: "spin", Intensity: 100}, ThreadsPerCPU: 1,
		Blocks: 20, For: lab.Duration(10 * time.Minute), Settle: 200 * ms, Window: lab.Duration(2 * time.Second),
	}
}

// Bounds of a spec.
const (
	maxServices = 16 // how they are split is tried out: 32,768 ways
	maxCPU      = 100 * time.Millisecond
	maxBytes    = 64 << 30
	maxCalls    = 200 // of a request, all services together
)

// nameLike is what stands in tables and files of fields between commas as it is.
var nameLike = regexp.MustCompile(`^[\pL\d][\pL\d '._×/-]{0,29}$`)

// base is what the testbed is asked for. Half of the CPUs come from each of two nodes or
// caches, where there are two.
func (e Spec) base() lab.Spec {
	b := lab.IsolationSpec()
	b.Name, b.Blocks, b.For, b.Settle, b.Window = "services", e.Blocks, e.For, e.Settle, e.Window
	b.CPUs, b.Seed, b.Neighbour, b.ThreadsPerCPU = e.CPUs, e.Seed, e.Neighbour, e.ThreadsPerCPU
	b.Tenant.Demand, b.Rate = lab.Fullest/2, e.Rate // halves, however little the services want
	return b
}

// again says whether the second placement is the first once more.
func (e Spec) again() bool {
	if len(e.Placements) < 2 {
		return false
	}
	a, b := e.Placements[0], e.Placements[1]
	return a.Parts == b.Parts && a.Over == b.Over && a.Pairs == b.Pairs && slices.Equal(a.First, b.First) && a.Neighbour == b.Neighbour
}

// references are the names of the placements that the others are compared with.
func (e Spec) references() []string {
	if e.again() {
		return []string{e.Placements[0].Name, e.Placements[1].Name}
	}
	return []string{e.Placements[0].Name}
}

// Validate says all that is wrong, naming the field.
func (e Spec) Validate() error {
	var errs []error
	bad := func(broken bool, format string, args ...any) {
		if broken {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(len(e.Services) < 2 || len(e.Services) > maxServices, "services: %d: want 2 to %d", len(e.Services), maxServices)
	bad(len(e.Placements) == 0, "placements: none: want one at least")
	bad(!(e.Demand > 0 && e.Demand <= 1), "demand: %g: want more than 0 and at most 1", e.Demand)
	bad(e.Weight < 0 || e.Weight > 10_000, "weight: %d: want 1 to 10000", e.Weight)
	bad(!(e.Rate >= 0 && e.Rate <= 100_000), "rate: %g: want at most 100000 requests per second", e.Rate)
	if len(errs) == 0 {
		errs = append(errs, e.validateServices(), e.validatePlacements())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("experiment: %w", err)
	}
	return e.base().Validate()
}

func (e Spec) serviceNames() (names []string) {
	for _, s := range e.Services {
		names = append(names, s.Name)
	}
	return names
}

func (e Spec) validateServices() error {
	var errs []error
	names, seen := e.serviceNames(), map[string]bool{}
	for _, s := range e.Services {
		if !nameLike.MatchString(s.Name) || seen[s.Name] {
			errs = append(errs, fmt.Errorf("services: name %q: want one of its own, of letters, digits, spaces and '._×/-, at most 30", s.Name))
		}
		seen[s.Name] = true
		if err := s.validate(names); err != nil {
			errs = append(errs, fmt.Errorf("services: %s: %w", s.Name, err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	g, err := newGraph(e.Services)
	if err != nil {
		return fmt.Errorf("services: %w", err)
	}
	for i, n := range g.requests {
		if n == 0 {
			errs = append(errs, fmt.Errorf("services: %s: nobody calls it, and it is not the first", names[i]))
		}
	}
	if n := g.calls(); n > maxCalls {
		errs = append(errs, fmt.Errorf("services: %.0f calls for each request: want at most %d", n, maxCalls))
	}
	return errors.Join(errs...)
}

func (s Service) validate(names []string) error {
	switch cpu := time.Duration(s.CPU); {
	case cpu < time.Microsecond || cpu > maxCPU:
		return fmt.Errorf("cpu: %s: want 1µs to %s", s.CPU, maxCPU)
	case s.WorkingSetBytes < 4096 || s.WorkingSetBytes > maxBytes:
		return fmt.Errorf("workingSetBytes: %d: want 4096 to %d", s.WorkingSetBytes, int64(maxBytes))
	}
	calls := 0
	for i, step := range s.Steps {
		if calls += len(step); len(step) == 0 || calls > load.MaxCalls {
			return fmt.Errorf("steps: step %d: want a call at least, and at most %d in all", i+1, load.MaxCalls)
		}
		for _, c := range step {
			switch {
			case !slices.Contains(names, c.To):
				return fmt.Errorf("steps: no service %q%s", c.To, strictyaml.Nearest(c.To, names))
			case !(c.Share >= 0 && c.Share <= 1):
				return fmt.Errorf("steps: %s: share %g: want 0 to 1", c.To, c.Share)
			case c.Times < 0 || c.Times > load.MaxCallTimes:
				return fmt.Errorf("steps: %s: times %d: want at most %d", c.To, c.Times, load.MaxCallTimes)
			}
		}
	}
	return nil
}

func (e Spec) validatePlacements() error {
	var errs []error
	seen := map[string]bool{}
	for _, p := range e.Placements {
		if !nameLike.MatchString(p.Name) || seen[p.Name] {
			errs = append(errs, fmt.Errorf("placements: name %q: want one of its own, of letters, digits, spaces and '._×/-, at most 30", p.Name))
		}
		seen[p.Name] = true
		if err := p.validate(e.serviceNames()); err != nil {
			errs = append(errs, fmt.Errorf("placements: %s: %w", p.Name, err))
		}
	}
	for _, p := range e.Compare {
		if !seen[p.Placement] || !seen[p.Against] || p.Placement == p.Against {
			errs = append(errs, fmt.Errorf("compare: %s with %s: want names of two placements", p.Placement, p.Against))
		}
	}
	return errors.Join(errs...)
}

func (p Placement) validate(names []string) error {
	one := func(word string, of ...string) bool { return word == "" || slices.Contains(of, word) }
	switch {
	case p.Parts < 0 || p.Parts > 2:
		return fmt.Errorf("parts: %d: want 0 (no rule), 1 or 2", p.Parts)
	case (p.Parts > 0) != (p.Over != "") || !one(p.Over, Nodes, Halves):
		return fmt.Errorf("over: %q: want %s or %s with parts, and nothing without", p.Over, Nodes, Halves)
	case !one(p.Pairs, Together, Apart):
		return fmt.Errorf("pairs: %q: want %s or %s", p.Pairs, Together, Apart)
	case (p.Parts == 2) != ((p.Pairs == "") == (len(p.First) > 0)) || p.Parts < 2 && len(p.First) > 0:
		return errors.New("pairs, first: want one of them with two parts, and none without")
	case len(p.First) >= len(names):
		return errors.New("first: want some of the services, not all")
	case !one(p.Neighbour, Everywhere, Elsewhere):
		return fmt.Errorf("neighbour: %q: want %s or %s", p.Neighbour, Everywhere, Elsewhere)
	case p.Neighbour == Elsewhere && p.Parts != 1:
		return fmt.Errorf("neighbour: %s is the second part, where the services are on one", Elsewhere)
	}
	seen := map[string]bool{}
	for _, name := range p.First {
		if !slices.Contains(names, name) || seen[name] {
			return fmt.Errorf("first: %q: want each the name of a service, once%s", name, strictyaml.Nearest(name, names))
		}
		seen[name] = true
	}
	return nil
}
