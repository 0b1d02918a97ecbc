package guarded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/report"
)

// readProtocolFile reads a stored result; a folder stands for the file in it.
func readProtocolFile(path string) (*ProtocolResult, error) {
	var r ProtocolResult
	return &r, lab.Load(path, ProtocolSchema, &r)
}

func TestProtocolRefuses(t *testing.T) {
	t.Parallel()
	if err := DefaultProtocol().Validate(); err != nil {
		t.Error(err)
	}
	limit := 1.0
	for want, change := range map[string]func(*Protocol){
		`looks: [2]: want ascending`:                     func(p *Protocol) { p.Looks = []int{2} },
		`looks: [3 3]`:                                   func(p *Protocol) { p.Looks = []int{3, 3} },
		`error: 0.7`:                                     func(p *Protocol) { p.Error = 0.7 },
		`rest: 11m0s: want 0 to 10m`:                     func(p *Protocol) { p.Rest = lab.Duration(11 * time.Minute) },
		`washout: 3s`:                                    func(p *Protocol) { p.Washout = lab.Duration(3 * time.Second) },
		`reject.most: 0`:                                 func(p *Protocol) { p.Reject.Most = 0 },
		`arm "gaurded": not one of guarded`:              func(p *Protocol) { p.Quadruplets[0].Arm = "gaurded" },
		`did you mean "guarded"?`:                        func(p *Protocol) { p.Quadruplets[0].Arm = "gaurded" },
		`fault "hogg": not one of`:                       func(p *Protocol) { p.Quadruplets[0].Fault = "hogg" },
		`fault io: it needs a tenant of its own`:         func(p *Protocol) { p.Quadruplets[0].Fault = IO },
		`placebo with fault hog`:                         func(p *Protocol) { p.Quadruplets[4].Fault = Hog },
		`covariate "lags"`:                               func(p *Protocol) { p.Covariates = []string{"lags"} },
		`figure "p9": not one of p99`:                    func(p *Protocol) { p.Hypotheses[0].Figure = "p9" },
		`want either most or least`:                      func(p *Protocol) { p.Hypotheses[0].Least = &limit },
		`reaction of guarded: percentile 99: want 50 or`: func(p *Protocol) { p.Hypotheses[2].Percentile = 99 },
		`named of blame: no quadruplet has this arm`: func(p *Protocol) {
			p.Quadruplets, p.Hypotheses[0] = p.Quadruplets[:2], Hypothesis{Figure: Named, Arm: Blame, Least: &limit}
		},
		`demand: `: func(p *Protocol) { p.Demand = 5 },
		`p99 of guarded: percentile 50: only a reaction h`:                      func(p *Protocol) { p.Hypotheses[0].Percentile = 50 },
		`percentile 95, at most 0.2 s: 12 quadruplets cannot show that: 72 can`: func(p *Protocol) { p.Hypotheses[2].Percentile = 95 },
		`at most 0.01: 12 quadruplets cannot show that: 184 can`: func(p *Protocol) {
			few := 0.01
			p.Hypotheses[0] = Hypothesis{Figure: Against, Arm: Guarded, Most: &few}
		},
		`named rightly, at least 1: no number of quadruplets`: func(p *Protocol) { p.Hypotheses[0] = Hypothesis{Figure: Named, Arm: Guarded, Least: &limit} },
		`p99 over alone, at most 1.05 times: 3 quadruplets cannot show that: 6 can`: func(p *Protocol) {
			p.Quadruplets[0].Times = 1
		},
		`named of placebo: a placebo has no onset`: func(p *Protocol) { p.Hypotheses[0] = Hypothesis{Figure: Named, Arm: Placebo, Least: &limit} },
	} {
		p := DefaultProtocol()
		change(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
}

// The shipped protocol fits into ten minutes, and one in eight quadruplets is a placebo.
func TestShippedProtocol(t *testing.T) {
	t.Parallel()
	p := DefaultProtocol()
	_, all := p.cells()
	placebos := 0
	for _, q := range all {
		if q.Arm == Placebo {
			placebos++
		}
	}
	if length := p.Length(); length > 10*time.Minute || placebos*8 != len(all) || p.Window != 0 {
		t.Errorf("takes %s, %d of %d are placebos, windows of %s", length, placebos, len(all), p.Window)
	}
}

// The baseline blames whose use rose most, by enough, once it knows what is usual.
func TestBlame(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		neighbour, bystander []float64 // CPUs in each look
		guilty               string
	}{
		"a hog":              {[]float64{0, 0, 0, 0, 0, 0, 1.5}, []float64{.05, .05, .05, .05, .05, .05, .05}, "neighbour at 6"},
		"the larger rise":    {[]float64{0, 0, 0, 0, 0, 0, 0.5}, []float64{.05, .05, .05, .05, .05, .05, 0.9}, "bystander at 6"},
		"always there":       {[]float64{1, 1, 1, 1, 1, 1, 1}, []float64{.05, .05, .05, .05, .05, .05, .05}, ""},
		"a rise too small":   {[]float64{0, 0, 0, 0, 0, 0, 0.19}, []float64{0, 0, 0, 0, 0, 0, 0}, ""},
		"nothing usual yet":  {[]float64{0, 0, 0, 0, 1.5}, []float64{0, 0, 0, 0, 0}, ""},
		"it has risen":       {[]float64{0, 0, 0, 0, 0, .15, .3, .3, .3, .3, .3, .3}, make([]float64, 12), "neighbour at 6"},
		"a little more":      {[]float64{1, 1, 1, 1, 1, 1, 1.1}, []float64{0, 0, 0, 0, 0, 0, 0}, ""},
		"most, rose less":    {[]float64{1, 1, 1, 1, 1, 1, 1.3}, []float64{0, 0, 0, 0, 0, 0, 0.5}, "bystander at 6"},
		"less than it was":   {[]float64{2, 2, 2, 2, 2, 2, 0}, []float64{0, 0, 0, 0, 0, 0, 0}, ""},
		"what is usual ages": {[]float64{2, 0, 0, 0, 0, 0, 0, 0.5}, make([]float64, 8), "neighbour at 7"},
	} {
		b := blame{suspects: []lab.Role{lab.Neighbour, lab.Bystander}}
		used := map[lab.Role]float64{}
		said := ""
		b.look(time.Second, map[lab.Role]float64{})
		for i := range tt.neighbour {
			used = map[lab.Role]float64{lab.Neighbour: used[lab.Neighbour] + tt.neighbour[i]*blameEvery.Seconds(), lab.Bystander: used[lab.Bystander] + tt.bystander[i]*blameEvery.Seconds()}
			if role, _, ok := b.look(time.Second+time.Duration(i+1)*blameEvery, used); ok && said == "" {
				said = fmt.Sprintf("%s at %d", role, i)
			}
		}
		if said != tt.guilty {
			t.Errorf("%s: blamed %q, want %q", name, said, tt.guilty)
		}
	}
}

// A bin leaves by its own lag and steal, with those after it, and by nothing else.
func TestRejection(t *testing.T) {
	t.Parallel()
	reject := Reject{Lag: lab.Duration(time.Millisecond), Steal: lab.Duration(10 * time.Millisecond), After: 2}
	machine := make([]lab.Bin, 10)
	machine[1] = lab.Bin{Lag: 1000, Steal: 0.01, Foreign: 0.1, Disturbed: true} // at the limits
	machine[3].Lag = 1001
	machine[9].Steal = 0.0101
	want := []bool{3: true, 4: true, 5: true, 9: true}
	if diff := cmp.Diff(want, reject.rejected(machine)); diff != "" {
		t.Error(diff)
	}
}

// Who is to blame for what, and which answers are right.
func TestTruths(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ fault, right, wrong, guilty, innocent string }{
		{Hog, "cpu: neighbour", "cpu: bystander; cpu: /; none; own_load", "neighbour", "bystander"},
		{Innocent, "cpu: neighbour", "cpu: bystander", "neighbour", "bystander"},
		{Half, "cpu: neighbour", "none", "neighbour", "/"},
		{Two, "cpu: neighbour; cpu: bystander", "memory: bystander", "neighbour; bystander", "/"},
		{Adapts, "cpu: neighbour", "cpu: /", "neighbour", "bystander"},
		{Outside, "cpu: /", "cpu: neighbour", "/", "neighbour; bystander"},
		{Beside, "cpu: neighbour; cpu: /", "cpu: bystander", "neighbour; /", "bystander"},
		{Foreign, "none; cpu: /", "cpu: neighbour; own_load", "/", "neighbour"},
		{Bursty, "none; own_load", "cpu: neighbour", "", "neighbour; bystander; /"},
		{Partly, "cpu: neighbour; own_load", "none", "neighbour", "bystander"},
		{Quota, "own_limit", "cpu: neighbour; none", "", "neighbour"},
		{Quiet, "none", "own_load", "", "neighbour"},
	} {
		f, ok := FaultNamed(tt.fault)
		if !ok {
			t.Errorf("no fault %s", tt.fault)
			continue
		}
		for list, check := range map[string]struct {
			of   func(string) bool
			want bool
		}{tt.right: {f.right, true}, tt.wrong: {f.right, false}, tt.guilty: {f.guilty, true}, tt.innocent: {f.guilty, false}} {
			for what := range strings.SplitSeq(list, "; ") {
				if what != "" && check.of(what) != check.want {
					t.Errorf("%s: %q: %t, want %t", tt.fault, what, !check.want, check.want)
				}
			}
		}
	}
}

// A fault of more than one process begins all of them, with the strength that its name says.
func TestFaultsBegin(t *testing.T) {
	t.Parallel()
	for fault, want := range map[string][]string{
		Half: {"neighbour spin 50%"}, Innocent: {"neighbour spin 100%", "bystander spin 25%"}, Two: {"neighbour spin 100%", "bystander spin 100%"},
		Outside: {"outsider spin 100%"}, Beside: {"outsider spin 100%", "neighbour spin 100%"}, Foreign: {"outsider spin"}, Adapts: {"neighbour spin 100%"},
	} {
		p := &playedStage{began: time.Now()}
		x := &experiment{Result: &Result{}}
		x.Setup.Neighbour.Threads = 2
		x.host = host{ownGroup: func() (string, error) { return "", nil }, knobs: func() ([]lab.Knob, error) { return nil, nil }}
		f, _ := FaultNamed(fault)
		ready, err := x.disturbance(&lab.Cell{}, f, rand.New(rand.NewPCG(1, 2)))
		if err != nil {
			t.Fatal(err)
		}
		d, err := ready(t.Context(), keeping{p})
		if err == nil {
			err = errors.Join(d.begin(t.Context()), d.end())
		}
		if err != nil {
			t.Fatal(err)
		}
		var began []string
		for _, what := range p.happened {
			if _, what, _ = strings.Cut(what, " "); !strings.HasSuffix(what, " ends") {
				began = append(began, what)
			}
		}
		if len(began) != len(want) || len(p.happened) != 2*len(want) {
			t.Errorf("%s: %q, want %q", fault, p.happened, want)
			continue
		}
		for i := range want {
			if !strings.HasPrefix(began[i], want[i]) {
				t.Errorf("%s: %q began, want %q", fault, began[i], want[i])
			}
		}
	}
	x := &experiment{Result: &Result{}, host: host{ownGroup: func() (string, error) { return "/user.slice", nil }}}
	if _, err := x.outside(Outside, nil); err == nil || !strings.Contains(err.Error(), "/user.slice") {
		t.Errorf("a lab in a group of its own starts nothing outside of groups: %v", err)
	}
}

// keeping is a played stage whose processes live on.
type keeping struct{ *playedStage }

func (k keeping) Noise(role lab.Role, cfg noise.Config) (*lab.Process, error) {
	return k.Keep(context.Background(), role, cfg)
}

// A neighbour that adapts sleeps when its own settings change, and not when others' do.
func TestAdapts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &playedStage{began: time.Now()}
		x := &experiment{Result: &Result{}}
		x.host.knobs = func() ([]lab.Knob, error) {
			idle, other := "0", "0"
			if now := p.Now(); now >= time.Second && now < 1200*time.Millisecond {
				idle = "1"
			}
			if p.Now() > 2*time.Second {
				other = "1"
			}
			return []lab.Knob{{Of: "neighbour", File: "cpu.idle", Value: idle}, {Of: "tenant", File: "cpu.weight", Value: other}}, nil
		}
		d, err := x.adapts(t.Context(), keeping{p})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if err := d.end(); err != nil {
			t.Fatal(err)
		}
		want := []string{"0s neighbour spin 100%", "1s neighbour spin 100% ends", "1.5s neighbour spin 100%", "3s neighbour spin 100% ends"}
		if diff := cmp.Diff(want, p.happened); diff != "" {
			t.Error(diff)
		}
	})
}

// playedGuard notes its modes, and says what it is told to say.
type playedGuard struct {
	p       *playedStage
	ended   error
	said    func() ([]Finding, []Event)
	isArmed bool
}

func (g *playedGuard) SetMode(_ context.Context, mode control.Mode) error {
	g.p.note("guard " + mode.String())
	return nil
}
func (g *playedGuard) now() (time.Duration, error) { return g.p.Now() + 100*time.Second, g.ended }
func (g *playedGuard) close() error                { return nil }
func (g *playedGuard) armed() bool                 { return g.isArmed }
func (g *playedGuard) take() ([]Finding, []Event) {
	if g.said == nil {
		return nil, nil
	}
	return g.said()
}

// playedRun is a run on a played host: a hog that takes what it is let have.
func playedRun(p *playedStage, spec Protocol) *protocolRun {
	run := &protocolRun{ProtocolResult: &ProtocolResult{Experiment: spec}}
	run.faults = &experiment{Result: &Result{Experiment: spec.faults()}}
	run.faults.Setup.Neighbour.Threads = 2
	run.faults.Setup.Rate = 1000
	set := map[lab.Role]bool{}
	works := func(role string) bool { // by what was noted last
		for _, what := range slices.Backward(p.happened) {
			if strings.Contains(what, " "+role+" spin 100%") {
				return !strings.HasSuffix(what, "ends")
			}
		}
		return false
	}
	used, at := 0.0, time.Duration(0)
	run.faults.host = host{
		knobs: func() ([]lab.Knob, error) {
			value := "0"
			if set[lab.Neighbour] {
				value = "1"
			}
			return []lab.Knob{{Of: "neighbour", File: "cpu.idle", Value: value}}, nil
		},
		usage: func() (map[lab.Role]float64, error) {
			now := p.Now()
			if works("neighbour") {
				used += 1.2 * (now - at).Seconds()
			}
			at = now
			return map[lab.Role]float64{lab.Tenant: 0.4 * now.Seconds(), lab.Neighbour: used, lab.Bystander: 0.05 * now.Seconds()}, nil
		},
		requests: func() ([]lab.Request, error) { return nil, nil },
	}
	run.guard = &playedGuard{p: p}
	run.own = func() (float64, error) { return 0.01 * p.Now().Seconds(), nil }
	run.set = func(s lab.Settings) (func() error, error) {
		for role, l := range s {
			if !cmp.Equal(l, cgroup.Limits{Idle: cgroup.On}) {
				return nil, fmt.Errorf("%s: %+v", role, l)
			}
			p.note("idle " + string(role))
			set[role] = true
		}
		return func() error {
			for role := range s {
				set[role] = false
				p.note("idle " + string(role) + " undone")
			}
			return nil
		}, nil
	}
	return run
}

// shortProtocol has periods of 3 s.
func shortProtocol() Protocol {
	p := DefaultProtocol()
	p.Period, p.Washout = lab.Duration(3*time.Second), lab.Duration(time.Second)
	return p
}

// Who acts when, arm by arm, on a played host: the guard acts in its own arm alone, and only while
// the fault is there; the hand and the baseline take back what they did.
func TestQuadrupletIsPlayed(t *testing.T) {
	t.Parallel()
	const hog, ends = "neighbour spin 100%", "neighbour spin 100% ends"
	for _, tt := range []struct {
		arm, fault string
		want       map[string][]string // by the order
	}{
		{Guarded, Hog, map[string][]string{
			"ABBA": {"4s guard enforce", "4s " + hog, "7s guard observe", "7s " + ends, "7s guard enforce", "7s " + hog, "10s guard observe", "10s " + ends},
			"BAAB": {"1s guard enforce", "1s " + hog, "4s guard observe", "4s " + ends, "10s guard enforce", "10s " + hog, "13s guard observe", "13s " + ends},
		}},
		{NoGuard, Hog, map[string][]string{
			"ABBA": {"4s " + hog, "7s " + ends, "7s " + hog, "10s " + ends}, "BAAB": {"1s " + hog, "4s " + ends, "10s " + hog, "13s " + ends},
		}},
		{Hand, Hog, map[string][]string{
			"ABBA": {"4s idle neighbour", "4s " + hog, "7s idle neighbour undone", "7s " + ends, "7s idle neighbour", "7s " + hog, "10s idle neighbour undone", "10s " + ends},
			"BAAB": {"1s idle neighbour", "1s " + hog, "4s idle neighbour undone", "4s " + ends, "10s idle neighbour", "10s " + hog, "13s idle neighbour undone", "13s " + ends},
		}},
		{Blame, Hog, map[string][]string{
			"ABBA": {"4s " + hog, "4.2s idle neighbour", "7s idle neighbour undone", "7s " + ends, "7s " + hog, "10s " + ends},
			"BAAB": {"1s " + hog, "1.4s idle neighbour", "4s idle neighbour undone", "4s " + ends, "10s " + hog, "10.2s idle neighbour", "13s idle neighbour undone", "13s " + ends},
		}},
		{Placebo, "", map[string][]string{"ABBA": nil, "BAAB": nil}},
	} {
		seen := map[string]bool{}
		for block := 0; len(seen) < 2 && block < 50; block++ {
			synctest.Test(t, func(t *testing.T) {
				p := &playedStage{began: time.Now()}
				run := playedRun(p, shortProtocol())
				q, err := run.quadruplet(&lab.Cell{Name: "x", Settle: lead}, Planned{Arm: tt.arm, Fault: tt.fault}, block, rand.New(rand.NewPCG(7, uint64(block))))
				if err != nil {
					t.Fatal(err)
				}
				if err := q.during(t.Context(), keeping{p}); err != nil {
					t.Fatal(err)
				}
				order := ""
				for _, period := range q.Periods {
					if period.Arm == Alone {
						order += "A"
					} else {
						order += "B"
					}
				}
				seen[order] = true
				got := p.happened[1:] // the bystander begins at once
				if diff := cmp.Diff(tt.want[order], got); diff != "" && len(got)+len(tt.want[order]) > 0 {
					t.Errorf("%s, %s (-want +got):\n%s", tt.arm, order, diff)
				}
				q.check(t)
			})
		}
		if len(seen) != 2 || !seen["ABBA"] || !seen["BAAB"] {
			t.Errorf("%s: orders %v", tt.arm, seen)
		}
	}
}

// What was applied before the onset is no reaction to it.
func TestReactionIsAfterTheOnset(t *testing.T) {
	t.Parallel()
	r := madeUp(shortProtocol(), 1, map[string]float64{Guarded: 1, NoGuard: 20, Hand: 1, Blame: 1})
	i := slices.IndexFunc(r.Quadruplets, func(q Quadruplet) bool { return q.Arm == Guarded })
	for k := range r.Quadruplets[i].Periods {
		for _, at := range []float64{-0.02, 0.5} {
			e := Event{At: at, Written: at + 0.01, Event: control.Event{Outcome: control.Applied, Suspect: lab.Neighbour, Resource: detect.CPU, Action: &control.Action{Suspect: lab.Neighbour}}}
			r.Quadruplets[i].Periods[k].Events = append(r.Quadruplets[i].Periods[k].Events, e)
		}
	}
	n := 0
	for _, o := range AnalyseProtocol(r).Onsets {
		if o.Reaction == nil {
			continue
		}
		if n++; math.Abs(*o.Reaction-0.51) > 1e-9 {
			t.Errorf("%s: reaction %g, want 0.51", o.Cell, *o.Reaction)
		}
	}
	if n != 2 {
		t.Errorf("%d onsets have a reaction, want 2", n)
	}
}

// Before the first period the baseline looks, and does nothing whatever it sees.
func TestBaselineOnlyLooksBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &playedStage{began: time.Now()}
		run := playedRun(p, shortProtocol())
		q, err := run.quadruplet(&lab.Cell{Settle: 3 * time.Second}, Planned{Arm: Blame, Fault: Hog}, 0, rand.New(rand.NewPCG(7, 0)))
		if err != nil {
			t.Fatal(err)
		}
		if err := q.until(t.Context(), keeping{p}, nil, -time.Second); err != nil {
			t.Fatal(err)
		}
		p.note("neighbour spin 100%")
		if err := q.until(t.Context(), keeping{p}, nil, -500*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if rates := q.blame.rates[lab.Neighbour]; len(p.happened) != 1 || len(q.idle) > 0 || len(rates) == 0 || rates[len(rates)-1] < 1 {
			t.Errorf("happened %q, rates %v", p.happened, rates)
		}
	})
}

// check is what every played quadruplet has: use over the time from the washout to just before the
// end, and settings that are in force where somebody set them.
func (q *quadrupletRun) check(t *testing.T) {
	t.Helper()
	for i, p := range q.Periods {
		if math.Abs(p.Use.Seconds-1.97) > 1e-6 || math.Abs(p.Use.Tenant-0.4*1.97) > 1e-6 || math.Abs(p.Use.Generator-0.02*1.97) > 1e-6 || math.Abs(p.Use.Lab-0.01*1.97) > 1e-6 {
			t.Errorf("%s, period %d: use %+v", q.Arm, i, p.Use)
		}
		neighbour := 0.0
		if p.Arm != Alone && p.Arm != Placebo {
			neighbour = 1.2 * 1.97
			if p.Onset != p.From {
				t.Errorf("%s, period %d: onset %g", q.Arm, i, p.Onset)
			}
		}
		if math.Abs(p.Use.Neighbour-neighbour) > 1e-6 {
			t.Errorf("%s, period %d: the neighbour used %g, want %g", q.Arm, i, p.Use.Neighbour, neighbour)
		}
		if inForce := len(p.Changed) > 0; inForce != (p.Arm == Hand || len(p.Events) > 0) {
			t.Errorf("%s, period %d: settings %q", q.Arm, i, p.Changed)
		}
	}
}

// What the guard says is filed with its period by the time since the onset, and nothing of what it
// does while it only looks on.
func TestGuardIsFiled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &playedStage{began: time.Now()}
		run := playedRun(p, shortProtocol())
		guard := &playedGuard{p: p}
		guard.said = func() ([]Finding, []Event) {
			at := (p.Now() + 99*time.Second).Seconds() // a second ago
			return []Finding{{At: at, Suspect: "neighbour"}}, []Event{
				{At: at, Written: at + 0.02, Event: control.Event{Mode: control.Enforce}}, {At: at, Event: control.Event{Mode: control.Observe}},
			}
		}
		run.guard = guard
		q, err := run.quadruplet(&lab.Cell{Settle: lead}, Planned{Arm: NoGuard, Fault: Hog}, 0, rand.New(rand.NewPCG(7, 0)))
		if err == nil {
			err = q.during(t.Context(), keeping{p})
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, period := range q.Periods {
			if len(period.Findings) != 1 || math.Abs(period.Findings[0].At-2) > 1e-6 || len(period.Events) != 1 || math.Abs(period.Events[0].At-2) > 1e-6 || math.Abs(period.Events[0].Written-2.02) > 1e-6 {
				t.Errorf("period %d: %+v, %+v", i, period.Findings, period.Events)
			}
		}
		guard.ended = errors.New("gone")
		q, err = run.quadruplet(&lab.Cell{Settle: lead}, Planned{Arm: NoGuard, Fault: Hog}, 0, rand.New(rand.NewPCG(7, 0)))
		if err == nil {
			p.began = time.Now()
			err = q.during(t.Context(), keeping{p})
		}
		if !errors.Is(err, guard.ended) {
			t.Errorf("a guard that has ended: %v", err)
		}
	})
}

// madeUp is a result whose p99, work and onsets are known: B has so many times the p99 of A.
func madeUp(spec Protocol, blocks int, ratio map[string]float64) *ProtocolResult {
	spec.Seed = 1
	r := &ProtocolResult{Experiment: spec}
	random := rand.New(rand.NewPCG(3, 4))
	names, all := spec.cells()
	length := time.Duration(spec.Period).Seconds()
	perPeriod := int(length / binLength.Seconds())
	for block := range blocks {
		for c, planned := range all {
			q := Quadruplet{Cell: names[c], Block: block, Life: 1, Arm: planned.Arm, Fault: planned.Fault, Demand: spec.Demand, SharedCPUs: 2}
			b := random.IntN(2)
			for i := range 4 {
				p := Period{Arm: Alone, From: float64(i) * length, To: float64(i+1) * length}
				times := 1 + 0.02*random.NormFloat64()
				if inner := i == 1 || i == 2; inner == (b == 0) {
					p.Arm = planned.Arm
					if planned.Arm != Placebo {
						p.Onset, times = p.From+0.01, times*ratio[planned.Arm]
					}
				}
				p.Use = Use{Seconds: length - 1.03, Tenant: 0.8 * (length - 1.03), Generator: 0.1 * (length - 1.03), Lab: 0.05 * (length - 1.03), Bystander: 0.05 * (length - 1.03)}
				if p.Onset > 0 {
					p.Use.Neighbour = 0.9 * (1.9*p.Use.Seconds - p.Use.Tenant - p.Use.Generator - p.Use.Lab - p.Use.Bystander)
				}
				q.Periods = append(q.Periods, p)
				for range perPeriod {
					bin := Bin{}
					for n := range 50 {
						us := 100.
						if n >= 48 {
							us = 1000 * times
						}
						bin.Response = append(bin.Response, int64(us))
					}
					q.Bins, q.Machine = append(q.Bins, bin), append(q.Machine, lab.Bin{Lag: 100, Foreign: 0.005})
				}
			}
			r.Quadruplets = append(r.Quadruplets, q)
		}
	}
	r.Complete = blocks == spec.Blocks
	return r
}

func verdict(a *ProtocolAnalysis, figure string) Decided {
	i := slices.IndexFunc(a.Verdicts, func(d Decided) bool { return d.Figure == figure })
	return a.Verdicts[i]
}

// What is so is shown, what is not is refuted, and the interval has the truth; before a look nothing
// is decided.
func TestProtocolByValue(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		ratio  float64
		blocks int
		word   Word
	}{{1.0, 3, Shown}, {1.5, 3, Refuted}, {1.05, 3, Undecided}, {1.5, 1, Undecided}} {
		a := AnalyseProtocol(madeUp(shortProtocol(), tt.blocks, map[string]float64{Guarded: tt.ratio, NoGuard: 20, Hand: 1.2, Blame: 2}))
		d := verdict(a, P99)
		if d.Word != tt.word {
			t.Errorf("ratio %g, %d blocks: %s, %+v", tt.ratio, tt.blocks, d.Word, d)
		}
		if tt.blocks == 3 && (d.Interval.Low > tt.ratio || d.Interval.High < tt.ratio || d.Interval.Rounds != 12 || a.Look != 2 || !a.Blind) {
			t.Errorf("ratio %g: %+v, look %d, blind %t", tt.ratio, d.Interval, a.Look, a.Blind)
		}
		if w := verdict(a, Work); tt.blocks == 3 && (w.Word != Refuted || math.Abs(w.Interval.Estimate-0.9) > 1e-6) {
			t.Errorf("work %+v, want 0.9: refuted", w)
		}
		if tt.blocks < 3 {
			continue
		}
		for arm, want := range map[string]float64{NoGuard: 20, Hand: 1.2, Blame: 2} {
			i := slices.IndexFunc(a.Arms, func(row ArmRow) bool { return row.Arm == arm })
			if row := a.Arms[i]; math.Abs(row.P99.Estimate/want-1) > 0.05 || math.Abs(row.All.Estimate/want-1) > 0.05 {
				t.Errorf("%s: %+v, want %g", arm, row.P99, want)
			}
		}
		if math.Abs(a.Others[Guarded]-0.05) > 1e-9 || math.Abs(a.Others[Alone]-0.05) > 1e-9 {
			t.Errorf("others took %v, want a twentieth", a.Others)
		}
		if a.Placebo.Estimate < 0.95 || a.Placebo.Estimate > 1.05 || a.PlaceboChance < 0.05 {
			t.Errorf("placebo %+v, chance %g", a.Placebo, a.PlaceboChance)
		}
	}
}

// The look after two of three blocks ends the run where the answer is plain, and not where it is close.
func TestProtocolStops(t *testing.T) {
	t.Parallel()
	spec := shortProtocol()
	spec.Quadruplets[0].Times = 8
	for ratio, want := range map[float64]bool{1.5: true, 1.05: false} {
		r := madeUp(spec, 2, map[string]float64{Guarded: ratio, NoGuard: 20, Hand: 1, Blame: 1})
		run := &protocolRun{ProtocolResult: r}
		if enough, err := run.enough(); err != nil || enough != want {
			t.Errorf("ratio %g: enough %t, %v", ratio, enough, err)
		}
		r.Quadruplets = r.Quadruplets[:len(r.Quadruplets)-1]
		if enough, err := run.enough(); err != nil || enough {
			t.Errorf("ratio %g, in the midst of a block: enough %t, %v", ratio, enough, err)
		}
	}
}

// A run that stops at its first look is decided at the bound of that look, not of the last.
func TestProtocolStopsAtItsFirstLook(t *testing.T) {
	t.Parallel()
	r := madeUp(shortProtocol(), 2, map[string]float64{Guarded: 1.5, NoGuard: 20, Hand: 1, Blame: 1})
	want := AnalyseProtocol(r)
	r.Complete = true
	got := AnalyseProtocol(r)
	if diff := cmp.Diff(want.Verdicts, got.Verdicts); got.Look != 1 || got.Chance != want.Chance || diff != "" {
		t.Errorf("look %d with chance %g, want 1 with %g; verdicts (-want +got):\n%s", got.Look, got.Chance, want.Chance, diff)
	}
}

// What leaves, leaves by the machine: a quadruplet with a third of a period gone is out of the p99
// and not of the onsets, and rejection that differs by arm does not count.
func TestProtocolRejects(t *testing.T) {
	t.Parallel()
	r := madeUp(shortProtocol(), 3, map[string]float64{Guarded: 1.5, NoGuard: 20, Hand: 1, Blame: 1})
	q := &r.Quadruplets[0] // guarded
	for b := 25; b < 60; b++ {
		q.Machine[b].Steal = 0.01
	}
	onset := slices.IndexFunc(q.Periods, func(p Period) bool { return p.Arm != Alone })
	q.Periods[onset].Findings = []Finding{found(0.3, detect.CPU, lab.Neighbour)}
	a := AnalyseProtocol(r)
	row := a.Arms[0]
	if row.OutNamed != 1 || row.Arm != Guarded || row.Counted != 11 || row.Quadruplets != 12 || row.Onsets != 24 || row.OutOnsets != 2 || a.Quadruplets[0].Out == "" || !a.Blind {
		t.Errorf("%+v, out %q, blind %t", row, a.Quadruplets[0].Out, a.Blind)
	}
	// A disturbance in the washout, or of less than a third, takes its bins along and nothing else.
	r = madeUp(shortProtocol(), 3, map[string]float64{Guarded: 1.5, NoGuard: 20, Hand: 1, Blame: 1})
	for b := range 20 {
		r.Quadruplets[0].Machine[b].Lag = 1e6
	}
	r.Quadruplets[0].Machine[30].Lag, r.Quadruplets[0].Bins[30].Response[49] = 1e6, 1e9
	if a := AnalyseProtocol(r); a.Quadruplets[0].Out != "" || a.Quadruplets[0].Ratio > 2 {
		t.Errorf("out %q, ratio %g", a.Quadruplets[0].Out, a.Quadruplets[0].Ratio)
	}
	for i := range r.Quadruplets {
		for _, p := range r.Quadruplets[i].Periods {
			if p.Arm == Alone {
				continue
			}
			first, _ := bins(p.From+2, p.To, len(r.Quadruplets[i].Bins))
			for b := first; b < first+6; b++ {
				r.Quadruplets[i].Machine[b].Lag = 2000
			}
		}
	}
	if a := AnalyseProtocol(r); a.Blind || a.Unlike > -0.1 || !strings.Contains(verdict(a, P99).Why, "without rejection") {
		t.Errorf("blind %t, %g, %s", a.Blind, a.Unlike, verdict(a, P99).Why)
	}
}

// A tenant that fell behind for good says nothing of the p99, with rejection or without, and counts
// against it being shown; what it kept of the CPU time counts.
func TestProtocolQueues(t *testing.T) {
	t.Parallel()
	for queued, want := range map[int]Word{0: Shown, 1: Shown, 6: Undecided} {
		r := madeUp(shortProtocol(), 3, map[string]float64{Guarded: 1, NoGuard: 20, Hand: 1, Blame: 1})
		n := 0
		for i := range r.Quadruplets {
			q := &r.Quadruplets[i]
			if q.Arm != Guarded || n == queued {
				continue
			}
			n++
			for b := range q.Bins[200:] { // from 10 s on, none before 12 s
				for k := range q.Bins[200+b].Response {
					q.Bins[200+b].Response[k] = 2e6
				}
			}
		}
		a := AnalyseProtocol(r)
		row, d := a.Arms[0], verdict(a, P99)
		if row.Counted != 12-queued || row.P99.Rounds != 12-queued || row.All.Rounds != 12-queued || row.Work.Rounds != 12 || row.Onsets != 24 || d.Word != want {
			t.Errorf("%d queue: %+v, %s, %s", queued, row, d.Word, d.Why)
		}
		if said := a.behind(); (said != "") != (queued > 0) || queued > 0 && !strings.HasPrefix(said, fmt.Sprintf("in %d of 24 quadruplets", queued)) {
			t.Errorf("%d queue: %q", queued, said)
		}
	}
	bin := Bin{Response: []int64{100, 49999, 50000, 70000}}
	for left, want := range map[time.Duration]int{binLength: 2, time.Second: 0} {
		if got := bin.unanswered(left); got != want {
			t.Errorf("%s are left: %d unanswered, want %d", left, got, want)
		}
	}
	if bin.Censored = 3; bin.unanswered(binLength) != 3 {
		t.Error("what was not answered at all is not counted")
	}
}

// Where a period was read late, nothing of its quadruplet is used but what the guard did.
func TestProtocolReadsLate(t *testing.T) {
	t.Parallel()
	for off, out := range map[float64]string{0.05: "", -0.12: "period 2 was read over 1.85 s, not 2.00", 1: "period 2 was read over 2.97 s, not 2.00"} {
		r := madeUp(shortProtocol(), 3, map[string]float64{Guarded: 1, NoGuard: 20, Hand: 1, Blame: 1})
		r.Quadruplets[0].Periods[1].Use.Seconds += off
		a := AnalyseProtocol(r)
		want := 12
		if out != "" {
			want--
		}
		if row := a.Arms[0]; a.Quadruplets[0].Out != out || row.P99.Rounds != want || row.All.Rounds != want || row.Work.Rounds != want || row.Onsets != 24 {
			t.Errorf("%g s off: out %q, %+v", off, a.Quadruplets[0].Out, row)
		}
	}
}

// An interrupted run is no look more: what came after the last one is shown and not tested.
func TestProtocolLooksWhenPlanned(t *testing.T) {
	t.Parallel()
	r := madeUp(shortProtocol(), 3, map[string]float64{Guarded: 1.5, NoGuard: 20, Hand: 1, Blame: 1})
	worse := madeUp(shortProtocol(), 3, map[string]float64{Guarded: 90, NoGuard: 20, Hand: 1, Blame: 1})
	two := &ProtocolResult{Experiment: r.Experiment, Quadruplets: r.Quadruplets[:16]}
	more := &ProtocolResult{Experiment: r.Experiment, Quadruplets: slices.Concat(r.Quadruplets[:16], worse.Quadruplets[16:22])}
	want, got := AnalyseProtocol(two), AnalyseProtocol(more)
	if diff := cmp.Diff(want.Verdicts, got.Verdicts); diff != "" || want.Look != 1 || got.Look != 1 {
		t.Errorf("looks %d and %d (-at the look +with more):\n%s", want.Look, got.Look, diff)
	}
	if got.Arms[0].Quadruplets != 12 || got.Arms[0].P99.High < 10 {
		t.Errorf("the table lacks what came since: %+v", got.Arms[0])
	}
}

// What is shown is so with rejection and without.
func TestProtocolShownTwice(t *testing.T) {
	t.Parallel()
	r := madeUp(shortProtocol(), 3, map[string]float64{Guarded: 1, NoGuard: 20, Hand: 1, Blame: 1})
	for i := range r.Quadruplets {
		q := &r.Quadruplets[i]
		for _, p := range q.Periods {
			first, _ := bins(p.From+1, p.To, len(q.Bins))
			q.Machine[first].Lag = 2000 // in A and B alike: blind
			if p.Arm != Guarded {
				continue
			}
			for k := range q.Bins[first].Response { // what is rejected with it has a p99 of its own
				q.Bins[first].Response[k] = 5000
			}
		}
	}
	a := AnalyseProtocol(r)
	if d := verdict(a, P99); !a.Blind || d.Word != Undecided || d.ForChance > a.Chance || !strings.Contains(d.Why, "both with rejection and without") {
		t.Errorf("blind %t: %+v", a.Blind, d)
	}
}

// A covariate is fitted on placebos alone, from ten on, and takes off what it explains.
func TestAdjustment(t *testing.T) {
	t.Parallel()
	a := &ProtocolAnalysis{}
	for i := range 10 {
		x := float64(i) - 4.5
		a.Quadruplets = append(a.Quadruplets, Quadruple{Arm: Placebo, pairs: [2]float64{0.3 * x, -0.6 * x}, moved: [2][]float64{{x, 9}, {-2 * x, 9}}})
	}
	a.Quadruplets = append(a.Quadruplets, Quadruple{Arm: Guarded, pairs: [2]float64{0.5, 0.7}, moved: [2][]float64{{1, 0}, {-3, 0}}}, Quadruple{Arm: Placebo, Out: "disturbed", pairs: [2]float64{9, 9}, moved: [2][]float64{{1, 0}, {1, 0}}})
	a.adjust([]string{Offered, Lag})
	if len(a.Adjusted) != 1 || math.Abs(a.Coefficients[0]-0.3) > 1e-9 {
		t.Fatalf("adjusted %v by %v", a.Adjusted, a.Coefficients)
	}
	if got := math.Log(a.Quadruplets[10].Ratio); math.Abs(got-(0.6+0.3)) > 1e-9 {
		t.Errorf("log ratio %g, want 0.6 less 0.3 of -1", got)
	}
	// The test of placebos is of what was seen, not of what is left of it.
	a.Quadruplets = a.Quadruplets[:10]
	all := func(*Quadruple) bool { return true }
	if got, left := a.ratios(all, unadjusted)[0][0], a.ratios(all, adjusted)[0][0]; math.Abs(math.Log(got)-0.15*4.5) > 1e-9 || math.Abs(left-1) > 1e-9 {
		t.Errorf("unadjusted %g, adjusted %g", got, left)
	}
	a = &ProtocolAnalysis{Quadruplets: a.Quadruplets[:9]}
	if a.adjust([]string{Offered}); a.Adjusted != nil {
		t.Errorf("by nine placebos: %v", a.Adjusted)
	}
}

// What is counted of the onsets, by value: nothing is left out for what came after them.
func TestOnsets(t *testing.T) {
	t.Parallel()
	r := madeUp(shortProtocol(), 1, map[string]float64{Guarded: 1, NoGuard: 20, Hand: 1, Blame: 1})
	applied := func(at float64, suspect string, outcome control.Outcome) Event {
		return Event{At: at, Written: at + 0.01, Event: control.Event{Outcome: outcome, Mode: control.Enforce, Suspect: suspect, Resource: detect.CPU, Action: &control.Action{Suspect: suspect}}}
	}
	found := func(suspect string) []Finding { return []Finding{{At: 0.1, Resource: detect.CPU, Suspect: suspect}} }
	n := 0
	for i := range r.Quadruplets {
		q := &r.Quadruplets[i]
		for k := range q.Periods {
			p := &q.Periods[k]
			if q.Arm == Placebo && p.Arm == Placebo && n < 100 {
				p.Findings = found(lab.Bystander)
				n = 100
			}
			if q.Arm != Guarded || p.Arm == Alone || n > 3 {
				continue
			}
			switch n {
			case 0:
				p.Findings, p.Events, p.Changed = found(lab.Neighbour), []Event{applied(0.2, lab.Neighbour, control.Applied)}, []string{"neighbour cpu.idle: 1, was 0"}
			case 1:
				p.Events = []Event{applied(0.3, lab.Bystander, control.Applied), applied(0.9, lab.Neighbour, control.Applied), applied(1.5, lab.Neighbour, control.Reverted), applied(2, lab.Neighbour, control.GaveUp)}
				p.Findings, p.Changed = found(lab.Bystander), []string{"bystander cpu.idle: 1, was 0"}
			case 2:
				p.Findings = found(lab.Neighbour)
				p.Events = []Event{{At: 0.4, Event: control.Event{Outcome: control.Refused, Suspect: "other/hog"}}}
			case 3:
				p.Events = []Event{{At: 0.5, Event: control.Event{Outcome: control.Refused, Suspect: lab.Neighbour}}}
			}
			n++
		}
	}
	row := AnalyseProtocol(r).Arms[0]
	want := ArmRow{Onsets: 8, Named: 2, InForce: 1, Reverted: 1, GaveUp: 1, Accused: 1, Innocent: 1, Windows: 1, Refused: 1}
	got := ArmRow{Onsets: row.Onsets, Named: row.Named, InForce: row.InForce, Reverted: row.Reverted, GaveUp: row.GaveUp, Accused: row.Accused, Innocent: row.Innocent, Windows: row.Windows, Refused: row.Refused}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// The write counts, not the window; those without a remedy count as a period, and those after
	// another period of B, or at the start, not at all.
	fresh := 0.91
	if r.Quadruplets[0].second(1) {
		fresh = 0.21
	}
	if d := row.Reaction; d.N != 4 || d.Came != 1 || *d.P50.Estimate != 3 {
		t.Errorf("reaction %+v", d)
	}
	var reactions []float64
	for _, o := range AnalyseProtocol(r).Onsets {
		if o.Reaction == nil {
			continue
		}
		if reactions = append(reactions, *o.Reaction); o.Fresh && math.Abs(*o.Reaction-fresh) > 1e-9 {
			t.Errorf("reaction %g, want %g", *o.Reaction, fresh)
		}
	}
	// One against an innocent is none.
	if len(reactions) != 2 || math.Abs(reactions[0]-0.21) > 1e-9 || math.Abs(reactions[1]-0.91) > 1e-9 {
		t.Errorf("reactions %v", reactions)
	}
	// Before a look nothing is decided, whatever the figure: here 2 of 8 are named.
	few := 0.9
	r.Experiment.Hypotheses = []Hypothesis{{Figure: Named, Arm: Guarded, Most: &few}}
	if d := verdict(AnalyseProtocol(r), Named); d.Word != Undecided || !strings.Contains(d.Why, "not looked at yet") {
		t.Errorf("%+v", d)
	}
	r.Complete, r.Experiment.Blocks, r.Experiment.Looks = true, 1, []int{1}
	if d := verdict(AnalyseProtocol(r), Named); d.Word != Shown {
		t.Errorf("%+v", d)
	}
	if q := AnalyseProtocol(r).Alone; q.Accused != 1 || q.Windows != 1 || q.Periods != 14+4 {
		t.Errorf("where nothing was done: %+v", q)
	}
}

// Slow requests are told by the period alone beside them. Others that take the machine in some of the
// periods, A and B alike, change neither the figure of the arm nor the other quadruplets'; one
// threshold of all requests alone would let nothing be slow.
func TestSlowRequests(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("computes for minutes under the race detector")
	}
	slow := map[string]int{Alone: 1, Placebo: 1, Hand: 2, Guarded: 3, Blame: 6, NoGuard: 11} // of the 100 requests of a bin
	for _, disturbed := range []int{0, 2} {
		r := madeUp(shortProtocol(), 3, nil)
		for i := range r.Quadruplets {
			q := &r.Quadruplets[i]
			for _, p := range q.Periods {
				first, last := bins(p.From, p.To, len(q.Bins))
				for b := first; b < last; b++ {
					q.Bins[b].Response = make([]int64, 100)
					for n := range q.Bins[b].Response {
						switch {
						case p.Arm == Alone && b < first+10: // what B left, in the washout
							q.Bins[b].Response[n] = 1e5
						case n >= 100-slow[p.Arm]:
							q.Bins[b].Response[n] = 1000
						default:
							q.Bins[b].Response[n] = int64(n)
						}
					}
				}
			}
			if q.Arm == Guarded && disturbed > 0 { // for a period from the midst of the first one on
				disturbed--
				for b := 30; b < 90; b++ {
					for n := range q.Bins[b].Response {
						q.Bins[b].Response[n] = 5e6
					}
				}
			}
		}
		a := AnalyseProtocol(r)
		for _, row := range a.Arms { // 60 bins in a period
			want := 60 * float64(slow[row.Arm]-1)
			saved := 600 - want
			if row.Arm == NoGuard {
				saved = 0
			}
			if math.Abs(row.Excess.Estimate-want) > 1e-6 || math.Abs(row.Saved.Estimate-saved) > 1e-6 {
				t.Errorf("%s: %g slow, want %g; %g fewer than unguarded, want %g", row.Arm, row.Excess.Estimate, want, row.Saved.Estimate, saved)
			}
		}
		for _, q := range a.Quadruplets {
			if q.Arm == Placebo && math.Abs(q.excess) > 1e-6 {
				t.Errorf("a placebo has %g slow requests more than alone", q.excess)
			}
		}
	}
}

// Back is when the curve is in the band again to stay; a curve that was never above it was not harmed.
func TestRecoveries(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		curve  []float64
		harmed bool
		at     float64 // -1: never
	}{
		"harmed, and back":     {slices.Concat(slices.Repeat([]float64{9}, 8), slices.Repeat([]float64{1}, 20)), true, 0.4},
		"never harmed":         {slices.Repeat([]float64{1}, 20), false, -1},
		"back for an instant":  {slices.Concat([]float64{9}, slices.Repeat([]float64{1}, 9), []float64{9}, slices.Repeat([]float64{1}, 9)), true, -1},
		"not back":             {slices.Repeat([]float64{9}, 20), true, -1},
		"at the band's edge":   {slices.Concat([]float64{9}, slices.Repeat([]float64{2}, 10)), true, 0.05},
		"harmed after a while": {slices.Concat(slices.Repeat([]float64{1}, 12), []float64{9}, slices.Repeat([]float64{1}, 10)), true, 0.65},
	} {
		rec := Recoveries{Curve: tt.curve, Low: 0.5, High: 2}
		rec.judge()
		at := -1.0
		if rec.Recovered != nil {
			at = *rec.Recovered
		}
		if rec.Harmed != tt.harmed || math.Abs(at-tt.at) > 1e-9 {
			t.Errorf("%s: harmed %t, back at %g, want %t, %g", name, rec.Harmed, at, tt.harmed, tt.at)
		}
	}
	a := AnalyseProtocol(madeUp(shortProtocol(), 3, map[string]float64{Guarded: 1, NoGuard: 20, Hand: 1, Blame: 1}))
	for _, rec := range a.Recoveries {
		if rec.Harmed != (rec.Arm == NoGuard) || rec.Low < 900 || rec.High > 1100 || rec.Low > rec.High {
			t.Errorf("%s: harmed %t, band %g to %g", rec.Arm, rec.Harmed, rec.Low, rec.High)
		}
	}
}

// With a rest the tenant is alone before each quadruplet, and it is the onset after that which counts
// for the reaction, with whether the probe was armed before it.
func TestProtocolRests(t *testing.T) {
	t.Parallel()
	spec := shortProtocol()
	plain := spec.Length()
	spec.Rest = lab.Duration(35 * time.Second)
	if more, want := spec.Length()-plain, time.Duration(24)*34*time.Second; more != want {
		t.Errorf("the rests take %v, want %v", more, want)
	}
	run := playedRun(&playedStage{began: time.Now()}, spec)
	first := run.cells()[0]
	if err := first.Prepare(&first, 0); err != nil || first.Settle != time.Duration(spec.Rest) {
		t.Errorf("settles for %v before a quadruplet, %v", first.Settle, err)
	}
	run.guard, first = nil, run.cells()[0]
	if err := first.Prepare(&first, 0); err != nil || first.Settle != time.Duration(spec.Rest) {
		t.Errorf("settles for %v before the first one, which learns for %v, %v", first.Settle, spec.Learn, err)
	}

	orders := map[bool]bool{}
	for block := range 20 {
		synctest.Test(t, func(t *testing.T) {
			p := &playedStage{began: time.Now()}
			run := playedRun(p, spec)
			run.guard = &playedGuard{p: p, isArmed: block%2 == 1}
			q, err := run.quadruplet(&lab.Cell{Name: "guarded hog", Settle: lead}, Planned{Arm: Guarded, Fault: Hog}, block, rand.New(rand.NewPCG(7, uint64(block))))
			if err != nil {
				t.Fatal(err)
			}
			if err := q.during(t.Context(), keeping{p}); err != nil {
				t.Fatal(err)
			}
			orders[q.second(0)] = true
			for i := range q.Periods {
				if p := &q.Periods[i]; p.Armed != (block%2 == 1 && q.second(i)) {
					t.Errorf("block %d, period %d: armed %t", block, i, p.Armed)
				}
			}
			run.Quadruplets = []Quadruplet{q.Quadruplet}
			a := AnalyseProtocol(run.ProtocolResult)
			if len(a.Onsets) != 2 || !a.Onsets[0].Fresh || a.Onsets[1].Fresh {
				t.Errorf("%+v: want the first onset to count alone", a.Onsets)
			}
			if d := a.Arms[0].Reaction; d.N != 1 || d.Rested == nil || *d.Rested != 1-block%2 {
				t.Errorf("block %d: %+v", block, d)
			}
		})
	}
	if len(orders) != 2 {
		t.Error("one order was never played")
	}
	most, none := 0.2, 0
	for want, rested := range map[string]*int{
		"4 of 5 onsets after a period alone had a remedy":                                           nil,
		"4 of 5 onsets after a period alone had a remedy; the run-queue probe rested at 0 of the 5": &none,
	} {
		d := Decided{Word: Undecided}
		d.Most = &most
		delays := Delays{N: 5, Came: 4, Rested: rested}
		if d.within(Delay{}, delays); d.Why != want {
			t.Errorf("%q, want %q", d.Why, want)
		}
		if text, err := json.Marshal(delays); err != nil || strings.Contains(string(text), `"rested":0`) != (rested != nil) {
			t.Errorf("%s, %v", text, err)
		}
	}
}

// A run is stored quadruplet by quadruplet, goes on where it ended, and lasts as long as it announces.
func TestProtocolRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &playedStage{began: time.Now()}
		spec := shortProtocol()
		run := playedRun(p, spec)
		run.guard = nil
		began := time.Now()
		time.Sleep(5 * time.Second) // calibration
		e := lab.Experiment{Parts: []lab.Part{{Blocks: spec.Blocks, Cells: run.cells()}}, Result: run.ProtocolResult, Header: &run.Header}
		settled := []time.Duration{}
		err := lab.Run(t.Context(), e, protocolBed{func(c lab.Cell) {
			settled = append(settled, c.Settle)
			run.guard = &playedGuard{p: p}
		}}, lab.Options{Dir: t.TempDir()})
		if err != nil || len(run.Quadruplets) != 24 {
			t.Fatalf("%d quadruplets, %v", len(run.Quadruplets), err)
		}
		if settled[0] != time.Duration(spec.Learn) || settled[1] != lead {
			t.Errorf("the guard learns before the first quadruplet only: %v", settled[:2])
		}
		if took, announced := time.Since(began), spec.Length(); took < announced*8/10 || took > announced*12/10 {
			t.Errorf("took %s, %s announced", took, announced)
		}
		if !run.has("placebo", 2) || run.has("placebo", 3) || run.has("guarded", 0) {
			t.Error("what is finished is not told by cell and block")
		}
	})
}

// protocolBed plays rounds that last as long as they are to.
type protocolBed struct{ round func(lab.Cell) }

func (b protocolBed) Round(_ context.Context, c lab.Cell, block, position int) (lab.Round, error) {
	b.round(c)
	time.Sleep(c.Settle + c.Window + time.Second)
	return lab.Round{Block: block, Position: position, Scenario: c.Name, Seconds: c.Window.Seconds(), Load: load.Report{Done: 1}}, nil
}

// The tables of docs/measurements/guard-protocol.md and guard-protocol-1.md to -4.md are those of the
// stored results, and so are the figures of what the pages give as reasons.
func TestStoredProtocol(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("computes for minutes under the race detector")
	}
	const docs = "../../docs/measurements/"
	results := map[string]string{
		"guard-protocol-1": "results/guard-protocol.json.gz", "guard-protocol-2": "results/guard-protocol-2.json.gz", "guard-protocol-3": "results/guard-protocol-3.json.gz",
		"guard-protocol-4": "results/guard-protocol-4.json.gz", "guard-protocol-5": "results/guard-protocol-5.json.gz", "guard-protocol": "results/guard-protocol-6.json.gz",
		"guard-sixteen": "results/guard-sixteen-1.json.gz", "guard-sixteen run 2": "results/guard-sixteen-2.json.gz",
		"guard-truths": "results/guard-truths-quarter.json.gz", "guard-truths-again": "results/guard-truths-again.json.gz",
		"guard-truths-use": "results/guard-truths-use-1.json.gz", "guard-truths-use run 2": "results/guard-truths-use-2.json.gz",
		"guard-truths-take": "results/guard-truths-take.json.gz", "guard-truths-many": "results/guard-truths-many.json.gz",
	}
	whole := func(reasons func(*ProtocolAnalysis, time.Duration) []string) func(a *ProtocolAnalysis) ([][]report.Column, []string) {
		return func(a *ProtocolAnalysis) ([][]report.Column, []string) {
			ratios, deeds, soon := a.ratioTable().Columns, a.deeds().Columns, a.soon().Columns
			said := append(reasons(a, time.Duration(DefaultProtocol().Washout)), a.alone())
			for _, v := range a.Verdicts {
				said = append(said, v.Why)
			}
			return [][]report.Column{
				a.hypotheses().Columns[:3], ratios[:5], {ratios[0], ratios[5], ratios[6]},
				{deeds[0], deeds[1], deeds[2], deeds[3]}, {deeds[0], deeds[4], deeds[5], deeds[6]}, {deeds[0], deeds[7], deeds[8]}, soon,
			}, said
		}
	}
	brief := func(a *ProtocolAnalysis) ([][]report.Column, []string) {
		tables, said := whole(whySixteen)(a)
		return slices.Delete(tables, 4, 6), said
	}
	truths := func(guarded int) func(a *ProtocolAnalysis) ([][]report.Column, []string) {
		return func(a *ProtocolAnalysis) ([][]report.Column, []string) {
			ratios, deeds, soon := a.ratioTable().Columns, a.deeds().Columns, a.soon().Columns[:4]
			for i := range soon {
				soon[i].Cells = soon[i].Cells[:guarded]
			}
			return [][]report.Column{a.hypotheses().Columns[:3], {deeds[0], deeds[1], deeds[6], deeds[7]}, soon, {ratios[0], ratios[1], ratios[3], ratios[5]}}, append(whyTruths(a), a.alone())
		}
	}
	for name, about := range map[string]func(a *ProtocolAnalysis) (tables [][]report.Column, said []string){
		"guard-protocol-1": func(a *ProtocolAnalysis) ([][]report.Column, []string) {
			verdicts := a.hypotheses().Columns
			for i := range verdicts[1].Cells {
				verdicts[1].Cells[i].Text += " (disturbed)"
			}
			ratios, deeds, soon := a.ratioTable().Columns, a.deeds().Columns, a.soon().Columns
			return [][]report.Column{
				verdicts[:3], ratios[:5],
				{deeds[0], deeds[1], deeds[6], deeds[7], deeds[8]}, {deeds[0], deeds[3], soon[1], soon[2]},
			}, []string{strings.ToUpper(a.behind()[:1]) + a.behind()[1:len("in 19 of 24 quadruplets the tenant fell behind for good")]}
		},
		"guard-protocol-2":    whole(whySecond),
		"guard-protocol-3":    whole(whyThird),
		"guard-protocol-4":    whole(whyFourth),
		"guard-protocol-5":    whole(whyFifth),
		"guard-protocol":      whole(whySixth),
		"guard-sixteen":       brief,
		"guard-sixteen run 2": brief,
		"guard-truths":        truths(12), "guard-truths-again": truths(7), "guard-truths-use": truths(7), "guard-truths-use run 2": truths(7), "guard-truths-take": truths(7), "guard-truths-many": truths(7),
	} {
		page, _, _ := strings.Cut(name, " ")
		text, err := os.ReadFile(docs + page + ".md")
		if err != nil {
			t.Fatal(err)
		}
		words := strings.Join(strings.Fields(string(text)), " ")
		r, err := readProtocolFile(docs + results[name])
		if err != nil {
			t.Fatal(err)
		}
		tables, said := about(AnalyseProtocol(r))
		for _, columns := range tables {
			var table strings.Builder
			for _, c := range columns {
				fmt.Fprintf(&table, "| %s ", c.Head)
			}
			table.WriteString("|\n" + strings.Repeat("|---", len(columns)) + "|\n")
			for row := range columns[0].Cells {
				for _, c := range columns {
					fmt.Fprintf(&table, "| %s ", strings.TrimSuffix(c.Cells[row].Text, " at 0.4"))
				}
				table.WriteString("|\n")
			}
			if !strings.Contains(string(text), table.String()) {
				t.Errorf("%s.md lacks this table:\n%s", name, table.String())
			}
		}
		for _, what := range said {
			if !strings.Contains(words, what) {
				t.Errorf("%s.md lacks %q", name, what)
			}
		}
	}
}

// A delay is decided by its interval, on the side that the hypothesis has.
func TestDelayIsDecided(t *testing.T) {
	t.Parallel()
	low, high := 0.1, 0.3
	for _, tt := range []struct {
		most, least float64
		low, high   *float64
		want        Word
	}{
		{0.3, 0, &low, &high, Shown},
		{0.2, 0, &low, &high, Undecided},
		{0.05, 0, &low, nil, Refuted},
		{0.3, 0, &low, nil, Undecided},
		{0, 0.1, &low, nil, Shown},
		{0, 0.2, &low, &high, Undecided},
		{0, 0.4, nil, &high, Refuted},
	} {
		d := Decided{Word: Undecided}
		if d.Most = &tt.most; tt.least > 0 {
			d.Most, d.Least = nil, &tt.least
		}
		if d.within(Delay{Low: tt.low, High: tt.high}, Delays{N: 12}); d.Word != tt.want {
			t.Errorf("%+v: %s", tt, d.Word)
		}
	}
}
