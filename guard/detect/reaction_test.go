package detect_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"berth.dev/berth/guard/detect"
)

// TestReaction: from the onset until a loop would act against a culprit it is 200 ms at most by the
// median, of the hogs of the harder truths. Of windows in which there is none to accuse, a loop would act
// in 1 of 1,000 at most, if the victim has a task for each request. With two workers instead, and for weak hogs,
// which are what made late remedies on a host, docs/measurements/reaction.md has the table; BERTH_SIM is how
// many runs each truth and demand has, BERTH_SEED the first seed.
func TestReaction(t *testing.T) {
	t.Parallel()
	const filled, quarter = ", idle CPUs filled", "a quarter of a CPU"
	const window, learnt, length = 40 * time.Millisecond, 12 * time.Second, 18 * time.Second
	runs, demands := 1, []float64{0.4}
	if n, err := strconv.Atoi(os.Getenv("BERTH_SIM")); err == nil {
		runs, demands = n, []float64{0.2, 0.4, 0.6}
	}
	first, _ := strconv.ParseUint(os.Getenv("BERTH_SEED"), 10, 64)
	type row struct {
		kind    string
		workers int
	}
	rows := map[row]*reactions{}
	for _, host := range []struct {
		slice   time.Duration
		workers int
		filled  bool
	}{{longSlice, 0, false}, {shortSlice, 0, false}, {shortSlice, 2, false}, {shortSlice, 8, false},
		{shortSlice, 0, true}, {shortSlice, 2, true}, {shortSlice, 8, true}} {
		for _, demand := range demands {
			kinds := map[string][]shortScene{
				"hogs": hardScenes(demand), "weak hogs": weakScenes(demand), "innocents": append(shortScenes(demand)[:4], comeAndGo(demand)), quarter: {fillUp(demand)},
			}
			if host.workers > 2 {
				kinds = map[string][]shortScene{"hogs": manyScenes(demand, host.workers)}
			}
			for kind, scenes := range kinds {
				for _, scene := range scenes {
					at := row{kind, host.workers}
					if len(scene.culprits) == 0 && kind != quarter {
						at.kind = "innocents"
					}
					if host.filled {
						at.kind += filled
					}
					if rows[at] == nil {
						rows[at] = new(reactions)
					}
					for seed := first; seed < first+uint64(runs); seed++ {
						r := rand.New(rand.NewPCG(seed, 11))
						onset := learnt + time.Duration(r.Int64N(int64(time.Second)))
						groups := append(scene.groups(r, onset), &queueGroup{name: "backup", fills: host.filled})
						groups[0].workers = host.workers
						o := shortRun(t, seed, host.slice, window, int(length/window), scene, onset, groups...)
						rows[at].add(&scene, &o, int(length/window))
					}
				}
			}
		}
	}
	for _, kind := range []string{"hogs", "weak hogs", "innocents", quarter, "hogs" + filled, "weak hogs" + filled, "innocents" + filled, quarter + filled} {
		for _, workers := range []int{0, 2, 8} {
			if a := rows[row{kind, workers}]; a != nil {
				t.Logf("| %s | %d | %v |", kind, workers, a)
			}
		}
	}
	for _, workers := range []int{0, 2, 8} {
		if median := rows[row{"hogs", workers}].quantile(0.5); median > 200 {
			t.Errorf("hogs, %d workers: a loop would act after %g ms by the median", workers, median)
		}
	}
	for at, most := range map[row]int{
		{"innocents", 0}: 1, {"innocents", 2}: 3, {"innocents", 8}: 1,
		{"innocents" + filled, 0}: 1, {"innocents" + filled, 2}: 3, {"innocents" + filled, 8}: 1,
	} { // windows of 1,000
		if in := rows[at]; 1000*in.wrong > most*in.windows {
			t.Errorf("%s, %d workers: a loop would act in %d of %d windows", at.kind, at.workers, in.wrong, in.windows)
		}
	}
}

// weakScenes have a neighbour that runs now and then: of windows beside it, as many name it as beside a hog on a host.
func weakScenes(demand float64) (all []shortScene) {
	for _, c := range []struct {
		work    float64
		request time.Duration
	}{{0.2, 4 * time.Millisecond}, {0.3, 4 * time.Millisecond}, {0.25, 20 * time.Millisecond}, {0.25, 50 * time.Millisecond}} {
		all = append(all, shortScene{fmt.Sprintf("%v of the CPUs, %v each", c.work, c.request), []string{"batch"}, 2, func(_ *rand.Rand, onset time.Duration) []*queueGroup {
			return []*queueGroup{
				{name: simVictim, work: steady(demand), request: time.Millisecond},
				{name: "mail", work: steady(0.025), request: 500 * time.Microsecond},
				{name: "batch", request: c.request, work: func(now time.Duration) float64 {
					if now < onset {
						return 0
					}
					return c.work
				}},
			}
		}})
	}
	return all
}

// comeAndGo is groups with a tenth of a CPU each, now and then, beside a load that varies.
func comeAndGo(demand float64) shortScene {
	by := func(name string, request, every time.Duration) *queueGroup {
		return &queueGroup{name: name, request: request, work: func(now time.Duration) float64 { return 0.05 * float64(now/every%2) }}
	}
	return shortScene{"groups come and go", nil, 2, func(r *rand.Rand, _ time.Duration) []*queueGroup {
		slow := 0.4 * math.Sin(6*r.Float64())
		return []*queueGroup{{name: simVictim, request: time.Millisecond, work: func(now time.Duration) float64 {
			return demand * (1 + slow + 0.3*math.Sin(2*now.Seconds()))
		}}, by("mail", 500*time.Microsecond, 7*time.Second), by("batch", 2*time.Millisecond, 5*time.Second)}
	}}
}

// fillUp is a group in the idle class that begins to fill the CPUs, as a hog does once the guard has acted, and
// an innocent that begins at the same instant to use a quarter of a CPU.
func fillUp(demand float64) shortScene {
	return shortScene{"idle CPUs begin to be filled as an innocent starts", nil, 2, func(_ *rand.Rand, onset time.Duration) []*queueGroup {
		return []*queueGroup{
			{name: simVictim, work: steady(demand), request: time.Millisecond},
			{name: "mail", work: steady(0.025), request: 500 * time.Microsecond},
			{name: "batch", request: time.Millisecond, work: func(now time.Duration) float64 {
				if now < onset {
					return 0
				}
				return 0.125
			}},
			{name: "night", fills: true, start: onset},
		}
	}}
}

// reactions are what runs came to.
type reactions struct {
	took           []float64 // in milliseconds; infinite where no culprit is accused
	wrong, windows int       // in which a loop would act against an innocent, of all
	accused, runs  int       // runs with such a window, of all
}

func (a *reactions) add(scene *shortScene, o *shortOutcome, windows int) {
	if took := float64(o.took.Milliseconds()); o.took > 0 {
		a.took = append(a.took, took)
	} else if len(scene.culprits) > 0 {
		a.took = append(a.took, math.Inf(1))
	}
	a.wrong, a.windows, a.runs = a.wrong+o.wrong, a.windows+windows, a.runs+1
	if o.wrong > 0 {
		a.accused++
	}
}

// quantile is the least that so many take at most.
func (a *reactions) quantile(p float64) float64 {
	slices.Sort(a.took)
	return a.took[max(int(math.Ceil(p*float64(len(a.took)))), 1)-1]
}

// String is a row: median, 95th percentile and share within 200 ms, and who was accused wrongly.
func (a *reactions) String() string {
	took := "| |"
	if n := len(a.took); n > 0 {
		soon := 0
		for _, v := range a.took {
			if v <= 200 {
				soon++
			}
		}
		took = fmt.Sprintf("%.0f | %.0f | %.0f %%", a.quantile(0.5), a.quantile(0.95), 100*float64(soon)/float64(n))
	}
	return fmt.Sprintf("%s | %d of %d | %.2f", took, a.accused, a.runs, 1000*float64(a.wrong)/float64(a.windows))
}

// manyScenes are those of a service with a worker for each CPU, whose requests queue in the program.
func manyScenes(demand float64, cpus int) (all []shortScene) {
	share := 1 / float64(cpus)
	api := func(work func(time.Duration) float64) *queueGroup {
		g := &queueGroup{name: simVictim, work: work, request: 3 * time.Millisecond, workers: cpus, beside: 0.5}
		for cpu := range cpus {
			g.idle = append(g.idle, cpu)
		}
		return g
	}
	mail := func() *queueGroup {
		return &queueGroup{name: "mail", request: 500 * time.Microsecond, work: steady(0.05 * share)}
	}
	batch := func(onset time.Duration, work float64) *queueGroup {
		return &queueGroup{name: "batch", request: 2 * time.Millisecond, work: func(now time.Duration) float64 {
			if now < onset {
				return 0
			}
			return work
		}}
	}
	return []shortScene{
		{"a hog", []string{"batch"}, cpus, func(_ *rand.Rand, onset time.Duration) []*queueGroup {
			return []*queueGroup{api(steady(demand)), mail(), {name: "batch", tasks: cpus, start: onset}}
		}},
		{"a hog, and its threads stay together", []string{"batch"}, cpus, func(_ *rand.Rand, onset time.Duration) []*queueGroup {
			g := api(steady(demand))
			g.beside = 1
			return []*queueGroup{g, mail(), {name: "batch", tasks: cpus, start: onset}}
		}},
		{"half a hog", []string{"batch"}, cpus, func(_ *rand.Rand, onset time.Duration) []*queueGroup {
			return []*queueGroup{api(steady(demand)), mail(), batch(onset, 0.5)}
		}},
		{"a hog in no group", nil, cpus, func(_ *rand.Rand, onset time.Duration) []*queueGroup {
			return []*queueGroup{api(steady(demand)), mail(), {name: detect.Outside, tasks: cpus, start: onset}}
		}},
		{"nothing", nil, cpus, func(*rand.Rand, time.Duration) []*queueGroup {
			return []*queueGroup{api(steady(demand)), mail()}
		}},
		{"its own load grows as an innocent starts", nil, cpus, func(_ *rand.Rand, onset time.Duration) []*queueGroup {
			return []*queueGroup{api(func(now time.Duration) float64 {
				if now < onset {
					return demand
				}
				return 3 * demand
			}), mail(), batch(onset, share/4)}
		}},
		{"bursts of its own", nil, cpus, func(r *rand.Rand, onset time.Duration) []*queueGroup {
			phase := r.IntN(4)
			return []*queueGroup{api(func(now time.Duration) float64 {
				if now >= onset && int(now/(500*time.Millisecond))%4 == phase {
					return 3 * demand
				}
				return demand
			}), mail(), batch(onset, share/4)}
		}},
	}
}
