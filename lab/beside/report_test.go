package beside

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/golden"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
)

// stored is a design's result as it is read from a file: of rounds whose response times are so
// many times those of the first cell, and whose machine becomes slower by a fifth on the way.
func stored(t *testing.T, x *Experiment, blocks int, times, work map[string]float64) *Experiment {
	t.Helper()
	rng := rand.New(rand.NewPCG(5, 6))
	x.Started, x.Complete, x.Experiment.Seed, x.Experiment.Blocks = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), true, 7, blocks
	x.Finished = x.Started.Add(28 * time.Second)
	x.Setup = lab.Setup{Backend: "cgroup v2", CPUs: "0-1", GeneratorCPUs: "2", GeneratorPolicy: "SCHED_FIFO 40", Rate: 1000, TenantCPUs: 0.8, Neighbour: noise.Config{Kernel: "spin", Threads: 8, Intensity: 100}}
	at := x.Started
	for block := range blocks {
		level := 1.
		if block >= blocks/2 {
			level = 1.2
		}
		for position, i := range rng.Perm(len(x.design.cells)) {
			c := x.design.cells[i]
			at = at.Add(400 * time.Millisecond)
			round := lab.Round{
				Block: block, Position: position, Scenario: c.name, Started: at, Seconds: 0.25, Tenant: lab.Usage{CPUSeconds: 0.2},
				Host:   lab.HostUsage{CPUs: 3, SharedCPUs: 2, Busy: 0.6, Foreign: 0.01},
				Probes: []noise.ProbeReading{{Probe: "alu", NS: 1.02 * level * (1 + 0.003*rng.NormFloat64())}},
			}
			var took, late []int64
			for range 250 {
				took = append(took, int64(1000*times[c.name]*level*math.Exp(0.4*rng.NormFloat64())))
				late = append(late, int64(10+20*rng.Float64()))
			}
			round.Load = load.Report{Offered: 250, Done: 250, DoneInWindow: 250, CPUSeconds: 0.01, Policy: "SCHED_FIFO 40", Seconds: []load.Second{
				{Offered: 250, Response: encoded(t, took), Service: encoded(t, took), Queue: encoded(t, nil), Lag: encoded(t, late)},
			}}
			if w := work[c.name]; w > 0 {
				round.Neighbour = &lab.Usage{Work: 1e6 * w * math.Exp(0.01*rng.NormFloat64()), Unit: "loops", CPUSeconds: 0.3 * w}
			}
			x.Rounds = append(x.Rounds, round)
		}
	}
	text, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	read := x.design.make()
	read.Experiment = Spec{}
	if err := json.Unmarshal(text, read); err != nil {
		t.Fatal(err)
	}
	return read
}

// encoded is a histogram of values.
func encoded(t *testing.T, values []int64) string {
	t.Helper()
	text, err := stats.Encode(stats.DistributionOf(values).Histogram())
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// From stored rounds to report and page.
func TestReport(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]*Experiment{
		"quick": stored(t, Quick(), 16, map[string]float64{alone: 1, nothing: 12, weighted: 2.2, idle: 1.3}, map[string]float64{nothing: 1, weighted: 0.85, idle: 0.8}),
		"pinning": stored(t, Pinning(), 20, map[string]float64{alone: 1, shared: 4, spread: 3, pinned: 1.2},
			map[string]float64{shared: 1, spread: 0.9, pinned: 0.7}),
	} {
		s, err := x.Sheet()
		if err != nil {
			t.Fatal(err)
		}
		var text, page bytes.Buffer
		if err := report.Text(&text, s, report.Options{Width: 110}); err != nil {
			t.Fatal(err)
		}
		if err := report.HTML(&page, s); err != nil {
			t.Fatal(err)
		}
		golden.Check(t, "testdata/"+name+".txt", text.Bytes())
		golden.Check(t, "testdata/"+name+".html", page.Bytes())
	}
}

// What to do is said where something is shown to harm and there is a place without it.
func TestHowTo(t *testing.T) {
	t.Parallel()
	on := func(role lab.Role, cpus string) lab.Knob {
		return lab.Knob{Of: string(role), File: "cpuset.cpus", Value: cpus}
	}
	for name, tc := range map[string]struct {
		x     *Experiment
		times map[string]float64
		knobs map[string][]lab.Knob // by cell
		want  string                // "": nothing to do
	}{
		"a busy sibling": {SMT(), map[string]float64{siblingIdle: 1, siblingBusy: 2, otherCores: 1, bothThreads: 1}, map[string][]lab.Knob{siblingIdle: {on(lab.Tenant, "0-1")}},
			"Do it: berth run --class LSR --cpus 2 --bind SpreadByPCPUs --exclusive PCPULevel -- SERVICE"},
		"no busy sibling": {SMT(), map[string]float64{siblingIdle: 1, siblingBusy: 1, otherCores: 1, bothThreads: 1}, map[string][]lab.Knob{siblingIdle: {on(lab.Tenant, "0-1")}}, ""},
		"another cache": {Cache(), map[string]float64{alone: 1, quietBeside: 1, sameCache: 2, otherCache: 1}, map[string][]lab.Knob{otherCache: {on(lab.Neighbour, "4-5")}},
			"Do it: berth run --cpuset 4-5 -- COMMAND, below another cache"},
		"another cache is no better": {Cache(), map[string]float64{alone: 1, quietBeside: 1, sameCache: 2, otherCache: 2}, map[string][]lab.Knob{otherCache: {on(lab.Neighbour, "4-5")}}, ""},
		"ways of its own": {Cache(), map[string]float64{alone: 1, quietBeside: 1, sameCache: 3, oneWay: 3, halfTheWays: 1.2, mostWays: 2}, nil,
			`Do it: berth run --cache-classes FILE --cache CLASS -- SERVICE, divided as in "half the ways"`},
		"memory elsewhere": {NUMA(), map[string]float64{local: 1, split: 1.3, remote: 2}, map[string][]lab.Knob{local: {on(lab.Tenant, "0-3")}},
			"Do it: berth run --cpuset 0-3 --mems 0 -- SERVICE, or another node's CPUs with its memory"},
		"memory as good elsewhere": {NUMA(), map[string]float64{local: 1, split: 1, remote: 1}, map[string][]lab.Knob{local: {on(lab.Tenant, "0-3")}}, ""},
		"sleeping CPUs":            {Power(), map[string]float64{asItIs: 1, awake: 0.5, fast: 0.8, saving: 1}, nil, "Do it: berth run --class LSE --cpus N --power PROFILE -- SERVICE, where PROFILE is a profile with wakeLatency: 0us"},
		"slow CPUs":                {Power(), map[string]float64{asItIs: 1, awake: 1, fast: 0.5, saving: 2}, nil, "Do it: berth run --class LSE --cpus N --power PROFILE -- SERVICE, where PROFILE is performance"},
		"CPUs as they should be":   {Power(), map[string]float64{asItIs: 1, awake: 1, fast: 1, saving: 1}, nil, ""},
	} {
		x := stored(t, tc.x, 24, tc.times, nil)
		x.Rounds = slices.DeleteFunc(x.Rounds, func(r lab.Round) bool { return tc.times[r.Scenario] == 0 })
		for i := range x.Rounds {
			cell := x.Rounds[i].Scenario
			x.Rounds[i].Knobs = tc.knobs[cell]
			if x.design.name == "numa" {
				node := map[string]int{remote: 1}[cell]
				wanted := map[string]cpuset.Set{split: cpuset.MustOf(0, 1), remote: cpuset.MustOf(1)}[cell]
				if cell == local {
					wanted = cpuset.MustOf(0)
				}
				x.Residency = append(x.Residency, Residency{cell, map[int]int64{node: 1 << 20}, wanted})
			}
		}
		s, err := x.Sheet()
		if err != nil {
			t.Fatal(err)
		}
		last := s.Answer[len(s.Answer)-1]
		if tc.want == "" && strings.Contains(strings.Join(s.Answer, "\n"), "Do it") || tc.want != "" && last != tc.want {
			t.Errorf("%s: %q, want %q", name, s.Answer, tc.want)
		}
	}
}
