package services

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/machine"
)

// Schema names the format of the stored results.
const Schema = "berth.dev/lab-services/v1"

// Experiment is one with its settings and, once it has run, what it measured: the result as
// stored.
type Experiment struct {
	lab.Header
	Experiment Spec `json:"experiment"`
	// Work is how many articles a request to each service renders, by the order of the spec:
	// what its CPU time came to on this machine.
	Work []int `json:"work,omitempty"`
	// Places are where the placements have the services.
	Places []Place     `json:"places,omitempty"`
	Rounds []lab.Round `json:"rounds"`
	// Served is what each service did in each round; the servers of a round are in its order.
	Served []Served `json:"served"`
}

// Served is what the services did in the window of a round.
type Served struct {
	Block    int             `json:"block"`
	Cell     string          `json:"cell"`
	Services []ServiceServed `json:"services"`
}

// ServiceServed is what a service did.
type ServiceServed struct {
	Name string `json:"name"`
	load.ServiceTimes
	// Bytes are where its memory was at the end, by NUMA node; Ran is the share (0-1) of its CPU
	// time on each, as sampled. Absent where the CPUs that take part are near one memory.
	Bytes map[int]int64   `json:"bytes,omitempty"`
	Ran   map[int]float64 `json:"ran,omitempty"`
}

// New is an experiment with the default settings.
func New() *Experiment {
	return &Experiment{Header: lab.Header{Schema: Schema}, Experiment: Default(), Rounds: []lab.Round{}, Served: []Served{}}
}

// Spec is a pointer to the settings.
func (x *Experiment) Spec() any { return &x.Experiment }

// Validate says what is wrong with the settings, naming the field.
func (x *Experiment) Validate() error { return x.Experiment.Validate() }

// Length is about how long the run takes: rounds, what lies between them, and what comes
// before. On a machine with several memories services start anew in each round.
func (x *Experiment) Length(m *machine.Machine) time.Duration {
	const between, before, anew, each = 80 * time.Millisecond, 6 * time.Second, 700 * time.Millisecond, 50 * time.Millisecond
	e, s := x.Experiment, site{m, m.Online}
	g, err := newGraph(e.Services)
	if err != nil {
		return before
	}
	round := time.Duration(e.Settle+e.Window) + between
	if s.numa() {
		round += anew + time.Duration(len(e.Services))*each
	}
	length := before
	for _, p := range e.places(g, s, 0) {
		if p.err == nil {
			length += time.Duration(e.Blocks) * round
		}
	}
	if e.For > 0 {
		length = min(length, time.Duration(e.For))
	}
	return length
}

// Run measures, and stores the result in the options' folder as it goes. An experiment that
// was loaded from there goes on with its run. Whatever happens, services are gone and groups
// are removed when it returns.
func (x *Experiment) Run(ctx context.Context, opt lab.Options) error {
	began := time.Now()
	if err := x.Validate(); err != nil {
		return err
	}
	e := &x.Experiment
	base := e.base()
	opt.Groups, opt.Servers, opt.Weight = true, len(e.Services), e.Weight
	study := lab.Study{
		Base: &base, Header: &x.Header, Result: x, Rounds: &x.Rounds,
		Cells: func(bed *lab.Testbed) ([]lab.Cell, error) {
			e.Seed = base.Seed
			return x.cells(ctx, bed)
		},
		Blocks: func(blocks int) { e.Blocks = blocks },
	}
	if e.For > 0 {
		study.Ends = began.Add(time.Duration(e.For))
	}
	return study.Run(ctx, opt)
}

// cells are the placements on this machine. What is not settled yet is.
func (x *Experiment) cells(ctx context.Context, bed *lab.Testbed) ([]lab.Cell, error) {
	free, err := cpuset.Parse(x.Setup.CPUs)
	if err != nil {
		return nil, err
	}
	g, err := newGraph(x.Experiment.Services)
	if err != nil {
		return nil, err
	}
	s := site{x.Host.Machine, free}
	if err := x.fitWork(); err != nil {
		return nil, err
	}
	serve := &lab.Serve{Servers: len(g.services), Graph: x.servers(g, free.Len())}
	if x.Setup.Rate == 0 {
		all := time.Duration(0)
		for i := range g.services {
			all += g.work(i)
		}
		want := x.Experiment.Demand * float64(free.Len())
		if err := bed.FitRate(ctx, *serve, want, want/all.Seconds()); err != nil {
			return nil, err
		}
		x.lengthen()
	}
	serve.Load = load.Config{Rate: x.Setup.Rate}
	return x.placements(g, s, serve)
}

// enough is how many requests a round is to have: a p99 takes 100.
const enough = 130

// lengthen makes the window so long that enough requests come in it, unless the rate was given.
func (x *Experiment) lengthen() {
	if x.Experiment.Rate == 0 {
		least := time.Duration(enough / x.Setup.Rate * float64(time.Second)).Round(100 * time.Millisecond)
		x.Experiment.Window = max(x.Experiment.Window, lab.Duration(least))
	}
}

// fitWork finds out how many articles come to the CPU time of each service.
func (x *Experiment) fitWork() error {
	if len(x.Work) > 0 {
		return nil
	}
	memory, err := kernel.ReadMemory(os.DirFS("/"))
	if err != nil {
		return err
	}
	needed := int64(0)
	for _, s := range x.Experiment.Services {
		needed += s.WorkingSetBytes
	}
	if needed > memory.Available/4 {
		return fmt.Errorf("services: working sets of %d MiB together are more than a quarter of the memory available (%d MiB)", needed>>20, memory.Available>>20)
	}
	defer debug.FreeOSMemory()
	for _, s := range x.Experiment.Services {
		each, err := load.UnitCost(load.TenantConfig{WorkingSetBytes: s.WorkingSetBytes, Seed: x.Experiment.Seed})
		if err != nil {
			return fmt.Errorf("service %s: %w", s.Name, err)
		}
		x.Work = append(x.Work, max(1, int(math.Round(float64(s.CPU)/float64(max(each, 1))))))
	}
	return nil
}

// servers are the services as the testbed starts them, callees first.
func (x *Experiment) servers(g *graph, cpus int) *lab.Graph {
	at := make([]int, len(g.order)) // of each service in the order
	for n, i := range g.order {
		at[i] = n
	}
	number := map[string]int{}
	for i, s := range g.services {
		number[s.Name] = at[i]
	}
	var out lab.Graph
	for _, i := range g.order {
		s := g.services[i]
		c := load.ServiceConfig{Timed: true, TenantConfig: load.TenantConfig{
			Units: x.Work[i], WorkingSetBytes: s.WorkingSetBytes, Procs: cpus, Seed: x.Experiment.Seed + uint64(i),
		}}
		for _, step := range s.Steps {
			var calls []load.Call
			for _, call := range step {
				calls = append(calls, load.Call{To: number[call.To], Share: call.Share, Times: call.Times})
			}
			c.Steps = append(c.Steps, calls)
		}
		out.Services = append(out.Services, c)
	}
	return &out
}

// placements are the cells. Where the CPUs are near several memories, services start anew in
// each round, when they stand where they are to: memory stays where it was taken.
func (x *Experiment) placements(g *graph, s site, serve *lab.Serve) (cells []lab.Cell, err error) {
	x.Places = nil
	for _, p := range x.Experiment.places(g, s, x.Setup.TenantCPUs) {
		if p.impossible() {
			return nil, fmt.Errorf("placement %s: %w", p.Name, p.err)
		}
		if p.err == nil {
			x.Places = append(x.Places, *p.at)
		}
		var served Served
		cell := lab.Cell{
			Name: p.Name, Serve: serve, Neighbour: p.Neighbour != "", Fresh: s.numa(),
			Settle: time.Duration(x.Experiment.Settle), Window: time.Duration(x.Experiment.Window),
			Prepare: func(_ *lab.Cell, block int) error {
				served = Served{Block: block, Cell: p.Name}
				return p.err
			},
			Keep: func(round lab.Round) error {
				x.Rounds, x.Served = append(x.Rounds, round), append(x.Served, served)
				return nil
			},
		}
		if p.err == nil {
			cell.Settings = g.settings(p)
		}
		cell.Hooks.During = func(ctx context.Context, r *lab.Running) (err error) {
			w := &watching{run: r, graph: g, nodes: nodeOf(s.machine), numa: s.numa()}
			served.Services, err = w.window(ctx, time.Duration(x.Experiment.Settle), time.Duration(x.Experiment.Window))
			return err
		}
		cells = append(cells, cell)
	}
	return cells, nil
}
