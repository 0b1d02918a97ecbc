package guard

import (
	"context"
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// pressed is a model whose kernel says when web, or the host, is under pressure: it looks ten times a
// window at what was waited in the last one.
type pressed struct {
	*model
	more   func(at time.Duration) float64 // pressure that is no wait, as a part of the time
	own    bool                           // web tells it, too
	always bool                           // it fires in each window once it was asked for anything
	goes   time.Duration                  // when web goes; 0 is never
	back   time.Duration                  // when it is there again
	no     error                          // why it cannot be asked
	refuse func(group string) bool        // for which; nil is all

	told    bool    // that it has gone
	some    float64 // seconds, of more
	until   watch.Time
	totals  []float64
	open    map[string]float64 // what the kernel looks for
	asked   map[string]float64 // and has not told
	looks   int                // at anything
	armed   int                // of these, while the probe was armed
	asks    []map[string]float64
	askedAt []time.Duration
	fired   []time.Duration
	armedAt []time.Duration
}

func newPressed() *pressed { return &pressed{model: newModel()} }

// total is what was waited so far.
func (p *pressed) total(now watch.Time) float64 {
	if p.more != nil {
		p.some += p.more(time.Duration(now)) * (now - p.until).Seconds()
	}
	p.until = now
	return p.waited + p.some
}

func (p *pressed) Tick(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	before := len(to)
	to, err := p.model.Tick(now, to)
	p.mu.Lock()
	defer p.mu.Unlock()
	total := p.total(now)
	for i := range to[before:] {
		if s := &to[before+i]; s.Quantity == watch.CPUSome && p.own {
			s.Value = total
		}
	}
	return append(to, watch.Sample{Time: now, Quantity: watch.CPUSome, Value: total}), err
}

func (p *pressed) Arm(on bool) error {
	if on {
		p.armedAt = append(p.armedAt, time.Since(p.began))
	}
	return p.model.Arm(on)
}

func (p *pressed) WakeAt(least map[string]float64) (map[string]float64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := time.Since(p.began)
	p.asks, p.askedAt = append(p.asks, maps.Clone(least)), append(p.askedAt, at)
	p.asked = maps.Clone(least)
	if p.told && at < p.back {
		delete(p.asked, p.web)
	}
	if p.no != nil {
		maps.DeleteFunc(p.asked, func(group string, _ float64) bool { return p.refuse == nil || p.refuse(group) })
	}
	p.open = maps.Clone(p.asked)
	return maps.Clone(p.asked), p.no
}

func (p *pressed) Wake(ctx context.Context) (string, bool, error) {
	for {
		select {
		case <-ctx.Done():
			p.mu.Lock()
			defer p.mu.Unlock()
			p.asked, p.open = nil, nil
			return "", false, ctx.Err()
		case <-time.After(observe.WakeWindow / 10):
		}
		if group, fired, gone := p.look(); fired || gone {
			return group, gone, nil
		}
	}
}

func (p *pressed) look() (told string, fired, gone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := time.Since(p.began)
	if p.goes > 0 && at >= p.goes && !p.told {
		p.told = true
		delete(p.asked, p.web)
		delete(p.open, p.web)
		return p.web, false, true
	}
	if len(p.open) > 0 {
		if p.looks++; p.model.armed {
			p.armed++
		}
	}
	p.pass(watch.Time(at))
	p.totals = append(p.totals, p.total(watch.Time(at)))
	if len(p.totals) <= 10 {
		return "", false, false
	}
	p.totals = p.totals[len(p.totals)-11:]
	part := (p.totals[10] - p.totals[0]) / observe.WakeWindow.Seconds()
	for group, least := range p.asked {
		told = group
		if part >= least && !p.always {
			delete(p.asked, group)
			fired = true
			break
		}
	}
	if n := len(p.fired); p.always && len(p.asked) > 0 {
		fired = n == 0 || at-p.fired[n-1] >= observe.WakeWindow
	}
	if fired {
		p.fired = append(p.fired, at)
	}
	return told, fired, false
}

// guardPressed runs a guard on it with the defaults.
func guardPressed(t *testing.T, p *pressed, d time.Duration) (Status, []error) {
	t.Helper()
	o := p.options(control.Enforce)
	o.Sensors = p
	var errs []error
	o.Failed = func(err error) { errs = append(errs, err) }
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := r.Run(ctx); err != nil {
		t.Error(err)
	}
	return r.Status(), errs
}

// While the probe rests, the kernel has it armed within a window of its own from the hog's first run
// on, wherever in the slow window that is, and the remedy comes three short windows later.
func TestKernelWakesTheGuard(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		for phase := range 10 {
			synctest.Test(t, func(t *testing.T) {
				p := newPressed()
				p.own, p.more = own, func(time.Duration) float64 { return 0.02 }
				p.hogs = 30*time.Second + time.Duration(phase)*103*time.Millisecond
				if _, errs := guardPressed(t, p, 40*time.Second); len(errs) > 0 {
					t.Error(errs)
				}
				if len(p.fired) != 1 || len(p.armedAt) != 1 || len(p.setAt) != 1 {
					t.Fatalf("hog from %v: alarms at %v, armed at %v, idle set at %v, want each once", p.hogs, p.fired, p.armedAt, p.setAt)
				}
				if after := p.armedAt[0] - p.hogs; after < 0 || after > observe.WakeWindow || p.armedAt[0] != p.fired[0] {
					t.Errorf("hog from %v: alarm at %v, armed after %v", p.hogs, p.fired[0], after)
				}
				if p.looks == 0 || p.armed > 0 {
					t.Errorf("hog from %v: the kernel looked %d times, %d of them while the probe was armed", p.hogs, p.looks, p.armed)
				}
				if after := p.setAt[0] - p.armedAt[0]; after > 5*FastWindow {
					t.Errorf("hog from %v: in force %v after the probe was armed", p.hogs, after)
				}
				name := map[bool]string{true: "svc/web"}[own]
				if asked := p.asks[2]; len(asked) != 1 || asked[name] == 0 {
					t.Errorf("asked for %v, want a threshold of %q alone", asked, name)
				}
			})
		}
	}
}

// A kernel that gives alarm for nothing all the time is asked for more each time, and listened to
// less and less; after a while without alarms doubt is forgotten.
func TestAlarmsForNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPressed()
		p.always = true
		s, errs := guardPressed(t, p, 5*time.Minute)
		if len(errs) > 0 {
			t.Error(errs)
		}
		if armed := s.Probe.ArmedFor; armed < 20*time.Second || armed > 50*time.Second {
			t.Errorf("armed for %v of 5 min", armed)
		}
		if len(p.armedAt) < 5 || len(p.asks) < 12 {
			t.Fatalf("armed at %v, asked at %v", p.armedAt, p.askedAt)
		}
		if p.looks > 2*len(p.fired) {
			t.Errorf("the kernel looked %d times at what it told %d times", p.looks, len(p.fired))
		}
		for i, gap := range []time.Duration{15 * time.Second, 25 * time.Second, 45 * time.Second, 45 * time.Second} {
			if got := p.armedAt[i+1] - p.armedAt[i]; (got - gap).Abs() > 2*time.Second {
				t.Errorf("armed at %v: %v between alarms %d and %d, want %v", p.armedAt, got, i+1, i+2, gap)
			}
		}
		var asked []float64
		for _, ask := range p.asks[2:] {
			if len(ask) > 0 {
				asked = append(asked, ask[""])
			}
		}
		if diff := cmp.Diff([]float64{0.1, 0.2, 0.4, 0.8, 0.8}, asked[:5], cmpopts.EquateApprox(0, 1e-9)); diff != "" {
			t.Errorf("asked for pressure (-want +got):\n%s", diff)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		p := newPressed()
		p.always = true
		go func() {
			time.Sleep(100 * time.Second)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.always = false
		}()
		if s, _ := guardPressed(t, p, 20*time.Minute); s.Probe.ArmedFor > 25*time.Second {
			t.Errorf("armed for %v", s.Probe.ArmedFor)
		}
		last := p.asks[len(p.asks)-1]
		if math.Abs(last[""]-0.1) > 1e-9 {
			t.Errorf("asked for %v after a quarter of an hour without alarms, want 0.1", last)
		}
	})
}

// Pressure that is always there gives no alarm, as it is usual. When that moves by much, the kernel
// is asked anew, and else it is left alone.
func TestUsualPressure(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for name, c := range map[string]struct {
		more   func(at time.Duration) float64
		alarms int     // at most
		asks   int     // at most
		asked  float64 // in the end; 0 is nothing
	}{
		"little": {func(time.Duration) float64 { return 0.05 }, 0, 3, 0.15},
		"much":   {func(time.Duration) float64 { return 0.55 }, 0, 3, 0.825},
		"most":   {func(time.Duration) float64 { return 0.7 }, 0, 2, 0},
		"uneven": {func(time.Duration) float64 { return 0.1 + 0.02*random.Float64() }, 0, 4, 0.21},
		"more than before": {func(at time.Duration) float64 {
			if at < time.Minute {
				return 0.05
			}
			return 0.45
		}, 5, 20, 0.675},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPressed()
			p.more = c.more
			s, errs := guardPressed(t, p, 20*time.Minute)
			if len(errs) > 0 {
				t.Error(errs)
			}
			if len(p.armedAt) > c.alarms || s.Probe.ArmedFor > time.Duration(c.alarms)*6*time.Second {
				t.Errorf("%s: armed at %v, for %v", name, p.armedAt, s.Probe.ArmedFor)
			}
			if n := len(p.fired); n > 0 && p.fired[n-1] > 10*time.Minute {
				t.Errorf("%s: alarms at %v", name, p.fired)
			}
			if len(p.asks) > c.asks {
				t.Errorf("%s: the kernel was asked %d times, at %v", name, len(p.asks), p.askedAt)
			}
			if last := p.asks[len(p.asks)-1][""]; last > c.asked*1.25 || last < c.asked/1.25 {
				t.Errorf("%s: asked for %v in the end, want about %v", name, last, c.asked)
			}
		})
	}
}

// Why the kernel cannot be asked is told, and all is as without it.
func TestKernelCannotBeAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPressed()
		p.no = &kernel.NotSupportedError{Feature: "a PSI trigger", Reason: "this process may not set one", Remedy: "run as root"}
		p.hogs = 30*time.Second + 50*time.Millisecond
		s, errs := guardPressed(t, p, 60*time.Second)
		if len(errs) > 0 {
			t.Errorf("errors %v", errs)
		}
		if !strings.Contains(s.Probe.NoAlarm, "may not set one") || s.Probe.Reason != "" {
			t.Errorf("probe %+v", s.Probe)
		}
		if len(p.asks) != 1 || len(p.setAt) != 1 || p.setAt[0]-p.hogs > 2*time.Second {
			t.Errorf("asked %d times, idle set at %v", len(p.asks), p.setAt)
		}
	})
}

// A group that goes is asked for again until it is back, and then its pressure is told.
func TestKernelIsAskedAgain(t *testing.T) {
	t.Parallel()
	for gone, asks := range map[time.Duration]int{0: 1, 3 * time.Second: 4} {
		synctest.Test(t, func(t *testing.T) {
			p := newPressed()
			p.own, p.more = true, func(time.Duration) float64 { return 0.02 }
			p.goes = 40*time.Second + 300*time.Millisecond
			p.back, p.hogs = p.goes+gone, 50*time.Second+100*time.Millisecond
			guardPressed(t, p, 51*time.Second)
			var again []time.Duration
			for _, at := range p.askedAt {
				if at > p.goes && at < p.hogs {
					again = append(again, at)
				}
			}
			if len(again) != asks || again[0] != 41*time.Second {
				t.Errorf("gone for %v: asked again at %v, want %d times from 41 s on", gone, again, asks)
			}
			if len(p.armedAt) != 1 || p.armedAt[0]-p.hogs > observe.WakeWindow {
				t.Errorf("gone for %v: armed at %v", gone, p.armedAt)
			}
		})
	}
}

// A group that goes, or for which the kernel cannot be asked, leaves what it tells of others.
func TestOneGroupOfSeveral(t *testing.T) {
	t.Parallel()
	p := newPressed()
	o := p.options(control.Observe)
	o.Sensors = p
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r.focus = []string{"a", "b", "c"}
	for _, group := range r.focus {
		r.alarms.usual[group] = &pressure{counter{last: 1}, usual{n: enoughPressures}}
	}
	p.no, p.refuse = &kernel.NotSupportedError{Feature: "c"}, func(group string) bool { return group == "c" }
	r.listen(20 * watch.Second)
	if want := map[string]float64{"a": 0.1, "b": 0.1}; r.alarms.none != nil || !maps.Equal(r.alarms.asked, want) {
		t.Errorf("asked for %v, none %v, want %v", r.alarms.asked, r.alarms.none, want)
	}
	if r.heard(told{"a", true}) || !r.heard(told{"b", false}) {
		t.Error("a is gone, and then b is pressed: want an alarm at the latter alone")
	}
	p.refuse = nil
	r.listen(30 * watch.Second)
	if r.alarms.none == nil || len(r.alarms.asked) > 0 {
		t.Errorf("asked for %v, though the kernel takes none", r.alarms.asked)
	}
}

// The kernel is asked by default only: an eager guard looks by itself, and the others do not need it.
func TestWhoAsksTheKernel(t *testing.T) {
	t.Parallel()
	for _, use := range append(ProbeUses(), "") {
		synctest.Test(t, func(t *testing.T) {
			p := newPressed()
			o := p.options(control.Observe)
			o.Sensors, o.Probe = struct {
				*pressed
				glancer
			}{p, glanced{p.model}}, use
			if _, errs := runFor(t, o, 20*time.Second); len(errs) > 0 {
				t.Error(errs)
			}
			if asks := use == ProbeNeeded || use == ""; asks != (len(p.asks) > 0) {
				t.Errorf("%q: asked at %v", use, p.askedAt)
			}
		})
	}
}

// broken is a kernel that does not answer after a while.
type broken struct{ *pressed }

func (b broken) Wake(ctx context.Context) (string, bool, error) {
	if ctx.Err() == nil && time.Since(b.began) < 15*time.Second {
		ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
		defer cancel()
		<-ctx.Done()
		return "", false, errors.New("bad file descriptor")
	}
	return b.pressed.Wake(ctx)
}

// A kernel that does not answer is given up, and looks no more.
func TestKernelDoesNotAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPressed()
		o := p.options(control.Observe)
		o.Sensors = broken{p}
		go func() {
			time.Sleep(20 * time.Second)
			p.mu.Lock()
			defer p.mu.Unlock()
			if len(p.asks) != 3 || len(p.open) > 0 {
				t.Errorf("asked for %v, and still for %v", p.asks, p.open)
			}
		}()
		if _, errs := runFor(t, o, 30*time.Second); len(errs) != 1 || !strings.Contains(errs[0].Error(), "bad file descriptor") {
			t.Errorf("errors %v", errs)
		}
		if len(p.asks) != 3 {
			t.Errorf("asked at %v", p.askedAt)
		}
	})
}

// What is usual is known after ten windows in which the probe rested and none was late; the more it
// varies, the more is unusual.
func TestPressureIsLearnt(t *testing.T) {
	t.Parallel()
	const window = time.Second
	focus := []string{"a"}
	var a alarms
	at := watch.Time(0)
	totals := map[string]float64{}
	tick := func(since time.Duration, resting bool, rates map[string]float64) {
		at += watch.Time(since)
		var samples []watch.Sample
		for _, name := range slices.Sorted(maps.Keys(rates)) {
			totals[name] += rates[name] * since.Seconds()
			subject := watch.Subject{Scope: watch.Group, Name: name}
			if name == "" {
				subject = watch.Subject{}
			}
			samples = append(samples, watch.Sample{Time: at, Subject: subject, Quantity: watch.CPUSome, Value: totals[name]},
				watch.Sample{Time: at, Subject: subject, Quantity: watch.MemorySome, Value: 10 * at.Seconds()})
		}
		a.learn(samples, focus, window, resting)
	}
	check := func(when string, want map[string]float64) {
		t.Helper()
		if diff := cmp.Diff(want, a.least(focus, window, 1), cmpopts.EquateApprox(0.02, 0), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	begin := func() { a, at = alarms{usual: map[string]*pressure{}}, 0; clear(totals) }

	begin()
	for range 10 { // nine differences
		tick(window, true, map[string]float64{"a": 0.2, "b": 0.5, "": 0.4})
	}
	check("after nine windows", nil)
	tick(window, false, map[string]float64{"a": 0.9, "": 0.9})
	tick(3*window, true, map[string]float64{"a": 0.9, "": 0.9})
	totals["a"] = 0.1
	tick(window, true, map[string]float64{"a": 0, "": 0.4})
	check("nor by one with the probe, a late one, or a counter that went back", nil)
	tick(window, true, map[string]float64{"a": 0.2, "": 0.4})
	check("after ten", map[string]float64{"a": 0.3})
	focus = []string{"a", "b"}
	check("nothing is told of another in focus", map[string]float64{"a": 0.3, "": 0.6})
	focus = []string{"b"}
	tick(window, true, map[string]float64{"a": 0.2})
	focus = []string{"a"}
	check("it was out of focus", map[string]float64{"": 0.6})

	begin()
	for range 20 {
		tick(window, true, map[string]float64{"a": 0, "": 0.4})
	}
	check("it never waited", map[string]float64{"": 0.6})

	begin()
	for i := range 1000 {
		tick(window, true, map[string]float64{"a": 0.1 + 0.02*float64(i%2*2-1)})
	}
	check("it varies", map[string]float64{"a": 0.1 + 4*0.02*math.Sqrt(5)})
	if got := a.least(focus, window, 4)["a"]; math.Abs(got-0.1-16*0.02*math.Sqrt(5)) > 0.02 {
		t.Errorf("in doubt: %v", got)
	}
	if got := a.least(focus, window, 8); len(got) > 0 {
		t.Errorf("nothing can be told from what is usual, and %v is asked for", got)
	}
}
