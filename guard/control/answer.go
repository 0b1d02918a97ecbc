package control

import (
	"context"
	"fmt"
	"slices"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/machine"
)

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

// explained reports whether a finding says that the victim lacks CPU time, or
// cycles, for a reason that is no neighbour. How much of a wait steal explains is for
// the detector to say.
func (l *Loop) explained(victim string, r detect.Resource) bool {
	switch r {
	case detect.CPU, detect.MemoryBandwidth, detect.LLC, detect.SMT:
	default:
		return false
	}
	return slices.ContainsFunc(l.in.Findings, func(f detect.Finding) bool {
		switch f.Resource {
		case detect.OwnLimit:
			return f.Victim == victim
		case detect.OwnLoad:
			return f.Victim == victim && r == detect.CPU
		case detect.Hypervisor:
			return f.Victim == victim && r != detect.CPU
		}
		return false
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
	if f.Suspect != "" && symptom.Typical > 0 && symptom.Typical < plain {
		return
	}
	if at.cured(f.Suspect, symptom) {
		return
	}
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

// cured reports whether the last step, against the suspect, has ended what others
// impose: what is left is the victim's own queue, and worth no further step.
func (at *ladder) cured(suspect string, now detect.Symptom) bool {
	if len(at.steps) == 0 || now.Imposed == nil {
		return false
	}
	last := &at.steps[len(at.steps)-1]
	return last.action.Suspect == suspect && last.imposed >= 1 && *now.Imposed < 1
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
		if symptom.Imposed != nil {
			s.imposed = *symptom.Imposed
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
	outcome, text := Refused, fmt.Sprintf("left alone for %v", l.cfg.CoolDown)
	if tried {
		outcome = GaveUp
	}
	if len(at.steps) > 0 && l.cfg.Mode == Enforce {
		text += "; what is in force for the victim stays"
	}
	l.events = append(l.events, Event{
		Time: l.now, Mode: l.cfg.Mode, Outcome: outcome, Victim: f.Victim, Suspect: f.Suspect, Resource: f.Resource,
		Confidence: f.Confidence, Evidence: f.Evidence, Skipped: skipped, Alert: tried, Text: text,
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
		if at.soonAfter(l.now) {
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
