package detect_test

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/machine"
	"berth.dev/berth/watch"
)

// queueHost is two CPUs with a queue each, simulated task by task in steps of a quarter of a
// millisecond: what short windows see is single requests and slices, not levels with noise.
type queueHost struct {
	r      *rand.Rand
	groups []*queueGroup
	queues [2][]*queueTask // the first has the CPU
	ran    [2]time.Duration
	now    time.Duration
	waited []time.Duration // by tasks of the victim that got the CPU in this window
	by     map[string]time.Duration
	queued time.Duration
}

const (
	tickStep = 250 * time.Microsecond
	slice    = 4 * time.Millisecond
)

type queueGroup struct {
	name    string
	work    func(now time.Duration) float64 // of two CPUs, offered
	request time.Duration                   // per task; 0 never ends
	tasks   int                             // of those that never end, from start on
	start   time.Duration
	used    time.Duration
	begun   bool
}

type queueTask struct {
	group *queueGroup
	left  time.Duration
	since time.Duration // waits from then on
}

func (h *queueHost) add(t *queueTask) {
	at := 0
	if len(h.queues[1]) < len(h.queues[0]) || len(h.queues[1]) == len(h.queues[0]) && h.r.IntN(2) == 0 {
		at = 1
	}
	t.since = h.now
	h.queues[at] = append(h.queues[at], t)
}

// step goes on by a tickStep.
func (h *queueHost) step() {
	h.now += tickStep
	for _, g := range h.groups {
		if g.request == 0 {
			if !g.begun && g.tasks > 0 && h.now >= g.start {
				g.begun = true
				for range g.tasks {
					h.add(&queueTask{group: g, left: math.MaxInt64})
				}
			}
			continue
		}
		if h.r.Float64() < 2*g.work(h.now)*float64(tickStep)/float64(g.request) {
			h.add(&queueTask{group: g, left: time.Duration(float64(g.request) * h.r.ExpFloat64())})
		}
	}
	for c := range h.queues {
		q := h.queues[c]
		if len(q) == 0 { // an idle CPU takes what waits beside the other
			if o := h.queues[1-c]; len(o) > 1 {
				h.queues[c], h.queues[1-c] = []*queueTask{o[len(o)-1]}, o[:len(o)-1]
				q = h.queues[c]
				h.gets(q[0])
			}
			h.ran[c] = 0
			if len(q) == 0 {
				continue
			}
		}
		on := q[0]
		on.group.used += tickStep
		on.left -= tickStep
		h.ran[c] += tickStep
		for _, t := range q[1:] {
			if t.group.name == simVictim {
				h.queued += tickStep
				h.by[on.group.name] += tickStep
			}
		}
		switch {
		case on.left <= 0:
			h.queues[c] = q[1:]
		case h.ran[c] >= slice && len(q) > 1:
			on.since = h.now
			h.queues[c] = append(q[1:], on)
		default:
			continue
		}
		h.ran[c] = 0
		if len(h.queues[c]) > 0 {
			h.gets(h.queues[c][0])
		}
	}
}

func (h *queueHost) gets(t *queueTask) {
	if t.group.name == simVictim {
		h.waited = append(h.waited, h.now-t.since)
	}
}

func (h *queueHost) samples() []watch.Sample {
	var all []watch.Sample
	at := watch.Time(h.now)
	add := func(s watch.Subject, q watch.Quantity, v time.Duration, by string) {
		all = append(all, watch.Sample{Time: at, Subject: s, Quantity: q, Value: v.Seconds(), By: by})
	}
	busy := time.Duration(0)
	for _, g := range h.groups {
		busy += g.used
	}
	add(watch.Subject{}, watch.Steal, 0, "")
	add(watch.Subject{}, watch.CPUTime, busy, "")
	v := watch.Subject{Scope: watch.Group, Name: simVictim}
	add(v, watch.CPUTime, h.groups[0].used, "")
	add(v, watch.CPUPeriods, 0, "")
	add(v, watch.CPUThrottledPeriods, 0, "")
	add(v, watch.CPUThrottled, 0, "")
	add(v, watch.CPUWait, h.queued, "")
	for _, g := range h.groups {
		add(v, watch.QueuedBy, h.by[g.name], g.name)
	}
	for _, q := range []watch.Quantity{watch.QueuedKernel, watch.QueuedIdle, watch.QueuedThrottled} {
		add(v, q, 0, "")
	}
	add(v, watch.Queued, h.queued, "")
	if slices.Sort(h.waited); len(h.waited) > 0 {
		add(v, watch.QueueP99, h.waited[len(h.waited)*99/100], "")
	}
	h.waited = h.waited[:0]
	return all
}

// shortRun runs so many windows, and returns in how many a group other than the culprit is accused
// over the CPU so that a loop would act, and from the onset on after how many the culprit is.
func shortRun(t *testing.T, seed uint64, window time.Duration, windows int, culprit string, onset time.Duration, groups ...*queueGroup) (wrong, first int) {
	t.Helper()
	m, err := machine.Short("1s1n2c1t")
	if err != nil {
		t.Fatal(err)
	}
	d, err := detect.New(detect.Config{Machine: m, Near: watch.Time(window)})
	if err != nil {
		t.Fatal(err)
	}
	d.Track(detect.Workload{Group: simVictim, CPUs: cpuset.MustParse("0-1"), Sensitive: true})
	h := &queueHost{r: rand.New(rand.NewPCG(seed, 4)), groups: groups, by: map[string]time.Duration{}}
	for range windows {
		for end := h.now + window; h.now < end; {
			h.step()
		}
		d.Near().Observe(h.samples())
		for _, f := range d.Near().Judge(watch.Time(h.now)) {
			s, _ := d.Near().Symptom(f.Victim, f.Resource)
			switch {
			case f.Resource != detect.CPU || detect.InNoGroup(f.Suspect) || f.Suspect == "" || s.Strength < 1 || s.Typical < 1.2:
			case f.Suspect != culprit:
				wrong++
			case first == 0 && h.now > onset:
				first = int((h.now - onset + window - 1) / window)
			}
		}
	}
	return wrong, first
}

// shortScene is what runs beside the victim, and who is to blame from the onset on.
type shortScene struct {
	name, culprit string
	groups        func(r *rand.Rand, onset time.Duration) []*queueGroup
}

func steady(v float64) func(time.Duration) float64 { return func(time.Duration) float64 { return v } }

// shortScenes are the quiet ones, decoys and culprits. In each a bystander has a twentieth of a
// CPU. The decoys start at the instant in which the victim's own load, or a process in no
// group, begins to hurt.
func shortScenes(demand float64) []shortScene {
	api := func(work func(time.Duration) float64) *queueGroup {
		return &queueGroup{name: simVictim, work: work, request: time.Millisecond}
	}
	by := func(name string, cpus float64, from time.Duration) *queueGroup {
		return &queueGroup{name: name, request: 500 * time.Microsecond, work: func(now time.Duration) float64 {
			if now < from {
				return 0
			}
			return cpus / 2
		}}
	}
	hog := func(name string, tasks int, from time.Duration) *queueGroup {
		return &queueGroup{name: name, tasks: tasks, start: from}
	}
	return []shortScene{
		{"quiet", "", func(*rand.Rand, time.Duration) []*queueGroup {
			return []*queueGroup{api(steady(demand)), by("mail", 0.05, 0)}
		}},
		{"the load varies", "", func(r *rand.Rand, _ time.Duration) []*queueGroup {
			phase := r.Float64()
			return []*queueGroup{api(func(now time.Duration) float64 {
				return demand * (1 + 0.7*math.Sin(now.Seconds()*2+6*phase))
			}), by("mail", 0.05, 0)}
		}},
		{"its own load jumps as a decoy starts", "", func(_ *rand.Rand, onset time.Duration) []*queueGroup {
			return []*queueGroup{api(func(now time.Duration) float64 {
				if now >= onset {
					return min(1.8*demand, 0.9)
				}
				return demand
			}), by("mail", 0.05, 0), by("batch", 0.1, onset)}
		}},
		{"a hog in no group as a decoy starts", "", func(_ *rand.Rand, onset time.Duration) []*queueGroup {
			return []*queueGroup{api(steady(demand)), by("mail", 0.05, 0), by("batch", 0.1, onset), hog(detect.Outside, 3, onset)}
		}},
		{"a hog", "batch", func(_ *rand.Rand, onset time.Duration) []*queueGroup {
			return []*queueGroup{api(steady(demand)), by("mail", 0.05, 0), hog("batch", 4, onset)}
		}},
		{"a hog as a decoy starts", "batch", func(_ *rand.Rand, onset time.Duration) []*queueGroup {
			return []*queueGroup{api(steady(demand)), by("mail", 0.05, 0), by("decoy", 0.1, onset), hog("batch", 4, onset)}
		}},
	}
}

// TestShortWindows: in the short windows of the guard, no group that is none of the trouble is
// accused so that the guard would act in more than one window of 1,000; and a hog is, in the
// fourth window at the latest by the median. BERTH_SIM=full simulates an hour of each.
func TestShortWindows(t *testing.T) {
	t.Parallel()
	length, repeats := 20*time.Second, 3
	if os.Getenv("BERTH_SIM") == "full" {
		length, repeats = time.Minute, 60
	}
	for _, window := range []time.Duration{40 * time.Millisecond, 100 * time.Millisecond} {
		for _, demand := range []float64{0.2, 0.4} {
			for _, scene := range shortScenes(demand) {
				wrong, windows := 0, 0
				var firsts []int
				for seed := range repeats {
					r := rand.New(rand.NewPCG(uint64(seed), 7))
					onset := 10*time.Second + time.Duration(r.Int64N(int64(window)))
					n := int(length / window)
					w, first := shortRun(t, uint64(seed), window, n, scene.culprit, onset, scene.groups(r, onset)...)
					wrong, windows = wrong+w, windows+n
					if first == 0 {
						first = n
					}
					firsts = append(firsts, first)
				}
				slices.Sort(firsts)
				took := ""
				if scene.culprit != "" {
					took = (time.Duration(firsts[len(firsts)/2]) * window).String()
				}
				t.Logf("| %v | %s, demand %v | %d | %d | %.2f | %s |", window, scene.name, demand, windows, wrong, 1000*float64(wrong)/float64(windows), took)
				if 1000*wrong > windows {
					t.Errorf("%v, %s, demand %v: a group that is none of the trouble is accused in %d of %d windows", window, scene.name, demand, wrong, windows)
				}
				if scene.culprit != "" && firsts[len(firsts)/2] > 4 {
					t.Errorf("%v, %s, demand %v: accused after %v windows", window, scene.name, demand, firsts)
				}
			}
		}
	}
}
