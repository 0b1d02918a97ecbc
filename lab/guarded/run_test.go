package guarded

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
	"berth.dev/berth/place"
)

// playedStage says what happened, and when it ends.
type playedStage struct {
	happened []string
	finish   []func() error
}

func (p *playedStage) Until(_ context.Context, at time.Duration) error {
	p.happened = append(p.happened, "until "+at.String())
	return nil
}
func (p *playedStage) Finish(f func() error) { p.finish = append(p.finish, f) }
func (p *playedStage) StartNeighbour(context.Context) error {
	p.happened = append(p.happened, "neighbour")
	return nil
}

// In steady state the guard is there in its own scenario and in no other, from before the
// neighbour, which begins when it has learned.
func TestGuardIsInItsScenarioOnly(t *testing.T) {
	t.Parallel()
	x := &experiment{Result: &Result{Experiment: Spec{Learn: lab.Duration(6 * time.Second)}}}
	for _, s := range scenarios() {
		p := &playedStage{}
		var trial Trial
		err := x.settle(t.Context(), s, p, func() (func(*Trial) error, error) {
			p.happened = append(p.happened, "guard")
			return func(trial *Trial) error { trial.Windows = 42; return nil }, nil
		}, &trial)
		want := map[string][]string{Unguarded: {"until 6s", "neighbour"}, Guarded: {"guard", "until 6s", "neighbour"}}[s.Name]
		if diff := cmp.Diff(want, p.happened); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", s.Name, err, diff)
		}
		for _, f := range p.finish {
			if err := f(); err != nil {
				t.Error(err)
			}
		}
		if (trial.Windows == 42) != (s.Name == Guarded) {
			t.Errorf("%s: what the guard said is filed: %+v", s.Name, trial)
		}
	}
	broken := errors.New("broken")
	if err := x.settle(t.Context(), lab.Scenario{Name: Guarded, Neighbour: true}, &playedStage{}, func() (func(*Trial) error, error) { return nil, broken }, nil); !errors.Is(err, broken) {
		t.Errorf("a guard that does not start: %v", err)
	}
}

// Rounds in steady state go to the comparison, what the guard did in them beside it.
func TestKeepSteady(t *testing.T) {
	t.Parallel()
	x := &experiment{Result: &Result{Header: lab.Header{Schema: Schema, Skipped: []lab.Skipped{{Scenario: "io"}}}}, base: Default().base()}
	x.base.Blocks = 1
	for i, s := range x.base.Scenarios {
		x.keepSteady(lab.Round{Scenario: s.Name}, Trial{Number: i})
	}
	if s := x.Steady; s.Schema != lab.Schema || len(s.Rounds) != 4 || !s.Complete || s.Skipped != nil {
		t.Errorf("%+v", s)
	}
	if len(x.Guarded) != 1 || x.Steady.Rounds[x.Guarded[0].Number].Scenario != Guarded {
		t.Errorf("guarded: %+v", x.Guarded)
	}
}

// A run counts if others took no more than their share, by value.
func TestCount(t *testing.T) {
	t.Parallel()
	round := lab.Round{Seconds: 4, Host: lab.HostUsage{CPUs: 8, SharedCPUs: 2, Steal: 0.5, Foreign: 1.5}} // a quarter of 8 s
	for most, counts := range map[float64]bool{0.24: false, 0.25: true, 0.9: true} {
		var trial Trial
		trial.count(round, most)
		if trial.Others != 0.25 || (trial.Invalid == "") != counts {
			t.Errorf("at most %g: others %g, %q", most, trial.Others, trial.Invalid)
		}
	}
	var trial Trial
	trial.count(lab.Round{Invalid: "late", Seconds: 1, Host: lab.HostUsage{SharedCPUs: 1, Steal: 1}}, 0.1)
	if trial.Invalid != "late" {
		t.Errorf("invalid %q, want the round's own reason", trial.Invalid)
	}
}

// Onsets lie anywhere in the second after learning.
func TestOnsetIsByChance(t *testing.T) {
	t.Parallel()
	e := Spec{Learn: lab.Duration(6 * time.Second)}
	random := rand.New(rand.NewPCG(1, 2))
	var tenths [10]int
	for range 1000 {
		at := onset(e, random) - 6*time.Second
		if at < 0 || at >= time.Second {
			t.Fatalf("onset %s after learning", at)
		}
		tenths[at/(100*time.Millisecond)]++
	}
	if least := slices.Min(tenths[:]); least < 60 {
		t.Errorf("onsets by tenth of the second: %v", tenths)
	}
}

// Times count from the onset: what the guard says in that instant is at 0.
func TestTimesCountFromTheOnset(t *testing.T) {
	t.Parallel()
	run := &faultRun{onset: 6500 * time.Millisecond}
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) // of the load
	now := began.Add(1200 * time.Millisecond)
	if zero := run.zero(now, 1200*time.Millisecond); !zero.Equal(began.Add(run.onset)) {
		t.Errorf("zero %s after the load began, want %s", zero.Sub(began), run.onset)
	}
	w := &watching{zero: began.Add(run.onset), groups: map[string]string{"tenant": "/lab/tenant", "neighbour": "/lab/neighbour", "bystander": "/lab/bystander"}}
	w.acted(control.Event{Time: began.Add(run.onset + 300*time.Millisecond), Victim: "/lab/tenant", Suspect: "/lab/bystander"})
	if e := w.events[0]; e.At != 0.3 || e.Event.Suspect != "bystander" || e.Event.Victim != "tenant" {
		t.Errorf("noted %+v", e)
	}
	w.zero = time.Now()
	w.found([]detect.Finding{{Victim: "/lab/neighbour"}, {Victim: "/lab/tenant", Suspect: "/lab"}})
	if len(w.findings) != 1 || w.findings[0].Suspect != "both" || w.findings[0].At < 0 || w.findings[0].At > 10 {
		t.Errorf("findings %+v, want that about the tenant alone", w.findings)
	}
}

// The guard is told of the bystander as of the neighbour: it is as free to be accused.
func TestClasses(t *testing.T) {
	t.Parallel()
	want := map[lab.Role]place.Class{lab.Tenant: place.LS, lab.Neighbour: place.BE, lab.Bystander: place.BE}
	if diff := cmp.Diff(want, classes()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Kept is the neighbour's CPU time, of the shared CPUs less what the tenant uses.
func TestKept(t *testing.T) {
	t.Parallel()
	rounds := &lab.Result{Rounds: []lab.Round{{Host: lab.HostUsage{CPUs: 8, SharedCPUs: 2}}}}
	a := &lab.Analysis{Rows: []lab.Row{
		{Scenario: Unguarded, Valid: 3, NeighbourCPUs: 1.9, TenantCPUs: 0.1},
		{Scenario: Guarded, Valid: 3, NeighbourCPUs: 1.52, TenantCPUs: 0.4, Verdict: stats.Worse},
	}}
	if got := kept(a, rounds); got == nil || *got < 0.9499 || *got > 0.9501 {
		t.Errorf("kept %v, want 0.95", got)
	}
	if got := kept(&lab.Analysis{Rows: a.Rows[:1]}, rounds); got != nil {
		t.Errorf("without guarded rounds: %g", *got)
	}
}

// A finding that comes when the fault is over names nothing.
func TestFindingsAfterTheFault(t *testing.T) {
	t.Parallel()
	trial := Trial{Fault: Hog, From: -6, End: 5, Windows: 50, Findings: []Finding{{At: 5.4, Resource: detect.CPU, Suspect: "neighbour", Confidence: 1}}}
	a, err := Analyse(&Result{Experiment: Spec{Faults: []string{Hog}, Runs: 1}, Runs: []Trial{trial}})
	if err != nil {
		t.Fatal(err)
	}
	if j := a.Runs[0]; j.Right || strings.Contains(j.Named, "neighbour") || j.Detected != nil {
		t.Errorf("judged %+v", j)
	}
	trial.Findings[0].At = 4.9
	if a, err = Analyse(&Result{Experiment: Spec{Faults: []string{Hog}, Runs: 1}, Runs: []Trial{trial}}); err != nil || a.Runs[0].Detected == nil {
		t.Errorf("within the fault: %+v, %v", a.Runs[0], err)
	}
}
