package colocate

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/golden"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
)

// played is a run on a machine of which the response times in each mode are so many times
// those on shared CPUs; the last service is half as slow again in LSE.
func played(t *testing.T, form, shared string, blocks int, times map[string]float64) *Experiment {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 5))
	x := New()
	x.Started, x.Complete = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), true
	x.Program = lab.Program{Version: "test", Go: "go"}
	x.Experiment.Blocks, x.Experiment.Seed, x.Service = blocks, 9, "nginx"
	x.Setup = lab.Setup{Backend: "cgroup v2", CPUs: shared, GeneratorPolicy: "SCHED_FIFO 40", Rate: 4000, TenantCPUs: 0.8, Server: "nginx version: nginx/1.22.1"}
	at, err := x.Experiment.site(fakekernel.Short(t, form), cpuset.MustParse(shared))
	if err == nil {
		x.Placed, x.Services, x.CPUsEach, x.Scaled, err = x.Experiment.scale(at)
	}
	if err != nil {
		t.Fatal(err)
	}
	for n, m := range x.Experiment.Modes {
		if _, err := x.settings(n); err != nil {
			x.Skipped = append(x.Skipped, lab.Skipped{Scenario: m.Name, Reason: err.Error()})
		}
	}
	for block := range blocks {
		level := math.Exp(0.1 * rng.NormFloat64()) // what a block has in common
		for position, m := range x.Experiment.Modes {
			if _, err := x.settings(position); err != nil {
				continue
			}
			round := lab.Round{
				Block: block, Position: position, Scenario: m.Name, Seconds: 0.5, Host: lab.HostUsage{CPUs: at.shared.Len(), SharedCPUs: at.shared.Len(), Foreign: 0.01},
				Load: load.Report{CPUSeconds: 0.04, Policy: "SCHED_FIFO 40"},
			}
			var all []int64
			for n := range x.Services {
				factor := times[m.Name]
				if m.Name == "LSE" && n == x.Services-1 {
					factor *= 1.5
				}
				var took []int64
				for range 500 {
					took = append(took, int64(400*factor*level*math.Exp(0.4*rng.NormFloat64())))
				}
				all = append(all, took...)
				round.Load.Each = append(round.Load.Each, load.Served{Offered: 500, Done: 500, DoneInWindow: 500, Response: encoded(t, took)})
				u := lab.Usage{CPUSeconds: 0.125, WaitSeconds: 0.01, Switches: 900, Involuntary: 20, Migrations: 5}
				round.Servers = append(round.Servers, u)
				round.Tenant.CPUSeconds += u.CPUSeconds
				round.Tenant.WaitSeconds += u.WaitSeconds
				round.Tenant.Switches += u.Switches
				round.Tenant.Involuntary += u.Involuntary
				round.Tenant.Migrations += u.Migrations
			}
			n := len(all)
			round.Load.Offered, round.Load.Done, round.Load.DoneInWindow = n, n, n
			round.Load.Seconds = []load.Second{{Offered: n, Response: encoded(t, all), Service: encoded(t, all), Queue: encoded(t, nil), Lag: encoded(t, []int64{20, 30})}}
			x.Rounds = append(x.Rounds, round)
		}
	}
	return x
}

// encoded is a histogram of values.
func encoded(t *testing.T, values []int64) string {
	t.Helper()
	h := stats.NewHistogram()
	for _, v := range values {
		if err := h.RecordValue(v); err != nil {
			t.Fatal(err)
		}
	}
	text, err := stats.Encode(h)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

var same = map[string]float64{"shared": 1, "shared again": 1, "LSE": 1, "LSR": 1}

// By value: what played rounds come to.
func TestView(t *testing.T) {
	t.Parallel()
	v, err := played(t, "1s4c2t", "0-7", 3, same).view()
	if err != nil {
		t.Fatal(err)
	}
	if len(v.each) != 8 || v.each[5].Mode != "LSE" || v.each[5].Service != 2 {
		t.Fatalf("each %+v", v.each)
	}
	slow, fast := v.each[5], v.each[4]
	if slow.CPUs != "1,5" || slow.Requests != 1500 || slow.Failed != 0 || slow.Throughput != 1000 || slow.Used != 0.25 || slow.P999 != 0 {
		t.Errorf("%+v", slow)
	}
	if ratio := slow.P99 / fast.P99; ratio < 1.3 || ratio > 1.7 || slow.P50 >= slow.P95 || slow.P95 >= slow.P99 {
		t.Errorf("service 2 is %g times as slow as service 1: %+v", ratio, slow)
	}
	want := []ModeBill{{"LSE", report.Bill{Reserved: 4, Of: 8, Used: 0.5}, 0}, {"LSR", report.Bill{Reserved: 8, Of: 8, Used: 0.5}, 4}}
	if diff := cmp.Diff(want, v.bills); diff != "" {
		t.Errorf("bills (-want +got):\n%s", diff)
	}
	if lost := v.bills[1].Lost(); lost != 1-0.5/8 {
		t.Errorf("LSR loses %g", lost)
	}
	if got := len(v.Compared); got != 4*4 {
		t.Errorf("%d comparisons, want those of three modes with shared, and of LSR with LSE, by four figures", got)
	}
}

// The first words are what to do, and are right about worlds that are known.
func TestWords(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		form, shared string
		times        map[string]float64
		first        string
		also, not    string
	}{
		"better":  {"1s4c2t", "0-7", map[string]float64{"shared": 1, "shared again": 1, "LSE": 0.4, "LSR": 0.8}, "Give 2 nginx services with 2 CPUs each CPUs of their own (LSE): one request in 100 then takes ", "Do it: berth run --class LSE --cpus 2 --bind FullPCPUs -- SERVICE", "Leave"},
		"worse":   {"1s2c1t", "0-1", map[string]float64{"shared": 1, "shared again": 1, "LSE": 3}, "Leave 2 nginx services with 1 CPU each on shared CPUs: with CPUs of their own (LSE) one request", "The bill of LSE: 2 of 2 CPUs are reserved, and the services use 25 % of that; the load generator, on the same CPUs, uses 0.08 CPUs.", "Do it"},
		"LSR":     {"1s4c2t", "0-7", map[string]float64{"shared": 1, "shared again": 1, "LSE": 2, "LSR": 0.3}, "Give 2 nginx services with 2 CPUs each CPUs of their own (LSR)", "Do it: berth run --class LSR --cpus 2 --bind SpreadByPCPUs --exclusive PCPULevel -- SERVICE", "Give 2 nginx services with 2 CPUs each CPUs of their own (LSE)"},
		"alike":   {"1s4c2t", "0-7", map[string]float64{"shared": 1, "shared again": 1, "LSE": 0.667, "LSR": 1}, "Leave 2 nginx services with 2 CPUs each on shared CPUs: CPUs of their own (LSR) change p99 by less than 10 %", "p99 of LSR against LSE", "Do it"},
		"no room": {"1s1c2t", "0-1", same, "Leave 2 nginx services with 1 CPU each on shared CPUs: no mode with CPUs of their own fits here.", "", "Do it"},
	} {
		v, err := played(t, tc.form, tc.shared, 30, tc.times).view()
		if err != nil {
			t.Fatal(err)
		}
		words := v.words()
		all := strings.Join(words, "\n")
		if !strings.HasPrefix(words[0], tc.first) || !strings.Contains(all, tc.also) || strings.Contains(all, tc.not) {
			t.Errorf("%s:\n%s", name, all)
		}
	}
	x := played(t, "1s2c1t", "0-1", 4, same)
	for i := range x.Rounds {
		x.Rounds[i].Load.DoneInWindow /= 3
	}
	if v, err := x.view(); err != nil || !strings.HasPrefix(v.words()[0], "Nothing can be said: even on shared CPUs") {
		t.Errorf("overloaded: %v, %q", err, v.words())
	}
	x.Rounds = nil
	if v, err := x.view(); err != nil || !strings.HasPrefix(v.words()[0], "Nothing can be said: no round") {
		t.Errorf("without rounds: %v, %q", err, v.words())
	}
}

// What is said of modes that do not differ is false in one of twenty runs at most.
func TestNothingFalse(t *testing.T) {
	t.Parallel()
	const runs = 40
	wrong := 0
	for seed := range uint64(runs) {
		rng := rand.New(rand.NewPCG(seed, 1))
		x := played(t, "1s4c2t", "0-7", 0, same)
		v, err := x.view()
		if err != nil {
			t.Fatal(err)
		}
		var samples []stats.Sample
		var family []stats.Versus
		for block := range 20 {
			for _, m := range x.Experiment.Modes {
				of := map[string]float64{}
				for _, f := range figures() {
					of[f.Name] = math.Exp(0.2 * rng.NormFloat64())
				}
				samples = append(samples, stats.Sample{Cell: m.Name, Block: block, Figures: of})
			}
		}
		for _, m := range x.Experiment.Modes[1:] {
			family = append(family, stats.Versus{Cell: m.Name, Against: "shared"})
		}
		v.Samples, v.Compared = samples, stats.Compare(samples, figures(), family)
		if all := strings.Join(v.words(), "\n"); strings.Contains(all, "Give ") || strings.Contains(all, "shared CPUs: with CPUs") {
			wrong++
		}
	}
	if wrong > 5 { // more than 5 of 40 are in one of 100 at 5 %
		t.Errorf("false in %d of %d runs", wrong, runs)
	}
}

// From stored rounds to the report.
func TestReport(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]*Experiment{
		"threads": played(t, "1s4c2t", "0-7", 24, map[string]float64{"shared": 1, "shared again": 1, "LSE": 0.7, "LSR": 0.5}),
		"cores":   played(t, "1s2c1t", "0-1", 24, map[string]float64{"shared": 1, "shared again": 1, "LSE": 1.2}),
	} {
		stored, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		var back Experiment
		if err := json.Unmarshal(stored, &back); err != nil {
			t.Fatal(err)
		}
		s, err := back.Sheet()
		if err != nil {
			t.Fatal(err)
		}
		var text, page, doc bytes.Buffer
		if err := report.Text(&text, s, report.Options{Width: 120}); err != nil {
			t.Fatal(err)
		}
		if err := report.HTML(&page, s); err != nil {
			t.Fatal(err)
		}
		golden.Check(t, "testdata/"+name+".txt", text.Bytes())
		if name == "threads" {
			golden.Check(t, "testdata/"+name+".html", page.Bytes())
		}
		if err := report.JSON(&doc, s.Document); err != nil || !strings.Contains(doc.String(), `"bills"`) || !strings.Contains(doc.String(), `"reserved": `) {
			t.Errorf("%s: document: %v", name, err)
		}
	}
}
