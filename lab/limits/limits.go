package limits

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/machine"
)

// Schema names the format of the stored results of one of the experiments.
func Schema(name string) string { return "berth.dev/lab/" + name + "/v1" }

// Experiment is one with its settings and, once it has run, what it measured: the result as
// stored.
type Experiment struct {
	lab.Header
	Experiment Spec `json:"experiment"`
	// Samples are the tiles that were rendered, by kind.
	Samples []Sample    `json:"samples,omitempty"`
	Rounds  []lab.Round `json:"rounds"`
}

// Sample is tiles of a kind, in the order in which they were drawn.
type Sample struct {
	Kind  string `json:"kind"`
	Tiles []Tile `json:"tiles"`
}

// Tile is one and what it came to when it was rendered before the run: servers that come to
// another checksum fail the request.
type Tile struct {
	Number int    `json:"number"`
	Sum    uint64 `json:"sum"`
	Steps  int    `json:"steps"`
	// CPU is the time that it took.
	CPU lab.Duration `json:"cpu"`
}

// costs are the CPU times of the tiles, and mean their mean.
func (s Sample) costs() (costs []time.Duration, mean time.Duration) {
	for _, t := range s.Tiles {
		costs = append(costs, time.Duration(t.CPU))
		mean += time.Duration(t.CPU)
	}
	return costs, mean / time.Duration(max(1, len(costs)))
}

func begin(s Spec) *Experiment {
	return &Experiment{Header: lab.Header{Schema: Schema(s.Name)}, Experiment: s, Rounds: []lab.Round{}}
}

// Spec is a pointer to the settings.
func (x *Experiment) Spec() any { return &x.Experiment }

// Validate says what is wrong with the settings, naming the field.
func (x *Experiment) Validate() error { return x.Experiment.Validate() }

// Length is about how long the run takes, whatever the machine: rounds, what lies between
// them, and the tiles that are rendered beforehand.
func (x *Experiment) Length(*machine.Machine) time.Duration {
	s := x.Experiment
	const between, before, tile = 60 * time.Millisecond, 3 * time.Second, 20 * time.Millisecond
	length := before + time.Duration(s.Blocks*len(s.Configs)*len(s.Loads))*(time.Duration(s.Settle+s.Window)+between)
	for _, kind := range s.kinds() {
		each := map[string]time.Duration{small: tile, large: 25 * tile, all: 5 * tile}[kind]
		length += time.Duration(s.Sample) * each
	}
	if s.For > 0 {
		length = min(length, time.Duration(s.For))
	}
	return length
}

// kinds are those of the tiles of all loads.
func (s Spec) kinds() (kinds []string) {
	for _, l := range s.Loads {
		if !slices.Contains(kinds, l.Tiles) {
			kinds = append(kinds, l.Tiles)
		}
	}
	return kinds
}

// Run measures, and stores the result in the options' folder as it goes. An experiment that
// was loaded from there goes on with its run. Whatever happens, servers are gone and groups
// are removed when it returns.
func (x *Experiment) Run(ctx context.Context, opt lab.Options) error {
	if err := x.Validate(); err != nil {
		return err
	}
	s := &x.Experiment
	base := lab.IsolationSpec()
	base.Name, base.Scenarios, base.CPUs, base.Seed = s.Name, nil, s.CPUs, s.Seed
	base.Blocks, base.Settle, base.Window = s.Blocks, s.Settle, s.Window
	opt.Groups, opt.Servers, opt.Weight = true, s.servers(), s.Weight
	study := lab.Study{Base: &base, Header: &x.Header, Result: x, Rounds: &x.Rounds, Blocks: func(blocks int) { s.Blocks = blocks }}
	if s.For > 0 {
		study.Ends = time.Now().Add(time.Duration(s.For))
	}
	study.Cells = func(bed *lab.Testbed) ([]lab.Cell, error) {
		s.Seed = base.Seed
		if err := x.sample(ctx, opt); err != nil {
			return nil, err
		}
		shared, err := cpuset.Parse(bed.Setup.CPUs)
		return x.cells(shared.Len()), err
	}
	return study.Run(ctx, opt)
}

// sample renders the tiles that are not known yet.
func (x *Experiment) sample(ctx context.Context, opt lab.Options) error {
	for _, kind := range x.Experiment.kinds() {
		if slices.ContainsFunc(x.Samples, func(s Sample) bool { return s.Kind == kind }) {
			continue
		}
		if opt.Progress != nil {
			opt.Progress(lab.Progress{Phase: "calibrate", Scenario: fmt.Sprintf("checksums and costs of %d %s tiles", x.Experiment.Sample, kind)})
		}
		drawn := Sample{Kind: kind}
		for _, t := range draw(kind, x.Experiment.Sample, x.Experiment.Seed) {
			if err := ctx.Err(); err != nil {
				return err
			}
			began := processTime()
			sum, steps := t.Render()
			drawn.Tiles = append(drawn.Tiles, Tile{t.Number, uint64(sum), steps, lab.Duration(processTime() - began)})
		}
		x.Samples = append(x.Samples, drawn)
	}
	return nil
}

// draw draws n tiles of a kind: the same for the same seed, on every machine.
func draw(kind string, n int, seed uint64) (tiles []load.Tile) {
	random := rand.New(rand.NewPCG(seed, 0x74696c65))
	for _, number := range random.Perm(load.Tiles) {
		if t := (load.Tile{Number: number}); kind == all || fits(kind, t.Estimate()) {
			tiles = append(tiles, t)
		}
		if len(tiles) == n {
			break
		}
	}
	return tiles
}

// processTime is the CPU time of this process so far.
func processTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts) // it exists on every Linux
	return time.Duration(ts.Nano())
}

// cells are the configs under each load, on so many CPUs.
func (x *Experiment) cells(cpus int) (cells []lab.Cell) {
	for _, l := range x.Experiment.Loads {
		for _, c := range x.Experiment.Configs {
			cells = append(cells, lab.Cell{
				Name: x.Experiment.cell(c, l), Neighbour: c.Noise, Settings: c.settings(cpus),
				Prepare: func(cell *lab.Cell, block int) error {
					asked, err := x.load(c, l, cpus, block)
					cell.Serve = &lab.Serve{Servers: c.Servers, Tenant: c.tenant(cpus), Load: asked}
					return err
				},
			})
		}
	}
	return cells
}

// tenant is each server. It has no more of the article service than must be.
func (c Config) tenant(cpus int) load.TenantConfig {
	threads := c.Threads
	if threads == 0 {
		threads = cpus
	}
	return load.TenantConfig{Units: 1, WorkingSetBytes: 1 << 10, Procs: threads}
}

// quota is what a share of the CPUs comes to in each period, at least the kernel's 1 ms.
func (c Config) quota(share float64, cpus int) (quota, period time.Duration) {
	if period = time.Duration(c.Period); period == 0 {
		period = 100 * time.Millisecond
	}
	return max(time.Millisecond, time.Duration(math.Round(share*float64(cpus)*float64(period)/1e3))*time.Microsecond), period
}

// settings are the limits of the groups.
func (c Config) settings(cpus int) lab.Settings {
	s := lab.Settings{}
	for n := 1; n <= c.Servers && c.Limit > 0; n++ {
		l := cgroup.Limits{}
		l.Quota, l.Period = c.quota(c.Limit, cpus)
		l.Burst = time.Duration(c.Burst * float64(l.Quota)).Truncate(time.Microsecond)
		s[lab.Server(n)] = l
	}
	if c.NoiseLimit > 0 {
		l := cgroup.Limits{}
		l.Quota, l.Period = Config{}.quota(c.NoiseLimit, cpus)
		s[lab.Neighbour] = l
	}
	return s
}

// most is how many requests per second there is room for in a closed loop: more than can be
// rendered.
const most = 2000

// load is what is asked for in a block: the tiles in an order of its own, at the rate that
// takes the share of the CPUs, or by clients.
func (x *Experiment) load(c Config, l Load, cpus, block int) (asked load.Config, err error) {
	tiles, mean, err := x.tiles(l.Tiles)
	if err != nil {
		return asked, err
	}
	random := rand.New(rand.NewPCG(x.Experiment.Seed, uint64(block)))
	for _, i := range random.Perm(len(tiles)) {
		asked.Paths = append(asked.Paths, load.Tile{Number: tiles[i].Number}.Path(uint32(tiles[i].Sum)))
	}
	asked.Routing = c.Routing
	if l.ClientsPerCPU > 0 {
		asked.Clients, asked.Rate = max(1, int(math.Round(l.ClientsPerCPU*float64(cpus)))), most
		return asked, nil
	}
	asked.Rate = l.Share * float64(cpus) / mean.Seconds()
	return asked, nil
}

// tiles are those of a kind, and the mean of their costs.
func (x *Experiment) tiles(kind string) ([]Tile, time.Duration, error) {
	for _, s := range x.Samples {
		if _, mean := s.costs(); s.Kind == kind && mean > 0 {
			return s.Tiles, mean, nil
		}
	}
	return nil, 0, errors.New("tiles: none of kind " + kind)
}
