package guard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

const (
	// relook is the time between two listings of the groups.
	relook = 5 * watch.Second
	// relookNew is the least time between two looks for a suspect that is new.
	relookNew = 200 * watch.Millisecond
	// rest is for how long the probe stays armed after it has found something, or it was
	// last needed for a remedy; restSoon after a group was last seen to wait, which may
	// be chance.
	rest, restSoon = 30 * watch.Second, 5 * watch.Second
	// beforeTrial is how long before a relaxation it is armed again, to tell the better
	// from the worse.
	beforeTrial = 5 * time.Second
	// mostLate is how late a window may come, two of its lengths at least, for something new
	// to be done about it.
	mostLate = 200 * watch.Millisecond
	// maxSilent is after how many windows in a row without any sample a run ends.
	maxSilent = 30
	// repeat is the time after which an error that repeats is reported again.
	repeat = time.Minute
	// maxSaid bounds the errors and findings that are remembered as reported.
	maxSaid = 1000
)

// Run guards until the context ends, which is no error, or the recording does. Then,
// and after an error or a panic, everything is restored; what could not be is an
// error.
func (r *Runner) Run(ctx context.Context) (err error) {
	defer func() {
		err = errors.Join(err, r.release(context.WithoutCancel(ctx)))
	}()
	r.began = r.now()
	if r.o.Replay != nil {
		if !r.o.Began.IsZero() {
			r.began = r.o.Began
		}
		return r.replay(ctx)
	}
	return r.live(ctx)
}

// release restores everything and detaches the probe.
func (r *Runner) release(ctx context.Context) error {
	defer r.deliver()
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	events := r.loop.Release(ctx)
	if r.loop.Mode() != control.Preview { // in which nothing was active
		r.acted(events)
	}
	if d, ok := r.o.Actuator.(divider); ok {
		if _, err := d.Monitor(nil, nil); err != nil && !errors.Is(err, kernel.ErrNotSupported) {
			errs = append(errs, err)
		}
	}
	if left := r.loop.PendingReverts(); len(left) > 0 {
		errs = append(errs, fmt.Errorf("guard: could not revert %v; 'berth guard off' tries again", left))
	}
	if r.armed {
		r.disarmed()
		errs = append(errs, r.o.Sensors.Arm(false))
	}
	return errors.Join(errs...)
}

// live reads the host until the context ends.
func (r *Runner) live(ctx context.Context) error {
	silent := 0
	var failed error
	var samples []watch.Sample
	timer := time.NewTimer(0)
	defer timer.Stop()
	heard, end := r.hear(ctx)
	defer end()
	for due := watch.Time(0); ; {
		alarm := false
		select {
		case <-ctx.Done():
			return nil
		case <-r.o.Uncovered:
			r.reapply(ctx)
			continue
		case told := <-heard:
			if alarm = r.heard(told); !alarm {
				continue
			}
		case <-timer.C:
		}
		now := watch.Time(r.now().Sub(r.began))
		full := now >= r.slow.due
		var step watch.Time
		switch {
		case alarm:
			due, step = now, r.woken(now)
		case !full && !r.armed:
			step = r.glance(now)
		default:
			samples, failed = r.read(now, full, samples[:0])
			silent++
			if len(samples) > 0 {
				silent = 0
			}
			step = r.window(ctx, samples, now, full, failed)
		}
		r.deliver()
		if silent >= maxSilent {
			return fmt.Errorf("guard: nothing could be read for %d windows: %w", silent, failed)
		}
		// Windows that are overdue are left out.
		due = min(due+step, r.slow.due)
		if after := watch.Time(r.now().Sub(r.began)); due <= after {
			due = after - after%step + step
		}
		timer.Reset(time.Duration(due) - r.now().Sub(r.began))
	}
}

// reapply has the loop apply again what is active.
func (r *Runner) reapply(ctx context.Context) {
	defer r.deliver()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acted(r.loop.Reapply(ctx))
}

// window judges the samples that were read, and returns the time to the next reading.
func (r *Runner) window(ctx context.Context, samples []watch.Sample, now watch.Time, full bool, failed error) watch.Time {
	r.mu.Lock()
	defer r.mu.Unlock() // also after a panic: everything has to be restored
	r.failed(failed)
	if len(samples) > 0 {
		r.take(ctx, samples, now, full)
	}
	return r.step()
}

// step is the time to the next reading.
func (r *Runner) step() watch.Time {
	_, glances := r.o.Sensors.(glancer)
	switch {
	case r.armed:
		return watch.Time(FastWindow)
	case glances && r.o.Probe == ProbeEager && r.fast != nil && len(r.focus) > 0 && r.o.Window > LeastWindow:
		return watch.Time(GlanceWindow)
	}
	return watch.Time(r.o.Window)
}

// replay judges a recording, whose times are the clock.
func (r *Runner) replay(ctx context.Context) error {
	for samples, err := range r.o.Replay {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		if len(samples) == 0 {
			continue
		}
		at := samples[0].Time
		r.now = func() time.Time { return r.began.Add(time.Duration(at)) }
		r.near = len(samples)
		// Ticks are never exactly on time.
		r.window(ctx, samples, at, at >= r.slow.due-watch.Time(r.o.Window)/10, nil)
		r.deliver()
	}
	return nil
}

// take judges the samples of now, and has the loop act.
func (r *Runner) take(ctx context.Context, samples []watch.Sample, now watch.Time, full bool) {
	all, near := samples[:r.near], samples[r.near:]
	if cpus := online(samples); !cpus.IsEmpty() {
		r.cpus = cpus
	}
	if full && (now-r.known.looked >= relook || r.known.looked == 0) {
		r.look(ctx, all, now)
	}
	r.slow.detector.Observe(all)
	if r.fast != nil {
		r.fast.detector.Observe(near)
		r.recent.observe(near)
	}
	if full {
		r.status.Windows++
		if s, ok := r.o.Sensors.(interface{ LeftOut() int }); ok {
			r.status.LeftOut = s.LeftOut()
		}
		r.readOutsiders(now)
		r.readInterrupts(now)
		r.judge(ctx, r.slow, now)
		if r.waker() != nil {
			r.alarms.learn(all, r.focus, r.o.Window, !r.armed)
		}
		r.attend(now)
		r.listen(now)
	}
	if r.armed && now > r.armedAt {
		r.judge(ctx, r.fast, now)
		if len(r.fast.findings) > 0 || r.loop.Unsettled(0) {
			r.needed = now + rest
			if r.alarmed {
				r.alarmed = false
				r.sentry.judged(true)
			}
		}
		r.status.Probe.Cost = r.o.Sensors.ProbeCost()
		if r.noProbe == nil {
			r.noProbe = r.o.Sensors.Probe()
		}
	}
	if r.fast != nil && r.noProbe != nil { // it is gone for good: the slow windows go on
		r.failed(fmt.Errorf("run-queue probe: %w", r.noProbe))
		r.disarmed()
		r.fast = nil
	}
	r.status.Findings = r.slow.findings
	if r.fast != nil {
		r.status.Findings = slices.Concat(r.slow.findings, r.fast.findings)
	}
}

// judge ends a window of a pace.
func (r *Runner) judge(ctx context.Context, p *pace, now watch.Time) {
	late := p.due > 0 && now > p.due+max(2*p.window, mostLate)
	p.due = now - now%p.window + p.window
	if r.o.Replay != nil {
		p.due = now + p.window
	}
	found := p.detector.Judge(now)
	r.nameOutsiders(found, now)
	r.addSuspects(ctx, found, now)
	p.findings = slices.DeleteFunc(slices.Clone(found), func(f detect.Finding) bool {
		return r.closely(f.Victim, f.Resource) != (p == r.fast) && (p == r.fast || r.armed)
	})
	news := slices.DeleteFunc(slices.Clone(p.findings), func(f detect.Finding) bool {
		return !r.isNew(fmt.Sprintf("%s\x00%s\x00%v\x00%v", f.Victim, f.Suspect, f.Resource, len(f.Outsiders) > 0 || f.Interrupts != nil), r.o.Repeat)
	})
	if len(news) > 0 && r.o.Found != nil {
		r.calls = append(r.calls, func() { r.o.Found(news) })
	}
	in := control.Input{
		Symptoms: p.detector, Host: r.host(p), Near: p == r.fast, Resting: !r.armed, Closely: r.closely,
	}
	if late {
		// What a late window shows may be over: nothing new is done about it.
		r.status.Late++
	} else {
		in.Findings = r.known.mayActOn(found)
		r.allowOutsiders(in.Findings)
		for _, f := range r.slow.findings { // they explain others
			if p == r.fast && !r.closely(f.Victim, f.Resource) {
				in.Findings = append(in.Findings, f)
			}
		}
	}
	if r.loop.Mode() != control.Observe || len(r.loop.Active()) > 0 {
		in.Workloads = r.workloads(in.Findings, now, p == r.slow)
	}
	r.acted(r.loop.Step(ctx, in))
}

// addSuspects lists the groups at once if a suspect is new.
func (r *Runner) addSuspects(ctx context.Context, found []detect.Finding, now watch.Time) {
	isNew := func(f detect.Finding) bool {
		return f.Suspect != "" && f.Suspect != "/" && f.Suspect != observe.Ended && f.Suspect != observe.Others &&
			!r.known.has(f.Suspect) && !r.known.sought[f.Suspect]
	}
	if now-r.known.soughtFrom >= relook {
		clear(r.known.sought)
		r.known.soughtFrom = now
	}
	if r.o.Sensors == nil || now-r.known.looked < relookNew || !slices.ContainsFunc(found, isNew) {
		return
	}
	r.look(ctx, nil, now)
	for i := range found {
		r.known.sought[found[i].Suspect] = true // if it is not known now, it is no group to act on
	}
}

// mayActOn is findings for the loop. Those about a suspect that is no group to act on, as
// the root group, are without remedies.
func (k *inventory) mayActOn(found []detect.Finding) []detect.Finding {
	found = slices.Clone(found)
	for i := range found {
		if f := &found[i]; f.Suspect != "" && !k.has(f.Suspect) {
			f.Remedies = nil
		}
	}
	return found
}

// closely reports whether a victim's lack of a resource is judged by the short windows: of
// the CPU, of which the run-queue probe tells, if the group is in focus.
func (r *Runner) closely(victim string, resource detect.Resource) bool {
	if r.fast == nil || resource != detect.CPU && resource != detect.OwnLoad || !slices.Contains(r.focus, victim) {
		return false
	}
	s, ok := r.o.Sensors.(interface{ Probes(group string) bool })
	return !ok || s.Probes(victim)
}

// attend arms the probe while it is needed, and chooses the groups in focus.
func (r *Runner) attend(now watch.Time) {
	if r.o.Sensors == nil {
		return
	}
	r.noteWaits()
	helped := r.loop.Helped()
	waiting := r.waiting(helped)
	needy := slices.Concat(waiting, helped)
	slices.Sort(needy)
	needy = slices.Compact(needy)
	if focus := r.known.focus(needy, r.focus); r.unfocused || !slices.Equal(focus, r.focus) {
		err := r.o.Sensors.Focus(focus)
		r.focus, r.unfocused = focus, err != nil
		r.failed(err)
	}
	if r.fast == nil {
		return
	}
	if len(needy) > observe.MaxFocus {
		r.failed(fmt.Errorf("run-queue probe: more than %d groups wait for CPU or are being helped: the others are judged every %v, without it",
			observe.MaxFocus, r.o.Window))
	}
	switch {
	case r.o.Probe == ProbeAlways, r.loop.Unsettled(max(beforeTrial, 2*r.o.Window)):
		r.needed = now + rest
	case len(waiting) > 0:
		r.needed = max(r.needed, now+restSoon)
	}
	switch want := len(r.focus) > 0 && now < r.needed; {
	case want == r.armed:
	case want:
		r.arm(now)
	default:
		if err := r.o.Sensors.Arm(false); err != nil {
			r.noProbe = err
			return
		}
		r.disarmed()
		r.fast.findings = nil
	}
}

// arm arms the probe, and has the kernel look no more.
func (r *Runner) arm(now watch.Time) {
	r.hush()
	if err := r.o.Sensors.Arm(true); err != nil {
		r.noProbe = err
		return
	}
	r.armed, r.armedAt = true, now
	r.fast.due = 0
}

// armedFor is the time that the probe has been armed.
func (r *Runner) armedFor() time.Duration {
	sum := r.status.Probe.ArmedFor
	if r.armed {
		sum += r.now().Sub(r.began) - time.Duration(r.armedAt)
	}
	return sum
}

// disarmed notes that the probe is armed no more.
func (r *Runner) disarmed() {
	r.status.Probe.ArmedFor, r.armed = r.armedFor(), false
	if r.alarmed {
		r.alarmed = false
		r.sentry.judged(false)
		r.doubted()
	}
	r.sentry.keep(r.focus)
	r.sentry.rest()
}

// noteWaits records which sensitive groups wait for CPU by the last slow window.
func (r *Runner) noteWaits() {
	for _, group := range r.known.sensitive {
		m := r.known.all[group]
		m.waits <<= 1
		if s, ok := r.slow.detector.Symptom(group, detect.CPU); ok && s.Strength >= 1 {
			m.waits |= 1
		}
	}
}

// waiting are the sensitive groups that wait for CPU: by the last slow window or, where
// something is active for them, by most of the last five, as one may be chance and
// there is no hurry to see whether it still helps.
func (r *Runner) waiting(helped []string) []string {
	return slices.DeleteFunc(slices.Clone(r.known.sensitive), func(group string) bool {
		waits := r.known.all[group].waits
		if slices.Contains(helped, group) {
			return bits.OnesCount8(waits&0b11111) < 3
		}
		return waits&1 == 0
	})
}

// acted hands out events, failed an error, once the lock is free.
func (r *Runner) acted(events []control.Event) {
	if r.o.Acted == nil {
		return
	}
	for _, e := range events {
		r.calls = append(r.calls, func() { r.o.Acted(e) })
	}
}

func (r *Runner) failed(err error) {
	if err == nil || r.o.Failed == nil {
		return
	}
	if r.isNew(err.Error(), repeat) {
		r.calls = append(r.calls, func() { r.o.Failed(err) })
	}
}

// isNew reports whether something was not reported within a time, and notes that it is now.
func (r *Runner) isNew(what string, within time.Duration) bool {
	now := r.now()
	if at, ok := r.said[what]; ok && now.Sub(at) < within {
		return false
	}
	if len(r.said) >= maxSaid {
		clear(r.said)
	}
	r.said[what] = now
	return true
}

// deliver makes the calls that are due.
func (r *Runner) deliver() {
	r.calling.Lock()
	defer r.calling.Unlock()
	r.mu.Lock()
	calls := r.calls
	r.calls = nil
	r.mu.Unlock()
	for _, call := range calls {
		call()
	}
}

// online returns the CPUs that samples tell of.
func online(samples []watch.Sample) (cpus cpuset.Set) {
	for i := range samples {
		if s := &samples[i]; s.Subject.Scope == watch.Host && s.Quantity == watch.CPUTime && s.Subject.Part.Kind == watch.CPU {
			if one, err := cpuset.Of(s.Subject.Part.ID); err == nil {
				cpus = cpus.Union(one)
			}
		}
	}
	return cpus
}

// host is what a loop has to know of the host in a window of a pace.
func (r *Runner) host(p *pace) control.Host {
	h := control.Host{CPUs: r.cpus, Use: p.detector.HostUse(), Unavailable: r.known.unavailable, NoIdle: r.known.noIdle}
	if math.IsNaN(h.Use) {
		h.Use = r.slow.detector.HostUse()
	}
	return h
}
