package lab

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/lab/noise"
)

// Spec is what was asked for: data, complete and reproducible. It is the experiment as
// stored, and as read from a file.
type Spec struct {
	Name   string `json:"name"` // "isolation"
	Preset string `json:"preset,omitempty"`
	// Resource is what tenant and neighbour compete for: "cpu" (the default), "memory",
	// "io" or "net". It decides which neighbours and which strategies make sense.
	Resource Resource `json:"resource,omitempty"`
	// Scenarios are run once per block each, in random order.
	Scenarios []Scenario `json:"scenarios"`
	// Blocks is how often every scenario is run, if For and Until leave the time for it.
	// In the result of a complete run it is how often it was.
	Blocks int `json:"blocks"`
	// For ends the run: no block begins that would not end by then, but two are run in
	// any case. 0 is no limit.
	For Duration `json:"for,omitempty"`
	// Until ends the run when the interval of every ratio of p99 is that narrow: 0.1 is
	// ±10 %. What a look has dropped does not count. 0 is never.
	Until float64 `json:"until,omitempty"`
	// Look is after how many blocks the scenarios that are decided by then, and not the best,
	// are dropped; 0 is never. The chance of a false verdict is shared by both looks at the
	// data (docs/statistics.md).
	Look int `json:"look,omitempty"`
	// Settle is discarded at the start of each round; Window is measured.
	Settle Duration `json:"settle"`
	Window Duration `json:"window"`
	// Rate is in requests per second; 0 lets the lab choose it from the machine.
	Rate      float64      `json:"rate,omitempty"`
	Tenant    TenantSpec   `json:"tenant"`
	Neighbour noise.Config `json:"neighbour"` // Threads 0: ThreadsPerCPU of them
	// ThreadsPerCPU is how many threads the neighbour has for each shared CPU; 0 is 1.
	ThreadsPerCPU int `json:"neighbourThreadsPerCPU,omitempty"`
	// Limits are what the user wants of the tenant: how many rounds met them is counted.
	Limits Limits `json:"slo,omitempty"`
	// CPUs are those that tenant and neighbour share, as a list; "" lets the lab choose.
	CPUs string `json:"cpus,omitempty"`
	// LinkRate is what the link takes that they compete for with resource net.
	LinkRate traffic.Rate `json:"linkRate,omitzero"`
	// Awake keeps idle CPUs from sleeping, in all scenarios alike. Nil does so on a virtual
	// machine, where it is permitted: a CPU that sleeps is the hypervisor's, and comes back late.
	Awake *bool `json:"awake,omitempty"`
	// Seed fixes the arrivals and the order of scenarios; 0 lets the clock choose.
	Seed uint64 `json:"seed,omitempty"`
}

// TenantSpec is the tenant as asked for.
type TenantSpec struct {
	// Service is "article", the built-in one; "nginx", "redis", "memcached" or "postgres",
	// which are started with a configuration of the lab's; "program", which Command starts;
	// or "running".
	Service string `json:"service"`
	// Command starts a program, by the shell. Probe is the URL at which it answers, or
	// that which runs does, and Ask what it is asked: "GET key:{0-999}".
	Command string `json:"command,omitempty"`
	Probe   string `json:"probe,omitempty"`
	Ask     string `json:"ask,omitempty"`
	// Exec, in place of Probe, is a command: a request is a run of it by the shell, and has
	// failed unless that ends with status 0. {LOW-HIGH} in it is a number of that range, {port}
	// the port of a server that is known by name. Its processes are in the tenant's place.
	Exec string `json:"exec,omitempty"`
	// Figures is the format of a report (program.Formats): Exec is then a benchmark that loads
	// the tenant by itself, run once a round, and what it prints are the figures.
	Figures string `json:"figures,omitempty"`
	// Connections are what the generator holds open; 0 is 256, of PostgreSQL 32. Of Exec they
	// are how many runs there may be at once; 0 is 32.
	Connections int `json:"connections,omitempty"`
	// PID or Group is that which runs already: a process with those below it, or a control
	// group, as a path below the root of its hierarchy.
	PID   int    `json:"pid,omitempty"`
	Group string `json:"cgroup,omitempty"`
	// ServiceTime is the CPU time of one request; 0 lets the lab choose it, so
	// that the tenant wants Demand of the CPUs. Setup has the work it came to.
	ServiceTime     Duration `json:"serviceTime,omitempty"`
	WorkingSetBytes int64    `json:"workingSetBytes"`
	// Demand is the share (0-1) of the shared CPUs that the tenant wants at the
	// offered load, where rate or service time leave it open.
	Demand float64 `json:"demand"`
}

// need is how many CPUs the tenant wants of so many shared ones: what rate and
// service time come to, or its demand where they leave that open.
func (e Spec) need(shared int) float64 {
	if !e.Tenant.builtIn() {
		return e.Tenant.Demand * float64(shared)
	}
	if e.Rate > 0 && e.Tenant.ServiceTime > 0 {
		return e.Rate * time.Duration(e.Tenant.ServiceTime).Seconds()
	}
	return e.Tenant.Demand * float64(shared)
}

// Scenario is one way of running tenant and neighbour side by side.
type Scenario struct {
	Name string `json:"name"`
	// Neighbour is false where the tenant runs alone.
	Neighbour bool `json:"neighbour"`
	// Isolation is what is done to protect the tenant.
	Isolation Isolation `json:"isolation,omitzero"`
	// Means says it in words, for tables and reports.
	Means string `json:"means"`
}

// Isolation says what is done to the neighbour (for Split to the tenant as well, for MemoryLow
// and NetTenant to the tenant). What is about memory, a disk or a link goes with that resource only. Its zero
// value is a control group of its own, of the tenant's weight.
type Isolation struct {
	// Together has the neighbour in the tenant's control group: each thread is due the same.
	Together bool `json:"together,omitempty"`
	// Weight is the neighbour's CPU weight (1-10000); the tenant has 100.
	Weight uint64 `json:"weight,omitempty"`
	// Idle puts the neighbour into the idle class.
	Idle bool `json:"idle,omitempty"`
	// Cap limits the neighbour's CPU time to what the tenant leaves.
	Cap bool `json:"cap,omitempty"`
	// Split gives both CPUs of their own, in whole cores.
	Split bool `json:"split,omitempty"`
	// MemoryMax and MemoryHigh are where the neighbour's memory ends, in bytes: beyond, its
	// own pages are taken, with MemoryHigh not all at once, but it is slowed down.
	MemoryMax  int64 `json:"memoryMax,omitempty"`
	MemoryHigh int64 `json:"memoryHigh,omitempty"`
	// MemoryLow is how much of its memory the tenant keeps under others' pressure, in bytes.
	MemoryLow int64 `json:"memoryLow,omitempty"`
	// Scheduler is the disk's I/O scheduler: "bfq"; "" means none. IOWeight is the neighbour's
	// share of the disk (1-10000), which needs one; the tenant has 100.
	Scheduler string `json:"scheduler,omitempty"`
	IOWeight  uint64 `json:"ioWeight,omitempty"`
	// IOMax limits what the neighbour reads, in bytes per second.
	IOMax int64 `json:"ioMax,omitempty"`
	// NetTenant and NetNeighbour are network classes of the two: what each may send.
	NetTenant    traffic.Share `json:"netTenant,omitzero"`
	NetNeighbour traffic.Share `json:"netNeighbour,omitzero"`
	// Guard has the guard watch the two, and act on the neighbour once the tenant suffers.
	Guard bool `json:"guard,omitempty"`
}

// The scenarios that the analysis knows by name.
const (
	Baseline      = "baseline"
	BaselineAgain = "baseline'"
	Unisolated    = "unisolated"
	grouped       = "grouped"
)

// IsolationSpec is the built-in experiment: what does a neighbour do to
// the tenant, and what does each isolation strategy give back?
func IsolationSpec() Spec {
	return Spec{
		Name: "isolation",
		Scenarios: []Scenario{
			{Name: Baseline, Means: "tenant alone"},
			{Name: BaselineAgain, Means: "tenant alone once more, to see by how much the same thing differs"},
			{Name: Unisolated, Neighbour: true, Isolation: Isolation{Together: true}, Means: "both in one control group, as are all programs of a host that has not set groups up: each thread is due the same"},
			{Name: "weighted", Neighbour: true, Isolation: Isolation{Weight: 10}, Means: "neighbour at a tenth of the tenant's CPU weight"},
			{Name: "idle", Neighbour: true, Isolation: Isolation{Idle: true}, Means: "neighbour in the idle class, beside the tenant's group"},
			{Name: "limited", Neighbour: true, Isolation: Isolation{Cap: true}, Means: "neighbour capped to the CPU time that the tenant leaves"},
			{Name: "pinned", Neighbour: true, Isolation: Isolation{Split: true}, Means: "whole cores of their own for both"},
		},
		Tenant:    TenantSpec{Service: Article, WorkingSetBytes: 8 << 20, Demand: 0.4},
		Neighbour: noise.Config{Kernel: "spin", Intensity: 100}, ThreadsPerCPU: 4,
	}
}

// Beside fits the scenarios to a tenant that runs already: it stays where it is, and as it
// is, so nobody joins its group, and it is not confined to CPUs.
func (e *Spec) Beside() {
	for i := range e.Scenarios {
		s := &e.Scenarios[i]
		switch {
		case s.Isolation.Together:
			s.Isolation.Together = false
			s.Means = "neighbour in a control group of its own, of equal weight; no tuning, and the tenant stays where it is"
		case s.Isolation.Split:
			s.Means = "neighbour kept to cores of its own; the tenant is not moved, and may use those, too"
		}
	}
}

// Known are the scenarios of the experiment, and those that it has if asked for them (Keep).
func (e Spec) Known() []Scenario {
	if e.Resource != "" && e.Resource != CPU {
		return e.Scenarios
	}
	return append(slices.Clone(e.Scenarios), Scenario{Name: grouped, Neighbour: true, Means: "neighbour in a control group of its own, of the tenant's weight, as containers are by default (with --scenario only)"})
}

// Preset is a size of experiment: so many blocks, in a limited time.
type Preset struct {
	Name   string
	Blocks int
	For    time.Duration
	About  string
}

// The lengths of a round, whatever the size: others' work comes in bursts, and rounds that are
// much shorter than those, and many, decide more in the same time
// (docs/measurements/statistics-designs.md). From settle on the tenant's figures are steady
// (docs/measurements/lab-settle.md).
const (
	settle = 100 * time.Millisecond
	window = 500 * time.Millisecond
	// settleMemory is for the tenant's pages to come back from where they were driven to.
	settleMemory = 500 * time.Millisecond
	// settleNet is for what waits at the link to be sent as before, and TCP to find its pace.
	settleNet = 300 * time.Millisecond

	// look is where the most narrows the intervals that matter: eleven blocks that agree decide what a look drops, and the
	// cut takes some (docs/measurements/statistics-designs.md).
	look = 15
)

// Presets lists the sizes, the smallest first.
func Presets() []Preset {
	return []Preset{
		{"quick", 25, 2 * time.Minute, "about 2 minutes; no verdict on p99.9"},
		{"standard", 175, 15 * time.Minute, "about 13 minutes"},
		{"publish", 750, time.Hour, "about 55 minutes"},
	}
}

// Use sets blocks, the time for them, settle and window from a preset.
func (e *Spec) Use(name string) error {
	var names []string
	for _, p := range Presets() {
		if p.Name == name {
			e.Preset, e.Blocks, e.For, e.Settle, e.Window, e.Look = p.Name, p.Blocks, Duration(p.For), Duration(settle), Duration(window), look
			switch e.Resource {
			case Memory:
				e.Settle = Duration(settleMemory)
			case Net:
				e.Settle = Duration(settleNet)
				e.For = e.For * 3 / 2 // the guard's rounds are long
			}
			return nil
		}
		names = append(names, p.Name)
	}
	return fmt.Errorf("preset %q: not one of %s", name, strings.Join(names, ", "))
}

// MaxBlocks bounds the blocks of a run.
const MaxBlocks = 10_000

// Fill asks for as many blocks as fit into a time. So many cannot be more than this.
func (e *Spec) Fill(limit time.Duration) {
	e.For, e.Blocks = Duration(limit), int(min(max(limit/max(e.block(0), time.Millisecond), leastBlocks), MaxBlocks))
}

// Length is about how long the run takes: rounds, what lies between them, and
// calibration. A tenant that cannot keep up takes longer.
func (e Spec) Length() time.Duration {
	const between, before = 40 * time.Millisecond, 6 * time.Second
	length := before + time.Duration(e.Blocks)*e.block(between)
	if slices.ContainsFunc(e.Scenarios, func(s Scenario) bool { return s.Isolation.Guard }) {
		length += guardLearns
	}
	if e.For > 0 {
		length = min(length, time.Duration(e.For))
	}
	return length
}

// Keep drops all scenarios but the named ones. The baselines always stay:
// without them nothing can be compared.
func (e *Spec) Keep(names []string) error {
	all := e.Known()
	known := make([]string, len(all))
	for i, s := range all {
		known[i] = s.Name
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return fmt.Errorf("scenario %q: not one of %s", name, strings.Join(known, ", "))
		}
	}
	var kept []Scenario
	for _, s := range all {
		if s.Name == Baseline || s.Name == BaselineAgain || slices.Contains(names, s.Name) {
			kept = append(kept, s)
		}
	}
	e.Scenarios = kept
	return nil
}

// Validate says what is wrong with an experiment, naming the field.
func (e Spec) Validate() error {
	window, service := time.Duration(e.Window), time.Duration(e.Tenant.ServiceTime)
	requests := e.Rate * (window + time.Duration(e.Settle)).Seconds()
	for _, rule := range []struct {
		broken bool
		says   string
	}{
		{!isName(e.Name), fmt.Sprintf("name %q: %s", e.Name, nameRule)},
		{e.Blocks < 1 || e.Blocks > MaxBlocks, fmt.Sprintf("rounds: %d: want 1 to %d", e.Blocks, MaxBlocks)},
		{e.For < 0 || time.Duration(e.For) > 30*24*time.Hour, fmt.Sprintf("for: %s: want at most 720h", e.For)},
		{!(e.Until >= 0 && e.Until < 10), fmt.Sprintf("until: %g: want 0 to 10 (1000 %%)", e.Until)},
		{e.Look < 0 || e.Look > MaxBlocks, fmt.Sprintf("look: %d: want 0 to %d", e.Look, MaxBlocks)},
		{e.ThreadsPerCPU < 0 || e.ThreadsPerCPU > 64, fmt.Sprintf("neighbourThreadsPerCPU: %d: want at most 64", e.ThreadsPerCPU)},
		{window < 200*time.Millisecond || window > time.Hour, fmt.Sprintf("duration: %s: want 200ms to 1h", e.Window)},
		{e.Settle < 0 || time.Duration(e.Settle) > time.Hour, fmt.Sprintf("settle: %s: want 0 to 1h", e.Settle)},
		{!(e.Rate >= 0 && e.Rate <= maxRate), fmt.Sprintf("rate: %g: want at most %d requests per second", e.Rate, maxRate)},
		{requests > maxRequests, fmt.Sprintf("rate %g for %s: want at most %d requests in a round", e.Rate, e.Window, maxRequests)},
		{!(e.Tenant.Demand > 0 && e.Tenant.Demand <= 1), fmt.Sprintf("demand: %g: want more than 0 and at most 1", e.Tenant.Demand)},
		{service < 0 || service > time.Second, fmt.Sprintf("service-time: %s: want at most 1s", e.Tenant.ServiceTime)},
		{e.Tenant.WorkingSetBytes < 4096, fmt.Sprintf("working-set: %d bytes: want 4096 or more", e.Tenant.WorkingSetBytes)},
	} {
		if rule.broken {
			return fmt.Errorf("experiment: %s", rule.says)
		}
	}
	if err := e.Tenant.validate(); err != nil {
		return fmt.Errorf("experiment: %w", err)
	}
	if e.Tenant.Figures != "" && (e.Rate != 0 || e.Until != 0 || e.Limits != nil || e.Look != 0) {
		return errors.New("experiment: figures: a benchmark chooses its own load, and its report has no single requests: leave out rate, until, slo and look")
	}
	if err := e.Limits.validate(); err != nil {
		return fmt.Errorf("experiment: slo: %w", err)
	}
	if _, err := cpuset.Parse(e.CPUs); err != nil {
		return fmt.Errorf("experiment: cpus: %w", err)
	}
	if err := e.validateResource(); err != nil {
		return err
	}
	neighbour := e.Neighbour
	neighbour.Threads = max(1, neighbour.Threads) // 0: chosen from the machine
	switch e.Resource {
	case Memory, IO:
		neighbour.File = "made for the run"
	case Net:
		neighbour.Address = "made for the run"
	}
	if err := neighbour.Validate(); err != nil {
		return fmt.Errorf("experiment: %w", err)
	}
	return e.validateScenarios()
}

func (e Spec) validateScenarios() error {
	seen := map[string]bool{}
	for _, s := range e.Scenarios {
		if !isName(s.Name) || seen[s.Name] {
			return fmt.Errorf("experiment: scenario %q: want a name of its own, %s", s.Name, nameRule)
		}
		seen[s.Name] = true
		if w := s.Isolation.Weight; w > 10_000 {
			return fmt.Errorf("experiment: scenario %s: weight %d: want 1 to 10000", s.Name, w)
		}
		if s.Isolation.Idle && s.Isolation.Weight > 0 {
			return fmt.Errorf("experiment: scenario %s: an idle group has no weight of its own", s.Name)
		}
		if s.Neighbour && (s.Name == Baseline || s.Name == BaselineAgain) {
			return fmt.Errorf("experiment: scenario %s: the baseline is the tenant alone", s.Name)
		}
		if s.Isolation.Together && e.Tenant.Service == Outside {
			return fmt.Errorf("experiment: scenario %s: nobody joins the group of a tenant that runs already: leave out together", s.Name)
		}
		if s.Isolation.Together && s.Isolation != (Isolation{Together: true}) {
			return fmt.Errorf("experiment: scenario %s: what shares the tenant's group has no settings of its own", s.Name)
		}
		if s.Isolation != (Isolation{}) && !s.Neighbour {
			return fmt.Errorf("experiment: scenario %s: isolation from a neighbour that does not run", s.Name)
		}
	}
	if !seen[Baseline] || !seen[BaselineAgain] {
		return fmt.Errorf("experiment: scenarios: %s and %s must be there", Baseline, BaselineAgain)
	}
	return nil
}

// maxRate is the most that a generator is asked for, in requests per second.
const maxRate = 50_000

// maxRequests bounds what the generator keeps of a round in memory.
const maxRequests = 10_000_000

const nameRule = "of letters, digits, '-', '_', '.' and \"'\""

// isName reports whether a name can stand in file names and CSV as it is.
func isName(name string) bool {
	ok := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_.'", c)
	}
	return name != "" && len(name) <= 40 && name[0] != '.' && strings.IndexFunc(name, func(c rune) bool { return !ok(c) }) < 0
}
