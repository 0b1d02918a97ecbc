package guard

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/watch"
)

// The kernel is asked where the slow windows are longer than those in which it looks, and not while nothing has been
// learnt: that it can be asked is tried, and no more.
func TestKernelIsAskedForLongWindows(t *testing.T) {
	t.Parallel()
	for window, asks := range map[time.Duration]bool{observe.WakeWindow: false, observe.WakeWindow + time.Millisecond: true} {
		p := newPressed()
		o := p.options(control.Observe)
		o.Sensors, o.Window = p, window
		r, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		if (r.waker() != nil) != asks || (len(p.asks) > 0) != asks {
			t.Errorf("windows of %v: asked for %v, want it asked: %v", window, p.asks, asks)
		}
		if len(r.alarms.asked) > 0 || len(p.open) > 0 {
			t.Errorf("windows of %v: it looks for %v after the trial", window, p.open)
		}
	}
}

// After a refusal the kernel is not asked in every window.
func TestRefusalIsNotRepeated(t *testing.T) {
	t.Parallel()
	p := newPressed()
	o := p.options(control.Observe)
	o.Sensors = p
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r.focus = []string{"a"}
	r.alarms.usual["a"] = &pressure{counter{last: 1}, usual{n: enoughPressures}}
	p.no = errors.New("no memory")
	before := len(p.asks)
	for i, tt := range []struct {
		at   watch.Time
		asks int
	}{{20 * watch.Second, 1}, {21 * watch.Second, 1}, {20*watch.Second + relook, 2}} {
		r.listen(tt.at)
		if n := len(p.asks) - before; n != tt.asks {
			t.Errorf("listened %d times: asked %d times, want %d", i+1, n, tt.asks)
		}
	}
}

// An alarm has the probe armed for a while, and for no shorter than it was to be.
func TestAlarmShortensNothing(t *testing.T) {
	t.Parallel()
	const now = 10 * watch.Second
	for before, want := range map[watch.Time]watch.Time{0: now + restSoon, now + 2*restSoon: now + 2*restSoon} {
		p := newPressed()
		o := p.options(control.Observe)
		o.Sensors = p
		r, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		r.needed = before
		if r.woken(now); r.needed != want || !r.armed {
			t.Errorf("needed until %v: until %v after an alarm, want %v; armed %v", before, r.needed, want, r.armed)
		}
	}
}

// Why the kernel is not asked any more is told.
func TestWhyNoAlarmIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPressed()
		o := p.options(control.Observe)
		o.Sensors = broken{p}
		r, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := r.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if s := r.Status(); !strings.Contains(s.Probe.NoAlarm, "bad file descriptor") {
			t.Errorf("probe %+v", s.Probe)
		}
	})
}

// The first short window after an alarm counts from the alarm on.
func TestFirstWindowAfterAnAlarm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPressed()
		p.hogs = time.Nanosecond
		o := p.options(control.Observe)
		o.Sensors = p
		r, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Focus([]string{p.web}); err != nil {
			t.Fatal(err)
		}
		r.fast.detector.Track(detect.Workload{Group: p.web, Sensitive: true})
		time.Sleep(10 * time.Second)
		if r.woken(10 * watch.Second); r.recent[p.web] == nil {
			t.Error("what the groups use is not counted from the alarm on")
		}
		time.Sleep(40 * time.Millisecond)
		near, err := p.TickNear(10*watch.Second+40*watch.Millisecond, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.fast.detector.Observe(near)
		r.fast.detector.Judge(10*watch.Second + 40*watch.Millisecond)
		if s, known := r.fast.detector.Symptom(p.web, detect.CPU); !known || s.Strength < 1 {
			t.Errorf("%+v, known %v: want it to wait", s, known)
		}
	})
}

// Only what the kernel was asked for is an alarm.
func TestAlarmOfWhatWasAsked(t *testing.T) {
	t.Parallel()
	r, err := New(newModel().options(control.Observe))
	if err != nil {
		t.Fatal(err)
	}
	r.alarms.asked = map[string]float64{"a": 0.5}
	for group, alarm := range map[string]bool{"a": true, "b": false} {
		if got := r.heard(told{group, false}); got != alarm {
			t.Errorf("%s: an alarm %v, want %v", group, got, alarm)
		}
	}
}
