package control

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/machine"
)

// Phase is where the loop stands with one victim and resource.
type Phase uint8

// The phases.
const (
	Clear      Phase = iota // nothing is in force
	Verifying               // an action has to show that it helps
	Holding                 // what helped is in force
	Relaxing                // some of it was taken back on trial
	Unresolved              // nothing helps, or may be done; the cool-down runs
)

var phaseNames = []string{Clear: "clear", Verifying: "verifying", Holding: "holding", Relaxing: "relaxing", Unresolved: "unresolved"}

// String returns the phase's name, "verifying".
func (p Phase) String() string { return name(phaseNames, int(p)) }

// MarshalText writes the phase's name.
func (p Phase) MarshalText() ([]byte, error) { return marshal(phaseNames, int(p)) }

// UnmarshalText reads the phase's name.
func (p *Phase) UnmarshalText(text []byte) error { return unmarshal(phaseNames, text, p) }

const (
	lookBack = 5    // windows whose median is the strength, and of a trial
	maxLost  = 3    // windows without signals for which actions are held
	well     = 0.8  // strength up to which a victim is well
	better   = 0.8  // of the strength before, at most, is better
	worse    = 1.25 // of it, at least, makes a trial bad
)

// delay is how long a remedy takes to act: lines of a cache are replaced only when
// others come, memory is reclaimed bit by bit.
func delay(r detect.Remedy) time.Duration {
	switch r {
	case detect.CacheWays, detect.IOWeight:
		return time.Second
	case detect.MemoryHigh:
		return 2 * time.Second
	}
	return 0
}

// ladder is what is done for one victim and resource.
type ladder struct {
	victim   string
	resource detect.Resource
	phase    Phase
	since    time.Time
	steps    []step // in force, the first taken first; in phase Verifying the last is on probation
	trial    *trial
	seen     look
	// strengths are those of the last windows.
	strengths ring
	imposed   ring      // likewise, what of them is others' doing, where that is known
	lost      int       // windows without signals in a row
	found     time.Time // of the last finding
	unwell    time.Time // when the victim was last not well
	wait      time.Duration
	relaxAt   time.Time // when a relaxation is due
	relaxed   time.Time // of the last relaxation
	until     time.Time // end of the last cool-down
	cooling   []verdict // suspects about whom nothing helps, or may be done, whatever the remedy
	refused   time.Time // of the last refusal for the rate limit
	failed    []verdict // remedies that did not help, until when that counts
	helped    []verdict // remedies that did
}

// step is an action in force.
type step struct {
	action     Action
	before     *Action // of the same remedy, which this one replaced; nil is none
	at         time.Time
	strength   float64 // before it
	imposed    float64 // of that, others' doing; 0 if it was not known
	floor      int64   // for MemoryHigh, of the first step
	confidence float64
	evidence   []detect.Evidence
	use        float64       // of its group before it, in CPUs
	starved    time.Duration // for how long the group has had less than its floor
}

// trial is a relaxation that is being looked at.
type trial struct {
	step     step // as it was
	to       *Action
	at       time.Time
	strength float64 // before it
	imposed  float64 // of that, others' doing
}

// look counts windows since a change.
type look struct {
	windows, hits int
	strengths     []float64
}

type verdict struct {
	suspect string
	remedy  detect.Remedy
	until   time.Time
	why     string // for failed
}

// Why a remedy has failed.
const (
	noHelp     = "it was tried and did not help"
	notApplied = "it could not be applied"
	notOurs    = "somebody else sets the same"
)

// ring is the strengths of the last windows.
type ring struct {
	values [lookBack]float64
	n      int
}

func (r *ring) add(v float64) {
	r.values[r.n%lookBack] = v
	r.n++
}

func (r *ring) last() float64 {
	if r.n == 0 {
		return 0
	}
	return r.values[(r.n-1)%lookBack]
}

func (r *ring) median() float64 { return median(r.values[:min(r.n, lookBack)]) }

// median is the upper one of an even number, 0 of none.
func median(of []float64) float64 {
	if len(of) == 0 {
		return 0
	}
	var room [16]float64
	sorted := append(room[:0], of...)
	slices.Sort(sorted)
	return sorted[len(sorted)/2]
}

func (at *ladder) owner() string { return at.victim + "\x00" + at.resource.String() }

func (at *ladder) enter(p Phase, now time.Time) { at.phase, at.since, at.seen = p, now, look{} }

// hold enters the phase that follows a change: Holding, or Clear with nothing left.
func (at *ladder) hold(now time.Time, wait time.Duration) {
	at.relaxAt = now.Add(wait)
	at.trial = nil
	if len(at.steps) == 0 {
		at.enter(Clear, now)
		return
	}
	at.enter(Holding, now)
}

// done reports whether there is nothing to remember.
func (at *ladder) done(now time.Time) bool {
	current := func(v verdict) bool { return now.Before(v.until) }
	return len(at.steps) == 0 && at.trial == nil && !now.Before(at.until) && now.Sub(at.relaxed) > 2*at.wait &&
		!slices.ContainsFunc(at.failed, current) && now.Sub(at.found) > at.wait
}

// held is the last step by a remedy against a suspect.
func (at *ladder) held(suspect string, r detect.Remedy) *step {
	for i := len(at.steps) - 1; i >= 0; i-- {
		if a := &at.steps[i].action; a.Suspect == suspect && a.Remedy == r {
			return &at.steps[i]
		}
	}
	return nil
}

// tend does what is due about a ladder before new findings are looked at.
func (l *Loop) tend(ctx context.Context, at *ladder) {
	if l.byGroup[at.victim] == nil {
		l.drop(ctx, at, "the victim is gone")
		*at = ladder{victim: at.victim, resource: at.resource, since: l.now, wait: l.cfg.Hold}
		return
	}
	l.withdraw(ctx, at)
	symptom, known := l.symptom(at.victim, at.resource)
	if !known {
		l.lose(ctx, at)
		return
	}
	at.lost = 0
	at.strengths.add(symptom.Strength)
	if v, ok := symptom.Imposed(); ok {
		at.imposed.add(v)
	}
	if at.strengths.median() > well && !l.explained(at.victim, at.resource) {
		at.unwell = l.now
	}
	switch at.phase {
	case Verifying:
		l.verify(ctx, at, symptom)
	case Relaxing:
		l.judgeTrial(ctx, at, symptom)
	case Unresolved:
		if !l.now.Before(at.until) {
			at.hold(l.now, 0)
		}
		l.feed(ctx, at)
		l.relax(ctx, at)
	case Holding:
		l.feed(ctx, at)
		l.relax(ctx, at)
	}
}

// symptom is how strong the victim's symptom is; false if that is not known.
func (l *Loop) symptom(victim string, r detect.Resource) (detect.Symptom, bool) {
	if l.in.Symptoms == nil || l.late {
		return detect.Symptom{}, false
	}
	s, ok := l.in.Symptoms.Symptom(victim, r)
	return s, ok && !math.IsNaN(s.Strength)
}

// withdraw takes back what must not be any more.
func (l *Loop) withdraw(ctx context.Context, at *ladder) {
	for i := len(at.steps) - 1; i >= 0; i-- {
		reason := l.permits(at.steps[i].action)
		if reason == "" {
			continue
		}
		for len(at.steps) > i {
			l.pop(ctx, at, reason, nil)
		}
		at.hold(l.now, l.cfg.Hold)
	}
}

// lose holds on for some windows without signals, and then takes back a step per
// window.
func (l *Loop) lose(ctx context.Context, at *ladder) {
	if at.lost++; at.lost <= maxLost || len(at.steps) == 0 {
		return
	}
	l.pop(ctx, at, fmt.Sprintf("no signal of %s for %d windows", at.victim, at.lost), nil)
	at.hold(l.now, at.wait)
}

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
	v, known := now.Imposed()
	return known && v < 1 && s.imposed >= 1 && v <= better*s.imposed
}

// bad reports whether a window is worse than before the trial, by the whole
// symptom or by what others impose.
func (t *trial) bad(now *detect.Symptom) bool {
	if now.Strength < 1 {
		return false
	}
	v, known := now.Imposed()
	return now.Strength >= worse*t.strength || known && v >= max(1, worse*t.imposed)
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

// current are the verdicts that still count and are not about the same.
func (l *Loop) current(all []verdict, but verdict) []verdict {
	return slices.DeleteFunc(all, func(v verdict) bool {
		return !l.now.Before(v.until) || v.suspect == but.suspect && v.remedy == but.remedy
	})
}

// among returns the verdict that counts about a suspect and remedy, nil if there is none.
func (l *Loop) among(all []verdict, suspect string, r detect.Remedy) *verdict {
	i := slices.IndexFunc(all, func(v verdict) bool { return v.suspect == suspect && v.remedy == r && l.now.Before(v.until) })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// cool leaves a suspect alone for some time.
func (l *Loop) cool(at *ladder, suspect string) {
	v := verdict{suspect: suspect, until: l.now.Add(l.cfg.CoolDown)}
	at.cooling = append(l.current(at.cooling, v), v)
	at.until = v.until
	at.enter(Unresolved, l.now)
}

// pop takes the last step back, to the one that it replaced.
func (l *Loop) pop(ctx context.Context, at *ladder, why string, effect *Effect) {
	s := at.steps[len(at.steps)-1]
	at.steps = at.steps[:len(at.steps)-1]
	changes, err := l.put(ctx, at, s.action, s.before)
	l.emit(at, Reverted, &s, Event{Changes: changes, Effect: effect, Text: why})
	l.report(at, &s, err)
}

// put replaces a ladder's action by another of the same knob, or by none.
func (l *Loop) put(ctx context.Context, at *ladder, a Action, by *Action) ([]Change, error) {
	if by != nil {
		return l.book().set(ctx, at.owner(), *by)
	}
	return l.book().unset(ctx, at.owner(), a)
}

// report files an error of the Actuator.
func (l *Loop) report(at *ladder, s *step, err error) {
	if err != nil {
		l.emit(at, Failed, s, Event{Alert: true, Text: err.Error()})
	}
}

// drop takes all of a ladder back, the last step first.
func (l *Loop) drop(ctx context.Context, at *ladder, why string) {
	for len(at.steps) > 0 {
		l.pop(ctx, at, why, nil)
	}
	at.trial = nil
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
	at.relaxed = l.now
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

// explained reports whether a finding says that the victim lacks CPU time, or
// cycles, for a reason that is no neighbour.
func (l *Loop) explained(victim string, r detect.Resource) bool {
	switch r {
	case detect.CPU, detect.MemoryBandwidth, detect.LLC, detect.SMT:
	default:
		return false
	}
	return slices.ContainsFunc(l.in.Findings, func(f detect.Finding) bool {
		return f.Victim == victim && (f.Resource == detect.OwnLimit || f.Resource == detect.Hypervisor || f.Resource == detect.OwnLoad)
	})
}

// busy reports whether another ladder has a change under way whose effect could
// not be told from one here: to the same groups, or to the same cache domain.
func (l *Loop) busy(at *ladder, group string) bool {
	return slices.ContainsFunc(l.ladders, func(o *ladder) bool {
		if o == at || o.phase != Verifying && o.phase != Relaxing {
			return false
		}
		changing := o.changing()
		return related(changing.Group, group) || changing.Suspect != "" && related(changing.Suspect, group) ||
			at.ofCache() && o.ofCache() && l.shareCache(at.victim, o.victim)
	})
}

// changing is the action on probation or on trial.
func (at *ladder) changing() *Action {
	if at.trial != nil {
		return &at.trial.step.action
	}
	return &at.steps[len(at.steps)-1].action
}

func (at *ladder) ofCache() bool {
	return at.resource == detect.LLC || at.resource == detect.MemoryBandwidth
}

// shareCache reports whether two workloads may run in one last-level cache domain.
func (l *Loop) shareCache(a, b string) bool {
	x, y := l.byGroup[a], l.byGroup[b]
	if l.cfg.Machine == nil || x == nil || y == nil || x.CPUs.IsEmpty() || y.CPUs.IsEmpty() {
		return true
	}
	return slices.ContainsFunc(l.cfg.Machine.ByKind(machine.L3), func(d machine.Domain) bool {
		return d.CPUs.Overlaps(x.CPUs) && d.CPUs.Overlaps(y.CPUs)
	})
}

// answer does something about a finding, if something may and can be done now.
func (l *Loop) answer(ctx context.Context, f *detect.Finding) {
	if l.byGroup[f.Victim] == nil || !slices.ContainsFunc(f.Remedies, acts) || f.Suspect == "" && f.Resource != detect.OwnLimit {
		return
	}
	if l.explained(f.Victim, f.Resource) {
		return
	}
	at := l.ladder(f.Victim, f.Resource)
	at.found = l.now
	symptom, known := l.symptom(f.Victim, f.Resource)
	if !known || symptom.Strength < 1 || at.phase == Verifying || at.phase == Relaxing || l.among(at.cooling, f.Suspect, 0) != nil {
		return
	}
	if l.cfg.Mode == Preview && slices.ContainsFunc(at.steps, func(s step) bool { return s.action.Suspect == f.Suspect }) {
		return
	}
	on := f.Suspect
	if on == "" {
		on = f.Victim
	}
	if l.busy(at, on) || l.real.owesOf(on) {
		return
	}
	l.escalate(ctx, at, f, symptom)
}

// escalate takes the next rung of the ladder.
func (l *Loop) escalate(ctx context.Context, at *ladder, f *detect.Finding, symptom detect.Symptom) {
	var skipped []Skip
	tried := len(at.steps) > 0
	for _, r := range l.order(at, f) {
		if v := l.among(at.failed, f.Suspect, r); v != nil {
			skipped, tried = append(skipped, Skip{r, v.why}), true
			continue
		}
		held := at.held(f.Suspect, r)
		a, reason := l.propose(at, r, f.Suspect, held)
		if reason != "" {
			skipped = append(skipped, Skip{r, reason})
			continue
		}
		s := step{action: a, strength: symptom.Strength, confidence: f.Confidence, evidence: f.Evidence, use: l.byGroup[a.Group].Use}
		if symptom.Typical > 0 {
			s.strength = symptom.Typical
		}
		if symptom.Foreign != nil {
			s.imposed = s.strength * *symptom.Foreign
		}
		if held != nil {
			before := held.action
			s.before, s.floor = &before, held.floor
		} else if a.Remedy == detect.MemoryHigh {
			s.floor = max(int64(leastHighs*float64(l.byGroup[a.Group].Memory)), leastHigh)
		}
		done, again := l.take(ctx, at, s, skipped)
		if done || !again {
			return
		}
		skipped, tried = append(skipped, Skip{r, notApplied}), true
	}
	l.cool(at, f.Suspect)
	outcome := Refused
	if tried {
		outcome = GaveUp
	}
	l.events = append(l.events, Event{
		Time: l.now, Mode: l.cfg.Mode, Outcome: outcome, Victim: f.Victim, Suspect: f.Suspect, Resource: f.Resource,
		Confidence: f.Confidence, Evidence: f.Evidence, Skipped: skipped, Alert: tried, Text: fmt.Sprintf("left alone for %v", l.cfg.CoolDown),
	})
}

// order is the ladder of remedies, those first that have helped against the
// suspect before.
func (l *Loop) order(at *ladder, f *detect.Finding) []detect.Remedy {
	order := slices.Clone(f.Remedies)
	slices.SortStableFunc(order, func(a, b detect.Remedy) int {
		return rank(l.among(at.helped, f.Suspect, a) != nil) - rank(l.among(at.helped, f.Suspect, b) != nil)
	})
	return order
}

func rank(helped bool) int {
	if helped {
		return 0
	}
	return 1
}

// take puts a step into force. Done is true if it is; again if another may be tried
// instead.
func (l *Loop) take(ctx context.Context, at *ladder, s step, skipped []Skip) (done, again bool) {
	if !l.bucket.take(l.now) {
		if l.now.Sub(at.refused) >= time.Minute {
			at.refused = l.now
			l.emit(at, Refused, &s, Event{Alert: true, Text: fmt.Sprintf("more than %d actions a minute", l.cfg.PerMinute)})
		}
		return false, false
	}
	changes, err := l.book().set(ctx, at.owner(), s.action)
	if err != nil {
		v := verdict{suspect: s.action.Suspect, remedy: s.action.Remedy, until: l.now.Add(l.cfg.CoolDown), why: notApplied}
		at.failed = append(l.current(at.failed, v), v)
		l.report(at, &s, err)
		return false, !l.real.owesOf(s.action.Group)
	}
	if !at.relaxed.IsZero() {
		if l.now.Sub(at.relaxed) <= 2*at.wait {
			at.wait = min(2*at.wait, l.cfg.MaxHold)
		} else {
			at.wait = l.cfg.Hold
		}
		at.relaxed = time.Time{}
	}
	s.at = l.cfg.Now()
	at.steps = append(at.steps, s)
	if l.cfg.Mode == Preview {
		l.emit(at, WouldApply, &s, Event{Changes: changes, Skipped: skipped})
		at.hold(l.now, at.wait)
		return true, false
	}
	l.emit(at, Applied, &s, Event{Changes: changes, Skipped: skipped})
	at.enter(Verifying, l.now)
	return true, false
}
