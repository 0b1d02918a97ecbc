package lab

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/lab/stats"
)

// DemoName is the name of the experiment of berth demo.
const DemoName = "demo"

// The phases of the demonstration, as its scenarios are called; alone is Baseline.
const (
	demoHog       = Unisolated
	demoProtected = "idle"
	demoAgain     = "unisolated-again"
)

// DemoSpec is a story in four phases of so many seconds: the tenant alone, a neighbour that
// wants all CPUs, protection on, protection off. Its scenarios are run in this order, not by
// chance: it shows, and the isolation experiment measures.
func DemoSpec(seconds int) Spec {
	e := IsolationSpec()
	e.Name, e.Blocks, e.Settle, e.Window = DemoName, seconds, Duration(settle), Duration(900*time.Millisecond)
	e.Scenarios = []Scenario{
		{Name: Baseline, Means: "alone"},
		{Name: demoHog, Neighbour: true, Means: "hog"},
		{Name: demoProtected, Neighbour: true, Isolation: Isolation{Idle: true}, Means: "hog as BE"},
		{Name: demoAgain, Neighbour: true, Means: "hog again"},
	}
	return e
}

// Demo plays the story of a DemoSpec. each is told every second of it. It cleans up as
// Isolate does.
func Demo(ctx context.Context, spec Spec, opt Options, each func(Second)) (_ *Result, err error) {
	r := &Result{Header: Header{Schema: Schema}, Experiment: spec, Rounds: []Round{}}
	bed, err := Open(ctx, &r.Experiment, &r.Header, opt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	keep := func(round Round) error {
		r.Rounds = append(r.Rounds, round)
		d, err := decodeRound(&round)
		if err == nil {
			each(secondOf(d))
		}
		return err
	}
	var parts []Part
	for _, c := range bed.Scenarios(r.Experiment) {
		c.Keep = keep
		parts = append(parts, Part{Blocks: spec.Blocks, Cells: []Cell{c}})
	}
	return r, Run(ctx, Experiment{Parts: parts, Seed: r.Experiment.Seed, Result: r, Header: &r.Header}, bed, opt)
}

// Story is what a demonstration comes to.
type Story struct {
	Phases []Phase `json:"phases"` // in the order played
	// Slower is the p99 beside the neighbour relative to that alone, Better the p99 without
	// protection relative to that with it, both second by second; nil without enough of them.
	Slower *stats.Interval `json:"slower,omitempty"`
	Better *stats.Interval `json:"better,omitempty"`
	// Kept is the neighbour's work with protection, as a share (0-1) of that without.
	Kept *float64 `json:"kept,omitempty"`
	// Others is the share (0-1) of the shared CPUs that went to what is not of the
	// demonstration, the hypervisor included.
	Others float64 `json:"others"`
	// Words say it, Commands how to have it.
	Words    []string `json:"words"`
	Commands []string `json:"commands"`
}

// Phase is a part of a story.
type Phase struct {
	Name      string   `json:"name"`
	Neighbour bool     `json:"neighbour"`
	Protected bool     `json:"protected"`
	P99       float64  `json:"p99"` // µs: the median of its seconds
	Seconds   []Second `json:"seconds"`
}

// Second is one second of a story: its latencies in microseconds.
type Second struct {
	Phase string  `json:"-"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	// AtLeast says that requests were not answered, so that the p99 is a lower bound.
	AtLeast bool `json:"atLeast,omitempty"`
}

func secondOf(d Decoded) Second {
	rounds := []stats.Round{d.Response}
	s := Second{Phase: d.Scenario, AtLeast: stats.AtLeast(d.Censored, d.Load.Offered, headline)}
	s.P50, _ = quantile(rounds, 50)
	s.P99, _ = quantile(rounds, headline)
	return s
}

// Tell says what a demonstration comes to. It is a pure function of the result.
func (m *Measured) Tell() *Story {
	s := &Story{}
	var others, seconds float64
	work := map[string]float64{}
	for _, scenario := range m.Experiment.Scenarios {
		p := Phase{Name: scenario.Means, Neighbour: scenario.Neighbour, Protected: scenario.Isolation != (Isolation{})}
		var p99s []float64
		for _, d := range m.Decoded {
			if d.Scenario != scenario.Name {
				continue
			}
			second := secondOf(d)
			p.Seconds, p99s = append(p.Seconds, second), append(p99s, second.P99)
			others += d.Host.Steal + max(0, d.Host.Foreign)
			seconds += d.Seconds * float64(d.Host.SharedCPUs)
			if d.Neighbour != nil {
				work[scenario.Name] += d.Neighbour.Work
			}
		}
		if len(p99s) > 0 {
			p.P99 = stats.Median(p99s)
		}
		s.Phases = append(s.Phases, p)
	}
	if seconds > 0 {
		s.Others = others / seconds
	}
	s.Slower, s.Better = m.times(Baseline), m.times(demoProtected)
	if without := (work[demoHog] + work[demoAgain]) / 2; without > 0 && work[demoProtected] > 0 {
		kept := work[demoProtected] / without
		s.Kept = &kept
	}
	s.words(m)
	return s
}

// times is the p99 of both phases beside an unprotected neighbour relative to that of a
// phase, second by second: what drifts evenly divides out, as one of them lies before
// protection and one behind it.
func (m *Measured) times(of string) *stats.Interval {
	p99s := map[string]map[int]float64{}
	for _, d := range m.Decoded {
		if p99s[d.Scenario] == nil {
			p99s[d.Scenario] = map[int]float64{}
		}
		p99s[d.Scenario][d.Block] = secondOf(d).P99
	}
	var blocks [][]float64
	for block := range m.Experiment.Blocks {
		x, y, z := p99s[of][block], p99s[demoHog][block], p99s[demoAgain][block]
		if x > 0 && y > 0 && z > 0 {
			blocks = append(blocks, []float64{x, y, z})
		}
	}
	if len(blocks) == 0 {
		return nil
	}
	iv := stats.Ratios(blocks).Interval(confidence)
	if !iv.Known() {
		return nil
	}
	iv.Estimate, iv.Low, iv.High = 1/iv.Estimate, 1/iv.High, 1/iv.Low
	return &iv
}

// more says whether a ratio is shown to be above 1, by more than the margin.
func more(iv *stats.Interval) bool { return iv != nil && iv.Low > 1 && iv.Estimate > 1+stats.Margin }

// Helps says whether the neighbour did harm, and protection helped against it.
func (s *Story) Helps() bool { return more(s.Slower) && more(s.Better) }

// words say what happened, and no more than that.
func (s *Story) words(m *Measured) {
	say := func(format string, values ...any) { s.Words = append(s.Words, fmt.Sprintf(format, values...)) }
	p99 := func(i int) string {
		p := s.Phases[i]
		bound := slices.ContainsFunc(p.Seconds, func(x Second) bool { return x.AtLeast && x.P99 <= p.P99 })
		return map[bool]string{true: "at least "}[bound] + Latency(p.P99)
	}
	if len(s.Phases) != 4 || slices.ContainsFunc(s.Phases, func(p Phase) bool { return len(p.Seconds) == 0 }) {
		say("The story was not played to its end: nothing can be said.")
		return
	}
	with := func(iv *stats.Interval) string {
		if iv == nil {
			return "too few seconds to tell"
		}
		return fmt.Sprintf("%s times, 95 %% interval %s to %s", Three(iv.Estimate), Three(iv.Low), Three(iv.High))
	}
	switch {
	case more(s.Slower):
		say("The hog slows the service down: in the typical second one request in 100 takes %s; alone %s (%s).", p99(1), p99(0), with(s.Slower))
	default:
		say("The hog is not shown to slow the service down on this machine: p99 %s, alone %s (%s). Protection has nothing to show here.", p99(1), p99(0), with(s.Slower))
	}
	switch {
	case more(s.Better):
		say("Protection on (the hog in class BE): %s. Off again: %s. That is %s.", p99(2), p99(3), with(s.Better))
	default:
		say("Protection is not shown to help on this machine: p99 %s with it, %s before and %s after (%s).", p99(2), p99(1), p99(3), with(s.Better))
	}
	if s.Kept != nil {
		say("The hog keeps %.0f %% of its work.", 100**s.Kept)
	}
	if s.Others > 0.05 {
		say("Others took %.0f %% of the CPUs meanwhile, which blurs all of this.", 100*s.Others)
	}
	if how := m.did(); how != "" {
		say("All that changed between off and on: %s.", how)
	}
	say("This is a demonstration of %s; what is worth how much on this machine is measured by berth lab.", Latency(math.Round(float64(len(m.Rounds))*1e6)))
	s.Commands = []string{
		"berth diagnose                                # who takes the CPU, and who suffers",
		"sudo berth adopt --pid PID --class BE         # protection on: it yields to all others",
		"sudo berth release NAME --keep                # off: everything as it was",
	}
}

// did is what was set in the protected phase alone, as read back.
func (m *Measured) did() string {
	read := func(scenario string) map[string]string {
		values := map[string]string{}
		for i := range m.Rounds {
			if m.Rounds[i].Scenario == scenario {
				for _, k := range m.Rounds[i].Knobs {
					values[strings.Replace(k.Of, Neighbour, "hog", 1)+"'s "+k.File] = k.Value
				}
			}
		}
		return values
	}
	var parts []string
	before := read(demoHog)
	for name, value := range read(demoProtected) {
		if was, ok := before[name]; ok && was != value {
			parts = append(parts, fmt.Sprintf("the %s, %s in place of %s", name, value, was))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, "; ")
}
