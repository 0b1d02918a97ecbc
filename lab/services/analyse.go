package services

import (
	"slices"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
)

// localMemory is the share of the services' memory that is on the node on which they ran.
var localMemory = stats.Figure{Name: "local memory", Share: true, More: true}

// analysis is what a result comes to: a pure function of it.
type analysis struct {
	*Experiment
	report.Judged
	graph       *graph
	measured    *lab.Measured
	undisturbed bool
}

func (x *Experiment) analyse() (*analysis, error) {
	e := x.Experiment
	g, err := newGraph(e.Services)
	if err != nil {
		return nil, err
	}
	m, err := lab.Measure(&lab.Result{Header: x.Header, Experiment: e.base(), Rounds: x.Rounds})
	if err != nil {
		return nil, err
	}
	a := &analysis{Experiment: x, graph: g, measured: m}
	a.Judged = report.Judged{Head: "placement", Skipped: x.Skipped}
	for _, p := range e.Placements {
		a.Cells = append(a.Cells, report.JudgedCell{Name: p.Name, Means: p.Means})
	}
	if len(e.Placements) == 0 {
		return a, nil
	}
	a.Reference = e.Placements[0].Name
	if e.again() {
		a.Again = e.Placements[1].Name
	}
	a.Samples, a.undisturbed = m.Samples()
	for i := range a.Samples {
		s := &a.Samples[i]
		if share, ok := x.local(s.Cell, s.Block); ok {
			s.Figures[localMemory.Name] = share
		}
	}
	a.Figures = a.counted()
	a.Compared = stats.Compare(a.Samples, a.Figures, a.family())
	return a, nil
}

// counted are the figures that some round has: each that is compared costs the others some of
// their power.
func (a *analysis) counted() (all []stats.Figure) {
	for _, f := range []stats.Figure{lab.P50, lab.P95, lab.P99, lab.Throughput, lab.CPUPerRequest, localMemory} {
		if slices.ContainsFunc(a.Samples, func(s stats.Sample) bool { _, ok := s.Figures[f.Name]; return ok }) {
			all = append(all, f)
		}
	}
	return all
}

// family is what is compared: each placement that ran with the first, and the pairs.
func (a *analysis) family() (all []stats.Versus) {
	e := a.Experiment.Experiment
	for _, p := range e.Placements[1:] {
		if !a.ran(p.Name) {
			continue
		}
		v := stats.Versus{Cell: p.Name, Against: a.Reference}
		if references := e.references(); !slices.Contains(references, p.Name) {
			v.References = references
		}
		all = append(all, v)
	}
	for _, p := range e.Compare {
		if a.ran(p.Placement) && a.ran(p.Against) {
			all = append(all, stats.Versus{Cell: p.Placement, Against: p.Against})
		}
	}
	return all
}

// ran says whether a placement has figures.
func (a *analysis) ran(cell string) bool {
	return slices.ContainsFunc(a.Samples, func(s stats.Sample) bool { return s.Cell == cell })
}

// placeOf is where a placement had the services.
func (x *Experiment) placeOf(cell string) (Place, bool) {
	i := slices.IndexFunc(x.Places, func(p Place) bool { return p.Cell == cell })
	if i < 0 {
		return Place{}, false
	}
	return x.Places[i], true
}

// servedIn is what the services did in a round.
func (x *Experiment) servedIn(cell string, block int) []ServiceServed {
	i := slices.IndexFunc(x.Served, func(s Served) bool { return s.Cell == cell && s.Block == block })
	if i < 0 {
		return nil
	}
	return x.Served[i].Services
}

// local is the share of all services' memory that was local in a round, by their bytes.
func (x *Experiment) local(cell string, block int) (share float64, ok bool) {
	all := 0.0
	for _, s := range x.servedIn(cell, block) {
		one, known := s.local()
		if !known {
			continue
		}
		bytes := 0.0
		for _, n := range s.Bytes {
			bytes += float64(n)
		}
		share += one * bytes
		all += bytes
	}
	if all == 0 {
		return 0, false
	}
	return share / all, true
}

// tailRequests is how many a round needs, so that its p99 is not its maximum.
const tailRequests = 100

// one is what a service typically was in the rounds of a placement that count.
type one struct {
	requests            float64 // for each from outside
	ownMean, ownP50     float64 // µs
	wholeP50            float64 // µs
	ownP99, wholeP99    float64 // µs; 0 where a round has too few requests for it
	cpu, delay          float64 // CPU time, and waiting for a CPU, of a request: µs
	local               float64
	known, localKnown   bool
	rounds, failed, all int
}

func (a *analysis) one(cell string, service int) (o one) {
	n := slices.Index(a.graph.order, service)
	var requests, mean, p50, p99, whole50, whole99, cpu, delay, local []float64
	for _, d := range a.measured.Valid(cell) {
		served := a.servedIn(cell, d.Block)
		if n >= len(served) || n >= len(d.Servers) || served[n].Requests == 0 {
			continue
		}
		s, u := served[n], d.Servers[n]
		o.failed += s.Failed
		o.all += s.Requests
		if d.Load.DoneInWindow > 0 {
			requests = append(requests, float64(s.Requests)/float64(d.Load.DoneInWindow))
		}
		mean, p50, whole50 = append(mean, s.Own.Mean), append(p50, s.Own.P50), append(whole50, s.Whole.P50)
		if s.Requests >= tailRequests {
			p99, whole99 = append(p99, s.Own.P99), append(whole99, s.Whole.P99)
		}
		cpu = append(cpu, 1e6*u.CPUSeconds/float64(s.Requests))
		delay = append(delay, 1e6*u.WaitSeconds/float64(s.Requests))
		if share, ok := s.local(); ok {
			local = append(local, share)
		}
	}
	o.rounds = len(p50)
	if o.known = o.rounds > 0; !o.known {
		return o
	}
	o.ownMean, o.ownP50, o.wholeP50 = stats.Median(mean), stats.Median(p50), stats.Median(whole50)
	if 2*len(p99) >= o.rounds {
		o.ownP99, o.wholeP99 = stats.Median(p99), stats.Median(whole99)
	}
	o.cpu, o.delay = stats.Median(cpu), stats.Median(delay)
	if len(requests) > 0 {
		o.requests = stats.Median(requests)
	}
	if o.localKnown = len(local) > 0; o.localKnown {
		o.local = stats.Median(local)
	}
	return o
}

// of is a figure of a placement against another; the zero value is not decided.
func (a *analysis) of(cell, against, figure string) stats.Compared {
	c, ok := stats.Of(a.Compared, cell, against, figure)
	if !ok {
		c = stats.Compared{Cell: cell, Against: against, Figure: figure}
		c.Verdict = stats.Invalid
	}
	return c
}

// bound says whether the response times of a placement are lower bounds.
func (a *analysis) bound(cell string) bool {
	n, k := 0, 0
	for _, s := range a.Samples {
		if s.Cell == cell {
			n++
			if s.Bound {
				k++
			}
		}
	}
	return stats.Mostly(k, n)
}
