package control_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
	"berth.dev/berth/watch"
)

// neighbour is a group beside the victim, and what it costs the victim.
type neighbour struct {
	group string
	class place.Class
	wait  float64                           // seconds per second that the victim waits for it, unhindered
	use   float64                           // CPUs
	uses  func(since time.Duration) float64 // what is read of it; nil is use while it is on
	// left is what remains of the wait under a remedy; 1 where there is none.
	left map[detect.Remedy]float64
	on   func(since time.Duration) bool // nil is always
}

// world is a host with one victim, as samples for a real detector; and the
// Actuator, which changes it.
type world struct {
	t          testing.TB
	cpus       int
	window     time.Duration
	neighbours []neighbour
	delay      int                              // windows until a change acts
	self       func(since time.Duration) string // what ails the victim itself: "", "limit", "steal" or "load"
	silent     func(since time.Duration) bool   // there are no samples
	load       func(since time.Duration) float64
	noise      float64
	outside    func(since time.Duration) float64 // seconds per second that it waits for processes in no group
	blind      bool                              // there is no run-queue probe
	workloads  []control.Workload
	missing    map[detect.Remedy]string

	r        *rand.Rand
	start    time.Time
	ticks    int
	counters map[counter]float64
	force    map[string]control.Action // by group and remedy
	since    map[string]int            // the tick of the change
	calls    int
	fail     func(call int, op string) error
	noIdle   string            // why groups cannot be idle
	drift    map[string]string // what somebody else has set, by group and remedy
	lenient  bool              // classes are not looked at
	half     bool              // what fails has been done nevertheless
	applied  []control.Action
	waits    []float64 // of the victim by window
}

type counter struct {
	subject  watch.Subject
	quantity watch.Quantity
	by       string
}

const victim = "pods/api"

func newWorld(t testing.TB, cpus int, window time.Duration, neighbours ...neighbour) *world {
	w := &world{
		t: t, cpus: cpus, window: window, neighbours: neighbours, noise: 0.05, r: rand.New(rand.NewPCG(1, 2)), start: time.Now(),
		counters: map[counter]float64{}, force: map[string]control.Action{}, since: map[string]int{},
	}
	w.workloads = []control.Workload{{Group: victim, Class: place.LS, Use: 1, Limits: cgroup.Limits{Quota: 200 * time.Millisecond, Period: 100 * time.Millisecond}}}
	for _, n := range neighbours {
		w.workloads = append(w.workloads, control.Workload{Group: n.group, Class: n.class, Use: n.use, Memory: 1 << 30})
	}
	return w
}

func key(a control.Action) string { return a.Group + " " + a.Remedy.String() }

// inForce reports whether a remedy acts on a group by now.
func (w *world) inForce(group string, r detect.Remedy) bool {
	for k, a := range w.force {
		if a.Remedy == r && kernel.Within(group, a.Group) && w.ticks >= w.since[k]+w.delay {
			return true
		}
	}
	return false
}

// waitFor is how long the victim waits for a neighbour, per second.
func (w *world) waitFor(n *neighbour, since time.Duration) float64 {
	if n.on != nil && !n.on(since) {
		return 0
	}
	wait := n.wait
	for r, left := range n.left {
		if w.inForce(n.group, r) {
			wait *= left
		}
	}
	return wait
}

func (w *world) noisy(v float64) float64 { return v * math.Exp(w.noise*w.r.NormFloat64()) }

// samples are those of the window that ends now.
func (w *world) samples() []watch.Sample {
	since := time.Since(w.start)
	w.ticks++
	now := watch.Time(since)
	var all []watch.Sample
	add := func(s watch.Subject, q watch.Quantity, perSecond float64, by string) {
		k := counter{s, q, by}
		w.counters[k] += perSecond * w.window.Seconds()
		all = append(all, watch.Sample{Time: now, Subject: s, Quantity: q, Value: w.counters[k], By: by})
	}
	host, v := watch.Subject{}, watch.Subject{Scope: watch.Group, Name: victim}
	use, ails := 1.0, ""
	if w.load != nil {
		use = w.load(since)
	}
	if w.self != nil {
		ails = w.self(since)
	}
	waits := map[string]float64{victim: w.noisy(0.004)}
	total, busy := 0.004, use
	for i := range w.neighbours {
		n := &w.neighbours[i]
		wait := w.noisy(w.waitFor(n, since))
		waits[n.group] += wait
		total += wait
		busy += w.uses(n)
		add(watch.Subject{Scope: watch.Group, Name: n.group}, watch.CPUTime, w.noisy(w.uses(n)), "")
	}
	if w.outside != nil {
		wait := w.noisy(w.outside(since))
		waits[detect.Outside] += wait
		total += wait
		busy += float64(w.cpus) // as many of them as there is room for
	}
	w.waits = append(w.waits, total)
	throttled, steal := 0.0, 0.0
	if w.inForce(victim, detect.Burst) && ails == "limit" {
		ails = ""
	}
	switch ails {
	case "limit":
		throttled = 6
		total += 0.5
	case "steal":
		steal = 2
		total += 0.5
	case "load":
		use = 0.95 * float64(w.cpus)
		waits[victim] += 3
		total += 3
	}
	add(host, watch.Steal, steal, "")
	add(host, watch.CPUTime, min(busy, float64(w.cpus)), "")
	add(v, watch.CPUTime, w.noisy(use), "")
	add(v, watch.CPUPeriods, 10, "")
	add(v, watch.CPUThrottledPeriods, throttled, "")
	add(v, watch.CPUWait, total, "")
	add(v, watch.CPUSome, min(total/2+0.02, 1), "")
	p99 := 80e-6
	if total > 0.1 {
		p99 = 3e-3
	}
	if w.blind {
		return all
	}
	all = append(all, watch.Sample{Time: now, Subject: v, Quantity: watch.QueueP99, Value: w.noisy(p99)})
	queued := 0.0
	for _, by := range slices.Sorted(maps.Keys(waits)) {
		add(v, watch.QueuedBy, waits[by], by)
		queued += waits[by]
	}
	add(v, watch.Queued, queued, "")
	add(v, watch.QueuedKernel, 0, "")
	add(v, watch.QueuedIdle, 0, "")
	add(v, watch.QueuedThrottled, 0, "")
	return all
}

func (w *world) call(op string) error {
	w.calls++
	if w.fail != nil {
		return w.fail(w.calls, op)
	}
	return nil
}

// Apply checks that nothing is done that must not be.
func (w *world) Apply(_ context.Context, a control.Action) ([]control.Change, error) {
	w.check(a)
	err := w.call("apply")
	if err != nil && !w.half {
		return nil, err
	}
	k := key(a)
	delete(w.drift, k)
	w.force[k], w.since[k] = a, w.ticks
	w.applied = append(w.applied, a)
	return []control.Change{{Path: a.Group, To: a.String()}}, err
}

func (w *world) check(a control.Action) {
	w.t.Helper()
	g := slices.IndexFunc(w.workloads, func(x control.Workload) bool { return x.Group == a.Group })
	switch {
	case g < 0:
		w.t.Errorf("%v: acts on an unknown group", a)
	case w.workloads[g].Protected:
		w.t.Errorf("%v: acts on a protected group", a)
	case !w.lenient && a.Group != victim && w.workloads[g].Class != place.BE:
		w.t.Errorf("%v: acts on a neighbour that is %v", a, w.workloads[g].Class)
	}
	switch a.Remedy {
	case detect.HeadroomCap:
		if got := float64(a.Limits.Quota) / float64(a.Limits.Period); got < control.FloorQuota(w.cpus)-1e-9 {
			w.t.Errorf("%v: below the floor of %v CPUs", a, control.FloorQuota(w.cpus))
		}
	case detect.ShrinkCPUs:
		if a.Limits.CPUs.Len() < control.FloorCPUs(w.cpus) && !(g >= 0 && a.Limits.CPUs.Contains(w.workloads[g].CPUs)) {
			w.t.Errorf("%v: below the floor of %d CPUs", a, control.FloorCPUs(w.cpus))
		}
	case detect.MemoryHigh:
		if g >= 0 && a.Limits.MemoryHigh < w.workloads[g].Memory/2 {
			w.t.Errorf("%v: below half of %d bytes", a, w.workloads[g].Memory)
		}
	case detect.Weight:
		if a.Limits.Idle != cgroup.On && a.Limits.Weight < 1 {
			w.t.Errorf("%v: no weight", a)
		}
	}
}

func (w *world) Revert(_ context.Context, a control.Action) ([]control.Change, error) {
	err := w.call("revert")
	if err != nil && !w.half {
		return nil, err
	}
	delete(w.force, key(a))
	w.since[key(a)] = w.ticks
	return []control.Change{{Path: a.Group, From: a.String()}}, err
}

func (w *world) Preview(_ context.Context, a control.Action) ([]control.Change, error) {
	w.check(a)
	if by, ok := w.drift[key(a)]; ok {
		return []control.Change{{Path: a.Group, From: by, To: a.String()}}, nil
	}
	if now, ok := w.force[key(a)]; ok && now.String() == a.String() {
		return nil, nil
	}
	return []control.Change{{Path: a.Group, To: a.String()}}, nil
}

// runner drives detector and loop, window by window.
type runner struct {
	*world
	detector *detect.Detector
	loop     *control.Loop
	events   []control.Event
	near     bool // these are the short windows, and the victim is judged by them
	unread   bool // they do not read what groups use
	lags     bool // what the long windows read of neighbours was before these began
}

func (w *world) runner(c control.Config) *runner {
	w.t.Helper()
	m := fakekernel.Short(w.t, fmt.Sprintf("1s1n%dc1t", w.cpus))
	d, err := detect.New(detect.Config{Machine: m, Window: watch.Time(w.window)})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, x := range w.workloads {
		if strings.HasPrefix(x.Group, "roof") {
			continue
		}
		d.Track(detect.Workload{Group: x.Group, CPUs: x.CPUs, Sensitive: x.Group == victim})
	}
	c.Window = w.window
	loop, err := control.New(c, w)
	if err != nil {
		w.t.Fatal(err)
	}
	return &runner{world: w, detector: d, loop: loop}
}

// run goes on for some time and returns the events of it.
func (r *runner) run(for_ time.Duration) []control.Event {
	first := len(r.events)
	for end := time.Now().Add(for_); time.Now().Before(end); {
		time.Sleep(r.window)
		r.step()
	}
	return r.events[first:]
}

func (r *runner) step() {
	samples := r.samples()
	in := control.Input{Workloads: r.present(), Host: r.host()}
	if r.silent == nil || !r.silent(time.Since(r.start)) {
		r.detector.Observe(samples)
	}
	in.Findings = r.detector.Judge(watch.Time(time.Since(r.start)))
	in.Symptoms = r.detector
	if r.near {
		in.Near, in.Closely = true, func(string, detect.Resource) bool { return true }
		for i := range in.Workloads {
			w := &in.Workloads[i]
			if use := w.Use; !r.unread {
				w.Recent = &use
			}
			if r.lags && w.Group != victim {
				w.Use = 0.1
			}
		}
	}
	r.events = append(r.events, r.loop.Step(context.Background(), in)...)
}

// uses is what a neighbour uses now, in CPUs.
func (w *world) uses(n *neighbour) float64 {
	since := time.Since(w.start)
	switch {
	case n.uses != nil:
		return n.uses(since)
	case n.on != nil && !n.on(since):
		return 0
	}
	return n.use
}

// present are the workloads, with what they use now.
func (w *world) present() []control.Workload {
	all := slices.Clone(w.workloads)
	for i := range w.neighbours {
		for j := range all {
			if n := &w.neighbours[i]; all[j].Group == n.group && !math.IsNaN(all[j].Use) {
				all[j].Use = w.uses(n)
			}
		}
	}
	return all
}

func (w *world) host() control.Host {
	cpus, err := cpuset.Range(0, w.cpus-1)
	if err != nil {
		w.t.Fatal(err)
	}
	use := 1.0
	for i := range w.neighbours {
		use += w.uses(&w.neighbours[i])
	}
	if w.outside != nil {
		use = float64(w.cpus)
	}
	return control.Host{NoIdle: w.noIdle, CPUs: cpus, Use: min(use, float64(w.cpus)), Unavailable: w.missing}
}

// told is the outcomes with what was done, one a line.
func told(events []control.Event) string {
	var b strings.Builder
	for _, e := range events {
		b.WriteString(e.Outcome.String())
		if e.Action != nil {
			b.WriteString(" " + e.Action.String())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func hog(group string, wait float64) neighbour {
	return neighbour{group: group, class: place.BE, wait: wait, use: 3, left: map[detect.Remedy]float64{
		detect.Weight: 0.01, detect.HeadroomCap: 0.3, detect.ShrinkCPUs: 0.3,
	}}
}

func from(t time.Duration) func(time.Duration) bool {
	return func(since time.Duration) bool { return since >= t }
}

var errRefused = errors.New("refused by the test")
