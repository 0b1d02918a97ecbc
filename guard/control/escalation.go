package control

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/plain"
)

// Phase is where the loop stands with one victim and resource.
type Phase = plain.Enum[phases]

// The phases.
const (
	Clear      Phase = iota // nothing is active
	Verifying               // an action has to show that it helps
	Holding                 // what helped is active
	Relaxing                // some of it was reverted on trial
	Unresolved              // nothing helps, or may be done; the cool-down runs
)

type phases struct{}

var phaseNames = []string{Clear: "clear", Verifying: "verifying", Holding: "holding", Relaxing: "relaxing", Unresolved: "unresolved"}

func (phases) Words() []string { return phaseNames }

const (
	lookBack = 5    // windows whose median is the strength, at least, and of a trial
	maxLost  = 3    // windows without signals for which actions are held, at least
	well     = 0.8  // strength up to which a victim is well
	wellCPI  = 0.95 // likewise by cycles per instruction: as usual is 0.91, a tenth below what is unusual
	weaker   = 0.8  // of the strength before, at most, is better
	marked   = 1.2  // strength from which on neighbours are acted on
	worse    = 1.25 // of it, at least, makes a trial bad
)

// escalation has the steps for one victim and resource.
type escalation struct {
	victim   string
	resource detect.Resource
	near     bool // it is judged by the short windows
	phase    Phase
	since    time.Time
	steps    []step // active, the first taken first; in phase Verifying the last is on probation
	trial    *trial
	seen     look
	// strengths are those of the last windows.
	strengths ring
	kept      time.Time     // when it was last looked at
	passed    time.Duration // from the time before to that
	imposed   ring          // likewise, of what others impose, where that is known
	lost      int           // windows without signals in a row
	found     time.Time     // of the last finding
	unwell    time.Time     // when the victim was last not well
	wait      time.Duration
	relaxAt   time.Time     // when a relaxation is due
	deferred  bool          // it is later than usual, see Loop.deferTrial
	relaxed   time.Time     // of the last relaxation
	lasted    time.Duration // from then on back to when the step had shown that it helps
	until     time.Time     // end of the last cool-down
	cooling   verdicts      // suspects about whom nothing helps, or may be done, whatever the remedy
	refused   time.Time     // of the last refusal for the rate limit
	failed    verdicts      // remedies that did not help, until when that counts
	helped    verdicts      // remedies that did
	spared    verdicts      // suspects that were left alone, until when that is not told again
}

// step is an active action.
type step struct {
	action     Action
	remedy     *Remedy
	before     *Action // of the same remedy, which this one replaced, or nil
	at         time.Time
	strength   float64 // before it
	imposed    float64 // likewise, of what others imposed; 0 if it was not known
	delay      delayed // likewise, of the run delay that is due to its suspect
	undecided  bool    // it has not shown whether it helps
	held       tally   // then, the run delay while it was verified
	without    tally   // then, that in its trials so far
	trials     int     // then, how many there were
	memory     int64   // that its group had in use before the first step by the remedy, in bytes
	confidence float64
	evidence   []detect.Evidence
	use        float64       // the most that its group used just before it or since, in CPUs
	proven     time.Time     // when it last showed that it helps
	starved    time.Duration // for how long the group has had less than its floor
}

// trial is a relaxation that is being looked at.
type trial struct {
	step     step // as it was
	to       *Action
	at       time.Time
	strength float64 // before it
	imposed  float64 // likewise, of what others imposed
	delay    delayed // likewise, of the run delay
}

// look counts windows since a change.
type look struct {
	windows, hits int
	cured         int // of the hits, those whatever the run delay was
	strengths     []float64
	delay         tally
}

type verdict struct {
	suspect string
	remedy  detect.Remedy
	until   time.Time
	why     string // for failed
}

type verdicts []verdict

// add takes in a verdict, in place of one about the same; those that do not count any more go.
func (all *verdicts) add(now time.Time, new verdict) {
	*all = append(slices.DeleteFunc(*all, func(v verdict) bool {
		return !now.Before(v.until) || v.suspect == new.suspect && v.remedy == new.remedy
	}), new)
}

// about returns the verdict that counts about a suspect and remedy, or nil.
func (all verdicts) about(now time.Time, suspect string, r detect.Remedy) *verdict {
	i := slices.IndexFunc(all, func(v verdict) bool { return v.suspect == suspect && v.remedy == r && now.Before(v.until) })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// Why a remedy has failed.
const (
	noHelp     = "it was tried and did not help"
	notShown   = "trials have not shown that it helps"
	notApplied = "it could not be applied"
	notOurs    = "somebody else sets the same"
)

// ring is the strengths of the last windows, lookBack of them or more, to make up half a second.
type ring struct {
	values [mostLook]float64
	n      int
	span   int // how many count
}

const mostLook = 16

// span is how many windows are looked back on.
func (l *Loop) span() int { return min(max(lookBack, int(lasting/l.window)), mostLook) }

func (r *ring) add(v float64, span int) {
	r.values[r.n%mostLook] = v
	r.n++
	r.span = span
}

func (r *ring) last() float64 {
	if r.n == 0 {
		return 0
	}
	return r.values[(r.n-1)%mostLook]
}

func (r *ring) median() float64 {
	var of [mostLook]float64
	n := min(r.n, r.span)
	for i := range n {
		of[i] = r.values[(r.n-1-i)%mostLook]
	}
	return median(of[:n])
}

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

func (at *escalation) owner() string { return at.victim + "\x00" + at.resource.String() }

func (at *escalation) enter(p Phase, now time.Time) { at.phase, at.since, at.seen = p, now, look{} }

// hold enters the phase that follows a change: Holding, or Clear with nothing left.
func (at *escalation) hold(now time.Time, wait time.Duration) {
	at.relaxAt, at.deferred = now.Add(wait), false
	at.trial = nil
	switch {
	case len(at.steps) > 0:
		at.enter(Holding, now)
	case now.Before(at.until):
		at.enter(Unresolved, now)
	default:
		at.enter(Clear, now)
	}
}

// soonAfter reports whether a finding comes so soon after a relaxation that this had
// been too early.
func (at *escalation) soonAfter(now time.Time) bool {
	return now.Sub(at.relaxed) <= 2*max(at.wait, at.lasted)
}

// well is the strength up to which the victim is well.
func (at *escalation) well() float64 {
	if at.ofCache() {
		return wellCPI
	}
	return well
}

// done reports whether there is nothing to remember.
func (at *escalation) done(now time.Time) bool {
	current := func(v verdict) bool { return now.Before(v.until) }
	return len(at.steps) == 0 && at.trial == nil && !now.Before(at.until) && !at.soonAfter(now) &&
		!slices.ContainsFunc(at.failed, current) && !slices.ContainsFunc(at.spared, current) && now.Sub(at.found) > at.wait
}

// held is the last step by a remedy against a suspect.
func (at *escalation) held(suspect string, r detect.Remedy) *step {
	for i := len(at.steps) - 1; i >= 0; i-- {
		if a := &at.steps[i].action; a.Suspect == suspect && a.Remedy == r {
			return &at.steps[i]
		}
	}
	return nil
}

// reconcile verifies, relaxes and reverts the steps of an escalation, before the loop looks at
// new findings.
func (l *Loop) reconcile(ctx context.Context, at *escalation) {
	if !l.keep(ctx, at) {
		return
	}
	symptom, known := l.symptom(at.victim, at.resource)
	if !known {
		l.lose(ctx, at)
		return
	}
	at.lost = 0
	at.strengths.add(symptom.Strength, l.span())
	if symptom.Imposed != nil {
		at.imposed.add(*symptom.Imposed, l.span())
	}
	if at.strengths.median() > at.well() && !l.explained(at.victim, at.resource) && !l.freed(at) {
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
		l.hold(ctx, at)
	case Holding:
		l.hold(ctx, at)
	}
}

// hold looks after what is active between two changes. For a trial of a step that has not shown
// whether it helps, the run delay under it goes on being measured.
func (l *Loop) hold(ctx context.Context, at *escalation) {
	if n := len(at.steps); n > 0 && at.steps[n-1].undecided {
		s := &at.steps[n-1]
		if d, _, known := l.delayNow(at, s, 1); known && s.delay.total > 0 {
			s.held.add(&d, &s.delay)
		}
	}
	l.ensureMinimum(ctx, at)
	l.deferTrial(at)
	l.relax(ctx, at)
}

// rest stands in for reconcile while there are no windows for the symptom.
func (l *Loop) rest(ctx context.Context, at *escalation) {
	if l.keep(ctx, at) {
		l.ensureMinimum(ctx, at)
		l.deferTrial(at)
	}
}

// move has an escalation judged by windows of the other length. Earlier measurements do not
// compare with those: active steps are held, and verified if they have not been yet. While
// something is active by the long windows, which always come, it stays with those.
func (l *Loop) move(at *escalation, near bool) {
	inForce := len(at.steps) > 0 || at.trial != nil
	if at.near == near || near && inForce {
		return
	}
	at.near, at.strengths, at.imposed, at.lost = near, ring{}, ring{}, 0
	if !inForce {
		return
	}
	verified := at.phase != Verifying
	for i := range at.steps {
		s := &at.steps[i]
		verified = verified && !s.undecided
		s.imposed, s.delay, s.held, s.without, s.trials = 0, delayed{}, tally{}, tally{}, 0
		s.undecided, s.at, s.proven = false, l.now, l.now
	}
	at.hold(l.now, l.cfg.Hold)
	if !verified {
		at.enter(Verifying, l.now)
	}
}

// keep reverts what must not be any more, and sees what the groups of the rest use;
// false if nothing is left, as the victim is gone.
func (l *Loop) keep(ctx context.Context, at *escalation) bool {
	if !at.kept.IsZero() {
		at.passed = l.now.Sub(at.kept)
	}
	at.kept = l.now
	if l.byGroup[at.victim] == nil {
		l.drop(ctx, at, "the victim is gone")
		*at = escalation{victim: at.victim, resource: at.resource, near: at.near, since: l.now, wait: l.cfg.Hold}
		return false
	}
	l.withdraw(ctx, at)
	for i := range at.steps {
		s := &at.steps[i]
		if w := l.byGroup[s.action.Group]; w != nil && !math.IsNaN(w.Use) && !(w.Use <= s.use) {
			s.use = w.Use // the window that it was acted in may have begun before it
		}
	}
	return true
}

// symptom is how strong the victim's symptom is; false if that is not known.
func (l *Loop) symptom(victim string, r detect.Resource) (detect.Symptom, bool) {
	if l.in.Symptoms == nil || l.late {
		return detect.Symptom{}, false
	}
	return l.in.Symptoms.Symptom(victim, r)
}

// withdraw reverts what must not be any more.
func (l *Loop) withdraw(ctx context.Context, at *escalation) {
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

// lose holds on for some windows without signals, and then reverts a step per
// window.
func (l *Loop) lose(ctx context.Context, at *escalation) {
	if at.lost++; at.lost <= max(maxLost, int(mostLate/l.window)) || len(at.steps) == 0 {
		return
	}
	l.pop(ctx, at, fmt.Sprintf("no signal of %s for %d windows", at.victim, at.lost), nil)
	at.hold(l.now, at.wait)
}

// pop takes the last step back, to the one that it replaced; if the group is gone, or everything is released, to what
// was there before the first.
func (l *Loop) pop(ctx context.Context, at *escalation, why string, effect *Effect) {
	s := at.steps[len(at.steps)-1]
	at.steps = at.steps[:len(at.steps)-1]
	before := s.before
	if l.byGroup[s.action.Group] == nil {
		before = nil
	}
	changes, err := l.put(ctx, at, s.action, before)
	if err != nil {
		l.report(&s, fmt.Errorf("%s: %w", why, err))
		return
	}
	l.emit(Reverted, &s, Event{Changes: changes, Effect: effect, Text: why})
}

// put replaces an escalation's action by another of the same knob, or by none.
func (l *Loop) put(ctx context.Context, at *escalation, a Action, by *Action) ([]Change, error) {
	if by != nil {
		return l.overrides.set(ctx, at.owner(), *by)
	}
	return l.overrides.unset(ctx, at.owner(), a)
}

// report files an error of the Actuator.
func (l *Loop) report(s *step, err error) {
	if err != nil {
		l.emit(Failed, s, Event{Alert: true, Text: err.Error()})
	}
}

// drop takes all of an escalation back, the last step first.
func (l *Loop) drop(ctx context.Context, at *escalation, why string) {
	for len(at.steps) > 0 {
		l.pop(ctx, at, why, nil)
	}
	at.trial = nil
}
