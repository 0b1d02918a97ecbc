package lab

import (
	"errors"
	"fmt"
	"strings"

	"berth.dev/berth/kernel"
	"berth.dev/berth/lab/stats"
)

// Preview says what a run would do.
type Preview struct {
	Experiment Experiment `json:"experiment"`
	Setup      Setup      `json:"setup"`
	// Writes are the kernel settings of each scenario, one per line.
	Writes  map[string]string `json:"writes"`
	Skipped []Skipped         `json:"skipped,omitempty"`
	// Order is the scenarios of each block in the order in which they would run.
	Order [][]string `json:"order"`
}

// Plan says what Run would do. It makes the lab's control groups, to see what
// the kernel offers in them, and removes them again; it measures nothing.
func Plan(exp Experiment, opt Options) (_ *Preview, err error) {
	r, err := prepare(exp, opt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	// Not calibrated: the demand asked for stands for the one measured.
	r.result.Setup.TenantCPUs = exp.need(r.places.shared.Len())
	p := &Preview{Experiment: r.exp, Setup: r.result.Setup, Writes: map[string]string{}}
	var names []string
	for _, s := range exp.Scenarios {
		names = append(names, s.Name)
		writes, err := r.preview(s)
		switch {
		case errors.Is(err, kernel.ErrNotSupported):
			r.skip(s.Name, err)
		case err != nil:
			return nil, fmt.Errorf("scenario %s: %w", s.Name, err)
		default:
			p.Writes[s.Name] = writes
		}
	}
	p.Skipped = r.result.Skipped
	for block := range exp.Blocks {
		p.Order = append(p.Order, stats.Order(names, block, r.exp.Seed))
	}
	return p, nil
}

// String writes the preview for a terminal.
func (p *Preview) String() string {
	var b strings.Builder
	s := p.Setup
	fmt.Fprintf(&b, "experiment %s: %d rounds of %d scenarios, %s settling and %s measured each\n",
		p.Experiment.Name, p.Experiment.Blocks, len(p.Experiment.Scenarios), p.Experiment.Settle, p.Experiment.Window)
	fmt.Fprintf(&b, "backend    %s\n", s.Backend)
	if s.BackendNote != "" {
		fmt.Fprintf(&b, "           %s\n", s.BackendNote)
	}
	fmt.Fprintf(&b, "cpus       %s shared by tenant and neighbour", s.CPUs)
	if s.GeneratorCPUs != "" {
		fmt.Fprintf(&b, "; %s for the generator", s.GeneratorCPUs)
	}
	fmt.Fprintf(&b, "\ntenant     %s, %g requests/s, %s of CPU each (%.2f CPUs; calibrated before the first round)\n",
		p.Experiment.Tenant.Service, s.Rate, s.CPUPerRequest, s.TenantCPUs)
	fmt.Fprintf(&b, "neighbour  %s, %d threads, intensity %d %%\n", s.Neighbour.Kernel, s.Neighbour.Threads, s.Neighbour.Intensity)
	skipped := map[string]Skipped{}
	for _, s := range p.Skipped {
		skipped[s.Scenario] = s
	}
	for _, sc := range p.Experiment.Scenarios {
		fmt.Fprintf(&b, "\n%s: %s\n", sc.Name, sc.Means)
		if skip, ok := skipped[sc.Name]; ok {
			fmt.Fprintf(&b, "  skipped: %s (%s)\n", skip.Reason, skip.Remedy)
		}
		for line := range strings.Lines(p.Writes[sc.Name]) {
			fmt.Fprintf(&b, "  %s\n", strings.TrimSpace(line))
		}
	}
	b.WriteString("\norder\n")
	for i, block := range p.Order {
		fmt.Fprintf(&b, "  %2d  %s\n", i+1, strings.Join(block, "  "))
	}
	return b.String()
}
