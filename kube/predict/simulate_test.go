package predict

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"testing"

	"berth.dev/berth/kube/batch"
)

// use is what a pod uses of what it requests, in a minute since the beginning.
type use func(minute int) float64

const day = 24 * 60

// The loads that the prediction is judged by, each with its own noise.
func loads() map[string]func(*rand.Rand) use {
	noise := func(r *rand.Rand) float64 { return 0.03 * r.NormFloat64() }
	daily := func(r *rand.Rand) use {
		return func(m int) float64 { return 0.35 + 0.25*math.Sin(2*math.Pi*float64(m)/day) + noise(r) }
	}
	steady := func(r *rand.Rand) use { return func(int) float64 { return 0.3 + noise(r) } }
	bursts := func(r *rand.Rand) use {
		until := 0
		return func(m int) float64 {
			if r.IntN(200) == 0 {
				until = m + 10
			}
			if m < until {
				return 0.9 + noise(r)
			}
			return 0.1 + noise(r)
		}
	}
	week := func(r *rand.Rand) use { // days 5 and 6 are a weekend
		of := daily(r)
		return func(m int) float64 {
			if m/day%7 >= 5 {
				return 0.3 * of(m)
			}
			return of(m)
		}
	}
	growing := func(r *rand.Rand) use {
		return func(m int) float64 { return 0.2 + 0.3*float64(m)/(14*day) + noise(r) }
	}
	step := func(r *rand.Rand) use {
		return func(m int) float64 {
			if m < 7*day {
				return 0.25 + noise(r)
			}
			return 0.5 + noise(r)
		}
	}
	every := []func(*rand.Rand) use{steady, daily, bursts, week, growing}
	next := 0
	mixed := func(r *rand.Rand) use { next++; return every[next%len(every)](r) }
	return map[string]func(*rand.Rand) use{
		"steady": steady, "daily": daily, "bursts": bursts, "week": week, "growing": growing, "step": step, "mixed": mixed,
	}
}

// page has the table that TestSimulation's rows are in.
const page = "../../docs/measurements/mid.md"

// TestSimulation plays 14 days of ten prod pods and says in how many minutes they and the system
// used more than was predicted, in how many prod pods wanted of what mid work was given, and how
// much of their requests that was: what the page says, digit by digit.
func TestSimulation(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]string{} // by load, its figures
	for _, line := range regexp.MustCompile(`(?m)^\| (\w+): [^|]*(\|.*\|)$`).FindAllStringSubmatch(string(text), -1) {
		said[line[1]] = line[2]
	}
	if len(said) != len(loads()) {
		t.Errorf("%s has %d loads, want %d", page, len(said), len(loads()))
	}
	for name, load := range loads() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := simulate(load, 18)
			row := fmt.Sprintf("| %.2f %% | %.2f %% | %.2f %% | %.0f %% |", 100*got.exceeded, 100*got.wanted, 100*got.most, 100*got.given)
			t.Log(row)
			if row != said[name] {
				t.Errorf("%s says %s", page, said[name])
			}
		})
	}
}

// outcome is of CPU time, as shares of the minutes, and of what is requested.
type outcome struct {
	exceeded float64 // minutes with more used than predicted
	wanted   float64 // minutes in which prod pods used of what was given away
	most     float64 // how much at most, of what they request
	given    float64 // of what they request, on average
}

func simulate(load func(*rand.Rand) use, seed uint64) (o outcome) {
	random := rand.New(rand.NewPCG(seed, 1))
	pods, uses := make([]Pod, 10), make([]use, 10)
	for i := range pods {
		pods[i], uses[i] = prod(fmt.Sprint(i), 0, 0), load(random)
	}
	requested := float64(4000 * len(pods))
	p, now, minutes := New(Settings{}), begin, 0.0
	var predicted, given int64
	for m := range 14 * day {
		now = now.Add(Every)
		used := int64(0)
		for i := range pods {
			share := max(uses[i](m), 0)
			pods[i].Used = &batch.Amount{Milli: int64(4000 * share), Memory: int64(8 * gib * share)}
			used += pods[i].Used.Milli
		}
		host := batch.Amount{Milli: int64(500 + 20*random.NormFloat64()), Memory: gib}
		if m > day {
			minutes++
			if used+host.Milli > predicted {
				o.exceeded++
			}
			if beyond := float64(used+given) - requested; beyond > 0 {
				o.wanted++
				o.most = max(o.most, beyond/requested)
			}
			o.given += float64(given) / requested
		}
		p.Learn(now, host, pods)
		predicted = p.raised(plus(p.prod.peak(), p.system.peak())).Milli
		given = p.Reclaimable(now, batch.Amount{Milli: math.MaxInt32, Memory: math.MaxInt64 / 2}, pods).Milli
	}
	o.exceeded, o.wanted, o.given = o.exceeded/minutes, o.wanted/minutes, o.given/minutes
	return o
}
