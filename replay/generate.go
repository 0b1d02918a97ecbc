package replay

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/place"
)

// Generator makes streams of workloads that come and go. They arrive as a Poisson
// process, on average one per unit of time; each draws its kind from Mix, its CPU
// time from the kind's sizes, and how long it stays from Lifetime.
//
// A stream depends on the generator, the allocatable CPUs and a seed, and on
// nothing that a policy does: under all policies the same workloads come and go
// at the same times.
type Generator struct {
	// Settle arrivals fill the machine and are not measured; Arrivals are those
	// after them.
	Settle   int `json:"settle"`
	Arrivals int `json:"arrivals"`
	// Seeds is the default number of streams to compare, from seed 1 on.
	Seeds int `json:"seeds"`
	// Load is the CPU time that those present would ask for on average if all were
	// admitted, as a part of the allocatable CPUs. It sets the mean lifetime.
	Load     float64  `json:"load"`
	Lifetime Lifetime `json:"lifetime"`
	Mix      []Kind   `json:"-"`
}

// Lifetime is a distribution of how long workloads stay.
type Lifetime = plain.Enum[lifetimeWords]

// The distributions of lifetimes, all scaled to the same mean.
const (
	Exponential Lifetime = iota
	LogNormal            // sigma 1.5: the median is a third of the mean
	Fixed
)

type lifetimeWords struct{}

func (lifetimeWords) Words() []string { return []string{"exponential", "lognormal", "fixed"} }

// drawLifetime returns a lifetime of mean 1.
func drawLifetime(l Lifetime, rng *rand.Rand) float64 {
	const sigma = 1.5
	switch l {
	case LogNormal:
		return math.Exp(sigma*rng.NormFloat64() - sigma*sigma/2)
	case Fixed:
		return 1
	}
	return rng.ExpFloat64()
}

// Kind is one kind of workload of a mix.
type Kind struct {
	Weight int
	// Stay is how long these stay compared to others, 1 being as long.
	Stay float64
	// Sizes are their requests, which differ in CPU time only.
	Sizes []Size
}

// Size is a request, without id, and how often it is drawn.
type Size struct {
	Weight  int
	Request place.Request
}

// milli returns the mean CPU time that a kind asks for, in thousandths of a CPU.
func (k *Kind) milli() float64 {
	sum, weights := 0, 0
	for i := range k.Sizes {
		sum += k.Sizes[i].Weight * k.Sizes[i].Request.Milli
		weights += k.Sizes[i].Weight
	}
	return float64(sum) / float64(weights)
}

// meanStay returns the mean lifetime for which workloads that arrive once per unit
// of time ask for Load times milli, by Little's law.
func (g *Generator) meanStay(milli int) float64 {
	sum, weights := 0.0, 0
	for i := range g.Mix {
		k := &g.Mix[i]
		sum += float64(k.Weight) * k.Stay * k.milli()
		weights += k.Weight
	}
	return g.Load * float64(milli) * float64(weights) / sum
}

// Stream returns the scenario with the steps of one stream: a placing for each arrival,
// and a release for each departure up to the last arrival. Numbers come from PCG of
// math/rand/v2, seeded with (seed, 0).
func (s *Scenario) Stream(seed uint64) *Scenario {
	type event struct {
		at   float64
		step Step
	}
	g := s.Generate
	rng := rand.New(rand.NewPCG(seed, 0))
	stay := g.meanStay(1000 * s.allocatable)
	events := make([]event, 0, 2*(g.Settle+g.Arrivals))
	now := 0.0
	for i := range g.Settle + g.Arrivals {
		now += rng.ExpFloat64()
		k := &g.Mix[draw(rng, g.Mix, func(k *Kind) int { return k.Weight })]
		r := k.Sizes[draw(rng, k.Sizes, func(s *Size) int { return s.Weight })].Request
		r.ID = fmt.Sprintf("w%05d", i+1)
		gone := now + stay*k.Stay*drawLifetime(g.Lifetime, rng)
		events = append(events,
			event{now, Step{Do: Place, ID: r.ID, Request: r}},
			event{gone, Step{Do: Release, ID: r.ID}})
	}
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	stream := *s
	stream.Steps = make([]Step, 0, len(events))
	for _, e := range events {
		if e.at <= now {
			stream.Steps = append(stream.Steps, e.step)
		}
	}
	return &stream
}

// Bounds of a Generator.
const (
	maxArrivals = 1_000_000
	maxWeight   = 1_000_000
)

// generator reads the generator of streams.
func (p *parser) generator(f *generateFile) *Generator {
	p.where = "generate"
	g := &f.Generator
	g.Seeds = cmp.Or(g.Seeds, 1)
	for _, n := range []struct {
		name             string
		value, low, high float64
	}{
		{"settle", float64(g.Settle), 0, maxArrivals}, {"arrivals", float64(g.Arrivals), 1, maxArrivals},
		{"seeds", float64(g.Seeds), 1, maxArrivals}, {"load", g.Load, 0.001, 1000},
	} {
		p.between(n.name, n.value, n.low, n.high)
	}
	for i := range f.Mix {
		p.where = fmt.Sprintf("generate.mix[%d]", i)
		g.Mix = append(g.Mix, p.kind(&f.Mix[i]))
	}
	p.where = "generate"
	if stay := g.meanStay(1); len(p.errs) == 0 && (math.IsNaN(stay) || math.IsInf(stay, 0)) {
		p.field("mix", errors.New("nobody asks for CPU time, so that there is no load"))
	}
	p.where = ""
	return g
}

// kind reads one kind of workload.
func (p *parser) kind(f *kindFile) Kind {
	k := Kind{Weight: f.Weight, Stay: 1}
	if f.Stay != nil {
		k.Stay = *f.Stay
	}
	p.between("weight", float64(k.Weight), 1, maxWeight)
	p.between("stay", k.Stay, 0.001, 1000)
	if len(f.Sizes) == 0 {
		k.Sizes = []Size{{1, p.request("any", &f.workloadFile)}}
	} else if f.CPUs != nil {
		p.field("sizes", errors.New("there are cpus as well"))
	}
	for _, cpus := range slices.Sorted(maps.Keys(f.Sizes)) {
		p.between("sizes."+cpus, float64(f.Sizes[cpus]), 1, maxWeight)
		w := f.workloadFile
		w.CPUs = new(place.Milli)
		p.field("cpus", w.CPUs.UnmarshalText([]byte(cpus)))
		k.Sizes = append(k.Sizes, Size{f.Sizes[cpus], p.request("any", &w)})
	}
	return k
}

// between notes a number that is out of bounds; one that is no number is.
func (p *parser) between(field string, n, low, high float64) {
	if !(n >= low && n <= high) {
		p.field(field, fmt.Errorf("%v is not between %v and %v", n, low, high))
	}
}

// draw returns a position, with a chance in proportion to its weight.
func draw[T any](rng *rand.Rand, all []T, weight func(*T) int) int {
	sum := 0
	for i := range all {
		sum += weight(&all[i])
	}
	n := rng.IntN(sum)
	for i := range all {
		if n -= weight(&all[i]); n < 0 {
			return i
		}
	}
	return len(all) - 1
}
