package guarded

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/noise"
)

// A share is decided by its interval, not by its estimate, on the side that the hypothesis has.
func TestShareIsDecided(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		k, n        int
		most, least float64
		want        Word
	}{
		{60, 60, 0, 0.9, Shown},
		{24, 24, 0, 0.9, Undecided},
		{20, 24, 0, 0.9, Undecided},
		{10, 24, 0, 0.9, Refuted},
		{0, 60, 0.1, 0, Shown},
		{0, 24, 0.1, 0, Undecided},
		{4, 24, 0.1, 0, Undecided},
		{12, 24, 0.1, 0, Refuted},
		{0, 0, 0.1, 0, Undecided},
	} {
		d := Decided{Word: Undecided}
		if d.Most = &tt.most; tt.least > 0 {
			d.Most, d.Least = nil, &tt.least
		}
		if d.share(tt.k, tt.n); d.Word != tt.want {
			t.Errorf("%d of %d, most %g, least %g: %s, want %s", tt.k, tt.n, tt.most, tt.least, d.Word, tt.want)
		}
	}
}

// Who fell behind counts against a p99 of at least so much, too.
func TestQueuedAgainstAtLeast(t *testing.T) {
	t.Parallel()
	least := 1.05
	for queued, want := range map[int]Word{0: Shown, 6: Undecided} {
		a := &ProtocolAnalysis{Look: 1, Chance: 0.02, Blind: true}
		for i := range 12 {
			q := Quadruple{Arm: Guarded, Ratio: 1.5, RatioAll: 1.5, queued: i < queued}
			if q.queued {
				q.Out = queuedWords
			}
			a.Quadruplets = append(a.Quadruplets, q)
		}
		if queued > 0 { // as many as before count
			for range queued {
				a.Quadruplets = append(a.Quadruplets, Quadruple{Arm: Guarded, Ratio: 1.5, RatioAll: 1.5})
			}
		}
		if d := a.decide(Hypothesis{Figure: P99, Arm: Guarded, Least: &least}); d.Word != want || d.ForChance > a.Chance {
			t.Errorf("%d queue: %s, want %s: %s", queued, d.Word, want, d.Why)
		}
	}
}

// How many slow requests an arm saves is told by the unguarded quadruplet of the same block.
func TestSavedWithinABlock(t *testing.T) {
	t.Parallel()
	a := &ProtocolAnalysis{Chance: 0.02}
	for block, excess := range [][2]float64{{100, 50}, {60, 10}, {400, 350}} {
		for i, arm := range []string{NoGuard, Guarded} {
			a.Quadruplets = append(a.Quadruplets, Quadruple{Block: block, Arm: arm, Ratio: 1, RatioAll: 1, excess: excess[i], of: &Quadruplet{Block: block, Arm: arm, Fault: Hog}})
		}
	}
	if row := a.row(rowKey{arm: Guarded, fault: Hog}); math.Abs(row.Saved.Estimate-50) > 1e-9 || row.Saved.Rounds != 3 {
		t.Errorf("saved %+v, want 50 in each block", row.Saved)
	}
}

// The work of all who are to blame counts, and of what others leave only theirs is theirs.
func TestWorkOfTwo(t *testing.T) {
	t.Parallel()
	q := &Quadruplet{SharedCPUs: 2, Machine: make([]lab.Bin, 20)}
	p := Period{To: 1, Use: Use{Seconds: 1, Tenant: 0.4, Neighbour: 0.6, Bystander: 0.5, Generator: 0.1}}
	for name, want := range map[string]float64{Hog: 0.6, Innocent: 0.6, Two: 1.1 / 1.5} {
		f, _ := FaultNamed(name)
		if got := work(f, q, p, 0); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: kept %g, want %g", name, got, want)
		}
	}
}

// A placebo in which requests queued is not in the band.
func TestBandWithoutQueues(t *testing.T) {
	t.Parallel()
	r := madeUp(shortProtocol(), 3, map[string]float64{Guarded: 1, NoGuard: 20, Hand: 1, Blame: 1})
	i := slices.IndexFunc(r.Quadruplets, func(q Quadruplet) bool { return q.Arm == Placebo })
	for _, b := range r.Quadruplets[i].Bins[200:] {
		for k := range b.Response {
			b.Response[k] = 2e6
		}
	}
	a := AnalyseProtocol(r)
	if !a.Quadruplets[i].queued {
		t.Fatal("the placebo did not queue")
	}
	for _, rec := range a.Recoveries {
		if rec.High < 900 || rec.High > 1100 {
			t.Errorf("%s: the band ends at %g", rec.Arm, rec.High)
		}
	}
}

// A quadruplet with a demand of its own has the rate of it.
func TestDemandOfAQuadruplet(t *testing.T) {
	t.Parallel()
	spec := shortProtocol()
	spec.Quadruplets = []Planned{{Arm: Guarded, Fault: Hog}, {Arm: Guarded, Fault: Hog, Demand: spec.Demand / 2}}
	run := playedRun(&playedStage{began: time.Now()}, spec)
	for i, want := range []float64{0, 500} { // 0 is that of the run
		c := run.cells()[i]
		if err := c.Prepare(&c, 0); err != nil || c.Rate != want {
			t.Errorf("%s: rate %g, want %g, %v", c.Name, c.Rate, want, err)
		}
	}
}

// The baseline does not know who is to blame: it blames an innocent that used more.
func TestBaselineBlamesAnybody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &playedStage{began: time.Now()}
		run := playedRun(p, shortProtocol())
		q, err := run.quadruplet(&lab.Cell{Settle: lead}, Planned{Arm: Blame, Fault: Hog}, 0, rand.New(rand.NewPCG(7, 0)))
		if err != nil {
			t.Fatal(err)
		}
		first := slices.IndexFunc(q.Periods, func(p Period) bool { return p.Arm != Alone })
		from := lead + seconds(q.Periods[first].From)
		run.faults.host.usage = func() (map[lab.Role]float64, error) {
			return map[lab.Role]float64{lab.Bystander: 1.2 * max(0, p.Now()-from).Seconds()}, nil
		}
		if err := q.during(t.Context(), keeping{p}); err != nil {
			t.Fatal(err)
		}
		if set := having(p.happened, "idle"); len(set) != 2 || !strings.HasSuffix(set[0], " idle bystander") || !strings.HasSuffix(set[1], " idle bystander undone") {
			t.Errorf("set: %q, want the bystander idle, once", set)
		}
	})
}

// having are the lines that have a word.
func having(lines []string, word string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !slices.Contains(strings.Fields(line), word) })
}

// By hand nothing is set on processes in no group.
func TestHandSetsGroups(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &playedStage{began: time.Now()}
		run := playedRun(p, shortProtocol())
		run.faults.host.ownGroup = func() (string, error) { return "", nil }
		q, err := run.quadruplet(&lab.Cell{Settle: lead}, Planned{Arm: Hand, Fault: Beside}, 0, rand.New(rand.NewPCG(7, 0)))
		if err == nil {
			err = q.during(t.Context(), keeping{p})
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range having(p.happened, "idle") {
			if want := []string{" idle neighbour", " idle neighbour undone"}[i%2]; !strings.HasSuffix(line, want) {
				t.Errorf("%q, want%s", line, want)
			}
		}
		if n := len(having(p.happened, "idle")); n != 4 {
			t.Errorf("%d settings were set and undone, want 4", n)
		}
	})
}

// queueing is a guard whose findings wait until they are taken: one from before the quadruplet, and one
// each time it lets go.
type queueing struct {
	*playedGuard
	found []Finding
}

func (g *queueing) SetMode(ctx context.Context, mode control.Mode) error {
	if mode == control.Observe {
		g.found = append(g.found, Finding{Suspect: "let go"})
	}
	return g.playedGuard.SetMode(ctx, mode)
}

func (g *queueing) take() (found []Finding, _ []Event) {
	found, g.found = g.found, nil
	return found, nil
}

// What the guard said before a quadruplet, or when it let go, is filed with no period.
func TestSaidInBetween(t *testing.T) {
	t.Parallel()
	for block := range 4 {
		synctest.Test(t, func(t *testing.T) {
			p := &playedStage{began: time.Now()}
			run := playedRun(p, shortProtocol())
			run.guard = &queueing{playedGuard: &playedGuard{p: p}, found: []Finding{{Suspect: "before"}}}
			q, err := run.quadruplet(&lab.Cell{Settle: lead}, Planned{Arm: Guarded, Fault: Hog}, block, rand.New(rand.NewPCG(7, uint64(block))))
			if err == nil {
				err = q.during(t.Context(), keeping{p})
			}
			if err != nil {
				t.Fatal(err)
			}
			for i, period := range q.Periods {
				if len(period.Findings) > 0 {
					t.Errorf("block %d, period %d: %+v", block, i, period.Findings)
				}
			}
		})
	}
}

// slowly is a stage whose faults take a while to begin.
type slowly struct{ keeping }

func (s slowly) Noise(role lab.Role, cfg noise.Config) (*lab.Process, error) {
	p, err := s.keeping.Noise(role, cfg)
	if err == nil {
		begin := p.Begin
		p.Begin = func(ctx context.Context) error {
			time.Sleep(200 * time.Millisecond)
			return begin(ctx)
		}
	}
	return p, err
}

// Times of a period count from when the fault had begun, not from the start of the period.
func TestTimesCountFromTheFault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &playedStage{began: time.Now()}
		run := playedRun(p, shortProtocol())
		run.guard = &playedGuard{p: p, said: func() ([]Finding, []Event) {
			return []Finding{{At: (p.Now() + 99*time.Second).Seconds(), Suspect: "neighbour"}}, nil // a second ago
		}}
		q, err := run.quadruplet(&lab.Cell{Settle: lead}, Planned{Arm: NoGuard, Fault: Hog}, 0, rand.New(rand.NewPCG(7, 0)))
		if err == nil {
			err = q.during(t.Context(), slowly{keeping{p}})
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, period := range q.Periods {
			want := 2.0
			if period.Arm != Alone {
				want = 1.8
			}
			if len(period.Findings) != 1 || math.Abs(period.Findings[0].At-want) > 1e-6 {
				t.Errorf("period %d of %s: %+v, want %g s", i, period.Arm, period.Findings, want)
			}
		}
	})
}

// asked is a stage that notes the further load.
type asked struct {
	keeping
	extra *[]lab.Extra
}

func (a asked) Load(_ context.Context, extra lab.Extra) (*lab.Process, error) {
	*a.extra = append(*a.extra, extra)
	nothing := func() error { return nil }
	return &lab.Process{Begin: func(context.Context) error { return nil }, Halt: nothing}, nil
}

// How strong a fault is: the part of the victim in partly, bursts of up to twice the rate, and foreign
// work of a tenth to a half.
func TestStrengthOfFaults(t *testing.T) {
	t.Parallel()
	const times = 200
	draw := func(fault string) (extra []lab.Extra, began []string) {
		p := &playedStage{began: time.Now()}
		x := &experiment{Result: &Result{}}
		x.Setup.Neighbour.Threads, x.Setup.Rate, x.Experiment.Last = 2, 1000, lab.Duration(5*time.Second)
		x.host = host{ownGroup: func() (string, error) { return "", nil }}
		f, _ := FaultNamed(fault)
		random := rand.New(rand.NewPCG(1, 2))
		for range times {
			ready, err := x.disturbance(&lab.Cell{}, f, random)
			if err != nil {
				t.Fatal(err)
			}
			d, err := ready(t.Context(), asked{keeping{p}, &extra})
			if err == nil {
				err = d.begin(t.Context())
			}
			if err == nil {
				err = d.end()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return extra, p.happened
	}
	extra, _ := draw(Partly)
	if e := extra[0]; e.Rate != 500 || e.Times != 1 || e.Length != 5*time.Second {
		t.Errorf("partly: %+v, want half of the rate for as long as the fault lasts", e)
	}
	extra, _ = draw(Bursty)
	bursts := 0
	for _, e := range extra {
		switch e.Rate {
		case 2000:
			bursts++
		case 100:
		default:
			t.Errorf("bursty: %+v", e)
		}
	}
	if share := float64(bursts) / float64(len(extra)); share < 0.15 || share > 0.35 {
		t.Errorf("bursty: %d of %d are bursts, want one of four", bursts, len(extra))
	}
	least, most := 100, 0
	_, began := draw(Foreign)
	for _, line := range began {
		var at, role, kernel string
		var intensity int
		if n, _ := fmt.Sscanf(line, "%s %s %s %d%%", &at, &role, &kernel, &intensity); n != 4 || role != "outsider" {
			t.Fatalf("foreign: %q", line)
		}
		least, most = min(least, intensity), max(most, intensity)
	}
	if least != 10 || most != 50 {
		t.Errorf("foreign: %d to %d %%, want 10 to 50", least, most)
	}
}
