package neighbours

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/golden"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
)

// played is a run of two tenants whose p99 beside each neighbour is so many times that alone.
func played(t *testing.T, harm map[string]float64) *Result {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 4))
	r := miniature()
	r.Experiment.Kernels, r.Experiment.Intensities, r.Experiment.Blocks = []string{"spin", "scan"}, []int{25, 100}, 24
	r.Started, r.Complete = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), true
	r.Setup = lab.Setup{Backend: "cgroup v2", CPUs: "0-1"}
	r.Tenants = []Fitted{{Name: "small", CPUs: 0.61}, {Name: "store", CPUs: 0.58}}
	r.Uncounted = "hardware counters: none here"
	r.Skipped = []lab.Skipped{{Scenario: "small/absent", Reason: "program absent: it is not installed", Remedy: "install it"}, {Scenario: "store/absent", Reason: "program absent: it is not installed", Remedy: "install it"}}
	for block := range r.Experiment.Blocks {
		level := math.Exp(0.1 * rng.NormFloat64()) // what a block has in common
		for _, tenant := range r.Experiment.Tenants {
			for _, p := range r.Experiment.patterns() {
				cell := cellOf(tenant, p.name)
				factor, beside := harm[cell]
				if !beside && !p.none() {
					continue
				}
				round := lab.Round{Block: block, Scenario: cell, Seconds: 1, Host: lab.HostUsage{CPUs: 2, SharedCPUs: 2, Busy: 1, Foreign: 0.02}}
				if beside {
					round.Neighbour = &lab.Usage{CPUSeconds: 1.25, Work: 1e6, Unit: "bytes"}
				} else {
					factor = 1
				}
				var took []int64
				for range 400 {
					took = append(took, int64(1000*factor*level*math.Exp(0.3*rng.NormFloat64())))
				}
				second := load.Second{Offered: 400, Response: encoded(t, took), Lag: encoded(t, nil), Service: encoded(t, took), Queue: encoded(t, nil)}
				round.Load = load.Report{Offered: 400, Done: 400, DoneInWindow: 400, Seconds: []load.Second{second}}
				round.Tenant = lab.Usage{CPUSeconds: 0.2 * math.Sqrt(factor)}
				r.Rounds = append(r.Rounds, round)
			}
		}
	}
	return r
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

var harm = map[string]float64{
	"small/spin-25": 1, "small/spin-100": 3, "small/scan-25": 1.02, "small/scan-100": 1.15, "small/sh": 1,
	"store/spin-25": 1, "store/spin-100": 2.5, "store/scan-25": 1.6, "store/scan-100": 8, "store/sh": 1,
}

// The patterns come in the order of the harm that was played, beside the tenant that has it.
func TestSorted(t *testing.T) {
	t.Parallel()
	a, err := played(t, harm).analyse()
	if err != nil {
		t.Fatal(err)
	}
	var got [][2]string
	for _, p := range a.sorted() {
		got = append(got, [2]string{p.Name, p.Worst})
		if p.Harm == nil {
			continue
		}
		truth := harm[cellOf(p.Worst, p.Name)]
		if p.Harm.Low > truth || p.Harm.High < truth || p.Harm.Against != p.Worst+"/alone" {
			t.Errorf("%s: %+v; it is %g times", p.Name, p.Harm, truth)
		}
		if worse := p.Harm.Verdict == stats.Worse; worse != (truth > 1.3) {
			t.Errorf("%s is %g times as bad: verdict %s", p.Name, truth, p.Harm.Verdict)
		}
	}
	want := [][2]string{{"scan-100", "store"}, {"spin-100", "small"}, {"scan-25", "store"}}
	if diff := cmp.Diff(want, got[:3]); diff != "" {
		t.Errorf("the worst (-want +got):\n%s", diff)
	}
	if last := got[len(got)-1]; last != [2]string{"absent", ""} || len(got) != 6 {
		t.Errorf("%d patterns, the last %s", len(got), last)
	}
}

// What is to be run next names the worst pattern as berth lab takes it.
func TestCures(t *testing.T) {
	t.Parallel()
	a, err := played(t, harm).analyse()
	if err != nil {
		t.Fatal(err)
	}
	worse := &stats.Compared{Verdict: stats.Worse}
	a.patterns = append(a.patterns, pattern{name: "read-100", kernel: "read"}, pattern{name: "cache-25", kernel: "cache"},
		pattern{name: "stress", program: Program{Command: []string{"stress-ng", "--cpu", "{cpus}"}}}, pattern{name: "cc", program: Program{Command: []string{"cc", "{source}"}}})
	for want, sorted := range map[string][]Pattern{
		"What helps against scan-100: berth lab --neighbour=scan":              a.sorted(),
		"What helps against read-100: berth lab --resource=io":                 {{Name: "read-100", Harm: worse}},
		"What helps against cache-25: berth lab --resource=memory":             {{Name: "cache-25", Harm: worse}},
		"What helps against stress: berth lab --neighbour='stress-ng --cpu 2'": {{Name: "cc", Harm: worse}, {Name: "stress", Harm: worse}},
		"": {{Name: "spin-100", Harm: &stats.Compared{Verdict: stats.Inconclusive}}, {Name: "cc", Harm: worse}, {Name: "scan-25"}},
	} {
		if got := a.cures(sorted); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The headline is of the worst pattern that is decided, also below one that is not.
func TestHeadline(t *testing.T) {
	t.Parallel()
	harmed := func(v stats.Verdict, by float64) *stats.Compared {
		return &stats.Compared{Interval: stats.Interval{Estimate: by, Low: by / 2, High: 2 * by}, Verdict: v}
	}
	var s report.Sheet
	a := &analysis{Result: miniature(), compared: []stats.Compared{{Cell: "small/switch-100", Against: "small/alone", Figure: lab.P99.Name, Verdict: stats.Inconclusive}}}
	a.answer(&s, []Pattern{{Name: "switch-100", Harm: harmed(stats.Inconclusive, 300)}, {Name: "cache-100", Worst: "small", Harm: harmed(stats.Worse, 20)}, {Name: "sh", Harm: harmed(stats.Worse, 3)}})
	if want := "The worst neighbour here is cache-100: the p99 of small is 20 "; !strings.HasPrefix(s.Headline, want) {
		t.Errorf("headline %q, want %q", s.Headline, want)
	}
	if last := s.Answer[len(s.Answer)-1]; last != "Not decided: switch-100; more blocks tell (--set blocks=N)." {
		t.Errorf("it says %q", s.Answer)
	}
}

// A pattern of which no round counts beside a tenant is not harmless to it, and one of which none counts at all says why.
func TestNoRoundCounts(t *testing.T) {
	t.Parallel()
	r := played(t, harm)
	spoil := func(cell string) {
		for i := range r.Rounds {
			if r.Rounds[i].Scenario == cell {
				r.Rounds[i].Invalid = "late"
			}
		}
	}
	said := func() (answer, rows string) {
		s, err := r.Sheet()
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range s.Body {
			if b.Heading == "Patterns by harm" {
				rows = fmt.Sprint(b.Table.Spans)
			}
		}
		return strings.Join(s.Answer, "\n"), rows
	}
	const harmless, open = "Harmless to every tenant, within 10 %: ", "Not decided: "
	line := func(answer, start string) string {
		_, line, _ := strings.Cut(answer, start)
		line, _, _ = strings.Cut(line, "\n")
		return line
	}
	if answer, _ := said(); !strings.Contains(line(answer, harmless), "spin-25") {
		t.Fatalf("all count: spin-25 is not called harmless:\n%s", answer)
	}
	spoil("small/spin-25")
	if answer, _ := said(); strings.Contains(line(answer, harmless), "spin-25") || !strings.Contains(line(answer, open), "spin-25") {
		t.Errorf("no round beside small counts, and it says:\n%s", answer)
	}
	spoil("store/spin-25")
	if answer, rows := said(); strings.Contains(answer, "spin-25") || !strings.Contains(rows, "no round counts: late") {
		t.Errorf("no round counts, and it says:\n%s\n%s", answer, rows)
	}
	r = played(t, harm)
	for _, tenant := range r.Experiment.Tenants {
		spoil(cellOf(tenant, alone))
		spoil(cellOf(tenant, again))
	}
	if _, rows := said(); !strings.Contains(rows, "no block in which it and a tenant alone count") || strings.Contains(rows, "not run") {
		t.Errorf("no round alone counts, and it says:\n%s", rows)
	}
}

// A wide interval is no harm: what is sure comes first.
func TestRank(t *testing.T) {
	t.Parallel()
	sure := stats.Compared{Interval: stats.Interval{Estimate: 2, Low: 1.5, High: 3, Confidence: 0.95, Rounds: 20}, Verdict: stats.Worse}
	wide := stats.Compared{Interval: stats.Interval{Estimate: 5, Low: 0.2, High: 90, Confidence: 0.95, Rounds: 20}, Verdict: stats.Inconclusive}
	if rank(sure) != 2 || rank(wide) != 0.2 {
		t.Errorf("ranks %g and %g", rank(sure), rank(wide))
	}
}

// From stored rounds to the report.
func TestReport(t *testing.T) {
	t.Parallel()
	stored, err := json.Marshal(played(t, harm))
	if err != nil {
		t.Fatal(err)
	}
	var read Result
	if err := json.Unmarshal(stored, &read); err != nil {
		t.Fatal(err)
	}
	s, err := read.Sheet()
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
	for name, got := range map[string][]byte{"report.txt": text.Bytes(), "report.html": page.Bytes()} {
		golden.Check(t, "testdata/"+name, got)
	}
	if s, err := New().Sheet(); err != nil || len(s.Answer) != 1 {
		t.Errorf("without rounds: %+v, %v", s, err)
	}
}
