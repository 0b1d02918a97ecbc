package lab

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/lab/stats"
)

func encode(t testing.TB, h *hdrhistogram.Histogram) string {
	t.Helper()
	text, err := stats.Encode(h)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// usual is a machine on which idle protects and the others do not.
func usual() map[string]fake {
	return map[string]fake{
		Baseline: {scale: 1}, BaselineAgain: {scale: 1},
		Unisolated: {scale: 8, work: 1000, answered: 0.8},
		"weighted": {scale: 1.5, work: 700},
		"idle":     {scale: 1.01, work: 600},
		"pinned":   {scale: 1.02, work: 400},
	}
}

func rowOf(t *testing.T, a *Analysis, scenario string) Row {
	t.Helper()
	for _, row := range a.Rows {
		if row.Scenario == scenario {
			return row
		}
	}
	t.Fatalf("no row for %s", scenario)
	return Row{}
}

func TestAnalyse(t *testing.T) {
	t.Parallel()
	r := fakeResult(t, usual())
	r.Skipped = []Skipped{{Scenario: "limited", Reason: "cpu.max: no such file", Remedy: "a newer kernel"}}
	a, err := Analyse(r)
	if err != nil {
		t.Fatal(err)
	}
	verdicts := map[string]stats.Verdict{}
	for _, row := range a.Rows {
		verdicts[row.Scenario] = row.Verdict
	}
	want := map[string]stats.Verdict{
		Baseline: "", BaselineAgain: "", Unisolated: stats.Worse, "weighted": stats.Worse,
		"idle": stats.Equivalent, "limited": "", "pinned": stats.Equivalent,
	}
	if diff := cmp.Diff(want, verdicts); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	if a.Recommended != "idle" {
		t.Errorf("recommended %q, want idle: it keeps more of the neighbour's work than pinned\n%s", a.Recommended, a.Recommendation)
	}
	if row := rowOf(t, a, Unisolated); !row.Saturated || row.Ratio.Low > 8 || row.Ratio.High < 8 {
		t.Errorf("unisolated: saturated %v, ratio %+v; want saturated and about 8", row.Saturated, row.Ratio)
	}
	if row := rowOf(t, a, "idle"); row.WorkShare == nil || *row.WorkShare != 0.6 {
		t.Errorf("idle: work share %v, want 0.6 of unisolated", row.WorkShare)
	}
	if row := rowOf(t, a, "limited"); row.Skipped == nil || row.Skipped.Remedy != "a newer kernel" {
		t.Errorf("limited: %+v, want it skipped with its remedy", row)
	}
	if row := rowOf(t, a, Baseline); row.WorkShare != nil || row.Requests != 12_000 || len(row.Quantiles) != 4 {
		t.Errorf("baseline: %+v", row)
	}
	if len(a.Warnings) != 0 {
		t.Errorf("warnings %q, want none", a.Warnings)
	}
}

// The work of unisolated rounds that have settled is that of their blocks, and so is the work that is compared with it.
func TestWorkShareIsOfTheSameBlocks(t *testing.T) {
	t.Parallel()
	r := fakeResult(t, usual())
	r.Rounds = slices.DeleteFunc(r.Rounds, func(round Round) bool { return round.Scenario == Unisolated && round.Block >= 10 })
	for i := range r.Rounds {
		if r.Rounds[i].Scenario == "idle" && r.Rounds[i].Block >= 10 {
			r.Rounds[i].Neighbour.Work /= 2 // the machine became slower
		}
	}
	a, err := Analyse(r)
	if err != nil {
		t.Fatal(err)
	}
	if row := rowOf(t, a, "idle"); row.WorkShare == nil || math.Abs(*row.WorkShare-0.6) > 0.006 || math.Abs(row.Work-450) > 1 {
		t.Errorf("work share %v of %g, want 0.6 as in the blocks that both have, of 450", row.WorkShare, row.Work)
	}
	if row := rowOf(t, a, Unisolated); row.WorkShare == nil || *row.WorkShare != 1 {
		t.Errorf("unisolated: work share %v, want 1", row.WorkShare)
	}
}

func TestAnalyseIsAFunctionOfTheStoredFile(t *testing.T) {
	t.Parallel()
	r := fakeResult(t, usual())
	first, err := Analyse(r)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	stored := new(Result)
	err = Decode(text, Schema, stored)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Analyse(stored)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("analysis differs after storing (-before +after):\n%s", diff)
	}
}

func TestAnalyseExcludesWhatItCannotTrust(t *testing.T) {
	t.Parallel()
	scenarios := usual()
	scenarios["idle"] = fake{scale: 1, work: 600, lag: 900} // as late as the answers are slow
	r := fakeResult(t, scenarios)
	for i := range r.Rounds {
		if r.Rounds[i].Scenario == "pinned" && r.Rounds[i].Block < 4 {
			r.Rounds[i].Invalid = "the tenant died"
		}
	}
	a, err := Analyse(r)
	if err != nil {
		t.Fatal(err)
	}
	if row := rowOf(t, a, "idle"); row.Verdict != stats.Invalid || row.Valid != 0 || !strings.Contains(row.Why, "lag") {
		t.Errorf("idle with a late generator: %s, %d valid, %q; want it invalid for its lag", row.Verdict, row.Valid, row.Why)
	}
	if row := rowOf(t, a, "pinned"); row.Valid != 16 || row.Rounds != 20 || row.Ratio.Rounds != 16 {
		t.Errorf("pinned with four invalid rounds: valid %d of %d, %d blocks compared", row.Valid, row.Rounds, row.Ratio.Rounds)
	}
	if a.Recommended == "idle" {
		t.Error("an invalid scenario is recommended")
	}
}

// Requests that failed are in the histograms with a lower bound, and a lower
// bound supports no verdict but worse.
func TestAnalyseOfFailures(t *testing.T) {
	t.Parallel()
	r := fakeResult(t, usual())
	for i := range r.Rounds {
		l := &r.Rounds[i].Load
		switch r.Rounds[i].Scenario {
		case "idle": // one in ten fails at once
			l.Failed = l.Offered / 10
			l.Done -= l.Failed
			for s := range l.Seconds {
				l.Seconds[s].Censored = l.Seconds[s].Offered / 10
			}
		case "pinned": // nobody is answered
			l.Done, l.Failed = 0, l.Offered
		case Unisolated: // nor in a fifth of these, where all still wait: they count, as lower bounds
			if r.Rounds[i].Block%5 == 0 {
				l.Done, l.Unfinished = 0, l.Offered
				for s := range l.Seconds {
					l.Seconds[s].Censored = l.Seconds[s].Offered
				}
			}
		}
	}
	a, err := Analyse(r)
	if err != nil {
		t.Fatal(err)
	}
	if row := rowOf(t, a, "idle"); row.Verdict != stats.Inconclusive {
		t.Errorf("idle with failures: %s, want inconclusive", row.Verdict)
	}
	if row := rowOf(t, a, "pinned"); row.Verdict != stats.Invalid || !strings.Contains(row.Why, "no request was answered") {
		t.Errorf("pinned without answers: %s, %q", row.Verdict, row.Why)
	}
	if row := rowOf(t, a, Unisolated); row.Valid != 20 || row.Verdict != stats.Worse {
		t.Errorf("unisolated without answers in four rounds: %s, %d of %d count", row.Verdict, row.Valid, row.Rounds)
	}
	if a.Recommended != "weighted" {
		t.Errorf("recommended %q, want weighted: it is better than nothing", a.Recommended)
	}
}

func TestAnalyseRefusesRoundsTwice(t *testing.T) {
	t.Parallel()
	r := fakeResult(t, map[string]fake{Baseline: {scale: 1}})
	r.Rounds = append(r.Rounds, r.Rounds[0])
	if _, err := Analyse(r); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a round twice: %v, want an error", err)
	}
}

func TestRecommendsNothingWhereNothingIsNeeded(t *testing.T) {
	t.Parallel()
	scenarios := usual()
	scenarios[Unisolated] = fake{scale: 1, work: 1000}
	scenarios["weighted"] = fake{scale: 1, work: 1160} // more work, by noise
	a, err := Analyse(fakeResult(t, scenarios))
	if err != nil {
		t.Fatal(err)
	}
	if a.Recommended != Unisolated {
		t.Errorf("recommended %q, want unisolated\n%s", a.Recommended, a.Recommendation)
	}
}

func TestAnalyseOfLittle(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]*Result{
		"no rounds":         fakeResult(t, nil),
		"baseline only":     fakeResult(t, map[string]fake{Baseline: {scale: 1}}),
		"no baseline":       fakeResult(t, map[string]fake{Unisolated: {scale: 1, work: 1}}),
		"no unisolated":     fakeResult(t, map[string]fake{Baseline: {scale: 1}, BaselineAgain: {scale: 1}, "idle": {scale: 1, work: 5}}),
		"one block":         firstBlock(fakeResult(t, usual())),
		"no experiment too": {Header: Header{Schema: Schema}},
	} {
		a, err := Analyse(r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if a.Recommendation == "" {
			t.Errorf("%s: no recommendation, not even none", name)
		}
		if name == "no unisolated" && rowOf(t, a, "idle").WorkShare != nil {
			t.Errorf("%s: work share without anything to compare with", name)
		}
	}
}

func firstBlock(r *Result) *Result {
	r.Rounds = r.Rounds[:6]
	return r
}

func TestAnalyseWarns(t *testing.T) {
	t.Parallel()
	r := fakeResult(t, usual())
	for i := range r.Rounds {
		r.Rounds[i].Host.Steal = 0.5
		r.Rounds[i].Host.Foreign = 1
		if i > len(r.Rounds)/2 {
			r.Rounds[i].Probes[0].NS *= 1.3
		}
	}
	r.Setup.GeneratorPolicy = "SCHED_OTHER"
	r.Setup.BackendNote = "no permission"
	a, err := Analyse(r)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(a.Warnings, "\n")
	for _, want := range []string{"probe alu", "hypervisor took 12.5 %", "other processes 25.0 %", "real-time", "no permission"} {
		if !strings.Contains(all, want) {
			t.Errorf("warnings lack %q:\n%s", want, all)
		}
	}
}

func TestAnalyseRefusesDamage(t *testing.T) {
	t.Parallel()
	r := fakeResult(t, usual())
	r.Rounds[3].Load.Seconds[1].Response = "HISTnonsense"
	if _, err := Analyse(r); err == nil || !strings.Contains(err.Error(), "round 4") || !strings.Contains(err.Error(), "second 2") {
		t.Errorf("error %v, want one that names round 4 and second 2", err)
	}
}

func BenchmarkAnalyse(b *testing.B) {
	r := fakeResult(b, usual())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Analyse(r); err != nil {
			b.Fatal(err)
		}
	}
}

// The words say how many CPUs of its own the tenant had, and how full they are.
func TestCPUsOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		wants float64
		want  string
	}{
		{3.36, "In pinned the tenant has 6 of the 8 shared CPUs to itself, and wants 56 % of that."},
		{4.8, "In pinned the tenant has 6 of the 8 shared CPUs to itself, and wants 80 % of that: so full, its requests wait for each other, whoever else runs."},
	} {
		r := fakeResult(t, usual())
		r.Setup.CPUs, r.Setup.TenantCPUs = "0-7", tc.wants
		if a := analysed(t, r); strings.Contains(strings.Join(a.Reading, "\n"), "to itself") {
			t.Error("nothing was read back, and it says how many CPUs there were")
		}
		for i := range r.Rounds {
			r.Rounds[i].Knobs = []Knob{{Of: Tenant, File: "cpuset.cpus", Value: "1-6"}, {Of: Neighbour, File: "cpuset.cpus", Value: "0,7"}}
		}
		if a := analysed(t, r); !slices.Contains(a.Reading, tc.want) {
			t.Errorf("no %q in\n%s", tc.want, strings.Join(a.Reading, "\n"))
		}
	}
}

// Rounds that are invalid do not tell where a role stood, nor do those of other cells.
func TestStoodOn(t *testing.T) {
	t.Parallel()
	on := func(cell, invalid, of, file, value string) Round {
		return Round{Scenario: cell, Invalid: invalid, Knobs: []Knob{{Of: of, File: file, Value: value}}}
	}
	rounds := []Round{
		on("shared", "", Tenant, "cpuset.cpus", "0-7"),
		on("pinned", "the tenant ended", Tenant, "cpuset.cpus", "0-3"),
		on("pinned", "", Neighbour, "cpuset.cpus", "4-7"),
		on("pinned", "", Tenant, "cpu.idle", "1"),
		on("pinned", "", Tenant, "affinity", ""),
		on("pinned", "", Tenant, "affinity", "1-2"),
		on("pinned", "", Tenant, "affinity", "1-3"),
	}
	for cell, want := range map[string]string{"pinned": "1-2", "shared": "0-7", "none": ""} {
		if got := StoodOn(rounds, cell, Tenant); got.String() != want {
			t.Errorf("%s: %q, want %q", cell, got, want)
		}
	}
}

// lateResult is a run of whose requests nearly all were disturbed, so that all count.
func lateResult(t *testing.T, scenarios map[string]fake) *Result {
	t.Helper()
	r := fakeResult(t, scenarios)
	for i := range r.Rounds {
		r.Rounds[i].Undisturbed = &Undisturbed{Response: encode(t, stats.NewHistogram()), LeftOut: r.Rounds[i].Load.Offered}
	}
	return r
}

// Response times beside which the generator's own lag is not small are upper bounds, where
// requests do not leave one by one for it; lower bounds stay what they are.
func TestUpperBounds(t *testing.T) {
	t.Parallel()
	scenarios := usual()
	for name, f := range scenarios {
		if f.lag = 300; name == "idle" {
			f.lag = 20
		}
		scenarios[name] = f
	}
	a := analysed(t, lateResult(t, scenarios))
	for scenario, want := range map[string]string{Baseline: "at most ", Unisolated: "at least ", "idle": ""} {
		row := rowOf(t, a, scenario)
		q, ok := p99of(row)
		if got := row.Bounded(q); !ok || got != want {
			t.Errorf("%s: the p99 is known: %v, %q; want it so, %q", scenario, ok, got, want)
		}
	}
	for want, row := range map[string]Row{"about ": {Saturated: true}, "at most ": {}} {
		if got := row.Bounded(Quantile{P: headline, AtMost: "lag of 300 µs"}); got != want {
			t.Errorf("saturated %v and late: %q, want %q", row.Saturated, got, want)
		}
	}
	if want := "; alone at most "; !strings.Contains(a.Answer[0], want) {
		t.Errorf("the answer is %q, want %q in it", a.Answer[0], want)
	}
}

// So are they in the samples by which other experiments judge; with a small lag, or where requests leave, they are not.
func TestSamplesAreUpperBounds(t *testing.T) {
	t.Parallel()
	scenarios := map[string]fake{Baseline: {scale: 1, lag: 300}, "idle": {scale: 1, lag: 20, work: 1}}
	calm := lateResult(t, scenarios)
	for i := range calm.Rounds {
		calm.Rounds[i].Undisturbed = &Undisturbed{Response: encode(t, stats.Merge(secondsOf(t, calm.Rounds[i])...).Histogram()), Requests: calm.Rounds[i].Load.Offered}
	}
	for name, r := range map[string]*Result{"all": lateResult(t, scenarios), "calm": calm} {
		m, err := Measure(r)
		if err != nil {
			t.Fatal(err)
		}
		samples, undisturbed := m.Samples()
		if undisturbed != (name == "calm") || len(samples) != 40 {
			t.Fatalf("%s: %d samples, undisturbed %v", name, len(samples), undisturbed)
		}
		for _, s := range samples {
			for _, figure := range []string{"p50", "p95", p99} {
				if want := name == "all" && s.Cell == Baseline; (s.Late[figure] != "") != want {
					t.Errorf("%s: %s of %s: %q, want a reason: %v", name, figure, s.Cell, s.Late[figure], want)
				}
			}
		}
	}
}

// Which of two upper bounds is the larger says nothing; an upper bound that is the smaller one does.
func TestVerdictsOfUpperBounds(t *testing.T) {
	t.Parallel()
	a := analysed(t, lateResult(t, map[string]fake{
		Baseline: {scale: 1, lag: 300}, BaselineAgain: {scale: 1, lag: 300}, Unisolated: {scale: 8, work: 1000, lag: 300, answered: 0.8},
		"weighted": {scale: 2, work: 700, lag: 900}, "idle": {scale: 0.7, work: 600, lag: 300}, "limited": {scale: 0.7, work: 500, lag: 20}, "pinned": {scale: 3, work: 400, lag: 20},
	}))
	for _, tc := range []struct {
		scenario, against string
		want              stats.Verdict
	}{
		{BaselineAgain, Baseline, stats.Inconclusive}, // both are upper bounds
		{"weighted", Baseline, stats.Inconclusive},
		{"idle", Baseline, stats.Inconclusive},
		{"limited", Baseline, stats.Inconclusive}, // alone may be as fast
		{"pinned", Baseline, stats.Worse},         // alone may be faster still
		{Unisolated, Baseline, stats.Worse},
		{"idle", Unisolated, stats.Better},
		{"pinned", Unisolated, stats.Better},
		{"pinned", "idle", stats.Worse},
		{"idle", "weighted", stats.Inconclusive},
		{"limited", "weighted", stats.Inconclusive},
		{"limited", "idle", stats.Inconclusive},
		{"pinned", "limited", stats.Worse},
	} {
		c, _ := a.Compared(tc.scenario, tc.against)
		f, _ := c.Figure(p99)
		if f.Verdict != tc.want {
			t.Errorf("%s against %s: %s (%s), want %s", tc.scenario, tc.against, f.Verdict, f.Why, tc.want)
		}
		if f.Verdict == stats.Inconclusive && !strings.Contains(f.Why, "upper bounds: the machine held up the generator, too") {
			t.Errorf("%s against %s: %q", tc.scenario, tc.against, f.Why)
		}
	}
	text := strings.Join(a.Answer, "\n")
	if !strings.Contains(text, "hether idle is as good as alone is not decided (0.") || !strings.Contains(text, "times; both are upper bounds") || strings.Contains(text, "better than alone") {
		t.Errorf("answer:\n%s", text)
	}
}
