package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/benchmark"
	"berth.dev/berth/lab/beside"
	"berth.dev/berth/lab/colocate"
	"berth.dev/berth/lab/guarded"
	"berth.dev/berth/lab/limits"
	"berth.dev/berth/lab/neighbours"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/services"
	"berth.dev/berth/machine"
)

// Kinds are those that there are, in the order in which they are listed.
func Kinds() []Kind {
	return []Kind{
		{
			Name: "quick", Question: "what does a CPU hog next door cost, and what is the cheapest cure?",
			Schema: beside.Quick().Schema, New: func() Experiment { return beside.Quick() },
		},
		{
			Name: "isolation", Question: "what does a noisy neighbour cost, and what does each isolation strategy buy?",
			Schema: lab.Schema, New: newIsolation, Verb: "berth lab",
		},
		{
			Name: "memory", Question: "what does a neighbour cost that fills the page cache, and what do limits of memory buy?", Needs: "control groups of its own",
			Schema: lab.Schema, New: func() Experiment { return isolationOf(lab.Memory) }, Verb: "berth lab --resource memory",
		},
		{
			Name: "io", Question: "what does a neighbour cost that reads the same disk, and what do shares and limits of I/O buy?", Needs: "control groups of its own, FUSE and loop devices",
			Schema: lab.Schema, New: func() Experiment { return isolationOf(lab.IO) }, Verb: "berth lab --resource io",
		},
		{
			Name: "net", Question: "what does a neighbour cost that fills the network link, and what do network classes buy?", Needs: "root, a network namespace and HTB; cgroup v2 for the classes",
			Schema: lab.Schema, New: func() Experiment { return isolationOf(lab.Net) }, Verb: "berth lab --resource net",
		},
		{
			Name: "neighbours", Question: "which neighbour hurts which service, and how much?",
			Schema: neighbours.Schema, New: func() Experiment { return neighbours.New() },
		},
		{
			Name: "benchmark", Question: "what does a noisy neighbour do to the figures that a benchmark of yours prints?",
			Needs: "the benchmark, and what it loads", Schema: benchmark.Schema, New: func() Experiment { return benchmark.Default() }, Verb: "berth lab --figures",
		},
		{
			Name: "guard", Question: "does the guard find and cure known disturbances?", Needs: "control groups of its own",
			Schema: guarded.Schema, New: newGuard, Verb: "berth lab guard",
		},
		{
			Name: "guard-protocol", Question: "is a service as good as alone under the guard, by a protocol written first?", Needs: "control groups of its own",
			Schema: guarded.ProtocolSchema, New: newGuardProtocol, Verb: "berth lab guard --protocol",
		},
		{
			Name: "pinning", Question: "what do cores of its own bring a service, and what do they cost?", Needs: "two cores",
			Schema: beside.Pinning().Schema, New: func() Experiment { return beside.Pinning() }, Lacks: beside.Pinning().Lacks,
		},
		{
			Name: "colocate", Question: "do many services on one machine do better with CPUs of their own?", Needs: "two CPUs",
			Schema: colocate.Schema, New: func() Experiment { return colocate.New() }, Lacks: colocate.New().Lacks,
		},
		{
			Name: "numa", Question: "what does memory on another node cost?", Needs: "two NUMA nodes with memory, and root",
			Schema: beside.NUMA().Schema, New: func() Experiment { return beside.NUMA() }, Lacks: beside.NUMA().Lacks,
		},
		{
			Name: "smt", Question: "what does a busy sibling thread cost, and what is the second half of the CPUs worth?", Needs: "cores with two threads",
			Schema: beside.SMT().Schema, New: func() Experiment { return beside.SMT() }, Lacks: beside.SMT().Lacks,
		},
		{
			Name: "cache", Question: "what does a neighbour cost that shares only cache and memory?", Needs: "two cores below one L3 cache",
			Schema: beside.Cache().Schema, New: func() Experiment { return beside.Cache() }, Lacks: beside.Cache().Lacks,
		},
		{
			Name: "power", Question: "what do sleeping and slow CPUs cost a service, and what does it take to have others?",
			Schema: beside.Power().Schema, New: func() Experiment { return beside.Power() },
		},
		serving("limits", "what do CPU limits cost: many small ones, few large ones, none?", limits.Limits),
		serving("limits-ramp", "how do limits do with more and more clients, over small and large tasks?", limits.Ramp),
		serving("limits-noise", "do limits keep a noisy group away from a service, and at what price?", limits.Noise),
		serving("routing", "how are requests best spread over servers with limits?", limits.Routing),
		{
			Name: "services", Question: "where should services that call each other stand: together, apart, or as the scheduler likes?", Needs: "control groups of its own",
			Schema: services.Schema, New: func() Experiment { return services.New() },
		},
	}
}

// serving is a kind of experiment with servers that have limits.
func serving(name, question string, begin func() *limits.Experiment) Kind {
	return Kind{
		Name: name, Question: question, Needs: "control groups of its own", Schema: limits.Schema(name),
		New: func() Experiment { return begin() },
	}
}

// Isolation is what berth lab runs.
type Isolation struct{ lab.Result }

func newIsolation() Experiment { return isolationOf(lab.CPU) }

func isolationOf(r lab.Resource) Experiment {
	e, err := lab.IsolationOf(r)
	if err == nil {
		err = e.Use("quick")
	}
	if err != nil {
		panic(err) // both are there
	}
	return &Isolation{lab.Result{Header: lab.Header{Schema: lab.Schema}, Experiment: e, Rounds: []lab.Round{}}}
}

// Spec is that of the result.
func (x *Isolation) Spec() any { return &x.Experiment }

// Validate says what is wrong with the spec.
func (x *Isolation) Validate() error {
	if x.Experiment.Tenant.Figures != "" {
		return errors.New("experiment: tenant: figures: the figures of a benchmark's own report are those of kind: benchmark")
	}
	return x.Experiment.Validate()
}

// Length is that of the spec.
func (x *Isolation) Length(*machine.Machine) time.Duration { return x.Experiment.Length() }

// Run runs it, or goes on with it.
func (x *Isolation) Run(ctx context.Context, opt lab.Options) error {
	run := func() (*lab.Result, error) { return lab.Isolate(ctx, x.Experiment, opt) }
	if !x.Started.IsZero() {
		run = func() (*lab.Result, error) { return lab.ResumeIsolate(ctx, opt) }
	}
	r, err := run()
	if r != nil {
		x.Result = *r
	}
	return err
}

// Sheet is that of berth lab.
func (x *Isolation) Sheet() (*report.Sheet, error) {
	m, err := lab.Measure(&x.Result)
	if err != nil {
		return nil, err
	}
	return report.Isolation(m, m.Analyse()), nil
}

// Judged are the scenarios beside the tenant alone.
func (x *Isolation) Judged() ([]report.Judged, error) {
	m, err := lab.Measure(&x.Result)
	if err != nil {
		return nil, err
	}
	return []report.Judged{report.JudgedIsolation(m)}, nil
}

// kind is the name of the kind that its settings are of: several share the schema.
func (x *Isolation) kind() string {
	if r := x.Experiment.Resource; r != "" && r != lab.CPU {
		return string(r)
	}
	return x.Experiment.Name
}

// Guard is what berth lab guard runs.
type Guard struct{ guarded.Result }

func newGuard() Experiment {
	return &Guard{guarded.Result{Header: lab.Header{Schema: guarded.Schema}, Experiment: guarded.Default()}}
}

// Spec is that of the result.
func (x *Guard) Spec() any { return &x.Experiment }

// Validate says what is wrong with the spec.
func (x *Guard) Validate() error { return x.Experiment.Validate() }

// Length is that of the spec.
func (x *Guard) Length(*machine.Machine) time.Duration { return x.Experiment.Length() }

// Run runs it, or goes on with it.
func (x *Guard) Run(ctx context.Context, opt lab.Options) error {
	run := func() (*guarded.Result, error) { return guarded.Run(ctx, x.Experiment, opt) }
	if !x.Started.IsZero() {
		run = func() (*guarded.Result, error) { return guarded.Resume(ctx, opt) }
	}
	r, err := run()
	if r != nil {
		x.Result = *r
	}
	return err
}

// Sheet is that of berth lab guard.
func (x *Guard) Sheet() (*report.Sheet, error) {
	a, err := guarded.Analyse(&x.Result)
	if err != nil {
		return nil, fmt.Errorf("analyse: %w", err)
	}
	return guarded.Sheet(&x.Result, a), nil
}

// Judged are the faults by what the guard did, and the scenarios of steady state.
func (x *Guard) Judged() ([]report.Judged, error) {
	a, err := guarded.Analyse(&x.Result)
	if err != nil {
		return nil, err
	}
	return a.Judged(), nil
}

// GuardProtocol is a comparison by a protocol.
type GuardProtocol struct{ guarded.ProtocolResult }

func newGuardProtocol() Experiment {
	return &GuardProtocol{guarded.ProtocolResult{Header: lab.Header{Schema: guarded.ProtocolSchema}, Experiment: guarded.DefaultProtocol()}}
}

// Spec is the protocol.
func (x *GuardProtocol) Spec() any { return &x.Experiment }

// Validate says what is wrong with the protocol.
func (x *GuardProtocol) Validate() error { return x.Experiment.Validate() }

// Length is that of the protocol, if it is not decided before.
func (x *GuardProtocol) Length(*machine.Machine) time.Duration { return x.Experiment.Length() }

// Run runs it, or goes on with it.
func (x *GuardProtocol) Run(ctx context.Context, opt lab.Options) error {
	return guarded.RunProtocol(ctx, &x.ProtocolResult, opt)
}

// Sheet is that of berth lab guard --protocol.
func (x *GuardProtocol) Sheet() (*report.Sheet, error) {
	return guarded.ProtocolSheet(&x.ProtocolResult, guarded.AnalyseProtocol(&x.ProtocolResult)), nil
}

// Judged are the arms.
func (x *GuardProtocol) Judged() ([]report.Judged, error) {
	return guarded.AnalyseProtocol(&x.ProtocolResult).Judged(), nil
}
