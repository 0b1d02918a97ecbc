package guard

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"berth.dev/berth/guard/observe"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

const (
	// pressures is over how many slow windows it is learnt which pressure is usual, enoughPressures
	// how many that needs.
	pressures, enoughPressures = 60, 10
	// leastPressed is by which part of the time more than usual a group has to wait at least, and
	// mostPressed the part from which on nothing could be told from what is usual.
	leastPressed, mostPressed = 0.1, 0.9
	// sure is how many standard deviations it has to be.
	sure = 4
	// moved is by what factor a threshold has to change for the kernel to be told.
	moved = 1.25
	// forget is the time after which half of the doubt is forgotten.
	forget = 300 * watch.Second
)

// waker are Sensors that have the kernel say when a group begins to wait for a CPU.
type waker interface {
	// WakeAt has Wake return, once, when a group waits for more than a part of the time; the
	// group "" is the host. It returns those that the kernel was asked for: a group that is gone
	// is not, which is no error.
	WakeAt(least map[string]float64) (asked map[string]float64, err error)
	// Wake waits for that, or for the end of the context, after which nothing is asked for. It
	// also returns if a group is gone.
	Wake(ctx context.Context) (group string, gone bool, err error)
}

// alarms is what the kernel is asked to tell while the probe rests: that a group is under more
// pressure (PSI) than it usually is.
type alarms struct {
	usual map[string]*pressure // of groups in focus and, as "", of the host
	asked map[string]float64   // what the kernel looks for: nothing while the probe is armed
	from  watch.Time           // before then it is not asked
	doubt watch.Time           // since when there is as much doubt
	none  error                // why it cannot be asked
}

// told is what the kernel has told: that a group is under pressure, or gone.
type told struct {
	group string
	gone  bool
}

// pressure is that of one group.
type pressure struct {
	counter
	usual // part of the time
}

// learn takes in the pressure that a slow window has read of the groups in focus and of the host.
// Only what is read while the probe rests is usual.
func (a *alarms) learn(samples []watch.Sample, focus []string, window time.Duration, resting bool) {
	maps.DeleteFunc(a.usual, func(group string, _ *pressure) bool { return group != "" && !slices.Contains(focus, group) })
	for i := range samples {
		x := &samples[i]
		group := x.Subject.Name
		if x.Quantity != watch.CPUSome || x.Subject.Scope != watch.Host && (x.Subject.Scope != watch.Group || !slices.Contains(focus, group)) {
			continue
		}
		p := a.usual[group]
		if p == nil {
			p = &pressure{}
			a.usual[group] = p
		}
		if rate, ok := p.rate(x.Time, x.Value, 2*window); ok && resting {
			p.learn(rate, enoughPressures, pressures)
		}
	}
}

// least is from which part of the time on the kernel is to tell, by group. A group that has never
// waited may be one whose threads are in another tree of groups: the host stands for it.
func (a *alarms) least(focus []string, window time.Duration, doubt float64) map[string]float64 {
	least := map[string]float64{}
	for _, group := range focus {
		if p := a.usual[group]; p == nil || p.last == 0 {
			group = ""
		}
		p := a.usual[group]
		if p == nil || p.n < enoughPressures {
			continue
		}
		// What a slow window tells varies less than the shorter ones of the kernel.
		deviation := math.Sqrt(p.variance * window.Seconds() / observe.WakeWindow.Seconds())
		at := p.mean + doubt*max(leastPressed, p.mean/2, sure*deviation)
		if have, ok := a.asked[group]; ok && at < have*moved && have < at*moved {
			at = have
		}
		if at <= mostPressed {
			least[group] = at
		}
	}
	return least
}

// waker returns the sensors by which the kernel is asked; nil if it is not to be.
func (r *Runner) waker() waker {
	if w, ok := r.o.Sensors.(waker); ok && r.fast != nil && (r.o.Probe == "" || r.o.Probe == ProbeNeeded) && r.o.Window > observe.WakeWindow {
		return w
	}
	return nil
}

// listen has the kernel asked, while the probe rests, for what is unusual by now.
func (r *Runner) listen(now watch.Time) {
	a := &r.alarms
	w := r.waker()
	if w == nil || a.none != nil || r.armed || now < a.from {
		return
	}
	if r.sentry.doubt > 1 && now-a.doubt >= forget {
		r.sentry.doubt, a.doubt = max(1, r.sentry.doubt/2), now
	}
	least := a.least(r.focus, r.o.Window, r.sentry.doubt)
	if maps.Equal(least, a.asked) {
		return
	}
	var err error
	if a.asked, err = w.WakeAt(least); err == nil { // a group that is gone is asked for again, as it may come back
		return
	}
	if a.from = now + relook; len(a.asked) == 0 && errors.Is(err, kernel.ErrNotSupported) {
		a.none = err
		return
	}
	r.failed(err)
}

// hush has the kernel look no more.
func (r *Runner) hush() {
	if w := r.waker(); w != nil && len(r.alarms.asked) > 0 {
		var err error
		r.alarms.asked, err = w.WakeAt(nil)
		r.failed(err)
	}
}

// canAsk notes whether the kernel can be asked: that the host waits all the time, which is not
// listened to, is to show it.
func (r *Runner) canAsk() {
	if w := r.waker(); w != nil {
		r.alarms.asked, r.alarms.none = w.WakeAt(map[string]float64{"": 1})
		r.hush()
	}
}

// doubted has the kernel not asked for a while, as an alarm was for nothing: twice as long each time.
func (r *Runner) doubted() {
	now := watch.Time(r.now().Sub(r.began))
	r.alarms.doubt, r.alarms.from = now, now+watch.Time(r.sentry.doubt)*restSoon
}

// hear passes on what the kernel tells until the context ends; end waits for that.
func (r *Runner) hear(ctx context.Context) (heard <-chan told, end func()) {
	w := r.waker()
	if w == nil || r.alarms.none != nil {
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	pass, ended := make(chan told), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			group, gone, err := w.Wake(ctx)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				r.mu.Lock()
				r.alarms.asked, r.alarms.none = nil, err
				r.failed(err)
				r.mu.Unlock()
				cancel()
				_, _, _ = w.Wake(ctx) // it forgets what it was asked for
				return
			}
			select {
			case pass <- told{group, gone}:
			case <-ctx.Done(): // Wake still has to forget what it was asked for
			}
		}
	}()
	return pass, func() {
		cancel()
		<-ended
	}
}

// heard reports whether what the kernel has told is an alarm.
func (r *Runner) heard(t told) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, asked := r.alarms.asked[t.group]
	if t.gone {
		delete(r.alarms.asked, t.group)
	}
	return asked && !t.gone
}

// woken arms the probe at an alarm of the kernel's, and returns the time to the next reading.
func (r *Runner) woken(now watch.Time) watch.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.alarm(now)
	return r.step()
}

// alarm arms the probe for a while, as a group seems to begin to wait.
func (r *Runner) alarm(now watch.Time) {
	r.needed = max(r.needed, now+restSoon)
	if r.arm(now); r.armed {
		r.alarmed = true
		near, err := r.o.Sensors.TickNear(now, r.glanced[:0]) // what the first window counts from
		r.glanced = near
		r.failed(err)
		r.fast.detector.Observe(near)
		r.recent.observe(near)
	}
}
