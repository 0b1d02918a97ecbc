package services

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/golden"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
	"berth.dev/berth/machine"
)

// bed plays rounds: of each placement, the response times are times those of the first.
type bed struct {
	t      *testing.T
	times  map[string]float64
	random *rand.Rand
	n      int // servers
}

func (b *bed) Round(_ context.Context, c lab.Cell, block, position int) (lab.Round, error) {
	const requests, cpus = 300, 8
	times := b.times[c.Name]
	if times == 0 {
		times = 1
	}
	response, lag := stats.NewHistogram(), stats.NewHistogram()
	level := 4000 * times * math.Exp(0.03*b.random.NormFloat64())
	for range requests {
		if err := response.RecordValue(int64(level * math.Exp(0.3*b.random.NormFloat64()))); err != nil {
			b.t.Fatal(err)
		}
	}
	if err := lag.RecordValues(40, requests); err != nil {
		b.t.Fatal(err)
	}
	text, err := stats.Encode(response)
	if err != nil {
		b.t.Fatal(err)
	}
	late, err := stats.Encode(lag)
	if err != nil {
		b.t.Fatal(err)
	}
	r := lab.Round{
		Block: block, Position: position, Scenario: c.Name, Seconds: 1, Host: lab.HostUsage{CPUs: cpus, SharedCPUs: cpus, Busy: 1},
		Load: load.Report{
			Offered: requests, Done: requests, DoneInWindow: requests, CPUSeconds: 0.01, Policy: "SCHED_FIFO 40",
			Seconds: []load.Second{{Offered: requests, Response: text, Service: text, Queue: late, Lag: late}},
		},
		Servers: make([]lab.Usage, b.n),
	}
	for i := range r.Servers {
		r.Servers[i] = lab.Usage{CPUSeconds: 0.09 * math.Sqrt(times), WaitSeconds: 0.003 * times}
		r.Tenant.CPUSeconds += r.Servers[i].CPUSeconds
		r.Tenant.WaitSeconds += r.Servers[i].WaitSeconds
	}
	if c.Neighbour {
		r.Neighbour = &lab.Usage{CPUSeconds: 5, Work: 1e9, Unit: "iterations"}
	}
	return r, nil
}

// playedRun is a run on a machine, played: from places to rounds as the lab runs them.
func playedRun(t *testing.T, m *machine.Machine, blocks int, times map[string]float64) *Experiment {
	t.Helper()
	x := New()
	x.Started, x.Program = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), lab.Program{Version: "test", Go: "go"}
	x.Host.Machine = m
	x.Setup = lab.Setup{
		Backend: "cgroup v2", CPUs: m.Online.String(), GeneratorPolicy: "SCHED_FIFO 40", Rate: 300, TenantCPUs: 0.25 * float64(m.Online.Len()),
		Neighbour: noise.Config{Kernel: "spin", Threads: m.Online.Len()},
	}
	x.Experiment.Blocks, x.Experiment.Seed = blocks, 5
	g, s := graphOf(t, x.Experiment.Services), site{m, m.Online}
	for range g.services {
		x.Work = append(x.Work, 10)
	}
	cells, err := x.placements(g, s, &lab.Serve{Servers: len(g.services), Graph: x.servers(g, m.Online.Len())})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cells {
		if c.Fresh != s.numa() || c.Hooks.During == nil {
			t.Errorf("%s: fresh %v", c.Name, c.Fresh)
		}
	}
	b := &bed{t, times, rand.New(rand.NewPCG(1, 1)), len(g.services)}
	e := lab.Experiment{Parts: []lab.Part{{Blocks: blocks, Cells: cells}}, Seed: 5, Result: x, Header: &x.Header}
	if err := lab.Run(t.Context(), e, b, lab.Options{Dir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	x.Finished = x.Started
	if len(x.Served) != len(x.Rounds) {
		t.Fatalf("%d rounds, %d of services", len(x.Rounds), len(x.Served))
	}
	for i := range x.Served {
		served := &x.Served[i]
		if served.Cell != x.Rounds[i].Scenario || served.Block != x.Rounds[i].Block {
			t.Fatalf("round %d: %s in block %d of services", i, served.Cell, served.Block)
		}
		served.Services = x.playedServices(g, s, served.Cell, max(times[served.Cell], 1))
	}
	return x
}

// playedServices are what services did in a round: without a rule half of what they run is far
// from their memory.
func (x *Experiment) playedServices(g *graph, s site, cell string, times float64) (all []ServiceServed) {
	at, _ := x.placeOf(cell)
	for _, i := range g.order {
		o := ServiceServed{Name: g.services[i].Name}
		o.Requests = int(300 * g.requests[i])
		us := float64(g.services[i].CPU) / 1e3
		o.Own = load.Spread{Mean: us, P50: us, P99: 3 * us * times}
		o.Whole = load.Spread{Mean: 4 * us, P50: 4 * us, P99: 9 * us * times}
		if s.numa() {
			o.Bytes, o.Ran = map[int]int64{0: 8 << 20}, map[int]float64{0: 0.5, 1: 0.5}
			if part, ok := at.on(o.Name); ok && !part.Mems.IsEmpty() {
				node, _ := part.Mems.First()
				o.Bytes, o.Ran = map[int]int64{node: 8 << 20}, map[int]float64{node: 1}
			}
		}
		all = append(all, o)
	}
	return all
}

// The reports of played runs, from rounds to text, page and document.
func TestReports(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]*Experiment{
		"one-node":  playedRun(t, played(t, "2c"), 16, map[string]float64{"half": 1.6, "halves together": 1.3, "halves apart": 1.5, "hog everywhere": 2, "hog elsewhere": 1.7}),
		"two-nodes": playedRun(t, played(t, "2s4c"), 16, map[string]float64{"node": 0.8, "nodes together": 0.9, "nodes apart": 1.3, "hog everywhere": 2, "hog elsewhere": 0.9}),
	} {
		s, err := x.Sheet()
		if err != nil {
			t.Fatal(err)
		}
		var text, page, doc bytes.Buffer
		if err := report.Text(&text, s, report.Options{Width: 120}); err != nil {
			t.Fatal(err)
		}
		golden.Check(t, "testdata/"+name+".txt", text.Bytes())
		if err := report.HTML(&page, s); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`id="ratios-wide-t"`, `id="own-wide-t"`, `id="cpu-wide-t"`, "All comparisons", "p99 of own time", "Where they stand"} {
			if !strings.Contains(page.String(), want) {
				t.Errorf("%s: the page lacks %q", name, want)
			}
		}
		if err := report.JSON(&doc, s.Document); err != nil || !strings.Contains(doc.String(), `"runDelay"`) || strings.Contains(doc.String(), `"localMemory"`) != (name == "two-nodes") {
			t.Errorf("%s: document: %v", name, err)
		}
	}
}

// By value: what a played round comes to for a service.
func TestOne(t *testing.T) {
	t.Parallel()
	x := playedRun(t, played(t, "2s4c"), 3, map[string]float64{"node": 4})
	a, err := x.analyse()
	if err != nil {
		t.Fatal(err)
	}
	cache := slices.IndexFunc(x.Experiment.Services, func(s Service) bool { return s.Name == "cache" })
	o := a.one("node", cache)
	requests := float64(int(300 * a.graph.requests[cache]))
	for what, v := range map[string][2]float64{
		"requests": {o.requests, requests / 300}, "own mean": {o.ownMean, 30}, "own p50": {o.ownP50, 30}, "own p99": {o.ownP99, 360}, "whole p99": {o.wholeP99, 1080},
		"CPU": {o.cpu, 1e6 * 0.18 / requests}, "run delay": {o.delay, 1e6 * 0.012 / requests}, "local": {o.local, 1}, "rounds": {float64(o.rounds), 3},
	} {
		if math.Abs(v[0]-v[1]) > 1e-6 {
			t.Errorf("%s: %g, want %g", what, v[0], v[1])
		}
	}
	checkout := slices.IndexFunc(x.Experiment.Services, func(s Service) bool { return s.Name == "checkout" })
	if rare := a.one("node", checkout); !rare.known || rare.ownP99 != 0 || rare.ownP50 != 300 {
		t.Errorf("of 15 requests a round: %+v; want no p99", rare)
	}
	if free := a.one("no rule", cache); free.local != 0.5 || free.ownP99 != 90 {
		t.Errorf("without a rule: %+v", free)
	}
	if a.one("half", cache).known {
		t.Error("a placement that was skipped is known")
	}
	if c := a.of("node", "no rule", localMemory.Name); math.Abs(c.Estimate-0.5) > 1e-9 {
		t.Errorf("local memory: %+v, want half of it more", c)
	}
}

// view is an analysis of played figures.
func view(t *testing.T, seed uint64, blocks int, times map[string]float64, bad float64) *analysis {
	t.Helper()
	x := New()
	r := rand.New(rand.NewPCG(seed, 4))
	a := &analysis{Experiment: x, graph: graphOf(t, x.Experiment.Services)}
	a.Reference = x.Experiment.Placements[0].Name
	for _, p := range x.Experiment.Placements {
		a.Cells = append(a.Cells, report.JudgedCell{Name: p.Name})
	}
	for block := range blocks {
		level := math.Exp(0.3 * r.NormFloat64())
		for _, c := range a.Cells {
			if times[c.Name] == 0 {
				continue
			}
			p99 := 5000 * level * times[c.Name] * math.Exp(0.1*r.NormFloat64())
			if r.Float64() < bad {
				p99 *= 10
			}
			f := map[string]float64{"p50": p99 / 3, "p95": p99 / 2, "p99": p99, lab.CPUPerRequest.Name: 0.002 * math.Exp(0.05*r.NormFloat64())}
			a.Samples = append(a.Samples, stats.Sample{Cell: c.Name, Block: block, Figures: f})
		}
	}
	a.Figures = a.counted()
	a.Compared = stats.Compare(a.Samples, a.Figures, a.family())
	return a
}

// What the first sentence says is false in one of twenty runs at most, in worlds with bad
// blocks too, and it says what there is to say in most.
func TestSaysNothingFalse(t *testing.T) {
	t.Parallel()
	const runs = 120
	alike := map[string]float64{"no rule": 1, "no rule again": 1, "half": 1, "halves together": 1, "halves apart": 1}
	with := func(change map[string]float64) map[string]float64 {
		times := map[string]float64{}
		for name, v := range alike {
			times[name] = v
		}
		for name, v := range change {
			times[name] = v
		}
		return times
	}
	for name, tc := range map[string]struct {
		times map[string]float64
		bad   float64
		wrong []string // what is false there
		right string   // what is to be said in most runs; "" for nothing
	}{
		"nothing differs":  {alike, 0.1, []string{"Give the services", " Worse:"}, "Leave the services to the scheduler"},
		"half is better":   {with(map[string]float64{"half": 0.6}), 0.05, []string{" Worse:", `with "halves together" one`, `with "halves apart" one`}, `Give the services their places: with "half" one request`},
		"apart is worse":   {with(map[string]float64{"halves apart": 1.6}), 0.05, []string{"Give the services", `Worse: "half" `, `Worse: "halves together"`}, `Worse: "halves apart" ×`},
		"all are worse":    {with(map[string]float64{"half": 2, "halves together": 1.5, "halves apart": 2}), 0, []string{"Give the services", "As good"}, "and no placement is better"},
		"better and worse": {with(map[string]float64{"halves together": 0.6, "halves apart": 1.6}), 0.05, []string{`with "half" one`, `with "halves apart" one`, `Worse: "halves together"`}, `with "halves together" one request`},
	} {
		wrong, right := 0, 0
		for seed := range uint64(runs) {
			says := view(t, seed, 30, tc.times, tc.bad).answer()[0]
			if slices.ContainsFunc(tc.wrong, func(w string) bool { return strings.Contains(says, w) }) {
				wrong++
			}
			if strings.Contains(says, tc.right) {
				right++
			}
		}
		// Of 120 runs that are false with a chance of 5 %, more than 12 are in one of 100.
		if wrong > 12 {
			t.Errorf("%s: false in %d of %d runs", name, wrong, runs)
		}
		if 2*right < runs {
			t.Errorf("%s: said in %d of %d runs", name, right, runs)
		}
		t.Logf("%s: false in %d, right in %d of %d", name, wrong, right, runs)
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	a := view(t, 1, 30, map[string]float64{"no rule": 1, "no rule again": 1, "half": 0.5, "halves together": 1, "halves apart": 2, "hog everywhere": 3, "hog elsewhere": 0.5}, 0)
	a.Places = []Place{{Cell: "half", Parts: []Part{{CPUs: set(t, "0-3"), Mems: set(t, "0")}}}}
	says := strings.Join(a.answer(), "\n")
	for _, want := range []string{
		`Do it: berth run --cpuset 0-3 --mems 0 -- SERVICE (each service)`, `"halves apart" against "halves together": p99 `,
		`Beside the neighbour ("hog everywhere") one request in 100 takes `, `"hog elsewhere" against "hog everywhere": p99 0.1`,
	} {
		if !strings.Contains(says, want) {
			t.Errorf("lacks %q:\n%s", want, says)
		}
	}
	if says := view(t, 1, 0, nil, 0).answer(); len(says) != 1 || !strings.HasPrefix(says[0], "Nothing can be said: no round") {
		t.Errorf("without rounds: %q", says)
	}
	if says := view(t, 1, 20, map[string]float64{"no rule": 1, "no rule again": 1}, 0).answer(); !strings.HasPrefix(says[0], "Nothing was compared") {
		t.Errorf("nothing but no rule: %q", says)
	}
	for i := range a.Samples {
		delete(a.Samples[i].Figures, "p99")
	}
	a.Setup.Rate = 40
	if says := a.answer(); !strings.HasPrefix(says[0], "Nothing can be said about response times: a round has about 80 requests") {
		t.Errorf("too few requests: %q", says)
	}
	for i := range a.Samples {
		a.Samples[i].Bound = true
	}
	if says := a.answer(); len(says) != 1 || !strings.Contains(says[0], "cannot keep up") {
		t.Errorf("overloaded: %q", says)
	}
}
