package guard

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/watch"
)

// glanced is a model that can be glanced at.
type glanced struct{ *model }

func (g glanced) Glance(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.armed {
		panic("glanced at while the probe is armed")
	}
	g.pass(now)
	return append(to, watch.Sample{Time: now, Subject: watch.Subject{Scope: watch.Group, Name: "svc/web"}, Quantity: watch.CPUWait, Value: g.waited}), nil
}

// With the sentry, from the neighbour's first run to the remedy in force it takes less than
// 200 ms, wherever in the windows it starts, and once it is over the probe rests.
func TestWithin200ms(t *testing.T) {
	t.Parallel()
	for phase := range 10 {
		synctest.Test(t, func(t *testing.T) {
			m := newModel()
			m.hogs = 30*time.Second + time.Duration(phase)*103*time.Millisecond
			m.ends = 40 * time.Second
			o := m.options(control.Enforce)
			o.Sensors, o.Probe = glanced{m}, ProbeEager
			var armed bool
			go func() {
				time.Sleep(29 * time.Second)
				_, armed = m.state()
			}()
			events, errs := runFor(t, o, 60*time.Second)
			if len(errs) > 0 || len(m.setAt) != 1 || len(events) == 0 {
				t.Fatalf("errors %v, events %v, idle set at %v", errs, events, m.setAt)
			}
			if after := m.setAt[0] - m.hogs; after < 0 || after > 200*time.Millisecond {
				t.Errorf("hog from %v: in force after %v", m.hogs, after)
			}
			if armed {
				t.Error("the probe is armed while nobody waits")
			}
		})
	}
}

// alarmed notes when it is glanced at, and when it is read with the probe.
type alarmed struct {
	glanced
	glances, readings []watch.Time
}

func (a *alarmed) Glance(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	a.glances = append(a.glances, now)
	return a.glanced.Glance(now, to)
}

func (a *alarmed) TickNear(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	a.readings = append(a.readings, now)
	return a.glanced.TickNear(now, to)
}

// The first window of the probe counts from the glance that armed it.
func TestFirstReadingIsAtTheGlance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &alarmed{glanced: glanced{newModel()}}
		m.hogs = 30*time.Second + 103*time.Millisecond
		o := m.options(control.Observe)
		o.Sensors, o.Probe = m, ProbeEager
		if _, errs := runFor(t, o, 31*time.Second); len(errs) > 0 {
			t.Fatal(errs)
		}
		last := slices.Max(m.glances)
		first := slices.IndexFunc(m.readings, func(at watch.Time) bool { return at >= last })
		if len(m.glances) < 100 || first < 0 || m.readings[first] != last {
			t.Errorf("the last of %d glances was at %v, the readings with the probe at %v", len(m.glances), last, m.readings)
		}
	})
}

// A sentry that alarms for nothing takes more and more to do it again.
func TestSentryLearns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newModel()
		m.uneven = true // web waits for itself in one second of eight
		o := m.options(control.Enforce)
		o.Sensors = glanced{m}
		var r *Runner
		o.Acted = func(e control.Event) { t.Errorf("%v", e) }
		r, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if err := r.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if of := r.Status().Probe.ArmedFor; of > 7*time.Minute {
			t.Errorf("armed for %v of 10 min", of)
		}
	})
}

// waits plays the waiting of a group by the glance: a base that varies by half a second's
// noise, and more from one glance on.
func waits(r *rand.Rand, base, sd, more float64, from, glances int) (alarms []int) {
	s := newSentry()
	memory := math.Exp(-GlanceWindow.Seconds() / 0.25)
	z, total := r.NormFloat64(), 0.0
	for i := range glances {
		z = memory*z + math.Sqrt(1-memory*memory)*r.NormFloat64()
		rate := base * math.Exp(sd*z-sd*sd/2)
		if i >= from {
			rate += more
		}
		total += rate * GlanceWindow.Seconds()
		at := watch.Time(i+1) * watch.Time(GlanceWindow)
		if s.glance([]watch.Sample{{Time: at, Subject: watch.Subject{Scope: watch.Group, Name: "a"}, Quantity: watch.CPUWait, Value: total}}) {
			alarms = append(alarms, i)
			s.judged(i >= from)
		}
	}
	return alarms
}

// The sentry sees a neighbour within a few glances, and does not arm the probe for nothing all the
// time; how often depends on how much the waiting varies. Each time costs 5 s of the probe.
func TestSentry(t *testing.T) {
	t.Parallel()
	const hour = 3600 * 40
	for _, c := range []struct {
		base, sd     float64
		idle, within int // alarms in an hour of nothing, glances until it is seen in 95 of 100
	}{{0.001, 0.5, 0, 1}, {0.05, 0.5, 70, 3}, {0.3, 0.3, 100, 5}, {0.3, 0.6, 240, 12}} {
		idle := len(waits(rand.New(rand.NewPCG(1, 2)), c.base, c.sd, 0, hour, hour))
		if idle > c.idle {
			t.Errorf("base %v, noise %v: %d alarms in an hour of nothing", c.base, c.sd, idle)
		}
		var took []int
		for seed := range 100 {
			alarms := waits(rand.New(rand.NewPCG(uint64(seed), 3)), c.base, c.sd, 1, 400, 800)
			i := slices.IndexFunc(alarms, func(at int) bool { return at >= 400 })
			if i < 0 {
				t.Errorf("base %v, noise %v: no alarm", c.base, c.sd)
				continue
			}
			took = append(took, alarms[i]-400+1)
		}
		slices.Sort(took)
		t.Logf("base %v, noise %v: %d alarms in an hour; seen after %d glances, at most %d", c.base, c.sd, idle, took[50], took[95])
		if took[95] > c.within {
			t.Errorf("base %v, noise %v: seen after %d glances in 95 of 100", c.base, c.sd, took[95])
		}
	}
}

// What was waited over a longer time, by a counter that went back, or by one that is new, is no
// surprise; nor is anything until it is known what is usual.
func TestSentryKnowsLittle(t *testing.T) {
	t.Parallel()
	at := func(ms, total float64, group string) []watch.Sample {
		return []watch.Sample{{Time: watch.Time(ms * 1e6), Subject: watch.Subject{Scope: watch.Group, Name: group}, Quantity: watch.CPUWait, Value: total}}
	}
	s := newSentry()
	for n := range 100 {
		i := float64(n)
		if s.glance(at(25*i, i*i, "a")) {
			t.Fatalf("an alarm at glance %v, before it is known what is usual", i)
		}
	}
	s = newSentry()
	for n := range 200 {
		i := float64(n)
		s.glance(at(25*i, 0, "a"))
	}
	s.glance(at(5000, 0.001, "a"))
	usual := s.groups["a"].mean
	if s.glance(at(5025, 0, "a")); s.groups["a"].mean != usual {
		t.Errorf("usually %v, and %v since a counter went back", usual, s.groups["a"].mean)
	}
	s.doubt = mostDoubt
	if s.glance(at(5050, 10, "a")) || !s.glance(at(5075, 20, "a")) {
		t.Error("after alarms for nothing it does not take two glances")
	}
	s.doubt = 1
	pressure := at(5100, 30, "a")
	if pressure[0].Quantity = watch.CPUSome; s.glance(pressure) {
		t.Error("pressure, where the run delay is told: an alarm")
	}
	for name, samples := range map[string][]watch.Sample{
		"a long time": at(60000, 10, "a"), "a new group": at(5025, 10, "b"), "a counter that went back": at(60025, 5, "a"),
	} {
		if s.glance(samples) {
			t.Errorf("%s: an alarm", name)
		}
	}
	s.keep([]string{"b"})
	if len(s.groups) > 1 || s.groups["a"] != nil {
		t.Errorf("remembers %v, want b at most", s.groups)
	}
}
