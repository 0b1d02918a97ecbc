package control

import (
	"context"
	"fmt"
	"math"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/evidence"
)

// settled reports whether the window lies, but for a quarter, after a change and
// the time that it takes to act.
func (l *Loop) settled(changed time.Time, r *Remedy) bool {
	return !l.now.Add(-l.window).Before(changed.Add(r.Delay - l.window/4))
}

// better reports whether a window is better than before the step: the victim is well,
// or waits less by a quarter of what it waited for the suspect; where the run delay is
// not known, the whole symptom is weaker. What others impose counts if that was a symptom
// by itself: a queue that grew before the step takes its time to go, and is the victim's
// own by then. Cured says that it is better whatever the run delay is.
func (l *Loop) better(s *step, now *detect.Symptom, d *delayed) (better, cured bool) {
	v := now.Imposed
	cured = now.Strength < 1 && s.strength >= 1 || v != nil && *v < 1 && s.imposed >= 1 && *v <= weaker*s.imposed
	if s.delay.total == 0 {
		return cured || now.Strength <= weaker*s.strength, cured
	}
	return cured || d.less(&s.delay), cured
}

// bad reports whether a window is worse than before the trial: by the suspect's part
// of the run delay, if that is known, else by the whole symptom or by what others impose.
func (l *Loop) bad(at *escalation, now *detect.Symptom) bool {
	t := at.trial
	if now.Strength < 1 {
		return false
	}
	if d, _, known := l.delayNow(at, &t.step, 1); known && t.delay.total > 0 {
		return d.returned(&t.delay, &t.step.delay)
	}
	v := now.Imposed
	return now.Strength >= worse*t.strength || v != nil && *v >= max(1, worse*t.imposed)
}

// verify decides whether the last step helps. Keeping takes fewer windows than taking
// back: a trial finds out a step that was kept in error.
func (l *Loop) verify(ctx context.Context, at *escalation, s detect.Symptom) {
	last := &at.steps[len(at.steps)-1]
	if !l.settled(last.at, last.remedy) {
		return
	}
	d, _, known := l.delayNow(at, last, 1)
	better, cured := l.better(last, &s, &d)
	if known || cured || last.delay.total == 0 {
		at.seen.count(s.Strength, better)
	}
	if cured {
		at.seen.cured++
	}
	if known && last.delay.total > 0 {
		at.seen.delay.add(&d, &last.delay)
	}
	said := l.judge(at, last)
	if said == open {
		return
	}
	effect := l.effect(at, last)
	switch said {
	case helps:
		last.proven = l.now
		l.emit(Kept, last, Event{Effect: effect, Text: l.remains(at, effect)})
		at.helped.add(l.now, verdict{suspect: last.action.Suspect, remedy: last.action.Remedy, until: l.now.Add(l.maxHold())})
		at.hold(l.now, at.wait)
	case fails, harms:
		if said == fails && last.remedy.Yields {
			l.probation(at, last, effect, "it has not helped; the group keeps what nobody else wants")
			return
		}
		l.blame(at, &last.action, noHelp)
		l.pop(ctx, at, "it did not help", effect)
		at.hold(l.now, at.wait)
	case unclear:
		l.probation(at, last, effect, "")
	}
}

// probation leaves a step active that has not shown that it helps, until a trial does.
func (l *Loop) probation(at *escalation, last *step, effect *Effect, why string) {
	last.undecided, last.held = true, at.seen.delay
	at.hold(l.now, at.wait)
	text := fmt.Sprintf("it stays active; next trial in %v", at.wait)
	if why != "" {
		text = why + ": " + text
	}
	l.emit(Undecided, last, Event{Effect: effect, Text: text})
}

// judgement is what the windows since a step say about it.
type judgement int

const (
	open judgement = iota // there have to be more
	helps
	fails
	harms   // it fails, and the victim is worse off
	unclear // there have been many
)

// judge says whether a step helps. With the probe: by the suspect's part of the run delay,
// which is what the step answers for. The whole has to be less, too, as others may have taken
// that up: by the estimate, for a step by which a group yields, else for certain by a standard
// error. Without the probe: by the whole. Where the run delay is not known, by how many more
// windows are better than are not.
//
// It takes as many windows as the noise demands: what is said is right in 19 of 20 cases
// however often it is looked at. Neither is said of a part that is between what is left if a
// step helps, and what is if it does not.
func (l *Loop) judge(at *escalation, s *step) judgement {
	seen, most := &at.seen, l.verifyWindows()/2+1
	least := most
	if !s.delay.probed {
		least = l.verifyWindows()
	}
	overdue := l.now.Sub(s.at) >= max(decideWithin, decideWindows*l.window)+s.remedy.Delay
	enough := seen.windows >= l.failAfter()
	y, before := &seen.delay, &s.delay
	switch {
	case 2*seen.cured-seen.windows >= most:
		return helps
	case before.total > 0 && y.windows() > 1 && before.probed:
		gain := y.gain(before)
		if !s.remedy.Yields {
			gain -= y.total.Deviation(guessedNoise, guessed) / math.Sqrt(y.since(l.window))
		}
		switch {
		case seen.windows >= least && gain >= 0 && y.fell(&y.part, before.part, weaker, l.window) >= evidence.Enough:
			return helps
		case enough && y.stayed(&y.part, before.part, half, l.window) >= evidence.Enough:
			return orHarms(y.stayed(&y.part, before.part, worse, l.window) >= evidence.Enough)
		}
	case before.total > 0 && y.windows() > 1:
		share := before.part / before.total
		switch {
		case seen.windows >= least && y.fell(&y.total, before.total, 1-quarter*share, l.window) >= evidence.Enough:
			return helps
		case enough && y.stayed(&y.total, before.total, 1-half*share, l.window) >= evidence.Enough:
			return orHarms(y.stayed(&y.total, before.total, worse, l.window) >= evidence.Enough)
		}
	case before.total == 0 && 2*seen.hits-seen.windows >= most:
		return helps
	case before.total == 0 && seen.windows-2*seen.hits >= l.failAfter():
		return orHarms(median(seen.strengths) >= worse*s.strength)
	}
	if overdue {
		return unclear
	}
	return open
}

func orHarms(worse bool) judgement {
	if worse {
		return harms
	}
	return fails
}

const (
	// failWithin is the least time for which a step has not to help to be reverted:
	// loads that come and go hide for as long what it does.
	failWithin = 1500 * time.Millisecond
	// decideWithin and decideWindows are how long a step is verified at most, the longer
	// of the two.
	decideWithin, decideWindows = 10 * time.Second, 20
	// mostTrials is in how many trials a step that costs its group CPU time has to show
	// that it helps.
	mostTrials = 3
)

// failAfter is after how many windows a step may be reverted.
func (l *Loop) failAfter() int { return max(l.verifyWindows(), int(failWithin/l.window)) }

// blame notes why an action is not tried again for some time.
func (l *Loop) blame(at *escalation, a *Action, why string) {
	at.failed.add(l.now, verdict{suspect: a.Suspect, remedy: a.Remedy, until: l.now.Add(coolDown), why: why})
}

func (k *look) count(strength float64, hit bool) {
	k.windows++
	k.strengths = append(k.strengths, strength)
	if hit {
		k.hits++
	}
}

// effect has the figures before and after a change.
func (l *Loop) effect(at *escalation, s *step) *Effect {
	e := &Effect{Before: s.strength, After: median(at.seen.strengths), Better: at.seen.hits, Windows: at.seen.windows}
	_, r, known := l.delayNow(at, s, min(max(at.seen.windows, 1), mostWindows))
	if y := &at.seen.delay; known && y.windows() > 0 {
		e.RunDelay = &DelayEffect{Before: s.delay.total, After: y.level(), SuspectBefore: s.delay.part, SuspectAfter: y.partLevel()}
		if r.Outside > 0 {
			e.RunDelay.Outside = r.Outside
		}
	}
	return e
}

// remains says what a step that helped has left.
func (l *Loop) remains(at *escalation, e *Effect) string {
	if at.strengths.median() < 1 || e.RunDelay == nil || e.RunDelay.After >= e.RunDelay.Before {
		return ""
	}
	text := fmt.Sprintf("it removed %.0f %% of the run delay", 100*(1-e.RunDelay.After/e.RunDelay.Before))
	if e.RunDelay.Outside >= mostOutside {
		return text + "; most of the rest is due to processes in no group: start them in a group of their own"
	}
	return text
}

const (
	// greedy is the least use, in CPUs, of a group that takes what it can get: below
	// that it is no suspect either (CPI², section 4.2).
	greedy = 0.25
	// greedyWait is for how many times the wait a trial is put off.
	greedyWait = 10
)

// deferTrial leaves a relaxation for later while a best-effort group that yields the CPU
// is still saturating (it uses at least half of its former CPU time): if it was the
// antagonist, a trial makes the victim suffer again. That is not certain, so the trial comes
// later, but it comes.
func (l *Loop) deferTrial(at *escalation) {
	if len(at.steps) == 0 || at.resource != detect.CPU || l.cfg.Mode != Enforce {
		return
	}
	last := &at.steps[len(at.steps)-1]
	w := l.byGroup[last.action.Group]
	if last.remedy.Yields && w != nil && w.Class.Traits().Squeezed && w.Use >= max(greedy, last.use/2) {
		at.deferred = true
		at.relaxAt = later(at.relaxAt, last.proven.Add(min(greedyWait*at.wait, l.maxHold())))
	} else if at.deferred {
		at.deferred = false
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
func (l *Loop) relax(ctx context.Context, at *escalation) {
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
	calm := l.now.Sub(at.unwell) >= next && l.now.Sub(at.found) >= time.Duration(l.span())*l.window
	if !calm && !last.undecided && l.now.Sub(at.since) < l.maxHold() {
		return
	}
	if l.busy(at, last.action.Group) || l.overrides.pendingAt(last.action.Group) || !l.bucket.take(l.now) {
		return
	}
	to := l.weaker(&last)
	changes, err := l.put(ctx, at, last.action, to)
	at.steps = at.steps[:len(at.steps)-1]
	if to != nil && !same(to, last.before) {
		weaker := last
		weaker.action = *to
		at.steps = append(at.steps, weaker)
	}
	at.relaxed, at.lasted = l.now, l.now.Sub(last.proven)
	if err != nil {
		l.report(&last, err)
		at.hold(l.now, next)
		return
	}
	l.emit(OnTrial, &last, Event{Changes: changes, Text: l.toWhat(&last, to)})
	at.trial = &trial{step: last, to: to, at: l.cfg.Now(), strength: at.strengths.median(), imposed: at.imposed.median()}
	at.trial.delay, _, _ = l.delayNow(at, &last, min(l.span(), mostWindows))
	at.enter(Relaxing, l.now)
}

func (l *Loop) toWhat(s *step, a *Action) string {
	if a == nil {
		return "to what it was"
	}
	return "to " + s.remedy.amount(a)
}

// forget drops what would be active, in mode Preview.
func (l *Loop) forget(ctx context.Context, at *escalation) {
	for i := len(at.steps) - 1; i >= 0; i-- {
		s := at.steps[i]
		_, _ = l.overrides.unset(ctx, at.owner(), s.action) // nothing is written
		l.emit(Relaxed, &s, Event{Text: "no finding any more"})
	}
	at.steps = nil
	at.hold(l.now, 0)
}

// judgeTrial ends a trial: badly as soon as most windows are bad. That of a step which
// has not shown whether it helps is to show it, and takes as long as that may take.
func (l *Loop) judgeTrial(ctx context.Context, at *escalation, s detect.Symptom) {
	t := at.trial
	if !l.settled(t.at, t.step.remedy) {
		return
	}
	at.seen.count(s.Strength, !l.bad(at, &s))
	effect := &Effect{Before: t.strength, After: median(at.seen.strengths), Better: at.seen.hits, Windows: at.seen.windows}
	if t.step.undecided {
		l.judgeControl(ctx, at, effect)
		return
	}
	most := max(lookBack/2+1, int(mostLate/l.window))
	switch {
	case at.seen.hits >= most:
		l.emit(Relaxed, &t.step, Event{Effect: effect, Text: l.toWhat(&t.step, t.to)})
		at.hold(l.now, next)
	case at.seen.windows-at.seen.hits >= most:
		l.restore(ctx, at, effect, "")
	}
}

// judgeControl compares the windows without a step, of this trial and those before, with those
// in which it was verified. It is active again if the victim is worse without it, and taken back
// if it is not. Where neither is shown the next trial is to show it; but a step that costs others
// more than it may is taken back after some of them.
func (l *Loop) judgeControl(ctx context.Context, at *escalation, effect *Effect) {
	t := at.trial
	y, held, before := &at.seen.delay, &t.step.held, &t.step.delay
	if d, _, known := l.delayNow(at, &t.step, 1); known && held.windows() > 0 {
		y.add(&d, before)
	}
	if at.seen.windows < l.failAfter() {
		return
	}
	without := t.step.without
	without.join(y)
	more, no := false, false
	if without.windows() > 1 {
		more, no = without.loss(held, before, t.step.remedy.Yields, l.window)
	}
	overdue := l.now.Sub(t.at) >= max(decideWithin, decideWindows*l.window)
	switch {
	case more:
		l.restore(ctx, at, effect, "")
		if n := len(at.steps); n > 0 && at.phase == Verifying {
			at.steps[n-1].undecided, at.steps[n-1].proven = false, l.now
			at.hold(l.now, at.wait)
		}
	case no || overdue && (effect.After < 1 || held.windows() == 0):
		if effect.After >= 1 { // else the suspect may be gone
			l.blame(at, &t.step.action, noHelp)
		}
		l.emit(Relaxed, &t.step, Event{Effect: effect, Text: "the victim is no worse without it"})
		at.hold(l.now, next)
	case overdue && !t.step.remedy.Yields && t.step.trials+1 >= mostTrials:
		l.blame(at, &t.step.action, notShown)
		l.emit(Relaxed, &t.step, Event{Effect: effect, Text: fmt.Sprintf("%d trials have not shown that it helps", mostTrials)})
		at.hold(l.now, next)
	case overdue:
		t.step.without = without
		t.step.trials++
		l.restore(ctx, at, effect, "not decided yet; ")
		if n := len(at.steps); n > 0 && at.phase == Verifying {
			at.hold(l.now, at.wait)
		}
	}
}

// restore applies again what a trial took away, which has to show again that it helps. What must not be any more, as
// the group is protected now, or gone, stays taken away.
func (l *Loop) restore(ctx context.Context, at *escalation, effect *Effect, why string) {
	s := at.trial.step
	if refusal := l.permits(s.action); refusal != "" {
		l.emit(Reverted, &s, Event{Effect: effect, Text: refusal})
		at.hold(l.now, l.cfg.Hold)
		return
	}
	changes, err := l.overrides.set(ctx, at.owner(), s.action)
	at.wait = min(2*at.wait, l.maxHold())
	if err != nil {
		l.report(&s, err)
		at.hold(l.now, at.wait)
		return
	}
	if n, to := len(at.steps), at.trial.to; n > 0 && to != nil && !same(to, s.before) && same(&at.steps[n-1].action, to) {
		at.steps = at.steps[:n-1] // the weaker one; that before the step stays
	}
	s.at, s.strength, s.imposed = l.cfg.Now(), effect.After, at.imposed.last()
	if d := l.delayBefore(at, s.action.Suspect, min(at.seen.windows, mostWindows)); d.total > 0 && !s.undecided {
		s.delay = d // what one that is undecided is compared by stays
	}
	at.steps = append(at.steps, s)
	l.emit(Restored, &s, Event{Changes: changes, Effect: effect, Text: fmt.Sprintf("%snext trial in %v", why, at.wait)})
	at.trial = nil
	at.enter(Verifying, l.now)
}
