package guarded

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth.dev/berth/guard"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/stats"
	"berth.dev/berth/place"
)

// playedStage notes what happened, and when; its clock is that of the test.
type playedStage struct {
	began    time.Time
	happened []string
	finish   []func() error
}

func (p *playedStage) note(what string) {
	p.happened = append(p.happened, p.Now().String()+" "+what)
}

func (p *playedStage) Now() time.Duration { return time.Since(p.began) }

func (p *playedStage) Until(_ context.Context, at time.Duration) error {
	time.Sleep(at - p.Now())
	return nil
}
func (p *playedStage) Finish(f func() error) { p.finish = append(p.finish, f) }
func (p *playedStage) StartNeighbour(context.Context) error {
	p.note("neighbour")
	return nil
}

func (p *playedStage) Noise(role lab.Role, cfg noise.Config) (*lab.Process, error) {
	return &lab.Process{Begin: func(context.Context) error {
		p.note(string(role) + " " + cfg.Kernel)
		return nil
	}}, nil
}

func (p *playedStage) Keep(_ context.Context, role lab.Role, cfg noise.Config) (*lab.Process, error) {
	says := fmt.Sprintf("%s %s %d%%", role, cfg.Kernel, cfg.Intensity)
	return &lab.Process{
		Begin: func(context.Context) error { p.note(says); return nil },
		Halt:  func() error { p.note(says + " ends"); return nil },
	}, nil
}

func (p *playedStage) Generator() (float64, error) { return 0.02 * p.Now().Seconds(), nil }

func (p *playedStage) Load(context.Context, lab.Extra) (*lab.Process, error) {
	return nil, errors.New("no more load is played")
}

// In steady state the guard is there in its own scenario and in no other, from before the
// neighbour, which begins when it has learned.
func TestGuardIsInItsScenarioOnly(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios() {
		synctest.Test(t, func(t *testing.T) {
			p := &playedStage{began: time.Now()}
			x := &experiment{Result: &Result{Experiment: Spec{Learn: lab.Duration(6 * time.Second)}}}
			x.guard = func(_ context.Context, zero time.Time) (func(*Trial) error, error) {
				p.note("guard, from " + zero.Sub(p.began).String())
				return func(trial *Trial) error { trial.Windows = 42; return nil }, nil
			}
			time.Sleep(100 * time.Millisecond)
			var trial Trial
			err := x.settle(t.Context(), s, p, &trial)
			want := map[string][]string{Unguarded: {"6s neighbour"}, Guarded: {"100ms guard, from 100ms", "6s neighbour"}}[s.Name]
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
		})
	}
	broken := errors.New("broken")
	x := &experiment{Result: &Result{}, host: host{guard: func(context.Context, time.Time) (func(*Trial) error, error) { return nil, broken }}}
	if err := x.settle(t.Context(), lab.Scenario{Name: Guarded, Neighbour: true}, &playedStage{}, nil); !errors.Is(err, broken) {
		t.Errorf("a guard that does not start: %v", err)
	}
}

// A run of a fault on a played host, by value: who begins when, from which instant the guard's
// times count, and what is filed.
func TestFaultIsPlayed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := &experiment{Result: &Result{Experiment: Spec{Learn: lab.Duration(6 * time.Second), Last: lab.Duration(5 * time.Second), MaxOthers: 0.25}}}
		p := &playedStage{began: time.Now()}
		var zero time.Time
		let := false // the guard has let go
		x.host = host{
			guard: func(_ context.Context, from time.Time) (func(*Trial) error, error) {
				p.note("guard")
				zero = from
				return func(trial *Trial) error {
					p.note("guard ends")
					trial.Windows, let = 42, true
					return nil
				}, nil
			},
			usage: func() (map[lab.Role]float64, error) {
				at := p.Now().Seconds()
				return map[lab.Role]float64{lab.Tenant: 0.4 * at, lab.Neighbour: 1.5 * at}, nil
			},
			knobs: func() ([]lab.Knob, error) {
				value := "0"
				if let {
					value = "1"
				}
				return []lab.Knob{{Of: "neighbour", File: "cpu.idle", Value: value}}, nil
			},
			requests: func() ([]lab.Request, error) {
				return []lab.Request{{Due: 60 * time.Millisecond, Seen: 61 * time.Millisecond, Done: 65 * time.Millisecond}}, nil
			},
		}
		var cell lab.Cell
		hog, _ := FaultNamed(Hog)
		run, err := x.fault(&cell, hog, 2, rand.New(rand.NewPCG(1, 2)))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // the hook is called a little after the load began
		run.ready = func(context.Context, stage) (disturbance, error) {
			return disturbance{
				begin: func(context.Context) error { p.note("hog"); return nil },
				end:   func() error { p.note("hog ends"); return nil },
			}, nil
		}
		if err := run.during(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		onset := run.onset
		if onset < 6*time.Second || onset >= 7*time.Second || cell.Window != onset-settle+5*time.Second+after {
			t.Errorf("onset after %s, window of %s", onset, cell.Window)
		}
		if got := zero.Sub(p.began); got != onset {
			t.Errorf("the guard's times count from %s, the onset is at %s", got, onset)
		}
		end := onset + 5*time.Second
		want := []string{"20ms bystander spin", "20ms guard", onset.String() + " hog", end.String() + " hog ends", (end + after/2).String() + " guard ends"}
		if diff := cmp.Diff(want, p.happened); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		for others, counts := range map[float64]bool{0.24: true, 0.26: false} {
			x.Runs = nil
			run.trial.Bins = nil
			round := lab.Round{Seconds: 4, Host: lab.HostUsage{SharedCPUs: 2, Foreign: 8 * others}, Load: load.Report{CPUSeconds: 0.2}}
			if err := run.keep(round); err != nil {
				t.Fatal(err)
			}
			got := x.Runs[0]
			wanted := Trial{
				Fault: Hog, Number: 3, From: -onset.Seconds(), BinsFrom: (settle - onset).Seconds(), End: 5, Windows: 42, TenantCPUs: 0.4, NeighbourCPUs: 1.5,
				Others: others, LagP99: 1000, GeneratorCPUs: 0.05, Bins: []Bin{{}, {Response: []int64{5000}}}, Changed: []string{"neighbour cpu.idle: 1, was 0"}, Invalid: got.Invalid,
			}
			if diff := cmp.Diff(wanted, got, cmpopts.EquateApprox(0, 1e-9)); diff != "" || (got.Invalid == "") != counts {
				t.Errorf("others took %g: invalid %q (-want +got):\n%s", others, got.Invalid, diff)
			}
		}
	})
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
func TestWorkloads(t *testing.T) {
	t.Parallel()
	var w watching
	dirs := map[lab.Role]string{lab.Tenant: "cpu/lab/tenant", lab.Neighbour: "cpu/lab/neighbour", lab.Bystander: "cpu/lab/bystander"}
	all, err := w.workloads(dirs, func(dir string) (string, bool) { return strings.TrimPrefix(dir, "cpu"), true })
	slices.SortFunc(all, func(a, b guard.Workload) int { return strings.Compare(a.Group, b.Group) })
	want := []guard.Workload{{Group: "/lab/bystander", Class: place.BE}, {Group: "/lab/neighbour", Class: place.BE}, {Group: "/lab/tenant", Class: place.LS, Sensitive: true}}
	if diff := cmp.Diff(want, all); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if diff := cmp.Diff(map[string]string{"bystander": "/lab/bystander", "neighbour": "/lab/neighbour", "tenant": "/lab/tenant"}, w.groups); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if _, err := w.workloads(dirs, func(dir string) (string, bool) { return "", dir != dirs[lab.Bystander] }); err == nil {
		t.Error("a group that the guard cannot see: no error")
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

// bed plays rounds that last as long as they are to, and a little between them.
type bed struct{ between time.Duration }

func (b bed) Round(_ context.Context, c lab.Cell, block, position int) (lab.Round, error) {
	time.Sleep(c.Settle + c.Window + b.between)
	return lab.Round{Block: block, Position: position, Scenario: c.Name, Seconds: c.Window.Seconds(), Load: load.Report{Done: 1}}, nil
}

// A run lasts as long as it announces, within a fifth.
func TestLength(t *testing.T) {
	t.Parallel()
	faults := []string{Hog, Switch, Quota, Saturation, Quiet} // the others need more of the host, and last as long
	for name, change := range map[string]func(*Spec){
		"default": func(*Spec) {}, "short": func(e *Spec) { *e = Short() }, "one fault": func(e *Spec) { e.Faults, e.Blocks = []string{Hog}, 0 },
		"steady state": func(e *Spec) { e.Faults = nil }, "long and quiet": func(e *Spec) { e.Faults, e.Quiet, e.Runs = []string{Quiet}, lab.Duration(10*time.Minute), 1 },
	} {
		for _, between := range []time.Duration{30 * time.Millisecond, 1500 * time.Millisecond} { // most rounds, and such as start a tenant
			synctest.Test(t, func(t *testing.T) {
				e := Default()
				e.Faults = faults
				change(&e)
				x := &experiment{Result: &Result{Experiment: e}, base: e.base()}
				x.host = host{knobs: func() ([]lab.Knob, error) { return nil, nil }, requests: func() ([]lab.Request, error) { return nil, nil }}
				began := time.Now()
				time.Sleep(5 * time.Second) // calibration
				err := lab.Run(t.Context(), lab.Experiment{Parts: x.parts(), Result: x.Result, Header: &x.Header}, bed{between}, lab.Options{Dir: t.TempDir()})
				if err != nil {
					t.Fatal(err)
				}
				if took, announced := time.Since(began), e.Length(); took < announced*8/10 || took > announced*12/10 {
					t.Errorf("%s, %s between rounds: took %s, %s announced", name, between, took, announced)
				}
			})
		}
	}
}
