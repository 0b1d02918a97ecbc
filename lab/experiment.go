package lab

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/lab/noise"
)

// Experiment is what was asked for: data, complete and reproducible.
type Experiment struct {
	Name   string `json:"name"` // "isolation"
	Preset string `json:"preset,omitempty"`
	// Scenarios are run once per block each, in random order.
	Scenarios []Scenario `json:"scenarios"`
	// Blocks is how often every scenario is run.
	Blocks int `json:"blocks"`
	// Settle is discarded at the start of each round; Window is measured.
	Settle Duration `json:"settle"`
	Window Duration `json:"window"`
	// Rate is in requests per second; 0 lets the lab choose it from the machine.
	Rate      float64      `json:"rate,omitempty"`
	Tenant    TenantSpec   `json:"tenant"`
	Neighbour noise.Config `json:"neighbour"` // Threads 0: one per CPU shared
	// CPUs are those that tenant and neighbour share, as a list; "" lets the lab choose.
	CPUs string `json:"cpus,omitempty"`
	// Seed fixes the arrivals and the order of scenarios; 0 lets the clock choose.
	Seed uint64 `json:"seed,omitempty"`
}

// TenantSpec is the tenant as asked for.
type TenantSpec struct {
	Service string `json:"service"` // "article"
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
func (e Experiment) need(shared int) float64 {
	if e.Rate > 0 && e.Tenant.ServiceTime > 0 {
		return e.Rate * time.Duration(e.Tenant.ServiceTime).Seconds()
	}
	return e.Tenant.Demand * float64(shared)
}

// Scenario is one way of running the two parties side by side.
type Scenario struct {
	Name string `json:"name"`
	// Neighbour is false where the tenant runs alone.
	Neighbour bool `json:"neighbour"`
	// Isolation is what is done to protect the tenant; its zero value is nothing.
	Isolation Isolation `json:"isolation,omitzero"`
	// Means says it in words, for tables and reports.
	Means string `json:"means"`
}

// Isolation says what is done to the neighbour (and, for Split, to the tenant).
type Isolation struct {
	// Weight is the neighbour's cpu.weight (1-10000); the tenant has 100.
	Weight uint64 `json:"weight,omitempty"`
	// Idle sets the neighbour's cpu.idle.
	Idle bool `json:"idle,omitempty"`
	// Cap limits the neighbour by cpu.max to what the tenant leaves.
	Cap bool `json:"cap,omitempty"`
	// Split gives both parties CPUs of their own, in whole cores.
	Split bool `json:"split,omitempty"`
}

// The scenarios that the analysis knows by name.
const (
	Baseline      = "baseline"
	BaselineAgain = "baseline'"
	Unisolated    = "unisolated"
)

// IsolationExperiment is the built-in experiment: what does a neighbour do to
// the tenant, and what does each isolation strategy give back?
func IsolationExperiment() Experiment {
	return Experiment{
		Name: "isolation",
		Scenarios: []Scenario{
			{Name: Baseline, Means: "tenant alone"},
			{Name: BaselineAgain, Means: "tenant alone once more: the noise floor"},
			{Name: Unisolated, Neighbour: true, Means: "neighbour beside it, no tuning"},
			{Name: "weighted", Neighbour: true, Isolation: Isolation{Weight: 10}, Means: "neighbour at a tenth of the tenant's CPU weight"},
			{Name: "idle", Neighbour: true, Isolation: Isolation{Idle: true}, Means: "neighbour in the idle class, beside the tenant's group"},
			{Name: "limited", Neighbour: true, Isolation: Isolation{Cap: true}, Means: "neighbour capped to the CPU time that the tenant leaves"},
			{Name: "pinned", Neighbour: true, Isolation: Isolation{Split: true}, Means: "whole cores of their own for both"},
		},
		Tenant:    TenantSpec{Service: "article", WorkingSetBytes: 8 << 20, Demand: 0.6},
		Neighbour: noise.Config{Kernel: "spin", Intensity: 100},
	}
}

// Preset is a size of experiment.
type Preset struct {
	Name   string
	Blocks int
	Settle time.Duration
	Window time.Duration
	About  string
}

// Presets lists the sizes, the smallest first.
func Presets() []Preset {
	return []Preset{
		{"quick", 6, 300 * time.Millisecond, 2 * time.Second, "about 2 minutes; no verdict on p99.9"},
		{"standard", 10, time.Second, 11 * time.Second, "about 15 minutes"},
		{"publish", 20, 2 * time.Second, 30 * time.Second, "about 80 minutes"},
	}
}

// Use sets blocks, settle and window from a preset.
func (e *Experiment) Use(name string) error {
	var names []string
	for _, p := range Presets() {
		if p.Name == name {
			e.Preset, e.Blocks, e.Settle, e.Window = p.Name, p.Blocks, Duration(p.Settle), Duration(p.Window)
			return nil
		}
		names = append(names, p.Name)
	}
	return fmt.Errorf("preset %q: not one of %s", name, strings.Join(names, ", "))
}

// Keep drops all scenarios but the named ones. The baselines always stay:
// without them there is nothing to compare with and no noise floor.
func (e *Experiment) Keep(names []string) error {
	known := make([]string, len(e.Scenarios))
	for i, s := range e.Scenarios {
		known[i] = s.Name
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return fmt.Errorf("scenario %q: not one of %s", name, strings.Join(known, ", "))
		}
	}
	var kept []Scenario
	for _, s := range e.Scenarios {
		if s.Name == Baseline || s.Name == BaselineAgain || slices.Contains(names, s.Name) {
			kept = append(kept, s)
		}
	}
	e.Scenarios = kept
	return nil
}
