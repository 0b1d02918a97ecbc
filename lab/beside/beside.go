// Package beside has the experiments of one tenant and one neighbour that differ in where
// the two stand and what they are given: quick, pinning, numa, smt, cache and power. Each is a
// design: cells, what they are compared with, and the words for what comes out. The load,
// the rounds and the statistics are those of lab.
package beside

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
	"berth.dev/berth/machine"
)

// Spec is what a data file sets.
type Spec struct {
	// Blocks is how often every cell is run, if For leaves the time for it.
	Blocks int          `json:"blocks"`
	For    lab.Duration `json:"for,omitempty"`
	// Settle is discarded at the start of each round; Window is measured.
	Settle lab.Duration `json:"settle"`
	Window lab.Duration `json:"window"`
	// Demand is the share (0-1) of the shared CPUs that the tenant wants, Rate its requests
	// per second (0: the lab chooses).
	Demand          float64 `json:"demand"`
	Rate            float64 `json:"rate,omitempty"`
	WorkingSetBytes int64   `json:"workingSetBytes"`
	// Neighbour is what works beside it, with so many threads for each shared CPU.
	Neighbour     noise.Config `json:"neighbour"`
	ThreadsPerCPU int          `json:"neighbourThreadsPerCPU"`
	// NodePrice is what a machine like this one costs, in any currency and for any time;
	// 0 is unknown. Only pinning has a bill.
	NodePrice float64 `json:"nodePrice,omitempty"`
	CPUs      string  `json:"cpus,omitempty"`
	// Weight is the CPU weight of all of it together against all else on the host; 0 is
	// the usual 100. It takes control groups.
	Weight int    `json:"weight,omitempty"`
	Seed   uint64 `json:"seed,omitempty"`
}

// base is what the testbed is asked for.
func (e Spec) base(name string) lab.Spec {
	b := lab.IsolationSpec()
	b.Name, b.Blocks, b.For, b.Settle, b.Window = name, e.Blocks, e.For, e.Settle, e.Window
	b.Rate, b.CPUs, b.Seed, b.Neighbour, b.ThreadsPerCPU = e.Rate, e.CPUs, e.Seed, e.Neighbour, e.ThreadsPerCPU
	b.Tenant.Demand, b.Tenant.WorkingSetBytes = e.Demand, e.WorkingSetBytes
	return b
}

// usual are the settings that designs start from.
func usual() Spec {
	const ms = lab.Duration(time.Millisecond)
	return Spec{
		Blocks: 40, For: lab.Duration(2 * time.Minute), Settle: 100 * ms, Window: 500 * ms, Demand: 0.3, WorkingSetBytes: 8 << 20,
		Neighbour: noise.Config{Kernel: "spin", Intensity: 100}, ThreadsPerCPU: 1,
	}
}

// Experiment is one of the designs with its settings and what was measured: as JSON, the
// stored result.
type Experiment struct {
	lab.Header
	Experiment Spec        `json:"experiment"`
	Rounds     []lab.Round `json:"rounds"`
	// Residency is where the tenant's memory was, as read back in each round; numa only.
	Residency []Residency `json:"residency,omitempty"`
	// Power is what the CPUs did in each round, EnergyNote why their energy is not known;
	// power only.
	Power      []PowerUse `json:"power,omitempty"`
	EnergyNote string     `json:"energyNote,omitempty"`

	design *design
	fsys   fs.FS // what this host can do is read in it
}

// design is what makes an experiment.
type design struct {
	name, schema string
	spec         func() Spec
	// cells are in the order of the table; the first is the reference.
	cells []cell
	// versus are the comparisons besides those with the reference.
	versus []stats.Versus
	// figures are those that are judged.
	figures []stats.Figure
	// words say what it comes to; tables are what it has besides the judged one.
	words  func(*view) []string
	tables func(*view) []report.Block
	lacks  func(*machine.Machine) error
	// sleeps leaves to the cells whether idle CPUs sleep, and has it read in each round.
	sleeps bool
}

// cell is one way of running the two.
type cell struct {
	name, means string
	neighbour   bool
	// together has both in one control group, as programs of a host without groups are.
	together bool
	// fresh starts the tenant anew in each round, and reads back where its memory is.
	fresh bool
	// other is a kernel that works in the neighbour's place.
	other string
	// place says where the two stand, or stand does, which needs no more than the machine;
	// without either both are on all shared CPUs.
	place func(*lab.Testbed) (lab.Settings, error)
	stand stand
	// host is what CPUs of the host are set to meanwhile, division what the two have of cache
	// and memory bandwidth.
	host     onHost
	division *division
}

// stand is where the two stand on CPUs of a machine. A kernel.NotSupportedError says that the
// machine has no such place.
type stand func(m *machine.Machine, free cpuset.Set) (lab.Settings, error)

func (d *design) make() *Experiment {
	return &Experiment{Header: lab.Header{Schema: d.schema}, Experiment: d.spec(), Rounds: []lab.Round{}, design: d, fsys: os.DirFS("/")}
}

// Spec is what a data file sets.
func (x *Experiment) Spec() any { return &x.Experiment }

// Validate says what is wrong with the settings, naming the field.
func (x *Experiment) Validate() error {
	if err := x.Experiment.base(x.design.name).Validate(); err != nil {
		return err
	}
	switch e := x.Experiment; {
	case e.Weight < 0 || e.Weight > 10_000:
		return fmt.Errorf("experiment: weight: %d: want 1 to 10000", e.Weight)
	case e.Weight > 300 && x.design == quick: // at 10000 it waits for the CPU for more than a minute
		return fmt.Errorf("experiment: weight: %d: want at most 300, as the hog has it too and would starve the generator", e.Weight)
	case e.NodePrice < 0:
		return fmt.Errorf("experiment: nodePrice: %g: want 0 or more", e.NodePrice)
	case e.NodePrice > 0 && x.design != pinning:
		return fmt.Errorf("experiment: nodePrice: only pinning has a bill")
	}
	return nil
}

// Lacks says why a machine can have nothing of it; nil if it can.
func (x *Experiment) Lacks(m *machine.Machine) error {
	if x.design.lacks == nil {
		return nil
	}
	return x.design.lacks(m)
}

// Length is about how long the run takes, without the cells that the machine has no place for.
func (x *Experiment) Length(m *machine.Machine) time.Duration {
	e := x.Experiment
	const between, before, anew = 40 * time.Millisecond, 6 * time.Second, time.Second
	length := before
	for _, c := range x.design.cells {
		if c.stand != nil && m != nil {
			free, err := e.base(x.design.name).SharedCPUs(m)
			if err == nil {
				_, err = c.stand(m, free)
			}
			if errors.Is(err, kernel.ErrNotSupported) {
				continue
			}
		}
		if x.cannot(c) {
			continue
		}
		each := time.Duration(e.Settle+e.Window) + between
		if c.fresh {
			each += anew
		}
		length += time.Duration(e.Blocks) * each
	}
	if e.For > 0 {
		length = min(length, time.Duration(e.For))
	}
	return length
}

// cannot says that a cell is skipped, or will be: by what this host can do, as a machine does
// not tell it.
func (x *Experiment) cannot(c cell) bool {
	if !x.Started.IsZero() {
		return slices.ContainsFunc(x.Skipped, func(s lab.Skipped) bool { return s.Scenario == c.name }) ||
			c.division != nil && len(x.Rounds) > 0 && !x.divided() // a run from before there were such cells
	}
	var err error
	switch {
	case c.division != nil:
		err = c.division.check(x.fsys)
	case c.host != nil:
		var h *power.Host
		if h, err = power.Read(x.fsys); err == nil {
			_, err = c.host(h, h.Online())
		}
	}
	return errors.Is(err, kernel.ErrNotSupported)
}

// Run measures, or goes on.
func (x *Experiment) Run(ctx context.Context, opt lab.Options) (err error) {
	began := time.Now()
	if !x.Started.IsZero() && x.Complete {
		return errors.New("resume: the run is complete")
	}
	base := x.Experiment.base(x.design.name)
	if x.design.sleeps {
		base.Awake = new(bool)
	}
	opt.Switches, opt.Weight = true, x.Experiment.Weight
	var m *meter
	defer func() {
		if m != nil {
			err = errors.Join(err, m.close())
		}
	}()
	study := lab.Study{
		Base: &base, Header: &x.Header, Result: x, Rounds: &x.Rounds,
		Cells: func(b *lab.Testbed) ([]lab.Cell, error) {
			x.Experiment.Seed = base.Seed
			if err := b.Count(lab.Tenant); err != nil && !errors.Is(err, kernel.ErrNotSupported) {
				return nil, err
			}
			if x.design.sleeps {
				cpus, err := runCPUs(b.Setup)
				if err != nil {
					return nil, err
				}
				if m, x.EnergyNote, err = openMeter(cpus); err != nil {
					return nil, err
				}
			}
			return x.cells(b, m), nil
		},
		Blocks: func(blocks int) { x.Experiment.Blocks = blocks },
	}
	if base.For > 0 {
		study.Ends = began.Add(time.Duration(base.For))
	}
	return study.Run(ctx, opt)
}

// cells are those of the design on a testbed, and with a meter if it is not nil.
func (x *Experiment) cells(b *lab.Testbed, m *meter) []lab.Cell {
	var cells []lab.Cell
	for _, c := range x.design.cells {
		cell := lab.Cell{Name: c.name, Neighbour: c.neighbour, Together: c.together, Fresh: c.fresh, Prepare: func(to *lab.Cell, block int) (err error) {
			if m != nil {
				to.Hooks.During = x.during(m, c.name, block)
			}
			switch {
			case c.host != nil:
				err = c.prepareHost(x.fsys, b, to)
			case c.place != nil:
				to.Settings, err = c.place(b)
			case c.stand != nil:
				free, wrong := cpuset.Parse(b.Setup.CPUs)
				if wrong != nil {
					return wrong
				}
				to.Settings, err = c.stand(x.Host.Machine, free)
			}
			if c.division != nil && err == nil {
				err = x.prepareDivided(c.division, b, to)
			}
			if mems := to.Settings[lab.Tenant].Mems; c.fresh && err == nil {
				to.Hooks.During = x.readBack(c.name, mems)
			}
			return err
		}}
		if c.other != "" {
			n := b.Setup.Neighbour
			n.Kernel, n.Bytes = c.other, 0
			cell.Neighbour, cell.Noise = true, &n
		}
		cells = append(cells, cell)
	}
	return cells
}
