package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"
)

// design is an experiment whose truth is known: a population of simulated
// rounds, from which every experiment draws its own at random. The truth is
// the quantile of the whole population.
type design struct {
	name            string
	queue           queue
	rounds, seconds int
	population      int  // rounds
	experiments     int  // by default
	full            int  // experiments with BERTH_SIM=full
	fullOnly        bool // not by default
}

// fullSimulation says whether the long simulation is asked for.
func fullSimulation() bool { return os.Getenv("BERTH_SIM") == "full" }

// The tenant of reference: 40 % busy, a stall of 8 ms every two seconds, 3 %
// between rounds.
func designs() []design {
	slow := queue{rate: 1000, service: 400, stalls: 0.5, stall: 8000, roundShift: 0.03}
	fast := queue{rate: 2000, service: 200, stalls: 0.5, stall: 8000, roundShift: 0.03}
	with := func(change func(*queue)) queue {
		q := fast
		change(&q)
		return q
	}
	return []design{
		{name: "quick", queue: fast, rounds: 6, seconds: 2, population: 400, experiments: 100, full: 4000},
		{name: "standard", queue: slow, rounds: 10, seconds: 10, population: 80, experiments: 30, full: 2000},
		{name: "publish", queue: slow, rounds: 20, seconds: 30, population: 50, full: 400, fullOnly: true},
		{name: "quick, even service", queue: with(func(q *queue) { q.spread = 0.3 }),
			rounds: 6, seconds: 2, population: 400, full: 2000, fullOnly: true},
		{name: "quick, rare stalls", queue: with(func(q *queue) { q.stalls = 0.02 }),
			rounds: 6, seconds: 2, population: 400, full: 2000, fullOnly: true},
		{name: "quick, many stalls", queue: with(func(q *queue) { q.stalls = 3 }),
			rounds: 6, seconds: 2, population: 400, full: 2000, fullOnly: true},
		{name: "quick, 70 % busy", queue: with(func(q *queue) { q.service = 350 }),
			rounds: 6, seconds: 2, population: 400, full: 2000, fullOnly: true},
		{name: "quick, rounds differ by 10 %", queue: with(func(q *queue) { q.roundShift = 0.1 }),
			rounds: 6, seconds: 2, population: 400, experiments: 100, full: 2000},
	}
}

// populate simulates the population.
func (d design) populate() []Round {
	n := d.population
	if fullSimulation() {
		n *= 6
	}
	r, c := rand.New(rand.NewPCG(20, 26)), new(recorder)
	out := make([]Round, n)
	for i := range out {
		out[i] = d.queue.round(r, c, d.seconds)
	}
	return out
}

// run calls experiment n times, on two goroutines, with a random source each.
func (d design) run(experiment func(r *rand.Rand, c *recorder)) int {
	n := d.experiments
	if fullSimulation() {
		n = d.full
	}
	var wait sync.WaitGroup
	for g := range 2 {
		wait.Go(func() {
			c := new(recorder)
			for i := g; i < n; i += 2 {
				experiment(rand.New(rand.NewPCG(uint64(i), 7)), c)
			}
		})
	}
	wait.Wait()
	return n
}

func draw(r *rand.Rand, population []Round, n int) []Round {
	out := make([]Round, n)
	for i := range out {
		out[i] = population[r.IntN(len(population))]
	}
	return out
}

// tally counts events by name, from several goroutines.
type tally struct {
	sync.Mutex
	counts map[string]int
}

func (t *tally) add(name string, happened bool) {
	t.Lock()
	defer t.Unlock()
	if t.counts == nil {
		t.counts = map[string]int{}
	}
	if happened {
		t.counts[name]++
	}
}

// checked is the level at which a simulated rate is held against its limit: one
// check in a hundred errs, and there are many.
const checked = 0.01

// bounds are the one-sided Clopper-Pearson bounds of a rate seen k times in n,
// each wrong with probability alpha.
func bounds(k, n int, alpha float64) (low, high float64) {
	low, high = 0, 1
	if k > 0 {
		low = distuv.Beta{Alpha: float64(k), Beta: float64(n - k + 1)}.Quantile(alpha)
	}
	if k < n {
		high = distuv.Beta{Alpha: float64(k + 1), Beta: float64(n - k)}.Quantile(1 - alpha)
	}
	return low, high
}

// simulate runs f for the designs of this kind of run.
func simulate(t *testing.T, f func(t *testing.T, d design, population []Round)) {
	t.Parallel()
	if testing.Short() {
		t.Skip("simulation in short mode")
	}
	for _, d := range designs() {
		if d.fullOnly && !fullSimulation() {
			continue
		}
		t.Run(d.name, func(t *testing.T) { f(t, d, d.populate()) })
	}
}

// TestCoverage: the interval of a quantile, and of the ratio of two alike
// scenarios, contains the truth at least 90 times of 100 for p50 and p99.
func TestCoverage(t *testing.T) {
	// Long queues after few stalls: the known limit (89 %).
	floor := map[string]float64{"quick, 70 % busy/quantile p99": 0.85}
	simulate(t, func(t *testing.T, d design, population []Round) {
		var seen tally
		ps := []float64{50, 95, 99, 99.9}
		var all []Distribution
		for _, r := range population {
			all = append(all, r.Seconds...)
		}
		truth := Merge(all...)
		opt := Options{Resamples: 1000}
		var lock sync.Mutex
		width := map[string][]float64{}
		n := d.run(func(r *rand.Rand, _ *recorder) {
			base, other := draw(r, population, d.rounds), draw(r, population, d.rounds)
			quantiles := Quantiles(base, ps, opt)
			for i, p := range ps {
				want, _ := truth.Quantile(p)
				ratio := Ratio(base, other, p, opt)
				q := fmt.Sprintf("quantile p%g", p)
				seen.add(q, quantiles[i].Low <= want && want <= quantiles[i].High)
				seen.add(fmt.Sprintf("ratio p%g", p), ratio.Low <= 1 && 1 <= ratio.High)
				lock.Lock()
				width[q] = append(width[q], halfLog(quantiles[i]))
				width[fmt.Sprintf("ratio p%g", p)] = append(width[fmt.Sprintf("ratio p%g", p)], halfLog(ratio))
				lock.Unlock()
			}
		})
		for _, what := range []string{"quantile", "ratio"} {
			row := fmt.Sprintf("| %s | %s | %d |", d.name, what, n)
			for _, p := range ps {
				name := fmt.Sprintf("%s p%g", what, p)
				covered := float64(seen.counts[name]) / float64(n)
				row += fmt.Sprintf(" %.1f (×%.2f) |", 100*covered, math.Exp(Median(width[name])))
				need := 0.90
				if f, ok := floor[d.name+"/"+name]; ok {
					need = f
				}
				sample := draw(rand.New(rand.NewPCG(1, 1)), population, d.rounds)
				if ok, _ := Supported(sample, p); ok && covered < need {
					t.Errorf("%s covers %.1f %%, want at least %.0f %%", name, 100*covered, 100*need)
				}
			}
			t.Log(row)
		}
	})
}

// TestVerdicts: in an experiment of a baseline, the baseline again and five
// scenarios, all alike, any verdict of worse or better is false; the chance of
// one is at most 5 % whether or not the machine's level shifts by 15 % mid-run.
// A true difference of 10 % is called equivalent at most 5 times in 100.
func TestVerdicts(t *testing.T) {
	simulate(t, func(t *testing.T, d design, population []Round) {
		for _, shift := range []float64{1, 1.15} {
			var seen tally
			n := d.run(func(r *rand.Rand, c *recorder) {
				scenarios := d.experiment(r, c, population, shift)
				for _, p := range []float64{50, 99} {
					judgeAll(scenarios, p, &seen)
				}
			})
			for _, p := range []float64{50, 99} {
				reportVerdicts(t, fmt.Sprintf("%s, shift %g, p%g", d.name, shift, p), p, seen.counts, n)
			}
		}
	})
}

// experiment draws the rounds of seven alike scenarios, in blocks of random
// order, on a machine whose latency is multiplied by shift from some round of
// the middle third on.
func (d design) experiment(r *rand.Rand, c *recorder, population []Round, shift float64) [][]Round {
	names := []string{"0", "1", "2", "3", "4", "5", "6"}
	out := make([][]Round, len(names))
	slots := d.rounds * len(names)
	from, slot, seed := slots/3+r.IntN(slots/3), 0, r.Uint64()
	for block := range d.rounds {
		for _, name := range Order(names, block, seed) {
			round := draw(r, population, 1)[0]
			if slot >= from && shift != 1 {
				round = c.scaled(round, shift)
			}
			slot++
			k := slices.Index(names, name)
			out[k] = append(out[k], round)
		}
	}
	return out
}

// effects are true ratios that TestVerdicts lays on one scenario.
var effects = []float64{0.9, 1, 1.1, 1.2, 1.3, 1.5, 2, 10}

func judgeAll(scenarios [][]Round, p float64, seen *tally) {
	opt := Options{Resamples: 500}
	name := func(what string) string { return fmt.Sprintf("p%g %s", p, what) }
	floor := Ratio(scenarios[0], scenarios[1], p, opt)
	differs := func(i Interval, floor *Interval) bool {
		v := Judge(i, floor, 5).Verdict
		return v == Worse || v == Better
	}
	var family, bare bool
	var first Interval
	for k, s := range scenarios[2:] {
		ratio := Ratio(scenarios[0], s, p, opt)
		family = family || differs(ratio, &floor)
		bare = bare || differs(ratio, nil)
		if k == 0 {
			first = ratio
			seen.add(name("one"), differs(ratio, &floor))
		}
	}
	seen.add(name("family"), family)
	seen.add(name("family without floor"), bare)
	for _, e := range effects {
		// A ratio of latencies is scaled by scaling them.
		v := Judge(times(first, e), &floor, 5).Verdict
		seen.add(name(fmt.Sprintf("equivalent at %g", e)), v == Equivalent)
		seen.add(name(fmt.Sprintf("worse at %g", e)), v == Worse)
	}
}

func times(i Interval, factor float64) Interval {
	i.Estimate *= factor
	i.Low *= factor
	i.High *= factor
	return i
}

// reportVerdicts logs a row of the table in docs/statistics.md, and checks it.
func reportVerdicts(t *testing.T, title string, p float64, counts map[string]int, n int) {
	count := func(what string) int { return counts[fmt.Sprintf("p%g %s", p, what)] }
	percent := func(k int) float64 { return 100 * float64(k) / float64(n) }
	row := fmt.Sprintf("| %s | %d |", title, n)
	for _, what := range []string{"one", "family", "family without floor"} {
		k := count(what)
		_, logged := bounds(k, n, 0.05)
		low, high := bounds(k, n, checked)
		row += fmt.Sprintf(" %.1f (%.1f) |", percent(k), 100*logged)
		// Bonferroni's correction is at the limit by design; the rest stays clear of it.
		if low > 0.05 || fullSimulation() && what != "family without floor" && high > 0.05 {
			t.Errorf("%s: false verdicts, %s: %d of %d (%.1f to %.1f %%)", title, what, k, n, 100*low, 100*high)
		}
	}
	for _, e := range effects {
		k := count(fmt.Sprintf("equivalent at %g", e))
		if e <= 1.2 {
			row += fmt.Sprintf(" %.1f |", percent(k))
		}
		if low, _ := bounds(k, n, checked); e != 1 && low > 0.05 {
			t.Errorf("%s: a true ratio of %g is called equivalent in %d of %d", title, e, k, n)
		}
	}
	for _, e := range effects {
		if e > 1.1 {
			row += fmt.Sprintf(" %.1f |", percent(count(fmt.Sprintf("worse at %g", e))))
		}
	}
	t.Log(row)
}

// TestMoreRounds: of the comparisons that are inconclusive although there is a
// true difference of 30 %, the rounds that Judge asks for decide about half: as
// many as the estimate is as likely to go up as down.
func TestMoreRounds(t *testing.T) {
	simulate(t, func(t *testing.T, d design, population []Round) {
		if d.rounds > 6 {
			t.Skip("nothing is inconclusive here")
		}
		var seen tally
		opt := Options{Resamples: 500}
		d.run(func(r *rand.Rand, c *recorder) {
			const p = 95
			var sides [3][]Round // baseline, repeated baseline, scenario
			more := func(rounds int) Judgement {
				for i := range sides {
					for _, round := range draw(r, population, rounds) {
						if i == 2 {
							round = c.scaled(round, 1.3)
						}
						sides[i] = append(sides[i], round)
					}
				}
				floor := Ratio(sides[0], sides[1], p, opt)
				return Judge(Ratio(sides[0], sides[2], p, opt), &floor, 5)
			}
			j := more(d.rounds)
			seen.add("inconclusive", j.Verdict == Inconclusive)
			if j.MoreRounds > 0 {
				seen.add("advised", true)
				after := more(j.MoreRounds).Verdict
				seen.add("decided", after != Inconclusive)
				seen.add("right", after == Worse)
			}
		})
		advised, decided, right := seen.counts["advised"], seen.counts["decided"], seen.counts["right"]
		t.Logf("| %s | %d inconclusive | %d advised | %d decided | %d of them worse |", d.name, seen.counts["inconclusive"], advised, decided, right)
		if decided*3 < advised {
			t.Errorf("only %d of %d comparisons were decided by the rounds asked for", decided, advised)
		}
		if right < decided*9/10 {
			t.Errorf("only %d of %d decisions are right", right, decided)
		}
	})
}
