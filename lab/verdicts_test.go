package lab

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/lab/stats"
)

func analysed(t *testing.T, r *Result) *Analysis {
	t.Helper()
	m, err := Measure(r)
	if err != nil {
		t.Fatal(err)
	}
	m.Path = "results/one run"
	return m.Analyse()
}

// The first lines say what nothing does, what is best, at what price, how sure that is, and how to have it.
func TestAnswer(t *testing.T) {
	t.Parallel()
	near := usual() // two strategies that are alike, and worse than alone
	near["idle"], near["weighted"], near["pinned"] = fake{scale: 1.6, work: 600}, fake{scale: 1.8, work: 700}, fake{scale: 3, work: 1}
	rare := usual()
	rare["idle"] = fake{scale: 0.99, work: 600, rare: 30}
	harmless := usual()
	harmless[Unisolated] = fake{scale: 1, work: 1000}
	useless := usual()
	for _, s := range []string{"weighted", "idle", "pinned"} {
		useless[s] = fake{scale: 8, work: 500}
	}
	for name, tc := range map[string]struct {
		r    *Result
		want []string // parts, each of one sentence
		none []string
	}{
		"usual": {fakeResult(t, usual()), []string{
			"With no isolation the tenant is overloaded: it answers more slowly than requests come, and its queue grows. In rounds of 2 s one request in 100 takes at least 15.9 ms; alone 2.01 ms.",
			"Best: idle (2.07",
			" ms, neighbour keeps 60 %) or pinned (",
			"; they are as good as each other. Both are 7.",
			"times better than nothing (20 of 20 blocks).",
			"Idle is as good as alone, within 10 %; pinned is as good as alone, within 10 %.",
			"Do it: berth run --class BE -- COMMAND (idle), or berth run --class LSE --cpus N -- SERVICE (pinned)",
		}, []string{"--continue", "Rare"}},
		"two close": {fakeResult(t, near), []string{"Best: idle (", "neighbour keeps 60 %) or weighted (", "this run cannot tell them apart. Both are", "Neither is as good as alone: 1.", "times and more this run would have seen, with 80 % chance."}, []string{"pinned"}},
		"rare but bad": {fakeResult(t, rare), []string{
			"Rare but bad, by its own doing or by chance: in the typical block idle has a p99 of 1.0", "times that of alone, over all blocks together ",
		}, []string{"idle is as good as alone", "Idle is as good as alone", "or idle"}},
		"harmless":   {fakeResult(t, harmless), []string{"That is as good as alone: no isolation is needed", "No strategy is shown to be better than nothing."}, []string{"Do it", "overloaded"}},
		"useless":    {fakeResult(t, useless), []string{"No strategy is shown to be better than nothing. The nearest to alone is"}, []string{"Do it"}},
		"six blocks": {fakeBlocks(t, 6), []string{"6 blocks cannot decide one of", "No strategy is shown to be better than nothing", "To see a difference of 1.5 on this machine: berth lab --continue 'results/one run' --for "}, []string{"Best"}},
		"no rounds":  {fakeResult(t, nil), []string{"Nothing can be compared: the tenant alone has no round that counts (no round was run)."}, []string{"Best"}},
		"only alone": {fakeResult(t, map[string]fake{Baseline: {scale: 1}, BaselineAgain: {scale: 1}}), []string{"Alone, one request in 100 takes 2."}, []string{"Best", "nothing."}},
		"overloaded": {fakeResult(t, map[string]fake{Baseline: {scale: 1, answered: 0.8}, Unisolated: {scale: 2, work: 1}}), []string{"even alone the tenant cannot keep up"}, []string{"Best", "With no isolation"}},
	} {
		text := strings.Join(analysed(t, tc.r).Answer, "\n")
		for _, want := range tc.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in\n%s", name, want, text)
			}
		}
		for _, none := range tc.none {
			if strings.Contains(text, none) {
				t.Errorf("%s: %q in\n%s", name, none, text)
			}
		}
	}
}

// fakeBlocks is the usual result with fewer blocks.
func fakeBlocks(t *testing.T, blocks int) *Result {
	t.Helper()
	r := fakeResult(t, usual())
	r.Rounds = slices.DeleteFunc(r.Rounds, func(round Round) bool { return round.Block >= blocks })
	return r
}

// Each scenario is compared with alone, with no isolation and with each other one, by each quantity.
func TestComparisons(t *testing.T) {
	t.Parallel()
	a := analysed(t, fakeResult(t, usual()))
	got := map[string]stats.Verdict{}
	for _, c := range a.Comparisons {
		for _, f := range c.Figures {
			if f.Quantity == p99 || f.Quantity == slow && c.Scenario == "weighted" {
				got[c.Scenario+" "+c.Against+" "+f.Quantity] = f.Verdict
			}
			if !(f.Low <= f.Estimate && f.Estimate <= f.High) || f.Rounds != 20 || f.All != nil || f.P < 0 || f.P > 1 {
				t.Errorf("%s against %s: %+v", c.Scenario, c.Against, f)
			}
		}
		if c.Scenario == Unisolated && (c.Blocks != 20 || c.Higher != 20 || c.Lower != 0) {
			t.Errorf("unisolated against alone: %+v", c)
		}
	}
	want := map[string]stats.Verdict{
		"baseline' baseline p99": stats.Equivalent, "unisolated baseline p99": stats.Worse,
		"weighted baseline p99": stats.Worse, "weighted baseline slow": stats.Worse,
		"idle baseline p99": stats.Equivalent, "pinned baseline p99": stats.Equivalent,
		"weighted unisolated p99": stats.Better, "weighted unisolated slow": stats.Better,
		"idle unisolated p99": stats.Better, "pinned unisolated p99": stats.Better,
		"idle weighted p99": stats.Better, "pinned weighted p99": stats.Better, "pinned idle p99": stats.Equivalent,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	row := rowOf(t, a, "weighted")
	if row.Against != stats.Better || row.WorkKept == nil || !(row.WorkKept.Low <= 0.7 && 0.7 <= row.WorkKept.High) {
		t.Errorf("weighted: %s than nothing, keeps %+v", row.Against, row.WorkKept)
	}
}

// Who is rarely but badly worse is not as good, whatever the typical block says.
func TestRareButBad(t *testing.T) {
	t.Parallel()
	scenarios := usual()
	scenarios["idle"] = fake{scale: 0.99, work: 600, rare: 30}
	a := analysed(t, fakeResult(t, scenarios))
	row := rowOf(t, a, "idle")
	if row.Verdict != stats.Inconclusive || !strings.Contains(row.Why, "much worse in some") || row.Ratio.High > 1.3 {
		t.Errorf("idle: %s, %q, %+v", row.Verdict, row.Why, row.Ratio)
	}
	c, _ := a.Compared("idle", Baseline)
	if f, _ := c.Figure(p99); f.Pooled < 10 || !f.Hides() {
		t.Errorf("all blocks together: %+v", f)
	}
	if a.Recommended != "pinned" {
		t.Errorf("recommended %q", a.Recommended)
	}
}

// Lower bounds support only what a larger value would, too.
func TestLowerBounds(t *testing.T) {
	t.Parallel()
	scenarios := usual()
	scenarios["weighted"] = fake{scale: 4, work: 700, answered: 0.8}
	a := analysed(t, fakeResult(t, scenarios))
	for _, tc := range []struct {
		scenario, against string
		want              stats.Verdict
	}{
		{"weighted", Baseline, stats.Worse},    // maybe much worse
		{"weighted", Unisolated, stats.Better}, // both queue without end: of rounds of this length
		{"idle", Unisolated, stats.Better},     // nothing may be worse still
		{"idle", "weighted", stats.Better},
	} {
		c, _ := a.Compared(tc.scenario, tc.against)
		if f, _ := c.Figure(p99); f.Verdict != tc.want {
			t.Errorf("%s against %s: %s (%s), want %s", tc.scenario, tc.against, f.Verdict, f.Why, tc.want)
		}
	}
}

// Figures are of the undisturbed requests, where the result has them; those of all stand beside them.
func TestAnalyseUndisturbed(t *testing.T) {
	t.Parallel()
	quiet, noisy := fakeResult(t, usual()), fakeResult(t, usual())
	for i := range noisy.Rounds {
		// In every fifth round all requests are ten times as slow; undisturbed ones are as ever.
		round := &noisy.Rounds[i]
		calm := encode(t, stats.Merge(secondsOf(t, quiet.Rounds[i])...).Histogram())
		round.Undisturbed = &Undisturbed{Response: calm, Requests: round.Load.Offered, LeftOut: 50}
		if i%5 != 0 {
			continue
		}
		for s := range round.Load.Seconds {
			h := stats.NewHistogram()
			for _, bar := range secondsOf(t, *round)[s].Histogram().Distribution() {
				if bar.Count > 0 {
					_ = h.RecordValues(bar.To*10, bar.Count)
				}
			}
			round.Load.Seconds[s].Response = encode(t, h)
		}
	}
	want, got := analysed(t, quiet), analysed(t, noisy)
	if !got.Undisturbed || want.Undisturbed {
		t.Fatalf("undisturbed: %v, and %v without", got.Undisturbed, want.Undisturbed)
	}
	for i, c := range got.Comparisons {
		for k, f := range c.Figures {
			if was := want.Comparisons[i].Figures[k]; f.Interval != was.Interval || f.Verdict != was.Verdict {
				t.Errorf("%s against %s, %s: %+v, want %+v", c.Scenario, c.Against, f.Quantity, f.Interval, was.Interval)
			}
			if f.All == nil || *f.All == f.Interval {
				t.Errorf("%s against %s, %s: with all requests %+v", c.Scenario, c.Against, f.Quantity, f.All)
			}
		}
	}
	row := rowOf(t, got, Baseline)
	if q := row.Quantiles[2]; q.All < 3*q.Estimate || row.Disturbed != 1000 {
		t.Errorf("alone: %+v, %d disturbed", q, row.Disturbed)
	}
	if text := strings.Join(got.Reading, "\n"); !strings.Contains(text, "of all requests were left out") {
		t.Errorf("nothing of what was left out:\n%s", text)
	}
	for i := range noisy.Rounds { // too little is left
		u := noisy.Rounds[i].Undisturbed
		u.Requests, u.LeftOut = 200, 400
	}
	if analysed(t, noisy).Undisturbed {
		t.Error("a third of the requests stands for all")
	}
}

// A generator without priority is held up by the neighbour, and its lag is in what the bins leave: an upper bound. One
// with priority, or with CPUs of its own, is late where the machine is, and that is left out.
func TestLateWithoutPriority(t *testing.T) {
	t.Parallel()
	played := usual()
	weighted := played["weighted"]
	weighted.lag = 600
	played["weighted"] = weighted
	r := fakeResult(t, played)
	for i := range r.Rounds {
		calm := encode(t, stats.Merge(secondsOf(t, r.Rounds[i])...).Histogram())
		r.Rounds[i].Undisturbed = &Undisturbed{Response: calm, Requests: r.Rounds[i].Load.Offered}
	}
	for _, tc := range []struct {
		policy, cpus string
		bound        bool
	}{{"SCHED_OTHER", "", true}, {"SCHED_OTHER", "2", false}, {"SCHED_FIFO 40", "", false}, {"", "", false}} {
		r.Setup.GeneratorCPUs = tc.cpus
		for i := range r.Rounds {
			r.Rounds[i].Load.Policy = tc.policy
		}
		a := analysed(t, r)
		if !a.Undisturbed {
			t.Fatal("figures are not of undisturbed requests")
		}
		for _, q := range rowOf(t, a, "weighted").Quantiles {
			if q.P == headline && (q.AtMost != "") != tc.bound {
				t.Errorf("policy %q, own CPUs %q: upper bound %q, want one: %v", tc.policy, tc.cpus, q.AtMost, tc.bound)
			}
		}
		for _, q := range rowOf(t, a, Baseline).Quantiles {
			if q.AtMost != "" {
				t.Errorf("policy %q: alone, where the lag is small, it is an upper bound: %q", tc.policy, q.AtMost)
			}
		}
	}
}

func secondsOf(t *testing.T, round Round) (all []stats.Distribution) {
	t.Helper()
	for _, s := range round.Load.Seconds {
		d, err := stats.Decode(s.Response)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	return all
}

// A few rounds that fail do not make the p99 of the typical round a lower bound; a fifth of them does.
func TestBoundRounds(t *testing.T) {
	t.Parallel()
	for bad, want := range map[int]bool{3: false, 4: true} {
		r := fakeResult(t, usual())
		for i := range r.Rounds {
			if r.Rounds[i].Scenario == "idle" && r.Rounds[i].Block < bad {
				r.Rounds[i].Load.Failed, r.Rounds[i].Load.Seconds[0].Censored = 50, 50
			}
		}
		a := analysed(t, r)
		row := rowOf(t, a, "idle")
		if row.LowerBound() != want || (row.Against == stats.Better) == want {
			t.Errorf("%d of 20 rounds: bound %v, %s than nothing", bad, row.LowerBound(), row.Against)
		}
	}
}

// The tenant alone that differs from itself is a reason to distrust the run, not a verdict.
func TestAloneDiffers(t *testing.T) {
	t.Parallel()
	scenarios := usual()
	scenarios[BaselineAgain] = fake{scale: 1.5}
	a := analysed(t, fakeResult(t, scenarios))
	if text := strings.Join(a.Warnings, "\n"); !strings.Contains(text, "alone differs from itself by a factor of 1.5") {
		t.Errorf("warnings:\n%s", text)
	}
	if row := rowOf(t, a, BaselineAgain); row.Verdict != "" {
		t.Errorf("alone again: %s", row.Verdict)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	r := fakeResult(t, usual())
	if err := r.Experiment.Limits.Set("p99=3ms, p50=1.2ms"); err != nil {
		t.Fatal(err)
	}
	for i := range r.Rounds {
		if r.Rounds[i].Scenario == "pinned" && r.Rounds[i].Block < 5 { // one request in ten fails, fast
			for s := range r.Rounds[i].Load.Seconds {
				r.Rounds[i].Load.Seconds[s].Censored = 30
			}
		}
	}
	a := analysed(t, r)
	got := map[string][2]int{}
	for _, row := range a.Rows {
		for _, met := range row.Limits {
			if met.P == 99 {
				got[row.Scenario] = [2]int{met.Met, met.Rounds}
			}
			if met.Rounds > 0 && !(met.Low <= float64(met.Met)/float64(met.Rounds) && float64(met.Met)/float64(met.Rounds) <= met.High) {
				t.Errorf("%s: %+v", row.Scenario, met)
			}
		}
	}
	want := map[string][2]int{Baseline: {20, 20}, BaselineAgain: {20, 20}, Unisolated: {0, 20}, "idle": {20, 20}, "pinned": {15, 20}}
	delete(got, "weighted")
	delete(got, "limited")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("met (-want +got):\n%s", diff)
	}
	if text := strings.Join(a.Answer, "\n"); !strings.Contains(text, "Rounds with a p99 of at most 3ms: alone 20 of 20 (83 to 100 %), alone again") || !strings.Contains(text, "Rounds with a p50 of at most 1.2ms: ") {
		t.Errorf("answer:\n%s", text)
	}
	for text, want := range map[string]string{
		"p99=20ms": "p99=20ms", "p95=1s,p50=2ms": "p95=1s,p50=2ms",
		"": "limit", "20ms": "limit", "p99": "limit", "p99=": "limit", "99=1s": "limit", "p98=1s": "want p50, p95 or p99",
		"p99=-1s": "want more than 0", "p99=2m": "at most 1m", "p99=1s,": "limit",
	} {
		limits := Limits{{50, Duration(time.Second)}}
		err := limits.Set(text)
		if ok := strings.HasPrefix(want, "p"); ok && (err != nil || limits.String() != want) || !ok && (err == nil || !strings.Contains(err.Error(), want) || len(limits) != 1) {
			t.Errorf("%q: %v, %v, want %s", text, limits, err, want)
		}
	}
}

// Where the data are looked at twice, each look has half of the chance of a false verdict;
// what the first dropped is so in words, and has the verdicts of its own blocks.
func TestLook(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("computes for minutes under the race detector")
	}
	once, twice := fakeResult(t, usual()), fakeResult(t, usual())
	once.Experiment.Look = 0
	twice.Experiment.Look = 10
	twice.Dropped = []Dropped{{Unisolated, 10}}
	twice.Rounds = slices.DeleteFunc(twice.Rounds, func(r Round) bool { return twice.dropped(r.Scenario, r.Block) })
	one, two := analysed(t, once), analysed(t, twice)
	for _, c := range one.Comparisons {
		other, ok := two.Compared(c.Scenario, c.Against)
		if !ok {
			t.Fatalf("%s against %s is gone", c.Scenario, c.Against)
		}
		if c.Scenario == Unisolated || c.Against == Unisolated {
			if other.Blocks != 10 {
				t.Errorf("%s against %s: %d blocks, want 10", c.Scenario, c.Against, other.Blocks)
			}
			continue
		}
		for i, f := range c.Figures {
			if got, want := other.Figures[i].P, min(1, 2*f.P); math.Abs(got-want) > 1e-9 {
				t.Errorf("%s against %s: %s has p = %g, want twice %g", c.Scenario, c.Against, f.Quantity, got, f.P)
			}
		}
	}
	text := strings.Join(two.Reading, "\n")
	if !strings.Contains(text, "After 10 blocks the run gave the time of unisolated to the others") {
		t.Errorf("nothing is said of what was dropped:\n%s", text)
	}
	if strings.Contains(strings.Join(one.Reading, "\n"), "gave the time") {
		t.Error("nothing was dropped")
	}
	settled := analysed(t, fakeResult(t, usual())).settled()
	if !slices.Contains(settled, Unisolated) || slices.Contains(settled, "idle") {
		t.Errorf("settled: %v", settled)
	}
}

// A cell beside which the generator was late in most rounds has too few undisturbed requests: then all requests of every
// cell count, and none is compared by what is left of a few blocks. Which cell it is does not matter.
func TestUndisturbedInEveryCell(t *testing.T) {
	t.Parallel()
	all := usual()
	scenarios := map[string]fake{Baseline: all[Baseline], BaselineAgain: all[BaselineAgain], "weighted": all["weighted"]}
	r := fakeResult(t, scenarios)
	left := map[string]map[bool]*Undisturbed{}
	for name, f := range scenarios {
		left[name] = map[bool]*Undisturbed{false: watched(t, f.scale, false), true: watched(t, f.scale, true)}
	}
	for name, tc := range map[string]struct {
		late   string // the scenario
		rounds int    // of it that were disturbed
		want   bool
	}{
		"none":        {"", 0, true},
		"less":        {"weighted", 10, true},
		"most":        {"weighted", 11, false},
		"all":         {"weighted", 20, false},
		"a reference": {BaselineAgain, 11, false},
	} {
		for i := range r.Rounds {
			round := &r.Rounds[i]
			round.Undisturbed = left[round.Scenario][round.Scenario == tc.late && round.Block < tc.rounds]
		}
		m, err := Measure(r)
		if err != nil {
			t.Fatal(err)
		}
		a := m.Analyse()
		samples, undisturbed := m.Samples()
		if undisturbed != tc.want || a.Undisturbed != tc.want {
			t.Errorf("%s: undisturbed requests compared: %v and %v, want %v", name, undisturbed, a.Undisturbed, tc.want)
		}
		blocks := 20
		if tc.want {
			blocks -= tc.rounds
		}
		c := stats.Compare(samples, []stats.Figure{P99}, []stats.Versus{{Cell: "weighted", Against: Baseline}})
		if len(c) != 1 || c[0].Rounds != blocks || c[0].Verdict != stats.Worse {
			t.Errorf("%s: %+v, want weighted worse in %d blocks", name, c, blocks)
		}
		of, _ := a.Compared("weighted", Baseline)
		if f, _ := of.Figure(p99); f.Rounds != blocks || f.Verdict != stats.Worse {
			t.Errorf("%s: weighted is %s than alone in %d blocks, want worse in %d", name, f.Verdict, f.Rounds, blocks)
		}
	}
}

// watched is what the bins of a round of 2 s leave of 600 requests, each of which takes so many ms. Late, the generator
// stands still in every fourth bin, and the three after it answer the backlog.
func watched(t *testing.T, scale float64, late bool) *Undisturbed {
	t.Helper()
	const window, n = 2 * time.Second, 600
	bins := make([]Bin, window/binLength)
	var requests []Request
	for i := range time.Duration(n) {
		due := i * window / n
		seen := due
		if late && int(due/binLength)%(aftermath+1) == 0 {
			seen += 2 * ms
		}
		requests = append(requests, Request{Due: due, Seen: seen, Done: seen + time.Duration(scale*float64(ms))})
	}
	judgeBins(bins, requests, 2, window, true)
	u, err := undisturbed(bins, requests, window)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
