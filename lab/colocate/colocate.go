package colocate

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/program"
	"berth.dev/berth/machine"
)

// Experiment is one with its settings and, once it has run, what it measured: the result as
// stored.
type Experiment struct {
	lab.Header
	Experiment Spec `json:"experiment"`
	// Service is the server that ran, Services how many of it, with CPUsEach CPUs each; Scaled
	// says how those numbers came about.
	Service  string `json:"service,omitempty"`
	Services int    `json:"services,omitempty"`
	CPUsEach int    `json:"cpusEach,omitempty"`
	Scaled   string `json:"scaled,omitempty"`
	// Placed is where each mode has the services.
	Placed []Placed    `json:"placed,omitempty"`
	Rounds []lab.Round `json:"rounds"`
}

// New is one with the default settings.
func New() *Experiment {
	return &Experiment{Header: lab.Header{Schema: Schema}, Experiment: Default(), Rounds: []lab.Round{}}
}

// Spec is what a data file sets.
func (x *Experiment) Spec() any { return &x.Experiment }

// Validate says what is wrong with the settings, naming the field.
func (x *Experiment) Validate() error { return x.Experiment.Validate() }

// Lacks says why a machine can have nothing of it; nil if it can.
func (x *Experiment) Lacks(m *machine.Machine) error {
	if m.Online.Len() < 2 {
		return &kernel.NotSupportedError{Feature: "CPUs of their own", Reason: "this machine has one CPU"}
	}
	return nil
}

// Length is about how long the run takes: at most, as modes that are the same on a machine
// are run once.
func (x *Experiment) Length(*machine.Machine) time.Duration {
	s := x.Experiment
	const between, before = 40 * time.Millisecond, 8 * time.Second
	each := time.Duration(s.Settle+s.Window) + between
	length := before + time.Duration(s.Blocks*len(s.Modes))*each
	if s.For > 0 {
		length = min(length, time.Duration(s.For))
	}
	return length
}

const (
	// limitPeriod is the kernel's default period of a limit.
	limitPeriod = 100 * time.Millisecond
	// articleWork is what a request to Berth's own server is of its units of work: about 0.3 ms,
	// so that a service is kept busy by fewer requests than the generator can ask.
	articleWork = 40
	// articleBytes is its working set: what a core's own caches hold.
	articleBytes = 256 << 10
)

// Run measures, and stores the result in the options' folder as it goes. An experiment that
// was loaded from there goes on with its run. Whatever happens, servers are gone and groups
// are removed when it returns.
func (x *Experiment) Run(ctx context.Context, opt lab.Options) error {
	began := time.Now()
	if err := x.Validate(); err != nil {
		return err
	}
	s := &x.Experiment
	if err := x.choose(); err != nil {
		return err
	}
	if s.Load == wrk {
		if _, err := exec.LookPath(wrk); err != nil {
			return &kernel.NotSupportedError{Feature: "load: wrk", Reason: "wrk is not installed", Remedy: "install it (Debian: apt-get install wrk), or leave out load"}
		}
	}
	base := lab.IsolationSpec()
	base.Name, base.Scenarios, base.CPUs, base.Seed = "colocate", nil, s.CPUs, s.Seed
	base.Blocks, base.Settle, base.Window = s.Blocks, s.Settle, s.Window
	base.Tenant.Service, base.Tenant.Demand, base.Rate = x.Service, s.Demand, s.Rate
	if x.Placed == nil {
		if err := x.place(base); err != nil {
			return err
		}
	}
	opt.Servers, opt.Weight, opt.Switches = x.Services, s.Weight, true
	study := lab.Study{Base: &base, Header: &x.Header, Result: x, Rounds: &x.Rounds, Blocks: func(blocks int) { s.Blocks = blocks }}
	if s.For > 0 {
		study.Ends = began.Add(time.Duration(s.For))
	}
	study.Cells = func(bed *lab.Testbed) ([]lab.Cell, error) {
		s.Seed = base.Seed
		if s.Load == open {
			shared, err := cpuset.Parse(x.Setup.CPUs)
			if err == nil {
				err = bed.FitRate(ctx, x.serve(0), s.Demand*float64(shared.Len()), 0)
			}
			if err != nil {
				return nil, err
			}
		}
		return x.cells(), nil
	}
	return study.Run(ctx, opt)
}

// choose settles which server it is. A run that is resumed keeps it.
func (x *Experiment) choose() error {
	if x.Service != "" {
		return nil
	}
	x.Service = x.Experiment.Service
	if x.Service != auto {
		return nil
	}
	x.Service = "nginx"
	server, _ := program.Find(x.Service)
	if _, err := server.Version(); errors.Is(err, kernel.ErrNotSupported) {
		x.Service = lab.Article
	} else if err != nil {
		return err
	}
	return nil
}

// place has the services placed in all modes, on the CPUs that the testbed will have.
func (x *Experiment) place(base lab.Spec) error {
	m, shared, err := lab.Where(base)
	if err != nil {
		return err
	}
	at, err := x.Experiment.site(m, shared)
	if err == nil {
		x.Placed, x.Services, x.CPUsEach, x.Scaled, err = x.Experiment.scale(at)
	}
	return err
}

// serve is what the servers of every mode are, and what they are asked at a rate.
func (x *Experiment) serve(rate float64) lab.Serve {
	s := lab.Serve{Servers: x.Services, Service: x.Service, Tenant: load.TenantConfig{Procs: x.CPUsEach}}
	if x.Service == lab.Article {
		s.Tenant.Units, s.Tenant.WorkingSetBytes, s.Tenant.Seed = articleWork, articleBytes, x.Experiment.Seed
	}
	s.Load = load.Config{Rate: rate, EachServer: true}
	if x.Experiment.Load == wrk {
		program, _ := exec.LookPath(wrk) // Run has looked
		s.Load.Rate = 500                // of what warms the servers
		s.Load.Wrk = &load.Wrk{Program: program, Threads: 1, Connections: x.Experiment.Connections}
	}
	return s
}

// cells are the modes.
func (x *Experiment) cells() (cells []lab.Cell) {
	serve := x.serve(x.Setup.Rate)
	for n, m := range x.Experiment.Modes {
		c := lab.Cell{Name: m.Name, Serve: &serve, Prepare: func(c *lab.Cell, _ int) (err error) {
			c.Settings, err = x.settings(n)
			return err
		}}
		if x.Experiment.Load == wrk {
			c.Window = time.Duration(x.Experiment.Window) // it has no part that does not count
		}
		cells = append(cells, c)
	}
	return cells
}

// String names the services: "2 nginx services with 1 CPU each".
func (x *Experiment) String() string {
	return fmt.Sprintf("%d %s services with %s each", x.Services, x.Service, cpus(x.CPUsEach))
}
