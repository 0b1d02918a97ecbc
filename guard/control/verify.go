package control

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/place"
)

// settled reports whether the window lies, but for a quarter, after a change and
// the time that it takes to act.
func (l *Loop) settled(changed time.Time, r detect.Remedy) bool {
	return !l.now.Add(-l.cfg.Window).Before(changed.Add(delay(r) - l.cfg.Window/4))
}

// eased reports whether a window is better than before the step: by the whole
// symptom, or by what others impose if that was a symptom by itself. A queue that
// grew before the step takes its time to go, and is the victim's own by then.
func (s *step) eased(now *detect.Symptom) bool {
	if now.Strength < 1 || now.Strength <= better*s.strength {
		return true
	}
	v := now.Imposed
	return v != nil && *v < 1 && s.imposed >= 1 && *v <= better*s.imposed
}

// bad reports whether a window is worse than before the trial, by the whole
// symptom or by what others impose.
func (t *trial) bad(now *detect.Symptom) bool {
	if now.Strength < 1 {
		return false
	}
	v := now.Imposed
	return now.Strength >= worse*t.strength || v != nil && *v >= max(1, worse*t.imposed)
}

// verify decides, as soon as most windows agree, whether the last step helps.
func (l *Loop) verify(ctx context.Context, at *ladder, s detect.Symptom) {
	last := &at.steps[len(at.steps)-1]
	if !l.settled(last.at, last.action.Remedy) {
		return
	}
	at.seen.windows++
	at.seen.strengths = append(at.seen.strengths, s.Strength)
	if last.eased(&s) {
		at.seen.hits++
	}
	most := l.cfg.Verify/2 + 1
	effect := &Effect{Before: last.strength, After: median(at.seen.strengths), Better: at.seen.hits, Windows: at.seen.windows}
	v := verdict{suspect: last.action.Suspect, remedy: last.action.Remedy, why: noHelp}
	switch {
	case at.seen.hits >= most:
		last.proven = l.now
		l.emit(at, Kept, last, Event{Effect: effect})
		v.until = l.now.Add(l.cfg.MaxHold)
		at.helped = append(l.current(at.helped, v), v)
		at.hold(l.now, at.wait)
	case at.seen.windows-at.seen.hits > l.cfg.Verify-most:
		v.until = l.now.Add(l.cfg.CoolDown)
		at.failed = append(l.current(at.failed, v), v)
		l.pop(ctx, at, "it did not help", effect)
		at.hold(l.now, at.wait)
	}
}

const (
	// greedy is the least use, in CPUs, of a group that takes what it can get: below
	// that it is no suspect either (CPI², section 4.2).
	greedy = 0.25
	// greedyWait is for how many times the wait a trial is put off.
	greedyWait = 10
)

// putOff leaves a relaxation for later while a best-effort group that yields the CPU
// uses at least half of what it did: if the victim suffered from it, a trial would have
// it suffer again. It was to blame as far as is known; so the wait is longer, not endless.
func (l *Loop) putOff(at *ladder) {
	if len(at.steps) == 0 || at.resource != detect.CPU || l.cfg.Mode != Enforce {
		return
	}
	last := &at.steps[len(at.steps)-1]
	w := l.byGroup[last.action.Group]
	if last.action.Remedy == detect.Weight && w != nil && w.Class == place.BE && w.Use >= max(greedy, last.use/2) {
		at.putOff = true
		at.relaxAt = later(at.relaxAt, last.proven.Add(min(greedyWait*at.wait, l.cfg.MaxHold)))
	} else if at.putOff {
		at.putOff = false
		at.relaxAt = later(last.proven.Add(at.wait), l.now.Add(l.cfg.Hold))
	}
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// relax takes the last step back on trial, or makes it weaker, if the victim has
// been well for long enough.
func (l *Loop) relax(ctx context.Context, at *ladder) {
	if len(at.steps) == 0 || l.now.Before(at.relaxAt) {
		return
	}
	if l.cfg.Mode == Preview {
		if l.now.Sub(at.found) >= at.wait {
			l.forget(ctx, at)
		}
		return
	}
	last := at.steps[len(at.steps)-1]
	calm := l.now.Sub(at.unwell) >= l.cfg.Next && l.now.Sub(at.found) >= lookBack*l.cfg.Window
	if !calm && l.now.Sub(at.since) < l.cfg.MaxHold {
		return
	}
	if l.busy(at, last.action.Group) || l.real.owesOf(last.action.Group) || !l.bucket.take(l.now) {
		return
	}
	to := l.weaker(last.action, last.before)
	changes, err := l.put(ctx, at, last.action, to)
	at.steps = at.steps[:len(at.steps)-1]
	if to != nil && !same(to, last.before) {
		weaker := last
		weaker.action = *to
		at.steps = append(at.steps, weaker)
	}
	at.relaxed, at.lasted = l.now, l.now.Sub(last.proven)
	l.emit(at, OnTrial, &last, Event{Changes: changes, Text: toWhat(to)})
	if err != nil {
		l.report(at, &last, err)
		at.hold(l.now, l.cfg.Next)
		return
	}
	at.trial = &trial{step: last, to: to, at: l.cfg.Now(), strength: at.strengths.median(), imposed: at.imposed.median()}
	at.enter(Relaxing, l.now)
}

func toWhat(a *Action) string {
	if a == nil {
		return "to what it was"
	}
	return "to " + a.amount()
}

// forget drops what would be in force, in mode Preview.
func (l *Loop) forget(ctx context.Context, at *ladder) {
	for i := len(at.steps) - 1; i >= 0; i-- {
		s := at.steps[i]
		_, _ = l.book().unset(ctx, at.owner(), s.action) // virtual: there is nothing to fail
		l.emit(at, Relaxed, &s, Event{Text: "no finding any more"})
	}
	at.steps = nil
	at.hold(l.now, 0)
}

// judgeTrial ends a trial: badly as soon as most windows are bad.
func (l *Loop) judgeTrial(ctx context.Context, at *ladder, s detect.Symptom) {
	t := at.trial
	if !l.settled(t.at, t.step.action.Remedy) {
		return
	}
	at.seen.windows++
	at.seen.strengths = append(at.seen.strengths, s.Strength)
	if !t.bad(&s) {
		at.seen.hits++
	}
	most := lookBack/2 + 1
	effect := &Effect{Before: t.strength, After: median(at.seen.strengths), Better: at.seen.hits, Windows: at.seen.windows}
	switch {
	case at.seen.hits >= most:
		l.emit(at, Relaxed, &t.step, Event{Effect: effect, Text: toWhat(t.to)})
		at.hold(l.now, l.cfg.Next)
	case at.seen.windows-at.seen.hits >= most:
		l.restore(ctx, at, effect)
	}
}

// restore puts back what a trial took away, which has to show again that it helps.
func (l *Loop) restore(ctx context.Context, at *ladder, effect *Effect) {
	s := at.trial.step
	changes, err := l.book().set(ctx, at.owner(), s.action)
	at.wait = min(2*at.wait, l.cfg.MaxHold)
	if err != nil {
		l.report(at, &s, err)
		at.hold(l.now, at.wait)
		return
	}
	if n := len(at.steps); n > 0 && at.trial.to != nil && same(&at.steps[n-1].action, at.trial.to) {
		at.steps = at.steps[:n-1]
	}
	s.at, s.strength, s.imposed = l.cfg.Now(), effect.After, at.imposed.last()
	at.steps = append(at.steps, s)
	l.emit(at, Restored, &s, Event{Changes: changes, Effect: effect, Text: fmt.Sprintf("next trial in %v", at.wait)})
	at.trial = nil
	at.enter(Verifying, l.now)
}
