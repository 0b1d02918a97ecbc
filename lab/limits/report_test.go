package limits

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/golden"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/routing"
	"berth.dev/berth/lab/stats"
)

// played is an experiment as if 8 CPUs had run it: its rounds are those of the simulation.
func played(t *testing.T, x *Experiment, blocks int) *Experiment {
	t.Helper()
	const cpus = 8
	x.Complete, x.Started = true, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	x.Program = lab.Program{Version: "test", Go: "go"}
	x.Setup = lab.Setup{Backend: "cgroup v2", CPUs: "0-7", GeneratorCPUs: "8"}
	x.Experiment.Blocks, x.Experiment.Seed = blocks, 5
	for _, kind := range x.Experiment.kinds() {
		sample := Sample{Kind: kind}
		for i, cpu := range map[string][]time.Duration{small: {2 * ms, 2 * ms, 3 * ms, 40 * ms}, large: {450 * ms}}[kind] {
			sample.Tiles = append(sample.Tiles, Tile{i, 1, int(cpu), lab.Duration(cpu)})
		}
		x.Samples = append(x.Samples, sample)
	}
	random := rand.New(rand.NewPCG(1, 1))
	for block := range blocks {
		for _, l := range x.Experiment.Loads {
			for position, c := range x.Experiment.Configs {
				asked, err := x.load(c, l, cpus, block)
				if err != nil {
					t.Fatal(err)
				}
				sample := x.Samples[0]
				if l.Tiles == large {
					sample = x.Samples[1]
				}
				costs, mean := sample.costs()
				if asked.Clients > 0 { // about what clients get done
					asked.Rate = min(float64(asked.Clients), 0.9*cpus) / mean.Seconds()
				}
				m := routing.Model{
					Servers: c.Servers, Threads: c.tenant(cpus).Procs, CPUs: cpus, Routing: c.Routing, Rate: asked.Rate, Costs: costs,
					Requests: int(2 * asked.Rate), Seed: random.Uint64(),
				}
				if c.Limit > 0 {
					m.Quota, m.Period = c.quota(c.Limit, cpus)
					m.Burst = time.Duration(c.Burst * float64(m.Quota))
				}
				x.Rounds = append(x.Rounds, playedRound(t, routing.Simulate(m), m, block, position, x.Experiment.cell(c, l)))
			}
		}
	}
	return x
}

func playedRound(t *testing.T, o routing.Outcome, m routing.Model, block, position int, cell string) lab.Round {
	t.Helper()
	h, lag := stats.NewHistogram(), stats.NewHistogram()
	work := time.Duration(0)
	for i, r := range o.Responses {
		if err := h.RecordValue(r.Microseconds()); err != nil {
			t.Fatal(err)
		}
		work += m.Costs[i%len(m.Costs)]
	}
	if err := lag.RecordValues(40, int64(len(o.Responses))); err != nil {
		t.Fatal(err)
	}
	response, err := stats.Encode(h)
	if err != nil {
		t.Fatal(err)
	}
	late, err := stats.Encode(lag)
	if err != nil {
		t.Fatal(err)
	}
	n := len(o.Responses)
	r := lab.Round{
		Block: block, Position: position, Scenario: cell, Seconds: 2, Host: lab.HostUsage{CPUs: 9, SharedCPUs: m.CPUs, Busy: work.Seconds()},
		Load: load.Report{
			Offered: n, Done: n, DoneInWindow: n, CPUSeconds: 0.01, Policy: "SCHED_FIFO 40", Same: int(o.Same * float64(n-1)), Servers: make([]int, m.Servers),
			Seconds: []load.Second{{Offered: n, Response: response, Service: response, Queue: late, Lag: late}},
		},
		Tenant: lab.Usage{CPUSeconds: work.Seconds()}, Servers: make([]lab.Usage, m.Servers),
	}
	if m.Quota > 0 {
		r.Tenant.Periods = int64(20 * m.Servers)
		r.Tenant.ThrottledPeriods = int64(o.Throttled * float64(r.Tenant.Periods))
		r.Tenant.ThrottledSeconds = 0.05 * float64(r.Tenant.ThrottledPeriods)
		r.Waste = 0.9 * r.Tenant.ThrottledSeconds
	}
	return r
}

// stored is an experiment as it is read from its file.
func stored(t *testing.T, x *Experiment) *Experiment {
	t.Helper()
	text, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	read := new(Experiment)
	if err := json.Unmarshal(text, read); err != nil {
		t.Fatal(err)
	}
	return read
}

// The reports of played runs, from stored rounds to text and page.
func TestReports(t *testing.T) {
	t.Parallel()
	limits, ramp, routes := Limits(), Ramp(), Routing()
	ramp.Experiment.Loads = []Load{{ClientsPerCPU: 1, Tiles: small}, {ClientsPerCPU: 1, Tiles: large}}
	for name, x := range map[string]*Experiment{"limits": played(t, limits, 16), "ramp": played(t, ramp, 3), "routing": played(t, routes, 12)} {
		s, err := stored(t, x).Sheet()
		if err != nil {
			t.Fatal(err)
		}
		var text, page, doc bytes.Buffer
		if err := report.Text(&text, s, report.Options{Width: 120}); err != nil {
			t.Fatal(err)
		}
		golden.Check(t, "testdata/"+name+".txt", text.Bytes())
		if err := report.HTML(&page, s); err != nil {
			t.Fatal(err)
		}
		if name != "routing" {
			golden.Check(t, "testdata/"+name+".html", page.Bytes())
		}
		if err := report.JSON(&doc, s.Document); err != nil || !strings.Contains(doc.String(), `"waste"`) {
			t.Errorf("%s: document: %v", name, err)
		}
		for _, want := range []string{map[string]string{"ramp": `id="median-wide-t"`}[name], "All comparisons", "generator"} {
			if !strings.Contains(page.String(), want) {
				t.Errorf("%s: the page lacks %q", name, want)
			}
		}
	}
}

// What to do is said where it is shown, and nowhere else.
func TestAdvice(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		x    *Experiment
		want string
	}{
		"limits":  {played(t, Limits(), 16), `Do it: take the CPU limits of "2", "4", "8", "8 burst", "8 one thread" away (berth resize NAME --quota=max; in Kubernetes leave limits.cpu out), or have fewer servers with larger limits ("1")`},
		"routing": {played(t, Routing(), 24), "Do it: route requests by "},
		"of no harm": {played(t, begin(Spec{
			Name: "limits", Configs: []Config{{Name: "none", Servers: 1}, {Name: "1", Servers: 1, Limit: 1}}, Loads: Limits().Experiment.Loads, Sample: 64,
		}), 12), ""},
	} {
		a, err := tc.x.Analyse()
		if err != nil {
			t.Fatal(err)
		}
		last := a.Answer[len(a.Answer)-1]
		if tc.want == "" && strings.Contains(strings.Join(a.Answer, "\n"), "Do it") || !strings.HasPrefix(last, tc.want) {
			t.Errorf("%s: %q, want %q", name, last, tc.want)
		}
	}
	// Eight servers are as bad without a limit: it is not the limit.
	x := played(t, Limits(), 16)
	for i, r := range x.Rounds {
		if r.Scenario == "8" {
			x.Rounds = append(x.Rounds, r)
			x.Rounds[i].Scenario, x.Rounds[len(x.Rounds)-1].Scenario = "8 no limit", "8"
		} else if r.Scenario == "8 no limit" {
			x.Rounds[i].Scenario = "dropped"
		}
	}
	a, err := x.Analyse()
	if err != nil {
		t.Fatal(err)
	}
	if how := a.unlimited(x, 0); strings.Contains(how, `"8"`) {
		t.Errorf("the limit of eight servers that are as bad without: %s", how)
	}
}

// Of configs that are better than another the best is first, whether less of the figure is better or more.
func TestBetterPairs(t *testing.T) {
	t.Parallel()
	better := func(name, figure string, estimate float64) stats.Compared {
		return stats.Compared{Cell: name, Against: "none", Figure: figure, Interval: stats.Interval{Estimate: estimate}, Verdict: stats.Better}
	}
	e := Spec{
		Configs: []Config{{Name: "none"}, {Name: "a"}, {Name: "b"}},
		Loads:   []Load{{Share: 0.5}, {ClientsPerCPU: 1}},
		Compare: []Pair{{"a", "none"}, {"b", "none"}},
	}
	a := &Analysis{Compared: []LoadCompared{
		{Compared: []stats.Compared{better("a", lab.P99.Name, 0.8), better("b", lab.P99.Name, 0.5)}},
		{Compared: []stats.Compared{better("a", lab.Throughput.Name, 1.2), better("b", lab.Throughput.Name, 2)}},
	}}
	for at, l := range e.Loads {
		if all := a.betterPairs(e, at, func(Config, Config) bool { return true }); len(all) != 2 || all[0].Name != "b" {
			t.Errorf("%s: %v, want b first", l, all)
		}
	}
}

// The matrix of the ramp that is published is that of the result that is stored.
func TestPublishedRamp(t *testing.T) {
	t.Parallel()
	x := Ramp()
	if err := lab.Load("../../docs/measurements/results/limits-ramp.json.gz", Schema("limits-ramp"), x); err != nil {
		t.Fatal(err)
	}
	a, err := x.Analyse()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/experiments/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range x.Experiment.Configs {
		row := "| `" + c.Name + "` |"
		for i, l := range x.Experiment.Loads {
			r, ok := a.row(c.Name, l)
			if !ok || r.Rounds == 0 {
				t.Fatalf("%s under %s was not measured", c.Name, l)
			}
			if i == 4 {
				row += " |"
			}
			value := r.P95 / 1e3
			if l.Tiles == large {
				value = r.Throughput
			}
			row += " " + report.Digits(value) + " |"
		}
		if !strings.Contains(string(page), "\n"+row+"\n") {
			t.Errorf("docs/experiments/limits.md lacks the row\n%s", row)
		}
	}
}

// By value: what a played round comes to.
func TestRow(t *testing.T) {
	t.Parallel()
	x := played(t, Limits(), 2)
	a, err := x.Analyse()
	if err != nil {
		t.Fatal(err)
	}
	r, _ := a.row("8", x.Experiment.Loads[0])
	work, requests, throttled := 0.0, 0, int64(0)
	for _, round := range x.Rounds {
		if round.Scenario == "8" {
			work += round.Tenant.CPUSeconds
			requests += round.Load.Offered
			throttled += round.Tenant.ThrottledPeriods
		}
	}
	if r.Rounds != 2 || r.Requests != requests || r.CPUs != work/4 || r.OfLimit != work/4/8 || r.Throttled != float64(throttled)/320 || throttled == 0 {
		t.Errorf("row %+v; %d requests, %g s of work, %d of 320 periods throttled", r, requests, work, throttled)
	}
	if want := 0.05 * float64(throttled) / 4; r.Withheld != want || r.Waste < 0.89*want || r.Waste > 0.91*want {
		t.Errorf("withheld %g, wasted %g; want %g and 0.9 of it", r.Withheld, r.Waste, want)
	}
	if idle := 8 - (work+0.02)/4; r.Idle < idle-1e-9 || r.Idle > idle+1e-9 {
		t.Errorf("idle %g, want %g", r.Idle, idle)
	}
	if r.Theory == nil || r.Theory.P99 < r.P99/2 || r.Theory.P99 > r.P99*2 || r.Theory.Same != 0.125 {
		t.Errorf("p99 %g of rounds that theory played: theory %+v", r.P99, r.Theory)
	}
	if none, _ := a.row("none", x.Experiment.Loads[0]); none.OfLimit != 0 || none.Same != 0 || none.Theory == nil {
		t.Errorf("without a limit: %+v", none)
	}
	if over := x.theory(Config{Servers: 1, Limit: 0.25}, Load{Share: 0.5, Tiles: small}, 8); over != nil {
		t.Errorf("theory of a queue without end: %+v", over)
	}
}
