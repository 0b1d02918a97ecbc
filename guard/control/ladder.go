package control

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/enum"
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
func (p Phase) String() string { return enum.Name(phaseNames, p) }

// MarshalText writes the phase's name.
func (p Phase) MarshalText() ([]byte, error) { return enum.Marshal(phaseNames, p) }

// UnmarshalText reads the phase's name.
func (p *Phase) UnmarshalText(text []byte) error { return enum.Unmarshal(phaseNames, text, p) }

const (
	lookBack = 5    // windows whose median is the strength, and of a trial
	maxLost  = 3    // windows without signals for which actions are held
	well     = 0.8  // strength up to which a victim is well
	better   = 0.8  // of the strength before, at most, is better
	plain    = 1.2  // strength from which on neighbours are acted on
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
	imposed   ring      // likewise, of what others impose, where that is known
	lost      int       // windows without signals in a row
	found     time.Time // of the last finding
	unwell    time.Time // when the victim was last not well
	wait      time.Duration
	relaxAt   time.Time     // when a relaxation is due
	putOff    bool          // it is later than usual, see Loop.putOff
	relaxed   time.Time     // of the last relaxation
	lasted    time.Duration // from then on back to when the step had shown that it helps
	until     time.Time     // end of the last cool-down
	cooling   []verdict     // suspects about whom nothing helps, or may be done, whatever the remedy
	refused   time.Time     // of the last refusal for the rate limit
	failed    []verdict     // remedies that did not help, until when that counts
	helped    []verdict     // remedies that did
}

// step is an action in force.
type step struct {
	action     Action
	before     *Action // of the same remedy, which this one replaced; nil is none
	at         time.Time
	strength   float64 // before it
	imposed    float64 // likewise, of what others imposed; 0 if it was not known
	floor      int64   // for MemoryHigh, of the first step
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
	at.relaxAt, at.putOff = now.Add(wait), false
	at.trial = nil
	if len(at.steps) == 0 {
		at.enter(Clear, now)
		return
	}
	at.enter(Holding, now)
}

// soonAfter reports whether a finding comes so soon after a relaxation that this had
// been too early.
func (at *ladder) soonAfter(now time.Time) bool {
	return now.Sub(at.relaxed) <= 2*max(at.wait, at.lasted)
}

// done reports whether there is nothing to remember.
func (at *ladder) done(now time.Time) bool {
	current := func(v verdict) bool { return now.Before(v.until) }
	return len(at.steps) == 0 && at.trial == nil && !now.Before(at.until) && !at.soonAfter(now) &&
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
	if !l.keep(ctx, at) {
		return
	}
	symptom, known := l.symptom(at.victim, at.resource)
	if !known {
		l.lose(ctx, at)
		return
	}
	at.lost = 0
	at.strengths.add(symptom.Strength)
	if symptom.Imposed != nil {
		at.imposed.add(*symptom.Imposed)
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
		l.putOff(at)
		l.relax(ctx, at)
	case Holding:
		l.feed(ctx, at)
		l.putOff(at)
		l.relax(ctx, at)
	}
}

// keep takes back what must not be any more, and sees what the groups of the rest use;
// false if nothing is left, as the victim is gone.
func (l *Loop) keep(ctx context.Context, at *ladder) bool {
	if l.byGroup[at.victim] == nil {
		l.drop(ctx, at, "the victim is gone")
		*at = ladder{victim: at.victim, resource: at.resource, since: l.now, wait: l.cfg.Hold}
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
