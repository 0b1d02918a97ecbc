package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard"
	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// fakeSensors are the sensors of a host whose group hog makes web wait for CPU from the
// time on that the test says, unless hog is idle.
type fakeSensors struct {
	h *host

	noProbe error // why there is no probe

	mu      sync.Mutex
	hogs    bool
	panics  bool
	now     watch.Time
	used    map[string]float64
	waited  float64
	sampled int
}

func (p *fakeSensors) Groups() ([]string, error) { return []string{"hog", "web"}, nil }

func (p *fakeSensors) CPUs(string) cpuset.Set { return cpuset.Set{} }

func (p *fakeSensors) Focus([]string) error { return nil }

func (p *fakeSensors) Arm(bool) error { return nil }

func (p *fakeSensors) Probe() error { return p.noProbe }

// ProbeCost is asked once a window, amid the guard's work.
func (p *fakeSensors) ProbeCost() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.panics {
		panic("a bug")
	}
	return 0.001
}

func (p *fakeSensors) OwnGroup() string { return "" }

func (p *fakeSensors) Path(dir string) (group string, ok bool) {
	return strings.CutPrefix(dir, cpuDir)
}

func (p *fakeSensors) Has(group string) bool { return group == "hog" || group == "web" }

func (p *fakeSensors) Close() error { return nil }

// hog lets the hog run from now on, or no more.
func (p *fakeSensors) hog(runs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hogs = runs
}

// disturbs reports whether web waits.
func (p *fakeSensors) disturbs() bool {
	text, err := os.ReadFile(filepath.Join(p.h.dir, cpuDir+"hog/cpu.idle"))
	return p.hogs && err == nil && strings.TrimSpace(string(text)) == "0"
}

func (p *fakeSensors) Tick(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	return p.sample(now, to)
}

func (p *fakeSensors) TickNear(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	return p.sample(now, to)
}

func (p *fakeSensors) sample(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sampled++
	s := (now - p.now).Seconds()
	p.now = now
	p.used["web"] += s
	p99 := 0.0001
	if p.hogs {
		p.used["hog"] += 6.9 * s
	}
	if p.disturbs() {
		p.waited += 0.5 * s
		p99 = 0.005
	}
	host := func(part watch.Part, q watch.Quantity, v float64) {
		to = append(to, watch.Sample{Time: now, Subject: watch.Subject{Part: part}, Quantity: q, Value: v})
	}
	all := p.used["web"] + p.used["hog"]
	host(watch.Part{}, watch.CPUTime, all)
	host(watch.Part{}, watch.Steal, 0)
	for cpu := range 8 {
		host(watch.Part{Kind: watch.CPU, ID: cpu}, watch.CPUTime, all/8)
	}
	for _, group := range []string{"hog", "web"} {
		add := func(q watch.Quantity, v float64, by string) {
			to = append(to, watch.Sample{Time: now, Subject: watch.Subject{Scope: watch.Group, Name: group}, Quantity: q, Value: v, By: by})
		}
		add(watch.CPUTime, p.used[group], "")
		for _, q := range []watch.Quantity{watch.CPUPeriods, watch.CPUThrottledPeriods, watch.CPUThrottled, watch.CPUThrottledAny} {
			add(q, 0, "")
		}
		if group == "web" {
			add(watch.CPUWait, p.waited, "")
			add(watch.CPUSome, p.waited, "")
			add(watch.Queued, p.waited, "")
			add(watch.QueuedBy, p.waited, "hog")
			add(watch.QueueP99, p99, "")
		}
	}
	return to, nil
}

const webAndHog = `workloads:
- {name: web, match: {cgroup: /web}, class: LS}
- {name: hog, match: {cgroup: /hog}, class: BE, limits: {weight: 50}}
`

// guardedHost is a host with web and hog, both placed by an agent that guards.
func guardedHost(t *testing.T, guarding string) (*host, *fakeSensors, *running) {
	t.Helper()
	h := newHost(t, webAndHog+off)
	h.mkdir("web")
	h.mkdir("hog")
	p := h.guards()
	r := h.run()
	r.await(agent.Placed, "web:web")
	r.start(h, webAndHog+guarding)
	p.hog(true)
	return h, p, r
}

// off is for a guard that starts when all are placed: it looks who is there only every
// five seconds.
const off = "guard: {mode: \"off\"}\n"

func (r *running) start(h *host, conf string) {
	r.t.Helper()
	r.until(func(a api.About) bool { return a.Groups >= 2 })
	h.configure(conf)
	r.await(api.Reloaded, "")
}

func (h *host) guards() *fakeSensors {
	p := &fakeSensors{h: h, used: map[string]float64{}}
	h.opt.Sensors = func() (Sensors, error) { return p, nil }
	h.opt.window = guard.LeastWindow
	return p
}

// guarded waits for a step of the guard.
func (r *running) guarded(outcome control.Outcome) *control.Event {
	r.t.Helper()
	for {
		e := r.await(api.Guarded, "web:web")
		if e.Guard == nil {
			r.t.Fatalf("event %+v says nothing of a step", e)
		}
		if e.Guard.Outcome == outcome {
			return e.Guard
		}
		if e.Guard.Outcome == control.Failed {
			r.t.Fatalf("%v", e.Guard)
		}
	}
}

func (h *host) idle() string { return h.read(cpuDir + "hog/cpu.idle") }

const always = "guard: {mode: enforce, probe: always}\n"

// The guard acts, tells what it saw, did and measured, and restores at the end of
// the agent, which leaves the grants.
func TestGuardActs(t *testing.T) {
	t.Parallel()
	h, _, r := guardedHost(t, always)
	placed := tree(t, h.k)
	found := r.await(api.Found, "web:web")
	if f := found.Finding; f == nil || f.Suspect != "hog" || f.Resource != detect.CPU || len(f.Evidence) == 0 {
		t.Errorf("found %+v", found)
	}
	applied := r.guarded(control.Applied)
	if applied.Action == nil || applied.Action.Group != "hog" || len(applied.Evidence) == 0 || len(applied.Changes) == 0 {
		t.Errorf("applied: %+v", applied)
	}
	kept := r.guarded(control.Kept)
	if kept.Effect == nil || kept.Effect.After >= kept.Effect.Before || h.idle() != "1" {
		t.Errorf("kept: %+v, idle %s", kept, h.idle())
	}
	g, err := r.Guard(t.Context())
	if err != nil || g.Mode != config.GuardEnforce || g.Status == nil || len(g.Status.Active) != 1 || g.Workloads["web"] != "web:web" {
		t.Errorf("the guard says %+v, %v", g, err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(placed, tree(t, h.k)); diff != "" {
		t.Errorf("tree at the end (-want +got)\n%s", diff)
	}
}

// Where the probe cannot be had, one event says why and what would help, and the guard
// works without. Where it is not asked for, nothing is missing.
func TestGuardWithoutProbe(t *testing.T) {
	t.Parallel()
	for probe, want := range map[string]int{"needed": 1, "never": 0} {
		t.Run(probe, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, webAndHog+off)
			h.mkdir("web")
			h.mkdir("hog")
			p := h.guards()
			p.noProbe = &kernel.NotSupportedError{Feature: "run-queue probe", Reason: "refused", Remedy: "allow it"}
			r := h.run()
			r.await(agent.Placed, "web:web")
			r.start(h, webAndHog+"guard: {mode: enforce, probe: "+probe+"}\n")
			p.hog(true)
			r.guarded(control.Applied)
			said := 0
			for e, err := range r.Events(t.Context(), 0, false) {
				if err != nil {
					t.Fatal(err)
				}
				if e.Kind == agent.Failed && strings.Contains(e.Text, "run-queue probe: not supported: refused (allow it)") {
					said++
				}
			}
			if said != want {
				t.Errorf("it was said %d times, want %d", said, want)
			}
		})
	}
}

// In the other modes nothing is written.
func TestGuardWatches(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"observe", "preview"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			h, p, r := guardedHost(t, "guard: {mode: "+mode+", probe: always}\n")
			placed := tree(t, h.k)
			r.await(api.Found, "web:web")
			if mode == "preview" {
				if e := r.guarded(control.WouldApply); len(e.Changes) == 0 {
					t.Errorf("preview: %+v", e)
				}
			}
			p.mu.Lock()
			now := p.sampled
			p.mu.Unlock()
			for seen := now; seen < now+10; {
				time.Sleep(10 * time.Millisecond)
				p.mu.Lock()
				seen = p.sampled
				p.mu.Unlock()
			}
			if diff := cmp.Diff(placed, tree(t, h.k)); diff != "" {
				t.Errorf("tree (-want +got)\n%s", diff)
			}
			for e, err := range r.Events(t.Context(), 0, false) {
				if err != nil {
					t.Fatal(err)
				}
				if e.Guard != nil && (mode == "observe" || e.Guard.Outcome != control.WouldApply) {
					t.Errorf("step %v", e.Guard)
				}
			}
		})
	}
}

// The mode can be set by a client and by the configuration; everything is restored
// first.
func TestGuardChangesMode(t *testing.T) {
	t.Parallel()
	h, _, r := guardedHost(t, "guard: {mode: observe, probe: always}\n")
	r.await(api.Found, "web:web")
	if err := r.SetMode(t.Context(), config.GuardEnforce); err != nil {
		t.Fatal(err)
	}
	if e := r.await(api.GuardMode, ""); e.By == nil || e.Text != "observe -> enforce" {
		t.Errorf("told %+v", e)
	}
	r.guarded(control.Applied)
	if h.idle() != "1" {
		t.Error("nothing is active")
	}
	h.configure(webAndHog + "guard: {mode: preview, probe: always}\n")
	r.guarded(control.Reverted)
	reverted := r.last
	r.await(api.Reloaded, "")
	if h.idle() != "0" {
		t.Error("not restored")
	}
	r.last = reverted // the guard may have said it before the agent said that it had reloaded
	r.guarded(control.WouldApply)
	// Another thing than the mode starts the guard anew; what was active goes back.
	if err := r.SetMode(t.Context(), config.GuardEnforce); err != nil {
		t.Fatal(err)
	}
	r.guarded(control.Applied)
	h.configure(webAndHog + "guard: {mode: \"off\", probe: never}\n")
	r.await(api.Reloaded, "")
	if h.idle() != "0" {
		t.Error("not restored by off")
	}
	if g, err := r.Guard(t.Context()); err != nil || g.Mode != config.GuardOff || g.Status != nil {
		t.Errorf("the guard says %+v, %v", g, err)
	}
	if err := r.SetMode(t.Context(), config.GuardObserve); err != nil {
		t.Fatal(err)
	}
	if g, err := r.Guard(t.Context()); err != nil || g.Mode != config.GuardObserve || g.Configured != config.GuardOff {
		t.Errorf("the guard says %+v, %v", g, err)
	}
}

// A guard that panics restores everything, and is told of; the agent goes on.
func TestGuardPanics(t *testing.T) {
	t.Parallel()
	h, p, r := guardedHost(t, always)
	r.guarded(control.Applied)
	p.mu.Lock()
	p.panics = true
	p.mu.Unlock()
	if e := r.await(agent.Failed, ""); !strings.Contains(e.Text, "a bug") {
		t.Errorf("told %q", e.Text)
	}
	if h.idle() != "0" {
		t.Error("not restored")
	}
	g, err := r.Guard(t.Context())
	if err != nil || g.Status != nil || !strings.Contains(g.Reason, "a bug") {
		t.Errorf("the guard says %+v, %v", g, err)
	}
	p.mu.Lock()
	p.panics = false
	p.mu.Unlock()
	if err := r.SetMode(t.Context(), config.GuardEnforce); err != nil {
		t.Fatal(err)
	}
	r.guarded(control.Applied)
}

// While another guard may act on the host, this one does not, and says so.
func TestGuardBesideAnother(t *testing.T) {
	t.Parallel()
	h := newHost(t, webAndHog+"guard: {mode: observe, probe: always}\n")
	h.guards()
	r := h.run()
	other, err := actuate.Open(actuate.Options{Root: kernel.NewRoot(h.dir, h.k), Dir: filepath.Join(t.TempDir(), "g")})
	if err != nil {
		t.Fatal(err)
	}
	var refused *api.Error
	if err := r.SetMode(t.Context(), config.GuardEnforce); !errors.As(err, &refused) || refused.Problem.Status != 503 {
		t.Errorf("refused with %v", err)
	}
	if g, err := r.Guard(t.Context()); err != nil || g.Mode != config.GuardObserve {
		t.Errorf("the guard says %+v, %v", g, err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.SetMode(t.Context(), config.GuardEnforce); err != nil {
		t.Errorf("with the other gone: %v", err)
	}
}

// Protected groups are left alone, and the agent's exit with --restore-on-exit takes
// everything back.
func TestGuardLeavesProtectedAlone(t *testing.T) {
	t.Parallel()
	h := newHost(t, webAndHog+"protected: [/hog]\n"+off)
	h.mkdir("web")
	h.mkdir("hog")
	fresh := tree(t, h.k)
	p := h.guards()
	h.opt.RestoreOnExit = true
	r := h.run()
	r.await(agent.Placed, "web:web")
	r.start(h, webAndHog+"protected: [/hog]\nguard: {mode: enforce, probe: always, allowed: [/hog]}\n")
	p.hog(true)
	e := r.guarded(control.Refused)
	if !slices.ContainsFunc(e.Skipped, func(s control.Skip) bool { return strings.Contains(s.Reason, "protected") }) {
		t.Errorf("refused: %+v", e)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fresh, tree(t, h.k)); diff != "" {
		t.Errorf("tree at the end (-want +got)\n%s", diff)
	}
}

// A change of the placement is written below what the guard has active, which the guard
// applies again at once.
func TestGuardAppliesAgain(t *testing.T) {
	t.Parallel()
	h, _, r := guardedHost(t, always)
	r.guarded(control.Kept)
	h.configure(strings.Replace(webAndHog, "weight: 50", "weight: 200", 1) + always)
	r.await(agent.Changed, "hog:hog")
	for began := time.Now(); h.idle() != "1"; time.Sleep(time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatal("the neighbour does not yield any more")
		}
	}
	for e, err := range r.Events(t.Context(), 0, false) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Guard != nil && e.Guard.Outcome == control.Restored { // drift is looked for every 10 s
			t.Errorf("taken for another writer's: %v", e.Guard)
		}
	}
	if err := r.SetMode(t.Context(), config.GuardObserve); err != nil {
		t.Fatal(err)
	}
	if shares := h.read(cpuDir + "hog/cpu.shares"); h.idle() != "0" || shares != "2048" {
		t.Errorf("afterwards cpu.idle is %s, cpu.shares %s", h.idle(), shares)
	}
}

// The guard works on groups that the configuration names, without any workload: beside an
// agent, and alone.
func TestGuardNamedGroups(t *testing.T) {
	t.Parallel()
	const named = "guard: {mode: enforce, probe: always, sensitive: [/web], bestEffort: [/h*]}\n"
	h := newHost(t, named)
	h.mkdir("web")
	h.mkdir("hog")
	fresh := tree(t, h.k)
	p := h.guards()
	p.hog(true)
	await := func(events <-chan api.Event) {
		t.Helper()
		for {
			select {
			case e := <-events:
				if e.Guard != nil && e.Guard.Outcome == control.Kept {
					return
				}
			case <-time.After(time.Minute):
				t.Fatal("nothing has helped")
			}
		}
	}
	events := make(chan api.Event, 1000)
	conf, err := ReadConfig(h.file)
	if err != nil {
		t.Fatal(err)
	}
	g, err := NewGuard(GuardOptions{
		Root: kernel.NewRoot(h.dir, h.k), Dir: filepath.Join(t.TempDir(), "guard"), Sensors: h.opt.Sensors, Window: guard.LeastWindow,
		Workloads: func(context.Context, int) ([]agent.Workload, int, error) { return nil, 1, nil },
		Record:    func(e api.Event) { events <- e },
	})
	if err == nil {
		err = g.Open(conf)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	await(events)
	cancel()
	if err := errors.Join(<-ended, g.Close()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(fresh, tree(t, h.k)); diff != "" {
		t.Errorf("tree at the end (-want +got)\n%s", diff)
	}
	*p = fakeSensors{h: h, used: map[string]float64{}, hogs: true}
	r := h.run()
	for {
		if e := r.await(api.Guarded, ""); e.Guard.Outcome == control.Kept {
			break
		}
	}
}

// broken are sensors that panic when they are read.
type broken struct{ *fakeSensors }

func (broken) Tick(watch.Time, []watch.Sample) ([]watch.Sample, error)     { panic("a bug") }
func (broken) TickNear(watch.Time, []watch.Sample) ([]watch.Sample, error) { panic("a bug") }

// A guard that has ended in force says so before everything is restored, too.
func TestGuardEnded(t *testing.T) {
	t.Parallel()
	h := newHost(t, webAndHog+always)
	h.mkdir("web")
	h.mkdir("hog")
	p := h.guards()
	conf, err := ReadConfig(h.file)
	if err != nil {
		t.Fatal(err)
	}
	g, err := NewGuard(GuardOptions{
		Root: kernel.NewRoot(h.dir, h.k), Dir: filepath.Join(t.TempDir(), "guard"), Sensors: func() (Sensors, error) { return broken{p}, nil }, Window: guard.LeastWindow,
		Workloads: func(context.Context, int) ([]agent.Workload, int, error) { return nil, 1, nil },
		Record:    func(api.Event) {},
	})
	if err == nil {
		err = g.Open(conf)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("it has not panicked")
			}
		}()
		_ = g.Run(ctx)
	}()
	is, err := g.Guard(ctx)
	if err != nil || is.Mode != config.GuardEnforce || !strings.HasPrefix(is.Reason, "it has ended") {
		t.Errorf("mode %v, reason %q, %v", is.Mode, is.Reason, err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}
