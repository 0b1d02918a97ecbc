package guarded

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/golden"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
)

// level says by which factor latencies are longer at an instant from the onset.
type level func(at float64) float64

// trial is one of 2 s before the onset and 3 s of a fault, with 50 requests in
// each bin: 49 between 1 and 2 ms, and one of 4 ms.
func trial(fault string, of level) Trial {
	run := Trial{Fault: fault, Number: 1, From: -2.5, BinsFrom: -2, End: 3, Windows: 20}
	for i := range 120 {
		var bin Bin
		for n := range 50 {
			us := 1000 + 20*float64(n)
			if n == 49 {
				us = 4000
			}
			bin.Response = append(bin.Response, int64(us*of(-2+float64(i)*0.05)))
		}
		run.Bins = append(run.Bins, bin)
	}
	return run
}

func found(at float64, r detect.Resource, suspect string) Finding {
	return Finding{At: at, Resource: r, Suspect: suspect, Confidence: 0.8}
}

func applied(at float64, r detect.Remedy, suspect string) Event {
	group, resource := suspect, detect.CPU
	if group == "" {
		group, resource = lab.Tenant, detect.OwnLimit
	}
	return Event{At: at, Event: control.Event{
		Outcome: control.Applied, Suspect: suspect, Resource: resource,
		Action: &control.Action{Remedy: r, Group: group, Suspect: suspect},
	}}
}

func usual(float64) float64 { return 1 }

// worse is by a factor from one instant to another.
func worse(by, from, to float64) level {
	return func(at float64) float64 {
		if at >= from-1e-9 && at < to-1e-9 {
			return by
		}
		return 1
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	at := func(v float64) *float64 { return &v }
	for name, tc := range map[string]struct {
		run  Trial
		add  func(r *Trial)
		want Judged
	}{
		"found, acted, well again": {
			run: trial(Hog, worse(10, 0, 0.5)),
			add: func(r *Trial) {
				r.Findings = []Finding{found(-1, detect.Hypervisor, ""), found(0.2, detect.OwnLoad, ""), found(0.3, detect.CPU, lab.Neighbour), found(0.4, detect.CPU, lab.Neighbour)}
				r.Events = []Event{applied(0.3, detect.Weight, lab.Neighbour), applied(2, detect.HeadroomCap, lab.Neighbour)}
			},
			want: Judged{Named: "cpu: neighbour", Right: true, Detected: at(0.3), Acted: at(0.3), Against: 2, Recovery: Recovery{Worst: 10, Harmed: true, Recovered: at(0.5), Well: 1, Calm: 1}},
		},
		"cured, and something else comes up": {
			run: trial(Hog, worse(10, 0, 0.5)),
			add: func(r *Trial) {
				r.Findings = []Finding{found(0.3, detect.CPU, lab.Neighbour), found(2, detect.CPU, ""), found(2.1, detect.CPU, "")}
				r.Events = []Event{applied(0.3, detect.Weight, lab.Neighbour)}
			},
			want: Judged{Named: "cpu: neighbour", Right: true, Detected: at(0.3), Acted: at(0.3), Against: 1, Recovery: Recovery{Worst: 10, Harmed: true, Recovered: at(0.5), Well: 1, Calm: 1}},
		},
		"never well again": {
			run:  trial(Hog, worse(10, 0.2, 9)),
			want: Judged{Named: "none", Recovery: Recovery{Worst: 10, Harmed: true, Calm: 1}},
		},
		"well for half of the time": {
			run: trial(Hog, func(at float64) float64 {
				return max(worse(10, 0, 1)(at), worse(10, 2, 3)(at))
			}),
			want: Judged{Named: "none", Recovery: Recovery{Worst: 10, Harmed: true, Recovered: at(1), Well: 11. / 31, Calm: 1}},
		},
		"within 1.2 times": {
			run:  trial(Hog, worse(1.19, 0, 3)),
			want: Judged{Named: "none", Recovery: Recovery{Worst: 1.19, Calm: 1}},
		},
		"the bystander accused": {
			run: trial(Switch, usual),
			add: func(r *Trial) {
				r.Findings = []Finding{found(0.3, detect.CPU, lab.Bystander), found(0.3, detect.Memory, lab.Neighbour), found(0.4, detect.CPU, lab.Neighbour)}
				r.Events = []Event{applied(0.5, detect.Weight, lab.Bystander)}
			},
			want: Judged{Named: "cpu: bystander", Detected: at(0.4), Accused: 1, Against: 1, Innocent: 1, Recovery: Recovery{Worst: 1, Calm: 1}},
		},
		"an action before the onset": {
			run:  trial(Hog, usual),
			add:  func(r *Trial) { r.Events = []Event{applied(-0.1, detect.Weight, lab.Neighbour)} },
			want: Judged{Named: "none", Against: 1, Innocent: 1, Recovery: Recovery{Worst: 1, Calm: 1}},
		},
		"a decoy helped by what is its own": {
			run: trial(Quota, usual),
			add: func(r *Trial) {
				r.Findings = []Finding{found(0.5, detect.OwnLimit, "")}
				r.Events = []Event{applied(0.6, detect.Burst, "")}
			},
			want: Judged{Named: "own_limit", Right: true, Detected: at(0.5), Recovery: Recovery{Worst: 1, Calm: 1}},
		},
		"a decoy answered with an action against a neighbour": {
			run: trial(Saturation, usual),
			add: func(r *Trial) {
				r.Findings = []Finding{found(0.5, detect.CPU, lab.Neighbour)}
				r.Events = []Event{applied(0.6, detect.Weight, lab.Neighbour)}
			},
			want: Judged{Named: "cpu: neighbour", Accused: 1, Against: 1, Innocent: 1, Recovery: Recovery{Worst: 1, Calm: 1}},
		},
		"quiet, and nothing found": {
			run:  trial(Quiet, usual),
			want: Judged{Named: "none", Right: true, Recovery: Recovery{Worst: 1, Calm: 1}},
		},
		"quiet, and something found": {
			run:  trial(Quiet, usual),
			add:  func(r *Trial) { r.Findings = []Finding{found(1, detect.Hypervisor, "")} },
			want: Judged{Named: "hypervisor", Recovery: Recovery{Worst: 1, Calm: 1}},
		},
		"a generator as late as the answers are": {
			run:  trial(Quiet, usual),
			add:  func(r *Trial) { r.LagP99 = 3000 },
			want: Judged{Named: "none", Right: true, Invalid: "generator lag 3.0 ms is not small against 4.0 ms", Recovery: Recovery{Worst: 1, Calm: 1}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.add != nil {
				tc.add(&tc.run)
			}
			got := judge(&tc.run)
			tc.want.Fault, tc.want.Number, tc.want.Baseline, tc.want.end = tc.run.Fault, 1, got.Baseline, tc.run.End
			if tc.want.Invalid != "" && got.Invalid != "" {
				tc.want.Invalid = got.Invalid
			}
			if diff := cmp.Diff(tc.want, got, cmp.Comparer(near), cmp.AllowUnexported(Judged{})); diff != "" {
				t.Errorf("judged (-want +got):\n%s", diff)
			}
			if got.Baseline < 3990 || got.Baseline > 4010 {
				t.Errorf("baseline %g µs, want 4000", got.Baseline)
			}
		})
	}
}

// near allows for the digits of a histogram.
func near(a, b float64) bool { return math.Abs(a-b) <= 0.01*max(math.Abs(a), math.Abs(b)) }

// fake is a result with runs of several faults.
func fake() *Result {
	e := Default()
	e.Faults, e.Runs, e.Seed = []string{Hog, Quota, IO}, 2, 7
	r := &Result{
		Header: lab.Header{
			Schema: Schema, Started: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Complete: true,
			Setup:   lab.Setup{Backend: "cgroup v2", CPUs: "0-1", Rate: 1000, CPUPerRequest: lab.Duration(400 * time.Microsecond), TenantCPUs: 0.4},
			Skipped: []lab.Skipped{{Scenario: IO, Reason: "fault io: no disk"}},
		},
		Experiment: e,
	}
	first, second := trial(Hog, worse(10, 0, 0.5)), trial(Hog, worse(50, 0, 1))
	first.Findings, first.Events = []Finding{found(0.3, detect.CPU, lab.Neighbour)}, []Event{applied(0.3, detect.Weight, lab.Neighbour)}
	second.Findings, second.Events = []Finding{found(0.5, detect.CPU, lab.Neighbour)}, []Event{applied(0.6, detect.Weight, lab.Neighbour)}
	second.Number = 2
	quota, disturbed := trial(Quota, worse(5, 0, 3)), trial(Quota, usual)
	quota.Findings, quota.Events = []Finding{found(0.5, detect.OwnLimit, "")}, []Event{applied(0.6, detect.Burst, "")}
	disturbed.Number, disturbed.Invalid = 2, "others took 60 % of the shared CPUs, more than 25 %"
	r.Runs = []Trial{first, quota, disturbed, second}
	return r
}

// withSteady is the fake result with rounds in steady state, as it is read from its file.
func withSteady(t *testing.T) *Result {
	t.Helper()
	r := fake()
	rng := rand.New(rand.NewPCG(8, 9))
	x := &experiment{Result: r, base: r.Experiment.base()}
	x.base.Blocks = 16
	at := r.Started
	for block := range x.base.Blocks {
		for position, s := range x.base.Scenarios {
			at = at.Add(13 * time.Second)
			times := map[string]float64{Unguarded: 8, Guarded: 1.3}[s.Name]
			var took, late []int64
			for range 400 {
				took = append(took, int64(1000*max(1, times)*math.Exp(0.4*rng.NormFloat64())))
				late = append(late, int64(20+10*rng.Float64()))
			}
			round := lab.Round{
				Block: block, Position: position, Scenario: s.Name, Started: at, Seconds: 4, Tenant: lab.Usage{CPUSeconds: 1.6},
				Host: lab.HostUsage{CPUs: 2, SharedCPUs: 2, Busy: 7.8},
				Load: load.Report{Offered: 400, Done: 400, DoneInWindow: 400, CPUSeconds: 0.1, Seconds: []load.Second{
					{Offered: 400, Response: encoded(t, took), Service: encoded(t, took), Queue: encoded(t, nil), Lag: encoded(t, late)},
				}},
			}
			if s.Neighbour {
				round.Neighbour = &lab.Usage{CPUSeconds: 6, Work: 1e6 * math.Exp(0.01*rng.NormFloat64()), Unit: "loops"}
			}
			x.keepSteady(round, Trial{Fault: "steady", Number: block + 1})
		}
	}
	r.Steady.Finished = at
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	read := new(Result)
	if err := lab.Decode(text, Schema, read); err != nil {
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

func TestAnalyse(t *testing.T) {
	t.Parallel()
	a, err := Analyse(fake())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]map[string]int{Hog: {"cpu: neighbour": 2}, Quota: {"own_limit": 1}}, a.Matrix); diff != "" {
		t.Errorf("matrix (-want +got):\n%s", diff)
	}
	pooled := 1.0
	want := []Row{
		{
			Fault: Hog, Runs: 2, Valid: 2, Right: 2, Harmed: 2, Against: 2, Well: 1, Calm: 1, Pooled: &pooled,
			Detected: Spread{2, 0.4, 0.3, 0.5}, Acted: Spread{2, 0.45, 0.3, 0.6}, Recovered: Spread{2, 0.75, 0.5, 1},
		},
		{Fault: Quota, Runs: 2, Valid: 1, Right: 1, Harmed: 1, Calm: 1, Detected: Spread{1, 0.5, 0.5, 0.5}},
		{Fault: IO, Skipped: &lab.Skipped{Scenario: IO, Reason: "fault io: no disk"}},
	}
	if diff := cmp.Diff(want, a.Faults, cmp.Comparer(near)); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

// A comparison sees what the guard missed: a time that was due and did not come is that until the end of the fault.
func TestMissesAreCompared(t *testing.T) {
	t.Parallel()
	r := &Result{Experiment: Default()}
	r.Experiment.Faults = []string{Hog, Quota, Quiet}
	for n := range 10 {
		hog, quota, quiet := trial(Hog, worse(10, 0, 0.5)), trial(Quota, usual), trial(Quiet, usual)
		if n >= 2 {
			hog.Findings, hog.Events = []Finding{found(0.3, detect.CPU, lab.Neighbour)}, []Event{applied(0.4, detect.Weight, lab.Neighbour)}
		}
		if n == 0 {
			hog.Bins = trial(Hog, worse(10, 0, 9)).Bins // never well again
		}
		if n == 9 {
			hog.Bins = trial(Hog, usual).Bins // not harmed
		}
		for _, run := range []Trial{hog, quota, quiet} {
			run.Number = n + 1
			r.Runs = append(r.Runs, run)
		}
	}
	a, err := Analyse(r)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]map[string][]float64{}
	for _, s := range a.Judged()[0].Samples {
		if got[s.Cell] == nil {
			got[s.Cell] = map[string][]float64{}
		}
		for name, v := range s.Figures {
			if name != "worst" {
				got[s.Cell][name] = append(got[s.Cell][name], v)
			}
		}
	}
	want := map[string]map[string][]float64{
		Hog: {
			"detected": {3, 3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3}, "acted": {3, 3, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4},
			"recovered": {3, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5},
		},
		Quota: {}, Quiet: {},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(near)); diff != "" {
		t.Errorf("compared (-want +got):\n%s", diff)
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	r := withSteady(t)
	a, err := Analyse(r)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := report.Text(&got, Sheet(r, a), report.Options{Width: 80}); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/text.golden", got.Bytes())
}

// What is stored comes to the same when it is read again.
func TestReadFile(t *testing.T) {
	t.Parallel()
	r := fake()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, lab.ResultFile), text, 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := ReadFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	before, _ := Analyse(r)
	after, err := Analyse(again)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after, cmp.AllowUnexported(Judged{})); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
	if err := os.WriteFile(filepath.Join(dir, lab.ResultFile), []byte(`{"schema":"berth.dev/lab/v1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(dir); err == nil {
		t.Error("read a result of another kind")
	}
}

func TestBin(t *testing.T) {
	t.Parallel()
	ms := time.Millisecond
	var run Trial
	run.bin([]lab.Request{
		{Due: 0, Seen: 0, Done: 2 * ms},
		{Due: 49 * ms, Seen: 50 * ms, Done: 50 * ms, Failed: true},
		{Due: 160 * ms, Seen: 161 * ms, Done: -1},
		{Due: 199 * ms, Seen: -1, Done: -1},
	}, 260*ms)
	want := []Bin{{Response: []int64{1000, 2000}, Censored: 1}, {}, {}, {Response: []int64{61_000, 100_000}, Censored: 2}}
	if diff := cmp.Diff(want, run.Bins); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if run.LagP99 != 61_000 {
		t.Errorf("lag %g µs, want 61 ms: a request that was never seen waited to the end", run.LagP99)
	}
}

func TestDifferent(t *testing.T) {
	t.Parallel()
	before := []lab.Knob{{Of: "neighbour", File: "cpu.idle", Value: "0"}, {Of: "tenant", File: "cpu.idle", Value: "0"}}
	after := []lab.Knob{{Of: "neighbour", File: "cpu.idle", Value: "1"}, {Of: "tenant", File: "cpu.idle", Value: "0"}}
	if got := different(before, after); len(got) != 1 || got[0] != "neighbour cpu.idle: 1, was 0" {
		t.Errorf("got %q", got)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, e := range []Spec{Default(), Short()} {
		if err := e.Validate(); err != nil {
			t.Error(err)
		}
	}
	for name, spoil := range map[string]func(e *Spec){
		"runs":          func(e *Spec) { e.Runs = -1 },
		"nothing to do": func(e *Spec) { e.Faults, e.Blocks = nil, 0 },
		"learn":         func(e *Spec) { e.Learn = 0 },
		"last":          func(e *Spec) { e.Last = lab.Duration(time.Second) },
		"window":        func(e *Spec) { e.Window = lab.Duration(time.Millisecond) },
		"probe":         func(e *Spec) { e.Probe = "maybe" },
		"weight":        func(e *Spec) { e.Weight = 20_000 },
		"fault":         func(e *Spec) { e.Faults = []string{"earthquake"} },
	} {
		e := Default()
		spoil(&e)
		if err := e.Validate(); err == nil || !bytes.Contains([]byte(err.Error()), []byte(name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The page has its answer and a picture before all else.
func TestPage(t *testing.T) {
	t.Parallel()
	r := withSteady(t)
	a, err := Analyse(r)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := report.HTML(&got, Sheet(r, a)); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/page.html", got.Bytes())
	page := got.String()
	if !strings.Contains(page, "<h1>The guard named what was wrong in 3 of 3 runs, and never acted against a bystander</h1>") {
		t.Error("the headline is not the answer")
	}
	if at := strings.Index(page, `id="faults-wide`); at < 0 || at > strings.Index(page, `class="callout`) {
		t.Error("no picture before the first words")
	}
}

// Where no run counts, nothing is claimed, and why is said; one that did nothing and was
// acted against is in the headline.
func TestAnswer(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("computes for minutes under the race detector")
	}
	r := fake()
	for i := range r.Runs {
		r.Runs[i].Invalid = "others took 80 % of the shared CPUs"
	}
	a, err := Analyse(r)
	if err != nil {
		t.Fatal(err)
	}
	s := Sheet(r, a)
	if words := strings.Join(s.Answer, " "); s.Headline != "" || !s.Open || !strings.Contains(words, "none of 4 runs counts (others took 80 %") || !strings.HasSuffix(words, "Run it on a quieter machine, or allow more. Do it: berth lab guard --max-others 0.5") {
		t.Errorf("headline %q, answer %q", s.Headline, words)
	}
	r = fake()
	r.Runs[0].Events = append(r.Runs[0].Events, applied(0.4, detect.Weight, lab.Bystander))
	if a, err = Analyse(r); err != nil {
		t.Fatal(err)
	}
	if s := Sheet(r, a); !strings.HasSuffix(s.Headline, "acted 1 time against one that did nothing") || s.Answer[len(s.Answer)-1] != "Do it: berth guard --mode preview --sensitive SERVICE --best-effort GROUP" {
		t.Errorf("headline %q, answer %q", s.Headline, s.Answer)
	}
	for fault, want := range map[string]string{
		"hog":   "Do it: berth run --class BE -- COMMAND", // its p99 never came back
		"quota": "Do it: berth guard --mode enforce --sensitive SERVICE --best-effort GROUP",
	} {
		a := &Analysis{Faults: []Row{{Fault: fault, Runs: 2, Valid: 2, Right: 2, Harmed: 1}}}
		if words := a.answer(0.25); words[len(words)-1] != want {
			t.Errorf("%s: %q, want %q", fault, words, want)
		}
	}
}
