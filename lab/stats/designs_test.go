package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"
)

// worlds are those of the comparison of designs.
func worlds() []world {
	tenant := world{servers: 2, rate: 1000, demand: 0.4}
	var out []world
	add := func(name string, change func(*world)) {
		w := tenant
		w.name = name
		change(&w)
		out = append(out, w)
	}
	stalls := func(w *world) { w.stalls, w.stall = 0.5, 12 }
	add("undisturbed", func(*world) {})
	add("even service (log-normal 0.3)", func(w *world) { w.spread = 0.3 })
	add("Pareto service, index 2.1", func(w *world) { w.pareto = 2.1 })
	add("stalls", stalls)
	add("stalls, 1 server", func(w *world) { w.servers, w.stalls, w.stall = 1, 0.5, 8 })
	add("stalls, demand 0.58", func(w *world) { stalls(w); w.demand = 0.58 })
	add("stalls in storms, 15 s per 100 s", func(w *world) { stalls(w); w.storm, w.storms = 15, 100 })
	add("stalls in storms, 3 s per 20 s", func(w *world) { stalls(w); w.storm, w.storms = 3, 20 })
	add("Pareto stalls, index 1.4", func(w *world) { stalls(w); w.tail = 1.4 })
	add("drift +25 %, walk 5 %", func(w *world) { w.drift, w.walk = 0.25, 0.05 })
	add("wave 12 %", func(w *world) { w.wave = 0.12 })
	add("foreign work 15 %, 2 s", func(w *world) { w.foreign, w.burst = 0.15, 2 })
	add("foreign work 30 %, 2 s", func(w *world) { w.foreign, w.burst = 0.3, 2 })
	add("foreign work 15 %, 10 s, demand 0.58", func(w *world) { w.foreign, w.burst, w.demand = 0.15, 10, 0.58 })
	add("foreign work 15 %, storms, drift, walk", func(w *world) {
		stalls(w)
		w.foreign, w.burst, w.storm, w.storms, w.drift, w.walk = 0.15, 2, 3, 20, 0.15, 0.05
	})
	return out
}

// plan is how the two minutes of an experiment are used.
type plan struct {
	name           string
	window, settle float64 // s
	budget         int     // rounds
	looks          []float64
	cut            bool    // requests beside a stall are left out
	demand         float64 // of the tenant, in place of the world's where that is less; 0: the world's
	pooled         bool    // by Ratio and Judge: the quantile of all rounds together, a floor from the repeated baseline
}

// scene is what an arm of the simulated experiments is: first the two baselines, then arms of which the latter are worse.
var scene = []treatment{{}, {}, {}, {}, {times: 1.25}, {times: 1.5}, {times: 2}}

// family is over how many comparisons the error rate of 5 % is shared: five with the baselines, four with no isolation and
// six between strategies, by four figures each.
const family = 60

// found is what one experiment says of an arm.
type found struct {
	interval  Interval
	different bool // at the family's error rate, and by more than the Margin
}

// experiment runs a plan in a world, and returns what it says by each percentile of each arm.
func (p plan) experiment(w world, seed uint64) [][]found {
	const gap = 0.05
	r := rand.New(rand.NewPCG(seed, 9))
	w.demand = max(w.demand, p.demand)
	w.period = float64(len(scene)) * (p.settle + p.window + gap)
	w.duration = 1.3 * float64(p.budget) * (p.settle + p.window + gap)
	l := w.live(r)
	percentiles := []float64{50, 95, 99}
	figures := make([][][]float64, len(percentiles)) // by percentile, arm, block
	results := make([][]found, len(percentiles))
	rounds, c := make([][]Round, len(scene)), new(recorder)
	for i := range figures {
		figures[i] = make([][]float64, len(scene))
		results[i] = make([]found, len(scene))
	}
	arms := make([]string, len(scene))
	for k := range arms {
		arms[k] = string(rune('0' + k))
	}
	at, spent := 0.0, 0
	rates := spend(0.05/family, p.looks)
	for b, look := 0, 0; spent+len(arms) <= p.budget; b++ {
		due := w.arrivals(r, p.settle+p.window)
		for _, arm := range Order(arms, b, seed) {
			k := int(arm[0] - '0')
			latencies, end := l.round(scene[k], at, p.settle, due, p.cut)
			for i, percentile := range percentiles {
				figures[i][k] = append(figures[i][k], rank(latencies, percentile))
			}
			if p.pooled {
				for _, us := range latencies {
					c.add(us, 1)
				}
				rounds[k] = append(rounds[k], Round{Seconds: []Distribution{c.take()}})
			}
			at = max(at+p.settle+p.window, end) + gap
			spent++
		}
		last := spent+len(arms) > p.budget
		if look >= len(p.looks) || !last && float64(spent) < p.looks[look]*float64(p.budget) {
			continue
		}
		for i, percentile := range percentiles {
			for k := 2; k < len(scene); k++ {
				if p.pooled {
					results[i][k] = pooled(rounds, k, percentile)
					continue
				}
				results[i][k] = judged(figures[i], k, rates[look], results[i][k].different)
			}
		}
		look++
		arms = slices.DeleteFunc(arms, func(arm string) bool { return results[2][arm[0]-'0'].different })
	}
	return results
}

func judged(figures [][]float64, arm int, rate float64, was bool) found {
	n := len(figures[arm])
	a := align(figures[arm], figures[0][:n], figures[1][:n])
	f := found{interval: a.interval(0.95)}
	f.different = was || a.p() < rate && math.Abs(math.Log(f.interval.Estimate)) > math.Log(1+Margin)
	return f
}

func pooled(rounds [][]Round, arm int, percentile float64) found {
	opt := Options{Resamples: 500}
	floor := Ratio(rounds[0], rounds[1], percentile, opt)
	f := found{interval: Ratio(rounds[0], rounds[arm], percentile, opt)}
	v := Judge(f.interval, &floor, len(scene)-2).Verdict
	f.different = v == Worse || v == Better
	return f
}

// spend shares an error rate out over looks at growing shares of the data: the increments of Lan and DeMets' spending
// function near O'Brien and Fleming's bounds. They add up to the rate, whatever the looks have in common.
func spend(rate float64, shares []float64) []float64 {
	out := make([]float64, len(shares))
	spent, z := 0.0, distuv.UnitNormal.Quantile(1-rate/2)
	for i, share := range shares {
		by := 2 * distuv.UnitNormal.Survival(z/math.Sqrt(share))
		out[i], spent = by-spent, by
	}
	return out
}

// TestDesigns compares ways to use two minutes (docs/measurements/statistics-designs.md).
func TestDesigns(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("simulation in short mode")
	}
	plans := []plan{
		{name: "6 blocks of 2 s, pooled", window: 2, settle: 0.2, budget: 42, looks: []float64{1}, demand: 0.58, pooled: true},
		{name: "pooled, less demand", window: 2, settle: 0.2, budget: 42, looks: []float64{1}, pooled: true},
		{name: "25 blocks of 0.5 s", window: 0.5, settle: 0.1, budget: 175, looks: []float64{1}},
		{name: "looks", window: 0.5, settle: 0.1, budget: 175, looks: []float64{0.3, 0.6, 1}},
		{name: "looks, stalls cut", window: 0.5, settle: 0.1, budget: 175, looks: []float64{0.3, 0.6, 1}, cut: true},
	}
	experiments, places := 20, worlds()
	if fullSimulation() {
		experiments = 400
	} else {
		plans, places = plans[len(plans)-1:], places[len(places)-1:]
	}
	for _, w := range places {
		for _, p := range plans {
			for i, row := range p.simulate(w, experiments) {
				t.Logf("| %s | %s | p%d | %s |", w.name, p.name, []int{50, 95, 99}[i], row)
				if row.wrong > 0.05+3*math.Sqrt(0.05*0.95/float64(experiments)) {
					t.Errorf("%.1f %% of the experiments have a false verdict", 100*row.wrong)
				}
			}
		}
	}
}

// row is what many experiments come to, shares of them.
type row struct {
	wrong    float64   // any of the arms that are alike called different
	covered  []float64 // by arm
	found    []float64 // by arm
	halfWide float64   // of the arm that is 1.5 times as slow, as a factor, median
}

func (r row) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%.1f", 100*r.wrong)
	for _, c := range [][]float64{r.covered[2:], r.found[4:]} {
		b.WriteString(" |")
		for _, x := range c {
			fmt.Fprintf(&b, " %.1f", 100*x)
		}
	}
	fmt.Fprintf(&b, " | ×/÷ %.2f", r.halfWide)
	return b.String()
}

func (p plan) simulate(w world, experiments int) []row {
	rows := make([]row, 3)
	widths := make([][]float64, 3)
	for i := range rows {
		rows[i].covered, rows[i].found = make([]float64, len(scene)), make([]float64, len(scene))
	}
	each := 1 / float64(experiments)
	var lock sync.Mutex
	var wait sync.WaitGroup
	for g := range 2 {
		wait.Go(func() {
			for seed := g; seed < experiments; seed += 2 {
				results := p.experiment(w, uint64(seed))
				lock.Lock()
				for i, arms := range results {
					if arms[2].different || arms[3].different {
						rows[i].wrong += each
					}
					for k, f := range arms {
						if truth := max(scene[k].times, 1); f.interval.Low <= truth && truth <= f.interval.High {
							rows[i].covered[k] += each
						}
						if f.different {
							rows[i].found[k] += each
						}
					}
					widths[i] = append(widths[i], halfLog(arms[5].interval))
				}
				lock.Unlock()
			}
		})
	}
	wait.Wait()
	for i := range rows {
		slices.Sort(widths[i])
		rows[i].halfWide = math.Exp(widths[i][len(widths[i])/2])
	}
	return rows
}
