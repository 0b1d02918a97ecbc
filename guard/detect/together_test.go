package detect_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"berth.dev/berth/guard/detect"
)

// togetherScenes have a service with two workers on two CPUs, that wake up where others of them run and stay there,
// as those of the lab's do: they wait for each other, alone as well.
func togetherScenes(demand float64) []shortScene {
	api := func(work func(time.Duration) float64) *queueGroup {
		return &queueGroup{name: simVictim, work: work, request: 800 * time.Microsecond, workers: 2, beside: 0.5, clumps: 0.3, stays: true, idle: []int{0, 1}}
	}
	from := func(onset time.Duration, before, after float64) func(time.Duration) float64 {
		return func(now time.Duration) float64 {
			if now < onset {
				return before
			}
			return after
		}
	}
	mail := func() *queueGroup {
		return &queueGroup{name: "mail", request: 500 * time.Microsecond, work: steady(0.025)}
	}
	half := func(onset time.Duration) *queueGroup { // its threads take turns: there is always one that runs
		return &queueGroup{name: "batch", tasks: 2, start: onset, every: 2 * time.Millisecond, each: time.Millisecond}
	}
	little := func(onset time.Duration) *queueGroup {
		return &queueGroup{name: "batch", request: 2 * time.Millisecond, work: from(onset, 0, 0.05)}
	}
	batch := []string{"batch"}
	return []shortScene{
		{"half a hog as its own load grows", batch, 2, func(_ *rand.Rand, onset time.Duration) []*queueGroup {
			return []*queueGroup{api(from(onset, demand, 1.5*demand)), mail(), half(onset)}
		}},
		{"half a hog", batch, 2, func(_ *rand.Rand, onset time.Duration) []*queueGroup {
			return []*queueGroup{api(steady(demand)), mail(), half(onset)}
		}},
		{"a hog with one thread", batch, 2, func(_ *rand.Rand, onset time.Duration) []*queueGroup {
			return []*queueGroup{api(steady(demand)), mail(), {name: "batch", tasks: 1, start: onset}}
		}},
		{"a hog", batch, 2, func(_ *rand.Rand, onset time.Duration) []*queueGroup {
			return []*queueGroup{api(steady(demand)), mail(), {name: "batch", tasks: 2, start: onset}}
		}},
		{"its own load grows as an innocent starts", nil, 2, func(_ *rand.Rand, onset time.Duration) []*queueGroup {
			return []*queueGroup{api(from(onset, demand, 1.5*demand)), mail(), little(onset)}
		}},
		{"bursts of its own as an innocent starts", nil, 2, func(r *rand.Rand, onset time.Duration) []*queueGroup {
			phase := r.IntN(4)
			return []*queueGroup{api(func(now time.Duration) float64 {
				if now >= onset && int(now/(500*time.Millisecond))%4 == phase {
					return 3 * demand
				}
				return demand
			}), mail(), little(onset)}
		}},
		{"idle CPUs begin to be filled as its own load grows", nil, 2, func(_ *rand.Rand, onset time.Duration) []*queueGroup {
			return []*queueGroup{api(from(onset, demand, 1.5*demand)), mail(), {name: "night", fills: true, start: onset}}
		}},
		{"its own load grows beside a group that has always used a CPU", nil, 2, func(_ *rand.Rand, onset time.Duration) []*queueGroup {
			return []*queueGroup{api(from(onset, demand, 1.5*demand)), mail(), {name: "batch", tasks: 1}}
		}},
		{"a hog in no group", nil, 2, func(_ *rand.Rand, onset time.Duration) []*queueGroup {
			return []*queueGroup{api(steady(demand)), mail(), {name: detect.Outside, tasks: 2, start: onset}}
		}},
	}
}

// TestThreadsTogether: beside a service whose threads wait for each other, a loop would act against a hog on each
// CPU within 200 ms by the median, against half a hog within 400 ms as its own load grows, and against nobody who is innocent in more than 1 window of 1,000. What a
// hog does that has one CPU to itself, so that the service's threads share the other, is in the table of
// docs/measurements/partly.md; BERTH_SIM is how many runs each has, BERTH_SEED the first seed.
func TestThreadsTogether(t *testing.T) {
	t.Parallel()
	const window, length = 40 * time.Millisecond, 18 * time.Second
	runs := 1
	if n, err := strconv.Atoi(os.Getenv("BERTH_SIM")); err == nil {
		runs = n
	}
	first, _ := strconv.ParseUint(os.Getenv("BERTH_SEED"), 10, 64)
	for _, demand := range []float64{0.2, 0.4} {
		for _, scene := range togetherScenes(demand) {
			var of reactions
			var since, until spent
			for seed := first; seed < first+uint64(runs); seed++ {
				r := rand.New(rand.NewPCG(seed, 11))
				onset := 12*time.Second + time.Duration(r.Int64N(int64(time.Second)))
				o := shortRun(t, seed, shortSlice, window, int(length/window), scene, onset, scene.groups(r, onset)...)
				of.add(&scene, &o, int(length/window))
				for _, add := range []struct{ to, of *spent }{{&since, &o.since}, {&until, &o.until}} {
					add.to.used, add.to.self, add.to.culprits = add.to.used+add.of.used/float64(runs), add.to.self+add.of.self/float64(runs), add.to.culprits+add.of.culprits/float64(runs)
				}
			}
			t.Logf("| %s | %v | %.2f, %.2f | %.2f, %.2f | %.3f | %s |", scene.name, demand, until.used, since.used, until.self, since.self, since.culprits, fmt.Sprint(&of))
			if scene.name == "a hog" && of.quantile(0.5) > 200 {
				t.Errorf("a hog, demand %v: a loop would act after %g ms by the median", demand, of.quantile(0.5))
			}
			if scene.name == "half a hog as its own load grows" && demand == 0.4 && of.quantile(0.5) > 400 {
				t.Errorf("%s, demand %v: a loop would act after %g ms by the median", scene.name, demand, of.quantile(0.5))
			}
			if 1000*of.wrong > of.windows {
				t.Errorf("%s, demand %v: a loop would act against an innocent in %d of %d windows", scene.name, demand, of.wrong, of.windows)
			}
		}
	}
}
