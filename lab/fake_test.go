package lab

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/stats"
)

// figures of one scenario of a fake run.
type fake struct {
	scale    float64 // of every latency; 1 is the baseline's
	lag      float64 // generator's lag in µs; 0 is 20
	work     float64 // neighbour's work per second; 0: no neighbour
	answered float64 // share of the requests answered in time; 0 is 1
	rare     float64 // of the fourth round, times all latencies; 0 is 1
}

// fakeResult is a run of 20 blocks whose scenarios differ as told.
func fakeResult(t testing.TB, scenarios map[string]fake) *Result {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	e := IsolationSpec()
	if err := e.Use("standard"); err != nil {
		t.Fatal(err)
	}
	e.Blocks, e.Window = 20, Duration(2*time.Second)
	r := &Result{Header: Header{Schema: Schema, Complete: true, Setup: Setup{Backend: "cgroup v2", CPUs: "0-1", GeneratorPolicy: "SCHED_FIFO 40"}}, Experiment: e}
	for block := range e.Blocks {
		level := math.Exp(0.02 * rng.NormFloat64()) // what a block has in common
		for position, s := range e.Scenarios {
			if f, ok := scenarios[s.Name]; ok {
				if f.rare > 0 && block == 3 {
					f.scale *= f.rare
				}
				round := fakeRound(t, rng, f, level)
				round.Block, round.Position, round.Scenario = block, position, s.Name
				round.Started = time.Date(2026, 1, 1, 0, 0, (block*len(e.Scenarios)+position)*3, 0, time.UTC)
				r.Rounds = append(r.Rounds, round)
			}
		}
	}
	return r
}

func fakeRound(t testing.TB, rng *rand.Rand, f fake, level float64) Round {
	t.Helper()
	const seconds, perSecond = 2, 300
	if f.lag == 0 {
		f.lag = 20
	}
	if f.answered == 0 {
		f.answered = 1
	}
	r := Round{
		Seconds: seconds, Tenant: Usage{CPUSeconds: 1.2 * seconds}, Host: HostUsage{CPUs: 2, SharedCPUs: 2, Busy: 1.9 * seconds},
		Probes: []noise.ProbeReading{{Probe: "alu", NS: 1 + 0.001*rng.Float64()}},
	}
	if f.work > 0 {
		r.Neighbour = &Usage{Work: f.work * seconds, Unit: "bytes", CPUSeconds: 0.6 * seconds}
	}
	for range seconds {
		response, lag := stats.NewHistogram(), stats.NewHistogram()
		for range perSecond {
			_ = response.RecordValue(int64(1000 * f.scale * level * math.Exp(0.3*rng.NormFloat64())))
			_ = lag.RecordValue(int64(f.lag * (1 + rng.Float64())))
		}
		r.Load.Seconds = append(r.Load.Seconds, load.Second{
			Offered: perSecond, Response: encode(t, response), Lag: encode(t, lag), Service: encode(t, response), Queue: encode(t, stats.NewHistogram()),
		})
		r.Load.Offered += perSecond
	}
	r.Load.Done = r.Load.Offered
	r.Load.DoneInWindow = int(float64(r.Load.Offered) * f.answered)
	return r
}
