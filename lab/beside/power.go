package beside

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/hardware"
)

// Power asks what sleeping and slow CPUs cost a service, and what it takes to have others.
func Power() *Experiment { return powers.make() }

// The cells of power.
const (
	asItIs  = "as it is"
	awake   = "awake"
	shallow = "shallow"
	fast    = "performance"
	saving  = "power"
)

// shallowLatency is how long a CPU may take to leave an idle state of the cell shallow, in µs:
// C1 takes 1 to 3, C6 50 and more (drivers/idle/intel_idle.c).
const shallowLatency = 10

// EnergyPerRequest is what processor packages and their memory took for a request, where the
// kernel counts it: of the whole host, so of its other work and of idle CPUs, too.
var EnergyPerRequest = stats.Figure{Name: "energy per request", Unit: "J"}

var powers = &design{
	name: "power", schema: "berth.dev/lab-power/v1",
	spec: func() Spec {
		e := usual()
		e.Demand, e.Blocks, e.For = 0.1, 60, lab.Duration(3*time.Minute)
		return e
	},
	cells: []cell{
		{name: asItIs, means: "the host's own power settings"},
		{name: awake, means: "idle CPUs poll: their wake-up latency is limited to nothing", host: wakesWithin(0)},
		{name: shallow, means: "idle CPUs sleep, but in no state that takes longer than 10 µs to leave", host: sleepsWithin(shallowLatency)},
		{name: fast, means: "power profile performance: governor, energy preference and bias", host: profile(fast)},
		{name: saving, means: "power profile power", host: profile(saving)},
	},
	versus:  []stats.Versus{{Cell: fast, Against: saving}},
	figures: []stats.Figure{lab.P50, lab.P99, lab.CPUPerRequest},
	words:   powerWords,
	tables:  func(v *view) []report.Block { return []report.Block{v.doings()} },
	sleeps:  true,
}

// onHost plans settings of CPUs of the host.
type onHost func(h *power.Host, cpus cpuset.Set) (kernel.Plan, error)

func wakesWithin(us int) onHost {
	return func(h *power.Host, cpus cpuset.Set) (kernel.Plan, error) {
		return h.Plan(cpus, power.Settings{ResumeLatency: &us})
	}
}

func sleepsWithin(us int) onHost {
	return func(h *power.Host, cpus cpuset.Set) (kernel.Plan, error) {
		plan, err := h.Plan(cpus, power.Settings{IdleLatency: &us})
		if err == nil && len(plan) == 0 {
			err = &kernel.NotSupportedError{Feature: "deep idle states", Reason: fmt.Sprintf("driver %s has none enabled that takes longer than %d µs to leave", h.IdleDriver, us)}
		}
		return plan, err
	}
}

func profile(name string) onHost {
	return func(h *power.Host, cpus cpuset.Set) (kernel.Plan, error) {
		plan, err := h.Profile(cpus, name)
		if err == nil && len(plan) == 0 {
			err = &kernel.NotSupportedError{Feature: "another profile", Reason: "the host has the profile " + name + " as it is"}
		}
		return plan, err
	}
}

// runCPUs are those of all that takes part: what wakes up late may be the generator's CPU.
func runCPUs(s *lab.Setup) (cpuset.Set, error) {
	all, err := cpuset.Parse(s.CPUs)
	if err != nil {
		return all, err
	}
	generator, err := cpuset.Parse(s.GeneratorCPUs)
	return all.Union(generator), err
}

// prepareHost plans the settings of a cell, and has them in force from the time at which the
// load begins until it is over.
func (c *cell) prepareHost(fsys fs.FS, b *lab.Testbed, to *lab.Cell) error {
	cpus, err := runCPUs(b.Setup)
	if err != nil {
		return err
	}
	h, err := power.Read(fsys)
	if err != nil {
		return err
	}
	plan, err := c.host(h, cpus)
	if err != nil {
		return err
	}
	to.Hooks.Settle = func(_ context.Context, r *lab.Running) error {
		undo, err := b.Apply(plan)
		if err == nil {
			r.Finish(undo)
		}
		return err
	}
	return nil
}

// PowerUse is what the CPUs of a run did in the window of a round.
type PowerUse struct {
	Cell    string  `json:"cell"`
	Block   int     `json:"block"`
	Seconds float64 `json:"seconds"` // between its two readings
	// Asleep is the share (0-1) of the CPUs' time in idle states in which they do not poll.
	Asleep float64 `json:"asleep"`
	// PackageJoules and MemoryJoules are what the host's processors and their memory took;
	// absent where that is not counted.
	PackageJoules *float64 `json:"packageJoules,omitempty"`
	MemoryJoules  *float64 `json:"memoryJoules,omitempty"`
}

// meter reads what CPUs do; its energy is nil where that is not counted.
type meter struct {
	cpus   cpuset.Set
	energy *hardware.EnergyReader
}

// openMeter says, too, why energy is not counted.
func openMeter(cpus cpuset.Set) (m *meter, without string, err error) {
	m = &meter{cpus: cpus}
	m.energy, err = hardware.OpenEnergy("/" + hardware.EnergyDir)
	if no, ok := errors.AsType[*kernel.NotSupportedError](err); ok {
		return m, no.Reason, nil
	}
	return m, "", err
}

func (m *meter) close() error {
	if m.energy == nil {
		return nil
	}
	return m.energy.Close()
}

// meterReading is what a meter shows.
type meterReading struct {
	at     time.Duration
	slept  time.Duration
	energy []watch.Sample
}

func (m *meter) read(at time.Duration) (r meterReading, err error) {
	r.at = at
	if r.slept, err = power.Slept(os.DirFS("/"), m.cpus); err == nil && m.energy != nil {
		r.energy, err = m.energy.Read(0, nil)
	}
	return r, err
}

// use is what was used between two readings.
func (m *meter) use(from, to meterReading) PowerUse {
	u := PowerUse{Seconds: (to.at - from.at).Seconds()}
	u.Asleep = (to.slept - from.slept).Seconds() / u.Seconds / float64(max(1, m.cpus.Len()))
	for i, s := range to.energy {
		took := s.Value - from.energy[i].Value
		if s.Quantity == watch.EnergyMemory {
			u.MemoryJoules = &took
		} else {
			u.PackageJoules = &took
		}
	}
	return u
}

// during reads a meter at both ends of a round's window.
func (x *Experiment) during(m *meter, cell string, block int) func(context.Context, *lab.Running) error {
	return func(ctx context.Context, r *lab.Running) error {
		var readings [2]meterReading
		for i, at := range []lab.Duration{x.Experiment.Settle, x.Experiment.Settle + x.Experiment.Window} {
			err := r.Until(ctx, time.Duration(at))
			if err == nil {
				readings[i], err = m.read(r.Now())
			}
			if err != nil {
				return err
			}
		}
		u := m.use(readings[0], readings[1])
		u.Cell, u.Block = cell, block
		x.Power = append(x.Power, u)
		return nil
	}
}

// addEnergy adds the energy per request to the samples of rounds in which it was counted.
func (v *view) addEnergy() {
	counted := false
	for _, u := range v.Experiment.Power {
		at := slices.IndexFunc(v.Samples, func(s stats.Sample) bool { return s.Cell == u.Cell && s.Block == u.Block })
		if at < 0 || u.PackageJoules == nil || u.Seconds <= 0 {
			continue
		}
		joules := *u.PackageJoules
		if u.MemoryJoules != nil {
			joules += *u.MemoryJoules
		}
		if f := v.Samples[at].Figures; f[lab.Throughput.Name] > 0 {
			f[EnergyPerRequest.Name] = joules / u.Seconds / f[lab.Throughput.Name]
			counted = true
		}
	}
	if counted {
		v.Figures = append(slices.Clone(v.Figures), EnergyPerRequest)
	}
}

func powerWords(v *view) []string {
	if text := v.nothing(); text != "" {
		return []string{text}
	}
	var answer []string
	best, how := stats.Compared{}, ""
	for _, c := range []struct{ name, what, profile string }{
		{awake, "Keeping idle CPUs awake", "a profile with wakeLatency: 0us"},
		{shallow, "Keeping idle CPUs from deep sleep", fmt.Sprintf("a profile with idleLatency: %dus", shallowLatency)},
		{fast, "The profile performance", "performance"}, {saving, "The profile power", "power"},
	} {
		if !v.Ran(c.name) {
			continue
		}
		p99 := v.Of(c.name, asItIs, lab.P99.Name)
		if p99.Verdict == stats.Better && (how == "" || p99.Estimate < best.Estimate) {
			best, how = p99, c.profile
		}
		text := fmt.Sprintf("%s takes p99 to ×%s of what it is: %s instead of %s", c.what, span(p99), v.P99(c.name), v.P99(asItIs))
		switch p99.Verdict {
		case stats.Equivalent:
			text = fmt.Sprintf("%s changes nothing of p99 here, within 10 %% (%s)", c.what, v.P99(c.name))
		case stats.Inconclusive, stats.Invalid:
			text = fmt.Sprintf("Whether %s changes p99, this run cannot tell (×%s)", strings.ToLower(c.what[:1])+c.what[1:], span(p99))
		}
		text += "; CPU time per request: " + verdict(v.Of(c.name, asItIs, lab.CPUPerRequest.Name))
		if e := v.Of(c.name, asItIs, EnergyPerRequest.Name); e.Estimate > 0 {
			text += "; energy per request: " + verdict(e)
		}
		answer = append(answer, text+".")
	}
	if len(answer) == 0 {
		answer = []string{"Nothing was compared: this host can do none of the other cells."}
	}
	if v.EnergyNote != "" {
		answer = append(answer, "What it costs in energy is not known: "+v.EnergyNote+".")
	}
	if how != "" {
		answer = append(answer, "Do it: berth run --class LSE --cpus N --power PROFILE -- SERVICE, where PROFILE is "+how)
	}
	return answer
}

// doings is the table of what the CPUs did.
func (v *view) doings() report.Block {
	var rows [][]string
	for _, c := range v.Cells {
		var asleep, seconds, joules, memory float64
		n, counted, hasMemory := 0, false, false
		for _, u := range v.Experiment.Power {
			if u.Cell != c.Name {
				continue
			}
			n++
			asleep += u.Asleep
			seconds += u.Seconds
			if u.PackageJoules != nil {
				joules, counted = joules+*u.PackageJoules, true
			}
			if u.MemoryJoules != nil {
				memory, hasMemory = memory+*u.MemoryJoules, true
			}
		}
		if n == 0 {
			continue
		}
		watts := func(j float64, known bool) string {
			if !known {
				return "–"
			}
			return lab.Three(j / seconds)
		}
		rows = append(rows, []string{c.Name, fmt.Sprintf("%.0f", 100*asleep/float64(n)), watts(joules, counted), watts(memory, hasMemory)})
	}
	if rows == nil {
		return report.Block{}
	}
	t := report.NewTable([]string{"cell", "% asleep", "W, packages", "W, memory"}, rows...)
	t.Legend = "Means of the rounds: the share of the time of the run's CPUs in idle states in which they do not poll, and what the whole host's processors took; – is not counted."
	return report.Block{Heading: "What the CPUs did", Table: t}
}
