package beside

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
	"time"

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
