package report

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/stats"
	"berth.dev/berth/machine"
)

// behaviour is how a made-up scenario comes out.
type behaviour struct {
	median, sigma float64 // log-normal response time, µs
	stalls        float64 // per second, of a few milliseconds each
	grows         float64 // extra µs per second of the round: a saturated service
	work          float64 // neighbour, operations per second
	busy          float64 // share of the host
	throttled     float64 // seconds per second
	knobs         []lab.Knob
}

const hostile = `<script>alert("x")</script>`

func behaviours() map[string]behaviour {
	cgroup := func(weight, idle, quota, cpus string) []lab.Knob {
		return []lab.Knob{
			{Of: "tenant", File: "cpu.shares", Value: "1024"},
			{Of: "neighbour", File: "cpu.shares", Value: weight},
			{Of: "neighbour", File: "cpu.idle", Value: idle},
			{Of: "neighbour", File: "cpu.cfs_quota_us", Value: quota},
			{Of: "neighbour", File: "cpuset.cpus", Value: cpus},
		}
	}
	alone := []lab.Knob{{Of: "tenant", File: "cpu.shares", Value: "1024"}}
	return map[string]behaviour{
		lab.Baseline:      {median: 2100, sigma: 0.25, stalls: 0.2, busy: 0.61, knobs: alone},
		lab.BaselineAgain: {median: 2110, sigma: 0.25, stalls: 0.2, busy: 0.61, knobs: alone},
		lab.Unisolated:    {median: 9000, sigma: 0.9, grows: 40000, work: 1.25e9, busy: 1, knobs: cgroup("1024", "0", "-1", "0-1")},
		"weighted":        {median: 3600, sigma: 0.6, stalls: 2, work: 9.4e8, busy: 1, knobs: cgroup("102", "0", "-1", "0-1")},
		"idle":            {median: 2130, sigma: 0.27, stalls: 0.25, work: 8.6e8, busy: 1, knobs: cgroup("2", "1", "-1", "0-1")},
		"limited":         {median: 2500, sigma: 0.45, stalls: 1, work: 6.1e8, busy: 0.97, throttled: 0.62, knobs: cgroup("1024", "0", "80000", "0-1")},
	}
}

// fakeExperiment is the built-in experiment with figures filled in.
func fakeExperiment(blocks int, window time.Duration) lab.Spec {
	e := lab.IsolationSpec()
	e.Preset, e.Blocks, e.Settle, e.Window = "quick", blocks, lab.Duration(300*time.Millisecond), lab.Duration(window)
	e.Neighbour.Threads = 2
	e.Seed = 42
	return e
}

// fakeResult makes up a run of the isolation experiment: pinned is skipped,
// unisolated saturated, one weighted round invalid, the machine's name hostile.
func fakeResult(t testing.TB, blocks int) *lab.Result {
	t.Helper()
	text, ok := made.Load(blocks)
	if !ok {
		encoded, err := json.Marshal(makeResult(t, blocks))
		if err != nil {
			t.Fatal(err)
		}
		text, _ = made.LoadOrStore(blocks, encoded)
	}
	r := new(lab.Result)
	err := lab.Decode(text.([]byte), lab.Schema, r)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// fakeBlocks are enough for verdicts.
const fakeBlocks = 16

// analysed is the fake result with what it comes to.
func analysed(t testing.TB, blocks int) (*lab.Result, *lab.Analysis) {
	t.Helper()
	m := measured(t, fakeResult(t, blocks))
	m.Path = "results/example"
	return m.Result, m.Analyse()
}

// measured is a result decoded.
func measured(t testing.TB, r *lab.Result) *lab.Measured {
	t.Helper()
	m, err := lab.Measure(r)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// made keeps results by their number of blocks: each test gets a copy.
var made sync.Map

func makeResult(t testing.TB, blocks int) *lab.Result {
	t.Helper()
	const seconds = 2
	r := fakeHeader(blocks, seconds)
	rng := rand.New(rand.NewPCG(7, 11))
	names := []string{lab.Baseline, lab.BaselineAgain, lab.Unisolated, "weighted", "idle", "limited"}
	clock := r.Started
	for block := range blocks {
		for position, i := range rng.Perm(len(names)) {
			clock = clock.Add(2600 * time.Millisecond)
			round := fakeRound(t, rng, names[i], seconds, r.Setup.Rate)
			round.Block, round.Position, round.Started = block, position, clock
			if block == 1 && names[i] == "weighted" {
				round.Invalid = "steal 7.1 % of the host's CPU time"
				round.Host.Steal = 0.29
			}
			if blocks >= fakeBlocks {
				round.Undisturbed = fakeUndisturbed(t, round.Load)
			}
			r.Rounds = append(r.Rounds, round)
		}
	}
	r.Finished = clock.Add(3 * time.Second)
	return r
}

func fakeHeader(blocks int, seconds int) *lab.Result {
	cpus := cpuset.MustOf(0, 1)
	return &lab.Result{Experiment: fakeExperiment(blocks, time.Duration(seconds)*time.Second), Header: lab.Header{
		Schema:   lab.Schema,
		Program:  lab.Program{Version: "v0.1.0", Commit: "0123456789ab", Go: "go1.26.8"},
		Started:  time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC),
		Complete: true,
		Host: lab.Host{
			Machine: &machine.Machine{
				Name: hostile, Model: "Example CPU 9000", Online: cpus, CPUs: []machine.CPU{{ID: 0}, {ID: 1}},
				Domains: []machine.Domain{
					{Kind: machine.Socket, CPUs: cpus}, {Kind: machine.Node, CPUs: cpus, Bytes: 8 << 30},
					{Kind: machine.L3, CPUs: cpus, Bytes: 32 << 20},
					{Kind: machine.Core, CPUs: cpuset.MustOf(0)}, {Kind: machine.Core, ID: 1, CPUs: cpuset.MustOf(1)},
				},
			},
			Kernel: "6.18.0", Clocksource: "kvm-clock", Hypervisor: "KVM", MemoryBytes: 8 << 30,
		},
		Setup: lab.Setup{
			Backend: "hybrid", CPUs: "0-1", GeneratorPolicy: "SCHED_FIFO 50", Rate: 400,
			Tenant:        load.TenantConfig{Units: 12, WorkingSetBytes: 8 << 20, Seed: 42},
			Neighbour:     noise.Config{Kernel: "scan", Threads: 2, Intensity: 100, Bytes: 64 << 20, L3Bytes: 32 << 20, Seed: 42},
			CPUPerRequest: lab.Duration(3 * time.Millisecond), TenantCPUs: 1.2,
		},
		Skipped: []lab.Skipped{{Scenario: "pinned", Reason: "needs two whole cores to give away", Remedy: "run on a machine with more than 2 cores, or leave the generator a CPU less"}},
	}}
}

// fakeRound makes up one round of a scenario.
func fakeRound(t testing.TB, rng *rand.Rand, name string, seconds int, rate float64) lab.Round {
	t.Helper()
	b := behaviours()[name]
	round := lab.Round{Scenario: name, Knobs: b.knobs, Seconds: float64(seconds)}
	drift := math.Exp(0.02 * rng.NormFloat64())
	for s := range seconds {
		sec := fakeSecond(t, rng, b, drift, float64(s), int(rate))
		round.Load.Seconds = append(round.Load.Seconds, sec)
		round.Load.Offered += sec.Offered
		round.Load.Unfinished += sec.Censored
	}
	round.Load.Done = round.Load.Offered - round.Load.Unfinished
	round.Load.DoneInWindow = round.Load.Done
	if b.grows > 0 {
		round.Load.DoneInWindow = round.Load.Done * 8 / 10
	}
	round.Load.WindowEnd = int64(seconds) * 1e9
	round.Load.Policy = "SCHED_FIFO 50"
	round.Load.CPUSeconds = 0.05 * float64(seconds)
	round.Host = lab.HostUsage{CPUs: 2, SharedCPUs: 2, Busy: b.busy * 2 * float64(seconds), Steal: 0.004 * float64(seconds), Foreign: 0.02 * float64(seconds) * rng.Float64()}
	round.Tenant = lab.Usage{CPUSeconds: 1.2 * float64(seconds)}
	if b.work > 0 {
		work := b.work * float64(seconds) * math.Exp(0.01*rng.NormFloat64())
		round.Neighbour = &lab.Usage{CPUSeconds: (2*b.busy - 1.2) * float64(seconds), Work: work, Unit: "bytes", ThrottledSeconds: b.throttled * float64(seconds)}
	}
	for i, ns := range []float64{1.02, 3.8, 14, 96} {
		spread := []float64{0.003, 0.01, 0.06, 0.03}[i]
		round.Probes = append(round.Probes, noise.ProbeReading{Probe: []string{"alu", "l2", "l3", "dram"}[i], NS: ns * math.Exp(spread*rng.NormFloat64())})
	}
	return round
}

// fakeUndisturbed says that one request in a hundred was disturbed, and was like all others.
func fakeUndisturbed(t testing.TB, l load.Report) *lab.Undisturbed {
	t.Helper()
	var seconds []stats.Distribution
	for _, s := range l.Seconds {
		d, err := stats.Decode(s.Response)
		if err != nil {
			t.Fatal(err)
		}
		seconds = append(seconds, d)
	}
	text, err := stats.Encode(stats.Merge(seconds...).Histogram())
	if err != nil {
		t.Fatal(err)
	}
	return &lab.Undisturbed{Response: text, Requests: l.Offered, Censored: l.Unfinished, LeftOut: l.Offered / 100}
}

func fakeSecond(t testing.TB, rng *rand.Rand, b behaviour, drift, start float64, n int) load.Second {
	t.Helper()
	response, service, queue, lag := stats.NewHistogram(), stats.NewHistogram(), stats.NewHistogram(), stats.NewHistogram()
	stallAt, stall := rng.Float64(), 0.0
	if rng.Float64() < b.stalls {
		stall = 0.004 + 0.006*rng.ExpFloat64()
	}
	censored := 0
	for i := range n {
		at := float64(i) / float64(n)
		us := drift * b.median * math.Exp(b.sigma*rng.NormFloat64())
		if at >= stallAt && at < stallAt+stall {
			us += (stallAt + stall - at) * 1e6
		}
		wait := b.grows * (start + at)
		late := 18 * math.Exp(0.4*rng.NormFloat64())
		if b.grows > 0 && start > 0 && i > n-4 {
			censored++
		}
		for h, v := range map[interface{ RecordValue(int64) error }]float64{response: us + wait + late, service: us, queue: wait, lag: late} {
			if err := h.RecordValue(int64(v)); err != nil {
				t.Fatal(err)
			}
		}
	}
	sec := load.Second{Offered: n, Censored: censored}
	for _, e := range []struct {
		text *string
		from func() (string, error)
	}{
		{&sec.Response, func() (string, error) { return stats.Encode(response) }},
		{&sec.Service, func() (string, error) { return stats.Encode(service) }},
		{&sec.Queue, func() (string, error) { return stats.Encode(queue) }},
		{&sec.Lag, func() (string, error) { return stats.Encode(lag) }},
	} {
		text, err := e.from()
		if err != nil {
			t.Fatal(err)
		}
		*e.text = text
	}
	return sec
}
